"""How entries become state: pure, shared by all adapters, so that two ledgers of one journal cannot differ (I8).

`State` is the small part that adapters keep in memory. `State.plan` folds entries into `Changes` without
touching anything; an adapter stores those in one transaction and only then calls `State.absorb`.

Keys: board number (4 bytes, big-endian), player id (UTF-8), NUL, event id (UTF-8). A row has the key with
the empty event id, so it lies right before its player's identities and most often in the same page. Ids hold
no control characters, so NUL separates, and keys sort by player id bytes. At most 4 + 128 + 1 + 128 bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from boards.model import Row
from journal.ports import JournalStatus, Position
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Entry,
    Imported,
    Manifest,
    Marked,
    Published,
    Record,
    Relocating,
    Scored,
    SliceClosed,
    SliceOpened,
    Switched,
    open_entry,
)
from ledger.ports import EARLIER_LIVES, BoardState, Gone, LedgerCorrupt, LedgerGap, Phase, Saved
from ledger.running import RunningBoard, new_board, new_board_of

#: Stored beside the state of adapters that outlive the process; raise it when keys, values or the meaning of the fold change.
FORMAT = 3

_NOTHING = Position(0, 0)
#: Of two slices of one board in one shard, the one that serves: the lower.
_ORDER: dict[Phase, int] = {"open": 0, "closed": 1, "moved": 2, "importing": 3, "removing": 4}


def board_key(number: int) -> bytes:
    """Prefix of all keys of a board."""
    return number.to_bytes(4, "big")


def row_key(number: int, player_id: str) -> bytes:
    """Key of a row, and prefix of the player's identities."""
    return number.to_bytes(4, "big") + player_id.encode() + b"\0"


def identity_key(number: int, player_id: str, event_id: str) -> bytes:
    """Key of an event identity."""
    return number.to_bytes(4, "big") + player_id.encode() + b"\0" + event_id.encode()


def check_same_result(known: Saved, again: Saved, offset: int) -> None:
    """An identity that was recorded before may only say the same again (I4)."""
    if (known.fingerprint, known.outcome, known.value, known.version) != (again.fingerprint, again.outcome, again.value, again.version):
        raise LedgerCorrupt(f"an event identity recorded at {known.offset} is recorded again with another result", offset)


class Changes:
    """What a run of entries changes, ready to be stored."""

    __slots__ = ("applied", "boards", "gone", "highest", "removed", "rows", "saved", "starts")

    def __init__(self, applied: Position, highest: int) -> None:
        self.applied = applied
        #: Epochs that begin in this run, each with its first offset.
        self.starts: list[Position] = []
        #: New rows by `row_key`; they replace what is stored.
        self.rows: dict[bytes, Row] = {}
        #: Results by `identity_key`; one that is stored already stays (see `check_same_result`).
        self.saved: dict[bytes, Saved] = {}
        self.boards: dict[int, BoardState] = {}
        #: Numbers of boards that leave, with all their keys, and what is remembered of their ids.
        self.removed: set[int] = set()
        self.gone: dict[str, Gone] = {}
        self.highest = highest


class State:
    """The in-memory part of a ledger: how far it is, which epochs it saw begin, its boards."""

    __slots__ = ("_ids", "applied", "boards", "coordinated", "gone", "highest", "starts", "unpublished")

    def __init__(
        self,
        applied: Position = _NOTHING,
        starts: Sequence[Position] = (),
        boards: Sequence[BoardState] = (),
        gone: Mapping[str, Gone] = MappingProxyType({}),
        highest: int = 0,
    ) -> None:
        self.applied = applied
        self.starts = list(starts)
        self.boards = {board.number: board for board in boards}
        self._ids: dict[str, tuple[int, ...]] = {}
        for board in boards:
            self._ids[board.board_id] = (*self._ids.get(board.board_id, ()), board.number)
        self.unpublished = {board.number for board in boards if board.due}
        self.coordinated = {board.number for board in boards if board.coordinated}
        self.gone = dict(gone)
        self.highest = highest

    def board(self, board_id: str) -> BoardState | None:
        """One board by its id; of two the one that serves."""
        return serving([self.boards[number] for number in self._ids.get(board_id, ())])

    def numbers(self, board_id: str) -> tuple[int, ...]:
        """Numbers of all that is here of a board."""
        return self._ids.get(board_id, ())

    def past(self, board_id: str) -> Gone | None:
        """What is remembered of what has left of a board."""
        return self.gone.get(board_id)

    def gone_from_here(self, board_id: str) -> Gone | None:
        """The same, unless something of the board is here."""
        return None if board_id in self._ids else self.gone.get(board_id)

    def agrees_with(self, status: JournalStatus) -> bool:
        """`applied` is a place in that journal."""
        epoch, offset = self.applied
        return offset <= status.tail.offset and status.epoch_at(offset) == epoch

    def epoch_at(self, offset: int) -> int:
        """Epoch of a folded entry."""
        for start in reversed(self.starts):
            if start.offset <= offset:
                return start.epoch
        return 0

    def plan(
        self, entries: Sequence[Entry], decoded: Sequence[list[Record]] | None, lookup: Callable[[bytes], Row | None]
    ) -> Changes | None:
        """Fold `entries` on top of this state; None when all of them are folded already.

        `lookup` reads a stored row by its key, in the transaction that will store the result. Nothing is
        changed here. Cost: about 3 µs a scored record beside the lookup.
        """
        fold = Fold(self, lookup)
        epoch, offset = self.applied
        for index, entry in enumerate(entries):
            if entry.offset <= self.applied.offset:
                if entry.epoch != self.epoch_at(entry.offset):
                    raise LedgerCorrupt(f"epoch {entry.epoch} where epoch {self.epoch_at(entry.offset)} was folded", entry.offset)
                continue
            if entry.offset != offset + 1:
                raise LedgerGap(Position(epoch, offset), entry.offset)
            if entry.epoch != epoch:
                if entry.epoch < epoch:
                    raise LedgerCorrupt(f"epoch {entry.epoch} follows epoch {epoch}", entry.offset)
                fold.changes.starts.append(Position(entry.epoch, entry.offset))
            epoch, offset = entry.epoch, entry.offset
            try:
                records = open_entry(entry) if decoded is None else decoded[index]
            except msgspec.DecodeError as error:
                raise LedgerCorrupt(f"its bytes are no list of records ({error})", offset) from None
            fold.entry(epoch, offset, records)
        return fold.finish(Position(epoch, offset)) if offset > self.applied.offset else None

    def absorb(self, changes: Changes) -> None:
        """Take over changes that are stored now."""
        self.applied = changes.applied
        self.starts += changes.starts
        self.highest = changes.highest
        self.gone.update(changes.gone)
        for number in changes.removed:
            if number in self.boards:
                board_id = self.boards.pop(number).board_id
                left = tuple(other for other in self._ids[board_id] if other != number)
                if left:
                    self._ids[board_id] = left
                else:
                    del self._ids[board_id]
                self.unpublished.discard(number)
                self.coordinated.discard(number)
        for number, board in changes.boards.items():
            if number not in self.boards:
                self._ids[board.board_id] = (*self._ids.get(board.board_id, ()), number)
            self.boards[number] = board
            for holds, numbers in ((board.due, self.unpublished), (board.coordinated, self.coordinated)):
                if holds:
                    numbers.add(number)
                else:
                    numbers.discard(number)


def gone_after(before: Gone | None, board: BoardState) -> Gone:
    """What is remembered once `board`, all of it or one slice, has left as it was last, on top of what was remembered."""
    layout, moved_to = board.layout_number, board.target if board.phase == "moved" else None
    if before is None:
        return Gone(board.incarnation, layout, moved_to)
    if before.incarnation != board.incarnation:
        earlier = [life for life in before.earlier if life[0] != board.incarnation] + [(before.incarnation, before.layout)]
        return Gone(board.incarnation, max(layout, before.left(board.incarnation)), moved_to, tuple(earlier[-EARLIER_LIVES:]))
    if board.slice != 0 or board.phase == "importing":
        moved_to = before.moved_to  # what leaves did not lead: it says nothing of the board
    return Gone(board.incarnation, max(layout, before.layout), moved_to, before.earlier)


class FromState:
    """What every adapter answers from its state alone."""

    _state: State

    @property
    def applied(self) -> Position:
        """See `Ledger`."""
        return self._state.applied

    def boards(self) -> dict[int, BoardState]:
        """See `Ledger`."""
        return dict(self._state.boards)

    def board(self, board_id: str) -> BoardState | None:
        """See `Ledger`."""
        return self._state.board(board_id)

    def numbered(self, number: int) -> BoardState | None:
        """See `Ledger`."""
        return self._state.boards.get(number)

    def numbers(self, board_id: str) -> tuple[int, ...]:
        """See `Ledger`."""
        return self._state.numbers(board_id)

    @property
    def highest(self) -> int:
        """See `Ledger`."""
        return self._state.highest

    def gone(self, board_id: str) -> Gone | None:
        """See `Ledger`."""
        return self._state.gone_from_here(board_id)

    def past(self, board_id: str) -> Gone | None:
        """See `Ledger`."""
        return self._state.past(board_id)

    def coordinated(self) -> frozenset[int]:
        """See `Ledger`."""
        return frozenset(self._state.coordinated)

    def unpublished(self) -> frozenset[int]:
        """See `Ledger`."""
        return frozenset(self._state.unpublished)

    def agrees_with(self, status: JournalStatus) -> bool:
        """See `Ledger`."""
        return self._state.agrees_with(status)


def serving(boards: Sequence[BoardState]) -> BoardState | None:
    """Of all that a shard holds of one board, what answers for it."""
    if len(boards) < 2:
        return boards[0] if boards else None
    return min(boards, key=lambda board: (_ORDER[board.phase], -board.number))


class Fold:
    """One run of entries on its way into `Changes`."""

    def __init__(self, state: State, lookup: Callable[[bytes], Row | None]) -> None:
        self._state = state
        self._lookup = lookup
        self._running: dict[int, RunningBoard] = {}
        self.changes = Changes(state.applied, state.highest)

    def entry(self, epoch: int, offset: int, records: Sequence[Record]) -> None:
        """Fold one entry; `EpochStarted`, `HandedOver` and `Audited` change nothing in a ledger."""
        boundaries: list[Published | Marked] = []
        for record in records:
            kind = type(record)
            if kind is Scored:
                self._scored(record, epoch, offset)  # type: ignore[arg-type]
            elif kind is Published or kind is Marked:
                boundaries.append(record)  # type: ignore[arg-type]
            else:
                self._rare(record, epoch, offset)
        for record in boundaries:
            if type(record) is Published:
                self._board(record.board, offset).take_published(record, offset)
            elif type(record) is Marked:
                self._board(record.board, offset).take_marked(record, epoch, offset)

    def finish(self, applied: Position) -> Changes:
        """The changes of all entries given."""
        self.changes.applied = applied
        states = {number: board.state() for number, board in self._running.items()}
        self.changes.boards = {number: board for number, board in states.items() if self._state.boards.get(number) != board}
        return self.changes

    def _board(self, number: int, offset: int) -> RunningBoard:
        board = self._running.get(number)
        if board is None:
            state = None if number in self.changes.removed else self._state.boards.get(number)
            if state is None:
                raise LedgerCorrupt(f"board number {number} was never created, or is removed", offset)
            board = self._running[number] = RunningBoard(state)
        return board

    def _scored(self, record: Scored, epoch: int, offset: int) -> None:
        board = self._running.get(record.board) or self._board(record.board, offset)
        key = record.board.to_bytes(4, "big") + record.player_id.encode() + b"\0"
        new = record.row
        if new is not None:
            self._row(board, key, record.player_id, new, offset)
        self._identity(
            key + record.event_id.encode(), Saved(record.fingerprint, record.outcome, record.value, record.version, epoch, offset)
        )

    def _row(self, board: RunningBoard, key: bytes, player_id: str, new: Row, offset: int) -> None:
        rows = self.changes.rows
        old = rows.get(key) or self._lookup(key)
        if old is None or new.version > old.version:
            rows[key] = new
            board.replace(player_id, old, new, offset)
        elif new.version == old.version and new != old:
            raise LedgerCorrupt(f"another row of version {new.version} for a player of board {board.start.number}", offset)

    def _identity(self, key: bytes, saved: Saved) -> None:
        known = self.changes.saved.setdefault(key, saved)
        if known is not saved:
            check_same_result(known, saved, saved.offset)

    def _rare(self, record: Record, epoch: int, offset: int) -> None:
        match record:
            case BoardCreated():
                self._board_created(record, offset)
            case Manifest():
                self._board(record.board, offset).take_manifest(record, offset)
            case BoardRemoved():
                self._board_removed(record, offset)
            case Relocating():
                self._board(record.board, offset).take_relocating(record)
            case Imported():
                self._imported(record, epoch, offset)
            case SliceClosed():
                self._board(record.board, offset).take_closed(record, offset)
            case Switched():
                self._board(record.board, offset).take_switched(record, offset)
            case SliceOpened():
                self._board(record.board, offset).take_opened(record, offset)
            case _:
                pass

    def _imported(self, record: Imported, epoch: int, offset: int) -> None:
        board = self._board(record.board, offset)
        if board.phase != "importing":
            raise LedgerCorrupt(f"players come into board number {record.board}, which is {board.phase}", offset)
        for player_id, row in record.rows:
            self._row(board, row_key(record.board, player_id), player_id, row, offset)
        for event in record.events:
            saved = Saved(event.fingerprint, event.outcome, event.value, event.version, epoch, offset)
            self._identity(identity_key(record.board, event.player_id, event.event_id), saved)
        board.take_imported(record)

    def _board_created(self, record: BoardCreated, offset: int) -> None:
        created = new_board(record)
        known = self._running[record.number].start if record.number in self._running else self._state.boards.get(record.number)
        if known is None and record.number > self.changes.highest and self._may_come(created):
            self._running[record.number] = RunningBoard(created)
            self.changes.highest = record.number
        elif known is None or new_board_of(known) != new_board_of(created):
            raise LedgerCorrupt(f"board {record.board_id} or its number {record.number} is taken", offset)

    def _may_come(self, created: BoardState) -> bool:
        """Two of one board in a shard are slices of two layouts of one life."""
        here = {n: self._state.boards[n] for n in self._state.numbers(created.board_id) if n not in self.changes.removed}
        here |= {n: r.start for n, r in self._running.items() if r.start.board_id == created.board_id}
        return all(o.incarnation == created.incarnation and o.layout_number != created.layout_number for o in here.values())

    def _board_removed(self, record: BoardRemoved, offset: int) -> None:
        board = self._board(record.board, offset)
        if not record.done:
            board.take_removing()
            return
        del self._running[record.board]
        changes, prefix, board_id = self.changes, board_key(record.board), board.start.board_id
        before = changes.gone.get(board_id) or self._state.gone.get(board_id)
        changes.removed.add(record.board)
        for keys in (changes.rows, changes.saved):
            for key in [key for key in keys if key.startswith(prefix)]:
                del keys[key]
        changes.gone[board_id] = gone_after(before, board.state())
