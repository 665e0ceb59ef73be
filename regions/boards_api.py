"""Boards as a whole over HTTP: list, describe, create, remove, spread anew."""

from bisect import bisect_right
from typing import Any

import msgspec
from starlette.requests import Request

from actors.messages import BoardInfo
from boards.errors import InvalidInput
from boards.ids import check_board_id
from boards.numbers import format_value, parse_value
from boards.policies import make_rules
from config.placing import read_wish
from regions.answering import CHECKED, PRIVATE, Edge, Prepared, Reply, content_hash, game_of, json_reply
from regions.board_orders import layout_map
from regions.problems import ProblemError
from regions.read_api import read_whole
from regions.submit_api import check_fields, read_object, read_query
from regions.tokens import READERS, Scope

_OPERATOR: tuple[Scope, ...] = ("operator",)
#: Boards on a page of the list.
PAGE_DEFAULT = PAGE_MAX = 1000
#: What is shown of a board's state until seasons exist.
_STATE = "open"
_NAME_CHARS = 128

_RULES = (
    "policy", "direction", "ties", "ranking", "decimals", "max_value", "max_age_ms", "visibility", "publish_interval_ms", "retention_ms"
)  # fmt: skip
_BOARD_FIELDS = ("board", "home", "shards", "secondary", *_RULES)


def describe(board: BoardInfo) -> dict[str, Any]:
    """A board as clients see it."""
    rules, layout = board.rules, board.layout_in_effect
    return {
        "board": board.board_id,
        "policy": rules.policy,
        "direction": rules.direction,
        "secondary": None if rules.secondary is None else {"direction": rules.secondary},
        "ties": rules.ties,
        "ranking": rules.ranking,
        "decimals": rules.decimals,
        "visibility": rules.visibility,
        "state": _STATE,
        "home": board.home,
        "shard": layout.lead,
        "slices": len(layout.shards),
        "shards": list(layout.shards),
        "layout": layout.number,
        "moving_to": None if board.moving is None else layout_map(board.moving),
        "total": board.count,
        "generation": f"s{board.generation}",
        "incarnation": board.incarnation,
        "max_value": None if rules.max_value is None else format_value(rules.max_value, rules.decimals),
        "max_age_ms": rules.max_age_ms,
        "publish_interval_ms": rules.publish_interval_ms,
        "retention_ms": rules.retention_ms,
        "rule_version": rules.rule_version,
    }


async def board(edge: Edge, request: Request, board_id: str) -> Reply:
    """`GET /v1/boards/{board}`."""
    info = edge.readable_board(request, board_id)
    read_query(request, ())
    return _described(edge, request, describe(info), public=info.rules.visibility == "public")


async def boards(edge: Edge, request: Request) -> Reply:
    """`GET /v1/boards`: the public ones, and those of the token's games, in the order of their ids, page by page.

    `next` is the cursor of the page that follows. A list is no generation: a board made meanwhile is on its page or not, none comes twice.
    """
    claims = edge.claims_if_any(request)
    query = read_query(request, ("limit", "cursor"))
    limit = read_whole(query, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
    after = query.get("cursor")
    if after is not None:
        try:
            check_board_id(after)
        except InvalidInput as exc:
            raise ProblemError("bad_cursor", "The cursor is none of this list", field="cursor", allowed="the next of an answer") from exc
    edge.check_boards_known()
    known = {info.board_id: info for info in edge.backend.boards()}
    ids = sorted(known)
    may = claims is not None and claims.scope in READERS
    shown: list[dict[str, Any]] = []
    last: str | None = None
    for board_id in ids[bisect_right(ids, after) if after is not None else 0 :]:
        info = known[board_id]
        if info.rules.visibility == "public" or (may and claims is not None and claims.allows_game(game_of(board_id))):
            if len(shown) == limit:
                last = shown[-1]["board"]
                break
            shown.append(describe(info))
    return _described(edge, request, {"boards": shown, "next": last}, public=claims is None, cors=False)


def _described(edge: Edge, request: Request, document: dict[str, Any], *, public: bool, cors: bool = True) -> Reply:
    body = msgspec.json.encode(document)
    cache_control = CHECKED if public else PRIVATE
    prepared = Prepared(body, etag_core=content_hash(body), cache_control=cache_control, cors=public and cors, region=edge.backend.region)
    return prepared.reply(if_none_match=_header(request, "if-none-match"), accept_encoding=_header(request, "accept-encoding"))


def _header(request: Request, name: str) -> bytes | None:
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")


async def create(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/boards`: 201 when it was created, 200 when it was there with the same rules."""
    claims = edge.admitted(request, _OPERATOR, None)
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, _BOARD_FIELDS, ("board", "policy"))
    board_id = check_board_id(document["board"])
    claims.require(_OPERATOR, game_of(board_id))
    home = None if document.get("home") is None else read_name(document, "home")
    shards = None if document.get("shards") is None else read_wish(document["shards"])
    # null means the default, as if the field had been left out.
    settings = {field: document[field] for field in _RULES if document.get(field) is not None}
    if document.get("secondary") is not None:
        settings["secondary"] = _secondary(document["secondary"])
    if "max_value" in settings:
        decimals = settings.get("decimals", 0)
        settings["max_value"] = parse_value(settings["max_value"], decimals if decimals in range(10) else 0, "max_value")
    rules = make_rules(settings.pop("policy", ""), **settings)
    info, created = await edge.backend.create_board(board_id, rules, home, shards, subject=claims.sub)
    return json_reply(describe(info), status=201 if created else 200, region=edge.backend.region)


def _secondary(raw: Any) -> str:
    direction = raw.get("direction") if isinstance(raw, dict) and len(raw) == 1 else None
    if direction not in ("higher", "lower"):
        raise ProblemError(
            "bad_rule", "secondary says which way the second column counts", field="secondary",
            allowed='{"direction": "higher"} or {"direction": "lower"}, or left out',
        )  # fmt: skip
    return str(direction)


async def remove(edge: Edge, request: Request, board_id: str) -> Reply:
    """`DELETE /v1/admin/boards/{board}`: 200 once this region no longer shows it."""
    subject = _operator_of(edge, request, board_id)
    return json_reply(await edge.backend.remove_board(board_id, subject=subject), region=edge.backend.region)


async def relocate(edge: Edge, request: Request, board_id: str) -> Reply:
    """`POST /v1/admin/boards/{board}/relocate`: 202 with the layout it goes to, 200 when it is there."""
    subject = _operator_of(edge, request, board_id)
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, ("shards",), ("shards",))
    told = await edge.backend.relocate(board_id, read_wish(document["shards"]), subject=subject)
    return json_reply(told, status=202 if told["moving"] else 200, region=edge.backend.region)


async def relocation(edge: Edge, request: Request, board_id: str) -> Reply:
    """`GET /v1/admin/boards/{board}/relocate`: how far it is."""
    _operator_of(edge, request, board_id)
    return json_reply(await edge.backend.relocation(board_id), region=edge.backend.region)


async def abort_relocation(edge: Edge, request: Request, board_id: str) -> Reply:
    """`DELETE /v1/admin/boards/{board}/relocate`."""
    subject = _operator_of(edge, request, board_id)
    return json_reply(await edge.backend.abort_relocation(board_id, subject=subject), region=edge.backend.region)


def _operator_of(edge: Edge, request: Request, board_id: str) -> str:
    """Subject of a token that may order something about this board, which is known here. Raises for all others."""
    check_board_id(board_id)
    claims = edge.admitted(request, _OPERATOR, game_of(board_id))
    read_query(request, ())
    edge.known_board(board_id)
    return claims.sub


def read_name(document: dict[str, Any], field: str) -> str:
    """Printable text of a body or path."""
    value = document[field]
    # `type`, not isinstance: the decoder keeps the digits of a fraction in a subclass of str.
    if type(value) is not str or not 0 < len(value) <= _NAME_CHARS or not value.isprintable():
        raise ProblemError("invalid", f"{field} must be a name", field=field, allowed=f"printable text of 1 to {_NAME_CHARS} characters")
    return value
