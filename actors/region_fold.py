"""All boards of a region's shards, folded from their journals: pure, so that replica and simulator share it.

Shards are folded apart from each other, in any order and at any distance; what comes out, generation by generation, is
the same. A record that contradicts what is folded stops its board alone: it is not served until its slices are mended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from actors.boards_view import ReplicaMismatch, SliceFold, Turn
from actors.generations_view import BadGeneration, BoardSeries, Generation
from actors.messages import BoardInfo
from actors.steps import Steps, at_once
from journal.ports import Position
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Entry,
    EpochStarted,
    Marked,
    Published,
    Record,
    Relocating,
    Scored,
    SliceOpened,
    Switched,
    open_entry,
)

_BOUNDARIES = (Published, Marked)
#: Records that say where a board lives. They hold whatever its rows are: a slice that is to be mended takes them too.
_PLACES = (Relocating, Switched, SliceOpened)
#: Removed boards that are remembered for each shard; beyond it the others are read again when one of them is.
GONE = 65_536
#: Generations that a replica keeps for their number alone: some 3 kB each on a small board, and what has changed on others.
SPARE = 20_000


@dataclass(slots=True)
class ShardFold:
    """How far one shard's journal has been folded here, and the slices in it."""

    shard: str
    home: str
    applied: Position = Position(0, 0)
    slices: dict[int, SliceFold] = field(default_factory=dict)
    #: Numbers of slices that are to be mended.
    broken: set[int] = field(default_factory=set)
    #: Incarnations of boards with slices elsewhere too that this journal says are removed, the latest last.
    gone: dict[str, None] = field(default_factory=dict)
    #: Some of them were let go.
    gone_before: bool = False
    owner: tuple[int, str] = (0, "")
    lineage: str = ""
    #: Caught up with `committed` at least once since the (re)start.
    serving: bool = False
    #: Why all of it was folded anew; "" once it is caught up.
    stopped: str = ""
    rebuilds: int = 0

    @property
    def alarm(self) -> str:
        """What is wrong here, "" when nothing is."""
        found = [f"{self.slices[n].created.board_id}: {self.slices[n].broken}" for n in sorted(self.broken)]
        return "; ".join([self.stopped, *found] if self.stopped else found)


class Mending:
    """Slices of one shard that are folded anew beside the others; see `RegionFold.mending`."""

    def __init__(self, broken: Iterable[SliceFold]) -> None:
        self.slices = {old.number: SliceFold(old.created, old.shard, old.place) for old in broken}
        for old in broken:
            self.slices[old.number].repairs = old.repairs + 1
        #: Offset up to which it is folded.
        self.applied = min((one.place.offset for one in self.slices.values()), default=0)

    def feeding(self, entries: Sequence[Entry], turn: Turn) -> Steps[None]:
        """Take the next committed entries of the shard."""
        opened = yield from _opened(entries)
        wanted = _worth_freezing(opened)
        for at, records in opened:
            for record in _in_order(records):
                one = None if isinstance(record, EpochStarted | BoardCreated) else self.slices.get(getattr(record, "board", -1))
                if one is None:
                    continue
                try:
                    yield from one.take(record, at, turn, wanted=(one.number, at.offset) in wanted)
                except ReplicaMismatch as error:
                    one.broken = str(error)
                else:
                    if isinstance(record, _BOUNDARIES):  # its checksum speaks for all rows: an earlier one was wrong itself
                        one.broken = ""
            self.applied = at.offset
            yield None


class RegionFold:
    """See the module docstring. All calls come from one thread."""

    def __init__(self, shards: Mapping[str, str]) -> None:
        """`shards`: name -> home region."""
        self.shards = {shard: ShardFold(shard, home) for shard, home in shards.items()}
        #: Boards that are there, by id: of two lives that are both here while journals are read, the later.
        self.boards: dict[str, BoardSeries] = {}
        self._lives: dict[str, dict[str, BoardSeries]] = {}
        #: Boards of which more can be made, and the shards that have to be folded further for it whatever is read there.
        self._waiting: dict[BoardSeries, tuple[str, ...]] = {}
        #: The same by shard: board -> offset to be reached. A shard that is away costs the others nothing.
        self._due: dict[str, dict[BoardSeries, int]] = {shard: {} for shard in shards}
        self._applied = dict.fromkeys(shards, 0)
        self._settled = False

    # -- folding ----------------------------------------------------------------------------------------------

    def apply(self, shard: str, entries: Sequence[Entry], *, committed: int, now_ms: int, wall_ms: int) -> set[str]:
        """Fold the next committed entries of one shard; the ids of boards of which there is something new.

        `committed` is how far that journal goes: until it was reached once, old marks that are surely superseded are passed over.

        Raises:
            ReplicaMismatch: the entries do not go on where this fold stands. Call `restart`.
        """
        return at_once(self.applying(shard, entries, committed=committed, now_ms=now_ms, wall_ms=wall_ms))

    def applying(self, shard: str, entries: Sequence[Entry], *, committed: int, now_ms: int, wall_ms: int) -> Steps[set[str]]:
        """See `apply`. Between two steps questions may be put and nothing else done here; what is not complete yet does not show."""
        fold = self.shards[shard]
        turn = Turn(now_ms, wall_ms, fold.serving)
        opened = yield from _opened(entries)
        ends = fold.serving or (bool(entries) and entries[-1].offset >= committed)
        wanted = None if ends else _worth_freezing(opened)
        told: set[str] = set()
        candidates: dict[BoardSeries, None] = {}
        reached = fold.applied
        for at, records in opened:
            if at.offset != reached.offset + 1:
                raise ReplicaMismatch(f"entry {at.offset} came after {reached.offset}")
            for record in _in_order(records):
                if type(record) is Scored:
                    self._score(fold, record)
                elif isinstance(record, BoardCreated):
                    self._created(fold, record, at, candidates)
                elif isinstance(record, BoardRemoved):
                    self._removed(fold, record, candidates, told)
                elif isinstance(record, EpochStarted):
                    fold.owner, fold.lineage = (record.epoch, record.owner), record.lineage
                elif hasattr(record, "board"):
                    yield from self._rare(fold, record, record.board, at, turn, wanted, candidates, told)
            reached = at
            yield None
        # Only now: whoever sees that an entry is folded sees the generations that it brought.
        fold.applied, self._applied[shard] = reached, reached.offset
        candidates |= dict.fromkeys(series for series, offset in self._due[shard].items() if offset <= reached.offset)
        return told | self._advance(candidates, turn)

    def expiring(self, now_ms: int) -> Steps[None]:
        """Let generations go that are no longer retained, of boards that rest too: those of the others go when a new one is made.

        Of those that are kept for their number alone there are `SPARE` at most: beyond it those go that were replaced first.
        """
        spare: list[tuple[int, BoardSeries, int]] = []
        for series in list(self.boards.values()):
            series.expire(now_ms)
            for number, replaced_ms in series.spare(now_ms):
                series.generations[number].kept.clear()
                spare.append((replaced_ms, series, number))
            for one in [one for here in series.slices.values() for one in here.values()]:
                if not series.waits:
                    one.expire(now_ms)
                if one.rows.busy:
                    yield one.rows.rest
            yield None
        spare.sort(key=itemgetter(0))
        for _, series, number in spare[: max(0, len(spare) - SPARE)]:
            series.generations.pop(number, None)

    def caught_up(self, shard: str, *, now_ms: int, wall_ms: int) -> set[str]:
        """The shard's journal has been read to its end; the boards of which there is something new."""
        fold = self.shards[shard]
        fold.serving, fold.stopped = True, ""
        return self._advance({}, Turn(now_ms, wall_ms))

    def restart(self, shard: str, why: str) -> None:
        """Forget a shard's fold, to start from entry 1: boards with a slice in it are not served meanwhile.

        Where another shard no longer remembers all removed boards, it is read again as well, lest this one bring them back.
        """
        for other in list(self.shards.values()):
            if other.shard != shard and other.gone_before:
                other.gone_before = False
                self.restart(other.shard, f"{shard} is read again: {why}")
        fold = self.shards[shard]
        fold.stopped, fold.rebuilds, fold.serving = why, fold.rebuilds + 1, False
        for one in fold.slices.values():
            one.broken = why
        for series in dict.fromkeys(series for one in fold.slices.values() if (series := self._series(one)) is not None):
            series.suspend()
            self._waiting.setdefault(series, ())
        for one in fold.slices.values():
            self._drop(one)
        fold.slices, fold.applied, fold.broken, fold.gone, fold.gone_before = {}, Position(0, 0), set(), {}, False
        self._applied[shard] = 0

    def _score(self, fold: ShardFold, record: Scored) -> None:
        one = fold.slices.get(record.board)
        if one is None:
            raise ReplicaMismatch(f"an event is of board number {record.board}, which is not in {fold.shard}")
        if record.row is None or one.broken or one.removing:
            return
        try:
            one.rows.take(record.player_id, record.row)
        except ReplicaMismatch as error:
            self._break(fold, one, str(error))

    def _rare(
        self,
        fold: ShardFold,
        record: Record,
        number: int,
        at: Position,
        turn: Turn,
        wanted: set[tuple[int, int]] | None,
        candidates: dict[BoardSeries, None],
        told: set[str],
    ) -> Steps[None]:
        one = fold.slices.get(number)
        if one is None:
            raise ReplicaMismatch(f"entry {at.offset} is about board number {number}, which is not in {fold.shard}")
        if one.removing or (one.broken and not isinstance(record, _PLACES)):
            return
        try:
            yield from one.take(record, at, turn, wanted=wanted is None or (number, at.offset) in wanted)
        except ReplicaMismatch as error:
            self._break(fold, one, str(error))
        series = self._series(one)
        if series is not None:
            candidates[series] = None
            if isinstance(record, _PLACES):
                series.reconsider()
                told.add(series.board_id)

    def _created(self, fold: ShardFold, record: BoardCreated, at: Position, candidates: dict[BoardSeries, None]) -> None:
        known = fold.slices.get(record.number)
        if known is not None:
            if known.created != record:
                raise ReplicaMismatch(f"number {record.number} is of {known.created.board_id} already")
            return
        one = fold.slices[record.number] = SliceFold(record, fold.shard, at)
        if any(record.incarnation in other.gone for other in self.shards.values()):
            one.retire()
            return
        lives = self._lives.setdefault(record.board_id, {})
        series = lives.get(record.incarnation)
        if series is None:
            series = lives[record.incarnation] = BoardSeries(one)
        series.put(one)
        self._choose(record.board_id)
        candidates[series] = None

    def _removed(self, fold: ShardFold, record: BoardRemoved, candidates: dict[BoardSeries, None], told: set[str]) -> None:
        one = fold.slices.get(record.board)
        if one is None:
            raise ReplicaMismatch(f"board number {record.board} is removed from {fold.shard}, where it is not")
        series = self._series(one)
        if series is not None:
            candidates[series] = None
            if one.leads and not one.importing and one.layout.number == series.layout.number:
                told.add(series.board_id)
                if one.layout.number > 1 or series.past - {fold.shard}:
                    self._remember_gone(fold, series.incarnation)
                self._bury(series)
        if record.done:
            if one.importing:
                self._drop(one)
            else:
                one.leave()
            del fold.slices[record.board]
            fold.broken.discard(record.board)

    def _remember_gone(self, fold: ShardFold, incarnation: str) -> None:
        fold.gone[incarnation] = None
        while len(fold.gone) > GONE and all(other.serving for other in self.shards.values()):
            del fold.gone[next(iter(fold.gone))]
            fold.gone_before = True

    def _bury(self, series: BoardSeries) -> None:
        """The board is gone; what is left of it in other shards takes no room and no records until it is removed there too."""
        for here in series.slices.values():
            for one in here.values():
                one.retire()
                self.shards[one.shard].broken.discard(one.number)
        series.slices, series.generations = {}, {}
        self._forget(series)

    def _drop(self, one: SliceFold) -> None:
        series = self._series(one)
        one.rows.close()
        if series is not None:
            series.drop(one)
            if not series.slices:
                self._forget(series)

    def _forget(self, series: BoardSeries) -> None:
        del self._lives[series.board_id][series.incarnation]
        self._wait_no_more(series)
        self._choose(series.board_id)

    def _choose(self, board_id: str) -> None:
        lives = self._lives.get(board_id)
        if lives:
            self.boards[board_id] = max(lives.values(), key=lambda series: (series.created_ms, series.incarnation))
        else:
            self._lives.pop(board_id, None)
            self.boards.pop(board_id, None)

    def _series(self, one: SliceFold) -> BoardSeries | None:
        """The board that a slice belongs to; None once that is removed."""
        return None if one.removing else self._lives.get(one.created.board_id, {}).get(one.created.incarnation)

    # -- generations ------------------------------------------------------------------------------------------

    def _advance(self, candidates: dict[BoardSeries, None], turn: Turn) -> set[str]:
        """Make what can be made of these boards, and of all that wait once every shard has been read to its end."""
        settled = all(fold.serving or fold.stopped for fold in self.shards.values())
        if settled and not self._settled:
            candidates = candidates | dict.fromkeys(self._waiting)
        self._settled = settled
        told = set()
        for series in candidates:
            if not series.slices:
                continue
            try:
                if series.advance(turn, self._applied, settled=settled):
                    told.add(series.board_id)
            except BadGeneration as error:
                told.add(series.board_id)
                for one in list(series.slices.get(error.layout, {}).values()):
                    self._break(self.shards[one.shard], one, str(error))
            self._wait_no_more(series)
            if series.waits:
                marks = series.awaited(self._applied)
                self._waiting[series] = tuple(marks)
                for shard, offset in marks.items():
                    self._due[shard][series] = offset
        return told

    def _wait_no_more(self, series: BoardSeries) -> None:
        for shard in self._waiting.pop(series, ()):
            self._due[shard].pop(series, None)

    def includes(self, series: BoardSeries, shard: str, at: Position) -> bool:
        """Whether the newest generation holds what was decided at `at`, or nothing that it holds not will come of it.

        An event that changed no row brings no generation of its own. `shard` is one that the board lives in, or has lived in:
        what was acknowledged there is in every generation of a later layout.
        """
        newest, fold = series.newest, self.shards.get(shard)
        if newest is None or fold is None:
            return False
        boundary, made = newest.boundaries.get(shard), newest.proposal.layout
        if boundary is not None and boundary.offset >= at.offset:
            return boundary.epoch >= at.epoch
        if fold.applied < at or fold.applied.offset < at.offset:
            return False
        here = [one for slices in series.slices.values() for one in slices.values() if one.shard == shard]
        if any(one.layout.number > made and (one.broken or not one.importing) for one in here):
            return False  # it may be of a layout that no generation was made of yet
        one = next((one for one in here if one.layout.number == made), None)
        if one is None:
            return True  # the board had left the shard before
        return not one.broken and not one.left and boundary is not None and one.marked <= boundary.offset and not one.rows.changed

    def info(self, series: BoardSeries) -> BoardInfo:
        """The board as a gateway is told it."""
        lead = self.shards.get(series.layout.lead)
        return series.info("" if lead is None else lead.home)

    def lineage(self, series: BoardSeries, generation: Generation | None = None) -> str:
        """Of the journal that names the generation."""
        fold = self.shards.get(self.leading(series, generation))
        return "" if fold is None else fold.lineage

    def leading(self, series: BoardSeries, generation: Generation | None = None) -> str:
        """The shard whose journal names a generation, the newest by default; where there is none yet, the one that will."""
        generation = generation or series.newest
        return series.layout.lead if generation is None else next(iter(generation.boundaries))

    def unready(self, series: BoardSeries) -> str:
        """Why a board cannot be answered for now, "" when it can."""
        for shard in series.layout.shards:
            fold = self.shards.get(shard)
            if fold is None:
                return f"{shard} is not followed here"
            if not fold.serving:
                return f"the journal of {shard} is still being read"
        if series.whole(series.layout) is None:
            return f"slices of {series.board_id} are being folded anew"
        return "its newest generation is not complete here yet" if series.missed else ""

    # -- mending ----------------------------------------------------------------------------------------------

    def _break(self, fold: ShardFold, one: SliceFold, why: str) -> None:
        """Trust a slice no more: its board is not served until it is mended."""
        one.broken = why
        fold.broken.add(one.number)
        series = self._series(one)
        if series is not None:
            series.suspend()
            self._waiting.setdefault(series, ())

    def mending(self, shard: str) -> Mending | None:
        """What to feed with the shard's entries after `Mending.applied`, to replace its broken slices; None if there are none."""
        fold = self.shards[shard]
        return Mending([fold.slices[number] for number in sorted(fold.broken)]) if fold.broken else None

    def mended(self, shard: str, mending: Mending, *, now_ms: int, wall_ms: int) -> set[str]:
        """Put slices that are folded as far as all others in the place of the broken ones; the boards of which there is something new."""
        fold = self.shards[shard]
        if mending.applied != fold.applied.offset:
            raise ValueError(f"mended up to {mending.applied}, the others are at {fold.applied.offset}")
        candidates = dict.fromkeys(self._waiting)
        told: set[str] = set()
        for number, one in mending.slices.items():
            old = fold.slices.get(number)
            if old is None or old.created != one.created or old.removing:
                continue
            old.rows.close()
            fold.slices[number] = one
            if not one.broken:
                fold.broken.discard(number)
            series = self._series(one)
            if series is not None:
                series.put(one)
                candidates[series] = None
                told.add(series.board_id)
        return told | self._advance(candidates, Turn(now_ms, wall_ms))


def _opened(entries: Sequence[Entry]) -> Steps[list[tuple[Position, list[Record]]]]:
    """Entries with their records."""
    opened = []
    for entry in entries:
        opened.append((Position(entry.epoch, entry.offset), open_entry(entry)))
        yield None
    return opened


def _in_order(records: list[Record]) -> list[Record]:
    """Records of an entry, those last that speak of all of it: a boundary includes its whole entry."""
    boundaries = [record for record in records if isinstance(record, _BOUNDARIES)]
    if not boundaries or all(isinstance(record, _BOUNDARIES) for record in records[-len(boundaries) :]):
        return records
    return [record for record in records if not isinstance(record, _BOUNDARIES)] + boundaries


def _worth_freezing(opened: Sequence[tuple[Position, list[Record]]]) -> set[tuple[int, int]]:
    """(board number, offset) of the marks of a stretch of a journal that no later mark of the stretch supersedes."""
    kept: set[tuple[int, int]] = set()
    keeps: dict[int, int] = {}
    for at, records in reversed(opened):
        for record in records:
            if isinstance(record, _BOUNDARIES):
                known = keeps.get(record.board, 0)
                if known <= at.offset:
                    kept.add((record.board, at.offset))
                keeps[record.board] = max(known, record.keeps if isinstance(record, Marked) else at.offset)
    return kept
