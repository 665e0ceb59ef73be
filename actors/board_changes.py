"""What changes boards rather than scores: each becomes part of an entry, decided where the entry is made.

A decision sees all that is pending, adds its records to the entry, and says on which offset its answer rests. It may refuse
with an `Unanswered`: definite, nothing is added.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from actors.messages import BoardExists, NoAuthority, Unanswered, UnknownBoard
from actors.waiting import CommitWaiters, Deposed
from boards.model import BoardRules, Layout, Submission
from boards.slicing import slice_of
from failover.generations import totals
from journal.records import BoardCreated, BoardRemoved, Manifest, Mark, Record
from ledger.pending import Pending
from ledger.ports import BoardState, LedgerReader


@dataclass(slots=True)
class Draft:
    """An entry while it is made."""

    pending: Pending
    reader: LedgerReader
    epoch: int
    offset: int
    now_ms: int
    records: list[Record] = field(default_factory=list)


class Result(NamedTuple):
    """The answer to a change, and the offset that it rests on."""

    value: Any
    depends: int
    #: It also says that no other epoch has begun yet: a majority of stores has to confirm that after it was decided.
    confirmed: bool = False


@dataclass(slots=True)
class Change:
    """Something other than events that is to become part of an entry. The future raises what `decide` raised, or NoAuthority."""

    decide: Callable[[Draft], Result]
    done: asyncio.Future[Any]
    #: After all events of the entry: its boundary includes them.
    last: bool = False
    #: Answered when a majority holds it, whatever lease there is.
    committed: bool = False


#: (timeout in seconds) Returns once a majority of stores has taken something of this epoch that was sent after the call.
Confirm = Callable[[float], Awaitable[None]]


def decide(change: Change, draft: Draft, waiters: CommitWaiters, timeout_s: float, confirm: Confirm | None = None) -> None:
    """Decide a change as part of `draft`; its answer follows when what it rests on may be acknowledged.

    Without `confirm`, answers do not wait for `Result.confirmed`.
    """
    if change.done.done():
        return
    try:
        result = change.decide(draft)
    except Unanswered as error:
        change.done.set_exception(error)
        return
    asyncio.get_running_loop().create_task(_answer(change, result, waiters, timeout_s, confirm if result.confirmed else None))


async def _answer(change: Change, result: Result, waiters: CommitWaiters, timeout_s: float, confirm: Confirm | None) -> None:
    try:
        await waiters.wait(result.depends, timeout_s, committed=change.committed)
        if confirm is not None:
            await confirm(timeout_s)
    except (Deposed, TimeoutError):
        if not change.done.done():
            detail = "it is not known whether the change of the board was made"
            change.done.set_exception(NoAuthority(detail, code="unknown", definite=False))
        return
    if not change.done.done():
        change.done.set_result(result.value)


def refuse_unless_open(state: BoardState, shard: str) -> None:
    """Raise what an event for this board gets here, unless it is taken. Nothing was written."""
    if state.phase == "open":
        return
    if state.phase == "removing":
        raise UnknownBoard(f"there is no board {state.board_id}")
    if state.phase == "moved" and state.target is not None:
        raise moved_away(state.board_id, state.target)
    detail = f"{state.board_id} is being moved; {shard} takes no event of it now"
    raise NoAuthority(detail, code="moving", definite=True, retry_after_ms=100)


def refuse_strangers(state: BoardState, submissions: Sequence[Submission]) -> None:
    """Raise what events get here whose players belong to another slice: their sender knows an older layout. Nothing was written."""
    layout = state.layout
    if layout is None or len(layout.shards) == 1:
        return
    for event in submissions:
        if slice_of(event.player_id, len(layout.shards)) != state.slice:
            raise moved(f"{event.player_id} belongs to another slice of {state.board_id}", layout)


def moved(detail: str, layout: Layout) -> NoAuthority:
    """Nothing was written; look there."""
    return NoAuthority(detail, code="moved", definite=True, retry_after_ms=100, layout=msgspec.to_builtins(layout))


def moved_away(board_id: str, layout: Layout) -> NoAuthority:
    """The whole board is elsewhere."""
    return moved(f"{board_id} lives in {', '.join(layout.shards)} now", layout)


def so_far(draft: Draft) -> int:
    """What an answer rests on that tells how things are, with all that is pending and decided in this entry."""
    return draft.offset if draft.records else draft.offset - 1


# -- decisions ------------------------------------------------------------------------------------------------------


def create(
    board_id: str, rules: BoardRules, incarnation: str, subject: str, layout: Layout | None, *, dead: str = ""
) -> Callable[[Draft], Result]:
    """A board, here or led from here: (state, whether it is new). One that is there with other rules is told apart by the caller.

    Where its last life has moved away it is not made a second time, unless that life is `dead` (see `actors.orders`).
    """

    def made(draft: Draft) -> Result:
        pending, existing = draft.pending, draft.pending.board(board_id)
        if existing is not None:
            if existing.phase == "removing":
                raise BoardExists(f"board {board_id} is being removed; create it again when it is gone")
            # It rests on all that is pending: on this entry too, if that is what creates it.
            here = any(isinstance(record, BoardCreated) and record.board_id == board_id for record in draft.records)
            return Result((existing, False), draft.offset if here else draft.offset - 1)
        gone = pending.gone(board_id)
        if gone is not None and gone.moved_to is not None and gone.incarnation != dead:
            raise moved_away(board_id, gone.moved_to)
        record = BoardCreated(pending.next_number(), board_id, rules, incarnation, subject, draft.now_ms, layout)
        state = pending.create_board(record, draft.offset)
        draft.records.append(record)
        return Result((state, True), draft.offset)

    return made


def other_rules(board_id: str, there: BoardRules, wanted: BoardRules) -> BoardExists:
    """The refusal of a board that is there with rules of which at least one differs; names them, and what they are."""
    are = {name: getattr(there, name) for name in there.__struct_fields__ if getattr(there, name) != getattr(wanted, name)}
    words = {name: "none" if value is None else str(value) for name, value in are.items()}
    field = next(iter(words))
    told = ", ".join(f"{name} is {word}" for name, word in words.items())
    return BoardExists(f"board {board_id} exists with other rules: {told}", field=field, allowed=words[field])


class Slice(NamedTuple):
    """A slice as its lead names it: what it is made from where it is not there yet."""

    board_id: str
    incarnation: str
    rules: BoardRules
    layout: Layout
    slice: int
    created_by: str
    created_ms: int


def find_slice(draft: Draft, wanted: Slice, *, importing: bool = False) -> BoardState:
    """The slice, made in this entry if it is not there. Refuses while another life of the board is here, and what is gone."""
    pending, newest = draft.pending, 0
    for number in pending.numbers(wanted.board_id):
        state = pending.numbered(number)
        if state is not None:
            if state.incarnation != wanted.incarnation:
                raise BoardExists(f"another board {wanted.board_id} is still here; it has to be removed first")
            newest = max(newest, state.layout_number)
    state = pending.slice_numbered(wanted.board_id, wanted.layout.number)
    if state is not None:
        return state
    if wanted.layout.number < newest:
        raise UnknownBoard(f"{wanted.board_id} has gone on to layout {newest}; the order is late")
    past = pending.past(wanted.board_id)
    if past is not None and wanted.layout.number <= past.left(wanted.incarnation):
        raise UnknownBoard(f"{wanted.board_id} is gone from here; the order is late")
    record = BoardCreated(
        pending.next_number(),
        wanted.board_id,
        wanted.rules,
        wanted.incarnation,
        wanted.created_by,
        wanted.created_ms,
        wanted.layout,
        wanted.slice,
        importing,
    )
    draft.records.append(record)
    return pending.create_board(record, draft.offset)


def mark(wanted: Slice, *, generation: int, lead_epoch: int, keeps: int) -> Callable[[Draft], Result]:
    """The slice's mark for the round of `generation`: a new one if rows have changed since the newest, else that one again."""

    def made(draft: Draft) -> Result:
        state = find_slice(draft, wanted)
        if lead_epoch < state.lead_epoch:
            raise NoAuthority(f"epoch {state.lead_epoch} of the lead has asked here", code="no_authority", definite=True)
        if state.phase not in ("open", "closed"):
            raise NoAuthority(f"{wanted.board_id} is {state.phase} here", code="moving", definite=True)
        if state.mark is not None and (not state.unpublished or state.mark.offset == draft.offset):
            # That nothing has changed since holds only as long as no other authority has begun: a mark that is older than this
            # entry would be repeated by one that was deposed as well.
            return Result(state.mark, state.mark.offset, confirmed=state.mark.offset < draft.offset)
        record = draft.pending.mark(
            state,
            generation=generation,
            lead_epoch=lead_epoch,
            keeps=keeps,
            marked_ms=draft.now_ms,
            epoch=draft.epoch,
            offset=draft.offset,
        )
        draft.records.append(record)
        return Result(Mark(draft.epoch, draft.offset, record.checksum, record.count), draft.offset)

    return made


def manifest(number: int, generation: int, asked_at_ms: int, marks: tuple[Mark, ...]) -> Callable[[Draft], Result]:
    """The next generation, of these committed marks: its number."""

    def made(draft: Draft) -> Result:
        state = draft.pending.numbered(number)
        if state is None or state.layout is None or state.phase not in ("open", "closed") or state.generation + 1 != generation:
            raise Unanswered("the board has gone on meanwhile", code="busy")
        record = Manifest(number, generation, asked_at_ms, state.layout.number, marks, *totals(marks))
        draft.pending.take(record, draft.offset)
        draft.records.append(record)
        return Result(generation, draft.offset)

    return made


class Life(msgspec.Struct, frozen=True):
    """What a shard knows of one life of a board: here (as a slice of some layout), moved on to a layout, or neither: it is over."""

    here: bool
    moved_to: Layout | None = None


def find_life(board_id: str, incarnation: str) -> Callable[[Draft], Result]:
    """Whether a life of a board that came here once still goes on: a `Life`."""

    def made(draft: Draft) -> Result:
        here = [state for n in draft.pending.numbers(board_id) if (state := draft.pending.numbered(n)) is not None]
        here = [state for state in here if state.incarnation == incarnation]
        if any(state.phase != "moved" for state in here):
            return Result(Life(True), so_far(draft))
        if here:
            return Result(Life(False, here[0].target), so_far(draft))
        past = draft.pending.past(board_id)
        return Result(Life(False, past.moved_to if past is not None and past.incarnation == incarnation else None), so_far(draft))

    return made


def remove(board_id: str, incarnation: str, subject: str) -> Callable[[Draft], Result]:
    """Take a board out of service at its lead, and away at once if all of it is here: whether other slices are left to be removed."""

    def made(draft: Draft) -> Result:
        state = draft.pending.board(board_id)
        gone = draft.pending.gone(board_id)
        if gone is not None and gone.moved_to is not None and gone.incarnation == incarnation:
            raise moved_away(board_id, gone.moved_to)
        if state is not None and state.phase == "moved" and state.target is not None and state.incarnation == incarnation:
            raise moved_away(board_id, state.target)
        if state is None or state.incarnation != incarnation or not state.leads:
            raise UnknownBoard(f"there is no board {board_id} of that life here")
        if state.phase == "removing":
            return Result(True, so_far(draft))
        if state.target is not None:
            going = f"{board_id} is on its way to {', '.join(state.target.shards)}"
            raise Unanswered(f"{going}; wait for that, or give it up", code="relocation_refused")
        record = BoardRemoved(state.number, subject, draft.now_ms, not state.sharded)
        draft.pending.remove(record, draft.offset)
        draft.records.append(record)
        return Result(state.sharded, draft.offset)

    return made


def remove_slice(board_id: str, incarnation: str, layout: int, subject: str, *, wanted: Slice | None = None) -> Callable[[Draft], Result]:
    """Take away what is here of one life of a board in one layout; idempotent: False where nothing was.

    With `wanted`, a slice that was never here is written down as gone too: no mark that is still on its way makes it.
    """

    def made(draft: Draft) -> Result:
        state = draft.pending.slice_numbered(board_id, layout)
        if state is None and wanted is not None:
            with suppress(UnknownBoard, BoardExists):
                state = find_slice(draft, wanted)
        if state is None or state.incarnation != incarnation:
            return Result(False, so_far(draft))
        record = BoardRemoved(state.number, subject, draft.now_ms)
        draft.pending.remove(record, draft.offset)
        draft.records.append(record)
        return Result(True, draft.offset)

    return made
