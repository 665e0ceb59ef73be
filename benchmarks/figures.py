"""What a benchmark says: one figure a line, and the arithmetic behind it. Pure."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

#: Another rung of the ladder must bring at least this much more to be worth its latency.
KNEE_GAIN = 1.05


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value; the peer's was measured in the same call. `ratio` is value / peer_value, whichever is better."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    goal: float | None = None
    goal_met: bool | None = None


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    peer: str | None = None,
    peer_value: float | None = None,
    goal: float | None = None,
    lower_is_better: bool = False,
) -> Figure:
    """A figure with ratio and verdict; a goal is met by reaching it, where lower is better only by staying below it."""
    met = None if goal is None else value < goal if lower_is_better else value >= goal
    return Figure(
        name=name,
        value=_rounded(value),
        unit=unit,
        peer=peer if peer_value is not None else None,
        peer_value=None if peer_value is None else _rounded(peer_value),
        ratio=_rounded(value / peer_value) if peer_value else None,
        goal=goal,
        goal_met=met,
    )


def _rounded(value: float) -> float:
    """Four digits that count; more would claim a precision that no run has."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, 3 - math.floor(math.log10(abs(value))))


def line(row: Figure) -> str:
    """One JSON object; a value that is no number (nothing was measured) is null."""
    return msgspec.json.encode(row).decode()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank); nan of none."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle value, the mean of the middle two of an even number; nan of none."""
    if not values:
        return math.nan
    ranked = sorted(values)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


class Rung(NamedTuple):
    """One short trial: with how many connections a client process, and what came of it a second."""

    connections: int
    rate: float


def knee(rungs: Sequence[Rung]) -> int:
    """The connections beyond which more load brings no more throughput: the first rung that the next does not beat by `KNEE_GAIN`."""
    for here, above in itertools.pairwise(rungs):
        if above.rate < here.rate * KNEE_GAIN:
            return here.connections
    return rungs[-1].connections


def climbing(rungs: Sequence[Rung]) -> bool:
    """Whether another rung is worth a trial."""
    return len(rungs) < 2 or rungs[-1].rate >= rungs[-2].rate * KNEE_GAIN


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """Longest time within [since, until] that holds none of `times`."""
    marks = [since, *sorted(t for t in times if since < t < until), until]
    return max(b - a for a, b in itertools.pairwise(marks))
