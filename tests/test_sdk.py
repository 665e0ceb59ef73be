"""The client SDK on a mock transport: what is repeated, where, when, and what comes back as what."""

import asyncio
import json
import pickle
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import http_edge

from laurel import (
    AsyncLaurelClient,
    BadRequest,
    Conflict,
    Event,
    GenerationGone,
    LaurelClient,
    LaurelError,
    NotRanked,
    OutcomeUnknown,
    RateLimited,
    Unauthorized,
    Unavailable,
    UnknownBoard,
)
from laurel.transport import PENALTY_BASE_S, REMEASURE_S

BOARD = "arena-clash:solo:S7:global"
REGIONS = {"eu-west": "http://eu", "us-east": "http://us", "ap-south": "http://ap"}
Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class World:
    """Regions that answer by script, and a clock that moves only when someone sleeps or a round trip takes time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.sent: list[httpx.Request] = []
        self.probed: list[str] = []
        #: By host; the last answer of a script stays.
        self.scripts: dict[str, list[Answer]] = {}
        self.rtt_s: dict[str, float | None] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.url.path == "/healthz":
            self.probed.append(host)
            rtt_s = self.rtt_s.get(host, 0.01)
            if rtt_s is None:
                raise httpx.ConnectError("refused")
            self.now += rtt_s
            return httpx.Response(200, json={"status": "ok"})
        self.sent.append(request)
        script = self.scripts.get(host) or [applied]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    @property
    def asked(self) -> list[str]:
        return [request.url.host for request in self.sent]

    def ids(self, nth: int) -> list[str]:
        return [event["event_id"] for event in json.loads(self.sent[nth].content)["events"]]

    def client(self, **options: Any) -> LaurelClient:
        defaults: dict[str, Any] = {"prefer": "eu-west", "jitter": lambda: 0.5, "spawn": lambda work: None}
        return LaurelClient(
            options.pop("regions", REGIONS),
            "t0ken",
            transport=httpx.MockTransport(self),
            clock=self.clock,
            wall=lambda: 1_796_000_000.0,
            sleep=self.sleep,
            **{**defaults, **options},
        )


def result(event_id: str, outcome: str = "applied", offset: int = 1042) -> dict[str, Any]:
    return {"event_id": event_id, "outcome": outcome, "value": "9700", "version": 2, "epoch": 7, "offset": offset, "shard": "eu-west/0"}


def applied(request: httpx.Request) -> httpx.Response:
    events = json.loads(request.content)["events"]
    results = [result(event["event_id"]) for event in events]
    return httpx.Response(200, json={"board": BOARD, "region": "eu-west", "results": results}, headers={"X-Laurel-Region": "eu-west"})


def mixed(*outcomes: str) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        ids = [event["event_id"] for event in json.loads(request.content)["events"]]
        results = [result(event_id, outcome) for event_id, outcome in zip(ids, outcomes, strict=True)]
        return problem(503, "unknown", definite=False, results=results)

    return answer


def problem(status: int, code: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": f"because of {code}", **fields}
    return httpx.Response(status, content=json.dumps(body), headers={"content-type": "application/problem+json", **(headers or {})})


def entry(position: int, player_id: str, value: str) -> dict[str, Any]:
    at = "2026-11-30T10:05:00.000Z"
    return {"position": position, "rank": position, "player_id": player_id, "value": value, "achieved_at": at, "version": 1}


def envelope(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "board": BOARD,
        "generation": "s17",
        "epoch": 7,
        "published_at": "2026-11-30T10:05:00.250Z",
        "boundaries": {"eu-west/0": "7-1040"},
        "complete": True,
        "exact": True,
        "total": 5,
        "checksum": "c0ffee",
        "entries": list(entries),
        "next": None,
        "previous": None,
        **fields,
    }


def no_authority(headers: dict[str, str] | None = None) -> httpx.Response:
    return problem(503, "no_authority", headers, definite=True)


# What is repeated, and with which ids


def test_refused_connection_falls_over_to_the_next_region() -> None:
    world = World()
    world.scripts = {"eu": [httpx.ConnectError("refused")]}
    reply = world.client().submit(BOARD, Event(player_id="p-dev", value=9700))
    assert world.asked == ["eu", "us"]
    assert reply.results[0].applied
    assert world.ids(0) == world.ids(1)


def test_definite_503_is_repeated_in_the_next_region_and_ends_definite() -> None:
    world = World()
    world.scripts = {host: [no_authority()] for host in ("eu", "us", "ap")}
    with pytest.raises(Unavailable) as caught:
        world.client(max_attempts=4).submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["eu", "us", "ap", "eu"]
    assert (caught.value.code, caught.value.definite, caught.value.status) == ("no_authority", True, 503)
    assert "4 attempts" in str(caught.value)


@pytest.mark.parametrize("loss", [httpx.ReadTimeout("slow"), httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")])
def test_lost_answer_is_repeated_with_the_same_generated_id(loss: Exception) -> None:
    """LB-143: (1) the server applies E1, (2) the answer is lost, (3) the repetition is recognised and counts nothing."""
    world = World()
    seen: dict[str, int] = {}

    def count_once(request: httpx.Request) -> httpx.Response:
        (event,) = json.loads(request.content)["events"]
        duplicate = event["event_id"] in seen
        seen.setdefault(event["event_id"], event["delta"])
        if not duplicate:
            raise loss
        return httpx.Response(200, json={"board": BOARD, "results": [result(event["event_id"], "duplicate")]})

    world.scripts = {host: [count_once] for host in ("eu", "us", "ap")}
    ack = world.client().submit_one(BOARD, "p-dev", delta=50)
    assert ack.duplicate
    assert ack.recorded
    assert not ack.applied
    assert sum(seen.values()) == 50
    assert world.ids(0) == world.ids(1) == [ack.event_id]


def test_callers_own_id_is_kept() -> None:
    world = World()
    world.scripts = {"eu": [httpx.ReadTimeout("slow")]}
    assert world.client().submit_one(BOARD, "p-dev", 1, event_id="evt-101").event_id == "evt-101"
    assert world.ids(0) == world.ids(1) == ["evt-101"]


def test_unknown_to_the_end_raises_with_what_is_needed_to_settle_it() -> None:
    world = World()
    world.scripts = {host: [httpx.ReadTimeout("slow")] for host in ("eu", "us", "ap")}
    client = world.client(max_attempts=3)
    with pytest.raises(OutcomeUnknown) as caught:
        client.submit(BOARD, [Event(player_id="a", value=1), Event(player_id="b", value=2)])
    assert not caught.value.definite
    assert list(caught.value.event_ids) == world.ids(0)
    assert [r.outcome for r in caught.value.results] == ["unknown", "unknown"]
    world.scripts = {}
    client.submit(BOARD, caught.value.events)
    assert world.ids(-1) == world.ids(0)


@pytest.mark.parametrize("after", [no_authority(), problem(401, "unauthorized"), httpx.ConnectError("refused")])
def test_a_doubt_is_not_lifted_by_a_later_definite_failure(after: Answer) -> None:
    world = World()
    world.scripts = {"eu": [httpx.ReadTimeout("slow"), after], "us": [after], "ap": [after]}
    with pytest.raises(OutcomeUnknown):
        world.client(max_attempts=4).submit_one(BOARD, "p-dev", 1)


def test_a_doubt_is_not_lifted_by_a_rate_limit_above_the_cap() -> None:
    world = World()
    world.scripts = {"eu": [httpx.ReadTimeout("slow")], "us": [problem(429, "rate_limited", {"Retry-After": "86400"})]}
    with pytest.raises(OutcomeUnknown) as caught:
        world.client().submit_one(BOARD, "p-dev", 1)
    assert isinstance(caught.value.__cause__, RateLimited)


def test_503_without_definite_counts_as_unknown() -> None:
    world = World()
    world.scripts = {host: [httpx.Response(503, text="proxy says no")] for host in ("eu", "us", "ap")}
    with pytest.raises(OutcomeUnknown):
        world.client(max_attempts=2).submit_one(BOARD, "p-dev", 1)


def test_mixed_batch_repeats_the_unknown_events_only_and_merges_in_order() -> None:
    world = World()
    world.scripts = {"eu": [mixed("applied", "unknown", "conflict", "unknown")], "us": [mixed("duplicate", "unknown")], "ap": [applied]}
    events = [Event(player_id=p, value=1, event_id=f"e-{p}") for p in "abcd"]
    reply = world.client().submit(BOARD, events)
    assert [world.ids(n) for n in range(3)] == [["e-a", "e-b", "e-c", "e-d"], ["e-b", "e-d"], ["e-d"]]
    assert [(r.event_id, r.outcome) for r in reply.results] == [
        ("e-a", "applied"),
        ("e-b", "duplicate"),
        ("e-c", "conflict"),
        ("e-d", "applied"),
    ]


def test_results_are_matched_by_order_because_two_players_may_share_an_event_id() -> None:
    world = World()
    world.scripts = {"eu": [mixed("unknown", "applied")], "us": [mixed("not_an_improvement")]}
    reply = world.client().submit(BOARD, [Event(player_id=p, value=1, event_id="same") for p in "ab"])
    assert json.loads(world.sent[1].content)["events"][0]["player_id"] == "a"
    assert [r.outcome for r in reply.results] == ["not_an_improvement", "applied"]


def test_last_event_of_a_batch_may_be_answered_409_alone() -> None:
    world = World()
    world.scripts = {"eu": [mixed("applied", "unknown")], "us": [problem(409, "conflict")]}
    reply = world.client().submit(BOARD, [Event(player_id="a", value=1), Event(player_id="b", value=1)])
    assert [r.outcome for r in reply.results] == ["applied", "conflict"]


def test_malformed_event_is_a_result_also_where_its_id_comes_back_cut() -> None:
    world = World()
    bad = {"event_id": None, "outcome": "invalid", "code": "bad_id", "field": "event_id", "allowed": "1 to 128 bytes"}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"board": BOARD, "results": [bad, result("e-b")]})

    world.scripts = {"eu": [answer]}
    events = [Event(player_id="a", value=1, event_id="e" * 129), Event(player_id="b", value=1, event_id="e-b")]
    reply = world.client().submit(BOARD, events)
    assert [(r.event_id, r.outcome, r.code) for r in reply.results] == [("e" * 129, "invalid", "bad_id"), ("e-b", "applied", None)]


def test_last_event_of_a_batch_may_be_answered_422_alone() -> None:
    world = World()

    def overflow(request: httpx.Request) -> httpx.Response:
        (event_id,) = world.ids(-1)
        return problem(422, "overflow", results=[{"event_id": event_id, "outcome": "invalid", "code": "overflow"}])

    world.scripts = {"eu": [mixed("applied", "unknown")], "us": [overflow]}
    reply = world.client().submit(BOARD, [Event(player_id="a", value=1), Event(player_id="b", value=1)])
    assert [(r.outcome, r.code) for r in reply.results] == [("applied", None), ("invalid", "overflow")]


def test_known_results_of_a_mixed_batch_survive_into_the_error() -> None:
    world = World()
    world.scripts = {"eu": [mixed("applied", "unknown")], "us": [no_authority()], "ap": [no_authority()]}
    with pytest.raises(OutcomeUnknown) as caught:
        world.client(max_attempts=3).submit(BOARD, [Event(player_id="a", value=1), Event(player_id="b", value=2, event_id="e-b")])
    assert [r.outcome for r in caught.value.results] == ["applied", "unknown"]
    assert caught.value.event_ids == ("e-b",)


def test_answer_that_does_not_fit_the_events_is_no_acknowledgement() -> None:
    world = World()
    world.scripts = {"eu": [httpx.Response(200, json={"board": BOARD, "results": [result("other")]}), httpx.Response(200, text="<html>")]}
    with pytest.raises(OutcomeUnknown):
        world.client(regions={"eu-west": "http://eu"}, max_attempts=2).submit_one(BOARD, "p-dev", 1)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_json", BadRequest),
        (401, "unauthorized", Unauthorized),
        (404, "unknown_board", UnknownBoard),
        (404, "not_ranked", NotRanked),
        (409, "conflict", Conflict),
        (422, "invalid", BadRequest),
    ],
)
def test_4xx_is_never_repeated(status: int, code: str, kind: type[LaurelError]) -> None:
    world = World()
    world.scripts = {"eu": [problem(status, code, field="value", allowed="0 to 9")]}
    with pytest.raises(kind) as caught:
        world.client().submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["eu"]
    error = caught.value
    assert (error.code, error.status, error.field, error.allowed, error.definite) == (code, status, "value", "0 to 9", True)


def test_failover_is_not_repeated_once_it_may_have_begun() -> None:
    world = World()
    world.scripts = {"us": [httpx.ReadTimeout("slow")]}
    with pytest.raises(OutcomeUnknown):
        world.client().failover("eu-west/0", to="us-east")
    assert world.asked == ["us"]


def test_failover_asks_the_new_owner_first_and_goes_on_if_it_cannot_be_reached() -> None:
    world = World()
    moved = {"moved": [{"shard": "eu-west/0", "boards": [BOARD], "epoch": 8, "owner": "us-east", "cause": "operator", "duration_ms": 90}]}
    world.scripts = {"us": [httpx.ConnectError("refused")], "eu": [httpx.Response(200, json=moved)]}
    assert world.client().failover(BOARD, to="us-east", force=True, expect_epoch=7) == moved
    assert world.asked == ["us", "eu"]
    assert json.loads(world.sent[1].content) == {"board": BOARD, "to": "us-east", "force": True, "expect_epoch": 7}


def test_link_switch_is_set_in_the_named_region_only() -> None:
    world = World()
    world.scripts = {"ap": [httpx.ConnectError("refused"), httpx.Response(200, json={})]}
    world.client().set_link("ap-south", "eu-west", mode="drop", for_ms=500)
    assert world.asked == ["ap", "ap"]
    assert json.loads(world.sent[1].content) == {"peer": "eu-west", "direction": "both", "mode": "drop", "for_ms": 500}


# How long it waits


def submit_after_429(world: World, retry_after: str, **options: Any) -> None:
    world.scripts = {"eu": [problem(429, "rate_limited", {"Retry-After": retry_after}), applied]}
    world.client(regions={"eu-west": "http://eu"}, **options).submit_one(BOARD, "p-dev", 1)


def test_retry_after_seconds_is_the_least_wait() -> None:
    """LB-144."""
    world = World()
    submit_after_429(world, "5", jitter=lambda: 0.0)
    assert world.slept == [5.0]


def test_twenty_calls_told_the_same_wait_come_back_spread_and_never_early() -> None:
    """LB-144: full jitter above what was asked."""
    throw = random.Random(7).random
    waits = []
    for _ in range(20):
        world = World()
        submit_after_429(world, "5", jitter=throw)
        waits.append(world.slept[0])
    assert min(waits) >= 5.0
    assert max(waits) - min(waits) > 0.5


@pytest.mark.parametrize("date_header", [True, False])
def test_retry_after_date_is_parsed_against_the_servers_clock_where_it_shows(date_header: bool) -> None:
    world = World()
    server_now = 1_796_000_000 + (3600 if date_header else 0)
    headers = {"Retry-After": format_datetime(datetime.fromtimestamp(server_now + 7, UTC), usegmt=True)}
    if date_header:
        headers["Date"] = format_datetime(datetime.fromtimestamp(server_now, UTC), usegmt=True)
    world.scripts = {"eu": [problem(429, "rate_limited", headers), applied]}
    world.client(jitter=lambda: 0.0).submit_one(BOARD, "p-dev", 1, region="eu-west")
    assert world.slept == [7.0]


@pytest.mark.parametrize("nonsense", ["abc", "-5", "1e3", "Wed, 99 Foo 2026", "\u0665"])
def test_nonsense_in_retry_after_falls_back_to_the_back_off(nonsense: str) -> None:
    world = World()
    response = problem(429, "rate_limited")
    response.headers = httpx.Headers([(b"retry-after", nonsense.encode())])
    world.scripts = {"eu": [response, applied]}
    world.client(regions={"eu-west": "http://eu"}).submit_one(BOARD, "p-dev", 1)
    assert len(world.slept) == 1
    assert 0 < world.slept[0] <= 1.0


def test_retry_after_above_the_cap_gives_up_with_a_clear_error() -> None:
    world = World()
    with pytest.raises(RateLimited, match="86400 s, more than the 60 s") as caught:
        submit_after_429(world, "86400", total_timeout_s=1e6)
    assert caught.value.retry_after_ms == 86_400_000
    assert world.slept == []


def test_retry_after_beyond_the_total_time_out_gives_up_at_once() -> None:
    world = World()
    with pytest.raises(RateLimited, match="45 s, more than the 30 s"):
        submit_after_429(world, "45")
    assert world.slept == []


def test_header_rounded_up_from_the_bodys_milliseconds_does_not_lengthen_the_wait() -> None:
    world = World()
    world.scripts = {"eu": [problem(429, "rate_limited", {"Retry-After": "1"}, retry_after_ms=250), applied]}
    world.client(jitter=lambda: 0.0).submit_one(BOARD, "p-dev", 1, region="eu-west")
    assert world.slept == [0.25]


def test_back_off_is_full_jitter_that_doubles_to_its_cap() -> None:
    world = World()
    world.scripts = {host: [no_authority()] for host in ("eu", "us", "ap")}
    with pytest.raises(Unavailable):
        world.client(jitter=lambda: 1.0, total_timeout_s=1000).submit_one(BOARD, "p-dev", 1)
    assert world.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])


def test_a_region_that_asked_for_time_is_not_asked_before_but_others_are() -> None:
    world = World()
    busy = no_authority({"Retry-After": "3"})
    world.scripts = {"eu": [busy], "us": [busy, applied]}
    world.client(regions={"eu-west": "http://eu", "us-east": "http://us"}, jitter=lambda: 0.0).submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["eu", "us", "eu", "us"]
    assert world.slept == [0.0, 3.0, 0.0]


def test_total_time_out_ends_the_call_before_the_attempts_do() -> None:
    world = World()

    def slow(request: httpx.Request) -> httpx.Response:
        world.now += request.extensions["timeout"]["read"]
        raise httpx.ReadTimeout("slow")

    world.scripts = {host: [slow] for host in ("eu", "us", "ap")}
    with pytest.raises(OutcomeUnknown):
        world.client(timeout_s=5.0, total_timeout_s=12.0).submit_one(BOARD, "p-dev", 1)
    assert len(world.sent) == 3
    assert world.now <= 1012.0


# Which region it asks


def test_nearest_region_by_measured_round_trip_is_asked() -> None:
    world = World()
    world.rtt_s = {"eu": 0.2, "us": 0.02, "ap": 0.1}
    client = world.client(prefer=None)
    client.submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["us"]
    assert client.regions == ["us-east", "ap-south", "eu-west"]


def test_round_trips_are_measured_again_after_a_while() -> None:
    world = World()
    world.rtt_s = {"eu": 0.01, "us": 0.02, "ap": 0.03}
    client = world.client(prefer=None, spawn=lambda work: work())
    client.submit_one(BOARD, "p-dev", 1)
    world.rtt_s["ap"] = 0.001
    client.submit_one(BOARD, "p-dev", 1)
    world.now += REMEASURE_S
    client.submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["eu", "eu", "ap"]


def test_dead_region_is_left_out_from_the_first_measurement_on() -> None:
    world = World()
    world.rtt_s = {"eu": None}
    world.scripts = {"eu": [httpx.ConnectError("refused")]}
    world.client(prefer=None).submit_one(BOARD, "p-dev", 1)
    assert "eu" not in world.asked


def test_region_that_dies_in_mid_use_is_asked_again_only_after_it_answered_a_probe() -> None:
    world = World()
    client = world.client(spawn=lambda work: work())
    client.submit_one(BOARD, "p-dev", 1)
    world.scripts["eu"] = [httpx.ConnectError("refused")]
    world.rtt_s["eu"] = None
    for _ in range(3):
        client.submit_one(BOARD, "p-dev", 1)
        world.now += PENALTY_BASE_S
    assert world.asked == ["eu", "eu", "us", "us", "us"]
    world.scripts["eu"], world.rtt_s["eu"] = [applied], 0.01
    world.now += 60
    client.submit_one(BOARD, "p-dev", 1)
    assert world.asked[-1] == "eu"


def test_dead_region_is_not_asked_again_within_its_penalty_while_others_answer() -> None:
    world = World()
    world.scripts = {"eu": [httpx.ConnectError("refused")], "us": [no_authority()], "ap": [no_authority(), no_authority(), applied]}
    world.client(jitter=lambda: 0.0).submit_one(BOARD, "p-dev", 1)
    assert world.asked == ["eu", "us", "ap", "us", "ap", "us", "ap"]


def test_threads_share_one_client() -> None:
    world = World()
    client = world.client(prefer=None)
    with ThreadPoolExecutor(8) as pool:
        acks = list(pool.map(lambda n: client.submit_one(BOARD, "p-dev", n), range(200)))
    assert len({ack.event_id for ack in acks}) == len(world.sent) == 200


def test_pinned_region_is_asked_alone() -> None:
    world = World()
    world.scripts = {"ap": [httpx.ConnectError("refused")]}
    with pytest.raises(Unavailable):
        world.client(max_attempts=3).top(BOARD, region="ap-south")
    assert world.asked == ["ap"] * 3


def test_regions_may_be_a_plain_list_and_wrong_ones_are_told() -> None:
    world = World()
    client = world.client(regions=["http://eu/", "http://us"], prefer=None)
    client.submit_one(BOARD, "p-dev", 1)
    assert str(world.sent[0].url) == f"http://eu/v1/boards/{BOARD}/events"
    for regions, prefer in (([], None), (["eu:80"], None), (REGIONS, "mars")):
        with pytest.raises(ValueError):
            LaurelClient(regions, "", prefer=prefer)
    with pytest.raises(ValueError, match="mars"):
        client.top(BOARD, region="mars")


# What comes back


def serve(world: World, body: Any, headers: dict[str, str] | None = None) -> LaurelClient:
    world.scripts = {"eu": [httpx.Response(200, json=body, headers=headers)]}
    return world.client()


def test_values_are_numbers_that_compare_as_numbers() -> None:
    """LB-147."""
    world = World()
    body = envelope(*(entry(i, f"p{i}", value) for i, value in enumerate(["9", "10", "100", "9.04", "-0.50", "9223372036854775807"], 1)))
    values = [e.value for e in serve(world, body).top(BOARD).entries]
    assert values == [9, 10, 100, Decimal("9.04"), Decimal("-0.50"), 2**63 - 1]
    assert [type(v) for v in values] == [int, int, int, Decimal, Decimal, int]
    assert sorted(values[:4]) == [9, Decimal("9.04"), 10, 100]
    assert str(values[4]) == "-0.50"


def test_ids_stay_text_and_great_numbers_whole() -> None:
    """LB-146."""
    world = World()
    body = envelope(entry(1, "76561198122624102", "1"), generation=f"s{2**60 + 1}", epoch=2**60 + 1)
    client = serve(world, body)
    page = client.top(BOARD)
    assert page.entries[0].player_id == "76561198122624102"
    assert (page.generation, page.epoch) == (f"s{2**60 + 1}", 2**60 + 1)
    with pytest.raises(TypeError, match="player_id must be text"):
        client.submit_one(BOARD, 76561198122624102, 1)  # type: ignore[arg-type]


def test_page_carries_region_and_age_from_the_headers_and_unknown_fields() -> None:
    body = envelope(entry(1, "p-ava", "9800"), later="added")
    page = serve(World(), body, {"X-Laurel-Region": "ap-south", "X-Laurel-Age-Ms": "120"}).top(BOARD)
    assert (page.region, page.age_ms, page.total, page.boundaries) == ("ap-south", 120, 5, {"eu-west/0": "7-1040"})
    assert page.model_extra == {"later": "added"}
    with pytest.raises(ValueError):
        page.total = 6  # type: ignore[misc]


def test_acknowledgement_is_what_a_read_waits_for() -> None:
    world = World()
    client = world.client()
    ack = client.submit_one(BOARD, "p-dev", 9700)
    assert ack.position == "eu-west/0:7-1042"
    world.scripts = {"eu": [httpx.Response(200, json=envelope(entry(1, "p-dev", "9700")))]}
    place = client.rank(BOARD, "p-dev", at_least=ack)
    assert place.entry.rank == 1
    assert dict(world.sent[-1].url.params) == {"view": "rank", "at_least": "eu-west/0:7-1042"}
    assert world.sent[-1].headers["authorization"] == "Bearer t0ken"


def test_acknowledgement_of_a_spread_board_names_its_shard() -> None:
    world = World()
    told = [{**result(f"e-{n}", offset=1040 + n), "shard": shard, "at_least": f"{shard}:7-{1040 + n}"} for n, shard in SPREAD]
    world.scripts = {"eu": [httpx.Response(200, json={"board": BOARD, "results": told})]}
    client = world.client()
    reply = client.submit(BOARD, [Event(player_id="p", value=1, event_id=f"e-{n}") for n, _ in SPREAD])
    assert [r.position for r in reply.results] == ["eu-west/0:7-1040", "eu-west/1:7-1041", "eu-west/0:7-1042"]
    assert reply.positions == {"eu-west/0": "eu-west/0:7-1042", "eu-west/1": "eu-west/1:7-1041"}
    assert reply.position is None
    world.scripts = {"eu": [httpx.Response(200, json=envelope(entry(1, "p", "1")))]}
    client.rank(BOARD, "p", at_least=reply.results[1])
    assert dict(world.sent[-1].url.params)["at_least"] == "eu-west/1:7-1041"
    with pytest.raises(ValueError, match="several shards"):
        client.top(BOARD, at_least=reply)


SPREAD = [(0, "eu-west/0"), (1, "eu-west/1"), (2, "eu-west/0")]


def test_estimate_is_asked_for_and_labelled() -> None:
    world = World()
    body = envelope(entry(40, "p", "1"), exact=False, mode="approximate", error_bound=12)
    place = serve(world, body).rank(BOARD, "p", approximate=True)
    assert dict(world.sent[-1].url.params) == {"view": "rank", "mode": "approximate"}
    assert (place.exact, place.mode, place.error_bound) == (False, "approximate", 12)


def test_estimate_without_a_position_and_a_share_are_read() -> None:
    world = World()
    without = {name: item for name, item in entry(1, "p", "1").items() if name != "position"}
    place = serve(world, envelope(without, exact=False, mode="approximate", error_bound=0, percentile=99.9876)).percentile(BOARD, "p")
    assert dict(world.sent[-1].url.params) == {"view": "percentile"}
    assert (place.entry.position, place.entry.rank, place.percentile) == (None, 1, Decimal("99.9876"))


def test_second_column_is_sent_and_read() -> None:
    world = World()
    world.client().submit_one(BOARD, "p", 5, secondary=2**63 - 1)
    assert json.loads(world.sent[0].content)["events"][0]["secondary"] == 2**63 - 1
    page = serve(World(), envelope({**entry(1, "p", "5"), "secondary": "-9007199254740993"})).top(BOARD)
    assert page.entries[0].secondary == -9007199254740993
    with pytest.raises(TypeError, match="secondary must be int"):
        world.client().submit_one(BOARD, "p", 5, secondary=1.5)  # type: ignore[arg-type]


def test_events_refused_by_one_shard_of_several_are_sent_again_alone() -> None:
    world = World()

    def partly(request: httpx.Request) -> httpx.Response:
        first, second = (event["event_id"] for event in json.loads(request.content)["events"])
        results = [result(first), {"event_id": second, "outcome": "unknown", "code": "no_authority"}]
        return problem(503, "unknown", definite=False, results=results)

    world.scripts = {"eu": [partly]}
    reply = world.client().submit(BOARD, [Event(player_id="a", value=1, event_id="e-1"), Event(player_id="b", value=1, event_id="e-2")])
    assert (world.ids(0), world.ids(1)) == (["e-1", "e-2"], ["e-2"])
    assert [r.outcome for r in reply.results] == ["applied", "applied"]


def test_pages_stay_with_the_generation_of_the_first() -> None:
    world = World()
    pages = [httpx.Response(200, json=envelope(entry(n, f"p{n}", "1"), next=f"c{n}" if n < 3 else None)) for n in (1, 2, 3)]
    world.scripts = {"eu": list(pages)}
    got = [e.player_id for page in world.client().pages(BOARD, 1, at_least="7-1040") for e in page.entries]
    assert got == ["p1", "p2", "p3"]
    assert [dict(r.url.params) for r in world.sent] == [
        {"limit": "1", "at_least": "7-1040"},
        {"limit": "1", "cursor": "c1", "generation": "s17"},
        {"limit": "1", "cursor": "c2", "generation": "s17"},
    ]


def test_expired_generation_says_where_to_start_again() -> None:
    world = World()
    world.scripts = {"eu": [problem(410, "generation_gone", newest="s42")]}
    with pytest.raises(GenerationGone) as caught:
        world.client().top(BOARD, generation="s1")
    assert caught.value.newest == "s42"


def test_nearby_and_ranks_read_their_envelopes() -> None:
    world = World()
    around = envelope(entry(1, "a", "3"), entry(2, "b", "2"), player_id="b")
    listed = envelope(entry(1, "a", "3"), among="listed", absent=["zed"])
    world.scripts = {"eu": [httpx.Response(200, json=around), httpx.Response(200, json=listed)]}
    client = world.client()
    assert client.nearby(BOARD, "b", 1).entry.position == 2
    places = client.ranks(BOARD, ["a", "zed"], among="listed")
    assert (places.among, places.absent) == ("listed", ("zed",))
    assert json.loads(world.sent[1].content) == {"players": ["a", "zed"], "among": "listed"}


def test_boards_and_one_board() -> None:
    world = World()
    one = {"board": BOARD, "policy": "best_score", "decimals": 2, "generation": "s0", "total": 0, "state": "open"}
    world.scripts = {"eu": [httpx.Response(200, json={"boards": [one]}), httpx.Response(200, json=one), httpx.Response(201, json=one)]}
    client = world.client()
    assert client.boards() == (client.board(BOARD),)
    client.create_board(BOARD, policy="best_score", decimals=2, home=None, max_value=Decimal("9.50"))
    assert json.loads(world.sent[-1].content) == {"board": BOARD, "policy": "best_score", "decimals": 2, "max_value": "9.50"}


def test_all_boards_are_read_page_by_page() -> None:
    world = World()
    pages = [{"boards": [{"board": f"a:b:c:{n}"}], "next": f"a:b:c:{n}" if n < 3 else None} for n in (1, 2, 3)]
    world.scripts = {"eu": [httpx.Response(200, json=page) for page in pages]}
    assert [board.board for board in world.client().boards()] == ["a:b:c:1", "a:b:c:2", "a:b:c:3"]
    assert [dict(request.url.params) for request in world.sent] == [{}, {"cursor": "a:b:c:1"}, {"cursor": "a:b:c:2"}]


def test_board_is_created_over_shards_and_moved() -> None:
    world = World()
    one = {"board": BOARD, "shard": "eu-west/0", "slices": 2, "shards": ["eu-west/0", "eu-west/1"], "layout": 1}
    going = {"board": BOARD, "moving": True, "layout": {"number": 2, "shards": ["eu-west/3"]}}
    world.scripts = {"eu": [httpx.Response(201, json=one), httpx.Response(202, json=going)]}
    client = world.client()
    made = client.create_board(BOARD, policy="latest", shards=2, secondary="lower")
    assert (made.slices, made.shards) == (2, ("eu-west/0", "eu-west/1"))
    assert json.loads(world.sent[0].content) == {"board": BOARD, "policy": "latest", "shards": 2, "secondary": {"direction": "lower"}}
    assert client.relocate(BOARD, "eu-west/3").layout["number"] == 2
    assert world.sent[1].url.path == f"/v1/admin/boards/{BOARD}/relocate"
    assert json.loads(world.sent[1].content) == {"shards": ["eu-west/3"]}
    with pytest.raises(TypeError, match="shards must be a number, or names"):
        client.relocate(BOARD, 2.0)  # type: ignore[arg-type]


def test_removal_is_not_repeated_once_it_may_have_happened() -> None:
    """Between the two a board of that id could have been made anew."""
    world = World()
    world.scripts = {"eu": [httpx.ReadTimeout("slow")]}
    with pytest.raises(OutcomeUnknown):
        world.client().remove_board(BOARD)
    assert [(r.method, r.url.host, r.url.path) for r in world.sent] == [("DELETE", "eu", f"/v1/admin/boards/{BOARD}")]


# What is sent


def test_values_are_sent_exactly() -> None:
    world = World()
    values: list[Any] = [9700, Decimal("12.50"), "12.5", Decimal("1E+3"), 2**63 - 1]
    world.client().submit(BOARD, [Event(player_id="p", value=value) for value in values])
    assert [e["value"] for e in json.loads(world.sent[0].content)["events"]] == [9700, "12.50", "12.5", "1000", 2**63 - 1]


@pytest.mark.parametrize(("value", "kind"), [(9.5, TypeError), (True, TypeError), (Decimal("NaN"), ValueError)])
def test_rounded_or_endless_values_are_refused_before_sending(value: Any, kind: type[Exception]) -> None:
    world = World()
    with pytest.raises(kind):
        world.client().submit_one(BOARD, "p", value)
    assert world.sent == []


def test_moments_need_a_time_zone() -> None:
    world = World()
    world.client().submit_one(BOARD, "p", 1, achieved_at=datetime(2026, 11, 30, 10, 5, tzinfo=UTC))
    assert json.loads(world.sent[0].content)["events"][0]["achieved_at"] == "2026-11-30T10:05:00.000+00:00"
    with pytest.raises(ValueError, match="time zone"):
        world.client().submit_one(BOARD, "p", 1, achieved_at=datetime(2026, 11, 30))


def test_mapping_events_pass_through_with_fields_this_client_does_not_know() -> None:
    world = World()
    world.client().submit(BOARD, {"event_id": "E77", "player_id": "P2", "match_id": "M91", "revision": 1, "points": 30})
    assert json.loads(world.sent[0].content) == {
        "events": [{"event_id": "E77", "player_id": "P2", "match_id": "M91", "revision": 1, "points": 30}]
    }


def test_player_ids_are_one_path_segment_whatever_they_hold() -> None:
    world = World()
    client = serve(world, envelope(entry(1, "é %41?#👩‍🚀", "1")))
    client.rank(BOARD, "é %41?#👩‍🚀")
    assert world.sent[0].url.raw_path.startswith(b"/v1/boards/arena-clash:solo:S7:global/players/%C3%A9%20%2541%3F%23%F0%9F%91%A9")
    for bad in ("", ".", "..", "a/b", "a\n", "\ud800"):
        with pytest.raises(BadRequest) as caught:
            client.rank(BOARD, bad)
        assert caught.value.field == "player_id"
    assert len(world.sent) == 1


def test_errors_survive_pickling() -> None:
    world = World()
    world.scripts = {"eu": [mixed("applied", "unknown")]}
    with pytest.raises(OutcomeUnknown) as caught:
        world.client(max_attempts=1).submit(BOARD, [Event(player_id="a", value=1), Event(player_id="b", value=2, event_id="e-b")])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.event_ids, again.results) == (str(caught.value), ("e-b",), caught.value.results)


# The asynchronous client, and both sides of the contract


def run_async(world: World, work: Callable[[AsyncLaurelClient], Any], **options: Any) -> Any:
    async def main() -> Any:
        async with AsyncLaurelClient(
            REGIONS,
            "t0ken",
            transport=httpx.MockTransport(world),
            clock=world.clock,
            wall=lambda: 0.0,
            sleep=world.asleep,
            jitter=lambda: 0.5,
            **options,
        ) as client:
            return await work(client)

    return asyncio.run(main())


def test_async_client_measures_falls_over_and_keeps_the_ids() -> None:
    world = World()
    world.rtt_s = {"eu": 0.2, "us": 0.02, "ap": 0.1}
    world.scripts = {"us": [httpx.ReadTimeout("slow")]}
    ack = run_async(world, lambda client: client.submit_one(BOARD, "p-dev", 1))
    assert world.asked == ["us", "ap"]
    assert world.ids(0) == world.ids(1) == [ack.event_id]


def test_async_client_waits_as_long_as_it_was_asked() -> None:
    world = World()
    world.scripts = {host: [problem(429, "rate_limited", {"Retry-After": "5"}), applied] for host in ("eu", "us", "ap")}
    run_async(world, lambda client: client.submit_one(BOARD, "p-dev", 1, region="us-east"), prefer="eu-west")
    assert world.slept == [5.5]


def test_async_client_takes_many_calls_at_once() -> None:
    world = World()

    async def work(client: AsyncLaurelClient) -> set[str]:
        acks = await asyncio.gather(*(client.submit_one(BOARD, "p-dev", n) for n in range(50)))
        return {ack.event_id for ack in acks}

    assert len(run_async(world, work)) == 50
    assert len(world.sent) == 50


def test_async_pages() -> None:
    world = World()
    pages = [httpx.Response(200, json=envelope(entry(n, f"p{n}", "1"), next=f"c{n}" if n < 3 else None)) for n in (1, 2, 3)]
    world.scripts = {"eu": list(pages)}

    async def work(client: AsyncLaurelClient) -> list[str]:
        return [e.player_id async for page in client.pages(BOARD, 1) for e in page.entries]

    assert run_async(world, work, prefer="eu-west") == ["p1", "p2", "p3"]


def test_the_real_http_edge_answers_what_this_client_reads() -> None:
    """The app of a region, on its memory backend, behind the asynchronous client."""
    edge = http_edge.World()
    edge.backend.unknown_ids = {"e-2": ""}

    async def main() -> None:
        async with AsyncLaurelClient(
            {"eu-west": "http://region"}, http_edge.token(), transport=httpx.ASGITransport(app=edge.app), sleep=settle
        ) as client:
            events = [Event(player_id=f"p-{n}", value=n, event_id=f"e-{n}", achieved_at="2026-11-30T10:05:00Z") for n in (1, 2, 3)]
            bad = {"player_id": "p-4", "value": 4, "colour": "red"}
            reply = await client.submit(http_edge.SOLO, [*events, bad])
            assert [r.outcome for r in reply.results] == ["applied_first", "applied_first", "applied_first", "invalid"]
            assert reply.results[3].field == "colour"
            assert reply.position is not None
            page = await client.top(http_edge.SOLO, at_least=reply)
            assert [(e.rank, e.player_id, e.value) for e in page.entries] == [(1, "p-3", 3), (2, "p-2", 2), (3, "p-1", 1)]
            assert page.region == "eu-west"
            assert (await client.rank(http_edge.SOLO, "p-2")).entry.rank == 2
            assert (await client.nearby(http_edge.SOLO, "p-1", 1)).entry.position == 3
            assert (await client.ranks(http_edge.SOLO, ["p-1", "zed"], "listed")).absent == ("zed",)
            assert http_edge.SOLO in {board.board for board in await client.boards()}
            with pytest.raises(NotRanked):
                await client.rank(http_edge.SOLO, "zed")
            with pytest.raises(UnknownBoard):
                await client.board("no:such:board:here")
            with pytest.raises(BadRequest) as caught:
                await client.submit_one(http_edge.SOLO, "p-1", "1.5", event_id="e-9")
            assert caught.value.field == "value"
            with pytest.raises(Conflict):
                await client.submit_one(http_edge.SOLO, "p-1", 77, event_id="e-1")

    async def settle(seconds: float) -> None:
        edge.backend.unknown_ids.clear()

    asyncio.run(main())
