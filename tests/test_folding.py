"""Folding hears of commits from two sides: the authority's own word, and its store, which is told a little later."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from actors.folding import REST_S, Folding
from journal.ports import JournalStatus, Position
from journal.records import Entry, Record, seal_entry

ENTRY = seal_entry(1, 1, "batch", [])


class Ledger:
    """Holds nothing but how far it is."""

    applied = Position(0, 0)

    def agrees_with(self, status: JournalStatus) -> bool:
        return True

    def apply(self, entries: Sequence[Entry], records: Sequence[Sequence[Record]]) -> None:
        self.applied = Position(entries[-1].epoch, entries[-1].offset)


class StaleStore:
    """Its answer to `wait_for` was read before the commit that the authority tells meanwhile."""

    folding: Folding

    async def status(self) -> JournalStatus:
        return JournalStatus(shard="eu-west/0")

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        if committed_above == 0:
            self.folding.committed_to(1)
            self.folding.report_at(1, self.reported.set_result)
            return 0
        await asyncio.sleep(timeout_ms / 1000)
        return committed_above

    async def read(self, first: int, *, limit: int = 256) -> list[Entry]:
        return [ENTRY]

    reported: "asyncio.Future[int]"


def test_an_older_answer_of_the_store_does_not_undo_the_authoritys_word_on_what_is_committed() -> None:
    """1. Folding asks its store for news. 2. The epoch's start commits. 3. The store's older answer comes: the ledger still catches up."""

    async def story() -> int:
        store: Any = StaleStore()
        store.reported = asyncio.get_running_loop().create_future()
        spec: Any = SimpleNamespace(shard="eu-west/0")
        ledger: Any = Ledger()
        ignore: Any = lambda *_: None  # noqa: E731
        store.folding = Folding(spec, store, ledger, on_started=ignore, on_folded=ignore, on_halted=ignore)
        running = asyncio.create_task(store.folding.run())
        try:
            return await asyncio.wait_for(asyncio.shield(store.reported), 5)
        finally:
            running.cancel()

    assert asyncio.run(story()) == 1


class Follower:
    """A store whose committed entries the test adds to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.more = asyncio.Event()

    def add(self) -> None:
        self.entries.append(seal_entry(1, len(self.entries) + 1, "batch", []))
        self.more.set()

    async def status(self) -> JournalStatus:
        return JournalStatus(shard="eu-west/0")

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        while len(self.entries) <= committed_above:
            self.more.clear()
            await self.more.wait()
        return len(self.entries)

    async def read(self, first: int, *, limit: int = 256) -> list[Entry]:
        return self.entries[first - 1 : first - 1 + limit]


def test_a_follower_folds_what_comes_shortly_after_each_other_together_and_at_once_what_somebody_waits_for() -> None:
    async def story() -> None:
        store = Follower()
        journal: Any = store
        spec: Any = SimpleNamespace(shard="eu-west/0")
        ledger: Any = Ledger()
        folded: list[int] = []
        ignore: Any = lambda *_: None  # noqa: E731
        folding = Folding(spec, journal, ledger, on_started=ignore, on_folded=folded.append, on_halted=ignore)
        store.add()
        running = asyncio.create_task(folding.run())
        while not folded:
            await asyncio.sleep(0)
        store.add()
        store.add()
        began = asyncio.get_running_loop().time()
        while len(folded) < 2:
            await asyncio.sleep(0.001)
        assert folded == [1, 3]
        assert asyncio.get_running_loop().time() - began > REST_S / 2
        store.add()
        folding.committed_to(4)
        reported: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        folding.report_at(4, reported.set_result)
        turns = 0
        while not reported.done():
            turns += 1
            assert turns < 100, "it waits"
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 10))
