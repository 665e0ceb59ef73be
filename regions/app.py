"""The public HTTP edge of a region: an ASGI app on a `regions.backend.Backend`.

Two layers. `EdgeApp` reads the path as it was sent, so that an id with a slash or a broken escape is a 422
with its field and not a router's 404, and answers the hot calls itself: plain reads (`regions.plain_reads`), and
events. All else, and the OpenAPI document of everything, is FastAPI's; what both layers answer has the same bytes.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from actors.messages import Unanswered
from boards.errors import InvalidInput
from boards.ids import check_board_id, check_player_id
from regions import admin_api, audit_api, boards_api, drill_api, orphans_api, problems, read_api, submit_api
from regions.answering import Edge, Headers, Reply, problem_reply
from regions.backend import Backend, Limits
from regions.boards_api import PAGE_DEFAULT, PAGE_MAX
from regions.friends import FriendsSource
from regions.friends_api import FriendsBoards
from regions.plain_reads import PlainReads
from regions.problems import ProblemError
from regions.read_api import TOP_DEFAULT, TOP_MAX, WINDOW_DEFAULT, WINDOW_MAX
from regions.tokens import TokenError, TokenVerifier

_log = logging.getLogger(__name__)

_BOARDS = b"/v1/boards/"
_HEX = frozenset(b"0123456789abcdefABCDEF")


def create_app(
    backend: Backend, *, verifier: TokenVerifier, limits: Limits | None = None, friends: FriendsSource | None = None
) -> "EdgeApp":
    """The ASGI app of a region's public edge. `EdgeApp.api` takes further routes."""
    return EdgeApp(Edge(backend=backend, verifier=verifier, limits=limits or Limits()), friends)


class EdgeApp:
    """The outer layer; see the module. Turns every error into a problem and leaves nothing to a server's own pages."""

    def __init__(self, edge: Edge, friends: FriendsSource | None = None) -> None:
        self._edge = edge
        self._plain = PlainReads(edge)
        self.api = make_api(edge, friends)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        #: FastAPI has answered already before it lets an error through.
        handed_on = False
        try:
            reply = await self._own(scope, receive)
            if reply is None:
                handed_on = True
                await self.api(scope, receive, send)
            else:
                await reply(scope, receive, send)
        except (ProblemError, TokenError, InvalidInput, Unanswered) as exc:
            await problem_of(self._edge, Request(scope, receive), exc)(scope, receive, send)
        except Exception as exc:
            _log.exception("error in %s %s", scope["method"], scope["path"])
            if not handed_on:
                await problem_of(self._edge, Request(scope, receive), exc)(scope, receive, send)

    def short(self, raw_path: bytes, query: bytes, headers: Headers) -> Reply | Coroutine[Any, Any, Reply] | None:
        """What ASGI would answer to a GET, or what will be it, if it is a plain read; None for all else, errors in the path among it."""
        try:
            segments = board_path(raw_path)
        except (ProblemError, InvalidInput):
            return None
        return self._plain.begin(segments, query, headers) if segments else None

    async def _own(self, scope: Scope, receive: Receive) -> Reply | None:
        """The answer to what this layer takes itself; None for all else. Raises whatever there is to say instead."""
        segments, method = board_path(scope.get("raw_path") or scope["path"].encode()), scope["method"]
        if not segments:
            return None
        if method == "GET":
            found = self._plain.begin(segments, scope["query_string"], scope["headers"])
            return found if found is None or isinstance(found, Reply) else await found
        if method == "OPTIONS":
            return self._preflight(segments[0])
        if method == "POST" and segments[1:] == ["events"]:
            return await submit_api.submit(self._edge, Request(scope, receive), segments[0])
        return None

    def _preflight(self, board_id: str) -> Reply:
        """Public boards may be read from any page; of others a page learns nothing."""
        headers: Headers = [(b"allow", b"GET, HEAD, POST, OPTIONS"), (b"vary", b"Origin, Access-Control-Request-Method")]
        if self._edge.is_public(board_id):
            headers += [
                (b"access-control-allow-origin", b"*"),
                (b"access-control-allow-methods", b"GET, HEAD"),
                (b"access-control-allow-headers", b"if-none-match"),
                (b"access-control-max-age", b"3600"),
            ]
        return Reply(204, headers)


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


def board_path(raw_path: bytes) -> list[str] | None:
    """The decoded segments below `/v1/boards/`, with the ids in them checked; None for any other path.

    Whatever follows `players/` or `friends/` is one player id, slashes included, so that the check can name the field.
    """
    path = raw_path.partition(b"?")[0]
    if not path.startswith(_BOARDS):
        return None
    board, *rest = path[len(_BOARDS) :].split(b"/")
    segments = [check_board_id(_decoded(board, "board"))]
    if rest[:1] in ([b"players"], [b"friends"]) and len(rest) > 1:
        return [*segments, rest[0].decode(), check_player_id(_decoded(b"/".join(rest[1:]), "player_id"))]
    return [*segments, *(_decoded(segment, "path") for segment in rest)]


def _decoded(segment: bytes, field: str) -> str:
    """Percent-decode strictly: each escape whole, and UTF-8 at the end. Raises `ProblemError`."""
    parts = segment.split(b"%")[1:]
    try:
        if all(len(part) >= 2 and part[0] in _HEX and part[1] in _HEX for part in parts):
            return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        pass
    raise ProblemError("bad_id", f"{field} in the path is not percent-encoded UTF-8", field=field, allowed="percent-encoded UTF-8")


def problem_of(edge: Edge, request: Request, exc: Exception) -> Reply:
    """The problem, readable for pages where the answer would have been: a GET on a public board."""
    board, cors = request.url.path.removeprefix("/v1/boards/").partition("/")[0], False
    if request.method == "GET" and request.url.path.startswith("/v1/boards/"):
        cors = edge.is_public(board)
    return problem_reply(exc, region=edge.backend.region, cors=cors)


def make_api(edge: Edge, friends: FriendsSource | None = None) -> FastAPI:
    """The inner layer: every route, documented. Parameters and bodies are checked by the handlers, not by FastAPI."""
    api = FastAPI(
        title="Laurel",
        version="1",
        description="Leaderboards in several regions. [All problems](/docs/problems).",
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
    )

    async def refused(request: Request, exc: Exception) -> Response:
        if isinstance(exc, HTTPException):
            code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code, "invalid")
            allowed = (exc.headers or {}).get("Allow")
            exc = ProblemError(code, problems.TABLE[code].title, allowed=allowed, headers={"allow": allowed} if allowed else None)
        return problem_of(edge, request, exc)

    for kind in (ProblemError, TokenError, InvalidInput, Unanswered, HTTPException, Exception):
        api.add_exception_handler(kind, refused)

    async def problems_page() -> Response:
        return PlainTextResponse(problems.markdown(), media_type="text/markdown")

    async def list_boards(request: Request) -> Response:
        return await boards_api.boards(edge, request)

    async def get_board(request: Request, board: str) -> Response:
        return await boards_api.board(edge, request, board)

    async def get_top(request: Request, board: str) -> Response:
        return await read_api.top(edge, request, board)

    async def get_player(request: Request, board: str, player: str) -> Response:
        return await read_api.player(edge, request, board, player)

    async def post_ranks(request: Request, board: str) -> Response:
        return await read_api.ranks(edge, request, board)

    friends_boards = FriendsBoards(edge, friends)

    async def get_friends(request: Request, board: str, player: str) -> Response:
        return await friends_boards.board(request, board, player)

    async def post_events(request: Request, board: str) -> Response:
        return await submit_api.submit(edge, request, board)

    def plain(handler: Callable[[Edge, Request], Awaitable[Reply]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await handler(edge, request)

        return handle

    def of_board(handler: Callable[[Edge, Request, str], Awaitable[Reply]]) -> Callable[[Request, str], Awaitable[Response]]:
        async def handle(request: Request, board: str) -> Response:
            return await handler(edge, request, board)

        return handle

    def by(handler: Callable[[Request], Awaitable[Reply]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await handler(request)

        return handle

    read = ("unknown_board", "missing_token", "bad_token", "expired_token", "wrong_scope", "foreign_game", "bad_id", "unknown_parameter")
    asked = (*read, "bad_parameter", "generation_gone", "not_visible_yet", "not_serving")
    change = (
        "missing_token",
        "bad_token",
        "expired_token",
        "wrong_scope",
        "bad_json",
        "too_large",
        "unsupported_media_type",
        "unknown_field",
    )

    _route(
        api,
        "GET",
        "/v1/boards",
        list_boards,
        "Boards that this token may read; the public ones without a token",
        (*read[1:4], "unknown_parameter", "bad_parameter", "bad_cursor", "not_serving"),
        query=_LIST,
    )
    _route(
        api, "GET", "/v1/boards/{board}", get_board, "One board: its rules, home, player count, newest generation", (*read, "not_serving")
    )
    _route(api, "GET", "/v1/boards/{board}/top", get_top, "Best players, page by page", (*asked, "bad_cursor"), query=(*_PAGE, *_PINS))
    _route(
        api, "GET", "/v1/boards/{board}/players/{player}", get_player, "One player: rank, or rank with neighbours",
        (*asked, "not_ranked"), query=(*_VIEW, *_PINS),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/boards/{board}/ranks", post_ranks, "Places of up to 1000 players", (*asked, *change[4:]), query=_PINS, body=_RANKS
    )
    _route(
        api, "GET", "/v1/boards/{board}/friends/{player}", get_friends, "A player and the player's friends, ranked among themselves",
        (*asked, "foreign_player", "friends_not_configured", "friends_invalid", "friends_unavailable"), query=(_PAGE[0], *_PINS),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/boards/{board}/events", post_events, "Submit 1 to 1000 events; one result each, in order",
        (*read, *change[4:], "no_events", "too_many_events", "conflict", *_NO_WRITES, "not_serving", "unknown"),
        query=_INCLUDE, body=_EVENTS,
    )  # fmt: skip
    _route(api, "GET", "/v1/status", plain(admin_api.status), "Roles, epochs, generations and lags of this region", change[:4])
    _route(api, "GET", "/healthz", plain(admin_api.healthz), "This process answers", ())
    _route(api, "GET", "/readyz", plain(admin_api.readyz), "This region can serve", ("not_ready",))
    _route(
        api, "POST", "/v1/admin/boards", plain(boards_api.create), "Create a board; 200 if it is there with the same rules",
        (*change, "bad_rule", "board_exists", "unknown_region", "not_serving"), body=_BOARD,
    )  # fmt: skip
    _route(
        api, "DELETE", "/v1/admin/boards/{board}", of_board(boards_api.remove), "Remove a board, for good, in all regions",
        (*read, "no_authority", "not_serving"),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/boards/{board}/relocate", of_board(boards_api.relocate), "Begin to move a board to other shards",
        (*read[:-1], *change[4:], "bad_rule", "relocation_refused", "no_authority"), body=_object(("shards",), shards=_SHARDS),
    )  # fmt: skip
    _route(
        api, "GET", "/v1/admin/boards/{board}/relocate", of_board(boards_api.relocation), "How far a board's move is",
        (*read, "no_authority"),
    )  # fmt: skip
    _route(
        api, "DELETE", "/v1/admin/boards/{board}/relocate", of_board(boards_api.abort_relocation), "Give a board's move up; it stays",
        (*read, "relocation_refused", "no_authority"),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/failover", plain(admin_api.failover), "Move authority over a shard, a board's shard, or all of a region",
        (*change, "unknown_board", "unknown_shard", "unknown_region", "epoch_moved", "failover_refused"), body=_FAILOVER,
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/regions/{name}/readmit", plain(admin_api.readmit), "Take back a region whose store has lost data, emptied",
        (*change, "unknown_region", "no_authority", "readmit_refused"),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/links", plain(admin_api.set_link), "Drop or delay what this region exchanges with a peer, for drills",
        (*change, "unknown_region", "unavailable"), body=_LINK,
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/audit", plain(audit_api.write), "Record what an operator did",
        (*change, "unknown_shard", "no_authority", "busy"), body=_AUDIT,
    )  # fmt: skip
    _route(
        api, "GET", "/v1/admin/audit", plain(audit_api.read), "What operators did, the newest first",
        (*change[:4], "unknown_parameter", "bad_parameter", "unknown_shard", "unavailable"), query=_AUDITS,
    )  # fmt: skip
    _route(
        api, "GET", "/v1/admin/orphans", plain(orphans_api.listed), "Entries of deposed authorities that this region keeps",
        (*change[:4], "unknown_parameter", "bad_parameter", "unknown_shard", "unavailable"), query=_ORPHANS,
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/orphans/resubmit", plain(orphans_api.resubmit), "Send this region's orphans through the write path again",
        (*change, "unknown_shard", "not_serving", "unavailable"), body=_object((), shard=_TEXT),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/orphans/sign-off", plain(orphans_api.sign_off), "Delete this region's orphans of an epoch, for good",
        (*change, "unknown_shard", "not_serving", "no_authority", "unavailable"), body=_SIGN_OFF,
    )  # fmt: skip
    drills = drill_api.Drills(edge)
    _route(
        api, "POST", "/v1/admin/drills", by(drills.begin), "Rehearse a failure on this cluster; without `yes`, only say what would be done",
        (*change, "unknown_shard", "drill_refused", "unavailable"), body=_DRILL,
    )  # fmt: skip
    _route(api, "GET", "/v1/admin/drills", by(drills.listed), "Drills that this gateway has run", (*change[:4], "unknown_parameter"))
    _route(
        api, "GET", "/v1/admin/drills/{drill}", by(drills.shown), "One drill: how far it is, and its report",
        (*change[:4], "unknown_parameter", "unknown_drill"),
    )  # fmt: skip
    _route(
        api, "POST", "/v1/admin/stall", plain(drill_api.stall), "Have this region's store answer nobody for a while, for drills",
        (*change, "unavailable"), body=_object(("for_ms",), for_ms=_WHOLE),
    )  # fmt: skip
    api.add_api_route("/docs/problems", problems_page, include_in_schema=False)
    return api


def _route(
    api: FastAPI,
    method: str,
    path: str,
    handler: Callable[..., Awaitable[Response]],
    summary: str,
    codes: tuple[str, ...],
    *,
    query: tuple[dict[str, Any], ...] = (),
    body: dict[str, Any] | None = None,
) -> None:
    extra: dict[str, Any] = {"parameters": list(query)} if query else {}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    name = f"{method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '')}"
    api.add_api_route(
        path, handler, methods=[method], summary=summary, name=name, operation_id=name, response_class=JSONResponse,
        responses=problems.responses(codes), openapi_extra=extra, response_model=None,
    )  # fmt: skip


def _parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _object(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


def _one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


_TEXT, _FLAG, _WHOLE = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
_TIME = {"type": "string", "format": "date-time"}
_NUMBER = {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "string", "pattern": r"^-?(0|[1-9]\d*)(\.\d+)?$"}]}
#: Why no authority takes a write.
_NO_WRITES = ("no_authority", "draining", "lagging", "no_lease", "hold", "moving", "moved")
#: How many shards, or which.
_SHARDS = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "array", "minItems": 1, "items": _TEXT}]}
_LIST = (
    _parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}, "Boards on the page"
    ),
    _parameter("cursor", _TEXT, "`next` of an earlier page"),
)  # fmt: skip
_PAGE = (
    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": TOP_MAX, "default": TOP_DEFAULT}, "Entries on the page"),
    _parameter("cursor", _TEXT, "`next` or `previous` of an earlier page; bound to its generation"),
)
_PINS = (
    _parameter(
        "generation",
        {"type": "string", "pattern": r"^s\d+(@[0-9A-Za-z_-]+)?$"},
        "Answer from this generation, `s17` or the `pin` of an answer; 410 when it is gone",
    ),
    _parameter(
        "at_least",
        {"type": "string", "pattern": r"^([a-z0-9-]+/\d+:)?\d+-\d+$"},
        "`<shard>:<epoch>-<offset>`; the shard may be left out on a board of one that never moved. Waits up to 1 s for such a generation",
    ),
)
_VIEW = (
    _parameter("view", {**_one_of("rank", "nearby", "percentile"), "default": "rank"}, "The player alone, with neighbours, or as a share"),
    _parameter(
        "mode", {**_one_of("exact", "approximate"), "default": "exact"}, "An estimate says so, with its bound; rank and percentile only"
    ),
    _parameter("window", {"type": "integer", "minimum": 0, "maximum": WINDOW_MAX, "default": WINDOW_DEFAULT}, "Neighbours on each side"),
)
_INCLUDE = (_parameter("include", _one_of("rank"), "Add each player's place as soon as a generation holds the event, at most 1 s"),)
_EVENT = _object(
    ("event_id", "player_id"), event_id=_TEXT, player_id=_TEXT, value=_NUMBER, delta=_NUMBER, secondary=_NUMBER, achieved_at=_TIME,
    submitted_at=_TIME,
)  # fmt: skip
_EVENTS = {"oneOf": [_object(("events",), events={"type": "array", "minItems": 1, "maxItems": 1000, "items": _EVENT}), _EVENT]}
_RANKS = _object(("players",), players={"type": "array", "minItems": 1, "maxItems": 1000, "items": _TEXT}, among=_one_of("board", "listed"))
_BOARD = _object(
    ("board", "policy"),
    board=_TEXT,
    policy=_one_of("best_score", "fastest_time", "cumulative", "latest"),
    direction=_one_of("higher", "lower"),
    ties=_one_of("achieved_at", "submitted_at", "player_id"),
    ranking=_one_of("unique", "competition", "dense"),
    decimals=_WHOLE,
    home=_TEXT,
    shards=_SHARDS,
    secondary=_object(("direction",), direction=_one_of("higher", "lower")),
    visibility=_one_of("public", "private"),
    publish_interval_ms=_WHOLE,
    retention_ms=_WHOLE,
    max_value=_NUMBER,
    max_age_ms=_WHOLE,
)
_FAILOVER = _object(
    ("to",), **{"from": _TEXT}, shard=_TEXT, board=_TEXT, to=_TEXT, force=_FLAG, expect_epoch=_WHOLE
)  # fmt: skip
_AUDIT = _object(("what",), what=_TEXT, detail={"type": "object"}, shard=_TEXT, unless_open=_one_of("drill"))
_SHARD = _parameter("shard", _TEXT, "Of this shard only")
_AUDITS = (
    _parameter("what", _TEXT, "A kind of record, such as `drill.began`, or all of `drill`"),
    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "Records at most"),
    _SHARD,
)
_ORPHANS = (
    _parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}, "Orphans of each shard at most; counts are of all"
    ),
    _SHARD,
)
_SIGN_OFF = _object(("shard", "epoch", "why"), shard=_TEXT, epoch=_WHOLE, why=_TEXT)
_DRILL = _object(("plan",), plan=_TEXT, shard=_TEXT, yes=_FLAG)
_LINK = _object(
    ("peer", "direction", "mode"),
    peer=_TEXT,
    direction=_one_of("in", "out", "both"),
    mode=_one_of("drop", "delay", "clear"),
    delay_ms=_WHOLE,
    for_ms=_WHOLE,
)
