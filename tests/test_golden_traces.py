"""The traces of both seeds, folded by the update rules and ordered by the comparator alone.

`vectors/traces.json` is made to be replayed over HTTP as well: its events are request bodies, its rows are
[position, rank, player_id, value as answered].
"""

import json
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pytest

from boards.comparator import compare, sort_key
from boards.identity import fingerprint
from boards.model import BoardRules, Outcome, Row, Submission
from boards.numbers import format_value, parse_value
from boards.policies import decider, make_rules
from boards.times import parse_time

TRACES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "traces.json").read_text("utf-8"))

#: Stands in for the clocks of gateway and authority.
NOW_MS = 1_780_000_000_000


class NaiveBoard:
    """Rows and identities of one board in two dicts; it sorts everything for each question."""

    def __init__(self, rules: BoardRules) -> None:
        self.rules = rules
        self.rows: dict[str, Row] = {}
        self._decide = decider(rules)
        self._seen: dict[tuple[str, str], bytes] = {}

    def submit(self, event: dict[str, Any]) -> str:
        kind = "delta" if self.rules.policy == "cumulative" else "value"
        amount = parse_value(event[kind], self.rules.decimals, kind)
        sent = {
            f"{name}_ms": parse_time(event[f"{name}_at"], f"{name}_at") if f"{name}_at" in event else None
            for name in ("achieved", "submitted")
        }
        content = fingerprint(kind=kind, amount=amount, **sent)
        identity = (event["player_id"], event["event_id"])
        if identity in self._seen:
            return "duplicate" if self._seen[identity] == content else "conflict"
        stamped = {name: NOW_MS if moment is None else moment for name, moment in sent.items()}
        submission = Submission(event["event_id"], event["player_id"], amount, **stamped, fingerprint=content)
        decision = self._decide(self.rows.get(event["player_id"]), submission, NOW_MS)
        if decision.outcome != Outcome.INVALID:
            self._seen[identity] = content
        if decision.row is not None:
            self.rows[event["player_id"]] = decision.row
        return Outcome(decision.outcome).name.lower()

    def _compare(self, a: tuple[str, Row], b: tuple[str, Row]) -> int:
        return compare(self.rules, *a, *b)

    def listing(self, players: list[str] | None = None) -> list[list[Any]]:
        """[position, rank, player, value] of all players, or of some among themselves."""
        items = [(player, row) for player, row in self.rows.items() if players is None or player in players]
        items.sort(key=cmp_to_key(self._compare))
        assert items == sorted(items, key=sort_key(self.rules))
        values = [row.value for _, row in items]
        return [
            [
                position,
                values.index(row.value) + 1 if self.rules.ranking == "competition" else position,
                player,
                format_value(row.value, self.rules.decimals),
            ]
            for position, (player, row) in enumerate(items, 1)
        ]


@pytest.fixture(params=TRACES, ids=lambda trace: trace["name"])
def trace(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def replay(trace: dict[str, Any]) -> NaiveBoard:
    board = NaiveBoard(make_rules(**trace["board"]))
    for step in trace["steps"]:
        assert [board.submit(event) for event in step["events"]] == step["outcomes"]
    return board


def test_trace_gives_the_order_that_its_seed_states(trace: dict[str, Any]) -> None:
    board = replay(trace)
    expect = trace["expect"]
    assert board.listing() == expect["top"]
    assert {player: board.rows[player].version for player in expect.get("versions", {})} == expect.get("versions", {})
    if "ranks_listed" in expect:
        assert board.listing(expect["ranks_listed"]["players"]) == expect["ranks_listed"]["rows"]
    if "nearby" in expect:
        nearby, listing = expect["nearby"], board.listing()
        place = next(place for place, row in enumerate(listing) if row[2] == nearby["player"])
        assert listing[max(0, place - nearby["window"]) : place + nearby["window"] + 1] == nearby["rows"]


def test_second_delivery_of_a_whole_trace_changes_nothing(trace: dict[str, Any]) -> None:
    board = replay(trace)
    rows = dict(board.rows)
    outcomes = {board.submit(event) for step in trace["steps"] for event in step["events"]}
    assert outcomes == {"duplicate"}
    assert board.rows == rows


def test_traces_of_both_seeds_are_all_there() -> None:
    names = [trace["name"] for trace in TRACES]
    assert len(set(names)) == len(names)
    assert {"A", "B", "C", "D", "E", "F", "J", "K", "P1 to P4", "E77", "E77 delivered twice", "E77 corrected"} <= set(names)


def test_same_event_twice_in_one_batch_counts_once_and_other_content_conflicts() -> None:
    """LB-043: E1 +5, E1 +5, E2 +5, E1 +6."""
    board = NaiveBoard(make_rules("cumulative"))
    batch = [("E1", 5), ("E1", 5), ("E2", 5), ("E1", 6)]
    outcomes = [
        board.submit({"event_id": event_id, "player_id": "ann", "delta": delta, "achieved_at": "2025-11-30T10:00:00Z"})
        for event_id, delta in batch
    ]
    assert outcomes == ["applied_first", "duplicate", "applied", "conflict"]
    assert board.rows["ann"].value == 10
