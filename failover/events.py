"""Events that the shard machine hears (past facts) and actions that it asks for (imperatives).

Every event carries `now_ms`, a monotonic clock reading. Answers carry the `request` number of the action
they answer; the machine drops answers to requests that it has given up. `None` as an answer means that
none came in time: the outcome is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from journal.ports import Accepted, Granted, JournalStatus, Peer, Position, Refused


class Role(StrEnum):
    """What a region's shard actor is doing for its shard; `status` shows these words."""

    BOOTING = "booting"
    FOLLOWER = "follower"
    PROBING = "probing"
    SEALING = "sealing"
    ADOPTING = "adopting"
    STARTING = "starting"
    CATCHING_UP = "catching_up"
    AUTHORITY = "authority"
    DRAINING = "draining"
    DRAINED = "drained"
    ASIDE = "standing_aside"
    AMNESIAC = "amnesiac"
    HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A past fact, heard at `now_ms` (monotonic milliseconds)."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time passed. `token` is fresh randomness for an attempt, `jitter` lies in [0, 1)."""

    token: str
    jitter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationAsked(Event):
    """An operator, a handover or a readmission wants this region to own the shard.

    `expect` is the (epoch, owner) that is to be deposed; without it, whatever Probe shows is deposed.
    `readmit` maps a region to its new incarnation, to be written into the members of the new epoch.
    """

    cause: str
    asked_by: str
    token: str
    expect: tuple[int, str] | None = None
    readmit: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed(Event):
    """A region's answer to `Probe`."""

    request: int
    region: str
    status: JournalStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAnswered(Event):
    """A region's answer to `SendSeal`."""

    request: int
    region: str
    answer: Granted | Refused | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """`Adopt` ended: the own tail is now `tail`, or None if it failed half-way (the log is a prefix of the adopted one)."""

    request: int
    tail: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAppended(Event):
    """The own store's answer to an append of ours (the epoch-start record, or a batch). `request`: its number, 0 if it has none."""

    epoch: int
    answer: Accepted | Refused | None
    request: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmAsked(Event):
    """Somebody wants to know that no other epoch has begun: that a majority still takes what is sent with a higher number than `above`."""

    epoch: int
    above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswered(Event):
    """A region's answer to `SendAppend`."""

    request: int
    region: str
    epoch: int
    answer: Accepted | Refused | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewAnswered(Event):
    """A region's answer to `SendRenew`."""

    request: int
    region: str
    epoch: int
    answer: Granted | Refused | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCaughtUp(Event):
    """The ledger has folded everything up to `offset`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked(Event):
    """The coordinator of a planned handover asks the authority of `epoch` to stop accepting."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAppended(Event):
    """The handover record is the last entry of the epoch, at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An imperative for the shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Action):
    """Read the status of these regions' stores (the own one included when named).

    With `silence` every region's acceptor is asked, the own one too: only it knows when the authority was last heard.
    """

    request: int
    regions: tuple[str, ...]
    silence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSeal(Action):
    """Ask these regions' stores to promise `epoch` to this region and `attempt`."""

    request: int
    regions: tuple[str, ...]
    epoch: int
    attempt: str
    from_epoch: int
    from_owner: str
    lineage: str
    config_version: int
    #: Region -> token to take at genesis.
    admit_as: Mapping[str, str]
    #: Region -> what was heard of its store.
    remembered: Mapping[str, Peer]
    #: The own store must be sealed through its acceptor too, which may have promised not to.
    leased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt(Action):
    """Make the own log that of `source`: cut above `keep`, copy offsets keep+1..last. The own tail must be `expected`."""

    request: int
    source: str
    epoch: int
    attempt: str
    expected: Position
    keep: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStart(Action):
    """Append the epoch-start record as the entry after `expected`."""

    mode: str
    epoch: int
    attempt: str
    expected: Position
    from_epoch: int
    from_owner: str
    cause: str
    asked_by: str
    members: Mapping[str, str]
    config_version: int
    lineage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAppend(Action):
    """Ship own entries first..last (none when last < first: a heartbeat) to `region`, after the entry at first-1."""

    request: int
    region: str
    epoch: int
    attempt: str
    first: int
    last: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRenew(Action):
    """Ask a region's acceptor for a promise of `lease_ms` (`local` shards only)."""

    request: int
    region: str
    epoch: int
    attempt: str
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpLease(Action):
    """Tell these regions that nothing is acknowledged under this attempt any more. Nobody waits for their answers."""

    regions: tuple[str, ...]
    epoch: int
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMoved(Action):
    """Everything up to `offset` is committed: tell the own store, answer what waited for it."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed(Action):
    """A majority of the stores has taken Appends of this epoch that have at least this number: `ConfirmAsked` is answered."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp(Action):
    """Fold the ledger up to `offset`, then report `LedgerCaughtUp`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve(Action):
    """The epoch is started and the ledger is there: decide and answer."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown(Action):
    """Stop deciding and answering; what waits for a commit gets `unknown`. Nothing is cut."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAccepting(Action):
    """Drain: refuse new events, let what is in flight end, append the handover record, report `DrainAppended`."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainDone(Action):
    """The handover record at `offset` is committed."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkAmnesiac(Action):
    """The own store, which has the token `incarnation`, has lost data: remember that durably."""

    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationEnded(Action):
    """Answer whoever asked: `ok`, or why not. `code` is `started`, `moved`, `no_majority`, `superseded`, ..."""

    ok: bool
    code: str
    detail: str
    cause: str = ""
    asked_by: str = ""
    #: Of an activation that started: how long each of its phases took.
    phases_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit(Action):
    """A newer instance of this very actor owns the shard, or an invariant is broken: this process must end."""

    why: str
