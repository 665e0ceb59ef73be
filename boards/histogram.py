"""About where a score stands, from a small summary of a generation, with a bound of the error that always holds.

The summary holds a few hundred scores at equal distances in the order, each with its exact counts. A score that is among
them has its exact rank; one between two of them has a rank between theirs.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from boards.merging import MergedView
from boards.views import View

#: Scores that a histogram holds at most. The rank of any other score is known to half a bucket: 1/500 of the board if no ties are large.
BUCKETS = 256


class Estimate(NamedTuple):
    """`rank` is off by at most `error`: 0 means exact."""

    rank: int
    error: int


class Share(NamedTuple):
    """What share of the players a score is at least as good as, from 0 to 1, off by at most `error`."""

    share: float
    error: float


class Histogram:
    """Ranks here are competition ranks: one more than the number of players with a strictly better score (value, and second if any).

    Raises:
        ValueError: the board's ranks are dense; how many distinct scores are better cannot be told from counts of players.
    """

    __slots__ = ("_better", "_keys", "_order", "_through", "total")

    #: Players that were summed up.
    total: int

    def __init__(self, view: View | MergedView, buckets: int = BUCKETS) -> None:
        if view.order.ranking == "dense":
            raise ValueError("dense ranks cannot be estimated from counts of players")
        self._order, self.total = view.order, view.total
        sample = view.sample(buckets + 1)
        value, second = np.array(sample, dtype=np.int64).reshape(-1, 2).T
        better, through = view.tally(value, second)
        # A merged view has samples of each slice: keep those next to equal shares, and the best and the worst of all.
        order = np.lexsort((through, better))
        wanted = np.linspace(0, max(0, self.total - 1), num=buckets)
        kept = order[np.unique(np.append(better[order].searchsorted(wanted, "right") - 1, [0, order.size - 1]))] if order.size else order
        kept = kept[np.unique(better[kept], return_index=True)[1]]
        self._better, self._through = better[kept].tolist(), through[kept].tolist()
        self._keys = [self._key(*sample[i]) for i in kept.tolist()]

    def _key(self, value: int, second: int) -> tuple[int, int]:
        """Lower is better."""
        direction, secondary, _ = self._order
        return ~value if direction == "higher" else value, 0 if secondary is None else ~second if secondary == "higher" else second

    def _bounds(self, value: int, second: int) -> tuple[int, int]:
        """How many players are strictly better, at least and at most."""
        key = self._key(value, second)
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            return self._better[at], self._better[at]
        return self._through[at - 1] if at else 0, self._better[at] if at < len(self._keys) else self.total

    def estimate(self, value: int, second: int = 0) -> Estimate:
        """The rank that a row of this score has, or would have."""
        low, high = self._bounds(value, second)
        return Estimate(1 + (low + high) // 2, (high - low + 1) // 2)

    def percentile(self, value: int, second: int = 0) -> Share:
        """See `Share`; on an empty board everything is as good as all."""
        if not self.total:
            return Share(1.0, 0.0)
        low, high = self._bounds(value, second)
        return Share(1 - (low + high) / 2 / self.total, (high - low) / 2 / self.total)
