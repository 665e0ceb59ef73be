"""`on_region_loss: promote` and `ack: local` on real regions, one shard each, and what a shard on hold says.

The objectives of docs/failover.md are measured here, from the fault or the command to the first acknowledged write.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from running_cluster import RunningCluster

pytestmark = pytest.mark.cluster

PROMOTED, LOCAL = "eu-west/0", "us-east/0"
#: Objectives, in seconds.
DETECTION_S, AUTOMATIC_S, LEASE_S = 2.0, 4.0, 1.5

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    shards = {
        PROMOTED: {"home": "eu-west", "ack": "quorum", "on_region_loss": "promote"},
        LOCAL: {"home": "us-east", "ack": "local", "on_region_loss": "hold"},
    }
    with RunningCluster(tmp_path_factory.mktemp("modes"), changes={"shards": shards, "boards": {}}) as running:
        yield running


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Say:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def said(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(line, flush=True)

    return said


def board_at(modes: RunningCluster, home: str) -> str:
    board = modes.fresh_board("cumulative", home=home)
    return str(board)


def write(modes: RunningCluster, region: str, board: str, event_id: str) -> httpx.Response:
    """One event of a player of its own."""
    return modes.post(region, board, [{"player_id": f"p-{event_id}", "event_id": event_id, "delta": 1}])


def first_acknowledged(modes: RunningCluster, region: str, board: str, name: str) -> tuple[float, dict[str, Any]]:
    """When (`time.monotonic`) a write through `region` was first acknowledged, and its result; each try has an id of its own."""
    deadline, number = time.monotonic() + 60, 0
    while True:
        reply = write(modes, region, board, f"{name}-{number}")
        if reply.status_code == 200:
            return time.monotonic(), dict(reply.json()["results"][0])
        assert time.monotonic() < deadline, reply.text
        number += 1


def cleared(modes: RunningCluster, region: str, peer: str) -> bool:
    """Whether the region, which may still be starting, has taken the order."""
    with modes.http(region, "operator") as http:
        try:
            return http.post("/v1/admin/links", json={"peer": peer, "direction": "both", "mode": "clear"}).status_code == 200
        except httpx.TransportError:
            return False


def owner(modes: RunningCluster, region: str, shard: str) -> str:
    return str(modes.shard(region, shard).get("known_owner"))


def test_a_lost_region_is_replaced_without_an_operator_and_follows_when_it_returns(modes: RunningCluster, say: Say) -> None:
    """1. The owner's region is killed. 2. Another takes over by itself, within its detection time and two seconds. 3. The old owner
    returns as a follower. I10."""
    modes.settled("eu-west")
    board = board_at(modes, "eu-west")
    before = write(modes, "ap-south", board, "before").json()["results"][0]
    assert before["acked"] == "quorum"
    modes.launcher.hold("eu-west")
    modes.launcher.regions["eu-west"].kill()
    killed = time.monotonic()
    at, result = first_acknowledged(modes, "ap-south", board, "after")
    say(f"automatic failover, detection {DETECTION_S:g} s: first acknowledged write {at - killed:.2f} s after the kill")
    assert result["epoch"] > before["epoch"] and at - killed < AUTOMATIC_S
    new = owner(modes, "ap-south", PROMOTED)
    assert new in ("us-east", "ap-south")
    activation = modes.until(lambda: modes.shard(new, PROMOTED).get("activation"), "its status tells of the activation")
    assert activation["cause"] == "automatic" and set(activation["phases_ms"]) >= {"probe", "seal", "start", "catch_up"}
    modes.launcher.release("eu-west")
    modes.launcher.wait_ready(180)
    modes.until(lambda: modes.shard("eu-west", PROMOTED).get("role") == "follower", "the old owner follows")
    again = write(modes, "eu-west", board, "before").json()["results"][0]
    assert (again["outcome"], again["epoch"]) == ("duplicate", before["epoch"])


def test_a_local_shard_acknowledges_alone_holds_when_its_region_is_lost_and_salvages_what_was_cut_off(
    modes: RunningCluster, say: Say
) -> None:
    """1. us-east, cut off, acknowledges under its lease; it is killed. 2. Writes elsewhere get `hold`, with when it was last heard.
    3. An operator forces the shard to ap-south, after the lease. 4. us-east returns: what it alone held is sent again. I5, I7."""
    board = board_at(modes, "us-east")
    modes.until(lambda: modes.shard("us-east", LOCAL).get("leased"), "us-east holds its lease")
    with modes.http("us-east", "operator") as http:
        for peer in ("eu-west", "ap-south"):
            fault = {"peer": peer, "direction": "both", "mode": "drop", "for_ms": 60_000}
            assert http.post("/v1/admin/links", json=fault).status_code == 200
    alone = write(modes, "us-east", board, "alone")
    assert alone.status_code == 200 and alone.json()["results"][0]["acked"] == "local", alone.text
    modes.launcher.hold("us-east")
    modes.launcher.regions["us-east"].kill()

    held = modes.until(lambda: (r := write(modes, "eu-west", board, "held")).status_code == 503 and r, "a write is refused")
    problem = held.json()
    assert problem["code"] == "hold" and problem["definite"] and "last heard at" in problem["detail"], problem
    assert modes.get("eu-west", f"/v1/boards/{board}/top").status_code == 200, "reads go on"

    commanded = time.monotonic()
    with modes.http("ap-south", "operator") as http:
        moved = http.post("/v1/admin/failover", json={"shard": LOCAL, "to": "ap-south", "force": True}, timeout=30)
    assert moved.status_code == 200, moved.text
    at, _ = first_acknowledged(modes, "ap-south", board, "forced")
    say(f"forced failover in local mode, lease {LEASE_S:g} s: first acknowledged write {at - commanded:.2f} s after the command")
    assert at - commanded < LEASE_S + 2.0

    modes.launcher.release("us-east")
    for peer in ("eu-west", "ap-south"):  # the region comes back cut off, and is not ready before it hears of the others
        modes.until(partial(cleared, modes, "us-east", peer), f"the link from us-east to {peer} is clear", 180)
    modes.launcher.wait_ready(180)
    modes.until(lambda: modes.shard("us-east", LOCAL).get("role") == "follower", "us-east follows")

    def salvaged() -> bool:
        return modes.get("ap-south", f"/v1/boards/{board}/players/p-alone").status_code == 200

    modes.until(salvaged, "the event that only us-east held is applied")
    again = write(modes, "ap-south", board, "alone").json()["results"][0]
    assert again["outcome"] == "duplicate" and again["epoch"] > 1


def test_a_planned_handover_of_a_local_shard_does_not_wait_for_the_lease(modes: RunningCluster, say: Say) -> None:
    board = board_at(modes, "us-east")
    here = modes.until(lambda: next((r for r in modes.regions if modes.shard(r, LOCAL).get("serving")), None), "somebody serves")
    to = next(r for r in modes.regions if r != here)
    modes.until(lambda: modes.shard(here, LOCAL).get("leased"), f"{here} holds a lease")
    commanded = time.monotonic()
    with modes.http(to, "operator") as http:
        moved = http.post("/v1/admin/failover", json={"shard": LOCAL, "to": to}, timeout=30)
    assert moved.status_code == 200, moved.text
    at, result = first_acknowledged(modes, to, board, "moved")
    say(f"planned handover in local mode: first acknowledged write {at - commanded:.2f} s after the command")
    assert result["epoch"] == moved.json()["moved"][0]["epoch"] and at - commanded < LEASE_S
