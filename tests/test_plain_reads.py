"""The short way for plain reads: the same bytes as the long way, over a table of requests, and which of them it takes."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any
from urllib.parse import unquote

import pytest
from http_edge import COINS, PRIVATE, SERVER, SOLO, World, event, token

from actors.messages import Ask, NotRanked, NotServing
from regions.answering import Headers, Reply

TAKEN, LEFT = True, False
#: A header line as ASGI has it.
Line = tuple[bytes, bytes]
BEARER: Line = (b"authorization", SERVER["authorization"].encode())
GZIP: Line = (b"accept-encoding", b"br, gzip")
OTHER_GAME: Line = (b"authorization", f"Bearer {token(games=('kart',))}".encode())
EXPIRED: Line = (b"authorization", f"Bearer {token(age_s=7200)}".encode())
GARBAGE: Line = (b"authorization", b"Bearer xx")


def _players() -> list[tuple[str, bytes, list[Line], bool]]:
    path = f"/v1/boards/{SOLO}/players/p-2"
    return [
        (path, b"", [], TAKEN),
        (path, b"view=rank", [], TAKEN),
        (path, b"view=percentile", [], TAKEN),
        (path, b"view=nearby", [], TAKEN),
        (path, b"view=rank", [BEARER], TAKEN),
        (path, b"", [GZIP], TAKEN),
        (path, b"view=nearby", [GZIP], TAKEN),
        (path, b"", [(b"if-none-match", b"*")], TAKEN),
        (path, b"", [(b"if-none-match", b'"another"'), (b"if-none-match", b"*")], TAKEN),
        (path, b"", [(b"accept-encoding", b"identity"), GZIP], TAKEN),
        (path, b"", [OTHER_GAME], TAKEN),
        (path, b"", [EXPIRED], LEFT),
        (path, b"", [GARBAGE], LEFT),
        (path, b"", [(b"authorization", b""), BEARER], LEFT),
        (path, b"view=rank&mode=exact", [], LEFT),
        (path, b"view=rank&mode=approximate", [], LEFT),
        (path, b"view=rank&view=rank", [], LEFT),
        (path, b"view=ran%6B", [], LEFT),
        (path, b"view=share", [], LEFT),
        (path, b"view=nearby&window=1", [], LEFT),
        (path, b"generation=s1", [], LEFT),
        (path, b"generation=s9", [], LEFT),
        (path, b"at_least=7-1001", [], LEFT),
        (path, b"view", [], LEFT),
        (path, b"nothing=1", [], LEFT),
        (f"/v1/boards/{SOLO}/players/nobody", b"", [], TAKEN),
        (f"/v1/boards/{SOLO}/players/nobody", b"view=percentile", [BEARER], TAKEN),
        (f"/v1/boards/{SOLO.replace(':', '%3A')}/players/p%2D2", b"", [], TAKEN),
        (f"/v1/boards/{SOLO}/players/50%25", b"", [], TAKEN),
        (f"/v1/boards/{SOLO}/players/%E6%97%A5%E6%9C%AC", b"", [], TAKEN),
        (f"/v1/boards/{SOLO}/players/%ff", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/players/%zz", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/players/a%2Fb", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/players/a/b", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/players/", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/players", b"", [], LEFT),
        (f"/v1/boards/{SOLO}%2Fplayers%2Fp-2", b"", [], LEFT),
        ("/v1/boards/arena-clash:none:S7:global/players/p-2", b"", [], LEFT),
        ("/v1/boards/No Board/players/p-2", b"", [], LEFT),
        (f"/v1/boards/{PRIVATE}/players/p-2", b"", [BEARER], TAKEN),
        (f"/v1/boards/{PRIVATE}/players/nobody", b"", [BEARER], TAKEN),
        (f"/v1/boards/{PRIVATE}/players/p-2", b"", [], LEFT),
        (f"/v1/boards/{PRIVATE}/players/p-2", b"", [OTHER_GAME], LEFT),
        (f"/v1/boards/{COINS}/players/p-2", b"", [], TAKEN),
    ]


def _pages() -> list[tuple[str, bytes, list[Line], bool]]:
    path = f"/v1/boards/{SOLO}/top"
    return [
        (path, b"", [], TAKEN),
        (path, b"limit=100", [], TAKEN),
        (path, b"limit=2", [], TAKEN),
        (path, b"limit=1000", [GZIP], TAKEN),
        (path, b"", [BEARER, GZIP], TAKEN),
        (path, b"", [(b"if-none-match", b"W/*, *")], TAKEN),
        (path, b"limit=0", [], LEFT),
        (path, b"limit=01", [], LEFT),
        (path, b"limit=1001", [], LEFT),
        (path, b"limit=", [], LEFT),
        (path, b"limit=%31", [], LEFT),
        (path, b"limit=1&limit=2", [], LEFT),
        (path, b"cursor=x", [], LEFT),
        (path, b"", [GARBAGE], LEFT),
        (path + "/", b"", [], LEFT),
        (f"/v1/boards/{SOLO}%2Ftop", b"", [], LEFT),
        (f"/v1/boards/{SOLO}", b"", [], LEFT),
        (f"/v1/boards/{SOLO}/bottom", b"", [], LEFT),
        ("/v1/boards/arena-clash:none:S7:global/top", b"", [], LEFT),
        (f"/v1/boards/{PRIVATE}/top", b"", [BEARER], TAKEN),
        (f"/v1/boards/{PRIVATE}/top", b"", [], LEFT),
    ]


class Both(World):
    """An edge whose short way can be shut; `taken` says of each request whether it took it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[bool] = []
        self.shut = False
        self._begin = self.app._plain.begin
        self.app._plain.begin = self._watched  # type: ignore[method-assign]

    def _watched(self, segments: list[str], query: bytes, headers: Headers) -> Reply | Coroutine[Any, Any, Reply] | None:
        if self.shut:
            return None
        found = self._begin(segments, query, headers)
        self.taken.append(found is not None)
        return found

    def answer(self, method: str, path: str, query: bytes, headers: list[Line], *, short: bool) -> list[dict[str, Any]]:
        """All that is sent to a server for one request, the bodies in one."""
        self.shut = not short
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        raw = path.encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "root_path": "",
            "path": unquote(path), "raw_path": raw, "query_string": query, "headers": [(b"host", b"region"), *headers],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        try:
            asyncio.run(self.app(scope, receive, send))
        except Exception as error:  # as a server would
            sent.append({"raised": repr(error)})
        whole = b"".join(message.get("body", b"") for message in sent)
        return [message for message in sent if message["type"] != "http.response.body"] + [{"body": whole}]


@pytest.fixture
def both() -> Both:
    world = Both()
    for board in (SOLO, PRIVATE, COINS):
        name = "delta" if board == COINS else "value"
        events = [
            {"event_id": f"e-{n}", "player_id": who, name: 9800 - 100 * n} for n, who in enumerate(("p-0", "p-1", "p-2", "50%", "日本"))
        ]
        assert world.submit(*events, board=board).is_success
        world.backend.publish(board)
    world.backend.clock_ms += 1234
    return world


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_both_ways_send_the_same_bytes_and_the_short_one_takes_what_is_plain(both: Both, method: str) -> None:
    for path, query, headers, taken in [*_players(), *_pages()]:
        both.taken.clear()
        short = both.answer(method, path, query, headers, short=True)
        assert short == both.answer(method, path, query, headers, short=False), (path, query, headers)
        assert (True in both.taken) is taken, (path, query, headers)


def test_a_reader_who_has_the_answer_gets_304_from_both(both: Both) -> None:
    for path, query in ((f"/v1/boards/{SOLO}/players/p-2", b"view=rank"), (f"/v1/boards/{SOLO}/top", b"")):
        start = both.answer("GET", path, query, [GZIP], short=True)[0]
        etag = dict(start["headers"])[b"etag"]
        for known in (etag, b"W/" + etag, b'"x", ' + etag):
            short = both.answer("GET", path, query, [GZIP, (b"if-none-match", known)], short=True)
            assert short == both.answer("GET", path, query, [GZIP, (b"if-none-match", known)], short=False)
            assert (short[0]["status"], short[-1]["body"]) == (304, b"")


def test_what_the_region_cannot_answer_is_the_same_problem_on_both_ways(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for error in (NotServing("still reading"), NotRanked("p has no row"), RuntimeError("a fault of our own")):

        async def refuse(ask: Ask, error: Exception = error) -> Any:
            raise error

        both.backend.ask = refuse  # type: ignore[method-assign]
        for path in (f"/v1/boards/{SOLO}/players/p-2", f"/v1/boards/{PRIVATE}/players/p-2"):
            short = both.answer("GET", path, b"", [BEARER], short=True)
            assert short == both.answer("GET", path, b"", [BEARER], short=False)
            assert short[0]["status"] in (404, 500, 503)


def test_a_page_held_ready_is_prepared_once_and_anew_when_the_generation_changes(both: Both) -> None:
    path = f"/v1/boards/{SOLO}/top"
    first = both.answer("GET", path, b"", [GZIP], short=True)
    assert both.answer("GET", path, b"", [GZIP], short=True) == first
    both.submit(event("later", "zoe", 10_000))
    both.backend.publish(SOLO)
    second = both.answer("GET", path, b"", [GZIP], short=True)
    assert second != first
    assert second == both.answer("GET", path, b"", [GZIP], short=False)
