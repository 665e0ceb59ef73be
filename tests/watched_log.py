"""Stores that are watched while a protocol test runs, and what must hold of them at any time and at the end.

`WatchedLog` is a `MemoryLog` that compares itself before and after each call, so that a fence that fell, a
committed entry that was cut or an epoch with two attempts fails in the call that did it (I2, I3, I6, I13).
`fold_naively` and `check_history` are written from the rules of a board and of the protocol alone.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.messages import SubmitResult
from boards.model import Outcome
from journal.memory import MemoryLog
from journal.ports import Accepted, Append, Granted, JournalStatus, Peer, Position, Refused, Seal
from journal.records import BoardCreated, Entry, EpochStarted, HandedOver, Published, Scored, open_entry

T = TypeVar("T")
Key = tuple[int, int, str]


def key(entry: Entry) -> Key:
    """What makes an entry this one: (epoch, offset, digest)."""
    return entry.epoch, entry.offset, entry.digest


@dataclass(slots=True)
class Watch:
    """What all stores of one shard were seen to do."""

    #: (lineage, epoch) -> the one attempt that appended in it (I2).
    appended_by: dict[tuple[str, int], str] = field(default_factory=dict)
    #: (lineage, epoch, offset) -> what was first seen there, and the entry before it (I3).
    seen: dict[tuple[str, int, int], tuple[str, str, Position]] = field(default_factory=dict)
    #: (lineage, offset) -> the entry that some store held as committed (I1, I13).
    committed: dict[tuple[str, int], Key] = field(default_factory=dict)
    #: Region -> everything that was cut there.
    cut: dict[str, dict[Key, Entry]] = field(default_factory=dict)
    #: Highest fence each store ever had, by region; an exchanged store begins anew.
    fences: dict[str, int] = field(default_factory=dict)
    cuts: int = 0


class WatchedLog(MemoryLog):
    """See the module docstring."""

    def __init__(self, shard: str, region: str, watch: Watch) -> None:
        super().__init__(shard, region)
        self.watch = watch

    def copied(self) -> "WatchedLog":
        """This store as it is now, as a snapshot of its disk would keep it."""
        other = WatchedLog(self.shard, self.region, self.watch)
        for name, value in vars(self).items():
            if name != "watch":
                setattr(other, name, copy.deepcopy(value) if name == "_orphans" else copy.copy(value))
        return other

    def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        def call() -> Accepted | Refused:
            return super(WatchedLog, self).append(
                epoch=epoch, attempt=attempt, expected=expected, entries=entries, committed=committed, peers=peers
            )

        return self._watched(call, attempt=(epoch, attempt) if entries else None)

    def accept(self, message: Append) -> Accepted | Refused:
        of_epoch = any(entry.epoch == message.epoch for entry in message.entries)
        return self._watched(
            lambda: super(WatchedLog, self).accept(message), attempt=(message.epoch, message.attempt) if of_epoch else None
        )

    def seal(self, message: Seal) -> Granted | Refused:
        return self._watched(lambda: super(WatchedLog, self).seal(message), may_cut=False)

    def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        return self._watched(
            lambda: super(WatchedLog, self).adopt(epoch=epoch, attempt=attempt, expected=expected, keep=keep, entries=entries)
        )

    def readmit(self, *, incarnation: str, fence: int) -> JournalStatus:
        return self._watched(lambda: super(WatchedLog, self).readmit(incarnation=incarnation, fence=fence), anew=True)

    def _watched(self, call: Callable[[], T], *, attempt: tuple[int, str] | None = None, may_cut: bool = True, anew: bool = False) -> T:
        watch, before, fence, granted, committed = self.watch, list(self._entries), self._fence, self._granted, self._committed
        answer = call()
        after = self._entries
        assert self._fence >= fence, f"I6: the fence of {self.region} fell from {fence} to {self._fence}"
        assert self._fence > fence or self._granted == granted, f"I6: epoch {fence} was granted twice at {self.region}"
        watch.fences[self.region] = self._fence
        assert anew or self._committed >= committed, f"I13: committed fell at {self.region}"
        same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a is not b), min(len(before), len(after)))
        if gone := before[same:]:
            assert may_cut and isinstance(answer, Accepted | JournalStatus), f"cut by hearsay at {self.region}"
            assert anew or same >= committed, f"I13: {self.region} cut below its committed {committed}"
            watch.cuts += 1
            watch.cut.setdefault(self.region, {}).update((key(entry), entry) for entry in gone)
        lineage = self._terms[-1].lineage if self._terms else ""
        if attempt is not None and isinstance(answer, Accepted):
            known = watch.appended_by.setdefault((lineage, attempt[0]), attempt[1])
            assert known == attempt[1], f"I2: two attempts appended in epoch {attempt[0]}"
        for entry in after[same:]:
            self._see(lineage, entry)
        for entry in after[0 if anew else committed : self._committed]:
            held = watch.committed.setdefault((lineage, entry.offset), key(entry))
            assert held == key(entry), f"I1: two entries were committed at offset {entry.offset}: {held} and {key(entry)}"
        return answer

    def _see(self, lineage: str, entry: Entry) -> None:
        prev = self._entries[entry.offset - 2] if entry.offset > 1 else None
        before = Position(prev.epoch, prev.offset) if prev is not None else Position(0, 0)
        assert entry.offset == before.offset + 1 and entry.epoch >= before.epoch, f"I3: {key(entry)} follows {before}"
        known = self.watch.seen.setdefault((lineage, entry.epoch, entry.offset), (entry.digest, entry.batch_id, before))
        assert known == (entry.digest, entry.batch_id, before), f"I3: two entries at {(entry.epoch, entry.offset)}"


@dataclass(slots=True, kw_only=True)
class Sent:
    """One event as its client knows it. `sent` and `acked` count the turns of the client's own clock."""

    board: str
    player: str
    event_id: str
    amount: int
    sent: int
    acked: int = 0
    result: SubmitResult | None = None
    unknowns: int = 0
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Applied:
    """What the log says of one event."""

    epoch: int
    offset: int
    outcome: int
    value: int
    version: int
    amount: int


Identity = tuple[str, str, str]


def fold_naively(entries: Iterable[Entry]) -> dict[Identity, Applied]:
    """Every event of a log, exactly once (I4), with each decision compared to the rules, told again in few words."""
    boards: dict[int, tuple[str, str]] = {}
    rows: dict[tuple[int, str], tuple[int, int]] = {}
    generations: dict[int, int] = {}
    events: dict[Identity, Applied] = {}
    epoch, offset, handed_over = 0, 0, 0
    for entry in entries:
        assert entry.epoch != handed_over, f"epoch {handed_over} goes on after its handover record"
        records = open_entry(entry)
        assert entry.offset == offset + 1 and entry.epoch >= epoch, f"I3: {key(entry)} follows {(epoch, offset)}"
        assert (entry.epoch > epoch) == isinstance(records[0], EpochStarted), f"epoch {entry.epoch} begins without its start record"
        epoch, offset = entry.epoch, entry.offset
        for record in records:
            match record:
                case BoardCreated():
                    assert record.number not in boards
                    boards[record.number] = (record.board_id, record.rules.policy)
                case Published():
                    assert record.generation == generations.get(record.board, 0) + 1, f"I11: generation {record.generation}"
                    generations[record.board] = record.generation
                    assert record.count == sum(board == record.board for board, _ in rows), f"I8: {record.count} rows in {record}"
                case HandedOver():
                    assert record is records[-1]
                    handed_over = epoch
                case Scored():
                    board_id, policy = boards[record.board]
                    identity = (board_id, record.player_id, record.event_id)
                    assert identity not in events, f"I4: {identity} was applied twice"
                    old = rows.get((record.board, record.player_id))
                    outcome, value, version = _ruled(policy, old, record.amount)
                    assert (record.outcome, record.value, record.version) == (outcome, value, version), f"{record} after {old}"
                    if outcome == Outcome.NOT_AN_IMPROVEMENT:
                        assert record.row is None
                    else:
                        assert record.row is not None and (record.row.value, record.row.version) == (value, version)
                        rows[record.board, record.player_id] = (value, version)
                    events[identity] = Applied(epoch, offset, outcome, value, version, record.amount)
    return events


def _ruled(policy: str, old: tuple[int, int] | None, amount: int) -> tuple[int, int, int]:
    if old is None:
        return Outcome.APPLIED_FIRST, amount, 1
    value, version = old
    if policy == "cumulative":
        return (Outcome.APPLIED, value + amount, version + 1) if amount else (Outcome.NOT_AN_IMPROVEMENT, value, version)
    return (Outcome.APPLIED, amount, version + 1) if amount > value else (Outcome.NOT_AN_IMPROVEMENT, value, version)


def check_history(logs: dict[str, WatchedLog], watch: Watch, clients: Sequence[Sent], authority: str) -> dict[Identity, Applied]:
    """I1 to I4, I7, I9, I13 over all stores and everything that was answered; the committed events of the newest lineage."""
    whole = logs[authority]
    committed = whole.read(1, limit=whole.committed)
    lineage = whole.status().lineage
    place: dict[tuple[int, int], Any] = {}
    for log in logs.values():
        for entry in log.read(1, limit=10**6):
            assert place.setdefault((entry.epoch, entry.offset), (entry.digest, entry.batch_id)) == (entry.digest, entry.batch_id), "I3"
    for (of, offset), held in watch.committed.items():
        if of == lineage:
            assert offset <= len(committed) and key(committed[offset - 1]) == held, (
                f"I1: {held} was committed, and is not in the newest epoch"
            )
    events = fold_naively(committed)
    for sent in clients:
        if sent.result is not None:
            _check_answer(sent, sent.result, events)
    _check_order(clients)
    _check_orphans(logs, watch, clients)
    return events


def _check_answer(sent: Sent, result: SubmitResult, events: dict[Identity, Applied]) -> None:
    applied = events.get((sent.board, sent.player, sent.event_id))
    assert applied is not None, f"I7: {sent} was acknowledged and is not in the log"
    said = (result.epoch, result.offset, result.value, result.version)
    assert said == (applied.epoch, applied.offset, applied.value, applied.version), f"I7: {sent}, but the log has {applied}"
    assert applied.amount == sent.amount
    assert result.outcome in (applied.outcome, Outcome.DUPLICATE)


def _check_order(clients: Sequence[Sent]) -> None:
    """I9: what was acknowledged before another was first sent has the lower offset."""
    acknowledged = [s for s in clients if s.result is not None]
    moments = sorted([(s.sent, 0, s) for s in acknowledged] + [(s.acked, 1, s) for s in acknowledged], key=lambda m: m[:2])
    highest = 0
    for _, acked, sent in moments:
        assert sent.result is not None
        if acked:
            highest = max(highest, sent.result.offset)
        else:
            assert sent.result.offset > highest, f"I9: {sent} came after {highest} was acknowledged"


def _check_orphans(logs: dict[str, WatchedLog], watch: Watch, clients: Sequence[Sent]) -> None:
    answered = {(s.result.epoch, s.result.offset) for s in clients if s.result is not None}
    for region, log in logs.items():
        held = {key(entry) for entry in log.read(1, limit=10**6)}
        orphans = {key(entry) for batch in log.orphans() for entry in batch.entries}
        assert orphans == watch.cut.get(region, {}).keys() - held, f"{region} keeps other orphans than were cut there"
        foreign = orphans - {held for (_, _), held in watch.committed.items()}
        assert not {orphan[:2] for orphan in foreign} & answered, f"{region}: an acknowledged entry is an orphan"
