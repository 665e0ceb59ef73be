"""What every ledger does, memory and LMDB alike; then what only files can do: survive a kill, and distrust a new boot."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards.checksum import EMPTY, add, row_hash
from boards.model import Outcome, Row, Status
from boards.policies import make_rules
from journal.ports import JournalStatus, Position
from journal.records import BoardCreated, BoardRemoved, Entry, EpochStarted, HandedOver, Published, Record, Scored, Term, seal_entry
from ledger.lmdb_ledger import LmdbLedger
from ledger.memory import MemoryLedger
from ledger.ports import ChecksumMismatch, Ledger, LedgerCorrupt, LedgerGap, LedgerUnavailable

SMALL = 64 << 20
BOARD = "arena-clash:solo:S7:global"


def started(epoch: int) -> EpochStarted:
    return EpochStarted(epoch, "eu-west", f"attempt-{epoch}", epoch - 1, "eu-west", "restart", "op", "quorum", {"eu-west": "t"}, 1, "L1", 0)


def created(number: int = 1, board_id: str = BOARD) -> BoardCreated:
    return BoardCreated(number, board_id, make_rules("best_score"), f"incarnation-{number}", "op", 5)


def row(value: int, version: int, *, status: Status = Status.ACTIVE) -> Row:
    return Row(value, 1000, 1000, 1001, 1002, version, f"evt-{version}", int(status))


def scored(player: str, event: str, new: Row | None, *, board: int = 1, value: int | None = None) -> Scored:
    value = (0 if new is None else new.value) if value is None else value
    version = 1 if new is None else new.version
    outcome = Outcome.NOT_AN_IMPROVEMENT if new is None else Outcome.APPLIED
    return Scored(board, player, event, event.encode(), int(outcome), value, version, new, value, 1000, 1001, 1002, "game-server-1")


def published(generation: int, rows: dict[str, Row], *, board: int = 1) -> Published:
    checksum = EMPTY
    for player, held in rows.items():
        checksum = add(checksum, row_hash(player, held))
    return Published(board, generation, 7, checksum, sum(held.status == Status.ACTIVE for held in rows.values()))


def journal(*batches: Sequence[Record], epoch: int = 1, first: int = 1) -> list[Entry]:
    return [seal_entry(epoch, first + index, f"batch-{first + index}", list(batch)) for index, batch in enumerate(batches)]


#: A journal of two epochs: 1 to 4, and 5 to 7.
STORY = journal(
    [started(1), created()],
    [scored("ann", "e1", row(100, 1)), scored("bob", "e1", row(70, 1))],
    [scored("ann", "e2", None, value=100), scored("bob", "e2", row(90, 2)), published(1, {"ann": row(100, 1), "bob": row(90, 2)})],
    [HandedOver("us-east", "op", 9)],
) + journal([started(2)], [created(2, "b")], [scored("ann", "e1", row(5, 1), board=2), scored("zoë", "é", row(-3, 1))], epoch=2, first=5)


def everything(ledger: Ledger) -> dict[str, Any]:
    """All that can be observed of a ledger."""
    with ledger.reader() as reader:
        assert reader.applied == ledger.applied
        rows = {number: list(reader.rows(number)) for number in ledger.boards()}
        identities = {
            (number, player, event): reader.identity(number, player, event)
            for number in rows
            for player in ("ann", "bob", "cy", "zoë")
            for event in ("e1", "e2", "e3", "e4", "é")
        }
    return {"applied": ledger.applied, "boards": ledger.boards(), "rows": rows, "identities": identities, "open": ledger.unpublished()}


@pytest.fixture(params=["memory", "lmdb"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = MemoryLedger() if request.param == "memory" else LmdbLedger(tmp_path / "ledger", map_size=SMALL)
    yield made
    made.close()


def test_entries_fold_into_rows_identities_and_board_totals(ledger: Ledger) -> None:
    ledger.apply(STORY)
    assert ledger.applied == Position(2, 7)
    board = ledger.board(BOARD)
    assert board is not None
    assert (board.number, board.generation, board.count, board.changed, board.published_offset) == (1, 1, 3, 7, 3)
    assert (board.published_count, board.published_ms) == (2, 7)
    assert board.checksum == published(2, {"ann": row(100, 1), "bob": row(90, 2), "zoë": row(-3, 1)}).checksum
    assert ledger.unpublished() == {1, 2}
    with ledger.reader() as reader:
        assert list(reader.rows(1)) == [("ann", row(100, 1)), ("bob", row(90, 2)), ("zoë", row(-3, 1))]
        assert list(reader.rows(2)) == [("ann", row(5, 1))]
        assert reader.row(1, "ann") == row(100, 1)
        assert reader.row(2, "bob") is None
        saved = reader.identity(1, "ann", "e2")
        assert saved is not None
        assert (saved.fingerprint, saved.outcome, saved.value, saved.epoch, saved.offset) == (b"e2", Outcome.NOT_AN_IMPROVEMENT, 100, 1, 3)
        assert reader.identity(1, "an", "ne2") is None


def test_board_without_rows_yields_none_and_neighbours_do_not_leak_in(ledger: Ledger) -> None:
    ledger.apply(journal([created(1, "a"), created(2, "b"), created(256, "c")], [scored("x", "e", row(1, 1), board=b) for b in (1, 256)]))
    with ledger.reader() as reader:
        assert [len(list(reader.rows(number))) for number in (1, 2, 3, 256)] == [1, 0, 0, 1]


def test_rows_come_by_player_bytes_however_many_events_each_player_has(ledger: Ledger) -> None:
    players = ["a", "a b", "aa", "b", "~", "é", "\U0001f600"]
    batches: list[list[Record]] = [[created()]]
    batches += [[scored(p, f"e{v}", row(v, v)) for p in players for v in range(1, 4 if p == "aa" else 30)]]
    ledger.apply(journal(*batches))
    with ledger.reader() as reader:
        assert [player for player, _ in reader.rows(1)] == players


def test_longest_ids_fit(ledger: Ledger) -> None:
    player, event = "\U0001f600" * 32, "e" * 128
    ledger.apply(journal([created(), scored(player, event, row(1, 1), board=1)]))
    with ledger.reader() as reader:
        assert list(reader.rows(1)) == [(player, row(1, 1))]
        assert reader.identity(1, player, event) is not None


def test_entries_already_applied_are_skipped(ledger: Ledger) -> None:
    ledger.apply(STORY[:4])
    ledger.apply(STORY[1:3])
    ledger.apply(STORY[2:])
    once = everything(ledger)
    ledger.apply(STORY)
    ledger.apply([])
    assert everything(ledger) == once
    assert ledger.applied == Position(2, 7)


def test_entry_of_another_epoch_at_an_applied_offset_is_an_alarm(ledger: Ledger) -> None:
    ledger.apply(STORY)
    before = everything(ledger)
    for offset, epoch in ((7, 1), (4, 2), (5, 3)):
        with pytest.raises(LedgerCorrupt, match="was folded"):
            ledger.apply([seal_entry(epoch, offset, "x", [])])
    with pytest.raises(LedgerCorrupt, match="follows epoch"):
        ledger.apply([seal_entry(1, 8, "x", [])])
    assert everything(ledger) == before


def test_gap_is_refused_whole(ledger: Ledger) -> None:
    ledger.apply(STORY[:2])
    before = everything(ledger)
    with pytest.raises(LedgerGap) as caught:
        ledger.apply(STORY[3:])
    assert (caught.value.applied, caught.value.offset) == (Position(1, 2), 4)
    with pytest.raises(LedgerGap):
        ledger.apply([STORY[2], STORY[4]])
    assert everything(ledger) == before


BAD: dict[str, Record] = {
    "same version, other row": scored("ann", "e3", row(101, 1)),
    "identity again, other result": scored("ann", "e1", None, value=3),
    "unknown board": scored("ann", "e3", row(1, 1), board=9),
    "unknown board published": published(1, {}, board=9),
    "wrong checksum": published(2, {"ann": row(99, 1), "bob": row(90, 2)}),
    "generation left out": published(3, {"ann": row(100, 1), "bob": row(90, 2), "cy": row(1, 1)}),
    "board number taken": created(1, "other"),
    "board id taken": created(7, BOARD),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_failing_transaction_leaves_nothing(ledger: Ledger, bad: Record) -> None:
    ledger.apply(STORY[:3])
    before = everything(ledger)
    good = [scored("cy", "e1", row(1, 1)), scored("ann", "e4", None, value=100)]
    with pytest.raises(LedgerCorrupt) as caught:
        ledger.apply(journal(good, [created(8, "fine"), bad], first=4))
    assert caught.value.offset == 5
    assert everything(ledger) == before
    ledger.apply(journal(good, first=4))
    assert ledger.applied == Position(1, 4)


def test_two_results_of_one_identity_in_one_transaction_are_an_alarm(ledger: Ledger) -> None:
    with pytest.raises(LedgerCorrupt, match="recorded again"):
        ledger.apply(journal([created()], [scored("ann", "e1", row(1, 1))], [scored("ann", "e1", row(2, 2))]))
    assert ledger.applied == Position(0, 0)


def test_undecodable_entry_is_an_alarm(ledger: Ledger) -> None:
    with pytest.raises(LedgerCorrupt, match="no list of records"):
        ledger.apply([Entry(1, 1, "x", "0" * 16, b"\x93\x01")])
    assert ledger.applied == Position(0, 0)


def test_lower_version_is_ignored_and_equal_row_is_no_op(ledger: Ledger) -> None:
    ledger.apply(STORY[:3])
    before = ledger.board(BOARD)
    ledger.apply(journal([scored("bob", "e3", row(70, 1)), scored("bob", "e4", row(90, 2))], first=4))
    assert ledger.board(BOARD) == before
    with ledger.reader() as reader:
        assert reader.row(1, "bob") == row(90, 2)
        assert reader.identity(1, "bob", "e3") is not None


def test_record_that_says_the_same_again_is_harmless(ledger: Ledger) -> None:
    ledger.apply(STORY[:3])
    ledger.apply(journal([scored("bob", "e2", row(90, 2)), created()], first=4))
    with ledger.reader() as reader:
        saved = reader.identity(1, "bob", "e2")
        assert saved is not None
        assert saved.offset == 3


def test_checksum_mismatch_names_board_generation_and_both_values(ledger: Ledger) -> None:
    ledger.apply(STORY[:2])
    bad = published(1, {"ann": row(100, 1)})
    good = published(1, {"ann": row(100, 1), "bob": row(70, 1)})
    with pytest.raises(ChecksumMismatch) as caught:
        ledger.apply(journal([bad], first=3))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.board, error.generation, error.offset) == (1, 1, 3)
    assert (error.published_checksum, error.folded_checksum) == (bad.checksum, good.checksum)
    assert (error.published_count, error.folded_count) == (1, 2)
    assert str(error) == str(caught.value)
    with pytest.raises(ChecksumMismatch):
        ledger.apply(journal([Published(1, 1, 7, good.checksum, 1)], first=3))
    ledger.apply(journal([good], first=3))
    assert ledger.unpublished() == set()


def test_boundary_includes_the_whole_entry_of_its_publish_record(ledger: Ledger) -> None:
    ledger.apply(journal([created()], [published(1, {"ann": row(4, 1)}), scored("ann", "e1", row(4, 1))]))
    assert ledger.unpublished() == set()


def test_invalidated_row_stays_in_the_checksum_and_leaves_the_count(ledger: Ledger) -> None:
    gone = row(4, 2, status=Status.INVALIDATED)
    ledger.apply(journal([created(), scored("ann", "e1", row(4, 1))], [scored("ann", "e2", gone), published(1, {"ann": gone})]))
    board = ledger.board(BOARD)
    assert board is not None
    assert board.count == 0
    assert board.checksum == row_hash("ann", gone)
    ledger.apply(journal([scored("ann", "e3", row(4, 3)), published(2, {"ann": row(4, 3)})], first=3))


def test_view_does_not_see_what_is_applied_after_it_was_opened(ledger: Ledger) -> None:
    ledger.apply(STORY[:2])
    with ledger.reader() as reader:
        ledger.apply(STORY[2:])
        assert reader.applied == Position(1, 2)
        assert reader.row(1, "bob") == row(70, 1)
        assert reader.identity(1, "bob", "e2") is None
        assert [player for player, _ in reader.rows(1)] == ["ann", "bob"]
    with ledger.reader() as reader:
        assert reader.row(1, "bob") == row(90, 2)


def test_decoded_records_are_taken_as_given(ledger: Ledger) -> None:
    ledger.apply([Entry(1, 1, "x", "0" * 16, b"")], [[created(), scored("ann", "e1", row(1, 1))]])
    with ledger.reader() as reader:
        assert reader.row(1, "ann") == row(1, 1)


def test_rebuild_from_the_first_entry_is_the_same(ledger: Ledger) -> None:
    ledger.apply(STORY)
    before = everything(ledger)
    ledger.clear()
    assert (ledger.applied, ledger.boards(), ledger.unpublished()) == (Position(0, 0), {}, frozenset())
    with ledger.reader() as reader:
        assert list(reader.rows(1)) == []
    for entry in STORY:
        ledger.apply([entry])
    assert everything(ledger) == before


def test_ledger_agrees_only_with_a_journal_that_holds_its_position(ledger: Ledger) -> None:
    def status(tail: Position, *terms: tuple[int, int]) -> JournalStatus:
        return JournalStatus(shard="s", tail=tail, terms=[Term(epoch, first, "eu-west", {}, 1, "L1") for epoch, first in terms])

    assert ledger.agrees_with(status(Position(0, 0)))
    ledger.apply(STORY)
    assert ledger.agrees_with(status(Position(2, 7), (1, 1), (2, 5)))
    assert ledger.agrees_with(status(Position(3, 9), (1, 1), (2, 5), (3, 8)))
    assert not ledger.agrees_with(status(Position(2, 6), (1, 1), (2, 5)))
    assert not ledger.agrees_with(status(Position(3, 9), (1, 1), (3, 5)))
    assert not ledger.agrees_with(status(Position(0, 0)))


histories = st.lists(
    st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.integers(-3, 3), st.booleans()), max_size=4), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(history=histories, cuts=st.sets(st.integers(1, 12)), again=st.integers(0, 3))
def test_any_split_into_transactions_gives_the_same_state(
    history: list[list[tuple[str, int, bool]]], cuts: set[int], again: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Some splits also repeat the last entries of the transaction before."""
    rows: dict[str, Row] = {}
    batches: list[list[Record]] = [[started(1), created()]]
    generation = serial = 0
    for part in history:
        batch: list[Record] = []
        for player, value, _ in part:
            serial += 1
            rows[player] = row(value, rows[player].version + 1 if player in rows else 1)
            batch.append(scored(player, f"e{serial}", rows[player]))
        if part and part[-1][2]:
            generation += 1
            batch.append(published(generation, rows))
        batches.append(batch)
    entries = journal(*batches)
    whole = MemoryLedger()
    whole.apply(entries)
    split = MemoryLedger()
    files = LmdbLedger(tmp_path_factory.mktemp("split"), map_size=SMALL)
    edges = [0, *sorted(cut for cut in cuts if cut < len(entries)), len(entries)]
    for first, last in pairwise(edges):
        for target in (split, files):
            target.apply(entries[max(first - again, 0) : last])
    assert everything(whole) == everything(split) == everything(files)
    files.close()


# Files only.


def test_reopened_ledger_goes_on_from_where_it_was(tmp_path: Path) -> None:
    ledger = LmdbLedger(tmp_path, map_size=SMALL)
    ledger.apply(STORY[:6])
    before = everything(ledger)
    ledger.close()
    ledger.close()
    ledger = LmdbLedger(tmp_path, map_size=SMALL)
    assert everything(ledger) == before
    with pytest.raises(LedgerCorrupt):
        ledger.apply([seal_entry(2, 4, "x", [])])
    ledger.apply(STORY)
    assert ledger.applied == Position(2, 7)
    ledger.close()


_ELSEWHERE = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from test_ledger_contract import SMALL, STORY
from ledger.lmdb_ledger import LmdbLedger
ledger = LmdbLedger(sys.argv[1], map_size=SMALL, boot="boot-1")
"""


def elsewhere(path: Path, then: str) -> int:
    """Open the ledger of boot-1 in a process of its own and do what `then` says; return the exit code."""
    here = Path(__file__).parent
    return subprocess.run([sys.executable, "-c", _ELSEWHERE + then, str(path), str(here), str(here.parent)], timeout=60).returncode


def leave_killed(path: Path) -> None:
    """Let a process apply six entries in boot-1 and be killed."""
    then = "ledger.apply(STORY[:3]); ledger.apply(STORY[3:6]); os.kill(os.getpid(), signal.SIGKILL)"
    assert elsewhere(path, then) == -signal.SIGKILL


def test_killed_process_loses_nothing_within_the_same_boot(tmp_path: Path) -> None:
    leave_killed(tmp_path)
    ledger = LmdbLedger(tmp_path, map_size=SMALL, boot="boot-1")
    assert ledger.applied == Position(2, 6)
    model = MemoryLedger()
    for target in (ledger, model):
        target.apply(STORY)
    assert everything(ledger) == everything(model)
    ledger.close()


@pytest.mark.parametrize("boot", ["boot-2", ""])
def test_ledger_not_closed_before_a_new_boot_is_emptied_unread(tmp_path: Path, boot: str) -> None:
    """No token counts as a new boot each time. The files are spoilt, as a power cut may leave them."""
    leave_killed(tmp_path)
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.write(os.urandom(16384))
    ledger = LmdbLedger(tmp_path, map_size=SMALL, boot=boot)
    assert ledger.applied == Position(0, 0)
    ledger.apply(STORY)
    ledger.close()
    ledger = LmdbLedger(tmp_path, map_size=SMALL, boot="boot-3")
    assert ledger.applied == Position(2, 7)
    ledger.close()


def test_ledger_of_another_format_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LmdbLedger(tmp_path, map_size=SMALL)
    ledger.apply(STORY)
    ledger.close()
    monkeypatch.setattr("ledger.lmdb_ledger.FORMAT", 0)
    ledger = LmdbLedger(tmp_path, map_size=SMALL)
    assert ledger.applied == Position(0, 0)
    ledger.close()


def test_full_map_is_refused_whole_and_the_ledger_stays_usable(tmp_path: Path) -> None:
    ledger = LmdbLedger(tmp_path, map_size=1 << 20)
    ledger.apply(STORY[:3])
    before = everything(ledger)
    with pytest.raises(LedgerUnavailable):
        ledger.apply(journal([scored(f"player-{i}", "e1", row(1, 1)) for i in range(20_000)], first=4))
    assert everything(ledger) == before
    ledger.apply(STORY)
    ledger.close()


def test_disk_nearly_full_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    ledger = LmdbLedger(tmp_path, map_size=SMALL, reserve_bytes=1 << 62)
    with pytest.raises(LedgerUnavailable, match="are free"):
        ledger.apply(STORY)
    assert ledger.applied == Position(0, 0)
    ledger.close()


def test_second_open_in_one_process_is_refused(tmp_path: Path) -> None:
    ledger = LmdbLedger(tmp_path, map_size=SMALL)
    with pytest.raises(LedgerUnavailable):
        LmdbLedger(tmp_path, map_size=SMALL)
    ledger.apply(STORY)
    ledger.close()


def test_what_another_process_applies_is_noticed(tmp_path: Path) -> None:
    """1. Ours applies two entries. 2. A zombie of the same actor applies six. 3. Ours goes on with the third."""
    ledger = LmdbLedger(tmp_path, map_size=SMALL, boot="boot-1")
    model = MemoryLedger()
    model.apply(STORY)
    ledger.apply(STORY[:2])
    assert elsewhere(tmp_path, "ledger.apply(STORY[:6]); ledger.close()") == 0
    with ledger.reader() as reader:
        assert reader.applied == Position(2, 6)
    ledger.apply(STORY[2:])
    assert everything(ledger) == everything(model)
    assert elsewhere(tmp_path, "ledger.clear()") == 0
    with pytest.raises(LedgerGap):
        ledger.apply([seal_entry(2, 8, "x", [])])
    ledger.apply(STORY)
    assert everything(ledger) == everything(model)
    ledger.close()


def test_keys_of_a_board_that_another_process_has_made_again_are_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A zombie has removed a board, and has keys of it left. 2. All is folded anew elsewhere, up to before that. 3. It goes on."""
    monkeypatch.setattr("ledger.lmdb_ledger._DELETES", 1)
    zombie = LmdbLedger(tmp_path, map_size=SMALL, boot="boot-1")
    zombie.apply(STORY)
    zombie.apply([seal_entry(2, 8, "x", [BoardRemoved(1, "op", 5)])])
    with zombie.reader() as reader:
        assert list(reader.content(1, b"", lambda player: True)), "keys are left"
    assert elsewhere(tmp_path, "ledger.clear(); ledger.apply(STORY[:6]); ledger.close()") == 0
    zombie.apply(STORY[6:])
    model = MemoryLedger()
    model.apply(STORY)
    assert everything(zombie) == everything(model)
    zombie.close()


def test_close_of_one_process_does_not_vouch_for_another(tmp_path: Path) -> None:
    """A zombie closes in order while ours goes on writing: only the last close counts."""
    ledger = LmdbLedger(tmp_path, map_size=SMALL, boot="boot-1")
    assert elsewhere(tmp_path, "ledger.apply(STORY[:6]); ledger.close()") == 0
    assert b'"clean":false' in (tmp_path / "marker.json").read_bytes()
    ledger.close()
    assert b'"clean":true' in (tmp_path / "marker.json").read_bytes()
