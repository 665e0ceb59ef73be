"""What the rank index answers, with boards small and large; `test_rank_index_machine.py` tries its every inside."""

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

import boards.index as index_module
from boards.index import SMALL_UP_TO, Batch, Change, Placed, RankIndex, View
from boards.model import VALUE_MAX, VALUE_MIN, Direction, Ranking

DIRECTIONS: tuple[Direction, ...] = ("higher", "lower")
RANKINGS: tuple[Ranking, ...] = ("unique", "competition", "dense")


def ranked(changes: Iterable[Change], direction: Direction, ranking: Ranking) -> list[Placed]:
    """The definition: sort everything, then count."""
    rows = sorted(changes, key=lambda c: (-c.value if direction == "higher" else c.value, c.tie_ms, c.player_id.encode()))
    out: list[Placed] = []
    for position, row in enumerate(rows, start=1):
        if not out:
            rank = 1
        elif ranking == "unique":
            rank = position
        elif row.value == out[-1].value:
            rank = out[-1].rank
        else:
            rank = position if ranking == "competition" else out[-1].rank + 1
        out.append(Placed(position, rank, row.player_id, row.value, row.achieved_ms, row.version, row.second, row.tie_ms))
    return out


class Generation(NamedTuple):
    view: View
    rows: dict[str, Change]
    order: list[Placed]


def assert_answers(generation: Generation, direction: Direction, ranking: Ranking, asked: Sequence[str], offset: int, span: int) -> None:
    view, rows, order = generation
    total = len(order)
    by_id = {placed.player_id: placed for placed in order}
    assert view.total == total
    assert view.page(0, total + 1) == order
    assert view.page(offset, span) == order[offset : offset + span]
    assert view.places(asked) == [by_id.get(player_id) for player_id in asked]
    assert view.subset(asked) == ranked((rows[i] for i in set(asked) if i in rows), direction, ranking)
    for player_id in asked[:3]:
        placed = by_id.get(player_id)
        assert view.place(player_id) == placed
        expected = [] if placed is None else order[max(0, placed.position - 1 - span) : placed.position + span]
        assert view.window(player_id, span) == expected
    for value in {VALUE_MIN, VALUE_MAX, 0, *(placed.value for placed in order[:3])}:
        better = sum(row.value > value if direction == "higher" else row.value < value for row in rows.values())
        assert view.better_than(value) == better


def scores(**values: int) -> list[Change]:
    return [Change(player_id, value, 0, 0, 1) for player_id, value in values.items()]


@pytest.fixture(params=[0, SMALL_UP_TO], ids=["columns", "small"], autouse=True)
def small_up_to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim holds for boards of columns and for small ones; those beyond the bound are of columns in any case."""
    monkeypatch.setattr(index_module, "SMALL_UP_TO", request.param)


def index_of(batch: Sequence[Change], direction: Direction = "higher", ranking: Ranking = "competition") -> RankIndex:
    index = RankIndex(direction=direction, ranking=ranking)
    index.freeze(batch)
    return index


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_empty_view_answers_everything(direction: Direction, ranking: Ranking) -> None:
    index = RankIndex(direction=direction, ranking=ranking)
    for view in (index.view, index.freeze([]), index.freeze([], ["ghost"])):
        assert view is index.view
        assert_answers(Generation(view, {}, []), direction, ranking, ["ghost"], 0, 5)
        assert view.places([]) == [] == view.subset([])


def test_board_can_be_emptied_and_filled_again() -> None:
    index = index_of(scores(a=3, b=2))
    full = index.view
    assert index.freeze([], ["a", "b", "a", "ghost"]).page(0, 10) == []
    assert index.freeze(scores(b=9)).page(0, 10) == [Placed(1, 1, "b", 9, 0, 1)]
    assert [placed.player_id for placed in full.page(0, 10)] == ["a", "b"]


@pytest.mark.parametrize(("ranking", "ranks"), [("unique", [1, 2, 3, 4, 5]), ("competition", [1, 2, 2, 4, 5]), ("dense", [1, 2, 2, 3, 4])])
def test_rank_follows_the_boards_rule(ranking: Ranking, ranks: list[int]) -> None:
    view = index_of(scores(a=9, b=7, c=7, d=5, e=1), ranking=ranking).view
    assert [placed.rank for placed in view.page(0, 5)] == ranks
    assert [placed.rank for placed in view.page(2, 2)] == ranks[2:4]
    assert [placed.rank for placed in view.subset(["e", "c", "b", "e"])] == {
        "unique": [1, 2, 3],
        "competition": [1, 1, 3],
        "dense": [1, 1, 2],
    }[ranking]


def test_last_change_of_a_player_counts_and_removal_outweighs_it() -> None:
    index = index_of([*scores(a=1), *scores(a=5), *scores(a=3)])
    assert index.view.place("a") == Placed(1, 1, "a", 3, 0, 1)
    assert index.freeze(scores(a=9, b=1), ["a"]).page(0, 9) == [Placed(1, 1, "b", 1, 0, 1)]


def test_ids_are_compared_by_utf8_bytes_and_never_cut() -> None:
    ids = ["\U0001f600", "\uffee", "é", "e", "Z", "x" * 128, "x" * 127 + "\u00a0", "x" * 127]
    view = index_of([Change(player_id, 1, 0, 0, 1) for player_id in ids]).view
    assert [placed.player_id for placed in view.page(0, 100)] == sorted(ids, key=str.encode)


def test_row_with_the_same_key_but_new_version_moves_nobody_and_old_view_keeps_its_own() -> None:
    index = index_of(scores(a=2, b=2, c=2))
    old = index.view
    new = index.freeze([Change("b", 2, 0, 77, 2)])
    assert new.place("b") == Placed(2, 1, "b", 2, 77, 2)
    assert old.place("b") == Placed(2, 1, "b", 2, 0, 1)


def test_number_beyond_64_bits_is_refused_and_changes_nothing() -> None:
    index = index_of(scores(a=1))
    before = index.view
    with pytest.raises(OverflowError):
        index.freeze([Change("b", 2, 0, 0, 1), Change("c", VALUE_MAX + 1, 0, 0, 1)], ["a"])
    assert index.view is before
    assert index.freeze(scores(c=3)).total == 2
    with pytest.raises(OverflowError):
        before.better_than(VALUE_MIN - 1)


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, -1)])
def test_negative_page_is_refused(offset: int, limit: int) -> None:
    view = index_of(scores(a=1)).view
    with pytest.raises(ValueError, match="negative"):
        view.page(offset, limit)
    with pytest.raises(ValueError, match="negative"):
        view.window("a", -1)


def crowd(count: int, values: int, seed: int) -> list[Change]:
    rng = random.Random(seed)
    return [Change(f"p{i}", rng.randrange(-values, values), rng.randrange(3), i, 1) for i in range(count)]


@pytest.mark.parametrize("values", [1, 200, 10**9], ids=["all-equal", "many-ties", "few-ties"])
def test_bulk_load_then_ten_thousand_changes(values: int) -> None:
    loaded = {change.player_id: change for change in crowd(100_000, values, seed=1)}
    index = index_of(list(loaded.values()))
    first = Generation(index.view, loaded, ranked(loaded.values(), "higher", "competition"))
    changed = crowd(10_000, values, seed=2)
    for start in range(0, 500, 50):
        index.freeze(changed[start : start + 50])
    removed = [f"p{i}" for i in range(20_000, 20_500)]
    rows = {**loaded, **{change.player_id: change for change in changed}}
    for player_id in removed:
        del rows[player_id]
    last = Generation(index.freeze(changed[500:], removed), rows, ranked(rows.values(), "higher", "competition"))
    asked = [f"p{i}" for i in range(0, 100_000, 97)]
    for generation in (first, last):
        assert_answers(generation, "higher", "competition", asked, 50_000, 100)


def test_views_share_their_memory() -> None:
    index = index_of(crowd(20_000, 10**6, seed=3))
    whole = index.view.nbytes
    views = [index.freeze([Change(f"p{i}", i, 0, 0, 2)]) for i in range(50)]
    assert all(view.nbytes - whole < 50 * 200 for view in views)
    assert index.nbytes > views[-1].nbytes


@pytest.mark.parametrize("others", [0, 2_000], ids=["copied-whole", "by-delta"])
def test_removed_player_can_return_with_the_very_same_row(others: int) -> None:
    index = index_of([*crowd(others, 50, seed=6), Change("back", 7, 0, 0, 1)])
    place = index.view.place("back")
    assert place is not None
    assert index.freeze([], ["back"]).place("back") is None
    assert index.freeze([Change("back", 7, 0, 0, 1)]).place("back") == place


def test_slots_of_players_who_left_are_given_back() -> None:
    index = index_of(scores(first=1, second=2, third=3))
    before = index.nbytes
    for season in range(20):
        ids = [f"s{season}-{i}" for i in range(500)]
        index.freeze([Change(player_id, 5, 0, 0, 1) for player_id in ids])
        index.freeze([], ids)
    assert [placed.player_id for placed in index.view.page(0, 10)] == ["third", "second", "first"]
    assert [placed and placed.value for placed in index.view.places(["first", "third", "s3-1"])] == [1, 3, None]
    assert index.nbytes < before + 2500 * 250


def test_views_can_be_read_by_other_threads_while_the_next_is_frozen() -> None:
    rows = {change.player_id: change for change in crowd(3_000, 50, seed=4)}
    index = index_of(list(rows.values()))
    view = index.view
    order = ranked(rows.values(), "higher", "competition")
    newcomers = [f"new{i}" for i in range(200)]

    def read() -> bool:
        return all(view.page(0, 3_000) == order and not any(view.places(newcomers)) for _ in range(20))

    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(read) for _ in range(2)]
        for i, change in enumerate(crowd(200, 50, seed=5)):
            index.freeze([change, change._replace(player_id=newcomers[i])], [f"p{2_000 + i}"])
        assert all(answer.result() for answer in reads)


def test_generations_are_right_while_a_thread_compacts_and_old_ones_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MERGED_AT_ONCE", 1000)
    monkeypatch.setattr(index_module, "_DELTAS_AT_MOST", 3000)
    rows = {change.player_id: change for change in crowd(20_000, 500, seed=7)}
    index = index_of(list(rows.values()))
    generations = []
    for round_ in range(40):
        changed = {change.player_id: change._replace(version=round_ + 2) for change in crowd(20_000, 500, seed=round_ + 8)[round_::50]}
        rows = {**rows, **changed}
        generations.append((index.freeze(list(changed.values())), rows))
    index.close()
    assert not index.busy
    for view, then in generations[::13]:
        generation = Generation(view, then, ranked(then.values(), "higher", "competition"))
        assert_answers(generation, "higher", "competition", [f"p{i}" for i in range(0, 20_000, 501)], 10_000, 50)


def test_columns_with_one_player_twice_and_moments_that_break_a_promise_are_refused() -> None:
    index = RankIndex(direction="higher", ranking="unique", tie_is_achieved=True)
    before = index.view
    twice = Batch.of([Change("a", 1, 0, 0, 1), Change("a", 2, 0, 0, 1)])
    with pytest.raises(ValueError, match="only once"):
        index.freeze_columns(twice)
    with pytest.raises(ValueError, match="tie_ms is achieved_ms"):
        index.freeze([Change("a", 1, 5, 6, 1)])
    with pytest.raises(ValueError, match=r"U\+0000"):
        index.freeze([Change("a\0", 1, 5, 5, 1), Change("b", 1, 5, 5, 1)])
    assert index.view is before
    assert index.rows(["a", "b"]) == [None, None]
