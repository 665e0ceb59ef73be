"""A response leaves in one piece, and the bytes are those that the server would have sent in two."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from regions.one_write import OneWrite

REQUEST = b"GET /x HTTP/1.1\r\nhost: region\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nhost: region\r\nconnection: close\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is sent, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        if data:
            self.sent.append(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for letter in b"ab":
        await send({"type": "http.response.body", "body": bytes([letter]), "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body"})


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 304, "headers": [(b"etag", b'"x"')]})
    await send({"type": "http.response.body"})


def sent(protocol: type[HttpToolsProtocol], served: Any, *requests: bytes) -> list[bytes]:
    """What one connection sends in answer to bytes that arrive one after the other, until it is closed."""

    async def story() -> list[bytes]:
        config = Config(served, lifespan="off", log_config=None, server_header=False, date_header=False, proxy_headers=False)
        wire = Wire()
        connection = protocol(config=config, server_state=ServerState(), app_state={})
        connection.connection_made(wire)
        for request in requests:
            connection.data_received(request)
        async with asyncio.timeout(5):
            await wire.closed.wait()
        connection.connection_lost(None)
        return wire.sent

    return asyncio.run(story())


@pytest.mark.parametrize("served", [app, streaming, nothing])
@pytest.mark.parametrize("requests", [(LAST,), (REQUEST, LAST), (REQUEST + REQUEST + LAST,), (LAST[:20], LAST[20:])])
def test_the_bytes_are_the_servers_own(served: Any, requests: tuple[bytes, ...]) -> None:
    assert b"".join(sent(OneWrite, served, *requests)) == b"".join(sent(HttpToolsProtocol, served, *requests))


def test_head_and_body_leave_together() -> None:
    assert len(sent(HttpToolsProtocol, app, LAST)) == 2, "else there is nothing to gather any more"
    assert len(sent(OneWrite, app, LAST)) == 1
    assert len(sent(OneWrite, nothing, LAST)) == 1
