"""Folding a shard's committed entries into its ledger, in one region, authority or not.

Runs as one task. A follower reads its own region's journal; an authority takes the entries it has kept.
Only committed entries are folded, so nothing is ever rolled back; a ledger that does not fit its journal
is cleared and rebuilt from the start.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from actors.ports import ShardSpec
from journal.ports import Journal, JournalUnavailable
from journal.records import Entry, EpochStarted, Record, open_entry
from ledger.lmdb_ledger import LmdbLedger
from ledger.ports import ChecksumMismatch, LedgerCorrupt, LedgerGap

if TYPE_CHECKING:
    from actors.writing import Writer

log = logging.getLogger("laurel.fold")

#: Events folded in one transaction, so that the loop is never held for long.
RECORDS_PER_TURN = 2000


class Folding:
    """See the module docstring. `halted` says why it stopped for good ("" while it runs)."""

    def __init__(
        self,
        spec: ShardSpec,
        journal: Journal,
        ledger: LmdbLedger,
        *,
        on_started: Callable[[EpochStarted], None],
        on_folded: Callable[[int], None],
        on_halted: Callable[[str], None],
    ) -> None:
        self._spec, self._journal, self._ledger = spec, journal, ledger
        self._on_started, self._on_folded, self._on_halted = on_started, on_folded, on_halted
        self.writer: Writer | None = None
        self.halted = ""
        self._committed = 0
        self._wake = asyncio.Event()
        self._reports: list[tuple[int, Callable[[int], None]]] = []

    @property
    def applied(self) -> int:
        """Offset up to which the ledger holds everything."""
        return self._ledger.applied.offset

    def committed_to(self, offset: int) -> None:
        """The authority's word that everything up to `offset` is committed (faster than asking the store)."""
        self._committed = max(self._committed, offset)
        self._wake.set()

    def report_at(self, offset: int, report: Callable[[int], None]) -> None:
        """Call `report` once the ledger holds `offset`."""
        self._reports.append((offset, report))
        self._wake.set()
        self._tell()

    async def run(self) -> None:
        """Fold until cancelled, or until the journal and the ledger contradict each other."""
        checked = False
        while not self.halted:
            try:
                if not checked:
                    await self._check()
                    checked = True
                await self._fold_some()
            except JournalUnavailable as error:
                log.warning("%s: %s", self._spec.shard, error)
                checked = False
                await asyncio.sleep(0.2)
            except LedgerGap:
                checked = False
            except (ChecksumMismatch, LedgerCorrupt) as error:
                self.halted = str(error)
                log.error("%s: folding stops: %s", self._spec.shard, error)
                self._on_halted(self.halted)

    async def _check(self) -> None:
        status = await self._journal.status()
        if not self._ledger.agrees_with(status):
            log.warning("%s: the ledger does not fit the journal; rebuilding it", self._spec.shard)
            self._ledger.clear()
            self._committed = status.committed
        if status.newest is not None:
            for entry in await self._journal.read(status.newest.first_offset, limit=1):
                self._tell_started(open_entry(entry))

    async def _fold_some(self) -> None:
        applied = self.applied
        if self._committed <= applied:
            await self._await_news(applied)
            return
        entries: list[Entry] = []
        decoded: list[list[Record]] = []
        kept = self.writer.kept if self.writer is not None else {}
        count, offset = 0, applied + 1
        while offset <= self._committed and count < RECORDS_PER_TURN and (have := kept.get(offset)) is not None:
            entries.append(have.entry)
            decoded.append(have.records)
            count, offset = count + len(have.records), offset + 1
        if not entries:
            limit = min(64, self._committed - applied)
            entries = [x for x in await self._journal.read(applied + 1, limit=limit) if x.offset <= self._committed]
            decoded = [open_entry(x) for x in entries]
        if not entries:
            raise LedgerGap(self._ledger.applied, self._committed)
        self._ledger.apply(entries, decoded)
        for records in decoded:
            self._tell_started(records)
        self._on_folded(self.applied)
        self._tell()
        await asyncio.sleep(0)

    async def _await_news(self, applied: int) -> None:
        if self.writer is not None or self._reports:
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 0.25)
            return
        committed = await self._journal.wait_for(committed_above=applied, timeout_ms=250)
        if committed < applied:
            raise LedgerGap(self._ledger.applied, committed)
        # The authority's own word may have come meanwhile, and be ahead of what its store has been told.
        self._committed = max(self._committed, committed)

    def _tell_started(self, records: list[Record]) -> None:
        if records and isinstance(records[0], EpochStarted):
            self._on_started(records[0])

    def _tell(self) -> None:
        due = [r for r in self._reports if r[0] <= self.applied]
        self._reports = [r for r in self._reports if r[0] > self.applied]
        for _, report in due:
            report(self.applied)
