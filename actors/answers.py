"""Bodies of answers, the same bytes in every region: a pure function of (board, generation, question).

A cursor is opaque and stateless: position and generation, signed with the cluster's secret, so that the
same page carries the same cursor everywhere and nobody can forge one.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec

from actors.boards_view import BoardFold, Generation
from actors.messages import BadCursor, Nearby, NotRanked, Question, Rank, Ranks, Top
from boards.index import Placed
from boards.numbers import format_value
from boards.times import format_time

_encoder = msgspec.json.Encoder()


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page starts, and of what."""

    incarnation: str
    generation: int
    #: The page begins here, or ends before it when it goes `back`.
    offset: int
    back: bool


def seal_cursor(key: bytes, cursor: Cursor) -> str:
    """Sign and encode. URL-safe, without padding."""
    body = msgspec.msgpack.encode(cursor)
    tag = hmac.new(key, body, hashlib.sha256).digest()[:12]
    return base64.urlsafe_b64encode(tag + body).rstrip(b"=").decode()


def open_cursor(key: bytes, text: str) -> Cursor:
    """Check and decode. Raises BadCursor for anything that `seal_cursor` under this key did not write."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if hmac.compare_digest(raw[:12], hmac.new(key, raw[12:], hashlib.sha256).digest()[:12]):
            return msgspec.msgpack.decode(raw[12:], type=Cursor)
    except (ValueError, msgspec.MsgspecError):
        pass
    raise BadCursor("the cursor is not one of ours; start again without it", field="cursor", allowed="a cursor from an earlier answer")


def answer(board: BoardFold, generation: Generation, question: Question, key: bytes) -> bytes:
    """The JSON body. Raises NotRanked, BadCursor."""
    view = generation.view
    body = envelope(board, generation)
    match question:
        case Top(limit=limit, cursor=text):
            first, last = _bounds(board, generation, key, text, limit)
            body["entries"] = _entries(board, view.page(first, last - first))
            body["limit"] = limit
            body["next"] = _link(board, generation, key, last, back=False) if last < view.total else None
            body["previous"] = _link(board, generation, key, first, back=True) if first > 0 else None
            expires = generation.published_ms + board.info.rules.retention_ms
            body["cursors_valid_until"] = format_time(expires)
        case Rank(player_id=player):
            placed = view.place(player)
            if placed is None:
                raise NotRanked(f"{player} has no active row on {board.info.board_id} in s{generation.number}")
            body["player_id"], body["entries"] = player, _entries(board, [placed])
        case Nearby(player_id=player, window=window):
            rows = view.window(player, window)
            if not rows:
                raise NotRanked(f"{player} has no active row on {board.info.board_id} in s{generation.number}")
            body["player_id"], body["window"], body["entries"] = player, window, _entries(board, rows)
        case Ranks(players=players, among=among):
            listed = list(dict.fromkeys(players))
            found = view.subset(listed) if among == "listed" else [p for p in view.places(listed) if p is not None]
            if among == "board":
                found = sorted(found, key=lambda p: p.position)
            present = {p.player_id for p in found}
            body["among"], body["entries"] = among, _entries(board, found)
            body["absent"] = [p for p in listed if p not in present]
    return _encoder.encode(body)


def envelope(board: BoardFold, generation: Generation) -> dict[str, Any]:
    """What every answer names: generation, boundaries, checksum, and that it is complete and exact."""
    return {
        "board": board.info.board_id,
        "generation": f"s{generation.number}",
        "epoch": generation.epoch,
        "published_at": format_time(generation.published_ms),
        "boundaries": {board.info.shard: f"{generation.epoch}-{generation.boundary}"},
        "complete": True,
        "exact": True,
        "total": generation.count,
        "checksum": f"{generation.checksum:016x}",
    }


def _entries(board: BoardFold, placed: Sequence[Placed]) -> list[dict[str, Any]]:
    decimals = board.info.rules.decimals
    return [
        {
            "position": p.position,
            "rank": p.rank,
            "player_id": p.player_id,
            "value": format_value(p.value, decimals),
            "achieved_at": format_time(p.achieved_ms),
            "version": p.version,
        }
        for p in placed
    ]


def _bounds(board: BoardFold, generation: Generation, key: bytes, text: str | None, limit: int) -> tuple[int, int]:
    """First position (from 0) of a page and the one after its last; pages there and back never overlap, whatever their limits."""
    if text is None:
        return 0, limit
    cursor = open_cursor(key, text)
    if (cursor.incarnation, cursor.generation) != (board.info.incarnation, generation.number):
        raise BadCursor(
            "the cursor is of another board or generation", field="cursor", allowed="a cursor from an answer of this generation"
        )
    if cursor.back:
        return max(0, cursor.offset - limit), cursor.offset
    return cursor.offset, cursor.offset + limit


def _link(board: BoardFold, generation: Generation, key: bytes, offset: int, *, back: bool) -> str:
    return seal_cursor(key, Cursor(board.info.incarnation, generation.number, offset, back))
