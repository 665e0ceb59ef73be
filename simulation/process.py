"""The process of one region's shard actor: carries out the real machine's actions, as `actors.shard` and `actors.errands` do.

It decides nothing itself. Each answer, tick and order comes through `deliver`, so that a process that sleeps hears them
all when it wakes, and one that died hears none.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from actors import orders
from actors.board_changes import Draft, Result, Slice
from actors.coordinating import Coordinating
from actors.importing import Importing
from actors.messages import NoAuthority
from actors.shard import ShardActor
from failover import events as e
from failover.acknowledging import Acknowledging
from failover.events import Role
from failover.machine import halt, heard_newer, step
from failover.state import ShardState
from journal.ports import Accepted, Position, Refused
from journal.records import Entry, EpochStarted, HandedOver, Record, open_entry
from ledger.memory import MemoryLedger
from ledger.ports import ChecksumMismatch, LedgerCorrupt, LedgerGap
from simulation.errands import Errands, append
from simulation.loop import Loop
from simulation.neighbours import OwnJournal, Spec, look_after
from simulation.network import Call
from simulation.salvaging import Salvaging
from simulation.watch import Violation
from simulation.writer import BoardRequest, Request, Writer

if TYPE_CHECKING:
    from simulation.region import Region
    from simulation.world import World

#: Patience with the own store.
OWN_MS = 80
#: A follower's ledger folds at every n-th tick.
FOLD_TICKS = 8


class Process:
    """One instance of a shard actor. `now` is its boot-time clock: it goes on while the process sleeps."""

    def __init__(self, world: "World", region: "Region", ledger: MemoryLedger) -> None:
        self.world, self.region, self.ledger = world, region, ledger
        self.name = region.name
        self.clock_offset, self.clock_rate = world.clock()
        self.state = ShardState(region.name, world.shard, world.names[0], world.names, world.timing, world.mode)
        self.state.detector.start_ms = 2 * world.timing.detection_ms
        self.alive, self.paused = True, False
        self.inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.writer: Writer | None = None
        self.errands = Errands(self)
        self.busy = False
        self._when_free: list[Callable[[], None]] = []
        self._persist_wanted = False
        self._persisted = 0
        self._own_taken = 0
        self._last_beat = 0
        self._committed = 0
        self._reports: list[int] = []
        self._ticks = world.random.randrange(FOLD_TICKS)
        self._fold_at_once = False
        self._drains: list[Call] = []
        self._drain_record: HandedOver | None = None
        self.salvaging = Salvaging(self)
        #: What its asynchronous code runs on, and what looks after the other slices of the boards that it leads.
        self.loop = Loop(self)
        self.coordinating: Coordinating | None = None
        #: What it does for boards that are on their way to this shard.
        self.importing: Importing | None = None
        #: As the product's code knows them.
        self.spec = Spec(self.name, world.shard)
        self.journal = OwnJournal(region.store)
        #: The newest start record that is folded here, and when (ms of the world) that was.
        self._folded_start: tuple[EpochStarted, int] | None = None
        #: Told what came of the newest order.
        self.ended: Callable[[e.ActivationEnded], None] | None = None

    # -- life

    def now(self) -> int:
        """Milliseconds by this process's clock."""
        return int(self.world.now * self.clock_rate) + self.clock_offset

    def wall_ms(self) -> int:
        """The time that goes into records."""
        return 1_000_000 + self.world.now

    def start(self) -> None:
        """Begin ticking; the ledger's files must fit the journal."""
        self.tell("starts")
        self._check_ledger()
        self.world.at(self.world.now + self.world.random.randrange(self.world.tick_ms), self._tick)

    def die(self) -> None:
        """Nothing is heard or done any more."""
        self.tell("dies")
        self.alive = False
        self.writer = None
        self.loop.close()

    def pause(self) -> None:
        """Asleep: nothing is heard."""
        self.tell("sleeps")
        self.paused = True

    def resume(self) -> None:
        """Awake: everything is heard, in order."""
        if not self.alive or not self.paused:
            return
        self.tell("wakes")
        self.paused = False
        while self.inbox and self.alive and not self.paused:
            hear, answer = self.inbox.popleft()
            hear(answer)
        self._tick()

    def deliver(self, hear: Callable[[Any], None], answer: Any) -> None:
        """See the module docstring."""
        if not self.alive:
            return
        if self.paused:
            self.inbox.append((hear, answer))
        else:
            hear(answer)

    def tell(self, what: str) -> None:
        """A line of the story."""
        if self.world.story is not None:
            self.world.story.append((self.world.now, self.name, what, self.state.why))

    def _tick(self) -> None:
        if not self.alive or self.paused:
            return
        world = self.world
        self.hear(e.Ticked(now_ms=self.now(), token=world.token(), jitter=world.random.random()))
        if not self.alive:
            return
        writer, state = self.writer, self.state
        # Also while it starts: a store that lost its disk meanwhile must not be waited for.
        own = state.replication is not None and state.tail.epoch == state.epoch
        if own and world.now - self._last_beat >= world.timing.heartbeat_ms:
            self._last_beat = world.now
            self.persist()
        if state.lease is not None:
            world.lease_checked(self)
        if writer is not None and writer.due():
            writer.write_soon()
        self._ticks += 1
        if self._fold_at_once or writer is not None or self._ticks % FOLD_TICKS == 0:
            self._fold()
        world.at(world.now + world.tick_ms, self._tick)

    # -- the machine

    def hear(self, event: e.Event) -> None:
        """Give an event to the machine and do what it says."""
        role = self.state.role
        for action in step(self.state, event):
            if not self.alive:
                return
            self._do(action)
        if self.world.story is not None and self.state.role is not role:
            self.tell(f"is now {self.state.role.value}, epoch {self.state.epoch}")

    def _do(self, action: e.Action) -> None:
        match action:
            case e.SendAppend():
                self.errands.ship(action)
            case e.CommitMoved(offset=offset):
                self.world.committed(self, offset)
                self._committed = max(self._committed, offset)
                if self.writer is not None:
                    self.writer.advance(offset)
                if self._persisted < offset and not (self.writer is not None and self.writer.queue):
                    self.persist()
            case e.Confirmed(number=number):
                if self.writer is not None:
                    self.writer.confirmed(number)
            case e.Probe():
                for region in action.regions:
                    self.errands.probe(region, action.request, action.silence)
            case e.SendSeal():
                for region in action.regions:
                    self.errands.seal(region, action)
            case e.Adopt():
                self.errands.adopt(action)
            case e.AppendStart():
                self._starts(action)
                self.errands.append_start(action)
            case e.SendRenew():
                self.errands.renew(action)
            case e.GiveUpLease():
                self.errands.give_up_lease(action)
            case e.CatchUp(offset=offset):
                self._reports.append(offset)
                self._fold_soon()
            case e.Serve():
                self._serve()
            case e.StepDown():
                self._step_down()
            case e.StopAccepting():
                assert self.writer is not None and self._drain_record is not None
                self.writer.drain(self._drain_record, lambda at: self.hear(e.DrainAppended(now_ms=self.now(), offset=at)))
            case e.DrainDone(offset=offset):
                self._answer_drains(offset)
            case e.MarkAmnesiac(incarnation=incarnation):
                self.own("mark", lambda r: r.store.log.mark_amnesiac(incarnation), _ignore)
            case e.ActivationEnded():
                ended, self.ended = self.ended, None
                if ended is not None:
                    ended(action)
            case e.Exit():
                self.die()
                self.region.ended(self)
            case _:
                raise NotImplementedError(f"the simulator does not know {action}")

    # -- what gateways and operators ask

    def activate(
        self,
        cause: str,
        *,
        expect: tuple[int, str] | None = None,
        readmit: dict[str, str] | None = None,
        ended: Callable[[e.ActivationEnded], None] | None = None,
    ) -> None:
        """An operator's order, or the end of a handover or readmission."""
        self.ended = ended
        self.hear(
            e.ActivationAsked(now_ms=self.now(), cause=cause, asked_by="op", token=self.world.token(), expect=expect, readmit=readmit)
        )

    def submit(self, call: Call) -> None:
        """An event for the authority, from a gateway."""
        request, hops = call.message
        if hops > 1:
            raise Violation("hops", f"a request came to {self.name} over {hops} hops")
        network, state = self.world.network, self.state
        writer = self.writer
        if writer is None or state.role not in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED):
            owner = state.newest_owner if state.newest_owner != self.name else ""
            network.reply(call, NoAuthority(f"not here: {state.why}", code="no_authority", epoch=state.newest_epoch, owner=owner))
            return
        board_id, submission = request
        writer.submit(Request(board_id, submission, lambda answer: network.reply(call, answer)))

    def operate(self, call: Call) -> None:
        """An order, such as the lead of a board gives to the authorities of its other slices."""

        async def carry_out() -> None:
            self.world.network.reply(call, await orders.operate(self._as_actor, call.message))

        self.spawn(carry_out())

    async def change(self, decide: Callable[[Draft], Result], *, last: bool = False, committed: bool = False) -> Any:
        """As `actors.shard.ShardActor.change`."""
        return await self._serving().change(decide, last=last, committed=committed)

    def _serving(self) -> Writer:
        state, writer = self.state, self.writer
        if writer is None or state.role not in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED):
            owner = state.newest_owner if state.newest_owner != self.name else ""
            raise NoAuthority(f"not here: {state.why}", code="no_authority", definite=True, epoch=state.newest_epoch, owner=owner)
        return writer

    @property
    def mode(self) -> str:
        """How this shard acknowledges."""
        return self.world.mode

    def relocation(self, board_id: str) -> dict[str, Any]:
        """See `actors.shard.ShardActor.relocation`."""
        return ShardActor.relocation(self._as_actor, board_id)

    def closed_at(self, wanted: Slice) -> int:
        """See `actors.shard.ShardActor.closed_at`."""
        return ShardActor.closed_at(self._as_actor, wanted)

    def importing_now(self) -> Importing:
        """See `actors.shard.ShardActor.importing_now`."""
        return ShardActor.importing_now(self._as_actor)

    @property
    def _as_actor(self) -> ShardActor:
        """What the product's code takes for the actor of this shard: it has what that code asks of one."""
        return cast("ShardActor", self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside; what it raises is a broken invariant."""
        self.loop.spawn(work, self._failed)

    def _failed(self, error: BaseException) -> None:
        raise error

    def drain(self, call: Call) -> None:
        """A coordinator asks the authority of an epoch to hand over; the answer is its last offset, or None."""
        epoch, to = call.message
        if self.state.epoch != epoch or self.writer is None:
            self.world.network.reply(call, None)
            return
        if self.state.role is Role.DRAINED:
            self.world.network.reply(call, self.state.drain_offset)
            return
        self._drains.append(call)
        if self.state.role is Role.AUTHORITY:
            self._drain_record = HandedOver(to, "op", self.wall_ms())
            self.hear(e.DrainAsked(now_ms=self.now(), epoch=epoch))

    def _answer_drains(self, offset: int | None) -> None:
        drains, self._drains = self._drains, []
        for call in drains:
            self.world.network.reply(call, offset)

    # -- serving

    def _starts(self, action: e.AppendStart) -> None:
        """The start record is about to be written: note who sealed; an automatic epoch must have waited for its turn."""
        trying = self.state.trying
        assert trying is not None
        self.world.sealed_by[self.name, action.epoch] = frozenset(trying.grants)
        if action.cause == "automatic" and self._folded_start is not None:
            last, folded_at = self._folded_start
            ago = self.wall_ms() - last.at_ms
            known = folded_at < self.world.now - (self.now() - trying.phases["probe"]) / 0.9
            if known and last.cause == "automatic" and last.epoch == action.from_epoch and ago < self.world.pause_ms / 1.1 - 2:
                raise Violation("pause", f"{self.name} took over by itself {ago} ms after epoch {last.epoch} had been")

    def _serve(self) -> None:
        replication = self.state.replication
        assert replication is not None
        if self.world.switches.forget_identities:
            self.ledger._saved.clear()
        self.writer = writer = Writer(self, Acknowledging(replication.committed, self.state.lease))
        self.world.serves(self)
        for board_id, rules in self.world.boards.items():
            if self.ledger.board(board_id) is None:
                writer.queue.append(BoardRequest(board_id, rules, self.world.layouts.get(board_id)))
        if writer.queue:
            writer.write_soon()
        if self.world.neighbours:
            self.coordinating, self.importing = look_after(self, writer)
            self.spawn(self.coordinating.run())

    def _step_down(self) -> None:
        writer, self.writer, self.coordinating, self.importing = self.writer, None, None, None
        self._persisted = 0
        if writer is not None:
            writer.stop()
        self._answer_drains(None)

    # -- the own store: one append at a time

    def own(self, kind: str, ask: Callable[["Region"], Any], hear: Callable[[Any], None], message: Any = None) -> None:
        """Ask the own store."""
        self.world.network.call(kind, self, self.name, self.name, ask, hear, patience=OWN_MS, message=message)

    def when_free(self, do: Callable[[], None]) -> None:
        """Do it once no append is under way."""
        if not self.busy:
            do()
        elif do not in self._when_free:
            self._when_free.append(do)

    def append_own(self, epoch: int, attempt: str, entry: Entry, expected: Position, heard: Callable[[Any], None]) -> None:
        """The writer's append: carries what is committed and remembered."""
        replication = self.state.replication
        committed = replication.committed if replication is not None else 0
        peers = replication.memories() if replication is not None else {}
        request = self.state.requests()

        def came(answer: Any) -> None:
            if isinstance(answer, Accepted):
                self._persisted, self._own_taken = max(self._persisted, committed), max(self._own_taken, request)
            self.busy = False
            heard(answer)
            self._free()

        self.busy = True
        self.own("own append", lambda r: append(r, epoch, attempt, expected, [entry], committed, peers), came, entry)

    def own_appended(self, epoch: int, answer: Accepted | Refused | None) -> None:
        """The machine hears of an append to the own store."""
        self.hear(e.OwnAppended(now_ms=self.now(), epoch=epoch, answer=answer, request=self._own_taken))

    def _free(self) -> None:
        """Whoever waits for the own store goes on, one after the other."""
        waiting, self._when_free = self._when_free, []
        for do in waiting:
            if self.busy:
                self._when_free.append(do)
            else:
                do()
        if self._persist_wanted and not self.busy:
            self.persist()

    def persist(self) -> None:
        """Tell the own store what is committed; notices a raised fence too."""
        if self.busy:
            self._persist_wanted = True
            return
        self._persist_wanted = False
        state, replication = self.state, self.state.replication
        if replication is None:
            return
        epoch, attempt, tail, committed, peers = state.epoch, state.attempt, state.tail, replication.committed, replication.memories()
        request = state.requests()

        def came(answer: Any) -> None:
            if isinstance(answer, Accepted):
                self._persisted, self._own_taken = max(self._persisted, committed), max(self._own_taken, request)
            self.busy = False
            self.own_appended(epoch, answer)
            if self.state.replication is replication and self._persisted < replication.committed:
                self._persist_wanted = True
            self._free()

        self.busy = True
        self.own("own append", lambda r: append(r, epoch, attempt, tail, [], committed, peers), came)

    # -- folding

    def _check_ledger(self) -> None:
        log = self.region.store.log
        if not self.ledger.agrees_with(log.status()):
            self.ledger.clear()
            self._committed = log.committed

    def _fold_soon(self) -> None:
        self._fold_at_once = True
        self.world.at(self.world.now + 1, self._fold_alive)

    def _fold_alive(self) -> None:
        if self.alive and not self.paused:
            self._fold()

    def _fold(self) -> None:
        store = self.region.store
        if not store.up or store.stalled:
            return
        if self.writer is None and not self._reports:
            if store.log.committed < self.ledger.applied.offset:
                self._check_ledger()
            self._committed = max(self._committed, store.log.committed)
        self.fold_to(self._committed)
        if self._reports and self.ledger.applied.offset >= self._reports[-1]:
            self._reports.clear()
            self._fold_at_once = False
            self.hear(e.LedgerCaughtUp(now_ms=self.now(), offset=self.ledger.applied.offset))

    def fold_to(self, offset: int) -> None:
        """Fold entries up to `offset` into the ledger, those that are kept without reading them back."""
        first = self.ledger.applied.offset + 1
        if offset < first:
            return
        kept = self.writer.kept if self.writer is not None else {}
        entries: list[Entry] = []
        decoded: list[list[Record]] = []
        for at in range(first, offset + 1):
            have = kept.get(at)
            if have is None:
                break
            entries.append(have.entry)
            decoded.append(have.records)
        if not entries:
            entries = self.region.store.log.read(first, limit=offset - first + 1)
            decoded = [open_entry(entry) for entry in entries]
        try:
            self.ledger.apply(entries, decoded)
        except (ChecksumMismatch, LedgerCorrupt) as error:
            for action in halt(self.state, str(error)):
                self._do(action)
            raise Violation("I8", f"the ledger of {self.name} contradicts its journal: {error}") from error
        except LedgerGap:
            self._check_ledger()
            return
        for records in decoded:
            if records and isinstance(records[0], EpochStarted):
                self._started(records[0])
        if self.writer is not None:
            self.writer.settle(self.ledger.applied.offset)

    def _started(self, record: EpochStarted) -> None:
        """A start record is folded."""
        ago = max(0, self.wall_ms() - record.at_ms)
        self._folded_start = record, self.world.now
        heard_newer(self.state, record.epoch, record.owner, automatic_ms=self.now() - ago if record.cause == "automatic" else None)
        self.salvaging.wake()


def _ignore(_: Any) -> None:
    """Nobody waits for this answer."""
