"""What the actors need from outside: links to the other regions, and what each actor offers to its gateway.

Every link call returns None when no answer came in time (the outcome is unknown); none of them raises for
that. Implementations live in `regions.links` (HTTP) and in tests.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from actors.messages import Batch, SubmitResult, WireError
from boards.model import BoardRules, Layout, Submission
from failover.state import Timing
from journal.ports import Accepted, Append, Granted, JournalStatus, Refused, Renew, Seal
from journal.records import Entry


class Links(Protocol):
    """This process's way to the regions' acceptors and authorities (its own region's acceptor too)."""

    async def probe(self, region: str, shard: str) -> JournalStatus | None:
        """Read-only status of a region's store."""
        ...

    async def seal(self, region: str, message: Seal) -> Granted | Refused | None:
        """Ask a region's store to promise an epoch."""
        ...

    async def renew(self, region: str, message: Renew) -> Granted | Refused | None:
        """Ask a region's acceptor for a lease, or give it up."""
        ...

    async def append(self, region: str, message: Append) -> Accepted | Refused | None:
        """Ship entries, or a heartbeat."""
        ...

    async def fetch(self, region: str, shard: str, first: int, limit: int) -> list[Entry] | None:
        """Entries of a region's store from offset `first` on."""
        ...

    async def drain(self, region: str, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """Ask the authority in `region` to drain `epoch`; the offset of its committed handover record."""
        ...

    async def readmit(self, region: str, shard: str, incarnation: str, fence: int, replaces: str) -> JournalStatus | None:
        """Begin a region's store anew under a new token, unless its token is no longer the one that is to be replaced."""
        ...

    async def submit(
        self, region: str, shard: str, requests: Sequence[Batch | tuple[str, str, Sequence[Submission]]]
    ) -> list[list[SubmitResult] | WireError] | None:
        """Have the authority in `region` decide requests; one answer each, in order. (board, subject, submissions) is of any life."""
        ...

    async def operate(self, region: str, shard: str, order: dict[str, Any]) -> dict[str, Any] | None:
        """Give an order to the shard actor in `region` (see `actors.orders`); its answer, an `error` in it included."""
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a shard actor; what lies beyond is refused, definitely."""

    unreplicated_entries: int = 2000
    unreplicated_bytes: int = 64 << 20
    unreplicated_ms: int = 10_000
    ack_timeout_ms: int = 5000
    #: Events in one entry at most.
    events_per_entry: int = 2000
    #: While callers share entries, one is begun in each stretch of so many milliseconds at most, down to an eighth of it while the store
    #: is quick; 0: as soon as the one before it is stored.
    group_ms: int = 80


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a shard actor is made from; the same after each restart."""

    region: str
    shard: str
    home: str
    regions: tuple[str, ...]
    store_url: str
    ledger_path: str
    timing: Timing
    limits: Limits
    #: Boards of the configuration that this shard leads, with where their slices are to be made.
    boards: dict[str, tuple[BoardRules, Layout]]
    mode: str = "quorum"
    #: Passed to the factory of links.
    links: dict[str, Any] = {}


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a read replica is made from."""

    region: str
    #: Shard name -> home region.
    shards: dict[str, str]
    store_url: str
    #: Secret that signs cursors; the same in every region, so that answers are the same bytes.
    cursor_key: bytes
