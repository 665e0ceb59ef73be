"""Quorum-acknowledged events a second over HTTP: three regions, game servers in all of them, one best-score board.

Each client process belongs to one region and keeps some connections to its gateway busy. For each batch size the number
of connections is raised until more bring no more events (the knee); what is reported was measured there.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from benchmarks import peer_redis
from benchmarks.clients import ClientProcesses, Job, Tally, Window
from benchmarks.cluster import Cluster
from benchmarks.figures import Figure, Rung, climbing, figure, knee, median, percentile
from benchmarks.http_client import HttpConnection, Lost, http_request, run_loop
from benchmarks.options import Options
from benchmarks.peer_redis import PeerIngest, PeerStore, player

PLAYERS = 100_000
GOALS = {500: 20_000.0}
#: Connections of each client process, tried from the left.
LADDERS = {500: (1, 2, 4, 8), 100: (4, 8, 16), 1: (8, 64, 128, 256)}
PEER_LADDERS = {500: (1, 2, 4), 100: (1, 2, 4), 1: (1, 4, 16)}
#: Before anything is measured: about half of the players get a row, and indexes grow to the form that they keep.
FILL_BATCH, FILL_CONNECTIONS, FILL_S, FILL_TRIAL = 500, 2, 4.0, 999
COUNTED = frozenset({"applied_first", "applied", "not_an_improvement"})


class _Result(msgspec.Struct):
    outcome: str
    acked: str = ""


class _Reply(msgspec.Struct):
    results: list[_Result]


_decode = msgspec.json.Decoder(_Reply).decode


def count_acknowledged(body: bytes) -> int:
    """Events of a response that a quorum holds and that were decided now, not before."""
    return sum(result.acked == "quorum" and result.outcome in COUNTED for result in _decode(body).results)


def event_bodies(batch: int, seed: int, unique: str, players: int = PLAYERS) -> Iterator[bytes]:
    """Bodies of a submit without end: random players and values, event ids that never repeat under one `unique`."""
    chosen = random.Random(seed)
    number = 0
    while True:
        events = []
        for _ in range(batch):
            number += 1
            name, value = player(chosen.randrange(players)), chosen.randrange(1_000_000_000)
            events.append(f'{{"event_id":"{unique}-{number}","player_id":"{name}","value":{value}}}')
        yield f'{{"events":[{",".join(events)}]}}'.encode()


@dataclass
class Submit:
    """One client process: `connections` to one gateway, each sending its next batch when the last was answered."""

    host: str
    port: int
    token: str
    board: str
    batch: int
    connections: int
    seed: int
    unique: str
    #: Requests that are encoded before the load begins; what goes beyond is encoded when it is sent.
    encoded: int
    _ready: list[bytes] = field(default_factory=list)
    _more: Iterator[bytes] | None = None

    def prepare(self) -> None:
        """Encode the requests."""
        self._more = self._requests()
        self._ready = [next(self._more) for _ in range(self.encoded)]
        self._ready.reverse()

    def _requests(self) -> Iterator[bytes]:
        path, host = f"/v1/boards/{self.board}/events", f"{self.host}:{self.port}"
        for body in event_bodies(self.batch, self.seed, self.unique):
            yield http_request("POST", path, host=host, token=self.token, body=body)

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        tally = Tally()
        run_loop(self._load(window, tally))
        return tally

    async def _load(self, window: Window, tally: Tally) -> None:
        connections = [await HttpConnection.open(self.host, self.port) for _ in range(self.connections)]
        await asyncio.sleep(max(0.0, window.begins - time.monotonic()))
        await asyncio.gather(*(self._drive(connection, window, tally) for connection in connections))

    async def _drive(self, connection: HttpConnection, window: Window, tally: Tally) -> None:
        assert self._more is not None
        try:
            while (began := time.monotonic()) < window.ends:
                request = self._ready.pop() if self._ready else next(self._more)
                status, body = await connection.ask(request)
                ended = time.monotonic()
                done = count_acknowledged(body) if status == 200 else 0
                tally.all_done += done
                if not window.holds(ended):
                    continue
                if status != 200:
                    tally.failures[f"status {status}"] += 1
                    continue
                tally.done += done
                tally.latencies.append(ended - began)
                if done != self.batch:
                    tally.failures["not acknowledged"] += self.batch - done
        except Lost as error:
            tally.failures[f"lost: {error}"] += 1
        finally:
            connection.close()


class NothingDone(Exception):
    """The load got no answer that counts."""


@dataclass(slots=True)
class Measured:
    """The best of one batch size, for one side."""

    connections: int
    rate: float
    #: Latencies in ms at the knee, and of the lowest rung.
    p50: float
    p99: float
    idle_p50: float
    #: Seconds after the end of the load until every region showed a generation that includes all of it.
    catch_up: float
    #: CPU microseconds of all processes of the regions for each event, catching up included.
    cpu_us: float
    cpu_by_role: dict[str, float]


JobsOf = Callable[[int, int], list[Job]]
CpuSeconds = Callable[[], dict[str, float]]


def measure(
    clients: ClientProcesses, jobs: JobsOf, ladder: tuple[int, ...], options: Options, cpu: CpuSeconds, shown: Callable[[], None]
) -> Measured:
    """Climb the ladder, then measure at its knee.

    `jobs` makes them from (connections, number of the trial); `shown` waits until every region shows all of it.
    """
    rungs: list[Rung] = []
    idle_p50 = 0.0
    trial = 0
    for connections in ladder:
        if not climbing(rungs):
            break
        tally = clients.run(jobs(connections, trial), options.trial_s)
        trial += 1
        if not tally.done:
            raise NothingDone(f"no event was acknowledged: {dict(tally.failures)}")
        rungs.append(Rung(connections, tally.done / options.trial_s))
        options.say(f"  {connections} connections a client process: {rungs[-1].rate:,.0f} events/s {dict(tally.failures) or ''}")
        idle_p50 = idle_p50 or percentile(tally.latencies, 0.5) * 1000
    chosen = knee(rungs)
    shown()
    rates, p50s, p99s, costs, lags = [], [], [], [], []
    by_role: dict[str, float] = {}
    for _ in range(options.repeat):
        before = cpu()
        tally = clients.run(jobs(chosen, trial), options.seconds)
        trial += 1
        ended = time.monotonic()
        shown()
        lags.append(time.monotonic() - ended)
        by_role = {role: (s - before.get(role, 0.0)) * 1e6 / max(1, tally.all_done) for role, s in cpu().items()}
        rates.append(tally.done / options.seconds)
        p50s.append(percentile(tally.latencies, 0.5) * 1000)
        p99s.append(percentile(tally.latencies, 0.99) * 1000)
        costs.append(sum(by_role.values()))
        if tally.failures:
            options.say(f"  not counted: {dict(tally.failures)}")
    return Measured(chosen, median(rates), median(p50s), median(p99s), idle_p50, median(lags), median(costs), by_role)


def run(options: Options) -> Iterator[Figure]:
    """Figures for each batch size, Laurel beside the peer."""
    batches = (500,) if options.quick else (500, 100, 1)
    with ClientProcesses(options.clients) as clients, PeerStore() as peer, Cluster() as cluster:
        for batch in batches:
            options.say(f"batches of {batch}: three regions")
            board = cluster.fresh_board()
            clients.run(_submits(cluster, board, FILL_BATCH, options)(FILL_CONNECTIONS, FILL_TRIAL), FILL_S)
            cluster.settled(cluster.regions[0])
            ours = measure(
                clients, _submits(cluster, board, batch, options), LADDERS[batch], options, cluster.cpu_s, partial(cluster.shown, board)
            )
            cluster.settled(cluster.regions[0])
            options.say(f"batches of {batch}: the peer")
            peer.empty()
            theirs = measure(clients, _peers(peer, batch, options), PEER_LADDERS[batch], options, dict, lambda: None)
            options.say(
                f"  knee: {ours.connections} connections a client process, the peer's {theirs.connections}; "
                f"CPU µs an event: {', '.join(f'{role} {us:.1f}' for role, us in sorted(ours.cpu_by_role.items()))}"
            )
            name = f"ingest_batch_{batch}"
            yield figure(name, ours.rate, "events/s", peer=peer_redis.NAME, peer_value=theirs.rate, goal=GOALS.get(batch))
            yield figure(f"{name}_p50", ours.p50, "ms", peer=peer_redis.NAME, peer_value=theirs.p50)
            yield figure(f"{name}_p99", ours.p99, "ms", peer=peer_redis.NAME, peer_value=theirs.p99)
            yield figure(f"{name}_few_clients_p50", ours.idle_p50, "ms", peer=peer_redis.NAME, peer_value=theirs.idle_p50)
            yield figure(f"{name}_catch_up", ours.catch_up, "s")
            yield figure(f"{name}_cpu", ours.cpu_us, "us/event")


def _submits(cluster: Cluster, board: str, batch: int, options: Options) -> JobsOf:
    token = cluster.token("game-server")

    def jobs(connections: int, trial: int) -> list[Job]:
        made: list[Job] = []
        for number in range(options.clients):
            region = cluster.regions[number % len(cluster.regions)]
            unique = f"{region[:2]}{number}-{batch}-{trial}"
            encoded = int(14_000 / batch / options.clients * (options.seconds + 1)) or 1
            made.append(
                Submit("127.0.0.1", cluster.ports[region], token, board, batch, connections, number * 1000 + trial, unique, encoded)
            )
        return made

    return jobs


def _peers(peer: PeerStore, batch: int, options: Options) -> JobsOf:
    def jobs(connections: int, trial: int) -> list[Job]:
        return [PeerIngest(peer.port, batch, connections, number * 1000 + trial, PLAYERS) for number in range(options.clients)]

    return jobs
