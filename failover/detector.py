"""Whether the authority's region is lost, and whose turn it is to take over (`on_region_loss: promote`). Pure.

A region is lost when a majority of the members has seen no progress from it for the detection time. Progress is what an
authority's heartbeats say of its last round with a majority, so one that is heard and hears nobody makes none. None of
this decides safety: a detector that errs costs a pause, since whoever it starts must seal like everyone else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from failover.logs import majority, newest_started
from journal.ports import JournalStatus

#: At most one automatic failover a shard in this time.
PAUSE_MS = 300_000
#: A follower looks this many times within the detection time.
LOOKS = 4


@dataclass(slots=True)
class Heard:
    """When one region's acceptor last heard of an authority's progress; an epoch that it hears of first has all its time before it."""

    at_ms: int
    epoch: int = 0

    def append(self, epoch: int, since_majority_ms: int, now_ms: int) -> None:
        """An Append of `epoch` was taken; its sender's last round with a majority ended `since_majority_ms` ago."""
        if epoch > self.epoch:
            self.epoch, self.at_ms = epoch, now_ms
        elif epoch == self.epoch:
            self.at_ms = max(self.at_ms, now_ms - since_majority_ms)

    def silent_ms(self, now_ms: int) -> int:
        """Since when nothing was heard; at most as long as this acceptor lives."""
        return max(0, now_ms - self.at_ms)


@dataclass(frozen=True, slots=True)
class Lost:
    """The authority `owner` of `epoch` is lost; this region is candidate number `rank`, the first is 0."""

    epoch: int
    owner: str
    rank: int


@dataclass(slots=True)
class Detector:
    """One follower's view. `detection_ms` 0: it never looks (`hold`)."""

    detection_ms: int = 0
    next_ms: int = 0
    request: int = 0
    answers: dict[str, JournalStatus] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    #: Since when it has been found lost, by every look since.
    since_ms: int | None = None
    #: When the epoch that is known as the newest was started automatically; None where it was not.
    automatic_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Whether to look now; counted as looked."""
        if not self.detection_ms or now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + max(1, self.detection_ms // LOOKS)
        return True

    def turn(self, lost: Lost | None, now_ms: int) -> bool:
        """Whether this region is to take over now; candidate n waits n times the detection time first."""
        if lost is None or (self.automatic_ms is not None and now_ms - self.automatic_ms < PAUSE_MS):
            self.since_ms = None
            return False
        if self.since_ms is None:
            self.since_ms = now_ms
        return now_ms - self.since_ms >= lost.rank * self.detection_ms


def find_lost(region: str, regions: tuple[str, ...], answers: Mapping[str, JournalStatus], detection_ms: int) -> Lost | None:
    """What the regions that answered say together; None unless the authority is lost and `region` may take over.

    Candidates are the members that answer, the most advanced log first, ties in the order of the file.
    """
    newest = newest_started(answers.values())
    if newest is None or newest.owner == region or region not in newest.members:
        return None
    others = [r for r in regions if r in answers and r in newest.members and r != newest.owner]
    quiet = [r for r in others if answers[r].silent_ms >= detection_ms]
    if region not in quiet or len(quiet) < majority(len(newest.members)):
        return None
    able = [r for r in others if not answers[r].amnesiac and answers[r].incarnation == newest.members[r]]
    if region not in able:
        return None
    ahead = sorted(able, key=lambda r: (-answers[r].tail.epoch, -answers[r].tail.offset, regions.index(r)))
    return Lost(newest.epoch, newest.owner, ahead.index(region))
