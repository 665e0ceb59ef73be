"""Compound faults of `ack: local` (leases, orphans) and of the detector. As in `scripts`; some say themselves what must come of it.

What they demand holds only while nothing else does harm (`World.calm`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from failover.events import Role
from failover.lease import promise_ms
from simulation import operators
from simulation.client import write
from simulation.scripts import Script, _back, _others, _served
from simulation.watch import Violation

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def _holder(world: "World") -> Iterator[int]:
    """Wait a little until the owner serves under a valid lease."""
    yield from _served(world)
    for _ in range(25):
        process = _authority(world)
        if process is not None and process.state.lease is not None and process.state.lease.valid(process.now()):
            return
        yield 10


def _authority(world: "World") -> "Process | None":
    """The process that serves the newest epoch."""
    owner = world.owner()
    return next((p for p in world.authorities() if p.name == owner), None)


def _promise(world: "World") -> int:
    """Ms after which no lease that is not renewed holds, or is honoured, by any clock."""
    return int(promise_ms(world.timing.lease_ms) / 0.9) + 2


def _write_on(world: "World", name: str, ms: int, every: int = 8) -> Iterator[int]:
    """Events at one region's gateway for a while."""
    for _ in range(max(1, ms // every)):
        write(world, name)
        yield every


def writes_while_deposed(world: "World") -> Iterator[int]:
    """The owner is cut off, in both directions or in one, and writes on, while another region is ordered to take over."""
    yield from _holder(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    others = _others(world, a)
    how = world.random.randrange(4)
    if how < 2:
        world.network.isolate(a)
    else:  # it hears nobody, or nobody hears it
        world.network.cut |= {(a, x) if how == 2 else (x, a) for x in others}
    yield from _write_on(world, a, world.random.randint(0, world.timing.lease_ms))
    operators.force(world, b)
    yield from _write_on(world, a, _promise(world) + 120)
    write(world, b)
    yield from _write_on(world, a, world.random.randint(10, 80))
    world.network.heal()


def lease_runs_out(world: "World") -> Iterator[int]:
    """The lease is about to end when the owner is cut off; the last answers to its renewals were slow."""
    yield from _holder(world)
    a = world.owner()
    b = world.random.choice(_others(world, a))
    for name in _others(world, a):
        world.network.slow[name, a] = world.timing.lease_ms // 2
    yield from _write_on(world, a, world.random.randint(world.timing.lease_ms // 3, world.timing.lease_ms))
    world.network.cut |= {(a, x) for x in _others(world, a)}
    operators.force(world, b)
    yield from _write_on(world, a, _promise(world) + 60, 5)
    write(world, b)
    yield 20
    world.network.heal()


def acceptors_restart(world: "World") -> Iterator[int]:
    """In mid-lease the acceptors of the others begin anew, some beside an old one that goes on; then the owner is cut off."""
    yield from _holder(world)
    a = world.owner()
    others = _others(world, a)
    b = world.random.choice(others)
    yield world.random.randint(0, world.timing.lease_ms // 2)
    for name in others:
        if world.random.random() < 0.8:
            world.regions[name].restart_acceptor(beside=world.random.random() < 0.3)
    world.network.isolate(a)
    operators.force(world, b)
    yield from _write_on(world, a, _promise(world) + 60)
    write(world, b)
    yield 60
    for name in others:
        world.regions[name].old_acceptor_ends()
    world.network.heal()


def old_acceptor(world: "World") -> Iterator[int]:
    """An acceptor sleeps while its successor promises leases, and answers again on the connections that it has. When it is gone,
    the regions can be sealed again (I10)."""
    yield from _holder(world)
    a = world.owner()
    others = _others(world, a)
    for _ in range(world.random.choice((1, 2))):
        for name in others:
            world.regions[name].restart_acceptor(beside=True)
    yield from _write_on(world, a, _promise(world) + world.random.randint(0, 100), 20)
    world.network.isolate(a)
    for _ in range(4):
        operators.force(world, world.random.choice(others))
        yield from _write_on(world, a, 40)
    yield from _write_on(world, a, _promise(world), 20)
    for name in others:
        world.regions[name].old_acceptor_ends()
    target = world.random.choice(others)
    patience = 3 * _promise(world) + 600
    world.until = max(world.until, world.now + patience + 100)
    for waited in range(patience // 20):
        if any(authority.name != a for authority in world.authorities()):
            break
        if waited % 10 == 0:
            operators.force(world, target)
        yield 20
    else:
        if world.calm:
            raise Violation("I10", f"{target} was ordered to take over from the lost {a} again and again for {patience} ms")
    world.until = world.now
    world.network.heal()


def holder_sleeps(world: "World") -> Iterator[int]:
    """The owner is stopped while answers are about to leave, another takes over, and the owner goes on."""
    yield from _holder(world)
    process = _authority(world)
    if process is None:
        return
    a = process.name
    b = world.random.choice(_others(world, a))
    if world.random.random() < 0.5:
        world.network.isolate(a)
    for _ in range(60):
        write(world, a)
        yield 1
        if process.writer is None or process.writer.leaving:
            break
    process.pause()
    operators.force(world, b)
    for _ in range(60):
        if any(authority.name == b for authority in world.authorities()):
            break
        yield 10
    write(world, b)
    yield world.random.randint(0, 60)
    process.resume()
    write(world, a)
    yield 20
    world.network.heal()


def restart_under_lease(world: "World") -> Iterator[int]:
    """The owner's actor is started anew while its last life still answers."""
    yield from _holder(world)
    process = _authority(world)
    if process is None:
        return
    a = process.name
    if world.random.random() < 0.5:
        process.pause()
        world.at(world.now + world.random.randint(5, world.timing.lease_ms // 4), process.resume)
    if world.random.random() < 0.4:
        world.regions[a].store.stall()
        world.at(world.now + world.random.randint(5, 50), world.regions[a].store.resume)
    for _ in range(3):
        write(world, a)
    world.regions[a].start()
    yield from _write_on(world, a, 100, 6)
    if world.random.random() < 0.5:
        operators.force(world, world.random.choice(_others(world, a)))
        yield from _write_on(world, a, 120, 12)


def restart_that_fails(world: "World") -> Iterator[int]:
    """1. The owner's actor is started anew beside its last life, which hears nothing of it, and seals at other regions. 2. It dies.
    3. The others' acceptors begin anew, with the fence granted to an attempt that never held a lease. 4. Another region takes over."""
    yield from _holder(world)
    process = _authority(world)
    if process is None or len(process.region.processes) > 1:
        return
    a, region = process.name, process.region
    others = _others(world, a)
    b = world.random.choice(others)
    sealed = world.random.random() < 0.5  # its own store first, which then stalls, so that its last life does not hear of it
    world.network.blocks.append(lambda call: call.origin == a and call.kind in ("append", "renew"))
    if not sealed:
        world.network.blocks.append(lambda call: call.origin == a and call.to == a and call.kind == "seal")
    for _ in range(2):
        write(world, a)
    fence = region.store.log.fence
    successor = region.start()
    for _ in range(60):
        if sealed and region.store.log.fence > fence and not region.store.stalled:
            region.store.stall()
            world.at(world.now + 300, region.store.resume)
        if all(world.regions[name].store.log.fence > fence for name in others):
            break
        yield 1
    successor.die()
    region.ended(successor)
    for name in others:
        world.regions[name].restart_acceptor(beside=False)
    world.network.isolate(a)
    operators.force(world, b)
    yield from _write_on(world, a, _promise(world) + 60, 6)
    write(world, b)
    yield 30
    world.network.heal()


def handover_under_lease(world: "World") -> Iterator[int]:
    """A planned handover while much is written; nothing is cut by it."""
    yield from _holder(world)
    a, cuts = world.owner(), world.watch.cuts
    b = world.random.choice(_others(world, a))
    yield from _write_on(world, a, 40, 4)
    operators.handover(world, b)
    yield from _write_on(world, a, 60, 4)
    yield from _write_on(world, b, 150, 10)
    if world.calm and world.owner() == b and world.watch.cuts > cuts:
        raise Violation("I5", f"the handover from {a} to {b} cut entries")


def old_store_reachable(world: "World") -> Iterator[int]:
    """The owner's actor dies, or hears nobody, while its store answers, at once or slowly: what it acknowledged is not cut."""
    yield from _holder(world)
    process = _authority(world)
    if process is None:
        return
    a, epoch = process.name, process.state.epoch
    b = world.random.choice(_others(world, a))
    network = world.network
    network.blocks.append(lambda call: call.kind == "append" and call.origin == a)
    yield from _write_on(world, a, world.random.randint(10, 60), 5)
    world.regions[a].kill()
    if world.random.random() < 0.7:  # later than a majority's answers, within the grace by any clock
        network.slow[a, b] = int(world.timing.seal_grace_ms * 0.9) - 14
    yield 10
    answered = {(s.result.epoch, s.result.offset) for s in world.sent if s.result is not None and s.result.alone}
    operators.force(world, b)
    for _ in range((_promise(world) + 200) // 10):
        if any(authority.name == b for authority in world.authorities()):
            break
        yield 10
    log = world.regions[b].store.log
    served = any(authority.name == b and authority.state.epoch > epoch for authority in world.authorities())
    if world.calm and served and (lost := {at for at in answered if at[0] == epoch and log.epoch_at(at[1]) != epoch}):
        raise Violation("I5", f"{sorted(lost)} of {a} was cut by {b}, although the store of {a} answered in time")
    network.heal()
    _back(world, a)
    yield 60


def region_lost(world: "World") -> Iterator[int]:
    """The owner's region is lost for good, or hears nobody any more: the others take over without an operator (I10)."""
    yield from _holder(world) if world.mode == "local" else _served(world)
    yield 60
    a = world.owner()
    _lose(world, a)
    yield from _taken_over(world, a)


def lost_again(world: "World") -> Iterator[int]:
    """The region that took over by itself is lost as well: the pause between two automatic failovers is kept, and then one comes."""
    yield from _holder(world) if world.mode == "local" else _served(world)
    yield 60
    a = world.owner()
    _lose(world, a)
    yield from _taken_over(world, a)
    world.until = max(world.until, world.now + 400)
    _return(world, a)
    yield 150
    yield from _served(world)
    yield 60
    b = world.owner()
    if b == a:
        return
    _lose(world, b)
    yield from _taken_over(world, b)


def _lose(world: "World", name: str) -> None:
    others = _others(world, name)
    how = world.random.randrange(3)
    if how == 0:
        region = world.regions[name]
        region.links_up = False
        region.kill()
        region.store.crash()
    elif how == 1:
        world.network.isolate(name)
    else:
        world.network.cut |= {(other, name) for other in others}


def _return(world: "World", name: str) -> None:
    region = world.regions[name]
    region.links_up = True
    if not region.store.up:
        region.store.start()
        region.store.check_fence()
    world.network.heal()
    _back(world, name)


def _taken_over(world: "World", lost: str) -> Iterator[int]:
    detection = world.timing.detection_ms
    patience = int((world.pause_ms + (3 + len(world.names)) * (detection + _promise(world) + world.timing.seal_grace_ms)) / 0.9) + 600
    until, world.until = world.until, max(world.until, world.now + patience + 100)
    for _ in range(patience // 20):
        if any(authority.name != lost for authority in world.authorities()):
            world.until = max(until, world.now)
            return
        yield 20
    if world.calm and not world.healed and not operators.amnesiac(world):
        roles = {name: [p.state.role.value for p in region.processes] for name, region in world.regions.items()}
        raise Violation("I10", f"{lost} was lost {patience} ms ago, and nobody took over by itself: {roles}")


def sleeping_candidate(world: "World") -> Iterator[int]:
    """The owner is lost and returns at the moment when the others judge it."""
    yield from _served(world)
    a = world.owner()
    _lose(world, a)
    yield world.timing.detection_ms + world.random.randint(0, 150)
    if world.random.random() < 0.4:
        for name in _others(world, a):
            process = world.regions[name].process
            if process is not None and process.state.role is not Role.AUTHORITY:
                process.pause()
                world.at(world.now + world.random.randint(50, 300), process.resume)
                break
    _return(world, a)
    yield 100


LOCAL: dict[str, Script] = {
    "writes_while_deposed": writes_while_deposed,
    "lease_runs_out": lease_runs_out,
    "acceptors_restart": acceptors_restart,
    "old_acceptor": old_acceptor,
    "holder_sleeps": holder_sleeps,
    "restart_under_lease": restart_under_lease,
    "restart_that_fails": restart_that_fails,
    "handover_under_lease": handover_under_lease,
    "old_store_reachable": old_store_reachable,
}
AUTOMATIC: dict[str, Script] = {
    "region_lost": region_lost,
    "lost_again": lost_again,
    "sleeping_candidate": sleeping_candidate,
}
