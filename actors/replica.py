"""The read replica of a region: follows its own region's journals and answers from retained generations.

Owns: the boards' folds and rank indexes, in memory. Can lose: all of it; it is folded again from the
region's journal, also when the authority is away. What a failed call may have done: nothing, it only reads.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors.answers import answer, open_cursor
from actors.boards_view import BoardFold, Generation, ReplicaMismatch
from actors.clocks import monotonic_ms
from actors.messages import Answer, Ask, BoardInfo, GenerationGone, NotServing, NotVisibleYet, Top, UnknownBoard
from actors.ports import ReplicaSpec
from journal.ports import Journal, JournalUnavailable, Position
from journal.records import BoardCreated, Entry, EpochStarted, Published, Scored, open_entry

log = logging.getLogger("laurel.replica")

RECORDS_PER_TURN = 2000


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What changed here since the gateway asked last; `seq` is what to ask with next."""

    seq: int
    boards: list[BoardInfo]
    #: The first page of 100 of each of `boards`, ready encoded.
    tops: list[Answer]
    #: Shard -> (epoch, owner) of the newest committed epoch-start record.
    owners: dict[str, tuple[int, str]]
    serving: bool


@dataclass(slots=True)
class ShardFold:
    """How far one shard's journal has been folded here."""

    shard: str
    home: str
    journal: Journal
    applied: Position = Position(0, 0)
    boards: dict[int, BoardFold] = field(default_factory=dict)
    owner: tuple[int, str] = (0, "")
    lineage: str = ""
    #: Caught up with `committed` at least once since the (re)start.
    serving: bool = False
    alarm: str = ""
    rebuilds: int = 0


class ReplicaActor:
    """See the module docstring."""

    def __init__(self, spec: ReplicaSpec, *, journals: dict[str, Journal]) -> None:
        self.spec = spec
        self.shards = {s: ShardFold(s, home, journals[s]) for s, home in spec.shards.items()}
        self.boards: dict[str, tuple[ShardFold, BoardFold]] = {}
        self._seq = 0
        self._changed: dict[str, int] = {}
        self._news = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin following the journals."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(fold)) for fold in self.shards.values()]

    async def close(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for fold in self.shards.values():
            await fold.journal.close()

    # -- following ------------------------------------------------------------------------------------------

    async def _follow(self, fold: ShardFold) -> None:
        while True:
            try:
                committed = await fold.journal.wait_for(committed_above=fold.applied.offset, timeout_ms=250)
                if committed < fold.applied.offset:
                    await self._rebuild(fold, "the journal was begun anew")
                    continue
                if committed == fold.applied.offset:
                    # An empty journal was begun anew, or not yet begun: it says nothing of what boards there are.
                    if not fold.serving and committed:
                        fold.serving = True
                        await self._tell([])
                    continue
                while fold.applied.offset < committed:
                    limit = min(64, committed - fold.applied.offset)
                    entries = [x for x in await fold.journal.read(fold.applied.offset + 1, limit=limit) if x.offset <= committed]
                    if not entries:
                        await self._rebuild(fold, "the journal no longer holds the next entry")
                        break
                    await self._apply(fold, entries)
                    await asyncio.sleep(0)
                else:
                    fold.serving, fold.alarm = True, ""
            except JournalUnavailable as error:
                log.warning("%s: %s", fold.shard, error)
                await asyncio.sleep(0.2)
            except ReplicaMismatch as error:
                log.error("%s: %s", fold.shard, error)
                await self._rebuild(fold, str(error))
                await asyncio.sleep(min(30.0, 0.5 * 2 ** min(fold.rebuilds, 6)))

    async def _rebuild(self, fold: ShardFold, why: str) -> None:
        """Forget this shard's fold and start from entry 1; nothing of it is served meanwhile."""
        fold.alarm, fold.rebuilds, fold.serving = why, fold.rebuilds + 1, False
        for board in fold.boards.values():
            self.boards.pop(board.info.board_id, None)
        fold.boards, fold.applied = {}, Position(0, 0)
        await self._tell([])

    async def _apply(self, fold: ShardFold, entries: list[Entry]) -> None:
        now = monotonic_ms()
        touched: set[str] = set()
        for entry in entries:
            if entry.offset != fold.applied.offset + 1:
                raise ReplicaMismatch(f"entry {entry.offset} came after {fold.applied.offset}")
            for record in open_entry(entry):
                match record:
                    case Scored():
                        fold.boards[record.board].apply(record)
                    case Published():
                        board = fold.boards[record.board]
                        board.freeze(record, epoch=entry.epoch, offset=entry.offset, now_ms=now)
                        touched.add(board.info.board_id)
                    case BoardCreated():
                        board = BoardFold.begin(record, fold.shard, fold.home, entry.epoch, entry.offset)
                        fold.boards[record.number] = board
                        self.boards[record.board_id] = (fold, board)
                        touched.add(record.board_id)
                    case EpochStarted():
                        fold.owner, fold.lineage = (record.epoch, record.owner), record.lineage
                        self._seq += 1
                    case _:
                        pass
            fold.applied = Position(entry.epoch, entry.offset)
        await self._tell(touched)

    async def _tell(self, touched: Any) -> None:
        self._seq += 1
        for board_id in touched:
            self._changed[board_id] = self._seq
        async with self._news:
            self._news.notify_all()

    # -- answering ------------------------------------------------------------------------------------------

    async def ask(self, ask: Ask) -> Answer:
        """Answer one question from one generation. Raises the errors of `actors.messages`."""
        self._board(ask.board_id)
        wanted = self._pinned(ask)
        if ask.at_least is not None:
            await self._wait_visible(ask.board_id, ask.at_least, ask.wait_ms)
        if wanted is not None:
            await self._wait_published(ask.board_id, wanted, ask.wait_ms)
        # Looked up again: while it waited, the shard may have been folded anew.
        fold, board = self._board(ask.board_id)
        generation = self._generation(board, wanted)
        return Answer(
            board_id=ask.board_id,
            incarnation=board.info.incarnation,
            lineage=fold.lineage,
            generation=generation.number,
            published_ms=generation.published_ms,
            body=answer(board, generation, ask.question, self.spec.cursor_key),
        )

    def _board(self, board_id: str) -> tuple[ShardFold, BoardFold]:
        found = self.boards.get(board_id)
        if found is None:
            if not all(f.serving for f in self.shards.values()):
                raise NotServing(f"{self.spec.region} is still reading its journal")
            raise UnknownBoard(f"there is no board {board_id}")
        if not found[0].serving:
            raise NotServing(f"{self.spec.region} is still reading its journal")
        return found

    def _pinned(self, ask: Ask) -> int | None:
        if ask.generation is None and isinstance(ask.question, Top) and ask.question.cursor is not None:
            return open_cursor(self.spec.cursor_key, ask.question.cursor).generation
        return ask.generation

    def _generation(self, board: BoardFold, wanted: int | None) -> Generation:
        board.expire(monotonic_ms())
        if wanted is None:
            return board.newest
        generation = board.generation(wanted)
        if generation is None:
            raise GenerationGone(f"s{wanted} is no longer retained; start again with s{board.newest.number}", newest=board.newest.number)
        return generation

    async def _wait_published(self, board_id: str, wanted: int, wait_ms: int) -> None:
        def published() -> bool:
            found = self.boards.get(board_id)
            return found is not None and found[1].newest.number >= wanted

        if not await self._wait_for(published, wait_ms):
            newest = self._board(board_id)[1].newest.number
            raise NotVisibleYet(f"s{wanted} is not here yet; the newest generation is s{newest}", newest=newest)

    async def _wait_visible(self, board_id: str, at_least: Position, wait_ms: int) -> None:
        def visible() -> bool:
            """Included, or folded without having changed a row: then no new generation will come for it."""
            found = self.boards.get(board_id)
            if found is None:
                return False
            fold, board = found
            if board.newest.boundary >= at_least.offset:
                return board.newest.epoch >= at_least.epoch
            return fold.applied >= at_least and fold.applied.offset >= at_least.offset and not board.changed

        if not await self._wait_for(visible, wait_ms):
            newest = self._board(board_id)[1].newest.number
            raise NotVisibleYet(
                f"no generation here includes {at_least.epoch}-{at_least.offset} yet; the newest is s{newest}", newest=newest
            )

    async def _wait_for(self, holds: Callable[[], bool], wait_ms: int) -> bool:
        """Whether `holds` within the time; looked at after each entry that is folded."""
        if holds():
            return True
        try:
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(holds), wait_ms / 1000)
        except TimeoutError:
            return False
        return True

    async def news(self, since: int, timeout_s: float = 5.0) -> News:
        """Wait until something changed after `since` (0: everything) and tell it; used by the gateway's one long poll."""
        if since >= self._seq > 0:
            try:
                async with self._news:
                    await asyncio.wait_for(self._news.wait_for(lambda: self._seq > since), timeout_s)
            except TimeoutError:
                pass
        seq = self._seq
        boards, tops = [], []
        for board_id, changed in self._changed.items():
            if changed <= since or board_id not in self.boards:
                continue
            fold, board = self.boards[board_id]
            boards.append(msgspec.structs.replace(board.info, generation=board.newest.number, count=board.newest.count))
            tops.append(
                Answer(
                    board_id=board_id,
                    incarnation=board.info.incarnation,
                    lineage=fold.lineage,
                    generation=board.newest.number,
                    published_ms=board.newest.published_ms,
                    body=answer(board, board.newest, Top(), self.spec.cursor_key),
                )
            )
        return News(
            seq=seq,
            boards=boards,
            tops=tops,
            owners={f.shard: f.owner for f in self.shards.values()},
            serving=all(f.serving for f in self.shards.values()),
        )

    def status(self) -> dict[str, Any]:
        """What this replica holds, for `/v1/status`."""
        return {
            shard: {
                "applied": fold.applied.offset,
                "serving": fold.serving,
                "alarm": fold.alarm,
                "rebuilds": fold.rebuilds,
                "boards": {
                    b.info.board_id: {
                        "generation": b.newest.number,
                        "checksum": f"{b.newest.checksum:016x}",
                        "retained": len(b.generations),
                    }
                    for b in list(fold.boards.values())[:200]
                },
                "boards_count": len(fold.boards),
            }
            for shard, fold in self.shards.items()
        }
