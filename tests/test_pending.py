"""The authority's overlay: decisions above a ledger that lags behind are those of a ledger that does not."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from boards.checksum import EMPTY, add, row_hash
from boards.model import BoardRules, Outcome, Row, Submission
from boards.policies import decider, make_rules
from journal.ports import Position
from journal.records import BoardCreated, Record, Scored, seal_entry
from ledger.lmdb_ledger import LmdbLedger
from ledger.memory import MemoryLedger
from ledger.pending import Decided, Pending
from ledger.ports import BoardState, Ledger, LedgerStale

BOARD = "arena-clash:solo:S7:global"


def event(event_id: str, player_id: str, amount: int, *, at: int = 1000) -> Submission:
    return Submission(event_id, player_id, amount, at, at + 1, f"{amount}".encode())


class Authority:
    """A shard's authority reduced to its decisions: entries are appended to a list, and folded when a test says so."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.pending = Pending(ledger)
        self.offset = 0
        #: Appended and not folded yet.
        self.entries: list[tuple[int, list[Record]]] = []

    def append(self, *records: Record) -> None:
        """Close the entry that was being built."""
        self.offset += 1
        self.entries.append((self.offset, list(records)))

    def create(self, policy: str = "best_score", board_id: str = BOARD) -> None:
        record = BoardCreated(self.pending.next_number(), board_id, make_rules(policy), "incarnation", "op", 1)
        self.pending.create_board(record, self.offset + 1)
        self.append(record)

    def board(self, board_id: str = BOARD) -> BoardState:
        found = self.pending.board(board_id)
        assert found is not None
        return found

    def decide(self, *submissions: Submission, board_id: str = BOARD) -> tuple[list[Scored], list[Decided]]:
        """Decide within the entry that is being built."""
        with self.ledger.reader() as reader:
            return self.pending.decide(
                reader, self.board(board_id), submissions, subject="game-server-1", now_ms=5000, epoch=1, offset=self.offset + 1
            )

    def submit(self, *submissions: Submission, board_id: str = BOARD) -> list[Decided]:
        """One call, one entry."""
        records, decided = self.decide(*submissions, board_id=board_id)
        self.append(*records)
        return decided

    def publish(self, board_id: str = BOARD) -> None:
        self.append(self.pending.publish(self.board(board_id), published_ms=6000, offset=self.offset + 1))

    def fold(self, entries: int | None = None) -> None:
        """Commit the oldest entries: the ledger applies them, the overlay drops them."""
        ready = self.entries[:entries]
        del self.entries[: len(ready)]
        self.ledger.apply([seal_entry(1, offset, f"batch-{offset}", records) for offset, records in ready])
        self.pending.settle(self.ledger.applied.offset)

    def rows(self, number: int = 1) -> dict[str, Row]:
        with self.ledger.reader() as reader:
            return dict(reader.rows(number))


@pytest.fixture(params=["memory", "lmdb"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = MemoryLedger() if request.param == "memory" else LmdbLedger(tmp_path / "ledger", map_size=64 << 20)
    yield made
    made.close()


@pytest.fixture
def authority(ledger: Ledger) -> Authority:
    return Authority(ledger)


def outcomes(decided: list[Decided]) -> list[str]:
    return [Outcome(answer.outcome).name.lower() for answer in decided]


def test_lb_043_same_event_twice_inside_one_batch_counts_once(authority: Authority) -> None:
    authority.create("cumulative")
    batch = [event("E1", "ann", 5), event("E1", "ann", 5), event("E2", "ann", 5), event("E1", "ann", 6)]
    decided = authority.submit(*batch)
    assert outcomes(decided) == ["applied_first", "duplicate", "applied", "conflict"]
    assert [answer.value for answer in decided] == [5, 5, 10, 5]
    assert [(answer.epoch, answer.offset, answer.depends) for answer in decided] == [(1, 2, 2)] * 4
    authority.fold()
    assert authority.rows()["ann"].value == 10
    assert authority.rows()["ann"].version == 2


def test_lb_011_score_that_is_no_improvement_leaves_one_row_and_a_flat_overlay(authority: Authority) -> None:
    authority.create()
    authority.submit(event("e1", "a", 100))
    authority.submit(event("e2", "a", 50))
    authority.submit(event("e3", "b", 70))
    assert (authority.board().count, authority.board().changed) == (2, 4)
    authority.fold()
    assert {player: row.value for player, row in authority.rows().items()} == {"a": 100, "b": 70}
    checksum = authority.board().checksum
    for turn in range(200):
        decided = authority.submit(*(event(f"again-{turn}-{n}", "a", 50) for n in range(50)))
        assert set(outcomes(decided)) == {"not_an_improvement"}
        assert len(authority.pending) == 50
        authority.fold()
        assert len(authority.pending) == 0
    assert (authority.board().count, authority.board().checksum) == (2, checksum)


@pytest.mark.parametrize("seed", range(5))
def test_lb_013_best_value_never_goes_down_in_whatever_order_scores_come(authority: Authority, seed: int) -> None:
    order = list(range(1, 201))
    chance = random.Random(seed)
    chance.shuffle(order)
    authority.create()
    best = 0
    while order:
        batch, order = order[:7], order[7:]
        for value, answer in zip(batch, authority.submit(*(event(f"e{value}", "ann", value) for value in batch)), strict=True):
            assert answer.value == max(best, value)
            assert answer.improved == (value > best)
            best = answer.value
        authority.fold(chance.randrange(3))
    authority.fold()
    assert {player: row.value for player, row in authority.rows().items()} == {"ann": 200}
    assert authority.board().count == 1


def test_lb_035_second_copy_meets_the_first_wherever_that_is(authority: Authority) -> None:
    """The first is in the same call, in the same entry, appended, or folded: one is applied, 49 get its result."""
    authority.create("cumulative")
    first, *rest = authority.submit(*[event("E1", "ann", 10)] * 10)
    for turn in range(4):
        records, decided = authority.decide(*[event("E1", "ann", 10)] * 5)
        again, more = authority.decide(*[event("E1", "ann", 10)] * 5)
        assert (records, again) == ([], [])
        rest += decided + more
        authority.append()
        authority.fold(turn)
    assert len(rest) == 49
    assert set(outcomes(rest)) == {"duplicate"}
    assert {(answer.value, answer.version, answer.epoch, answer.offset, answer.depends) for answer in rest} == {(10, 1, 1, 2, 2)}
    assert outcomes([first]) == ["applied_first"]
    authority.fold()
    assert authority.rows()["ann"].value == 10


def test_second_copy_in_the_same_call_depends_on_the_entry_that_is_not_committed(authority: Authority) -> None:
    authority.create()
    authority.fold()
    authority.submit(event("e1", "ann", 10))
    duplicate, conflict, recorded = authority.submit(event("e1", "ann", 10), event("e1", "ann", 11), event("e2", "ann", 9))
    assert (duplicate.depends, conflict.depends, recorded.depends) == (2, 2, 3)


def test_invalid_event_rests_on_the_pending_row_and_its_id_stays_free(authority: Authority) -> None:
    authority.create("cumulative")
    most = 2**63 - 1
    authority.submit(event("e1", "ann", most))
    records, (refused,) = authority.decide(event("e2", "ann", 1))
    assert (records, outcomes([refused]), refused.code) == ([], ["invalid"], "overflow")
    assert refused.allowed
    assert (refused.value, refused.version, refused.epoch, refused.offset, refused.depends) == (most, 1, 0, 0, 2)
    authority.fold()
    records, (refused,) = authority.decide(event("e2", "ann", 1))
    assert (records, refused.depends) == ([], 0)
    assert outcomes(authority.submit(event("e2", "ann", -1))) == ["applied"]


def test_record_carries_the_event_the_subject_and_the_complete_row(authority: Authority) -> None:
    authority.create()
    records, _ = authority.decide(event("e1", "ann", 10, at=1234), event("e2", "ann", 9))
    row = Row(10, 1234, 1234, 1235, 5000, 1, "e1")
    assert records == [
        Scored(1, "ann", "e1", b"10", Outcome.APPLIED_FIRST, 10, 1, row, 10, 1234, 1235, 5000, "game-server-1"),
        Scored(1, "ann", "e2", b"9", Outcome.NOT_AN_IMPROVEMENT, 10, 1, None, 9, 1000, 1001, 5000, "game-server-1"),
    ]


def test_improved_follows_the_direction_of_the_board(authority: Authority) -> None:
    authority.create("cumulative", "sum")
    authority.create("fastest_time", "time")
    up, down, zero = authority.submit(event("1", "ann", 5), event("2", "ann", -3), event("3", "ann", 0), board_id="sum")
    assert [up.improved, down.improved, zero.improved] == [True, False, False]
    slow, fast = authority.submit(event("1", "ann", 50), event("2", "ann", 40), board_id="time")
    assert [slow.improved, fast.improved] == [True, True]


def test_boards_of_one_entry_do_not_mix(authority: Authority) -> None:
    authority.create(board_id="a")
    authority.create(board_id="b")
    on_a, first = authority.decide(event("e1", "ann", 1), board_id="a")
    on_b, second = authority.decide(event("e1", "ann", 2), board_id="b")
    more, third = authority.decide(event("e1", "ann", 1), event("e2", "ann", 3), board_id="a")
    assert outcomes(first + second + third) == ["applied_first", "applied_first", "duplicate", "applied"]
    authority.append(*on_a, *on_b, *more)
    assert [state.board_id for state in authority.pending.changed_boards()] == ["a", "b"]
    authority.fold()
    assert (authority.rows(1)["ann"].value, authority.rows(2)["ann"].value) == (3, 2)


def test_pending_board_can_be_used_at_once_and_its_id_and_number_are_taken(authority: Authority) -> None:
    record = BoardCreated(1, BOARD, make_rules("best_score"), "incarnation", "op", 1)
    authority.pending.create_board(record, 1)
    records, _ = authority.decide(event("e1", "ann", 1))
    for taken in (record, BoardCreated(2, BOARD, record.rules, "x", "op", 1), BoardCreated(1, "other", record.rules, "x", "op", 1)):
        with pytest.raises(ValueError, match="is taken"):
            authority.pending.create_board(taken, 1)
    authority.append(record, *records)
    authority.fold()
    assert authority.pending.next_number() == 2
    assert authority.board().count == 1


def test_publish_covers_pending_rows_and_the_ledger_finds_the_same(authority: Authority) -> None:
    authority.create()
    assert authority.pending.changed_boards() == []
    authority.submit(event("e1", "ann", 1))
    authority.publish()
    authority.submit(event("e2", "bob", 1), event("e3", "ann", 0))
    assert [state.number for state in authority.pending.changed_boards()] == [1]
    authority.fold(1)
    authority.publish()
    assert authority.board().generation == 2
    assert authority.pending.changed_boards() == []
    authority.submit(event("e4", "ann", 0))
    assert authority.pending.changed_boards() == []
    authority.fold()
    assert (authority.board().generation, authority.board().published_count) == (2, 2)
    assert authority.ledger.board(BOARD) == authority.board()


def test_board_is_closed_for_the_entry_that_publishes_it(authority: Authority) -> None:
    authority.create()
    records, _ = authority.decide(event("e1", "ann", 1))
    record = authority.pending.publish(authority.board(), published_ms=1, offset=2)
    for late in (
        lambda: authority.decide(event("e2", "ann", 2)),
        lambda: authority.pending.publish(authority.board(), published_ms=1, offset=2),
    ):
        with pytest.raises(ValueError, match="is published in entry 2"):
            late()
    authority.append(*records, record)
    authority.submit(event("e2", "ann", 2))
    authority.fold()


def test_board_that_is_never_idle_keeps_only_what_is_not_folded(authority: Authority) -> None:
    authority.create()
    for turn in range(20):
        authority.submit(*(event(f"e{turn}-{n}", f"p{n}", turn) for n in range(3)))
        authority.fold(max(len(authority.entries) - 2, 0))
        assert len(authority.pending) == 3 * sum(offset > 1 for offset, _ in authority.entries)


def test_new_authority_finds_rows_that_its_predecessor_never_published(authority: Authority) -> None:
    authority.create()
    authority.submit(event("e1", "ann", 1))
    authority.fold()
    successor = Pending(authority.ledger)
    (state,) = successor.changed_boards()
    assert successor.publish(state, published_ms=1, offset=3).count == 1
    assert successor.changed_boards() == []


def test_deposed_authority_keeps_nothing_that_was_not_folded(authority: Authority) -> None:
    authority.create()
    authority.submit(event("e1", "ann", 1))
    authority.fold()
    before = authority.board()
    authority.submit(event("e2", "ann", 5), event("e3", "bob", 5))
    authority.create(board_id="late")
    authority.publish()
    authority.pending.reset()
    authority.entries.clear()
    authority.offset = authority.ledger.applied.offset
    assert authority.board() == before
    assert authority.pending.board("late") is None
    assert [state.number for state in authority.pending.changed_boards()] == [1]
    assert outcomes(authority.submit(event("e2", "ann", 4), event("e3", "bob", 4))) == ["applied", "applied_first"]


def test_view_older_than_the_ledger_cannot_decide(authority: Authority) -> None:
    authority.create()
    authority.fold()
    with authority.ledger.reader() as old:
        authority.submit(event("e1", "ann", 1))
        authority.fold()
        with pytest.raises(LedgerStale) as caught:
            authority.pending.decide(old, authority.board(), [event("e1", "ann", 1)], subject="s", now_ms=1, epoch=1, offset=3)
    assert (caught.value.seen, caught.value.applied) == (Position(1, 1), Position(1, 2))


def test_misuse_is_refused_before_anything_is_decided(authority: Authority) -> None:
    authority.create()
    authority.submit(event("e1", "ann", 1))
    state = authority.board()
    with pytest.raises(ValueError, match="the ledger stands at 0"):
        authority.pending.settle(1)
    with pytest.raises(ValueError, match="is not after"):
        authority.pending.publish(state, published_ms=1, offset=1)
    authority.fold()
    with pytest.raises(ValueError, match="is not after"):
        authority.pending.publish(state, published_ms=1, offset=2)
    unknown = BoardState(9, "other", make_rules("best_score"), "x", "op", 1)
    with authority.ledger.reader() as reader, pytest.raises(ValueError, match="is not known"):
        authority.pending.decide(reader, unknown, [], subject="s", now_ms=1, epoch=1, offset=3)


# Against a naive model.


class Known(NamedTuple):
    fingerprint: bytes
    value: int
    version: int
    offset: int


class Model:
    """One board as plain dicts that never lag."""

    def __init__(self, rules: BoardRules) -> None:
        self.rule = decider(rules)
        self.rows: dict[str, Row] = {}
        self.row_offsets: dict[str, int] = {}
        self.known: dict[tuple[str, str], Known] = {}
        self.dirty = False
        self.generation = 0

    def decide(self, submission: Submission, offset: int, folded: int) -> tuple[int, int, int, int, int]:
        """(outcome, value, version, offset, depends)"""
        identity = (submission.player_id, submission.event_id)
        if known := self.known.get(identity):
            outcome = Outcome.DUPLICATE if known.fingerprint == submission.fingerprint else Outcome.CONFLICT
            return outcome, known.value, known.version, known.offset, known.offset
        decision = self.rule(self.rows.get(submission.player_id), submission, 5000)
        if decision.outcome == Outcome.INVALID:
            changed = self.row_offsets.get(submission.player_id, 0)
            return decision.outcome, decision.value, decision.version, 0, changed if changed > folded else 0
        if decision.row is not None:
            self.rows[submission.player_id] = decision.row
            self.row_offsets[submission.player_id] = offset
            self.dirty = True
        self.known[identity] = Known(submission.fingerprint, decision.value, decision.version, offset)
        return decision.outcome, decision.value, decision.version, offset, offset

    def totals(self) -> tuple[int, int]:
        checksum = EMPTY
        for player, row in self.rows.items():
            checksum = add(checksum, row_hash(player, row))
        return checksum, len(self.rows)


amounts = st.one_of(st.integers(-3, 6), st.sampled_from([2**63 - 1, -(2**63)]))
submissions = st.builds(event, st.sampled_from(["e1", "e2", "e3", "e4"]), st.sampled_from(["ann", "bob"]), amounts, at=st.integers(1, 4))
boards = st.sampled_from(["best_score", "fastest_time", "cumulative", "latest"])


class Overlay(RuleBasedStateMachine):
    """Four boards, one of each policy; calls join into entries, entries are folded some time later, authorities are deposed."""

    @initialize()
    def begin(self) -> None:
        self.authority = Authority(MemoryLedger())
        self.models: dict[str, Model] = {}
        self.building: list[Record] = []
        self.published: set[str] = set()

    @rule(board=boards)
    def create(self, board: str) -> None:
        if board not in self.models:
            pending = self.authority.pending
            record = BoardCreated(pending.next_number(), board, make_rules(board), "incarnation", "op", 1)
            pending.create_board(record, self.authority.offset + 1)
            self.building.append(record)
            self.models[board] = Model(record.rules)

    @rule(board=boards, batch=st.lists(submissions, max_size=6))
    def decide(self, board: str, batch: list[Submission]) -> None:
        if board not in self.models or board in self.published:
            return
        offset, folded = self.authority.offset + 1, self.authority.ledger.applied.offset
        records, decided = self.authority.decide(*batch, board_id=board)
        self.building += records
        model = self.models[board]
        wanted = [model.decide(submission, offset, folded) for submission in batch]
        assert [(got.outcome, got.value, got.version, got.offset, got.depends) for got in decided] == wanted
        assert [got.epoch for got in decided] == [1 if got.offset else 0 for got in decided]
        assert [record.event_id for record in records] == [
            submission.event_id
            for submission, got in zip(batch, decided, strict=True)
            if got.outcome not in (Outcome.DUPLICATE, Outcome.CONFLICT, Outcome.INVALID)
        ]

    @rule()
    def publish_changed(self) -> None:
        for state in self.authority.pending.changed_boards():
            record = self.authority.pending.publish(state, published_ms=1, offset=self.authority.offset + 1)
            model = self.models[state.board_id]
            model.generation += 1
            model.dirty = False
            assert (record.generation, (record.checksum, record.count)) == (model.generation, model.totals())
            self.building.append(record)
            self.published.add(state.board_id)

    @rule()
    def append(self) -> None:
        self.authority.append(*self.building)
        self.building = []
        self.published.clear()

    @precondition(lambda self: self.authority.entries)
    @rule(entries=st.integers(1, 4))
    def fold(self, entries: int) -> None:
        self.authority.fold(entries)

    @precondition(lambda self: not self.building)
    @rule()
    def succeed(self) -> None:
        """A new activation adopts all that was appended, folds it, and begins with an empty overlay."""
        self.authority.pending.reset()
        self.authority.fold()
        assert len(self.authority.pending) == 0

    @invariant()
    def totals_agree(self) -> None:
        pending = self.authority.pending
        for board, model in self.models.items():
            state = self.authority.board(board)
            assert ((state.checksum, state.count), state.generation) == (model.totals(), model.generation)
        assert pending.due() == [(state.number, state.rules.publish_interval_ms) for state in pending.changed_boards()]
        assert [state.board_id for state in pending.changed_boards()] == sorted(
            (board for board, model in self.models.items() if model.dirty), key=lambda board: self.authority.board(board).number
        )

    def teardown(self) -> None:
        if not hasattr(self, "authority"):
            return
        self.append()
        self.authority.fold()
        assert len(self.authority.pending) == 0
        for board, model in self.models.items():
            assert self.authority.rows(self.authority.board(board).number) == model.rows
            assert self.authority.ledger.board(board) == self.authority.board(board)


def test_overlay_decides_like_a_ledger_that_never_lags() -> None:
    run_state_machine_as_test(Overlay, settings=settings(max_examples=120, stateful_step_count=30, deadline=None))


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(submissions, max_size=8), max_size=8),
    folds=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    policy=boards,
)
def test_when_entries_are_folded_never_changes_a_record(batches: list[list[Submission]], folds: list[int], policy: str) -> None:
    lagging, prompt = Authority(MemoryLedger()), Authority(MemoryLedger())
    for authority in (lagging, prompt):
        authority.create(policy)
    for batch, fold in zip(batches, folds, strict=False):
        records, _ = lagging.decide(*batch)
        lagging.append(*records)
        lagging.fold(fold)
        prompt.fold()
        same, _ = prompt.decide(*batch)
        prompt.append(*same)
        assert records == same
