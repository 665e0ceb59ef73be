"""How answers leave: the same bytes in every region, with validators, compression and cache rules around them.

`Edge` is what every handler of the HTTP edge works with; `Prepared` is an answer's headers and bodies,
made once and sent often; `Reply` is one response, as raw as ASGI allows.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from actors.messages import Answer, BoardInfo, NotServing, Question, Unanswered, UnknownBoard
from boards.errors import InvalidInput
from boards.ids import check_board_id
from regions import problems
from regions.backend import Backend, Limits
from regions.tokens import READERS, Claims, Scope, TokenError, TokenVerifier

Headers = list[tuple[bytes, bytes]]

#: Bodies below this size leave as they are: compressed they would still be one packet.
GZIP_FROM_BYTES = 1000
_GZIP_LEVEL = 1

IMMUTABLE = "public, max-age=31536000, immutable"
#: May be kept, and is asked for again with its validator: a number alone means another generation once the board is made anew.
CHECKED = "no-cache"
PRIVATE = "private, no-store"

_CORS: Headers = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"etag, retry-after, x-laurel-age-ms, x-laurel-region"),
]


class Reply(Response):
    """A response whose status, headers and body are exactly what was given."""

    def __init__(self, status: int, headers: Headers, body: bytes = b"") -> None:
        self.status_code = status
        self.raw_headers = headers
        self.body = body
        self.background = None


class Prepared:
    """One answer, ready for every way to ask for it. `etag_core` names its content, in header characters."""

    __slots__ = ("_body", "_common", "_etag", "_plain", "_zipped", "_zipped_headers")

    def __init__(self, body: bytes, *, etag_core: str, cache_control: str, cors: bool, region: str) -> None:
        self._body = body
        self._etag = etag_core.encode("ascii")
        self._common: Headers = [
            (b"cache-control", cache_control.encode()),
            (b"vary", b"Accept-Encoding" if cache_control != PRIVATE else b"Accept-Encoding, Authorization"),
            (b"x-laurel-region", region.encode()),
            *(_CORS if cors else []),
        ]
        self._plain = self._headers(body, self._quoted(zipped=False))
        self._zipped: bytes | None = None
        self._zipped_headers: Headers = []

    def reply(self, *, if_none_match: bytes | None = None, accept_encoding: bytes | None = None, age_ms: int | None = None) -> Reply:
        """The response to one request: 304 when the client has it, else the body in the coding it takes."""
        age: Headers = [] if age_ms is None else [(b"x-laurel-age-ms", b"%d" % max(0, age_ms))]
        zipped = accept_encoding is not None and len(self._body) >= GZIP_FROM_BYTES and takes_gzip(accept_encoding)
        if if_none_match is not None and self._has(if_none_match):
            return Reply(304, [(b"etag", self._quoted(zipped=zipped)), *self._common, *age])
        if not zipped:
            return Reply(200, [*self._plain, *age], self._body)
        if self._zipped is None:
            self._zipped = gzip.compress(self._body, _GZIP_LEVEL, mtime=0)
            self._zipped_headers = [*self._headers(self._zipped, self._quoted(zipped=True)), (b"content-encoding", b"gzip")]
        return Reply(200, [*self._zipped_headers, *age], self._zipped)

    def _quoted(self, *, zipped: bool) -> bytes:
        # A strong validator names one sequence of bytes, so each coding has its own.
        return b'"%s-gz"' % self._etag if zipped else b'"%s"' % self._etag

    def _headers(self, body: bytes, etag: bytes) -> Headers:
        return [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"etag", etag),
            *self._common,
        ]

    def _has(self, if_none_match: bytes) -> bool:
        """Whether one of the validators sent means this content, in any coding (weak comparison)."""
        for tag in if_none_match.split(b","):
            core = tag.strip().removeprefix(b"W/")
            if core == b"*" or core.strip(b'"').removesuffix(b"-gz") == self._etag:
                return True
        return False


@lru_cache(maxsize=256)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether an `Accept-Encoding` value allows gzip with a weight above 0."""
    weights = {}
    for part in accept_encoding.decode("latin-1").lower().split(","):
        coding, _, parameter = part.partition(";")
        name, _, weight = parameter.strip().partition("=")
        try:
            weights[coding.strip()] = float(weight) if name.strip() == "q" else 1.0
        except ValueError:
            weights[coding.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def content_hash(raw: bytes) -> str:
    """Twelve hex digits that tell different content or questions apart."""
    return hashlib.blake2b(raw, digest_size=6).hexdigest()


def etag_core(answer: Answer, question: Question) -> str:
    """Validator of an answer: incarnation and lineage of the board, generation, and which question of it this is."""
    asked = content_hash(msgspec.json.encode([answer.board_id, question]))
    return f"{answer.incarnation}.{answer.lineage}.s{answer.generation}.{asked}"


def prepare(answer: Answer, question: Question, *, public: bool, pinned: bool, region: str) -> Prepared:
    """An answer about one generation; `pinned` when the request itself names that generation, and the life of the board that it is of."""
    cache_control = PRIVATE if not public else IMMUTABLE if pinned else CHECKED
    return Prepared(answer.body, etag_core=etag_core(answer, question), cache_control=cache_control, cors=public, region=region)


def json_reply(body: Any, *, status: int = 200, region: str = "") -> Reply:
    """A response that is never kept by anyone."""
    raw = msgspec.json.encode(body)
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(raw)),
        (b"cache-control", b"no-store"),
    ]
    if region:
        headers.append((b"x-laurel-region", region.encode()))
    return Reply(status, headers, raw)


def problem_reply(exc: Exception, *, region: str = "", cors: bool = False) -> Reply:
    """The problem that an error of this service is; unknown errors are `internal` and tell nothing of the inside."""
    headers: dict[str, str] = {}
    if isinstance(exc, problems.ProblemError):
        headers = exc.headers
        found = problems.render(exc.code, exc.detail, field=exc.field, allowed=exc.allowed, extra=exc.extra, fallback="invalid")
    elif isinstance(exc, TokenError):
        found = problems.render(exc.code, exc.detail, fallback="bad_token")
    elif isinstance(exc, InvalidInput):
        found = problems.render(exc.code, str(exc), field=exc.field, allowed=exc.allowed, fallback="invalid")
    elif isinstance(exc, Unanswered):
        found = _unanswered(exc)
    else:
        found = problems.render("internal", "The service met an error of its own; what was asked may have been done")
    raw: Headers = [(name.encode(), value.encode()) for name, value in {**found.headers, **headers}.items()]
    raw.append((b"content-length", b"%d" % len(found.body)))
    if region:
        raw.append((b"x-laurel-region", region.encode()))
    return Reply(found.status, [*raw, *_CORS] if cors else raw, found.body)


def _unanswered(exc: Unanswered) -> problems.Rendered:
    extra: dict[str, Any] = {}
    newest = exc.fields.get("newest")
    if newest is not None:
        extra["newest"] = f"s{newest}"
    if exc.fields.get("owner"):
        extra["owner"], extra["epoch"] = exc.fields["owner"], exc.fields.get("epoch", 0)
    return problems.render(
        exc.code,
        exc.detail,
        field=exc.fields.get("field"),
        allowed=exc.fields.get("allowed"),
        definite=exc.definite,
        retry_after_ms=exc.retry_after_ms,
        extra=extra,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What the handlers of a region's HTTP edge share."""

    backend: Backend
    verifier: TokenVerifier
    limits: Limits

    def claims(self, request: Request) -> Claims:
        """The request's checked token. Raises `TokenError`."""
        return self.verifier.verify_header(request.headers.get("authorization"))

    def claims_if_any(self, request: Request) -> Claims | None:
        """The request's checked token, None without one: a bad token is refused even where none is needed."""
        return self.claims(request) if "authorization" in request.headers else None

    def admitted(self, request: Request, scopes: tuple[Scope, ...], game: str | None) -> Claims:
        """The claims of a token with one of `scopes` for `game` (None: for any). Raises `TokenError`."""
        claims = self.claims(request)
        claims.require(scopes, game)
        return claims

    def known_board(self, board_id: str) -> BoardInfo:
        """Raises `InvalidInput` for what can be no id, `UnknownBoard` for what is none here, `NotServing` while that is not certain."""
        check_board_id(board_id)
        return self._there(board_id, self.backend.board(board_id))

    async def board_soon(self, board_id: str) -> BoardInfo:
        """As `known_board`, but waits a second for a board that another region may just have made: whoever writes believes a 404."""
        check_board_id(board_id)
        return self._there(board_id, await self.backend.board_soon(board_id))

    def _there(self, board_id: str, board: BoardInfo | None) -> BoardInfo:
        if board is None:
            self.check_boards_known()
            raise UnknownBoard(f"There is no board {board_id} here")
        return board

    def check_boards_known(self) -> None:
        """Raises `NotServing` until this process has heard of all boards: a 404 before would be a guess, and clients believe it."""
        if not self.backend.knows_boards:
            raise NotServing(f"{self.backend.region} has just started and does not know all boards yet")

    def is_public(self, board_id: str) -> bool:
        """Whether the board is here and open to everyone."""
        board = self.backend.board(board_id)
        return board is not None and board.rules.visibility == "public"

    def readable_board(self, request: Request, board_id: str) -> BoardInfo:
        """The board, if this request may read it: public ones need no token."""
        claims = self.claims_if_any(request)
        board = self.known_board(board_id)
        if board.rules.visibility != "public":
            (claims or self.claims(request)).require(READERS, game_of(board_id))
        return board


def game_of(board_id: str) -> str:
    """The game of a board id: tokens are for games."""
    return board_id.partition(":")[0]
