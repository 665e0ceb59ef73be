"""Everything a request can be refused with: one table from code to status, title and definiteness.

The table renders the `application/problem+json` bodies, the responses in the OpenAPI document and the
page at `/docs/problems` (`markdown`), which is also where each problem's `type` points.

    ProblemError    raised at the edge; `code` is a key of `TABLE`
"""

from collections.abc import Iterable
from typing import Any

import msgspec

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True):
    """One row: what a code means. `definite` says that nothing was applied; only an indefinite one leaves it open."""

    code: str
    status: int
    title: str
    definite: bool = True
    retry_after_ms: int | None = None

    @property
    def type(self) -> str:
        """Relative reference to the documentation of this code."""
        return f"/docs/problems#{self.code}"


_ROWS = (
    # The envelope.
    Problem("bad_json", 400, "The body is not valid JSON"),
    Problem("incomplete_body", 400, "The connection ended before the body did"),
    Problem("missing_token", 401, "This call needs a bearer token"),
    Problem("bad_token", 401, "The token is malformed, of an unknown key, or its signature does not fit"),
    Problem("expired_token", 401, "The token has expired"),
    Problem("wrong_scope", 403, "The token's scope does not allow this call"),
    Problem("foreign_game", 403, "The token is not for this game"),
    Problem("foreign_player", 403, "The token is bound to another player"),
    Problem("not_found", 404, "No such path"),
    Problem("unknown_board", 404, "No such board"),
    Problem("unknown_season", 404, "No such season"),
    Problem("unknown_shard", 404, "No such shard"),
    Problem("unknown_drill", 404, "No such drill here"),
    Problem("unknown_region", 422, "No such region"),
    Problem("method_not_allowed", 405, "This path does not take this method"),
    Problem("too_large", 413, "The body is larger than this service reads"),
    Problem("unsupported_media_type", 415, "The body must be application/json, not compressed"),
    Problem("rate_limited", 429, "Too many requests", retry_after_ms=1000),
    # What is wrong in an envelope, a parameter or an event.
    Problem("no_events", 422, "The body holds no events"),
    Problem("too_many_events", 422, "The body holds more events than one request may carry"),
    Problem("not_an_object", 422, "A JSON object was expected here"),
    Problem("unknown_field", 422, "This field is not known"),
    Problem("wrong_field", 422, "This field is not for boards of this policy"),
    Problem("missing_field", 422, "A field is missing"),
    Problem("unknown_parameter", 422, "This query parameter is not known"),
    Problem("bad_parameter", 422, "A query parameter has a value that is not allowed"),
    Problem("bad_cursor", 422, "The cursor is not one of this board"),
    Problem("invalid", 422, "A field has a value that is not allowed"),
    Problem("bad_id", 422, "An id has a form that is not allowed"),
    Problem("bad_time", 422, "A time has a form that is not allowed"),
    Problem("bad_rule", 422, "A board cannot have this setting"),
    Problem("not_a_number", 422, "A number has a form that is not allowed"),
    Problem("too_precise", 422, "A number has more fraction digits than the board keeps"),
    Problem("out_of_range", 422, "A number is outside the allowed range"),
    Problem("overflow", 422, "The sum would leave the signed 64-bit range"),
    Problem("in_future", 422, "The time lies too far in the future"),
    Problem("too_old", 422, "The event is older than this board takes"),
    Problem("not_supported", 422, "This service does not do this yet"),
    # The state of things.
    Problem("friends_not_configured", 404, "There is no friends service here"),
    Problem("not_ranked", 404, "The player has no active row on this board"),
    Problem("conflict", 409, "The same event id was used before with other content"),
    Problem("board_exists", 409, "A board of this id exists with other rules"),
    Problem("relocation_refused", 409, "The board cannot be moved or removed now"),
    Problem("epoch_moved", 409, "The shard is in another epoch than expected"),
    Problem("failover_refused", 409, "Authority cannot be moved there now"),
    Problem("drill_refused", 409, "The cluster would not survive this drill now, or another is under way"),
    Problem("readmit_refused", 409, "The region cannot be readmitted now"),
    Problem("busy", 409, "Something else is under way", retry_after_ms=1000),
    Problem("generation_gone", 410, "This generation is no longer retained"),
    Problem("internal", 500, "An error inside the service", definite=False),
    Problem("friends_invalid", 502, "The friends service does not answer with a list of player ids"),
    Problem("friends_unavailable", 503, "The friends service does not answer", retry_after_ms=1000),
    Problem("no_authority", 503, "No authority takes writes for this board now", retry_after_ms=1000),
    Problem("draining", 503, "The authority is handing over", retry_after_ms=500),
    Problem("lagging", 503, "The authority is too far ahead of the other regions", retry_after_ms=1000),
    Problem("no_lease", 503, "The authority may not acknowledge alone now", retry_after_ms=100),
    Problem("hold", 503, "The board is on hold while its region is away", retry_after_ms=5000),
    Problem("moving", 503, "The board is about to live on other shards", retry_after_ms=500),
    Problem("moved", 503, "The board lives on other shards now, which this region has not heard of yet", retry_after_ms=500),
    Problem("unknown", 503, "No answer in time: retry with the same event ids", definite=False, retry_after_ms=500),
    Problem("unavailable", 503, "The service cannot answer now", retry_after_ms=1000),
    Problem("not_serving", 503, "This region is still reading its journal", retry_after_ms=500),
    Problem("not_ready", 503, "This region is not ready", retry_after_ms=1000),
    Problem("not_visible_yet", 503, "There is no such generation here yet", retry_after_ms=500),
)

#: Every code that this service says. A code is never given another meaning.
TABLE: dict[str, Problem] = {row.code: row for row in _ROWS}


class ProblemError(Exception):
    """A request is refused with `code`; `extra` members are added to the body as they are."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        allowed: str | None = None,
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.allowed = allowed
        self.headers = headers or {}
        self.extra = extra or {}


class Rendered(msgspec.Struct, frozen=True):
    """A problem ready to be sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def render(
    code: str,
    detail: str,
    *,
    field: str | None = None,
    allowed: str | None = None,
    definite: bool | None = None,
    retry_after_ms: int | None = None,
    fallback: str = "unavailable",
    extra: dict[str, Any] | None = None,
) -> Rendered:
    """Make the body and headers of a problem.

    A code that the table lacks keeps its name and takes the other columns of `fallback`. `definite` and
    `retry_after_ms` override the table's when the sender knows better.
    """
    row = TABLE.get(code)
    if row is None:
        row = msgspec.structs.replace(TABLE[fallback], code=code)
    retry = row.retry_after_ms if retry_after_ms is None or row.retry_after_ms is None else retry_after_ms
    body = {
        "type": row.type,
        "title": row.title,
        "status": row.status,
        "code": code,
        "detail": detail,
        "field": field or None,
        "allowed": allowed or None,
        "definite": row.definite if definite is None else definite,
        "retry_after_ms": retry,
        **(extra or {}),
    }
    headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
    if retry is not None:
        headers["retry-after"] = str(max(1, -(-retry // 1000)))
    if row.status == 401:
        headers["www-authenticate"] = f'Bearer error="{"invalid_request" if code == "missing_token" else "invalid_token"}"'
    return Rendered(row.status, headers, msgspec.json.encode(body))


def responses(codes: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses for these codes, one for each status."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        row = TABLE[code]
        entry = found.setdefault(row.status, {"description": "", "content": {MEDIA_TYPE: {"schema": SCHEMA}}})
        entry["description"] += f"{'; ' if entry['description'] else ''}`{code}`: {row.title}"
    return found


def markdown() -> str:
    """The table as a page."""
    lines = [
        "# Problems",
        "",
        "`definite`: yes means that nothing was applied; no means that it may have been, so retry with the same event ids.",
        "",
        "| code | status | meaning | definite | retry after |",
        "|---|---|---|---|---|",
    ]
    for row in _ROWS:
        retry = f"{row.retry_after_ms} ms" if row.retry_after_ms else ""
        lines.append(f'| <a id="{row.code}"></a>`{row.code}` | {row.status} | {row.title} | {"yes" if row.definite else "no"} | {retry} |')
    return "\n".join(lines) + "\n"


def _nullable(kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": kind}, {"type": "null"}]}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "code", "detail", "definite"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": list(TABLE)},
        "detail": {"type": "string"},
        "field": _nullable("string"),
        "allowed": _nullable("string"),
        "definite": {"type": "boolean"},
        "retry_after_ms": _nullable("integer"),
    },
}
