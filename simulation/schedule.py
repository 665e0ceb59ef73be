"""One schedule: a seed makes a cluster, its clients and its faults; then everything heals and all invariants are checked."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from failover import activating, detector, lease, replication
from simulation import checks, operators
from simulation.client import Sent, write
from simulation.nemesis import Nemesis, revive
from simulation.scripts_local import AUTOMATIC, LOCAL
from simulation.watch import Violation
from simulation.world import TIMING, Switches, World

#: How long clients and faults go on, and how long agreement may take afterwards (I10), in ms.
FAULTS_MS = (500, 1100)
AGREE_MS = 4000
_LOOK_MS, _ASK_AGAIN_MS = 40, 300


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: Violation | None = None
    events: int = 0
    acknowledged: int = 0
    failovers: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""
    story: list[tuple[int, str, str, Any]] = field(default_factory=list)


def run(
    seed: int, *, faults: Sequence[str] = (), switches: Switches | None = None, story: bool = False, fingerprint: bool = False
) -> Outcome:
    """Run one schedule. `faults` are the only kinds that are on (all may be); no violation is raised, it is in the outcome."""
    outcome = Outcome(seed)
    dice = random.Random(~seed)  # sizes are drawn before the world is made
    regions = 5 if dice.random() < 0.15 else 3
    first_fence = 7 if dice.random() < 0.3 else 0
    mode = "local" if dice.random() < 0.4 or not LOCAL.keys().isdisjoint(faults) else "quorum"
    detects = dice.random() < 0.3 or not AUTOMATIC.keys().isdisjoint(faults)
    timing = replace(
        TIMING,
        lease_ms=dice.choice((160, 300, 500)),
        seal_grace_ms=dice.choice((25, 70)),
        detection_ms=dice.choice((150, 250)) if detects else 0,
    )
    pause_ms = dice.choice((300, 600))
    with _sizes(dice.choice((1, 2, 16 if regions == 3 else 2)), dice.choice((1, 4, 4) if regions == 3 else (4,)), pause_ms):
        world = World(
            seed,
            regions=regions,
            timing=timing,
            switches=switches,
            first_fence=first_fence,
            mode=mode,
            pause_ms=pause_ms,
            story=story,
        )
        try:
            _play(world, dice.random(), faults)
        except Violation as violation:
            outcome.violation = violation
        except Exception as error:  # whatever the product raises here is found, not a failure of the simulator
            outcome.violation = Violation("raised", f"{type(error).__name__}: {error}")
            outcome.violation.__cause__ = error
    outcome.events, outcome.acknowledged, outcome.failovers = world.events, world.acknowledged, world.failovers
    outcome.steps = world.steps
    outcome.faults = world.faults
    if fingerprint:
        outcome.fingerprint = world.fingerprint()
    if world.story is not None:
        outcome.story = list(world.story)
    return outcome


@contextmanager
def _sizes(entries_per_append: int, window: int, pause_ms: int) -> Iterator[None]:
    """Small windows make entries travel apart, which is when their order can hurt. Times that the product has as constants go
    with those of `TIMING`."""
    new = {
        (replication, "ENTRIES_PER_APPEND"): entries_per_append,
        (replication, "WINDOW"): window,
        (detector, "PAUSE_MS"): pause_ms,
        (lease, "TURN_MS"): 120,
        (activating, "AGAIN_MS"): 20,
    }
    before = {place: getattr(*place) for place in new}
    try:
        for (module, name), value in new.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def _play(world: World, luck: float, faults: Sequence[str]) -> None:
    draw = world.random
    world.populate(boards=2, players=draw.choice((2, 4)), clients=draw.choice((3, 5)))
    world.think_ms = draw.choice((15, 40, 80))
    nemesis = Nemesis(world, faults)
    world.calm = not nemesis.singles and len(nemesis.scripts) == 1 and luck >= 0.1
    late = (luck < 0.1 and not faults) or "genesis_late" in faults
    if late:
        _begin_without(world, draw.choice(world.names))
    else:
        world.start()
        world.run(draw.choice((30, 120, 120, 120)))
    for client in world.clients:
        client.start()
    world.until = world.now + draw.randint(*FAULTS_MS)
    nemesis.plan(world.until)
    while world.now < world.until:  # a script may need more time
        world.run(min(50, world.until - world.now))
    agree(world)
    if world.mode == "local" and any(region.store.log.orphans() for region in world.regions.values()):
        checks.kept(world)
        salvage(world)
        agree(world)
    checks.at_end(world)


def salvage(world: World) -> None:
    """All regions are back: what was cut is sent again, until nothing is open any more."""
    deadline = world.now + AGREE_MS
    # A ledger that is still being rebuilt knows no boards, and would call nothing open.
    while any(not p.salvaging.over() for r in world.regions.values() for p in r.processes[-1:]):
        if world.now >= deadline:
            raise Violation("I5", "what was orphaned was not salvaged in time")
        for region in world.regions.values():
            for process in region.processes[-1:]:
                process.salvaging.wake()
        world.run(_LOOK_MS)


def _begin_without(world: World, name: str) -> None:
    """Genesis with one region late."""
    world.note("genesis_late")
    region = world.regions[name]
    region.links_up = False
    region.store.crash()
    world.start(*(other for other in world.names if other != name))

    def arrive() -> None:
        region.links_up = True
        region.store.start()
        revive(world, name)

    world.at(world.now + world.random.randint(20, 400), arrive)


def heal(world: World) -> None:
    """The faults stop: all ways are open, everything that was down comes back, nobody sends anything new."""
    world.healed = world.quiet = True
    network = world.network
    network.heal()
    network.lose = network.again = 0
    network.delay = (1, 6)
    network.let_pass(None)
    for name, region in world.regions.items():
        region.links_up = True
        region.old_acceptor_ends()
        if not region.store.up:
            region.store.start()
            region.store.check_fence()
        if region.store.stalled:
            region.store.resume()
        for process in list(region.processes):
            process.resume()
        revive(world, name)


def agree(world: World) -> None:
    """I10: after the faults one authority serves within `AGREE_MS`, everybody holds its log, and it answers everywhere."""
    heal(world)
    # A store that was begun anew is sent everything, at worst one entry after the other.
    deadline, asked_ms = world.now + AGREE_MS + 15 * max(r.store.log.tail.offset for r in world.regions.values()), 0
    asked: list[Sent] = []
    while True:
        world.run(_LOOK_MS)
        if _agreed(world):
            if asked and all(sent.result is not None for sent in asked):
                return
            if not asked or world.now - asked_ms > _ASK_AGAIN_MS:
                # What was asked while an activation was under way may stay unanswered.
                asked, asked_ms = [write(world, name) for name in world.names], world.now
        if world.now >= deadline:
            raise Violation("I10", "no agreement: " + _disagreement(world))
        operators.help_out(world)
        for name in world.names:
            revive(world, name)


def _agreed(world: World) -> bool:
    authorities = world.authorities()
    if len(authorities) != 1:
        return False
    tail = authorities[0].region.store.log.tail
    for region in world.regions.values():
        log = region.store.log
        if log.amnesiac or log.tail != tail or log.committed != tail.offset or region.replica.applied != tail.offset:
            return False
    replication = authorities[0].state.replication
    return replication is not None and all(peer.counts for peer in replication.peers.values())


def _disagreement(world: World) -> str:
    parts = []
    for name, region in world.regions.items():
        log = region.store.log
        doing = [f"{p.state.role.value} of epoch {p.state.epoch} ({p.state.why})" for p in region.processes]
        parts.append(
            f"{name} {tuple(log.tail)} committed {log.committed} fence {log.fence}, "
            f"{'amnesiac, ' if log.amnesiac else ''}replica at {region.replica.applied}, is {' and '.join(doing) or 'dead'}"
        )
    for authority in world.authorities():
        replication = authority.state.replication
        peers = replication.peers.values() if replication is not None else ()
        parts += [f"{authority.name} does not count {p.region} as {p.member_as}: {p.memory}" for p in peers if not p.counts]
    return "; ".join(parts)
