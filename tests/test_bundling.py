"""Requests for all shards of a board travel in one call; what that does not settle goes the ways of the shards."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.messages import Batch, NoAuthority, SubmitResult, UnknownBoard, WireError, from_wire, to_wire
from actors.remote import LocalHandles, unanswered
from actors.shard import decode_submit
from boards.model import Submission
from config.loading import load_cluster
from regions import routing
from regions.bundling import Bundles
from regions.links import NotSent
from regions.routing import Authorities, Directory, ShardRoute
from regions.specs import shard_processes

TWO = ("eu/0", "eu/1")
_encode = msgspec.msgpack.Encoder().encode

Reply = list[SubmitResult] | WireError


def batch(name: str, board: str = "b") -> Batch:
    return Batch(board, "s", [Submission(name, "p", 1, 0, 0, b"")], "")


def done(shard: str) -> list[SubmitResult]:
    return [SubmitResult(1, shard=shard)]


class Other:
    """The region `us`, which owns the shards: what it is sent, and what it says."""

    def __init__(self) -> None:
        self.together: list[list[tuple[str, list[str]]]] = []
        self.alone: list[tuple[str, list[str]]] = []
        self.say: Callable[[str], Reply] = done
        self.fail: list[Exception] = []
        self.held: dict[tuple[str, ...], asyncio.Event] = {}
        self.regions: tuple[str, ...] = ("us",)

    async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        assert peer in self.regions
        assert path == "submit"
        parts = decode_submit(body)
        if len(parts) == 1:
            ((shard, batches),) = parts
            self.alone.append((shard, [each.submissions[0].event_id for each in batches]))
            return _encode([[done(shard) for _ in batches]])
        self.together.append([(shard, [each.submissions[0].event_id for each in batches]) for shard, batches in parts])
        if self.fail:
            raise self.fail.pop()
        if (held := self.held.get(tuple(shard for shard, _ in parts))) is not None:
            await held.wait()
        return _encode([[self.say(shard) for _ in batches] for shard, batches in parts])


def bundles(other: Other, shards: tuple[str, ...] = TWO) -> Bundles:
    directory = Directory()
    for shard in shards:
        directory.learn(shard, 1, "us")
    local: Any = None
    links: Any = other
    authorities = Authorities("eu", directory, local, links, call_timeout_s=1)
    return Bundles({shard: ShardRoute(shard, authorities) for shard in shards}, authorities)


def parts(name: str, shards: tuple[str, ...] = TWO) -> dict[str, Batch]:
    return {shard: batch(name) for shard in shards}


def test_requests_for_the_same_shards_share_a_call() -> None:
    async def story() -> None:
        other = Other()
        ways = bundles(other)
        told = await asyncio.gather(*(ways.submit(parts(f"e{n}"), together=True) for n in range(40)))
        assert told == [{shard: done(shard) for shard in TWO}] * 40
        assert len(other.together) <= 3
        assert sorted(name for call in other.together for _, names in call for name in names) == sorted([f"e{n}" for n in range(40)] * 2)
        assert not other.alone

    asyncio.run(story())


def test_a_request_waits_for_no_shard_that_it_is_not_for() -> None:
    async def story() -> None:
        other = Other()
        ways = bundles(other, ("eu/0", "eu/1", "eu/2"))
        other.held[("eu/1", "eu/2")] = asyncio.Event()
        slow = asyncio.create_task(ways.submit(parts("slow", ("eu/1", "eu/2")), together=True))
        assert await ways.submit(parts("quick", ("eu/0", "eu/1")), together=True) == {s: done(s) for s in ("eu/0", "eu/1")}
        assert not slow.done()
        other.held[("eu/1", "eu/2")].set()
        await slow

    asyncio.run(story())


def test_for_a_part_of_the_shards_each_goes_its_own_way() -> None:
    async def story() -> None:
        other = Other()
        await bundles(other).submit(parts("e"), together=False)
        assert not other.together
        assert sorted(other.alone) == [("eu/0", ["e"]), ("eu/1", ["e"])]

    asyncio.run(story())


@pytest.mark.parametrize("failure", [NotSent("refused"), TimeoutError("reset")])
def test_a_call_without_an_answer_is_tried_by_the_ways_of_the_shards(failure: Exception) -> None:
    async def story() -> None:
        other = Other()
        other.fail = [failure]
        assert await bundles(other).submit(parts("e"), together=True) == {shard: done(shard) for shard in TWO}
        assert sorted(other.alone) == [("eu/0", ["e"]), ("eu/1", ["e"])]

    asyncio.run(story())


@pytest.mark.parametrize(("failure", "definite"), [(NotSent("refused"), True), (TimeoutError("silence"), False)])
def test_what_was_sent_without_an_answer_is_never_told_as_not_written(
    failure: Exception, definite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "HOLD_S", -1.0)

    async def story() -> None:
        other = Other()
        other.fail = [failure]
        told = await bundles(other).submit(parts("e"), together=True)
        for answer in told.values():
            assert isinstance(answer, NoAuthority)
            assert (answer.definite, answer.code) == (definite, "no_authority" if definite else "unknown")

    asyncio.run(story())


def test_a_shard_that_finds_no_authority_is_asked_again_and_the_other_is_not() -> None:
    async def story() -> None:
        other = Other()
        other.say = lambda shard: to_wire(NoAuthority("not here", definite=True)) if shard == "eu/1" else done(shard)
        assert await bundles(other).submit(parts("e"), together=True) == {shard: done(shard) for shard in TWO}
        assert other.alone == [("eu/1", ["e"])]

    asyncio.run(story())


@pytest.mark.parametrize("error", [UnknownBoard("gone"), NoAuthority("elsewhere", code="moved", definite=True)])
def test_a_refusal_that_is_of_the_board_is_told_at_once(error: UnknownBoard | NoAuthority) -> None:
    async def story() -> None:
        other = Other()
        other.say = lambda shard: to_wire(error) if shard == "eu/0" else done(shard)
        told = await bundles(other).submit(parts("e"), together=True)
        assert type(told["eu/0"]) is type(error)
        assert told["eu/1"] == done("eu/1")
        assert not other.alone

    asyncio.run(story())


def test_what_waits_goes_to_the_owner_that_is_known_when_its_turn_comes() -> None:
    async def story() -> None:
        other = Other()
        ways = bundles(other)
        other.held[TWO] = asyncio.Event()
        under_way = [asyncio.create_task(ways.submit(parts(f"first-{n}"), together=True)) for n in range(2)]
        while len(other.together) < 1:
            await asyncio.sleep(0)
        waiting = [asyncio.create_task(ways.submit(parts(f"later-{n}"), together=True)) for n in range(400)]
        await asyncio.sleep(0)
        ways._directory.learn("eu/1", 2, "ap")
        other.regions = ("us", "ap")
        other.held.pop(TWO).set()
        assert await asyncio.gather(*under_way, *waiting) == [{shard: done(shard) for shard in TWO}] * 402
        late = {name for shard, names in other.alone for name in names if shard == "eu/1"}
        sent = {name for call in other.together for shard, names in call for name in names if shard == "eu/1"}
        assert {f"later-{n}" for n in range(400)} <= late | sent
        assert late, "what was not on its way yet went to the new owner"

    asyncio.run(story())


def test_after_a_call_that_left_something_unsettled_requests_go_alone_for_a_while() -> None:
    async def story() -> None:
        other = Other()
        ways = bundles(other)
        other.fail = [TimeoutError("slow")]
        await ways.submit(parts("e1"), together=True)
        assert len(other.together) == 1
        other.alone.clear()
        await ways.submit(parts("e2"), together=True)
        assert (len(other.together), sorted(other.alone)) == (1, [("eu/0", ["e2"]), ("eu/1", ["e2"])])
        ways._alone_until = dict.fromkeys(ways._alone_until, 0.0)
        await ways.submit(parts("e3"), together=True)
        assert len(other.together) == 2

    asyncio.run(story())


def test_what_fails_here_is_told_as_unknown() -> None:
    async def story() -> None:
        other = Other()
        other.fail = [ValueError("no such thing was foreseen")]
        told = await bundles(other).submit(parts("e"), together=True)
        for answer in told.values():
            assert isinstance(answer, NoAuthority)
            assert (answer.definite, answer.code) == (False, "unknown")

    asyncio.run(story())


def test_whoever_comes_later_is_held_for_a_time_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "HOLD_S", 1.0)

    async def story() -> None:
        directory = Directory()
        directory.learn("eu/0", 1, "us")
        turned_away: list[list[str]] = []

        class Away:
            async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
                ((_, batches),) = decode_submit(body)
                turned_away.append([each.submissions[0].event_id for each in batches])
                if len(batches) == 1 and len(turned_away) > 1:
                    return _encode([[done("eu/0")]])
                raise NotSent("away")

        local: Any = None
        links: Any = Away()
        route = ShardRoute("eu/0", Authorities("eu", directory, local, links, call_timeout_s=1))
        old = asyncio.create_task(route.submit(batch("old"), since=time.monotonic() - 0.95))
        new = asyncio.create_task(route.submit(batch("new")))
        with pytest.raises(NoAuthority):
            await old
        assert await new == done("eu/0")
        assert turned_away[0] == ["old", "new"]

    asyncio.run(story())


# Processes of one region


class Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class Process:
    def __init__(self, *, answers: bool = True) -> None:
        self.submit, self.channel = Method(self._submit), Method(self._channel)
        self._answers = answers

    async def _channel(self) -> None:
        return None

    async def _submit(self, payload: bytes) -> bytes:
        if not self._answers:
            raise TimeoutError("frozen")
        return _encode([[done(shard) for _ in batches] for shard, batches in decode_submit(payload)])


def test_a_process_that_does_not_answer_leaves_only_its_own_shards_unknown() -> None:
    handles = LocalHandles({"a": (Process(), ["eu/0", "eu/2"]), "b": (Process(answers=False), ["eu/1"])}, {})
    payload = _encode([(shard, [batch("x"), batch("y")]) for shard in ("eu/0", "eu/1", "eu/2")])
    replies = msgspec.msgpack.decode(asyncio.run(handles.submit(payload)), type=list[list[list[SubmitResult] | WireError]])
    assert [replies[0], replies[2]] == [[done("eu/0")] * 2, [done("eu/2")] * 2]
    assert replies[1] == unanswered(2, "frozen")
    assert not from_wire(unanswered(1, "frozen")[0]).definite


TWO_PROCESSES = {"shards 1": ["eu-west/0", "eu-west/3"], "shard eu-west/1": ["eu-west/1"], "shard eu-west/2": ["eu-west/2"]}
CONFIG = """
name: test
regions:
  eu-west: {{ port: 7411, store: {{ port: 7421 }}, link: {{ host: 127.0.0.1, port: 7431 }}{more} }}
shards: {shards}
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"shards 1": ["eu-west/0", "eu-west/1", "eu-west/3"], "shard eu-west/2": ["eu-west/2"]}),
        (", shard_processes: 2", TWO_PROCESSES),
        (", nodes: 2", TWO_PROCESSES),
        (", shard_processes: 9", {f"shard eu-west/{n}": [f"eu-west/{n}"] for n in range(4)}),
    ],
)  # fmt: skip
def test_pooled_shards_share_processes_and_a_dedicated_one_has_its_own(more: str, expected: dict[str, list[str]], tmp_path: Path) -> None:
    shards = {f"eu-west/{n}": {"home": "eu-west", "kind": "dedicated" if n == 2 else "pooled"} for n in range(4)}
    path = tmp_path / "cluster.yaml"
    path.write_text(CONFIG.format(more=more, shards=msgspec.json.encode(shards).decode()))
    assert shard_processes(load_cluster(path), "eu-west") == expected
