"""`GET /v1/boards/{board}/friends/{player}`: the player and the friends, ranked among themselves.

The eligible set comes first and is ranked whole; only then is the answer cut. It holds rows of the board and nothing else: not who is
absent, nor how long any list is, so neither its body nor its validator is made from the list. Never kept by a cache, here or outside.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from actors.messages import Answer, Ask, BoardInfo, NotServing, Ranks
from boards.ids import check_player_id
from boards.model import Ranking
from regions.answering import PRIVATE, Edge, Prepared, Reply, content_hash, game_of
from regions.friends import FriendsNotConfigured, FriendsSource
from regions.problems import ProblemError
from regions.read_api import read_limit, read_pins
from regions.submit_api import read_query
from regions.tokens import READERS, Claims

#: Players of one question.
CHUNK = 1000
#: What is taken over from a replica's answer, and in this order; whatever else one may come to say of those asked about is left out.
_ENVELOPE = ("board", "generation", "pin", "epoch", "published_at", "boundaries", "complete", "exact", "total", "checksum")

Entry = dict[str, Any]


class FriendsBoards:
    """The handler; `source` is None where no friends service is configured."""

    def __init__(self, edge: Edge, source: FriendsSource | None) -> None:
        self._edge = edge
        self._source = source

    async def board(self, request: Request, board_id: str, player_id: str) -> Reply:
        """The first `limit` of the player's friends board; without any row of theirs the list is empty, whoever the player is."""
        edge = self._edge
        claims = edge.claims(request)
        claims.require(READERS, game_of(board_id))
        check_player_id(player_id)
        if claims.player is not None and claims.player != player_id:
            raise ProblemError("foreign_player", "The token is for the friends boards of one player, who is another")
        board = edge.known_board(board_id)
        query = read_query(request, ("limit", "generation", "at_least"))
        limit = read_limit(query)
        pins = read_pins(query, board)
        if self._source is None:
            raise FriendsNotConfigured("No friends service is configured here: see `friends` in the cluster file")
        friends = await self._source.friends_of(game_of(board_id), player_id, scope=access_scope(claims))
        ask = Ask(board_id=board_id, question=Ranks([]), wait_ms=edge.limits.wait_ms, **pins._asdict())
        told, envelope, entries = await self._ranked(board, list(dict.fromkeys((player_id, *friends))), ask, limit)
        body = msgspec.json.encode(
            {
                **{name: envelope[name] for name in _ENVELOPE},
                "among": "friends",
                "player_id": player_id,
                "limit": limit,
                "entries": entries,
            }
        )
        core = f"{told.incarnation}.{told.lineage}.s{told.generation}.{content_hash(body)}"
        prepared = Prepared(body, etag_core=core, cache_control=PRIVATE, cors=False, region=edge.backend.region)
        return prepared.reply(
            if_none_match=_header(request, "if-none-match"),
            accept_encoding=_header(request, "accept-encoding"),
            age_ms=edge.backend.now_ms() - told.published_ms,
        )

    async def _ranked(self, board: BoardInfo, players: Sequence[str], ask: Ask, limit: int) -> tuple[Answer, Entry, list[Entry]]:
        """One generation's answer, its body, and the first `limit` of the rows of all `players` in it, ranked among themselves.

        More than one question can hold are asked for their places on the board, all in the generation of the first answer: positions are
        the comparator's own order, also where an entry does not show all of it (the tie moment).
        """
        chunks = [players[at : at + CHUNK] for at in range(0, len(players), CHUNK)]
        if len(chunks) == 1:
            told = await self._ask(ask, chunks[0], "listed")
            body = msgspec.json.decode(told.body)
            return told, body, body["entries"][:limit]
        first = await self._ask(ask, chunks[0], "board")
        pinned = msgspec.structs.replace(ask, generation=first.generation, at_least=None, at_shard=None)
        others = await asyncio.gather(*(self._ask(pinned, chunk, "board") for chunk in chunks[1:]))
        if any(
            (told.incarnation, told.lineage, told.generation) != (first.incarnation, first.lineage, first.generation) for told in others
        ):
            raise NotServing(f"{board.board_id} was made anew while it was read")
        bodies = [msgspec.json.decode(told.body) for told in (first, *others)]
        found = [entry for body in bodies for entry in body["entries"]]
        return first, bodies[0], ranked_among(found, board.rules.ranking, limit)

    async def _ask(self, ask: Ask, players: Sequence[str], among: Any) -> Answer:
        return await self._edge.backend.ask(msgspec.structs.replace(ask, question=Ranks(list(players), among)))


def access_scope(claims: Claims) -> str:
    """On whose behalf a friends board is asked: the player that the token is bound to, else its subject."""
    return f"subject:{claims.sub}" if claims.player is None else f"player:{claims.player}"


def ranked_among(found: list[Entry], ranking: Ranking, limit: int) -> list[Entry]:
    """Entries with places on the board, in display order and with places among themselves instead: the first `limit` of them.

    A rank depends on those above alone, so what is cut off here need not be numbered.
    """
    entries: list[Entry] = []
    rank, level = 0, 0
    before: tuple[Any, Any] | None = None
    above = sorted(found, key=lambda entry: int(entry["position"]))[:limit]
    for position, entry in enumerate(above, start=1):
        score = (entry["value"], entry.get("secondary"))
        if score != before or ranking == "unique":
            rank, level, before = position, level + 1, score
        entries.append({**entry, "position": position, "rank": level if ranking == "dense" else rank})
    return entries


def _header(request: Request, name: str) -> bytes | None:
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")
