"""Filling slices of the layout that boards are on their way to: what the authority of a target shard does, for as long as its epoch.

The lead orders it again and again, and is told how far it is. Each slice of the present layout is copied from its ledger,
through the own region's actor of that shard, and then its journal is replayed for as long as the lead likes. All of it
goes through the own journal in `Imported` records, which say how far each source is: another authority goes on there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from actors import relocation_changes
from actors.board_changes import Slice
from actors.exporting import Chunk, Wanted, decode_chunk
from actors.messages import NoAuthority, Unanswered, WireError, from_wire
from actors.ports import Links
from actors.writing import Writer
from ledger.ports import BoardState

log = logging.getLogger("laurel.importing")

#: A source that refused or did not answer is asked again after this, in another region.
AGAIN_S = 0.1
#: How long a source may wait for news before it says that there are none.
NEWS_MS = 200
#: The same while there are news, if not in that region.
LAG_MS = 50
#: How long it has for its answer.
ANSWER_S = 2.0
#: So many entries of a source in which nothing was of this slice are written down, so that nobody reads them again.
SILENT = 5000


class Source(msgspec.Struct):
    """How far one slice of the present layout is here: all that is told of it is committed."""

    shard: str
    #: The ledger of the source up to this key; None before anything.
    cursor: bytes | None = None
    copied: bool = False
    #: Its journal up to this offset; the copy was begun when the source's ledger stood there.
    replayed: int = 0
    #: Entries of it that are committed and not replayed; None while it is not known.
    behind: int | None = None
    #: Rows that came in during this epoch.
    rows: int = 0
    written: int = 0


class Importing:
    """All slices that are filled here. `writer` is this epoch's; `spawn` runs a task beside the actor."""

    def __init__(
        self, *, region: str, regions: Sequence[str], writer: Writer, links: Links, spawn: Callable[[Coroutine[Any, Any, Any]], None]
    ) -> None:
        self._regions = [region, *(r for r in regions if r != region)]
        self._writer, self._links, self._spawn = writer, links, spawn
        self._filling: dict[int, Filling] = {}

    async def fill(
        self,
        wanted: Slice,
        sources: Sequence[str],
        layout: int,
        *,
        lead_epoch: int,
        boundaries: Sequence[int],
        wait_ms: int,
        known: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Make the slice if it is not there, go on filling it, and tell how far it is.

        With `boundaries`, one offset a source, waits until all of them are replayed, at most so long. `known`: offsets of the
        sources that are committed, as they say themselves. Raises what a change raises.
        """
        state: BoardState = await self._writer.change(relocation_changes.begin_import(wanted), committed=True)
        if state.phase != "importing":
            return {"phase": state.phase}
        filling = self._filling.get(state.number)
        if filling is not None and lead_epoch < filling.lead_epoch:
            raise NoAuthority("a later epoch of the lead has asked here", code="no_authority", definite=True)
        if filling is None:
            filling = Filling(wanted, state.number, sources, layout, self._regions, self._writer, self._links)
            self._filling[state.number] = filling
            self._spawn(self._run(filling))
        filling.lead_epoch = lead_epoch
        filling.need(known)
        if boundaries:
            await filling.wait_for(boundaries, wait_ms / 1000)
        return filling.told(boundaries)

    async def _run(self, filling: "Filling") -> None:
        try:
            await filling.run()
        finally:
            self._filling.pop(filling.number, None)


class Filling:
    """One slice that is being filled."""

    def __init__(
        self, wanted: Slice, number: int, sources: Sequence[str], layout: int, regions: Sequence[str], writer: Writer, links: Links
    ) -> None:
        self.number, self._writer, self._links = number, writer, links
        self._wanted = Wanted(wanted.board_id, wanted.incarnation, layout, wanted.slice, len(wanted.layout.shards))
        self._regions = regions
        self.sources = [Source(shard) for shard in sources]
        self.trouble = ""
        #: Of the lead that asked last.
        self.lead_epoch = 0
        #: Up to where each source is known to be committed: a region that has no news before that lags.
        self._needed = [0] * len(self.sources)
        self._one = asyncio.Lock()
        self._moved = asyncio.Condition()

    @property
    def over(self) -> bool:
        """Nothing more is to come in: the epoch has ended, the slice was opened, or it is gone."""
        state = self._writer.pending.numbered(self.number)
        return not self._writer.accepting or state is None or state.phase != "importing"

    async def run(self) -> None:
        """Follow all sources until it is over."""
        await asyncio.gather(*(self._follow(index) for index in range(len(self.sources))))

    def reached(self, boundaries: Sequence[int]) -> bool:
        """Every source is here up to its boundary."""
        return all(s.copied and s.replayed >= boundary for s, boundary in zip(self.sources, boundaries, strict=True))

    def need(self, known: Sequence[int]) -> None:
        """Offsets of the sources that are committed, as they say themselves: what lies below is looked for in any region."""
        self._needed = [max(before, offset) for before, offset in zip(self._needed, known or self._needed, strict=True)]

    async def wait_for(self, boundaries: Sequence[int], timeout_s: float) -> None:
        """Return once all boundaries are reached, or the time is over."""
        self.need(boundaries)
        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(lambda: self.over or self.reached(boundaries))
        except TimeoutError:
            pass

    def told(self, boundaries: Sequence[int]) -> dict[str, Any]:
        """For the lead: progress, and whether and with what the boundaries are reached."""
        state = self._writer.pending.numbered(self.number)
        return {
            "phase": "importing" if state is None else state.phase,
            "reached": bool(boundaries) and self.reached(boundaries),
            "checksum": 0 if state is None else state.checksum,
            "count": 0 if state is None else state.count,
            "sources": [
                {"shard": s.shard, "copied": s.copied, "replayed": s.replayed, "behind": s.behind, "rows": s.rows} for s in self.sources
            ],
            "trouble": self.trouble,
        }

    # -- one source ---------------------------------------------------------------------------------------------------

    async def _follow(self, index: int) -> None:
        source, turn, known = self.sources[index], 0, False
        while not self.over:
            region = self._regions[turn % len(self._regions)]
            try:
                if not known:
                    await self._look(index)
                    known = True
                if source.copied:
                    turn += await self._replay(index, region)
                else:
                    await self._copy(index, region)
            except Unanswered as error:
                # A change whose outcome is not known: what has been decided is asked for again, and waited for.
                known, turn, self.trouble = False, turn + 1, f"{source.shard} in {region}: {error.detail}"
                await asyncio.sleep(AGAIN_S)
            else:
                self.trouble = ""

    async def _look(self, index: int) -> None:
        """How far the journal says that a source is, once that is committed."""
        state: BoardState | None = await self._writer.change(relocation_changes.look(self.number), committed=True)
        source = self.sources[index]
        for held in state.imports if state is not None else ():
            if held.source == index:
                source.cursor, source.copied = held.cursor, held.cursor is None
                source.written, source.replayed = held.replayed, max(held.replayed, source.replayed if source.copied else 0)

    async def _copy(self, index: int, region: str) -> None:
        """The rest of the source's ledger; the next chunk comes while one is written."""
        source = self.sources[index]
        coming = asyncio.ensure_future(self._chunk(source.shard, region, source.cursor or b"", source.replayed))
        try:
            while not source.copied and not self.over:
                chunk = await coming
                began = source.replayed or chunk.upto
                if chunk.cursor is not None:
                    coming = asyncio.ensure_future(self._chunk(source.shard, region, chunk.cursor, began))
                await self._bring(index, chunk, chunk.cursor, began)
                source.cursor, source.replayed, source.copied = chunk.cursor, began, chunk.cursor is None
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _replay(self, index: int, region: str) -> bool:
        """The next entries of the source's journal; whether this region lags, and another one is to be asked."""
        source, after = self.sources[index], self.sources[index].replayed
        wait_ms = NEWS_MS if after >= self._needed[index] else LAG_MS
        chunk = await self._ask(region, source.shard, {"do": "export_tail", "after": after, "wait_ms": wait_ms})
        await self._take_tail(index, chunk)
        return chunk.upto <= after < self._needed[index]

    async def _chunk(self, shard: str, region: str, after: bytes, at_least: int) -> Chunk:
        return await self._ask(region, shard, {"do": "export", "after": after, "at_least": at_least})

    async def _take_tail(self, index: int, chunk: Chunk) -> None:
        source = self.sources[index]
        if chunk.events or chunk.rows or chunk.upto - source.written >= SILENT:
            await self._bring(index, chunk, None, chunk.upto)
        source.behind = chunk.behind
        source.replayed = max(source.replayed, chunk.upto)
        async with self._moved:
            self._moved.notify_all()

    async def _bring(self, index: int, chunk: Chunk, cursor: bytes | None, replayed: int) -> None:
        source = self.sources[index]
        decide = relocation_changes.bring(self.number, index, chunk.rows, chunk.events, cursor, replayed)
        async with self._one:
            rows, _ = await self._writer.change(decide, committed=True)
        source.rows, source.written = source.rows + rows, replayed

    async def _ask(self, region: str, shard: str, order: dict[str, Any]) -> Chunk:
        """Raises Unanswered."""
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await self._links.operate(region, shard, {**order, "wanted": msgspec.to_builtins(self._wanted)})
        except TimeoutError:
            reply = None
        if reply is None:
            raise NoAuthority(f"no answer of {shard} from {region}", code="unknown", definite=False)
        if "error" in reply:
            raise from_wire(msgspec.convert(reply["error"], WireError))
        return decode_chunk(reply["chunk"])
