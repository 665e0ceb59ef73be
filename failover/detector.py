"""Whether the authority's region is lost, and whose turn it is to take over (`on_region_loss: promote`). Pure.

A region is lost when a majority of the members has seen no progress from it for the detection time. Progress is what an
authority's heartbeats say of its last round with a majority, so one that is heard and hears nobody makes none. None of
this decides safety: a detector that errs costs a pause, since whoever it starts must seal like everyone else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from failover.lease import promise_ms
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
    """The authority `owner` of `epoch` is lost; this region is candidate number `rank`, the first is 0.

    `lease_ms`: how long its promise may last, where it holds one; nobody can seal before.
    """

    epoch: int
    owner: str
    rank: int
    lease_ms: int = 0


@dataclass(slots=True)
class Detector:
    """One follower's view. `detection_ms` 0: it never looks (`hold`)."""

    detection_ms: int = 0
    #: How much longer an acceptor that has heard no authority at all must have listened before that counts: the regions
    #: of a cluster that starts are not ready at the same moment.
    start_ms: int = 15_000
    next_ms: int = 0
    #: Requests of looks whose answers still count.
    requests: dict[int, int] = field(default_factory=dict)
    #: Region -> (status, when it came); what is older than a detection is forgotten.
    _answers: dict[str, tuple[JournalStatus, int]] = field(default_factory=dict)
    #: The newest epoch that answers have told of, and since when.
    _known: tuple[int, int] = (0, 0)
    #: The (epoch, owner) that is found lost by every look since then.
    _lost: tuple[int, str] = (0, "")
    _since_ms: int = 0
    #: When the epoch that is known as the newest was started automatically; None where it was not.
    automatic_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Whether to look now; counted as looked."""
        if not self.detection_ms or now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + max(1, self.detection_ms // LOOKS)
        self.requests = {request: at for request, at in self.requests.items() if now_ms - at < self.detection_ms}
        return True

    def answered(self, region: str, request: int, status: JournalStatus | None, now_ms: int) -> bool:
        """An acceptor's answer; True if it was asked for by a look. One that comes late says less silence than there is by now."""
        if request not in self.requests:
            return False
        if status is not None:
            self._answers[region] = (status, now_ms)
        return True

    def look(self, region: str, regions: tuple[str, ...], now_ms: int) -> Lost | None:
        """What the answers of the last detection time say together (`find_lost`)."""
        answers = {name: status for name, (status, at) in self._answers.items() if now_ms - at < self.detection_ms}
        newest = newest_started(answers.values())
        if newest is not None and newest.epoch != self._known[0]:
            self._known = (newest.epoch, now_ms)
        return find_lost(region, regions, answers, self.detection_ms, known_ms=now_ms - self._known[1], start_ms=self.start_ms)

    def turn(self, lost: Lost | None, now_ms: int, seal_grace_ms: int = 0) -> bool:
        """Whether this region is to take over now. Candidate n waits n times what the one before it may need."""
        if lost is None or self.pause_ms(now_ms):
            self._lost = (0, "")
            return False
        if self._lost != (lost.epoch, lost.owner):
            self._lost, self._since_ms = (lost.epoch, lost.owner), now_ms
        needed = self.detection_ms + (promise_ms(lost.lease_ms) + seal_grace_ms if lost.lease_ms else 0)
        return now_ms - self._since_ms >= lost.rank * needed

    def pause_ms(self, now_ms: int) -> int:
        """For how long nobody takes over by itself, because the newest epoch was started so."""
        return 0 if self.automatic_ms is None else max(0, self.automatic_ms + PAUSE_MS - now_ms)

    def tried(self) -> None:
        """This region's attempt has begun; if it fails, its turn comes round again."""
        self._lost = (0, "")


def find_lost(
    region: str,
    regions: tuple[str, ...],
    answers: Mapping[str, JournalStatus],
    detection_ms: int,
    *,
    known_ms: int = 0,
    start_ms: int = 0,
) -> Lost | None:
    """What the regions that answered say together; None unless the authority is lost and `region` may take over.

    `known_ms`: for how long the newest epoch among the answers has been known here. `start_ms`: see `Detector`.
    Candidates are the members that answer, the most advanced log first, ties in the order of the file.
    """
    newest = newest_started(answers.values())
    if newest is None or newest.owner == region or region not in newest.members:
        return None
    others = [r for r in regions if r in answers and r in newest.members and r != newest.owner]

    def silent(status: JournalStatus) -> bool:
        if status.silent_epoch >= newest.epoch:
            return status.silent_ms >= detection_ms
        # It has heard nothing of this epoch, which may have begun just now; or of any, and may have begun to listen just now.
        return known_ms >= detection_ms and (status.silent_epoch > 0 or status.silent_ms >= detection_ms + start_ms)

    quiet = [r for r in others if silent(answers[r])]
    if region not in quiet or len(quiet) < majority(len(newest.members)):
        return None
    able = [r for r in others if not answers[r].amnesiac and answers[r].incarnation == newest.members[r]]
    if region not in able:
        return None
    ahead = sorted(able, key=lambda r: (-answers[r].tail.epoch, -answers[r].tail.offset, regions.index(r)))
    return Lost(newest.epoch, newest.owner, ahead.index(region), max(answers[r].lease_ms for r in others))
