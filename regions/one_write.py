"""HTTP connections that send a response in one piece.

The server hands head and body of a response to the transport one after the other, and the transport sends each at once: two
system calls for the server, and two wake-ups for the client, where one of each will do.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OneWrite(HttpToolsProtocol):
    """The server's protocol on a transport that gathers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(cast(asyncio.Transport, Gathering(cast(asyncio.Transport, transport), self.loop)))


class Gathering:
    """A transport that sends what is written in one turn of the loop together, at its end or before it closes."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._pieces:
            self._loop.call_soon(self._send)
        if data:
            self._pieces.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """See `asyncio.WriteTransport`."""
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)
