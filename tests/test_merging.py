"""A board in slices answers as one board: `MergedView` over disjoint views against one view over the union."""

import random
from collections.abc import Sequence

import pytest

import boards.index as index_module
from boards.index import Change, Placed, RankIndex, View
from boards.merging import MergedView
from boards.model import Direction, Ranking
from boards.views import Key

SUMMABLE: tuple[Ranking, ...] = ("unique", "competition")


def crowd(count: int, values: int, seed: int, second: bool = False) -> list[Change]:
    rng = random.Random(seed)
    return [
        Change(f"p{i}", rng.randrange(-values, values), rng.randrange(3), i, 1, rng.randrange(-2, 2) if second else 0) for i in range(count)
    ]


#: Boards of columns, small ones, and slices of both kinds.
@pytest.fixture(params=[0, 8, 4096], autouse=True)
def small_up_to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SMALL_UP_TO", request.param)


def view_of(changes: Sequence[Change], ranking: Ranking, direction: Direction = "higher", secondary: Direction | None = None) -> View:
    return RankIndex(direction=direction, ranking=ranking, secondary=secondary).freeze(changes)


def assert_same(merged: MergedView, whole: View, asked: Sequence[str]) -> None:
    assert merged.total == whole.total
    assert merged.page(0, whole.total + 1) == whole.page(0, whole.total + 1)
    assert merged.places(asked) == whole.places(asked)
    assert merged.subset(asked) == whole.subset(asked)
    for player_id in asked[:20]:
        placed = whole.place(player_id)
        assert merged.place(player_id) == placed
        assert merged.window(player_id, 3) == whole.window(player_id, 3)
        if placed is None:
            continue
        assert merged.after(placed.key, 5) == whole.after(placed.key, 5)
        assert merged.before(placed.key, 5) == whole.before(placed.key, 5)
        between = placed.key._replace(tie_ms=placed.tie_ms + 1, player_id="")
        assert merged.after(between, 2) == whole.after(between, 2)
        assert [column.tolist() for column in merged.counts([placed.key, between])] == [
            column.tolist() for column in whole.counts([placed.key, between])
        ]
        assert merged.better_than(placed.value, placed.second) == whole.better_than(placed.value, placed.second)
    assert merged.before(None, 4) == whole.before(None, 4)
    assert merged.after(None, 4) == whole.after(None, 4)


@pytest.mark.parametrize("ranking", SUMMABLE)
@pytest.mark.parametrize(("direction", "secondary"), [("higher", None), ("lower", None), ("higher", "lower"), ("lower", "higher")])
@pytest.mark.parametrize("slices", [1, 2, 5, 40])
def test_slices_answer_as_one_view(slices: int, direction: Direction, secondary: Direction | None, ranking: Ranking) -> None:
    rows = crowd(400, 6, seed=slices, second=secondary is not None)
    views = [view_of([row for row in rows if hash(row.achieved_ms) % slices == i], ranking, direction, secondary) for i in range(slices)]
    assert_same(MergedView(views), view_of(rows, ranking, direction, secondary), ["ghost", *(f"p{i}" for i in range(0, 400, 7)), "p0"])


def test_one_slice_may_have_dense_ranks_and_several_may_not() -> None:
    rows = crowd(60, 3, seed=1)
    assert_same(MergedView([view_of(rows, "dense")]), view_of(rows, "dense"), ["p1", "p2", "ghost"])
    with pytest.raises(ValueError, match="dense"):
        MergedView([view_of(rows[:30], "dense"), view_of(rows[30:], "dense")])


def test_no_slices_and_slices_of_different_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MergedView([])
    with pytest.raises(ValueError, match="same direction"):
        MergedView([view_of([], "unique"), view_of([], "unique", "lower")])


def test_empty_slices_answer_everything() -> None:
    merged = MergedView([view_of([], "unique"), view_of([], "unique")])
    assert (merged.total, merged.after(None, 3), merged.before(None, 3), merged.place("a"), merged.places(["a"])) == (
        0,
        [],
        [],
        None,
        [None],
    )
    assert merged.subset(["a"]) == merged.window("a", 2) == merged.after(Key(1, 0, 0, "a"), 3) == []
    with pytest.raises(ValueError, match="negative"):
        merged.window("a", -1)


def test_pages_by_key_are_disjoint_and_complete_in_both_directions() -> None:
    rows = crowd(333, 2, seed=9)
    merged = MergedView([view_of(rows[i::3], "competition") for i in range(3)])
    forward, key = [], None
    while page := merged.after(key, 10):
        forward += page
        key = page[-1].key
    back: list[Placed] = []
    key = None
    while page := merged.before(key, 7):
        back = page + back
        key = page[0].key
    assert forward == back == view_of(rows, "competition").page(0, 333)
    assert len({row.player_id for row in forward}) == 333
