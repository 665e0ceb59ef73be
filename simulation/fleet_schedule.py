"""One schedule of several shards: a seed makes the shards, a board over them, clients and faults; all heals, all is checked."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from actors import boards_view, coordinating, exporting, importing, relocating
from simulation import checks, ending, fleet_checks, operators
from simulation.client import Sent
from simulation.fleet import Fleet, write
from simulation.fleet_scripts import FLEET_SCRIPTS, MOVES
from simulation.nemesis import COMPOUND, FAULTS, may_be, revive, snapshot
from simulation.watch import Violation

if TYPE_CHECKING:
    from simulation.world import World

#: How long clients and faults go on, in ms; how long until a generation has everything that was acknowledged (I10).
FAULTS_MS = (500, 1000)
PUBLISH_MS = 2500
#: Times and sizes that the product has as constants, as short as those of this simulator.
SIZES: dict[tuple[Any, str], Any] = {
    (boards_view, "CLOCKS_MS"): 40,
    (coordinating, "BUSY_S"): 0.02,
    (coordinating, "IDLE_S"): 0.04,
    (coordinating, "AGAIN_S"): 0.03,
    (coordinating, "ORDER_S"): 0.3,
    (relocating, "STEP_S"): 0.03,
    (relocating, "AGAIN_S"): 0.02,
    (relocating, "LOOK_MS"): 150,
    (relocating, "BEHIND"): 3,
    (relocating, "PAUSE_S"): 0.35,
    (relocating, "REST_MS"): 120,
    (relocating, "REST_MAX_MS"): 400,
    (relocating, "WAIT_MS"): 90,
    (importing, "AGAIN_S"): 0.03,
    (importing, "NEWS_MS"): 40,
    (importing, "ANSWER_S"): 0.08,
    (importing, "SILENT"): 6,
    (exporting, "THINGS"): 4,
    (exporting, "LOOKED_AT"): 9,
}


class FleetNemesis:
    """Faults of single shards, of whole regions, and scripts, drawn for each seed."""

    def __init__(self, fleet: Fleet, only: Sequence[str] = ()) -> None:
        self.fleet = fleet
        draw, first = fleet.random, fleet.first
        self.singles = [kind for kind in FAULTS if (kind in only if only else draw.random() < 0.3)]
        self.weights = [FAULTS[kind][1] * draw.choice((1, 1, 3)) for kind in self.singles]
        self.gap = draw.choice((25, 50, 90))
        compound = [kind for kind in COMPOUND if (kind in only if only else may_be(first, kind))]
        self.scripts = draw.sample(compound, min(len(compound), draw.choice((0, 1, 1)) if not only else 1))
        own = [kind for kind in FLEET_SCRIPTS if (not only or kind in only) and (kind not in MOVES or first.mode == "quorum")]
        self.own = draw.sample(own, min(len(own), draw.choice((0, 1)) if not only else 1))
        if self.own and not only and draw.random() < 0.4:
            self.singles, self.weights, self.scripts = [], [], []

    def plan(self, until: int) -> None:
        """Begin; nothing new is done from `until` on."""
        fleet, draw = self.fleet, self.fleet.random
        for kind in self.scripts:
            world = draw.choice(list(fleet.worlds.values()))
            fleet.first.at(fleet.now + draw.randint(20, 300), self._script, world, kind)
        for kind in self.own:
            fleet.first.at(fleet.now + draw.randint(20, 200), self._own, kind)
        if self.singles:
            fleet.first.at(fleet.now + draw.randint(0, 2 * self.gap), self._next, until)
        if "data_lost" in self.singles or any(kind in ("restored", "readmission", "lost_minority") for kind in self.scripts):
            for _ in range(4):
                fleet.first.at(fleet.now + draw.randint(0, 600), fleet.same_dice, snapshot)

    def _script(self, world: "World", kind: str) -> None:
        world.note(kind)
        world.play(self._guarded(COMPOUND[kind](world)))

    def _own(self, kind: str) -> None:
        self.fleet.first.note(kind)
        self.fleet.first.play(self._guarded(FLEET_SCRIPTS[kind](self.fleet)))

    def _guarded(self, script: Iterator[int]) -> Iterator[int]:
        for pause in script:
            yield pause
            if self.fleet.first.healed:
                return

    def _next(self, until: int) -> None:
        fleet, draw = self.fleet, self.fleet.random
        if fleet.now >= until or fleet.first.healed:
            return
        kind = draw.choices(self.singles, self.weights)[0]
        if draw.random() < 0.6:
            world = draw.choice(list(fleet.worlds.values()))
            world.note(kind)
            FAULTS[kind][0](world)
        else:
            fleet.first.note(kind)
            fleet.same_dice(FAULTS[kind][0])
        fleet.first.at(fleet.now + draw.randint(1, 2 * self.gap), self._next, until)


def play(fleet: Fleet, faults: Sequence[str]) -> None:
    """Run it to its end. Raises `Violation`."""
    draw = fleet.random
    fleet.populate(players=draw.choice((4, 7)), clients=draw.choice((3, 5)), alone=draw.random() < 0.3)
    fleet.think_ms = draw.choice((15, 40, 80))
    nemesis = FleetNemesis(fleet, faults)
    fleet.start()
    fleet.run(draw.choice((30, 150, 250)))
    for client in fleet.clients:
        client.start()
    until = fleet.now + draw.randint(*FAULTS_MS)
    for world in fleet.worlds.values():
        world.until = until
    nemesis.plan(until)
    while fleet.now < max(world.until for world in fleet.worlds.values()):
        fleet.run(50)
    end(fleet)


def end(fleet: Fleet) -> list[fleet_checks.Made]:
    """The faults stop: agreement, publication and all checks; the generations that were made."""
    agree(fleet)
    fleet_checks.deal_out(fleet)
    worlds = fleet.worlds.values()
    if fleet.first.mode == "local" and any(region.store.log.orphans() for world in worlds for region in world.regions.values()):
        for world in worlds:
            checks.kept(world)
        for world in worlds:
            ending.salvage(world)
        agree(fleet)
        fleet_checks.deal_out(fleet)
    made = fleet_checks.at_end(fleet)
    fleet.generations = len(made)
    fleet.moves = len({one.layout for one in made}) - 1
    _begin_afresh(fleet)
    return made


def heal(fleet: Fleet) -> None:
    """All faults stop, in all shards."""
    fleet.quiet = True
    for world in fleet.worlds.values():
        ending.heal(world)


def agree(fleet: Fleet) -> None:
    """I10: in each shard one authority serves, everybody holds its log, it answers everywhere; then a generation has all of it."""
    heal(fleet)
    worlds = list(fleet.worlds.values())
    longest = max(r.store.log.tail.offset for world in worlds for r in world.regions.values())
    deadline, asked_ms = fleet.now + ending.AGREE_MS + 15 * longest, 0
    asked: list[Sent] = []
    since = 0
    while True:
        fleet.run(ending.LOOK_MS)
        answered = bool(asked) and all(sent.result is not None for sent in asked)
        if all(ending.agreed(world) for world in worlds):
            if answered:
                if published(fleet):
                    return
                since = since or fleet.now
            elif not asked or fleet.now - asked_ms > ending.ASK_AGAIN_MS:
                layout, asked_ms = fleet.layout_at(fleet.names[0]), fleet.now
                asked = [
                    write(fleet, name, fleet.random.choice(fleet.players_of(shard, layout)))
                    for shard in layout.shards
                    for name in fleet.names
                ]
        if since and fleet.now - since > PUBLISH_MS:
            raise Violation("I10", "what was acknowledged is in no generation: " + _unpublished(fleet))
        if fleet.now >= deadline:
            told = "; ".join(f"{shard}: {ending.disagreement(world)}" for shard, world in fleet.worlds.items())
            raise Violation("I10", f"no agreement: {told}; {_unpublished(fleet)}")
        for world in worlds:
            operators.help_out(world)
            for name in world.names:
                revive(world, name)


def published(fleet: Fleet) -> bool:
    """Whether each region's newest generation has all that is folded there."""
    newest = set()
    for name in fleet.names:
        replica, series = fleet.timeline.replicas[name], fleet.series(name)
        if series is None or replica.fold.unready(series) or series.newest is None or series.moving is not None:
            return False
        slices = series.whole(series.layout)
        marks = series.newest.proposal.marks
        if slices is None or series.newest.proposal.layout != series.layout.number or len(marks) != len(slices):
            return False
        if any(one.rows.changed or one.marked != mark.offset for one, mark in zip(slices, marks, strict=True)):
            return False
        newest.add(series.newest.number)
    return len(newest) == 1


def _unpublished(fleet: Fleet) -> str:
    parts = []
    for name in fleet.names:
        series = fleet.series(name)
        if series is None:
            parts.append(f"{name} knows no board")
            continue
        newest = series.newest
        slices = series.whole(series.layout) or []
        parts.append(f"{name} shows {newest and newest.proposal}, its slices are marked at {[s.marked for s in slices]} of {series.layout}")
    for world in fleet.worlds.values():
        parts += [f"{a.name} of {world.shard} waits: {a.coordinating.status()}" for a in world.authorities() if a.coordinating is not None]
    return "; ".join(parts)


def _begin_afresh(fleet: Fleet) -> None:
    """Whatever was let go, a replica that reads all journals anew serves the newest generation."""
    before = {}
    for name in fleet.names:
        series = fleet.series(name)
        before[name] = -1 if series is None or series.newest is None else series.newest.number
        fleet.timeline.replicas[name].restart()
    fleet.run(200)
    for name in fleet.names:
        series = fleet.series(name)
        after = -1 if series is None or series.newest is None else series.newest.number
        replica = fleet.timeline.replicas[name]
        why = "it knows no such board" if series is None else replica.fold.unready(series)
        if why or after < before[name]:
            raise Violation("keeps", f"{name} served s{before[name]}; a replica that begins anew serves s{after} {why}")
