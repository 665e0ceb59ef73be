"""One generation of a board's order, and the questions that can be put to it."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np

from boards import compiled
from boards.players import Ids
from boards.rows import Ints, Order, Rows
from boards.runs import Run, base_of, blocks_of, deltas_of


class Key(NamedTuple):
    """What decides a place, in the board's own numbers: `second` is 0 where the board has no second column."""

    value: int
    second: int
    tie_ms: int
    player_id: str


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A player's row in one view. `position` is unique and 1-based; `rank` follows the board's ranking rule.

    A thousand of them are made for one answer: a struct that the garbage collector need not look at takes a third of a tuple's time.
    """

    position: int
    rank: int
    player_id: str
    value: int
    achieved_ms: int
    version: int
    second: int = 0
    tie_ms: int = 0

    @property
    def key(self) -> Key:
        """The row's full key: where a page that ends here goes on."""
        return Key(self.value, self.second, self.tie_ms, self.player_id)


class Found(NamedTuple):
    """Rows of players in one view, as columns; what stands at an absent one is arbitrary."""

    #: Positions counted from 0, -1 for the absent.
    at: Ints
    value: Ints
    second: Ints
    tie_ms: Ints
    achieved_ms: Ints
    version: Ints


class Keys(NamedTuple):
    """Full keys as columns."""

    value: Ints
    second: Ints
    tie_ms: Ints
    ids: Ids


def keys_in_columns(keys: Sequence[Key]) -> Keys:
    """Raises OverflowError for a number outside the signed 64-bit range, ValueError for an id that cannot be one."""
    value, second, tie_ms, player_ids = zip(*keys, strict=True) if keys else ((), (), (), ())
    return Keys(np.array(value, dtype=np.int64), np.array(second, dtype=np.int64), np.array(tie_ms, dtype=np.int64), Ids(player_ids))


def sort_key(order: Order, key: Key) -> tuple[int, int, int, str]:
    """Sorts keys ascending into display order."""
    value = ~key.value if order.direction == "higher" else key.value
    second = 0 if order.secondary is None else ~key.second if order.secondary == "higher" else key.second
    return value, second, key.tie_ms, key.player_id


class View:
    """A complete, immutable order. Any thread may read it, also while later views are made and after.

    Costs, with d the deltas below it (at most 6 for a hundred million players): a lookup is O(d log n).
    """

    __slots__ = ("_distinct", "order", "run", "total")

    #: Players in this view.
    total: int
    order: Order
    #: Where the rows are. The index may put another run of the same rows in its place, with other slots: read it once a question.
    run: Run

    def __init__(self, run: Run, order: Order) -> None:
        self.run, self.order = run, order
        self._distinct: Ints | None = None
        self.total = run.total

    @property
    def nbytes(self) -> int:
        """Of all columns this view reads, those shared with other views included; the ids are not in it."""
        run = self.run
        return (
            base_of(run).nbytes + sum(delta.nbytes for delta in deltas_of(run)) + (0 if self._distinct is None else self._distinct.nbytes)
        )

    def page(self, offset: int, limit: int) -> list[Placed]:
        """Up to `limit` rows from position `offset + 1` on; shorter or empty at the end.

        Raises:
            ValueError: either number is negative.
        """
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit must not be negative, got {offset} and {limit}")
        at = np.arange(offset, min(offset + limit, self.total))
        run = self.run
        rows = run.rows_at(at)
        return self._rendered(at, self._better(run, at, rows), rows, run.players.names(rows.slot))

    def place(self, player_id: str) -> Placed | None:
        """The player's row, or None without one."""
        ranking = self.order.ranking
        if compiled.kernels is None or ranking == "dense":
            return self.places((player_id,))[0]
        order = self.order
        at, better, value, second, tie, achieved, version = compiled.place_one(self.run, player_id)
        if at < 0:
            return None
        value = ~value if order.direction == "higher" else value
        second = ~second if order.secondary == "higher" else second
        return Placed(at + 1, (at if ranking == "unique" else better) + 1, player_id, value, achieved, version, second, tie)

    def places(self, player_ids: Sequence[str]) -> list[Placed | None]:
        """One answer for each id, in order; repeated ids get repeated answers."""
        run = self.run
        slots = compiled.find_slots(run.players, Ids(player_ids))
        if self.order.ranking == "unique":
            at, rows = compiled.find(run, slots)
            better = at
        else:
            at, rows, better = compiled.find_with_better(run, slots)
            better = self._counted(run, better)
        out: list[Placed | None] = list(self._rendered(at, better, rows, player_ids))
        for i in np.flatnonzero(at < 0).tolist():
            out[i] = None
        return out

    def window(self, player_id: str, radius: int) -> list[Placed]:
        """The player with up to `radius` rows on either side, clamped at the ends; empty if the player is absent.

        Raises:
            ValueError: the radius is negative.
        """
        if radius < 0:
            raise ValueError(f"radius must not be negative, got {radius}")
        run = self.run
        at = int(run.find(run.players.find((player_id,)))[0][0])
        if at < 0:
            return []
        start = max(0, at - radius)
        return self.page(start, at + radius + 1 - start)

    def after(self, key: Key | None, limit: int) -> list[Placed]:
        """Up to `limit` rows strictly behind a full key, in display order; from the top without one. The key need not be anybody's.

        Raises:
            ValueError: the limit is negative, or the key's player id cannot be one.
            OverflowError: a number of the key is outside the signed 64-bit range.
        """
        if key is None:
            return self.page(0, limit)
        ahead, own = self._ahead(key)
        return self.page(ahead + own, limit)

    def before(self, key: Key | None, limit: int) -> list[Placed]:
        """The up to `limit` rows directly ahead of a full key, in display order; the last ones without one. Raises as `after`."""
        if limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        stop = self.total if key is None else self._ahead(key)[0]
        return self.page(max(0, stop - limit), min(stop, limit))

    def subset(self, player_ids: Sequence[str]) -> list[Placed]:
        """The listed players ranked among themselves, best first. Repeated ids count once, absent ones not at all."""
        names = list(dict.fromkeys(player_ids))
        run = self.run
        at, rows = compiled.find(run, compiled.find_slots(run.players, Ids(names)))
        order = at.argsort()
        order = order[at.take(order) >= 0]
        rows = rows.take(order)
        position = np.arange(order.size)
        if self.order.ranking == "unique":
            better: Ints = position
        else:
            first = _firsts([rows])
            dense = self.order.ranking == "dense"
            better = first.cumsum() - 1 if dense else np.maximum.accumulate(np.where(first, position, 0))
        return self._rendered(position, better, rows, [names[i] for i in order.tolist()])

    def better_than(self, value: int, second: int = 0) -> int:
        """How many players have a strictly better value, or the same and a strictly better second one.

        Raises:
            OverflowError: a number is outside the signed 64-bit range.
        """
        return int(self.tally(np.array([value], dtype=np.int64), np.array([second], dtype=np.int64))[0][0])

    def tally(self, value: Ints, second: Ints) -> tuple[Ints, Ints]:
        """For each pair how many players have a strictly better value and second one, and how many have no worse ones."""
        wanted = self.order.key_of(value), self.order.second_of(second)
        run = self.run
        return run.better(*wanted), run.better(*wanted, through=True)

    def counts(self, keys: Sequence[Key]) -> tuple[Ints, Ints]:
        """For each key how many rows are strictly better by value and second, and how many are strictly ahead by full key.

        Raises:
            ValueError: a player id cannot be one.
            OverflowError: a number is outside the signed 64-bit range.
        """
        return self.count_columns(keys_in_columns(keys))

    def count_columns(self, keys: Keys) -> tuple[Ints, Ints]:
        """See `counts`."""
        key, second = self.order.key_of(keys.value), self.order.second_of(keys.second)
        run = self.run
        return compiled.better(run, key, second), compiled.lower_bound(run, key, second, keys.tie_ms, keys.ids)

    def find(self, ids: Ids) -> Found:
        """The players' rows as columns, one for each id in order."""
        run = self.run
        at, rows = compiled.find(run, compiled.find_slots(run.players, ids))
        return Found(at, *self._values(rows))

    def sample(self, count: int) -> list[tuple[int, int]]:
        """Value and second of up to `count` rows at equal distances, best first, the first and the last row among them."""
        if not self.total:
            return []
        rows = self.run.rows_at(np.unique(np.linspace(0, self.total - 1, num=max(2, count)).astype(np.int64)))
        value, second, *_ = self._values(rows)
        return list(zip(value.tolist(), second.tolist(), strict=True))

    def _ahead(self, key: Key) -> tuple[int, int]:
        """How many rows are strictly ahead of a key, and how many (0 or 1) have it."""
        ahead = int(self.counts((key,))[1][0])
        return ahead, int(ahead < self.total and self.page(ahead, 1)[0].key == key)

    def _better(self, run: Run, at: Ints, rows: Rows) -> Ints:
        """What counts as better than each row under the board's rule: rows before it, rows of a better value, or better values."""
        if self.order.ranking == "unique":
            return at
        return self._counted(run, compiled.better(run, rows.key, rows.second))

    def _counted(self, run: Run, better: Ints) -> Ints:
        """What counts as better under the board's rule, from how many rows have a better value."""
        if self.order.ranking == "competition":
            return better
        distinct = self._distinct
        if distinct is None:
            # Once a view, O(n): where each distinct value begins. Two readers may both do it, with the same result.
            self._distinct = distinct = np.flatnonzero(_firsts(blocks_of(run)))
        return distinct.searchsorted(better)

    def _values(self, rows: Rows) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Value, second, tie moment, achieved moment and version of rows."""
        second = np.zeros_like(rows.key) if rows.second is None else self.order.second_of(rows.second)
        return self.order.key_of(rows.key), second, rows.tie, rows.tie if rows.achieved is None else rows.achieved, rows.version

    def _rendered(self, at: Ints, better: Ints, rows: Rows, names: Sequence[str]) -> list[Placed]:
        order = self.order
        value, tie, version = order.key_of(rows.key).tolist(), rows.tie.tolist(), rows.version.tolist()
        achieved = tie if rows.achieved is None else rows.achieved.tolist()
        second = repeat(0) if rows.second is None else order.second_of(rows.second).tolist()
        return list(map(Placed, (at + 1).tolist(), (better + 1).tolist(), names, value, achieved, version, second, tie))


def _firsts(blocks: Iterable[Rows]) -> Ints:
    """Which rows, put together from blocks in order, are the first of their value and second."""
    out, last = [np.empty(0, dtype=np.bool_)], None
    for rows in blocks:
        if not len(rows):
            continue
        columns = [rows.key] if rows.second is None else [rows.key, rows.second]
        first = np.zeros(len(rows), dtype=np.bool_)
        for i, column in enumerate(columns):
            first[1:] |= column[1:] != column[:-1]
            first[0] |= last is None or column[0] != last[i]
        last = [column[-1] for column in columns]
        out.append(first)
    return np.concatenate(out)
