"""What the nemesis means to do, drawn from a seed: which fault, aimed at whom, for how long, and how soon the next.

Pure. The aim is a role (the owner, another region), since who owns the shard is known only when the time comes. The same
seed and kinds give the same plan; real processes do not repeat, so a run's history says what came of it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from boards.errors import InvalidInput

Aim = Literal["owner", "other", "any"]
Hurt = Literal["region", "links", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault. `weight` says how often it is drawn, beside the others; lengths are seconds."""

    name: str
    weight: int
    shortest_s: float
    longest_s: float
    #: What it takes away: a region's reads, links between regions, or nothing by itself.
    hurts: Hurt


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault to come: `pause_s` after the one before it began."""

    number: int
    kind: Kind
    aim: Aim
    length_s: float
    pause_s: float
    #: For choices that the fault makes by itself: the other end of a link, a delay.
    dice: int


#: A killed part is back when its supervisor has brought it back: a kill has no length of its own.
_KILLED = {"shard": 7, "store": 7, "gateway": 7, "replica": 7, "gcs": 3, "raylet": 3, "supervisor": 1, "region": 3}
_STOPPED = {"shard": 5, "store": 5, "gateway": 4, "replica": 4, "gcs": 2, "raylet": 2, "region": 3}

KINDS: tuple[Kind, ...] = (
    *(Kind(name=f"kill-{part}", weight=weight, shortest_s=0, longest_s=0, hurts="region") for part, weight in _KILLED.items()),
    *(Kind(name=f"stop-{part}", weight=weight, shortest_s=0.3, longest_s=6.0, hurts="region") for part, weight in _STOPPED.items()),
    Kind(name="link-cut", weight=8, shortest_s=0.5, longest_s=6.0, hurts="links"),
    Kind(name="link-oneway", weight=8, shortest_s=0.5, longest_s=6.0, hurts="links"),
    Kind(name="link-delay", weight=6, shortest_s=1.0, longest_s=8.0, hurts="links"),
    Kind(name="net-isolate", weight=6, shortest_s=0.5, longest_s=6.0, hurts="region"),
    Kind(name="net-cut", weight=6, shortest_s=0.5, longest_s=6.0, hurts="links"),
    Kind(name="net-oneway", weight=6, shortest_s=0.5, longest_s=6.0, hurts="links"),
    Kind(name="disk-full", weight=4, shortest_s=1.0, longest_s=6.0, hurts="region"),
    Kind(name="failover-planned", weight=8, shortest_s=0, longest_s=0, hurts="none"),
    Kind(name="failover-forced", weight=14, shortest_s=0, longest_s=0, hurts="none"),
    Kind(name="failover-twice", weight=6, shortest_s=0, longest_s=0, hurts="none"),
)
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(kind.name.partition("-")[0] for kind in KINDS))


def chosen(words: Sequence[str]) -> list[Kind]:
    """The kinds that names (`kill-store`) and groups (`kill`) mean, in the order of `KINDS`; all for no words.

    Raises `InvalidInput` for a word that is neither.
    """
    known = {kind.name for kind in KINDS}
    for word in words:
        if word not in known and word not in GROUPS:
            raise InvalidInput(code="bad_fault", field="faults", allowed=f"of {', '.join(GROUPS)}, or one of {', '.join(sorted(known))}")
    return [kind for kind in KINDS if not words or kind.name in words or kind.name.partition("-")[0] in words]


def plan(seed: int, kinds: Sequence[Kind], *, mean_pause_s: float) -> Iterator[Planned]:
    """Faults without end. Pauses vary from none (two at the same instant) to twice the mean."""
    dice = random.Random(f"nemesis {seed}")
    number = 0
    while True:
        number += 1
        kind = dice.choices(kinds, [kind.weight for kind in kinds])[0]
        yield Planned(
            number=number,
            kind=kind,
            aim=dice.choices(("owner", "other", "any"), (5, 3, 2))[0],
            length_s=round(dice.uniform(kind.shortest_s, kind.longest_s), 2),
            pause_s=0.0 if dice.random() < 0.15 else round(dice.uniform(0.1, 2.25) * mean_pause_s, 2),
            dice=dice.getrandbits(32),
        )
