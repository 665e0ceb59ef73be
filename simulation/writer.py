"""Group commit of one simulated epoch, as `actors.writing.Writer` does it: queue, one entry, one own append, answers when committed.

Changes of boards are decided by the real `actors.board_changes`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors import board_changes
from actors.board_changes import Change, Draft, Result
from actors.messages import NoAuthority, SubmitResult, Unanswered
from actors.waiting import CommitWaiters, Deposed
from boards.model import BoardRules, Layout, Outcome, Submission
from failover import events as e
from failover.acknowledging import Acknowledging
from journal.ports import Accepted, Position
from journal.records import Entry, HandedOver, Record, seal_entry
from ledger.pending import Decided, Pending
from ledger.ports import BoardState

if TYPE_CHECKING:
    from simulation.process import Process

#: Entries on their way to a majority before the next one waits, and how long it waits for company.
UNDER_WAY = 2
GROW_MS = 4
#: What is appended and not committed, at most.
UNREPLICATED = 40
#: How long a change waits for its commit.
CHANGE_S = 0.25

Reply = Callable[[SubmitResult | NoAuthority], None]


@dataclass(slots=True)
class Request:
    """One event on its way into an entry."""

    board_id: str
    submission: Submission
    reply: Reply


@dataclass(slots=True)
class BoardRequest:
    """A board that the configuration wants."""

    board_id: str
    rules: BoardRules
    layout: Layout | None


@dataclass(slots=True)
class Kept:
    """An entry of this epoch that is not folded yet, with its records."""

    entry: Entry
    records: list[Record]


@dataclass(slots=True)
class Waiting:
    """A decided event whose answer rests on `depends`."""

    depends: int
    request: Request
    decided: Decided
    visible_by: int


class Writer:
    """Lives as long as its epoch."""

    def __init__(self, process: "Process", acknowledging: Acknowledging) -> None:
        state = process.state
        self.process, self.world, self.ledger = process, process.world, process.ledger
        self.epoch, self.attempt, self.tail = state.epoch, state.attempt, state.tail
        self.acknowledging = acknowledging
        self.pending = Pending(process.ledger)
        self.queue: deque[Request | BoardRequest | Change] = deque()
        #: Who waits for the commit of a change; made when there is one.
        self.waiters: CommitWaiters | None = None
        self.kept: dict[int, Kept] = {}
        self.waiting: list[Waiting] = []
        #: Repeated marks that wait for a majority: those count that take more than the number.
        self.confirming: list[tuple[int, asyncio.Future[None]]] = []
        #: Let go because of the lease, and not out yet.
        self.leaving: list[Waiting] = []
        self.accepting, self.over, self.growing = True, False, False
        self.draining: HandedOver | None = None
        self.drained: Callable[[int], None] | None = None
        self.published_ms: dict[int, int] = {}

    # -- what callers do

    def submit(self, request: Request) -> None:
        """Queue an event, or refuse it at once: definite, nothing appended."""
        refusal = self._refusal()
        if refusal is not None:
            request.reply(refusal)
        else:
            self.queue.append(request)
            self.write_soon()

    async def change(self, decide: Callable[[Draft], Result], *, last: bool = False, committed: bool = False) -> Any:
        """As `actors.writing.Writer.change`."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.queue.append(Change(decide, done, last, committed))
        self.write_soon()
        return await done

    def _refusal(self) -> NoAuthority | None:
        """Why nothing is taken now: definite."""
        if not self.accepting:
            code = "draining" if self.draining is not None else "no_authority"
            return NoAuthority("nothing is taken here", code=code, definite=True)
        if self.lost_lease():
            return NoAuthority("the lease ran out", code="no_lease", definite=True)
        if self.tail.offset - self.committed >= UNREPLICATED:
            return NoAuthority("the other regions do not keep up", code="lagging", definite=True)
        return None

    @property
    def committed(self) -> int:
        """Highest committed offset told so far."""
        return self.acknowledging.committed

    def lost_lease(self) -> bool:
        """The lease was held in this epoch, and is not now."""
        return self.acknowledging.held > 0 and not self.acknowledging.leased(self.process.now())

    def drain(self, record: HandedOver, drained: Callable[[int], None]) -> None:
        """Accept nothing more; after what is queued, append `record` and report its offset."""
        self.accepting, self.draining, self.drained = False, record, drained
        self.write_soon()

    def stop(self) -> None:
        """The epoch is over: what is queued was never appended, what waits for a commit is unknown."""
        self.over, self.accepting = True, False
        self.acknowledging.depose()
        while self.queue:
            request = self.queue.popleft()
            refusal = NoAuthority("stepped down before it was written", code="no_authority", definite=True)
            if isinstance(request, Request):
                request.reply(refusal)
            elif isinstance(request, Change) and not request.done.done():
                request.done.set_exception(refusal)
        if self.waiters is not None:
            self.waiters.depose()
        for _, confirmation in self.confirming:
            if not confirmation.done():
                confirmation.set_exception(Deposed("the authority stepped down"))
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            if self.world.switches.answer_deposed:
                self._answer(answer)
            else:
                answer.request.reply(SubmitResult(Outcome.UNKNOWN, code="unknown"))

    def advance(self, committed: int) -> None:
        """Let go the answers that rest on no more than this."""
        self.acknowledging.commit(committed)
        committed = self.acknowledging.committed
        if self.waiters is not None:
            self.waiters.advance(committed)
        if self.waiting:
            ready = [w for w in self.waiting if w.depends <= committed]
            if ready:
                self.waiting = [w for w in self.waiting if w.depends > committed]
                for answer in ready:
                    self._answer(answer)
        if self.queue:
            self.write_soon()

    def hold(self, offset: int, leased_before: bool) -> None:
        """The own store holds `offset`: under a lease, let go what rests on no more than this."""
        if self.acknowledging.hold(offset, leased_before=leased_before, now_ms=self.process.now()):
            if self.waiters is not None:
                self.waiters._let_go(offset)
            ready = [w for w in self.waiting if w.depends <= offset]
            self.waiting = [w for w in self.waiting if w.depends > offset]
            for answer in ready:
                self._leave_soon(answer)

    def _leave_soon(self, answer: Waiting) -> None:
        """Its task has its turn in a moment, when it looks at the lease again; the process may be stopped until then."""
        self.leaving.append(answer)
        self.world.at(self.world.now + self.world.random.randrange(4), self.process.deliver, self._leave, answer)

    def _leave(self, answer: Waiting) -> None:
        self.leaving.remove(answer)
        if self.acknowledging.may_answer(answer.depends, self.process.now()):
            self._answer(answer)
        elif self.over:
            answer.request.reply(SubmitResult(Outcome.UNKNOWN, code="unknown"))
        else:
            self.waiting.append(answer)

    def settle(self, applied: int) -> None:
        """The ledger has folded everything up to `applied`."""
        for offset in [o for o in self.kept if o <= applied]:
            del self.kept[offset]
        self.pending.settle(applied)

    # -- the loop

    def write_soon(self) -> None:
        """Write when the own store is free; with enough on its way, wait a moment for company."""
        if self.over or self.growing:
            return
        if self.tail.offset - UNDER_WAY + 1 > self.committed:
            self.growing = True
            self.world.at(self.world.now + GROW_MS, self.process.deliver, self._grown, None)
        else:
            self.process.when_free(self.write)

    def _grown(self, _: None) -> None:
        self.growing = False
        if not self.over:
            self.process.when_free(self.write)

    def due(self) -> bool:
        """Whether some board waits to be published."""
        now = self.world.now
        return any(
            now - self.published_ms.get(b.number, 0) >= b.rules.publish_interval_ms or self.draining is not None
            for b in self.pending.changed_boards()
        )

    def write(self) -> None:
        """Make one entry of all that is queued and due, and append it; the own store is free."""
        if self.over:
            return
        offset, now = self.tail.offset + 1, self.process.wall_ms()
        records: list[Record] = []
        decisions: list[tuple[Request, Decided]] = []
        last: list[Change] = []
        with self.process.ledger.reader() as reader:
            draft = Draft(self.pending, reader, self.epoch, offset, now, records)
            while self.queue:
                request = self.queue.popleft()
                if isinstance(request, BoardRequest):
                    self._create(request, draft)
                    continue
                if isinstance(request, Change):
                    if request.last:
                        last.append(request)
                    else:
                        self._change(request, draft)
                    continue
                board = self.pending.board(request.board_id)
                if board is None:
                    request.reply(NoAuthority("there is no such board yet", code="unknown_board", definite=True))
                    continue
                if (refusal := self._closed(board, request.submission)) is not None:
                    request.reply(refusal)
                    continue
                scored, decided = self.pending.decide(
                    reader, board, [request.submission], subject="s", now_ms=now, epoch=self.epoch, offset=offset
                )
                records.extend(scored)
                decisions.append((request, decided[0]))
        answers: list[Waiting] = []
        for request, result in decisions:
            state = self.pending.board(request.board_id)
            visible_by = 0 if state is None or state.sharded else state.generation + bool(state.unpublished)
            answers.append(Waiting(result.depends, request, result, visible_by))
        for answer in answers:
            if answer.depends <= self.committed:
                self._answer(answer)
            elif self.acknowledging.held and self.acknowledging.may_answer(answer.depends, self.process.now()):
                self._leave_soon(answer)
            else:
                self.waiting.append(answer)
        if last:
            with self.process.ledger.reader() as reader:
                draft = Draft(self.pending, reader, self.epoch, offset, now, records)
                for change in last:
                    self._change(change, draft)
        self._publish_due(offset, now, records)
        drained = None
        if self.draining is not None and self.drained is not None:
            records.append(self.draining)
            drained, self.drained = self.drained, None
        if records:
            self._append(offset, records, drained)

    def _append(self, offset: int, records: list[Record], drained: Callable[[int], None] | None) -> None:
        entry = seal_entry(self.epoch, offset, self.world.token(), records)
        self.kept[offset] = Kept(entry, records)
        leased = self.acknowledging.lease is not None and self.acknowledging.leased(self.process.now())

        def heard(answer: Any) -> None:
            if isinstance(answer, Accepted):
                self.tail = Position(self.epoch, offset)
                if self.acknowledging.lease is not None:
                    self.hold(offset, leased)
                if self.world.switches.fold_early and not self.over:
                    self.process.fold_to(offset)
            self.process.own_appended(self.epoch, answer)
            if drained is not None and isinstance(answer, Accepted):
                drained(offset)
            if self.queue and not self.over:
                self.write_soon()

        self.process.append_own(self.epoch, self.attempt, entry, self.tail, heard)

    def _create(self, request: BoardRequest, draft: Draft) -> None:
        """A board of the configuration; one that was removed or has moved away does not come back by it."""
        if self.pending.board(request.board_id) is None and self.pending.gone(request.board_id) is None:
            board_changes.create(request.board_id, request.rules, self.world.token(), "cluster.yaml", request.layout)(draft)

    def _change(self, change: Change, draft: Draft) -> None:
        if self.waiters is None:
            self.waiters = CommitWaiters(now_ms=self.process.now)
            self.waiters._acknowledging = self.acknowledging
        with self.process.loop.entered():
            board_changes.decide(change, draft, self.waiters, CHANGE_S, self._confirm)

    async def _confirm(self, timeout_s: float) -> None:
        """See `actors.board_changes.Confirm`."""
        if self.over:
            raise Deposed("the authority stepped down")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        above = self.process.state.requests.last
        self.confirming.append((above, waiting))
        self.process.hear(e.ConfirmAsked(now_ms=self.process.now(), epoch=self.epoch, above=above))
        self.process.persist()
        async with asyncio.timeout(timeout_s):
            await waiting

    def confirmed(self, number: int) -> None:
        """A majority of the stores has taken what was sent with this number, or later."""
        for above, waiting in self.confirming:
            if above < number and not waiting.done():
                waiting.set_result(None)
        self.confirming = [(above, waiting) for above, waiting in self.confirming if not waiting.done()]

    def _closed(self, board: BoardState, event: Submission) -> NoAuthority | None:
        """Why this event is not taken here."""
        try:
            board_changes.refuse_unless_open(board, self.world.shard)
            board_changes.refuse_strangers(board, [event])
        except NoAuthority as refusal:
            return refusal
        except Unanswered as refusal:
            return NoAuthority(refusal.detail, code=refusal.code, definite=True)
        return None

    def _publish_due(self, offset: int, now: int, records: list[Record]) -> None:
        for board in self.pending.changed_boards():
            if self.world.now - self.published_ms.get(board.number, 0) >= board.rules.publish_interval_ms or self.draining is not None:
                records.append(self.pending.publish(board, published_ms=now, offset=offset))
                self.published_ms[board.number] = self.world.now

    def _answer(self, answer: Waiting) -> None:
        d = answer.decided
        alone = answer.depends > self.committed and not self.world.switches.answer_deposed
        self.world.answering(self.process, self.epoch, d, alone)
        answer.request.reply(
            SubmitResult(
                d.outcome,
                d.value,
                d.version,
                d.improved,
                d.epoch,
                d.offset,
                answer.visible_by,
                d.code,
                "",
                d.allowed,
                alone,
                self.world.shard,
            )
        )
