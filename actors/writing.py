"""Group commit of one epoch: queued requests -> one entry -> one fenced append -> answers when committed.

A `Writer` lives as long as its epoch. Requests that arrive while an append is under way, or in the stretch of time that is given
to entries which several callers share, join the next entry, so the batch grows with the load; who comes alone waits for no timer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from actors import auditing, board_changes
from actors.board_changes import Change, Draft, Result
from actors.messages import NoAuthority, SubmitResult, Unanswered, UnknownBoard
from actors.ports import Limits
from actors.waiting import CommitWaiters, Deposed
from boards.model import BoardRules, Layout, Outcome, Submission
from journal.ports import Accepted, JournalUnavailable, Position, Refused
from journal.records import Entry, HandedOver, Record, seal_entry
from ledger.lmdb_ledger import LmdbLedger
from ledger.pending import Decided, Pending
from ledger.ports import BoardState

#: (own store's append) entry -> answer; raises JournalUnavailable.
AppendEntry = Callable[[Entry, Position], Awaitable[Accepted | Refused]]


#: Requests that may wait for their entry; beyond it nothing is taken.
QUEUED = 4000
#: A stretch is at least so many times what the own store has lately needed to take an entry; the shortest is this part of the longest.
STORE_TIMES, SHORTEST = 4, 8
#: Entries that "lately" looks back on, about.
LATELY = 4
#: Boards whose last publication is remembered before those are looked for that need not be.
MUCH = 256


@dataclass(slots=True)
class Request:
    """Events of one caller for one board, on their way into an entry."""

    board_id: str
    subject: str
    submissions: Sequence[Submission]
    done: asyncio.Future[list[SubmitResult]]
    #: The life of the board whose rules the events were checked by; "": whatever life is there.
    incarnation: str = ""


@dataclass(slots=True)
class Kept:
    """An entry of this epoch that is not folded yet, with its records, so that nobody reads it back from the store."""

    entry: Entry
    records: list[Record]
    appended_ms: int


@dataclass(slots=True)
class Writer:
    """The one place where an authority decides. Its owner calls `run` once and `stop` when the epoch is over."""

    shard: str
    epoch: int
    tail: Position
    ledger: LmdbLedger
    pending: Pending
    limits: Limits
    waiters: CommitWaiters
    append: AppendEntry
    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    new_id: Callable[[], str]
    #: Told each answer of the own store: None when it gave none.
    heard: Callable[[Accepted | Refused | None], None]
    queue: deque[Request | Change | auditing.AuditRequest] = field(default_factory=deque)
    kept: dict[int, Kept] = field(default_factory=dict)
    kept_bytes: int = 0
    accepting: bool = True
    draining: HandedOver | None = None
    drained: Callable[[int], None] | None = None
    #: Has all stores take something of this epoch now; those count that take more than the number returned. None: none can be asked.
    ask_majority: Callable[[], int] | None = None
    #: By board: when it may be published next; without boards for which that is past, and which were removed.
    not_before_ms: dict[int, int] = field(default_factory=dict)
    drills: auditing.Drills = field(default_factory=auditing.Drills)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False
    #: When the newest entry was begun, and whether the next one is given its stretch: several callers shared it, and it left nothing over.
    _begun_ms: int = -(10**9)
    _grows: bool = False
    #: What the own store has lately needed to take an entry.
    _store_ms: float = 0.0
    _much: int = MUCH
    #: Answers that wait for a majority that takes more than this number.
    _confirming: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    # -- what callers do ------------------------------------------------------------------------------------

    def submit(
        self, board_id: str, submissions: Sequence[Submission], subject: str, incarnation: str = ""
    ) -> asyncio.Future[list[SubmitResult]]:
        """Queue events; the future's results are in their order, and it may raise NoAuthority or UnknownBoard.

        UnknownBoard also where another life of the board is there than `incarnation` ("": not asked).

        Raises NoAuthority at once (definite: nothing appended) when nothing more is taken.
        """
        self._check_room()
        done: asyncio.Future[list[SubmitResult]] = asyncio.get_running_loop().create_future()
        self.queue.append(Request(board_id, subject, submissions, done, incarnation))
        self._wake.set()
        return done

    async def create_board(
        self, board_id: str, rules: BoardRules, incarnation: str, subject: str, layout: Layout | None = None
    ) -> tuple[BoardState, bool]:
        """Create a board, or return it if it is there with the same rules (False). Raises BoardExists, NoAuthority."""
        state: BoardState
        state, created = await self.change(board_changes.create(board_id, rules, incarnation, subject, layout))
        if state.rules != rules:
            raise board_changes.other_rules(board_id, state.rules, rules)
        return state, created

    async def change(self, decide: Callable[[Draft], Result], *, last: bool = False, committed: bool = False) -> Any:
        """Have a change of boards decided as part of an entry (see `actors.board_changes`); its result, once it may be told.

        Raises what the decision raised (definite), or NoAuthority.
        """
        self._check_room()
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.queue.append(Change(decide, done, last, committed))
        self._wake.set()
        return await done

    async def audit(self, what: str, asked_by: str, detail: dict[str, Any], unless_open: str = "") -> Position:
        """Write an audit record; its place, once it is committed. Raises Busy (`unless_open`), NoAuthority.

        Whoever gives `unless_open` has let `drills` learn what the journal says.
        """
        self._check_room()
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.queue.append(auditing.AuditRequest(what, asked_by, detail, unless_open, done))
        self._wake.set()
        return await done

    def drain(self, record: HandedOver, drained: Callable[[int], None]) -> None:
        """Accept nothing more; after what is queued, append `record` and report its offset."""
        self.accepting, self.draining, self.drained = False, record, drained
        self._wake.set()

    def stop(self) -> None:
        """The epoch is over. What is queued was never appended; what waits for a commit is unknown."""
        self._over, self.accepting = True, False
        while self.queue:
            done = self.queue.popleft().done
            if not done.done():
                done.set_exception(NoAuthority("this region stepped down before the event was written", definite=True))
        self.waiters.depose()
        for _, waiting in self._confirming:
            if not waiting.done():
                waiting.set_exception(Deposed("the authority stepped down"))
        self._wake.set()

    def confirmed(self, number: int) -> None:
        """A majority of the stores has taken what was sent with this number, or later."""
        for above, waiting in self._confirming:
            if above < number and not waiting.done():
                waiting.set_result(None)
        self._confirming = [(above, waiting) for above, waiting in self._confirming if not waiting.done()]

    async def _confirm(self, timeout_s: float) -> None:
        """See `board_changes.Confirm`. Raises `Deposed`, `TimeoutError`."""
        if self._over:
            raise Deposed("the authority stepped down")
        if self.ask_majority is not None:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            above = self.ask_majority()  # which may confirm others, here and now
            self._confirming.append((above, waiting))
            await asyncio.wait_for(waiting, timeout_s)

    @property
    def entry_soon(self) -> bool:
        """Whether an entry is about to be begun: something is queued, or callers share entries and are in the stretch of the last one."""
        return bool(self.queue) or self._stretch_left_ms() > 0

    def _stretch_left_ms(self) -> int:
        """See `_let_entry_grow`; 0 once the stretch of the last entry is over, and for a caller who comes alone."""
        length = self._stretch_ms if self._grows else 0
        now = self.monotonic_ms()
        return length - now % length if length and now // length == self._begun_ms // length else 0

    @property
    def _stretch_ms(self) -> int:
        longest = self.limits.group_ms
        length = max(min(longest, 1), longest // SHORTEST)
        while 0 < 2 * length <= longest and length < STORE_TIMES * self._store_ms:
            length *= 2  # so that the ends of longer ones are ends of the shorter ones, of other shards, too
        return length

    def settle(self, applied: int) -> None:
        """The ledger has folded everything up to `applied`."""
        for offset in [o for o in self.kept if o <= applied]:
            self.kept_bytes -= len(self.kept.pop(offset).entry.data)
        self.pending.settle(applied)

    def _check_room(self) -> None:
        if not self.accepting:
            code = "draining" if self.draining is not None else "no_authority"
            raise NoAuthority(
                "the shard is being handed over" if self.draining else "this region does not own the shard",
                code=code,
                definite=True,
                retry_after_ms=500,
            )
        if len(self.queue) >= QUEUED:
            raise NoAuthority("too much waits to be written; nothing was taken", code="lagging", definite=True, retry_after_ms=1000)
        if self.waiters.lost_lease:
            detail = "the lease of this region ran out; nothing was written"
            raise NoAuthority(detail, code="no_lease", definite=True, retry_after_ms=100)
        limits = self.limits
        open_entries = self.tail.offset - self.waiters.committed
        if open_entries <= 0:
            return
        oldest = self.kept.get(self.waiters.committed + 1)
        stale = oldest is not None and self.monotonic_ms() - oldest.appended_ms > limits.unreplicated_ms
        if open_entries >= limits.unreplicated_entries or self.kept_bytes >= limits.unreplicated_bytes or stale:
            raise NoAuthority("the other regions do not keep up; nothing was written", code="lagging", definite=True, retry_after_ms=1000)

    # -- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write entries until `stop`."""
        while not self._over:
            if not self.queue and not (self.draining and self.drained):
                self._wake.clear()
                due = self._next_publish_in_ms()
                if due is None or due > 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), None if due is None else due / 1000)
                    if self._over:
                        return
            await self._let_entry_grow()
            if not self._over:
                await self._write_one()

    async def _let_entry_grow(self) -> None:
        """While callers share entries, one in each stretch of time, counted from the clock's zero: `group_ms` on a machine that is full,
        down to an eighth of it when the own store takes entries quickly.

        An entry costs all regions some milliseconds whatever it holds; and the entries of shards that share a process begin
        together, so that they travel together. On a machine that is full callers wait less for rarer entries than for each other,
        and how long the store needs tells how full it is. Whoever comes alone, or after a pause, waits for nothing, nor does what
        an entry had no room for.
        """
        while not self._over and self.draining is None and (left_ms := self._stretch_left_ms()):
            await asyncio.sleep(left_ms / 1000)
        self._begun_ms = self.monotonic_ms()

    def _next_publish_in_ms(self) -> int | None:
        due = self.pending.due()
        if not due:
            return None
        return max(0, min(self.not_before_ms.get(number, 0) for number, _ in due) - self.monotonic_ms())

    async def _write_one(self) -> None:
        offset = self.tail.offset + 1
        now_ms, records = self.wall_ms(), list[Record]()
        events, timeout_s = 0, self.limits.ack_timeout_ms / 1000
        callers = len(self.queue)
        boards: dict[str, BoardState] = {}
        decisions: list[tuple[Request, list[Decided]]] = []
        last: list[Change] = []
        with self.ledger.reader() as reader:
            draft = Draft(self.pending, reader, self.epoch, offset, now_ms, records)
            while self.queue and events < self.limits.events_per_entry:
                request = self.queue.popleft()
                if isinstance(request, Change):
                    if request.last:
                        last.append(request)
                        continue
                    # What is decided about a board holds for the events behind it.
                    board_changes.decide(request, draft, self.waiters, timeout_s, self._confirm)
                    boards.clear()
                    continue
                if isinstance(request, auditing.AuditRequest):
                    self._decide_audit(request, offset, now_ms, records)
                    continue
                board = boards.get(request.board_id) or self.pending.board(request.board_id)
                refusal = self._refusal(request, board)
                if board is None or refusal is not None:
                    if not request.done.done() and refusal is not None:
                        request.done.set_exception(refusal)
                    continue
                scored, decided = self.pending.decide(
                    reader, board, request.submissions, subject=request.subject, now_ms=now_ms, epoch=self.epoch, offset=offset
                )
                boards[request.board_id] = board
                records.extend(scored)
                events += len(request.submissions)
                decisions.append((request, decided))
            self._grows = callers > 1 and not self.queue
            self._answer_later(decisions)
            for change in last:
                board_changes.decide(change, draft, self.waiters, timeout_s, self._confirm)
        self._publish_due(offset, now_ms, records)
        drained = None
        if not self.queue and self.draining is not None and self.drained is not None:
            records.append(self.draining)
            drained, self.drained = self.drained, None
        if not records:
            return
        entry = seal_entry(self.epoch, offset, self.new_id(), records)
        begun_ms = self.monotonic_ms()
        self.kept[offset] = Kept(entry, records, begun_ms)
        self.kept_bytes += len(entry.data)
        leased = self.waiters.leased()
        try:
            answer: Accepted | Refused | None = await self.append(entry, self.tail)
        except JournalUnavailable:
            answer = None
        self._store_ms += (self.monotonic_ms() - begun_ms - self._store_ms) / LATELY
        if isinstance(answer, Accepted):
            self.tail = Position(self.epoch, offset)
            self.waiters.hold(offset, leased_before=leased)
        self.heard(answer)
        if drained is not None and isinstance(answer, Accepted):
            drained(offset)

    def _publish_due(self, offset: int, now_ms: int, records: list[Record]) -> None:
        now = self.monotonic_ms()
        for number, interval_ms in self.pending.due():
            if now >= self.not_before_ms.get(number, 0) or self.draining is not None:
                board = self.pending.numbered(number)
                assert board is not None
                records.append(self.pending.publish(board, published_ms=now_ms, offset=offset))
                self._publish_again(number, now, now + interval_ms)

    def _publish_again(self, number: int, now_ms: int, at_ms: int) -> None:
        """Note when a board may be published next; once in a while, forget those for which that is past."""
        self.not_before_ms[number] = at_ms
        if len(self.not_before_ms) > self._much:
            self.not_before_ms = {number: at_ms for number, at_ms in self.not_before_ms.items() if at_ms > now_ms}
            self._much = max(MUCH, 2 * len(self.not_before_ms))

    def _decide_audit(self, request: auditing.AuditRequest, offset: int, now_ms: int, records: list[Record]) -> None:
        decided = auditing.decide(request, self.drills, offset=offset, now_ms=now_ms)
        if decided.record is not None:
            records.append(decided.record)
        timeout_s = self.limits.ack_timeout_ms / 1000
        asyncio.get_running_loop().create_task(auditing.answer(request, decided, self.epoch, self.waiters, timeout_s))

    def _refusal(self, request: Request, board: BoardState | None) -> Unanswered | None:
        """Why this shard takes none of a request's events."""
        if board is None:
            return UnknownBoard(f"there is no board {request.board_id}")
        if request.incarnation not in ("", board.incarnation):
            return UnknownBoard(f"{request.board_id} was removed, and another one made")
        try:
            board_changes.refuse_unless_open(board, self.shard)
            board_changes.refuse_strangers(board, request.submissions)
        except Unanswered as error:
            return error
        return None

    def _answer_later(self, decisions: list[tuple[Request, list[Decided]]]) -> None:
        """Let the answers of one entry wait, those that rest on the same offset together. Before the entry's publish records."""
        visible_by: dict[str, int] = {}
        waiting: dict[int, list[_Answer]] = {}
        for request, decided in decisions:
            board_id = request.board_id
            if board_id not in visible_by:
                state = self.pending.board(board_id)
                # Only the lead of a board of several slices knows its generations; there the position says it.
                visible_by[board_id] = 0 if state is None or state.sharded else state.generation + bool(state.unpublished)
            depends = max([d.depends for d in decided], default=0)
            waiting.setdefault(depends, []).append(_Answer(request, decided, visible_by[board_id]))
        for depends, answers in waiting.items():
            asyncio.get_running_loop().create_task(self._when_committed(depends, answers))

    async def _when_committed(self, depends: int, answers: list["_Answer"]) -> None:
        """Answer requests once everything that their results rest on may be acknowledged."""
        with suppress(Deposed, TimeoutError):
            await self.waiters.wait(depends, self.limits.ack_timeout_ms / 1000)
        for request, decided, visible_by in answers:
            if not request.done.done():
                request.done.set_result(
                    [
                        SubmitResult(
                            *(d.outcome, d.value, d.version, d.improved, d.epoch, d.offset, visible_by, d.code, "", d.allowed),
                            d.depends > self.waiters.committed,
                        )
                        if self.waiters.may_answer(d.depends)
                        else SubmitResult(Outcome.UNKNOWN, code="unknown")
                        for d in decided
                    ]
                )


class _Answer(NamedTuple):
    """A decided request on its way out; `visible_by` as in `SubmitResult`."""

    request: Request
    decided: list[Decided]
    visible_by: int
