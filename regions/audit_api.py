"""Audit records over HTTP: what operators did, written by a shard's authority and read from this region's own journals."""

import re
from typing import Any

import msgspec
from starlette.requests import Request

from actors.auditing import BEGAN, DETAIL_BYTES, ENDED
from boards.numbers import NumberText
from boards.times import format_time
from regions.answering import Edge, Reply, json_reply
from regions.problems import ProblemError
from regions.submit_api import check_fields, read_object, read_query
from regions.tokens import Scope

OPERATOR: tuple[Scope, ...] = ("operator",)
LIMIT_DEFAULT, LIMIT_MAX = 100, 1000

_FIELDS = ("what", "detail", "shard", "unless_open")
#: Written by the service itself, together with what they tell of.
_RESERVED = "orphans."
_what = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*").fullmatch
_number = re.compile(r"[1-9][0-9]{0,5}").fullmatch
_WHAT_CHARS, _NAME_CHARS = 64, 128
#: A drill that dies keeps others waiting until this long after it began, at most.
_DRILL_MAX_MS = 86_400_000


async def write(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/audit`: 201 with the record's place, once it is committed."""
    claims = edge.admitted(request, OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _FIELDS, ("what",))
    what = document["what"]
    if type(what) is not str or len(what) > _WHAT_CHARS or not _what(what) or "." not in what or what.startswith(_RESERVED):
        raise ProblemError(
            "invalid",
            "what names a kind of record",
            field="what",
            allowed=f"words of a-z, 0-9 and _ joined by dots, such as {BEGAN}, at most {_WHAT_CHARS} characters, not {_RESERVED}*",
        )
    detail = _detail(document.get("detail"))
    _check_drill(what, detail, edge.backend.now_ms())
    unless_open = document.get("unless_open")
    if unless_open not in (None, "drill"):
        raise ProblemError("invalid", "unless_open names what must not be open", field="unless_open", allowed="drill, or left out")
    written = await edge.backend.audit(what, detail, shard_of(document), unless_open, subject=claims.sub)
    return json_reply({"what": what, "asked_by": claims.sub, "detail": detail, **written}, status=201, region=edge.backend.region)


async def read(edge: Edge, request: Request) -> Reply:
    """`GET /v1/admin/audit?what=&limit=&shard=`: committed records, the newest first; of all shards if none is named.

    `what` is a whole name, or the part in front of a dot. Reads the journals backwards: see `actors.auditing.read_back`.
    """
    edge.admitted(request, OPERATOR, "*")
    query = read_query(request, ("what", "limit", "shard"))
    what = query.get("what", "")
    if what and not (len(what) <= _WHAT_CHARS and _what(what)):
        raise ProblemError("bad_parameter", "what names a kind of record", field="what", allowed="a name such as drill or drill.began")
    limit = limit_of(query, LIMIT_DEFAULT, LIMIT_MAX)
    records = await edge.backend.audits(what, limit, query.get("shard"))
    for record in records:
        record["at"] = format_time(record.pop("at_ms"))
    return json_reply({"region": edge.backend.region, "records": records}, region=edge.backend.region)


def limit_of(query: dict[str, str], default: int, high: int) -> int:
    """The parameter `limit`, from 1 to `high`. Raises `ProblemError`."""
    text = query.get("limit")
    if text is None:
        return default
    if not _number(text) or int(text) > high:
        raise ProblemError("bad_parameter", "limit must be a whole number", field="limit", allowed=f"a whole number from 1 to {high}")
    return int(text)


def shard_of(document: dict[str, Any]) -> str | None:
    """The field `shard`, None if it is left out. Raises `ProblemError`."""
    return None if document.get("shard") is None else text_of(document, "shard", _NAME_CHARS)


def text_of(document: dict[str, Any], field: str, most: int) -> str:
    """A field of one line of text. Raises `ProblemError`."""
    value = document[field]
    if type(value) is not str or not value.strip() or len(value) > most or not value.isprintable():
        raise ProblemError("invalid", f"{field} must be text", field=field, allowed=f"printable text of 1 to {most} characters, not blank")
    return value


def _detail(raw: Any) -> dict[str, Any]:
    if raw is None:
        return {}
    try:
        detail = _plain(raw)
        fits = isinstance(detail, dict) and len(msgspec.json.encode(detail)) <= DETAIL_BYTES
    except (ValueError, UnicodeEncodeError, RecursionError, msgspec.MsgspecError):
        fits = False
    if not fits:
        raise ProblemError("invalid", "detail must be an object", field="detail", allowed=f"a JSON object of at most {DETAIL_BYTES} bytes")
    return dict(detail)


def _plain(value: Any) -> Any:
    """Fractions as the numbers that they are: here nothing is scaled. ValueError for one that JSON does not have."""
    if isinstance(value, NumberText):
        number = float(value)
        if number - number != 0:
            raise ValueError("no finite number")
        return number
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _check_drill(what: str, detail: dict[str, Any], now_ms: int) -> None:
    """What the gate of drills goes by must be there."""
    if what not in (BEGAN, ENDED):
        return
    name, until_ms = detail.get("id"), detail.get("until_ms")
    if type(name) is not str or not 0 < len(name) <= _NAME_CHARS:
        raise ProblemError(
            "invalid", "A drill has an id", field="detail.id", allowed=f"text of 1 to {_NAME_CHARS} characters, never used again"
        )
    if what == BEGAN and (type(until_ms) is not int or not 0 < until_ms <= now_ms + _DRILL_MAX_MS):
        raise ProblemError(
            "invalid",
            "A drill says until when it may last",
            field="detail.until_ms",
            allowed="Unix milliseconds, at most 24 hours from now",
        )
