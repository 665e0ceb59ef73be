"""Bad input over HTTP: ids, numbers, times, envelopes, paths, parameters and tokens, each refused by name."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_backend import START_MS
from http_edge import COINS, OPERATOR, SERVER, SOLO, World, event, problem, token

from boards.times import format_time
from regions.backend import Limits

EVENTS = f"/v1/boards/{SOLO}/events"
JSON = {"content-type": "application/json"}
MIB = 1 << 20


@pytest.fixture
def world() -> World:
    return World()


# Ids

BAD_IDS = ["", " a", "a ", "a/b", ".", "..", "a\x00", "a\nb", "a\x7fb", "a\x85b", "x" * 129, "\u00e9" * 65]


@pytest.mark.parametrize("field", ["event_id", "player_id"])
@pytest.mark.parametrize("bad", [*BAD_IDS, 7, 7.5, None, True, ["a"], {"a": 1}])
def test_an_id_of_a_bad_form_is_invalid_by_field(world: World, field: str, bad: Any) -> None:
    problem(world.submit({**event(), field: bad}), 422, "bad_id", field)
    assert world.backend.submitted == []


def test_a_lone_surrogate_in_an_id_is_named_and_the_other_events_count(world: World) -> None:
    body = b'{"events": [{"event_id": "a\\ud800", "player_id": "p", "value": 1}, {"event_id": "b", "player_id": "p", "value": 1}]}'
    bad, good = world.send("events", body).json()["results"]
    assert (bad["outcome"], bad["field"], good["outcome"]) == ("invalid", "event_id", "applied_first")


@pytest.mark.parametrize(
    "good", ["x" * 128, "\u00e9" * 64, "a b", "\u65e5\u672c", "a.b", "...", "p:1", "\ufb01", "\U0001f469\u200d\U0001f680"]
)
def test_an_unusual_id_within_the_rules_is_taken_as_it_is(world: World, good: str) -> None:
    assert world.submit(event(good, good)).json()["results"][0]["event_id"] == good
    assert world.backend.submitted[0][1][0].player_id == good


def test_ids_that_look_alike_are_distinct(world: World) -> None:
    same = ["Ann", "ann", "\u00dcn", "U\u0308n", "\u0430nn"]
    results = world.submit(*(event("e1", player_id) for player_id in same)).json()["results"]
    assert [result["outcome"] for result in results] == ["applied_first"] * 5


@pytest.mark.parametrize("bad", [*BAD_IDS[1:4], "a\nb", "a\x00", "x" * 129, "a/b/c", "a//b", "/", "//"])
@pytest.mark.parametrize("escaped", [True, False])
def test_a_bad_player_id_in_a_path_is_422_with_the_field(world: World, bad: str, escaped: bool) -> None:
    url = f"/v1/boards/{SOLO}/players/{quote(bad, safe='' if escaped else '/')}"
    problem(world.get(url), 422, "bad_id", "player_id")


@pytest.mark.parametrize("raw", ["", "%2E", "%2E%2E", "%2F", "a%2Fb", "%FF", "%C3", "a%zz", "a%", "%", "%0A", "%00", "%20a", "a%2520%2"])
def test_a_raw_path_with_an_odd_player_is_422_with_the_field(world: World, raw: str) -> None:
    problem(raw_get(world, f"/v1/boards/{SOLO}/players/{raw}"), 422, "bad_id", "player_id")


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "a",
        "a:b:c",
        "a:b:c:d:e",
        "A:b:c:d",
        "a:b:c:D",
        "a:b::d",
        "a%2Fb:b:c:d",
        "a:b:c:d%20",
        "%FF",
        "..",
        "a/b:c:d:e",
        "a:b:c:%C3%A9",
        "%zz",
    ],
)
@pytest.mark.parametrize("rest", ["", "/top", "/events", "/players/p", "/nothing"])
def test_a_bad_board_id_in_a_path_is_422_with_the_field(world: World, raw: str, rest: str) -> None:
    problem(raw_get(world, f"/v1/boards/{raw}{rest}"), 422, "bad_id", "board")


def raw_get(world: World, raw_path: str) -> httpx.Response:
    """GET a path as its bytes are, which a well-behaved client would not send."""
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "headers": [],
            "path": unquote(raw_path), "raw_path": raw_path.encode(), "query_string": b"", "root_path": "", "server": ("region", 80),
        }  # fmt: skip
        await world.app(scope, receive, send)

    asyncio.run(run())
    return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=sent[1]["body"])


# The second column

PAIRS = "arena-clash:pairs:S7:global"


@pytest.mark.parametrize(
    ("second", "code"),
    [(1.5, "too_precise"), ("1.0.0", "not_a_number"), (True, "not_a_number"), (None, "not_a_number"), (2**63, "out_of_range"),
     (-(2**63) - 1, "out_of_range"), ("1e3", "not_a_number"), ([], "not_a_number"), ("", "not_a_number")],
)  # fmt: skip
def test_a_bad_second_column_is_invalid_by_field(world: World, second: Any, code: str) -> None:
    world.backend.add(PAIRS, visibility="public", secondary="lower", decimals=2)
    problem(world.submit(event(secondary=second), board=PAIRS), 422, code, "secondary")
    assert world.backend.submitted == []


def test_the_second_column_is_required_where_there_is_one_and_refused_elsewhere(world: World) -> None:
    world.backend.add(PAIRS, visibility="public", secondary="lower")
    problem(world.submit(event(), board=PAIRS), 422, "missing_field", "secondary")
    problem(world.submit(event(secondary=1)), 422, "wrong_field", "secondary")
    problem(world.submit({**event(secondary=1), "extra": 1}, board=PAIRS), 422, "unknown_field", "extra")


@pytest.mark.parametrize(
    ("second", "kept"),
    [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (0, 0), ("0", 0), ("-0", 0), ("7.0", 7), ("-9007199254740993", -9007199254740993)],
)
def test_the_second_column_takes_every_64_bit_integer(world: World, second: Any, kept: int) -> None:
    world.backend.add(PAIRS, visibility="public", secondary="higher")
    assert world.submit(event(secondary=second), board=PAIRS).status_code == 200
    assert world.backend.submitted[0][1][0].second == kept


# Boards over shards


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True, [], ["eu-west/0", 7], {}, 1001])
def test_shards_are_a_count_or_names(world: World, bad: Any) -> None:
    body = {"board": PAIRS, "policy": "best_score", "shards": bad}
    problem(world.call("POST", "/v1/admin/boards", headers=OPERATOR, json=body), 422, "bad_rule", "shards")
    problem(world.call("POST", f"/v1/admin/boards/{SOLO}/relocate", headers=OPERATOR, json={"shards": bad}), 422, "bad_rule", "shards")


@pytest.mark.parametrize("bad", ["lower", {"direction": "down"}, {}, {"direction": "lower", "ties": 1}, [], 7, True])
def test_the_second_column_of_a_new_board_is_a_mapping_with_a_direction(world: World, bad: Any) -> None:
    body = {"board": PAIRS, "policy": "best_score", "secondary": bad}
    problem(world.call("POST", "/v1/admin/boards", headers=OPERATOR, json=body), 422, "bad_rule", "secondary")


def test_a_sum_has_no_second_column(world: World) -> None:
    body = {"board": PAIRS, "policy": "cumulative", "secondary": {"direction": "lower"}}
    problem(world.call("POST", "/v1/admin/boards", headers=OPERATOR, json=body), 422, "bad_rule", "secondary")


def test_a_move_needs_shards_and_nothing_else(world: World) -> None:
    url = f"/v1/admin/boards/{SOLO}/relocate"
    problem(world.call("POST", url, headers=OPERATOR, json={}), 422, "missing_field", "shards")
    problem(world.call("POST", url, headers=OPERATOR, json={"shards": 2, "to": "eu-west/1"}), 422, "unknown_field", "to")
    problem(world.call("GET", url), 401, "missing_token")
    problem(world.call("GET", f"/v1/admin/boards/{PAIRS}/relocate", headers=OPERATOR), 404, "unknown_board")
    problem(world.call("DELETE", "/v1/admin/boards/no:board", headers=OPERATOR), 422, "bad_id", "board")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2"])
def test_a_page_of_the_list_has_1_to_1000_boards(world: World, query: str) -> None:
    problem(world.get(f"/v1/boards?{query}"), 422, "bad_parameter", "limit")


@pytest.mark.parametrize("cursor", ["", "nonsense", "a:b:c", "%20"])
def test_a_cursor_that_the_list_never_gave_is_refused(world: World, cursor: str) -> None:
    problem(world.get(f"/v1/boards?cursor={cursor}"), 422, "bad_cursor", "cursor")


# Numbers


@pytest.mark.parametrize(
    ("literal", "code"),
    [
        ("NaN", "not_a_number"), ("Infinity", "not_a_number"), ("-Infinity", "not_a_number"), ("1e3", "not_a_number"),
        ("1E400", "not_a_number"), ("true", "not_a_number"), ("null", "not_a_number"), ("[1]", "not_a_number"), ('"1_000"', "not_a_number"),
        ('"12,5"', "not_a_number"), ('""', "not_a_number"), ('" 1"', "not_a_number"), ('"+1"', "not_a_number"), ('"0x1F"', "not_a_number"),
        ('"\u0663"', "not_a_number"), ('"1e3"', "not_a_number"), ('".5"', "not_a_number"),
        ("1.5", "too_precise"), ('"0.001"', "too_precise"),
        ("9223372036854775808", "out_of_range"), ("-9223372036854775809", "out_of_range"), ("9" * 5000, "out_of_range"),
    ],
)  # fmt: skip
def test_a_value_of_a_bad_form_is_invalid_and_the_good_events_count(world: World, literal: str, code: str) -> None:
    bad = '{"event_id": "e1", "player_id": "p", "value": %s}' % literal  # noqa: UP031
    good = '{"event_id": "e2", "player_id": "p", "value": 5}'
    response = world.send("events", f'{{"events": [{bad}, {good}]}}'.encode())
    first, second = response.json()["results"]
    assert response.status_code == 200
    assert (first["outcome"], first["code"], first["field"], first["event_id"]) == ("invalid", code, "value", "e1")
    assert first["allowed"] and second["outcome"] == "applied_first"


@pytest.mark.parametrize("literal", ["9223372036854775807", '"9223372036854775807"', "9223372036854775807.0"])
def test_the_largest_value_keeps_every_digit(world: World, literal: str) -> None:
    body = '{"event_id": "e1", "player_id": "p", "value": %s}' % literal  # noqa: UP031
    assert world.send("events", body.encode()).json()["results"][0]["value"] == "9223372036854775807"


def test_spellings_of_one_number_are_one_event(world: World) -> None:
    outcomes = []
    for literal in ("12.5", '"12.5"', "12.50", '"12.500"'):
        body = '{"event_id": "e1", "player_id": "p", "delta": %s}' % literal  # noqa: UP031
        outcomes.append(world.send("events", body.encode(), board=COINS).json()["results"][0]["outcome"])
    assert outcomes == ["applied_first", "duplicate", "duplicate", "duplicate"]


def test_an_overflowing_sum_is_refused_and_the_total_stays(world: World) -> None:
    world.submit({"event_id": "e1", "player_id": "p", "delta": "92233720368547758.07"}, board=COINS)
    problem(world.submit({"event_id": "e2", "player_id": "p", "delta": "0.01"}, board=COINS), 422, "overflow", "delta")
    result = world.submit({"event_id": "e3", "player_id": "p", "delta": 0}, board=COINS).json()["results"][0]
    assert result["value"] == "92233720368547758.07"


# Times


@pytest.mark.parametrize("field", ["achieved_at", "submitted_at"])
@pytest.mark.parametrize(
    "bad",
    ["2026-11-30T10:05:00", "2026-11-30", "2026-11-30 10:05:00Z", "2026-02-30T10:05:00Z", "2026-11-30T24:00:00Z",
    "yesterday", "", 1_796_033_400,
     None, True, "2026-11-30T10:05:60Z"],
)  # fmt: skip
def test_a_time_of_a_bad_form_is_invalid_by_field(world: World, field: str, bad: Any) -> None:
    problem(world.submit(event(**{field: bad})), 422, "bad_time", field)


@pytest.mark.parametrize("field", ["achieved_at", "submitted_at"])
def test_a_time_may_lie_300_s_ahead_and_no_more(world: World, field: str) -> None:
    assert world.submit(event("e1", **{field: format_time(START_MS + 300_000)})).status_code == 200
    problem(world.submit(event("e2", **{field: format_time(START_MS + 300_001)})), 422, "in_future", field)


def test_the_past_is_unlimited_unless_the_board_says_so(world: World) -> None:
    assert world.submit(event(achieved_at="0001-01-01T00:00:00Z")).status_code == 200
    world.backend.add("arena-clash:fresh:S7:global", max_age_ms=60_000)
    within, beyond = format_time(START_MS - 60_000), format_time(START_MS - 60_001)
    response = world.submit(event("e1", achieved_at=within), event("e2", achieved_at=beyond), board="arena-clash:fresh:S7:global")
    assert [(result["outcome"], result.get("code")) for result in response.json()["results"]] == [
        ("applied_first", None),
        ("invalid", "too_old"),
    ]


def test_an_offset_is_the_same_instant(world: World) -> None:
    world.submit(event(achieved_at="2026-11-30T10:05:00Z"))
    assert world.submit(event(achieved_at="2026-11-30T11:05:00.000+01:00")).json()["results"][0]["outcome"] == "duplicate"


# Fields of an event


@pytest.mark.parametrize(
    ("changes", "board", "code", "field"),
    [
        ({"delta": 5}, SOLO, "wrong_field", "delta"), ({}, COINS, "wrong_field", "value"), ({"score": 5}, SOLO, "unknown_field", "score"),
        ({"achived_at": "x"}, SOLO, "unknown_field", "achived_at"), ({"match_id": "M1"}, SOLO, "not_supported", "match_id"),
        ({"revision": 1}, SOLO, "not_supported", "revision"), ({"rule_version": 2}, SOLO, "not_supported", "rule_version"),
        ({"": 1}, SOLO, "unknown_field", None), ({"x" * 500: 1}, SOLO, "unknown_field", "x" * 128),
    ],
)  # fmt: skip
def test_a_field_that_does_not_belong_is_named(world: World, changes: Any, board: str, code: str, field: str | None) -> None:
    allowed = problem(world.submit({**event(), **changes}, board=board), 422, code, field)["allowed"]
    assert allowed
    if field == "achived_at":
        assert "did you mean achieved_at?" in allowed


@pytest.mark.parametrize("field", ["event_id", "player_id", "value"])
def test_a_missing_field_is_named(world: World, field: str) -> None:
    lacking = event()
    del lacking[field]
    problem(world.submit(lacking), 422, "missing_field", field)


@pytest.mark.parametrize("odd", [None, 7, "e", [], 1.5, [event()]])
def test_an_event_that_is_no_object_is_named_by_its_place(world: World, odd: Any) -> None:
    problem(world.submit(odd), 422, "not_an_object", "events[0]")


# The envelope


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nope", b'{"events": [}', b"\xff\xfe", b'{"events": []} x', b"[" * 100_000, b'{"events": [], "events": []}']
)
def test_what_is_no_json_is_400(world: World, body: bytes) -> None:
    problem(world.send("events", body), 400, "bad_json")


@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"null", b"NaN"])
def test_json_that_is_no_object_is_422(world: World, body: bytes) -> None:
    problem(world.send("events", body), 422, "not_an_object")


@pytest.mark.parametrize("body", [{}, {"events": []}, {"events": {}}, {"events": None}, {"events": "x"}, {"events": event()}])
def test_an_envelope_without_a_list_of_events_is_422(world: World, body: Any) -> None:
    problem(world.post(EVENTS, json=body), 422, "no_events", "events")


def test_an_unknown_envelope_field_is_422_and_nothing_is_applied(world: World) -> None:
    problem(world.post(EVENTS, json={"events": [event()], "dry_run": True}), 422, "unknown_field", "dry_run")
    assert "did you mean events?" in problem(world.post(EVENTS, json={"event": [event()]}), 422, "unknown_field", "event")["allowed"]
    assert world.backend.submitted == []


def test_a_thousand_events_are_taken_and_one_more_is_not(world: World) -> None:
    many = [event(f"e{number}") for number in range(1001)]
    assert len(world.submit(*many[:1000]).json()["results"]) == 1000
    problem(world.submit(*many), 422, "too_many_events", "events")
    assert len(world.backend.submitted) == 1


def test_five_megabytes_are_413_before_they_are_read(world: World) -> None:
    problem(world.send("events", b" " * 5 * MIB), 413, "too_large")


def test_a_body_without_length_is_read_to_the_limit_and_no_further(world: World) -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(80):
            taken += 1
            yield b" " * (MIB // 16)

    problem(world.post(EVENTS, content=chunks(), headers=JSON), 413, "too_large")
    assert taken <= 18


def test_a_length_that_lies_does_not_help(world: World) -> None:
    response = world.post(EVENTS, content=b" " * (MIB + 1), headers={**JSON, "content-length": "10"})
    problem(response, 413, "too_large")


def test_the_limit_is_exact_and_can_be_set() -> None:
    world = World(Limits(max_body_bytes=200))
    body = b'{"event_id": "e1", "player_id": "p", "value": 1}'
    assert world.send("events", body.ljust(200)).status_code == 200
    problem(world.send("events", body.ljust(201)), 413, "too_large")


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": ""},
     {"content-type": "application/json; charset=latin-1"}, {"content-type": "application/jsonx"}],
)  # fmt: skip
def test_another_media_type_is_415(world: World, headers: dict[str, str]) -> None:
    problem(world.post(EVENTS, content=b"{}", headers=headers), 415, "unsupported_media_type", "content-type")


def test_a_compressed_body_is_415(world: World) -> None:
    problem(
        world.post(EVENTS, content=b"{}", headers={**JSON, "content-encoding": "gzip"}), 415, "unsupported_media_type", "content-encoding"
    )


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'])
def test_json_may_name_its_charset(world: World, media: str) -> None:
    assert (
        world.post(EVENTS, content=b'{"event_id": "e1", "player_id": "p", "value": 1}', headers={"content-type": media}).status_code == 200
    )


def test_a_client_that_goes_away_mid_body_applies_nothing(world: World) -> None:
    sent: list[Any] = []

    async def run() -> None:
        messages = iter([{"type": "http.request", "body": b'{"events"', "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"authorization", SERVER["authorization"].encode())]
        scope = {"type": "http", "method": "POST", "path": EVENTS, "raw_path": EVENTS.encode(), "query_string": b"", "headers": headers}
        await world.app(scope, receive, send)

    asyncio.run(run())
    assert (sent[0]["status"], world.backend.submitted) == (400, [])


# Boards, paths, methods, parameters


def test_an_unknown_board_is_404_in_every_call(world: World) -> None:
    unknown = "/v1/boards/arena-clash:none:S7:global"
    for url in (unknown, f"{unknown}/top", f"{unknown}/top?generation=s1", f"{unknown}/players/p"):
        problem(world.get(url), 404, "unknown_board")
    problem(world.post(f"{unknown}/events", json=event()), 404, "unknown_board")
    problem(world.post(f"{unknown}/ranks", json={"players": ["p"]}), 404, "unknown_board")


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/boards", "/v1/board", f"/v1/boards/{SOLO}/nothing", f"/v1/boards/{SOLO}/",
                                  "/metrics", "/%FF",
                                  f"/v1/boards/{SOLO}/friends", f"/v1/boards/{SOLO}/players", "/v1//boards", "/v1/boards"])  # fmt: skip
def test_no_path_gets_a_bare_404(world: World, path: str) -> None:
    if path == "/v1/boards":
        problem(world.get(f"{path}?x=1"), 422, "unknown_parameter", "x")
    else:
        problem(world.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", EVENTS, "POST"), ("DELETE", f"/v1/boards/{SOLO}/top", "GET"), ("PUT", f"/v1/boards/{SOLO}", "GET"),
    ("POST", "/healthz", "GET"),
     ("GET", "/v1/admin/failover", "POST"), ("PATCH", EVENTS, "POST"), ("HEAD", EVENTS, "POST"), ("OPTIONS", "/v1/status", "GET")],
)  # fmt: skip
def test_a_wrong_method_is_405_with_the_right_one(world: World, method: str, path: str, allow: str) -> None:
    response = world.call(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allow)
    if method != "HEAD":
        problem(response, 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "bad_parameter", "limit"), ("limit=1001", "bad_parameter", "limit"), ("limit=-1", "bad_parameter", "limit"),
        ("limit=", "bad_parameter", "limit"), ("limit=ten", "bad_parameter", "limit"), ("limit=1.0", "bad_parameter", "limit"),
        ("limit=%D9%A3", "bad_parameter", "limit"), ("limit=007", "bad_parameter", "limit"), ("limit=1&limit=2", "bad_parameter", "limit"),
        ("limit=" + "9" * 5000, "bad_parameter", "limit"), ("limt=5", "unknown_parameter", "limt"),
        ("offset=5", "unknown_parameter", "offset"),
        ("generation=17", "bad_parameter", "generation"), ("generation=s-1", "bad_parameter", "generation"),
        ("generation=", "bad_parameter", "generation"), ("generation=s" + "9" * 30, "bad_parameter", "generation"),
        ("at_least=7", "bad_parameter", "at_least"), ("at_least=7-x", "bad_parameter", "at_least"),
        ("at_least=-7-1", "bad_parameter", "at_least"),
        ("generation=s0&at_least=7-1", "bad_parameter", "at_least"), ("cursor=", "bad_cursor", "cursor"),
        ("cursor=nonsense", "bad_cursor", None),
        ("cursor=" + "a" * 3000, "bad_cursor", "cursor"), ("cursor=%00", "bad_cursor", "cursor"), ("%FF=1", "bad_parameter", None),
        ("view=rank", "unknown_parameter", "view"), ("&".join(f"a{n}=1" for n in range(60)), "bad_parameter", None),
    ],
)  # fmt: skip
def test_a_bad_query_of_top_is_422_with_the_parameter(world: World, query: str, code: str, field: str | None) -> None:
    body = problem(world.get(f"/v1/boards/{SOLO}/top?{query}"), 422, code, field)
    if field == "limt":
        assert "did you mean limit?" in body["allowed"]


@pytest.mark.parametrize(
    ("query", "field"), [("view=history", "view"), ("view=", "view"), ("view=nearby&window=101", "window"), ("window=-1", "window")]
)
def test_a_bad_query_of_a_player_is_422_with_the_parameter(world: World, query: str, field: str) -> None:
    assert problem(world.get(f"/v1/boards/{SOLO}/players/p?{query}"), 422, "bad_parameter", field)["allowed"]


def test_a_bad_query_of_submitting_applies_nothing(world: World) -> None:
    problem(world.submit(event(), query="?include=position"), 422, "bad_parameter", "include")
    problem(world.submit(event(), query="?includes=rank"), 422, "unknown_parameter", "includes")
    assert world.backend.submitted == []


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "missing_field", "players"), ({"players": []}, "invalid", "players"), ({"players": "p"}, "invalid", "players"),
        ({"players": ["p"] * 1001}, "invalid", "players"), ({"players": ["p", "a/b"]}, "bad_id", "players[1]"),
        ({"players": [7]}, "bad_id", "players[0]"), ({"players": ["p"], "among": "friends"}, "invalid", "among"),
        ({"players": ["p"], "amongst": "board"}, "unknown_field", "amongst"), ([], "not_an_object", None),
    ],
)  # fmt: skip
def test_a_bad_question_for_ranks_is_422(world: World, body: Any, code: str, field: str | None) -> None:
    problem(world.post(f"/v1/boards/{SOLO}/ranks", json=body), 422, code, field)


# Tokens


def test_a_missing_token_is_401_before_anything_is_read(world: World) -> None:
    response = world.call("POST", EVENTS, content=b"not json")
    problem(response, 401, "missing_token")
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("value", "status", "code"),
    [
        ("Bearer nonsense", 401, "bad_token"), ("Basic eDp5", 401, "bad_token"), ("", 401, "bad_token"),
        (f"Bearer {token(ttl_s=60, age_s=61)}", 401, "expired_token"), (f"Bearer {token(games=('kart',))}", 403, "foreign_game"),
        (f"Bearer {token('reader')}", 403, "wrong_scope"), (OPERATOR["authorization"], 403, "wrong_scope"),
    ],
)  # fmt: skip
def test_a_token_that_will_not_do_is_refused_and_nothing_is_applied(world: World, value: str, status: int, code: str) -> None:
    problem(world.post(EVENTS, json=event(), headers={"authorization": value}), status, code)
    assert world.backend.submitted == []


def test_a_foreign_game_is_refused_before_it_is_said_whether_the_board_exists(world: World) -> None:
    problem(world.post("/v1/boards/kart:none:S1:global/events", json=event()), 403, "foreign_game")
