"""The boards told again in few words, apart from the product's rules: what a log means, and what its readers should see.

Nothing here uses `boards.policies`, `ledger` or the rank index.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from boards.model import Outcome
from journal.records import BoardCreated, Entry, EpochStarted, HandedOver, Published, Scored, open_entry
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
    amount: int


@dataclass(slots=True)
class _Standing:
    """A player's row: value, version, the moment that breaks ties, and what `latest` boards compare."""

    value: int
    version: int
    moment: int
    achieved: int
    event_id: str


@dataclass(slots=True)
class Told:
    """A log, folded naively."""

    #: Every event exactly once.
    events: dict[Identity, Applied] = field(default_factory=dict)
    #: (board incarnation, generation) -> (epoch, boundary, rows as (player, value, version) in display order).
    generations: dict[tuple[str, int], tuple[int, int, tuple[tuple[str, int, int], ...]]] = field(default_factory=dict)
    #: Board id -> (generation, boundary), oldest first.
    published: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    epochs: list[EpochStarted] = field(default_factory=list)


def tell(entries: Iterable[Entry]) -> Told:
    """Fold a log. Raises `Violation`: I3, I4, I8, I11, or a decision that the rules would not make."""
    told = Told()
    boards: dict[int, BoardCreated] = {}
    rows: dict[int, dict[str, _Standing]] = {}
    last: dict[int, int] = {}
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
                    if record.number in boards or any(b.board_id == record.board_id for b in boards.values()):
                        raise Violation("I8", f"board {record.board_id} or its number {record.number} is there twice")
                    boards[record.number], rows[record.number] = record, {}
                case Published():
                    if record.generation != last.get(record.board, 0) + 1:
                        raise Violation("I11", f"generation {record.generation} follows {last.get(record.board, 0)}")
                    last[record.board] = record.generation
                    _publish(told, boards[record.board], rows[record.board], record, epoch, offset)
                case HandedOver():
                    handed_over = epoch
                case Scored():
                    _score(told, boards[record.board], rows[record.board], record, epoch, offset)
                case _:
                    pass
    return told


def fold_naively(entries: Iterable[Entry]) -> dict[Identity, Applied]:
    """The events of a log, by (board id, player, event id)."""
    return tell(entries).events


def _follows(epochs: list[EpochStarted], record: EpochStarted) -> None:
    """An epoch deposes the one that stands before it in the journal, or a later one that was cut: what `from` in Seal is for."""
    before = (epochs[-1].epoch, epochs[-1].owner) if epochs else (0, "")
    if record.from_epoch < before[0] or (record.from_epoch == before[0] and record.from_owner != before[1]):
        raise Violation("from", f"epoch {record.epoch} deposed {(record.from_epoch, record.from_owner)}, but {before} stands before it")
    if record.cause in ("restart", "unstarted_seal") and record.from_owner != record.owner:
        raise Violation("follow", f"{record.owner} took epoch {record.epoch} from {record.from_owner} without an order")
    if epochs and record.config_version < epochs[-1].config_version:
        raise Violation("members", f"epoch {record.epoch} went back to members {record.config_version}")


def _publish(told: Told, board: BoardCreated, rows: dict[str, _Standing], record: Published, epoch: int, offset: int) -> None:
    lower = board.rules.direction == "lower"
    order = sorted(rows, key=lambda p: (rows[p].value if lower else -rows[p].value, rows[p].moment, p))
    if record.count != len(rows):
        raise Violation("I8", f"{board.board_id} s{record.generation} says {record.count} rows, there are {len(rows)}")
    shown = tuple((p, rows[p].value, rows[p].version) for p in order)
    told.generations[board.incarnation, record.generation] = (epoch, offset, shown)
    told.published.setdefault(board.board_id, []).append((record.generation, offset))


def _score(told: Told, board: BoardCreated, rows: dict[str, _Standing], record: Scored, epoch: int, offset: int) -> None:
    identity = (board.board_id, record.player_id, record.event_id)
    if identity in told.events:
        raise Violation("I4", f"{identity} was applied twice, at {told.events[identity].offset} and at {offset}")
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
