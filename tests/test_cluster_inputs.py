"""Bad input against running regions: it is refused by name, the good events beside it count, and nothing is lost."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from running_cluster import RunningCluster

from regions.tokens import KeyPair, Scope

pytestmark = pytest.mark.cluster

JSON = {"content-type": "application/json"}

BAD_IDS = {
    "empty": '""',
    "129 bytes": json.dumps("x" * 129),
    "65 letters of 2 bytes": json.dumps("é" * 65),
    "slash": '"a/b"',
    "space in front": '" a"',
    "space behind": '"a "',
    "newline": '"a\\nb"',
    "nul": '"a\\u0000"',
    "delete": '"a\\u007f"',
    "dot": '"."',
    "two dots": '".."',
    "lone surrogate": '"a\\ud800"',
    "number": "7",
    "null": "null",
    "list": '["a"]',
}
BAD_VALUES = {
    "NaN": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "beyond a double": "1e999",
    "exponent": "1e3",
    "true": "true",
    "null": "null",
    "list": "[1]",
    "NaN as text": '"NaN"',
    "underscore": '"1_000"',
    "comma": '"12,5"',
    "empty": '""',
    "plus": '"+1"',
    "hexadecimal": '"0x1F"',
    "no digit in front": '".5"',
    "n/a": '"n/a"',
    "fraction": "1.5",
    "fraction as text": '"0.001"',
    "above 64 bits": "9223372036854775808",
    "below 64 bits": "-9223372036854775809",
    "5000 digits": "9" * 5000,
}
BAD_TIMES = {
    "no offset": '"2026-11-30T10:05:00"',
    "no time": '"2026-11-30"',
    "no such day": '"2026-02-30T10:05:00Z"',
    "hour 24": '"2026-11-30T24:00:00Z"',
    "leap second": '"2016-12-31T23:59:60Z"',
    "number": "1764497100000",
    "null": "null",
    "empty": '""',
    "words": '"now"',
}


def at(seconds_from_now: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds_from_now)).isoformat()


def event(event_id: str, player_id: str = "ann", value: Any = 100, **fields: Any) -> dict[str, Any]:
    return {"event_id": event_id, "player_id": player_id, "value": value, **fields}


def problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> None:
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert (response.status_code, body["code"], body["field"]) == (status, code, field), response.text
    assert body["definite"] is True


class Gateways:
    """Posts to the regions in turn, and knows the good events that must be on the board at the end."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster, self.board = cluster, cluster.fresh_board("best_score", max_age_ms=86_400_000)
        self.good: list[str] = []
        self._turns = itertools.cycle(cluster.regions)
        self._clients = {region: cluster.http(region) for region in cluster.regions}

    def send(self, body: str | bytes, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else body.encode()
        return self._clients[next(self._turns)].post(f"/v1/boards/{self.board}/events", content=content, headers={**JSON, **headers})

    def between_good_ones(self, bad: str) -> dict[str, Any]:
        """One batch [good, bad, good]; returns the result of the bad one."""
        names = [f"good-{len(self.good)}", f"good-{len(self.good) + 1}"]
        first, last = (json.dumps(event(f"e-{name}", name, 5)) for name in names)
        response = self.send(f'{{"events": [{first}, {bad}, {last}]}}')
        assert response.status_code == 200, response.text
        before, refused, after = response.json()["results"]
        assert (before["outcome"], after["outcome"]) == ("applied_first", "applied_first")
        self.good += names
        return dict(refused)

    def close(self) -> None:
        """Every good event is on the board, in every region, and nothing else is."""
        last = self._clients[self.cluster.regions[0]].post(f"/v1/boards/{self.board}/events", json=event("e-last", "last", 5))
        for region, client in self._clients.items():
            top = self.cluster.get(region, f"/v1/boards/{self.board}/top", after=last, limit=1000).json()
            assert {entry["player_id"] for entry in top["entries"]} == {*self.good, "last"}, region
            assert {entry["value"] for entry in top["entries"]} == {"5"}
            client.close()


@pytest.fixture
def gateways(cluster: RunningCluster) -> Iterator[Gateways]:
    made = Gateways(cluster)
    yield made
    made.close()


@pytest.mark.parametrize("field", ["event_id", "player_id"])
def test_a_bad_id_is_refused_by_field_and_its_neighbours_count(gateways: Gateways, field: str) -> None:
    for name, literal in BAD_IDS.items():
        other = "player_id" if field == "event_id" else "event_id"
        bad = f'{{"{field}": {literal}, "{other}": "x", "value": 1}}'
        refused = gateways.between_good_ones(bad)
        assert (refused["outcome"], refused["code"], refused["field"]) == ("invalid", "bad_id", field), name
        problem(gateways.send(bad), 422, "bad_id", field)


def test_a_bad_value_is_refused_by_field_and_its_neighbours_count(gateways: Gateways) -> None:
    """LB-023 and LB-030 among them."""
    for name, literal in BAD_VALUES.items():
        bad = f'{{"event_id": "bad", "player_id": "x", "value": {literal}}}'
        refused = gateways.between_good_ones(bad)
        code = "too_precise" if "fraction" in name else "out_of_range" if name.endswith(("64 bits", "digits")) else "not_a_number"
        assert (refused["outcome"], refused["event_id"], refused["code"], refused["field"]) == ("invalid", "bad", code, "value"), name
        assert refused["allowed"]
        problem(gateways.send(bad), 422, code, "value")


@pytest.mark.parametrize("field", ["achieved_at", "submitted_at"])
def test_a_bad_time_is_refused_by_field_and_its_neighbours_count(gateways: Gateways, field: str) -> None:
    for name, literal in BAD_TIMES.items():
        bad = f'{{"event_id": "bad", "player_id": "x", "value": 1, "{field}": {literal}}}'
        refused = gateways.between_good_ones(bad)
        assert (refused["outcome"], refused["code"], refused["field"]) == ("invalid", "bad_time", field), name
        problem(gateways.send(bad), 422, "bad_time", field)
    problem(gateways.send(json.dumps(event("bad", "x", 1, **{field: at(310)}))), 422, "in_future", field)


def test_an_event_older_than_the_board_takes_is_refused(gateways: Gateways) -> None:
    refused = gateways.between_good_ones(json.dumps(event("bad", "x", 1, achieved_at=at(-2 * 86_400))))
    assert (refused["outcome"], refused["code"], refused["field"]) == ("invalid", "too_old", "achieved_at")


def test_a_misshapen_event_is_refused_by_field_and_its_neighbours_count(gateways: Gateways) -> None:
    shapes: dict[str, tuple[str, str]] = {
        '{"event_id": "bad", "player_id": "x", "value": 1, "valeu": 2}': ("unknown_field", "valeu"),
        '{"event_id": "bad", "player_id": "x", "delta": 1}': ("wrong_field", "delta"),
        '{"event_id": "bad", "player_id": "x"}': ("missing_field", "value"),
        '{"player_id": "x", "value": 1}': ("missing_field", "event_id"),
        '{"event_id": "bad", "value": 1}': ("missing_field", "player_id"),
        '{"event_id": "bad", "player_id": "x", "match_id": "m", "revision": 1, "points": 3}': ("not_supported", "match_id"),
        "7": ("not_an_object", "events[1]"),
        "null": ("not_an_object", "events[1]"),
    }
    for bad, expected in shapes.items():
        refused = gateways.between_good_ones(bad)
        assert (refused["outcome"], refused["code"], refused["field"]) == ("invalid", *expected), bad


def test_a_bad_envelope_is_refused_whole_and_nothing_of_it_applied(gateways: Gateways) -> None:
    good = json.dumps(event("e1", "x", 1))
    many = json.dumps({"events": [event(f"e{number}", f"x{number}", 1) for number in range(1001)]})
    problem(gateways.send(many), 422, "too_many_events", "events")
    problem(gateways.send('{"events": []}'), 422, "no_events", "events")
    problem(gateways.send("{}"), 422, "no_events", "events")
    problem(gateways.send('{"events": 7}'), 422, "no_events", "events")
    problem(gateways.send(f'{{"events": [{good}], "board": "x"}}'), 422, "unknown_field", "board")
    problem(gateways.send(f"[{good}]"), 422, "not_an_object")
    for broken in (
        f'{{"events": [{good}',
        f'{{"events": [{good}],}}',
        "",
        "events",
        f"{good}{good}",
        f'{{"events": [{good}], "events": [{good}]}}',
    ):
        problem(gateways.send(broken), 400, "bad_json")
    problem(gateways.send(b'{"events": [{"event_id": "\xff", "player_id": "x", "value": 1}]}'), 400, "bad_json")
    problem(gateways.send("[" * 100_000), 400, "bad_json")
    problem(gateways.send(good, **{"content-type": "text/plain"}), 415, "unsupported_media_type", "content-type")
    problem(gateways.send(good, **{"content-encoding": "gzip"}), 415, "unsupported_media_type", "content-encoding")


def test_a_body_of_5_mb_is_refused_in_every_region_and_the_gateway_goes_on(gateways: Gateways) -> None:
    padding = " " * 5_000_000
    for _ in range(3):
        problem(gateways.send(json.dumps({"events": [event("e1", "x", 1)]}) + padding), 413, "too_large")
        assert gateways.between_good_ones("7")["outcome"] == "invalid"


def test_a_body_of_5_mb_sent_in_chunks_is_refused_as_soon_as_it_is_too_long(gateways: Gateways) -> None:
    region = gateways.cluster.regions[1]

    def chunks() -> Iterator[bytes]:
        yield b'{"events": ['
        for _ in range(100):
            yield b" " * 50_000

    with gateways.cluster.http(region) as http:
        problem(http.post(f"/v1/boards/{gateways.board}/events", content=chunks(), headers=JSON), 413, "too_large")


def test_an_unknown_board_is_404_in_every_region(cluster: RunningCluster) -> None:
    for region in cluster.regions:
        problem(cluster.post(region, "arena-clash:solo:S7:nowhere", event("e1")), 404, "unknown_board")
        problem(cluster.get(region, "/v1/boards/arena-clash:solo:S7:nowhere/top"), 404, "unknown_board")
        problem(cluster.post(region, "Arena:solo:S7:global", event("e1")), 422, "bad_id", "board")


def test_a_bad_id_in_a_path_or_a_bad_parameter_is_422_with_the_field(cluster: RunningCluster) -> None:
    board = cluster.fresh_board()
    for region in cluster.regions:
        for bad in ("%2F", "a%2Fb", "%2E%2E", "%0A", "%20a", "%FF", "a%zz", "x" * 129):
            problem(cluster.get(region, f"/v1/boards/{board}/players/{bad}"), 422, "bad_id", "player_id")
        for name, bad in (("limit", "0"), ("limit", "1001"), ("limit", "1_0"), ("generation", "17"), ("at_least", "7"), ("cursor", "")):
            code = "bad_cursor" if name == "cursor" else "bad_parameter"
            problem(cluster.get(region, f"/v1/boards/{board}/top?{name}={bad}"), 422, code, name)
        problem(cluster.get(region, f"/v1/boards/{board}/top", limits="5"), 422, "unknown_parameter", "limits")
        problem(cluster.get(region, f"/v1/boards/{board}/top", cursor="AAAA"), 422, "bad_cursor", "cursor")


def test_a_token_that_does_not_fit_is_refused_and_nothing_is_applied(cluster: RunningCluster) -> None:
    """Missing, garbage, expired, signed by another key, altered, for another game, of another scope; each in each region."""
    board, keys = cluster.fresh_board(), KeyPair.load(cluster.data_dir / "keys" / "cluster.pem")

    def issue(scope: Scope = "game-server", games: tuple[str, ...] = ("arena-clash",), *, pair: KeyPair = keys, age_s: float = 0) -> str:
        return pair.issue("test", scope, games, 600, now_s=time.time() - age_s)

    good = issue()
    head, payload, signature = good.split(".")
    refused: dict[str, tuple[str | None, int, str]] = {
        "missing": (None, 401, "missing_token"),
        "garbage": ("x.y.z", 401, "bad_token"),
        "expired": (issue(age_s=700), 401, "expired_token"),
        "another key": (issue(pair=KeyPair.generate()), 401, "bad_token"),
        "altered": (f"{head}.{payload[:-2]}AA.{signature}", 401, "bad_token"),
        "another game": (issue(games=("kart",)), 403, "foreign_game"),
        "reader": (issue("reader"), 403, "wrong_scope"),
        "operator": (issue("operator", ("*",)), 403, "wrong_scope"),
        "region": (issue("region", ("*",)), 403, "wrong_scope"),
    }
    for region in cluster.regions:
        with cluster.http(region, None) as http:
            post: Callable[[str | None, str], httpx.Response] = lambda token, name, http=http: http.post(  # type: ignore[misc]  # noqa: E731
                f"/v1/boards/{board}/events", json=event(f"e-{name}", name), headers={"authorization": f"Bearer {token}"} if token else {}
            )
            for name, (token, status, code) in refused.items():
                problem(post(token, "intruder"), status, code)
                if name in ("missing", "garbage", "expired", "another key", "another game", "region"):
                    headers = {"authorization": f"Bearer {token}"} if token else {}
                    problem(http.get(f"/v1/boards/{board}/top", headers=headers), status, code)
            last = post(good, f"honest-{region}")
            assert last.json()["results"][0]["outcome"] == "applied_first"
            problem(http.get("/v1/status", headers={"authorization": f"Bearer {good}"}), 403, "wrong_scope")
            for path in ("boards", "failover", "links"):
                problem(http.post(f"/v1/admin/{path}", json={}, headers={"authorization": f"Bearer {good}"}), 403, "wrong_scope")
    top = cluster.get("us-east", f"/v1/boards/{board}/top", after=last).json()
    assert sorted(entry["player_id"] for entry in top["entries"]) == sorted(f"honest-{region}" for region in cluster.regions)


def test_spellings_of_one_number_are_one_event_in_every_region(cluster: RunningCluster) -> None:
    board = cluster.fresh_board(decimals=2)
    found = []
    for region, literal in zip(cluster.regions * 2, ("12.5", '"12.5"', "12.50", '"12.50"', '"12.500"', "12.5"), strict=True):
        body = '{"event_id": "e1", "player_id": "ann", "value": %s, "achieved_at": "2025-11-30T10:00:00Z"}' % literal  # noqa: UP031
        with cluster.http(region) as http:
            found += http.post(f"/v1/boards/{board}/events", content=body.encode(), headers=JSON).json()["results"]
    assert [result["outcome"] for result in found] == ["applied_first", *["duplicate"] * 5]
    assert {(result["value"], result["version"], result["offset"]) for result in found} == {("12.50", 1, found[0]["offset"])}


def test_the_largest_values_keep_every_digit(cluster: RunningCluster) -> None:
    board = cluster.fresh_board()
    events = [event("e1", "top", 2**63 - 1), event("e2", "next", str(2**63 - 2)), event("e3", "last", -(2**63))]
    last = cluster.post("ap-south", board, events)
    top = cluster.get("us-east", f"/v1/boards/{board}/top", after=last).json()
    assert [entry["value"] for entry in top["entries"]] == ["9223372036854775807", "9223372036854775806", "-9223372036854775808"]


def test_a_sum_beyond_64_bits_is_refused_never_wrapped_and_the_id_may_be_used_again(cluster: RunningCluster) -> None:
    board = cluster.fresh_board("cumulative")

    def add(event_id: str, delta: int) -> httpx.Response:
        return cluster.post("us-east", board, {"event_id": event_id, "player_id": "ann", "delta": delta})

    assert add("e1", 2**63 - 1).json()["results"][0]["value"] == str(2**63 - 1)
    problem(add("e2", 1), 422, "overflow", "delta")
    last = add("e2", -5)
    assert (last.json()["results"][0]["outcome"], last.json()["results"][0]["value"]) == ("applied", str(2**63 - 6))


def test_a_time_above_the_boards_maximum_or_not_above_0_is_invalid_and_not_remembered(cluster: RunningCluster) -> None:
    board = cluster.fresh_board("fastest_time", max_value=60_000)
    for bad in (0, -1, 60_001):
        problem(cluster.post("ap-south", board, event("e1", value=bad)), 422, "out_of_range", "value")
    assert cluster.post("ap-south", board, event("e1", value=60_000)).json()["results"][0]["outcome"] == "applied_first"


def test_a_time_that_was_not_sent_is_stamped_once_and_is_no_part_of_the_identity(cluster: RunningCluster) -> None:
    board = cluster.fresh_board()
    first = cluster.post("ap-south", board, event("e1"))
    again = cluster.post("us-east", board, event("e1"))
    assert [r.json()["results"][0]["outcome"] for r in (first, again)] == ["applied_first", "duplicate"]
    bodies = {cluster.get(region, f"/v1/boards/{board}/top", after=again).content for region in cluster.regions}
    assert len(bodies) == 1
