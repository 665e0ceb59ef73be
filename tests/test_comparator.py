"""The comparator is a strict total order, and every sort by `sort_key` agrees with it."""

from functools import cmp_to_key
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.comparator import compare, sort_key
from boards.model import VALUE_MAX, VALUE_MIN, BoardRules, Row
from boards.policies import make_rules

HIGHER = make_rules("best_score")
LOWER = make_rules("fastest_time")

Item = tuple[str, Row]

#: Few distinct values, moments and ids, so that ties of every depth occur; the ends of the range among them.
values = st.sampled_from([VALUE_MIN, VALUE_MIN + 1, -1, 0, 1, 2**53, 2**53 + 1, VALUE_MAX])
ids = st.sampled_from(["a", "B", "b", "é", "e\u0301", "z", "\uffee", "\U0001f3c1"])


def row(value: int, tie_ms: int = 0) -> Row:
    return Row(value, tie_ms, tie_ms, tie_ms, 0, 1, "e")


items = st.tuples(ids, st.builds(row, values, st.integers(-2, 2)))
boards = st.sampled_from([HIGHER, LOWER])


def order(rules: BoardRules, *rows: Item) -> list[str]:
    def by_pairs(a: Item, b: Item) -> int:
        return compare(rules, *a, *b)

    return [player for player, _ in sorted(rows, key=cmp_to_key(by_pairs))]


@given(boards, items, items)
def test_antisymmetric_and_zero_only_for_the_same_key(rules: BoardRules, a: Item, b: Item) -> None:
    assert compare(rules, *a, *b) == -compare(rules, *b, *a)
    same = (a[0], a[1].value, a[1].tie_ms) == (b[0], b[1].value, b[1].tie_ms)
    assert (compare(rules, *a, *b) == 0) == same


@given(boards, items, items, items)
def test_transitive(rules: BoardRules, a: Item, b: Item, c: Item) -> None:
    for x, y, z in permutations((a, b, c)):
        if compare(rules, *x, *y) <= 0 and compare(rules, *y, *z) <= 0:
            assert compare(rules, *x, *z) <= 0


@given(boards, items, items)
def test_agrees_with_the_sort_key_on_every_pair(rules: BoardRules, a: Item, b: Item) -> None:
    key = sort_key(rules)
    assert compare(rules, *a, *b) == (key(a) > key(b)) - (key(a) < key(b))


@given(items, items)
def test_ids_are_ordered_by_their_utf8_bytes(a: Item, b: Item) -> None:
    if a[1].value == b[1].value and a[1].tie_ms == b[1].tie_ms:
        assert compare(HIGHER, *a, *b) == (a[0].encode() > b[0].encode()) - (a[0].encode() < b[0].encode())


@given(boards, st.lists(items, max_size=8, unique_by=lambda item: item[0]))
def test_every_arrival_order_gives_one_display_order(rules: BoardRules, rows: list[Item]) -> None:
    """LB-004: the order inside a tie never depends on how the rows came in."""
    assert order(rules, *rows) == order(rules, *rows[::-1]) == [player for player, _ in sorted(rows, key=sort_key(rules))]


def test_earlier_moment_wins_in_both_directions() -> None:
    for rules in (HIGHER, LOWER):
        assert order(rules, ("a", row(5, 20)), ("b", row(5, 10))) == ["b", "a"]


def test_negative_values_stand_below_zero_and_above_the_least() -> None:
    """LB-029: b 5, a -1, c -2147483648. LB-003: 0, 0, -5."""
    assert order(HIGHER, ("a", row(-1)), ("b", row(5)), ("c", row(-2_147_483_648))) == ["b", "a", "c"]
    assert order(HIGHER, ("c", row(-5)), ("b", row(0)), ("a", row(0))) == ["a", "b", "c"]


def test_values_that_a_double_cannot_tell_apart_are_distinct() -> None:
    """LB-025: three values that differ by 1 and 33 at 1009651914519660544."""
    base = 1_009_651_914_519_660_544
    assert float(base) == float(base + 1) == float(base + 33)
    assert order(HIGHER, ("a", row(base)), ("b", row(base + 33)), ("c", row(base + 1))) == ["b", "c", "a"]


def test_full_value_decides_and_not_its_rounded_form() -> None:
    """LB-031: 0.99412, 0.99408 and 0.9949 all read 0.99 when cut to two digits."""
    assert order(HIGHER, ("a", row(99_412)), ("b", row(99_408)), ("c", row(99_490))) == ["c", "a", "b"]


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_extremes_of_the_range_do_not_overflow(direction: str) -> None:
    rules = make_rules("latest", direction=direction)
    expected = ["max", "zero", "min"] if direction == "higher" else ["min", "zero", "max"]
    assert order(rules, ("zero", row(0)), ("min", row(VALUE_MIN)), ("max", row(VALUE_MAX))) == expected
