"""The rank index of one board: takes the changes of a generation, gives the next immutable view.

Shape: a sorted base below a short stack of deltas whose sizes fall geometrically (`boards.runs`). A
batch becomes a small delta; deltas of one size class merge; the lowest one, when it has reached a
quarter of the board, becomes the next base. Views already handed out keep the runs they stand on.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from boards.model import Direction, Ranking
from boards.runs import KEY, SLOT, WIDTH, Base, Delta, Ints, Players, Run, display_order
from boards.views import Placed, View, keys_of

__all__ = ["Change", "Placed", "RankIndex", "View"]

#: Boards up to this size are copied whole for each view: cheaper than a delta, and hardly larger.
_COPIED_WHOLE: Final = 256
#: Rows of the lowest size class, and the factor from one class to the next.
_CLASS_ROWS: Final = 256
_CLASS_FACTOR: Final = 16


class Change(NamedTuple):
    """A player's complete new place in the order: what `boards.model.Row` says about it."""

    player_id: str
    value: int
    tie_ms: int
    achieved_ms: int
    version: int


def _size_class(rows: int) -> int:
    size_class, bound = 0, _CLASS_ROWS
    while rows > bound:
        size_class, bound = size_class + 1, bound * _CLASS_FACTOR
    return size_class


class RankIndex:
    """Owns the newest view. One thread at a time may freeze; views are read from anywhere."""

    #: The newest view; empty at first.
    view: View

    def __init__(self, *, direction: Direction, ranking: Ranking) -> None:
        self._direction: Direction = direction
        self._ranking: Ranking = ranking
        self._run: Run = Base(np.empty((WIDTH, 0), dtype=np.int64), Players())
        self.view = View(self._run, direction=direction, ranking=ranking)

    @property
    def nbytes(self) -> int:
        """Of the newest view and the table of ids; what only older views keep alive is not in it."""
        return self.view.nbytes + self._run.players.nbytes

    def freeze(self, changes: Sequence[Change], removed: Sequence[str] = ()) -> View:
        """Apply everything and return the view after it; all or nothing.

        The last change of a player counts, and a removal outweighs any change of the same batch. What is
        already so is skipped: an equal row, the removal of an absent player. If nothing is left, the view stays.
        Cost: O(m log n) for m changes, and now and then an O(n) merge, amortised over n/4 changes.

        Raises:
            OverflowError: a number is outside the signed 64-bit range. Nothing changed.
        """
        latest = {change.player_id: change for change in changes}
        for player_id in removed:
            latest.pop(player_id, None)
        gone, added = self._effective(list(latest.values()), removed)
        if gone.size or added.shape[1]:
            self._run = self._settled(self._delta(gone, added))
            self.view = View(self._run, direction=self._direction, ranking=self._ranking)
        return self.view

    def _effective(self, changes: list[Change], removed: Sequence[str]) -> tuple[Ints, Ints]:
        """Positions that vanish, ascending, and rows that appear, by slot."""
        players = self._run.players
        added: Ints = np.empty((WIDTH, 0), dtype=np.int64)
        gone: Ints = np.empty(0, dtype=np.int64)
        if changes:
            ids, values, ties, achieved, versions = zip(*changes, strict=True)
            added = np.array((values, ties, ties, achieved, versions), dtype=np.int64)
            added[KEY] = keys_of(added[KEY], self._direction)
            added[SLOT] = players.admit(ids)
            # Ascending, the searches for so many slots share their cache lines.
            added = added.take(added[SLOT].argsort(), axis=1)
            gone, rows = self._run.find(added[SLOT])
            same = (rows == added).all(axis=0) & (gone >= 0)
            if same.any():
                added, gone = added[:, ~same], gone[~same]
        if removed:
            slots = players.find(dict.fromkeys(removed))
            gone = np.concatenate((gone, self._run.find(slots)[0]))
        gone = gone[gone >= 0]
        gone.sort()
        return gone, added

    def _delta(self, gone: Ints, added: Ints) -> Delta:
        if added.shape[1] > 1:
            added = added.take(display_order(added, self._run.players), axis=1)
        slot_rows = added[SLOT].argsort()
        return Delta(self._run, gone, self._run.lower_bound(added), added, added[SLOT].take(slot_rows), slot_rows)

    def _settled(self, delta: Delta) -> Run:
        """Merge a new delta downwards until sizes fall geometrically again, into a new base if it became large."""
        while isinstance(delta.below, Delta) and _size_class(delta.below.size) <= _size_class(delta.size):
            delta = delta.below.folded(delta)
        most = max(delta.total, 1)
        if most > _COPIED_WHOLE and delta.size <= most // 4:
            return delta
        while isinstance(delta.below, Delta):
            delta = delta.below.folded(delta)
        return delta.compacted()
