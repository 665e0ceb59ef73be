"""Drills on three real regions: a handover there and back, and the loss of a region, by the command's runner and over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest
from load import RECORDED
from running_cluster import RunningCluster

from drills.http_cluster import HttpCluster, discover
from drills.loading import shipped_plan
from drills.page import to_page
from drills.ports import Unfit
from drills.report import PHASES, Report, from_json, to_text
from drills.runner import Runner

pytestmark = pytest.mark.cluster

#: Judged by time, which a busy machine stretches; the others must hold on any.
TIMED = {"write pause, planned handover", "command to first write, forced", "well again", "reads answered by some region"}


def drill(cluster: RunningCluster, plan: str) -> Report:
    """As `laurel drill run` does it, knowing one region only."""

    async def run() -> Report:
        token = cluster.token("operator")
        urls = await discover([cluster.urls["ap-south"]], token)
        assert list(urls) == cluster.regions
        async with HttpCluster(urls, token) as clients:
            return await Runner(clients, shipped_plan(plan), shard="eu-west/0").run()

    return asyncio.run(run())


def settled(cluster: RunningCluster) -> None:
    """As the cluster says; and each region says so, which it asks its actors for now and then."""
    cluster.settled()
    for region in cluster.regions:
        cluster.until(lambda region=region: cluster.shard(region).get("replica", {}).get("serving"), f"{region} tells that it serves")  # type: ignore[misc]


def audit(cluster: RunningCluster, drill_id: str) -> list[tuple[str, str, str]]:
    """(what, who, outcome) of one drill's records, oldest first."""
    with cluster.http("us-east", "operator") as http:
        records = http.get("/v1/admin/audit?what=drill").json()["records"]
    return [(r["what"], r["asked_by"], r["detail"].get("outcome", "")) for r in reversed(records) if r["detail"]["id"] == drill_id]


def sound(cluster: RunningCluster, report: Report) -> None:
    """Nothing is lost, everything is where it was, and the journal knows."""
    assert report.verdict in ("met", "not_met"), to_text(report)
    failing = {objective.name for objective in report.objectives if not objective.met}
    assert failing <= TIMED, to_text(report)
    w = report.writes
    assert w.sent == w.acknowledged > 50
    assert (w.lost, w.unresolved, w.counted_twice, w.by_deposed, w.unequal, w.wrong) == (0, 0, 0, 0, [], [])
    assert w.compared == 3 * len(cluster.regions)
    assert cluster.authority() == "eu-west"
    for region in cluster.regions:
        with cluster.http(region, "operator") as http:
            assert http.get("/v1/status").json()["links"] == {"outward": {}, "inward": {}}
    # Asked for in another region than the one that wrote it: the news of its commit may be on its way.
    told = cluster.until(lambda: len(records := audit(cluster, report.drill)) > 1 and records, "the journal there tells of the end")
    assert told == [("drill.began", "local-operator", ""), ("drill.ended", "local-operator", report.verdict)]
    assert to_page(report).count("<svg") == 1


def test_a_switchover_goes_there_and_back_and_loses_nothing(cluster: RunningCluster) -> None:
    settled(cluster)
    report = drill(cluster, "switchover")
    sound(cluster, report)
    assert [(move.kind, move.from_owner, move.owner) for move in report.moves] == [
        ("planned", "eu-west", "us-east"),
        ("planned", "us-east", "eu-west"),
    ]
    for move in report.moves:
        assert move.phases_ms is not None
        assert set(move.phases_ms) <= set(PHASES)
        assert move.first_write_ms is not None
    assert report.moves[1].epoch > report.moves[0].epoch > report.moves[0].from_epoch


def test_the_loss_of_a_region_is_rehearsed_over_http_one_at_a_time_and_loses_nothing(cluster: RunningCluster) -> None:
    """1. The order is taken with 202. 2. A second drill is refused meanwhile. 3. The report is read from the same gateway."""
    settled(cluster)
    with cluster.http("us-east", "operator") as http:
        begun = http.post("/v1/admin/drills", json={"plan": "region-loss", "shard": "eu-west/0", "yes": True}, timeout=30)
        assert begun.status_code == 202, begun.text
        path = f"/v1/admin/drills/{begun.json()['id']}"
        with pytest.raises(Unfit, match="is under way"):
            drill(cluster, "switchover")
        told = cluster.until(lambda: _ended(http, path), "the drill ends", 180)
    report = from_json(told["report"])
    sound(cluster, report)
    forced, back = report.moves
    assert (forced.kind, forced.owner, back.kind, back.owner) == ("forced", "us-east", "planned", "eu-west")
    assert forced.first_write_ms is not None
    reads = {row.region: row for row in report.reads}
    assert reads["eu-west"].stale_max_ms > 2000  # cut off for longer than that, and it went on answering
    assert reads["eu-west"].answered > 0


def _ended(http: httpx.Client, path: str) -> dict[str, Any]:
    told: dict[str, Any] = http.get(path).json()
    return told if "report" in told else {}


def test_the_store_of_a_region_answers_nobody_while_it_is_stalled_and_goes_on_by_itself(cluster: RunningCluster) -> None:
    settled(cluster)
    board = cluster.fresh_board()
    with cluster.http("eu-west", "operator") as http:
        assert http.post("/v1/admin/stall", json={"for_ms": 1000}).json() == {"region": "eu-west", "stalled_ms": 1000}
    reply = cluster.post("eu-west", board, [{"event_id": "e", "player_id": "p", "value": 1}])
    assert reply.elapsed.total_seconds() > 0.5
    again = cluster.client("us-east", max_attempts=20).submit(board, [{"event_id": "e", "player_id": "p", "value": 1}])
    assert again.results[0].outcome in ({"duplicate"} if reply.status_code == 200 else RECORDED)
