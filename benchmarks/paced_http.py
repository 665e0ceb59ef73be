"""Client processes of a sharded board: fill it, send events at a fixed rate, read at a fixed rate, watch events appear."""

import asyncio
import math
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from benchmarks.clients import Tally, Window
from benchmarks.http_client import HttpConnection, Lost, http_request, run_loop
from benchmarks.ingest import COUNTED, event_bodies
from benchmarks.paced import GRACE_S, NotServed, arrivals, keep_pace
from benchmarks.peer_redis import player

FILL_BATCH = 1000
#: Asked again while no generation includes the position, for so long after the event was due.
SEEN_S = 10.0
_LISTED = 1000


class Result(msgspec.Struct):
    """What became of one event; no offset: no shard took it."""

    outcome: str
    acked: str = ""
    shard: str = ""
    epoch: int = 0
    offset: int = 0


class _Reply(msgspec.Struct):
    results: list[Result]


class _Event(msgspec.Struct):
    player_id: str
    value: int


class _Events(msgspec.Struct):
    events: list[_Event]


class _Entry(msgspec.Struct):
    position: int
    rank: int
    player_id: str
    value: str


class _Answer(msgspec.Struct):
    generation: str
    entries: list[_Entry]


class _Page(msgspec.Struct):
    generation: str
    entries: list[msgspec.Raw]


_reply = msgspec.json.Decoder(_Reply).decode
_events = msgspec.json.Decoder(_Events).decode
_answer = msgspec.json.Decoder(_Answer).decode
_page = msgspec.json.Decoder(_Page).decode


def decode_results(body: bytes) -> list[Result]:
    """The results of a submit's answer, in order."""
    return _reply(body).results


class Place(NamedTuple):
    """What a rank read said, for the comparison with an offline sort."""

    generation: str
    player_id: str
    position: int
    rank: int
    value: str


class Sighting(NamedTuple):
    """When a sampled event was first in an answer of a region: seconds after it was due to be sent, infinite if never."""

    region: str
    seconds: float
    generation: str
    sent_from: str


@dataclass
class Sent:
    """What became of the events of one client process, as columns: enough to tell what any generation must hold."""

    #: Epoch and offset of each event that a shard took, its slice's shard, its player and its value.
    shards: list[str] = field(default_factory=list)
    shard: "array[int]" = field(default_factory=lambda: array("b"))
    epoch: "array[int]" = field(default_factory=lambda: array("q"))
    offset: "array[int]" = field(default_factory=lambda: array("q"))
    value: "array[int]" = field(default_factory=lambda: array("q"))
    players: list[str] = field(default_factory=list)
    #: Players of events whose outcome is not known.
    unsure: list[str] = field(default_factory=list)
    #: Events that changed a row, of those acknowledged within the window.
    changed: int = 0

    def take(self, body: bytes, results: list[Result] | None) -> None:
        """One request's events and what was said of them; None: nothing that can be relied on."""
        events = _events(body).events
        if results is None:
            self.unsure += [event.player_id for event in events]
            return
        for event, result in zip(events, results, strict=True):
            if not result.offset:
                self.unsure.append(event.player_id)
                continue
            if result.shard not in self.shards:
                self.shards.append(result.shard)
            self.shard.append(self.shards.index(result.shard))
            self.epoch.append(result.epoch)
            self.offset.append(result.offset)
            self.value.append(event.value)
            self.players.append(event.player_id)


def filled_values(first: int) -> list[int]:
    """Values of the players `first` to `first + FILL_BATCH - 1` of a filled board."""
    chosen = random.Random(f"fill {first}")
    return [chosen.randrange(1_000_000_000) for _ in range(FILL_BATCH)]


@dataclass
class Fill:
    """One client process that gives players their first rows: batches `first`, `first + step`, ... of `FILL_BATCH` players, up to `end`."""

    port: int
    token: str
    board: str
    first: int
    step: int
    end: int
    connections: int
    _batches: list[bytes] = field(default_factory=list)

    def prepare(self) -> None:
        """Encode the requests."""
        host, path = f"127.0.0.1:{self.port}", f"/v1/boards/{self.board}/events"
        self._batches = []
        for first in range(self.first, self.end, self.step):
            events = ",".join(
                f'{{"event_id":"fill-{n}","player_id":"{player(n)}","value":{value}}}'
                for n, value in enumerate(filled_values(first), first)
                if n < self.end
            )
            self._batches.append(http_request("POST", path, host=host, token=self.token, body=f'{{"events":[{events}]}}'.encode()))

    def run(self, window: Window) -> Tally:
        """Send all of it, however long it takes: the window does not count."""
        tally = Tally()
        run_loop(self._load(tally))
        return tally

    async def _load(self, tally: Tally) -> None:
        waiting = iter(self._batches)

        async def work() -> None:
            connection = await HttpConnection.open("127.0.0.1", self.port)
            for request in waiting:
                tries = 0
                while True:  # the same ids again: what was taken is a duplicate then
                    status, body = await connection.ask(request)
                    if status == 200:
                        break
                    tally.failures[f"status {status}, sent again"] += 1
                    tries += 1
                    if tries > 20:
                        raise RuntimeError(f"the board could not be filled: status {status}, {body[:200]!r}")
                    await asyncio.sleep(0.2)
                results = decode_results(body)
                tally.all_done += sum(result.outcome in ("applied_first", "duplicate") for result in results)
            connection.close()

        await asyncio.gather(*(work() for _ in range(self.connections)))


@dataclass
class PacedEvents:
    """One client process that sends batches to one region's gateway at a fixed rate, and follows some events until they are shown.

    `kept` of its tally holds one `Sent`, and a `Sighting` for each followed event and region.
    """

    region: str
    #: Region -> port of its gateway.
    ports: dict[str, int]
    token: str
    board: str
    #: Whether positions need the name of their shard.
    spread: bool
    batch: int
    #: Batches a second.
    rate: float
    connections: int
    seed: int
    unique: str
    players: int
    #: Batches that are encoded before the load begins; what goes beyond is encoded when it is sent.
    encoded: int
    #: One event of every so many batches is followed; 0: none.
    follow: int = 0
    _ready: list[tuple[bytes, bytes]] = field(default_factory=list)
    _more: Iterator[tuple[bytes, bytes]] | None = None

    def prepare(self) -> None:
        """Encode the requests."""
        self._more = self._requests()
        self._ready = [next(self._more) for _ in range(self.encoded)]
        self._ready.reverse()

    def _requests(self) -> Iterator[tuple[bytes, bytes]]:
        path, host = f"/v1/boards/{self.board}/events", f"127.0.0.1:{self.ports[self.region]}"
        for body in event_bodies(self.batch, self.seed, self.unique, self.players):
            yield http_request("POST", path, host=host, token=self.token, body=body), body

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        tally = Tally()
        run_loop(self._load(window, tally))
        return tally

    async def _load(self, window: Window, tally: Tally) -> None:
        answered: list[tuple[bytes, list[Result] | None]] = []
        watchers: list[asyncio.Task[None]] = []
        idle: dict[str, list[HttpConnection]] = {region: [] for region in self.ports}
        chosen, sent = random.Random(self.seed), Sent()

        async def serve(connection: HttpConnection, number: int, due: float) -> int:
            assert self._more is not None
            request, body = self._ready.pop() if self._ready else next(self._more)
            try:
                status, raw = await connection.ask(request)
            except Lost:
                answered.append((body, None))
                raise
            results = decode_results(raw) if status in (200, 503) and b'"results"' in raw else None
            answered.append((body, results))
            if status != 200 or results is None:
                raise NotServed(f"status {status}")
            done = sum(result.acked == "quorum" and result.outcome in COUNTED for result in results)
            if done != len(results):
                tally.failures["events not acknowledged by a quorum"] += len(results) - done
            if window.holds(time.monotonic()):
                sent.changed += sum(result.outcome in ("applied", "applied_first") for result in results)
            if self.follow and number % self.follow == 0 and window.holds(due):
                result = results[chosen.randrange(len(results))]
                watchers.extend(asyncio.create_task(self._watch(region, result, due, idle[region], tally)) for region in self.ports)
            return done

        try:
            await keep_pace(
                lambda: HttpConnection.open("127.0.0.1", self.ports[self.region]),
                self.connections,
                arrivals(self.rate, window.ends - window.begins, self.unique),
                window,
                tally,
                serve,
            )
            await asyncio.gather(*watchers)
        finally:
            for connection in (connection for each in idle.values() for connection in each):
                connection.close()
        for body, results in answered:
            sent.take(body, results)
        tally.kept.append(sent)

    async def _watch(self, region: str, result: Result, due: float, idle: list[HttpConnection], tally: Tally) -> None:
        """Ask one region for a generation with the event until it has one; each question waits up to a second by itself."""
        at = f"{result.epoch}-{result.offset}"
        path = f"/v1/boards/{self.board}/top?limit=1&at_least={f'{result.shard}:{at}' if self.spread else at}"
        request = http_request("GET", path, host=f"127.0.0.1:{self.ports[region]}", token=self.token)
        connection = idle.pop() if idle else await HttpConnection.open("127.0.0.1", self.ports[region])
        while True:
            try:
                status, body = await connection.ask(request)
            except Lost as error:
                tally.failures[f"watching: {error}"] += 1
                tally.kept.append(Sighting(region, math.inf, "", self.region))
                return
            seconds = time.monotonic() - due
            if status == 200:
                tally.kept.append(Sighting(region, seconds, _page(body).generation, self.region))
                break
            if seconds > SEEN_S or status not in (503, 504):
                tally.failures[f"watching: status {status}"] += 1
                tally.kept.append(Sighting(region, math.inf, "", self.region))
                break
            await asyncio.sleep(0.01)
        idle.append(connection)


@dataclass
class PacedReads:
    """One client process that reads from one gateway at a fixed rate: `what` is top (a first page of 100), rank or ranks (1000 in one).

    `kept` of its tally holds a `Place` for each rank that was read.
    """

    port: int
    token: str
    board: str
    what: str
    #: Requests a second.
    rate: float
    connections: int
    seed: int
    players: int
    #: Different requests, asked in turn.
    requests: int = 5000
    _requests: list[bytes] = field(default_factory=list)

    def prepare(self) -> None:
        """Encode the requests."""
        chosen, host, path = random.Random(self.seed), f"127.0.0.1:{self.port}", f"/v1/boards/{self.board}"

        def get(rest: str) -> bytes:
            return http_request("GET", path + rest, host=host, token=self.token)

        if self.what == "top":
            self._requests = [get("/top?limit=100")]
        elif self.what == "rank":
            self._requests = [get(f"/players/{player(chosen.randrange(self.players))}?view=rank") for _ in range(self.requests)]
        else:
            lists = ([player(n) for n in chosen.sample(range(self.players), min(_LISTED, self.players))] for _ in range(50))
            self._requests = [
                http_request("POST", f"{path}/ranks", host=host, token=self.token, body=msgspec.json.encode({"players": names}))
                for names in lists
            ]

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        tally = Tally()
        wanted = {"top": min(100, self.players), "rank": 1, "ranks": min(_LISTED, self.players)}[self.what]

        async def serve(connection: HttpConnection, number: int, due: float) -> int:
            status, body = await connection.ask(self._requests[number % len(self._requests)], timeout_s=GRACE_S)
            if status != 200:
                raise NotServed(f"status {status}")
            if self.what == "rank":
                answer = _answer(body)
                row = answer.entries[0]
                tally.kept.append(Place(answer.generation, row.player_id, row.position, row.rank, row.value))
            elif len(_page(body).entries) != wanted:
                raise NotServed("another number of entries")
            return 1

        async def load() -> None:
            instants = arrivals(self.rate, window.ends - window.begins, f"{self.what} {self.seed}")
            await keep_pace(lambda: HttpConnection.open("127.0.0.1", self.port), self.connections, instants, window, tally, serve)

        run_loop(load())
        return tally
