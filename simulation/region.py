"""One region of the simulated cluster: its store with its faults, the acceptor in front of it, its processes.

The store is a watched log. `ghost` remembers what a store held when its disk was lost, so that a check can tell an entry
that was never kept from one that the nemesis took away.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from failover.detector import Heard
from failover.lease import Promises
from journal.ports import Accepted, Append, Granted, JournalStatus, Peer, Refused, Renew, Seal
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
        before = {(e.epoch, e.offset) for e in old.entries} | {(e.epoch, e.offset) for b in old.orphans() for e in b.entries}
        self.log = WatchedLog(self.world.shard, self.name, self.world.watch) if log is None else log.copied()
        for entry in old.entries:
            if self.log.epoch_at(entry.offset) != entry.epoch:
                self.ghost[entry.offset] = entry.epoch
        kept = {(e.epoch, e.offset) for b in self.log.orphans() for e in b.entries}
        self.world.taken |= {at for at in before if self.log.epoch_at(at[1]) != at[0] and at not in kept}
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
    """What a region answers to the messages of others, in front of its store: the twin of `regions.granting.Granting`.

    Its promises and what it has heard are in its memory only. Checking a promise and asking the store are one step.
    """

    def __init__(self, region: "Region") -> None:
        self.region, self.world = region, region.world
        self.alive, self.taken = True, False
        self.token = region.world.token()
        self.clock = region.world.clock(granter=True)
        self.promises = Promises()
        self.heard = Heard(self.now())

    def now(self) -> int:
        """Milliseconds by its clock."""
        offset, rate = self.clock
        return int(self.world.now * rate) + offset

    def probe(self) -> JournalStatus:
        """The store's status, with since when nothing was heard."""
        status = self.region.store.log.status()
        if self.world.timing.detection_ms:
            return msgspec.structs.replace(status, silent_ms=self.heard.silent_ms(self.now()), silent_epoch=self.heard.epoch)
        return status

    def append(self, message: Append) -> Accepted | Refused:
        """An authority's entries; the gateway learns who sends them."""
        answer = self.region.store.log.accept(message)
        if isinstance(answer, Accepted):
            self.heard.append(message.epoch, message.since_majority_ms, self.now())
            self.region.gateway.learn(message.epoch, message.sender)
        return answer

    def fetch(self, first: int, limit: int) -> Any:
        """Entries for an adoption."""
        return self.region.store.log.read(first, limit=limit)

    def received(self, message: Seal | Renew) -> Callable[[Any], Any]:
        """A Seal or Renew has come; what is to be done when the store is free."""
        if isinstance(message, Seal):
            return lambda _: self._seal_again(message) if self.alive else None
        received_ms = self.now()
        return lambda _: self._renew(message, received_ms) if self.alive else None

    def readmit(self, incarnation: str, fence: int, replaces: str) -> JournalStatus:
        """Begin the store anew; it must be told again who its acceptor is."""
        self.taken = False
        return self.region.store.log.readmit(incarnation=incarnation, fence=fence, replaces=replaces)

    def take(self) -> None:
        """Take the acceptor's role of this region; its store is up."""
        if not self.taken:
            status = self.region.store.log.take_acceptor(self.token)
            self.promises.taken_over(status.granted_region, status.granted_attempt, status.lease_ms, self.now())
            self.taken = True

    def _seal_again(self, message: Seal) -> Granted | Refused:
        answer = self._seal(message)
        if isinstance(answer, Refused) and answer.reason == "superseded" and not self.world.switches.stay_superseded:
            self.taken = False
            answer = self._seal(message)
        return answer

    def _seal(self, message: Seal) -> Granted | Refused:
        log = self.region.store.log
        self.take()
        left = self.promises.left_ms(message.target, self.now())
        if left > 0:
            status = log.status()
            newest = status.newest
            if message.epoch > status.fence and (newest is None or newest.epoch <= message.from_epoch):
                self.promises.wanted(message.target, self.now())
            return Refused("leased", status, left)
        return log.seal(msgspec.structs.replace(message, acceptor=self.token))

    def _renew(self, message: Renew, received_ms: int) -> Granted | Refused:
        log = self.region.store.log
        if message.lease_ms == 0:
            self.promises.given_up(message.sender, message.attempt)
            return Granted(JournalStatus(shard=message.shard))
        self.take()
        if not self.promises.may_renew(message.sender, message.attempt, received_ms):
            return Refused("leased", log.status())
        answer = log.renew(epoch=message.epoch, attempt=message.attempt, acceptor=self.token, lease_ms=message.lease_ms)
        if isinstance(answer, Granted):
            self.promises.renewed(message.sender, message.attempt, message.lease_ms, received_ms)
        elif answer.reason == "superseded" and not self.world.switches.stay_superseded:
            self.taken = False
        return answer


class Region:
    """One failure domain. `processes` are the instances of its shard actor that live, the newest last."""

    gateway: "Gateway"

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.store = Store(world, name)
        self.acceptor = Acceptor(self)
        #: An earlier acceptor that still answers on the connections that it has.
        self.old_acceptor: Acceptor | None = None
        self.processes: list[Process] = []
        self.replica = world.timeline.replicas.setdefault(name, Replica(world, name))
        self.replica.reads(world, self)
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
            if call.granting:
                self._received(call)
            self.store.take(call)
        elif (process := self.process) is None:
            self.world.network.nothing_at_deadline(call)
        else:
            self.world.network.nothing_at_deadline(call)
            process.deliver(call.ask, call)

    def take_again(self, call: Call) -> None:
        """A repeated message: only stores are asked twice."""
        if self.links_up and self.store.up and not self.store.stalled:
            if call.granting:
                self._received(call)
            call.ask(self)

    def _received(self, call: Call) -> None:
        """An acceptor has a Seal or Renew."""
        old = self.old_acceptor
        acceptor = old if old is not None and self.world.random.random() < 0.4 else self.acceptor
        call.ask = acceptor.received(call.message)

    def restart_acceptor(self, *, beside: bool) -> None:
        """Its gateway crashes, and another one starts; with `beside`, the old acceptor lives on until `old_acceptor_ends`."""
        self.old_acceptor_ends()
        if beside:
            self.old_acceptor = self.acceptor
        else:
            self.acceptor.alive = False
            self.gateway.forget()
        self.acceptor = Acceptor(self)
        if self.store.up and not self.store.stalled and self.world.random.random() < 0.5:
            self.acceptor.take()

    def old_acceptor_ends(self) -> None:
        """At last."""
        if self.old_acceptor is not None:
            self.old_acceptor.alive = False
            self.old_acceptor = None

    def remembered_by(self, other: "Region") -> Peer:
        """What another region's store remembers of this one."""
        return other.store.log.memory_of(self.name)
