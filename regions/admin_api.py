"""Operating a region over HTTP: status and probes, new boards, moving authority, the link fault switch."""

from typing import Any

from starlette.requests import Request

from boards.ids import check_board_id
from boards.numbers import parse_value
from boards.policies import make_rules
from regions.answering import Edge, Reply, game_of, json_reply
from regions.backend import FailoverRequest, LinkRequest
from regions.problems import ProblemError
from regions.read_api import describe
from regions.submit_api import check_fields, read_object, read_query
from regions.tokens import Scope

_OPERATOR: tuple[Scope, ...] = ("operator",)
_STATUS: tuple[Scope, ...] = ("operator", "moderator", "region")

_RULES = (
    "policy", "direction", "ties", "ranking", "decimals", "max_value", "max_age_ms", "visibility", "publish_interval_ms", "retention_ms"
)  # fmt: skip
_BOARD_FIELDS = ("board", "home", *_RULES)
_FAILOVER_FIELDS = ("shard", "board", "from", "to", "force", "expect_epoch")
_LINK_FIELDS = ("peer", "direction", "mode", "delay_ms", "for_ms")

#: Longest delay and longest life of a link fault.
_DELAY_MAX_MS, _FAULT_MAX_MS = 60_000, 86_400_000
_NAME_CHARS = 128


async def status(edge: Edge, request: Request) -> Reply:
    """`GET /v1/status`."""
    edge.admitted(request, _STATUS, None)
    read_query(request, ())
    return json_reply(edge.backend.status(), region=edge.backend.region)


async def healthz(edge: Edge, request: Request) -> Reply:
    """`GET /healthz`: this process answers. Asks nothing of anyone."""
    return json_reply({"status": "ok", "region": edge.backend.region}, region=edge.backend.region)


async def readyz(edge: Edge, request: Request) -> Reply:
    """`GET /readyz`: this region can serve; else 503 with what is missing."""
    ready, missing = edge.backend.ready()
    if not ready:
        raise ProblemError("not_ready", "; ".join(missing) or "The region is starting", extra={"missing": missing})
    return json_reply({"status": "ready", "region": edge.backend.region}, region=edge.backend.region)


async def create_board(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/boards`: 201 when it was created, 200 when it was there with the same rules."""
    claims = edge.admitted(request, _OPERATOR, None)
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _BOARD_FIELDS, ("board", "policy"))
    board_id = check_board_id(document["board"])
    claims.require(_OPERATOR, game_of(board_id))
    home = None if document.get("home") is None else _name(document, "home")
    # null means the default, as if the field had been left out.
    settings = {field: document[field] for field in _RULES if document.get(field) is not None}
    if "max_value" in settings:
        decimals = settings.get("decimals", 0)
        settings["max_value"] = parse_value(settings["max_value"], decimals if decimals in range(10) else 0, "max_value")
    rules = make_rules(settings.pop("policy", ""), **settings)
    info, created = await edge.backend.create_board(board_id, rules, home, subject=claims.sub)
    return json_reply(describe(info), status=201 if created else 200, region=edge.backend.region)


async def failover(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/failover`."""
    claims = edge.admitted(request, _OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _FAILOVER_FIELDS, ("to",))
    named = [field for field in ("shard", "board", "from") if document.get(field) is not None]
    if len(named) != 1:
        raise ProblemError("invalid", "Say what is to move", field="shard", allowed="exactly one of shard, board and from")
    what = check_board_id(document["board"]) if named == ["board"] else _name(document, named[0])
    if named == ["board"]:
        edge.known_board(what)
    force = document.get("force", False)
    if not isinstance(force, bool):
        raise ProblemError("invalid", "force must be true or false", field="force", allowed="true or false")
    wanted = FailoverRequest(
        to=_name(document, "to"),
        shard=what if named == ["shard"] else None,
        board=what if named == ["board"] else None,
        from_region=what if named == ["from"] else None,
        force=force,
        expect_epoch=_whole(document, "expect_epoch", 0, 2**53),
    )
    return json_reply(await edge.backend.failover(wanted, subject=claims.sub), region=edge.backend.region)


async def readmit(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/regions/{name}/readmit`; the body is empty, or an empty object."""
    claims = edge.admitted(request, _OPERATOR, "*")
    read_query(request, ())
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        check_fields(await read_object(request, edge.limits.max_body_bytes), (), ())
    name = _name(request.path_params, "name")
    return json_reply(await edge.backend.readmit(name, subject=claims.sub), region=edge.backend.region)


async def set_link(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/links`."""
    claims = edge.admitted(request, _OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _LINK_FIELDS, ("peer", "direction", "mode"))
    direction, mode = document["direction"], document["mode"]
    if direction not in ("in", "out", "both"):
        raise ProblemError("invalid", "direction is seen from this region", field="direction", allowed="in, out or both")
    if mode not in ("drop", "delay", "clear"):
        raise ProblemError("invalid", "There is no such mode", field="mode", allowed="drop, delay or clear")
    delay_ms = _whole(document, "delay_ms", 1, _DELAY_MAX_MS)
    if (delay_ms is not None) != (mode == "delay"):
        raise ProblemError(
            "invalid", "delay_ms and mode delay go together", field="delay_ms", allowed="a number of ms for mode delay, else left out"
        )
    wanted = LinkRequest(
        peer=_name(document, "peer"),
        direction=direction,
        mode=mode,
        delay_ms=delay_ms or 0,
        for_ms=_whole(document, "for_ms", 1, _FAULT_MAX_MS),
    )
    return json_reply(await edge.backend.set_link(wanted, subject=claims.sub), region=edge.backend.region)


def _name(document: dict[str, Any], field: str) -> str:
    value = document[field]
    # `type`, not isinstance: the decoder keeps the digits of a fraction in a subclass of str.
    if type(value) is not str or not 0 < len(value) <= _NAME_CHARS or not value.isprintable():
        raise ProblemError("invalid", f"{field} must be a name", field=field, allowed=f"printable text of 1 to {_NAME_CHARS} characters")
    return value


def _whole(document: dict[str, Any], field: str, low: int, high: int) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise ProblemError("invalid", f"{field} must be a whole number", field=field, allowed=f"a whole number from {low} to {high}")
    return value
