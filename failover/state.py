"""What one region's machine remembers of one shard, in memory only: nothing here must survive the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from failover.activation import Plan
from failover.events import Role
from failover.replication import Replication, RequestNumbers
from journal.ports import JournalStatus, Peer, Position
from journal.records import Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations of the protocol in milliseconds. None of them takes part in safety."""

    heartbeat_ms: int = 100
    probe_timeout_ms: int = 1000
    #: Once a majority has answered, how long the others are waited for.
    grace_ms: int = 150
    seal_restart_ms: int = 1000
    #: How long a follower rests before it looks again. A start record of its own region may have become durable after it
    #: looked (an append of its last life that was under way); everyone else follows that, so it must find it by itself.
    rest_ms: int = 10_000
    handover_timeout_ms: int = 10_000
    backoff_min_ms: int = 200
    backoff_max_ms: int = 30_000
    #: So many failed activations within the window make the region stand aside.
    aside_failures: int = 5
    aside_window_ms: int = 300_000


@dataclass(slots=True)
class Attempt:
    """One activation under way."""

    cause: str
    asked_by: str
    token: str
    expect: tuple[int, str] | None
    readmit: Mapping[str, str]
    began_ms: int
    request: int = 0
    majority_since_ms: int | None = None
    plan: Plan | None = None
    answers: dict[str, JournalStatus] = field(default_factory=dict)
    #: What an earlier round of Probe remembered of the regions; None while there was none.
    remembered: Mapping[str, Peer] | None = None
    silent: set[str] = field(default_factory=set)
    #: Statuses of the regions that granted the seal.
    grants: dict[str, JournalStatus] = field(default_factory=dict)


@dataclass(slots=True)
class ShardState:
    """Everything one region's machine remembers in memory; nothing of it must survive the process."""

    region: str
    shard: str
    home: str
    regions: tuple[str, ...]
    timing: Timing = field(default_factory=Timing)
    role: Role = Role.BOOTING
    #: Epoch and attempt under which this process sealed last, and the own log as far as it is known.
    epoch: int = 0
    attempt: str = ""
    terms: list[Term] = field(default_factory=list)
    tail: Position = Position(0, 0)
    committed: int = 0
    trying: Attempt | None = None
    replication: Replication | None = None
    requests: RequestNumbers = field(default_factory=RequestNumbers)
    #: When to look again whether the shard is this region's to serve; None while it looks, or serves.
    look_at_ms: int | None = 0
    #: Since when the current failure streak backs off.
    backoff_ms: int = 0
    failed_ms: list[int] = field(default_factory=list)
    drained_ms: int = 0
    drain_offset: int = 0
    #: The newest started epoch that this machine has heard of, for status and for refusals.
    newest_epoch: int = 0
    newest_owner: str = ""
    why: str = "booting"

    def own_status(self) -> JournalStatus:
        """The own log, as far as the machine knows it (enough for `last_common`)."""
        return JournalStatus(shard=self.shard, tail=self.tail, terms=self.terms)
