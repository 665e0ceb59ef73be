"""Boards that are spread, marked, moved and removed: what an authority decides is what every ledger folds (I8)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boards.model import Layout, Row, Submission
from boards.policies import make_rules
from failover.generations import totals
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Imported,
    ImportedEvent,
    Manifest,
    Mark,
    Marked,
    Record,
    Relocating,
    SliceClosed,
    SliceOpened,
    Switched,
    seal_entry,
)
from ledger.lmdb_ledger import LmdbLedger
from ledger.memory import MemoryLedger
from ledger.pending import Pending
from ledger.ports import EARLIER_LIVES, ChecksumMismatch, Gone, Ledger, LedgerCorrupt

RULES = make_rules("cumulative")
LAYOUT = Layout(1, ("a/0", "a/1"))


class Shard:
    """An authority and its ledger, one entry at a time; what is pending is settled late."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.pending = ledger, Pending(ledger)
        self.offset = 0
        self.unfolded: list[Any] = []

    def entry(self, *records: Record) -> None:
        self.unfolded.append(seal_entry(1, self.offset, f"b{self.offset}", list(records)))

    def next(self) -> int:
        self.offset += 1
        return self.offset

    def fold(self) -> None:
        if self.unfolded:
            self.ledger.apply(self.unfolded)
            self.unfolded = []
            self.pending.settle(self.ledger.applied.offset)

    def create(self, board_id: str = "g:m:S1:x", layout: Layout | None = LAYOUT, slice_: int = 0, **fields: Any) -> int:
        record = BoardCreated(self.pending.next_number(), board_id, RULES, fields.pop("life", "i1"), "op", 1, layout, slice_, **fields)
        self.pending.create_board(record, self.next())
        self.entry(record)
        return record.number

    def submit(self, number: int, player: str, event: str, delta: int = 5) -> None:
        board = self.pending.numbered(number)
        assert board is not None
        offset = self.next()
        with self.ledger.reader() as reader:
            records, _ = self.pending.decide(
                reader, board, [Submission(event, player, delta, 10, 10, b"f")], subject="s", now_ms=1, epoch=1, offset=offset
            )
        self.entry(*records)

    def mark(self, number: int, generation: int = 1, lead_epoch: int = 1, keeps: int = 0) -> Mark:
        board = self.pending.numbered(number)
        assert board is not None
        offset = self.next()
        record = self.pending.mark(board, generation=generation, lead_epoch=lead_epoch, keeps=keeps, marked_ms=1, epoch=1, offset=offset)
        self.entry(record)
        return Mark(1, offset, record.checksum, record.count)

    def take(self, record: Manifest | Relocating | SliceClosed | SliceOpened | Switched) -> None:
        self.pending.take(record, self.next())
        self.entry(record)

    def remove(self, number: int, *, done: bool = True) -> None:
        record = BoardRemoved(number, "op", 1, done)
        self.pending.remove(record, self.next())
        self.entry(record)

    def bring(self, record: Imported) -> None:
        offset = self.next()
        with self.ledger.reader() as reader:
            self.pending.take_imported(reader, record, epoch=1, offset=offset)
        self.entry(record)

    def check(self, board_id: str = "g:m:S1:x") -> None:
        """With everything folded, ledger and overlay say the same."""
        before = [self.pending.numbered(n) for n in self.pending.numbers(board_id)]
        current, number = self.pending.board(board_id), self.pending.next_number()
        gone, past = self.pending.gone(board_id), self.pending.past(board_id)
        self.fold()
        assert [self.ledger.numbered(n) for n in self.ledger.numbers(board_id)] == [state for state in before if state is not None]
        assert self.ledger.board(board_id) == current
        assert (self.ledger.gone(board_id), self.ledger.past(board_id)) == (gone, past)
        assert self.pending.next_number() == number
        assert len(self.pending) == 0


@pytest.fixture(params=["memory", "lmdb"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    ledger: Ledger = MemoryLedger() if request.param == "memory" else LmdbLedger(tmp_path / "ledger", map_size=1 << 26)
    yield Shard(ledger)
    ledger.close()


def test_a_slice_is_marked_on_order_and_never_published_by_itself(shard: Shard) -> None:
    number = shard.create()
    shard.submit(number, "p", "e1")
    assert shard.pending.changed_boards() == []
    assert [b.number for b in shard.pending.coordinated()] == [number]
    first = shard.mark(number)
    state = shard.pending.numbered(number)
    assert state is not None
    assert state.mark == first
    assert not state.unpublished
    shard.check()
    assert shard.ledger.unpublished() == frozenset()
    assert shard.ledger.coordinated() == {number}


def test_a_manifest_makes_the_generation_of_its_lead(shard: Shard) -> None:
    number = shard.create()
    shard.submit(number, "p", "e1")
    marks = (shard.mark(number), Mark(4, 9, 11, 2))
    shard.take(Manifest(number, 1, 5, 1, marks, *totals(marks)))
    shard.check()
    state = shard.ledger.numbered(number)
    assert state is not None
    assert (state.generation, state.marks) == (1, marks)


def test_a_manifest_that_contradicts_the_journal_is_an_alarm(shard: Shard) -> None:
    number = shard.create()
    shard.submit(number, "p", "e1")
    own = shard.mark(number)
    shard.fold()
    other = Mark(4, 9, 11, 2)
    offset = shard.next()

    def refused(error: type[Exception], record: Record) -> None:
        with pytest.raises(error):
            shard.ledger.apply([seal_entry(1, offset, "x", [record])])

    refused(LedgerCorrupt, Manifest(number, 1, 5, 1, (own,), *totals([own])))
    refused(LedgerCorrupt, Manifest(number, 1, 5, 2, (own, other), *totals([own, other])))
    refused(LedgerCorrupt, Manifest(number, 2, 5, 1, (own, other), *totals([own, other])))
    refused(ChecksumMismatch, Manifest(number, 1, 5, 1, (own, other), own.checksum, own.count))
    stranger = Mark(own.epoch, own.offset - 1, own.checksum, own.count)
    refused(LedgerCorrupt, Manifest(number, 1, 5, 1, (stranger, other), *totals([stranger, other])))
    refused(ChecksumMismatch, Marked(number, 2, 1, 0, 5, 1, 1))
    shard.ledger.apply([seal_entry(1, offset, "x", [Manifest(number, 1, 5, 1, (own, other), *totals([own, other]))])])


def test_an_order_of_a_deposed_lead_is_an_alarm_in_a_journal(shard: Shard) -> None:
    number = shard.create(slice_=1)
    shard.mark(number, lead_epoch=4)
    shard.fold()
    with pytest.raises(LedgerCorrupt):
        shard.ledger.apply([seal_entry(1, shard.next(), "x", [Marked(number, 2, 3, 0, 5, 0, 0)])])


def test_a_removed_board_leaves_nothing_and_its_number_is_never_given_again(shard: Shard) -> None:
    first = shard.create(layout=None)
    second = shard.create("g:m:S1:y", None)
    shard.submit(first, "p", "e1")
    shard.submit(second, "p", "e1")
    shard.remove(second)
    assert shard.pending.board("g:m:S1:y") is None
    shard.check("g:m:S1:y")
    assert shard.ledger.gone("g:m:S1:y") == Gone("i1", 1)
    with shard.ledger.reader() as reader:
        assert reader.row(second, "p") is None
        assert reader.identity(second, "p", "e1") is None
        assert reader.row(first, "p") is not None
    again = shard.create("g:m:S1:y", None, life="i2")
    assert again > second
    shard.check("g:m:S1:y")
    assert shard.ledger.gone("g:m:S1:y") is None
    assert shard.ledger.past("g:m:S1:y") == Gone("i1", 1)
    shard.submit(again, "p", "e1", 7)
    shard.check("g:m:S1:y")
    with shard.ledger.reader() as reader:
        row = reader.row(again, "p")
        assert row is not None
        assert (row.value, row.version) == (7, 1)


def test_a_removal_and_a_new_life_in_one_run_of_entries_fold_like_one_by_one(shard: Shard) -> None:
    first = shard.create(layout=None)
    shard.submit(first, "p", "e1")
    shard.remove(first)
    second = shard.create(layout=None, life="i2")
    shard.submit(second, "q", "e1")
    shard.check()
    state = shard.ledger.board("g:m:S1:x")
    assert state is not None
    assert (state.number, state.incarnation, state.count) == (second, "i2", 1)
    with shard.ledger.reader() as reader:
        assert dict(reader.rows(first)) == {}
        assert [player for player, _ in reader.rows(second)] == ["q"]


@pytest.mark.parametrize("lives", [3, EARLIER_LIVES + 4])
def test_the_last_lives_of_a_board_are_remembered_whichever_is_here(shard: Shard, lives: int) -> None:
    for life in range(lives):
        number = shard.create(layout=None, life=f"i{life}")
        shard.remove(number)
        shard.check()
    shard.create(layout=None, life="now")
    shard.check()
    past = shard.ledger.past("g:m:S1:x")
    assert past is not None
    known = [life for life in range(lives) if past.left(f"i{life}") == 1]
    assert known == list(range(max(0, lives - EARLIER_LIVES - 1), lives))
    assert past.left("now") == 0


def test_what_leaves_without_having_led_says_nothing_of_where_the_board_is(shard: Shard) -> None:
    """1. The board moves away. 2. It is to come back, and does not. 3. It comes back. 4. It is removed."""
    away, back = Layout(2, ("a/1",)), Layout(4, ("a/0",))
    old = shard.create(layout=None)
    shard.take(Relocating(old, away, "op", 1))
    shard.take(SliceClosed(old, 2, 1, 1))
    shard.take(Switched(old, away, 0, 1))
    shard.remove(old)
    shard.check()
    assert shard.ledger.gone("g:m:S1:x") == Gone("i1", 1, away)
    shard.remove(shard.create(layout=Layout(3, ("a/0",)), importing=True))
    shard.check()
    assert shard.ledger.gone("g:m:S1:x") == Gone("i1", 3, away)
    here = shard.create(layout=back, importing=True)
    shard.take(SliceOpened(here, 1, 1, 1))
    shard.remove(here)
    shard.check()
    assert shard.ledger.gone("g:m:S1:x") == Gone("i1", 4)


def test_what_is_remembered_of_removed_boards_is_not_copied_with_each_entry(shard: Shard) -> None:
    state = cast("Any", shard.ledger)._state
    remembered = state.gone
    for n in range(3):
        board = f"g:m:S1:{n}"
        shard.remove(shard.create(board, None))
        shard.check(board)
    shard.create(layout=None)
    shard.check()
    assert cast("Any", shard.ledger)._state is state
    assert state.gone is remembered
    assert len(remembered) == 3


def test_a_board_on_its_way_out_is_not_shown_open_and_is_coordinated_to_the_end(shard: Shard) -> None:
    number = shard.create()
    shard.remove(number, done=False)
    state = shard.pending.board("g:m:S1:x")
    assert state is not None
    assert state.phase == "removing"
    shard.check()
    assert shard.ledger.coordinated() == {number}
    shard.remove(number)
    shard.check()
    assert shard.ledger.coordinated() == frozenset()


def test_a_move_within_one_shard_has_one_slice_that_serves_at_each_step(shard: Shard) -> None:
    """1. two slices to one; 2. copied; 3. closed; 4. switched; 5. opened; 6. the old one removed."""
    old = shard.create()
    shard.submit(old, "p", "e1")
    marks = (shard.mark(old), Mark(1, 3, 0, 0))
    shard.take(Manifest(old, 1, 5, 1, marks, *totals(marks)))
    target = Layout(2, ("a/0",))
    shard.take(Relocating(old, target, "op", 1))
    new = shard.create(layout=target, importing=True)

    def serving() -> int:
        shard.check()
        state = shard.ledger.board("g:m:S1:x")
        assert state is not None
        return state.number

    assert serving() == old
    with shard.ledger.reader() as reader:
        rows = list(reader.rows(old))
        saved = reader.identity(old, "p", "e1")
    assert saved is not None
    event = ImportedEvent("p", "e1", saved.fingerprint, saved.outcome, saved.value, saved.version)
    shard.bring(Imported(new, 0, rows, [event], None, 3))
    shard.bring(Imported(new, 0, rows, [event], None, 4))
    shard.take(SliceClosed(old, 2, 1, 1))
    assert serving() == old
    shard.take(Switched(old, target, 1, 1))
    assert serving() == old
    shard.take(SliceOpened(new, 1, 1, 1))
    assert serving() == new
    shard.remove(old)
    assert serving() == new
    assert shard.ledger.past("g:m:S1:x") == Gone("i1", 1, target)
    state = shard.ledger.numbered(new)
    assert state is not None
    assert (state.phase, state.generation, state.count) == ("open", 1, 1)
    shard.submit(new, "p", "e1", 9)
    with shard.ledger.reader() as reader:
        row = reader.row(new, "p")
        assert row is not None
        assert row.version == 1, "the identity has come along"


def test_rows_that_come_twice_or_late_never_go_back(shard: Shard) -> None:
    number = shard.create(layout=Layout(2, ("a/0",)), importing=True)
    newer, older = Row(9, 1, 1, 1, 1, 3, "e3"), Row(4, 1, 1, 1, 1, 2, "e2")
    shard.bring(Imported(number, 0, [("p", newer)], [], b"p", 7))
    shard.bring(Imported(number, 0, [("p", older)], [], None, 9))
    shard.check()
    with shard.ledger.reader() as reader:
        assert reader.row(number, "p") == newer
    state = shard.ledger.numbered(number)
    assert state is not None
    assert [(i.cursor, i.replayed) for i in state.imports] == [(None, 9)]


Step = Callable[[Shard, int], None]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.booleans()), max_size=40))
def test_whatever_is_decided_is_what_is_folded(steps: list[tuple[int, int, bool]]) -> None:
    shard, lives = Shard(MemoryLedger()), 0
    for at, (kind, who, fold) in enumerate(steps):
        board = shard.pending.board("g:m:S1:x")
        if board is None:
            lives += 1
            shard.create(life=f"i{lives}")
        elif board.phase == "removing":
            shard.remove(board.number)
        elif kind == 0:
            shard.remove(board.number, done=False)
        elif kind <= 4:
            shard.submit(board.number, f"p{who}", f"e{at}")
        elif kind == 5 or board.mark is None or board.mark == (board.marks or (None,))[0]:
            shard.mark(board.number, board.generation + 1)
        else:
            marks = (board.mark, Mark(1, at, at, 1))
            shard.take(Manifest(board.number, board.generation + 1, at, 1, marks, *totals(marks)))
        if fold:
            shard.check()
    shard.check()
