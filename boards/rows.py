"""Rows of a rank index as columns, and their order.

A row is (key, second key, tie moment, slot, achieved moment, version). Keys are the board's values or their complements, so
that the lower key is always the better one; rows compare by key, second key, tie moment and player id, all ascending.
Columns that a board does not need are not there: the second key, and the achieved moment where it is the tie moment.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from boards.model import Direction, Ranking
from boards.players import Players, Words

Ints = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]

#: Versions take 32 bits until one needs more; columns put together take the wider width.
_NARROW: Final = 2**31 - 1


class Order(NamedTuple):
    """The board's rules about order. The complement turns an order round, and unlike the negative exists for every 64-bit integer."""

    direction: Direction
    secondary: Direction | None
    ranking: Ranking

    def key_of(self, values: Ints) -> Ints:
        """Keys of values, or values of keys."""
        return ~values if self.direction == "higher" else values

    def second_of(self, seconds: Ints) -> Ints:
        """The same for the second column; zeros on boards without one."""
        if self.secondary is None:
            return np.zeros_like(seconds)
        return ~seconds if self.secondary == "higher" else seconds


class Wanted(NamedTuple):
    """Full keys to look for, which need not be anybody's: keys as in `Rows`, and the words of the player ids."""

    key: Ints
    second: Ints | None
    tie: Ints
    words: Words


class Rows:
    """Columns of equal length; `second` and `achieved` may be missing, which reads as all 0 and as the tie moment. Never changed."""

    __slots__ = ("achieved", "key", "second", "slot", "tie", "version")

    key: Ints
    second: Ints | None
    tie: Ints
    slot: Ints
    achieved: Ints | None
    version: Ints

    def __init__(self, key: Ints, second: Ints | None, tie: Ints, slot: Ints, achieved: Ints | None, version: Ints) -> None:
        self.key, self.second, self.tie, self.slot, self.achieved, self.version = key, second, tie, slot, achieved, version

    def __len__(self) -> int:
        return int(self.key.size)

    @staticmethod
    def blank(count: int, like: "Rows", wide: bool) -> "Rows":
        """Room for rows with the columns of `like`, not yet written; versions of 64 bits if `wide`."""
        blank = like._each(lambda column: np.empty(count, dtype=column.dtype))
        blank.version = np.empty(count, dtype=np.int64 if wide else np.int32)
        return blank

    @staticmethod
    def empty(*, second: bool, achieved: bool) -> "Rows":
        """No rows, with the columns that the board needs."""
        none = np.empty(0, dtype=np.int64)
        return Rows(none, none if second else None, none, none.astype(np.int32), none if achieved else None, none.astype(np.int32))

    @property
    def arrays(self) -> list[Ints]:
        """The columns that are there, in a fixed order."""
        columns = (self.key, self.second, self.tie, self.slot, self.achieved, self.version)
        return [column for column in columns if column is not None]

    @property
    def wide(self) -> bool:
        """Whether versions take 64 bits."""
        return self.version.dtype == np.int64

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.arrays)

    def _each(self, change: Callable[[Ints], Ints]) -> "Rows":
        """The same with each column changed, in the order of `arrays`."""
        return Rows(
            change(self.key),
            None if self.second is None else change(self.second),
            change(self.tie),
            change(self.slot),
            None if self.achieved is None else change(self.achieved),
            change(self.version),
        )

    def take(self, at: Ints) -> "Rows":
        """Rows by place; places outside give some row, and zeros when there is none."""
        if not self.key.size:
            return self._each(lambda column: np.zeros(at.size, dtype=column.dtype))
        return self._each(lambda column: column.take(at, mode="clip"))

    def select(self, which: Flags | slice) -> "Rows":
        """The rows where a flag is set, or those of a slice."""
        return self._each(lambda column: column[which])

    def joined(self, other: "Rows") -> "Rows":
        """These rows and the other ones behind them; both have the same columns."""
        pairs = iter([np.concatenate(pair) for pair in zip(self.arrays, other.arrays, strict=True)])
        return self._each(lambda column: next(pairs))

    def put(self, at: Ints | Flags | slice, rows: "Rows") -> "Rows":
        """Write rows into the given places and return the result: these very rows, unless a wider version needs new columns."""
        out = self
        if rows.wide and not self.wide:
            out = Rows(self.key, self.second, self.tie, self.slot, self.achieved, self.version.astype(np.int64))
        for column, fresh in zip(out.arrays, rows.arrays, strict=True):
            column[at] = fresh
        return out

    def alike(self, other: "Rows") -> Flags:
        """Which rows are the same in every column, slot by slot."""
        out: Flags = self.key == other.key
        for mine, its in zip(self.arrays[1:], other.arrays[1:], strict=True):
            out &= mine == its
        return out


def narrow(versions: Ints) -> Ints:
    """Versions in 32 bits if all of them fit."""
    if versions.size and (int(versions.max()) > _NARROW or int(versions.min()) < -_NARROW - 1):
        return versions
    return versions.astype(np.int32)


def display_order(rows: Rows, players: Players) -> Ints:
    """The permutation that sorts `rows`. One sort by key; the other columns are looked at only where keys are equal."""
    order: Ints = rows.key.argsort()
    columns = [column for column in (rows.key, rows.second, rows.tie) if column is not None]
    tied = _tied(order, columns[:1])
    if tied.size:
        among = order.take(tied)
        order[tied] = among.take(np.lexsort([column.take(among) for column in reversed(columns)]))
        tied = tied[np.isin(tied, _tied(order, columns), assume_unique=True)] if tied.size < order.size // 4 else _tied(order, columns)
    if tied.size:
        among = order.take(tied)
        words = players.words(rows.slot.take(among))
        by_name = [words[:, i] for i in range(words.shape[1] - 1, -1, -1)]
        order[tied] = among.take(np.lexsort([*by_name, *(column.take(among) for column in reversed(columns))]))
    return order


def _tied(order: Ints, columns: Sequence[Ints]) -> Ints:
    """Which places of an order hold rows that equal a neighbour in all the columns."""
    same = np.ones(max(0, order.size - 1), dtype=np.bool_)
    for column in columns:
        ordered = column.take(order)
        same &= ordered[1:] == ordered[:-1]
    tied = np.zeros(order.size, dtype=np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    return np.flatnonzero(tied)


def lower_bound(rows: Rows, players: Players, wanted: Wanted) -> Ints:
    """For each wanted key how many of the sorted `rows` come before it."""
    low: Ints = rows.key.searchsorted(wanted.key)
    high: Ints = rows.key.searchsorted(wanted.key, "right")
    live = np.flatnonzero(low < high)
    while live.size:
        middle = (low[live] + high[live]) >> 1
        before = np.zeros(live.size, dtype=np.bool_)
        even = np.arange(live.size)
        for mine, its in ((rows.second, wanted.second), (rows.tie, wanted.tie)):
            if mine is None or its is None:
                continue
            here, there = mine.take(middle[even]), its.take(live[even])
            before[even] = here < there
            even = even[here == there]
        if even.size:
            before[even] = players.compare(rows.slot.take(middle[even]), wanted.words[live[even]]) < 0
        low[live[before]] = middle[before] + 1
        high[live[~before]] = middle[~before]
        live = live[low[live] < high[live]]
    return low


def count_better(rows: Rows, key: Ints, second: Ints | None, *, through: bool = False) -> Ints:
    """How many of the sorted `rows` are strictly before each (key, second key); with `through`, how many are not behind it."""
    if rows.second is None or second is None:
        return rows.key.searchsorted(key, "right" if through else "left")
    low: Ints = rows.key.searchsorted(key)
    high: Ints = rows.key.searchsorted(key, "right")
    live = np.flatnonzero(low < high)
    while live.size:
        middle = (low[live] + high[live]) >> 1
        here, there = rows.second.take(middle), second.take(live)
        before = here <= there if through else here < there
        low[live[before]] = middle[before] + 1
        high[live[~before]] = middle[~before]
        live = live[low[live] < high[live]]
    return low
