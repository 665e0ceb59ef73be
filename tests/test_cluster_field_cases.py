"""Faults that people met elsewhere, tried on running regions; the numbers are those of docs/field-cases.md."""

import itertools
import json
import random
import socket
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from running_cluster import RunningCluster

pytestmark = pytest.mark.cluster


def at(second: int) -> str:
    return f"2025-11-30T10:{second // 60:02}:{second % 60:02}Z"


def event(event_id: str, player_id: str, value: Any, **fields: Any) -> dict[str, Any]:
    return {"event_id": event_id, "player_id": player_id, "value": value, **fields}


def delta(event_id: str, player_id: str, amount: Any, **fields: Any) -> dict[str, Any]:
    return {"event_id": event_id, "player_id": player_id, "delta": amount, **fields}


def outcomes(response: httpx.Response) -> list[str]:
    return [result["outcome"] for result in response.json()["results"]]


def order(response: httpx.Response) -> list[tuple[int, int, str, str]]:
    assert response.status_code == 200, response.text
    return [(entry["position"], entry["rank"], entry["player_id"], entry["value"]) for entry in response.json()["entries"]]


class Board:
    """A fresh board and its common calls; posts go through the regions in turn."""

    def __init__(self, cluster: RunningCluster, policy: str = "best_score", **rules: Any) -> None:
        self.cluster, self.id = cluster, cluster.fresh_board(policy, **rules)
        self._turns = itertools.cycle(cluster.regions)

    def post(self, *events: Any, region: str | None = None, query: str = "") -> httpx.Response:
        return self.cluster.post(region or next(self._turns), self.id, list(events), query)

    def top(self, after: httpx.Response | None = None, region: str | None = None, limit: int = 1000) -> httpx.Response:
        return self.cluster.get(region or next(self._turns), f"/v1/boards/{self.id}/top", after=after, limit=limit)

    def player(self, player_id: str, after: httpx.Response | None = None, **parameters: Any) -> httpx.Response:
        path = f"/v1/boards/{self.id}/players/{urllib.parse.quote(player_id, safe='')}"
        return self.cluster.get(next(self._turns), path, after=after, **parameters)

    def tops(self, after: httpx.Response) -> list[bytes]:
        return [self.top(after, region).content for region in self.cluster.regions]


@pytest.mark.parametrize("policy", ["best_score", "cumulative"])
def test_lb_003_a_leader_with_0_has_rank_1(cluster: RunningCluster, policy: str) -> None:
    board, make = Board(cluster, policy, ranking="competition"), delta if policy == "cumulative" else event
    last = board.post(*(make(f"e-{player}", player, amount, achieved_at=at(0)) for player, amount in (("a", 0), ("b", 0), ("c", -5))))
    assert order(board.top(last)) == [(1, 1, "a", "0"), (2, 1, "b", "0"), (3, 3, "c", "-5")]
    assert order(board.player("a", last)) == [(1, 1, "a", "0")]


def test_lb_003_a_time_of_0_is_no_time(cluster: RunningCluster) -> None:
    board = Board(cluster, "fastest_time")
    refused = board.post(event("e1", "a", 0))
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (422, "out_of_range", "value")
    assert board.top().json()["generation"] == "s0"


def test_lb_004_the_order_inside_a_tie_is_the_same_bytes_each_time_and_in_each_region(cluster: RunningCluster) -> None:
    board = Board(cluster, "fastest_time", ties="achieved_at", ranking="competition")
    shuffled = random.Random(4).sample(range(50), 50)
    for part in range(0, 50, 10):
        last = board.post(*(event(f"e{n}", f"p{n:02}", 61_000, achieved_at=at(n)) for n in shuffled[part : part + 10]))
    bodies = [body for _ in range(7) for body in board.tops(last)]
    assert len(set(bodies)) == 1
    assert [(entry["rank"], entry["player_id"]) for entry in json.loads(bodies[0])["entries"]] == [(1, f"p{n:02}") for n in range(50)]


def test_lb_005_an_event_worth_0_does_not_move_the_tie(cluster: RunningCluster) -> None:
    board = Board(cluster, "cumulative")
    board.post(delta("e1", "a", 100, achieved_at=at(0)))
    board.post(delta("e2", "b", 100, achieved_at=at(300)))
    last = board.post(delta("e3", "a", 0, achieved_at=at(600)))
    assert order(board.top(last)) == [(1, 1, "a", "100"), (2, 2, "b", "100")]


def test_lb_011_non_improvements_add_nothing_10000_times(cluster: RunningCluster) -> None:
    board = Board(cluster)
    board.post(event("e1", "a", 100))
    for batch in range(10):
        worse = board.post(*(event(f"worse-{batch}-{n}", "a", 50 + n % 51) for n in range(1000)))
        assert set(outcomes(worse)) == {"not_an_improvement"}
    last = board.post(event("e2", "b", 70))
    assert order(board.player("b", last, view="nearby", window=5)) == [(1, 1, "a", "100"), (2, 2, "b", "70")]
    answer = board.top(last).json()
    assert (answer["total"], answer["generation"]) == (2, "s2")


def test_lb_013_of_200_parallel_posts_the_best_stands_and_polled_values_never_go_down(cluster: RunningCluster) -> None:
    board = Board(cluster)
    path = f"/v1/boards/{board.id}/players/ann"
    over, went_down, read = threading.Event(), list[tuple[str, list[int]]](), itertools.count()

    def poll(region: str) -> None:
        seen: list[int] = []
        with cluster.http(region, "reader") as http:
            while not over.is_set():
                answer = http.get(path)
                if answer.status_code == 200:
                    next(read)
                    seen.append(int(answer.json()["entries"][0]["value"]))
                    if len(answer.json()["entries"]) != 1 or seen != sorted(seen):
                        went_down.append((region, seen))
                        return

    pollers = [threading.Thread(target=poll, args=(cluster.regions[n % 3],)) for n in range(20)]
    for poller in pollers:
        poller.start()
    values = random.Random(13).sample(range(1, 201), 200)
    clients = [cluster.http(region) for region in cluster.regions]

    def post(n: int) -> httpx.Response:
        return clients[n % 3].post(f"/v1/boards/{board.id}/events", json=event(f"e{values[n]}", "ann", values[n]))

    try:
        with ThreadPoolExecutor(24) as pool:
            replies = list(pool.map(post, range(200)))
    finally:
        over.set()
        for poller in pollers:
            poller.join()
        for client in clients:
            client.close()
    assert {reply.status_code for reply in replies} == {200}
    assert not went_down
    assert next(read) > 20
    accepted = sorted(
        (r["epoch"], r["offset"], r["version"], int(r["value"])) for reply in replies for r in reply.json()["results"] if r["improved"]
    )
    assert [(version, value) for _, _, version, value in accepted] == sorted({(version, value) for _, _, version, value in accepted})
    assert accepted[-1][3] == 200
    last = max(replies, key=lambda reply: (reply.json()["results"][0]["epoch"], reply.json()["results"][0]["offset"]))
    assert order(board.top(last)) == [(1, 1, "ann", "200")]
    assert len({*board.tops(last)}) == 1


def test_lb_016_every_row_of_a_window_has_a_place_of_one_generation_during_writes(cluster: RunningCluster) -> None:
    board = Board(cluster, ranking="competition")
    board.post(*(event(f"e{n}", f"p{n:02}", 1000 + n // 3) for n in range(100)))
    over = threading.Event()

    def update() -> None:
        with cluster.http("us-east") as http:
            for n in range(50):
                http.post(f"/v1/boards/{board.id}/events", json=event(f"u{n}", f"p{n * 7 % 100:02}", 2000 + n))
                if over.wait(0.02):
                    return

    writer = threading.Thread(target=update)
    writer.start()
    try:
        clients = [cluster.http(region, "reader") for region in cluster.regions]
        generations = set()
        for number in range(500):
            answer = clients[number % 3].get(f"/v1/boards/{board.id}/players/p50?view=nearby&window=3")
            if answer.status_code == 404:  # before the first generation has come here
                continue
            rows = answer.json()["entries"]
            places = [row["position"] for row in rows]
            assert places == list(range(places[0], places[0] + len(rows)))
            own = places[[row["player_id"] for row in rows].index("p50")]
            assert (places[0], places[-1]) == (max(1, own - 3), min(100, own + 3))
            assert all(type(row["rank"]) is int and 1 <= row["rank"] <= row["position"] for row in rows)
            generations.add(answer.json()["generation"])
    finally:
        over.set()
        writer.join()
        for client in clients:
            client.close()
    assert len(generations) > 1


def test_lb_018_a_player_is_listed_once_and_the_last_place_is_there(cluster: RunningCluster) -> None:
    board = Board(cluster)
    board.post(*(event(f"e{n}", f"p{n:02}", 1000 - n) for n in range(12)))
    last = board.post(event("up", "p09", 998), event("new", "bob", 997))
    rows = order(board.top(last, limit=10))
    assert [row[2] for row in rows] == ["p00", "p01", "p02", "p09", "p03", "bob", "p04", "p05", "p06", "p07"]
    assert board.top(last).json()["total"] == 13


def test_lb_029_a_negative_value_is_not_the_largest_one(cluster: RunningCluster) -> None:
    board = Board(cluster)
    values = {"a": -1, "b": 5, "c": -2_147_483_648}
    for player, value in values.items():
        last = board.post(event(f"e-{player}", player, value))
    sdk = cluster.client("us-east")
    sdk.submit_one(board.id, "d", -2)
    last = board.post(event("e-last", "e", "-3"))
    assert [row[2:] for row in order(board.top(last))] == [("b", "5"), ("a", "-1"), ("d", "-2"), ("e", "-3"), ("c", "-2147483648")]


def test_lb_030_not_a_number_is_refused_by_field_and_the_rest_of_the_batch_is_unharmed(cluster: RunningCluster) -> None:
    board = Board(cluster, decimals=3)
    last = board.post(event("good", "good", 1))
    for number, literal in enumerate(("NaN", "Infinity", "-Infinity", "1e999", '"NaN"')):
        bad = f'{{"event_id": "bad", "player_id": "bad", "value": {literal}}}'
        good = json.dumps(event(f"e{number}", "good", 2 + number))
        with cluster.http(cluster.regions[number % 3]) as http:
            headers = {"content-type": "application/json"}
            alone = http.post(f"/v1/boards/{board.id}/events", content=bad.encode(), headers=headers)
            assert (alone.status_code, alone.json()["code"], alone.json()["field"]) == (422, "not_a_number", "value")
            last = http.post(f"/v1/boards/{board.id}/events", content=f'{{"events": [{bad}, {good}]}}'.encode(), headers=headers)
        assert outcomes(last) == ["invalid", "applied"]
    assert order(board.top(last)) == [(1, 1, "good", "6.000")]


def test_lb_035_one_event_posted_50_times_at_once_to_all_regions_counts_once(cluster: RunningCluster) -> None:
    board = Board(cluster, "cumulative")
    gate = threading.Barrier(50)

    def post(number: int) -> dict[str, Any]:
        with cluster.http(cluster.regions[number % 3]) as http:
            gate.wait()
            reply = http.post(f"/v1/boards/{board.id}/events", json=delta("E1", "ann", 10, achieved_at=at(0)))
            return dict(reply.json()["results"][0])

    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(post, range(50)))
    assert sorted(result["outcome"] for result in results) == ["applied_first", *["duplicate"] * 49]
    assert {(r["value"], r["version"], r["epoch"], r["offset"], r["acked"]) for r in results} == {
        ("10", 1, results[0]["epoch"], results[0]["offset"], "quorum")
    }
    last = board.post(delta("E1", "ann", 10, achieved_at=at(0)))
    assert order(board.top(last)) == [(1, 1, "ann", "10")]


def test_lb_037_the_same_id_with_other_content_is_a_conflict_and_other_spelling_is_not(cluster: RunningCluster) -> None:
    board = Board(cluster)
    assert outcomes(board.post(event("E1", "ann", 100, achieved_at=at(0)))) == ["applied_first"]
    for changed in (event("E1", "ann", 120, achieved_at=at(0)), event("E1", "ann", 100, achieved_at=at(1)), event("E1", "ann", 100)):
        conflict = board.post(changed)
        assert (conflict.status_code, conflict.json()["code"], outcomes(conflict)) == (409, "conflict", ["conflict"])
    assert outcomes(board.post(event("E1", "bob", 100, achieved_at=at(0)))) == ["applied_first"]  # another player's E1 is another event
    for body in (
        '{"achieved_at":"2025-11-30T11:00:00+01:00","value":100.0,"player_id":"ann","event_id":"E1"}',
        '{ "events" : [ {"value" : "100", "event_id": "\\u0045\\u0031",\n'
        ' "player_id": "ann", "achieved_at": "2025-11-30t10:00:00.000z"} ] }',
    ):
        with cluster.http("ap-south") as http:
            reply = http.post(f"/v1/boards/{board.id}/events", content=body.encode(), headers={"content-type": "application/json"})
        assert (reply.status_code, outcomes(reply)) == (200, ["duplicate"]), reply.text
        assert reply.json()["results"][0]["value"] == "100"
    last = board.post(event("E2", "ann", 101, achieved_at=at(2)))
    assert order(board.top(last)) == [(1, 1, "ann", "101"), (2, 2, "bob", "100")]


def test_lb_038_one_id_on_two_boards_is_two_events(cluster: RunningCluster) -> None:
    boards = Board(cluster), Board(cluster)
    replies = [board.post(event("E1", "ann", value)) for board, value in zip(boards, (1, 2), strict=True)]
    assert [outcomes(reply) for reply in replies] == [["applied_first"]] * 2
    assert [order(board.top(reply)) for board, reply in zip(boards, replies, strict=True)] == [[(1, 1, "ann", "1")], [(1, 1, "ann", "2")]]


def test_lb_041_a_batch_with_a_bad_item_sent_three_times_and_then_mended_counts_each_event_once(cluster: RunningCluster) -> None:
    board = Board(cluster, "cumulative")
    batch = [delta(f"e{n}", "ann", 1 << n) for n in range(10)]
    broken = [*batch[:6], {**batch[6], "delta": "1,5"}, *batch[7:]]
    first, *rest = [board.post(*broken) for _ in range(3)]
    assert outcomes(first) == ["applied_first", *["applied"] * 5, "invalid", *["applied"] * 3]
    for again in rest:
        assert outcomes(again) == [*["duplicate"] * 6, "invalid", *["duplicate"] * 3]
    last = board.post(*batch)
    assert outcomes(last) == [*["duplicate"] * 6, "applied", *["duplicate"] * 3]
    assert order(board.top(last)) == [(1, 1, "ann", "1023")]


def test_lb_042_one_refused_item_of_100_hides_no_other_and_a_resend_changes_that_one_only(cluster: RunningCluster) -> None:
    """The fault that can strike one item alone is a sum that leaves the range; it is found by the authority, not by the gateway."""
    board = Board(cluster, "cumulative")
    board.post(delta("full", "p50", 2**63 - 1))
    batch = [delta(f"e{n}", f"p{n}", 5) for n in range(100)]
    results = board.post(*batch).json()["results"]
    assert [n for n, result in enumerate(results) if result["outcome"] != "applied_first"] == [50]
    assert (results[50]["outcome"], results[50]["code"], results[50]["event_id"]) == ("invalid", "overflow", "e50")
    board.post(delta("room", "p50", -100))
    again = board.post(*batch)
    assert outcomes(again) == [*["duplicate"] * 50, "applied", *["duplicate"] * 49]
    assert board.player("p50", again).json()["entries"][0]["value"] == str(2**63 - 96)


def test_lb_043_the_same_event_twice_inside_one_batch(cluster: RunningCluster) -> None:
    board = Board(cluster, "cumulative")
    batch = [delta(event_id, "ann", amount, achieved_at=at(0)) for event_id, amount in (("E1", 5), ("E1", 5), ("E2", 5), ("E1", 6))]
    last = board.post(*batch)
    assert outcomes(last) == ["applied_first", "duplicate", "applied", "conflict"]
    assert order(board.top(last)) == [(1, 1, "ann", "10")]


def test_lb_106_ids_are_exact_bytes_in_body_path_and_list(cluster: RunningCluster) -> None:
    board = Board(cluster, ties="player_id")
    ids = ["Ann", "ann", "a b", "\u0430nn", "\u00e9", "e\u0301", "x" * 128, "p:1", "100%", "a+b", "a?b#c", "..."]
    last = board.post(*(event("e1", player_id, 1) for player_id in ids))
    assert set(outcomes(last)) == {"applied_first"}
    listed = [row[2] for row in order(board.top(last))]
    assert listed == sorted(ids, key=str.encode)
    for place, player_id in enumerate(listed, 1):
        assert order(board.player(player_id, last)) == [(place, place, player_id, "1")]
    with cluster.http("us-east", "reader") as http:
        answer = http.post(f"/v1/boards/{board.id}/ranks", json={"players": [*ids, "ANN"], "among": "listed"})
    assert [row[2] for row in order(answer)] == listed
    assert answer.json()["absent"] == ["ANN"]
    for bad in ("ann ", "", "a/b", "a\nb", "x" * 129):
        refused = board.post(event("e2", bad, 1))
        assert (refused.status_code, refused.json()["field"]) == (422, "player_id")


def test_lb_056_a_clock_that_runs_ahead_is_refused_beyond_the_allowance(cluster: RunningCluster) -> None:
    """Inside the allowance, and in the past, the sender's word on `achieved_at` stands: who may send it holds a game-server token."""

    def from_now(seconds: float) -> str:
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()

    board = Board(cluster)
    last = board.post(
        event("e1", "ann", 100, achieved_at="1970-01-01T00:00:00Z"),
        event("e2", "bob", 100, achieved_at=from_now(0)),
        event("e3", "cat", 100, achieved_at=from_now(86_400)),
        event("e4", "dan", 100, achieved_at=from_now(290)),
        event("e5", "eve", 100, achieved_at=from_now(310)),
    )
    results = last.json()["results"]
    assert outcomes(last) == ["applied_first", "applied_first", "invalid", "applied_first", "invalid"]
    assert {(result["code"], result["field"]) for result in results if result["outcome"] == "invalid"} == {("in_future", "achieved_at")}
    assert [row[2] for row in order(board.top(last))] == ["ann", "bob", "dan"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-laurel-hop": "1", "x-laurel-hops": "9", "x-laurel-from": "eu-west", "x-laurel-forwarded": "1"},
        {
            "via": "1.1 proxy",
            "forwarded": "for=203.0.113.9;proto=https",
            "x-forwarded-for": "203.0.113.9, 10.0.0.1",
            "x-real-ip": "203.0.113.9",
        },
        {"x-laurel-region": "eu-west", "x-laurel-epoch": "999999", "x-http-method-override": "GET", "max-forwards": "0"},
    ],
    ids=["our own", "a proxy's", "others"],
)
def test_lb_122_lb_123_forged_or_honest_hop_headers_change_nothing(cluster: RunningCluster, headers: dict[str, str]) -> None:
    board = Board(cluster, "cumulative")
    for number, region in enumerate(cluster.regions):
        with cluster.http(region) as http:
            reply = http.post(f"/v1/boards/{board.id}/events", json=delta(f"e{number}", "ann", 1), headers=headers)
        assert (reply.status_code, reply.json()["region"], reply.headers["x-laurel-region"]) == (200, region, region), reply.text
        assert reply.json()["results"][0]["acked"] == "quorum"
    assert order(board.top(reply)) == [(1, 1, "ann", "3")]


def test_lb_121_lb_122_the_public_address_knows_no_way_between_regions(cluster: RunningCluster) -> None:
    """What one region says to another is refused at the public address, whoever asks; and a public token opens no link."""
    region_token = (cluster.data_dir / "keys" / "region-us-east.token").read_text()
    links = {name: region.link for name, region in cluster.launcher.config.regions.items()}
    paths = [f"/internal/v1/{name}" for name in ("append", "seal", "submit", "probe", "fetch", "drain", "readmit", "operate")]
    public = [{"authorization": f"Bearer {cluster.token(scope)}"} for scope in ("operator", "game-server")]
    for region, link in links.items():
        with cluster.http(region, None) as http, httpx.Client(base_url=f"http://{link.host}:{link.port}", trust_env=False) as inner:
            for path in paths:
                for headers in ({"authorization": f"Bearer {region_token}"}, *public):
                    assert http.post(path, content=b"\x80", headers=headers).status_code == 404, (region, path)
                for headers in (*public, {}):
                    assert inner.post(path, content=b"\x80", headers=headers).status_code == 401, (region, path)


def test_lb_151_a_client_that_leaves_at_once_leaves_nothing_half_done(cluster: RunningCluster) -> None:
    """200 times: send the request, close the socket. Every event is then there as a whole or not at all, in all regions alike."""
    board = Board(cluster, "cumulative")
    for number in range(200):
        region = cluster.regions[number % 3]
        url = urllib.parse.urlsplit(cluster.urls[region])
        body = json.dumps(delta(f"e{number}", f"p{number % 20}", 1, achieved_at=at(0))).encode()
        head = (
            f"POST /v1/boards/{board.id}/events HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {cluster.token('game-server')}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((url.hostname or "", url.port or 0), timeout=5) as caller:
            caller.sendall(head.encode() + body)
            if number % 2:  # half of them leave when the answer begins, half before it
                caller.recv(1)
    # The same events once more: what was stored answers as a duplicate, and nothing is counted twice.
    again = [delta(f"e{number}", f"p{number % 20}", 1, achieved_at=at(0)) for number in range(200)]
    last = board.post(*again)
    assert set(outcomes(last)) <= {"duplicate", "applied", "applied_first"}
    assert all(outcome == "duplicate" for outcome in outcomes(last)[1::2])
    bodies = {*board.tops(last)}
    assert len(bodies) == 1
    rows = json.loads(bodies.pop())["entries"]
    assert {(row["player_id"], row["value"], row["version"]) for row in rows} == {(f"p{number}", "10", 10) for number in range(20)}
    with cluster.http("ap-south", "reader") as http:
        ranks = http.post(f"/v1/boards/{board.id}/ranks", json={"players": [row["player_id"] for row in rows]}).json()
    assert ranks["entries"] == rows
