"""The golden traces of both seeds, replayed through HTTP against running regions: every step goes in through another one.

The seeds give no time for some players; each trace's `note` says what was chosen.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from running_cluster import RunningCluster

pytestmark = pytest.mark.cluster

TRACES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "traces.json").read_text("utf-8"))


def rows(answer: dict[str, Any]) -> list[list[Any]]:
    return [[entry["position"], entry["rank"], entry["player_id"], entry["value"]] for entry in answer["entries"]]


def outcomes(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [result["outcome"] for result in response.json()["results"]]


@pytest.fixture(params=TRACES, ids=lambda trace: trace["name"])
def trace(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_trace_gives_its_outcomes_and_order_in_every_region(cluster: RunningCluster, trace: dict[str, Any]) -> None:
    """1. Steps through the regions in turn. 2. All regions answer alike. 3. Everything again: duplicates, and nothing moves."""
    board, expect = cluster.fresh_board(**trace["board"]), trace["expect"]
    regions = itertools.cycle(cluster.regions)
    for step in trace["steps"]:
        last = cluster.post(next(regions), board, step["events"])
        assert outcomes(last) == step["outcomes"]

    bodies = set()
    for region in cluster.regions:
        top = cluster.get(region, f"/v1/boards/{board}/top", after=last)
        assert rows(top.json()) == expect["top"], region
        versions = {entry["player_id"]: entry["version"] for entry in top.json()["entries"]}
        assert versions | expect.get("versions", {}) == versions
        bodies.add(top.content)
        if "nearby" in expect:
            nearby = expect["nearby"]
            path = f"/v1/boards/{board}/players/{nearby['player']}"
            assert rows(cluster.get(region, path, view="nearby", window=nearby["window"]).json()) == nearby["rows"]
        if "ranks_listed" in expect:
            with cluster.http(region, "reader") as http:
                listed = http.post(f"/v1/boards/{board}/ranks", json={"players": expect["ranks_listed"]["players"], "among": "listed"})
            assert rows(listed.json()) == expect["ranks_listed"]["rows"]
    assert len(bodies) == 1

    for step in trace["steps"]:
        again = cluster.post(next(regions), board, step["events"])
        assert set(outcomes(again)) == {"duplicate"}
    assert cluster.get(next(regions), f"/v1/boards/{board}/top", after=again).content in bodies


def test_tie_rules_order_the_same_events_differently(cluster: RunningCluster) -> None:
    """Trace B with Ben's time moved: `achieved_at` puts him last of the tie, `player_id` first."""
    found = {}
    for name in ("B with Ben late", "B with Ben late, by player id"):
        trace = next(trace for trace in TRACES if trace["name"] == name)
        board = cluster.fresh_board(**trace["board"])
        for step in trace["steps"]:
            last = cluster.post("us-east", board, step["events"])
        top = cluster.get("ap-south", f"/v1/boards/{board}/top", after=last).json()
        found[trace["board"]["ties"]] = [entry["player_id"] for entry in top["entries"] if entry["value"] == "9500"]
    assert found == {"achieved_at": ["p-chloe", "p-eli", "p-ben"], "player_id": ["p-ben", "p-chloe", "p-eli"]}
