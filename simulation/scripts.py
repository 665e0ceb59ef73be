"""Compound faults: several steps whose order is what hurts. Each is a generator that gives the ms until its next step.

They run beside whatever else the seed has on, so each step looks at the world as it is. Random faults alone are too weak
to meet these histories.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from failover import replication
from failover.events import Role
from simulation import operators
from simulation.client import write
from simulation.network import Call

if TYPE_CHECKING:
    from simulation.world import World

Script = Callable[["World"], Iterator[int]]


def _others(world: "World", *names: str) -> list[str]:
    return [name for name in world.names if name not in names]


def _back(world: "World", name: str) -> None:
    if world.regions[name].process is None:
        world.regions[name].start()


def _no_appends_of(name: str) -> Callable[[Call], bool]:
    return lambda call: call.kind == "append" and call.origin == name


def _served(world: "World") -> Iterator[int]:
    """Wait a little until all ways are open and somebody serves."""
    world.network.heal()
    for _ in range(20):
        owner = world.owner()
        if any(authority.name == owner for authority in world.authorities()):
            return
        yield 10


def fail_back(world: "World") -> Iterator[int]:
    """Isolate the owner, fail over, isolate the new owner, fail back."""
    yield from _served(world)
    first = world.owner()
    second = world.random.choice(_others(world, first))
    for isolated, target in ((first, second), (second, first)):
        world.network.heal()
        world.network.isolate(isolated)
        for _ in range(3):
            write(world, isolated)
            yield world.random.randint(1, 12)
        operators.force(world, target)
        yield 70
        write(world, target)
        yield world.random.randint(5, 60)
    world.network.heal()


def figure_eight(world: "World") -> Iterator[int]:
    """Raft's figure 8: an entry of an old epoch is held by a majority, and still may be cut.

    1. The isolated a appends x. 2. b starts an epoch at its own store only, and dies. 3. a activates again, and x, but
    not its start record, reaches c. 4. a dies, b returns: its log is ahead.
    """
    yield from _served(world)
    a = world.owner()
    b, *rest = _others(world, a)
    network, store = world.network, world.regions[a].store
    network.heal()
    world.lull(500)
    yield 30
    n = store.log.tail.offset
    network.isolate(a)
    write(world, a)
    yield 15
    network.blocks.append(_no_appends_of(b))
    operators.force(world, b)
    for _ in range(20):
        if world.regions[b].store.log.tail > store.log.tail:
            break
        yield 10
    world.regions[b].kill()
    newest = world.regions[b].store.log.tail.epoch
    network.heal()
    network.isolate(b)
    network.blocks.append(lambda call: call.kind == "append" and any(x.epoch > newest for x in call.message.entries))
    _back(world, a)
    for _ in range(30):
        if all(world.regions[name].store.log.tail.offset > n for name in rest):
            break
        yield 10
    write(world, a)
    yield 20
    world.regions[a].kill()
    network.heal()
    network.isolate(a)
    _back(world, b)
    yield 30
    operators.force(world, b)
    yield 150
    network.heal()
    _back(world, a)


def longer_but_older(world: "World") -> Iterator[int]:
    """1. The isolated a appends much. 2. b starts an epoch with the others and commits little. 3. b is gone; a is promoted."""
    yield from _served(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    world.network.heal()
    world.network.isolate(a)
    for _ in range(6):
        write(world, a)
        yield 6
    operators.force(world, b)
    yield 70
    write(world, b)
    yield 40
    world.network.heal()
    world.network.isolate(b)
    operators.force(world, a)
    yield 120
    write(world, a)
    yield 30
    world.network.heal()


def double_failover(world: "World") -> Iterator[int]:
    """A failover is ordered, and another one to a third region before the first has ended."""
    a = world.owner()
    b, c = world.random.sample(_others(world, a), 2)
    operators.force(world, b)
    yield world.random.randint(1, 60)
    operators.force(world, c)
    yield world.random.randint(1, 60)
    if world.random.random() < 0.5:
        operators.force(world, a)
    yield 60


def zombie(world: "World") -> Iterator[int]:
    """The owner sleeps, another takes over, and the owner wakes with all that it meant to do."""
    yield from _served(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    write(world, a)
    yield world.random.randint(0, 8)
    process = world.regions[a].process
    if process is None:
        return
    process.pause()
    operators.force(world, b)
    yield 80
    write(world, b)
    write(world, a)
    yield world.random.randint(10, 80)
    process.resume()
    write(world, a)
    yield 40


def handover_cut(world: "World") -> Iterator[int]:
    """A handover is interrupted at one of its messages: the owner or the target dies, or the way between them is cut."""
    yield from _served(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    write(world, a)
    operators.handover(world, b)
    yield world.random.randint(0, 60)
    how = world.random.randrange(4)
    if how < 2:
        name = (a, b)[how]
        world.regions[name].kill()
        yield world.random.randint(10, 200)
        _back(world, name)
    else:
        pair = (a, b) if how == 2 else (b, a)
        world.network.cut.add(pair)
        yield world.random.randint(20, 250)
        world.network.cut.discard(pair)


def stale_coordinator(world: "World") -> Iterator[int]:
    """1. An epoch that nobody starts is sealed at one region. 2. b, which saw that, sleeps between Probe and Seal, while c
    takes over without having seen it. 3. b wakes: its epoch is high enough, what it means to depose is not what stands."""
    yield from _served(world)
    a = world.owner()
    b, c = world.random.sample(_others(world, a), 2)
    network = world.network
    network.heal()
    network.blocks.append(lambda call: call.kind == "seal" and call.origin == b and call.to != b)
    operators.force(world, b)
    yield world.random.randint(20, 40)
    network.blocks.clear()
    process = world.regions[b].process
    if process is None:
        return
    operators.force(world, b)
    for _ in range(12):
        if process.state.role is Role.SEALING:
            break
        yield 2
    network.blocks.append(lambda call: call.kind == "seal" and call.origin == b)
    held = [(pair, network.slow.get(pair)) for pair in ((c, b), (b, c))]
    network.cut |= {pair for pair, _ in held}
    operators.force(world, c)
    yield world.random.randint(40, 70)
    network.blocks.clear()
    network.cut -= {pair for pair, _ in held}
    yield 60


def half_sealed(world: "World") -> Iterator[int]:
    """A coordinator seals at some regions only, and dies."""
    b = world.random.choice(_others(world, world.owner()))
    reached = world.random.choice(world.names)
    world.network.blocks.append(lambda call: call.kind == "seal" and call.origin == b and call.to not in (b, reached))
    operators.force(world, b)
    yield world.random.randint(15, 45)
    world.regions[b].kill()
    world.network.blocks.clear()
    yield world.random.randint(20, 200)
    _back(world, b)


def late_suffix(world: "World") -> Iterator[int]:
    """1. c lags behind, and a's entries for it are slow. 2. b takes over with all but a and c. 3. b asks how far c is. 4. The slow
    entries reach c: more than b ever had. 5. Then b's first ones, which fit. 6. b writes, and few hear it. Needs five regions to hurt."""
    yield from _served(world)
    a = world.owner()
    b, c, *rest = world.random.sample(_others(world, a), len(world.names) - 1)
    network = world.network
    network.heal()
    world.lull(600)
    yield 60

    def not_to_c(call: Call) -> bool:
        return not (call.kind == "append" and call.to == c and call.origin in (a, b))

    network.let_pass(not_to_c)
    for _ in range(min(2, replication.ENTRIES_PER_APPEND)):
        write(world, a)
        yield 14
    network.cut |= {pair for x in (a, c) for y in (b, *rest) for pair in ((x, y), (y, x))}
    for _ in range(7):
        write(world, a)
        yield 8
    operators.force(world, b)
    for _ in range(20):
        if any(authority.name == b for authority in world.authorities()):
            break
        yield 10
    network.cut -= {(b, c), (c, b)}
    for _ in range(60):
        if any(call.origin == b for call, *_ in network.parked):
            break
        yield 5
    network.let_pass(None)
    yield 8
    network.cut |= {(b, c), *((b, name) for name in rest[1:])}
    write(world, b)
    yield world.random.randint(10, 60)
    network.isolate(b)
    operators.force(world, rest[-1] if rest else a)
    yield 80
    network.heal()


def readmission(world: "World") -> Iterator[int]:
    """1. A store loses its disk. 2. It is readmitted. 3. At once the majority needs it."""
    from simulation import nemesis

    yield from _served(world)
    a = world.owner()
    b, c = world.random.sample(_others(world, a), 2)
    world.network.heal()
    yield 60
    store = world.regions[b].store
    log = world.random.choice([None, *store.snapshots])
    if not nemesis.may_lose(world, b, log):
        return
    store.crash()
    store.exchange(log)
    yield 20
    store.start()
    how = world.random.randrange(3)
    if how == 0:
        world.network.isolate(a)
        operators.force(world, c)
        yield 120
        world.network.heal()
        yield 60
    write(world, world.owner())
    for _ in range(6):
        yield 40
        lost = operators.amnesiac(world)
        if b in lost and operators.readmit(world, b):
            break
    yield world.random.randint(5, 120)
    owner = world.owner()
    if how == 1:
        world.regions[owner].kill()
    gone = world.random.choice(_others(world, b))
    world.network.isolate(gone)
    write(world, owner)
    operators.force(world, world.random.choice(_others(world, gone)))
    yield 120
    world.network.heal()
    _back(world, owner)


def restored(world: "World") -> Iterator[int]:
    """The owner's store, or another's, comes back as an earlier copy, and its region is asked to take over."""
    from simulation import nemesis

    name = world.owner() if world.random.random() < 0.5 else world.random.choice(world.names)
    region = world.regions[name]
    region.store.snapshot()
    for _ in range(4):
        write(world, world.owner())
        yield 25
    yield 60
    log = region.store.snapshots[-1]
    if not nemesis.may_lose(world, name, log):
        return
    region.kill()
    region.store.crash()
    region.store.exchange(log)
    yield 30
    region.store.start()
    _back(world, name)
    gone = world.random.choice(_others(world, name))
    if world.random.random() < 0.6:
        world.network.isolate(gone)
    yield 20
    operators.force(world, world.random.choice([n for n in world.names if n != gone]))
    yield 120
    world.network.heal()


def forgotten_promise(world: "World") -> Iterator[int]:
    """A store promises an epoch and crashes at once; the deposed owner goes on shipping to it."""
    yield from _served(world)
    a = world.owner()
    b, c = world.random.sample(_others(world, a), 2)
    network, store = world.network, world.regions[c].store
    network.heal()
    network.cut |= {(a, b), (b, a)}
    network.blocks.append(_no_appends_of(b))
    operators.force(world, b)
    fence = store.log.fence
    for _ in range(30):
        if store.log.fence > fence:
            break
        yield 3
    store.crash()
    yield 5
    store.start()
    store.check_fence()
    for _ in range(3):
        write(world, a)
        yield 12
    network.blocks.clear()
    yield 60
    network.heal()


def lost_minority(world: "World") -> Iterator[int]:
    """1. What b and a hold is committed without c. 2. b's disk is an earlier one again, which c can tell. 3. a is gone: b and c are
    a majority of the regions, and together do not hold what was acknowledged."""
    from simulation import nemesis

    yield from _served(world)
    a = world.owner()
    b, c = world.random.sample(_others(world, a), 2)
    network, store = world.network, world.regions[b].store
    network.heal()
    world.lull(300)
    store.snapshot()
    log = store.snapshots[-1]
    for _ in range(2):
        write(world, a)
        yield 40
    network.isolate(c)
    for _ in range(2):
        write(world, a)
        yield 25
    if not nemesis.may_lose(world, b, log):
        network.heal()
        return
    store.crash()
    store.exchange(log)
    network.heal()
    network.isolate(a)
    store.start()
    yield 10
    operators.force(world, c)
    yield 120
    write(world, c)
    yield 60
    network.heal()


def needless_readmission(world: "World") -> Iterator[int]:
    """A region that keeps orphans is readmitted although it lost nothing."""
    yield from _served(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    network = world.network
    network.heal()
    network.isolate(a)
    for _ in range(3):
        write(world, a)
        yield 6
    operators.force(world, b)
    yield 90
    network.heal()
    for _ in range(20):
        if world.watch.cut.get(a):
            break
        yield 10
    operators.readmit(world, a)
    yield world.random.randint(5, 120)
    write(world, world.owner())


def hasty_readmission(world: "World") -> Iterator[int]:
    """A region is readmitted while an entry is on its way to it, and to no other for now."""
    yield from _served(world)
    a = world.owner()
    b, *rest = world.random.sample(_others(world, a), len(world.names) - 1)
    yield 30
    for name in rest:
        world.network.cut.add((a, name))
    write(world, a)
    yield world.random.randint(1, 9)
    operators.readmit(world, b)
    write(world, a)
    yield 30
    world.network.heal()
    yield 20


def ping_pong(world: "World") -> Iterator[int]:
    """Ownership moves quickly between two regions whose gateways lag behind."""
    a = world.owner()
    b = world.random.choice(_others(world, a))
    for target in (b, a, b, a):
        operators.force(world, target)
        yield world.random.randint(15, 60)
        for name in world.names:
            write(world, name)
        yield world.random.randint(5, 40)


SCRIPTS: dict[str, Script] = {
    "fail_back": fail_back,
    "figure_eight": figure_eight,
    "longer_but_older": longer_but_older,
    "double_failover": double_failover,
    "zombie": zombie,
    "handover_cut": handover_cut,
    "stale_coordinator": stale_coordinator,
    "half_sealed": half_sealed,
    "late_suffix": late_suffix,
    "readmission": readmission,
    "restored": restored,
    "forgotten_promise": forgotten_promise,
    "lost_minority": lost_minority,
    "needless_readmission": needless_readmission,
    "hasty_readmission": hasty_readmission,
    "ping_pong": ping_pong,
}
