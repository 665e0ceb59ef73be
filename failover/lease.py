"""The lease of a `local` shard, both sides, pure: who may acknowledge what only one store holds, and who must not seal meanwhile.

The holder counts from the moment it *sent* a renewal that a majority granted; a granter counts from its receipt, and
longer, by as much as two clocks may drift apart. Both clocks are monotonic and go on while a machine sleeps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from failover.replication import RequestNumbers

#: How far the rate of a clock may be from true: 10 %.
DRIFT = 0.1
#: Renewals are sent this many times within a lease.
RENEWALS = 3
#: A holder that has not looked at its clock for this part of the lease lets all earlier renewals go.
STALL = 4
#: How long a region that waits to seal is waited for once the promise is over.
TURN_MS = 1000


def promise_ms(lease_ms: int) -> int:
    """How long a granter honours a lease of `lease_ms`: L (1 + drift) / (1 - drift), rounded up."""
    return -int(-lease_ms * (1 + DRIFT) // (1 - DRIFT))


@dataclass(slots=True)
class Lease:
    """The holder's side, for one epoch. Its own region needs no promise: its store's fence stops the holder at once."""

    lease_ms: int
    #: The other regions, and how many of them must have promised.
    peers: tuple[str, ...]
    need: int
    looked_ms: int
    _next_ms: int = 0
    _sent: dict[int, tuple[str, int]] = field(default_factory=dict)
    #: Region -> when the newest renewal that it granted was sent.
    _granted: dict[str, int] = field(default_factory=dict)
    _not_before_ms: int = -1
    given_up: bool = False

    def renewals(self, now_ms: int, take_request: RequestNumbers) -> list[tuple[int, str]]:
        """(request, region) of each renewal to send now, counted as sent. Call this at each tick: it also notices a stall."""
        if self._stalled(now_ms):
            self._not_before_ms = now_ms
        self.looked_ms = now_ms
        if self.given_up or now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + self.lease_ms // RENEWALS
        self._sent = {request: s for request, s in self._sent.items() if s[1] + self.lease_ms > now_ms}
        out = []
        for region in self.peers:
            request = take_request()
            self._sent[request] = (region, now_ms)
            out.append((request, region))
        return out

    def granted(self, request: int) -> None:
        """A region granted this renewal."""
        region, sent_ms = self._sent.pop(request, ("", 0))
        if region:
            self._granted[region] = max(sent_ms, self._granted.get(region, sent_ms))

    def valid(self, now_ms: int) -> bool:
        """Whether what only the own store holds may be acknowledged now."""
        if self.given_up or self._stalled(now_ms):
            return False
        until = self.until_ms()
        return until is None or now_ms < until

    def until_ms(self) -> int | None:
        """End of the lease by this clock; None where no other region has a say."""
        if self.need <= 0:
            return None
        times = sorted((at for at in self._granted.values() if at >= self._not_before_ms), reverse=True)
        return times[self.need - 1] + self.lease_ms if len(times) >= self.need else -1

    def give_up(self) -> None:
        """No local acknowledgement leaves after this."""
        self.given_up = True

    def _stalled(self, now_ms: int) -> bool:
        return now_ms - self.looked_ms > self.lease_ms / STALL


@dataclass(slots=True)
class Promises:
    """The granter's side: what one region's acceptor has promised about one shard, in memory only.

    Whoever takes the acceptor's role over does not know what the last one promised: it begins with the longest promise that
    the store has seen, to whom its fence is granted (`taken_over`).
    """

    #: Holder's region -> (attempt, end of the promise by this clock).
    _held: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: Region that waits to seal here, and until when nothing is promised to others for its sake.
    _wanted: tuple[str, int] = ("", 0)
    #: Holder's region -> attempt that was given up; what it sent before, and comes later, renews nothing.
    _over: dict[str, str] = field(default_factory=dict)

    def taken_over(self, holder: str, attempt: str, lease_ms: int, now_ms: int) -> None:
        """Begin as the region's new acceptor: its store's fence is granted to (`holder`, `attempt`)."""
        if lease_ms and holder:
            self._held[holder] = (attempt, now_ms + promise_ms(lease_ms))

    def renewed(self, holder: str, attempt: str, lease_ms: int, received_ms: int) -> None:
        """The store has found a renewal good that was received at `received_ms`."""
        until = received_ms + promise_ms(lease_ms)
        self._held[holder] = (attempt, max(until, self._held.get(holder, ("", 0))[1]))

    def wanted(self, target: str, now_ms: int) -> None:
        """A Seal for `target`, good but for a promise, was refused: until it has had its turn, no promise is made longer.

        Else an authority that is heard here, but hears nobody, would keep every Seal out for ever without holding a lease.
        """
        self._wanted = (target, now_ms + self.left_ms(target, now_ms) + TURN_MS)

    def may_renew(self, holder: str, attempt: str, now_ms: int) -> bool:
        """Whether a promise to `holder` may be made or made longer now."""
        target, until = self._wanted
        return self._over.get(holder) != attempt and (now_ms >= until or holder == target)

    def given_up(self, holder: str, attempt: str) -> None:
        """The holder has said that it acknowledges nothing any more under this attempt."""
        self._over[holder] = attempt
        if self._held.get(holder, ("", 0))[0] == attempt:
            del self._held[holder]

    def left_ms(self, target: str, now_ms: int) -> int:
        """For how long no Seal for `target` may be granted; 0 when it may. A holder's own region seals its own store first."""
        return max([until - now_ms for holder, (_, until) in self._held.items() if holder != target and until > now_ms], default=0)


def needed(members: Iterable[str], region: str, majority: int) -> int:
    """How many other regions must have promised: a majority of the members, the holder's own region counted."""
    return majority - (region in set(members))
