"""The short way for reads that need no word of explanation: from the parts of a request to its reply, past the framework.

The long way is `regions.read_api` behind FastAPI's routes. Both give the same bytes; this one takes a request only where nothing
about it is unusual: a known board that it may read, a first page or one player, and a query among the few that clients send.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from actors.messages import Answer, Ask, BoardInfo, Nearby, Percentile, Question, Rank, Top, Unanswered
from regions.answering import Edge, Headers, Prepared, Reply, game_of, prepare, problem_reply
from regions.read_api import TOP_DEFAULT, TOP_MAX, WINDOW_DEFAULT
from regions.tokens import READERS

_log = logging.getLogger(__name__)

#: What a query means for one player.
_VIEWS: Final[dict[bytes, Callable[[str], Question]]] = {
    b"": Rank,
    b"view=rank": Rank,
    b"view=percentile": Percentile,
    b"view=nearby": lambda player_id: Nearby(player_id, WINDOW_DEFAULT),
}


class PlainReads:
    """See the module docstring."""

    #: First pages whose headers and compressed form are kept; beyond it they are made anew.
    PAGES_MAX = 4096

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._pages: dict[tuple[str, int], tuple[Answer, bool, Prepared]] = {}

    def begin(self, segments: list[str], query: bytes, headers: Headers) -> Reply | Coroutine[Any, Any, Reply] | None:
        """The reply to a GET of `segments` (see `regions.app.board_path`), or what will be it; None if the long way has to be taken.

        A page that is held ready is there at once and costs some 5 µs. Errors are replies too.
        """
        question = _question(segments, query)
        board = None if question is None else self._edge.backend.board(segments[0])
        if question is None or board is None:
            return None
        accept_encoding = if_none_match = authorization = None
        for name, value in headers:  # the first of a name counts
            if name == b"accept-encoding":
                accept_encoding = value if accept_encoding is None else accept_encoding
            elif name == b"if-none-match":
                if_none_match = value if if_none_match is None else if_none_match
            elif name == b"authorization":
                authorization = value if authorization is None else authorization
        public = board.rules.visibility == "public"
        if (authorization is not None or not public) and not self._admits(authorization, board, public=public):
            return None
        if isinstance(question, Top):
            ready = self._edge.backend.ready_top(board, question.limit)
            if ready is not None:
                return self._reply(ready, self._page(ready, question, public=public), if_none_match, accept_encoding)
        return self._asked(question, board.board_id, public, if_none_match, accept_encoding)

    async def _asked(
        self, question: Question, board_id: str, public: bool, if_none_match: bytes | None, accept_encoding: bytes | None
    ) -> Reply:
        edge = self._edge
        try:
            answer = await edge.backend.ask(Ask(board_id=board_id, question=question, wait_ms=edge.limits.wait_ms))
            prepared = prepare(answer, question, public=public, pinned=False, region=edge.backend.region)
            return self._reply(answer, prepared, if_none_match, accept_encoding)
        except Exception as exc:
            if not isinstance(exc, Unanswered):
                _log.exception("error in a question to %s", board_id)
            return problem_reply(exc, region=edge.backend.region, cors=edge.is_public(board_id))

    def _reply(self, answer: Answer, prepared: Prepared, if_none_match: bytes | None, accept_encoding: bytes | None) -> Reply:
        age_ms = self._edge.backend.now_ms() - answer.published_ms
        return prepared.reply(if_none_match=if_none_match, accept_encoding=accept_encoding, age_ms=age_ms)

    def _page(self, answer: Answer, question: Top, *, public: bool) -> Prepared:
        """What is sent of a page that is held ready, made once for each."""
        kept = self._pages.get((answer.board_id, question.limit))
        if kept is not None and kept[0] is answer and kept[1] is public:
            return kept[2]
        prepared = prepare(answer, question, public=public, pinned=False, region=self._edge.backend.region)
        if len(self._pages) >= self.PAGES_MAX:
            self._pages.clear()
        self._pages[answer.board_id, question.limit] = (answer, public, prepared)
        return prepared

    def _admits(self, authorization: bytes | None, board: BoardInfo, *, public: bool) -> bool:
        try:
            claims = self._edge.verifier.verify_header(None if authorization is None else authorization.decode("latin-1"))
            if not public:
                claims.require(READERS, game_of(board.board_id))
        except Exception:  # whatever it is, the long way finds it again and says what it was
            return False
        return True


def _question(segments: list[str], query: bytes) -> Question | None:
    """What is asked, of the newest generation; None for anything unusual."""
    if len(segments) == 3 and segments[1] == "players":
        view = _VIEWS.get(query)
        return None if view is None else view(segments[2])
    if len(segments) != 2 or segments[1] != "top":
        return None
    if not query:
        return Top(limit=TOP_DEFAULT)
    digits = query[6:]
    if not (query[:6] == b"limit=" and 0 < len(digits) <= 4 and digits.isdigit() and digits[0] != 48 and int(digits) <= TOP_MAX):
        return None
    return Top(limit=int(digits))
