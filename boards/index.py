"""The rank index of one board: takes the changes of a generation, gives the next immutable view.

A small board is a list of rows (`boards.small`). Any other is a sorted base below a short stack of deltas whose sizes fall
geometrically (`boards.runs`). A batch becomes a small delta; deltas of one size class merge; when the lowest has become large, a new base
is made of all. What would take long is done in a thread, on runs that no longer change, and put in the place of those runs when
it is done: a position in the one is the same position in the other. Views already handed out keep the runs they stand on.
"""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from boards import compiled
from boards.model import Direction, Ranking
from boards.players import NOWHERE, Ids, Players, words_of
from boards.rows import Ints, Order, Rows, display_order, narrow
from boards.runs import Base, Delta, Run, compacted, deltas_of, folded
from boards.small import Row, Small, SmallView, check_id, check_number, prefix_of
from boards.views import Found, Key, Placed, View

__all__ = ["Batch", "Change", "Found", "Kept", "Key", "Placed", "RankIndex", "View"]

#: Players up to which a board is small. One that grew beyond stays with columns, also if it shrinks again.
SMALL_UP_TO: Final = 4096
#: Boards of columns up to this size are copied whole for each view: cheaper than a delta, and hardly larger.
_COPIED_WHOLE: Final = 256
#: Rows of the lowest size class, and the factor from one class to the next.
_CLASS_ROWS: Final = 256
_CLASS_FACTOR: Final = 16
#: Up to this many rows are merged by whoever freezes; more of them in the background.
_MERGED_AT_ONCE: Final = 1 << 18
#: A new base is due when the deltas hold a quarter of the board, or this many rows: the changes of more than two minutes at 10,000/s.
_DELTAS_AT_MOST: Final = 2_000_000
#: Deltas on a stack before freezing waits for the background.
_STACK_AT_MOST: Final = 12
#: Players from which on compiled look-ups are worth their loading, which takes half a second and 60 MB.
_COMPILED_FROM: Final = 50_000
#: Slots of departed players that are kept for as long as they do not outnumber the present ones by this.
_SPARE_SLOTS: Final = 1024

_MOMENTS_DIFFER: Final = "this index was promised that tie_ms is achieved_ms in every change"


class Change(NamedTuple):
    """A player's complete new place in the order: what `boards.model.Row` says about it."""

    player_id: str
    value: int
    tie_ms: int
    achieved_ms: int
    version: int
    #: Value of the second column; 0 on boards without one.
    second: int = 0


class Batch(NamedTuple):
    """Changes as columns, int64, of distinct players."""

    player_ids: Sequence[str]
    value: Ints
    second: Ints
    tie_ms: Ints
    achieved_ms: Ints
    version: Ints

    @staticmethod
    def of(changes: Sequence[Change]) -> "Batch":
        """Raises OverflowError for a number outside the signed 64-bit range."""
        # One column after the other: an iterator for each change would set off the garbage collector.
        columns = (np.fromiter(map(itemgetter(field), changes), dtype=np.int64, count=len(changes)) for field in (1, 5, 2, 3, 4))
        return Batch(list(map(itemgetter(0), changes)), *columns)


class Kept(NamedTuple):
    """The newest row of a player that was frozen. An inactive one is on no view made since."""

    value: int
    second: int
    tie_ms: int
    achieved_ms: int
    version: int
    active: bool


class _Job(NamedTuple):
    """Work in the background: `run` will be replaced by what comes of it, with the new slot of each former one if they changed."""

    run: Run
    done: "Future[tuple[Run, Ints | None]]"


def _size_class(rows: int) -> int:
    size_class, bound = 0, _CLASS_ROWS
    while rows > bound:
        size_class, bound = size_class + 1, bound * _CLASS_FACTOR
    return size_class


class RankIndex:
    """Owns the newest view. One thread at a time may freeze and ask for rows; views are read from anywhere."""

    __slots__ = (
        "_executor", "_inactive", "_job", "_order", "_own_executor", "_run",
        "_small", "_small_up_to", "_tie_is_achieved", "_unranked", "view",
    )  # fmt: skip

    #: The newest view; empty at first.
    view: View
    #: The rows while the board is small, None from then on.
    _small: Small | None
    #: Players whose newest row is not ranked, while the board is small.
    _unranked: dict[str, Kept]
    #: The rows once the board is not small any more, until then unset.
    _run: Run
    #: By slot: players whose newest row is not ranked, once the board is not small any more.
    _inactive: dict[int, Kept]

    def __init__(
        self,
        *,
        direction: Direction,
        ranking: Ranking,
        secondary: Direction | None = None,
        tie_is_achieved: bool = False,
        executor: Executor | None = None,
        small_up_to: int | None = None,
    ) -> None:
        """`tie_is_achieved`: every change says the same moment for both, so that one column is enough.

        `executor` runs what is done in the background, one thing at a time; without one, a board that has become large
        starts a thread of its own. What the views answer does not depend on when it is done, nor on `small_up_to`, the number
        of players beyond which rows are kept as columns, `SMALL_UP_TO` by default.
        """
        self._order = Order(direction, secondary, ranking)
        self._tie_is_achieved = tie_is_achieved
        self._executor, self._own_executor = executor, False
        self._job: _Job | None = None
        self._small, self._small_up_to = Small.of(()), SMALL_UP_TO if small_up_to is None else small_up_to
        self._unranked, self._inactive = {}, {}
        self.view = SmallView(self._small, self._order)

    @property
    def nbytes(self) -> int:
        """Of the newest view and the table of ids; what only older views keep alive is not in it."""
        return self.view.nbytes + (self._run.players.nbytes if self._small is None else 0)

    @property
    def busy(self) -> bool:
        """Whether something is being done in the background, or is done and waits for the next freeze."""
        return self._job is not None

    def close(self) -> None:
        """Wait for what is being done in the background. Everything stays usable."""
        self.settle(wait=True)
        if self._own_executor and self._executor is not None:
            self._executor.shutdown()
            self._executor, self._own_executor = None, False

    def row(self, player_id: str) -> Kept | None:
        """The newest row that was frozen for a player, active or not; None for one who never had any or was removed."""
        return self.rows((player_id,))[0]

    def rows(self, player_ids: Sequence[str]) -> list[Kept | None]:
        """One answer for each id, see `row`."""
        if self._small is not None:
            return [self._kept(player_id, self._small) for player_id in player_ids]
        slots = compiled.find_slots(self._run.players, Ids(player_ids))
        at, rows = compiled.find(self._run, slots)
        second = np.zeros_like(rows.key) if rows.second is None else self._order.second_of(rows.second)
        achieved = rows.tie if rows.achieved is None else rows.achieved
        columns = (at, slots, self._order.key_of(rows.key), second, rows.tie, achieved, rows.version)
        return [
            Kept(value, second, tie, achieved, version, True) if at >= 0 else self._inactive.get(slot)
            for at, slot, value, second, tie, achieved, version in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def freeze(self, changes: Sequence[Change], removed: Sequence[str] = (), inactive: Sequence[Change] = ()) -> View:
        """Apply everything and return the view after it; all or nothing.

        The players of `removed` and of `inactive` leave the board; the index forgets the former, and keeps the rows of the
        latter for `row`. The last change of a player counts, and leaving outweighs any change of the same batch. What is
        already so is skipped: an equal row, the removal of an absent player. If nothing is left, the view stays.
        Cost: O(m log n) for m changes; merges of up to `_MERGED_AT_ONCE` rows now and then, longer ones in the background.

        Raises:
            OverflowError: a number is outside the signed 64-bit range. Nothing changed.
            ValueError: an id cannot be one, or moments differ that were promised not to. Nothing changed.
        """
        latest = {change.player_id: change for change in changes}
        leaving = {change.player_id: change for change in inactive}
        for player_id in (*removed, *leaving):
            latest.pop(player_id, None)
        if self._small is not None and self._stays_small(self._small, latest):
            return self._apply_small(self._small, latest.values(), removed, leaving.values())
        return self._apply(Batch.of(list(latest.values())), removed, list(leaving.values()))

    def freeze_columns(self, batch: Batch) -> View:
        """See `freeze`. Raises ValueError if a player is in the batch twice."""
        if len(set(batch.player_ids)) < len(batch.player_ids):
            raise ValueError("a player may be only once in a batch of columns")
        if self._small is not None and self._stays_small(self._small, batch.player_ids):
            value, second, tie, achieved, version = (column.tolist() for column in batch[1:])
            return self._apply_small(self._small, map(Change, batch.player_ids, value, tie, achieved, version, second), (), ())
        return self._apply(batch, (), ())

    def _kept(self, player_id: str, small: Small) -> Kept | None:
        row = small.find(player_id)
        if row is None:
            return self._unranked.get(player_id)
        key, second, tie, _, achieved, version = row
        direction, secondary, _ = self._order
        return Kept(~key if direction == "higher" else key, ~second if secondary == "higher" else second, tie, achieved, version, True)

    def _off_board(self, row: Change) -> Kept:
        second = 0 if self._order.secondary is None else row.second
        return Kept(row.value, second, row.tie_ms, row.achieved_ms, row.version, False)

    def _stays_small(self, small: Small, ids: Collection[str]) -> bool:
        """Whether these players, who are distinct, can be on the board too."""
        if len(ids) > self._small_up_to:
            return False
        room = self._small_up_to - small.total
        return len(ids) <= room or sum(small.find(player_id) is None for player_id in ids) <= room

    def _row(self, change: Change) -> Row:
        """Raises OverflowError and ValueError as `freeze`."""
        player_id, value, tie, achieved, version, second = change
        for number in (tie, achieved, version):
            check_number(number)
        if self._tie_is_achieved and tie != achieved:
            raise ValueError(_MOMENTS_DIFFER)
        check_id(player_id)
        # One object is enough where both moments are the same.
        return *prefix_of(self._order, value, second), tie, player_id, tie if tie == achieved else achieved, version

    def _apply_small(self, small: Small, changes: Iterable[Change], removed: Sequence[str], inactive: Collection[Change]) -> View:
        """See `_apply`."""
        rows = [self._row(change) for change in changes]
        for change in inactive:
            self._row(change)
        self._small = small.changed(rows, (*removed, *(change.player_id for change in inactive)))
        if self._unranked:
            for player_id in (*removed, *(row[3] for row in rows)):
                self._unranked.pop(player_id, None)
        for change in inactive:
            self._unranked[change.player_id] = self._off_board(change)
        if self._small is not small:
            self.view = SmallView(self._small, self._order)
        return self.view

    def _widen(self, small: Small) -> None:
        """Have the rows in columns from here on. The newest view stays what it is."""
        rows, players = list(small), Players(small.total + len(self._unranked))
        key, second, tie, names, achieved, version = zip(*rows, strict=True) if rows else ((),) * 6
        slots = players.admit(names)
        benched = players.admit(list(self._unranked)).tolist()
        columns = [np.array(column, dtype=np.int64) for column in (key, second, tie, achieved, version)]
        self._run = Base(
            Rows(
                columns[0],
                None if self._order.secondary is None else columns[1],
                columns[2],
                slots.astype(np.int32),
                None if self._tie_is_achieved else columns[3],
                narrow(columns[4]),
            ),
            players,
        )
        self._inactive = dict(zip(benched, self._unranked.values(), strict=True))
        self._small, self._unranked = None, {}

    def _apply(self, batch: Batch, removed: Sequence[str], inactive: Sequence[Change]) -> View:
        """Of distinct players, none of whom is both in the batch and leaving."""
        benched = Batch.of(inactive)
        if self._tie_is_achieved and not all(np.array_equal(rows.tie_ms, rows.achieved_ms) for rows in (batch, benched)):
            raise ValueError(_MOMENTS_DIFFER)
        self.settle()
        if self._small is not None:
            self._widen(self._small)
        players = self._run.players
        leaving = players.find(list(dict.fromkeys(removed))) if removed else np.empty(0, dtype=np.int64)
        slots = self._admit(Ids([*batch.player_ids, *benched.player_ids]))
        slots, benched_slots = slots[: len(batch.player_ids)], slots[len(batch.player_ids) :]
        added = Rows(
            self._order.key_of(batch.value),
            None if self._order.secondary is None else self._order.second_of(batch.second),
            batch.tie_ms,
            slots.astype(np.int32),
            None if self._tie_is_achieved else batch.achieved_ms,
            narrow(batch.version),
        )
        if self._inactive:
            for slot in (*slots.tolist(), *leaving.tolist()):
                self._inactive.pop(slot, None)
        for slot, row in zip(benched_slots.tolist(), inactive, strict=True):
            self._inactive[slot] = self._off_board(row)
        gone, added = self._effective(added, np.concatenate((leaving, benched_slots)))
        if gone.size or len(added):
            self._run = self._settled(self._delta(gone, added))
            if self._run.total >= _COMPILED_FROM and compiled.wanted():
                self._background().submit(compiled.load)
            self.view = View(self._run, self._order)
        return self.view

    def _admit(self, ids: Ids) -> Ints:
        """Slots of players, who are distinct; newcomers get theirs."""
        players = self._run.players
        slots = compiled.find_slots(players, ids)
        fresh = np.flatnonzero(slots == NOWHERE)
        if fresh.size:
            words = ids.words if fresh.size == len(ids) else words_of([ids.texts[i] for i in fresh.tolist()])
            slots[fresh] = players.admit_words(words, known=slots[fresh])
        return slots

    def _effective(self, added: Rows, leaving: Ints) -> tuple[Ints, Rows]:
        """Positions that vanish, ascending, and rows that appear."""
        gone, rows = compiled.find(self._run, added.slot)
        changed = ~rows.alike(added) | (gone < 0)
        if not changed.all():
            added, gone = added.select(changed), gone[changed]
        if leaving.size:
            gone = np.concatenate((gone, self._run.find(np.unique(leaving))[0]))
        gone = gone[gone >= 0]
        gone.sort()
        return gone, added

    def _delta(self, gone: Ints, added: Rows) -> Delta:
        players = self._run.players
        if len(added) > 1:
            added = added.take(display_order(added, players))
        slot_rows = added.slot.argsort()
        return Delta(self._run, gone, compiled.lower_bound_of_rows(self._run, added), added, added.slot.take(slot_rows), slot_rows)

    def _settled(self, delta: Delta) -> Run:
        """Merge a new delta downwards until sizes fall geometrically again, and see to what has become too large for that."""
        barrier = self._job.run if self._job else None
        run: Run = delta
        while isinstance(run, Delta) and isinstance(run.below, Delta) and run.below is not barrier:
            if _size_class(run.below.size) > _size_class(run.size) or run.below.size + run.size > _MERGED_AT_ONCE:
                break
            run = run.below.folded(run)
        sizes = [each.size for each in deltas_of(run)]
        whole = run.total <= _COPIED_WHOLE or sizes[-1] > min(run.total // 4, _DELTAS_AT_MOST)
        if self._job is None and run.total + sum(sizes) <= _MERGED_AT_ONCE:
            return self._replaced(run, run, *_rebuilt(run, whole, self._departed(run))) if whole else run
        self._run = run
        if self._job is None and (whole or sum(sizes[:-1]) > _MERGED_AT_ONCE):
            self._job = _Job(run, self._background().submit(_rebuilt, run, whole, self._departed(run)))
        self.settle(wait=len(sizes) > _STACK_AT_MOST)
        return self._run

    def compact(self) -> None:
        """Have all rows in one base now, as after a bulk load: O(n), by whoever calls. Answers stay what they were."""
        self.settle(wait=True)
        if self._small is not None:
            return
        top = self._run
        if isinstance(top, Delta):
            self._run = self._replaced(top, top, *_rebuilt(top, True, self._departed(top)))
            self._show_instead_of(top)

    def _background(self) -> Executor:
        if self._executor is None:
            self._executor, self._own_executor = ThreadPoolExecutor(1, thread_name_prefix="rank-index"), True
        return self._executor

    def _departed(self, run: Run) -> bool:
        """Whether so many have left that a table of ids without them is worth its making."""
        return len(run.players) - len(self._inactive) > 2 * run.total + _SPARE_SLOTS

    def settle(self, *, wait: bool = False) -> None:
        """Put what the background has made in the place of what it was made of, in the newest view too; the rows are the same.

        Every freeze begins with it. Called now and then on a board that rests, it lets the memory of the former runs go.

        Raises:
            Exception: whatever stopped the work in the background. A later freeze has it done again.
        """
        job = self._job
        if job is None or not (wait or job.done.done()):
            return
        self._job = None
        rebuilt, renumbered = job.done.result()
        top, self._run = self._run, self._replaced(self._run, job.run, rebuilt, renumbered)
        self._show_instead_of(top)

    def _show_instead_of(self, top: Run) -> None:
        """Point the newest view to the rows as they are kept now, if `top` is what it shows."""
        if not isinstance(self.view, SmallView) and self.view.run is top:
            self.view.run = self._run

    def _replaced(self, top: Run, former: Run, rebuilt: Run, renumbered: Ints | None) -> Run:
        """The stack from `top` down with `former` replaced by a run of the same rows, and of other slots if `renumbered` is told."""
        deltas = deltas_of(top, former)
        if renumbered is not None:
            before, after = former.players, rebuilt.players
            known, renumbered = renumbered, np.full(len(before), -1, dtype=np.int32)
            renumbered[: known.size] = known
            slots = np.unique(np.concatenate([np.fromiter(self._inactive, dtype=np.int64), *(delta.slots for delta in deltas)]))
            slots = slots[renumbered.take(slots) < 0]
            renumbered[slots] = after.admit_words(before.words(slots))
            self._inactive = {int(renumbered[slot]): kept for slot, kept in self._inactive.items()}
        for delta in reversed(deltas):
            rebuilt = delta.on(rebuilt, renumbered)
        return rebuilt


def _rebuilt(run: Run, whole: bool, anew: bool) -> tuple[Run, Ints | None]:
    """The same rows in a run that is quicker to read: a new base if `whole`, with a table of ids of its own if `anew`; else one delta."""
    return compacted(run, anew=anew) if whole else (folded(deltas_of(run)), None)
