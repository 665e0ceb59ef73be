"""Real points and the official answer after each race, from `demo/data/` (its README says whose they are).

Points are Decimals read from their text: half points stay exact. A rank is 1 + the number of drivers with more points.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
#: Half points are the finest there are.
DECIMALS = 1
#: The board on which the results of all seasons count.
ALL_TIME = "motorsport:points:all-time:drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scored result: an event of a cumulative board. The id follows from the row, so a second sending is the same event."""

    event_id: str
    player_id: str
    points: Decimal
    achieved_at: str

    @property
    def event(self) -> dict[str, str | Decimal]:
        """What a game server submits."""
        return {"event_id": self.event_id, "player_id": self.player_id, "delta": self.points, "achieved_at": self.achieved_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What was scored in a race, and the season's official totals after it; `totals` holds drivers without points too."""

    name: str
    results: tuple[Result, ...]
    totals: Mapping[str, Decimal]

    @property
    def ranked(self) -> dict[str, int]:
        """The competition rank of every driver with points. Cost: O(n log n)."""
        return competition_ranks({player: points for player, points in self.totals.items() if points})

    @property
    def unranked(self) -> list[str]:
        """Drivers whose official total is 0: no event was ever submitted for them."""
        return [player for player, points in self.totals.items() if not points]


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """Races in the order in which they were run."""

    year: int
    races: tuple[Race, ...]

    @property
    def board(self) -> str:
        """Its board's id."""
        return f"motorsport:championship:{self.year}:drivers"


def competition_ranks(totals: Mapping[str, Decimal]) -> dict[str, int]:
    """Equal totals share a rank, and the next lower one counts all above it: 1, 2, 2, 4."""
    first: dict[Decimal, int] = {}
    for place, points in enumerate(sorted(totals.values(), reverse=True), 1):
        first.setdefault(points, place)
    return {player: first[points] for player, points in totals.items()}


def load_seasons(years: Iterable[int] | None = None) -> list[Season]:
    """All seasons, or those of `years`, oldest first. Raises OSError or KeyError where the files are not what they should be."""
    wanted = None if years is None else set(years)
    results: defaultdict[tuple[int, str], list[Result]] = defaultdict(list)
    for row in _rows("events.csv"):
        year = int(row["season"])
        results[year, row["race"]].append(
            Result(
                event_id=f"{year}-{row['race']}-{row['session']}-{row['player_id']}",
                player_id=row["player_id"],
                points=Decimal(row["points"]),
                achieved_at=f"{row['date']}T12:00:00Z",
            )
        )
    totals: defaultdict[tuple[int, str], dict[str, Decimal]] = defaultdict(dict)
    for row in _rows("standings_after_race.csv"):
        totals[int(row["season"]), row["race"]][row["player_id"]] = Decimal(row["points"])
    races: defaultdict[int, list[Race]] = defaultdict(list)
    for year, name in sorted(totals):  # race names begin with their number
        if wanted is None or year in wanted:
            races[year].append(Race(name=name, results=tuple(results[year, name]), totals=totals[year, name]))
    return [Season(year=year, races=tuple(of_year)) for year, of_year in races.items()]


def _rows(name: str) -> list[dict[str, str]]:
    with open(DATA / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
