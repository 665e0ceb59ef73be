"""The shard actor: one shard in one region, authority or follower.

Owns: the region's ledger of the shard, the role machine, and (as authority) the epoch's writer.
Can lose: everything in memory. What survives a restart is in the region's store (journal, fence) and on
disk (ledger, derived). A failed or timed-out call may have been carried out: the caller asks again with
the same event ids. A newer instance of this actor makes this one exit.
"""

import asyncio
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from actors import orders
from actors.board_changes import Draft, Result, Slice
from actors.clocks import monotonic_ms, wall_ms
from actors.coordinating import Coordinating
from actors.errands import Errands
from actors.folding import Folding
from actors.importing import Importing
from actors.messages import Batch, NoAuthority, SubmitResult, UnknownBoard
from actors.moving import Moving
from actors.ports import Links, ShardSpec
from actors.salvaging import Salvaging
from actors.waiting import CommitWaiters
from actors.writing import Writer
from boards.model import BoardRules, Layout, Submission
from boards.rule_changes import changed
from failover import events as e
from failover.events import Role
from failover.machine import halt, heard_newer, step
from failover.state import ShardState
from journal.ports import Accepted, Journal, JournalUnavailable, Position, Refused
from journal.records import Entry, EpochStarted
from ledger.lmdb_ledger import LmdbLedger
from ledger.pending import Pending
from ledger.ports import BoardState

log = logging.getLogger("laurel.shard")

TICK_S = 0.025

_batches = msgspec.msgpack.Decoder(list[tuple[str, list[Batch]]])


class ShardActor:
    """See the module docstring. All methods run on one event loop, which must be running when it is made."""

    def __init__(
        self,
        spec: ShardSpec,
        *,
        journal: Journal,
        links: Links,
        ledger: LmdbLedger,
        exit_process: Callable[[str], None] | None = None,
        near: "Mapping[str, ShardActor] | None" = None,
    ) -> None:
        """`near`: the actors of all shards that share this process, this one included; to be filled before it starts."""
        self.spec = spec
        self.near: Mapping[str, ShardActor] = {spec.shard: self} if near is None else near
        self.journal, self.links, self.ledger = journal, links, ledger
        self.state = ShardState(spec.region, spec.shard, spec.home, spec.regions, spec.timing, spec.mode)
        self.waiters = CommitWaiters()
        self.writer: Writer | None = None
        #: What this epoch's authority does with the other shards of the boards that it leads.
        self.coordinating: Coordinating | None = None
        #: What it does for boards that are on their way to this shard.
        self.importing: Importing | None = None
        self.folding = Folding(spec, journal, ledger, on_started=self._on_started, on_folded=self._on_folded, on_halted=self._on_halted)
        self._errands = Errands(
            spec, journal, links, self.state, kept=lambda: self.writer.kept if self.writer is not None else {}, hear=self._hear
        )
        self.salvaging = Salvaging(spec, journal, links, ledger, self)
        self._exit_process = exit_process or _exit
        self._tasks: set[asyncio.Task[Any]] = set()
        #: How the newest epoch that is known here acknowledges; the configuration may say another one by now.
        self._epoch_mode = ""
        #: How authority comes here and leaves.
        self.moving = Moving(spec, self.state, journal, links, hear=self._hear)
        self._persisted = 0
        self._persisting = False
        self._append_lock = asyncio.Lock()
        self._closed = False
        self._last_own_beat = 0
        #: Number of the newest append that the own store took.
        self._own_taken = 0
        #: Rules of the configuration that an existing board was not written with; they have no effect.
        self._conflicts: list[dict[str, Any]] = []

    def start(self) -> None:
        """Begin ticking and folding."""
        self._spawn(self._tick_loop())
        self._spawn(self.folding.run())
        self._spawn(self.salvaging.run())

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside this actor for as long as it lives; its failure is the actor's."""
        self._spawn(work)

    async def close(self) -> None:
        """Stop cleanly: nothing is appended after this; the ledger is closed as clean."""
        self._closed = True
        if self.writer is not None:
            self.writer.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.close()
        await self.journal.close()
        self.ledger.close()

    # -- what gateways and operators ask ------------------------------------------------------------------------

    async def submit(self, board_id: str, submissions: Sequence[Submission], subject: str, incarnation: str = "") -> list[SubmitResult]:
        """Decide events in order; answers when all are committed (`UNKNOWN` where that is not known in time).

        `incarnation`: the life of the board that is meant, "" for the one that is there. Raises UnknownBoard for another one.
        Raises NoAuthority: definite, nothing appended; carries the newest started epoch known and its owner.
        """
        return await self._serving().submit(board_id, submissions, subject, incarnation)

    def submit_later(self, batch: Batch) -> asyncio.Future[list[SubmitResult]]:
        """As `submit`, without a task of its own: NoAuthority is raised here, or by the future."""
        return self._serving().submit(batch.board_id, batch.submissions, batch.subject, batch.incarnation)

    async def create_board(self, board_id: str, rules: BoardRules, subject: str, layout: Layout | None = None) -> tuple[BoardState, bool]:
        """Create a board in this shard, or led from here over those of `layout`; (state, False) if it is there with the same rules."""
        return await self._serving().create_board(board_id, rules, uuid.uuid4().hex[:12], subject, layout)

    async def change(self, decide: Callable[[Draft], Result], *, last: bool = False, committed: bool = False) -> Any:
        """See `Writer.change`."""
        return await self._serving().change(decide, last=last, committed=committed)

    async def audit(self, what: str, asked_by: str, detail: dict[str, Any], unless_open: str = "") -> Position:
        """Record what an operator did; the record's place, once it is committed.

        With `unless_open="drill"`: Busy (definite: nothing was written) while a `drill.began`, whose detail has `id` and
        `until_ms`, is not past its time by this clock and has no `drill.ended`. Ids are never used again. The first such
        call of an epoch reads the whole journal (see `auditing.read_back`). Raises NoAuthority.
        """
        writer = self._serving()
        if unless_open:
            await writer.drills.learn(self.journal)
        return await writer.audit(what, asked_by, detail, unless_open)

    def status(self) -> dict[str, Any]:
        """What this actor is doing, for `/v1/status`."""
        state, replication = self.state, self.state.replication
        lag = {}
        now = monotonic_ms()
        if replication is not None:
            lag = {
                p.region: {
                    "entries": replication.tail - p.verified,
                    "heard_ms": now - p.last_heard_ms if p.last_heard_ms > 0 else None,
                    "amnesiac": p.amnesiac,
                }
                for p in replication.peers.values()
            }
        serving = self.writer is not None and self.writer.accepting
        return {
            "role": state.role.value,
            "why": state.why,
            "epoch": state.epoch if serving else state.newest_epoch,
            "owner": self.spec.region if serving else state.newest_owner,
            "serving": serving,
            "tail": state.tail.offset if replication is not None else self.folding.applied,
            "committed": state.committed if replication is not None else self.folding.applied,
            "applied": self.folding.applied,
            "lag": lag,
            "halted": self.folding.halted,
            "mode": self.mode,
            "leased": self.waiters.leased() if state.lease is not None else None,
            "activation": self.moving.last,
            "automatic_pause_ms": state.detector.pause_ms(now),
            "config_conflicts": list(self._conflicts),
            "waiting_for_marks": self.coordinating.status() if self.coordinating is not None else {},
            "relocations": self.coordinating.relocations() if self.coordinating is not None else {},
        }

    @property
    def mode(self) -> str:
        """How the newest epoch known here acknowledges."""
        return self._epoch_mode or self.state.mode

    def relocation(self, board_id: str) -> dict[str, Any]:
        """How far the move of a board that is led from here is, `to` where it is going (None: nowhere, also after a move that was
        given up). Raises NoAuthority, UnknownBoard."""
        pending = self._serving().pending
        state = pending.board(board_id)
        if state is None or self.coordinating is None:
            raise UnknownBoard(f"there is no board {board_id} here")
        layout = state.layout or Layout(1, (self.spec.shard,))
        told = self.coordinating.relocations().get(board_id, {"phase": "none", "slices": []})
        going = None if state.target is None else {"number": state.target.number, "shards": list(state.target.shards)}
        return {**told, "layout": {"number": layout.number, "shards": list(layout.shards)}, "to": going}

    def closed_at(self, wanted: Slice) -> int:
        """Offset at which a slice was closed for a move; 0 if it is open, or not here."""
        state = self.writer.pending.slice_numbered(wanted.board_id, wanted.layout.number) if self.writer is not None else None
        return 0 if state is None or state.phase != "closed" else state.closed_offset

    def importing_now(self) -> Importing:
        """This epoch's imports. Raises NoAuthority."""
        self._serving()
        assert self.importing is not None
        return self.importing

    # -- the machine ------------------------------------------------------------------------------------------------

    def _serving(self) -> Writer:
        writer, state = self.writer, self.state
        if writer is None or state.role not in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED):
            raise NoAuthority(
                f"{self.spec.region} does not own {self.spec.shard}: {state.why}",
                code="no_authority",
                definite=True,
                epoch=state.newest_epoch,
                owner=state.newest_owner if state.newest_owner != self.spec.region else "",
            )
        return writer

    def _hear(self, event: e.Event) -> None:
        if self.state.replication is not None:
            self.state.replication.entry_soon = self.writer is not None and self.writer.entry_soon
        for action in step(self.state, event):
            self._do(action)

    def _do(self, action: e.Action) -> None:
        match action:
            case e.Probe():
                for region in action.regions:
                    self._spawn(self._errands.probe(region, action.request, silence=action.silence))
            case e.SendSeal():
                for region in action.regions:
                    self._spawn(self._errands.seal(region, action))
            case e.Adopt():
                self._spawn(self._errands.adopt(action))
            case e.AppendStart():
                self._spawn(self._errands.append_start(action))
            case e.SendAppend():
                self._spawn(self._errands.ship(action))
            case e.SendRenew():
                self._spawn(self._errands.renew(action))
            case e.GiveUpLease():
                self._spawn(self._errands.give_up_lease(action))
            case e.CommitMoved(offset=offset):
                self.waiters.advance(offset)
                self.folding.committed_to(offset)
                self._tell_own_store()
            case e.Confirmed(number=number):
                if self.writer is not None:
                    self.writer.confirmed(number)
            case e.CatchUp(offset=offset):
                self.folding.report_at(offset, lambda at: self._hear(e.LedgerCaughtUp(now_ms=monotonic_ms(), offset=at)))
            case e.Serve():
                self._serve()
            case e.StepDown(why=why):
                self._step_down(why)
            case e.StopAccepting():
                assert self.writer is not None
                self.writer.drain(self.moving.record(), lambda at: self._hear(e.DrainAppended(now_ms=monotonic_ms(), offset=at)))
            case e.DrainDone(offset=offset):
                self.moving.drained(offset)
            case e.MarkAmnesiac(incarnation=incarnation):
                self._spawn(self.journal.mark_amnesiac(incarnation))
            case e.ActivationEnded():
                log.info("%s: %s: %s", self.spec.shard, action.code, action.detail)
                self.moving.activation_ended(action)
            case e.Exit(why=why):
                self._exit_process(why)

    async def _tick_loop(self) -> None:
        while not self._closed:
            token = uuid.uuid4()
            self._hear(e.Ticked(now_ms=monotonic_ms(), token=token.hex, jitter=(token.int & 0xFFFF) / 0x10000))
            self._own_beat()
            self._tell_own_store()
            # The shards of one process tick together: what they say to a peer then travels in one message.
            await asyncio.sleep(until_tick(time.monotonic()))

    def _own_beat(self) -> None:
        """Whoever has begun an epoch looks at its own store at each heartbeat, also when nobody writes: it may be sealed, or gone."""
        now = monotonic_ms()
        if self._begun and not self._persisting and now - self._last_own_beat >= self.spec.timing.heartbeat_ms:
            self._last_own_beat, self._persisting = now, True
            self._spawn(self._persist_commit(force=True))

    @property
    def _begun(self) -> bool:
        """Whether this epoch's start record is in the own store; its append, which may be under way, takes what is the tail before it."""
        return self.state.replication is not None and self.state.tail.epoch == self.state.epoch

    def _tell_own_store(self) -> None:
        """Have the news of a commit written where the region's replica reads it, unless an entry comes soon whose append carries it."""
        replication = self.state.replication
        if replication is None or not self._begun or self._persisting or self._persisted >= replication.committed:
            return
        if self.writer is None or not self.writer.entry_soon:
            self._persisting = True
            self._spawn(self._persist_commit())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, JournalUnavailable):
                log.warning("%s: %s", self.spec.shard, error)
                return
            log.error("%s: a task failed", self.spec.shard, exc_info=error)
            self._exit_process(f"broken invariant: {error!r}")

    # -- the own store ----------------------------------------------------------------------------------------------

    async def _append_batch(self, entry: Entry, expected: Position) -> Accepted | Refused:
        """The writer's append: carries what is committed and remembered, in the same step."""
        replication = self.state.replication
        async with self._append_lock:
            request = self.state.requests()
            committed = replication.committed if replication is not None else 0
            answer = await self.journal.append(
                epoch=entry.epoch,
                attempt=self.state.attempt,
                expected=expected,
                entries=[entry],
                committed=committed,
                peers=replication.memories() if replication is not None else {},
            )
        if isinstance(answer, Accepted):
            self._persisted, self._own_taken = max(self._persisted, committed), max(self._own_taken, request)
        return answer

    def _ask_majority(self) -> int:
        """Ask all stores to take something of this epoch now; those count that take more than the number returned."""
        above = self.state.requests.last
        self._hear(e.ConfirmAsked(now_ms=monotonic_ms(), epoch=self.state.epoch, above=above))
        if not self._persisting:
            self._persisting = True
            self._spawn(self._persist_commit(force=True))
        return above

    def _is_asked(self) -> bool:
        """The own store is to take something, as `_ask_majority` says."""
        replication = self.state.replication
        return replication is not None and replication.asked is not None and replication.taken <= replication.asked

    async def _persist_commit(self, *, force: bool = False) -> None:
        """Tell the own store what is committed, so that the region's replica may read it; notices a raised fence too."""
        epoch = self.state.epoch
        try:
            while self.state.replication is not None and (force or self._is_asked() or self._persisted < self.state.replication.committed):
                force = False
                async with self._append_lock:
                    replication = self.state.replication
                    if replication is None or self.state.epoch != epoch:
                        return
                    committed, request = replication.committed, self.state.requests()
                    try:
                        answer: Accepted | Refused | None = await self.journal.append(
                            epoch=epoch,
                            attempt=self.state.attempt,
                            expected=self.state.tail,
                            entries=[],
                            committed=committed,
                            peers=replication.memories(),
                        )
                    except JournalUnavailable:
                        answer = None
                if isinstance(answer, Accepted):
                    self._persisted, self._own_taken = max(self._persisted, committed), max(self._own_taken, request)
                self._hear(e.OwnAppended(now_ms=monotonic_ms(), epoch=epoch, answer=answer, request=self._own_taken))
        finally:
            self._persisting = False

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        replication = self.state.replication
        assert replication is not None
        self.waiters = CommitWaiters(replication.committed, lease=self.state.lease)
        writer = Writer(
            shard=self.spec.shard,
            epoch=self.state.epoch,
            tail=self.state.tail,
            ledger=self.ledger,
            pending=Pending(self.ledger),
            limits=self.spec.limits,
            waiters=self.waiters,
            append=self._append_batch,
            wall_ms=wall_ms,
            monotonic_ms=monotonic_ms,
            new_id=lambda: uuid.uuid4().hex,
            heard=lambda answer: self._hear(
                e.OwnAppended(now_ms=monotonic_ms(), epoch=writer.epoch, answer=answer, request=self._own_taken)
            ),
            ask_majority=self._ask_majority,
        )
        self.writer = writer
        self.folding.writer = writer
        self._spawn(writer.run())
        self.coordinating = Coordinating(
            shard=self.spec.shard,
            region=self.spec.region,
            writer=writer,
            links=self.links,
            near={shard: partial(orders.operate, actor) for shard, actor in self.near.items()},
            spawn=self._spawn,
            wall_ms=wall_ms,
            monotonic_ms=monotonic_ms,
        )
        self.importing = Importing(region=self.spec.region, regions=self.spec.regions, writer=writer, links=self.links, spawn=self._spawn)
        self._spawn(self.coordinating.run())
        self._spawn(self._create_configured_boards(writer))

    async def _create_configured_boards(self, writer: Writer) -> None:
        self._conflicts = []
        for board_id, (rules, layout) in self.spec.boards.items():
            state = self.ledger.board(board_id)
            if state is None:
                if self.ledger.gone(board_id) is not None:
                    continue  # it was removed, or lives elsewhere now
                try:
                    await writer.create_board(board_id, rules, uuid.uuid4().hex[:12], "cluster.yaml", layout)
                except NoAuthority:
                    return
                continue
            for rule in changed(state.rules, rules):
                conflict = {"board": board_id, "rule": rule, "written": getattr(state.rules, rule), "configured": getattr(rules, rule)}
                self._conflicts.append(conflict)
                log.error("%s: the configuration differs from what the data was written with, which holds: %s", self.spec.shard, conflict)

    def _step_down(self, why: str) -> None:
        log.info("%s: %s steps down: %s", self.spec.shard, self.spec.region, why)
        writer, self.writer, self.coordinating, self.importing = self.writer, None, None, None
        self.folding.writer = None
        self._persisted = 0
        if writer is not None:
            writer.stop()
        self.moving.drained(None)

    def _on_started(self, record: EpochStarted) -> None:
        self._epoch_mode = record.mode
        ago = max(0, wall_ms() - record.at_ms)
        automatic = monotonic_ms() - ago if record.cause == "automatic" else None
        heard_newer(self.state, record.epoch, record.owner, automatic_ms=automatic)
        self.salvaging.wake()

    def _on_halted(self, why: str) -> None:
        """The ledger and the journal contradict each other: this region serves the shard no more until somebody looks."""
        for action in halt(self.state, why):
            self._do(action)

    def _on_folded(self, applied: int) -> None:
        if self.writer is not None:
            self.writer.settle(applied)


def until_tick(now_s: float) -> float:
    """Seconds to the next tick, in whole milliseconds, at least one: a timer that rang early would ring again and again until then."""
    return math.ceil((TICK_S - now_s % TICK_S) * 1000) / 1000


def _exit(why: str) -> None:
    log.error("exit: %s", why)
    logging.shutdown()
    os._exit(1)


def decode_submit(payload: bytes) -> list[tuple[str, list[Batch]]]:
    """A gateway's joined requests, by shard, each shard once."""
    return _batches.decode(payload)
