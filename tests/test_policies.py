"""Update rules: what one event does to one row, policy by policy."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.errors import InvalidInput
from boards.model import VALUE_MAX, VALUE_MIN, Decision, Outcome, Row, Status, Submission
from boards.policies import Decider, decider, make_rules

T0 = 1_700_000_000_000
NOW = T0 + 10_000_000


def event(event_id: str, amount: int, achieved: int = 0, submitted: int | None = None) -> Submission:
    """Times in ms after `T0`; submitted right when achieved unless it is said."""
    return Submission(event_id, "ann", amount, T0 + achieved, T0 + (achieved if submitted is None else submitted), bytes(16))


def fold(decide: Decider, *events: Submission) -> tuple[Row | None, list[Outcome]]:
    row: Row | None = None
    outcomes = []
    for one in events:
        decision = decide(row, one, NOW)
        outcomes.append(Outcome(decision.outcome))
        row = decision.row or row
        if row is not None and decision.outcome != Outcome.INVALID:
            assert (decision.value, decision.version) == (row.value, row.version)
    return row, outcomes


# Rules of a board


@pytest.mark.parametrize(
    ("policy", "direction", "ties"),
    [
        ("best_score", "higher", "achieved_at"),
        ("fastest_time", "lower", "submitted_at"),
        ("cumulative", "higher", "achieved_at"),
        ("latest", "higher", "achieved_at"),
    ],
)
def test_policy_brings_its_direction_and_ties(policy: str, direction: str, ties: str) -> None:
    rules = make_rules(policy)
    assert (rules.direction, rules.ties, rules.ranking, rules.decimals) == (direction, ties, "unique", 0)
    assert make_rules(policy, direction=direction, ties="player_id").ties == "player_id"


def test_only_latest_boards_choose_a_direction() -> None:
    assert make_rules("latest", direction="lower").direction == "lower"
    for policy, other in (("best_score", "lower"), ("cumulative", "lower"), ("fastest_time", "higher")):
        with pytest.raises(InvalidInput, match="direction must be"):
            make_rules(policy, direction=other)


@pytest.mark.parametrize(
    ("policy", "settings", "field"),
    [
        ("best", {}, "policy"),
        ("best_score", {"ties": "random"}, "ties"),
        ("latest", {"direction": "up"}, "direction"),
        ("best_score", {"ranking": "olympic"}, "ranking"),
        ("best_score", {"visibility": None}, "visibility"),
        ("best_score", {"decimals": 10}, "decimals"),
        ("best_score", {"decimals": -1}, "decimals"),
        ("best_score", {"decimals": "2"}, "decimals"),
        ("best_score", {"decimals": True}, "decimals"),
        ("fastest_time", {"decimals": 3}, "decimals"),
        ("fastest_time", {"max_value": 0}, "max_value"),
        ("best_score", {"max_value": 100}, "max_value"),
        ("best_score", {"max_age_ms": 0}, "max_age_ms"),
        ("best_score", {"publish_interval_ms": 1001}, "publish_interval_ms"),
        ("best_score", {"publish_interval_ms": 49}, "publish_interval_ms"),
        ("best_score", {"retention_ms": 119_999}, "retention_ms"),
        ("best_score", {"retention_ms": 31_622_400_001}, "retention_ms"),
        ("best_score", {"rule_version": 0}, "rule_version"),
        ("best_score", {"colour": "red"}, "colour"),
    ],
)
def test_bad_setting_is_refused_by_its_name(policy: str, settings: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_rules(policy, **settings)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.field) == ("bad_rule", field)


def test_optional_settings_may_be_none() -> None:
    assert make_rules("fastest_time", max_value=None, max_age_ms=None) == make_rules("fastest_time")
    assert make_rules("fastest_time", max_value=60_000).max_value == 60_000


# Best score


def test_best_score_is_replaced_by_a_strictly_better_one_only() -> None:
    decide = decider(make_rules("best_score"))
    row, outcomes = fold(decide, event("a", 100, 50), event("b", 100, 10), event("c", 90, 5), event("d", 101, 7))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.NOT_AN_IMPROVEMENT, Outcome.NOT_AN_IMPROVEMENT, Outcome.APPLIED]
    assert row == Row(101, T0 + 7, T0 + 7, T0 + 7, NOW, 2, "d", Status.ACTIVE)


def test_equal_score_does_not_move_the_tie_moment() -> None:
    row, _ = fold(decider(make_rules("best_score")), event("a", 100, 50), event("b", 100, 10))
    assert row is not None
    assert (row.tie_ms, row.version, row.last_event_id) == (T0 + 50, 1, "a")


def test_late_arrival_never_matters_to_validity() -> None:
    row, outcomes = fold(decider(make_rules("best_score")), event("a", 100, 5000), event("b", 101, -9_000_000_000))
    assert outcomes[-1] == Outcome.APPLIED
    assert row is not None
    assert row.tie_ms == T0 - 9_000_000_000


def test_negative_and_zero_scores_are_scores() -> None:
    """LB-029, LB-003: a negative value is neither clamped nor read as unsigned, and 0 beats it."""
    decide = decider(make_rules("best_score"))
    row, outcomes = fold(decide, event("a", VALUE_MIN), event("b", -1), event("c", 0))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.APPLIED, Outcome.APPLIED]
    assert row is not None
    assert row.value == 0


@pytest.mark.parametrize(("ties", "moment"), [("achieved_at", T0 + 3), ("submitted_at", T0 + 8), ("player_id", 0)])
@pytest.mark.parametrize("policy", ["best_score", "fastest_time", "cumulative", "latest"])
def test_tie_moment_is_the_one_that_the_board_names(policy: str, ties: str, moment: int) -> None:
    row, _ = fold(decider(make_rules(policy, ties=ties)), event("a", 5, 3, 8))
    assert row is not None
    assert (row.tie_ms, row.achieved_ms, row.submitted_ms, row.updated_ms) == (moment, T0 + 3, T0 + 8, NOW)


# Fastest time


def test_faster_time_wins_and_equal_one_does_not() -> None:
    row, outcomes = fold(decider(make_rules("fastest_time")), event("a", 500), event("b", 500, -5), event("c", 501), event("d", 499))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.NOT_AN_IMPROVEMENT, Outcome.NOT_AN_IMPROVEMENT, Outcome.APPLIED]
    assert row is not None
    assert (row.value, row.version) == (499, 2)


@pytest.mark.parametrize("amount", [0, -1, VALUE_MIN, 60_001, VALUE_MAX])
def test_implausible_time_is_invalid_and_changes_nothing(amount: int) -> None:
    """LB-003 on a board of times: 0 ms is not legal."""
    decide = decider(make_rules("fastest_time", max_value=60_000))
    first = decide(None, event("a", amount), NOW)
    assert first == Decision(Outcome.INVALID, 0, 0, None, "out_of_range", "a time from 1 to 60000 ms")
    row, _ = fold(decide, event("b", 60_000))
    later = decide(row, event("a", amount), NOW)
    assert (later.outcome, later.value, later.version, later.row) == (Outcome.INVALID, 60_000, 1, None)


# Cumulative


def test_zero_delta_moves_neither_tie_moment_nor_version() -> None:
    """LB-005: a +100 at 10:00 keeps its place when +0 comes at 10:10."""
    row, outcomes = fold(decider(make_rules("cumulative")), event("a", 100, 0), event("b", 0, 600_000))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.NOT_AN_IMPROVEMENT]
    assert row is not None
    assert (row.value, row.tie_ms, row.version, row.last_event_id) == (100, T0, 1, "a")


def test_first_zero_delta_makes_a_row_but_lends_it_its_moment_only() -> None:
    """A player with nothing but +0 is listed with 0; the moment of that +0 does not count once a real event has come."""
    decide = decider(make_rules("cumulative"))
    row, outcomes = fold(decide, event("a", 0, 500))
    assert outcomes == [Outcome.APPLIED_FIRST]
    assert row is not None
    assert (row.value, row.tie_ms, row.version) == (0, T0 + 500, 1)
    row, _ = fold(decide, event("a", 0, 500), event("b", 7, 100))
    assert row is not None
    assert (row.value, row.tie_ms, row.version) == (7, T0 + 100, 2)


def test_correction_may_bring_a_total_to_zero_and_below() -> None:
    """LB-059: zero is a value, and so is -10."""
    row, outcomes = fold(decider(make_rules("cumulative")), event("a", 5000), event("b", -5000), event("c", -10))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.APPLIED, Outcome.APPLIED]
    assert row is not None
    assert (row.value, row.version) == (-10, 3)


def test_total_beyond_64_bits_is_refused_and_never_wrapped() -> None:
    decide = decider(make_rules("cumulative", decimals=2))
    for edge, step in ((VALUE_MAX, 1), (VALUE_MIN, -1)):
        row, outcomes = fold(decide, event("a", edge), event("b", step), event("c", -step))
        assert outcomes == [Outcome.APPLIED_FIRST, Outcome.INVALID, Outcome.APPLIED]
        assert row is not None
        assert (row.value, row.version) == (edge - step, 2)
    refused = decide(fold(decide, event("a", VALUE_MAX))[0], event("b", 1), NOW)
    assert (refused.code, refused.row, refused.value) == ("overflow", None, VALUE_MAX)
    assert "92233720368547758.07" in refused.allowed


def test_small_steps_on_a_big_total_are_all_counted() -> None:
    """LB-025: adding 1 a thousand times at 1009651914519660544 adds exactly 1000."""
    start = 1_009_651_914_519_660_544
    row, _ = fold(decider(make_rules("cumulative")), event("start", start), *[event(f"e{i}", 1) for i in range(1000)])
    assert row is not None
    assert (row.value, row.version) == (start + 1000, 1001)


@pytest.mark.parametrize("ties", ["achieved_at", "submitted_at", "player_id"])
def test_total_and_moments_do_not_depend_on_the_order_of_arrival(ties: str) -> None:
    """LB-027: same events, every order, one total and one tie moment; a +0 among them included."""
    decide = decider(make_rules("cumulative", ties=ties))
    events = [event("a", 10**16, 900, 1), event("b", 1, 100, 7), event("c", -3, 500, 5), event("d", 0, 9999, 9999)]
    rows = [fold(decide, *order)[0] for order in permutations(events)]
    assert len({(row.value, row.tie_ms, row.achieved_ms, row.submitted_ms) for row in rows if row is not None}) == 1
    assert rows[0] is not None
    assert (rows[0].value, rows[0].achieved_ms, rows[0].submitted_ms) == (10**16 - 2, T0 + 900, T0 + 7)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 9)), max_size=8), st.randoms(use_true_random=False))
def test_shuffled_deltas_end_in_the_same_row(deltas: list[tuple[int, int]], random: object) -> None:
    decide = decider(make_rules("cumulative"))
    events = [event(f"e{i}", amount, at) for i, (amount, at) in enumerate(deltas)]
    counting = [one for one in events if one.amount]
    row, _ = fold(decide, *events)
    random.shuffle(events)  # type: ignore[attr-defined]
    shuffled, _ = fold(decide, *events)
    if not deltas:
        assert row is shuffled is None
        return
    assert row is not None
    assert shuffled is not None
    assert row.value == shuffled.value == sum(amount for amount, _ in deltas)
    if counting:
        assert row.tie_ms == shuffled.tie_ms == max(one.achieved_ms for one in counting)


# Latest


def test_latest_value_wins_by_event_time_and_older_one_is_superseded() -> None:
    row, outcomes = fold(decider(make_rules("latest")), event("a", 10, 100), event("b", 5, 200), event("c", 99, 150))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.APPLIED, Outcome.SUPERSEDED]
    assert row is not None
    assert (row.value, row.achieved_ms, row.version) == (5, T0 + 200, 2)


@pytest.mark.parametrize("order", [("é", "z"), ("z", "é"), ("\uffee", "\U0001f3c1"), ("\U0001f3c1", "\uffee")])
def test_same_moment_is_settled_by_the_greater_event_id_in_bytes(order: tuple[str, str]) -> None:
    """The last pair sorts the other way round in UTF-16."""
    row, _ = fold(decider(make_rules("latest")), *[event(event_id, 1) for event_id in order])
    assert row is not None
    assert row.last_event_id.encode() == max(event_id.encode() for event_id in order)


def test_newer_event_with_the_same_value_keeps_the_tie_moment() -> None:
    decide = decider(make_rules("latest"))
    row, outcomes = fold(decide, event("a", 10, 100), event("b", 10, 300))
    assert outcomes == [Outcome.APPLIED_FIRST, Outcome.APPLIED]
    assert row == Row(10, T0 + 100, T0 + 300, T0 + 300, NOW, 2, "b")
    changed, _ = fold(decide, event("a", 10, 100), event("b", 10, 300), event("c", 11, 400))
    assert changed is not None
    assert changed.tie_ms == T0 + 400


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=7, unique_by=lambda pair: pair))
def test_latest_value_does_not_depend_on_the_order_of_arrival(pairs: list[tuple[int, int]]) -> None:
    decide = decider(make_rules("latest"))
    events = [event(f"e{i}", amount, at) for i, (amount, at) in enumerate(pairs)]
    winner = max(events, key=lambda one: (one.achieved_ms, one.event_id.encode()))
    for order in (events, events[::-1]):
        row, _ = fold(decide, *order)
        assert row is not None
        assert (row.value, row.last_event_id) == (winner.amount, winner.event_id)


@pytest.mark.parametrize("policy", ["best_score", "fastest_time", "cumulative", "latest"])
def test_version_counts_accepted_changes(policy: str) -> None:
    decide = decider(make_rules(policy))
    row: Row | None = None
    accepted = 0
    for number, amount in enumerate([5, 3, 9, 9, 0, 2, 12, 1]):
        decision = decide(row, event(f"e{number}", amount, number % 3), NOW)
        if decision.row is not None:
            accepted += 1
            row = decision.row
            assert row.version == accepted
        else:
            assert decision.outcome not in (Outcome.APPLIED, Outcome.APPLIED_FIRST)
    assert accepted > 1
