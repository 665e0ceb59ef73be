"""Bodies of answers, the same bytes in every region: a pure function of (board, generation, question).

A cursor is opaque and stateless: the key of the row at the edge of a page, and its generation, signed with the cluster's
secret, so that the same page carries the same cursor everywhere and nobody can forge one.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec

from actors.generations_view import BoardSeries, Generation
from actors.messages import BadCursor, BadParameter, Nearby, NotRanked, Percentile, Question, Rank, Ranks, Top
from boards.histogram import Histogram
from boards.model import BoardRules
from boards.numbers import format_value
from boards.times import format_time
from boards.views import Key, Placed

_encoder = msgspec.json.Encoder()

#: So many players are looked up in one vectorised call; fewer cost less one by one.
TOGETHER_FROM = 4


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Which row a page begins behind, or ends before when it goes `back`, and of what."""

    incarnation: str
    generation: int
    value: int
    second: int
    tie_ms: int
    player_id: str
    back: bool

    @property
    def key(self) -> Key:
        """The row's full key."""
        return Key(self.value, self.second, self.tie_ms, self.player_id)


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


def check_cursor(board: BoardSeries, cursor: Cursor, generation: int) -> None:
    """Raises BadCursor unless the cursor is of this life of this board, and of that generation."""
    if (cursor.incarnation, cursor.generation) != (board.incarnation, generation):
        raise BadCursor(
            "the cursor is of another board or generation", field="cursor", allowed="a cursor from an answer of this generation"
        )


def answer(board: BoardSeries, generation: Generation, question: Question, key: bytes) -> bytes:
    """The JSON body. Raises NotRanked, BadCursor."""
    view = generation.view
    body = envelope(board, generation)
    match question:
        case Top(limit=limit, cursor=text):
            rows = _page(board, generation, key, text, limit)
            body["entries"] = _entries(board, rows)
            body["limit"] = limit
            body |= _links(board, generation, key, rows)
        case Rank(player_id=player, mode="exact"):
            return _ranked(board, generation, _placed(board, generation, player))
        case Rank(player_id=player):
            placed = _placed(board, generation, player)
            body["player_id"] = player
            rank, error = _estimated(body, board, generation, placed)
            body["entries"] = [{"rank": rank, **_row(board, placed)}]
            body["error_bound"] = error
        case Percentile(player_id=player, mode=mode):
            placed = _placed(board, generation, player)
            body["player_id"] = player
            if mode == "exact":
                better = view.better_than(placed.value, placed.second) if board.rules.ranking == "dense" else placed.rank - 1
                body["percentile"] = percentile(better, view.total)
                body["entries"] = _entries(board, [placed])
            else:
                rank, error = _estimated(body, board, generation, placed)
                body["percentile"] = percentile(rank - 1, view.total)
                body["entries"] = [{"rank": rank, **_row(board, placed)}]
                body["error_bound"] = error
        case Nearby(player_id=player, window=window):
            rows = view.window(player, window)
            if not rows:
                raise _not_ranked(board, generation, player)
            body["player_id"], body["window"], body["entries"] = player, window, _entries(board, rows)
            body |= _links(board, generation, key, rows)
        case Ranks(players=players, among=among):
            listed = list(dict.fromkeys(players))
            found = view.subset(listed) if among == "listed" else [p for p in view.places(listed) if p is not None]
            if among == "board":
                found = sorted(found, key=lambda p: p.position)
            present = {p.player_id for p in found}
            body["among"], body["entries"] = among, _entries(board, found)
            body["absent"] = [p for p in listed if p not in present]
    return _encoder.encode(body)


def ranks(board: BoardSeries, generation: Generation, players: Sequence[str]) -> list[bytes | NotRanked]:
    """What `answer` says to an exact `Rank` of each of the players, its error as a value; they are looked up together."""
    view = generation.view
    found = view.places(players) if len(players) >= TOGETHER_FROM else [view.place(player) for player in players]
    return [
        _not_ranked(board, generation, player) if placed is None else _ranked(board, generation, placed)
        for player, placed in zip(players, found, strict=True)
    ]


def _ranked(board: BoardSeries, generation: Generation, placed: Placed) -> bytes:
    """The body about one exact place. What is the same in all of a generation is encoded once."""
    head = generation.kept.get("head")
    if not isinstance(head, bytes):
        head = generation.kept["head"] = _encoder.encode(envelope(board, generation))[:-1] + b","
    return head + _encoder.encode({"player_id": placed.player_id, "entries": _entries(board, [placed])})[1:]


def envelope(board: BoardSeries, generation: Generation) -> dict[str, Any]:
    """What every answer names: generation, boundaries (one a slice), checksum, and that it is complete and exact."""
    return {
        "board": board.board_id,
        "generation": f"s{generation.number}",
        "pin": f"s{generation.number}@{board.incarnation}",
        "epoch": generation.epoch,
        "published_at": format_time(generation.published_ms),
        "boundaries": {shard: f"{at.epoch}-{at.offset}" for shard, at in generation.boundaries.items()},
        "complete": True,
        "exact": True,
        "total": generation.count,
        "checksum": f"{generation.checksum:016x}",
    }


def percentile(better: int, total: int) -> float:
    """Which share of all `total` players, in percent, a rank is at or better than, when `better` players have a better one.

    Who shares the rank counts as well, the player too: 100 for the first, 100 / total for the last alone in his place, never 0.
    Cut, not rounded, to four digits behind the point, so only the first rank has 100.
    """
    return (total - better) * 1_000_000 // total / 10_000


def _placed(board: BoardSeries, generation: Generation, player: str) -> Placed:
    placed = generation.view.place(player)
    if placed is None:
        raise _not_ranked(board, generation, player)
    return placed


def _not_ranked(board: BoardSeries, generation: Generation, player: str) -> NotRanked:
    return NotRanked(f"{player} has no active row on {board.board_id} in s{generation.number}")


def _estimated(body: dict[str, Any], board: BoardSeries, generation: Generation, placed: Placed) -> tuple[int, int]:
    """(estimated rank, by how many positions it may be wrong at most), and the label that says so. Raises BadParameter."""
    if board.rules.ranking == "dense":
        raise BadParameter(f"dense ranks, as of {board.board_id}, cannot be estimated", field="mode", allowed="exact")
    histogram = generation.kept.get("histogram")
    if not isinstance(histogram, Histogram):
        histogram = generation.kept["histogram"] = Histogram(generation.view)
    body["exact"], body["mode"] = False, "approximate"
    rank, error = histogram.estimate(placed.value, placed.second)
    if board.rules.ranking == "competition":
        return rank, error
    # Unique ranks lie behind all better scores and before all worse ones.
    first = max(1, rank - error)
    rank, error = histogram.estimate(*_next_worse(board.rules, placed))
    last = min(generation.count, rank - 1 + error)
    return (first + last) // 2, last - (first + last) // 2


def _next_worse(rules: BoardRules, placed: Placed) -> tuple[int, int]:
    """The score right behind a row's: as many players are better than it as are at least as good as the row."""
    if rules.secondary is not None:
        return placed.value, placed.second + (1 if rules.secondary == "lower" else -1)
    return placed.value + (1 if rules.direction == "lower" else -1), 0


def _entries(board: BoardSeries, placed: Sequence[Placed]) -> list[dict[str, Any]]:
    return [{"position": p.position, "rank": p.rank, **_row(board, p)} for p in placed]


def _row(board: BoardSeries, placed: Placed) -> dict[str, Any]:
    """What an entry says of a row, its places apart."""
    row = {"player_id": placed.player_id, "value": format_value(placed.value, board.rules.decimals)}
    if board.rules.secondary is not None:
        row["secondary"] = str(placed.second)
    return {**row, "achieved_at": format_time(placed.achieved_ms), "version": placed.version}


def _page(board: BoardSeries, generation: Generation, key: bytes, text: str | None, limit: int) -> list[Placed]:
    """The rows of a page; pages there and back never overlap, whatever their limits."""
    if text is None:
        return generation.view.after(None, limit)
    cursor = open_cursor(key, text)
    check_cursor(board, cursor, generation.number)
    return generation.view.before(cursor.key, limit) if cursor.back else generation.view.after(cursor.key, limit)


def _links(board: BoardSeries, generation: Generation, key: bytes, rows: Sequence[Placed]) -> dict[str, str | int | None]:
    """Where pages go on from these rows, and for how long at least after a newer generation has taken the place of this one."""
    more, earlier = bool(rows) and rows[-1].position < generation.view.total, bool(rows) and rows[0].position > 1
    return {
        "next": _link(board, generation, key, rows[-1], back=False) if more else None,
        "previous": _link(board, generation, key, rows[0], back=True) if earlier else None,
        "cursors_valid_ms": board.rules.retention_ms,
    }


def _link(board: BoardSeries, generation: Generation, key: bytes, edge: Placed, *, back: bool) -> str:
    return seal_cursor(key, Cursor(board.incarnation, generation.number, *edge.key, back))
