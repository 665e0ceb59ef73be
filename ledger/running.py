"""A board's state while entries are folded or decided: what each kind of record does to it, in one place.

The authority that decides and every ledger that folds go through here, so that they cannot differ (I8). A record that
contradicts the state raises `LedgerCorrupt`.
"""

from boards.checksum import add, remove, row_hash
from boards.model import Row, Status
from journal.records import BoardCreated, Imported, Manifest, Mark, Marked, Published, Relocating, SliceClosed, SliceOpened, Switched
from ledger.ports import BoardState, ChecksumMismatch, LedgerCorrupt, Phase, SliceImport

_ACTIVE = int(Status.ACTIVE)
_MASK = 2**64 - 1


class RunningBoard:
    """A board's totals and phase; `state()` freezes them."""

    __slots__ = (
        "aborting", "aimed", "changed", "checksum", "closed_for", "closed_offset", "count", "generation", "imports",
        "lead_epoch", "mark", "marks", "phase", "published", "start", "target",
    )  # fmt: skip

    def __init__(self, start: BoardState) -> None:
        self.start = start
        self.checksum = start.checksum
        self.count = start.count
        self.changed = start.changed
        self.generation = start.generation
        #: Boundary, time, checksum and count of the newest generation, or mark.
        self.published = (start.published_offset, start.published_ms, start.published_checksum, start.published_count)
        self.phase: Phase = start.phase
        self.mark = start.mark
        self.lead_epoch = start.lead_epoch
        self.marks = start.marks
        self.target = start.target
        self.aborting = start.aborting
        self.closed_offset = start.closed_offset
        self.imports = {done.source: done for done in start.imports}
        self.aimed, self.closed_for = start.aimed, start.closed_for

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

    def take_published(self, record: Published, offset: int) -> None:
        """The next generation of a board of one slice."""
        self._check_rows(record.generation, record.checksum, record.count, offset)
        self._check_next(record.generation, offset)
        self.generation = record.generation
        self.published = (offset, record.published_ms, record.checksum, record.count)

    def take_marked(self, record: Marked, epoch: int, offset: int) -> None:
        """The next mark of a slice."""
        self._check_rows(record.generation, record.checksum, record.count, offset)
        self._take_lead(record.lead_epoch, offset)
        self.mark = Mark(epoch, offset, record.checksum, record.count)
        self.published = (offset, record.marked_ms, record.checksum, record.count)
        if self.start.slice != 0:
            self.generation = record.generation

    def take_manifest(self, record: Manifest, offset: int) -> None:
        """The next generation of a board of several slices, in the lead's journal."""
        layout = self.start.layout
        if layout is None or self.start.slice != 0 or record.layout != layout.number or len(record.marks) != len(layout.shards):
            raise LedgerCorrupt(f"a manifest of board {self.start.board_id} that does not fit its layout", offset)
        self._check_next(record.generation, offset)
        total, count = sum(mark.checksum for mark in record.marks) & _MASK, sum(mark.count for mark in record.marks)
        if (record.checksum, record.count) != (total, count):
            raise ChecksumMismatch(self.start.number, record.generation, record.checksum, total, record.count, count, offset)
        if record.marks[0] != self.mark:
            raise LedgerCorrupt(f"manifest {record.generation} of board {self.start.board_id} names a mark that is not here", offset)
        self.generation = record.generation
        self.marks = record.marks

    def take_relocating(self, record: Relocating) -> None:
        """The board is to live elsewhere, or is not after all."""
        self.target, self.aborting = record.layout, record.aborting
        if record.layout is not None:
            self.aimed = max(self.aimed, record.layout.number)

    def take_imported(self, record: Imported) -> None:
        """Progress of a copy; the rows go through `replace`."""
        self.imports[record.source] = SliceImport(record.source, record.cursor, record.replayed)

    def take_closed(self, record: SliceClosed, offset: int) -> None:
        """The declared boundary: no event after it."""
        if self.phase not in ("open", "closed"):
            raise LedgerCorrupt(f"board {self.start.board_id} is {self.phase} and cannot close", offset)
        self.phase, self.closed_offset, self.closed_for = "closed", offset, record.layout
        self._take_lead(record.lead_epoch, offset)

    def take_switched(self, record: Switched, offset: int) -> None:
        """The board lives in another layout from here on."""
        if self.start.slice != 0 or self.phase != "closed" or record.generation != self.generation:
            raise LedgerCorrupt(f"board {self.start.board_id} switches while {self.phase} at generation {self.generation}", offset)
        self.phase, self.target = "moved", record.layout

    def take_opened(self, record: SliceOpened, offset: int) -> None:
        """Events are taken, from here on or again."""
        if self.phase not in ("importing", "closed"):
            raise LedgerCorrupt(f"board {self.start.board_id} is {self.phase} and cannot open", offset)
        if self.phase == "importing":
            # The lead is another from now on, and its epochs have nothing to do with those of the old one.
            self.generation, self.imports, self.lead_epoch = record.generation, {}, 0
        else:
            self._take_lead(record.lead_epoch, offset)
        self.phase, self.closed_offset = "open", 0

    def take_removing(self) -> None:
        """On its way out: nothing is taken or shown."""
        self.phase = "removing"

    @property
    def due(self) -> bool:
        """As `BoardState.due`, without making one."""
        return self.changed > self.published[0] and not self.start.sharded and self.phase in ("open", "closed")

    @property
    def may_be_coordinated(self) -> bool:
        """A quick look before `BoardState.coordinated` is asked."""
        return self.start.slice == 0 and (self.start.sharded or self.target is not None or self.phase == "removing")

    def _take_lead(self, epoch: int, offset: int) -> None:
        if epoch < self.lead_epoch:
            raise LedgerCorrupt(f"an order of epoch {epoch} of the lead follows one of {self.lead_epoch}", offset)
        self.lead_epoch = epoch

    def _check_rows(self, generation: int, checksum: int, count: int, offset: int) -> None:
        if (checksum, count) != (self.checksum, self.count):
            raise ChecksumMismatch(self.start.number, generation, checksum, self.checksum, count, self.count, offset)

    def _check_next(self, generation: int, offset: int) -> None:
        if generation != self.generation + 1:
            raise LedgerCorrupt(f"generation {generation} of board {self.start.number} follows {self.generation}", offset)

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
            start.layout,
            start.slice,
            self.phase,
            self.mark,
            self.lead_epoch,
            self.marks,
            self.target,
            self.aborting,
            self.closed_offset,
            tuple(self.imports.values()),
            self.aimed,
            self.closed_for,
        )


def new_board(record: BoardCreated) -> BoardState:
    """The state of a board right after its record."""
    return BoardState(
        record.number,
        record.board_id,
        record.rules,
        record.incarnation,
        record.created_by,
        record.at_ms,
        layout=record.layout,
        slice=record.slice,
        phase="importing" if record.importing else "open",
    )


def new_board_of(board: BoardState) -> BoardState:
    """A board as it was when it was created; what was importing then may be open now."""
    return BoardState(
        board.number,
        board.board_id,
        board.rules,
        board.incarnation,
        board.created_by,
        board.created_ms,
        layout=board.layout,
        slice=board.slice,
    )
