"""Clients that go away before their answer is there: nothing more is done for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from fastapi import Request

from vitreous.serving.errors import CLIENT_LEFT, ApiError


async def gone(request: Request) -> None:
    """Comes to an end when the client has left. The body has been read, so nothing else can come from it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, asked: Coroutine[Any, Any, Any]) -> Any:
    """What is asked for; when the client leaves first, it is cancelled."""
    answer, left = asyncio.ensure_future(asked), asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ApiError(CLIENT_LEFT, "client_left", "nobody waits for this answer any more")
        return answer.result()
    finally:
        answer.cancel()
        left.cancel()
