"""The simulated cluster: one clock, one queue of what happens when, one source of chance."""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from boards.model import BoardRules, Layout
from boards.policies import make_rules
from failover.events import Role
from failover.state import Timing
from journal.records import Term
from ledger.pending import Decided
from simulation.client import Client, Gateway, Sent
from simulation.network import Network
from simulation.process import Process
from simulation.region import Region
from simulation.replica import Replica, Shown
from simulation.watch import Violation, Watch

NAMES = ("eu", "us", "ap", "sa", "af")
SHARD = "eu/0"
TIMING = Timing(
    heartbeat_ms=50,
    probe_timeout_ms=100,
    grace_ms=15,
    seal_restart_ms=80,
    rest_ms=300,
    handover_timeout_ms=250,
    backoff_min_ms=10,
    backoff_max_ms=80,
    aside_failures=1000,
)
POLICIES = ("best_score", "cumulative", "fastest_time", "latest")


class Story:
    """A world's lines in the story of all: (time, where, what, detail)."""

    def __init__(self, lines: "deque[tuple[int, str, str, Any]]", label: str) -> None:
        self._lines, self._label = lines, label

    def append(self, line: tuple[int, str, str, Any]) -> None:
        """A line, with whose it is."""
        at, where, what, detail = line
        self._lines.append((at, f"{self._label} {where}".strip(), what, detail))


class Timeline:
    """What happens when, in all worlds that share it: one queue, one clock, one source of chance and of tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self.order = self.tokens = self.steps = 0
        self.worlds: list[World] = []
        #: The read replica of each region: it follows the shards of all worlds.
        self.replicas: dict[str, Replica] = {}
        #: (board incarnation, lineage of its lead, generation) -> what was shown of it (I11).
        self.generations: dict[tuple[str, str, int], Shown] = {}
        #: Counts what clients do, all together.
        self.turn = 0
        #: (time, where, what, detail), the last of them; None while nobody wants to know.
        self.story: deque[tuple[int, str, str, Any]] | None = None
        #: (ms, event) of what was acknowledged, as its client heard it.
        self.told: list[tuple[int, Sent]] = []


@dataclass(slots=True)
class Switches:
    """Rules of the shells that a mutant breaks (see `mutants`); all False is the product."""

    fold_early: bool = False
    forget_identities: bool = False
    forget_fence: bool = False
    freeze_uncommitted: bool = False
    forward_again: bool = False
    answer_deposed: bool = False
    readmitted_counts: bool = False
    stay_superseded: bool = False
    other_modulo: bool = False


class World:
    """See the module docstring. Times are ms from the start."""

    def __init__(
        self,
        seed: int,
        *,
        regions: int = 3,
        timing: Timing = TIMING,
        switches: Switches | None = None,
        first_fence: int = 0,
        mode: str = "quorum",
        pause_ms: int = 0,
        story: bool = False,
        shard: str = SHARD,
        timeline: Timeline | None = None,
    ) -> None:
        #: Shared with the worlds of other shards, where there are some; `seed` is that of a timeline of its own.
        self.timeline = timeline or Timeline(seed)
        self.timeline.worlds.append(self)
        self.random = self.timeline.random
        self.shard, self.names, self.timing = shard, NAMES[:regions], timing
        self.switches = switches or Switches()
        #: `ack` of the shard, and how long an automatic failover keeps the next one off.
        self.mode, self.pause_ms = mode, pause_ms
        #: All clocks of those who hold leases are as slow, and of those who grant them as quick, as may be.
        self.skewed = self.random.random() < 0.3
        self.now, self.tick_ms = 1000, 25
        if story and self.timeline.story is None:
            self.timeline.story = deque(maxlen=8000)
        #: This shard's lines of the story; None while nobody wants to know.
        self.story: Story | None = None if self.timeline.story is None else Story(self.timeline.story, shard if timeline else "")
        self.watch = Watch()
        self.network = Network(self)
        #: Highest fence of each store over its restarts.
        self.fences: dict[str, int] = {}
        self.regions: dict[str, Region] = {}
        for name in self.names:
            region = Region(self, name)
            region.gateway = Gateway(self, region)
            region.store.log._fence = first_fence
            self.regions[name] = region
        #: Configured boards, and who plays.
        self.boards: dict[str, BoardRules] = {}
        #: Where the slices of those boards are that have several.
        self.layouts: dict[str, Layout] = {}
        #: What a process has beside its own shard's work: the shards of one cluster give orders to each other.
        self.neighbours: dict[str, World] = {}
        self.board_names: list[str] = []
        self.players: list[str] = []
        self.clients: list[Client] = []
        self.sent: list[Sent] = []
        #: No client sends anything new.
        self.quiet = False
        self.lull_until = 0
        self.think_ms = 60
        self.events = self.acknowledged = self.reads = self.failovers = self.salvaged = 0
        #: (owner, epoch) -> who granted it; of those that served, by epoch (I7 of `local`).
        self.sealed_by: dict[tuple[str, int], frozenset[str]] = {}
        self.served: dict[int, tuple[str, frozenset[str]]] = {}
        #: (epoch, offset) of everything that a loss of data took away for good at some store.
        self.taken: set[tuple[int, int]] = set()
        #: Nothing but one script does harm.
        self.calm = False
        #: (lineage, offset) -> epoch, of everything that some authority called committed.
        self.called_committed: dict[tuple[str, int], int] = {}
        self._called: dict[str, int] = {}
        #: The time of faults is over.
        self.healed = False
        #: Until when clients and faults go on.
        self.until = 0
        self.faults: Counter[str] = Counter()
        if timeline is None:
            self.at(self.now + 7, self.follow)

    @property
    def turn(self) -> int:
        """Turns of all clients together, whatever their shard."""
        return self.timeline.turn

    @turn.setter
    def turn(self, turn: int) -> None:
        self.timeline.turn = turn

    # -- time

    def at(self, when: int, do: Callable[..., object], *args: Any) -> None:
        """Do it then, after what is due at the same moment already."""
        timeline = self.timeline
        timeline.order += 1
        heapq.heappush(timeline.queue, (when, timeline.order, do, args))

    def run_until(self, when: int) -> None:
        """Let everything happen that is due up to then."""
        timeline = self.timeline
        queue, worlds = timeline.queue, timeline.worlds
        steps = 0
        while queue and queue[0][0] <= when:
            due, _, do, args = heapq.heappop(queue)
            for world in worlds:
                world.now = due
            steps += 1
            do(*args)
        timeline.steps += steps
        for world in worlds:
            world.now = when

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.run_until(self.now + ms)

    def play(self, script: Iterator[int]) -> None:
        """Run a script beside everything else: it gives the ms after which it goes on."""
        pause = next(script, None)
        if pause is not None:
            self.at(self.now + pause, self.play, script)

    def lull(self, ms: int) -> None:
        """Clients send nothing of their own for a while."""
        self.lull_until = max(self.lull_until, self.now + ms)

    def token(self) -> str:
        """A token that is never given twice."""
        self.timeline.tokens += 1
        return f"t{self.timeline.tokens}"

    def clock(self, granter: bool = False) -> tuple[int, float]:
        """Offset and rate of a clock, of a process or of an acceptor: it may be wrong by as much as the protocol allows."""
        random = self.random
        if self.skewed:
            return random.randrange(100_000), 1.1 if granter else 0.9
        return random.randrange(100_000), random.choice((0.9, 1.1, random.uniform(0.9, 1.1)))

    def follow(self) -> None:
        """Replicas read what is new in their stores, from now on."""
        for replica in self.timeline.replicas.values():
            replica.follow()
            if not self.quiet and self.random.random() < 0.15:
                replica.read()
        self.at(self.now + 40, self.follow)

    def note(self, fault: str) -> None:
        """A fault begins."""
        self.faults[fault] += 1
        if self.story is not None:
            self.story.append((self.now, "nemesis", fault, ""))

    # -- setting up

    def populate(self, *, boards: int = 2, players: int = 4, clients: int = 4) -> None:
        """Boards of several policies in the configuration, players, and clients in all regions."""
        for policy in self.random.sample(POLICIES, boards):
            interval = self.random.choice((60, 110, 220))
            self.boards[policy] = make_rules(policy, publish_interval_ms=interval)
        self.board_names = list(self.boards)
        self.players = [f"p{n}" for n in range(players)]
        self.clients = [Client(self, self.names[n % len(self.names)]) for n in range(clients)]

    def start(self, *names: str) -> None:
        """Start the processes of these regions (all of them)."""
        for name in names or self.names:
            self.regions[name].start()

    def close(self) -> None:
        """The end: nothing that is half done goes on."""
        for region in self.regions.values():
            for process in region.processes:
                process.loop.close()

    # -- what is asked of it

    def authorities(self) -> list[Process]:
        """Processes that decide and answer now."""
        return [p for r in self.regions.values() for p in r.processes if p.writer is not None and p.state.role is Role.AUTHORITY]

    def newest_term(self) -> Term | None:
        """The newest epoch that is started in some store."""
        newest = None
        for region in self.regions.values():
            terms = region.store.log._terms
            if terms and (newest is None or terms[-1].epoch > newest.epoch):
                newest = terms[-1]
        return newest

    def owner(self) -> str:
        """Owner of the newest started epoch, the home before genesis."""
        newest = self.newest_term()
        return self.names[0] if newest is None else newest.owner

    # -- what is checked as it happens

    def serves(self, process: Process) -> None:
        """An activation has ended well."""
        self.failovers += 1
        if self.mode == "local":
            epoch, grants = process.state.epoch, self.sealed_by[process.name, process.state.epoch]
            self.served[epoch] = process.name, grants
            for region in self.regions.values():
                for other in region.processes:
                    if other.state.lease is not None:
                        self.lease_checked(other)

    def lease_checked(self, process: Process) -> None:
        """I7 of `local`: no lease check of an epoch succeeds after a later one serves. An epoch that the holder's own store
        has granted is excepted: that store takes nothing more of the holder, and what it held is in the new epoch's log."""
        lease = process.state.lease
        if lease is None or not self.served or not lease.valid(process.now()):
            return
        for epoch, (owner, grants) in self.served.items():
            if epoch > process.state.epoch and process.name not in grants:
                raise Violation("I7", f"the lease of {process.name} in epoch {process.state.epoch} is valid, and {owner} serves {epoch}")

    def committed(self, process: Process, offset: int) -> None:
        """An authority calls everything up to `offset` committed: a majority of the members really holds it (I7)."""
        terms = process.state.terms
        lineage = terms[-1].lineage
        position, at = len(terms) - 1, offset
        first = self._called.get(lineage, 0)
        epoch = 0
        while at > 0:
            while terms[position].first_offset > at:
                position -= 1
            epoch = terms[position].epoch
            if at == offset:
                self._majority(process, terms[-1], epoch, offset, "I7", "calls committed")
            held = self.called_committed.setdefault((lineage, at), epoch)
            if held != epoch:
                raise Violation("I1", f"{process.name} calls {(epoch, at)} committed, where {(held, at)} was")
            if at <= first and at < offset:
                break
            at -= 1
        self._called[lineage] = max(first, offset)

    def answering(self, process: Process, epoch: int, decided: Decided, alone: bool) -> None:
        """An answer leaves now: a majority holds what it says, or, `alone`, the own store, and each later epoch that serves (I12)."""
        if alone:
            self._alone(process, epoch, (decided.epoch, decided.offset))
        elif decided.offset:
            self._majority(process, process.state.terms[-1], decided.epoch, decided.offset, "I12", "answers for")

    def _alone(self, process: Process, epoch: int, at: tuple[int, int]) -> None:
        if self.mode != "local":
            raise Violation("I12", f"{process.name} answers for {at}, which is not committed")
        if not process.region.store.held(*at):
            raise Violation("I12", f"{process.name} answers for {at}, which its own store does not hold")
        for later, (owner, grants) in self.served.items():
            if later > epoch and (process.name not in grants or not self.regions[owner].store.held(*at)):
                raise Violation("I7", f"{process.name} answers alone for {at} in epoch {epoch}, and {owner} serves {later}")

    def _majority(self, process: Process, term: Term, epoch: int, offset: int, invariant: str, does: str) -> None:
        holders = [n for n in term.members if self.regions[n].store.held(epoch, offset)]
        if 2 * len(holders) <= len(term.members):
            raise Violation(invariant, f"{process.name} {does} {(epoch, offset)}, which only {', '.join(holders) or 'nobody'} holds")

    def fingerprint(self) -> str:
        """The whole history in 16 digits: equal seeds give equal ones."""
        whole = xxhash.xxh3_64(repr((self.now, self.timeline.steps, self.timeline.order, self.turn, self.random.random())).encode())
        for region in self.regions.values():
            for entry in region.store.log.entries:
                whole.update((entry.digest + entry.batch_id).encode())
        whole.update(repr([(s.event_id, s.sent, s.acked, s.result) for s in self.sent]).encode())
        return whole.hexdigest()
