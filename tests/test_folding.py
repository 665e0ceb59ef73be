"""Folding hears of commits from two sides: the authority's own word, and its store, which is told a little later."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from actors.folding import Folding
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
