"""The boards told again in few words, apart from the product's rules: what a log means, and what its readers should see.

Nothing here uses `boards.policies`, `ledger` or the rank index.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from boards.model import Outcome, Row
from boards.slicing import slice_of
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Entry,
    EpochStarted,
    HandedOver,
    Imported,
    Manifest,
    Marked,
    Published,
    Scored,
    SliceClosed,
    SliceOpened,
    Switched,
    open_entry,
)
from simulation.watch import Violation

Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Applied:
    """What the log says of one event."""

    epoch: int
    offset: int
    outcome: int
    value: int
    version: int
    #: Not known of an event that came in with its player: its fingerprint is.
    amount: int | None
    fingerprint: bytes = b""


@dataclass(slots=True)
class _Standing:
    """A player's row: value, version, the moment that breaks ties, and what `latest` boards compare."""

    value: int
    version: int
    moment: int
    achieved: int
    event_id: str


@dataclass(frozen=True, slots=True)
class MarkTold:
    """A boundary of a slice and the rows that it closes: player -> (value, version), and what sorts it into display order."""

    epoch: int
    offset: int
    checksum: int
    rows: dict[str, tuple[int, int]]
    order: dict[str, tuple[int, int, str]]
    keeps: int = 0
    lead_epoch: int = 0
    generation: int = 0


@dataclass(slots=True)
class SliceTold:
    """A slice of a board, or all of one, as its shard's log has it. Offsets are 0 for never."""

    created: BoardCreated
    offset: int
    rows: dict[str, _Standing] = field(default_factory=dict)
    #: By offset.
    marks: dict[int, MarkTold] = field(default_factory=dict)
    #: (manifest, epoch, offset), oldest first.
    manifests: list[tuple[Manifest, int, int]] = field(default_factory=list)
    #: The same of a board that is all here.
    published: list[tuple[Published, int, int]] = field(default_factory=list)
    #: (offset, event) of what was decided here, oldest first.
    scored: list[tuple[int, Scored]] = field(default_factory=list)
    #: The newest generation that this log knows of.
    generation: int = 0
    importing: bool = False
    closed: int = 0
    opened: int = 0
    switched: int = 0
    removed: int = 0

    @property
    def layout_number(self) -> int:
        """1 where the board was never spread or moved."""
        return self.created.layout.number if self.created.layout is not None else 1

    @property
    def shards(self) -> tuple[str, ...]:
        """Of its layout; empty where all of the board is here."""
        return self.created.layout.shards if self.created.layout is not None else ()


@dataclass(slots=True)
class Told:
    """A log, folded naively."""

    #: Every event exactly once, where it was decided.
    events: dict[Identity, Applied] = field(default_factory=dict)
    #: Events that were decided elsewhere, or in another layout, and came in with their players: where, oldest first.
    came: dict[Identity, list[Applied]] = field(default_factory=dict)
    #: All that ever was here of boards, by number.
    slices: dict[int, SliceTold] = field(default_factory=dict)
    #: (board incarnation, generation) -> (epoch, boundary, rows as (player, value, version) in display order).
    generations: dict[tuple[str, int], tuple[int, int, tuple[tuple[str, int, int], ...]]] = field(default_factory=dict)
    #: Board id -> (generation, boundary), oldest first.
    published: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    epochs: list[EpochStarted] = field(default_factory=list)


def tell(entries: Iterable[Entry]) -> Told:
    """Fold a log. Raises `Violation`: I3, I4, I8, I11, or a decision that the rules would not make."""
    told = Told()
    slices = told.slices
    epoch, offset, handed_over = 0, 0, 0
    for entry in entries:
        if entry.epoch == handed_over:
            raise Violation("handover", f"epoch {handed_over} goes on after its handover record")
        records = open_entry(entry)
        if entry.offset != offset + 1 or entry.epoch < epoch:
            raise Violation("I3", f"{(entry.epoch, entry.offset)} follows {(epoch, offset)}")
        if (entry.epoch > epoch) != isinstance(records[0], EpochStarted):
            raise Violation("I3", f"epoch {entry.epoch} begins without its start record")
        epoch, offset = entry.epoch, entry.offset
        for record in records:
            match record:
                case EpochStarted():
                    _follows(told.epochs, record)
                    told.epochs.append(record)
                case BoardCreated():
                    _check_created(slices, record)
                    slices[record.number] = SliceTold(record, offset, importing=record.importing)
                case Published():
                    one = slices[record.board]
                    if record.generation != one.generation + 1:
                        raise Violation("I11", f"generation {record.generation} follows {one.generation}")
                    one.generation = record.generation
                    _publish(told, one, record, epoch, offset)
                case HandedOver():
                    handed_over = epoch
                case Scored():
                    _score(told, slices[record.board], record, epoch, offset)
                case Marked() | Manifest() | Imported() | SliceClosed() | Switched() | SliceOpened() | BoardRemoved():
                    _tell_slice(told, slices[record.board], record, epoch, offset)
                case _:
                    pass
    return told


def fold_naively(entries: Iterable[Entry]) -> dict[Identity, Applied]:
    """The events of a log, by (board id, player, event id)."""
    return tell(entries).events


def fold_events(board: BoardCreated, events: Iterable[Scored]) -> tuple[tuple[str, int, int], ...]:
    """Rows in display order, after these events of a board, each player's in the order in which they were decided."""
    one = SliceTold(board, 0)
    for event in events:
        moment = event.submitted_ms if board.rules.ties == "submitted_at" else event.achieved_ms
        _, new = _ruled(board.rules.policy, one.rows.get(event.player_id), event, moment)
        if new is not None:
            one.rows[event.player_id] = new
    return tuple((p, one.rows[p].value, one.rows[p].version) for p in sorted(one.rows, key=lambda p: _display(one, p)))


def _follows(epochs: list[EpochStarted], record: EpochStarted) -> None:
    """An epoch deposes the one that stands before it in the journal, or a later one that was cut: what `from` in Seal is for."""
    before = (epochs[-1].epoch, epochs[-1].owner) if epochs else (0, "")
    if record.from_epoch < before[0] or (record.from_epoch == before[0] and record.from_owner != before[1]):
        raise Violation("from", f"epoch {record.epoch} deposed {(record.from_epoch, record.from_owner)}, but {before} stands before it")
    if record.cause in ("restart", "unstarted_seal") and record.from_owner != record.owner:
        raise Violation("follow", f"{record.owner} took epoch {record.epoch} from {record.from_owner} without an order")
    if epochs and record.config_version < epochs[-1].config_version:
        raise Violation("members", f"epoch {record.epoch} went back to members {record.config_version}")


def _check_created(slices: dict[int, SliceTold], record: BoardCreated) -> None:
    """No number is given twice; of one board only slices of other layouts of the same life are here besides."""
    layout = record.layout.number if record.layout is not None else 1
    here = [one for one in slices.values() if one.created.board_id == record.board_id and not one.removed]
    if record.number in slices or any(one.created.incarnation != record.incarnation or one.layout_number == layout for one in here):
        raise Violation("I8", f"board {record.board_id} or its number {record.number} is there twice")


def _display(one: SliceTold, player: str) -> tuple[int, int, str]:
    standing = one.rows[player]
    return standing.value if one.created.rules.direction == "lower" else -standing.value, standing.moment, player


def _seen(one: SliceTold) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int, str]]]:
    rows = {player: (row.value, row.version) for player, row in one.rows.items()}
    return rows, {player: _display(one, player) for player in rows}


def _publish(told: Told, one: SliceTold, record: Published, epoch: int, offset: int) -> None:
    board, rows = one.created, one.rows
    order = sorted(rows, key=lambda player: _display(one, player))
    if record.count != len(rows):
        raise Violation("I8", f"{board.board_id} s{record.generation} says {record.count} rows, there are {len(rows)}")
    shown = tuple((p, rows[p].value, rows[p].version) for p in order)
    told.generations[board.incarnation, record.generation] = (epoch, offset, shown)
    told.published.setdefault(board.board_id, []).append((record.generation, offset))
    if board.layout is not None:
        one.published.append((record, epoch, offset))
        one.marks[offset] = MarkTold(epoch, offset, record.checksum, *_seen(one))


def _tell_slice(
    told: Told,
    one: SliceTold,
    record: Marked | Manifest | Imported | SliceClosed | Switched | SliceOpened | BoardRemoved,
    epoch: int,
    offset: int,
) -> None:
    """What boards of several slices, and moves, have in a log."""
    name = one.created.board_id
    match record:
        case Marked():
            if record.count != len(one.rows):
                raise Violation("I8", f"a mark of {name} says {record.count} rows, there are {len(one.rows)}")
            newest = one.marks[max(one.marks)].lead_epoch if one.marks else 0
            if record.lead_epoch < newest:
                raise Violation("marks", f"epoch {record.lead_epoch} of the lead marked {name} after epoch {newest}")
            one.marks[offset] = MarkTold(epoch, offset, record.checksum, *_seen(one), record.keeps, record.lead_epoch, record.generation)
        case Manifest():
            if record.generation != one.generation + 1:
                raise Violation("I11", f"manifest {record.generation} follows {one.generation}")
            one.generation = record.generation
            one.manifests.append((record, epoch, offset))
        case Imported():
            _import(told, one, record, epoch, offset)
        case SliceClosed():
            one.closed = offset
        case SliceOpened():
            one.closed, one.opened = 0, offset
            if one.importing:
                one.importing, one.generation = False, record.generation
        case Switched():
            one.switched = offset
        case BoardRemoved():
            if record.done:
                one.removed = offset


def _import(told: Told, one: SliceTold, record: Imported, epoch: int, offset: int) -> None:
    """Whole rows and identities from elsewhere: the higher version counts, whatever the order."""
    if not one.importing:
        raise Violation("moves", f"players come into {one.created.board_id} at {offset}, which is open")
    for player, row in record.rows:
        _check_slice(one, player)
        known = one.rows.get(player)
        if known is not None and known.version == row.version and known != _standing(row):
            raise Violation("I8", f"version {row.version} of {player} is {known} and came in as {row}")
        if known is None or row.version > known.version:
            one.rows[player] = _standing(row)
    for event in record.events:
        identity = (one.created.board_id, event.player_id, event.event_id)
        known_event = told.events.get(identity) or next(iter(told.came.get(identity, ())), None)
        if known_event is not None and (known_event.outcome, known_event.value, known_event.version) != (
            event.outcome,
            event.value,
            event.version,
        ):
            raise Violation("I4", f"{identity} came in as {event}, and was {known_event}")
        told.came.setdefault(identity, []).append(
            Applied(epoch, offset, event.outcome, event.value, event.version, None, event.fingerprint)
        )


def _standing(row: Row) -> _Standing:
    return _Standing(row.value, row.version, row.tie_ms, row.achieved_ms, row.last_event_id)


def _check_slice(one: SliceTold, player: str) -> None:
    """A player is in the slice that the hash of its id says, and in no other."""
    count = len(one.shards) or 1
    if slice_of(player, count) != one.created.slice:
        raise Violation("slices", f"{player} is in slice {one.created.slice} of {one.created.board_id}, not in {slice_of(player, count)}")


def _score(told: Told, one: SliceTold, record: Scored, epoch: int, offset: int) -> None:
    board, rows = one.created, one.rows
    _check_slice(one, record.player_id)
    if one.importing or one.closed or one.removed:
        raise Violation("moves", f"{record.event_id} was taken at {offset}, where {board.board_id} is not open")
    one.scored.append((offset, record))
    identity = (board.board_id, record.player_id, record.event_id)
    if (before := told.events.get(identity) or next(iter(told.came.get(identity, ())), None)) is not None:
        raise Violation("I4", f"{identity} was applied twice, at {before.offset} and at {offset}")
    old = rows.get(record.player_id)
    moment = record.submitted_ms if board.rules.ties == "submitted_at" else record.achieved_ms
    outcome, new = _ruled(board.rules.policy, old, record, moment)
    value, version = (new.value, new.version) if new is not None else (old.value, old.version) if old is not None else (0, 0)
    if (record.outcome, record.value, record.version) != (outcome, value, version):
        raise Violation("rules", f"{record} after {old}, where {Outcome(outcome).name} was due")
    if (record.row is None) != (new is None) or (record.row is not None and (record.row.value, record.row.version) != (value, version)):
        raise Violation("rules", f"{record} has another row than {new}")
    if new is not None:
        rows[record.player_id] = new
    told.events[identity] = Applied(epoch, offset, outcome, value, version, record.amount)


def _ruled(policy: str, old: _Standing | None, event: Scored, moment: int) -> tuple[int, _Standing | None]:
    amount, achieved, event_id = event.amount, event.achieved_ms, event.event_id
    if old is None:
        return Outcome.APPLIED_FIRST, _Standing(amount, 1, moment, achieved, event_id)
    version = old.version + 1
    if policy == "cumulative":
        if amount == 0:
            return Outcome.NOT_AN_IMPROVEMENT, None
        fresh = old.value == 0 and old.version == 1
        later = moment if fresh else max(moment, old.moment)
        return Outcome.APPLIED, _Standing(old.value + amount, version, later, achieved, event_id)
    if policy == "latest":
        if (achieved, event_id) < (old.achieved, old.event_id):
            return Outcome.SUPERSEDED, None
        return Outcome.APPLIED, _Standing(amount, version, old.moment if amount == old.value else moment, achieved, event_id)
    better = amount < old.value if policy == "fastest_time" else amount > old.value
    if not better:
        return Outcome.NOT_AN_IMPROVEMENT, None
    return Outcome.APPLIED, _Standing(amount, version, moment, achieved, event_id)
