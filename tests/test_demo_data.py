"""The demo's data is its own answer key, and its checks notice what is off: no server takes part here."""

from argparse import ArgumentTypeError
from collections import defaultdict
from decimal import Decimal

import pytest

from demo.main import years
from demo.play import compare_places
from demo.seasons import DATA, DECIMALS, Race, Season, competition_ranks, load_seasons
from demo.tally import OffTrackError, Pace, StoppedError
from laurel import Entry, Places

SEASONS = load_seasons()


def test_the_data_is_whole_and_says_whose_it_is() -> None:
    assert [season.year for season in SEASONS] == list(range(1991, 2027))
    assert sum(len(season.races) for season in SEASONS) == 660
    assert sum(len(race.results) for season in SEASONS for race in season.races) == 5773
    assert sum(len(race.totals) for season in SEASONS for race in season.races) == 13_384
    assert "CC BY 4.0" in (DATA / "README.md").read_text("utf-8")


@pytest.mark.parametrize("season", SEASONS, ids=lambda season: str(season.year))
def test_after_every_race_the_events_sum_up_to_the_official_totals(season: Season) -> None:
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for race in season.races:
        for result in race.results:
            sums[result.player_id] += result.points
        assert {player: points for player, points in race.totals.items() if points} == sums


def test_official_zeros_have_no_event_so_they_cannot_be_ranked() -> None:
    zeros = 0
    for season in SEASONS:
        scored: set[str] = set()
        for race in season.races:
            scored.update(result.player_id for result in race.results)
            zeros += len(race.unranked)
            assert scored.isdisjoint(race.unranked)
            assert scored == set(race.ranked)
    assert zeros == 2518


def test_half_points_are_exact_and_nothing_is_finer() -> None:
    points = [result.points for season in SEASONS for race in season.races for result in race.results]
    scaled = [value.scaleb(DECIMALS) for value in points]
    assert all(value == value.to_integral_value() for value in scaled)
    assert sum(value != value.to_integral_value() for value in points) == 8
    assert min(points) == Decimal("0.5")
    assert next(s for s in SEASONS if s.year == 1991).races[-1].totals["driver-0198"] == Decimal("26.5")


def test_every_event_has_an_id_of_its_own() -> None:
    ids = [result.event_id for season in SEASONS for race in season.races for result in race.results]
    assert len(set(ids)) == len(ids)


def test_equal_totals_share_a_rank_and_the_next_counts_all_above_it() -> None:
    totals = {"a": Decimal(9), "b": Decimal("4.5"), "c": Decimal("4.5"), "d": Decimal(1)}
    assert competition_ranks(totals) == {"a": 1, "b": 2, "c": 2, "d": 4}


def test_ranks_are_one_more_than_the_drivers_with_more_points() -> None:
    for season in SEASONS:
        for race in season.races:
            for player, rank in race.ranked.items():
                assert rank == 1 + sum(points > race.totals[player] for points in race.totals.values())


def test_years_are_one_season_or_a_range_of_them() -> None:
    assert list(years("2000-2002")) == [2000, 2001, 2002]
    assert list(years("1991")) == [1991]
    for bad in ("1990", "2005-2000", "1991-2027", "x", ""):
        with pytest.raises(ArgumentTypeError, match="seasons are 1991 to 2026"):
            years(bad)


RACE = Race(name="01-here", results=(), totals={"a": Decimal(9), "b": Decimal("4.5"), "c": Decimal("4.5"), "z": Decimal(0)})
SEASON = Season(year=2000, races=(RACE,))


def answer(*rows: tuple[str, int, str], absent: tuple[str, ...] = ("z",), total: int = 3) -> Places:
    entries = tuple(Entry(position=n, rank=rank, player_id=player, value=Decimal(value)) for n, (player, rank, value) in enumerate(rows, 1))
    return Places(board=SEASON.board, generation="s1", entries=entries, absent=absent, total=total)


RIGHT = (("a", 1, "9.0"), ("b", 2, "4.5"), ("c", 2, "4.5"))


def test_the_official_answer_passes() -> None:
    places = answer(*RIGHT)
    compare_places(SEASON, RACE, places, places.absent)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (answer(("a", 1, "9.0"), ("b", 2, "4.4"), ("c", 2, "4.5")), "b has 4.4 points, officially 4.5"),
        (answer(("a", 1, "9.0"), ("b", 2, "4.5"), ("c", 3, "4.5")), "c is at rank 3, officially at 2"),
        (answer(*RIGHT[:2], absent=("c", "z")), "c is not ranked, but has 4.5 points"),
        (answer(*RIGHT, absent=()), "the difference is z"),
        (answer(*RIGHT, total=4), "the board has 4 players"),
    ],
)
def test_a_wrong_total_rank_or_absence_is_noticed(places: Places, said: str) -> None:
    with pytest.raises(OffTrackError, match=said):
        compare_places(SEASON, RACE, places, places.absent)


def test_the_first_error_of_any_season_ends_the_story_for_all() -> None:
    pace = Pace(3, limit=3)
    pace.begin()
    pace.fail(OffTrackError("first"))
    pace.fail(OffTrackError("second"))
    with pytest.raises(StoppedError):
        pace.begin()
    with pytest.raises(OffTrackError, match="first"):
        pace.wait_done(1)
