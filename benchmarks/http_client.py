"""The leanest honest HTTP client: one keep-alive connection that sends ready-made bytes and waits for each answer.

It speaks what uvicorn answers (a Content-Length in every response) and nothing more. A Python HTTP library would
cost more CPU than the request it measures, on the machine that it shares with the regions.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast


class Lost(Exception):
    """The connection broke: what was under way has an unknown outcome."""


class HttpConnection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = bytearray()
        self._body_at = 0
        self._length = 0

    @classmethod
    async def open(cls, host: str, port: int) -> "HttpConnection":
        """Connect. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def ask(self, request: bytes, timeout_s: float = 20.0) -> tuple[int, bytes]:
        """(status, body). Raises `Lost`, also when there is no answer in time."""
        if self._transport is None or self._transport.is_closing():
            raise Lost("not connected")
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._transport.write(request)
        timer = loop.call_later(timeout_s, self.close)
        try:
            return await self._answer
        finally:
            timer.cancel()

    def close(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._body_at:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at, self._length = end + 4, content_length(bytes(buffer[:end]))
        if len(buffer) < self._body_at + self._length:
            return
        status, body = int(buffer[9:12]), bytes(buffer[self._body_at : self._body_at + self._length])
        buffer.clear()
        self._body_at = 0
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(str(exc or "closed")))


def content_length(head: bytes) -> int:
    """Length of the body, from a response's head; 0 where it names none."""
    lowered = head.lower()
    at = lowered.find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    end = lowered.find(b"\r\n", at + 2)
    return int(lowered[at + 17 : end if end >= 0 else len(lowered)])


def http_request(method: str, path: str, *, host: str, token: str, body: bytes = b"") -> bytes:
    """The bytes of a request with a bearer token."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
    if method == "POST":
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, as the gateways do."""
    import uvloop

    uvloop.run(work)
