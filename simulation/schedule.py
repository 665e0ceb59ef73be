"""One schedule: a seed makes a cluster, its clients and its faults; then everything heals and all invariants are checked."""

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from failover import activating, detector, lease, replication
from simulation import checks, fleet_schedule
from simulation.ending import agree, heal, salvage
from simulation.fleet import Fleet
from simulation.fleet_scripts import FLEET_SCRIPTS, MOVES
from simulation.nemesis import Nemesis, revive
from simulation.scripts_local import AUTOMATIC, LOCAL
from simulation.watch import Violation
from simulation.world import TIMING, Switches, World

__all__ = ["Outcome", "agree", "heal", "run", "salvage"]

#: How long clients and faults go on, in ms.
FAULTS_MS = (500, 1100)
#: How often a seed makes several shards, where nobody says how many; and how many those are at most.
SEVERAL, MOST = 0.06, 3


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: Violation | None = None
    events: int = 0
    acknowledged: int = 0
    failovers: int = 0
    steps: int = 0
    #: Of the board over several shards, where the seed has one.
    generations: int = 0
    moves: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""
    story: list[tuple[int, str, str, Any]] = field(default_factory=list)


def run(
    seed: int,
    *,
    faults: Sequence[str] = (),
    switches: Switches | None = None,
    story: bool = False,
    fingerprint: bool = False,
    shards: int | None = None,
) -> Outcome:
    """Run one schedule. `faults` are the only kinds that are on (all may be); no violation is raised, it is in the outcome.

    `shards`: 1 for one shard with boards of one slice; more for a board over so many. None: mostly 1.
    """
    outcome = Outcome(seed)
    dice = random.Random(~seed)  # sizes are drawn before the world is made
    regions = 5 if dice.random() < 0.15 else 3
    first_fence = 7 if dice.random() < 0.3 else 0
    mode = "local" if dice.random() < 0.4 or not LOCAL.keys().isdisjoint(faults) else "quorum"
    if not MOVES.keys().isdisjoint(faults):
        mode = "quorum"
    detects = dice.random() < 0.3 or not AUTOMATIC.keys().isdisjoint(faults)
    timing = replace(
        TIMING,
        lease_ms=dice.choice((160, 300, 500)),
        seal_grace_ms=dice.choice((25, 70)),
        detection_ms=dice.choice((150, 250)) if detects else 0,
    )
    pause_ms = dice.choice((300, 600))
    if shards is None:
        spread = not FLEET_SCRIPTS.keys().isdisjoint(faults) or (not faults and dice.random() < SEVERAL)
        shards = dice.randint(2, MOST) if spread else 1
    with _sizes(dice.choice((1, 2, 16 if regions == 3 else 2)), dice.choice((1, 4, 4) if regions == 3 else (4,)), pause_ms):
        made: dict[str, Any] = {
            "regions": regions,
            "timing": timing,
            "switches": switches,
            "first_fence": first_fence,
            "mode": mode,
            "pause_ms": pause_ms,
            "story": story,
        }
        fleet = Fleet(seed, shards=shards, **made) if shards > 1 else None
        worlds = [World(seed, **made)] if fleet is None else list(fleet.worlds.values())
        try:
            if fleet is None:
                _play(worlds[0], dice.random(), faults)
            else:
                fleet_schedule.play(fleet, faults)
        except Violation as violation:
            outcome.violation = violation
        except Exception as error:  # whatever the product raises here is found, not a failure of the simulator
            outcome.violation = Violation("raised", f"{type(error).__name__}: {error}")
            outcome.violation.__cause__ = error
        finally:
            for world in worlds:
                world.close()
    _count(outcome, worlds)
    if fleet is not None:
        outcome.generations, outcome.moves = fleet.generations, fleet.moves
    if fingerprint:
        outcome.fingerprint = worlds[0].fingerprint() if fleet is None else fleet.fingerprint()
    return outcome


def _count(outcome: Outcome, worlds: Sequence[World]) -> None:
    for world in worlds:
        outcome.events += world.events
        outcome.acknowledged += world.acknowledged
        outcome.failovers += world.failovers
        outcome.faults.update(world.faults)
    outcome.steps = worlds[0].timeline.steps
    if worlds[0].story is not None:
        outcome.story = list(worlds[0].timeline.story or ())


@contextmanager
def _sizes(entries_per_append: int, window: int, pause_ms: int) -> Iterator[None]:
    """Small windows make entries travel apart, which is when their order can hurt. Times that the product has as constants go
    with those of `TIMING`."""
    new: dict[tuple[Any, str], Any] = {
        (replication, "ENTRIES_PER_APPEND"): entries_per_append,
        (replication, "WINDOW"): window,
        (detector, "PAUSE_MS"): pause_ms,
        (lease, "TURN_MS"): 120,
        (activating, "AGAIN_MS"): 20,
        **fleet_schedule.SIZES,
    }
    before = {place: getattr(*place) for place in new}
    # What the product would say of each trouble on the way; the story tells it better.
    log = logging.getLogger("laurel")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        for (module, name), value in new.items():
            setattr(module, name, value)
        yield
    finally:
        log.setLevel(level)
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
