"""What an authority has appended and the ledger has not folded yet, laid over the ledger.

The authority decides each event against this overlay first and the ledger below it. Nothing here is durable
or even certain: an entry that is cut takes its part along, so a deposed authority drops all of it (`reset`).
Parts go one entry at a time, once the ledger has applied them (`settle`).
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from boards.model import Outcome, Row, Submission
from boards.policies import Decider, decider
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Imported,
    Manifest,
    Marked,
    Published,
    Relocating,
    Scored,
    SliceClosed,
    SliceOpened,
    Switched,
)
from ledger.fold import gone_after, serving
from ledger.ports import BoardState, Gone, Ledger, LedgerReader, LedgerStale, Saved
from ledger.running import RunningBoard, new_board

_DUPLICATE = int(Outcome.DUPLICATE)
_CONFLICT = int(Outcome.CONFLICT)
_INVALID = int(Outcome.INVALID)


class Decided(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to one submission. It may leave when `depends` is committed (I12).

    A duplicate or conflict has value, version, epoch and offset of the saved result. What is not recorded
    (`INVALID`) has epoch and offset 0.
    """

    outcome: int
    value: int
    version: int
    #: The row is the player's first, or its value is better by the board's direction.
    improved: bool
    epoch: int
    offset: int
    #: Its own offset if it is recorded (a no-improvement is), the saved result's for duplicates and conflicts;
    #: for `INVALID` that of the pending row that decided it, 0 if there was none.
    depends: int
    code: str = ""
    allowed: str = ""


class _Held(NamedTuple):
    """A pending row and the entry it comes from."""

    offset: int
    row: Row


class _Overlay:
    """One board's pending part. Totals are absolute: the ledger's, and all that is pending on top."""

    __slots__ = ("board", "higher", "rows", "rule", "saved", "second", "touched")

    def __init__(self, state: BoardState, offset: int) -> None:
        self.board = RunningBoard(state)
        self.rule: Decider = decider(state.rules)
        self.higher = state.rules.direction == "higher"
        self.second = state.rules.secondary
        self.rows: dict[str, _Held] = {}
        #: By (player id, event id).
        self.saved: dict[tuple[str, str], Saved] = {}
        #: The last entry that has a part here; once the ledger has it, all of this is in the ledger.
        self.touched = offset


class _Part(NamedTuple):
    """What one call added to one board."""

    offset: int
    overlay: _Overlay
    identities: list[tuple[str, str]]
    players: list[str]


class Pending:
    """The overlay of one activation. Not safe for concurrent use; no call waits or does I/O but reads of the view.

    Offsets must not go down from call to call; calls with the same offset build one entry and see each other.
    A board's publish record closes the board for that entry, because its boundary includes all of it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._overlays: dict[int, _Overlay] = {}
        #: Numbers of boards that the ledger does not know yet, and of those that it still knows and that are leaving.
        self._created: dict[str, list[int]] = {}
        self._removed: dict[int, int] = {}
        self._gone: dict[str, Gone] = {}
        self._highest = 0
        self._parts: deque[_Part] = deque()
        self._last = 0

    def decide(
        self,
        reader: LedgerReader,
        board: BoardState,
        submissions: Sequence[Submission],
        *,
        subject: str,
        now_ms: int,
        epoch: int,
        offset: int,
    ) -> tuple[list[Scored], list[Decided]]:
        """Decide `submissions` in order, as part of the entry at (epoch, offset); return its records, and an answer for each submission.

        Records are fewer than answers: duplicates, conflicts and invalid events leave none. The caller appends
        them at that offset, or calls `reset()`. Cost: about 6 µs an event, two ledger lookups included.

        Raises:
            LedgerStale: `reader` is older than the ledger. Nothing was decided.
            ValueError: offset below an earlier call's, board unknown or already published in this entry.
        """
        if reader.applied.offset < self._ledger.applied.offset:
            raise LedgerStale(reader.applied, self._ledger.applied)
        overlay = self._open(board, offset)
        number = board.number
        running, rule, higher, rows, saved = overlay.board, overlay.rule, overlay.higher, overlay.rows, overlay.saved
        stored_identity, stored_row = reader.identity, reader.row
        records: list[Scored] = []
        decided: list[Decided] = []
        identities: list[tuple[str, str]] = []
        players: list[str] = []
        for event in submissions:
            player_id, event_id = event.player_id, event.event_id
            identity = (player_id, event_id)
            known = saved.get(identity)
            if known is None:
                known = stored_identity(number, player_id, event_id)
            if known is not None:
                outcome = _DUPLICATE if known.fingerprint == event.fingerprint else _CONFLICT
                decided.append(Decided(outcome, known.value, known.version, False, known.epoch, known.offset, known.offset))
                continue
            held = rows.get(player_id)
            old = stored_row(number, player_id) if held is None else held.row
            decision = rule(old, event, now_ms)
            outcome, value, version, new = decision.outcome, decision.value, decision.version, decision.row
            if outcome == _INVALID:
                depends = 0 if held is None else held.offset
                decided.append(Decided(outcome, value, version, False, 0, 0, depends, decision.code, decision.allowed))
                continue
            improved = False
            if new is not None:
                improved = old is None or (value > old.value if higher else value < old.value)
                if old is not None and value == old.value and new.second != old.second:
                    improved = (new.second > old.second) is (overlay.second == "higher")
                running.replace(player_id, old, new, offset)
                rows[player_id] = _Held(offset, new)
                players.append(player_id)
            saved[identity] = Saved(event.fingerprint, outcome, value, version, epoch, offset)
            identities.append(identity)
            records.append(
                Scored(
                    number,
                    player_id,
                    event_id,
                    event.fingerprint,
                    outcome,
                    value,
                    version,
                    new,
                    event.amount,
                    event.achieved_ms,
                    event.submitted_ms,
                    now_ms,
                    subject,
                    event.second,
                )
            )
            decided.append(Decided(outcome, value, version, improved, epoch, offset, offset))
        if records:
            self._touch(number, overlay, offset, identities, players)
        return records, decided

    def board(self, board_id: str) -> BoardState | None:
        """A board with all that is pending for it, boards that are themselves pending included."""
        numbers = self.numbers(board_id)
        if len(numbers) == 1 and not self._removed:
            return self.numbered(numbers[0])
        return serving([state for n in numbers if (state := self.numbered(n)) is not None])

    def numbered(self, number: int) -> BoardState | None:
        """A board by its number, with all that is pending for it; None also where its removal is pending."""
        if number in self._removed:
            return None
        overlay = self._overlays.get(number)
        return self._ledger.numbered(number) if overlay is None else overlay.board.state()

    def row(self, reader: LedgerReader, number: int, player_id: str) -> Row | None:
        """A player's row with all that is pending."""
        overlay = self._overlays.get(number)
        held = None if overlay is None else overlay.rows.get(player_id)
        return reader.row(number, player_id) if held is None else held.row

    def identity(self, reader: LedgerReader, number: int, player_id: str, event_id: str) -> Saved | None:
        """The saved result of an event with all that is pending."""
        overlay = self._overlays.get(number)
        held = None if overlay is None else overlay.saved.get((player_id, event_id))
        return reader.identity(number, player_id, event_id) if held is None else held

    def numbers(self, board_id: str) -> tuple[int, ...]:
        """Numbers of all that is here of a board, what is leaving included."""
        numbers = self._ledger.numbers(board_id)
        if board_id in self._created:
            numbers = (*numbers, *(n for n in self._created[board_id] if n not in numbers))
        return numbers

    def gone(self, board_id: str) -> Gone | None:
        """As `Ledger.gone`, with all that is pending."""
        return None if any(self.numbered(number) is not None for number in self.numbers(board_id)) else self.past(board_id)

    def past(self, board_id: str) -> Gone | None:
        """As `Ledger.past`, with all that is pending."""
        return self._gone.get(board_id) or self._ledger.past(board_id)

    def slice_numbered(self, board_id: str, layout: int) -> BoardState | None:
        """What is here of a board in the layout of that number."""
        for number in self.numbers(board_id):
            state = self.numbered(number)
            if state is not None and state.layout_number == layout:
                return state
        return None

    def next_number(self) -> int:
        """The number for a board that is to be created: one more than the highest ever given in this journal."""
        return 1 + max(self._ledger.highest, self._highest)

    def create_board(self, record: BoardCreated, offset: int) -> BoardState:
        """Make the board of `record` known from the entry at `offset` on.

        Raises:
            ValueError: its id (in that layout) or number is taken.
        """
        self._advance(offset)
        layout = record.layout.number if record.layout is not None else 1
        if self.slice_numbered(record.board_id, layout) is not None or record.number < self.next_number():
            raise ValueError(f"board {record.board_id} or its number {record.number} is taken")
        overlay = _Overlay(new_board(record), offset)
        self._created.setdefault(record.board_id, []).append(record.number)
        self._highest = record.number
        self._touch(record.number, overlay, offset, [], [])
        return overlay.board.state()

    def remove(self, record: BoardRemoved, offset: int) -> None:
        """Take a board out, or (unless `done`) only out of service, from the entry at `offset` on."""
        overlay = self._of(record.board, offset)
        if record.done:
            state = overlay.board.state()
            self._removed[record.board] = offset
            self._gone[state.board_id] = gone_after(self.past(state.board_id), state)
        overlay.board.take_removing()
        self._touch(record.board, overlay, offset, [], [])

    def take(self, record: Manifest | Relocating | SliceClosed | SliceOpened | Switched, offset: int) -> None:
        """Let a record of a board's life take effect from the entry at `offset` on."""
        overlay = self._of(record.board, offset)
        match record:
            case Manifest():
                overlay.board.take_manifest(record, offset)
            case Relocating():
                overlay.board.take_relocating(record)
            case SliceClosed():
                overlay.board.take_closed(record, offset)
            case SliceOpened():
                overlay.board.take_opened(record, offset)
            case Switched():
                overlay.board.take_switched(record, offset)
        self._touch(record.board, overlay, offset, [], [])

    def mark(self, board: BoardState, *, generation: int, lead_epoch: int, keeps: int, marked_ms: int, epoch: int, offset: int) -> Marked:
        """The record that marks a slice over all rows decided so far; it belongs into the entry at (epoch, offset).

        Raises:
            ValueError: offset below an earlier call's, board unknown or already marked in this entry.
        """
        overlay = self._open(board, offset)
        running = overlay.board
        record = Marked(board.number, generation, lead_epoch, keeps, marked_ms, running.checksum, running.count)
        running.take_marked(record, epoch, offset)
        self._touch(board.number, overlay, offset, [], [])
        return record

    def take_imported(self, reader: LedgerReader, record: Imported, *, epoch: int, offset: int) -> None:
        """Let players of another layout come in, as part of the entry at (epoch, offset). Cost: a lookup for each row."""
        overlay = self._of(record.board, offset)
        rows, saved, players, identities = overlay.rows, overlay.saved, list[str](), list[tuple[str, str]]()
        for player_id, row in record.rows:
            held = rows.get(player_id)
            old = reader.row(record.board, player_id) if held is None else held.row
            if old is None or row.version > old.version:
                overlay.board.replace(player_id, old, row, offset)
                rows[player_id] = _Held(offset, row)
                players.append(player_id)
        for event in record.events:
            identity = (event.player_id, event.event_id)
            if identity not in saved:
                saved[identity] = Saved(event.fingerprint, event.outcome, event.value, event.version, epoch, offset)
                identities.append(identity)
        overlay.board.take_imported(record)
        self._touch(record.board, overlay, offset, identities, players)

    def changed_boards(self) -> list[BoardState]:
        """Boards that are due (`BoardState.due`), by number, with all that is pending. Slices of several are marked on order only.

        Cost: O(boards that are pending or changed).
        """
        changed = {n: overlay.board.state() for n, overlay in self._overlays.items() if overlay.board.due and n not in self._removed}
        for number in self._ledger.unpublished() - self._overlays.keys() - self._removed.keys():
            stored = self._ledger.numbered(number)
            if stored is not None:
                changed[number] = stored
        return [changed[number] for number in sorted(changed)]

    def due(self) -> list[tuple[int, int]]:
        """(number, publish interval in ms) of the same boards, in the same order. Cost: about 0.6 µs each, a third of their states."""
        numbers = {n for n, overlay in self._overlays.items() if overlay.board.due and n not in self._removed}
        stored = self._ledger.unpublished() - self._overlays.keys() - self._removed.keys()
        found = [(n, self._overlays[n].board.start.rules.publish_interval_ms) for n in numbers]
        found += [(n, state.rules.publish_interval_ms) for n in stored if (state := self._ledger.numbered(n)) is not None]
        return sorted(found)

    def coordinated(self) -> list[BoardState]:
        """Boards that the lead coordinates (`BoardState.coordinated`), by number, with all that is pending. Cost: as `changed_boards`."""
        numbers = self._ledger.coordinated() | {n for n, overlay in self._overlays.items() if overlay.board.may_be_coordinated}
        states = [self.numbered(number) for number in sorted(numbers)]
        return [state for state in states if state is not None and state.coordinated]

    def publish(self, board: BoardState, *, published_ms: int, offset: int) -> Published:
        """The record of the board's next generation, over all rows decided so far; it belongs into the entry at `offset`.

        Raises:
            ValueError: offset below an earlier call's, board unknown or already published in this entry.
        """
        overlay = self._open(board, offset)
        running = overlay.board
        record = Published(board.number, running.generation + 1, published_ms, running.checksum, running.count)
        running.take_published(record, offset)
        self._touch(board.number, overlay, offset, [], [])
        return record

    def settle(self, applied_offset: int) -> None:
        """Drop the parts of all entries up to `applied_offset`, which the ledger has applied. Cost: O(what is dropped).

        Raises:
            ValueError: the ledger has not; they would be in neither.
        """
        if applied_offset > self._ledger.applied.offset:
            raise ValueError(f"the ledger stands at {self._ledger.applied.offset}, not at {applied_offset}")
        parts = self._parts
        while parts and parts[0].offset <= applied_offset:
            _, overlay, identities, players = parts.popleft()
            if overlay.touched <= applied_offset:
                state = overlay.board.start
                if self._overlays.get(state.number) is overlay:
                    del self._overlays[state.number]
                    self._removed.pop(state.number, None)
                    created = self._created.get(state.board_id, [])
                    if state.number in created:
                        created.remove(state.number)
                        if not created:
                            del self._created[state.board_id]
                    if not any(number in self._removed for number in self.numbers(state.board_id)):
                        self._gone.pop(state.board_id, None)
                continue
            for identity in identities:
                del overlay.saved[identity]
            for player_id in players:
                held = overlay.rows.get(player_id)
                if held is not None and held.offset <= applied_offset:
                    del overlay.rows[player_id]

    def reset(self) -> None:
        """Drop everything: the authority is deposed, or what it decided last was not appended."""
        self._overlays.clear()
        self._created.clear()
        self._removed.clear()
        self._gone.clear()
        self._parts.clear()
        self._highest = 0
        self._last = 0

    def __len__(self) -> int:
        """Identities held; 0 when all is settled."""
        return sum(len(overlay.saved) for overlay in self._overlays.values())

    def _advance(self, offset: int) -> None:
        if offset < self._last or offset <= self._ledger.applied.offset:
            raise ValueError(f"entry {offset} is not after {max(self._last - 1, self._ledger.applied.offset)}")
        self._last = offset

    def _of(self, number: int, offset: int) -> _Overlay:
        """The overlay of a board, or a new one that `_touch` will keep."""
        self._advance(offset)
        overlay = self._overlays.get(number)
        if overlay is None:
            stored = self._ledger.numbered(number)
            if stored is None:
                raise ValueError(f"board number {number} is not known here")
            return _Overlay(stored, offset)
        if number in self._removed:
            raise ValueError(f"board number {number} is removed")
        return overlay

    def _open(self, board: BoardState, offset: int) -> _Overlay:
        """The same, for what its boundary in this entry would have to include."""
        overlay = self._of(board.number, offset)
        if overlay.board.published[0] == offset:
            raise ValueError(f"board {board.board_id} is published in entry {offset} already")
        return overlay

    def _touch(self, number: int, overlay: _Overlay, offset: int, identities: list[tuple[str, str]], players: list[str]) -> None:
        overlay.touched = offset
        self._overlays[number] = overlay
        self._parts.append(_Part(offset, overlay, identities, players))
