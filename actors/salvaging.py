"""Salvage in one region: its store's orphans go through the shard's normal write path again, with their own event ids.

What was cut from a `local` epoch is sent by itself, when this actor starts and whenever an epoch has started: an entry is cut
by a newer epoch's authority, so after that epoch's start record is folded here the cut has been made. What was cut from
a `quorum` epoch is sent when an operator asks: nothing that was acknowledged can be among it. The mode is the cut epoch's own,
whatever the configuration says by now. Done is what the ledger here holds, which is folded from committed entries only;
nothing else is remembered, so a restart at worst sends something twice. Orphans stay in the store until an operator signs them off.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from actors.messages import BoardExists, NoAuthority, NotServing, SubmitResult, Unanswered, UnknownBoard, WireError, from_wire
from actors.ports import Links, ShardSpec
from boards.model import BoardRules, Layout, Submission
from boards.numbers import format_value
from failover import salvage
from failover.salvage import Count, Finding, Known, OrphanBoard, OrphanEvent, Orphans, Place
from journal.ports import Journal, JournalUnavailable, OrphanBatch, Position
from ledger.lmdb_ledger import LmdbLedger
from ledger.ports import BoardState

log = logging.getLogger("laurel.salvage")

#: Identities looked up in the ledger without letting others have the loop.
LOOKUPS_PER_TURN = 1000
#: Between two tries, in seconds: doubling from the first to the second.
RETRY_S, RETRY_MAX_S = 0.1, 5.0
#: How long the own ledger is waited for after what was sent was answered.
FOLD_S = 2.0
POLL_S = 0.02

SIGNED_OFF = "orphans.signed_off"


class Authority(Protocol):
    """The shard actor of this region. Each call raises NoAuthority, with the owner, when another region has the shard."""

    async def submit(self, board_id: str, submissions: Sequence[Submission], subject: str) -> list[SubmitResult]:
        """See `actors.shard.ShardActor`."""
        ...

    async def create_board(self, board_id: str, rules: BoardRules, subject: str, layout: Layout | None = None) -> tuple[BoardState, bool]:
        """See `actors.shard.ShardActor`."""
        ...

    async def audit(self, what: str, asked_by: str, detail: dict[str, Any], unless_open: str = "") -> Position:
        """See `actors.shard.ShardActor`."""
        ...


class Seen(msgspec.Struct, frozen=True):
    """The store's orphans at one moment, and what is known of each. `epochs`: only what was cut from these is asked about."""

    orphans: Orphans
    findings: dict[Place, Finding]
    epochs: frozenset[int] | None = None

    def events(self) -> list[OrphanEvent]:
        """Events that are open."""
        return [event for event in self.orphans.events if self._open(event.place)]

    def boards(self) -> list[OrphanBoard]:
        """Boards that are open."""
        return [board for board in self.orphans.boards if self._open(board.place)]

    def _open(self, place: Place) -> bool:
        return self.findings[place].state == "open" and (self.epochs is None or place.epoch in self.epochs)

    def counts(self) -> list[Count]:
        """By (epoch, offset)."""
        return salvage.counts(self.orphans, lambda event: self.findings[event.place], lambda board: self.findings[board.place])


class Salvaging:
    """See the module docstring."""

    def __init__(self, spec: ShardSpec, journal: Journal, links: Links, ledger: LmdbLedger, here: Authority) -> None:
        self._spec, self._journal, self._links, self._ledger, self._here = spec, journal, links, ledger, here
        #: What the authority said of orphans that the ledger will never hold as they are.
        self._told: dict[Place, Finding] = {}
        self._wake = asyncio.Event()
        self._wake.set()
        #: One pass, or one sign-off, at a time.
        self._one = asyncio.Lock()

    def wake(self) -> None:
        """An epoch has started: entries may have been cut here."""
        self._wake.set()

    async def run(self) -> None:
        """Salvage whatever was cut here from `local` epochs, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause_s = RETRY_S
            while not await self._tried():
                await asyncio.sleep(pause_s)
                pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def _tried(self) -> bool:
        """Whether nothing is open any more."""
        try:
            seen, outcomes = await self.resubmit(timeout_s=10.0, local_only=True)
        except (JournalUnavailable, NotServing) as error:
            log.warning("%s: %s", self._spec.shard, error)
            return False
        except msgspec.DecodeError as error:
            log.error("%s: an orphaned entry cannot be read, so nothing is salvaged by itself: %s", self._spec.shard, error)
            return True
        if outcomes:
            log.info("%s: salvaged by %s: %s", self._spec.shard, self._spec.region, outcomes)
        return not seen.events() and not seen.boards()

    # -- looking ----------------------------------------------------------------------------------------------------

    async def look(self, *, local_only: bool = False) -> Seen:
        """The orphans, and what the ledger and earlier answers say of them. Cost: reads all orphans, 1 µs an identity."""
        batches = await self._journal.orphans()
        epochs = await self._local_epochs(batches) if local_only else None
        boards = {number: Known(state.board_id, state.rules, state.created_ms) for number, state in self._ledger.boards().items()}
        # Thousands of records to decode: not on the loop that heartbeats and leases live on.
        orphans = await asyncio.to_thread(salvage.sort_out, batches, boards, lambda board_id: self._ledger.gone(board_id) is not None)
        findings = {board.place: self._found_board(board) for board in orphans.boards}
        for some in _parts(orphans.events):
            with self._ledger.reader() as reader:
                for event in some:
                    board = self._ledger.board(event.board_id)
                    identity = (event.submission.player_id, event.submission.event_id)
                    saved = None if board is None else reader.identity(board.number, *identity)
                    found = salvage.finding(event, None if saved is None else (saved.fingerprint, saved.outcome))
                    findings[event.place] = self._told.get(event.place, found) if found.state == "open" else found
            await asyncio.sleep(0)
        self._told = {place: told for place, told in self._told.items() if place in findings}
        return Seen(orphans, findings, epochs)

    async def _local_epochs(self, batches: Sequence[OrphanBatch]) -> frozenset[int]:
        """Those epochs among the orphans' that acknowledged under a lease, by their start records: cut with them, or in the log."""
        modes = salvage.modes(batches)
        if missing := {batch.epoch for batch in batches} - modes.keys():
            for term in (await self._journal.status()).terms:
                if term.epoch in missing:
                    modes |= salvage.modes([OrphanBatch(term.epoch, await self._journal.read(term.first_offset, limit=1))])
        return frozenset(epoch for epoch, mode in modes.items() if mode == "local")

    def _found_board(self, board: OrphanBoard) -> Finding:
        if board.obstacle:
            return Finding("operator", code=board.obstacle)
        return Finding("done", "exists") if board.there else self._told.get(board.place, Finding("open"))

    async def listed(self, limit: int) -> dict[str, Any]:
        """All counts by entry, and the first `limit` boards and events. Until `caught_up`, some may only not be back yet."""
        caught_up, seen = await self._is_caught_up(), await self.look()
        items = [*(self._board_item(seen, board) for board in seen.orphans.boards)]
        items += [self._event_item(seen, event) for event in seen.orphans.events[: max(0, limit - len(items))]]
        items.sort(key=lambda item: (item["epoch"], item["offset"], item["record"]))
        total = len(seen.orphans.boards) + len(seen.orphans.events)
        return {"caught_up": caught_up, "total": total, "entries": msgspec.to_builtins(seen.counts()), "orphans": items[:limit]}

    def _board_item(self, seen: Seen, board: OrphanBoard) -> dict[str, Any]:
        return self._item(seen, board.place, "board", board.board_id, board.subject, board.there)

    def _event_item(self, seen: Seen, event: OrphanEvent) -> dict[str, Any]:
        sent, found = event.submission, seen.findings[event.place]
        known = found.state == "done" or found.code == "conflict"
        return {
            **self._item(seen, event.place, "event", event.board_id, event.subject, known),
            "player_id": sent.player_id,
            "event_id": sent.event_id,
            "amount": format_value(sent.amount, event.decimals),
            "achieved_ms": sent.achieved_ms,
        }

    def _item(self, seen: Seen, place: Place, kind: str, board_id: str, subject: str, in_lineage: bool) -> dict[str, Any]:
        found = seen.findings[place]
        return {
            "epoch": place.epoch,
            "offset": place.offset,
            "record": place.record,
            "kind": kind,
            "board": board_id,
            "subject": subject,
            "in_lineage": in_lineage,
            "state": found.state,
            "outcome": found.outcome,
            "code": found.code,
        }

    # -- sending again ----------------------------------------------------------------------------------------------

    async def resubmit(self, timeout_s: float, *, afresh: bool = False, local_only: bool = False) -> tuple[Seen, dict[str, int]]:
        """Send again what is open, until nothing is, or the time is over; what is known then, and how often each outcome was answered.

        `afresh` also sends what was refused before; `local_only` leaves alone what was cut from `quorum` epochs. Raises
        NotServing (nothing was sent: this region is still catching up), JournalUnavailable, `msgspec.DecodeError`.
        """
        deadline, pause_s = time.monotonic() + timeout_s, RETRY_S
        outcomes: Counter[str] = Counter()
        async with self._one:
            if afresh:
                self._told.clear()
            await self._caught_up(deadline)
            while True:
                seen = await self.look(local_only=local_only)
                if not (seen.events() or seen.boards()) or time.monotonic() >= deadline:
                    return seen, dict(outcomes)
                offset = await self._send_round(seen, outcomes)
                if offset:
                    await self._folded(offset, min(deadline, time.monotonic() + FOLD_S))
                else:
                    await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
                    pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def _caught_up(self, deadline: float) -> None:
        """Wait until the ledger holds the beginning of the epoch that this store is promised to, and all that is committed here.

        Before that it may know neither boards nor identities, and a store that was begun anew, whose orphans are its whole
        journal, would have all of it sent again.
        """
        while not await self._is_caught_up():
            if time.monotonic() >= deadline:
                raise NotServing(f"{self._spec.region} is still catching up with {self._spec.shard}: nothing was done")
            await asyncio.sleep(POLL_S)

    async def _is_caught_up(self) -> bool:
        status = await self._journal.status()
        newest, applied = status.newest, self._ledger.applied.offset
        return newest is not None and newest.epoch == status.fence and newest.first_offset <= status.committed <= applied

    async def _folded(self, offset: int, deadline: float) -> None:
        while self._ledger.applied.offset < offset and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)

    async def _send_round(self, seen: Seen, outcomes: Counter[str]) -> int:
        """Everything open once, boards first; the highest offset that an answer rests on, 0 when nobody took anything."""
        highest = 0
        waiting = {board.board_id: board for board in seen.boards()}
        for board in seen.boards():
            try:
                highest = max(highest, await self._create(board))
                outcomes["board"] += 1
                del waiting[board.board_id]
            except BoardExists as error:
                self._told[board.place] = Finding("operator", code=error.code)
            except Unanswered as error:
                log.info("%s: %s is not created yet: %s", self._spec.shard, board.board_id, error)
                return highest
        ready = [event for event in seen.events() if event.board_id not in waiting]
        for request in salvage.requests(ready):
            try:
                results = await self._submit(request.board_id, [event.submission for event in request.events], request.subject)
            except UnknownBoard as error:
                self._told |= {event.place: Finding("operator", code=error.code) for event in request.events}
                continue
            except Unanswered as error:
                log.info("%s: orphans wait: %s", self._spec.shard, error)
                return highest
            for event, result in zip(request.events, results, strict=True):
                found = salvage.answered(result.outcome, result.code)
                outcomes[found.outcome] += 1
                if found.state in ("operator", "held"):
                    self._told[event.place] = found
                if found.state == "done":
                    highest = max(highest, result.offset)
        return highest

    async def _submit(self, board_id: str, submissions: list[Submission], subject: str) -> list[SubmitResult]:
        try:
            return await self._here.submit(board_id, submissions, subject)
        except NoAuthority as refusal:
            owner = self._elsewhere(refusal)
        replies = await self._links.submit(owner, self._spec.shard, [(board_id, subject, submissions)])
        if replies is None:
            raise _silent(owner)
        (reply,) = replies
        if isinstance(reply, WireError):
            raise from_wire(reply)
        return reply

    async def _create(self, board: OrphanBoard) -> int:
        """Create it, or find it there; an offset from which on the lineage has it (1: it had it before)."""
        subject = board.subject if board.subject.startswith(salvage.SALVAGED) else salvage.SALVAGED + board.subject
        try:
            await self._here.create_board(board.board_id, board.rules, subject, board.layout)
        except NoAuthority as refusal:
            layout = {"number": board.layout.number, "shards": list(board.layout.shards)} if board.layout is not None else None
            order = {
                "do": "create_board",
                "board": board.board_id,
                "rules": msgspec.to_builtins(board.rules),
                "layout": layout,
                "asked_by": subject,
            }
            await self._order(self._elsewhere(refusal), order)
        return 1

    # -- signing off ------------------------------------------------------------------------------------------------

    async def sign_off(self, epoch: int, why: str, asked_by: str) -> dict[str, Any]:
        """Delete this region's orphans of `epoch`, after the lineage has recorded who did it, why, and what they were.

        Asked again, there is nothing left to record. When the audit record's fate is unknown nothing is deleted, and asking
        again records it once more. Raises NotServing (nothing was done), NoAuthority, JournalUnavailable.
        """
        async with self._one:
            await self._caught_up(time.monotonic() + FOLD_S)  # till then more looks orphaned than is
            batches = [batch for batch in await self._journal.orphans() if batch.epoch == epoch]
            if not batches:
                return {"epoch": epoch, "entries": 0, "events": 0}
            seen = await self.look()
            detail = _statement(batches[0], seen.counts()) | {"region": self._spec.region, "shard": self._spec.shard, "why": why}
            at = await self._audit(asked_by, detail)
            # Exactly what was recorded: what is cut meanwhile lies elsewhere in the epoch (I3), and stays.
            await self._journal.forget_orphans(epoch, detail["last_offset"], from_offset=detail["first_offset"])
            return {**detail, "recorded": {"epoch": at.epoch, "offset": at.offset}}

    async def _audit(self, asked_by: str, detail: dict[str, Any]) -> Position:
        try:
            return await self._here.audit(SIGNED_OFF, asked_by, detail)
        except NoAuthority as refusal:
            owner = self._elsewhere(refusal)
        reply = await self._order(owner, {"do": "audit", "what": SIGNED_OFF, "asked_by": asked_by, "detail": detail})
        return Position(reply["epoch"], reply["offset"])

    # -- the shard's authority in another region --------------------------------------------------------------------

    def _elsewhere(self, refusal: NoAuthority) -> str:
        """Where to ask instead. Raises the refusal when there is no such place."""
        if not refusal.owner or refusal.owner == self._spec.region:
            raise refusal
        return refusal.owner

    async def _order(self, owner: str, order: dict[str, Any]) -> dict[str, Any]:
        reply = await self._links.operate(owner, self._spec.shard, order)
        if reply is None:
            raise _silent(owner)
        if "error" in reply:
            raise from_wire(msgspec.convert(reply["error"], WireError))
        return reply


def _silent(owner: str) -> NoAuthority:
    return NoAuthority(f"no answer from {owner}", code="unknown", definite=False)


def _parts(events: list[OrphanEvent]) -> Iterator[list[OrphanEvent]]:
    for first in range(0, len(events), LOOKUPS_PER_TURN):
        yield events[first : first + LOOKUPS_PER_TURN]


def _statement(batch: OrphanBatch, counts: list[Count]) -> dict[str, Any]:
    """What an audit record says of the orphans that are signed off."""
    entries = batch.entries
    of_it = [count for count in counts if count.epoch == batch.epoch]
    states = {state: sum(getattr(count, state) for count in of_it) for state in ("done", "held", "operator", "open")}
    boards = sum(count.boards for count in of_it)
    return {
        "epoch": batch.epoch,
        "first_offset": entries[0].offset,
        "last_offset": entries[-1].offset,
        "entries": len(entries),
        "events": sum(states.values()) - boards,
        "boards": boards,
        "states": states,
    }
