"""The authority's view of the other regions' stores: what each holds, what to send next, what is committed.

One `Replication` lives for one epoch. Nothing here does I/O: `sends` says what to ship now, `answered`
takes what came back. A peer is probed before the first entry of an epoch is sent to it, and again after
each silence, since its store may have been exchanged meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from failover.logs import has_lost_data, last_common, later, majority
from journal.ports import Accepted, JournalStatus, Peer, Refused

#: Appends under way to one peer at most; the receiver puts them back into order.
WINDOW = 4
#: Entries in one Append at most.
ENTRIES_PER_APPEND = 16
BACKOFF_MIN_MS = 50
BACKOFF_MAX_MS = 1000


@dataclass(slots=True)
class InFlight:
    """One Append on its way: its last offset, and what was known as verified when it left."""

    last: int
    verified_then: int


@dataclass(slots=True)
class PeerProgress:
    """What the authority knows of one other region's store, in this epoch."""

    region: str
    #: Its token in the members record; an answer under another token never counts.
    member_as: str | None
    memory: Peer
    #: Whether its answers count towards a majority.
    counts: bool = True
    amnesiac: bool = False
    #: Its store is being begun anew: nothing that it says in this epoch counts any more.
    leaving: bool = False
    #: False until a probe has shown where the logs part.
    streaming: bool = False
    probe_request: int | None = None
    next: int = 0
    verified: int = 0
    in_flight: dict[int, InFlight] = field(default_factory=dict)
    failures: int = 0
    not_before_ms: int = 0
    last_sent_ms: int = -(10**9)
    last_heard_ms: int = -(10**9)
    #: When it last took an Append: only that is progress.
    last_taken_ms: int = -(10**9)
    #: Number of the newest Append that was sent to it, and of the newest one that it took.
    sent: int = 0
    taken: int = 0
    committed_sent: int = 0

    def silence(self, now_ms: int) -> None:
        """No answer in time: forget what is under way, back off, and probe before sending again."""
        self.in_flight.clear()
        self.streaming, self.probe_request = False, None
        self.failures += 1
        self.not_before_ms = now_ms + min(BACKOFF_MAX_MS, BACKOFF_MIN_MS << min(self.failures - 1, 10))

    def heard(self, now_ms: int) -> None:
        """An answer came."""
        self.failures, self.last_heard_ms = 0, now_ms


@dataclass(frozen=True, slots=True)
class ProbePeer:
    """Read one region's status before streaming to it."""

    region: str
    request: int


@dataclass(frozen=True, slots=True)
class Ship:
    """Send entries first..last to one region."""

    region: str
    request: int
    first: int
    last: int


@dataclass(slots=True)
class Replication:
    """Progress of one epoch. `committed` never goes down; it moves only over an entry of this epoch (figure 8 of Raft)."""

    epoch: int
    region: str
    members: Mapping[str, str]
    start_offset: int
    tail: int
    committed: int
    peers: dict[str, PeerProgress]
    heartbeat_ms: int
    #: A member that must not vote in this epoch's start (it is being readmitted).
    not_voting: frozenset[str] = frozenset()
    last_majority_ms: int = 0
    #: Number of the newest request of the own store's appends that it took.
    taken: int = 0
    #: Somebody waits for a majority to take Appends with a higher number than this.
    asked: int | None = None
    #: The highest number of which that was told.
    told: int = 0
    #: An entry is about to be appended: the news of a commit may travel with it. Whoever sets it clears it.
    entry_soon: bool = False

    def sends(self, now_ms: int, take_request: "RequestNumbers") -> list[ProbePeer | Ship]:
        """What to send now, counted as sent."""
        out: list[ProbePeer | Ship] = []
        for peer in self.peers.values():
            if now_ms < peer.not_before_ms or peer.amnesiac:
                if peer.amnesiac and now_ms >= peer.not_before_ms and peer.probe_request is None:
                    out.append(self._probe(peer, now_ms, take_request))
                continue
            if not peer.streaming:
                if peer.probe_request is None:
                    out.append(self._probe(peer, now_ms, take_request))
                continue
            while len(peer.in_flight) < WINDOW and peer.next <= self.tail:
                last = min(self.tail, peer.next + ENTRIES_PER_APPEND - 1)
                out.append(self._ship(peer, peer.next, last, now_ms, take_request))
            idle = not peer.in_flight and peer.next > self.tail
            news = self.committed > peer.committed_sent and not self.entry_soon
            asked = self.asked is not None and peer.sent <= self.asked
            if idle and (news or asked or now_ms - peer.last_sent_ms >= self.heartbeat_ms):
                out.append(self._ship(peer, peer.next, peer.next - 1, now_ms, take_request))
        return out

    def _probe(self, peer: PeerProgress, now_ms: int, take_request: "RequestNumbers") -> ProbePeer:
        peer.probe_request = take_request()
        peer.not_before_ms = now_ms + (BACKOFF_MAX_MS if peer.amnesiac else 0)
        return ProbePeer(peer.region, peer.probe_request)

    def _ship(self, peer: PeerProgress, first: int, last: int, now_ms: int, take_request: "RequestNumbers") -> Ship:
        request = take_request()
        peer.in_flight[request] = InFlight(max(last, first - 1), peer.verified)
        peer.next, peer.sent = last + 1, request
        peer.last_sent_ms, peer.committed_sent = now_ms, self.committed
        return Ship(peer.region, request, first, last)

    def probed(self, region: str, request: int, status: JournalStatus | None, own: JournalStatus, now_ms: int) -> bool:
        """A peer's status came (or None). True if this answer was awaited."""
        peer = self.peers.get(region)
        if peer is None or peer.probe_request != request:
            return False
        peer.probe_request = None
        if status is None:
            peer.silence(now_ms)
            return True
        peer.heard(now_ms)
        if peer.leaving:
            return True
        if has_lost_data(status, peer.memory, peer.member_as):
            self._lost(peer, now_ms)
            return True
        peer.amnesiac, peer.counts, peer.streaming = False, peer.member_as is not None, True
        peer.next = last_common(own, status) + 1
        return True

    def _lost(self, peer: PeerProgress, now_ms: int) -> None:
        peer.amnesiac, peer.counts, peer.streaming = True, False, False
        peer.verified = peer.taken = 0
        peer.in_flight.clear()
        peer.memory = Peer(peer.memory.fence, peer.memory.verified, amnesiac=True)
        peer.not_before_ms = now_ms + BACKOFF_MAX_MS

    def answered(self, region: str, request: int, answer: Accepted | Refused | None, own: JournalStatus, now_ms: int) -> None:
        """A peer's answer to an Append of this epoch; the caller has looked for higher fences first."""
        peer = self.peers.get(region)
        if peer is None or request not in peer.in_flight:
            return
        sent = peer.in_flight.pop(request)
        if answer is None:
            peer.silence(now_ms)
            return
        peer.heard(now_ms)
        if isinstance(answer, Refused):
            gone = answer.reason == "mismatch" and answer.status.tail.offset < sent.verified_then
            if answer.reason in ("amnesiac", "not_admitted") or answer.status.incarnation != peer.member_as or gone:
                self._lost(peer, now_ms)
            elif answer.reason == "mismatch":
                peer.in_flight.clear()
                peer.next = last_common(own, answer.status) + 1
            else:
                peer.silence(now_ms)
            return
        if answer.incarnation != peer.member_as or answer.tail.offset < sent.verified_then:
            self._lost(peer, now_ms)
            return
        peer.last_taken_ms, peer.taken = now_ms, max(peer.taken, request)
        peer.verified = max(peer.verified, answer.verified)
        peer.memory = later(peer.memory, Peer(answer.fence, peer.verified))

    def appended(self, tail: int, request: int = 0) -> None:
        """The own store holds everything up to `tail`; it took the append of that number."""
        self.tail, self.taken = max(self.tail, tail), max(self.taken, request)

    def confirmed(self) -> int | None:
        """While somebody asks: a majority of the members has newly taken Appends of this epoch, each with at least this number."""
        if self.asked is None:
            return None
        taken = [self.taken] if self.region in self.members and self.region not in self.not_voting else []
        taken += [p.taken for p in self.peers.values() if p.counts and p.region in self.members and p.region not in self.not_voting]
        need = majority(len(self.members))
        number = sorted(taken, reverse=True)[need - 1] if len(taken) >= need else 0
        if number <= self.told:
            return None
        self.told = number
        if number > self.asked:
            self.asked = None
        return number

    def advance(self, now_ms: int) -> int | None:
        """Move `committed` as far as a majority of the members holds; the new value, or None if it stayed."""
        votes = [self.tail] if self.region in self.members and self.region not in self.not_voting else []
        recent = len(votes)
        for peer in self.peers.values():
            if peer.counts and peer.region in self.members and peer.region not in self.not_voting:
                votes.append(peer.verified)
                recent += peer.last_taken_ms >= now_ms - 3 * self.heartbeat_ms
        need = majority(len(self.members))
        if recent >= need:
            self.last_majority_ms = now_ms
        if len(votes) < need:
            return None
        offset = sorted(votes, reverse=True)[need - 1]
        if offset < self.start_offset or offset <= self.committed:
            return None
        self.committed = offset
        return offset

    def held_without(self, region: str) -> bool:
        """Whether a majority of the members holds all that is committed, `region` left out: then its store may be begun anew."""
        votes = [self.tail] if self.region in self.members else []
        votes += [p.verified for p in self.peers.values() if p.counts and p.region in self.members and p.region != region]
        need = majority(len(self.members))
        return len(votes) >= need and sorted(votes, reverse=True)[need - 1] >= self.committed

    def leave_out(self, region: str, now_ms: int) -> bool:
        """Count `region` no more in this epoch, since its store is to be begun anew; False, and nothing is changed, where
        without it no majority holds all that is committed. What it has said to hold, and what is under way, may be gone in a moment."""
        if not self.held_without(region):
            return False
        peer = self.peers.get(region)
        if peer is not None:
            peer.leaving, peer.amnesiac, peer.counts, peer.streaming, peer.verified, peer.taken = True, True, False, False, 0, 0
            peer.in_flight.clear()
            peer.not_before_ms = now_ms + BACKOFF_MAX_MS
        return True

    def memories(self) -> dict[str, Peer]:
        """What to write beside the data, here and at every receiver: the most heard of each region."""
        result = {peer.region: peer.memory for peer in self.peers.values()}
        result[self.region] = Peer(self.epoch, self.tail)
        return result


class RequestNumbers:
    """A counter of requests; each attempt to send has a number of its own."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last
