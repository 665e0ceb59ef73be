"""Salvage, pure: what an orphan was meant for, what is sent again, and what an answer means."""

import itertools

import msgspec
import pytest

from boards.model import BoardRules, Layout, Outcome, Row
from boards.policies import make_rules
from failover import salvage
from failover.salvage import SALVAGED, Finding, Known, Place
from journal.ports import OrphanBatch
from journal.records import Audited, BoardCreated, Entry, EpochStarted, HandedOver, Published, Record, Scored, open_entry, seal_entry

BEST, COINS = make_rules("best_score"), make_rules("cumulative", decimals=2)
SOLO, DUEL = "arena:solo:S1:all", "arena:duel:S1:all"


def scored(event_id: str = "e", *, board: int = 1, subject: str = "gs", processed_ms: int = 500, player: str = "p") -> Scored:
    row = Row(7, 1, 1, 1, 1, 1, event_id)
    return Scored(
        board=board,
        player_id=player,
        event_id=event_id,
        fingerprint=b"f" * 16,
        outcome=int(Outcome.APPLIED),
        value=7,
        version=1,
        row=row,
        amount=7,
        achieved_ms=11,
        submitted_ms=12,
        processed_ms=processed_ms,
        subject=subject,
    )


def created(number: int, board_id: str, rules: BoardRules = BEST, at_ms: int = 100) -> BoardCreated:
    return BoardCreated(number, board_id, rules, "inc", "operator-1", at_ms)


def cut(*entries: tuple[int, int, list[Record]]) -> list[OrphanBatch]:
    """Batches of entries (epoch, offset, records)."""
    made: dict[int, list[Entry]] = {}
    for epoch, offset, records in entries:
        made.setdefault(epoch, []).append(seal_entry(epoch, offset, f"b{epoch}-{offset}", records))
    return [OrphanBatch(epoch, made[epoch]) for epoch in sorted(made)]


def test_protocol_records_are_dropped_and_counted_where_they_stood() -> None:
    start = EpochStarted(3, "eu", "a", 2, "us", "restart", "", "local", {"eu": "i"}, 1, "L", 5)
    orphans = salvage.sort_out(
        cut(
            (3, 8, [start]),
            (3, 9, [scored(), Published(1, 1, 1, 1, 1)]),
            (3, 10, [Audited("drill.began", "o", 1, "{}"), HandedOver("us", "o", 1)]),
        ),
        {1: Known(SOLO, BEST, 100)},
    )
    assert orphans.dropped == {(3, 8): 1, (3, 9): 1, (3, 10): 2}
    assert [event.place for event in orphans.events] == [Place(3, 9, 0)]
    assert orphans.boards == []


def test_a_second_column_and_a_layout_are_salvaged_and_slices_are_left_to_their_lead() -> None:
    layout = Layout(1, ("eu/0", "eu/1"))
    lead = msgspec.structs.replace(created(1, SOLO), layout=layout)
    other = msgspec.structs.replace(created(2, DUEL), layout=layout, slice=1)
    event = msgspec.structs.replace(scored("e7"), second=-5)
    orphans = salvage.sort_out(cut((3, 9, [lead, other, event])), {})
    assert [(board.board_id, board.layout) for board in orphans.boards] == [(SOLO, layout)]
    assert [one.submission.second for one in orphans.events] == [-5]
    assert orphans.dropped == {(3, 9): 1}


def test_an_event_is_sent_again_with_its_own_identity_content_times_and_subject() -> None:
    orphans = salvage.sort_out(cut((3, 9, [scored("e7")])), {1: Known(SOLO, COINS, 100)})
    (event,) = orphans.events
    sent = event.submission
    assert (sent.event_id, sent.player_id, sent.amount, sent.achieved_ms, sent.submitted_ms, sent.fingerprint) == (
        "e7",
        "p",
        7,
        11,
        12,
        b"f" * 16,
    )
    assert (event.board_id, event.decimals, event.obstacle) == (SOLO, 2, "")
    (request,) = salvage.requests(orphans.events)
    assert (request.board_id, request.subject) == (SOLO, f"{SALVAGED}gs")


def test_an_event_that_was_salvaged_before_is_marked_once() -> None:
    orphans = salvage.sort_out(cut((3, 9, [scored(subject=f"{SALVAGED}gs")])), {1: Known(SOLO, BEST, 100)})
    assert salvage.requests(orphans.events)[0].subject == f"{SALVAGED}gs"


def test_requests_keep_the_order_of_the_journal_and_their_bound() -> None:
    records: list[Record] = [scored(f"e{n}", subject="ab"[n % 3 == 2], board=1 + (n % 5 == 4)) for n in range(40)]
    records += [scored(f"f{n}") for n in range(salvage.EVENTS_PER_REQUEST + 1)]
    boards = {1: Known(SOLO, BEST, 100), 2: Known(DUEL, BEST, 100)}
    events = salvage.sort_out(cut((3, 9, records)), boards).events
    made = salvage.requests(events)
    assert list(itertools.chain.from_iterable(request.events for request in made)) == events
    assert [len(request.events) for request in made[-2:]] == [salvage.EVENTS_PER_REQUEST, 1]
    assert all((e.board_id, SALVAGED + e.subject) == (r.board_id, r.subject) for r in made for e in r.events)


def test_orphans_of_several_epochs_come_in_the_order_of_their_places() -> None:
    batches = cut((9, 30, [scored("c")]), (10, 12, [scored("d")]), (9, 4, [scored("a")]), (9, 30, [scored("b")]))
    events = salvage.sort_out(batches, {1: Known(SOLO, BEST, 100)}).events
    assert [event.place[:2] for event in events] == [(9, 4), (9, 30), (9, 30), (10, 12)]


# Which board a number meant


def meant(batches: list[OrphanBatch], boards: dict[int, Known]) -> list[tuple[str, str]]:
    return [(event.board_id, event.obstacle) for event in salvage.sort_out(batches, boards).events]


def test_a_board_of_the_same_cut_epoch_is_meant_not_the_lineages_board_of_that_number() -> None:
    batches = cut((3, 8, [created(4, DUEL)]), (3, 9, [scored(board=4)]))
    assert meant(batches, {4: Known(SOLO, BEST, 100)}) == [(DUEL, "")]


def test_a_board_of_the_same_cut_epoch_is_meant_before_one_of_an_earlier_cut_epoch() -> None:
    batches = cut((3, 5, [created(4, SOLO)]), (5, 6, [created(4, DUEL)]), (5, 9, [scored(board=4)]))
    assert meant(batches, {}) == [(DUEL, "")]


def test_a_board_of_an_earlier_cut_epoch_is_meant_when_nothing_else_can_be() -> None:
    batches = cut((3, 8, [created(4, DUEL)]), (5, 12, [scored(board=4)]))
    assert meant(batches, {}) == [(DUEL, "")]
    assert meant(batches, {4: Known(DUEL, BEST, 100)}) == [(DUEL, "")]


def test_with_two_boards_that_can_be_meant_it_is_left_to_an_operator() -> None:
    batches = cut((3, 8, [created(4, DUEL)]), (5, 12, [scored(board=4)]))
    assert meant(batches, {4: Known(SOLO, BEST, 100)}) == [("", "ambiguous_board")]


def test_a_board_that_was_created_after_the_event_was_decided_is_not_meant() -> None:
    assert meant(cut((3, 9, [scored(board=4, processed_ms=500)])), {4: Known(SOLO, BEST, 501)}) == [("", "unknown_board")]
    assert meant(cut((3, 9, [scored(board=4, processed_ms=500)])), {4: Known(SOLO, BEST, 500)}) == [(SOLO, "")]


def test_a_board_that_was_created_at_a_later_place_is_not_meant() -> None:
    assert meant(cut((3, 9, [scored(board=4)]), (3, 10, [created(4, DUEL)])), {}) == [("", "unknown_board")]
    assert meant(cut((3, 9, [scored(board=4)]), (5, 4, [created(4, DUEL)])), {}) == [("", "unknown_board")]


def test_a_board_of_that_id_with_other_rules_stops_board_and_events() -> None:
    orphans = salvage.sort_out(cut((3, 8, [created(4, DUEL, COINS)]), (3, 9, [scored(board=4)])), {7: Known(DUEL, BEST, 100)})
    assert [(board.board_id, board.there, board.obstacle) for board in orphans.boards] == [(DUEL, False, "board_exists")]
    assert [event.obstacle for event in orphans.events] == ["board_exists"]
    assert salvage.finding(orphans.events[0], None) == Finding("operator", code="board_exists")


def test_a_board_is_there_with_the_same_rules_or_missing() -> None:
    batches = cut((3, 8, [created(4, DUEL)]))
    for boards, there in (({9: Known(DUEL, BEST, 900)}, True), ({}, False)):
        (board,) = salvage.sort_out(batches, boards).boards
        assert (board.there, board.obstacle) == (there, "")


def test_a_board_that_was_removed_meanwhile_is_not_brought_back() -> None:
    batches = cut((3, 8, [created(4, DUEL)]), (3, 9, [scored(board=4)]))
    orphans = salvage.sort_out(batches, {}, lambda board_id: board_id == DUEL)
    assert [(board.there, board.obstacle) for board in orphans.boards] == [(False, "removed")]
    assert [event.obstacle for event in orphans.events] == ["removed"]
    assert salvage.finding(orphans.events[0], None) == Finding("operator", code="removed")
    (here,) = salvage.sort_out(batches, {9: Known(DUEL, BEST, 900)}, lambda _: False).boards
    assert (here.there, here.obstacle) == (True, "")


# What became of it


def test_the_lineage_decides_what_is_done() -> None:
    (event,) = salvage.sort_out(cut((3, 9, [scored()])), {1: Known(SOLO, BEST, 100)}).events
    assert salvage.finding(event, None) == Finding("open")
    assert salvage.finding(event, (b"f" * 16, Outcome.NOT_AN_IMPROVEMENT)) == Finding("done", "not_an_improvement")
    assert salvage.finding(event, (b"g" * 16, Outcome.APPLIED)) == Finding("operator", "conflict", "conflict")


@pytest.mark.parametrize(
    ("outcome", "code", "state", "why"),
    [
        (Outcome.APPLIED_FIRST, "", "done", ""),
        (Outcome.APPLIED, "", "done", ""),
        (Outcome.DUPLICATE, "", "done", ""),
        (Outcome.NOT_AN_IMPROVEMENT, "", "done", ""),
        (Outcome.SUPERSEDED, "", "done", ""),
        (Outcome.INVALID, "held", "held", "held"),
        (Outcome.INVALID, "too_old", "operator", "too_old"),
        (Outcome.INVALID, "overflow", "operator", "overflow"),
        (Outcome.CONFLICT, "", "operator", "conflict"),
        (Outcome.UNKNOWN, "unknown", "open", "unknown"),
    ],
)
def test_an_answer_means_done_held_open_or_an_operators_business(outcome: Outcome, code: str, state: str, why: str) -> None:
    found = salvage.answered(outcome, code)
    assert (found.state, found.code, found.outcome) == (state, why, outcome.name.lower())


def test_every_outcome_has_a_meaning() -> None:
    assert {salvage.answered(outcome, "").state for outcome in Outcome} == {"done", "open", "operator"}


def test_counts_are_by_entry_and_add_up_to_all_records() -> None:
    batches = cut(
        (3, 8, [created(4, DUEL), scored("a", board=4), Published(4, 1, 1, 1, 1)]),
        (3, 9, [scored("b"), scored("c", board=9)]),
        (5, 2, [scored("d")]),
    )
    orphans = salvage.sort_out(batches, {1: Known(SOLO, BEST, 100)})
    saved = {"b": (b"f" * 16, int(Outcome.APPLIED))}
    found = salvage.counts(
        orphans, lambda event: salvage.finding(event, saved.get(event.submission.event_id)), lambda board: Finding("open")
    )
    assert [(c.epoch, c.offset, c.boards, c.dropped, c.done, c.operator, c.open) for c in found] == [
        (3, 8, 1, 1, 0, 0, 2),
        (3, 9, 0, 0, 1, 1, 0),
        (5, 2, 0, 0, 0, 0, 1),
    ]
    total = sum(c.dropped + c.done + c.held + c.operator + c.open for c in found)
    assert total == sum(len(open_entry(entry)) for batch in batches for entry in batch.entries)
