"""Drills over HTTP: the calls of the edge, on a cluster in memory; and what the runner's client makes of a region's answers."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from drill_world import MemoryCluster, run
from http_edge import OPERATOR, SERVER, World, problem, token

from actors.messages import NoAuthority
from drills.http_cluster import HttpCluster, discover
from drills.ports import Event, NoAnswer, Outcome, Refusal
from regions import drill_api
from regions.scratch import free_ports

DRILLS = "/v1/admin/drills"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryCluster]:
    cluster = MemoryCluster()
    tokens: list[str] = []

    def connect(urls: dict[str, str], token: str) -> MemoryCluster:
        tokens.append(token)
        return cluster

    monkeypatch.setattr(drill_api, "connect", connect)
    yield cluster
    assert set(tokens) <= {OPERATOR["authorization"].removeprefix("Bearer ")}  # the caller's own


@asynccontextmanager
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=world.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://region", headers=OPERATOR) as http:
        yield http


def test_a_drill_is_begun_over_http_and_its_report_is_read_there(world: World, memory: MemoryCluster) -> None:
    """1. 202 with an id, and the journal has it. 2. It runs behind the call. 3. The same path gives its report."""

    async def story() -> None:
        async with client(world) as http:
            begun = await http.post(DRILLS, json={"plan": "switchover", "yes": True})
            assert begun.status_code == 202
            body = begun.json()
            assert (body["plan"], body["shard"], body["state"], body["asked_by"]) == ("switchover", "eu-west/0", "running", "operator-1")
            assert memory.words() == [("drill.began", "")]
            running = (await http.get(f"{DRILLS}/{body['id']}")).json()
            assert running["state"] == "running"
            assert "report" not in running
            await asyncio.sleep(60)
            ended = (await http.get(f"{DRILLS}/{body['id']}")).json()
            assert (ended["state"], ended["report"]["verdict"]) == ("met", "met")
            assert "All objectives are met" in ended["text"]
            assert ended["progress"][-1] == f"drill {body['id']} ended: met"
            listed = (await http.get(DRILLS)).json()
            assert [(drill["id"], drill["state"]) for drill in listed["drills"]] == [(body["id"], "met")]
            assert memory.words()[-1] == ("drill.ended", "met")

    run(story())


def test_without_yes_it_is_only_said_what_would_be_done(world: World, memory: MemoryCluster) -> None:
    async def story() -> None:
        async with client(world) as http:
            said = await http.post(DRILLS, json={"plan": "region-loss", "shard": "eu-west/0"})
            assert said.status_code == 200
            assert said.json()["statement"]["roles"] == {"owner": "eu-west", "successor": "us-east", "third": "ap-south"}
            assert "cut the owner off from the others" in said.json()["text"]
            assert (await http.get(DRILLS)).json()["drills"] == []
            assert memory.records == []

    run(story())


def test_one_drill_at_a_time(world: World, memory: MemoryCluster) -> None:
    async def story() -> None:
        async with client(world) as http:
            assert (await http.post(DRILLS, json={"plan": "switchover", "yes": True})).status_code == 202
            second = problem(await http.post(DRILLS, json={"plan": "switchover", "yes": True}), 409, "drill_refused")
            assert "is under way" in second["detail"]
            await asyncio.sleep(60)
            assert (await http.post(DRILLS, json={"plan": "switchover", "yes": True})).status_code == 202
            await asyncio.sleep(60)

    run(story())


def test_a_cluster_that_would_not_survive_is_told_with_every_reason(world: World, memory: MemoryCluster) -> None:
    memory.changes["us-east"] = {"halted": "a contradiction"}
    memory.missing["ap-south"] = ["its replica"]

    async def story() -> None:
        async with client(world) as http:
            refused = problem(await http.post(DRILLS, json={"plan": "switchover", "yes": True}), 409, "drill_refused")
            assert len(refused["reasons"]) == 2
            problem(await http.post(DRILLS, json={"plan": "switchover", "shard": "x/0"}), 404, "unknown_shard")

    run(story())


def test_a_drill_that_a_closing_gateway_cancels_puts_everything_back(world: World, memory: MemoryCluster) -> None:
    async def story() -> None:
        async with client(world) as http:
            assert (await http.post(DRILLS, json={"plan": "region-loss", "yes": True})).status_code == 202
        await asyncio.sleep(4)
        assert memory.cuts
        # The loop's end cancels what is left on it.

    run(story())
    assert memory.cuts == {}
    assert memory.words()[-1] == ("drill.ended", "aborted")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"plan": "switchovr"}, "invalid", "plan"),
        ({"plan": "../etc/plan.yaml"}, "invalid", "plan"),
        ({"plan": 7}, "invalid", "plan"),
        ({"plan": "switchover", "yes": "true"}, "invalid", "yes"),
        ({"plan": "switchover", "shard": 7}, "invalid", "shard"),
        ({"plan": "switchover", "shart": "x"}, "unknown_field", "shart"),
        ({}, "missing_field", "plan"),
    ],
)  # fmt: skip
def test_a_wrong_order_is_refused_with_its_field(world: World, memory: MemoryCluster, body: dict[str, Any], code: str, field: str) -> None:
    problem(world.call("POST", DRILLS, headers=OPERATOR, json=body), 422, code, field)
    assert memory.records == []


@pytest.mark.parametrize(("method", "path"), [("POST", DRILLS), ("GET", DRILLS), ("GET", f"{DRILLS}/d-1"), ("POST", "/v1/admin/stall")])
def test_drills_are_for_operators_of_all_games(world: World, memory: MemoryCluster, method: str, path: str) -> None:
    narrow = {"authorization": f"Bearer {token('operator', ('arena-clash',))}"}
    body = {"json": {"plan": "switchover", "for_ms": 1}} if method == "POST" else {}
    problem(world.call(method, path, headers=SERVER, **body), 403, "wrong_scope")
    problem(world.call(method, path, headers=narrow, **body), 403, "foreign_game")
    problem(world.call(method, path, **body), 401, "missing_token")


def test_an_unknown_drill_is_not_found(world: World, memory: MemoryCluster) -> None:
    problem(world.call("GET", f"{DRILLS}/d-1", headers=OPERATOR), 404, "unknown_drill", "drill")


def test_a_store_is_stalled_for_ten_seconds_at_most(world: World) -> None:
    stalled = world.call("POST", "/v1/admin/stall", headers=OPERATOR, json={"for_ms": 10_000})
    assert stalled.json() == {"region": "eu-west", "stalled_ms": 10_000}
    assert world.backend.stalls == [(10_000, "operator-1")]
    for for_ms in (0, 10_001, True, "5", 1.5, None):
        problem(world.call("POST", "/v1/admin/stall", headers=OPERATOR, json={"for_ms": for_ms}), 422, "invalid", "for_ms")
    assert len(world.backend.stalls) == 1


def test_operators_may_send_events_of_the_services_own_game_and_of_no_other(world: World) -> None:
    world.backend.add("laurel:drill-canary:S0:eu-west-0", "cumulative")
    event = {"event_id": "e", "player_id": "p", "delta": 1}
    sent = world.call("POST", "/v1/boards/laurel:drill-canary:S0:eu-west-0/events", headers=OPERATOR, json=event)
    assert sent.json()["results"][0]["outcome"] == "applied_first"
    world.backend.add("laurels:solo:S1:global", "cumulative")
    problem(world.call("POST", "/v1/boards/laurels:solo:S1:global/events", headers=OPERATOR, json=event), 403, "wrong_scope")


# -- the runner's own client, against a served edge --------------------------------------------------------------------

BOARD = "laurel:drill-canary:S0:eu-west-0"


@asynccontextmanager
async def served(world: World) -> AsyncIterator[HttpCluster]:
    """The world on a loopback port, as region `eu-west`; `us-east` is an address where nobody listens."""
    here, nowhere = itertools.islice(free_ports(), 2)
    listener = socket.create_server(("127.0.0.1", here))
    server = uvicorn.Server(uvicorn.Config(world.app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    urls = {"eu-west": f"http://127.0.0.1:{here}", "us-east": f"http://127.0.0.1:{nowhere}"}
    try:
        async with HttpCluster(urls, OPERATOR["authorization"].removeprefix("Bearer ")) as cluster:
            yield cluster
    finally:
        server.should_exit = True
        await task


@pytest.mark.net
def test_the_client_speaks_the_public_interface(world: World) -> None:
    async def story() -> None:
        async with served(world) as cluster:
            await cluster.create_board("eu-west", BOARD, "cumulative", "eu-west", "eu-west/0")
            await cluster.create_board("eu-west", BOARD, "cumulative", "eu-west", "eu-west/0")
            assert (await cluster.status("eu-west"))["region"] == "eu-west"
            assert await cluster.ready("eu-west") == []
            events = [Event("e1", "p", 3), Event("e2", "p", -1)]
            first, second = await cluster.submit("eu-west", BOARD, events)
            assert (first.outcome, second.outcome, first.epoch) == ("applied_first", "applied", 7)
            assert [one.outcome for one in await cluster.submit("eu-west", BOARD, events)] == ["duplicate", "duplicate"]
            assert await cluster.totals("eu-west", BOARD, ["p", "nobody"], (second.epoch, second.offset)) == {"p": 2}
            reading = await cluster.read("eu-west", BOARD)
            assert reading.generation == 1
            assert reading.boundary == second.offset
            moved = await cluster.failover("eu-west", "eu-west/0", force=True)
            assert (moved["epoch"], moved["owner"]) == (8, "eu-west")
            await cluster.set_link("eu-west", "us-east", "in", mode="delay", delay_ms=5, for_ms=100)
            await cluster.set_link("eu-west", "us-east", "both", mode="clear")
            assert [(one.peer, one.direction, one.mode, one.delay_ms, one.for_ms) for one, _ in world.backend.links] == [
                ("us-east", "in", "delay", 5, 100),
                ("us-east", "both", "clear", 0, None),
            ]
            await cluster.stall("eu-west", 700)
            assert world.backend.stalls == [(700, "operator-1")]
            assert await cluster.orphans("eu-west", "eu-west/0") == 0
            await cluster.audit("eu-west", "eu-west/0", "drill.ended", {"id": "d-0"})
            until = world.backend.clock_ms + 1000
            await cluster.audit("eu-west", "eu-west/0", "drill.began", {"id": "d-1", "until_ms": until}, unless_open="drill")
            records = await cluster.audits("eu-west", "eu-west/0", "drill")
            assert [(record["what"], record["asked_by"], record["detail"]["id"]) for record in records] == [
                ("drill.ended", "operator-1", "d-0"),
                ("drill.began", "operator-1", "d-1"),
            ]
            with pytest.raises(Refusal) as busy:
                await cluster.audit("eu-west", "eu-west/0", "drill.began", {"id": "d-2", "until_ms": until}, unless_open="drill")
            assert busy.value.code == "busy"

    asyncio.run(story())


@pytest.mark.net
def test_the_client_tells_refusals_from_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with served(world) as cluster:
            with pytest.raises(Refusal) as unreachable:
                await cluster.status("us-east")
            assert (unreachable.value.code, unreachable.value.again) == ("unreachable", True)
            with pytest.raises(Refusal) as unknown:
                await cluster.submit("eu-west", BOARD, [Event("e", "p", 1)])
            assert (unknown.value.code, unknown.value.again) == ("unknown_board", False)
            world.backend.add(BOARD, "cumulative")
            world.backend.refusal = NoAuthority("draining now", code="draining", definite=True)
            with pytest.raises(Refusal) as draining:
                await cluster.submit("eu-west", BOARD, [Event("e", "p", 1)])
            assert (draining.value.code, draining.value.again) == ("draining", True)
            world.backend.refusal = NoAuthority("who knows", code="unknown", definite=False)
            assert await cluster.submit("eu-west", BOARD, [Event("e", "p", 1)]) == [Outcome("e", "unknown")]
            world.backend.refusal = None
            world.backend.missing = ["its replica"]
            assert await cluster.ready("eu-west") == ["its replica"]
            monkeypatch.setattr(world.backend, "failover", None)  # an error inside the service: nobody knows what was done
            with pytest.raises(NoAnswer):
                await cluster.failover("eu-west", "eu-west/0", force=True)

    asyncio.run(story())


@pytest.mark.net
def test_regions_are_found_through_one_of_them(world: World) -> None:
    async def story() -> None:
        async with served(world) as cluster:
            here, nobody = (cluster._urls[name] for name in ("eu-west", "us-east"))
            world.backend.status = lambda: {  # type: ignore[method-assign]
                "region": "eu-west",
                "regions": {"eu-west": {"url": "http://inside:1"}, "ap-south": {"url": "http://inside:2"}},
            }
            token = OPERATOR["authorization"].removeprefix("Bearer ")
            assert await discover([nobody, here], token) == {"eu-west": here, "ap-south": "http://inside:2"}
            with pytest.raises(Refusal, match="cannot be reached"):
                await discover([nobody], token)

    asyncio.run(story())
