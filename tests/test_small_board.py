"""Small boards, whose rows are tuples in pieces: their cost, their memory, and their turn to columns. What they answer is in
`test_rank_index.py` and `test_rank_index_machine.py`, for them and for columns alike."""

import random
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np
import pytest

import boards.index as index_module
from boards.index import SMALL_UP_TO, Batch, Change, RankIndex
from boards.model import VALUE_MAX, VALUE_MIN
from boards.players import Ids
from boards.small import Row, Small, SmallView
from boards.views import Key

Result = TypeVar("Result")


def new(small_up_to: int = SMALL_UP_TO) -> RankIndex:
    return RankIndex(direction="higher", ranking="competition", tie_is_achieved=True, small_up_to=small_up_to)


def scores(first: int, last: int, version: int = 1) -> list[Change]:
    return [Change(f"p{i}", i % 37, 5, 5, version) for i in range(first, last)]


def row(number: int, key: int) -> Row:
    return key, 0, number % 3, f"p{number}", 0, 1


def test_thousands_of_single_and_bulk_changes_leave_the_rows_sorted_and_found() -> None:
    rng, model, small = random.Random(11), dict[str, Row](), Small.of(())
    kept: list[tuple[Small, dict[str, Row]]] = []
    for step in range(1500):
        many = rng.choice([1, 1, 1, 1, 2, 300])
        rows = {number: row(number, rng.randrange(50)) for number in (rng.randrange(3000) for _ in range(many))}
        leaving = {f"p{rng.randrange(3000)}" for _ in range(rng.choice([0, 0, 1, 200 if step > 1000 else 3]))}
        fresh = [each for each in rows.values() if each[3] not in leaving]
        small = small.changed(fresh, leaving)
        model = {name: each for name, each in (model | {each[3]: each for each in fresh}).items() if name not in leaving}
        if step % 150 == 0:
            kept.append((small, model))
    for generation, then in [*kept, (small, model)]:
        ordered = sorted(then.values())
        assert list(generation) == ordered
        assert generation.total == len(ordered)
        assert [generation.find(f"p{i}") for i in range(3000)] == [then.get(f"p{i}") for i in range(3000)]
        assert [generation.ahead(each) for each in ordered] == list(range(len(ordered)))
        assert generation.between(100, 900) == ordered[100:900]


def test_a_board_turns_to_columns_when_it_outgrows_the_bound_and_older_views_stay() -> None:
    index = new(small_up_to=100)
    inactive = Change("off", 1, 1, 1, 4)
    before = index.freeze(scores(0, 100), inactive=[inactive])
    assert isinstance(before, SmallView)
    assert isinstance(index.freeze(scores(50, 100, version=2)), SmallView)  # nobody new
    after = index.freeze(scores(100, 101))
    assert not isinstance(after, SmallView)
    assert (before.total, after.total) == (100, 101)
    assert [placed.player_id for placed in after.page(0, 200) if placed.player_id != "p100"] == [
        placed.player_id for placed in before.page(0, 200)
    ]
    kept = index.row("off")
    assert kept is not None
    assert (kept.version, kept.active) == (4, False)


class AtOnce(Executor):
    """A background that is done before anybody looks."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_a_board_may_outgrow_the_bound_by_a_batch_that_the_background_merges_before_there_is_a_view_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "_MERGED_AT_ONCE", 10)
    index = RankIndex(direction="higher", ranking="unique", executor=AtOnce(), small_up_to=5)
    before = index.freeze(scores(0, 3))
    assert index.freeze(scores(0, 50)).total == 50
    index.compact()
    assert [placed.position for placed in index.view.page(0, 60)] == list(range(1, 51))
    assert before.total == len(before.page(0, 60)) == 3


def test_a_batch_larger_than_the_bound_goes_to_columns_at_once_also_as_columns() -> None:
    assert not isinstance(new(10).freeze(scores(0, 11)), SmallView)
    assert not isinstance(new(10).freeze_columns(Batch.of(scores(0, 11))), SmallView)
    assert isinstance(new(10).freeze_columns(Batch.of(scores(0, 10))), SmallView)
    assert new(10).freeze_columns(Batch.of(scores(0, 10))).page(0, 20) == new(0).freeze(scores(0, 10)).page(0, 20)


def test_a_change_that_is_refused_leaves_nothing_behind() -> None:
    index = new()
    before = index.freeze(scores(0, 3))
    with pytest.raises(OverflowError):
        index.freeze([Change("x", 1, 0, 0, 1)], inactive=[Change("y", VALUE_MIN - 1, 0, 0, 1)])
    with pytest.raises(OverflowError):
        index.freeze([Change("x", 1, 0, 0, 1), Change("y", 1, 0, 0, VALUE_MAX + 1)])
    with pytest.raises(ValueError, match="tie_ms is achieved_ms"):
        index.freeze([Change("x", 1, 0, 0, 1)], inactive=[Change("y", 1, 0, 1, 1)])
    for bad in ("a\0", "\ud800"):
        with pytest.raises(ValueError, match=r"U\+0000|surrogates"):
            index.freeze([Change("x", 1, 0, 0, 1)], [bad])
    assert index.view is before
    assert index.rows(["x", "y"]) == [None, None]
    assert index.freeze([Change("x", 1, 0, 0, 1)]).total == 4


def test_ids_that_cannot_be_one_and_numbers_out_of_range_are_refused_by_lookups() -> None:
    view = new().freeze(scores(0, 3))
    for ask in (view.place, lambda name: view.places([name]), lambda name: view.subset([name]), lambda name: view.window(name, 1)):
        with pytest.raises(ValueError, match=r"U\+0000"):
            ask("p\0")
    with pytest.raises(ValueError, match=r"U\+0000"):
        view.after(Key(1, 0, 0, "p\0"), 1)
    for key in (Key(VALUE_MAX + 1, 0, 0, "a"), Key(1, 0, VALUE_MAX + 1, "a")):
        with pytest.raises(OverflowError):
            view.counts([key])
        with pytest.raises(OverflowError):
            view.after(key, 1)


def test_columns_of_found_players_are_those_of_a_board_of_columns() -> None:
    names = ["p3", "ghost", "p0"]
    small, wide = (new(bound).freeze(scores(0, 40)).find(Ids(names)) for bound in (100, 0))
    assert small.at.tolist() == wide.at.tolist()
    for mine, its in zip(small, wide, strict=True):
        assert mine.dtype == np.int64
        assert mine[small.at >= 0].tolist() == its[wide.at >= 0].tolist()


def test_a_generation_of_a_single_change_shares_all_but_a_few_pieces() -> None:
    index = new()
    index.freeze(scores(0, 4000))
    kept = [index.view]
    tracemalloc.start()
    try:
        kept += [index.freeze([Change(f"p{37 * i}", 10**6 + i, 6, 6, 2)]) for i in range(100)]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held / 100 < 6_000


def test_a_board_of_twenty_players_takes_six_kilobytes_with_its_ids() -> None:
    boards = []
    tracemalloc.start()
    try:
        for number in range(50):
            boards.append(new())
            for i in range(20):
                moment = 10**12 + 1000 * number + i
                boards[-1].freeze([Change(f"player-{number:03d}-{i:03d}", 10**6 + moment % 977, moment, moment, 1000 + i)])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [board.view.total for board in boards] == [20] * 50
    assert held / 50 < 6_500


def test_slots_of_players_who_left_a_small_board_are_given_back() -> None:
    index = new()
    index.freeze(scores(0, 10))
    before = index.nbytes
    for season in range(30):
        names = [f"s{season}-{i}" for i in range(100)]
        index.freeze([Change(name, 5, 0, 0, 1) for name in names])
        index.freeze([], names)
    assert index.view.total == 10
    assert index.nbytes < before + 200 * 200


def test_a_player_who_was_inactive_is_forgotten_when_removed_and_anew_when_back() -> None:
    index = new()
    off = [Change("gone", 1, 1, 1, 4), Change("back", 1, 1, 1, 4)]
    index.freeze(scores(0, 3), inactive=off)
    index.freeze([Change("back", 2, 2, 2, 5)], ["gone"])
    index.freeze([], ["back"])
    assert index.rows(["gone", "back"]) == [None, None]


def test_tallies_are_those_of_a_board_of_columns() -> None:
    small, wide = (new(bound).freeze(scores(0, 80)) for bound in (100, 0))
    asked = np.arange(-2, 40), np.zeros(42, dtype=np.int64)
    assert [column.tolist() for column in small.tally(*asked)] == [column.tolist() for column in wide.tally(*asked)]
