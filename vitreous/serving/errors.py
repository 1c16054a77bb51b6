"""Error responses. All errors, also those of FastAPI, have the form `{"error": {"code": ..., "message": ...}}`."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitreous.inference.engine import NOT_A_NUMBER as NOT_A_NUMBER

CLIENT_DISCONNECTED = 499
logger = logging.getLogger("vitreous.serving")


class ApiError(HTTPException):
    """Error response with a `code` for programs and a `message` for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(status, message, dict(headers) if headers else None)
        self.code, self.message = code, message


def too_many_requests(message: str = "too many requests are waiting") -> ApiError:
    return ApiError(429, "busy", f"{message}; try again in a second", {"Retry-After": "1"})


def unreadable(reason: str | None) -> ApiError:
    """Return the error for an image without a result: status 422, or 503 if the model output is not finite."""
    if reason == NOT_A_NUMBER:
        return ApiError(503, "broken_model", NOT_A_NUMBER)
    return ApiError(422, "unreadable_image", reason or "the image cannot be decoded")


def error_body(code: str, message: str) -> dict[str, dict[str, str]]:
    return {"error": {"code": code, "message": message}}


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error_body(error.code, error.message), error.status_code, error.headers)


def install(app: FastAPI) -> None:
    """Install exception handlers that return every error in the format of this module."""

    async def disconnected(request: Request, error: Exception) -> JSONResponse:  # only counted in the metrics
        return JSONResponse(error_body("client_disconnected", "the client disconnected"), CLIENT_DISCONNECTED)

    async def unexpected(request: Request, error: Exception) -> JSONResponse:  # raised again and logged
        logger.error("request %s failed", request.scope.get("request_id"))
        return JSONResponse(error_body("internal", "internal server error; see the server log"), 500)

    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, disconnected)
    app.add_exception_handler(Exception, unexpected)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_response(error)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    messages = {
        404: f"unknown path {request.url.path}",
        405: f"method {request.method} is not allowed; use {(error.headers or {}).get('Allow', 'another method')}",
    }
    return JSONResponse(error_body(code, messages.get(status, str(error.detail))), status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Report the first invalid parameter by name."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(step) for step in first["loc"][1:]) or str(first["loc"][0])
    if first["type"] == "json_invalid":
        return JSONResponse(error_body("bad_json", f"the body is not valid JSON: {first['ctx']['error']}"), 400)
    return JSONResponse(error_body("bad_parameter", f"{name}: {first['msg'].lower()}"), 422)
