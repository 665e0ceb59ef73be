"""Audit records and orphans at the HTTP edge: who may, what is refused by name, what the answers look like."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_backend import EPOCH, START_MS
from http_edge import OPERATOR, World, problem, token

AUDIT, ORPHANS = "/v1/admin/audit", "/v1/admin/orphans"
RESUBMIT, SIGN_OFF = f"{ORPHANS}/resubmit", f"{ORPHANS}/sign-off"
BEGAN = {"what": "drill.began", "detail": {"id": "d-1", "until_ms": START_MS + 60_000}}
ITEM = {
    "epoch": 3, "offset": 12, "record": 0, "kind": "event", "board": "a:b:c:d", "subject": "gs-1", "in_lineage": False, "state": "open",
    "outcome": "", "code": "", "player_id": "p", "event_id": "e", "amount": "12.50", "achieved_ms": START_MS,
}  # fmt: skip


@pytest.fixture
def world() -> World:
    return World()


def order(world: World, url: str, **body: Any) -> Any:
    return world.post(url, json=body, headers=OPERATOR)


def look(world: World, url: str) -> Any:
    return world.get(url, headers=OPERATOR)


def test_an_audit_record_is_written_with_the_tokens_subject_and_read_back_newest_first(world: World) -> None:
    written = order(world, AUDIT, **BEGAN)
    assert written.status_code == 201
    assert written.json() == {
        "what": "drill.began", "asked_by": "operator-1", "detail": BEGAN["detail"], "shard": "eu-west/0", "epoch": EPOCH, "offset": 1001,
    }  # fmt: skip
    world.backend.clock_ms += 1000
    assert order(world, AUDIT, what="drill.ended", detail={"id": "d-1", "seconds": 1.5}, shard="eu-west/0").status_code == 201
    body = look(world, f"{AUDIT}?what=drill&limit=1").json()
    assert body["region"] == "eu-west"
    (newest,) = body["records"]
    assert (newest["what"], newest["detail"], newest["at"]) == ("drill.ended", {"id": "d-1", "seconds": 1.5}, "2026-11-30T10:10:01.000Z")
    assert [r["what"] for r in look(world, AUDIT).json()["records"]] == ["drill.ended", "drill.began"]


def test_a_second_drill_is_refused_as_busy_and_definite(world: World) -> None:
    assert order(world, AUDIT, **BEGAN, unless_open="drill").status_code == 201
    body = problem(order(world, AUDIT, **BEGAN, unless_open="drill"), 409, "busy")
    assert (body["definite"], body["retry_after_ms"]) == (True, 5000)
    assert len(world.backend.audit_log) == 1


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"what": "drill"}, "invalid", "what"),
        ({"what": "Drill.began"}, "invalid", "what"),
        ({"what": "orphans.signed_off"}, "invalid", "what"),
        ({"what": "a." + "b" * 63}, "invalid", "what"),
        ({"what": 7}, "invalid", "what"),
        ({"detail": []}, "invalid", "detail"),
        ({"detail": {"id": "d-1", "note": "x" * 20_000}}, "invalid", "detail"),
        ({"detail": {"until_ms": START_MS}}, "invalid", "detail.id"),
        ({"detail": {"id": "d-1"}}, "invalid", "detail.until_ms"),
        ({"detail": {"id": "d-1", "until_ms": START_MS + 86_400_001}}, "invalid", "detail.until_ms"),
        ({"detail": {"id": "d-1", "until_ms": True}}, "invalid", "detail.until_ms"),
        ({"unless_open": "season"}, "invalid", "unless_open"),
        ({"shard": ""}, "invalid", "shard"),
        ({"when": "now"}, "unknown_field", "when"),
    ],
)
def test_a_bad_audit_record_is_refused_by_field(world: World, change: dict[str, Any], code: str, field: str) -> None:
    problem(order(world, AUDIT, **(BEGAN | change)), 422, code, field)
    assert world.backend.audit_log == []


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_number_that_json_does_not_have_is_no_detail(world: World, number: str) -> None:
    body = f'{{"what": "drill.note", "detail": {{"x": {number}}}}}'.encode()
    headers = OPERATOR | {"content-type": "application/json"}
    assert world.post(AUDIT, content=body, headers=headers).status_code in (400, 422)
    assert world.backend.audit_log == []


@pytest.mark.parametrize(("query", "field"), [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("what=A", "what")])
def test_a_bad_question_for_audit_records_is_refused_by_parameter(world: World, query: str, field: str) -> None:
    problem(look(world, f"{AUDIT}?{query}"), 422, "bad_parameter", field)


def test_orphans_are_listed_by_shard_with_counts_of_all_and_times_as_text(world: World) -> None:
    counts = [{"epoch": 3, "offset": 12, "boards": 0, "dropped": 0, "done": 0, "held": 0, "operator": 0, "open": 2}]
    world.backend.orphaned["eu-west/0"] = {"total": 2, "entries": counts, "orphans": [ITEM, {**ITEM, "record": 1}]}
    body = look(world, f"{ORPHANS}?limit=1").json()
    shard = body["shards"]["eu-west/0"]
    assert (body["region"], shard["total"], shard["entries"]) == ("eu-west", 2, counts)
    shown = {name: value for name, value in ITEM.items() if name != "achieved_ms"}
    assert shard["orphans"] == [{**shown, "achieved_at": "2026-11-30T10:10:00.000Z"}]


def test_resubmitting_names_one_shard_or_none_and_signing_off_names_epoch_and_reason(world: World) -> None:
    assert order(world, RESUBMIT).json()["shards"]["eu-west/0"]["outcomes"] == {"applied": 1}
    assert order(world, RESUBMIT, shard="eu-west/0").is_success
    assert world.backend.resubmitted == [(None, "operator-1"), ("eu-west/0", "operator-1")]
    done = order(world, SIGN_OFF, shard="eu-west/0", epoch=3, why="checked").json()
    assert (done["shard"], done["epoch"], done["why"]) == ("eu-west/0", 3, "checked")
    assert world.backend.signed_off == [("eu-west/0", 3, "checked", "operator-1")]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"epoch": 0}, "invalid", "epoch"),
        ({"epoch": 2**53}, "invalid", "epoch"),
        ({"epoch": True}, "invalid", "epoch"),
        ({"epoch": "3"}, "invalid", "epoch"),
        ({"why": ""}, "invalid", "why"),
        ({"why": "  "}, "invalid", "why"),
        ({"why": "x" * 501}, "invalid", "why"),
        ({"shard": 3}, "invalid", "shard"),
        ({"force": True}, "unknown_field", "force"),
    ],
)
def test_a_bad_sign_off_is_refused_by_field(world: World, change: dict[str, Any], code: str, field: str) -> None:
    problem(order(world, SIGN_OFF, **({"shard": "eu-west/0", "epoch": 3, "why": "checked"} | change)), 422, code, field)
    assert world.backend.signed_off == []


@pytest.mark.parametrize("missing", ["shard", "epoch", "why"])
def test_a_sign_off_says_shard_epoch_and_reason(world: World, missing: str) -> None:
    body = {name: value for name, value in {"shard": "eu-west/0", "epoch": 3, "why": "w"}.items() if name != missing}
    problem(order(world, SIGN_OFF, **body), 422, "missing_field", missing)


def test_an_unknown_shard_is_told_with_those_there_are(world: World) -> None:
    for reply in (
        look(world, f"{ORPHANS}?shard=x"),
        look(world, f"{AUDIT}?shard=x"),
        order(world, RESUBMIT, shard="x"),
        order(world, SIGN_OFF, shard="x", epoch=1, why="w"),
        order(world, AUDIT, **BEGAN, shard="x"),
    ):
        assert problem(reply, 404, "unknown_shard", "shard")["allowed"] == "eu-west/0"


@pytest.mark.parametrize(("method", "url"), [("GET", AUDIT), ("POST", AUDIT), ("GET", ORPHANS), ("POST", RESUBMIT), ("POST", SIGN_OFF)])
def test_only_an_operator_of_all_games_may(world: World, method: str, url: str) -> None:
    for scope, games, code in (("game-server", ("*",), "wrong_scope"), ("operator", ("arena-clash",), "foreign_game")):
        headers = {"authorization": f"Bearer {token(scope, games)}"}  # type: ignore[arg-type]
        problem(world.call(method, url, headers=headers, json={} if method == "POST" else None), 403, code)
    problem(world.call(method, url), 401, "missing_token")
