"""Questions about several stores' logs: where two part, which is ahead, which has lost data. Pure functions on statuses."""

from collections.abc import Iterable, Mapping

from journal.ports import JournalStatus, Peer
from journal.records import Term


def majority(members: int) -> int:
    """Smallest number of members that any other such number must meet."""
    return members // 2 + 1


def last_common(a: JournalStatus, b: JournalStatus) -> int:
    """Highest offset at which both logs hold the same entry.

    By I3 two entries with equal (epoch, offset) are equal and so is all before them, so only the places
    where epochs begin matter. Cost: O(started epochs).
    """
    offset = min(a.tail.offset, b.tail.offset)
    while offset > 0:
        epoch_a, epoch_b = a.epoch_at(offset), b.epoch_at(offset)
        if epoch_a == epoch_b:
            return offset
        ahead = a if epoch_a > epoch_b else b
        offset = _first_offset(ahead.terms, max(epoch_a, epoch_b)) - 1
    return 0


def _first_offset(terms: Iterable[Term], epoch: int) -> int:
    return next(term.first_offset for term in terms if term.epoch == epoch)


def newest_started(statuses: Iterable[JournalStatus]) -> Term | None:
    """The newest started epoch that any of these stores knows."""
    return max((s.newest for s in statuses if s.newest is not None), key=lambda term: term.epoch, default=None)


def most_advanced(statuses: Mapping[str, JournalStatus], prefer: str) -> str:
    """Region whose log is ahead by (last epoch, last offset), never by length alone; `prefer` wins a tie."""
    return max(statuses, key=lambda region: (statuses[region].tail, region == prefer))


def admitted(statuses: Iterable[JournalStatus]) -> dict[str, int]:
    """Epoch whose members were the first to name each member's present token, by the store that knows the newest epoch."""
    known = max((s for s in statuses if s.terms), key=lambda s: s.terms[-1].epoch, default=None)
    since: dict[str, int] = {}
    if known is not None:
        for region, token in known.terms[-1].members.items():
            for term in reversed(known.terms):
                if term.members.get(region) != token:
                    break
                since[region] = term.epoch
    return since


def of_members(memories: Mapping[str, Peer], since: Mapping[str, int]) -> dict[str, Peer]:
    """`memories` without what was heard before the region's present token: that was of a store that has since been begun
    anew, and neither its mark nor its length says anything of this one."""
    return {region: peer for region, peer in memories.items() if peer.fence >= since.get(region, 0)}


def remembered(statuses: Iterable[JournalStatus]) -> dict[str, Peer]:
    """What all these stores together remember of each region: the maximum by (fence, verified)."""
    result: dict[str, Peer] = {}
    for status in statuses:
        for region, peer in status.peers.items():
            result[region] = later(result.get(region), peer)
    return result


def later(a: Peer | None, b: Peer) -> Peer:
    """The later of two memories of one store; a mark of amnesia at the same point is kept."""
    if a is None or (b.fence, b.verified) > (a.fence, a.verified):
        return b
    if (b.fence, b.verified) == (a.fence, a.verified):
        return Peer(a.fence, a.verified, a.amnesiac or b.amnesiac)
    return a


def has_lost_data(status: JournalStatus, memory: Peer | None, member_as: str | None) -> bool:
    """Whether a store is amnesiac: no token, another token than its membership, marked, or below what is remembered of it.

    `member_as` is the incarnation in the newest members record (None: not a member, or before genesis).
    """
    if member_as is not None and status.incarnation != member_as:
        return True
    if status.amnesiac:
        return True
    return memory is not None and (memory.amnesiac or (status.fence, status.tail.offset) < (memory.fence, memory.verified))
