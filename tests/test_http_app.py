"""The public HTTP edge on an in-memory region: what is answered, with which headers, and to whom."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_backend import EPOCH, START_MS, FakeBackend
from http_edge import COINS, OPERATOR, PRIVATE, SERVER, SOLO, World, event, problem, token

from actors import messages
from actors.messages import NoAuthority, Unanswered
from journal.ports import Position
from regions.answering import takes_gzip
from regions.backend import Backend, FailoverRequest, LinkRequest
from regions.problems import TABLE, markdown

TOP = f"/v1/boards/{SOLO}/top"


@pytest.fixture
def world() -> World:
    return World()


def test_the_memory_region_is_a_backend() -> None:
    backend: Backend = FakeBackend()
    assert backend.region == "eu-west"


# Submitting


def test_a_batch_gets_one_result_for_each_event_in_order(world: World) -> None:
    response = world.submit(event("e1", "ann", 9700), event("e2", "ann", 9600), event("e3", "bob", 50), event("e1", "ann", 9700))
    assert response.status_code == 200
    body = response.json()
    assert (body["board"], body["region"]) == (SOLO, "eu-west")
    assert [result["outcome"] for result in body["results"]] == ["applied_first", "not_an_improvement", "applied_first", "duplicate"]
    assert body["results"][0] == {
        "event_id": "e1", "outcome": "applied_first", "value": "9700", "version": 1, "improved": True, "shard": "eu-west/0",
        "epoch": EPOCH, "offset": 1001, "acked": "quorum", "at_least": f"eu-west/0:{EPOCH}-1001", "visible_by": "s1",
    }  # fmt: skip
    assert body["results"][1]["value"] == "9700", "the stored one"
    assert world.backend.submitted[0][2] == "game-server-1", "the subject goes with the events"


def test_a_single_event_object_is_taken(world: World) -> None:
    response = world.post(f"/v1/boards/{SOLO}/events", json=event())
    assert [result["outcome"] for result in response.json()["results"]] == ["applied_first"]


def test_a_cumulative_board_takes_deltas_and_answers_by_its_decimals(world: World) -> None:
    for number, delta in enumerate(("12.5", 12.5, "-0.25")):
        response = world.submit({"event_id": f"d{number}", "player_id": "ann", "delta": delta}, board=COINS)
    assert response.json()["results"][0]["value"] == "24.75"


def test_bad_events_are_named_in_place_and_the_good_ones_count(world: World) -> None:
    response = world.submit(event("e1", value=True), event("e2"), event("e3", player_id="a/b"), event("e4", "bob"), 7)
    results = response.json()["results"]
    assert response.status_code == 200
    assert [result["outcome"] for result in results] == ["invalid", "applied_first", "invalid", "applied_first", "invalid"]
    assert [(result["event_id"], result["code"], result["field"]) for result in results[::2]] == [
        ("e1", "not_a_number", "value"), ("e3", "bad_id", "player_id"), (None, "not_an_object", "events[4]")
    ]  # fmt: skip
    assert all(result["allowed"] for result in results[::2])


def test_a_batch_of_bad_events_only_asks_nothing_of_the_authority(world: World) -> None:
    response = world.submit(event(value=None), event(value="x"))
    assert (response.status_code, world.backend.submitted) == (200, [])


def test_an_event_mended_after_invalid_counts_under_the_same_id(world: World) -> None:
    assert world.submit(event("e1", value="12,5")).status_code == 422
    assert world.submit(event("e1", value="12")).json()["results"][0]["outcome"] == "applied_first"


def test_an_invalid_event_alone_is_a_problem_with_its_field(world: World) -> None:
    body = problem(world.submit(event(value="1e5")), 422, "not_a_number", "value")
    assert body["results"][0]["outcome"] == "invalid"


def test_what_the_authority_finds_invalid_alone_is_a_problem_too(world: World) -> None:
    problem(world.submit(event(value=0), board="kart:laps:S1:global"), 403, "foreign_game")
    kart = {"authorization": f"Bearer {token(games=('kart',))}"}
    response = world.post("/v1/boards/kart:laps:S1:global/events", json=event(value=0), headers=kart)
    assert problem(response, 422, "out_of_range", "value")["allowed"] == "a time from 1 to 600000 ms"


def test_a_conflict_alone_is_409_and_in_a_batch_a_result(world: World) -> None:
    world.submit(event("e1", value=1))
    body = problem(world.submit(event("e1", value=2)), 409, "conflict")
    assert body["results"][0]["value"] == "1"
    response = world.submit(event("e1", value=2), event("e2", value=2))
    assert (response.status_code, response.json()["results"][0]["outcome"]) == (200, "conflict")


def test_times_stamped_by_the_gateway_do_not_make_a_retry_another_event(world: World) -> None:
    world.submit(event("e1"))
    world.backend.clock_ms += 5000
    assert world.submit(event("e1")).json()["results"][0]["outcome"] == "duplicate"
    sent = world.backend.submitted
    assert [events[0].achieved_ms for _, events, _ in sent] == [START_MS, START_MS + 5000]


def test_no_authority_is_a_definite_503_that_says_when_to_retry(world: World) -> None:
    world.backend.refusal = NoAuthority("us-east owns it now", code="draining", owner="us-east", epoch=8)
    response = world.submit(event())
    body = problem(response, 503, "draining")
    assert (body["definite"], body["owner"], body["epoch"], response.headers["retry-after"]) == (True, "us-east", 8, "1")


def test_an_indefinite_refusal_is_503_with_every_result(world: World) -> None:
    world.backend.refusal = NoAuthority("no answer in time", code="unknown", definite=False)
    response = world.submit(event("e1"), event("e2", value="x"), event("e3"))
    body = problem(response, 503, "unknown")
    assert [(result["event_id"], result["outcome"]) for result in body["results"]] == [
        ("e1", "unknown"),
        ("e2", "invalid"),
        ("e3", "unknown"),
    ]
    assert (body["definite"], "retry-after" in response.headers) == (False, True)


def test_one_unknown_result_makes_the_batch_503_with_the_others_in_it(world: World) -> None:
    world.backend.unknown_ids = {"e2": ""}
    body = problem(world.submit(event("e1"), event("e2", "bob")), 503, "unknown")
    assert [result["outcome"] for result in body["results"]] == ["applied_first", "unknown"]


def test_include_rank_waits_for_a_generation_that_holds_the_event(world: World) -> None:
    world.fill(3)
    result = world.submit(event("e9", "zoe", 9750), query="?include=rank").json()["results"][0]
    assert (result["rank"], result["position"], result["generation"]) == (2, 2, "s2")
    assert world.backend.asked[-1].at_least == (EPOCH, result["offset"])
    assert world.backend.asked[-1].at_shard == result["shard"], "the board may have moved since"


def test_include_rank_is_null_for_what_is_not_visible_and_filled_for_what_is(world: World) -> None:
    """1. e-0 of p-0 was published. 2. Nothing more is published. 3. A batch repeats it beside a new event."""
    world.fill(3)
    world.backend.publish_on_wait = False
    response = world.submit(event("e-0", "p-0", 9800), event("e9", "zoe", 1), event("e8", value="x"), query="?include=rank")
    old, new, bad = response.json()["results"]
    assert (old["outcome"], old["rank"], old["position"], old["generation"]) == ("duplicate", 1, 1, "s1")
    assert (new["rank"], new["position"], new["generation"]) == (None, None, None)
    assert "rank" not in bad


# Reading


def test_an_empty_board_serves_s0(world: World) -> None:
    body = world.get(TOP).json()
    assert (body["generation"], body["total"], body["entries"], body["next"]) == ("s0", 0, [], None)


def test_top_pages_by_cursor_within_one_generation(world: World) -> None:
    world.fill(5)
    first = world.get(f"{TOP}?limit=2").json()
    world.submit(event("late", "zoe", 10_000))
    world.backend.publish(SOLO)
    second = world.get(TOP, params={"limit": 2, "cursor": first["next"]})
    assert [entry["player_id"] for entry in first["entries"] + second.json()["entries"]] == ["p-0", "p-1", "p-2", "p-3"]
    assert second.json()["generation"] == "s1"
    assert "immutable" in second.headers["cache-control"], "a cursor pins its generation"


def test_player_views_share_the_envelope(world: World) -> None:
    world.fill(5)
    rank = world.get(f"/v1/boards/{SOLO}/players/p-2").json()
    assert [(entry["rank"], entry["value"]) for entry in rank["entries"]] == [(3, "9600")]
    nearby = world.get(f"/v1/boards/{SOLO}/players/p-2?view=nearby&window=1").json()
    for view in ("", "view=rank&", "view=percentile&"):
        problem(world.get(f"/v1/boards/{SOLO}/players/p-2?{view}window=1"), 422, "bad_parameter", "window")
    assert (nearby["player_id"], [entry["player_id"] for entry in nearby["entries"]]) == ("p-2", ["p-1", "p-2", "p-3"])
    assert {"board", "generation", "epoch", "published_at", "boundaries", "total", "entries"} <= set(rank) & set(nearby)
    problem(world.get(f"/v1/boards/{SOLO}/players/nobody"), 404, "not_ranked")


@pytest.mark.parametrize("player_id", ["Ünï", "a b", "a?b", "a#b", "a:b", "50%", "日本", "a&b=c", "...", "a+b"])
def test_any_allowed_player_id_can_be_asked_for_by_path(world: World, player_id: str) -> None:
    world.submit(event("e1", player_id))
    world.backend.publish(SOLO)
    entries = world.get(f"/v1/boards/{SOLO}/players/{quote(player_id, safe='')}").json()["entries"]
    assert [entry["player_id"] for entry in entries] == [player_id]


def test_ranks_are_on_the_board_or_among_the_listed(world: World) -> None:
    world.fill(5)
    asked = {"players": ["p-4", "p-1", "ghost", "p-1"]}
    board = world.post(f"/v1/boards/{SOLO}/ranks", json=asked).json()
    listed = world.post(f"/v1/boards/{SOLO}/ranks", json={**asked, "among": "listed"}).json()
    assert {entry["player_id"]: entry["rank"] for entry in board["entries"]} == {"p-4": 5, "p-1": 2}
    assert {entry["player_id"]: entry["rank"] for entry in listed["entries"]} == {"p-4": 2, "p-1": 1}
    assert (board["absent"], listed["among"]) == (["ghost"], "listed")


def test_a_pinned_generation_stays_and_a_lost_one_is_410_with_the_newest(world: World) -> None:
    world.fill(2)
    body = world.get(TOP).content
    world.submit(event("late", "zoe", 10_000))
    world.backend.publish(SOLO)
    assert world.get(f"{TOP}?generation=s1").content == body
    del world.backend.kept[SOLO].generations[1]
    gone = problem(world.get(f"{TOP}?generation=s1"), 410, "generation_gone", "generation")
    assert (gone["newest"], gone["allowed"]) == ("s2", "s2, which is the newest, or another that is still retained")


def test_at_least_waits_or_says_not_yet(world: World) -> None:
    offset = world.submit(event()).json()["results"][0]["offset"]
    assert world.get(f"{TOP}?at_least={EPOCH}-{offset}").json()["generation"] == "s1"
    response = world.get(f"{TOP}?at_least={EPOCH}-{offset + 1}")
    assert problem(response, 503, "not_visible_yet", "at_least")["definite"] is True
    assert response.headers["retry-after"] == "1"


def test_boards_are_described(world: World) -> None:
    world.fill(3)
    assert world.get(f"/v1/boards/{SOLO}").json() == {
        "board": SOLO, "policy": "best_score", "direction": "higher", "ties": "achieved_at", "ranking": "unique", "decimals": 0,
        "visibility": "public", "state": "open", "home": "eu-west", "shard": "eu-west/0", "total": 3, "generation": "s1",
        "slices": 1, "shards": ["eu-west/0"], "layout": 1, "moving_to": None, "secondary": None,
        "incarnation": "b1", "max_value": None, "max_age_ms": None, "publish_interval_ms": 250, "retention_ms": 120_000, "rule_version": 1,
    }  # fmt: skip


def test_the_list_shows_public_boards_and_those_of_the_tokens_games(world: World) -> None:
    def shown(**options: Any) -> set[str]:
        return {board["board"].split(":")[1] for board in world.get("/v1/boards", **options).json()["boards"]}

    assert shown() == {"solo", "coins", "laps"}
    assert shown(headers=SERVER) == {"solo", "coins", "laps", "duel"}
    assert shown(headers={"authorization": f"Bearer {token('reader', ('kart',))}"}) == {"solo", "coins", "laps"}


def test_list_of_thousands_comes_in_pages_that_hold_each_board_once(world: World) -> None:
    for number in range(2500):
        world.backend.add(f"kart:laps-{number}:S1:global", visibility="public" if number % 2 else "private")
    found: list[str] = []
    pages, cursor = 0, ""
    while True:
        page = world.get(f"/v1/boards?limit=400{cursor}").json()
        found += [board["board"] for board in page["boards"]]
        pages += 1
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == sorted(board for board, kept in world.backend.kept.items() if kept.rules.visibility == "public")
    assert (pages, len(found)) == (4, 1253)
    assert len(world.get("/v1/boards").json()["boards"]) == 1000


def test_last_page_that_is_full_has_no_next(world: World) -> None:
    assert world.get("/v1/boards?limit=3").json()["next"] is None
    assert world.get("/v1/boards?limit=2").json()["next"] == SOLO


# Boards of several shards, and of two columns


SHARDS = ("eu-west/0", "eu-west/1", "eu-west/2")
BIG = "arena-clash:big:S7:global"
PAIRS = "arena-clash:pairs:S7:global"


def test_results_of_a_spread_board_say_how_to_wait_for_each(world: World) -> None:
    world.backend.add(BIG, visibility="public", shards=SHARDS)
    results = world.submit(*(event(f"e-{n}", f"p-{n}", n) for n in range(40)), board=BIG).json()["results"]
    assert {result["shard"] for result in results} == set(SHARDS)
    for result in results:
        assert result["at_least"] == f"{result['shard']}:{result['epoch']}-{result['offset']}"
        assert result["visible_by"] is None
    (alone,) = world.submit(event()).json()["results"]
    assert alone["at_least"] == f"eu-west/0:{EPOCH}-{alone['offset']}", "on a board of one shard too: it may move"


def test_places_of_a_spread_boards_events_are_of_a_generation_that_holds_them(world: World) -> None:
    world.backend.add(BIG, visibility="public", shards=SHARDS)
    results = world.submit(*(event(f"e-{n}", f"p-{n}", n) for n in range(40)), board=BIG, query="?include=rank").json()["results"]
    assert [result["rank"] for result in results] == list(range(40, 0, -1))
    waited = {ask.at_shard: ask.at_least for ask in world.backend.asked if ask.at_shard is not None}
    last = {result["shard"]: Position(result["epoch"], result["offset"]) for result in results}
    assert waited == last


def test_place_is_null_for_the_shard_that_is_late_alone(world: World) -> None:
    board = world.backend.add(BIG, visibility="public", shards=SHARDS)
    world.submit(*(event(f"e-{n}", f"p-{n}", n) for n in range(40)), board=BIG)
    world.backend.publish(BIG)
    late = board.layout.shards[2]
    seen = board.generations[1].offsets
    board.generations[1] = msgspec.structs.replace(board.generations[1], offsets={**seen, late: 0})
    world.backend.publish_on_wait = False
    results = world.submit(*(event(f"e-{n}", f"p-{n}", n) for n in range(40)), board=BIG, query="?include=rank").json()["results"]
    assert {result["shard"] for result in results if result["rank"] is None} == {late}


def test_events_whose_shard_has_no_authority_are_unknown_with_its_code_and_the_others_count(world: World) -> None:
    world.backend.add(BIG, visibility="public", shards=SHARDS)
    world.backend.unknown_ids = {"e-1": "no_authority", "e-2": ""}
    response = world.submit(event("e-1", "a", 1), event("e-2", "b", 1), event("e-3", "c", 1), board=BIG)
    body = problem(response, 503, "unknown")
    assert body["definite"] is False
    assert response.headers["retry-after"] == "1"
    assert body["results"][:2] == [
        {"event_id": "e-1", "outcome": "unknown", "code": "no_authority"},
        {"event_id": "e-2", "outcome": "unknown"},
    ]
    assert body["results"][2]["outcome"] == "applied_first"


def test_second_column_decides_between_equal_values_and_is_shown(world: World) -> None:
    world.backend.add(PAIRS, visibility="public", secondary="lower", decimals=2)
    answer = world.submit(
        event("e-1", "a", "9.50", secondary=300), event("e-2", "b", 9.5, secondary="-2"), event("e-3", "c", 9, secondary=0), board=PAIRS
    )
    assert [result["outcome"] for result in answer.json()["results"]] == ["applied_first"] * 3
    world.backend.publish(PAIRS)
    rows = world.get(f"/v1/boards/{PAIRS}/top").json()["entries"]
    assert [(row["player_id"], row["value"], row["secondary"]) for row in rows] == [
        ("b", "9.50", "-2"),
        ("a", "9.50", "300"),
        ("c", "9.00", "0"),
    ]
    assert world.get(f"/v1/boards/{PAIRS}").json()["secondary"] == {"direction": "lower"}


def test_second_column_is_part_of_what_makes_two_events_the_same(world: World) -> None:
    world.backend.add(PAIRS, visibility="public", secondary="lower")
    sent = event("e-1", "a", 5, secondary=300)
    assert world.submit(sent, board=PAIRS).json()["results"][0]["outcome"] == "applied_first"
    assert world.submit({**sent, "secondary": "300"}, board=PAIRS).json()["results"][0]["outcome"] == "duplicate"
    problem(world.submit({**sent, "secondary": 299}, board=PAIRS), 409, "conflict")


# Operators and boards


def operate(world: World, method: str, url: str, **options: Any) -> httpx.Response:
    return world.call(method, url, headers=OPERATOR, **options)


def test_board_is_created_over_shards_with_a_second_column(world: World) -> None:
    wanted = {"board": BIG, "policy": "best_score", "shards": 3, "secondary": {"direction": "lower"}}
    made = operate(world, "POST", "/v1/admin/boards", json=wanted)
    assert made.status_code == 201
    assert (made.json()["slices"], made.json()["shards"], made.json()["secondary"]) == (3, list(SHARDS), {"direction": "lower"})
    named = operate(world, "POST", "/v1/admin/boards", json={"board": PAIRS, "policy": "latest", "shards": ["eu-west/2"]})
    assert (named.json()["shard"], named.json()["shards"]) == ("eu-west/2", ["eu-west/2"])


def test_board_is_removed_by_operators_of_its_game_alone(world: World) -> None:
    problem(world.call("DELETE", f"/v1/admin/boards/{SOLO}", headers=SERVER), 403, "wrong_scope")
    foreign = {"authorization": f"Bearer {token('operator', ('kart',))}"}
    problem(world.call("DELETE", f"/v1/admin/boards/{SOLO}", headers=foreign), 403, "foreign_game")
    assert operate(world, "DELETE", f"/v1/admin/boards/{SOLO}").json() == {"board": SOLO, "incarnation": "b1", "removed": True}
    assert world.backend.removals == [(SOLO, "operator-1")]
    problem(world.get(f"/v1/boards/{SOLO}"), 404, "unknown_board")
    problem(operate(world, "DELETE", f"/v1/admin/boards/{SOLO}"), 404, "unknown_board")


def test_move_is_ordered_watched_and_given_up(world: World) -> None:
    url = f"/v1/admin/boards/{SOLO}/relocate"
    begun = operate(world, "POST", url, json={"shards": 2})
    assert (begun.status_code, begun.json()["layout"]) == (202, {"number": 2, "shards": ["eu-west/0", "eu-west/1"]})
    told = operate(world, "GET", url).json()
    assert (told["moving"], told["phase"], told["layout"]["number"], told["to"]["number"]) == (True, "copying", 1, 2)
    assert world.get(f"/v1/boards/{SOLO}").json()["moving_to"] == {"number": 2, "shards": ["eu-west/0", "eu-west/1"]}
    assert operate(world, "DELETE", url).json()["moving"] is False
    assert operate(world, "POST", url, json={"shards": ["eu-west/0"]}).status_code == 200
    assert world.backend.relocations == [(SOLO, 2, "operator-1"), (SOLO, None, "operator-1")]


# Headers


def test_headers_of_public_and_private_answers(world: World) -> None:
    world.fill(2)
    world.backend.clock_ms += 130
    newest, numbered = world.get(TOP), world.get(f"{TOP}?generation=s1")
    pinned = world.get(f"{TOP}?generation={newest.json()['pin']}")
    private = world.get(f"/v1/boards/{PRIVATE}/top?generation=s0", headers=SERVER)
    assert newest.headers["x-laurel-region"] == "eu-west"
    assert newest.headers["x-laurel-age-ms"] == "130"
    assert (newest.headers["cache-control"], numbered.headers["cache-control"]) == ("no-cache", "no-cache")
    assert pinned.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert private.headers["cache-control"] == "private, no-store"
    assert (newest.headers["vary"], private.headers["vary"]) == ("Accept-Encoding", "Accept-Encoding, Authorization")
    assert (newest.headers["access-control-allow-origin"], "access-control-allow-origin" in private.headers) == ("*", False)
    assert newest.headers["etag"] == numbered.headers["etag"] == pinned.headers["etag"], "the same content"


def test_the_pin_of_another_life_of_a_board_is_gone_also_where_the_number_is_there(world: World) -> None:
    world.fill(2)
    pin = world.get(TOP).json()["pin"]
    assert pin == "s1@b1"
    problem = world.get(f"{TOP}?generation=s1@b0")
    assert (problem.status_code, problem.json()["code"], problem.json()["newest"]) == (410, "generation_gone", "s1")
    for none in ("s1@", "s1@b 1", "@b1", "b1", "s1@" + 65 * "b"):
        answer = world.get(TOP, params={"generation": none})
        assert (answer.status_code, answer.json()["field"]) == (422, "generation"), none
        assert "pin" in answer.json()["allowed"]


def test_age_is_never_negative_when_clocks_disagree(world: World) -> None:
    world.fill(1)
    world.backend.clock_ms -= 50
    assert world.get(TOP).headers["x-laurel-age-ms"] == "0"


def test_etags_tell_generations_and_questions_apart(world: World) -> None:
    world.fill(3)
    urls = [
        TOP,
        f"{TOP}?limit=2",
        f"/v1/boards/{SOLO}/players/p-1",
        f"/v1/boards/{SOLO}/players/p-1?view=nearby",
        f"/v1/boards/{COINS}/top",
    ]
    tags = [world.get(url).headers["etag"] for url in urls]
    world.backend.publish(SOLO)
    tags += [world.get(url).headers["etag"] for url in urls[:4]]
    assert len(set(tags)) == 9
    assert tags[0].startswith('"b1.l1.s1.')


@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', "*"])
@pytest.mark.parametrize("url", [TOP, f"{TOP}?generation=s1", f"/v1/boards/{SOLO}", "/v1/boards"])
def test_if_none_match_is_304_without_body_until_something_changes(world: World, url: str, form: str) -> None:
    world.fill(2)
    fresh = world.get(url)
    again = world.get(url, headers={"if-none-match": form.format(fresh.headers["etag"])})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == fresh.headers["etag"]
    assert again.headers["cache-control"] == fresh.headers["cache-control"]
    assert "content-length" not in again.headers
    assert world.get(url, headers={"if-none-match": '"other"'}).status_code == 200


def test_a_large_body_is_compressed_for_those_who_take_it_under_its_own_etag(world: World) -> None:
    world.fill(50)
    plain = world.get(TOP, headers={"accept-encoding": "identity"})
    zipped = world.get(TOP, headers={"accept-encoding": "br, gzip;q=0.5"})
    assert (plain.headers.get("content-encoding"), zipped.headers["content-encoding"]) == (None, "gzip")
    assert plain.content == zipped.content
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"]) == len(plain.content)
    assert plain.headers["etag"] != zipped.headers["etag"]
    assert world.get(TOP, headers={"if-none-match": zipped.headers["etag"], "accept-encoding": "identity"}).status_code == 304


@pytest.mark.parametrize(
    ("value", "takes"),
    [(b"gzip", True), (b"GZIP;q=1", True), (b"*", True), (b"gzip;q=0", False), (b"*;q=1, gzip;q=0.0", False), (b"br", False), (b"", False),
     (b"gzip;q=x", False)],
)  # fmt: skip
def test_accept_encoding_is_read_with_its_weights(value: bytes, takes: bool) -> None:
    assert takes_gzip(value) is takes


@pytest.mark.parametrize("url", [TOP, f"{TOP}?generation=s1", f"/v1/boards/{SOLO}", "/healthz", f"/v1/boards/{SOLO}/players/nobody"])
def test_head_is_get_without_the_body(world: World, url: str) -> None:
    world.fill(2)
    get, head = world.get(url), world.call("HEAD", url)
    assert (head.status_code, head.headers, head.content) == (get.status_code, get.headers, b"")
    assert int(head.headers["content-length"]) == len(get.content) > 0


def test_the_short_way_and_the_long_way_to_top_are_the_same_answer(world: World) -> None:
    world.fill(50)
    world.backend.clock_ms += 77
    etag = world.get(TOP).headers["etag"]
    private = f"/v1/boards/{PRIVATE}/top"
    wanted: list[tuple[str, dict[str, str]]] = [
        (TOP, {}), (f"{TOP}?limit=3", {}), (TOP, {"accept-encoding": "identity"}), (TOP, {"if-none-match": etag}), (TOP, SERVER),
        (private, SERVER), (private, {}), (TOP, {"authorization": "Bearer x"}), (f"{TOP}?limit=0", {}), (f"{TOP}?limit=1001", {}),
        (f"{TOP}?limit=1&limit=2", {}), (private, {"authorization": f"Bearer {token('reader', ('kart',))}"}),
    ]  # fmt: skip
    for url, headers in wanted:
        asked = len(world.backend.asked)
        short = world.get(url, headers=headers)
        assert len(world.backend.asked) == asked, "nothing was asked of the replica"
        long = world.get(url, headers=headers, app=world.app.api)
        assert (short.status_code, short.headers.raw, short.content) == (long.status_code, long.headers.raw, long.content), url


def test_a_new_generation_replaces_the_page_that_was_kept(world: World) -> None:
    world.fill(2)
    before = world.get(TOP)
    world.submit(event("late", "zoe", 10_000))
    world.backend.publish(SOLO)
    after = world.get(TOP, headers={"if-none-match": before.headers["etag"]})
    assert (after.status_code, after.json()["generation"]) == (200, "s2")


def test_preflight_opens_public_boards_only(world: World) -> None:
    asks = {"origin": "https://page.example", "access-control-request-method": "GET"}
    public = world.call("OPTIONS", TOP, headers=asks)
    private = world.call("OPTIONS", f"/v1/boards/{PRIVATE}/top", headers=asks)
    assert (public.status_code, public.headers["access-control-allow-methods"]) == (204, "GET, HEAD")
    assert [name for name in private.headers if name.startswith("access-control")] == []
    posted = world.submit(event())
    assert "access-control-allow-origin" not in posted.headers
    assert world.get(f"/v1/boards/{SOLO}/players/nobody").headers["access-control-allow-origin"] == "*"


# Tokens and visibility


def test_a_public_board_needs_no_token_but_refuses_a_bad_one(world: World) -> None:
    assert world.get(TOP).status_code == 200
    for url in (TOP, f"/v1/boards/{SOLO}", "/v1/boards", f"/v1/boards/{SOLO}/players/p"):
        response = world.get(url, headers={"authorization": "Bearer nonsense"})
        problem(response, 401, "bad_token")
        assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.parametrize(
    ("scope", "games", "status", "code"),
    [
        ("reader", ("arena-clash",), 200, ""), ("game-server", ("arena-clash",), 200, ""), ("operator", ("*",), 200, ""),
        ("moderator", ("*",), 200, ""), ("reader", ("kart",), 403, "foreign_game"), ("region", ("*",), 403, "wrong_scope"),
    ],
)  # fmt: skip
def test_who_may_read_a_private_board(world: World, scope: Any, games: tuple[str, ...], status: int, code: str) -> None:
    for url in (f"/v1/boards/{PRIVATE}/top", f"/v1/boards/{PRIVATE}", f"/v1/boards/{PRIVATE}/top?generation=s0"):
        response = world.get(url, headers={"authorization": f"Bearer {token(scope, games)}"})
        assert (response.status_code, response.json().get("code", "")) == (status, code)
    problem(world.get(f"/v1/boards/{PRIVATE}/top"), 401, "missing_token")


@pytest.mark.parametrize("scope", ["reader", "operator", "moderator", "region"])
def test_only_game_servers_submit(world: World, scope: Any) -> None:
    response = world.post(f"/v1/boards/{SOLO}/events", json=event(), headers={"authorization": f"Bearer {token(scope, ('*',))}"})
    problem(response, 403, "wrong_scope")
    assert world.backend.submitted == []


# Operating


def test_health_readiness_and_status(world: World) -> None:
    assert world.get("/healthz").json() == {"status": "ok", "region": "eu-west"}
    assert world.get("/readyz").json() == {"status": "ready", "region": "eu-west"}
    world.backend.missing = ["replica of eu-west/0"]
    response = world.get("/readyz")
    assert problem(response, 503, "not_ready")["missing"] == ["replica of eu-west/0"]
    assert world.get("/healthz").status_code == 200
    problem(world.get(f"{TOP}?generation=s0"), 503, "not_serving")
    assert world.get("/v1/status", headers=OPERATOR).json()["region"] == "eu-west"
    problem(world.get("/v1/status"), 401, "missing_token")
    problem(world.get("/v1/status", headers=SERVER), 403, "wrong_scope")


def test_a_board_is_created_once_and_refused_with_other_rules(world: World) -> None:
    wanted = {"board": "kart:drift:S1:eu", "policy": "fastest_time", "home": "us-east", "max_value": "90000", "visibility": "public"}
    first = world.post("/v1/admin/boards", json=wanted, headers=OPERATOR)
    again = world.post("/v1/admin/boards", json=wanted, headers=OPERATOR)
    assert (first.status_code, again.status_code, first.json()) == (201, 200, again.json())
    assert (first.json()["direction"], first.json()["ties"], first.json()["max_value"]) == ("lower", "submitted_at", "90000")
    other = {**wanted, "ties": "player_id", "visibility": "private"}
    told = problem(world.post("/v1/admin/boards", json=other, headers=OPERATOR), 409, "board_exists", "ties")
    assert told["allowed"] == "submitted_at"
    assert "ties is submitted_at, visibility is public" in told["detail"]


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"policy": "fastest"}, "bad_rule", "policy"), ({"policy": None}, "bad_rule", "policy"), ({"decimals": 12}, "bad_rule", "decimals"),
        ({"decimals": True}, "bad_rule", "decimals"), ({"board": "kart"}, "bad_id", "board"), ({"tie": "x"}, "unknown_field", "tie"),
        ({"max_value": "1e3"}, "not_a_number", "max_value"), ({"home": "mars"}, "unknown_region", "home"), ({"home": 7}, "invalid", "home"),
        ({"publish_interval_ms": 5000}, "bad_rule", "publish_interval_ms"), ({"visibility": "open"}, "bad_rule", "visibility"),
        ({"policy": ["best_score"]}, "bad_rule", "policy"), ({"decimals": 0.5}, "bad_rule", "decimals"),
    ],
)  # fmt: skip
def test_a_board_with_a_bad_setting_is_refused_by_name(world: World, changes: dict[str, Any], code: str, field: str) -> None:
    response = world.post("/v1/admin/boards", json={"board": "kart:drift:S1:eu", "policy": "best_score", **changes}, headers=OPERATOR)
    assert problem(response, 422, code, field)["allowed"]


def test_failover_says_what_moves_and_passes_on_who_asked(world: World) -> None:
    for what, value in (("shard", "eu-west/0"), ("board", SOLO), ("from", "eu-west")):
        response = world.post("/v1/admin/failover", json={what: value, "to": "us-east", "force": True, "expect_epoch": 7}, headers=OPERATOR)
        assert response.json()["moved"][0]["owner"] == "us-east"
    common: dict[str, Any] = {"to": "us-east", "force": True, "expect_epoch": 7}
    assert world.backend.failovers == [
        (FailoverRequest(shard="eu-west/0", **common), "operator-1"),
        (FailoverRequest(board=SOLO, **common), "operator-1"),
        (FailoverRequest(from_region="eu-west", **common), "operator-1"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"to": "us-east"}, 422, "invalid", "shard"), ({"shard": "a", "board": SOLO, "to": "b"}, 422, "invalid", "shard"),
        ({"shard": "a"}, 422, "missing_field", "to"), ({"shard": "a", "to": ""}, 422, "invalid", "to"),
        ({"board": "a:b:c:d", "to": "b"}, 404, "unknown_board", None), ({"shard": "a", "to": "b", "force": 1}, 422, "invalid", "force"),
        ({"shard": "a", "to": "b", "expect_epoch": 6}, 409, "epoch_moved", None),
        ({"shard": "a", "to": "b", "expect_epoch": "7"}, 422, "invalid", "expect_epoch"),
        ({"shard": "a", "to": "b", "forse": True}, 422, "unknown_field", "forse"),
    ],
)  # fmt: skip
def test_a_failover_that_is_not_clear_moves_nothing(world: World, body: Any, status: int, code: str, field: str | None) -> None:
    problem(world.post("/v1/admin/failover", json=body, headers=OPERATOR), status, code, field)
    assert world.backend.failovers == []


def test_readmit_names_the_region_in_the_path_and_takes_no_fields(world: World) -> None:
    url = "/v1/admin/regions/us-east/readmit"
    assert world.post(url, headers=OPERATOR).json()["readmitted"] == "us-east"
    assert world.post(url, json={}, headers=OPERATOR).status_code == 200
    assert world.backend.readmitted == [("us-east", "operator-1")] * 2
    problem(world.post(url, json={"force": True}, headers=OPERATOR), 422, "unknown_field", "force")
    problem(world.post("/v1/admin/regions/mars/readmit", headers=OPERATOR), 422, "unknown_region", "name")
    problem(world.post("/v1/admin/regions/eu-west/readmit", headers=OPERATOR), 409, "readmit_refused")
    problem(world.post("/v1/admin/regions/%00/readmit", headers=OPERATOR), 422, "invalid", "name")
    assert len(world.backend.readmitted) == 2


def test_link_faults_are_set_and_checked(world: World) -> None:
    good = {"peer": "us-east", "direction": "both", "mode": "delay", "delay_ms": 40, "for_ms": 1000}
    assert world.post("/v1/admin/links", json=good, headers=OPERATOR).status_code == 200
    assert world.backend.links == [(LinkRequest(peer="us-east", direction="both", mode="delay", delay_ms=40, for_ms=1000), "operator-1")]
    for changes, field in (({"mode": "cut"}, "mode"), ({"direction": "up"}, "direction"), ({"delay_ms": None}, "delay_ms"),
                           ({"mode": "drop"}, "delay_ms"), ({"for_ms": 0}, "for_ms"), ({"peer": None}, "peer")):  # fmt: skip
        problem(world.post("/v1/admin/links", json={**good, **changes}, headers=OPERATOR), 422, "invalid", field)


@pytest.mark.parametrize("url", ["/v1/admin/failover", "/v1/admin/links", "/v1/admin/boards", "/v1/admin/regions/us-east/readmit"])
def test_admin_calls_are_for_operators(world: World, url: str) -> None:
    problem(world.call("POST", url, json={}), 401, "missing_token")
    problem(world.post(url, json={}), 403, "wrong_scope")
    if url != "/v1/admin/boards":
        narrow = {"authorization": f"Bearer {token('operator', ('kart',))}"}
        problem(world.post(url, json={}, headers=narrow), 403, "foreign_game")


def test_an_operator_of_one_game_creates_boards_of_that_game_only(world: World) -> None:
    narrow = {"authorization": f"Bearer {token('operator', ('kart',))}"}
    assert world.post("/v1/admin/boards", json={"board": "kart:a:b:c", "policy": "latest"}, headers=narrow).status_code == 201
    problem(world.post("/v1/admin/boards", json={"board": "chess:a:b:c", "policy": "latest"}, headers=narrow), 403, "foreign_game")


# The table of problems and the document


def test_every_code_that_the_actors_raise_is_in_the_table() -> None:
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Unanswered)]
    for kind in kinds:
        assert kind.code in TABLE
        assert (kind.retry_after_ms is None) == (TABLE[kind.code].retry_after_ms is None) or kind is Unanswered
    assert {"no_authority", "draining", "lagging", "hold", "unknown"} <= set(TABLE)
    assert [code for code, row in TABLE.items() if not row.definite] == ["internal", "unknown"]


def test_the_page_that_types_point_to_names_every_code(world: World) -> None:
    page = world.get("/docs/problems")
    assert page.text == markdown()
    assert all(f'id="{code}"' in page.text for code in TABLE)


def test_openapi_covers_every_call_and_docs_are_served(world: World) -> None:
    document = world.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/boards", "/v1/boards/{board}", "/v1/boards/{board}/top", "/v1/boards/{board}/players/{player}", "/v1/boards/{board}/ranks",
        "/v1/boards/{board}/friends/{player}",
        "/v1/boards/{board}/events", "/v1/status", "/healthz", "/readyz", "/v1/admin/boards",
        "/v1/admin/boards/{board}", "/v1/admin/boards/{board}/relocate", "/v1/admin/failover", "/v1/admin/links",
        "/v1/admin/regions/{name}/readmit", "/v1/admin/audit",
        "/v1/admin/orphans", "/v1/admin/orphans/resubmit", "/v1/admin/orphans/sign-off",
        "/v1/admin/drills", "/v1/admin/drills/{drill}", "/v1/admin/stall",
    }  # fmt: skip
    top = document["paths"]["/v1/boards/{board}/top"]["get"]
    assert {parameter["name"] for parameter in top["parameters"]} == {"board", "limit", "cursor", "generation", "at_least"}
    assert {"401", "403", "404", "410", "422", "503"} <= set(top["responses"])
    assert "problem+json" in str(top["responses"]["422"])
    assert "swagger" in world.get("/docs").text


def test_an_error_of_our_own_is_an_indefinite_problem_that_tells_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret place")

    calls: dict[str, Callable[[], httpx.Response]] = {
        "submit": lambda: world.submit(event()),
        "ask": lambda: world.get(f"{TOP}?generation=s0"),
    }
    for name, call in calls.items():
        setattr(world.backend, name, broken)
        response = call()
        assert problem(response, 500, "internal")["definite"] is False
        assert "secret" not in response.text
    assert caplog.text.count("RuntimeError: secret place") == 2


def test_bodies_are_the_same_bytes_in_every_region(world: World) -> None:
    other = World()
    other.backend.region = "us-east"
    for each in (world, other):
        each.fill(3)
    for url in (TOP, f"{TOP}?limit=2", f"/v1/boards/{SOLO}/players/p-1?view=nearby"):
        here, there = world.get(url), other.get(url)
        assert (here.content, here.headers["etag"]) == (there.content, there.headers["etag"])
        assert there.headers["x-laurel-region"] == "us-east"


def test_the_lifespan_reaches_the_inner_app(world: World) -> None:
    said: list[str] = []

    async def run() -> None:
        wanted = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> Any:
            return {"type": next(wanted)}

        async def send(message: Any) -> None:
            said.append(message["type"])

        await world.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    asyncio.run(run())
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
