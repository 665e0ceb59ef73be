"""The immutable sorted runs beneath a rank index: a base, and deltas stacked on it.

A run is a sequence of rows in display order, best first. `Base` holds its rows outright; `Delta` says
which positions of the run below it vanish and which rows appear where, so generations share nearly all
their memory. Nothing here changes once built, except that `Players` grows behind its readers' backs.

Rows are the columns of one int64 array of shape `(5, n)`, see `KEY` to `VERSION`. They compare by key,
then tie moment, then player id, all ascending; ids compare as text, which is the order of their UTF-8 bytes.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]
Names = npt.NDArray[np.object_]

#: Row layout. The key is the value or its complement, so that the lower key is always the better one.
KEY, TIE, SLOT, ACHIEVED, VERSION = range(5)
WIDTH: Final = 5

#: The slot of an id that nobody registered: larger than any real slot.
NOWHERE: Final = 2**62

#: Up to this many rows with an equal key are bisected one by one; more of them together.
_BISECT_SINGLY: Final = 24

#: Slots of departed players that are kept for as long as they do not outnumber the present ones by this.
_SPARE_SLOTS: Final = 1024


class Players:
    """The ids behind the slots of an index. Slots count from 0 and are never reused, also not after a removal.

    One thread admits; others may look up meanwhile, and see the newcomers or not. A slot says nothing
    about being on the board: a run that does not hold it answers so.
    """

    __slots__ = ("_slots", "_text_bytes", "ids")

    #: Ids by slot, with room to spare; a slot's entry never changes, and a larger array replaces a full one.
    ids: Names

    def __init__(self, ids: Sequence[str] = ()) -> None:
        self.ids = np.empty(max(8, len(ids)), dtype=np.object_)
        self._slots: dict[str, int] = {}
        self._text_bytes = 0
        self.admit(ids)

    def __len__(self) -> int:
        return len(self._slots)

    def admit(self, ids: Sequence[str]) -> list[int]:
        """Slots of `ids`, new ones registered."""
        slots = self._slots
        out = []
        for player_id in ids:
            slot = slots.get(player_id)
            if slot is None:
                slot = len(slots)
                if slot == len(self.ids):
                    grown = np.empty(2 * slot, dtype=np.object_)
                    grown[:slot] = self.ids
                    self.ids = grown
                # The name goes in before its slot can be found.
                self.ids[slot] = player_id
                slots[player_id] = slot
                self._text_bytes += sys.getsizeof(player_id)
            out.append(slot)
        return out

    def find(self, ids: Iterable[str]) -> Ints:
        """Slots of `ids`, `NOWHERE` for the unknown."""
        get = self._slots.get
        return np.array([get(player_id, NOWHERE) for player_id in ids], dtype=np.int64)

    def names(self, slots: Ints) -> Names:
        return self.ids.take(slots)

    @property
    def nbytes(self) -> int:
        """Of ids, table and slot numbers, whether or not somebody else also keeps the id alive."""
        return self.ids.nbytes + sys.getsizeof(self._slots) + self._text_bytes + 32 * len(self._slots)


def display_order(rows: Ints, players: Players) -> Ints:
    """The permutation that sorts `rows`. One sort by key; ties and ids are looked at only where keys are equal."""
    order: Ints = rows[KEY].argsort(kind="stable")
    for by_name in (False, True):
        key, tie = rows[KEY].take(order), rows[TIE].take(order)
        same = key[1:] == key[:-1]
        if by_name:
            same &= tie[1:] == tie[:-1]
        if not same.any():
            break
        tied = np.zeros(order.size, dtype=np.bool_)
        tied[1:] = same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        among = order.take(at)
        columns = (rows[TIE].take(among), rows[KEY].take(among))
        if by_name:
            order[at] = among.take(np.lexsort((players.names(rows[SLOT].take(among)), *columns)))
        else:
            order[at] = among.take(np.lexsort(columns))
    return order


def _lower_bound(rows: Ints, players: Players, wanted: Ints) -> Ints:
    """For each of the `wanted` rows how many of the sorted `rows` come before it."""
    low: Ints = rows[KEY].searchsorted(wanted[KEY])
    high: Ints = rows[KEY].searchsorted(wanted[KEY], "right")
    open_ = np.flatnonzero(low < high)
    if not open_.size:
        return low
    if open_.size > _BISECT_SINGLY:
        low[open_] = _bisect_together(rows, players, wanted.take(open_, axis=1), low[open_], high[open_])
        return low
    ties, slots, ids = rows[TIE], rows[SLOT], players.ids
    for i in open_:
        start, stop = low[i], high[i]
        equal = ties[start:stop]
        stop = start + int(equal.searchsorted(wanted[TIE, i], "right"))
        start = start + int(equal.searchsorted(wanted[TIE, i]))
        name = ids[wanted[SLOT, i]]
        while start < stop:
            middle = (start + stop) >> 1
            if ids[slots[middle]] < name:
                start = middle + 1
            else:
                stop = middle
        low[i] = start
    return low


def _bisect_together(rows: Ints, players: Players, wanted: Ints, low: Ints, high: Ints) -> Ints:
    """Lower bounds by tie moment and id within `[low, high)`, where all keys equal the wanted one."""
    names = players.names(wanted[SLOT])
    live = np.arange(low.size)
    while live.size:
        middle = (low[live] + high[live]) >> 1
        tie, tie_wanted = rows[TIE].take(middle), wanted[TIE].take(live)
        before = tie < tie_wanted
        even = np.flatnonzero(tie == tie_wanted)
        if even.size:
            before[even] = players.names(rows[SLOT].take(middle[even])) < names.take(live[even])
        low[live[before]] = middle[before] + 1
        high[live[~before]] = middle[~before]
        live = live[low[live] < high[live]]
    return low


def _locate(column: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """Where each wanted number would go in the sorted column, and whether it is there."""
    at = column.searchsorted(wanted)
    if not column.size:
        return at, np.zeros(wanted.shape, dtype=np.bool_)
    return at, column.take(at, mode="clip") == wanted


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

    __slots__ = ("key", "players", "rows", "total", "where")

    players: Players
    rows: Ints
    key: Ints
    total: int

    def __init__(self, rows: Ints, players: Players) -> None:
        self.rows, self.players = rows, players
        self.key = rows[KEY]
        self.total = int(rows.shape[1])
        # One entry more than slots: a slot admitted later is clipped to it.
        self.where = np.full(len(players) + 1, -1, dtype=np.int32)
        self.where[rows[SLOT]] = np.arange(self.total, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.where.nbytes

    def find(self, slots: Ints) -> tuple[Ints, Ints]:
        """Positions of players, -1 for the absent, and their rows, arbitrary for the absent."""
        at = self.where.take(slots, mode="clip").astype(np.int64)
        return at, self.rows_at(at)

    def rows_at(self, positions: Ints) -> Ints:
        """Rows by position; positions outside the run give some row, and zeros when there is none."""
        if not self.total:
            return np.zeros((WIDTH, positions.size), dtype=np.int64)
        return self.rows.take(positions, axis=1, mode="clip")

    def lower_bound(self, wanted: Ints) -> Ints:
        """How many rows come before each wanted one."""
        return _lower_bound(self.rows, self.players, wanted)

    def better(self, key: Ints) -> Ints:
        """How many rows have a strictly lower key than each given one."""
        return self.key.searchsorted(key)

    def keys(self) -> Ints:
        """All keys in order."""
        return self.key


class Delta:
    """A run that differs from `below` by some vanished positions and some added rows. Same questions as `Base`.

    A position here is the position below, minus the vanished before it, plus the added before it: an
    answer costs a few binary searches a delta on the way down.
    """

    __slots__ = ("_gaps", "added", "before", "below", "gone", "landed", "players", "slot_rows", "slots", "total")

    below: "Run"
    players: Players
    total: int
    #: Positions below that vanish, ascending.
    gone: Ints
    #: Rows that appear, in order; row i goes before position `before[i]` below.
    added: Ints
    before: Ints
    #: Slots of the added rows, ascending, and which added row each one is.
    slots: Ints
    slot_rows: Ints
    #: Own positions of the added rows, ascending.
    landed: Ints

    def __init__(self, below: "Run", gone: Ints, before: Ints, added: Ints, slots: Ints, slot_rows: Ints) -> None:
        self.below, self.players = below, below.players
        self.gone, self.before, self.added = gone, before, added
        self.slots, self.slot_rows = slots, slot_rows
        self.landed = before - gone.searchsorted(before) + np.arange(before.size)
        # How many survivors below precede each vanished position: finds the k-th survivor.
        self._gaps = gone - np.arange(gone.size)
        self.total = below.total - gone.size + before.size

    @property
    def size(self) -> int:
        return max(self.gone.size, self.before.size)

    @property
    def nbytes(self) -> int:
        """Of this run's own arrays, not of those below."""
        arrays = (self.gone, self.before, self.added, self.slots, self.slot_rows, self.landed, self._gaps)
        return sum(array.nbytes for array in arrays)

    def find(self, slots: Ints) -> tuple[Ints, Ints]:
        """See `Base.find`."""
        under, rows = self.below.find(slots)
        skipped, vanished = _locate(self.gone, under)
        at = under - skipped + self.before.searchsorted(under, "right")
        at[vanished | (under < 0)] = -1
        entry, here = _locate(self.slots, slots)
        hits = np.flatnonzero(here)
        if hits.size:
            own = self.slot_rows.take(entry.take(hits))
            at[hits] = self.landed.take(own)
            rows[:, hits] = self.added.take(own, axis=1)
        return at, rows

    def rows_at(self, positions: Ints) -> Ints:
        """See `Base.rows_at`."""
        passed, here = _locate(self.landed, positions)
        rows = self.below.rows_at(self._under(positions - passed))
        hits = np.flatnonzero(here)
        if hits.size:
            rows[:, hits] = self.added.take(passed.take(hits), axis=1)
        return rows

    def lower_bound(self, wanted: Ints) -> Ints:
        """See `Base.lower_bound`."""
        under = self.below.lower_bound(wanted)
        return under - self.gone.searchsorted(under) + _lower_bound(self.added, self.players, wanted)

    def better(self, key: Ints) -> Ints:
        """See `Base.better`."""
        under = self.below.better(key)
        own: Ints = self.added[KEY].searchsorted(key)
        return under - self.gone.searchsorted(under) + own

    def keys(self) -> Ints:
        """All keys in order, put together anew: O(n)."""
        keys: Ints = self._spread(self.below.keys()[np.newaxis], self.added[KEY : KEY + 1])[0]
        return keys

    def _under(self, survivors: Ints) -> Ints:
        """Positions below of the given survivors, which are counted from 0."""
        return survivors + self._gaps.searchsorted(survivors, "right")

    def _spread(self, below: Ints, added: Ints) -> Ints:
        """Columns of this run from the same columns of the run below and of the added rows."""
        if not below.shape[1]:
            return added.copy()
        kept = np.ones(below.shape[1], dtype=np.bool_)
        kept[self.gone] = False
        old = np.ones(self.total, dtype=np.bool_)
        old[self.landed] = False
        source = np.zeros(self.total, dtype=np.int64)
        source[old] = np.flatnonzero(kept)
        out = below.take(source, axis=1)
        for column, fresh in zip(out, added, strict=True):
            column[self.landed] = fresh
        return out

    def folded(self, upper: "Delta") -> "Delta":
        """This delta and `upper`, which lies on it, as one delta on `below`. Positions alone: no key is compared."""
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

        _, gone_source = _weave(self.gone.searchsorted(gone_below), self.gone.size)
        # The slot index is woven the same way: an upper slot that was here is not among the survivors.
        listed = kept.take(self.slot_rows)
        slots = self.slots[listed]
        slot_rows = np.flatnonzero(stay).take(kept_before.take(self.slot_rows[listed]))
        _, slot_source = _weave(slots.searchsorted(upper.slots), slots.size)
        return Delta(
            self.below,
            np.concatenate((gone_below, self.gone)).take(gone_source),
            np.concatenate((before, self.before.take(survivors))).take(source),
            np.concatenate((upper.added, self.added.take(survivors, axis=1)), axis=1).take(source, axis=1),
            np.concatenate((upper.slots, slots)).take(slot_source),
            np.concatenate((landing.take(upper.slot_rows), slot_rows)).take(slot_source),
        )

    def compacted(self) -> Base:
        """A base with the rows of this run, whose `below` is a base: O(n), in no thread but the caller's."""
        if not isinstance(self.below, Base):
            raise TypeError("only the lowest delta can be compacted")
        rows = self._spread(self.below.rows, self.added)
        players = self.players
        if len(players) > 2 * self.total + _SPARE_SLOTS:
            players = Players(players.names(rows[SLOT]).tolist())
            rows[SLOT] = np.arange(self.total)
        return Base(rows, players)


Run = Base | Delta
