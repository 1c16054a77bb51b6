"""How the server says no: always `{"error": {"code": ..., "message": ...}}`, whoever found the mistake."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

CLIENT_LEFT = 499
NOT_A_NUMBER = "the model's answer is not a number"  # as predictors say it
logger = logging.getLogger("vitreous.serve")


class ApiError(HTTPException):
    """A request that is not answered, and why. `code` is for programs, `message` for people.

    >>> ApiError(404, "unknown_image", "send it again").status_code
    404
    """

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(status, message, dict(headers) if headers else None)
        self.code, self.message = code, message


def busy(message: str = "too many requests are waiting") -> ApiError:
    return ApiError(429, "busy", f"{message}: try again in a second", {"Retry-After": "1"})


def unreadable(reason: str | None) -> ApiError:
    """A picture without an answer. That the model's numbers are none is not the picture's fault."""
    if reason == NOT_A_NUMBER:
        return ApiError(503, "broken_model", NOT_A_NUMBER)
    return ApiError(422, "unreadable_image", reason or "it cannot be decoded")


def error_body(code: str, message: str) -> dict[str, dict[str, str]]:
    return {"error": {"code": code, "message": message}}


def install(app: FastAPI) -> None:
    """From now on every error of the app has this form, also those that the framework finds."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unforeseen)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return JSONResponse(error_body(error.code, error.message), error.status_code, error.headers)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    said = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not for {request.url.path}: use {(error.headers or {}).get('Allow', 'another')}",
    }
    return JSONResponse(error_body(code, said.get(status, str(error.detail))), status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong, by its name."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"][1:]) or str(first["loc"][0])
    if first["type"] == "json_invalid":
        return JSONResponse(error_body("bad_json", f"the body is not JSON: {first['ctx']['error']}"), 400)
    return JSONResponse(error_body("bad_parameter", f"{where}: {first['msg'].lower()}"), 422)


async def _left(request: Request, error: Exception) -> JSONResponse:
    """Nobody hears it; the metrics know it by this number."""
    return JSONResponse(error_body("client_left", "the client went away"), CLIENT_LEFT)


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    """The error itself goes on to whoever runs the app, and into the log."""
    return JSONResponse(error_body("internal", "the server made a mistake; its log says which"), 500)
