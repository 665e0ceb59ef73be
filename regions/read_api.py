"""Reading boards: which generation and which question a request means, and how the answer may be kept.

A request pins a generation by the `pin` of an answer (`generation=s17@<incarnation>`) or by a cursor, which is bound to one; its
answer then never changes. A number alone (`generation=s17`) is of the present life of the board. Everything else is about the newest
generation, or one that includes `at_least`.
"""

import re
from typing import NamedTuple

from starlette.requests import Request

from actors.messages import Ask, BoardInfo, Mode, Nearby, Percentile, Question, Rank, Ranks, Top
from boards.ids import check_player_id
from journal.ports import Position
from regions.answering import Edge, Reply, prepare
from regions.problems import ProblemError
from regions.submit_api import check_fields, read_object, read_query

_PINS = ("generation", "at_least")
TOP_DEFAULT, TOP_MAX = 100, 1000
WINDOW_DEFAULT, WINDOW_MAX = 5, 100
#: A longer cursor is none of ours.
_CURSOR_CHARS = 2048

_generation = re.compile(r"s(0|[1-9][0-9]{0,17})(?:@([0-9A-Za-z_-]{1,64}))?").fullmatch
_position = re.compile(r"(?:([a-z0-9-]{1,32}/[0-9]{1,4}):)?(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})").fullmatch
_count = re.compile(r"0|[1-9][0-9]{0,5}").fullmatch


async def top(edge: Edge, request: Request, board_id: str) -> Reply:
    """`GET /v1/boards/{board}/top`."""
    board = edge.readable_board(request, board_id)
    query = read_query(request, ("limit", "cursor", *_PINS))
    cursor = query.get("cursor")
    if cursor is not None and not (0 < len(cursor) <= _CURSOR_CHARS and cursor.isascii() and cursor.isprintable()):
        raise ProblemError("bad_cursor", "The cursor is not one of this board", field="cursor", allowed="the next or previous of an answer")
    question = Top(limit=read_limit(query), cursor=cursor)
    return await _answer(edge, request, board, question, query, pinned=cursor is not None)


async def player(edge: Edge, request: Request, board_id: str, player_id: str) -> Reply:
    """`GET /v1/boards/{board}/players/{player}`."""
    board = edge.readable_board(request, board_id)
    check_player_id(player_id)
    query = read_query(request, ("view", "window", "mode", *_PINS))
    view = query.get("view", "rank")
    window = read_whole(query, "window", WINDOW_DEFAULT, 0, WINDOW_MAX)
    if "window" in query and view in ("rank", "percentile"):
        raise ProblemError("bad_parameter", f"The view {view} has no neighbours", field="window", allowed="only with the view nearby")
    mode = _mode(query, view)
    if view == "rank":
        question: Question = Rank(player_id, mode)
    elif view == "percentile":
        question = Percentile(player_id, mode)
    elif view == "nearby":
        question = Nearby(player_id, window)
    else:
        raise ProblemError("bad_parameter", "There is no such view", field="view", allowed="rank, percentile or nearby")
    return await _answer(edge, request, board, question, query)


def _mode(query: dict[str, str], view: str) -> Mode:
    """Exact unless the caller asks for less; neighbours are always exact."""
    mode = query.get("mode", "exact")
    if mode == "exact":
        return "exact"
    if mode == "approximate" and view != "nearby":
        return "approximate"
    detail, allowed = "There is no such mode", "exact or approximate"
    if mode == "approximate":
        detail, allowed = "Neighbours are exact", "exact, or the views rank and percentile"
    raise ProblemError("bad_parameter", detail, field="mode", allowed=allowed)


async def ranks(edge: Edge, request: Request, board_id: str) -> Reply:
    """`POST /v1/boards/{board}/ranks`; a player who is listed twice counts once."""
    board = edge.readable_board(request, board_id)
    query = read_query(request, _PINS)
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, ("players", "among"), ("players",))
    players, among, most = document["players"], document.get("among", "board"), edge.limits.max_players
    if not isinstance(players, list) or not 1 <= len(players) <= most:
        raise ProblemError("invalid", "players must be a list of player ids", field="players", allowed=f"a list of 1 to {most} player ids")
    if among not in ("board", "listed"):
        raise ProblemError("invalid", "among says whom the players are ranked against", field="among", allowed="board or listed")
    for index, player_id in enumerate(players):
        check_player_id(player_id, f"players[{index}]")
    question = Ranks(list(dict.fromkeys(players)), among)
    return await _answer(edge, request, board, question, query, conditional=False)


async def _answer(
    edge: Edge,
    request: Request,
    board: BoardInfo,
    question: Question,
    query: dict[str, str],
    *,
    pinned: bool = False,
    conditional: bool = True,
) -> Reply:
    """Ask, and wrap what comes back. `pinned`: the question itself names a generation of one life."""
    pins = read_pins(query, board)
    ask = Ask(board_id=board.board_id, question=question, wait_ms=edge.limits.wait_ms, **pins._asdict())
    answer = await edge.backend.ask(ask)
    public = board.rules.visibility == "public"
    pinned = (pinned or pins.incarnation != "") and conditional
    prepared = prepare(answer, question, public=public, pinned=pinned, region=edge.backend.region)
    return prepared.reply(
        if_none_match=_header(request, "if-none-match") if conditional else None,
        accept_encoding=_header(request, "accept-encoding"),
        age_ms=edge.backend.now_ms() - answer.published_ms,
    )


class Pins(NamedTuple):
    """Which generation is meant, as in `Ask`."""

    generation: int | None = None
    incarnation: str = ""
    at_least: Position | None = None
    at_shard: str | None = None


def read_pins(query: dict[str, str], board: BoardInfo) -> Pins:
    """Which generation is meant: `generation`, or `at_least` and the shard it is a position of, which only sharded boards need.

    Raises `ProblemError`.
    """
    generation, at_least = query.get("generation"), query.get("at_least")
    if generation is not None and at_least is not None:
        raise ProblemError("bad_parameter", "Both pin the answer", field="at_least", allowed="only one of generation and at_least")
    if generation is not None:
        match = _generation(generation)
        if match is None:
            raise ProblemError("bad_parameter", "This is no generation", field="generation", allowed="s17, or the pin of an answer")
        return Pins(generation=int(match[1]), incarnation=match[2] or "")
    if at_least is not None:
        match, lead = _position(at_least), board.layout_in_effect.lead
        sharded = len(board.layout_in_effect.shards) > 1
        if match is None or (sharded and match[1] is None):
            form = f"<shard>:<epoch>-<offset>, such as {lead}:7-1042" if sharded else "<epoch>-<offset>, such as 7-1042"
            raise ProblemError("bad_parameter", "This is no position of this board", field="at_least", allowed=form)
        return Pins(at_least=Position(int(match[2]), int(match[3])), at_shard=match[1])
    return Pins()


def read_limit(query: dict[str, str]) -> int:
    """How many entries are wanted. Raises `ProblemError`."""
    return read_whole(query, "limit", TOP_DEFAULT, 1, TOP_MAX)


def read_whole(query: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query. Raises `ProblemError`."""
    text = query.get(name)
    if text is None:
        return default
    if _count(text) is None or not low <= int(text) <= high:
        raise ProblemError("bad_parameter", f"{name} is not in its range", field=name, allowed=f"a whole number from {low} to {high}")
    return int(text)


def _header(request: Request, name: str) -> bytes | None:
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")
