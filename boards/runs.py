"""The immutable sorted runs beneath a rank index: a base, and deltas stacked on it.

A run is a sequence of rows in display order, best first. `Base` holds its rows outright; `Delta` says
which positions of the run below it vanish and which rows appear where, so generations share nearly all
their memory. Nothing here changes once built, except that `Players` grows behind its readers' backs.

Positions are kept in 32 bits. A search for a number of another width would copy the whole column each time, so whoever
searches converts what it looks for.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from boards.players import Players
from boards.rows import Flags, Ints, Rows, Wanted, count_better, lower_bound

#: Rows that a compaction copies at a time: no step of it holds the interpreter for longer than a few milliseconds.
_CHUNK_ROWS: Final = 1 << 18


#: `boards.merge_kernels`, once `boards.compiled` has loaded it. Without it, numpy does the same.
kernels: Any = None


def _locate(column: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """Where each wanted number would go in the sorted column, and whether it is there."""
    wanted = wanted.astype(column.dtype, copy=False)
    at = column.searchsorted(wanted)
    if not column.size:
        return at, np.zeros(wanted.shape, dtype=np.bool_)
    return at, column.take(at, mode="clip") == wanted


def _before(column: Ints, wanted: Ints) -> Ints:
    """How many of the ascending numbers are below each wanted one."""
    return column.searchsorted(wanted.astype(column.dtype, copy=False))


def _through(column: Ints, wanted: Ints) -> Ints:
    """How many of the ascending numbers are not above each wanted one."""
    return column.searchsorted(wanted.astype(column.dtype, copy=False), "right")


def _weave(before: Ints, count: int) -> tuple[Ints, Ints]:
    """Merge m new things into `count` old ones, new i going before old `before[i]`, which ascend.

    Returns where the new ones land, and for each place of the result its source, counted through the
    new ones first and the old ones after.
    """
    landing = before + np.arange(before.size)
    old = np.ones(count + before.size, dtype=np.bool_)
    old[landing] = False
    source = np.empty(old.size, dtype=np.int64)
    source[landing] = np.arange(before.size)
    source[old] = np.arange(before.size, old.size)
    return landing, source


class Base:
    """A run that holds all of its rows. `where` is its inverse: the position of each slot, -1 if it is not here."""

    __slots__ = ("described", "players", "rows", "total", "where")

    #: For `boards.compiled`, as `Delta.described` is.
    described: Any

    players: Players
    rows: Rows
    total: int

    def __init__(self, rows: Rows, players: Players) -> None:
        self.rows, self.players, self.described = rows, players, None
        self.total = len(rows)
        # One entry more than slots: a slot admitted later is clipped to it.
        self.where = np.full(len(players) + 1, -1, dtype=np.int32)
        for start in range(0, self.total, _CHUNK_ROWS):
            slots = rows.slot[start : start + _CHUNK_ROWS]
            self.where[slots] = np.arange(start, start + slots.size, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.where.nbytes

    def find(self, slots: Ints) -> tuple[Ints, Rows]:
        """Positions of players, -1 for the absent, and their rows, arbitrary for the absent."""
        at = self.where.take(slots, mode="clip").astype(np.int64)
        return at, self.rows.take(at)

    def rows_at(self, positions: Ints) -> Rows:
        """Rows by position; positions outside the run give some row, and zeros when there is none."""
        return self.rows.take(positions)

    def between(self, start: int, stop: int) -> Rows:
        """The rows from position `start` up to `stop`, which are within the run."""
        return self.rows.select(slice(start, stop))

    def lower_bound(self, wanted: Wanted) -> Ints:
        """How many rows come before each wanted key."""
        return lower_bound(self.rows, self.players, wanted)

    def better(self, key: Ints, second: Ints | None, *, through: bool = False) -> Ints:
        """How many rows are strictly before each (key, second key); with `through`, how many are not behind it."""
        return count_better(self.rows, key, second, through=through)


class Delta:
    """A run that differs from `below` by some vanished positions and some added rows. Same questions as `Base`.

    A position here is the position below, minus the vanished before it, plus the added before it: an
    answer costs a few binary searches a delta on the way down.
    """

    __slots__ = ("added", "before", "below", "described", "gaps", "gone", "landed", "players", "slot_rows", "slots", "total")

    below: "Run"
    players: Players
    total: int
    #: Positions below that vanish, ascending.
    gone: Ints
    #: How many survivors below precede each vanished position: finds the k-th survivor.
    gaps: Ints
    #: Rows that appear, in order; row i goes before position `before[i]` below.
    added: Rows
    before: Ints
    #: Slots of the added rows, ascending, and which added row each one is.
    slots: Ints
    slot_rows: Ints
    #: Own positions of the added rows, ascending.
    landed: Ints
    described: Any

    def __init__(self, below: "Run", gone: Ints, before: Ints, added: Rows, slots: Ints, slot_rows: Ints) -> None:
        self.below, self.players, self.added, self.described = below, below.players, added, None
        self.gone, self.before = gone.astype(np.int32, copy=False), before.astype(np.int32, copy=False)
        self.slots, self.slot_rows = slots.astype(np.int32, copy=False), slot_rows.astype(np.int32, copy=False)
        if kernels is None:
            self.landed = (before - _before(self.gone, before) + np.arange(before.size)).astype(np.int32)
            self.gaps = (gone - np.arange(gone.size)).astype(np.int32)
        else:
            self.landed, self.gaps = kernels.landings(self.gone, self.before)
        self.total = below.total - gone.size + before.size

    @property
    def size(self) -> int:
        return max(self.gone.size, self.before.size)

    @property
    def nbytes(self) -> int:
        """Of this run's own arrays, not of those below."""
        arrays = (self.gone, self.gaps, self.before, self.landed, self.slots, self.slot_rows)
        return self.added.nbytes + sum(array.nbytes for array in arrays)

    def on(self, below: "Run", renumbered: Ints | None = None) -> "Delta":
        """This delta on another run with the same rows as its own `below`. `renumbered` tells the new slot of each former one."""
        copy = object.__new__(Delta)
        for name in Delta.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.below, copy.players, copy.described = below, below.players, None
        if renumbered is not None:
            rows = self.added
            slot = renumbered.take(rows.slot)
            copy.added = Rows(rows.key, rows.second, rows.tie, slot, rows.achieved, rows.version)
            order = slot.argsort()
            copy.slots, copy.slot_rows = slot.take(order), order.astype(np.int32)
        return copy

    def find(self, slots: Ints) -> tuple[Ints, Rows]:
        """See `Base.find`."""
        under, rows = self.below.find(slots)
        skipped, vanished = _locate(self.gone, under)
        at = under - skipped + _through(self.before, under)
        at[vanished | (under < 0)] = -1
        entry, here = _locate(self.slots, slots)
        hits = np.flatnonzero(here)
        if hits.size:
            own = self.slot_rows.take(entry.take(hits))
            at[hits] = self.landed.take(own)
            rows = rows.put(hits, self.added.take(own))
        return at, rows

    def rows_at(self, positions: Ints) -> Rows:
        """See `Base.rows_at`."""
        passed, here = _locate(self.landed, positions)
        rows = self.below.rows_at(self._under(positions - passed))
        hits = np.flatnonzero(here)
        if hits.size:
            rows = rows.put(hits, self.added.take(passed.take(hits)))
        return rows

    def between(self, start: int, stop: int) -> Rows:
        """See `Base.between`."""
        first, last = _before(self.landed, np.array((start, stop))).tolist()
        own = self.added.select(slice(first, last))
        if stop - start == last - first:
            return own
        low, high = self._under(np.array((start - first, stop - last - 1))).tolist()
        old = self.below.between(low, high + 1)
        kept = np.ones(high + 1 - low, dtype=np.bool_)
        left, right = _before(self.gone, np.array((low, high + 1))).tolist()
        kept[self.gone[left:right] - low] = False
        fresh = np.zeros(stop - start, dtype=np.bool_)
        fresh[self.landed[first:last] - start] = True
        return Rows.blank(stop - start, self.added, self.added.wide or old.wide).put(fresh, own).put(~fresh, old.select(kept))

    def lower_bound(self, wanted: Wanted) -> Ints:
        """See `Base.lower_bound`."""
        under = self.below.lower_bound(wanted)
        return under - _before(self.gone, under) + lower_bound(self.added, self.players, wanted)

    def better(self, key: Ints, second: Ints | None, *, through: bool = False) -> Ints:
        """See `Base.better`."""
        under = self.below.better(key, second, through=through)
        return under - _before(self.gone, under) + count_better(self.added, key, second, through=through)

    def _under(self, survivors: Ints) -> Ints:
        """Positions below of the given survivors, which are counted from 0."""
        return survivors + _through(self.gaps, survivors)

    def folded(self, upper: "Delta") -> "Delta":
        """This delta and `upper`, which lies on it, as one delta on `below`. Positions alone: no key is compared."""
        if kernels is not None:
            own = (self.gone, self.gaps, self.before, self.landed, self.slots, self.slot_rows)
            gone, before, source, slots, slot_rows = kernels.folded(*own, upper.gone, upper.before, upper.slots, upper.slot_rows)
            return Delta(self.below, gone, before, upper.added.joined(self.added).take(source), slots, slot_rows)
        passed, mine = _locate(self.landed, upper.gone)
        kept = np.ones(self.before.size, dtype=np.bool_)
        kept[passed[mine]] = False
        gone_below = self._under((upper.gone - passed)[~mine])

        passed, mine = _locate(self.landed, upper.before)
        before = self._under(upper.before - passed)
        before[mine] = self.before[passed[mine]]
        survivors = np.flatnonzero(kept)
        kept_before = np.concatenate((np.zeros(1, dtype=np.int64), kept.cumsum()))
        landing, source = _weave(kept_before.take(passed), survivors.size)
        stay = np.ones(landing.size + survivors.size, dtype=np.bool_)
        stay[landing] = False

        _, gone_source = _weave(_before(self.gone, gone_below), self.gone.size)
        # The slot index is woven the same way: an upper slot that was here is not among the survivors.
        listed = kept.take(self.slot_rows)
        slots = self.slots[listed]
        slot_rows = np.flatnonzero(stay).take(kept_before.take(self.slot_rows[listed]))
        _, slot_source = _weave(slots.searchsorted(upper.slots), slots.size)
        return Delta(
            self.below,
            np.concatenate((gone_below, self.gone)).take(gone_source),
            np.concatenate((before, self.before.take(survivors))).take(source),
            upper.added.joined(self.added.take(survivors)).take(source),
            np.concatenate((upper.slots, slots)).take(slot_source),
            np.concatenate((landing.take(upper.slot_rows), slot_rows)).take(slot_source),
        )


Run = Base | Delta


def deltas_of(run: Run, down_to: Run | None = None) -> list[Delta]:
    """The deltas of a stack from the topmost down to, and without, `down_to`; all of them without it."""
    out = []
    while isinstance(run, Delta) and run is not down_to:
        out.append(run)
        run = run.below
    return out


def base_of(run: Run) -> Base:
    """The base at the bottom of a stack."""
    while isinstance(run, Delta):
        run = run.below
    return run


def blocks_of(run: Run) -> Iterator[Rows]:
    """All rows in order, in pieces of up to `_CHUNK_ROWS`."""
    for start in range(0, run.total, _CHUNK_ROWS):
        yield run.between(start, min(start + _CHUNK_ROWS, run.total))


def compacted(run: Run, *, anew: bool = False) -> tuple[Base, Ints | None]:
    """A base with the rows of a run: O(n). With `anew` it has a table of ids of its own, which holds only the players of the run; then
    the new slot of each former slot is told too, -1 for those who have none."""
    base = base_of(run)
    wide = base.rows.wide or any(delta.added.wide for delta in deltas_of(run))
    rows, renumbered = Rows.blank(run.total, base.rows, wide), None
    former = players = run.players
    if anew:
        players, renumbered = Players(run.total), np.full(len(former), -1, dtype=np.int32)
    start = 0
    for block in blocks_of(run):
        place = slice(start, start + len(block))
        rows.put(place, block)
        if renumbered is not None:
            slots = players.admit_words(former.words(block.slot))
            rows.slot[place] = slots
            renumbered[block.slot] = slots
        start += len(block)
    return Base(rows, players), renumbered


def folded(deltas: list[Delta]) -> Delta:
    """Adjacent deltas, topmost first, as one; adjacent ones of the smallest sizes are folded first."""
    deltas = list(deltas)
    while len(deltas) > 1:
        at = min(range(len(deltas) - 1), key=lambda i: deltas[i].size + deltas[i + 1].size)
        lower, upper = deltas[at + 1], deltas[at]
        deltas[at : at + 2] = [lower.folded(upper)]
    return deltas[0]
