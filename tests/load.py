"""Load on a running cluster that keeps its own books: game servers that submit to three boards, watchers that read two of them.

A game server submits small batches at an even pace through the SDK and repeats each batch with the same event
ids until every event of it is acknowledged, so that at the end nothing is unknown. What was acknowledged can
then be held against boards and journals.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from boards.slicing import slice_of
from laurel import LaurelClient, OutcomeUnknown, Unavailable

#: Of the board over several shards.
SLICES = 3
#: Outcomes that say: this event is in the journal, once.
RECORDED = {"applied", "applied_first", "not_an_improvement", "duplicate"}


@dataclass(slots=True)
class Book:
    """What all game servers of one load know. Times are of `time.monotonic`; `lock` guards everything."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Event id -> player, of acknowledged events of the cumulative board, and of the one over several shards; each added 1.
    counted: dict[str, str] = field(default_factory=dict)
    spread: dict[str, str] = field(default_factory=dict)
    #: Event id -> player, of acknowledged events of the best-score board.
    scored: dict[str, str] = field(default_factory=dict)
    #: Player -> best acknowledged score.
    best: dict[str, int] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Batches that were once unknown, and those that were once refused with nothing appended.
    unknown: int = 0
    refused: int = 0
    #: (region of the game server, sent at, acknowledged at) of each batch.
    acknowledged: list[tuple[str, float, float]] = field(default_factory=list)
    #: Board -> shard -> the greatest position acknowledged.
    last: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def events(self) -> set[str]:
        """Ids of all acknowledged events."""
        with self.lock:
            return {*self.counted, *self.scored, *self.spread}

    def pause_s(self, since: float, region: str | None = None) -> float:
        """The longest time after `since` in which nobody (or not the game server of `region`) had an acknowledgement."""
        with self.lock:
            times = sorted(at for name, _, at in self.acknowledged if at >= since and region in (None, name))
        return max((b - a for a, b in itertools.pairwise([since, *times])), default=0.0)

    def sent_and_acknowledged(self, since: float) -> set[str]:
        """Regions whose game server had an acknowledgement for something that it sent after `since`."""
        with self.lock:
            return {name for name, sent, _ in self.acknowledged if sent >= since}


class Load:
    """One game server and one watcher a region, from `with` to its end. `name` makes players and events its own."""

    def __init__(
        self, cluster: Any, total_board: str, best_board: str, spread_board: str, name: str, *, pause_s: float = 0.1, players: int = 6
    ) -> None:
        self.book = Book()
        self.watchers = {region: Watcher(cluster.http(region, None), (total_board, spread_board)) for region in cluster.regions}
        self._total, self._best, self._spread = total_board, best_board, spread_board
        self._name, self._pause_s = name, pause_s
        #: The same on all boards; each slice of the one over several shards has as many of them.
        self.players = [_in_slice(number % SLICES, f"{name}-p{number}") for number in range(players)]
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(region, cluster.client(prefer=region, timeout_s=3.0, max_attempts=3, total_timeout_s=6.0)),
                name=f"server-{region}",
            )
            for region in cluster.regions
        ]

    def __enter__(self) -> Self:
        for thread in (*self._threads, *self.watchers.values()):
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish_writing()
        for watcher in self.watchers.values():
            watcher.finish()

    def finish_writing(self) -> None:
        """Send nothing new; return when everything that was sent is acknowledged. Idempotent."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _serve(self, region: str, client: LaurelClient) -> None:
        try:
            for batch in self._batches(region):
                if self._ending.is_set():
                    return
                began = time.monotonic()
                self._submit(region, client, *batch)
                self._ending.wait(max(0.0, self._pause_s - (time.monotonic() - began)))
        except Exception as error:  # told by the test, which sees the whole
            with self.book.lock:
                self.book.failures.append(f"{region}: {error!r}")

    def _batches(self, region: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Two events a batch: two batches with deltas, one with scores that mostly rise; and one of an event for each of several shards."""
        for number in itertools.count():
            board = (self._total, self._total, self._best, self._spread)[number % 4]
            gain = {"value": number * 10 + (number * 7919) % 40} if board == self._best else {"delta": 1}
            ids = (f"{self._name}-{region}-{number}-{i}" for i in range(SLICES if board == self._spread else 2))
            yield (
                board,
                [
                    {"player_id": self.players[(number + i) % len(self.players)], "event_id": event_id, **gain}
                    for i, event_id in enumerate(ids)
                ],
            )

    def _submit(self, region: str, client: LaurelClient, board: str, events: list[dict[str, Any]]) -> None:
        deadline = time.monotonic() + 240
        sent = time.monotonic()
        while True:
            try:
                reply = client.submit(board, events)
                break
            except (OutcomeUnknown, Unavailable) as error:
                with self.book.lock:
                    if isinstance(error, OutcomeUnknown):
                        self.book.unknown += 1
                    else:
                        self.book.refused += 1
                if time.monotonic() > deadline:
                    raise
        now, book = time.monotonic(), self.book
        with book.lock:
            for event, result in zip(events, reply.results, strict=True):
                if result.outcome not in RECORDED:
                    raise AssertionError(f"{event} got {result}")
                book.outcomes[result.outcome] += 1
                if "delta" in event:
                    counted = book.spread if board == self._spread else book.counted
                    counted[event["event_id"]] = event["player_id"]
                else:
                    book.scored[event["event_id"]] = event["player_id"]
                    book.best[event["player_id"]] = max(event["value"], book.best.get(event["player_id"], -1))
            book.acknowledged.append((region, sent, now))
            last = book.last.setdefault(board, {})
            for shard, position in reply.positions.items():
                last[shard] = max(last.get(shard, position), position, key=place)


class Watcher(threading.Thread):
    """Reads the tops of boards from one region all the time, in turns, and notes when it was answered with which generation."""

    def __init__(self, http: httpx.Client, boards: Sequence[str], *, pause_s: float = 0.05) -> None:
        super().__init__(name=f"watcher-{http.base_url.port}")
        self._http, self.boards, self._pause_s = http, tuple(boards), pause_s
        self._ending = threading.Event()
        #: (answered at, board, generation)
        self.answers: list[tuple[float, str, int]] = []
        #: Generations of one board that were answered after a newer one.
        self.backwards: list[tuple[int, int]] = []

    def run(self) -> None:
        """Poll until `finish`. The first page of 3 is asked of the replica, not of what the gateway keeps ready."""
        newest = dict.fromkeys(self.boards, 0)
        turns = itertools.cycle(self.boards)
        with self._http:
            while not self._ending.wait(self._pause_s):
                board = next(turns)
                try:
                    reply = self._http.get(f"/v1/boards/{board}/top?limit=3", timeout=2)
                except httpx.HTTPError:
                    continue
                if reply.status_code != 200:
                    continue
                generation = int(reply.json()["generation"][1:])
                if generation < newest[board]:
                    self.backwards.append((newest[board], generation))
                newest[board] = max(newest[board], generation)
                self.answers.append((time.monotonic(), board, generation))

    def finish(self) -> None:
        """Stop and wait for the end."""
        self._ending.set()
        self.join()

    def gap_s(self, since: float, until: float) -> float:
        """The longest time without an answer in between."""
        times = [at for at, _, _ in list(self.answers) if since <= at <= until]
        return max(b - a for a, b in itertools.pairwise([since, *times, until]))

    def newest(self, board: str, since: float = 0.0) -> int:
        """A board's newest generation answered after `since`; -1 if there was no answer."""
        return max((generation for at, of, generation in list(self.answers) if of == board and at >= since), default=-1)


def no_region_answered_s(watchers: dict[str, Watcher], since: float, until: float) -> float:
    """The longest time in which no region at all answered a read."""
    times = sorted(at for watcher in watchers.values() for at, _, _ in list(watcher.answers) if since <= at <= until)
    return max(b - a for a, b in itertools.pairwise([since, *times, until]))


def place(position: str) -> tuple[int, int]:
    """(epoch, offset) of a position such as `7-1042` or `eu-west/1:7-1042`."""
    epoch, _, offset = position.rpartition(":")[2].partition("-")
    return int(epoch), int(offset)


def _in_slice(wanted: int, name: str) -> str:
    """An id that begins with `name` and lives in that slice."""
    return next(player for n in itertools.count() if slice_of(player := f"{name}-{n}", SLICES) == wanted)
