"""What a move's orders decide where they are carried out, late, twice, and from leads that were deposed; and what a slice gives away."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import board_changes, exporting, relocation_changes
from actors.board_changes import Draft, Result, Slice
from actors.exporting import Chunk, Wanted, decode_chunk
from actors.importing import Importing
from actors.messages import NoAuthority, NotServing, Unanswered, UnknownBoard
from actors.relocating import BEHIND, Relocation
from boards.model import Layout, Row, Submission
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.memory import MemoryJournal, MemoryLog
from journal.records import BoardCreated, BoardRemoved, Imported, ImportedEvent, Record, SliceClosed, SliceOpened, seal_entry
from ledger import lmdb_ledger
from ledger.lmdb_ledger import LmdbLedger
from ledger.memory import MemoryLedger
from ledger.pending import Pending
from ledger.ports import BoardState, Ledger, Saved, SliceImport

BOARD, LIFE = "g:m:S1:x", "i1"
RULES = make_rules("cumulative")
ONE, TWO = Layout(1, ("a/0",)), Layout(2, ("a/0", "a/1"))


class Shard:
    """One authority's ledger and overlay; each `do` is an entry of its own, folded at once unless `hold`."""

    def __init__(self, ledger: Ledger, shard: str = "a/0") -> None:
        self.ledger, self.pending, self.shard = ledger, Pending(ledger), shard
        self.offset = 0
        self.entries: list[list[Record]] = []

    def do(self, decide: Callable[[Draft], Result], *, hold: bool = False) -> Any:
        offset = self.offset + 1
        with self.ledger.reader() as reader:
            draft = Draft(self.pending, reader, 1, offset, 1000 + offset)
            result = decide(draft)
        assert result.depends == (offset if draft.records else offset - 1), "it rests on all that it has seen"
        if draft.records:
            self.offset = offset
            self.entries.append(draft.records)
        if not hold:
            self.fold()
        return result.value

    def fold(self) -> None:
        first = self.ledger.applied.offset + 1
        states = [self.pending.numbered(n) for n in self.pending.numbers(BOARD)]
        for offset in range(first, self.offset + 1):
            self.ledger.apply([seal_entry(1, offset, f"b{offset}", self.entries[offset - 1])])
        self.pending.settle(self.offset)
        assert [self.ledger.numbered(n) for n in self.ledger.numbers(BOARD)] == [s for s in states if s is not None]

    def create(self, layout: Layout = ONE) -> BoardState:
        state, _ = self.do(board_changes.create(BOARD, RULES, LIFE, "op", layout))
        assert isinstance(state, BoardState)
        return state

    def submit(self, player: str, event: str, amount: int = 5, *, number: int = 1) -> None:
        def decided(draft: Draft) -> Result:
            board = draft.pending.numbered(number)
            assert board is not None
            one = Submission(event, player, amount, 10, 10, b"f")
            records, _ = draft.pending.decide(draft.reader, board, [one], subject="s", now_ms=draft.now_ms, epoch=1, offset=draft.offset)
            draft.records.extend(records)
            return Result(None, draft.offset)

        self.do(decided)

    def refused(self, decide: Callable[[Draft], Result], *kinds: type[Unanswered]) -> str:
        before = self.offset
        with pytest.raises(kinds or (Unanswered,)) as error:
            self.do(decide)
        assert self.offset == before, "a refusal leaves nothing"
        assert error.value.definite
        return str(error.value.code)

    def state(self) -> BoardState:
        found = self.pending.slice_numbered(BOARD, 1)
        assert found is not None
        return found


@pytest.fixture(params=["memory", "lmdb"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = MemoryLedger() if request.param == "memory" else LmdbLedger(tmp_path / "ledger", map_size=1 << 26)
    yield made
    made.close()


@pytest.fixture
def shard() -> Shard:
    return Shard(MemoryLedger())


def begin(*shards: str) -> Callable[[Draft], Result]:
    return relocation_changes.begin(BOARD, shards, "op", shard="a/0")


def close(lead_epoch: int = 1, above: int = 0, target: int = 2) -> Callable[[Draft], Result]:
    return relocation_changes.close(BOARD, LIFE, 1, target=target, lead_epoch=lead_epoch, above=above)


def open_again(closed_at: int, lead_epoch: int = 1) -> Callable[[Draft], Result]:
    return relocation_changes.open_again(BOARD, LIFE, 1, generation=0, lead_epoch=lead_epoch, closed_at=closed_at)


def part(layout: Layout, index: int) -> Slice:
    return Slice(BOARD, LIFE, RULES, layout, index, "op", 1)


# -- the lead -------------------------------------------------------------------------------------------------------


def test_the_number_of_a_layout_that_was_given_up_is_not_used_again(shard: Shard) -> None:
    shard.create()
    assert shard.do(begin("a/1")) == Layout(2, ("a/1",))
    assert shard.do(begin("a/1")) == Layout(2, ("a/1",)), "the same order again"
    with pytest.raises(Unanswered) as elsewhere:
        shard.do(begin("a/2"))
    told = ("relocation_refused", {"code": "relocation_refused", "field": "shards", "allowed": "a/1"})
    assert (elsewhere.value.code, elsewhere.value.fields) == told, "where it goes already is the one thing to be ordered"
    assert shard.do(relocation_changes.give_up(BOARD, LIFE, "op")) is True
    assert shard.refused(begin("a/1")) == "relocation_refused", "it is on its way back first"
    assert shard.do(relocation_changes.settle(1, "a/0")) is True
    assert shard.do(relocation_changes.settle(1, "a/0")) is False
    assert shard.do(relocation_changes.give_up(BOARD, "", "op")) is False
    assert shard.do(begin("a/2")) == Layout(3, ("a/2",))


def test_a_lead_switches_only_what_is_closed_as_it_was_when_all_was_compared(shard: Shard) -> None:
    shard.create()
    target = shard.do(begin("a/1"))
    assert shard.refused(relocation_changes.switch(1, target, 0)) == "busy"
    first = shard.do(close()).offset
    shard.do(open_again(first))
    second = shard.do(close(above=first)).offset
    assert shard.refused(relocation_changes.switch(1, target, first)) == "busy"
    assert shard.refused(relocation_changes.switch(1, Layout(2, ("a/3",)), second)) == "busy"
    assert shard.do(relocation_changes.switch(1, target, second)) == 0
    assert shard.state().phase == "moved"
    assert shard.refused(relocation_changes.give_up(BOARD, LIFE, "op"), NoAuthority) == "moved"
    assert shard.refused(begin("a/3"), NoAuthority) == "moved"
    assert shard.refused(open_again(second), NoAuthority) == "moving"


def test_what_is_given_up_does_not_switch(shard: Shard) -> None:
    shard.create()
    target = shard.do(begin("a/1"))
    closed = shard.do(close()).offset
    shard.do(relocation_changes.give_up(BOARD, LIFE, "op"))
    assert shard.refused(relocation_changes.switch(1, target, closed)) == "busy"


def test_a_board_with_dense_ranks_is_not_spread(shard: Shard) -> None:
    rules = make_rules("cumulative", ranking="dense")
    shard.do(board_changes.create(BOARD, rules, LIFE, "op", ONE))
    assert shard.refused(begin("a/0", "a/1")) == "bad_rule"
    assert shard.do(begin("a/1")) == Layout(2, ("a/1",))


# -- slices of the present layout -----------------------------------------------------------------------------------


def test_one_order_to_close_is_one_closure_however_often_it_comes(shard: Shard) -> None:
    shard.create()
    shard.submit("p", "e1")
    first = shard.do(close())
    assert shard.do(close()) == first
    assert (first.count, first.checksum) == (1, shard.state().checksum)
    assert [type(r) for records in shard.entries for r in records].count(SliceClosed) == 1


def test_a_closure_of_another_epoch_another_try_or_another_move_is_another(shard: Shard) -> None:
    shard.create()
    first = shard.do(close(1)).offset
    second = shard.do(close(2)).offset
    third = shard.do(close(2, above=second)).offset
    fourth = shard.do(close(2, target=3)).offset
    assert first < second < third < fourth


def test_an_opening_that_comes_late_opens_nothing_but_what_it_is_about(shard: Shard) -> None:
    """1. Closed, and an opening is on its way. 2. Closed again for the next try. 3. The opening comes."""
    shard.create()
    first = shard.do(close()).offset
    second = shard.do(close(above=first)).offset
    assert shard.do(open_again(first)).closed_at == second
    assert shard.state().phase == "closed"
    assert shard.do(open_again(second)).closed_at == 0
    assert shard.do(open_again(second)).closed_at == 0
    assert shard.state().phase == "open"


def test_a_deposed_lead_neither_closes_nor_opens(shard: Shard) -> None:
    shard.create()
    closed = shard.do(close(4)).offset
    assert shard.refused(close(3), NoAuthority) == "no_authority"
    assert shard.refused(open_again(closed, 3), NoAuthority) == "no_authority"
    shard.do(open_again(closed, 5))
    assert shard.refused(close(4), NoAuthority) == "no_authority"


def test_a_closed_slice_takes_no_event_and_is_still_marked(shard: Shard) -> None:
    shard.create(TWO)
    decide = relocation_changes.close(BOARD, LIFE, 2, target=3, lead_epoch=1, above=0)
    shard.do(decide)
    state = shard.pending.board(BOARD)
    assert state is not None
    with pytest.raises(NoAuthority) as refused:
        board_changes.refuse_unless_open(state, "a/0")
    assert (refused.value.code, refused.value.definite) == ("moving", True)
    assert shard.do(board_changes.mark(part(TWO, 0), generation=1, lead_epoch=1, keeps=0)).count == 0


def test_events_for_another_slice_are_refused_with_the_layout(shard: Shard) -> None:
    shard.create(TWO)
    state = shard.pending.board(BOARD)
    assert state is not None
    mine = next(f"p{n}" for n in range(99) if slice_of(f"p{n}", 2) == 0)
    other = next(f"p{n}" for n in range(99) if slice_of(f"p{n}", 2) == 1)
    board_changes.refuse_strangers(state, [Submission("e1", mine, 1, 1, 1, b"f")])
    with pytest.raises(NoAuthority) as refused:
        board_changes.refuse_strangers(state, [Submission("e1", p, 1, 1, 1, b"f") for p in (mine, other)])
    assert refused.value.code == "moved"
    assert msgspec.convert(refused.value.fields["layout"], Layout) == TWO


# -- slices of the next layout --------------------------------------------------------------------------------------


def test_what_was_given_up_is_not_made_again_by_an_order_that_comes_late(ledger: Ledger) -> None:
    """Neither where it was, nor where the order to make it comes only now; beside another slice of the board or not."""
    for beside in (False, True):
        shard = Shard(ledger) if not beside else Shard(MemoryLedger())
        if beside:
            shard.create()
        target = Layout(2, ("a/1", "a/0"))
        state = shard.do(relocation_changes.begin_import(part(target, 1)))
        assert state.phase == "importing"
        assert shard.do(relocation_changes.begin_import(part(target, 1))) == state
        assert shard.do(relocation_changes.forget(part(target, 1), "op")) is True
        assert shard.do(relocation_changes.forget(part(target, 1), "op")) is False
        assert shard.refused(relocation_changes.begin_import(part(target, 1))) == "unknown_board"
        never = Layout(3, ("a/1", "a/0"))
        assert shard.do(relocation_changes.forget(part(never, 1), "op")) is True
        assert shard.refused(relocation_changes.begin_import(part(never, 1))) == "unknown_board"
        assert shard.do(relocation_changes.begin_import(part(Layout(4, ("a/0",)), 0))).phase == "importing"


def test_a_slice_of_the_old_layout_does_not_come_back_beside_the_new_one(shard: Shard) -> None:
    shard.create(TWO)
    shard.do(relocation_changes.begin_import(part(Layout(3, ("a/0",)), 0)))
    shard.do(relocation_changes.open_imported(BOARD, LIFE, 3, generation=7, lead_epoch=1))
    shard.do(board_changes.remove_slice(BOARD, LIFE, 2, "op"))
    late = board_changes.mark(part(TWO, 0), generation=8, lead_epoch=1, keeps=0)
    assert shard.refused(late, UnknownBoard) == "unknown_board"
    state = shard.pending.board(BOARD)
    assert state is not None
    assert (state.layout_number, state.generation, state.phase) == (3, 7, "open")


def test_a_slice_is_opened_once_and_its_lead_goes_on_with_the_generations(shard: Shard) -> None:
    state = shard.do(relocation_changes.begin_import(part(Layout(2, ("a/0",)), 0)))
    decide = relocation_changes.open_imported(BOARD, LIFE, 2, generation=9, lead_epoch=3)
    assert shard.do(decide) == "open"
    assert shard.do(decide) == "open"
    assert [type(r) for records in shard.entries for r in records].count(SliceOpened) == 1
    shard.submit("p", "e1", number=state.number)
    (due,) = shard.pending.changed_boards()
    assert due.generation == 9
    assert shard.refused(relocation_changes.forget(part(Layout(2, ("a/0",)), 0), "op")) == "relocation_refused"


def row(value: int, version: int) -> Row:
    return Row(value, 1, 1, 1, 1, version, f"e{version}")


def test_players_that_come_twice_are_written_once_and_keep_their_first_place(ledger: Ledger) -> None:
    shard = Shard(ledger)
    number = shard.do(relocation_changes.begin_import(part(Layout(2, ("a/0",)), 0))).number
    event = ImportedEvent("p", "e1", b"f", 1, 5, 1)

    def bring(rows: list[tuple[str, Row]], events: list[ImportedEvent], replayed: int) -> Any:
        return shard.do(relocation_changes.bring(number, 0, rows, events, None, replayed))

    assert bring([("p", row(5, 1))], [event], 4) == (1, 1)
    assert bring([("p", row(5, 1))], [event], 6) == (0, 0)
    assert bring([("p", row(9, 2)), ("q", row(1, 1))], [event, ImportedEvent("p", "e2", b"f", 1, 9, 2)], 8) == (2, 1)
    brought = [r for records in shard.entries for r in records if isinstance(r, Imported)]
    assert [(len(r.rows), len(r.events), r.replayed) for r in brought] == [(1, 1, 4), (0, 0, 6), (2, 1, 8)]
    with ledger.reader() as reader:
        saved = reader.identity(number, "p", "e1")
        assert saved is not None
        assert saved.offset == 2
        assert reader.row(number, "p") == row(9, 2)
    shard.do(relocation_changes.open_imported(BOARD, LIFE, 2, generation=0, lead_epoch=1))
    assert shard.refused(relocation_changes.bring(number, 0, [], [], None, 9)) == "unknown_board"


def test_a_tombstone_folds_in_one_entry(ledger: Ledger) -> None:
    shard = Shard(ledger)
    shard.do(relocation_changes.forget(part(TWO, 1), "op"))
    assert [type(record) for record in shard.entries[-1]] == [BoardCreated, BoardRemoved]
    assert ledger.boards() == {}
    assert ledger.gone(BOARD) is not None


# -- what a slice gives ---------------------------------------------------------------------------------------------


def filled(ledger: Ledger, players: int = 40, events: int = 3) -> Shard:
    shard = Shard(ledger)
    shard.do(board_changes.create("g:m:S1:before", RULES, "i0", "op", None))
    state = shard.create()
    shard.do(board_changes.create("g:m:S1:behind", RULES, "i2", "op", None))
    for n in range(players):
        for k in range(events):
            shard.submit(f"p{n:02}é", f"e{k}", n + k + 1, number=state.number)
    return shard


@contextmanager
def small_chunks(monkeypatch: pytest.MonkeyPatch, looked_at: int, things: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "LOOKED_AT", looked_at)
        patch.setattr(exporting, "THINGS", things)
        yield


def whole(ledger: Ledger, wanted: Wanted) -> list[Chunk]:
    chunks: list[Chunk] = []
    while not chunks or chunks[-1].cursor is not None:
        chunks.append(decode_chunk(exporting.copy(ledger, wanted, (chunks[-1].cursor or b"") if chunks else b"", 0)))
    return chunks


@pytest.mark.parametrize(("looked_at", "things"), [(1, 1000), (7, 1000), (5000, 5), (5000, 1000)])
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_are_all_of_a_slice_and_nothing_twice(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, looked_at: int, things: int, parts: int
) -> None:
    number = filled(ledger).state().number
    rows: list[tuple[str, Row]] = []
    events: list[tuple[str, str]] = []
    with small_chunks(monkeypatch, looked_at, things):
        for index in range(parts):
            for chunk in whole(ledger, Wanted(BOARD, LIFE, 1, index, parts)):
                assert len(chunk.rows) + len(chunk.events) <= things
                assert all(slice_of(player, parts) == index for player, _ in chunk.rows)
                rows += chunk.rows
                events += [(e.player_id, e.event_id) for e in chunk.events]
                assert chunk.upto == ledger.applied.offset
    with ledger.reader() as reader:
        assert sorted(rows) == sorted(reader.rows(number))
        assert len(rows) == 40
        assert sorted(events) == sorted((f"p{n:02}é", f"e{k}") for n in range(40) for k in range(3))


def test_both_ledgers_tell_the_same_in_the_same_order(tmp_path: Path) -> None:
    told = []
    lmdb = LmdbLedger(tmp_path / "ledger", map_size=1 << 26)
    for made in (MemoryLedger(), lmdb):
        number = filled(made, 12).state().number
        with made.reader() as reader:
            told.append([h for h in reader.content(number, b"", lambda p: p != "p03é") if h.stored is not None])
            assert all(isinstance(h.stored, Saved if h.event_id else Row) for h in told[-1])
            middle = told[-1][20].place
            assert [h for h in reader.content(number, middle, lambda p: p != "p03é") if h.stored is not None] == told[-1][21:]
    assert told[0] == told[1]
    assert len(told[0]) == 11 * 4
    lmdb.close()


def test_what_is_too_old_or_not_whole_is_not_told(ledger: Ledger) -> None:
    shard = filled(ledger, 3)
    wanted = Wanted(BOARD, LIFE, 1, 0, 1)
    with pytest.raises(NotServing):
        exporting.copy(ledger, wanted, b"", ledger.applied.offset + 1)
    for other in (Wanted(BOARD, "i9", 1, 0, 1), Wanted(BOARD, LIFE, 2, 0, 1), Wanted("g:m:S1:no", LIFE, 1, 0, 1)):
        with pytest.raises(NotServing):
            exporting.copy(ledger, other, b"", 0)
    shard.do(relocation_changes.begin_import(part(Layout(2, ("a/0", "a/1")), 0)))
    with pytest.raises(NotServing):
        exporting.copy(ledger, Wanted(BOARD, LIFE, 2, 0, 1), b"", 0)


def test_the_tail_is_told_up_to_what_is_committed_and_only_of_the_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = filled(MemoryLedger(), 20, 2)
    log = MemoryLog("a/0", "eu")
    log._entries = [seal_entry(1, n, f"b{n}", records) for n, records in enumerate(shard.entries, start=1)]
    log._committed = len(log._entries) - 5
    journal = MemoryJournal(log)
    rows: dict[str, Row] = {}
    seen = 0

    async def tail(index: int, after: int) -> Chunk:
        wanted = Wanted(BOARD, LIFE, 1, index, 2)
        return decode_chunk(await exporting.replay(journal, shard.ledger, wanted, after, 1))

    async def read() -> None:
        nonlocal seen
        for index in range(2):
            after = 3
            while (chunk := await tail(index, after)).upto > after:
                assert len(chunk.events) <= 4
                assert chunk.behind == log._committed - chunk.upto
                assert all(slice_of(event.player_id, 2) == index for event in chunk.events)
                after, seen = chunk.upto, seen + len(chunk.events)
                for player, new in chunk.rows:
                    assert new.version > rows.get(player, row(0, 0)).version
                    rows[player] = new
            assert after == log._committed

    with small_chunks(monkeypatch, 5000, 4):
        asyncio.run(read())
    assert seen == log._committed - 3
    assert {player: r.version for player, r in rows.items()} == {f"p{n:02}é": 2 for n in range(17)} | {"p17é": 1}


def test_a_big_slice_leaves_the_disk_little_by_little_also_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A slice is removed: it is gone at once. 2. Its keys go with the entries that follow, so many at a time."""
    monkeypatch.setattr(lmdb_ledger, "_DELETES", 25)
    ledger = LmdbLedger(tmp_path / "ledger", map_size=1 << 26)
    shard = filled(ledger, 20, 2)
    number = shard.state().number

    def left() -> int:
        with ledger.reader() as reader:
            return sum(1 for _ in reader.content(number, b"", lambda player: True))

    assert left() == 60
    shard.do(board_changes.remove_slice(BOARD, LIFE, 1, "op"))
    assert ledger.numbered(number) is None
    assert left() == 35
    ledger.close()
    ledger = shard.ledger = LmdbLedger(tmp_path / "ledger", map_size=1 << 26)
    shard.pending = Pending(ledger)
    for event, due in (("x1", 10), ("x2", 0), ("x3", 0)):
        shard.submit("q", event, number=1)
        assert left() == due
    with ledger.reader() as reader:
        assert reader.row(1, "q") is not None
    ledger.close()


def test_a_slice_that_was_removed_before_it_was_there_is_not_made_by_a_mark_that_comes_late(shard: Shard) -> None:
    remove = board_changes.remove_slice(BOARD, LIFE, 1, "op", wanted=part(Layout(1, ("a/1", "a/0")), 1))
    assert shard.do(remove) is True
    assert shard.do(remove) is False
    late = board_changes.mark(part(Layout(1, ("a/1", "a/0")), 1), generation=1, lead_epoch=1, keeps=0)
    assert shard.refused(late, UnknownBoard) == "unknown_board"


# -- the target ---------------------------------------------------------------------------------------------------------


class QuietLinks:
    """Sources that have nothing new."""

    async def operate(self, _region: str, _shard: str, order: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"ok": True, "chunk": msgspec.msgpack.encode(exporting.Chunk([], [], None, order["after"]))}


def test_a_target_heeds_the_newest_lead_and_keeps_nothing_of_slices_that_it_has_filled() -> None:
    state = SimpleNamespace(number=7, phase="importing", imports=(SliceImport(0, None, 5),), checksum=0, count=0)

    async def change(_decide: object, **_: object) -> Any:
        return state

    async def story() -> None:
        writer: Any = SimpleNamespace(accepting=True, pending=SimpleNamespace(numbered=lambda _: state), change=change)
        running: list[asyncio.Task[None]] = []

        def spawn(work: Any) -> None:
            running.append(asyncio.get_running_loop().create_task(work))

        links: Any = QuietLinks()
        importing = Importing(region="eu", regions=("eu", "us"), writer=writer, links=links, spawn=spawn)

        async def fill(lead_epoch: int) -> dict[str, Any]:
            wanted = part(Layout(2, ("a/1",)), 0)
            return await importing.fill(wanted, ("a/0",), 1, lead_epoch=lead_epoch, boundaries=(), wait_ms=0, known=(9,))

        assert (await fill(3))["phase"] == "importing"
        with pytest.raises(NoAuthority):
            await fill(2)
        state.phase = "open"
        await asyncio.gather(*running)
        assert await fill(2) == {"phase": "open"}
        assert len(running) == 1
        assert importing._filling == {}

    asyncio.run(story())


def test_sources_are_not_closed_while_a_target_reads_them_where_their_newest_entries_have_not_come() -> None:
    """The region that it reads in knows of no entry that is missing; the source's authority does."""
    state: Any = SimpleNamespace(number=1, board_id=BOARD, layout=None, target=Layout(2, ("a/1",)))
    move = Relocation(state, shard="a/0", writer=None, order=None, monotonic_ms=lambda: 0)  # type: ignore[arg-type]
    progress = {"sources": [{"copied": True, "replayed": 500, "behind": 0}]}
    assert move._nearly_there(progress)
    move._committed = [500 + BEHIND + 1]
    assert not move._nearly_there(progress)
    move._committed = [500 + BEHIND]
    assert move._nearly_there(progress)
    assert not move._nearly_there({"sources": [{"copied": True, "replayed": 500, "behind": None}]})
    assert not move._nearly_there(None)
