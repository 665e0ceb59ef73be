"""Compound faults of boards that are spread over shards: each meets one rule of marks, manifests or moves."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation import operators
from simulation.fleet import BOARD, submit, write
from simulation.network import Call

if TYPE_CHECKING:
    from simulation.fleet import Fleet
    from simulation.world import World

FleetScript = Callable[["Fleet"], Iterator[int]]


def _served(world: "World") -> Iterator[int]:
    """Wait a little until the ways of a shard are open and somebody serves it."""
    world.network.heal()
    for _ in range(30):
        owner = world.owner()
        if any(authority.name == owner for authority in world.authorities()):
            return
        yield 10


def _other_slice(fleet: "Fleet") -> "World":
    layout = fleet.layout_at(fleet.names[0])
    return fleet.worlds[fleet.random.choice(layout.shards[1:] or layout.shards)]


def mark_then_lost(fleet: "Fleet") -> Iterator[int]:
    """1. A slice's owner is cut off, beside the lead, and goes on marking. 2. Another takes it over: those marks are gone."""
    world = _other_slice(fleet)
    yield from _served(world)
    owner = world.owner()
    yield 60
    world.network.isolate(owner)
    for _ in range(4):
        for player in fleet.players_of(world.shard)[:2]:
            write(fleet, owner, player)
        yield 20
    yield 60
    operators.force(world, fleet.random.choice([name for name in world.names if name != owner]))
    yield 150
    world.network.heal()


def lead_deposed(fleet: "Fleet") -> Iterator[int]:
    """1. The lead is cut off from its own shard's stores, not from the other shards. 2. Another lead takes over, and both ask for marks."""
    world = fleet.worlds[fleet.layout_at(fleet.names[0]).lead]
    yield from _served(world)
    owner = world.owner()
    yield 60
    world.network.isolate(owner)
    operators.force(world, fleet.random.choice([name for name in world.names if name != owner]))
    for _ in range(12):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield 25
    world.network.heal()


def lead_sleeps(fleet: "Fleet") -> Iterator[int]:
    """1. The lead sleeps, another takes over and makes generations. 2. It wakes, and asks for marks before it hears of that."""
    world = fleet.worlds[fleet.layout_at(fleet.names[0]).lead]
    yield from _served(world)
    owner = world.owner()
    other = fleet.random.choice([name for name in world.names if name != owner])
    yield fleet.random.randint(20, 80)
    process = world.regions[owner].process
    if process is None:
        return
    process.pause()
    operators.force(world, other)
    for _ in range(10):
        write(fleet, other, fleet.random.choice(fleet.players))
        yield 30
    for _ in range(3):
        for player in fleet.players:
            write(fleet, other, player)
        yield fleet.random.randint(5, 15)
    process.resume()
    yield 60


def lead_cut_off(fleet: "Fleet") -> Iterator[int]:
    """The lead is cut off with a manifest on its way, for longer than it waits for the commit, and nobody takes over."""
    world = fleet.worlds[fleet.layout_at(fleet.names[0]).lead]
    yield from _served(world)
    owner = world.owner()
    for _ in range(fleet.random.randint(2, 12)):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield 10
    world.network.isolate(owner)
    yield 400
    world.network.heal()


def slice_missing(fleet: "Fleet") -> Iterator[int]:
    """All processes of one slice's shard are gone for a while; everybody else goes on writing."""
    world = _other_slice(fleet)
    yield 80
    for region in world.regions.values():
        region.kill()
    for _ in range(12):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield 30
    for region in world.regions.values():
        if region.process is None:
            region.start()


def moved(fleet: "Fleet") -> Iterator[int]:
    """The board moves, and now and then once more."""
    for _ in range(fleet.random.choice((1, 1, 2))):
        fleet.relocate()
        yield fleet.random.randint(150, 500)


def moved_under_load(fleet: "Fleet") -> Iterator[int]:
    """The board moves while events come in close behind each other, some of them once more."""
    fleet.relocate()
    for _ in range(70):
        region = fleet.random.choice(fleet.names)
        write(fleet, region, fleet.random.choice(fleet.players))
        if fleet.random.random() < 0.3:
            old = fleet.random.choice(fleet.sent)
            again = replace(old, result=None, acked=0, again=True, refusals=[], unknowns=0)
            fleet.sent.append(again)
            submit(fleet, region, again, lambda _: None)
        yield fleet.random.randint(2, 9)


def moved_and_killed(fleet: "Fleet") -> Iterator[int]:
    """The board moves; lead, sources and targets die, or lose their authority, at any step of it."""
    fleet.relocate()
    for _ in range(fleet.random.randint(1, 4)):
        yield fleet.random.randint(1, 120)
        world = fleet.lead if fleet.random.random() < 0.4 else fleet.random.choice(list(fleet.worlds.values()))
        if fleet.random.random() < 0.5:
            operators.force(world, fleet.random.choice(world.names))
        else:
            name = world.owner()
            world.regions[name].kill()
            world.at(world.now + fleet.random.randint(5, 150), _back, world, name)


def _back(world: "World", name: str) -> None:
    if world.regions[name].process is None:
        world.regions[name].start()


def moved_target_gone(fleet: "Fleet") -> Iterator[int]:
    """A shard that the board moves to is gone for a while, most often once the sources are closed: they open again."""
    shards = fleet.relocate()
    world = fleet.worlds[fleet.random.choice(shards)]
    yield fleet.random.randint(20, 250)
    for name in world.names:
        world.network.isolate(name)
    for _ in range(12):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield fleet.random.randint(20, 60)
    world.network.heal()


def moved_and_aborted(fleet: "Fleet") -> Iterator[int]:
    """A move is given up on its way, and perhaps ordered again."""
    fleet.relocate()
    yield fleet.random.randint(5, 250)
    fleet.order({"do": "abort_relocation"})
    if fleet.random.random() < 0.6:
        yield fleet.random.randint(5, 150)
        fleet.relocate()
        yield 150


def moved_lead_sleeps(fleet: "Fleet") -> Iterator[int]:
    """1. The lead sleeps in the middle of a move. 2. Another goes on with it. 3. The first one wakes with orders to give."""
    world = fleet.lead
    yield from _served(world)
    fleet.relocate()
    yield fleet.random.randint(30, 200)
    owner = world.owner()
    process = world.regions[owner].process
    if process is None:
        return
    process.pause()
    operators.force(world, fleet.random.choice([name for name in world.names if name != owner]))
    for _ in range(fleet.random.randint(2, 8)):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield fleet.random.randint(15, 60)
    process.resume()
    yield 40


def moved_late_opening(fleet: "Fleet") -> Iterator[int]:
    """1. A switch fails; an order to open a source is held up. 2. Another order opens it. 3. Closed anew, it gets the first one."""
    world, held = _other_slice(fleet), list[Call]()

    def passes(call: Call) -> bool:
        first = call.kind == "order" and call.message["do"] == "open_slice" and call.message["closed_at"] and (not held or call in held)
        if first:
            held.append(call)
        return not first

    for other in fleet.worlds.values():
        other.until = max(other.until, fleet.now + 1200)
    world.network.only = passes
    for other in fleet.worlds.values():
        other.network.blocks.append(lambda call: not held and call.kind == "order" and bool(call.message.get("boundaries")))
    fleet.relocate()
    for _ in range(300):
        if fleet.random.random() < 0.3:
            write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        if held and _closed_at(world) > held[0].message["closed_at"]:
            break
        yield 4
    world.network.let_pass(None)
    for _ in range(15):
        for player in fleet.players_of(world.shard):
            write(fleet, fleet.random.choice(fleet.names), player)
        yield 4


def _closed_at(world: "World") -> int:
    """Offset of the closure that holds at a shard's slice; 0 while it is open."""
    boards = [authority.writer.pending.board(BOARD) for authority in world.authorities() if authority.writer is not None]
    return max((board.closed_offset for board in boards if board is not None), default=0)


def moved_source_changes(fleet: "Fleet") -> Iterator[int]:
    """After the first chunk the owners of the sources give no more of their ledgers: others do, which are a little behind."""
    owners = {shard: world.owner() for shard, world in fleet.worlds.items()}
    for _ in range(40):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield fleet.random.randint(1, 4)
    for shard, world in fleet.worlds.items():
        world.network.blocks.append(_later_chunks_of(owners[shard]))
    fleet.relocate()
    for _ in range(20):
        write(fleet, fleet.random.choice(fleet.names), fleet.random.choice(fleet.players))
        yield fleet.random.randint(5, 20)


def _later_chunks_of(name: str) -> Callable[[Call], bool]:
    return lambda call: call.kind == "order" and call.to == name and call.message["do"] == "export" and call.message["after"] != b""


#: Those of moves; boards of `local` shards stay where they are.
MOVES: dict[str, FleetScript] = {
    "moved": moved,
    "moved_under_load": moved_under_load,
    "moved_and_killed": moved_and_killed,
    "moved_target_gone": moved_target_gone,
    "moved_and_aborted": moved_and_aborted,
    "moved_lead_sleeps": moved_lead_sleeps,
    "moved_late_opening": moved_late_opening,
    "moved_source_changes": moved_source_changes,
}
FLEET_SCRIPTS: dict[str, FleetScript] = {
    "mark_then_lost": mark_then_lost,
    "lead_deposed": lead_deposed,
    "lead_sleeps": lead_sleeps,
    "lead_cut_off": lead_cut_off,
    "slice_missing": slice_missing,
    **MOVES,
}
