"""The arithmetic of the benchmarks; the measurements themselves are run, not tested."""

import json
import math
from itertools import islice

import pytest

from benchmarks.clients import Tally, Window
from benchmarks.failover import pause_of
from benchmarks.figures import Rung, climbing, figure, knee, line, longest_gap, median, percentile
from benchmarks.http_client import content_length, http_request
from benchmarks.ingest import count_acknowledged, event_bodies
from boards.model import BoardRules
from boards.numbers import decode_json
from regions.submit_api import parse_events


def test_a_line_holds_exactly_the_promised_keys() -> None:
    row = json.loads(line(figure("x", 30.0, "events/s", peer="redis", peer_value=60.0, goal=20.0)))
    assert row == {
        "name": "x", "value": 30.0, "unit": "events/s", "peer": "redis", "peer_value": 60.0, "ratio": 0.5, "goal": 20.0, "goal_met": True
    }  # fmt: skip


def test_what_has_no_peer_and_no_goal_says_null() -> None:
    row = json.loads(line(figure("x", 1.0, "ms")))
    assert [row[key] for key in ("peer", "peer_value", "ratio", "goal", "goal_met")] == [None] * 5


def test_a_value_that_was_not_measured_is_null_and_meets_no_goal() -> None:
    row = figure("x", math.nan, "ms", goal=500.0, lower_is_better=True)
    assert row.goal_met is False
    assert json.loads(line(row))["value"] is None


@pytest.mark.parametrize(("value", "lower", "met"), [(20.0, False, True), (19.9, False, False), (500.0, True, False), (499.0, True, True)])
def test_goals_are_reached_upwards_and_undercut_downwards(value: float, lower: bool, met: bool) -> None:
    goal = 500.0 if lower else 20.0
    assert figure("x", value, "u", goal=goal, lower_is_better=lower).goal_met is met


def test_values_keep_four_digits() -> None:
    assert figure("x", 31_498.7, "events/s").value == 31_500
    assert figure("x", 0.0123456, "s").value == 0.01235


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 0.0)) == (3.0, 5.0, 1.0)
    assert (median([1.0, 9.0]), median([9.0, 1.0, 2.0])) == (5.0, 2.0)
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(median([]))


def test_the_knee_is_the_rung_that_the_next_hardly_beats() -> None:
    assert knee([Rung(1, 100), Rung(2, 190), Rung(4, 195)]) == 2
    assert knee([Rung(1, 100), Rung(2, 190), Rung(4, 300)]) == 4
    assert knee([Rung(1, 100), Rung(2, 60)]) == 1
    assert knee([Rung(8, 10)]) == 8


def test_climbing_ends_with_the_first_rung_that_brings_nothing() -> None:
    assert climbing([])
    assert climbing([Rung(1, 100)])
    assert climbing([Rung(1, 100), Rung(2, 150)])
    assert not climbing([Rung(1, 100), Rung(2, 101)])


def test_only_what_a_quorum_holds_and_was_decided_now_counts() -> None:
    results = [
        {"event_id": "1", "outcome": "applied_first", "acked": "quorum"},
        {"event_id": "2", "outcome": "applied", "acked": "quorum"},
        {"event_id": "3", "outcome": "not_an_improvement", "acked": "quorum"},
        {"event_id": "4", "outcome": "duplicate", "acked": "quorum"},
        {"event_id": "5", "outcome": "unknown"},
        {"event_id": "6", "outcome": "invalid", "code": "bad_id"},
    ]
    assert count_acknowledged(json.dumps({"results": results}).encode()) == 3


def test_bodies_are_good_events_whose_ids_never_repeat() -> None:
    from actors.messages import BoardInfo  # only here: the rest needs no actors

    rules = BoardRules(policy="best_score", direction="higher", ties="achieved_at")
    board = BoardInfo(board_id="g:m:s:x", number=1, incarnation="i", shard="s", home="h", rules=rules)
    seen: set[str] = set()
    for body in islice(event_bodies(50, 1, "a"), 4):
        submissions, rejects = parse_events(decode_json(body)["events"], board, 0)
        assert (len(submissions), rejects) == (50, [])
        seen |= {event.event_id for event in submissions}
    assert len(seen) == 200


def test_the_same_seed_gives_the_same_load() -> None:
    assert next(event_bodies(3, 5, "a")) == next(event_bodies(3, 5, "a"))
    assert next(event_bodies(3, 5, "a")) != next(event_bodies(3, 6, "a"))


def test_a_request_names_its_length_and_a_response_is_read_by_its_own() -> None:
    request = http_request("POST", "/p", host="h:1", token="t", body=b"{}")
    head, _, body = request.partition(b"\r\n\r\n")
    assert (content_length(head), body) == (2, b"{}")
    assert b"authorization: Bearer t" in head
    assert content_length(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y") == 12
    assert content_length(b"HTTP/1.1 304 Not Modified\r\nx: content-length") == 0


def test_what_ends_in_the_warm_up_or_after_the_window_does_not_count() -> None:
    window = Window(0.0, 1.0, 3.0)
    assert [window.holds(t) for t in (0.5, 1.0, 2.9, 3.0)] == [False, True, True, False]


def test_tallies_add_up() -> None:
    a, b = Tally(done=1, all_done=2), Tally(done=10, all_done=20)
    b.latencies.append(0.5)
    b.failures["lost"] += 1
    a.add(b)
    assert (a.done, a.all_done, list(a.latencies), a.failures["lost"]) == (11, 22, [0.5], 1)


def test_a_pause_is_the_longest_silence_and_reaches_to_the_end() -> None:
    assert longest_gap([1.0, 2.0, 6.0], 0.0, 7.0) == 4.0
    assert longest_gap([], 0.0, 7.0) == 7.0
    assert longest_gap([-5.0, 1.0, 9.0], 0.0, 7.0) == 6.0


def test_the_command_is_answered_by_the_new_owner_alone() -> None:
    """The old owner goes on acknowledging after the command until it is drained: that is no handover yet."""
    seen = [(0.9, 4), (1.05, 4), (1.2, 5), (1.3, 5)]
    pause = pause_of(seen, 5, since=0.8, command=1.0, end=1.4)
    assert pause.command == pytest.approx(200)
    assert pause.writes == pytest.approx(150)
