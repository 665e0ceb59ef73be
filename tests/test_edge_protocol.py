"""Connections of a gateway: plain reads past the server's parser, responses in one piece, and always the server's own bytes."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from fake_backend import FakeBackend
from http_edge import SERVER, SOLO, World
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from actors.messages import Answer, Ask
from regions.edge_protocol import EdgeProtocol, plain_head

REQUEST = b"GET /x HTTP/1.1\r\nhost: region\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nhost: region\r\nconnection: close\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is sent, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        if data and not self.is_closing():
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


def connected(protocol: type[HttpToolsProtocol], served: Any) -> tuple[HttpToolsProtocol, Wire]:
    """A connection to a server, on the running loop."""
    config = Config(served, lifespan="off", log_config=None, server_header=False, date_header=False, proxy_headers=False)
    state, wire = ServerState(), Wire()
    state.default_headers = [(b"date", b"Mon, 30 Nov 2026 10:10:00 GMT")]
    connection = protocol(config=config, server_state=state, app_state={})
    connection.connection_made(wire)
    return connection, wire


def sent(protocol: type[HttpToolsProtocol], served: Any, *requests: bytes) -> list[bytes]:
    """What one connection sends in answer to bytes that arrive one after the other, until it is closed."""

    async def story() -> list[bytes]:
        connection, wire = connected(protocol, served)
        for request in requests:
            if not wire.is_closing():
                connection.data_received(request)
        async with asyncio.timeout(5):
            await wire.closed.wait()
        connection.connection_lost(None)
        return wire.sent

    return asyncio.run(story())


@pytest.mark.parametrize("served", [app, streaming, nothing])
@pytest.mark.parametrize("requests", [(LAST,), (REQUEST, LAST), (REQUEST + REQUEST + LAST,), (LAST[:20], LAST[20:])])
def test_the_bytes_are_the_servers_own(served: Any, requests: tuple[bytes, ...]) -> None:
    assert b"".join(sent(EdgeProtocol, served, *requests)) == b"".join(sent(HttpToolsProtocol, served, *requests))


def test_head_and_body_leave_together() -> None:
    assert len(sent(HttpToolsProtocol, app, LAST)) == 2, "else there is nothing to gather any more"
    assert len(sent(EdgeProtocol, app, LAST)) == 1
    assert len(sent(EdgeProtocol, nothing, LAST)) == 1


ROUTE = f"/v1/boards/{SOLO}".encode()
AUTHORIZED = f"authorization: {SERVER['authorization']}\r\n".encode()


def get(target: bytes, *lines: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"%s %s HTTP/%s\r\nHost: region\r\n%s\r\n" % (method, target, version, b"".join(line + b"\r\n" for line in lines))


PLAIN = [
    get(ROUTE + b"/top"),
    get(ROUTE + b"/top?limit=100"),
    get(ROUTE + b"/top?"),
    get(ROUTE + b"/top?limit=2", b"Accept-Encoding: gzip"),
    get(ROUTE + b"/players/p-2?view=rank", AUTHORIZED[:-2]),
    get(ROUTE + b"/players/p-2", b"Connection: keep-alive", b"user-agent:  some client/1 (x; y)  ", b"X-Empty:"),
    get(ROUTE + b"/players/p-2", b"if-none-match: *"),
    get(ROUTE + b"/players/nobody"),
    get(ROUTE.replace(b":", b"%3A") + b"/players/p%2D2"),
    b"GET " + ROUTE + b"/top HTTP/1.1\r\n\r\n",
]
NOT_PLAIN = [
    get(ROUTE + b"/top", method=b"HEAD"),
    get(ROUTE + b"/top", method=b"DELETE"),
    get(ROUTE + b"/top", version=b"1.0"),
    get(ROUTE + b"/top#x"),
    get(ROUTE + b'/top?limit="1"'),
    get(b"http://region" + ROUTE + b"/top"),
    get(ROUTE + b"/top", b"Connection: close"),
    get(ROUTE + b"/top", b"Proxy-Connection: close"),
    get(ROUTE + b"/top", b"Content-Length: 2") + b"{}",
    get(ROUTE + b"/top", b"Content-Length: 0"),
    get(ROUTE + b"/top", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    get(ROUTE + b"/top", b"Expect: 100-continue"),
    get(ROUTE + b"/top", b"x-folded: a\r\n b"),
    get(ROUTE + b"/top", b"bad name: a"),
    get(ROUTE + b"/top", b"x: \x01"),
    get(ROUTE + b"/top", "x: ü".encode()),
    get(ROUTE + b"/top", b": nothing"),
    get(ROUTE + b"/players/%ff"),
    get(ROUTE + b"/players/a/b"),
    get(b"/v1/boards/No%20Board/top"),
    get(b"/v1/boards"),
    get(b"/healthz"),
    b"\r\n" + get(ROUTE + b"/top"),
    get(ROUTE + b"/top").replace(b"\r\n", b"\n"),
]
#: The server never answers what comes behind one of these in the same piece.
UPGRADE = get(ROUTE + b"/top", b"Connection: keep-alive, upgrade", b"Upgrade: h2c")


@pytest.fixture
def world() -> World:
    world = World()
    world.fill(5)
    return world


@pytest.mark.parametrize("request_bytes", [*PLAIN, *NOT_PLAIN])
def test_a_plain_read_is_answered_with_the_servers_own_bytes(world: World, request_bytes: bytes) -> None:
    """Alone, in front of another request and behind one, in one piece and in two."""
    end = get(b"/healthz", b"connection: close")
    for arriving in (
        (request_bytes, end),
        (request_bytes + end,),
        (request_bytes, request_bytes + request_bytes, end),
        (get(ROUTE + b"/players/p-1") + request_bytes, end),
        (request_bytes[:30], request_bytes[30:], end),
        (request_bytes[:-1], request_bytes[-1:], end),
    ):
        assert b"".join(sent(EdgeProtocol, world.app, *arriving)) == b"".join(sent(HttpToolsProtocol, world.app, *arriving)), arriving


@pytest.mark.parametrize("request_bytes", PLAIN)
def test_plain_reads_never_reach_the_parser(world: World, request_bytes: bytes) -> None:
    async def story() -> None:
        connection, wire = connected(EdgeProtocol, world.app)
        connection.parser = None  # type: ignore[assignment]
        connection.data_received(request_bytes)
        await asyncio.gather(*connection.tasks)
        await asyncio.sleep(0)
        assert len(wire.sent) == 1
        assert connection.server_state.total_requests == 1
        assert connection.timeout_keep_alive_task is not None

    asyncio.run(story())


@pytest.mark.parametrize("request_bytes", [*NOT_PLAIN, UPGRADE])
def test_everything_else_is_the_servers(world: World, request_bytes: bytes) -> None:
    head = plain_head(request_bytes)
    assert head is None or world.app.short(*head) is None


def test_a_server_that_ends_lets_a_plain_read_be_answered_and_says_that_it_closes(world: World) -> None:
    """1. The question is under way. 2. The server ends. 3. The answer comes, as of any request, and the connection closes."""

    async def story(protocol: type[HttpToolsProtocol]) -> bytes:
        under_way, go_on, ask = asyncio.Event(), asyncio.Event(), FakeBackend.ask

        async def slow(question: Ask) -> Answer:
            under_way.set()
            await go_on.wait()
            return await ask(world.backend, question)

        world.backend.ask = slow  # type: ignore[method-assign,assignment]
        connection, wire = connected(protocol, world.app)
        connection.data_received(get(ROUTE + b"/players/p-2"))
        await under_way.wait()
        connection.shutdown()
        assert not wire.closed.is_set()
        go_on.set()
        async with asyncio.timeout(5):
            await wire.closed.wait()
        return b"".join(wire.sent)

    short = asyncio.run(story(EdgeProtocol))
    assert b"\r\nconnection: close\r\n" in short
    assert short == asyncio.run(story(HttpToolsProtocol))


def test_an_answer_to_a_client_that_has_gone_is_dropped(world: World) -> None:
    async def story() -> None:
        connection, wire = connected(EdgeProtocol, world.app)
        connection.data_received(get(ROUTE + b"/players/p-2"))
        wire.close()
        connection.connection_lost(None)
        await asyncio.gather(*connection.tasks)
        assert wire.sent == []

    asyncio.run(story())
