"""The friends service's adapters: what is taken, what is kept for how long and for whom, and when the service is left alone."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
import yaml

from config.loading import load_cluster
from config.models import ClusterConfig, ConfigError
from regions.friends import (
    ASKER_HEADER,
    BODY_MAX_BYTES,
    FAILURES,
    FRIENDS_MAX,
    REST_MS,
    Breaker,
    FriendsInvalid,
    FriendsUnavailable,
    HttpFriends,
    IdsCache,
    StaticFriends,
    open_friends,
)
from regions.process_specs import FriendsSpec
from regions.specs import gateway_spec, make_keys

SHIPPED = Path(__file__).parent.parent / "cluster.yaml"
SCOPE = "subject:app-1"
CACHE_MS = 2000


class Clock:
    """Moves only when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Service:
    """A friends service as an ASGI app: `/<game>/<player>` answers from `lists`, unless `status` or `body` says otherwise."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], list[Any]] = {}
        self.status = 200
        self.body: bytes | None = None
        self.asked: list[tuple[str, str]] = []
        self.askers: list[str] = []
        #: Requests wait for it where it is set.
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        game, player = (unquote(part) for part in scope["raw_path"].decode().strip("/").split("/"))
        self.asked.append((game, player))
        self.askers.append(dict(scope["headers"])[ASKER_HEADER.encode()].decode())
        if self.gate is not None:
            self.waiting.release()
            await self.gate.wait()
        body = json.dumps(self.lists.get((game, player), [])).encode() if self.body is None else self.body
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


class World:
    """A service, and the adapter that asks it, by a clock of the test's."""

    def __init__(self) -> None:
        self.service = Service()
        self.clock = Clock()

    def run(self, work: Callable[[HttpFriends], Awaitable[Any]], *, timeout_ms: int = 10_000, cache_ms: int = CACHE_MS) -> Any:
        async def main() -> Any:
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.service))
            url = "http://friends/{game}/{player}"
            source = HttpFriends(client, url, timeout_ms=timeout_ms, cache_ms=cache_ms, clock_ms=self.clock)
            try:
                return await work(source)
            finally:
                await source.close()

        return asyncio.run(main())

    async def fail(self, source: HttpFriends, times: int = FAILURES) -> None:
        """So many calls in a row without an answer."""
        self.service.status = 500
        for number in range(times):
            with pytest.raises(FriendsUnavailable):
                await source.friends_of("kart", f"down-{number}", scope=SCOPE)


@pytest.fixture
def world() -> World:
    return World()


# The HTTP adapter


def test_the_service_is_asked_for_the_player_and_its_list_is_taken_once_each(world: World) -> None:
    world.service.lists["kart", "p-ava"] = ["p-ben", "p-dev", "p-ben"]
    assert world.run(lambda source: source.friends_of("kart", "p-ava", scope=SCOPE)) == ("p-ben", "p-dev")
    assert world.service.asked == [("kart", "p-ava")]


@pytest.mark.parametrize("player", ["Zoë", "a b", "50%", "a?b#c", "{game}", "%2e%2e", "a&b=c", "\N{SNOWMAN}"])
def test_an_id_reaches_the_service_as_it_is(world: World, player: str) -> None:
    world.service.lists["kart", player] = ["p-ben"]
    assert world.run(lambda source: source.friends_of("kart", player, scope=SCOPE)) == ("p-ben",)
    assert world.service.asked == [("kart", player)]


def test_a_list_is_kept_for_the_time_of_the_configuration_and_then_asked_again(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.lists["kart", "p-ava"] = ["p-ben"]
        assert await source.friends_of("kart", "p-ava", scope=SCOPE) == ("p-ben",)
        world.service.lists["kart", "p-ava"] = ["p-dev"]
        world.clock.now_ms += CACHE_MS - 1
        assert await source.friends_of("kart", "p-ava", scope=SCOPE) == ("p-ben",)
        world.clock.now_ms += 1
        assert await source.friends_of("kart", "p-ava", scope=SCOPE) == ("p-dev",)

    world.run(work)
    assert len(world.service.asked) == 2


def test_without_a_cache_each_call_asks(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        for _ in range(3):
            await source.friends_of("kart", "p-ava", scope=SCOPE)

    world.run(work, cache_ms=0)
    assert len(world.service.asked) == 3


def test_what_one_asker_was_told_is_not_given_to_another(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.lists["kart", "p-ava"] = ["p-ben", "p-dev"]
        assert await source.friends_of("kart", "p-ava", scope="player:p-ava") == ("p-ben", "p-dev")
        world.service.lists["kart", "p-ava"] = ["p-ben"]  # this asker may see less
        assert await source.friends_of("kart", "p-ava", scope="subject:Zoë") == ("p-ben",)

    world.run(work)
    assert world.service.askers == ["player:p-ava", "subject:Zo%C3%AB"]


def test_games_and_players_are_kept_apart(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.lists = {("kart", "a"): ["x"], ("chess", "a"): ["y"], ("kart", "b"): ["z"]}
        for game, player in (*world.service.lists, *world.service.lists):
            assert await source.friends_of(game, player, scope=SCOPE) == tuple(world.service.lists[game, player])

    world.run(work)
    assert len(world.service.asked) == 3


def test_equal_questions_share_one_request_and_who_gives_up_spoils_it_for_nobody(world: World) -> None:
    """(1) Five ask, (2) the first gives up while the service thinks, (3) it answers: the other four have the list."""

    async def work(source: HttpFriends) -> list[Any]:
        world.service.lists["kart", "p-ava"] = ["p-ben"]
        world.service.gate = asyncio.Event()
        calls = [asyncio.ensure_future(source.friends_of("kart", "p-ava", scope=SCOPE)) for _ in range(5)]
        await world.service.waiting.acquire()
        calls[0].cancel()
        world.service.gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, *others = world.run(work)
    assert isinstance(first, asyncio.CancelledError)
    assert others == [("p-ben",)] * 4
    assert len(world.service.asked) == 1


def test_a_shared_request_that_fails_fails_for_all_and_is_asked_again_by_the_next(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.gate, world.service.status = asyncio.Event(), 503
        calls = [asyncio.ensure_future(source.friends_of("kart", "p-ava", scope=SCOPE)) for _ in range(3)]
        await world.service.waiting.acquire()
        world.service.gate.set()
        assert [type(told) for told in await asyncio.gather(*calls, return_exceptions=True)] == [FriendsUnavailable] * 3
        world.service.status = 200
        assert await source.friends_of("kart", "p-ava", scope=SCOPE) == ()

    world.run(work)
    assert len(world.service.asked) == 2


def test_a_service_that_does_not_answer_in_time_is_unavailable_definitely(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.gate = asyncio.Event()  # nobody opens it
        async with asyncio.timeout(4):
            with pytest.raises(FriendsUnavailable) as caught:
                await source.friends_of("kart", "p-ava", scope=SCOPE)
        assert (caught.value.code, caught.value.definite) == ("friends_unavailable", True)
        assert caught.value.retry_after_ms == 1000

    world.run(work, timeout_ms=20)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")])
def test_a_lost_connection_is_unavailable(error: httpx.HTTPError) -> None:
    async def main() -> None:
        def lose(request: httpx.Request) -> httpx.Response:
            raise error

        client = httpx.AsyncClient(transport=httpx.MockTransport(lose))
        source = HttpFriends(client, "http://friends/{player}", timeout_ms=1000, cache_ms=0)
        with pytest.raises(FriendsUnavailable):
            await source.friends_of("kart", "p-ava", scope=SCOPE)
        await source.close()

    asyncio.run(main())


LONG_LIST = json.dumps([f"hidden-{n}" for n in range(FRIENDS_MAX + 1)]).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>hidden-1</html>"),
        (200, b""),
        (200, b"null"),
        (200, b'{"friends": ["hidden-1"]}'),
        (200, b'["hidden-1", 7]'),
        (200, b'["hidden-1", null]'),
        (200, b'["hidden-1", ""]'),
        (200, b'["hidden-1", ".."]'),
        (200, b'["hidden-1/x"]'),
        (200, b'["hidden-1", "\xff"]'),
        (200, b'["hidden-1", "\\ud800"]'),
        (200, b'["hidden-1"'),
        (200, b"[" * 100_000),
        (200, LONG_LIST),
        (200, b"[]" + b" " * (BODY_MAX_BYTES - 1)),
        (206, b'["hidden-1"]'),
        (302, b'["hidden-1"]'),
        (404, b'["hidden-1"]'),
        (403, b'["hidden-1"]'),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_what_is_no_list_of_ids_is_refused_whole_and_shown_nowhere(
    world: World, status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.service.status, world.service.body = status, body

    async def work(source: HttpFriends) -> None:
        for _ in range(2 * FAILURES):  # and the service is not taken for dead: the next player's list may be good
            with pytest.raises(FriendsInvalid) as caught:
                await source.friends_of("kart", "p-ava", scope=SCOPE)
            assert "hidden" not in str(caught.value)
        world.service.status, world.service.body = 200, b'["p-ben"]'
        assert await source.friends_of("kart", "p-dev", scope=SCOPE) == ("p-ben",)

    world.run(work)
    assert "hidden" not in caplog.text
    assert "p-ava" not in caplog.text


def test_the_longest_list_is_taken_whole(world: World) -> None:
    world.service.body = json.dumps([f"{n:0128}" for n in range(FRIENDS_MAX)]).encode()
    friends = world.run(lambda source: source.friends_of("kart", "p-ava", scope=SCOPE))
    assert len(friends) == FRIENDS_MAX
    assert friends[-1] == f"{FRIENDS_MAX - 1:0128}"


# The breaker


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_fails_time_and_again_is_left_alone(world: World, status: int) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.status = status
        for number in range(FAILURES + 3):
            with pytest.raises(FriendsUnavailable) as caught:
                await source.friends_of("kart", f"p-{number}", scope=SCOPE)
        assert caught.value.retry_after_ms == REST_MS

    world.run(work)
    assert len(world.service.asked) == FAILURES


def test_an_answer_in_between_begins_the_count_anew(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        await world.fail(source, FAILURES - 1)
        world.service.status = 200
        await source.friends_of("kart", "p-ava", scope=SCOPE)
        await world.fail(source, FAILURES - 1)
        world.service.status = 200
        await source.friends_of("kart", "p-dev", scope=SCOPE)

    world.run(work)
    assert len(world.service.asked) == 2 * FAILURES


def test_after_the_rest_one_call_tries_the_service_while_the_others_are_refused(world: World) -> None:
    """(1) The breaker opens, (2) its rest is over, (3) one of three calls goes out, (4) it succeeds, and all go."""

    async def work(source: HttpFriends) -> None:
        await world.fail(source)
        world.clock.now_ms += REST_MS
        world.service.status, world.service.gate = 200, asyncio.Event()
        calls = [asyncio.ensure_future(source.friends_of("kart", f"p-{n}", scope=SCOPE)) for n in range(3)]
        await world.service.waiting.acquire()
        refused, _ = await asyncio.wait(calls[1:])
        assert all(isinstance(call.exception(), FriendsUnavailable) for call in refused)
        world.service.gate.set()
        assert await calls[0] == ()
        assert await source.friends_of("kart", "p-1", scope=SCOPE) == ()

    world.run(work)
    assert len(world.service.asked) == FAILURES + 2


def test_a_trial_that_fails_begins_another_rest(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        await world.fail(source)
        for _ in range(2):
            world.clock.now_ms += REST_MS
            await world.fail(source, 2)  # the first one goes out, the second is refused

    world.run(work)
    assert len(world.service.asked) == FAILURES + 2


def test_how_an_old_call_ends_says_nothing_about_the_trial() -> None:
    clock = Clock()
    breaker = Breaker(failures=1, rest_ms=100, clock_ms=clock)
    late_good, late_bad, failing = breaker.admit(), breaker.admit(), breaker.admit()
    breaker.ended(failing, answered=False)
    breaker.ended(late_good, answered=True)
    with pytest.raises(FriendsUnavailable):
        breaker.admit()
    clock.now_ms += 100
    trial = breaker.admit()
    breaker.ended(late_bad, answered=False)
    with pytest.raises(FriendsUnavailable):
        breaker.admit()
    breaker.ended(trial, answered=True)
    breaker.ended(breaker.admit(), answered=True)


def test_lists_that_are_kept_are_there_also_while_the_service_is_not(world: World) -> None:
    async def work(source: HttpFriends) -> None:
        world.service.lists["kart", "p-ava"] = ["p-ben"]
        await source.friends_of("kart", "p-ava", scope=SCOPE)
        await world.fail(source)
        assert await source.friends_of("kart", "p-ava", scope=SCOPE) == ("p-ben",)
        world.clock.now_ms += CACHE_MS
        with pytest.raises(FriendsUnavailable):
            await source.friends_of("kart", "p-ava", scope=SCOPE)

    world.run(work)


# The cache


def test_the_cache_is_bounded_in_lists_and_in_ids() -> None:
    clock = Clock()
    cache = IdsCache(ttl_ms=1000, clock_ms=clock, lists=3, ids=10)
    for number in range(5):
        cache.put(("kart", str(number), SCOPE), ("a",))
    assert (len(cache), cache.ids) == (3, 3)
    assert cache.get(("kart", "1", SCOPE)) is None
    assert cache.get(("kart", "2", SCOPE)) == ("a",)
    cache.put(("kart", "4", SCOPE), ("a",) * 9)  # in place of the shorter one
    assert (len(cache), cache.ids) == (2, 10)
    cache.put(("kart", "5", SCOPE), ("b",) * 11)  # more than there is room for
    assert (len(cache), cache.ids) == (0, 0)
    cache.put(("kart", "6", SCOPE), ("a",) * 4)
    clock.now_ms += 1000
    assert cache.get(("kart", "6", SCOPE)) is None
    assert (len(cache), cache.ids) == (0, 0)


# The file


def ask(source: StaticFriends, player: str, game: str = "kart") -> tuple[str, ...]:
    return asyncio.run(source.friends_of(game, player, scope=SCOPE))


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "friends.json"
    file.write_text('{"kart": {"p-ava": ["p-ben", "p-dev", "p-ben"]}}')
    source = StaticFriends(str(file))
    assert ask(source, "p-ava") == ("p-ben", "p-dev")
    assert ask(source, "p-ben") == ()  # friendship is what the file says, not its reverse
    assert ask(source, "p-ava", "chess") == ()
    fresh = tmp_path / "fresh.json"
    fresh.write_text('{"kart": {"p-ava": ["p-eli"]}}')
    fresh.replace(file)
    assert ask(source, "p-ava") == ("p-eli",)


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "friends.json"
    file.write_text('{"kart": {"p-ava": ["p-ben"]}}')
    source = StaticFriends(str(file))
    ask(source, "p-ava")
    stat = file.stat()
    file.write_text('{"kart": {"p-ava": ["p-dev"]}}')
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ask(source, "p-ava") == ("p-ben",)


@pytest.mark.parametrize("text", ["", "[]", '{"kart": []}', '{"kart": {"p-ava": ["hidden", 1]}}', '{"kart": {"p-ava": ["a/hidden"]}}'])
def test_a_file_that_breaks_is_an_error_until_it_is_mended(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "friends.json"
    file.write_text('{"kart": {"p-ava": ["p-ben"]}}')
    source = StaticFriends(str(file))
    ask(source, "p-ava")
    file.write_text(text)
    for _ in range(2):
        with pytest.raises(FriendsInvalid):
            ask(source, "p-ava")
    assert "hidden" not in caplog.text
    file.write_text('{"kart": {"p-ava": []}}')
    assert ask(source, "p-ava") == ()


def test_a_file_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(FriendsUnavailable):
        ask(StaticFriends(str(tmp_path / "none.json")), "p-ava")


# The configuration


def loaded(tmp_path: Path, section: str) -> ClusterConfig:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{SHIPPED.read_text()}\nfriends:\n{section}")
    return load_cluster(file)


def test_the_shipped_file_has_no_friends_service() -> None:
    assert load_cluster(SHIPPED).friends is None
    assert open_friends(None) is None


@pytest.mark.parametrize(
    ("section", "spec"),
    [
        ("  static: /etc/laurel/friends.json\n", FriendsSpec(static="/etc/laurel/friends.json", timeout_ms=300, cache_ms=2000)),
        ("  url: http://host/{game}/{player}\n", FriendsSpec(url="http://host/{game}/{player}", timeout_ms=300, cache_ms=2000)),
        (
            "  url: https://u:p@host:8443/f?of={player}\n  timeout_ms: 50\n  cache_ms: 0\n",
            FriendsSpec(url="https://u:p@host:8443/f?of={player}", timeout_ms=50, cache_ms=0),
        ),
    ],
)
def test_a_gateway_is_told_where_friends_come_from(tmp_path: Path, section: str, spec: FriendsSpec) -> None:
    config = loaded(tmp_path, section)
    make_keys(tmp_path / "data", list(config.regions))
    assert gateway_spec(config, "eu-west", tmp_path / "data").friends == spec

    async def opened() -> str:
        source = open_friends(spec)
        assert source is not None
        await source.close()
        return type(source).__name__

    assert asyncio.run(opened()) == ("StaticFriends" if spec.static else "HttpFriends")


@pytest.mark.parametrize("section", ["  static: /f.json\n", "  url: http://h/{player}\n  cache_ms: 0\n"])
def test_a_section_that_was_written_out_is_read_as_it_was(tmp_path: Path, section: str) -> None:
    config = loaded(tmp_path, section)
    file = tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
    assert load_cluster(file).friends == config.friends


@pytest.mark.parametrize(
    ("section", "path", "said"),
    [
        ("  timeout_ms: 300\n", "friends", "`url`"),
        ("  url: http://h/{player}\n  static: /f.json\n", "friends", "not both or neither"),
        ("  static: friends.json\n", "friends.static", "absolute path"),
        ("  static: /f.json\n  cache_ms: 5\n", "friends.cache_ms", "`url` only"),
        ("  static: /f.json\n  timeout_ms: 301\n", "friends.timeout_ms", "`url` only"),
        ("  url: http://secret@h/friends\n", "friends.url", "`http://host/friends/{game}/{player}`, with `{player}` in it."),
        ("  url: http://secret@{player}/\n", "friends.url", "with `{player}` in it"),
        ("  url: http://secret@h/{player}/{who}\n", "friends.url", "with `{player}` in it"),
        ("  url: http://secret@h/{player}#x\n", "friends.url", "with `{player}` in it"),
        ("  url: ftp://secret@h/{player}\n", "friends.url", "with `{player}` in it"),
        ("  url: http://secret@h:70000/{player}\n", "friends.url", "with `{player}` in it"),
        ("  url: 7\n", "friends.url", "with `{player}` in it"),
        ("  url: http://h/{player}\n  timeout_ms: 5\n", "friends.timeout_ms", "from 10 to 10000"),
        ("  url: http://h/{player}\n  cache_ms: -1\n", "friends.cache_ms", "from 0 to 60000"),
        ("  url: http://h/{player}\n  timeout: 5\n", "friends.timeout", "did you mean `timeout_ms`?"),
        ("  - x\n", "friends", "`url` or `static`"),
    ],
)
def test_what_is_wrong_with_the_section_is_named(tmp_path: Path, section: str, path: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, section)
    assert caught.value.path == path
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
