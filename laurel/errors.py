"""What a call can end in besides an answer.

    LaurelError              `code`, `definite`, `status`, `detail` and the fields of the problem document
    ├── Refused              4xx, or refused before sending: this call changed nothing; mend it before you repeat it
    │   ├── BadRequest       400, 415, 422: `field` and `allowed` say what to mend
    │   ├── Unauthorized     401: no token, or one that is expired or revoked
    │   ├── Forbidden        403: the token's scope or games do not cover this
    │   ├── NotFound         404
    │   │   ├── UnknownBoard
    │   │   └── NotRanked    the player has no active row in that generation
    │   ├── Conflict         409: the same identity with other content is already there
    │   ├── GenerationGone   410: `newest` is the generation to start again with
    │   ├── TooLarge         413
    │   └── RateLimited      429: `retry_after_ms` is what the server asked for
    ├── Misconfigured        the regions, the token or the command line are wrong: nothing was sent
    ├── Unavailable          no region could do it; nothing was changed. Try later
    └── OutcomeUnknown       it may have happened; repeat it with the same event ids

`definite` is True where it is certain that the call changed nothing. All of them survive pickling.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laurel.models import EventResult


class LaurelError(Exception):
    """Base of all. `problem` is the server's problem document as it came, empty if there was none."""

    code = "error"
    definite = True

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        definite: bool | None = None,
        status: int | None = None,
        region: str | None = None,
        field: str | None = None,
        allowed: str | None = None,
        retry_after_ms: int | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.definite = type(self).definite if definite is None else definite
        #: HTTP status, None where no answer came.
        self.status = status
        #: The region that answered, or was asked last.
        self.region = region
        self.field = field
        self.allowed = allowed
        self.retry_after_ms = retry_after_ms
        self.problem: Mapping[str, Any] = dict(problem or {})

    def __str__(self) -> str:
        return self.detail

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.detail, dict(self.__dict__))


def _rebuild(kind: type[LaurelError], detail: str, state: dict[str, Any]) -> LaurelError:
    error = kind.__new__(kind, detail)
    error.args = (detail,)
    error.__dict__.update(state)
    return error


class Refused(LaurelError):
    """The call itself is at fault; sent again unchanged it would be refused again."""

    code = "refused"


class BadRequest(Refused):
    """Malformed: `field` says where, `allowed` what would be right."""

    code = "bad_request"


class Unauthorized(Refused):
    """The token is missing, expired, revoked or not one of this cluster."""

    code = "unauthorized"


class Forbidden(Refused):
    """The token is good, but not for this."""

    code = "forbidden"


class NotFound(Refused):
    """No such thing in the region that answered."""

    code = "not_found"


class UnknownBoard(NotFound):
    """No such board."""

    code = "unknown_board"


class NotRanked(NotFound):
    """The player has no active row in that generation."""

    code = "not_ranked"


class Conflict(Refused):
    """The same identity with other content is there already; nothing changed."""

    code = "conflict"


class GenerationGone(Refused):
    """The pinned generation is no longer retained."""

    code = "generation_gone"

    @property
    def newest(self) -> str | None:
        """The generation to start again with, such as `s42`; None if the server did not say."""
        newest = self.problem.get("newest")
        return f"s{newest}" if isinstance(newest, int) else newest


class TooLarge(Refused):
    """The body is larger than the server takes; send smaller batches."""

    code = "too_large"


class RateLimited(Refused):
    """Too many calls: `retry_after_ms` is what the server asked to wait, None if it did not say."""

    code = "rate_limited"


class Misconfigured(LaurelError):
    """Nothing was sent: what was given is wrong. The command ends with exit code 2."""

    code = "misconfigured"


class Unavailable(LaurelError):
    """No region could do it within the attempts and the time there were; nothing was changed."""

    code = "unavailable"


class OutcomeUnknown(LaurelError):
    """The call may have been carried out. `client.submit(board, error.events)` settles it without counting anything twice."""

    code = "outcome_unknown"
    definite = False

    def __init__(
        self,
        detail: str,
        *,
        events: Sequence[Mapping[str, Any]] = (),
        results: "Sequence[EventResult]" = (),
        **fields: Any,
    ) -> None:
        super().__init__(detail, **fields)
        #: The events without a known result, ids included, ready to be submitted again.
        self.events = tuple(events)
        #: One result for each event of the call, in order; `outcome` is `unknown` where none is known.
        self.results = tuple(results)

    @property
    def event_ids(self) -> tuple[str, ...]:
        """Ids of the events without a known result."""
        return tuple(str(event["event_id"]) for event in self.events)


#: Classes by the problem's code; they go before those by status.
BY_CODE: dict[str, type[Refused]] = {
    "unknown_board": UnknownBoard,
    "not_ranked": NotRanked,
    "generation_gone": GenerationGone,
}
BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: GenerationGone,
    413: TooLarge,
    429: RateLimited,
}


def refusal(status: int, problem: Mapping[str, Any], *, region: str, retry_after_ms: int | None = None) -> Refused:
    """The error for a 4xx answer."""
    code = _text(problem.get("code"))
    kind = BY_CODE.get(code or "") or BY_STATUS.get(status, BadRequest)
    detail = _text(problem.get("detail")) or _text(problem.get("title")) or f"region {region} refused the call with status {status}."
    return kind(detail, code=code, **problem_fields(status, problem, region=region, retry_after_ms=retry_after_ms))


def problem_fields(status: int, problem: Mapping[str, Any], *, region: str, retry_after_ms: int | None) -> dict[str, Any]:
    """Constructor arguments that a problem document gives, whatever types it holds."""
    allowed = problem.get("allowed")
    return {
        "status": status,
        "region": region,
        "field": _text(problem.get("field")),
        "allowed": None if allowed is None else str(allowed),
        "retry_after_ms": retry_after_ms,
        "problem": problem,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
