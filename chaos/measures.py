"""What a run measured, from its history: write pauses by kind of fault, and how reads fared in every region."""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from chaos.checker import RECORDED
from chaos.history import Answered, Closed, End, FaultLine, Line, Read, Run

#: Share of reads that some region must answer.
OBJECTIVE = 0.999


class FaultFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault. A pause is the longest time without any acknowledgement while a fault lasts, in milliseconds."""

    done: int
    #: Of them, those whose victim was not back in time.
    slow: int
    #: Could not be done when their time came; they count nowhere else.
    failed: int
    pause_p50_ms: int
    pause_max_ms: int
    #: Those with no other fault during them or their pause: what this kind does by itself.
    alone: int
    pause_alone_p50_ms: int
    pause_alone_max_ms: int


class ReadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Reads of one sort. `age_ms` is how long before the answer its generation was published, as the region says."""

    asked: int
    answered: int
    availability: float
    age_p50_ms: int
    age_p99_ms: int
    age_max_ms: int
    #: The longest time without an answered read, in milliseconds.
    gap_max_ms: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a run."""

    seconds: float
    faults: dict[str, FaultFigures]
    faults_done: int
    #: Faults that began while another lasted, and the most at once.
    faults_overlapping: int
    faults_at_once: int
    #: Batches sent, and answers that left something unknown or refused.
    batches: int
    batches_unknown: int
    batches_refused: int
    write_pause_max_ms: int
    #: Reads of a region alone, by region.
    own_reads: dict[str, ReadFigures]
    #: Reads that may fall back on other regions, all readers together.
    any_reads: ReadFigures
    objective_met: bool


@dataclass(slots=True)
class _Reads:
    asked: int = 0
    answered_at: "array[float]" = field(default_factory=lambda: array("d"))
    ages: "array[int]" = field(default_factory=lambda: array("q"))

    def take(self, line: Read) -> None:
        self.asked += 1
        if line.generation >= 0:
            self.answered_at.append(line.t)
            self.ages.append(line.age_ms)

    def figures(self) -> ReadFigures:
        ages = sorted(self.ages)
        return ReadFigures(
            asked=self.asked,
            answered=len(ages),
            availability=round(len(ages) / self.asked, 6) if self.asked else 0.0,
            age_p50_ms=_share(ages, 0.5),
            age_p99_ms=_share(ages, 0.99),
            age_max_ms=ages[-1] if ages else 0,
            gap_max_ms=round(max((b - a for a, b in pairwise(sorted(self.answered_at))), default=0.0) * 1000),
        )


@dataclass(slots=True)
class Measures:
    """Takes lines one after the other; `figures` at the end. Memory: 16 bytes a read, 8 an acknowledged batch."""

    _acknowledged: "array[float]" = field(default_factory=lambda: array("d"))
    _begun: dict[int, FaultLine] = field(default_factory=dict)
    #: (name, begun, ended, slow)
    _done: list[tuple[str, float, float, bool]] = field(default_factory=list)
    _failed: Counter[str] = field(default_factory=Counter)
    _own: dict[str, _Reads] = field(default_factory=lambda: defaultdict(_Reads))
    _any: _Reads = field(default_factory=_Reads)
    _batches: Counter[str] = field(default_factory=Counter)
    _seconds: float = 0.0

    def feed(self, number: int, line: Line) -> None:
        """Take the next line."""
        match line:
            case Answered():
                outcomes = {result.outcome for result in line.results}
                self._batches["sent"] += 1
                self._batches["unknown"] += "unknown" in outcomes
                self._batches["refused"] += "refused" in outcomes
                if outcomes & RECORDED:
                    self._acknowledged.append(line.t)
            case Read():
                (self._own[line.reader] if line.scope == "own" else self._any).take(line)
            case FaultLine():
                self._fault(line)
            case Closed():
                self._seconds = line.t
            case End() if not self._seconds:
                self._seconds = line.t
            case Run():
                for region in line.regions:
                    self._own[region] = _Reads()

    def _fault(self, line: FaultLine) -> None:
        if line.phase == "begun":
            self._begun[line.id] = line
            return
        begun = self._begun.pop(line.id, line)
        if line.phase == "failed":
            self._failed[line.name] += 1
        else:
            self._done.append((line.name, begun.t, line.t, line.phase == "slow"))

    def figures(self) -> Figures:
        """All that was measured."""
        times = sorted(self._acknowledged)
        names = sorted({name for name, *_ in self._done} | self._failed.keys())
        any_reads = self._any.figures()
        changes = sorted([(begun, 1) for _, begun, _, _ in self._done] + [(ended, -1) for _, _, ended, _ in self._done])
        at_once, most, overlapping = 0, 0, 0
        for _, change in changes:
            overlapping += change > 0 and at_once > 0
            at_once += change
            most = max(most, at_once)
        return Figures(
            seconds=round(self._seconds, 1),
            faults={name: self._of_kind(name, times) for name in names},
            faults_done=len(self._done),
            faults_overlapping=overlapping,
            faults_at_once=most,
            batches=self._batches["sent"],
            batches_unknown=self._batches["unknown"],
            batches_refused=self._batches["refused"],
            write_pause_max_ms=round(max((b - a for a, b in pairwise(times)), default=0.0) * 1000),
            own_reads={region: reads.figures() for region, reads in self._own.items()},
            any_reads=any_reads,
            objective_met=any_reads.availability >= OBJECTIVE,
        )

    def _of_kind(self, name: str, times: Sequence[float]) -> FaultFigures:
        mine = [(begun, ended, slow) for found, begun, ended, slow in self._done if found == name]
        gaps = [(longest_gap(times, begun, ended), begun, ended) for begun, ended, _ in mine]
        pauses = sorted(_ms(gap) for gap, _, _ in gaps)
        alone = sorted(_ms(gap) for gap, begun, ended in gaps if self._alone(min(gap[0], begun), max(gap[1], ended)))
        return FaultFigures(
            done=len(mine),
            slow=sum(slow for _, _, slow in mine),
            failed=self._failed[name],
            pause_p50_ms=_share(pauses, 0.5),
            pause_max_ms=pauses[-1] if pauses else 0,
            alone=len(alone),
            pause_alone_p50_ms=_share(alone, 0.5),
            pause_alone_max_ms=alone[-1] if alone else 0,
        )

    def _alone(self, begun: float, ended: float) -> bool:
        return sum(other_begun <= ended and begun <= other_ended for _, other_begun, other_ended, _ in self._done) == 1


def longest_gap(times: Sequence[float], begun: float, ended: float) -> tuple[float, float]:
    """The two neighbours of `times` (sorted) furthest apart whose gap meets the span from `begun` to `ended`; twice `begun` for none."""
    first = max(0, bisect_left(times, begun) - 1)
    last = min(len(times), bisect_left(times, ended) + 1)
    return max(pairwise(times[first:last]), key=lambda pair: pair[1] - pair[0], default=(begun, begun))


def _ms(gap: tuple[float, float]) -> int:
    return round((gap[1] - gap[0]) * 1000)


def _share(ordered: Sequence[int], share: float) -> int:
    """The value that this share of them does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
