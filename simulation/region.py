"""One region of the simulated cluster: its store with its faults, the acceptor in front of it, its processes.

The store is a watched log. `ghost` remembers what a store held when its disk was lost, so that a check can tell an entry
that was never kept from one that the nemesis took away.
"""

from typing import TYPE_CHECKING, Any

from journal.ports import Accepted, Append, Peer, Refused, Seal
from ledger.memory import MemoryLedger
from simulation.network import Call
from simulation.process import Process
from simulation.replica import Replica
from simulation.watch import Violation, WatchedLog

if TYPE_CHECKING:
    from simulation.client import Gateway
    from simulation.world import World


class Store:
    """A region's store: up, stalled or down; its log may be exchanged for an earlier copy or an empty one."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.log = WatchedLog(world.shard, name, world.watch)
        self.up = True
        self.stalled = False
        self.waiting: list[Call] = []
        #: Counts crashes: an answer of an earlier life is not heard.
        self.life = 0
        #: Offset -> epoch of entries that a loss of data took away.
        self.ghost: dict[int, int] = {}
        #: It was ordered to begin anew under this token, and lacks what was there by then.
        self.anew, self.lacking_to = "", 0
        self.snapshots: list[WatchedLog] = []

    def take(self, call: Call) -> None:
        """A call arrives."""
        if not self.up:
            self.world.network.nothing_at_deadline(call)
        elif self.stalled:
            self.waiting.append(call)
            self.world.network.nothing_at_deadline(call)
        else:
            self._carry_out(call)

    def _carry_out(self, call: Call) -> None:
        answer = call.ask(self.world.regions[self.name])
        if call.origin == self.name:
            self.world.at(self.world.now + 1, self._answer_own, call, answer, self.life)
        else:
            self.world.network.reply(call, answer)

    def _answer_own(self, call: Call, answer: Any, life: int) -> None:
        if life == self.life:
            self.world.network.answer(call, answer)
        else:
            self.world.network.nothing_at_deadline(call)

    def crash(self) -> None:
        """Nothing is lost; what was applied and not answered stays unanswered, what waited is absent."""
        self.up, self.stalled = False, False
        self.life += 1
        self.world.fences[self.name] = self.log.fence
        self.waiting.clear()

    def start(self) -> None:
        """Up again, with the disk as it is."""
        self.up = True
        if self.world.switches.forget_fence:
            self.log._fence = self.log.tail.epoch  # the mutant: a promise that was in memory only
            self.log._granted = ("", "")

    def stall(self) -> None:
        """Calls wait; they are carried out when it goes on, long after their callers gave up."""
        self.stalled = True

    def resume(self) -> None:
        """Carry out what waited, in order."""
        self.stalled = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            self._carry_out(call)

    def snapshot(self) -> None:
        """Keep a copy of the disk."""
        self.snapshots.append(self.log.copied())

    def exchange(self, log: WatchedLog | None) -> None:
        """The disk is lost: an earlier copy, or an empty store, takes its place."""
        old = self.log
        self.log = WatchedLog(self.world.shard, self.name, self.world.watch) if log is None else log.copied()
        for entry in old.entries:
            if self.log.epoch_at(entry.offset) != entry.epoch:
                self.ghost[entry.offset] = entry.epoch
        self.world.watch.cut[self.name] = {(e.epoch, e.offset, e.digest): e for batch in self.log.orphans() for e in batch.entries}
        self.world.fences[self.name] = self.log.fence

    def held(self, epoch: int, offset: int) -> bool:
        """Whether this store holds that entry, or did when its disk was taken."""
        return self.log.epoch_at(offset) == epoch or self.ghost.get(offset) == epoch

    def whole(self) -> bool:
        """Whether everything that it ever kept, and nobody cut, is here again, under a token that counts."""
        log = self.log
        newest = self.world.newest_term()
        if log.amnesiac or newest is None or newest.members.get(self.name) != log.incarnation:
            return False
        if self.anew not in ("", log.incarnation) or log.tail.offset < self.lacking_to:
            return False
        committed = self.world.watch.committed
        for offset, epoch in list(self.ghost.items()):
            known = committed.get((newest.lineage, offset))
            if log.epoch_at(offset) == epoch or (known is not None and known[0] != epoch):
                del self.ghost[offset]
        return not self.ghost

    def check_fence(self) -> None:
        """I6 across restarts: only a loss of data lowers a fence."""
        known = self.world.fences.get(self.name, 0)
        if self.log.fence < known:
            raise Violation("I6", f"the fence of {self.name} fell from {known} to {self.log.fence} by a restart")
        self.world.fences[self.name] = self.log.fence


class Acceptor:
    """What a region answers to the messages of others, in front of its store; it may come to hold promises of its own."""

    def __init__(self, region: "Region") -> None:
        self.region = region
        #: When an authority was last heard here, and which.
        self.heard_ms = -1

    def probe(self) -> Any:
        """The store's status."""
        return self.region.store.log.status()

    def append(self, message: Append) -> Accepted | Refused:
        """An authority's entries; the gateway learns who sends them."""
        answer = self.region.store.log.accept(message)
        if isinstance(answer, Accepted):
            self.heard_ms = self.region.world.now
            self.region.gateway.learn(message.epoch, message.sender)
        return answer

    def seal(self, message: Seal) -> Any:
        """A coordinator asks for a promise."""
        return self.region.store.log.seal(message)

    def fetch(self, first: int, limit: int) -> Any:
        """Entries for an adoption."""
        return self.region.store.log.read(first, limit=limit)


class Region:
    """One failure domain. `processes` are the instances of its shard actor that live, the newest last."""

    gateway: "Gateway"

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.store = Store(world, name)
        self.acceptor = Acceptor(self)
        self.processes: list[Process] = []
        self.replica = Replica(world, self)
        #: The ledger's files: they survive a process.
        self.ledger = MemoryLedger()
        self.links_up = True

    @property
    def process(self) -> Process | None:
        """The newest instance, which gateway and acceptor talk to."""
        return self.processes[-1] if self.processes else None

    def start(self) -> Process:
        """The supervisor starts the shard actor; an instance that still lives is left to itself."""
        twin = bool(self.processes)
        process = Process(self.world, self, MemoryLedger() if twin else self.ledger)
        self.processes.append(process)
        process.start()
        return process

    def kill(self) -> None:
        """All instances die."""
        for process in list(self.processes):
            process.die()
        self.processes.clear()

    def ended(self, process: Process) -> None:
        """An instance ended by itself."""
        if process in self.processes:
            self.processes.remove(process)

    def take(self, call: Call) -> None:
        """A call has reached this region."""
        if call.origin != self.name and not self.links_up:
            self.world.network.nothing_at_deadline(call)
        elif not call.later:
            self.store.take(call)
        elif (process := self.process) is None:
            self.world.network.nothing_at_deadline(call)
        else:
            self.world.network.nothing_at_deadline(call)
            process.deliver(call.ask, call)

    def take_again(self, call: Call) -> None:
        """A repeated message: only stores are asked twice."""
        if self.links_up and self.store.up and not self.store.stalled:
            call.ask(self)

    def remembered_by(self, other: "Region") -> Peer:
        """What another region's store remembers of this one."""
        return other.store.log.memory_of(self.name)
