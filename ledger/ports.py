"""The ledger port: a shard's state, folded from committed journal entries, and nothing else.

It never rolls back, because only committed entries come in (I13), and it can be thrown away at any time,
because the journal makes it again. What an authority has appended and not yet committed lives in
`ledger.pending`, above it.

Errors; all are definite, and after each of them the ledger is exactly as it was before the call:
    LedgerError
    ├── LedgerGap            the entries do not go on where the ledger stands. Read the journal from `applied.offset + 1`.
    ├── LedgerCorrupt        an alarm: ledger and journal cannot both be right. Stop serving, clear, rebuild; if it comes
    │   │                    again, it is the journal
    │   └── ChecksumMismatch the rows folded here are not the ones that the authority published (I8)
    ├── LedgerStale          a read view older than the ledger was used to decide. Take a new one.
    └── LedgerUnavailable    no room on the disk or in the map, or the ledger is held by another process. Mend that, then apply again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Literal, NamedTuple, Protocol

import msgspec

from boards.model import BoardRules, Layout, Row
from journal.ports import JournalStatus, Position
from journal.records import Entry, Mark, Record


class LedgerError(Exception):
    """Base of this package's errors; `args` are the constructor's, so that pickling keeps the typed fields."""

    code: ClassVar[str] = "ledger"
    definite: ClassVar[bool] = True


class LedgerGap(LedgerError):
    """The next entry to fold is `applied.offset + 1`, not `offset`."""

    code = "ledger_gap"

    def __init__(self, applied: Position, offset: int) -> None:
        super().__init__(applied, offset)
        self.applied = applied
        self.offset = offset

    def __str__(self) -> str:
        return f"entry {self.offset} does not follow the last one in sequence (the ledger stands at {self.applied.offset})"


class LedgerCorrupt(LedgerError):
    """A broken invariant, found while the entry at `offset` was folded."""

    code = "ledger_corrupt"

    def __init__(self, detail: str, offset: int) -> None:
        super().__init__(detail, offset)
        self.detail = detail
        self.offset = offset

    def __str__(self) -> str:
        return f"entry {self.offset}: {self.detail}"


class ChecksumMismatch(LedgerCorrupt):
    """Generation `generation` of board number `board` was published over other rows than those folded here."""

    code = "checksum_mismatch"

    def __init__(
        self,
        board: int,
        generation: int,
        published_checksum: int,
        folded_checksum: int,
        published_count: int,
        folded_count: int,
        offset: int,
    ) -> None:
        super().__init__(
            f"board {board} generation {generation} was published with checksum {published_checksum:016x} over {published_count} rows,"
            f" here are {folded_checksum:016x} over {folded_count}",
            offset,
        )
        self.args = (board, generation, published_checksum, folded_checksum, published_count, folded_count, offset)
        self.board = board
        self.generation = generation
        self.published_checksum = published_checksum
        self.folded_checksum = folded_checksum
        self.published_count = published_count
        self.folded_count = folded_count


class LedgerStale(LedgerError):
    """The view stands at `seen`, the ledger at `applied`: what lies between is in neither view nor overlay."""

    code = "ledger_stale"

    def __init__(self, seen: Position, applied: Position) -> None:
        super().__init__(seen, applied)
        self.seen = seen
        self.applied = applied

    def __str__(self) -> str:
        return f"the read view stands at {self.seen.offset}, the ledger at {self.applied.offset}"


class LedgerUnavailable(LedgerError):
    """The ledger's files could not be used; the message says why."""

    code = "ledger_unavailable"


class Saved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The remembered result of one event identity (board, player, event id), replayed to its duplicates."""

    fingerprint: bytes
    outcome: int
    value: int
    version: int
    #: Where the event was recorded.
    epoch: int
    offset: int


#: `open` takes events; `importing` is being filled from another layout; `closed` waits for the switch to another layout; `moved`:
#: the board lives in another layout now; `removing`: it is on its way out.
Phase = Literal["open", "importing", "closed", "moved", "removing"]


class SliceImport(msgspec.Struct, frozen=True, array_like=True):
    """How far one slice of the old layout has been copied into an importing one; fields as in `journal.records.Imported`."""

    source: int
    cursor: bytes | None
    replayed: int


class BoardState(msgspec.Struct, frozen=True, array_like=True):
    """A board, or this shard's slice of one, and its running totals as of some entry. Offsets are of this shard's journal, 0 for never.

    A slice of several is not published by itself but marked: its `published_*` are those of its newest mark, and `generation`
    is that of the newest manifest in the lead's state, and of the round that asked for the mark elsewhere.
    """

    number: int
    board_id: str
    rules: BoardRules
    incarnation: str
    created_by: str
    created_ms: int
    #: Number of the newest published generation; 0 is the empty board `s0`.
    generation: int = 0
    #: `boards.checksum` over all rows folded so far, published or not.
    checksum: int = 0
    #: Active rows folded so far, published or not.
    count: int = 0
    #: Offset of the last entry that changed a row of this board.
    changed: int = 0
    #: Boundary of the newest generation, and what its record said.
    published_offset: int = 0
    published_ms: int = 0
    published_checksum: int = 0
    published_count: int = 0
    #: None: the whole board is here.
    layout: Layout | None = None
    slice: int = 0
    phase: Phase = "open"
    #: Newest mark of this slice.
    mark: Mark | None = None
    #: Highest epoch of the lead's authority that asked for a mark, or closed or opened the slice.
    lead_epoch: int = 0
    #: Marks of the newest manifest, in the lead's state only.
    marks: tuple[Mark, ...] = ()
    #: Where the board is on its way to (in the lead's state), or lives now (phase `moved`).
    target: Layout | None = None
    #: The move is being undone.
    aborting: bool = False
    #: Offset of the `SliceClosed` that closed this slice.
    closed_offset: int = 0
    imports: tuple[SliceImport, ...] = ()
    #: Highest number of a layout that the board was ever on its way to, given up or not: none is used twice (in the lead's state).
    aimed: int = 0
    #: Number of the layout for whose sake the slice was closed last.
    closed_for: int = 0

    @property
    def unpublished(self) -> bool:
        """Rows have changed since the newest generation's boundary, or since the slice's newest mark."""
        return self.changed > self.published_offset

    @property
    def sharded(self) -> bool:
        """The board has several slices: only a manifest makes a generation."""
        return self.layout is not None and len(self.layout.shards) > 1

    @property
    def leads(self) -> bool:
        """This shard's journal holds the board's manifests, or all of the board."""
        return self.slice == 0 and self.phase in ("open", "closed", "removing")

    @property
    def layout_number(self) -> int:
        """1 where a board was never spread or moved."""
        return self.layout.number if self.layout is not None else 1

    @property
    def coordinated(self) -> bool:
        """The lead has work with other shards for it: rounds of marks, a removal, a move."""
        if self.slice != 0 or self.phase == "importing":
            return False
        return self.target is not None or (self.sharded and self.phase != "moved") or self.phase == "removing"

    @property
    def due(self) -> bool:
        """Something is to be published, and this shard does it by itself."""
        return self.unpublished and not self.sharded and self.phase in ("open", "closed")


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """What has left of a board: the last life of which something has, and the highest layout in which that was here."""

    incarnation: str
    layout: int
    #: Where that life went when it left; None: it was removed, or only a slice was that did not lead.
    moved_to: Layout | None = None
    #: Lives before that one with their highest layouts, newest last; at most `EARLIER_LIVES`.
    earlier: tuple[tuple[str, int], ...] = ()

    def left(self, incarnation: str) -> int:
        """The highest layout in which that life was here and has left; 0 for none."""
        return self.layout if incarnation == self.incarnation else dict(self.earlier).get(incarnation, 0)


#: So many lives of a board are remembered beside the last: no order that old is still on its way.
EARLIER_LIVES = 15


class Held(NamedTuple):
    """One thing that a ledger stores of a board: a player's row, or (with its id) the result of an event."""

    #: Of the ledger's own making, and the same in every region.
    place: bytes
    player_id: str
    event_id: str
    stored: Row | Saved | None


class LedgerReader(Protocol):
    """A consistent view of the ledger at one position, valid inside its context only."""

    @property
    def applied(self) -> Position:
        """The position that this view shows, whatever is applied meanwhile."""
        ...

    def row(self, board: int, player_id: str) -> Row | None:
        """A player's row on the board with that number. Cost: one lookup, about 1 µs."""
        ...

    def identity(self, board: int, player_id: str, event_id: str) -> Saved | None:
        """The saved result of an event, None if it never was recorded. Cost: one lookup, about 1 µs."""
        ...

    def rows(self, board: int) -> Iterator[tuple[str, Row]]:
        """All rows of a board by player id (UTF-8 bytes, ascending). Exhaust it, or drop it, before the view closes."""
        ...

    def content(self, board: int, after: bytes, wanted: Callable[[str], bool]) -> Iterator[Held]:
        """All that is stored of a board behind the place `after` (b"": from the start), in the order of places; as `rows`.

        Of players that are not `wanted` only some places come, without what is stored.
        """
        ...


class Ledger(Protocol):
    """One shard's ledger. One thread applies; read views may be taken by any."""

    @property
    def applied(self) -> Position:
        """Highest entry folded in. applied <= committed (I13)."""
        ...

    def apply(self, entries: Sequence[Entry], decoded: Sequence[list[Record]] | None = None) -> None:
        """Fold committed entries in, all in one transaction; `decoded` saves the decoding where the records are at hand.

        Entries at or below `applied` are skipped if their epoch is the one folded there. What an entry's
        `Published` says is compared once the whole entry is folded: its boundary includes the entry.

        Raises:
            LedgerGap, LedgerCorrupt, ChecksumMismatch, LedgerUnavailable: nothing of these entries is kept.
        """
        ...

    def reader(self) -> AbstractContextManager[LedgerReader]:
        """Open a consistent read view; it blocks no writer. Keep it short: pages it may see cannot be reused."""
        ...

    def boards(self) -> dict[int, BoardState]:
        """All boards by number, a fresh dict. Cost: O(boards)."""
        ...

    def board(self, board_id: str) -> BoardState | None:
        """One board by its id; of two slices of one board here (while it moves) the one that serves. Cost: O(1), from memory."""
        ...

    def numbered(self, number: int) -> BoardState | None:
        """One board by its number. Cost: O(1), from memory."""
        ...

    def numbers(self, board_id: str) -> tuple[int, ...]:
        """Numbers of all that is here of a board: mostly one; two while it moves within this shard."""
        ...

    @property
    def highest(self) -> int:
        """The highest board number ever given in this journal; none is given twice."""
        ...

    def gone(self, board_id: str) -> Gone | None:
        """What is remembered of a board of which nothing is here any more: no configuration brings it back. None while something is."""
        ...

    def past(self, board_id: str) -> Gone | None:
        """The same, whatever of the board is here: no late order brings back what has left."""
        ...

    def coordinated(self) -> frozenset[int]:
        """Numbers of the boards that are `coordinated`. Cost: O(such boards)."""
        ...

    def unpublished(self) -> frozenset[int]:
        """Numbers of the boards that are `due`. Cost: O(such boards)."""
        ...

    def agrees_with(self, status: JournalStatus) -> bool:
        """`applied` is a place in that journal. If not, this ledger was folded from another one: `clear()` it."""
        ...

    def clear(self) -> None:
        """Forget everything; `applied` is (0, 0) again."""
        ...

    def sync(self) -> None:
        """Push everything applied so far to the disk. Only a checkpoint needs it."""
        ...

    def close(self) -> None:
        """Sync and give the files back. Idempotent."""
        ...
