"""What operators order: forced failover, planned handover, readmission. As `actors.shard.ShardActor` carries them out.

The coordinator of each is a process of the target region (the authority, for a readmission); when it dies, the order ends there.
"""

from typing import TYPE_CHECKING, Any

from failover.events import Role

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

_DRAIN_MS = 200
#: After so long an order that was not answered will not arrive any more.
_NEVER_MS = 1200


def force(world: "World", name: str, *, as_seen: bool = False) -> None:
    """Forced failover to this region; `as_seen`: only if what the operator saw is still to be deposed."""
    process = world.regions[name].process
    if process is None:
        return
    newest = world.newest_term()
    expect = (newest.epoch, newest.owner) if as_seen and newest is not None else None
    process.tell("is ordered to take over")
    process.deliver(lambda _: process.activate("forced", expect=expect), None)


def handover(world: "World", name: str) -> None:
    """Planned handover to this region: drain the owner, wait until its last entry is here, then activate."""
    target = world.regions[name].process
    if target is not None:
        target.tell("is ordered to take over by a handover")
        target.deliver(lambda _: _handover(world, target), None)


def _handover(world: "World", target: "Process") -> None:
    newest = target.region.store.log.status().newest
    if newest is None or newest.owner == target.name:
        return
    epoch, owner = newest.epoch, newest.owner
    deadline = world.now + world.timing.handover_timeout_ms

    def drained(offset: Any) -> None:
        if offset is not None:
            wait(offset)

    def wait(offset: int) -> None:
        if target.region.store.log.committed >= offset:
            target.activate("handover", expect=(epoch, owner))
        elif world.now < deadline:
            world.at(world.now + 5, target.deliver, wait, offset)

    def arrived(call: Any) -> None:
        process = world.regions[owner].process
        if process is not None:
            process.drain(call)

    world.network.call("drain", target, target.name, owner, arrived, drained, patience=_DRAIN_MS, later=True, message=(epoch, target.name))


def readmit(world: "World", name: str) -> bool:
    """Begin a region's store anew and start an epoch that counts it, by the authority; False if there is none to do it.

    A careful operator does so only while the others are well: what this store holds is gone afterwards.
    """
    if not _others_are_well(world, name):
        return False
    for authority in world.authorities():
        replication = authority.state.replication
        if authority.paused or authority.name == name or replication is None or not replication.held_without(name):
            continue
        authority.tell(f"is ordered to readmit {name}")
        _readmit(world, authority, name)
        return True
    return False


def _others_are_well(world: "World", name: str) -> bool:
    lacking = sum(not region.store.whole() for other, region in world.regions.items() if other != name)
    return lacking + 1 <= (len(world.names) - 1) // 2


def _readmit(world: "World", authority: "Process", name: str) -> None:
    def probed(status: Any) -> None:
        if status is None or authority.state.role is not Role.AUTHORITY:
            return
        if status.fence > authority.state.epoch:
            authority.activate("unstarted_seal", expect=(authority.state.epoch, authority.name))
        elif _others_are_well(world, name):
            _begin_anew(world, authority, name, status.incarnation)

    world.network.call("probe", authority, authority.name, name, lambda r: r.acceptor.probe(), probed)


def _begin_anew(world: "World", authority: "Process", name: str, replaces: str) -> None:
    epoch, token = authority.state.epoch, f"{name}.{world.token()}"
    replication = authority.state.replication
    assert replication is not None
    if not world.switches.readmitted_counts and not replication.leave_out(name, authority.now()):
        return
    store = world.regions[name].store
    store.anew, store.lacking_to = token, authority.state.tail.offset

    def never_arrived() -> None:
        if store.anew == token and store.log.incarnation != token:
            store.anew, store.lacking_to = "", 0

    world.at(world.now + _NEVER_MS, never_arrived)

    def begun(status: Any) -> None:
        if status is not None and status.incarnation == token and authority.state.role is Role.AUTHORITY:
            authority.activate("readmit", expect=(epoch, authority.name), readmit={name: token})

    world.network.call("readmit", authority, authority.name, name, lambda r: r.acceptor.readmit(token, epoch, replaces), begun)


def amnesiac(world: "World") -> list[str]:
    """Regions whose stores are known to have lost data: only a readmission helps them."""
    newest = world.newest_term()
    if newest is None:
        return []
    suspected = {
        peer.region
        for authority in world.authorities()
        if authority.state.replication is not None
        for peer in authority.state.replication.peers.values()
        if peer.amnesiac
    }
    found = []
    for name, region in world.regions.items():
        log, process = region.store.log, region.process
        marked = log.amnesiac or log.incarnation != newest.members.get(name) or name in suspected
        if marked or (process is not None and process.state.role is Role.AMNESIAC):
            found.append(name)
    return found


def help_out(world: "World") -> None:
    """What an operator does after a disaster: readmit who lost data, by another region if it was the owner."""
    lost = amnesiac(world)
    if not lost or readmit(world, lost[0]) or world.authorities():
        return
    owner = world.owner()
    if owner in lost:
        for name, region in world.regions.items():
            if name not in lost and region.process is not None and region.process.state.role is Role.FOLLOWER:
                force(world, name)
                return
