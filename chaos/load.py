"""Clients of every region under chaos: game servers that write, readers that look. All they know goes into the history.

A game server sends small batches at an even pace through the SDK, which falls over to the other regions. What stays unknown
or is refused it mostly sends again with the same event ids, and sometimes gives up, as real ones do; what is acknowledged it
sometimes delivers a second time, through any region. Nothing is kept in memory.
"""

import itertools
import random
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.history import Answered, History, Policy, Read, Result, Sent
from laurel import LaurelClient, OutcomeUnknown, Unavailable
from laurel.errors import LaurelError, Refused
from laurel.models import EventResult, Page

PLAYERS = 48
#: Chances to give up a batch for good after a failure, and to deliver an acknowledged one again.
_GIVE_UP, _AGAIN = 0.15, 0.04
_TRIES, _LAST_TRIES = 40, 5
_READ_LIMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where clients go: region -> URL, a token for both kinds of them, the boards and the seed of their choices."""

    urls: Mapping[str, str]
    token: str
    boards: Mapping[str, Policy]
    seed: int


class GameServer(threading.Thread):
    """Writes from one region until `stop`. `events_per_s` is its pace when all is well."""

    def __init__(self, region: str, place: Place, history: History, *, events_per_s: float) -> None:
        super().__init__(name=f"server-{region}")
        self._region, self._place, self._history = region, place, history
        self._dice = random.Random(f"{place.seed} {region}")
        self._client = LaurelClient(place.urls, place.token, prefer=region, timeout_s=2.5, max_attempts=3, total_timeout_s=6.0)
        self._pause_s = 2.0 / events_per_s  # a batch has two events on average
        self._ending = threading.Event()
        #: Why it ended by itself, which it must not; "" while all is well.
        self.failure = ""
        #: How many events were acknowledged so far.
        self.acknowledged = 0

    def run(self) -> None:
        """Send batches until `stop`."""
        try:
            for number in itertools.count():
                began = self._history.now()
                self._deliver(number)
                if self._ending.wait(max(0.0, self._pause_s - (self._history.now() - began))):
                    return
        except Exception as error:  # the run reports it: a client that dies quietly would prove nothing
            self.failure = f"{self.name}: {error!r}"
        finally:
            self._client.close()

    def stop(self) -> None:
        """Begin nothing new; what is under way comes to its end."""
        self._ending.set()

    def _deliver(self, number: int) -> None:
        board, events = self._batch(number)
        left = events
        for tried in range(_TRIES):
            answered = self._submit(number, board, left)
            missing = {result.event_id for result in answered if result.outcome in ("unknown", "refused")}
            left = [event for event in left if event[0] in missing]
            self.acknowledged += len(answered) - len(missing)
            if not left:
                break
            if self._dice.random() < _GIVE_UP or (self._ending.is_set() and tried > _LAST_TRIES):
                return
            self._ending.wait(self._dice.uniform(0.02, 0.5))
        if not left and self._dice.random() < _AGAIN:
            self._submit(number, board, events, self._dice.choice(list(self._place.urls)))

    def _batch(self, number: int) -> tuple[str, list[tuple[str, str, int]]]:
        board = self._dice.choices(list(self._place.boards), [2, 1])[0]
        players = self._dice.sample(range(PLAYERS), self._dice.choice((1, 2, 2, 3)))
        events = [(f"{self._region}-{number}-{index}", f"p{player:02d}", self._amount(board)) for index, player in enumerate(players)]
        return board, events

    def _amount(self, board: str) -> int:
        if self._place.boards[board] == "cumulative":
            return self._dice.choice((1, 2, 3, 5, 8, 13, 21, -1, -2))
        return int(self._history.now() * 10) + self._dice.randrange(2000)  # most improve on what is there, some do not

    def _submit(self, number: int, board: str, events: list[tuple[str, str, int]], region: str | None = None) -> list[Result]:
        field = "delta" if self._place.boards[board] == "cumulative" else "value"
        bodies = [{"event_id": event_id, "player_id": player, field: amount} for event_id, player, amount in events]
        self._history.write(Sent(t=self._history.now(), server=self.name, batch=number, board=board, events=events))
        asked, why = region or self._region, ""
        try:
            reply = self._client.submit(board, bodies, region=region)
            results, asked = [result_of(found) for found in reply.results], reply.region or ""
        except OutcomeUnknown as error:
            results, why = [result_of(found) for found in error.results], error.detail
        except Unavailable as error:
            results, why = [Result(event[0], "refused" if error.definite else "unknown") for event in events], error.detail
        except Refused as error:  # no event of a run deserves that: the judge says so
            results, why = [Result(event[0], error.code) for event in events], error.detail
        line = Answered(t=self._history.now(), server=self.name, batch=number, region=asked, results=results, why=why)
        self._history.write(line)
        return results


def result_of(found: EventResult) -> Result:
    """What a history keeps of the SDK's result."""
    value = None if found.value is None else int(found.value)
    return Result(found.event_id, found.outcome, found.epoch or 0, found.offset or 0, value, found.version)


class Reader(threading.Thread):
    """Reads from one region until `stop`: of the region alone, and with the others to fall back on, in turn."""

    def __init__(self, region: str, place: Place, history: History, *, pause_s: float) -> None:
        super().__init__(name=f"reader-{region}")
        self._region, self._place, self._history, self._pause_s = region, place, history, pause_s
        self._own = LaurelClient({region: place.urls[region]}, place.token, timeout_s=1.0, max_attempts=1, total_timeout_s=1.5)
        self._any = LaurelClient(place.urls, place.token, prefer=region, timeout_s=1.0, max_attempts=8, total_timeout_s=6.0)
        self._ending = threading.Event()
        #: As a game server's.
        self.failure = ""

    def run(self) -> None:
        """Read until `stop`."""
        try:
            for board in itertools.cycle(self._place.boards):
                self._read(board, self._own, own=True)
                self._read(board, self._any, own=False)
                if self._ending.wait(self._pause_s):
                    return
        except Exception as error:  # as a game server's
            self.failure = f"{self.name}: {error!r}"
        finally:
            self._own.close()
            self._any.close()

    def stop(self) -> None:
        """End after the read under way."""
        self._ending.set()

    def _read(self, board: str, client: LaurelClient, *, own: bool) -> None:
        asked, page, why = self._history.now(), None, ""
        try:
            page = client.top(board, _READ_LIMIT)
        except LaurelError as error:
            why = f"{error.code}: {error.detail}"
        self._history.write(
            Read(
                t=self._history.now(),
                reader=self._region,
                scope="own" if own else "any",
                asked=asked,
                board=board,
                region=(page.region or "") if page else "",
                generation=int(page.generation[1:]) if page else -1,
                age_ms=(page.age_ms or 0) if page else 0,
                checksum=(page.checksum or "") if page else "",
                page=hash_of(page) if page else "",
                why=why,
            )
        )


def hash_of(page: Page) -> str:
    """Of the entries in their order; equal pages have equal ones."""
    text = "\n".join(f"{e.position} {e.rank} {e.player_id} {e.value} {e.version} {e.achieved_at}" for e in page.entries)
    return f"{zlib.crc32(text.encode()):08x}"
