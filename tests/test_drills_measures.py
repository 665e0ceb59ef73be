"""From what the canary saw to figures and a verdict: each figure on books written by hand."""

from typing import Any

import pytest

from drills import measures
from drills.book import Ack, Book, Look, Sent
from drills.plan import Objectives
from drills.ports import Outcome
from drills.report import Move, MoveKind, Objective, StepTold, Writes

REGIONS = ["a", "b"]


def book_of(*acks: tuple[float, str, int, int], ended_ms: float = 10_000, looks: tuple[Look, ...] = ()) -> Book:
    """A book with first acknowledgements (at, region, epoch, offset), each sent 10 ms before."""
    book = Book(began_ms=0.0, ended_ms=ended_ms)
    book.acks = [Ack(at, at - 10, region, epoch, offset, True, True) for at, region, epoch, offset in acks]
    book.looks = list(looks)
    return book


def move(kind: MoveKind, *, asked_ms: float | None = 1000, seen_ms: float = 1500, fault_ms: float | None = None, epoch: int = 2) -> Move:
    who: dict[str, Any] = {"from_epoch": epoch - 1, "from_owner": "a", "epoch": epoch, "owner": "b"}
    return Move(step=1, kind=kind, asked_ms=asked_ms, fault_ms=fault_ms, seen_ms=seen_ms, **who)


def look(at_ms: float, region: str, beat: int, generation: int, boundary: int = 0, took_ms: float = 5.0) -> Look:
    return Look(at_ms, region, beat, generation, boundary, took_ms)


def judged(
    *moves: Move, book: Book | None = None, objectives: Objectives | None = None, proved: bool = True, local: bool = False
) -> list[Objective]:
    book = book or book_of((100, "a", 1, 1))
    book.looks = book.looks or [look(100, "a", 1, 1)]
    book.compared = 3
    measured = measures.measured_moves(moves, book)
    wrote = measures.writes(book, measured, REGIONS)
    return measures.judge(objectives or Objectives(), measured, wrote, measures.reads(book, REGIONS), [], proved=proved, local=local)


def failing(objectives: list[Objective]) -> list[str]:
    return [objective.name for objective in objectives if not objective.met]


def test_the_longest_gap_counts_both_edges_and_nothing_outside() -> None:
    assert measures.longest_gap([5, 3, 9, 200], 0, 10) == 4
    assert measures.longest_gap([], 2, 10) == 8
    assert measures.longest_gap([8], 0, 10) == 8


def test_a_planned_pause_is_that_of_all_regions_together_around_the_command() -> None:
    book = book_of(
        *((at, "a", 1, at) for at in range(0, 1001, 50)), (1400, "b", 2, 2000), *((at, "a", 2, at) for at in range(1450, 9000, 50))
    )
    (measured,) = measures.measured_moves([move("planned")], book)
    assert measured.pause_ms == 400
    assert measured.first_write_ms == 400


def test_an_event_acknowledged_as_a_duplicate_ends_a_pause_and_a_repetition_does_not() -> None:
    """What was in the journal when its answer was lost is acknowledged to its sender only by the second delivery."""
    book = book_of((1000, "a", 1, 1), (3000, "b", 2, 9))
    book.acks.append(Ack(1800, 1700, "a", 1, 2, False, False))
    assert measures.measured_moves([move("planned", seen_ms=1100)], book)[0].pause_ms == 2000
    book.acks.append(Ack(1800, 1700, "a", 1, 3, False, True))
    assert measures.measured_moves([move("planned", seen_ms=1100)], book)[0].pause_ms == 1200


def test_a_forced_failover_counts_from_the_command_to_the_first_write_of_the_new_epoch() -> None:
    book = book_of((1100, "a", 1, 10), (1700, "b", 2, 11), (1800, "b", 2, 12))
    assert measures.measured_moves([move("forced", fault_ms=500)], book)[0].first_write_ms == 700


def test_an_automatic_failover_counts_from_the_fault() -> None:
    book = book_of((3900, "b", 2, 11))
    (measured,) = measures.measured_moves([move("automatic", asked_ms=None, fault_ms=500, seen_ms=3000)], book)
    assert measured.first_write_ms == 3400


def test_a_move_after_which_nothing_was_written_has_not_met_its_objective() -> None:
    objectives = judged(move("forced"), objectives=Objectives(forced_first_write_ms=1500))
    assert failing(objectives) == ["command to first write, forced"]
    assert objectives[0].measured is None


def test_an_objective_of_which_nothing_happened_is_told_and_not_judged() -> None:
    objectives = judged(objectives=Objectives(forced_first_write_ms=1500, automatic_first_write_ms=4000))
    assert failing(objectives) == []
    assert [objective.measured for objective in objectives[:2]] == [None, None]


def test_a_local_shard_may_wait_for_its_lease() -> None:
    book = book_of((3500, "b", 2, 5))
    limits = Objectives(forced_first_write_ms=1500, forced_first_write_local_ms=3500)
    assert failing(judged(move("forced"), book=book, objectives=limits)) == ["command to first write, forced"]
    assert failing(judged(move("forced"), book=book, objectives=limits, local=True)) == []


def test_only_fresh_acknowledgements_of_an_older_epoch_that_were_sent_after_the_move_are_a_deposed_owners() -> None:
    known = move("forced", seen_ms=1500, epoch=2)
    book = Book(began_ms=0, ended_ms=5000)
    book.acks = [
        Ack(1600, 1400, "a", 1, 5, True),  # on its way before anybody knew
        Ack(1700, 1600, "a", 1, 4, False),  # a duplicate tells where the event has always been
        Ack(1800, 1600, "b", 2, 6, True),
    ]
    assert measures.by_deposed(book, [known]) == 0
    book.acks.append(Ack(1900, 1600, "a", 1, 6, True))
    assert measures.by_deposed(book, [known]) == 1


def test_a_read_is_stale_since_the_first_event_that_it_does_not_show_was_acknowledged() -> None:
    book = book_of((1000, "a", 1, 10), (2000, "a", 1, 11), (1900, "b", 1, 12))
    stale = measures.Staleness(book)
    assert stale.of(look(3005, "a", 1, 3, boundary=12)) == 0
    assert stale.of(look(3005, "a", 1, 3, boundary=10)) == 1100  # event 12 was acknowledged before event 11
    assert stale.of(look(3005, "a", 1, 3, boundary=9)) == 2000
    assert stale.of(look(905, "a", 1, 3, boundary=9)) == 0  # asked before anything was acknowledged


def test_a_beat_is_answered_when_any_region_answered_it() -> None:
    looks = (look(1, "a", 1, 5), look(1, "b", 1, -1), look(2, "a", 2, -1), look(2, "b", 2, 5), look(3, "a", 3, -1), look(3, "b", 3, -1))
    together, a, b = measures.reads(book_of(looks=looks), REGIONS)
    assert (together.asked, together.answered) == (3, 2)
    assert (a.answered, b.answered, a.asked, b.asked) == (1, 1, 3, 3)
    assert round(together.percent, 1) == 66.7


def test_a_read_goes_backwards_only_if_it_was_asked_after_the_newer_one_had_been_answered() -> None:
    overtaken = (look(100, "a", 1, 7, took_ms=5), look(110, "a", 2, 6, took_ms=50))
    assert measures.reads(book_of(looks=overtaken), REGIONS)[1].backwards == 0
    back = (look(100, "a", 1, 7, took_ms=5), look(110, "a", 2, 6, took_ms=5))
    together, a, _ = measures.reads(book_of(looks=back), REGIONS)
    assert (a.backwards, together.backwards) == (1, 1)


def test_no_reads_at_all_meet_no_objective() -> None:
    book = book_of((100, "a", 1, 1))
    wrote = measures.writes(book, [], REGIONS)
    objectives = measures.judge(Objectives(), [], wrote, measures.reads(book, REGIONS), [], proved=True, local=False)
    assert "reads answered by some region" in failing(objectives)


def test_what_was_not_proved_is_not_met() -> None:
    assert failing(judged(proved=False)) == ["values unequal, in all regions"]


def test_the_longest_settle_is_judged() -> None:
    steps = [StepTold(number=n, do="settle", words="", began_ms=0, ended_ms=took) for n, took in enumerate((300, 900))]
    book = book_of((100, "a", 1, 1), looks=(look(1, "a", 1, 1),))
    book.compared = 1
    wrote = measures.writes(book, [], REGIONS)
    read = measures.reads(book, REGIONS)
    objectives = measures.judge(Objectives(settle_ms=800), [], wrote, read, steps, proved=True, local=False)
    assert [(o.name, o.measured) for o in objectives if not o.met] == [("well again", 900)]


def event(name: str = "e1", amount: int = 3) -> Sent:
    return Sent(event_id=name, player_id="p", region="a", board="B", amount=amount, sent_ms=0)


@pytest.mark.parametrize(("outcome", "fresh"), [("applied_first", 1), ("applied", 1), ("not_an_improvement", 1), ("duplicate", 0)])
def test_outcomes_that_acknowledge(outcome: str, fresh: int) -> None:
    book, sent = Book(), event()
    assert book.heard(sent, Outcome("e1", outcome, 1, 7), region="a", sent_ms=0, now_ms=5)
    assert (sent.acked_ms, sent.offset, sent.fresh, book.duplicates) == (5, 7, fresh, 1 - fresh)


def test_an_unknown_outcome_leaves_the_event_in_doubt_until_it_is_acknowledged() -> None:
    book, sent = Book(), event()
    book.sent["e1"] = sent
    assert not book.heard(sent, Outcome("e1", "unknown"), region="a", sent_ms=0, now_ms=5)
    assert book.unresolved() == [sent]
    assert book.heard(sent, Outcome("e1", "duplicate", 1, 7), region="a", sent_ms=6, now_ms=8)
    assert measures.writes(book, [], REGIONS).salvaged == 1


def test_an_event_that_was_new_twice_was_counted_twice() -> None:
    book, sent = Book(), event()
    book.sent["e1"] = sent
    for offset in (7, 8):
        book.heard(sent, Outcome("e1", "applied", 1, offset), region="a", sent_ms=0, now_ms=5)
    wrote: Writes = measures.writes(book, [], REGIONS)
    assert wrote.counted_twice == 1


def test_an_answer_that_no_canary_event_may_get_is_kept() -> None:
    book, sent = Book(), event()
    book.heard(sent, Outcome("e1", "conflict", 1, 7), region="a", sent_ms=0, now_ms=5)
    assert book.wrong == ["e1 through a: conflict"]
    assert sent.acked_ms is None


def test_expected_values_are_sums_or_bests_of_acknowledged_events_alone() -> None:
    book = Book()
    for name, amount in (("e1", 5), ("e2", -2), ("e3", 9)):
        book.sent[name] = event(name, amount)
    book.sent["e1"].acked_ms = book.sent["e2"].acked_ms = 1.0
    assert book.expected("B", best=False) == {"p": 3}
    assert book.expected("B", best=True) == {"p": 5}
    assert book.expected("other", best=True) == {}


def test_the_timeline_shows_who_served_when_and_where_reads_went_unanswered() -> None:
    book = book_of((100, "a", 1, 1), (900, "a", 1, 2), ended_ms=1000, looks=(look(50, "a", 1, 1), look(60, "a", 2, -1)))
    seen = [(0.0, 1, "a"), (500.0, 1, "a"), (700.0, 2, "b"), (900.0, 2, "b")]
    shown = measures.timeline(book, REGIONS, seen, [], 1000)
    assert [(r.epoch, r.region, r.from_ms, r.to_ms) for r in shown.reigns] == [(1, "a", 0, 500), (2, "b", 700, 900)]
    known = measures.timeline(book, REGIONS, seen, [move("planned", asked_ms=450, seen_ms=600)], 1000)
    assert [(r.epoch, r.from_ms, r.to_ms) for r in known.reigns] == [(1, 0, 450), (2, 600, 900)]
    assert shown.pauses["a"] == [(100, 900)]
    assert (shown.reads["a"][0].answered, shown.reads["a"][0].unanswered) == (1, 1)
