"""What does harm: single faults, drawn for each seed (swarm testing), with compound ones from `scripts` among them.

A fault is a function on the world that sets it going and, where it ends by itself, plans its end. The nemesis keeps to what
the protocol promises: it never takes away what a majority holds (`may_lose`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from simulation import operators
from simulation.fleet_scripts import FLEET_SCRIPTS
from simulation.scripts import SCRIPTS, Script
from simulation.scripts_local import AUTOMATIC, LOCAL
from simulation.watch import WatchedLog

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World"], None]


def _between(world: "World", low: int, high: int) -> int:
    return world.now + world.random.randint(low, high)


def lossy(world: "World") -> None:
    """Messages and answers are lost for a while."""
    world.network.lose = world.random.choice((30, 100, 250))
    world.at(_between(world, 50, 400), lambda: setattr(world.network, "lose", 0))


def repeated(world: "World") -> None:
    """Messages come twice, at once or much later."""
    world.network.again = world.random.choice((50, 200, 400))
    world.at(_between(world, 100, 600), lambda: setattr(world.network, "again", 0))


def reordered(world: "World") -> None:
    """Delays vary so much that messages overtake each other."""
    world.network.delay = (1, 30)
    world.at(_between(world, 50, 400), lambda: setattr(world.network, "delay", (1, 6)))


def one_way(world: "World") -> None:
    """One direction is cut."""
    a, b = world.random.sample(world.names, 2)
    world.network.cut.add((a, b))
    world.at(_between(world, 40, 400), lambda: world.network.cut.discard((a, b)))


def isolated(world: "World") -> None:
    """A region, most often the owner, is cut off from all others."""
    name = world.owner() if world.random.random() < 0.6 else world.random.choice(world.names)
    pairs = {pair for other in world.names if other != name for pair in ((name, other), (other, name))}
    world.network.cut |= pairs
    world.at(_between(world, 60, 500), lambda: world.network.cut.difference_update(pairs))


def slow(world: "World") -> None:
    """One direction is slow."""
    a, b = world.random.sample(world.names, 2)
    world.network.slow[a, b] = world.random.choice((30, 90))
    world.at(_between(world, 100, 500), world.network.slow.pop, (a, b), None)


def store_crash(world: "World") -> None:
    """A store dies, what it was asked stays unanswered; it comes back as it was."""
    store = world.regions[_some(world)].store
    if store.up:
        store.crash()
        world.at(_between(world, 5, 250), lambda: _up(world, store.name))


def _up(world: "World", name: str) -> None:
    store = world.regions[name].store
    if not store.up:
        store.start()
        store.check_fence()


def store_stall(world: "World") -> None:
    """A store answers nothing for a while, then carries out all that waits."""
    store = world.regions[_some(world)].store
    if store.up and not store.stalled:
        store.stall()
        world.at(_between(world, 20, 250), store.resume)


def killed(world: "World") -> None:
    """A process dies; its supervisor starts another."""
    _kill(world, _some(world), world.random.randint(5, 200))


def _kill(world: "World", name: str, back_after: int) -> None:
    world.regions[name].kill()
    world.at(world.now + back_after, lambda: revive(world, name))


def revive(world: "World", name: str) -> None:
    """Start a process where none lives."""
    if world.regions[name].process is None:
        world.regions[name].start()


def paused(world: "World") -> None:
    """A process sleeps and hears everything when it wakes."""
    process = world.regions[_some(world)].process
    if process is not None and not process.paused:
        process.pause()
        world.at(_between(world, 40, 500), process.resume)


def twin(world: "World") -> None:
    """A second instance of a region's actor starts beside the first."""
    region = world.regions[_some(world)]
    if len(region.processes) < 2:
        region.start()


def region_down(world: "World") -> None:
    """A whole region is gone for a while."""
    name = _some(world)
    region = world.regions[name]
    if not region.links_up:
        return
    region.links_up = False
    region.kill()
    region.store.crash()
    region.replica.restart()
    world.at(_between(world, 50, 500), lambda: _region_up(world, name))


def _region_up(world: "World", name: str) -> None:
    world.regions[name].links_up = True
    _up(world, name)
    revive(world, name)


def replica_restart(world: "World") -> None:
    """A replica begins again from its store."""
    world.regions[world.random.choice(world.names)].replica.restart()


def snapshot(world: "World") -> None:
    """A copy of a store's disk is kept."""
    store = world.regions[world.random.choice(world.names)].store
    if store.up and len(store.snapshots) < 3:
        store.snapshot()


def data_lost(world: "World") -> None:
    """A store comes back empty, or as an earlier copy of itself."""
    name = world.random.choice(world.names)
    store = world.regions[name].store
    log = world.random.choice([None, *store.snapshots])
    if may_lose(world, name, log):
        store.crash()
        store.exchange(log)
        if world.random.random() < 0.5:
            _kill(world, name, 30)
        world.at(_between(world, 5, 150), lambda: _up(world, name))


def may_lose(world: "World", name: str, log: WatchedLog | None) -> bool:
    """Whether the protocol still promises everything when this store becomes `log` (None: empty).

    Only a minority may lack what it held. And the loss must be one that can be noticed: each other store remembers more
    of this one than the copy has, or holds all that this one held; else no protocol could tell the copy from the truth.
    """
    regions = world.regions
    lacking = sum(not region.store.whole() for other, region in regions.items() if other != name)
    if world.newest_term() is None or lacking + 1 > (len(world.names) - 1) // 2 or not regions[name].store.whole():
        return False
    if log is None:
        return True
    now, tail = regions[name].store.log, regions[name].store.log.tail
    if log.incarnation != now.incarnation:
        return True
    for other, region in regions.items():
        if other != name:
            memory = region.store.log.memory_of(name)
            noticed = (memory.fence, memory.verified) > (log.fence, log.tail.offset)
            same = log.fence == now.fence and region.store.log.epoch_at(tail.offset) == tail.epoch
            if not (noticed or same):
                return False
    return True


def forced(world: "World") -> None:
    """An operator forces a failover."""
    operators.force(world, world.random.choice(world.names), as_seen=world.random.random() < 0.4)


def two_operators(world: "World") -> None:
    """Two operators, in two regions, at once or nearly."""
    a, b = world.random.sample(world.names, 2)
    operators.force(world, a)
    world.at(_between(world, 0, 25), lambda: operators.force(world, b))


def coordinator_dies(world: "World") -> None:
    """A failover or handover is ordered, and its coordinator dies on the way."""
    name = world.random.choice(world.names)
    (operators.force if world.random.random() < 0.6 else operators.handover)(world, name)
    world.at(_between(world, 1, 70), lambda: _kill(world, name, world.random.randint(20, 250)))


def handed_over(world: "World") -> None:
    """An operator hands over as planned."""
    operators.handover(world, world.random.choice(world.names))


def readmitted(world: "World") -> None:
    """An operator readmits a region: one that lost data, or, by mistake, another."""
    lost = operators.amnesiac(world)
    operators.readmit(world, world.random.choice(lost or world.names))


def acceptor_restart(world: "World") -> None:
    """A gateway crashes, and with it the acceptor's memory; or another starts beside an old one that goes on for a while."""
    region = world.regions[_some(world)]
    beside = world.random.random() < 0.4
    region.restart_acceptor(beside=beside)
    if beside:
        world.at(_between(world, 30, 500), region.old_acceptor_ends)


def _some(world: "World") -> str:
    return world.owner() if world.random.random() < 0.4 else world.random.choice(world.names)


#: Kind -> (fault, how often beside the others).
FAULTS: dict[str, tuple[Fault, int]] = {
    "lossy": (lossy, 6),
    "repeated": (repeated, 6),
    "reordered": (reordered, 4),
    "one_way": (one_way, 6),
    "isolated": (isolated, 8),
    "slow": (slow, 3),
    "store_crash": (store_crash, 5),
    "store_stall": (store_stall, 5),
    "killed": (killed, 6),
    "paused": (paused, 6),
    "twin": (twin, 3),
    "region_down": (region_down, 4),
    "replica_restart": (replica_restart, 2),
    "data_lost": (data_lost, 5),
    "forced": (forced, 6),
    "two_operators": (two_operators, 4),
    "coordinator_dies": (coordinator_dies, 5),
    "handed_over": (handed_over, 5),
    "readmitted": (readmitted, 3),
    "acceptor_restart": (acceptor_restart, 4),
}
#: Compound ones, whatever the shard's mode.
COMPOUND: dict[str, Script] = {**SCRIPTS, **LOCAL, **AUTOMATIC}


def may_be(world: "World", kind: str) -> bool:
    """Whether a compound fault means anything in this world."""
    return (kind not in LOCAL or world.mode == "local") and (kind not in AUTOMATIC or world.timing.detection_ms > 0)


def known_faults() -> list[str]:
    """All kinds: single, compound, and those of boards over several shards."""
    return [*FAULTS, *COMPOUND, *FLEET_SCRIPTS]


class Nemesis:
    """Draws what is on for this seed, then does it until its time is over."""

    def __init__(self, world: "World", only: Sequence[str] = ()) -> None:
        self.world = world
        random = world.random
        singles = [kind for kind in FAULTS if not only or kind in only]
        scripts = [kind for kind in COMPOUND if (not only or kind in only) and may_be(world, kind)]
        if not only:
            singles = [kind for kind in singles if random.random() < 0.35]
        self.singles = singles
        self.weights = [FAULTS[kind][1] * random.choice((1, 1, 3)) for kind in singles]
        self.gap = random.choice((25, 50, 90, 180))
        #: Most seeds play one script, some two, some none.
        weights = [4 if kind == "late_suffix" and len(world.names) > 3 else 1 if kind in SCRIPTS else 3 for kind in scripts]
        drawn = random.choices(scripts, weights, k=random.choice((1, 1, 1, 2))) if scripts and (only or random.random() < 0.8) else []
        self.scripts = list(dict.fromkeys(drawn))
        if self.scripts and not only and random.random() < 0.4:
            # A delicate story needs some calm around it.
            self.singles, self.weights = [], []

    def plan(self, until: int) -> None:
        """Begin; nothing new is done from `until` on."""
        world, random = self.world, self.world.random
        for kind in self.scripts:
            world.at(world.now + random.randint(20, 300), self._play, kind)
        if self.singles:
            world.at(world.now + random.randint(0, 2 * self.gap), self._next, until)
        if "data_lost" in self.singles or any(kind in ("restored", "readmission", "lost_minority") for kind in self.scripts):
            for _ in range(4):
                world.at(world.now + random.randint(0, 600), snapshot, world)

    def _play(self, kind: str) -> None:
        self.world.note(kind)
        self.world.play(self._guarded(COMPOUND[kind](self.world)))

    def _guarded(self, script: Iterator[int]) -> Iterator[int]:
        """A script ends where the time of faults ends."""
        for pause in script:
            yield pause
            if self.world.healed:
                return

    def _next(self, until: int) -> None:
        world, random = self.world, self.world.random
        if world.now >= until or world.healed:
            return
        kind = random.choices(self.singles, self.weights)[0]
        world.note(kind)
        FAULTS[kind][0](world)
        world.at(world.now + random.randint(1, 2 * self.gap), self._next, until)
