"""The policy that both clients share: which region to ask, what may be repeated, how long to wait.

Nothing here does I/O or sleeps: `Directory` ranks the regions, `Attempts` takes what happened to each request
of one call and says what is next. Clock, wall clock and jitter arrive through `Policy`.

What may be repeated:
    connect error, 503 with `definite: true`    nothing happened: again in the next region
    time-out, reset, 503 unknown, other 5xx     outcome unknown: again if the call has an identity, with the same ids
    429                                         again after Retry-After, never earlier
    any other 4xx                               never
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar

import httpx
from tenacity import RetryCallState

from laurel.errors import LaurelError, OutcomeUnknown, RateLimited, Unavailable, problem_fields, refusal
from laurel.models import Call, SubmitCall, load_json

T = TypeVar("T")

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0
#: A longer Retry-After is not waited for.
RETRY_AFTER_CAP_S = 60.0
#: Width over which calls spread that were all told to wait equally long.
RETRY_AFTER_SPREAD_S = 1.0
PROBES = 3
PROBE_TIMEOUT_S = 1.0
REMEASURE_S = 60.0
PENALTY_BASE_S = 1.0
PENALTY_CAP_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """`clock` is monotonic seconds, `wall` Unix seconds (for Retry-After dates only), `jitter` gives [0, 1)."""

    timeout_s: float
    max_attempts: int
    total_timeout_s: float
    clock: Callable[[], float]
    wall: Callable[[], float]
    jitter: Callable[[], float]


@dataclass(kw_only=True, slots=True)
class Region:
    """What a client remembers about a region; guarded by the directory's lock."""

    name: str
    url: str
    #: The name the region gives itself, learned from its answers.
    alias: str = ""
    #: Best round trip of the last measurement; None before the first and while it does not answer.
    rtt_s: float | None = None
    measured_at: float | None = None
    probing: bool = False
    #: Failures in a row; while above 0 the region is asked last, until a probe or a call succeeds.
    failures: int = 0
    penalty_until: float = 0.0


class Directory:
    """The regions in the order in which to ask them: those that work before those that failed, then by round trip. Thread-safe."""

    def __init__(self, regions: Mapping[str, str] | Sequence[str], prefer: str | None) -> None:
        if isinstance(regions, str):
            regions = [regions]
        named = dict(regions) if isinstance(regions, Mapping) else {url.rstrip("/"): url for url in regions}
        if not named:
            raise ValueError("give at least one region")
        for url in named.values():
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no base URL: it must start with http:// or https://")
        if prefer is not None and isinstance(regions, Mapping) and prefer not in named:
            raise ValueError(f"prefer={prefer!r} is none of {', '.join(named)}")
        self._regions = [Region(name=name, url=url.rstrip("/")) for name, url in named.items()]
        self._prefer = prefer
        self._lock = Lock()

    @property
    def names(self) -> list[str]:
        """Names as configured, in that order."""
        return [region.name for region in self._regions]

    def order(self) -> list[Region]:
        """All regions, the one to ask first in front."""
        with self._lock:
            return sorted(self._regions, key=self._key)

    def _key(self, region: Region) -> tuple[bool, float, bool, float]:
        suspect = region.failures > 0
        preferred = self._prefer is not None and self._prefer in (region.name, region.url, region.alias)
        return suspect, region.penalty_until if suspect else 0.0, not preferred, float("inf") if region.rtt_s is None else region.rtt_s

    def find(self, name: str) -> Region | None:
        """The region of that name, URL or learned name."""
        return next((r for r in self._regions if name in (r.name, r.url.rstrip("/"), r.alias)), None)

    def named(self, name: str) -> Region:
        """As `find`; ValueError names the regions there are."""
        region = self.find(name)
        if region is None:
            raise ValueError(f"region {name!r} is none of {', '.join(self.names)}")
        return region

    def answered(self, region: Region, alias: str | None) -> None:
        """The region is alive, whatever it said."""
        with self._lock:
            region.failures = 0
            if alias:
                region.alias = alias

    def failed(self, region: Region, now: float) -> None:
        """The region did not answer: it is asked last, and probed again when its penalty is over.

        Further failures within a penalty do not lengthen it: they are calls that were under way at the time.
        """
        with self._lock:
            if region.failures and now < region.penalty_until:
                return
            region.failures += 1
            region.penalty_until = now + min(PENALTY_CAP_S, PENALTY_BASE_S * 2.0 ** min(region.failures - 1, 16))

    def claim_due(self, now: float) -> tuple[list[Region], bool]:
        """Regions for the caller to probe, each given to one caller at a time, and whether to do it before the call.

        That is so for the first measurement only, and not where a preferred region decides.
        """
        with self._lock:
            if len(self._regions) == 1:
                return [], False
            due = [r for r in self._regions if not r.probing and self._is_due(r, now)]
            first = self._prefer is None and all(r.measured_at is None for r in due)
            for region in due:
                region.probing = True
            return due, bool(due) and first

    @staticmethod
    def _is_due(region: Region, now: float) -> bool:
        if region.failures:
            return now >= region.penalty_until
        return region.measured_at is None or now - region.measured_at >= REMEASURE_S

    def release(self, region: Region) -> None:
        """Ends a claim without a result."""
        with self._lock:
            region.probing = False

    def measured(self, region: Region, rtt_s: float | None, now: float) -> None:
        """Ends a claim. None: it did not answer."""
        if rtt_s is None:
            self.failed(region, now)
        with self._lock:
            region.probing = False
            region.measured_at = now
            region.rtt_s = rtt_s
            if rtt_s is not None:
                region.failures = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One request to send."""

    region: Region
    method: str
    url: str
    params: Mapping[str, str]
    content: bytes | None
    headers: Mapping[str, str]
    timeout_s: float


class Again(Exception):
    """Internal: this attempt failed in a way that may be repeated."""


@dataclass(kw_only=True)
class Attempts(Generic[T]):
    """One call from its first request to its answer or error. Used by one thread or task."""

    call: Call[T]
    policy: Policy
    directory: Directory
    deadline: float = field(init=False)
    #: Some request of this call may have been carried out.
    doubt: bool = False
    last: LaurelError | None = None
    _next: Region | None = None
    _wait_s: float = 0.0
    #: Wait that a 429 asked for, in all regions; None if it did not.
    _asked_s: float | None = None
    _limited: bool = False
    _tried: set[str] = field(default_factory=set)
    _not_before: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deadline = self.policy.clock() + max(self.policy.total_timeout_s, self.call.timeout_s or 0.0)

    def target(self) -> Target:
        """The next request: body and ids are the same each time, except that events with a known result are left out."""
        region = self._next or self._choose()
        self._next = None
        self._tried.add(region.name)
        body = self.call.payload()
        left = max(0.001, self.deadline - self.policy.clock())
        return Target(
            region=region,
            method=self.call.method,
            url=region.url + self.call.path,
            params=self.call.params,
            content=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers={} if body is None else {"content-type": "application/json"},
            timeout_s=min(self.call.timeout_s or self.policy.timeout_s, left),
        )

    def _choose(self) -> Region:
        if self.call.only is not None:
            return self.directory.named(self.call.only)
        order = self.directory.order()
        first = self.directory.find(self.call.first) if self.call.first else None
        if first is not None and not first.failures:
            order = [first, *(r for r in order if r is not first)]
        now = self.policy.clock()
        order = [r for r in order if not r.failures or now >= r.penalty_until] or order
        if all(r.name in self._tried for r in order):
            self._tried.clear()
        waits = {r.name: max(0.0, self._not_before.get(r.name, 0.0) - now) for r in order if r.name not in self._tried}
        return min((r for r in order if r.name in waits), key=lambda r: waits[r.name])

    def broke(self, region: Region, exc: httpx.HTTPError) -> NoReturn:
        """No usable answer came."""
        if isinstance(exc, httpx.UnsupportedProtocol):
            raise Unavailable(f"region {region.name}: {exc}", code="bad_url", region=region.name) from exc
        unsent = isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        if not isinstance(exc, httpx.PoolTimeout):
            self.directory.failed(region, self.policy.clock())
        code = "unreachable" if unsent else "timeout" if isinstance(exc, httpx.TimeoutException) else "connection_lost"
        said = f"region {region.name} {_HAPPENED[code]}" + (f" ({exc})" if str(exc) else "")
        raise self._again(Unavailable(said, code=code, region=region.name), doubt=not unsent, cause=exc)

    def answered(self, region: Region, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """The call's answer; or LaurelError; or Again."""
        self.directory.answered(region, headers.get("x-laurel-region"))
        try:
            document = load_json(content)
        except ValueError:
            document = None
        if 200 <= status < 300:
            return self._read(region, status, document, headers)
        problem = document if isinstance(document, dict) else {}
        asked_s = retry_after_s(headers, problem, wall=self.policy.wall())
        if status == 429:
            self._limit(region, problem, asked_s)
        if isinstance(self.call, SubmitCall) and self._settle(self.call, status, problem):
            return self.call.read(problem, headers)  # type: ignore[return-value]  # T is SubmitReply here
        if 400 <= status < 500:
            refused = refusal(status, problem, region=region.name, retry_after_ms=_ms(asked_s))
            if self.doubt and status != 409:
                raise self._unknown(refused) from refused
            raise refused
        if asked_s is not None:
            self._not_before[region.name] = self.policy.clock() + asked_s
        fields = problem_fields(status, problem, region=region.name, retry_after_ms=_ms(asked_s))
        code = problem.get("code")
        detail = problem.get("detail") or problem.get("title") or f"region {region.name} answered with status {status}"
        definite = status == 503 and problem.get("definite") is True and "results" not in problem
        raise self._again(Unavailable(str(detail), code=code if isinstance(code, str) else None, **fields), doubt=not definite)

    def _read(self, region: Region, status: int, document: Any, headers: Mapping[str, str]) -> T:
        try:
            if isinstance(self.call, SubmitCall) and not self.call.absorb(document):
                raise ValueError("results are missing")
            return self.call.read(document, headers)
        except ValueError as exc:
            said = f"region {region.name} gave an answer that this client cannot read"
            raise self._again(Unavailable(said, code="bad_answer", status=status, region=region.name), doubt=True, cause=exc) from exc

    @staticmethod
    def _settle(call: SubmitCall, status: int, problem: Mapping[str, Any]) -> bool:
        """Take in what a refusal or a 503 says of single events; True when all results are known."""
        try:
            if 400 <= status < 500:
                return call.settle_last(status, problem)
            return status == 503 and "results" in problem and call.absorb(problem)
        except ValueError:
            return False

    def _limit(self, region: Region, problem: Mapping[str, Any], asked_s: float | None) -> NoReturn:
        error = refusal(429, problem, region=region.name, retry_after_ms=_ms(asked_s))
        if asked_s is not None and asked_s > min(RETRY_AFTER_CAP_S, self.deadline - self.policy.clock()):
            limit_s = min(RETRY_AFTER_CAP_S, self.policy.total_timeout_s)
            fields = problem_fields(429, problem, region=region.name, retry_after_ms=_ms(asked_s))
            said = f"region {region.name} asks to wait {asked_s:.0f} s, more than the {limit_s:.0f} s of this client; call again then"
            given_up = RateLimited(said, code=error.code, **fields)
            if self.doubt:
                raise self._unknown(given_up) from given_up
            raise given_up
        self._limited, self._asked_s = True, asked_s
        raise self._again(error, doubt=False)

    def _again(self, error: LaurelError, *, doubt: bool, cause: Exception | None = None) -> Exception:
        """What to raise after a failed attempt: `Again`, or the end where the call may not be repeated."""
        error.__cause__ = cause
        self.last = error
        if doubt and self.call.effect != "none":
            self.doubt = True
            if self.call.effect == "once":
                unknown = self._unknown(error)
                unknown.__cause__ = error
                return unknown
        return Again()

    def wait(self, state: RetryCallState) -> float:
        """Seconds until the next attempt, which goes to the region chosen here. Full jitter; tenacity calls it before `stop`."""
        ceiling_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(state.attempt_number - 1, 16))
        if self._limited:
            self._wait_s = (self._asked_s or 0.0) + self.policy.jitter() * max(RETRY_AFTER_SPREAD_S, ceiling_s)
            self._limited, self._asked_s = False, None
            return self._wait_s
        self._next = self._choose()
        held_s = max(0.0, self._not_before.get(self._next.name, 0.0) - self.policy.clock())
        self._wait_s = held_s + self.policy.jitter() * ceiling_s
        return self._wait_s

    def stop(self, state: RetryCallState) -> bool:
        """Attempts or time are used up."""
        return state.attempt_number >= self.policy.max_attempts or self.policy.clock() + self._wait_s >= self.deadline

    def give_up(self, state: RetryCallState) -> NoReturn:
        """The error after the last attempt."""
        last = self.last or Unavailable("no attempt was made")
        if self.doubt:
            raise self._unknown(last) from last
        if isinstance(last, Unavailable):
            times = "1 attempt" if state.attempt_number == 1 else f"{state.attempt_number} attempts"
            effect = "" if self.call.effect == "none" else "nothing was changed, and it "
            last.detail = f"{last.detail.rstrip('.')}; {effect}gave up after {times}"
            last.args = (last.detail,)
        raise last

    def _unknown(self, last: LaurelError) -> OutcomeUnknown:
        said = f"the outcome is unknown (last: {last.detail.rstrip('.')})"
        if isinstance(self.call, SubmitCall):
            left = self.call.left()
            counted = f"event {left[0]['event_id']} is" if len(left) == 1 else f"{len(left)} events are"
            said = f"{counted} without a known outcome (last: {last.detail.rstrip('.')}); submit again with the same event id"
            return OutcomeUnknown(
                said, status=last.status, region=last.region, events=left, results=self.call.results(), problem=last.problem
            )
        return OutcomeUnknown(
            f"{said}; look at the status before you repeat it", status=last.status, region=last.region, problem=last.problem
        )


_HAPPENED = {
    "unreachable": "could not be reached",
    "timeout": "did not answer in time",
    "connection_lost": "broke off the connection",
}


def retry_after_s(headers: Mapping[str, str], problem: Mapping[str, Any], *, wall: float) -> float | None:
    """What the server asked to wait, in seconds; None for nothing or nonsense.

    The header holds whole seconds: where it is the body's milliseconds rounded up, those count. A date is measured
    from the answer's own Date, so that a wrong clock here does not matter.
    """
    asked_ms = problem.get("retry_after_ms")
    exact_s = asked_ms / 1000 if isinstance(asked_ms, int) and not isinstance(asked_ms, bool) and asked_ms >= 0 else None
    text = headers.get("retry-after", "").strip()
    if not text:
        return exact_s
    if text.isascii() and text.isdigit():
        whole_s = float(text[:12])
        return exact_s if exact_s is not None and whole_s - 1 < exact_s <= whole_s else whole_s
    moment = _moment(text)
    if moment is None:
        return None
    now = _moment(headers.get("date", ""))
    return max(0.0, moment - (wall if now is None else now))


def _moment(text: str) -> float | None:
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def headers_of(token: str) -> dict[str, str]:
    """Headers of every request; no credential where the token is empty, as public boards need none."""
    bare = token.strip()
    return {"user-agent": "laurel-python", "accept": "application/json", **({"authorization": f"Bearer {bare}"} if bare else {})}


def direct_mounts() -> dict[str, None]:
    """Hosts that no proxy of the environment is used for."""
    return {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
