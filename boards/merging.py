"""One generation of a board whose players are spread over several slices: the answers of one view over all of them.

Each slice has its own view, and no player is in two. Places are sums: a row's position is one more than the rows
ahead of it by full key, slice by slice, its rank one more than the strictly better ones. Pages are merged from each
slice's next rows, by the order that the board's comparator defines.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from msgspec.structs import replace

from boards.players import Ids
from boards.rows import Ints, Order
from boards.small import SmallView
from boards.views import Found, Key, Keys, Placed, View, keys_in_columns, sort_key


class MergedView:
    """The same questions as `View`, with the same answers. `views` are the slices of one generation, of equal rules.

    Costs: a place is one search a slice; a thousand places are two vectorised calls a slice; a page of k rows takes up to k
    rows from each slice.

    Raises:
        ValueError: there is no view, their rules differ, or ranks are dense over several slices: those cannot be summed.
    """

    __slots__ = ("_small", "_views", "order", "total")

    #: Players in all slices.
    total: int
    order: Order

    def __init__(self, views: Sequence[View]) -> None:
        if not views:
            raise ValueError("a merged view needs at least one view")
        self._views = tuple(views)
        #: All slices are small: then questions are put one by one, without columns.
        self._small = all(isinstance(view, SmallView) for view in views)
        self.order = views[0].order
        self.total = sum(view.total for view in views)
        if any(view.order != self.order for view in views):
            raise ValueError("slices of one board must have the same direction, second column and ranking")
        if self.order.ranking == "dense" and len(views) > 1:
            raise ValueError("dense ranks over several slices cannot be summed: the ranking must be unique or competition")

    def place(self, player_id: str) -> Placed | None:
        """See `View.place`."""
        for owner in self._views:
            placed = owner.place(player_id)
            if placed is not None:
                better, ahead = self._elsewhere((placed.key,), owner)
                return self._moved(placed, int(better[0]), int(ahead[0]))
        return None

    def places(self, player_ids: Sequence[str]) -> list[Placed | None]:
        """See `View.places`."""
        if len(self._views) == 1:
            return self._views[0].places(player_ids)
        if self._small:
            return list(map(self.place, player_ids))
        ids = Ids(player_ids)
        merged = Found(np.full(len(ids), -1), *np.zeros((5, len(ids)), dtype=np.int64))
        for view in self._views:
            found = view.find(ids)
            here = np.flatnonzero(found.at >= 0)
            for column, own in zip(merged, found, strict=True):
                column[here] = own[here]
        better, ahead = self._count(Keys(merged.value, merged.second, merged.tie_ms, ids))
        rank = 1 + (ahead if self.order.ranking == "unique" else better)
        columns = (merged.value, merged.achieved_ms, merged.version, merged.second, merged.tie_ms)
        out: list[Placed | None] = list(
            map(Placed, (1 + ahead).tolist(), rank.tolist(), player_ids, *(column.tolist() for column in columns))
        )
        for i in np.flatnonzero(merged.at < 0).tolist():
            out[i] = None
        return out

    def after(self, key: Key | None, limit: int) -> list[Placed]:
        """See `View.after`."""
        rows = self._merged(row for view in self._views for row in view.after(key, limit))
        return self._numbered(rows[:limit])

    def before(self, key: Key | None, limit: int) -> list[Placed]:
        """See `View.before`."""
        rows = self._merged(row for view in self._views for row in view.before(key, limit))
        return self._numbered(rows[max(0, len(rows) - limit) :])

    def window(self, player_id: str, radius: int) -> list[Placed]:
        """See `View.window`."""
        if radius < 0:
            raise ValueError(f"radius must not be negative, got {radius}")
        placed = self.place(player_id)
        if placed is None:
            return []
        rows = [row for view in self._views for row in (*view.before(placed.key, radius), *view.after(placed.key, radius))]
        rows = self._merged((*rows, placed))
        at = next(i for i, row in enumerate(rows) if row.player_id == player_id)
        return self._numbered(rows[max(0, at - radius) : at + radius + 1])

    def subset(self, player_ids: Sequence[str]) -> list[Placed]:
        """See `View.subset`."""
        if self.order.ranking == "dense":
            return self._views[0].subset(player_ids)
        return self._ranked(self._merged(row for view in self._views for row in view.subset(player_ids)), 0, 0)

    def page(self, offset: int, limit: int) -> list[Placed]:
        """See `View.page`. Cost: O(offset), for tests and offline use; `after` and `before` turn pages."""
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit must not be negative, got {offset} and {limit}")
        return self.after(None, offset + limit)[offset:]

    def better_than(self, value: int, second: int = 0) -> int:
        """See `View.better_than`."""
        return sum(view.better_than(value, second) for view in self._views)

    def tally(self, value: Ints, second: Ints) -> tuple[Ints, Ints]:
        """See `View.tally`."""
        tallies = [view.tally(value, second) for view in self._views]
        return np.sum([better for better, _ in tallies], axis=0), np.sum([through for _, through in tallies], axis=0)

    def sample(self, count: int) -> list[tuple[int, int]]:
        """Up to `count` rows of each slice, see `View.sample`; in no order over all."""
        return [row for view in self._views for row in view.sample(count)]

    def counts(self, keys: Sequence[Key]) -> tuple[Ints, Ints]:
        """See `View.counts`."""
        return self._elsewhere(keys, None)

    def _count(self, keys: Keys) -> tuple[Ints, Ints]:
        counts = [view.count_columns(keys) for view in self._views]
        return np.sum([better for better, _ in counts], axis=0), np.sum([ahead for _, ahead in counts], axis=0)

    def _elsewhere(self, keys: Sequence[Key], but: View | None) -> tuple[Ints, Ints]:
        """Counts in all slices except one."""
        views = [view for view in self._views if view is not but]
        if self._small:
            counts = [view.counts(keys) for view in views]
        else:
            columns = keys_in_columns(keys)
            counts = [view.count_columns(columns) for view in views]
        nothing = np.zeros(len(keys), dtype=np.int64)
        return sum((better for better, _ in counts), nothing), sum((ahead for _, ahead in counts), nothing)

    def _moved(self, placed: Placed, better: int, ahead: int) -> Placed:
        """A slice's row with the counts of the other slices added."""
        rank = placed.rank + (ahead if self.order.ranking == "unique" else better)
        return replace(placed, position=placed.position + ahead, rank=rank)

    def _merged(self, rows: Iterable[Placed]) -> list[Placed]:
        """Rows of any slices in display order."""
        order = self.order
        return sorted(rows, key=lambda row: sort_key(order, row.key))

    def _numbered(self, rows: list[Placed]) -> list[Placed]:
        """Adjacent rows of this view with their places in it: one count for the first, the others follow from it."""
        if not rows:
            return rows
        if len(self._views) == 1:
            return rows
        better, ahead = self.counts((rows[0].key,))
        return self._ranked(rows, int(ahead[0]), int(better[0]))

    def _ranked(self, rows: list[Placed], ahead: int, better: int) -> list[Placed]:
        """Adjacent rows as they stand behind `ahead` others, of which `better` are strictly better than the first."""
        out: list[Placed] = []
        rank, former = 1 + better, None
        what = attrgetter("value", "second")
        for position, row in enumerate(rows, start=1 + ahead):
            now = what(row)
            if self.order.ranking == "unique" or (former is not None and now != former):
                rank = position
            former = now
            out.append(replace(row, position=position, rank=rank))
        return out
