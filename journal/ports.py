"""The journal port: one shard's durable state at one region's store, and the messages that change it.

Every operation is one atomic step at the store. Expected refusals are return values (`Refused`), each
with the store's whole status, so that the sender learns the newest epoch known, its owner and the tail.

Errors:
    JournalError
    └── JournalUnavailable   no answer in time, or the connection broke. Indefinite: it may have happened.
    └── JournalMisconfigured the store would not keep what it acknowledges. Definite; says what to change.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import msgspec

from journal.records import Entry, Term

__all__ = ["Entry", "Term"]


class JournalError(Exception):
    """Base of this package's errors."""

    code: ClassVar[str] = "journal"
    definite: ClassVar[bool] = False


class JournalUnavailable(JournalError):
    """No answer in time. Indefinite: re-read the status, or take a new epoch."""

    code = "store_unavailable"


class JournalMisconfigured(JournalError):
    """The store lacks a setting that durability rests on; the message says which and how to mend it."""

    code = "store_misconfigured"
    definite = True


class Position(NamedTuple):
    """Place of an entry; logs compare by (last epoch, last offset), never by length alone. (0, 0) is the empty log."""

    epoch: int
    offset: int


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """The most that was ever heard of a region's store: `verified` counts under `fence`; pairs compare as (fence, verified).

    A store that later answers a lower (fence, tail offset) has lost data: `amnesiac`, which only readmission clears.
    """

    fence: int = 0
    verified: int = 0
    amnesiac: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        """What memories are compared by."""
        return self.fence, self.verified


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a store durably knows of one shard."""

    shard: str
    #: Random token written when this store was admitted; "" means never admitted.
    incarnation: str = ""
    #: Highest epoch promised (I6), and the one activation it was granted to.
    fence: int = 0
    granted_region: str = ""
    granted_attempt: str = ""
    #: Entries at or below `base` are trimmed away.
    base: int = 0
    tail: Position = Position(0, 0)
    #: Highest offset known to be held by a majority. committed <= tail.offset.
    committed: int = 0
    #: Started epochs whose first entry is in this journal, ascending by epoch and by first_offset.
    terms: list[Term] = []
    #: What this store remembers of the other regions.
    peers: dict[str, Peer] = {}
    #: This store was found to have lost data; it neither votes nor counts until readmitted.
    amnesiac: bool = False
    #: Longest lease that was promised at this store under its present fence; 0 where none was.
    lease_ms: int = 0
    #: Since when its region has heard of no progress of the authority, in ms; -1 where nobody has looked (a store cannot know).
    silent_ms: int = -1
    #: The newest epoch that its region has heard an authority of; 0 where none was since it began to listen.
    silent_epoch: int = 0

    @property
    def newest(self) -> Term | None:
        """The newest started epoch in this journal."""
        return self.terms[-1] if self.terms else None

    @property
    def lineage(self) -> str:
        """Lineage of the newest started epoch, "" before genesis."""
        return self.terms[-1].lineage if self.terms else ""

    def epoch_at(self, offset: int) -> int:
        """Epoch of the entry at `offset` (0 for offset 0). The caller keeps to 0 <= offset <= tail.offset."""
        for term in reversed(self.terms):
            if term.first_offset <= offset:
                return term.epoch
        return 0


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Authority -> another region's store. Empty `entries` make it the heartbeat."""

    shard: str
    lineage: str
    config_version: int
    sender: str
    incarnation: str
    request_id: str
    epoch: int
    attempt: str
    #: Position of the entry just before `entries`; the receiver must hold exactly it.
    prev: Position
    entries: list[Entry] = []
    committed: int = 0
    #: What the authority knows of every region's store; receivers keep the maximum.
    peers: dict[str, Peer] = {}
    #: Milliseconds since the sender's last completed round with a majority.
    since_majority_ms: int = 0


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Coordinator -> a region's store: promise `epoch` to (`target`, `attempt`) and refuse every lower one."""

    shard: str
    lineage: str
    config_version: int
    sender: str
    incarnation: str
    request_id: str
    epoch: int
    target: str
    attempt: str
    #: The started epoch that is to be deposed, and its owner; (0, "") at genesis.
    from_epoch: int
    from_owner: str
    #: At genesis only: the token that a store which was never admitted takes as its incarnation.
    admit_as: str = ""
    #: The most that the coordinator knows to have been heard of this very store.
    remembered: Peer = Peer()
    #: Set by the region's acceptor, which knows what it has promised; "" from a process that comes past it.
    acceptor: str = ""


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """Authority of a `local` shard -> another region's acceptor: promise not to seal for another region for a while.

    `lease_ms` is how long the holder will count from the moment it sent this; 0 gives the lease up.
    """

    shard: str
    sender: str
    request_id: str
    epoch: int
    attempt: str
    lease_ms: int


Reason = Literal[
    "fenced",  # a higher epoch, or another attempt of this one, has been promised
    "moved",  # Seal: a newer epoch than `from` has started here, or it is another's
    "mismatch",  # `prev` is not in this journal (or the own tail is not the expected one)
    "diverged",  # a broken invariant: same (epoch, offset) with another digest, or a cut at or below `committed`
    "lineage",  # another lineage
    "stale_config",  # the sender's config version is older than the newest started epoch's
    "not_admitted",  # this store has no incarnation token
    "amnesiac",  # this store is known to have lost data
    "leased",  # Seal: the region has promised the present authority not to seal yet; `wait_ms` says how long still.
    # Renew: another region waits to seal here, so no promise is made longer.
    "superseded",  # Renew, and Seal under a lease: it did not come through the region's present acceptor
]


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The store did it, durably. `verified` = prev.offset + len(entries): only that counts as held."""

    verified: int
    committed: int
    fence: int
    tail: Position
    incarnation: str


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    """The seal is durable (or the lease holds); `status` is read in the same step."""

    status: JournalStatus


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Nothing was appended or cut; `status` is read in the same step."""

    reason: Reason
    status: JournalStatus
    #: `leased` only.
    wait_ms: int = 0


class OrphanBatch(msgspec.Struct, frozen=True):
    """Entries of a deposed authority that the lineage does not hold, oldest first."""

    epoch: int
    entries: list[Entry]


class Journal(Protocol):
    """One shard's journal at one store. All methods may raise `JournalUnavailable` (indefinite)."""

    async def status(self) -> JournalStatus:
        """Read everything but the entries. Cost: one round trip, O(started epochs)."""
        ...

    async def append(
        self,
        *,
        epoch: int,
        attempt: str,
        expected: Position,
        entries: Sequence[Entry],
        committed: int,
        peers: dict[str, Peer],
    ) -> Accepted | Refused:
        """The authority's own append: all entries become durable or none do.

        Refuses `fenced` unless fence = epoch and it was granted to `attempt`; `mismatch` unless the tail is
        `expected`. It never cuts. The same batch ids already at the tail (a retry) count as success.
        With no entries it only moves `committed` (clamped to the tail) and `peers` (each to its maximum).
        """
        ...

    async def accept(self, message: Append) -> Accepted | Refused:
        """Apply an authority's `Append` by the rules of the protocol; a conflicting suffix moves to the orphans in the same step.

        A store that stands below what the message says was heard of it (`peers`) has lost data: it marks itself and refuses.
        """
        ...

    async def seal(self, message: Seal) -> Granted | Refused:
        """Raise the fence if this activation may have it; durable before the answer. Below `remembered`: as in `accept`."""
        ...

    async def take_acceptor(self, token: str) -> JournalStatus:
        """From now on only the acceptor with this token may have leases renewed here."""
        ...

    async def renew(self, *, epoch: int, attempt: str, acceptor: str, lease_ms: int) -> Granted | Refused:
        """Whether an authority may have a lease: `fenced` unless fence = epoch, granted to `attempt`; `superseded` for another acceptor.

        Keeps the longest `lease_ms` of the epoch durably, so that the next acceptor knows how long it must wait.
        """
        ...

    async def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        """Target's own step: cut everything above offset `keep` to the orphans and append `entries`, in one step.

        Refuses `fenced` unless fence = epoch and it was granted to `attempt`, `mismatch` unless the tail is
        `expected`, `diverged` when keep < committed.
        """
        ...

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        """Entries from offset `first` on, in order, as many as fit (at least one if there is one); [] past the tail."""
        ...

    async def orphans(self) -> list[OrphanBatch]:
        """All orphaned entries, by the epoch in which they were appended."""
        ...

    async def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        """Delete the orphans of `epoch` from `from_offset` to `upto_offset`; how many stored copies went, 0 when it is repeated.

        Only an operator's sign-off asks for it, once its audit record is committed (I5). One step at the store.
        Cost: O(orphans of that epoch).
        """
        ...

    async def mark_amnesiac(self, incarnation: str) -> None:
        """Remember durably that this store has lost data: from now on it neither votes nor counts.

        Nothing happens when the store has another token by now: it was begun anew meanwhile.
        """
        ...

    async def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        """Begin anew under a new token: all entries go to the orphans, the log is empty, the fence is at least `fence` and granted to
        nobody, the mark is gone. With `replaces`, nothing happens unless that is the store's present token and its fence is at most
        `fence`: a late call of an earlier readmission must not empty it again.

        The store counts again only when an epoch has started whose members name the new token.
        """
        ...

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        """Sleep until `committed` exceeds `committed_above` or the time is over; return the current `committed`."""
        ...

    async def close(self) -> None:
        """Give the connection back. Idempotent."""
        ...
