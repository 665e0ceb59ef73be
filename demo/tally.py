"""What the clients saw: every acknowledgement, how long each submission took, what was checked. And the pace of the whole."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from demo.seasons import Result
from laurel import EventResult


class OffTrackError(Exception):
    """Something is not as it must be; the text is one sentence for whoever watches."""


class StoppedError(Exception):
    """The story ends early; a thread that hears it just goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One acknowledged event."""

    board: str
    sent: Result
    result: EventResult
    #: The region that answered.
    region: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The event's identity."""
        return self.board, self.sent.player_id, self.sent.event_id


@dataclass(slots=True)
class Tally:
    """Filled by all threads; numbers only grow."""

    submitted: int = 0
    #: Acknowledged as a duplicate: its first acknowledgement got lost on the way.
    repeated: int = 0
    races: int = 0
    rows: int = 0
    unranked: int = 0
    pages: int = 0
    acks: dict[tuple[str, str, str], Ack] = field(default_factory=dict)
    #: Generations held against a plain sort, and the ranks in them.
    sorts: int = 0
    sorted_ranks: int = 0
    #: (begin, end, board) of each call to submit, by the monotonic clock.
    calls: list[tuple[float, float, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, began: float, ended: float, board: str, acks: Iterable[Ack]) -> None:
        """One submission was acknowledged."""
        with self._lock:
            self.calls.append((began, ended, board))
            for ack in acks:
                self.acks[ack.key] = ack
                self.repeated += ack.result.duplicate

    def sent(self, events: int) -> None:
        """Events are about to be sent for the first time."""
        with self._lock:
            self.submitted += events

    def checked(self, *, rows: int = 0, unranked: int = 0, races: int = 0, pages: int = 0) -> None:
        """Answers were compared with the official ones, or with each other."""
        with self._lock:
            self.rows += rows
            self.unranked += unranked
            self.races += races
            self.pages += pages

    def sorted_once(self, ranks: int) -> None:
        """A generation was held against a plain sort."""
        with self._lock:
            self.sorts += 1
            self.sorted_ranks += ranks

    def all_acks(self) -> list[Ack]:
        """Those so far."""
        with self._lock:
            return list(self.acks.values())

    def longest_s(self, begin: float = 0.0, end: float = float("inf"), board: str | None = None) -> float:
        """The longest submission of those that were under way between two moments, to one board or any."""
        with self._lock:
            calls = [ended - began for began, ended, to in self.calls if began < end and ended > begin and board in (None, to)]
        return max(calls, default=0.0)

    def usual_s(self) -> float:
        """The median submission."""
        with self._lock:
            times = sorted(ended - began for began, ended, _ in self.calls)
        return times[len(times) // 2] if times else 0.0

    def first_ack_after(self, moment: float) -> float | None:
        """When the first acknowledgement of a submission that ended after `moment` arrived."""
        with self._lock:
            return min((ended for _, ended, _ in self.calls if ended > moment), default=None)


class Pace:
    """How many races may be begun, and how many are done. The first error of any thread ends the story for all."""

    def __init__(self, total: int, *, limit: int) -> None:
        self.total = total
        self.done = 0
        self._limit, self._begun = limit, 0
        self._spacing_s, self._next_at = 0.0, 0.0
        self._error: BaseException | None = None
        self._over = False
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Wait for leave to begin a race. Raises `StoppedError`."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._begun < self._limit)
            self._begun += 1
            now = time.monotonic()
            turn = max(now, self._next_at)
            self._next_at = turn + self._spacing_s
            self._changed.wait_for(lambda: self._over, turn - now)
            self.check()

    def check(self) -> None:
        """Raises `StoppedError` when the story is over."""
        if self._over:
            raise StoppedError

    def end_race(self) -> None:
        """One more is done."""
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def allow(self, limit: int | None = None, *, per_s: float | None = None) -> None:
        """Let races begin up to `limit` (None: all), at most `per_s` of them a second (None: as they come)."""
        with self._changed:
            self._limit = self.total if limit is None else limit
            self._spacing_s = 1 / per_s if per_s else 0.0
            self._next_at = 0.0
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the story; the first error is told."""
        with self._changed:
            self._error = self._error or error
            self._over = True
            self._changed.notify_all()

    def wait_done(self, races: int, *, idle_s: float = 90.0) -> None:
        """Until `races` are done. Raises what a thread failed with, or `OffTrackError` if none gets done for `idle_s`."""
        with self._changed:
            while self.done < min(races, self.total):
                before = self.done
                if not self._changed.wait_for(lambda before=before: self._over or self.done > before, idle_s):  # type: ignore[misc]
                    raise OffTrackError(f"no race was finished for {idle_s:g} s ({self.done} of {self.total} are done)")
                self.raise_error()

    def raise_error(self) -> None:
        """Raises what a thread failed with, if one did."""
        if self._error is not None:
            raise self._error
