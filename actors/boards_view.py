"""Slices of boards as a read replica holds them: rows as folded so far, and the views frozen at marks.

A slice is the part of a board that one shard holds, often all of it. Views are frozen from committed entries only,
up to and including the entry of a `Published` or `Marked` record, and checked against what that record says before
anybody can read them (I8, I11). What makes generations of them is `actors.generations_view`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from actors.steps import Steps, at_once
from boards import checksum
from boards.index import Change, Kept, RankIndex, View
from boards.model import BoardRules, Layout, Row, Status
from journal.ports import Position
from journal.records import (
    BoardCreated,
    Imported,
    Manifest,
    Mark,
    Marked,
    Published,
    Record,
    Relocating,
    Scored,
    SliceOpened,
    Switched,
)

#: Plain ints: comparing with a member of an IntEnum costs more than all the rest of a row's turn.
_ACTIVE, _INVALIDATED = int(Status.ACTIVE), int(Status.INVALIDATED)
_MASK = 2**64 - 1
#: Rows settled in one step: some 1 ms.
SETTLED_AT_ONCE = 256
#: Players, or changes of a smaller slice, from which on a freeze is handed over as work: others take a millisecond or two at most.
LARGE, MANY = 5000, 500
#: Proposals that wait for their marks at most, where a shard of the board is far behind the lead's.
WAITING_MAX = 4096
#: How far two clocks may differ before a generation that somebody may still ask for counts as old.
CLOCKS_MS = 60_000


class ReplicaMismatch(Exception):
    """This replica's fold differs from what the authority says, or one version has two rows. Stop and rebuild."""

    code = "replica_mismatch"
    definite = True


class SliceRows:
    """The newest row of every player of one slice, their checksum and the index over the active ones.

    Rows that came since the last freeze are here, all others in the index alone.
    """

    __slots__ = ("_dirty", "_fresh", "_index", "_pending", "checksum", "count")

    #: `boards.checksum` over all rows that `settle` has seen, and how many of them are active.
    checksum: int
    count: int

    def __init__(self, rules: BoardRules) -> None:
        self._index = RankIndex(
            direction=rules.direction,
            ranking=rules.ranking,
            secondary=rules.secondary,
            # Both are the event's moment then; on `latest` boards a row may be later than the value it still has.
            tie_is_achieved=rules.ties == "achieved_at" and rules.policy != "latest",
        )
        #: Rows that are in the checksum and not yet in the index.
        self._fresh: dict[str, Row] = {}
        #: Rows that nobody has compared with what was there before.
        self._pending: dict[str, Row] = {}
        self._dirty = False
        self.checksum, self.count = checksum.EMPTY, 0

    @property
    def view(self) -> View:
        """What was frozen last; empty at first."""
        return self._index.view

    def take(self, player_id: str, row: Row) -> None:
        """A complete new row. Lower versions are ignored, an equal version must carry the same row, now or at `settle`."""
        known = self._pending.get(player_id)
        if known is None or row.version > known.version:
            self._pending[player_id] = row
        elif row.version == known.version and row != known:
            raise ReplicaMismatch(f"version {row.version} of {player_id} has two rows")

    def settle(self) -> None:
        """Take what is pending into checksum and count; raises ReplicaMismatch as `take` does."""
        at_once(self.settling())

    def settling(self) -> Steps[None]:
        """See `settle`. One batched look-up for each step."""
        while self._pending:
            self._settle_some()
            yield None

    def _settle_some(self) -> None:
        if len(self._pending) <= SETTLED_AT_ONCE:
            pending, self._pending = self._pending, {}
        else:
            pending = dict(islice(self._pending.items(), SETTLED_AT_ONCE))
            for player_id in pending:
                del self._pending[player_id]
        unknown = [player_id for player_id in pending if player_id not in self._fresh]
        frozen = dict(zip(unknown, self._index.rows(unknown), strict=True))
        for player_id, row in pending.items():
            kept = frozen.get(player_id)
            old = self._fresh.get(player_id) if kept is None else _row_of(kept)
            if old is not None:
                if row.version <= old.version:
                    if row.version == old.version and _seen(row) != _seen(old):
                        raise ReplicaMismatch(f"version {row.version} of {player_id} has two rows")
                    continue
                self.checksum = checksum.remove(self.checksum, checksum.row_hash(player_id, old))
                self.count -= old.status == _ACTIVE
            self.checksum = checksum.add(self.checksum, checksum.row_hash(player_id, row))
            self.count += row.status == _ACTIVE
            self._fresh[player_id] = row
            self._dirty = True

    @property
    def changed(self) -> bool:
        """Whether a row has changed since the last `mark`."""
        self.settle()
        return self._dirty

    def mark(self) -> None:
        """From here on `changed` begins anew. The caller has settled."""
        self._dirty = False

    def freezing(self) -> Steps[View]:
        """The view of all rows that are settled, in steps: the same object as before when there is nothing new."""
        if self._fresh:
            changes: list[Change] = []
            inactive: list[Change] = []
            for player_id, row in self._fresh.items():
                change = Change(player_id, row.value, row.tie_ms, row.achieved_ms, row.version, row.second)
                (changes if row.status == _ACTIVE else inactive).append(change)
            freeze = partial(self._index.freeze, changes, inactive=inactive)
            if self.view.total < LARGE and len(self._fresh) < MANY:
                freeze()
            else:
                yield freeze
            self._fresh = {}
        else:
            self.rest()
        return self._index.view

    @property
    def busy(self) -> bool:
        """Whether the background is at work on the index, or what it has made is not taken yet."""
        return self._index.busy

    def rest(self) -> None:
        """Let go of what the background has replaced; the rows stay what they are."""
        self._index.settle()

    def close(self) -> None:
        """Let go of what the index may do in the background; its views stay readable."""
        self._index.close()


def _row_of(kept: Kept) -> Row:
    """What the index knows of a row: enough for its hash, and to compare versions."""
    status = _ACTIVE if kept.active else _INVALIDATED
    return Row(kept.value, kept.tie_ms, kept.achieved_ms, 0, 0, kept.version, "", status, kept.second)


def _seen(row: Row) -> tuple[int, int, int, int, bool]:
    """What a reader could see of a row or an order depends on; all that the index keeps."""
    return row.value, row.second, row.tie_ms, row.achieved_ms, row.status == _ACTIVE


@dataclass(slots=True)
class Frozen:
    """A view at one mark of a slice."""

    mark: Mark
    view: View
    #: When it was marked, by its authority's clock.
    marked_ms: int
    #: Replica clock, monotonic: since when a newer mark is named instead (None: it may be named yet).
    superseded_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A generation as the lead's journal has it; it is one here once all its marks are frozen. `at` is its record's place."""

    number: int
    at: Position
    published_ms: int
    #: Number of the layout whose slices `marks` are of, in its order.
    layout: int
    marks: tuple[Mark, ...]
    checksum: int
    count: int

    @property
    def adds_up(self) -> bool:
        """Checksum and count are the sums of those of its marks."""
        return (self.checksum, self.count) == (sum(mark.checksum for mark in self.marks) & _MASK, sum(mark.count for mark in self.marks))


class Turn(NamedTuple):
    """When records are folded: `now_ms` by the replica's monotonic clock, `wall_ms` by its wall clock.

    `live`: the shard was caught up before, so that whatever comes is new; otherwise what is old need not be frozen.
    """

    now_ms: int
    wall_ms: int
    live: bool = True


class SliceFold:
    """One slice of one board, folded from the journal of its shard. Everything it knows is from that journal alone."""

    __slots__ = (
        "broken", "created", "empty", "forgotten", "frozen", "importing", "keeps", "layout", "left", "marked", "missed", "moving", "place",
        "proposals", "removing", "repairs", "rows", "shard", "switched",
    )  # fmt: skip

    def __init__(self, created: BoardCreated, shard: str, place: Position) -> None:
        self.created, self.shard, self.place = created, shard, place
        self.layout = created.layout or Layout(1, (shard,))
        self.rows = SliceRows(created.rules)
        #: The view at its creation.
        self.empty = self.rows.view
        #: Views by the offset of their mark, ascending.
        self.frozen: dict[int, Frozen] = {}
        #: Marks up to this offset may be missing in `frozen`: nobody is to ask for them.
        self.forgotten = 0
        #: Offset of the oldest mark that the newest one says is not superseded.
        self.keeps = 0
        #: Offset of the newest mark.
        self.marked = place.offset
        #: In the lead: generations that are not made yet, by number.
        self.proposals: deque[Proposal] = deque()
        #: In the lead: highest number of a generation that was passed over while its shard was read again from the start.
        self.missed = -1
        self.importing = created.importing
        #: Removed: the slice from its shard, or the whole board.
        self.left = self.removing = False
        #: In the lead: the layout on the way, and the one that the board has moved to.
        self.moving: Layout | None = None
        self.switched: Layout | None = None
        #: Why this fold is not to be trusted; empty while it is. It takes no records then.
        self.broken = ""
        self.repairs = 0

    @property
    def number(self) -> int:
        """Of the board in its shard's journal."""
        return self.created.number

    @property
    def leads(self) -> bool:
        """Slice 0: its journal says what generations there are."""
        return self.created.slice == 0

    def take(self, record: Record, at: Position, turn: Turn, *, wanted: bool = True) -> Steps[None]:
        """One record about this slice; `wanted`: a mark may be asked for. Raises ReplicaMismatch."""
        match record:
            case Scored(player_id=player_id, row=row) if row is not None:
                self.rows.take(player_id, row)
            case Imported():
                for player_id, row in record.rows:
                    self.rows.take(player_id, row)
            case Published(published_ms=published_ms, checksum=total, count=count):
                mark = Mark(at.epoch, at.offset, total, count)
                yield from self._mark(mark, published_ms, turn, keeps=at.offset, wanted=wanted)
                self._propose(Proposal(record.generation, at, published_ms, self.layout.number, (mark,), total, count), turn)
            case Marked():
                mark = Mark(at.epoch, at.offset, record.checksum, record.count)
                yield from self._mark(mark, record.marked_ms, turn, keeps=record.keeps, wanted=wanted)
            case Manifest(published_ms=published_ms, checksum=total, count=count):
                self._propose(Proposal(record.generation, at, published_ms, record.layout, record.marks, total, count), turn)
            case Relocating():
                self.moving = None if record.aborting else record.layout
            case Switched():
                self.switched, self.moving = record.layout, None
            case SliceOpened():
                self.importing = False
            case _:
                pass

    def _mark(self, mark: Mark, marked_ms: int, turn: Turn, *, keeps: int, wanted: bool) -> Steps[None]:
        yield from self.rows.settling()
        if (mark.checksum, mark.count) != (self.rows.checksum, self.rows.count):
            raise ReplicaMismatch(
                f"at {mark.epoch}-{mark.offset}: folded {self.rows.count} rows, checksum {self.rows.checksum:016x}; "
                f"the authority has {mark.count} rows, checksum {mark.checksum:016x}"
            )
        old = self._old(marked_ms, turn)
        view = (yield from self.rows.freezing()) if wanted or not old else None
        self.marked, self.keeps = mark.offset, keeps
        self.rows.mark()
        if view is not None:
            self.frozen[mark.offset] = Frozen(mark, view, marked_ms)
        else:
            self.forgotten = mark.offset
        self._forget(turn, at_once=old)

    def _forget(self, turn: Turn, *, at_once: bool) -> None:
        """Let views go that were superseded longer ago than the board retains them."""
        gone = []
        for offset, frozen in self.frozen.items():
            if offset < self.keeps and frozen.superseded_ms is None:
                frozen.superseded_ms = turn.now_ms
            if frozen.superseded_ms is None:
                break
            if at_once or frozen.superseded_ms < turn.now_ms - self.created.rules.retention_ms:
                gone.append(offset)
        for offset in gone:
            self.forgotten = max(self.forgotten, offset)
            del self.frozen[offset]

    def expire(self, now_ms: int) -> None:
        """Let go of what nobody can ask for any more, on a board that rests too: otherwise it is done at the next mark.

        Not while generations of its board wait to be made: they may be older ones, of which a slice is folded anew.
        """
        self._forget(Turn(now_ms, 0), at_once=False)

    def _propose(self, proposal: Proposal, turn: Turn) -> None:
        if self.proposals and (self._old(self.proposals[-1].published_ms, turn) or len(self.proposals) >= WAITING_MAX):
            passed_over = self.proposals.pop()
            if not turn.live:
                self.missed = max(self.missed, passed_over.number)
        self.proposals.append(proposal)

    def leave(self) -> None:
        """It is removed from its shard: no more records come, and only frozen views are kept."""
        self.left = True
        self.rows.close()
        self.rows = SliceRows(self.created.rules)

    def retire(self) -> None:
        """Its board is removed: it takes no more records, and no more room than an empty one, until its own removal is folded."""
        self.leave()
        self.removing, self.empty = True, self.rows.view
        self.frozen.clear()
        self.proposals.clear()

    def keep_for(self, marks: Iterable[int]) -> None:
        """Views at these offsets are in use again: they are not let go before newer marks are named."""
        for offset in marks:
            if offset in self.frozen:
                self.frozen[offset].superseded_ms = None

    def _old(self, published_ms: int, turn: Turn) -> bool:
        """Whether nobody can ask for a generation of that time, once there is a newer one. Never so while the shard is followed live."""
        return not turn.live and published_ms < turn.wall_ms - self.created.rules.retention_ms - CLOCKS_MS
