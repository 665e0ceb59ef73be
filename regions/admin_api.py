"""Operating a region over HTTP: status and probes, moving authority, the link fault switch."""

from typing import Any

from starlette.requests import Request

from boards.ids import check_board_id
from regions.answering import Edge, Reply, json_reply
from regions.backend import FailoverRequest, LinkRequest
from regions.boards_api import read_name
from regions.problems import ProblemError
from regions.submit_api import check_fields, read_object, read_query
from regions.tokens import Scope

_OPERATOR: tuple[Scope, ...] = ("operator",)
_STATUS: tuple[Scope, ...] = ("operator", "moderator", "region")

_FAILOVER_FIELDS = ("shard", "board", "from", "to", "force", "expect_epoch")
_LINK_FIELDS = ("peer", "direction", "mode", "delay_ms", "for_ms")

#: Longest delay and longest life of a link fault.
_DELAY_MAX_MS, _FAULT_MAX_MS = 60_000, 86_400_000


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


async def failover(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/failover`."""
    claims = edge.admitted(request, _OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _FAILOVER_FIELDS, ("to",))
    named = [field for field in ("shard", "board", "from") if document.get(field) is not None]
    if len(named) != 1:
        raise ProblemError("invalid", "Say what is to move", field="shard", allowed="exactly one of shard, board and from")
    what = check_board_id(document["board"]) if named == ["board"] else read_name(document, named[0])
    if named == ["board"]:
        edge.known_board(what)
    force = document.get("force", False)
    if not isinstance(force, bool):
        raise ProblemError("invalid", "force must be true or false", field="force", allowed="true or false")
    wanted = FailoverRequest(
        to=read_name(document, "to"),
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
    name = read_name(request.path_params, "name")
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
        peer=read_name(document, "peer"),
        direction=direction,
        mode=mode,
        delay_ms=delay_ms or 0,
        for_ms=_whole(document, "for_ms", 1, _FAULT_MAX_MS),
    )
    return json_reply(await edge.backend.set_link(wanted, subject=claims.sub), region=edge.backend.region)


def _whole(document: dict[str, Any], field: str, low: int, high: int) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise ProblemError("invalid", f"{field} must be a whole number", field=field, allowed=f"a whole number from {low} to {high}")
    return value
