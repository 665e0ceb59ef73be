"""HTTP connections of a gateway: plain reads are answered from the bytes that arrive, everything else by uvicorn's protocol.

Both send the same bytes. Beyond the framework (`regions.plain_reads`) most of a read's cost is the server's: its parser, an ASGI
scope and a task for each request, and a system call each for head and body of the response.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable
from functools import lru_cache
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from regions.answering import Headers, Reply
from regions.app import EdgeApp

#: A request's first line, as far as it is plain: path and query of characters that nobody reads in two ways.
_line = re.compile(rb"GET (/v1/boards/[A-Za-z0-9._~:%/+,;@!-]+)(?:\?([A-Za-z0-9._~:%/=&-]*))? HTTP/1\.1\r\n").match
#: All header lines and the end of the head, and nothing behind it.
_lines = re.compile(rb"(?:[A-Za-z0-9!#$%&'*+.^_`|~-]+:[\t -~]*\r\n)*\r\n").fullmatch
#: Headers that say something about the connection, or of a body.
_UNUSUAL = frozenset((b"content-length", b"expect", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"))


class EdgeProtocol(HttpToolsProtocol):
    """See the module docstring."""

    #: The parser is within a request.
    _within = False
    #: A plain read is being answered, and what has arrived behind it.
    _answering = False
    _behind = b""
    #: The server ends: no request after this one.
    _last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(cast(asyncio.Transport, Gathering(cast(asyncio.Transport, transport), self.loop)))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answering:
            self._behind += data
            self.flow.pause_reading()
        elif self._within or self.pipeline or not (self.cycle is None or self.cycle.response_complete) or not self._took(data):
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Of the parser."""
        self._within = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """Of the parser."""
        self._within = False
        super().on_message_complete()

    def shutdown(self) -> None:
        """Of the server, when it ends."""
        if self._answering:
            self._last = True
        else:
            super().shutdown()

    def _took(self, data: bytes) -> bool:
        """Whether this is one plain read; it is being answered then."""
        head = plain_head(data)
        found = self.config.app.short(*head) if head is not None and isinstance(self.config.app, EdgeApp) else None
        if found is None:
            return False
        self._unset_keepalive_if_required()
        if isinstance(found, Reply):
            self._send(found)
        else:
            self._answering = True
            task = self.loop.create_task(self._answer(found))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return True

    async def _answer(self, found: Coroutine[Any, Any, Reply]) -> None:
        reply = await found
        self._answering = False
        if self.transport.is_closing():
            return
        self._send(reply)
        if self._last:
            self.transport.close()
        elif self._behind:
            behind, self._behind = self._behind, b""
            self.data_received(behind)

    def _send(self, reply: Reply) -> None:
        pieces = [STATUS_LINE[reply.status_code]]
        for name, value in (*self.server_state.default_headers, *reply.raw_headers):
            pieces += (name, b": ", value, b"\r\n")
        if self._last:
            pieces.append(b"connection: close\r\n")
        self.transport.write(b"".join((*pieces, b"\r\n", reply.body)))
        self.on_response_complete()


def plain_head(data: bytes) -> tuple[bytes, bytes, Headers] | None:
    """Raw path, query and headers of a GET, if `data` is one whole request and nothing about it needs a real parser."""
    line = _line(data)
    headers = None if line is None else _headers(data[line.end() :])
    return None if line is None or headers is None else (line[1], line[2] or b"", headers)


@lru_cache(maxsize=4096)
def _headers(lines: bytes) -> Headers | None:
    """Headers as a server tells them; None for anything unusual. Clients send the same ones again and again."""
    if not _lines(lines):
        return None
    found = []
    for line in lines[:-4].split(b"\r\n") if len(lines) > 2 else ():
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name in _UNUSUAL or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        found.append((name, value))
    return found


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
