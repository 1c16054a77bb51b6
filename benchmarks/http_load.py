"""Fast HTTP client for load tests: one process, plain sockets, no HTTP library.

It supports the subset of HTTP/1.1 that the server uses: Content-Length bodies and persistent connections.
"""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Response:
    """Response to a request; status 0 if the connection was closed before a response."""

    status: int
    began: float  # time.monotonic() when the request was sent
    seconds: float
    body: bytes = b""
    late: float = 0.0  # seconds by which the client missed its schedule


def request(host: str, port: int, path: str, picture: bytes) -> bytes:
    """Build a request that uploads an image."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}"
    return head.encode() + b"\r\n\r\n" + picture


class Connection(asyncio.Protocol):
    """Connection that sends one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.open = False

    def connection_made(self, transport: Any) -> None:
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result((0, b""))

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.received[:end]).lower()
        at = head.index(b"content-length:") + 15
        length = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else len(head)])
        if len(self.received) < end + 4 + length:
            return
        body = bytes(self.received[end + 4 : end + 4 + length])
        del self.received[: end + 4 + length]
        if b"connection: close" in head:
            self.open = False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result((int(head[9:12]), body))

    async def send(self, request_bytes: bytes) -> Response:
        assert self.transport is not None
        began = time.monotonic()
        self.waiting = asyncio.get_running_loop().create_future()
        if self.open:
            self.transport.write(request_bytes)
        else:
            self.waiting.set_result((0, b""))
        status, body = await self.waiting
        return Response(status, began, time.monotonic() - began, body)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


async def connect(host: str, port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection


async def closed_loop(
    host: str, port: int, requests: Sequence[bytes], clients: int, seconds: float, keep: list[Response] | None = None
) -> list[Response]:
    """Run clients that each send the next request after a response, until the time is over."""
    found: list[Response] = [] if keep is None else keep
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        connection = await connect(host, port)
        turn = number
        while time.monotonic() < end and connection.open:
            found.append(await connection.send(requests[turn % len(requests)]))
            turn += clients
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return found


async def open_loop(host: str, port: int, requests: Sequence[bytes], rate: float, seconds: float) -> list[Response]:
    """Send requests at a fixed rate, without waiting for responses."""
    found: list[Response] = []
    free: list[Connection] = []
    tasks: set[asyncio.Task[None]] = set()

    async def send(number: int) -> None:
        while free and not free[-1].open:
            free.pop()
        connection = free.pop() if free else await connect(host, port)
        response = await connection.send(requests[number % len(requests)])
        found.append(dataclasses.replace(response, late=response.began - began - number / rate))
        free.append(connection)

    began, number = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while number < now * rate:
            task = asyncio.create_task(send(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return found
