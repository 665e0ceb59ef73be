"""What one region's machine remembers of one shard, in memory only: nothing here must survive the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from failover.activation import Plan
from failover.detector import Detector
from failover.events import Role
from failover.lease import Lease
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
    #: `on_region_loss: promote`: after so long without progress a region is lost. 0 for `hold`: nobody looks.
    detection_ms: int = 0
    #: `ack: local`: how long the authority may acknowledge alone after a renewal was sent.
    lease_ms: int = 1500
    #: `ack: local`: how long the store of the old owner is waited for, which may be alive although its Ray is not.
    seal_grace_ms: int = 500


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
    #: Regions to seal once the own store is sealed (an owner's restart under a lease).
    held_back: tuple[str, ...] = ()
    #: Region -> when to seal again there: it has promised the present authority not to, until then.
    again_ms: dict[str, int] = field(default_factory=dict)
    #: When each phase began.
    phases: dict[str, int] = field(default_factory=dict)

    def lasted(self, now_ms: int) -> dict[str, int]:
        """Phase -> how long it took, the last one until `now_ms`."""
        names = list(self.phases)
        ends = [*(self.phases[name] for name in names[1:]), now_ms]
        return {name: end - self.phases[name] for name, end in zip(names, ends, strict=True)}


@dataclass(slots=True)
class ShardState:
    """Everything one region's machine remembers in memory; nothing of it must survive the process."""

    region: str
    shard: str
    home: str
    regions: tuple[str, ...]
    timing: Timing = field(default_factory=Timing)
    #: `quorum` or `local`: written into the epochs that this region starts.
    mode: str = "quorum"
    role: Role = Role.BOOTING
    #: Epoch and attempt under which this process sealed last, and the own log as far as it is known.
    epoch: int = 0
    attempt: str = ""
    terms: list[Term] = field(default_factory=list)
    tail: Position = Position(0, 0)
    committed: int = 0
    trying: Attempt | None = None
    replication: Replication | None = None
    #: `local` only, from the start of the own epoch to its end.
    lease: Lease | None = None
    detector: Detector = field(default_factory=Detector)
    requests: RequestNumbers = field(default_factory=RequestNumbers)
    #: When to look again whether the shard is this region's to serve; None while it looks, or serves.
    look_at_ms: int | None = 0
    #: Since when the current failure streak backs off.
    backoff_ms: int = 0
    failed_ms: list[int] = field(default_factory=list)
    #: After a failure: before then this region does not try by itself.
    retry_ms: int = 0
    drained_ms: int = 0
    drain_offset: int = 0
    #: The newest started epoch that this machine has heard of, for status and for refusals.
    newest_epoch: int = 0
    newest_owner: str = ""
    why: str = "booting"

    def __post_init__(self) -> None:
        self.detector.detection_ms = self.timing.detection_ms

    def own_status(self) -> JournalStatus:
        """The own log, as far as the machine knows it (enough for `last_common`)."""
        return JournalStatus(shard=self.shard, tail=self.tail, terms=self.terms)
