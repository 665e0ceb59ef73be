"""One generation of a board's order, and the questions that can be put to it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from boards.model import Direction, Ranking
from boards.runs import ACHIEVED, KEY, SLOT, VERSION, Base, Ints, Run


class Placed(NamedTuple):
    """A player's row in one view. `position` is unique and 1-based; `rank` follows the board's ranking rule."""

    position: int
    rank: int
    player_id: str
    value: int
    achieved_ms: int
    version: int


def keys_of(values: Ints, direction: Direction) -> Ints:
    """Keys of values, or values of keys. The complement, unlike the negative, exists for every 64-bit integer."""
    return ~values if direction == "higher" else values


class View:
    """A complete, immutable order. Any thread may read it, also while later views are made and after.

    Costs, with d the deltas below it (at most 5 for ten million players): a lookup is O(d log n).
    """

    __slots__ = ("_direction", "_distinct", "_ranking", "_run", "total")

    #: Players in this view.
    total: int

    def __init__(self, run: Run, *, direction: Direction, ranking: Ranking) -> None:
        self._run, self._direction, self._ranking = run, direction, ranking
        self._distinct: Ints | None = None
        self.total = run.total

    @property
    def nbytes(self) -> int:
        """Of all columns this view reads, those shared with other views included; the ids are not in it."""
        run, total = self._run, 0 if self._distinct is None else self._distinct.nbytes
        while not isinstance(run, Base):
            total += run.nbytes
            run = run.below
        return total + run.nbytes

    def page(self, offset: int, limit: int) -> list[Placed]:
        """Up to `limit` rows from position `offset + 1` on; shorter or empty at the end.

        Raises:
            ValueError: either number is negative.
        """
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit must not be negative, got {offset} and {limit}")
        at = np.arange(offset, min(offset + limit, self.total))
        return self._placed(at, self._run.rows_at(at))

    def place(self, player_id: str) -> Placed | None:
        """The player's row, or None without one."""
        return self.places((player_id,))[0]

    def places(self, player_ids: Sequence[str]) -> list[Placed | None]:
        """One answer for each id, in order; repeated ids get repeated answers."""
        at, rows = self._run.find(self._run.players.find(player_ids))
        found = np.flatnonzero(at >= 0)
        if found.size == at.size:
            return list(self._placed(at, rows))
        out: list[Placed | None] = [None] * at.size
        placed = self._placed(at.take(found), rows.take(found, axis=1))
        for i, row in zip(found.tolist(), placed, strict=True):
            out[i] = row
        return out

    def window(self, player_id: str, radius: int) -> list[Placed]:
        """The player with up to `radius` rows on either side, clamped at the ends; empty if the player is absent.

        Raises:
            ValueError: the radius is negative.
        """
        if radius < 0:
            raise ValueError(f"radius must not be negative, got {radius}")
        at = int(self._run.find(self._run.players.find((player_id,)))[0][0])
        if at < 0:
            return []
        start = max(0, at - radius)
        return self.page(start, at + radius + 1 - start)

    def subset(self, player_ids: Sequence[str]) -> list[Placed]:
        """The listed players ranked among themselves, best first. Repeated ids count once, absent ones not at all."""
        at, rows = self._run.find(self._run.players.find(dict.fromkeys(player_ids)))
        order = at.argsort()
        order = order[at.take(order) >= 0]
        rows = rows.take(order, axis=1)
        key, position = rows[KEY], np.arange(order.size)
        if self._ranking == "unique":
            better: Ints = position
        elif self._ranking == "competition":
            better = key.searchsorted(key)
        else:
            better = np.zeros(order.size, dtype=np.int64)
            better[1:] = (key[1:] != key[:-1]).cumsum()
        return self._rendered(position, better, rows)

    def better_than(self, value: int) -> int:
        """How many players have a strictly better value.

        Raises:
            OverflowError: the value is outside the signed 64-bit range.
        """
        return int(self._run.better(keys_of(np.array([value], dtype=np.int64), self._direction))[0])

    def _placed(self, at: Ints, rows: Ints) -> list[Placed]:
        return self._rendered(at, self._better(at, rows[KEY]), rows)

    def _better(self, at: Ints, key: Ints) -> Ints:
        """What counts as better than each row under the board's rule: rows before it, rows of a better value, or better values."""
        if self._ranking == "unique":
            return at
        if self._ranking == "competition":
            return self._run.better(key)
        distinct = self._distinct
        if distinct is None:
            # Once a view, O(n). Two readers may both do it, with the same result.
            keys = self._run.keys()
            first = np.ones(keys.size, dtype=np.bool_)
            first[1:] = keys[1:] != keys[:-1]
            self._distinct = distinct = keys[first]
        return distinct.searchsorted(key)

    def _rendered(self, at: Ints, better: Ints, rows: Ints) -> list[Placed]:
        return list(
            map(
                Placed,
                (at + 1).tolist(),
                (better + 1).tolist(),
                self._run.players.names(rows[SLOT]).tolist(),
                keys_of(rows[KEY], self._direction).tolist(),
                rows[ACHIEVED].tolist(),
                rows[VERSION].tolist(),
            )
        )
