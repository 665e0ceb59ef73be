"""What a histogram estimates is off by no more than it says, on boards of any shape, whole or in slices."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards.histogram import BUCKETS, Estimate, Histogram, Share
from boards.index import Change, RankIndex
from boards.merging import MergedView
from boards.model import VALUE_MAX, VALUE_MIN, Direction
from boards.views import View

DIRECTIONS: list[Direction] = ["higher", "lower"]


def view_of(scores: Sequence[tuple[int, int]], direction: Direction = "higher", secondary: Direction | None = None, begin: int = 0) -> View:
    changes = [Change(f"p{i}", value, 0, 0, 1, second) for i, (value, second) in enumerate(scores, start=begin)]
    return RankIndex(direction=direction, ranking="competition", secondary=secondary).freeze(changes)


def assert_bounds(histogram: Histogram, view: View | MergedView, value: int, second: int) -> None:
    better = view.better_than(value, second)
    rank, error = histogram.estimate(value, second)
    assert abs(rank - (better + 1)) <= error
    share, share_error = histogram.percentile(value, second)
    exact = 1 - better / view.total if view.total else 1.0
    assert abs(share - exact) <= share_error + 1e-12


numbers = st.one_of(st.integers(-3, 3), st.integers(VALUE_MIN, VALUE_MAX), st.sampled_from([VALUE_MIN, VALUE_MAX]))
pairs = st.tuples(numbers, numbers)


@settings(deadline=None, max_examples=60)
@given(
    slices=st.lists(st.lists(pairs, max_size=30), min_size=1, max_size=4),
    asked=st.lists(pairs, max_size=10),
    direction=st.sampled_from(DIRECTIONS),
    secondary=st.sampled_from([None, *DIRECTIONS]),
    buckets=st.integers(1, 8),
)
def test_the_error_bound_always_holds(
    slices: list[list[tuple[int, int]]], asked: list[tuple[int, int]], direction: Direction, secondary: Direction | None, buckets: int
) -> None:
    view = MergedView([view_of(scores, direction, secondary, begin=100 * i) for i, scores in enumerate(slices)])
    histogram = Histogram(view, buckets)
    for value, second in [*asked, *(pair for scores in slices for pair in scores), (VALUE_MIN, 0), (VALUE_MAX, 0)]:
        assert_bounds(histogram, view, value, 0 if secondary is None else second)


@pytest.mark.parametrize("slices", [1, 4])
def test_buckets_hold_about_equal_shares_and_are_few(slices: int) -> None:
    rng = random.Random(4)
    scores = [(rng.randrange(10**9), 0) for _ in range(40_000)]
    view = MergedView([view_of(scores[i::slices], begin=10**6 * i) for i in range(slices)])
    histogram = Histogram(view)
    errors = [histogram.estimate(value)[1] for value, _ in scores]
    assert max(errors) <= 2 * 40_000 / BUCKETS
    for value in range(0, 10**9, 10**7):
        assert_bounds(histogram, view, value, 0)


def test_best_and_worst_score_and_what_lies_beyond_are_exact() -> None:
    histogram = Histogram(view_of([(value, 0) for value in range(1000)]))
    assert histogram.estimate(999) == Estimate(1, 0)
    assert histogram.estimate(5000) == Estimate(1, 0)
    assert histogram.estimate(0) == Estimate(1000, 0)
    assert histogram.estimate(-1) == Estimate(1001, 0)
    assert histogram.percentile(5000) == Share(1.0, 0.0)
    assert histogram.percentile(-1) == Share(0.0, 0.0)


def test_large_tie_has_its_exact_rank() -> None:
    histogram = Histogram(view_of([*((7, 0) for _ in range(900)), *((value, 0) for value in range(100, 200))]))
    assert histogram.estimate(7) == Estimate(101, 0)
    assert histogram.estimate(8).error <= 3


def test_empty_board_and_dense_ranks() -> None:
    assert Histogram(view_of([])).estimate(3) == Estimate(1, 0)
    assert Histogram(view_of([])).percentile(3) == Share(1.0, 0.0)
    with pytest.raises(ValueError, match="dense"):
        Histogram(RankIndex(direction="higher", ranking="dense").view)
