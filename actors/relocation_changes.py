"""Decisions of a move to another layout, each part of an entry of the shard that it is about (see `actors.board_changes`).

At the lead: `begin`, `give_up`, `settle`, `switch`. At a slice of the present layout: `close` and `open_again`. At a slice of the next
layout: `begin_import`, `bring`, `open_imported`, `forget`. Any of them may be asked for late, twice, or by a lead that was deposed.
"""

from collections.abc import Callable, Sequence

import msgspec

from actors.board_changes import Draft, Result, Slice, find_slice, moved_away, so_far
from actors.messages import BoardExists, NoAuthority, Unanswered, UnknownBoard
from boards.model import Layout, Row
from journal.records import BoardRemoved, Imported, ImportedEvent, Relocating, SliceClosed, SliceOpened, Switched
from ledger.ports import BoardState

# -- at the lead ----------------------------------------------------------------------------------------------------


def begin(board_id: str, shards: tuple[str, ...], subject: str, *, shard: str) -> Callable[[Draft], Result]:
    """Send a board, led by `shard`, on its way: the layout it goes to. The same order again is no other move."""

    def made(draft: Draft) -> Result:
        state = _lead(draft, board_id)
        target = state.target
        if target is not None:
            if target.shards == shards and not state.aborting:
                return Result(target, so_far(draft))
            there = ", ".join(target.shards)
            if state.aborting:
                raise Unanswered(f"{board_id} is on its way back from {there}; wait for that", code="relocation_refused")
            detail = f"{board_id} is on its way to {there}; wait for that, or give it up"
            raise Unanswered(detail, code="relocation_refused", field="shards", allowed=there)
        if not shards or len(set(shards)) != len(shards) or "" in shards:
            raise Unanswered("a board lives on one shard or several, each named once", code="invalid", field="shards", allowed="names")
        if shards == (state.layout.shards if state.layout is not None else (shard,)):
            allowed = "other shards, or the same in another order"
            raise Unanswered(f"{board_id} lives there already", code="invalid", field="shards", allowed=allowed)
        if len(shards) > 1 and state.rules.ranking == "dense":
            allowed = "one shard: a board with dense ranks cannot be spread"
            raise Unanswered(f"{board_id} cannot be spread", code="bad_rule", field="shards", allowed=allowed)
        record = Relocating(state.number, Layout(1 + max(state.layout_number, state.aimed), shards), subject, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(record.layout, draft.offset)

    return made


def give_up(board_id: str, incarnation: str, subject: str) -> Callable[[Draft], Result]:
    """Begin to undo a move: whether there is one. `incarnation` may be "" for whichever life is here."""

    def made(draft: Draft) -> Result:
        state = _lead(draft, board_id)
        if incarnation not in ("", state.incarnation):
            raise UnknownBoard(f"there is no board {board_id} of that life here")
        if state.target is None or state.aborting:
            return Result(state.target is not None, so_far(draft))
        record = Relocating(state.number, state.target, subject, draft.now_ms, aborting=True)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(True, draft.offset)

    return made


def settle(number: int, subject: str) -> Callable[[Draft], Result]:
    """The last step of giving up: nothing of the move is left, and the board stays."""

    def made(draft: Draft) -> Result:
        state = draft.pending.numbered(number)
        if state is None or state.target is None or not state.aborting:
            return Result(False, so_far(draft))
        record = Relocating(number, None, subject, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(True, draft.offset)

    return made


def switch(number: int, target: Layout, closed_at: int) -> Callable[[Draft], Result]:
    """The decision: the board lives in `target` from here on. Only while the lead's own slice is closed as it was at `closed_at`."""

    def made(draft: Draft) -> Result:
        state = draft.pending.numbered(number)
        if state is None or state.target != target or state.aborting or state.phase != "closed" or state.closed_offset != closed_at:
            raise Unanswered("the move has taken another course meanwhile", code="busy")
        record = Switched(number, target, state.generation, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(state.generation, draft.offset)

    return made


def look(number: int) -> Callable[[Draft], Result]:
    """A board as it is with everything decided so far, told once that is committed: what later steps may rest on."""

    def made(draft: Draft) -> Result:
        return Result(draft.pending.numbered(number), so_far(draft))

    return made


# -- at a slice of the present layout -------------------------------------------------------------------------------


class Closed(msgspec.Struct, frozen=True, array_like=True):
    """The declared boundary of a slice, and what it holds up to there."""

    offset: int
    checksum: int
    count: int


def close(board_id: str, incarnation: str, layout: int, *, target: int, lead_epoch: int, above: int) -> Callable[[Draft], Result]:
    """Take no event from this entry on: `Closed`.

    One closure is told from another by its offset. `above`: the highest one that this lead has seen before it began to close
    (0: none), so that what it has opened since, or tries to, is closed anew, and an opening on its way finds nothing to open.
    """

    def made(draft: Draft) -> Result:
        state = _source(draft, board_id, incarnation, layout, lead_epoch)
        mine = state.phase == "closed" and (state.lead_epoch, state.closed_for) == (lead_epoch, target)
        if mine and state.closed_offset > above:
            return Result(Closed(state.closed_offset, state.checksum, state.count), so_far(draft))
        record = SliceClosed(state.number, target, lead_epoch, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(Closed(draft.offset, state.checksum, state.count), draft.offset)

    return made


class Looked(msgspec.Struct, frozen=True):
    """Offset of the closure that holds now, 0 if the slice is open; and an offset of its journal that is committed."""

    closed_at: int
    upto: int


def open_again(
    board_id: str, incarnation: str, layout: int, *, generation: int, lead_epoch: int, closed_at: int
) -> Callable[[Draft], Result]:
    """Undo the closure at offset `closed_at`, and no other: `Looked`. With `closed_at=0` it only looks."""

    def made(draft: Draft) -> Result:
        state = _source(draft, board_id, incarnation, layout, lead_epoch)
        if state.phase == "open" or state.closed_offset != closed_at:
            return Result(Looked(state.closed_offset, so_far(draft)), so_far(draft))
        record = SliceOpened(state.number, generation, lead_epoch, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(Looked(0, draft.offset), draft.offset)

    return made


def _source(draft: Draft, board_id: str, incarnation: str, layout: int, lead_epoch: int) -> BoardState:
    state = _slice(draft, board_id, incarnation, layout)
    if lead_epoch < state.lead_epoch:
        raise NoAuthority(f"epoch {state.lead_epoch} of the lead has asked here", code="no_authority", definite=True)
    if state.phase not in ("open", "closed"):
        raise NoAuthority(f"{board_id} is {state.phase} here", code="moving", definite=True)
    return state


# -- at a slice of the next layout ----------------------------------------------------------------------------------


def begin_import(wanted: Slice) -> Callable[[Draft], Result]:
    """The slice that is to be filled: its state, importing or open already."""

    def made(draft: Draft) -> Result:
        state = find_slice(draft, wanted, importing=True)
        return Result(state, so_far(draft))

    return made


def bring(
    number: int, source: int, rows: Sequence[tuple[str, Row]], events: Sequence[ImportedEvent], cursor: bytes | None, replayed: int
) -> Callable[[Draft], Result]:
    """Players of slice `source` of the old layout, as far as they are not here yet: how many rows and events were new."""

    def made(draft: Draft) -> Result:
        pending, reader = draft.pending, draft.reader
        state = pending.numbered(number)
        if state is None or state.phase != "importing":
            raise UnknownBoard("the slice is not filled any more")
        new_rows = []
        for player_id, row in rows:
            known = pending.row(reader, number, player_id)
            if known is None or known.version < row.version:
                new_rows.append((player_id, row))
        new_events = [e for e in events if pending.identity(reader, number, e.player_id, e.event_id) is None]
        record = Imported(number, source, new_rows, new_events, cursor, replayed)
        pending.take_imported(reader, record, epoch=draft.epoch, offset=draft.offset)
        draft.records.append(record)
        return Result((len(new_rows), len(new_events)), draft.offset)

    return made


def open_imported(board_id: str, incarnation: str, layout: int, *, generation: int, lead_epoch: int) -> Callable[[Draft], Result]:
    """The board has switched: take events from here on. The lead goes on with the generation after `generation`."""

    def made(draft: Draft) -> Result:
        state = _slice(draft, board_id, incarnation, layout)
        if state.phase != "importing":
            return Result(state.phase, so_far(draft))
        record = SliceOpened(state.number, generation, lead_epoch, draft.now_ms)
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result("open", draft.offset)

    return made


def forget(wanted: Slice, subject: str) -> Callable[[Draft], Result]:
    """Take away what a move that is given up has filled. Where nothing is, that is written down too: no order on its way makes it again."""

    def made(draft: Draft) -> Result:
        try:
            state = find_slice(draft, wanted, importing=True)
        except (UnknownBoard, BoardExists):
            return Result(False, so_far(draft))
        if state.phase != "importing":
            raise Unanswered(f"{wanted.board_id} is {state.phase} here", code="relocation_refused")
        record = BoardRemoved(state.number, subject, draft.now_ms)
        draft.pending.remove(record, draft.offset)
        draft.records.append(record)
        return Result(True, draft.offset)

    return made


def _slice(draft: Draft, board_id: str, incarnation: str, layout: int) -> BoardState:
    state = draft.pending.slice_numbered(board_id, layout)
    if state is None or state.incarnation != incarnation:
        raise UnknownBoard(f"layout {layout} of {board_id} is not here")
    return state


def _lead(draft: Draft, board_id: str) -> BoardState:
    """The board as the shard that leads it has it; what has just moved on says where to."""
    state = draft.pending.board(board_id)
    gone = draft.pending.gone(board_id)
    if gone is not None and gone.moved_to is not None:
        raise moved_away(board_id, gone.moved_to)
    if state is None or state.phase == "removing":
        raise UnknownBoard(f"there is no board {board_id}")
    if state.phase == "moved" and state.target is not None:
        raise moved_away(board_id, state.target)
    if not state.leads:
        raise NoAuthority(f"{board_id} is not led from here", code="moving", definite=True, retry_after_ms=100)
    return state
