"""The read replica of a region: follows its own region's journals and answers from retained generations.

Owns: the boards' folds and rank indexes, in memory. Can lose: all of it; it is folded again from the
region's journals, also when the authority is away. What a failed call may have done: nothing, it only reads.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import msgspec

from actors.answers import answer, check_cursor, open_cursor, ranks
from actors.boards_view import ReplicaMismatch, Turn
from actors.clocks import monotonic_ms, wall_ms
from actors.generations_view import BoardSeries, Generation
from actors.messages import (
    Answer,
    Ask,
    BadParameter,
    BoardInfo,
    GenerationGone,
    NotServing,
    NotVisibleYet,
    Rank,
    Top,
    Unanswered,
    UnknownBoard,
    WireError,
    to_wire,
)
from actors.ports import ReplicaSpec
from actors.precedence import go_evenly
from actors.region_fold import RegionFold, ShardFold
from actors.steps import Steps
from journal.ports import Journal, JournalUnavailable, Position

log = logging.getLogger("laurel.replica")

T = TypeVar("T")

#: Entries read at once.
STRIDE = 64
#: Seconds of folding before questions get a turn.
TURN_S = 0.001
#: Seconds that more entries are given to come before a shard's next are read, unless somebody waits for a position.
REST_S = 0.04
#: Seconds from one look for generations that are no longer retained to the next.
EXPIRE_S = 30.0
#: Pause before broken slices are folded anew for the first time; it doubles each time, up to 30 s.
MEND_MIN_S = 0.5
#: Boards that news are made of before others get a turn.
NEWS_AT_ONCE = 64
#: Boards of a shard that its status tells one by one.
BOARDS_TOLD = 200
#: Boards that are remembered as removed. Who asks for news from before that is told everything anew.
REMOVED = 4096


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What changed here since the gateway asked last; `seq` is what to ask with next."""

    seq: int
    boards: list[BoardInfo]
    #: The first page of 100 of each of `boards`, ready encoded.
    tops: list[Answer]
    #: Shard -> (epoch, owner) of the newest committed epoch-start record.
    owners: dict[str, tuple[int, str]]
    serving: bool
    #: Boards that are there no more; none where everything is asked for.
    removed: list[str] = []


class ReplicaActor:
    """See the module docstring."""

    def __init__(self, spec: ReplicaSpec, *, journals: dict[str, Journal]) -> None:
        self.spec = spec
        self.fold = RegionFold(spec.shards)
        self._journals = {shard: journals[shard] for shard in spec.shards}
        self._seq = 0
        #: Board id -> when it changed, or went, last, and in which life; the latest at the end.
        self._changed: dict[str, tuple[int, str]] = {}
        self._removed: dict[str, tuple[int, str]] = {}
        #: Removals up to this number are not remembered.
        self._forgotten = 0
        self._news = asyncio.Condition()
        #: Held by whoever changes the fold: that is done in steps, with questions in between.
        self._folding = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="freeze", initializer=go_evenly)
        #: Questions that wait for what is not here yet, and whether there are any.
        self._waiting = 0
        self._awaited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._menders: dict[str, asyncio.Task[None]] = {}

    @property
    def shards(self) -> dict[str, ShardFold]:
        """How far each shard is folded."""
        return self.fold.shards

    def start(self) -> None:
        """Begin following the journals."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(fold)) for fold in self.shards.values()]
        self._tasks.append(loop.create_task(self._expire()))

    async def close(self) -> None:
        """Stop following."""
        tasks = [*self._tasks, *self._menders.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown()
        for journal in self._journals.values():
            await journal.close()

    # -- following ------------------------------------------------------------------------------------------

    async def _follow(self, fold: ShardFold) -> None:
        journal = self._journals[fold.shard]
        while True:
            try:
                committed = await journal.wait_for(committed_above=fold.applied.offset, timeout_ms=250)
                if committed < fold.applied.offset:
                    await self._rebuild(fold, "the journal was begun anew")
                    continue
                if committed == fold.applied.offset:
                    # An empty journal was begun anew, or not yet begun: it says nothing of what boards there are.
                    if not fold.serving and committed:
                        await self._caught_up(fold)
                    continue
                while fold.applied.offset < committed:
                    limit, rebuilds = min(STRIDE, committed - fold.applied.offset), fold.rebuilds
                    entries = [x for x in await journal.read(fold.applied.offset + 1, limit=limit) if x.offset <= committed]
                    if not entries and fold.rebuilds == rebuilds:
                        await self._rebuild(fold, "the journal no longer holds the next entry")
                        break
                    async with self._folding:
                        if fold.rebuilds != rebuilds:  # with another shard, which was to be read again
                            continue
                        seen = fold.owner, fold.lineage
                        steps = self.fold.applying(fold.shard, entries, committed=committed, now_ms=monotonic_ms(), wall_ms=wall_ms())
                        told = await self._take(steps)
                        self._mend_broken()
                    await self._tell(told, always=(fold.owner, fold.lineage) != seen)
                    await asyncio.sleep(0)
                else:
                    await self._caught_up(fold)
                    await self._rest()
            except JournalUnavailable as error:
                log.warning("%s: %s", fold.shard, error)
                await asyncio.sleep(0.2)
            except ReplicaMismatch as error:
                log.error("%s: %s", fold.shard, error)
                await self._rebuild(fold, str(error))
                await asyncio.sleep(min(30.0, 0.5 * 2 ** min(fold.rebuilds, 6)))

    async def _take(self, steps: Steps[T]) -> T:
        """Do it in turns with whoever asks, and what takes long in a thread."""
        begun = time.monotonic()
        while True:
            try:
                work = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if work is not None:
                await asyncio.get_running_loop().run_in_executor(self._thread, work)
            elif time.monotonic() - begun < TURN_S:
                continue
            else:
                await asyncio.sleep(0)
            begun = time.monotonic()

    async def _rest(self) -> None:
        """A larger read costs less than two: let more come, unless somebody waits for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await self._awaited.wait()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                async with self._folding:
                    await self._take(self.fold.expiring(monotonic_ms()))
            except Exception:  # it is only about memory: the next look may do better
                log.exception("what is no longer retained could not all be let go")

    async def _caught_up(self, fold: ShardFold) -> None:
        if not fold.serving or fold.stopped:
            async with self._folding:
                told = self.fold.caught_up(fold.shard, now_ms=monotonic_ms(), wall_ms=wall_ms())
                self._mend_broken()
            await self._tell(told, always=True)

    async def _rebuild(self, fold: ShardFold, why: str) -> None:
        """Forget this shard's fold and start from entry 1; nothing of it is served meanwhile (see `RegionFold.restart`)."""
        async with self._folding:
            self.fold.restart(fold.shard, why)
        await self._tell((), always=True)

    def _mend_broken(self) -> None:
        for fold in self.shards.values():
            if fold.broken and fold.shard not in self._menders:
                self._menders[fold.shard] = asyncio.get_running_loop().create_task(self._mend(fold))

    async def _mend(self, fold: ShardFold) -> None:
        """Fold the broken slices of a shard anew, beside the others, until none is left or the whole shard is folded anew."""
        journal, rebuilds = self._journals[fold.shard], fold.rebuilds
        try:
            while fold.rebuilds == rebuilds and (mending := self.fold.mending(fold.shard)) is not None:
                log.error("%s: %s", fold.shard, fold.alarm)
                await asyncio.sleep(min(30.0, MEND_MIN_S * 2 ** min(max(one.repairs for one in mending.slices.values()), 6)))
                told: set[str] | None = None
                while told is None and fold.rebuilds == rebuilds:
                    if mending.applied < fold.applied.offset:
                        limit = min(STRIDE, fold.applied.offset - mending.applied)
                        entries = await journal.read(mending.applied + 1, limit=limit)
                        if not entries:
                            return
                        await self._take(mending.feeding(entries, Turn(monotonic_ms(), wall_ms(), live=False)))
                        await asyncio.sleep(0)
                        continue
                    async with self._folding:
                        if fold.rebuilds == rebuilds and mending.applied == fold.applied.offset:
                            told = self.fold.mended(fold.shard, mending, now_ms=monotonic_ms(), wall_ms=wall_ms())
                if told is not None:
                    await self._tell(told)
        except JournalUnavailable as error:
            log.warning("%s: %s", fold.shard, error)
        finally:
            del self._menders[fold.shard]

    async def _tell(self, told: Iterable[str], *, always: bool = False) -> None:
        """Wake who waits for news or for a position; boards of which there is something new are in the next news."""
        self._seq += bool(always or told)
        for board_id in sorted(told):
            series = self.fold.boards.get(board_id)
            _, life = self._changed.pop(board_id, (0, ""))
            if series is not None and (series.newest is not None or life == series.incarnation):
                self._changed[board_id] = (self._seq, series.incarnation)
                self._removed.pop(board_id, None)
            elif life:
                self._removed[board_id] = (self._seq, life)
                if len(self._removed) > REMOVED:
                    self._forgotten, _ = self._removed.pop(next(iter(self._removed)))
        async with self._news:
            self._news.notify_all()

    # -- answering ------------------------------------------------------------------------------------------

    async def ask_all(self, asks: list[Ask]) -> list[Answer | WireError]:
        """One answer, or error as a value, for each question, in order; ranks in one generation are looked up together."""
        replies: dict[int, Answer | WireError] = {}
        groups: dict[tuple[str, int | None], list[tuple[int, str]]] = {}
        for number, ask in enumerate(asks):
            if type(ask.question) is Rank and ask.question.mode == "exact" and ask.at_least is None and not ask.incarnation:
                groups.setdefault((ask.board_id, ask.generation), []).append((number, ask.question.player_id))
        for (board_id, wanted), group in groups.items():
            try:
                series = self._board(board_id)
                generation = self._generation(series, wanted)
                bodies = ranks(series, generation, [player for _, player in group])
            except Exception:  # each hears it by itself, after such a wait as it asked for
                continue
            for (number, _), body in zip(group, bodies, strict=True):
                replies[number] = self._answer(series, generation, body) if isinstance(body, bytes) else to_wire(body)
        return [replies[number] if number in replies else await self._value(ask) for number, ask in enumerate(asks)]

    async def _value(self, ask: Ask) -> Answer | WireError:
        try:
            return await self.ask(ask)
        except Unanswered as error:
            return to_wire(error)
        except Exception:  # of this question; those that came with it are answered
            log.exception("error in a question to %s", ask.board_id)
            return to_wire(NotServing(f"{self.spec.region} met an error of its own in {ask.board_id}"))

    async def ask(self, ask: Ask) -> Answer:
        """Answer one question from one generation. Raises the errors of `actors.messages`."""
        series = self._board(ask.board_id)
        wanted, named_by = self._pinned(series, ask), "cursor" if ask.generation is None else "generation"
        if ask.at_least is not None:
            shard = self._shard_of(series, ask.at_shard)
            await self._wait_visible(ask.board_id, shard, ask.at_least, ask.wait_ms)
        if wanted is not None:
            await self._wait_published(ask.board_id, wanted, ask.incarnation, ask.wait_ms, named_by)
        # Looked up again: while it waited, the board may have been folded anew.
        series = self._board(ask.board_id)
        if ask.incarnation not in ("", series.incarnation):
            newest = self._newest(ask.board_id).number
            detail = f"{ask.board_id} was made anew, or is about to be: s{wanted} of that life is not here; start again with s{newest}"
            raise generation_gone(detail, newest, "generation")
        generation = self._generation(series, wanted, named_by)
        if generation is series.newest and ask.question == Top():
            return self._answer(series, generation, self._top(series, generation))
        return self._answer(series, generation, answer(series, generation, ask.question, self.spec.cursor_key))

    def _answer(self, series: BoardSeries, generation: Generation, body: bytes) -> Answer:
        return Answer(
            board_id=series.board_id,
            incarnation=series.incarnation,
            lineage=self.fold.lineage(series, generation),
            shard=self.fold.leading(series, generation),
            layout=generation.proposal.layout,
            generation=generation.number,
            published_ms=generation.published_ms,
            body=body,
        )

    def _board(self, board_id: str) -> BoardSeries:
        series = self.fold.boards.get(board_id)
        if series is None:
            if not all(f.serving for f in self.shards.values()):
                raise NotServing(f"{self.spec.region} is still reading its journal")
            raise UnknownBoard(f"there is no board {board_id}")
        if why := self.fold.unready(series):
            raise NotServing(f"{self.spec.region} cannot answer for {board_id} yet: {why}")
        return series

    def _newest(self, board_id: str) -> Generation:
        newest = self._board(board_id).newest
        if newest is None:
            raise NotServing(f"{self.spec.region} cannot answer for {board_id} yet")
        return newest

    def _pinned(self, series: BoardSeries, ask: Ask) -> int | None:
        if isinstance(ask.question, Top) and ask.question.cursor is not None:
            cursor = open_cursor(self.spec.cursor_key, ask.question.cursor)
            wanted = cursor.generation if ask.generation is None else ask.generation
            check_cursor(series, cursor, wanted)
            return wanted
        return ask.generation

    def _shard_of(self, series: BoardSeries, shard: str | None) -> str:
        """The shard that a position is of; one without a shard means something only where all of them are of one. Raises BadParameter."""
        layout = series.layout
        plain = layout.number == 1 and len(layout.shards) == 1
        if shard is None and plain:
            return layout.lead
        if shard is not None and shard in series.past:
            return shard
        shards = layout.shards if layout.number == 1 else sorted(series.past)
        raise BadParameter(
            f"a position of {series.board_id} means something only together with its shard"
            if shard is None
            else f"this is no position of {series.board_id}",
            field="at_least",
            allowed=f"<epoch>-<offset>, or the same behind {layout.lead}:"
            if plain
            else f"<shard>:<epoch>-<offset> with a shard of {', '.join(shards)}",
        )

    def _generation(self, series: BoardSeries, wanted: int | None, field: str = "generation") -> Generation:
        series.expire(monotonic_ms())
        newest = self._newest(series.board_id)
        if wanted is None:
            return newest
        generation = series.generations.get(wanted)
        if generation is None:
            detail = f"s{wanted} is no longer retained; start again with s{newest.number}"
            raise generation_gone(detail, newest.number, field)
        return generation

    async def _wait_published(self, board_id: str, wanted: int, life: str, wait_ms: int, field: str) -> None:
        """`life`: of this incarnation; empty: of any. Another one may be over, or not here yet. `field`: where `wanted` was named."""

        def published() -> bool:
            series = self.fold.boards.get(board_id)
            lives = series is not None and life in ("", series.incarnation)
            return series is not None and lives and series.newest is not None and series.newest.number >= wanted

        if not await self._wait_for(published, wait_ms):
            newest = self._newest(board_id).number
            if life not in ("", self._board(board_id).incarnation):
                return  # the caller finds that it has to be refused
            raise NotVisibleYet(f"s{wanted} is not here yet; the newest generation is s{newest}", newest=newest, field=field)

    async def _wait_visible(self, board_id: str, shard: str, at_least: Position, wait_ms: int) -> None:
        def visible() -> bool:
            series = self.fold.boards.get(board_id)
            return series is not None and self.fold.includes(series, shard, at_least)

        if not await self._wait_for(visible, wait_ms):
            newest = self._newest(board_id).number
            detail = f"no generation here includes {at_least.epoch}-{at_least.offset} of {shard} yet; the newest is s{newest}"
            raise NotVisibleYet(detail, newest=newest, field="at_least")

    async def _wait_for(self, holds: Callable[[], bool], wait_ms: int) -> bool:
        """Whether `holds` within the time; looked at after each entry that is folded."""
        if holds():
            return True
        self._waiting += 1
        self._awaited.set()
        try:
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(holds), wait_ms / 1000)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._awaited.clear()
        return True

    async def news(self, since: int, timeout_s: float = 5.0) -> News:
        """Wait until something changed after `since` (0: everything) and tell it; used by the gateway's one long poll.

        Where removals after `since` are no longer remembered, the answer is that of a replica which has begun anew: `seq` below `since`.

        Cost: by the number of boards that changed, however many there are.
        """
        if since >= self._seq > 0:
            try:
                async with self._news:
                    await asyncio.wait_for(self._news.wait_for(lambda: self._seq > since), timeout_s)
            except TimeoutError:
                pass
        if 0 < since < self._forgotten:
            return self._news_of(0, [], [], [])
        seq = self._seq
        boards, tops = [], []
        for number, board_id in enumerate(reversed(_since(self._changed, since)), start=1):
            if number % NEWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            series = self.fold.boards.get(board_id)
            newest = None if series is None else series.newest
            if series is None or newest is None:
                continue
            try:
                info, top = self.fold.info(series), self._answer(series, newest, self._top(series, newest))
            except Exception:  # the others are told all the same: one board never holds up all of a region
                log.exception("%s is left out of the news", board_id)
                continue
            boards.append(info)
            tops.append(top)
        return self._news_of(seq, boards, tops, _since(self._removed, since) if since else [])

    def _news_of(self, seq: int, boards: list[BoardInfo], tops: list[Answer], removed: list[str]) -> News:
        return News(
            seq=seq,
            boards=boards,
            tops=tops,
            owners={f.shard: f.owner for f in self.shards.values()},
            serving=all(f.serving for f in self.shards.values()),
            removed=removed,
        )

    def _top(self, series: BoardSeries, newest: Generation) -> bytes:
        """The first page; kept, since each gateway of the region asks for it."""
        body = newest.kept.get("top")
        if not isinstance(body, bytes):
            body = newest.kept["top"] = answer(series, newest, Top(), self.spec.cursor_key)
        return body

    def status(self) -> dict[str, Any]:
        """What this replica holds, for `/v1/status`; boards are told by the shard that leads them."""
        now = wall_ms()
        led: dict[str, list[BoardSeries]] = {shard: [] for shard in self.shards}
        for series in self.fold.boards.values():
            if series.newest is not None and series.layout.lead in led:
                led[series.layout.lead].append(series)
        return {
            shard: {
                "applied": fold.applied.offset,
                "serving": fold.serving,
                "alarm": fold.alarm,
                "rebuilds": fold.rebuilds,
                "boards": {series.board_id: series.status(now) for series in islice(led[shard], BOARDS_TOLD)},
                "boards_count": len(led[shard]),
            }
            for shard, fold in self.shards.items()
        }


def generation_gone(detail: str, newest: int, field: str) -> GenerationGone:
    """The refusal of a generation that is not retained; `field`: where it was named, `generation` or `cursor`."""
    allowed = f"s{newest}, which is the newest, or another that is still retained"
    return GenerationGone(detail, newest=newest, field=field, allowed=f"a cursor of {allowed}" if field == "cursor" else allowed)


def _since(known: dict[str, tuple[int, str]], since: int) -> list[str]:
    """Ids of what happened after `since`, the latest first."""
    found = []
    for board_id, (seq, _) in reversed(known.items()):
        if seq <= since:
            break
        found.append(board_id)
    return found
