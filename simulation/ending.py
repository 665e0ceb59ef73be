"""How a schedule of one shard ends: all faults stop, one authority serves, everybody holds its log, what was cut is sent again."""

from simulation import operators
from simulation.client import Sent, write
from simulation.nemesis import revive
from simulation.watch import Violation
from simulation.world import World

#: How long agreement may take after the faults (I10), in ms.
AGREE_MS = 4000
LOOK_MS, ASK_AGAIN_MS = 40, 300


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
        world.run(LOOK_MS)
        if agreed(world):
            if asked and all(sent.result is not None for sent in asked):
                return
            if not asked or world.now - asked_ms > ASK_AGAIN_MS:
                # What was asked while an activation was under way may stay unanswered.
                asked, asked_ms = [write(world, name) for name in world.names], world.now
        if world.now >= deadline:
            raise Violation("I10", "no agreement: " + disagreement(world))
        operators.help_out(world)
        for name in world.names:
            revive(world, name)


def agreed(world: World) -> bool:
    """One authority, and everybody holds its log."""
    authorities = world.authorities()
    if len(authorities) != 1:
        return False
    tail = authorities[0].region.store.log.tail
    for region in world.regions.values():
        log = region.store.log
        if log.amnesiac or log.tail != tail or log.committed != tail.offset or region.replica.applied(world.shard) != tail.offset:
            return False
    replication = authorities[0].state.replication
    return replication is not None and all(peer.counts for peer in replication.peers.values())


def disagreement(world: World) -> str:
    """What each region holds and does."""
    parts = []
    for name, region in world.regions.items():
        log = region.store.log
        doing = [f"{p.state.role.value} of epoch {p.state.epoch} ({p.state.why})" for p in region.processes]
        parts.append(
            f"{name} {tuple(log.tail)} committed {log.committed} fence {log.fence}, "
            f"{'amnesiac, ' if log.amnesiac else ''}replica at {region.replica.applied(world.shard)}, is {' and '.join(doing) or 'dead'}"
        )
    for authority in world.authorities():
        replication = authority.state.replication
        peers = replication.peers.values() if replication is not None else ()
        parts += [f"{authority.name} does not count {p.region} as {p.member_as}: {p.memory}" for p in peers if not p.counts]
    return "; ".join(parts)


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
        world.run(LOOK_MS)
