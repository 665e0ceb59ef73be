"""Orphans on real processes, by the commands an operator types: an isolated owner's event is listed, sent again, signed off."""

import functools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_cluster import SHARD, RunningCluster
from typer.testing import CliRunner

from laurel import main

pytestmark = pytest.mark.cluster

PEERS = ("us-east", "ap-south")


@pytest.fixture
def settled(cluster: RunningCluster) -> Iterator[RunningCluster]:
    """The cluster, at home in eu-west, and so again afterwards, whatever the test has done to it."""
    cluster.settled()
    try:
        yield cluster
    finally:
        cluster.settled()


def operate(cluster: RunningCluster, region: str, path: str, **body: Any) -> httpx.Response:
    with cluster.http(region, "operator") as http:
        return http.post(f"/v1/admin/{path}", json=body, timeout=30)


def links(cluster: RunningCluster, mode: str) -> None:
    for peer in PEERS:
        assert operate(cluster, "eu-west", "links", peer=peer, direction="both", mode=mode).status_code == 200


def laurel(cluster: RunningCluster, *words: str) -> Any:
    """A command with `--json` in the data directory of the cluster; it must succeed."""
    urls = ",".join(f"{region}={url}" for region, url in cluster.urls.items())
    environment = {"LAUREL_URL": urls, "LAUREL_TOKEN": cluster.token("operator")}
    run = CliRunner().invoke(main.app, ["orphans", *words, "--json"], env=environment)
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


def of_event(listed: Any, event_id: str) -> list[dict[str, Any]]:
    return [item for item in listed["regions"]["eu-west"]["shards"][SHARD]["orphans"] if item.get("event_id") == event_id]


def test_an_isolated_owners_event_is_listed_sent_again_once_and_signed_off(settled: RunningCluster) -> None:
    """1. eu-west is cut off and takes an event nobody else gets. 2. us-east takes over, eu-west is back. 3. `laurel orphans list`:
    open. 4. `resubmit`: counted once, in every region. 5. `sign-off`: gone, and recorded in every region's journal. I4, I5."""
    c, event_id = settled, f"lost-{uuid.uuid4().hex[:8]}"
    board = c.fresh_board("cumulative", decimals=2)
    links(c, "drop")
    doubtful = c.post("eu-west", board, {"event_id": event_id, "player_id": "ann", "delta": "12.50"})
    assert (doubtful.status_code, doubtful.json()["definite"]) == (503, False)
    assert operate(c, "us-east", "failover", shard=SHARD, to="us-east", force=True).status_code == 200
    links(c, "clear")
    (orphan,) = c.until(lambda: of_event(laurel(c, "list", "--region", "eu-west"), event_id), "the event is among the orphans of eu-west")
    assert (orphan["board"], orphan["player_id"], orphan["amount"], orphan["state"]) == (board, "ann", "12.50", "open")

    sent = laurel(c, "resubmit", "--region", "eu-west", "--shard", SHARD)["regions"]["eu-west"]["shards"][SHARD]
    assert sent["outcomes"]["applied_first"] == 1
    assert laurel(c, "resubmit", "--region", "eu-west")["regions"]["eu-west"]["shards"][SHARD]["outcomes"] == {}
    again = c.post("ap-south", board, {"event_id": event_id, "player_id": "ann", "delta": "12.50"})
    assert again.json()["results"][0]["outcome"] == "duplicate"
    for region in c.regions:
        (row,) = c.get(region, f"/v1/boards/{board}/top", after=again).json()["entries"]
        assert (row["player_id"], row["value"]) == ("ann", "12.50")
    (done,) = of_event(laurel(c, "list", "--region", "eu-west"), event_id)
    assert (done["state"], done["outcome"], done["in_lineage"]) == ("done", "applied_first", True)

    epoch = str(orphan["epoch"])
    gone = laurel(c, "sign-off", "--region", "eu-west", "--shard", SHARD, "--epoch", epoch, "--why", "salvaged", "--yes")
    assert gone["events"] >= 1
    assert of_event(laurel(c, "list", "--region", "eu-west"), event_id) == []

    def recorded(region: str) -> bool:
        with c.http(region, "operator") as http:
            found = http.get("/v1/admin/audit", params={"what": "orphans.signed_off"}).json()["records"]
        return any((r["epoch"], r["offset"]) == tuple(gone["recorded"].values()) and r["detail"]["why"] == "salvaged" for r in found)

    for region in c.regions:
        c.until(functools.partial(recorded, region), f"{region} tells of the sign-off")


def test_of_two_drills_only_one_begins_whichever_regions_are_asked(settled: RunningCluster) -> None:
    """1. A drill begins, asked for in ap-south. 2. Another, asked for in us-east, is refused as busy. 3. It ends; another may begin."""
    c, name = settled, uuid.uuid4().hex
    with c.http("eu-west", "operator") as http:
        until_ms = http.get("/v1/status").json()["at_ms"] + 60_000
    began = operate(c, "ap-south", "audit", what="drill.began", detail={"id": name, "until_ms": until_ms}, unless_open="drill")
    assert began.status_code == 201, began.text
    other = {"id": f"{name}-2", "until_ms": until_ms}
    refused = operate(c, "us-east", "audit", what="drill.began", detail=other, unless_open="drill")
    assert (refused.status_code, refused.json()["code"], refused.json()["definite"]) == (409, "busy", True)
    assert operate(c, "eu-west", "audit", what="drill.ended", detail={"id": name}).status_code == 201
    assert operate(c, "us-east", "audit", what="drill.began", detail=other, unless_open="drill").status_code == 201
    assert operate(c, "eu-west", "audit", what="drill.ended", detail={"id": f"{name}-2"}).status_code == 201
