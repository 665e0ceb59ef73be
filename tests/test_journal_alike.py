"""The two writings of the journal's rules, Python and Lua, agree on random sequences of operations."""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.memory import MemoryLog
from journal.ports import JournalStatus, Peer, Position
from journal.records import Entry
from journal.redis_journal import RedisJournal

sys.path.insert(0, str(Path(__file__).parent))
from store_fixtures import chapter, filler, opening, running_store, sealing, shipping, valkey_binary

pytestmark = pytest.mark.store

OPERATIONS = ["seal", "append", "append", "accept", "accept", "accept", "adopt", "again", "readmit", "mark", "renew", "take_acceptor"]

_serial = itertools.count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(valkey_binary(), tmp_path_factory.mktemp("alike")) as server:
        yield server.url


class Chooser:
    """Draws calls that are mostly near what the journal would take, and sometimes just beside it."""

    def __init__(self, data: st.DataObject, log: MemoryLog) -> None:
        self._data = data
        self._log = log

    def below(self, count: int) -> int:
        return self._data.draw(st.integers(0, count - 1))

    def call(self, operation: str) -> tuple[str, dict[str, Any]]:
        status = self._log.status()
        if operation == "mark":
            return ("mark_amnesiac", {"incarnation": f"i-{self.below(2)}"}) if self.below(4) == 0 else ("seal", self._seal(status))
        if operation == "renew":
            epoch = max(1, status.fence + self.below(3) - 1)
            return "renew", {"epoch": epoch, "attempt": self._attempt(epoch), "acceptor": "a" * self.below(2), "lease_ms": self.below(4)}
        if operation == "take_acceptor":
            return operation, {"token": "a" * self.below(2)}
        if operation == "readmit":
            replaces = None if self.below(2) else f"i-{self.below(3)}"
            return "readmit", {"incarnation": f"i-{self.below(3)}", "fence": max(0, status.fence + self.below(4) - 2), "replaces": replaces}
        draw = {"seal": self._seal, "append": self._append, "accept": self._accept, "adopt": self._adopt}[operation]
        return operation, draw(status)

    def _seal(self, status: JournalStatus) -> dict[str, Any]:
        epoch = max(1, status.fence + self.below(4) - 1)
        newest = status.newest
        deposes = (newest.epoch, newest.owner) if newest and self.below(4) else (self.below(12), "us")
        lineage = "L2" if self.below(12) == 0 else "L1"
        remembered = Peer(self.below(8), self.below(8)) if self.below(8) == 0 else Peer()
        message = sealing(
            status.shard,
            epoch,
            attempt=self._attempt(epoch),
            deposes=deposes,
            admit_as=("", "i-0")[self.below(2)],
            lineage=lineage,
            remembered=remembered,
            acceptor="a" * self.below(2),
        )
        return {"message": message}

    def _append(self, status: JournalStatus) -> dict[str, Any]:
        epoch = max(1, status.fence - (self.below(8) == 0))
        expected = self._position(status, status.tail.offset - (self.below(4) == 0))
        count = self.below(4)
        first = expected.offset + 1
        if expected.epoch == epoch:
            entries = [filler(epoch, first + n, self._tag()) for n in range(count)]
        else:
            entries = chapter(epoch, first, count) if count else []
        committed = self.below(status.tail.offset + 4)
        own = {"epoch": epoch, "attempt": self._attempt(epoch), "expected": expected}
        return own | {"entries": entries, "committed": committed, "peers": self._peers()}

    def _accept(self, status: JournalStatus) -> dict[str, Any]:
        epoch = max(1, status.fence + self.below(4) - 1)
        prev = self._position(status, self.below(status.tail.offset + 2))
        message = shipping(
            status.shard,
            epoch,
            prev,
            self._entries(prev, epoch),
            committed=self.below(status.tail.offset + 6) if self.below(3) == 0 else 0,
            attempt=self._attempt(epoch),
            lineage="L2" if self.below(16) == 0 else "L1",
            config_version=self.below(8) and 1,
            peers=self._peers(),
            sender=("eu", "us")[self.below(2)],
        )
        return {"message": message}

    def _adopt(self, status: JournalStatus) -> dict[str, Any]:
        epoch = max(1, status.fence)
        keep = min(status.tail.offset, status.committed + self.below(5))
        at = Position(status.epoch_at(keep), keep)
        expected = status.tail if self.below(6) else self._position(status, self.below(status.tail.offset + 2))
        own = {"epoch": epoch, "attempt": self._attempt(epoch), "expected": expected}
        return own | {"keep": keep, "entries": self._entries(at, epoch)}

    def _entries(self, prev: Position, newest: int) -> list[Entry]:
        """First as many as drawn of what the log holds there, then others: of the same epoch, of the newest, or nonsense."""
        entries = self._log.read(prev.offset + 1, limit=self.below(4) + 1)[: self.below(4)]
        epoch, offset = (entries[-1].epoch, entries[-1].offset) if entries else prev
        for _ in range(self.below(3)):
            offset += 1
            if self.below(3) == 0 and newest > epoch:
                epoch = newest
                entries.append(opening(epoch, offset))
            elif self.below(30) == 0:
                entries.append(filler(epoch + 1, offset))
            else:
                entries.append(filler(epoch, offset, self._tag()))
        return entries

    def _position(self, status: JournalStatus, offset: int) -> Position:
        offset = max(offset, 0)
        right = status.epoch_at(offset)
        return Position(right + (self.below(12) == 0), offset)

    def _attempt(self, epoch: int) -> str:
        return f"other-{epoch}" if self.below(10) == 0 else f"try-{epoch}"

    def _tag(self) -> str:
        return ("", "", "", "x")[self.below(4)]

    def _peers(self) -> dict[str, Peer]:
        if self.below(3):
            return {}
        region = ("us", "eu", "ap")[self.below(3)]
        return {region: Peer(self.below(12), self.below(12), amnesiac=self.below(10) == 0)}


@given(data=st.data(), operations=st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=25), first_epoch=st.sampled_from([1, 8, 98]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_memory_and_lua_answer_alike_and_hold_the_same(url: str, data: st.DataObject, operations: list[str], first_epoch: int) -> None:
    async def whole() -> None:
        shard = f"alike-{next(_serial)}"
        log = MemoryLog(shard, "ap")
        journal = RedisJournal(url, shard, region="ap")
        chooser = Chooser(data, log)
        name, arguments = "seal", {"message": sealing(shard, first_epoch, admit_as="i-0")}
        try:
            for operation in ["again", *operations]:
                if operation != "again":
                    name, arguments = chooser.call(operation)
                ours = getattr(log, name)(**arguments)
                theirs = await getattr(journal, name)(**arguments)
                assert theirs == ours, (name, arguments)
                status = log.status()
                assert await journal.status() == status
                assert await journal.read(1, limit=1000) == log.read(1, limit=1000)
                assert await journal.orphans() == log.orphans()
                _check(status, log.read(1, limit=1000))
        finally:
            await journal.close()

    asyncio.run(whole())


def _check(status: JournalStatus, entries: list[Entry]) -> None:
    """I3, and that `epoch_at` agrees with the entries."""
    assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.epoch for entry in entries] == sorted(entry.epoch for entry in entries)
    assert all(status.epoch_at(entry.offset) == entry.epoch for entry in entries)
    assert status.committed <= status.tail.offset == len(entries)
