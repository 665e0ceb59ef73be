"""How entries become state: pure, shared by all adapters, so that two ledgers of one journal cannot differ (I8).

`State` is the small part that adapters keep in memory. `State.plan` folds entries into `Changes` without
touching anything; an adapter stores those in one transaction and only then calls `State.absorb`.

Keys: board number (4 bytes, big-endian), player id (UTF-8), NUL, event id (UTF-8). A row has the key with
the empty event id, so it lies right before its player's identities and most often in the same page. Ids hold
no control characters, so NUL separates, and keys sort by player id bytes. At most 4 + 128 + 1 + 128 bytes.
"""

from collections.abc import Callable, Sequence

import msgspec

from boards.checksum import add, remove, row_hash
from boards.model import Row, Status
from journal.ports import JournalStatus, Position
from journal.records import BoardCreated, Entry, Published, Record, Scored, open_entry
from ledger.ports import BoardState, ChecksumMismatch, LedgerCorrupt, LedgerGap, Saved

#: Stored beside the state of adapters that outlive the process; raise it when keys, values or the meaning of the fold change.
FORMAT = 1

_ACTIVE = int(Status.ACTIVE)
_NOTHING = Position(0, 0)


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

    __slots__ = ("applied", "boards", "rows", "saved", "starts")

    def __init__(self, applied: Position) -> None:
        self.applied = applied
        #: Epochs that begin in this run, each with its first offset.
        self.starts: list[Position] = []
        #: New rows by `row_key`; they replace what is stored.
        self.rows: dict[bytes, Row] = {}
        #: Results by `identity_key`; one that is stored already stays (see `check_same_result`).
        self.saved: dict[bytes, Saved] = {}
        self.boards: dict[int, BoardState] = {}


class RunningBoard:
    """A board's totals while entries are folded or decided; `state()` freezes them."""

    __slots__ = ("changed", "checksum", "count", "generation", "published", "start")

    def __init__(self, start: BoardState) -> None:
        self.start = start
        self.checksum = start.checksum
        self.count = start.count
        self.changed = start.changed
        self.generation = start.generation
        #: Boundary, time, checksum and count of the newest generation.
        self.published = (start.published_offset, start.published_ms, start.published_checksum, start.published_count)

    def replace(self, player_id: str, old: Row | None, new: Row, offset: int) -> None:
        """Take the player's row from `old` to `new` in checksum and count."""
        checksum = self.checksum
        if old is not None:
            checksum = remove(checksum, row_hash(player_id, old))
            if old.status == _ACTIVE:
                self.count -= 1
        if new.status == _ACTIVE:
            self.count += 1
        self.checksum = add(checksum, row_hash(player_id, new))
        self.changed = offset

    def publish(self, record: Published, offset: int) -> None:
        """Take the generation over from its record."""
        self.generation = record.generation
        self.published = (offset, record.published_ms, record.checksum, record.count)

    def state(self) -> BoardState:
        """The totals as a value."""
        start = self.start
        return BoardState(
            start.number,
            start.board_id,
            start.rules,
            start.incarnation,
            start.created_by,
            start.created_ms,
            self.generation,
            self.checksum,
            self.count,
            self.changed,
            *self.published,
        )


def new_board(record: BoardCreated) -> BoardState:
    """The state of a board right after its record."""
    return BoardState(record.number, record.board_id, record.rules, record.incarnation, record.created_by, record.at_ms)


class State:
    """The in-memory part of a ledger: how far it is, which epochs it saw begin, its boards."""

    __slots__ = ("applied", "boards", "numbers", "starts", "unpublished")

    def __init__(self, applied: Position = _NOTHING, starts: Sequence[Position] = (), boards: Sequence[BoardState] = ()) -> None:
        self.applied = applied
        self.starts = list(starts)
        self.boards = {board.number: board for board in boards}
        self.numbers = {board.board_id: board.number for board in boards}
        self.unpublished = {board.number for board in boards if board.unpublished}

    def board(self, board_id: str) -> BoardState | None:
        """One board by its id."""
        number = self.numbers.get(board_id)
        return None if number is None else self.boards[number]

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
        for number, board in changes.boards.items():
            self.boards[number] = board
            self.numbers[board.board_id] = number
            if board.unpublished:
                self.unpublished.add(number)
            else:
                self.unpublished.discard(number)


class Fold:
    """One run of entries on its way into `Changes`."""

    def __init__(self, state: State, lookup: Callable[[bytes], Row | None]) -> None:
        self._state = state
        self._lookup = lookup
        self._running: dict[int, RunningBoard] = {}
        self._created: dict[str, int] = {}
        self.changes = Changes(state.applied)

    def entry(self, epoch: int, offset: int, records: Sequence[Record]) -> None:
        """Fold one entry; `EpochStarted`, `HandedOver` and `Audited` change nothing in a ledger."""
        published: list[Published] = []
        for record in records:
            if type(record) is Scored:
                self._scored(record, epoch, offset)
            elif type(record) is Published:
                published.append(record)
            elif type(record) is BoardCreated:
                self._board_created(record, offset)
        for record in published:
            self._published(record, offset)

    def finish(self, applied: Position) -> Changes:
        """The changes of all entries given."""
        self.changes.applied = applied
        self.changes.boards = {number: board.state() for number, board in self._running.items() if self._moved(number, board)}
        return self.changes

    def _moved(self, number: int, board: RunningBoard) -> bool:
        return self._state.boards.get(number) != board.state()

    def _board(self, number: int, offset: int) -> RunningBoard:
        state = self._state.boards.get(number)
        if state is None:
            raise LedgerCorrupt(f"board number {number} was never created", offset)
        board = self._running[number] = RunningBoard(state)
        return board

    def _scored(self, record: Scored, epoch: int, offset: int) -> None:
        board = self._running.get(record.board) or self._board(record.board, offset)
        key = record.board.to_bytes(4, "big") + record.player_id.encode() + b"\0"
        new = record.row
        if new is not None:
            rows = self.changes.rows
            old = rows.get(key) or self._lookup(key)
            if old is None or new.version > old.version:
                rows[key] = new
                board.replace(record.player_id, old, new, offset)
            elif new.version == old.version and new != old:
                raise LedgerCorrupt(f"another row of version {new.version} for a player of board {record.board}", offset)
        key += record.event_id.encode()
        saved = Saved(record.fingerprint, record.outcome, record.value, record.version, epoch, offset)
        known = self.changes.saved.setdefault(key, saved)
        if known is not saved:
            check_same_result(known, saved, offset)

    def _published(self, record: Published, offset: int) -> None:
        board = self._running.get(record.board) or self._board(record.board, offset)
        if (record.checksum, record.count) != (board.checksum, board.count):
            raise ChecksumMismatch(record.board, record.generation, record.checksum, board.checksum, record.count, board.count, offset)
        if record.generation != board.generation + 1:
            raise LedgerCorrupt(f"generation {record.generation} of board {record.board} follows {board.generation}", offset)
        board.publish(record, offset)

    def _board_created(self, record: BoardCreated, offset: int) -> None:
        created = new_board(record)
        running = self._running.get(record.number)
        known = running.start if running else self._state.boards.get(record.number)
        number = self._created.get(record.board_id, self._state.numbers.get(record.board_id, record.number))
        if known is None and number == record.number:
            self._running[record.number] = RunningBoard(created)
            self._created[record.board_id] = record.number
        elif known is None or new_board_of(known) != created:
            raise LedgerCorrupt(f"board {record.board_id} or its number {record.number} is taken", offset)


def new_board_of(board: BoardState) -> BoardState:
    """A board as it was when it was created."""
    return BoardState(board.number, board.board_id, board.rules, board.incarnation, board.created_by, board.created_ms)
