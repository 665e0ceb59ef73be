"""Salvage: from a store's orphans to what is sent again, and what became of it. Pure.

An orphan keeps its identity and content, so sending it through the normal write path is safe however often it is done:
the lineage applies it once (I4) and answers `duplicate` from then on. Hence nothing has to remember what was salvaged:
an event is done when the committed lineage holds its identity with the same content.

Records of the protocol (epoch starts, handovers, generations, audit records of the cut epoch) are dropped: they speak of
a journal that is not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from boards.model import BoardRules, Layout, Outcome, Submission
from journal.ports import OrphanBatch
from journal.records import BoardCreated, EpochStarted, Record, Scored, open_entry

#: In front of the subject of an event that is sent again.
SALVAGED = "salvaged:"
#: Events sent again in one request.
EVENTS_PER_REQUEST = 500

#: `open`: not known to be committed yet, send it (again). `operator`: sending it again would change nothing.
State = Literal["done", "held", "operator", "open"]

#: Outcomes that leave the identity in the lineage with this content.
_DONE = {Outcome.APPLIED_FIRST, Outcome.APPLIED, Outcome.DUPLICATE, Outcome.NOT_AN_IMPROVEMENT, Outcome.SUPERSEDED}


def modes(batches: Iterable[OrphanBatch]) -> dict[int, str]:
    """Epoch -> `quorum` or `local`, of those whose start record is among these entries."""
    found: dict[int, str] = {}
    for batch in batches:
        for entry in batch.entries:
            if entry.term is not None:
                started = open_entry(entry)[0]
                assert isinstance(started, EpochStarted)
                found[started.epoch] = started.mode
    return found


class Known(NamedTuple):
    """A board of the lineage."""

    board_id: str
    rules: BoardRules
    created_ms: int


class Place(NamedTuple):
    """Where an orphan stood, and which of its records it is, from 0."""

    epoch: int
    offset: int
    record: int


class OrphanEvent(msgspec.Struct, frozen=True, gc=False):
    """An orphaned `Scored`. `obstacle` is a code, or "" where it can be sent: then `board_id` is certain."""

    place: Place
    board_id: str
    decimals: int
    submission: Submission
    subject: str
    obstacle: str


class OrphanBoard(msgspec.Struct, frozen=True, gc=False):
    """An orphaned `BoardCreated`. `there`: the lineage has that board with the same rules."""

    place: Place
    board_id: str
    rules: BoardRules
    subject: str
    there: bool
    obstacle: str
    #: Where its slices were to live; None: all of it here.
    layout: Layout | None = None


class Finding(msgspec.Struct, frozen=True, gc=False):
    """What is known of one orphan: its state, the outcome in words ("" if there is none yet), and a code that explains it."""

    state: State
    outcome: str = ""
    code: str = ""


class Orphans(msgspec.Struct, frozen=True):
    """All orphans of a store, by place. `dropped` counts the records of the protocol by (epoch, offset)."""

    boards: list[OrphanBoard]
    events: list[OrphanEvent]
    dropped: dict[tuple[int, int], int]


class Request(NamedTuple):
    """Events of one board and one subject, to be sent again in this order."""

    board_id: str
    subject: str
    events: list[OrphanEvent]


def sort_out(batches: Iterable[OrphanBatch], boards: Mapping[int, Known], gone: Callable[[str], bool] = lambda _: False) -> Orphans:
    """Sort orphaned records into boards, events and what is dropped; `boards` are the lineage's, by number.

    `gone` says of an id whether the lineage had that board, and has it no more. Obstacles: `unknown_board` (no board of
    that number can have been meant), `ambiguous_board` (several can), `board_exists` (the lineage has a board of that id with
    other rules, so the amounts may mean something else), `removed` (the board is gone: sending it again would bring it back).
    Raises `msgspec.DecodeError` when an entry's bytes are no list of records. Cost: about 5 µs a record.
    """
    placed = [
        (Place(batch.epoch, entry.offset, index), record)
        for batch in batches
        for entry in batch.entries
        for index, record in enumerate(open_entry(entry))
    ]
    placed.sort(key=lambda pair: pair[0])
    created = _Created(placed, boards, gone)
    found = Orphans([], [], {})
    for place, record in placed:
        if isinstance(record, BoardCreated) and record.slice == 0 and not record.importing:
            there = created.by_id.get(record.board_id)
            same = there is not None and there.rules == record.rules
            obstacle = "" if same else created.obstacle(record.board_id, record.rules)
            found.boards.append(OrphanBoard(place, record.board_id, record.rules, record.created_by, same, obstacle, record.layout))
        elif isinstance(record, Scored):
            board, obstacle = created.meant(place, record)
            event = Submission(
                record.event_id, record.player_id, record.amount, record.achieved_ms, record.submitted_ms, record.fingerprint, record.second
            )
            decimals = board.rules.decimals if board is not None else 0
            board_id = board.board_id if board is not None else ""
            found.events.append(OrphanEvent(place, board_id, decimals, event, record.subject, obstacle))
        else:  # also slices that a lead made here or copies into: it does so again
            at = (place.epoch, place.offset)
            found.dropped[at] = found.dropped.get(at, 0) + 1
    return found


class _Created:
    """Which board a number means at some place. Numbers are given out journal by journal: one that was given out in an
    epoch that was cut is given out again in the lineage."""

    def __init__(self, placed: Iterable[tuple[Place, Record]], boards: Mapping[int, Known], gone: Callable[[str], bool]) -> None:
        self._boards, self._gone = boards, gone
        self.by_id = {board.board_id: board for board in boards.values()}
        self._orphaned: dict[int, list[tuple[Place, BoardCreated]]] = {}
        for place, record in placed:
            if isinstance(record, BoardCreated):
                self._orphaned.setdefault(record.number, []).append((place, record))

    def meant(self, place: Place, record: Scored) -> tuple[Known | None, str]:
        """The board that an event was for, and the obstacle, if there is one, to sending it there."""
        before = [(at, made) for at, made in self._orphaned.get(record.board, []) if at.epoch <= place.epoch and at.offset <= place.offset]
        same_log = [made for at, made in before if at.epoch == place.epoch]
        candidates = [_known(made) for made in same_log or [made for _, made in before]]
        lineage = self._boards.get(record.board)
        # The lineage's board of that number is meant only if it was there when the event was decided.
        if not same_log and lineage is not None and lineage.created_ms <= record.processed_ms:
            candidates.append(lineage)
        if not candidates:
            return None, "unknown_board"
        if len({board.board_id for board in candidates}) > 1:
            return None, "ambiguous_board"
        board = candidates[0]
        return board, self.obstacle(board.board_id, board.rules)

    def obstacle(self, board_id: str, rules: BoardRules) -> str:
        """Why nothing can be sent to a board of that id, which had these rules; "" if it can, or if it can be made first."""
        there = self.by_id.get(board_id)
        if there is None:
            return "removed" if self._gone(board_id) else ""
        return "board_exists" if there.rules != rules else ""


def _known(made: BoardCreated) -> Known:
    return Known(made.board_id, made.rules, made.at_ms)


def finding(event: OrphanEvent, saved: tuple[bytes, int] | None) -> Finding:
    """What the committed lineage says of an event; `saved` is fingerprint and outcome of its identity there, None if it has none."""
    if event.obstacle:
        return Finding("operator", code=event.obstacle)
    if saved is None:
        return Finding("open")
    fingerprint, outcome = saved
    if fingerprint != event.submission.fingerprint:
        return Finding("operator", "conflict", "conflict")
    return Finding("done", word(outcome))


def answered(outcome: int, code: str) -> Finding:
    """What an answer to an event that was sent again means, once what it rests on is committed.

    Events held for review are no outcome of a board's rules: they carry the code `held`. An outcome that is not remembered
    (`invalid`, with `too_old` among its codes) stays for an operator.
    """
    said = word(outcome)
    if code == "held":
        return Finding("held", said, code)
    if outcome in _DONE:
        return Finding("done", said)
    if outcome == Outcome.UNKNOWN:
        return Finding("open", said, code)
    return Finding("operator", said, code or said)


def word(outcome: int) -> str:
    """An outcome as the wire has it."""
    return Outcome(outcome).name.lower()


def requests(events: Sequence[OrphanEvent]) -> list[Request]:
    """Events joined where neighbours have board and subject in common, in order, at most `EVENTS_PER_REQUEST` each."""
    joined: list[Request] = []
    for event in events:
        subject = event.subject if event.subject.startswith(SALVAGED) else SALVAGED + event.subject
        last = joined[-1] if joined else None
        if last is None or (last.board_id, last.subject) != (event.board_id, subject) or len(last.events) >= EVENTS_PER_REQUEST:
            joined.append(Request(event.board_id, subject, [event]))
        else:
            last.events.append(event)
    return joined


class Count(msgspec.Struct, kw_only=True):
    """What lies, or lay, in one orphaned entry."""

    epoch: int
    offset: int
    boards: int = 0
    dropped: int = 0
    done: int = 0
    held: int = 0
    operator: int = 0
    open: int = 0


def counts(orphans: Orphans, found: Callable[[OrphanEvent], Finding], made: Callable[[OrphanBoard], Finding]) -> list[Count]:
    """Counts of events by state, by (epoch, offset); a board counts under `boards`, and under its state too."""
    by_place: dict[tuple[int, int], Count] = {}

    def at(epoch: int, offset: int) -> Count:
        return by_place.setdefault((epoch, offset), Count(epoch=epoch, offset=offset))

    for (epoch, offset), number in orphans.dropped.items():
        at(epoch, offset).dropped += number
    for board in orphans.boards:
        count = at(board.place.epoch, board.place.offset)
        count.boards += 1
        _add(count, made(board).state)
    for event in orphans.events:
        _add(at(event.place.epoch, event.place.offset), found(event).state)
    return [by_place[place] for place in sorted(by_place)]


def _add(count: Count, state: State) -> None:
    setattr(count, state, getattr(count, state) + 1)
