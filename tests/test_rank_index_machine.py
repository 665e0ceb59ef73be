"""The rank index against a naive sorted list: every order, every kind of merge, the background at any moment, slices, old views."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import boards.index as index_module
import boards.players as players_module
import boards.runs as runs_module
import boards.small as small_module
from boards import comparator, compiled
from boards.index import Change, Kept, Placed, RankIndex, View
from boards.merging import MergedView
from boards.model import VALUE_MAX, VALUE_MIN, Direction, Ranking, Row
from boards.policies import make_rules
from boards.views import Key

Result = TypeVar("Result")

DIRECTIONS: tuple[Direction, ...] = ("higher", "lower")
SECONDARIES: tuple[Direction | None, ...] = (None, "higher", "lower")
RANKINGS: tuple[Ranking, ...] = ("unique", "competition", "dense")


class ByHand(Executor):
    """Runs what is submitted when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        future: Future[Result] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(work)
        return future

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Model(NamedTuple):
    """The definition of the order and of places: sort everything, then count."""

    direction: Direction
    secondary: Direction | None
    ranking: Ranking

    def key(self, key: Key | Change) -> tuple[int, int, int, bytes]:
        value = -key.value if self.direction == "higher" else key.value
        second = 0 if self.secondary is None else -key.second if self.secondary == "higher" else key.second
        return value, second, key.tie_ms, key.player_id.encode()

    def ranked(self, rows: Iterable[Change]) -> list[Placed]:
        out: list[Placed] = []
        for position, row in enumerate(sorted(rows, key=self.key), start=1):
            if not out:
                rank = 1
            elif self.ranking == "unique":
                rank = position
            elif (row.value, row.second) == (out[-1].value, out[-1].second):
                rank = out[-1].rank
            else:
                rank = position if self.ranking == "competition" else out[-1].rank + 1
            out.append(Placed(position, rank, row.player_id, row.value, row.achieved_ms, row.version, row.second, row.tie_ms))
        return out


class Generation(NamedTuple):
    """A view and what it must answer; `slices` hold the same rows spread over three indexes, unless ranks are dense."""

    view: View
    slices: MergedView | None
    rows: dict[str, Change]
    order: list[Placed]

    def check(self, model: Model, asked: Sequence[str], keys: Sequence[Key], offset: int, span: int) -> None:
        for view in (self.view, self.slices):
            if view is not None:
                self._check(view, model, asked, keys, offset, span)

    def _check(self, view: View | MergedView, model: Model, asked: Sequence[str], keys: Sequence[Key], offset: int, span: int) -> None:
        order, by_id = self.order, {placed.player_id: placed for placed in self.order}
        assert view.total == len(order)
        assert view.page(0, len(order) + 1) == order
        assert view.page(offset, span) == order[offset : offset + span]
        assert view.places(asked) == [by_id.get(player_id) for player_id in asked]
        assert view.subset(asked) == model.ranked(self.rows[player_id] for player_id in set(asked) if player_id in self.rows)
        for player_id in asked[:2]:
            placed = by_id.get(player_id)
            assert view.place(player_id) == placed
            assert view.window(player_id, span) == (
                [] if placed is None else order[max(0, placed.position - 1 - span) : placed.position + span]
            )
        assert view.after(None, span) == order[:span]
        assert view.before(None, span) == order[max(0, len(order) - span) :]
        better, ahead = [], []
        for key in keys:
            wanted = model.key(key)
            behind = [placed for placed in order if model.key(placed.key) > wanted]
            before = [placed for placed in order if model.key(placed.key) < wanted]
            assert view.after(key, span) == behind[:span]
            assert view.before(key, span) == before[max(0, len(before) - span) :]
            ahead.append(len(before))
            better.append(sum(model.key(placed.key)[:2] < wanted[:2] for placed in order))
            assert view.better_than(key.value, key.second) == better[-1]
        counted = view.counts(keys)
        assert (counted[0].tolist(), counted[1].tolist()) == (better, ahead)


# Few values, moments and ids that are prefixes of one another, so that ties of every level are the rule.
values = st.sampled_from([VALUE_MIN, VALUE_MIN + 1, -(2**53) - 1, -1, 0, 1, 2**53, 2**53 + 1, VALUE_MAX - 1, VALUE_MAX])
seconds = st.sampled_from([VALUE_MIN, -1, 0, 1, VALUE_MAX])
moments = st.sampled_from([-(10**15), -1, 0, 1, 2])
versions = st.sampled_from([1, 2, 3, 2**31, VALUE_MAX])
NAMES = [
    "a",
    "a\u00a0b",
    "aa",
    "b",
    "Z",
    "é",
    "日本",
    "\uffee",
    "\U0001f600",
    "x" * 128,
    "x" * 127 + "y",
    "x" * 8,
    "x" * 9,
    *map(str, range(30)),
]
players = st.sampled_from(NAMES)
changes = st.builds(Change, players, values, moments, moments, versions, seconds)
keys = st.builds(Key, values, seconds, moments, st.one_of(players, st.just("nobody")))


class AgainstSortedList(RuleBasedStateMachine):
    """Every bound is shrunk, so that a few dozen players pass through every kind of merge, growth and compaction. Rows are in columns."""

    #: Players up to which a board is small, one of these in each run.
    bounds: tuple[int, ...] = (0,)

    @initialize(
        model=st.builds(Model, st.sampled_from(DIRECTIONS), st.sampled_from(SECONDARIES), st.sampled_from(RANKINGS)),
        whole=st.sampled_from([0, 8, 256]),
        class_rows=st.integers(1, 3),
        at_once=st.sampled_from([0, 6, 2**18]),
        deltas=st.sampled_from([5, 2_000_000]),
        chunk=st.sampled_from([3, 2**18]),
        spare=st.sampled_from([0, 1024]),
        bits=st.sampled_from([3, 22]),
        one_moment=st.booleans(),
        kernels=st.booleans(),
        small=st.integers(0, 3),
        piece_bits=st.sampled_from([1, 2, 7]),
    )
    def begin(
        self,
        model: Model,
        whole: int,
        class_rows: int,
        at_once: int,
        deltas: int,
        chunk: int,
        spare: int,
        bits: int,
        one_moment: bool,
        kernels: bool,
        small: int,
        piece_bits: int,
    ) -> None:
        assert compiled.load(), compiled.reason
        self.patch = pytest.MonkeyPatch()
        if not kernels:
            self.patch.setattr(compiled, "kernels", None)
            self.patch.setattr(runs_module, "kernels", None)
        for name, value in (
            ("_COPIED_WHOLE", whole),
            ("_CLASS_ROWS", class_rows),
            ("_CLASS_FACTOR", 2),
            ("_MERGED_AT_ONCE", at_once),
            ("_DELTAS_AT_MOST", deltas),
            ("_SPARE_SLOTS", spare),
            ("_STACK_AT_MOST", 200),
        ):
            self.patch.setattr(index_module, name, value)
        self.patch.setattr(runs_module, "_CHUNK_ROWS", chunk)
        self.patch.setattr(players_module, "_CHUNK_BITS", bits)
        self.patch.setattr(players_module, "_MOVED_AT_LEAST", 1)
        self.patch.setattr(players_module, "_PIECE", 2 * chunk)
        self.patch.setattr(small_module, "_PIECE_BITS", piece_bits)
        self.patch.setattr(small_module, "_SPARE_SLOTS", spare)
        self.small_up_to = self.bounds[small % len(self.bounds)]
        self.model, self.one_moment, self.background = model, one_moment, ByHand()
        self.index = self.new_index()
        self.slices = [] if model.ranking == "dense" else [self.new_index() for _ in range(3)]
        self.rows: dict[str, Change] = {}
        self.inactive: dict[str, Change] = {}
        self.kept: list[Generation] = []
        self.freeze([])

    def new_index(self) -> RankIndex:
        direction, secondary, ranking = self.model
        return RankIndex(
            direction=direction,
            ranking=ranking,
            secondary=secondary,
            tie_is_achieved=self.one_moment,
            executor=self.background,
            small_up_to=self.small_up_to,
        )

    def fitting(self, change: Change) -> Change:
        """What this board can hold of a change."""
        if self.model.secondary is None:
            change = change._replace(second=0)
        return change._replace(achieved_ms=change.tie_ms) if self.one_moment else change

    def freeze(self, batch: Sequence[Change], removed: Sequence[str] = (), inactive: Sequence[Change] = ()) -> None:
        batch, inactive = [self.fitting(change) for change in batch], [self.fitting(change) for change in inactive]
        view = self.index.freeze(batch, removed, inactive)
        assert view is self.index.view
        merged = None
        if self.slices:
            parts = []
            for number, index in enumerate(self.slices):
                mine = [NAMES.index(name) % 3 == number for name in NAMES]
                here = {name for name, is_mine in zip(NAMES, mine, strict=True) if is_mine}
                parts.append(
                    index.freeze(
                        [change for change in batch if change.player_id in here],
                        [name for name in removed if name in here],
                        [change for change in inactive if change.player_id in here],
                    )
                )
            merged = MergedView(parts)
        self.rows = {**self.rows, **{change.player_id: change for change in batch}}
        self.inactive = {name: row for name, row in self.inactive.items() if name not in self.rows}
        for name in removed:
            self.rows.pop(name, None)
            self.inactive.pop(name, None)
        for change in inactive:
            self.rows.pop(change.player_id, None)
            self.inactive[change.player_id] = change
        self.kept.append(Generation(view, merged, self.rows, self.model.ranked(self.rows.values())))
        if len(self.kept) > 12:
            del self.kept[1]

    @rule(change=changes)
    def change_one(self, change: Change) -> None:
        self.freeze([change])

    @rule(batch=st.lists(changes, max_size=60), removed=st.lists(players, max_size=4), inactive=st.lists(changes, max_size=2))
    def change_many(self, batch: list[Change], removed: list[str], inactive: list[Change]) -> None:
        self.freeze(batch, removed, inactive)

    @rule(removed=st.lists(players, min_size=1, max_size=20))
    def remove(self, removed: list[str]) -> None:
        self.freeze([], removed)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), more=st.integers(0, 1))
    def write_again(self, data: st.DataObject, more: int) -> None:
        row = self.rows[data.draw(st.sampled_from(sorted(self.rows)))]
        before = self.index.view
        self.freeze([row._replace(version=row.version - more)])
        assert (self.index.view is before) == (more == 0)

    @rule(data=st.data())
    def bring_back_rows_of_a_kept_view(self, data: st.DataObject) -> None:
        former = data.draw(st.sampled_from(self.kept)).rows
        self.freeze([row for name, row in former.items() if name not in self.rows])

    @rule()
    def background_gets_done(self) -> None:
        self.background.run()

    @rule()
    def index_rests(self) -> None:
        self.background.run()
        view = self.index.view
        self.index.settle()
        assert self.index.view is view
        assert not self.index.busy

    @rule(
        data=st.data(),
        asked=st.lists(players, max_size=40),
        keys=st.lists(keys, max_size=4),
        offset=st.integers(0, 40),
        span=st.integers(0, 10),
    )
    def read_any_kept_view(self, data: st.DataObject, asked: list[str], keys: list[Key], offset: int, span: int) -> None:
        generation = data.draw(st.sampled_from(self.kept))
        keys = [self.fitting(Change(key.player_id, key.value, key.tie_ms, 0, 0, key.second)) for key in keys]  # type: ignore[misc]
        own = [placed.key for placed in generation.order[:2]]
        generation.check(self.model, asked, [*own, *(Key(k.value, k.second, k.tie_ms, k.player_id) for k in keys)], offset, span)

    @rule()
    def index_is_compacted(self) -> None:
        self.background.run()
        view = self.index.view
        self.index.compact()
        assert self.index.view is view

    @rule(asked=st.lists(players, max_size=20))
    def newest_rows_are_known_also_of_the_inactive(self, asked: list[str]) -> None:
        def kept(row: Change, active: bool) -> Kept:
            return Kept(row.value, row.second, row.tie_ms, row.achieved_ms, row.version, active)

        active = {name: kept(row, True) for name, row in self.rows.items()}
        known = active | {name: kept(row, False) for name, row in self.inactive.items()}
        assert self.index.rows(asked) == [known.get(name) for name in asked]

    @invariant()
    def newest_view_is_in_order_as_the_comparator_says(self) -> None:
        if not hasattr(self, "kept"):
            return
        page = self.kept[-1].view.page(0, 1000)
        assert page == self.kept[-1].order
        rules = make_rules("latest", direction=self.model.direction, secondary=self.model.secondary)
        for a, b in pairwise(page):
            rows = [Row(x.value, x.tie_ms, 0, 0, 0, 0, "", second=x.second) for x in (a, b)]
            assert comparator.compare(rules, a.player_id, rows[0], b.player_id, rows[1]) == -1

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            for generation in self.kept:
                generation.check(self.model, sorted(generation.rows), [], 1, 3)
            self.background.run()
            self.index.close()
            for generation in self.kept:
                generation.check(self.model, NAMES, [], 1, 3)
            self.patch.undo()


class SmallAgainstSortedList(AgainstSortedList):
    """The same with boards that begin small, and outgrow that at once, later or never."""

    bounds = (2, 9, 25, 4096)


for machine in (AgainstSortedList, SmallAgainstSortedList):
    machine.TestCase.settings = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
TestIndexAgainstSortedList = AgainstSortedList.TestCase
TestSmallIndexAgainstSortedList = SmallAgainstSortedList.TestCase
