"""Rounds of marks: the lead makes a generation of one committed mark a slice, or none."""

from hypothesis import given
from hypothesis import strategies as st

from failover.generations import Rounds, totals
from journal.records import Mark


def mark(offset: int, count: int = 1, checksum: int = 7) -> Mark:
    return Mark(1, offset, checksum, count)


def test_a_round_ends_when_every_slice_has_answered_and_names_their_marks() -> None:
    rounds = Rounds(3, 250, 0, ())
    assert rounds.ask(0, 1_000) == [0, 1, 2]
    rounds.heard(0, mark(5))
    rounds.heard(2, mark(9))
    assert rounds.complete() is None
    assert rounds.missing() == [1]
    rounds.heard(1, mark(2))
    assert rounds.complete() == (mark(5), mark(2), mark(9))
    assert rounds.asked_at_ms == 1_000


def test_a_missing_slice_is_asked_again_in_the_same_round_and_the_others_are_not() -> None:
    rounds = Rounds(2, 250, 0, ())
    rounds.ask(0, 1_000)
    rounds.heard(0, mark(5))
    rounds.heard(1, None)
    assert rounds.complete() is None
    assert rounds.ask(10_000, 11_000) == [1]
    assert rounds.asked_at_ms == 1_000, "what is published says when the round began to ask"


def test_the_next_round_waits_for_its_interval() -> None:
    rounds = Rounds(1, 250, 0, ())
    rounds.ask(0, 0)
    rounds.heard(0, mark(5))
    marks = rounds.complete()
    assert marks is not None
    rounds.made(1, marks)
    assert rounds.ask(100, 100) == []
    assert rounds.due_in_ms(100) == 150
    assert rounds.ask(250, 250) == [0]
    assert rounds.keeps(0) == 5


def test_nothing_is_published_where_nothing_has_changed() -> None:
    rounds = Rounds(2, 250, 3, (mark(5), mark(6)))
    rounds.ask(0, 0)
    rounds.heard(0, mark(5))
    rounds.heard(1, mark(6))
    assert rounds.complete() is None
    assert not rounds.under_way


def test_an_empty_board_stays_at_its_first_generation() -> None:
    rounds = Rounds(2, 250, 0, ())
    rounds.ask(0, 0)
    rounds.heard(0, mark(5, 0, 0))
    rounds.heard(1, mark(6, 0, 0))
    assert rounds.complete() is None
    rounds.ask(300, 300)
    rounds.heard(0, mark(5, 0, 0))
    rounds.heard(1, mark(8, 1, 3))
    assert rounds.complete() == (mark(5, 0, 0), mark(8, 1, 3))


def test_a_late_answer_of_an_earlier_round_is_not_taken_for_one_of_the_next() -> None:
    """Every slice that was asked has to be heard before its round can end, so no answer outlives its round."""
    rounds = Rounds(2, 250, 0, ())
    rounds.ask(0, 0)
    rounds.heard(0, mark(5))
    assert rounds.complete() is None
    assert rounds.ask(1_000, 1_000) == [], "both are asked or have answered"


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 10**9)), max_size=20))
def test_totals_are_sums_modulo_the_width_of_a_checksum(parts: list[tuple[int, int]]) -> None:
    marks = [Mark(1, 1, checksum, count) for checksum, count in parts]
    assert totals(marks) == (sum(c for c, _ in parts) % 2**64, sum(n for _, n in parts))
