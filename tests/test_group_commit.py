"""One entry in each stretch of time, and one message to a region for what one turn of the loop sends it."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import board_changes
from actors.ports import Limits
from actors.shard import TICK_S, until_tick
from actors.waiting import CommitWaiters
from actors.writing import LATELY, Writer
from failover.replication import PeerProgress, Replication, RequestNumbers, Ship
from journal.ports import Accepted, Append, JournalUnavailable, Peer, Position, Refused
from journal.records import Audited, Entry, open_entry, seal_entry
from regions import links as links_module
from regions.link_server import Acceptor
from regions.links import HttpLinks, NotSent


class Ledger:
    def reader(self) -> Any:
        return nullcontext()


class Nothing:
    """Of boards that wait for a generation there are none."""

    def due(self) -> list[Any]:
        return []


class OneBoard(Nothing):
    """A board that takes every event; each is told in the entry by its id."""

    state = SimpleNamespace(incarnation="life", sharded=False, generation=0, unpublished=False)

    def board(self, board_id: str) -> Any:
        return self.state

    def decide(self, reader: Any, board: Any, submissions: list[str], **where: Any) -> tuple[list[Audited], list[Any]]:
        return [Audited(word, "test", 1, "{}") for word in submissions], []


class Written:
    """A writer on a store that takes everything within `store_ms`, and a clock that otherwise only the test moves."""

    def __init__(self, group_ms: int, store_ms: int = 0, pending: Any = None, events_per_entry: int = 2000) -> None:
        self.now_ms, self.store_ms = 100, store_ms
        self.entries: list[Entry] = []
        waiters = CommitWaiters()

        async def append(entry: Entry, expected: Position) -> Accepted:
            self.entries.append(entry)
            self.now_ms += self.store_ms
            waiters.advance(entry.offset)
            return Accepted(entry.offset, entry.offset, 1, Position(1, entry.offset), "here")

        ledger: Any = Ledger()
        pending = pending or Nothing()
        self.writer = Writer(
            shard="eu/0",
            epoch=1,
            tail=Position(1, 1),
            ledger=ledger,
            pending=pending,
            limits=Limits(group_ms=group_ms, events_per_entry=events_per_entry),
            waiters=waiters,
            append=append,
            wall_ms=lambda: 1,
            monotonic_ms=lambda: self.now_ms,
            new_id=lambda: "id",
            heard=lambda answer: None,
        )

    def words(self) -> list[list[str]]:
        return [[record.what for record in open_entry(entry) if isinstance(record, Audited)] for entry in self.entries]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_while_callers_share_entries_one_is_begun_in_each_stretch_and_who_is_alone_does_not_wait() -> None:
    async def story() -> None:
        told = Written(group_ms=20)
        running = asyncio.create_task(told.writer.run())
        await told.writer.audit("alone", "test", {})
        await told.writer.audit("alone again", "test", {})
        await asyncio.gather(*(told.writer.audit(word, "test", {}) for word in ("one", "other")))
        assert told.words() == [["alone"], ["alone again"], ["one", "other"]], "at once"
        del told.entries[:]
        others = [asyncio.create_task(told.writer.audit("second", "test", {}))]
        await turns()
        others.append(asyncio.create_task(told.writer.audit("third", "test", {})))
        await turns()
        assert told.words() == []
        told.now_ms = 120
        await asyncio.gather(*others)
        assert told.words() == [["second", "third"]]
        told.now_ms = 145
        await told.writer.audit("fourth", "test", {})
        assert told.words()[1:] == [["fourth"]]
        told.writer.stop()
        await running

    asyncio.run(story())


@pytest.mark.parametrize(("store_ms", "stretch_ms"), [(0, 10), (2, 10), (3, 20), (5, 20), (6, 40), (10, 40), (11, 80), (70, 80)])
def test_stretch_is_as_long_as_the_store_has_lately_been_slow(store_ms: int, stretch_ms: int) -> None:
    async def story() -> None:
        told = Written(group_ms=80, store_ms=store_ms)
        running = asyncio.create_task(told.writer.run())
        for _ in range(10 * LATELY):
            await told.writer.audit("alone", "test", {})
            assert not told.writer.entry_soon, "who comes alone does not wait"
        begun = told.now_ms = 80_000  # a multiple of every stretch
        await asyncio.gather(*(told.writer.audit(word, "test", {}) for word in ("one", "other")))
        assert told.writer.entry_soon
        while told.writer.entry_soon:
            told.now_ms += 1
        assert told.now_ms - begun == stretch_ms
        told.writer.stop()
        await running

    asyncio.run(story())


def test_what_an_entry_had_no_room_for_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("refuse_unless_open", "refuse_strangers"):
        monkeypatch.setattr(board_changes, name, lambda *_: None)

    async def story() -> None:
        told = Written(group_ms=80, pending=OneBoard(), events_per_entry=4)
        submit: Any = told.writer.submit
        running = asyncio.create_task(told.writer.run())
        await asyncio.gather(*(submit("board", [f"{n}a", f"{n}b"], "test") for n in range(5)))
        assert told.words() == [["0a", "0b", "1a", "1b"], ["2a", "2b", "3a", "3b"], ["4a", "4b"]]
        await asyncio.gather(*(submit("board", [f"{n}"], "test") for n in range(2)))
        assert told.words()[3:] == [["0", "1"]], "the last of those was no longer shared"
        assert told.writer.entry_soon
        told.writer.stop()
        await running

    asyncio.run(asyncio.wait_for(story(), 10))


def test_without_a_stretch_each_entry_follows_the_one_before_it() -> None:
    async def story() -> None:
        told = Written(group_ms=0)
        running = asyncio.create_task(told.writer.run())
        for word in ("first", "second", "third"):
            await told.writer.audit(word, "test", {})
        assert told.words() == [["first"], ["second"], ["third"]]
        told.writer.stop()
        await running

    asyncio.run(story())


def test_news_of_a_commit_waits_for_the_entry_that_is_about_to_carry_it() -> None:
    peer = PeerProgress("us", "token", Peer(1, 3), streaming=True, next=5, verified=3, last_sent_ms=1000)
    replication = Replication(1, "eu", {"eu": "a", "us": "token"}, 1, 4, 4, {"us": peer}, 100)
    numbers = RequestNumbers()
    replication.entry_soon = True
    assert replication.sends(1010, numbers) == []
    replication.tail = 5
    assert replication.sends(1020, numbers) == [Ship("us", 1, 5, 5)]
    assert peer.committed_sent == 4
    peer.in_flight.clear()
    replication.committed, replication.entry_soon = 5, False
    assert replication.sends(1030, numbers) == [Ship("us", 2, 6, 5)], "no entry comes: the news goes alone"


# What links send together


def message(shard: str, entries: int = 0) -> Append:
    some = [seal_entry(1, 2 + n, "id", [Audited("x", "test", 1, "{}")]) for n in range(entries)]
    return Append(
        shard=shard, lineage="l", config_version=1, sender="eu", incarnation="i", request_id="r", epoch=1, attempt="a",
        prev=Position(1, 1), entries=some,
    )  # fmt: skip


class Wire(HttpLinks):
    """Answers each Append with its shard as the store's token."""

    def __init__(self) -> None:
        unused: Any = None
        super().__init__("eu", {}, "", unused)
        self.calls: list[tuple[str, str, list[str]]] = []
        self.dead = False

    async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        asked = msgspec.msgpack.decode(body, type=list[Append])
        self.calls.append((peer, path, [each.shard for each in asked]))
        if self.dead:
            raise NotSent("gone")
        return msgspec.msgpack.encode([Accepted(1, 1, 1, each.prev, each.shard) for each in asked])


def test_appends_of_one_turn_share_a_message_to_each_region_and_each_gets_its_own_answer() -> None:
    async def story() -> None:
        wire = Wire()
        sent = [("us", "eu/0"), ("ap", "eu/0"), ("us", "eu/1"), ("us", "eu/2"), ("ap", "eu/1")]
        answers = await asyncio.gather(*(wire.append(region, message(shard)) for region, shard in sent))
        assert [answer.incarnation for answer in answers if isinstance(answer, Accepted)] == [shard for _, shard in sent]
        assert sorted(wire.calls) == [("ap", "append", ["eu/0", "eu/1"]), ("us", "append", ["eu/0", "eu/1", "eu/2"])]
        await wire.append("us", message("eu/3"))
        assert wire.calls[2:] == [("us", "append", ["eu/3"])], "the next turn's own"

    asyncio.run(story())


def test_a_message_that_gets_no_answer_answers_none_of_its_appends() -> None:
    async def story() -> list[Accepted | Refused | None]:
        wire = Wire()
        wire.dead = True
        return await asyncio.gather(*(wire.append("us", message(f"eu/{n}")) for n in range(3)))

    assert asyncio.run(story()) == [None, None, None]


def test_a_message_holds_only_so_many_bytes_and_one_append_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(len(entry.data) for entry in message("eu/0", entries=2).entries)
    monkeypatch.setattr(links_module, "BYTES_TOGETHER", 2 * size)

    async def story() -> None:
        wire = Wire()
        counts = (2, 2, 2, 9, 0, 0, 1)
        await asyncio.gather(*(wire.append("us", message(f"eu/{n}", entries=count)) for n, count in enumerate(counts)))
        assert [shards for _, _, shards in wire.calls] == [["eu/0", "eu/1"], ["eu/2"], ["eu/3"], ["eu/4", "eu/5", "eu/6"]]

    asyncio.run(story())


class Store:
    """A store whose journal of one shard is damaged."""

    def __init__(self, shard: str) -> None:
        self.shard = shard

    async def accept(self, message: Append) -> Accepted:
        if self.shard == "eu/1":
            raise JournalUnavailable("WRONGTYPE")
        return Accepted(1, 1, 1, message.prev, self.shard)


def test_an_append_that_fails_takes_no_answer_from_its_neighbours() -> None:
    class Heard:
        def heard(self, message: Append) -> None:
            pass

    unused: Any = None
    granting: Any = Heard()
    journals: Any = {f"eu/{n}": Store(f"eu/{n}") for n in range(3)}
    acceptor = Acceptor(
        region="us",
        journals=journals,
        shards=unused,
        verifier=unused,
        faults=unused,
        granting=granting,
        on_authority=lambda shard, epoch, region: None,
    )
    body = msgspec.msgpack.encode([message(f"eu/{n}") for n in range(4)])
    answers = msgspec.msgpack.decode(asyncio.run(acceptor._dispatch("append", body)), type=list[Accepted | Refused | None])
    assert [answer and answer.incarnation for answer in answers if not isinstance(answer, Refused)] == ["eu/0", None, "eu/2", None]


@given(st.floats(min_value=0, max_value=1e6))
def test_a_tick_is_at_least_a_millisecond_away_and_not_before_its_moment(now_s: float) -> None:
    wait = until_tick(now_s)
    assert wait >= 0.001
    assert TICK_S - now_s % TICK_S <= wait <= TICK_S - now_s % TICK_S + 0.0011
