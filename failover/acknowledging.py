"""Up to where the authority of an epoch may answer. Pure; the shell keeps one for each epoch that it serves.

`quorum`: what is committed. `local`: also what the own store holds, while the lease is valid, seen both before the append
was sent and right before the answer leaves.
"""

from dataclasses import dataclass

from failover.lease import Lease


@dataclass(slots=True)
class Acknowledging:
    """`lease` None: only what is committed counts. Once `deposed`, nothing more than was committed by then."""

    committed: int = 0
    lease: Lease | None = None
    #: Highest offset whose append was sent and answered under a valid lease.
    held: int = 0
    deposed: bool = False

    def leased(self, now_ms: int) -> bool:
        """Whether an append that is sent now may be acknowledged by the own store alone."""
        return self.lease is not None and not self.deposed and self.lease.valid(now_ms)

    def commit(self, offset: int) -> None:
        """A majority holds everything up to `offset`."""
        if not self.deposed:
            self.committed = max(self.committed, offset)

    def hold(self, offset: int, *, leased_before: bool, now_ms: int) -> bool:
        """The own store holds `offset`, whose append was sent while `leased_before`; True if that moves what may be answered."""
        if not leased_before or not self.leased(now_ms) or offset <= self.held:
            return False
        self.held = offset
        return True

    def may_answer(self, offset: int, now_ms: int) -> bool:
        """Whether an answer that rests on `offset` may leave now (I12)."""
        return offset <= self.committed or (offset <= self.held and self.leased(now_ms))

    def depose(self) -> None:
        """The authority has stepped down."""
        self.deposed = True
