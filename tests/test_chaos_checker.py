"""The judge of chaos histories against forged ones: a sound history holds, and each spoiled one is caught, with its lines."""

from collections.abc import Callable

import msgspec
import pytest
from forged_history import BEST, REGIONS, TOTAL, Forged

from chaos.checker import Judgement, check
from chaos.history import Answered, Authorities, Line, Result, Sent


def judged(forged: Forged) -> Judgement:
    return check(forged.lines())


def one(forged: Forged, rule: str, words: str) -> tuple[Judgement, list[Line]]:
    """The judgement, in which `rule` is broken and the first such violation says `words`; and the lines that it names."""
    found = judged(forged)
    lines = dict(forged.lines())
    of_rule = [violation for violation in found.violations if violation.rule == rule]
    assert of_rule, f"{rule} was not caught; found: {[str(violation) for violation in found.violations]}"
    assert words in of_rule[0].what
    return found, [lines[number] for number in of_rule[0].lines]


def test_a_sound_history_holds_and_its_events_are_counted() -> None:
    found = judged(Forged())
    assert found.violations == []
    assert found.holds
    assert (found.acknowledged, found.unknown, found.unknown_in, found.refused) == (6, 1, 1, 1)
    assert (found.lost, found.doubled, found.older_elsewhere) == (0, 0, 0)


def test_a_lost_event_is_caught_with_its_acknowledgement() -> None:
    forged = Forged()
    forged.ask(TOTAL, "a2", outcome="applied", offset=72, epoch=4, value=20, version=5)
    found, lines = one(forged, "I1", "a2 was acknowledged and is lost")
    assert found.lost == 1
    assert isinstance(lines[0], Answered)
    assert lines[0].results[0].event_id == "a2"


def test_an_event_that_came_back_only_because_it_was_asked_again_is_lost() -> None:
    """The answer to the first asking was lost on its way, so the second one calls it a duplicate: its offset betrays it."""
    forged = Forged()
    forged.ask(TOTAL, "b1", offset=73, epoch=4)
    found, _ = one(forged, "I1", "b1 was acknowledged and is lost")
    assert found.lost == 1


def test_an_event_that_moved_is_caught() -> None:
    forged = Forged()
    forged.ask(TOTAL, "a2", offset=11)
    one(forged, "I1", "the result of event a2 changed")


def test_a_sum_that_counts_an_event_twice_is_caught() -> None:
    forged = Forged()
    forged.final(1, None, TOTAL, rows={"ann": (20, 4), "bob": (10, 2)})
    found, _ = one(forged, "I4", "ann on chaos:total:S1:global counts more than once")
    assert found.doubled == 1


def test_an_event_counted_twice_with_the_same_sum_is_caught_by_its_number_of_events() -> None:
    """A delta of 0 in between would hide in the sum."""
    forged = Forged()
    forged.final(2, None, TOTAL, rows={"ann": (15, 5), "bob": (10, 2)})
    one(forged, "I4", "counts more than once")


def test_a_sum_that_misses_an_event_is_caught_although_the_event_answers_as_duplicate() -> None:
    forged = Forged()
    forged.final(1, None, TOTAL, rows={"ann": (12, 2), "bob": (10, 2)})
    one(forged, "I1", "ann on chaos:total:S1:global misses events")


def test_a_best_score_that_was_forgotten_is_caught() -> None:
    forged = Forged()
    for number in (1, 2):
        forged.final(number, None, BEST, rows={"ann": (80, 1)})
    one(forged, "I1", "ann on chaos:best:S1:global misses events")


def test_a_running_sum_that_skips_an_event_is_caught_where_it_breaks() -> None:
    forged = Forged()
    for change in (forged.answer, lambda event, **to: forged.ask(TOTAL, event, **to)):
        change("a3", value=6)
    one(forged, "I4", "version 3 with value 6 stands where version 3 with 13 must")


def test_an_event_applied_twice_when_delivered_again_is_caught() -> None:
    forged = Forged()
    line, _ = forged.find("a1")
    forged.answered.append(msgspec.structs.replace(line, t=9.0, results=[Result("a1", "applied", 4, 50, 18, 4)]))
    _, lines = one(forged, "I4", "a1 was applied twice")
    assert len(lines) == 2


def test_a_redelivered_event_that_answers_as_its_own_duplicate_is_no_violation() -> None:
    forged = Forged()
    line, _ = forged.find("a1")
    forged.answered.append(msgspec.structs.replace(line, t=9.0, results=[Result("a1", "duplicate", 3, 10, 5, 1)]))
    assert judged(forged).holds


def test_a_wrong_order_is_caught_with_both_lines() -> None:
    """s1 was acknowledged at offset 40; s2 was sent later and stands before it."""
    forged = Forged()
    forged.answer("s2", offset=39)
    forged.ask(BEST, "s2", offset=39)
    _, lines = one(forged, "I9", "s1 was acknowledged at 4-40 before s2 was sent, which is at 4-39")
    assert isinstance(lines[0], Answered)
    assert isinstance(lines[1], Sent)


def test_events_that_overlapped_may_stand_in_any_order() -> None:
    forged = Forged()
    forged.answer("s2", offset=39)
    forged.ask(BEST, "s2", offset=39)
    line, place = forged.find("s1")
    forged.answered[place] = msgspec.structs.replace(line, t=8.6)
    assert judged(forged).holds


def test_an_acknowledgement_as_duplicate_orders_nothing() -> None:
    """a3 was answered as a duplicate: it may have been applied long before, so later events are free to stand before it."""
    forged = Forged()
    line, place = forged.find("a3")
    forged.answered[place] = msgspec.structs.replace(line, results=[Result("a3", "duplicate", 4, 41, 13, 3)])
    forged.ask(TOTAL, "a3", offset=41)
    assert judged(forged).holds


def test_an_epoch_that_decreases_along_the_journal_is_caught() -> None:
    forged = Forged()
    forged.answer("s1", epoch=2)
    forged.ask(BEST, "s1", epoch=2)
    one(forged, "I3", "a3 is at 4-31 and s1 at 2-40")


def test_a_refused_event_that_is_there_is_caught() -> None:
    forged = Forged()
    forged.ask(TOTAL, "r1", outcome="duplicate", offset=50)
    one(forged, "I12", "r1 was refused as not appended, and is there")


@pytest.mark.parametrize("serving", [[], ["eu-west", "us-east"]])
def test_none_and_two_authorities_are_caught(serving: list[str]) -> None:
    forged = Forged()
    forged.authorities = {region: (region in serving, 4, "us-east") for region in REGIONS}
    _, lines = one(forged, "I10", "exactly one must")
    assert isinstance(lines[0], Authorities)


def test_regions_that_name_different_owners_are_caught() -> None:
    forged = Forged()
    forged.authorities["ap-south"] = (False, 3, "eu-west")
    one(forged, "I10", "different owners")


@pytest.mark.parametrize(
    "change",
    [{"checksum": "other"}, {"generation": 9, "checksum": "c9"}, {"rows": {"ann": (13, 3), "bob": (9, 2)}}, {"total": 3}],
    ids=["checksum", "generation", "rows", "total"],
)
def test_regions_that_differ_in_the_end_are_caught(change: dict[str, object]) -> None:
    forged = Forged()
    forged.final(1, "ap-south", TOTAL, **change)
    one(forged, "I8", f"{next(iter(change))} of {TOTAL} differs between")


@pytest.mark.parametrize("what", ["checksum", "page"])
def test_a_generation_that_changed_is_caught_also_across_regions(what: str) -> None:
    forged = Forged()
    forged.reads.append(msgspec.structs.replace(forged.read(9.0, "ap-south", "own", 5), **{what: "other"}))
    _, lines = one(forged, "I11", "generation s5 of chaos:total:S1:global changed")
    assert len(lines) == 2


def test_a_region_that_went_back_to_an_older_generation_is_caught() -> None:
    forged = Forged()
    forged.reads.append(forged.read(9.0, "ap-south", "own", 2))
    one(forged, "I8", "ap-south showed s2 of chaos:total:S1:global after s5")


def test_an_older_generation_from_another_region_is_counted_and_allowed() -> None:
    forged = Forged()
    forged.reads.append(forged.read(9.0, "ap-south", "any", 2))
    found = judged(forged)
    assert found.holds
    assert found.older_elsewhere == 1


def test_an_outcome_that_no_event_deserves_is_caught() -> None:
    forged = Forged()
    forged.answer("u1", outcome="unknown_board")
    one(forged, "I4", "u1 got the outcome unknown_board")


def _cut_short(forged: Forged) -> None:
    forged.ends.clear()


def _not_asked(forged: Forged) -> None:
    forged.asked[TOTAL].pop(0)


def _unread(forged: Forged) -> None:
    forged.finals = [final for final in forged.finals if final.region != "us-east"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_cut_short, "was cut short"), (_not_asked, "a1 was never asked again"), (_unread, "was not read in us-east in round 1")],
)
def test_a_history_that_cannot_be_judged_does_not_hold(spoil: Callable[[Forged], None], words: str) -> None:
    forged = Forged()
    spoil(forged)
    one(forged, "complete", words)


def test_regions_that_never_agreed_are_a_violation() -> None:
    forged = Forged()
    forged.closed = msgspec.structs.replace(forged.closed, agreed=False, why="no region serves")
    one(forged, "I10", "no region serves")


def test_the_first_violation_is_the_one_with_the_earliest_line() -> None:
    forged = Forged()
    forged.ask(TOTAL, "b1", outcome="applied", offset=72, epoch=4, value=10, version=2)
    forged.ask(TOTAL, "a1", outcome="applied", offset=73, epoch=4, value=20, version=5)
    assert "a1" in judged(forged).violations[0].what


def test_ten_thousand_events_are_ordered_fast_and_one_swap_among_them_is_found() -> None:
    """O(n log n): a quadratic check would take minutes."""
    forged = Forged()
    total = 12
    for number in range(10_000):
        event_id, t, offset, total = f"n{number}", 10 + number / 1000, 100 + number, total + 1
        said = Result(event_id, "applied", 4, offset, 1, 1)
        forged.sent.append(Sent(t=t, server="s", batch=number, board=TOTAL, events=[(event_id, f"p{number}", 1)]))
        forged.answered.append(Answered(t=t + 0.0001, server="s", batch=number, region="eu-west", results=[said]))
        forged.asked[TOTAL].append(msgspec.structs.replace(said, outcome="duplicate"))
    forged.closed = msgspec.structs.replace(forged.closed, tail=20_000)
    rows = {f"p{number}": (1, 1) for number in range(10_000)}
    forged.ask(TOTAL, "r1", offset=20_001)
    forged.final(1, None, TOTAL, rows={"ann": (13, 3), "bob": (10, 2), **rows})
    forged.final(2, None, TOTAL, rows={"ann": (15, 4), "bob": (10, 2), **rows})
    assert judged(forged).holds
    forged.answer("n5000", offset=100 + 4998)
    forged.answer("n4998", offset=100 + 5000)
    forged.ask(TOTAL, "n5000", offset=100 + 4998)
    forged.ask(TOTAL, "n4998", offset=100 + 5000)
    one(forged, "I9", "n4998 was acknowledged at 4-5100 before n4999 was sent")
