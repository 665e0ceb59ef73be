"""Reads a second from one region over HTTP, on a board of 100,000 players that goes on changing by one write a second.

top: the newest generation's first page of 100, which the gateway holds encoded. rank: one random player. ranks: the
places of 1000 random players in one request. Peer: the same questions to one Redis, whose data does not change.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from benchmarks import peer_redis
from benchmarks.clients import ClientProcesses, Job, Tally, Window
from benchmarks.cluster import Cluster
from benchmarks.figures import Figure, Rung, climbing, figure, knee, median, percentile
from benchmarks.http_client import HttpConnection, Lost, http_request, run_loop
from benchmarks.ingest import event_bodies
from benchmarks.options import Options
from benchmarks.peer_redis import PeerReads, PeerStore, player

PLAYERS = 100_000
LISTED = 1000
LADDERS = {"top": (2, 8, 32), "rank": (4, 16, 64), "ranks": (1, 2, 4)}
PEER_LADDERS = {"top": (1, 2, 4), "rank": (1, 4, 16), "ranks": (1, 2, 4)}
LOAD_BATCH = 500


class _Page(msgspec.Struct):
    entries: list[msgspec.Raw]


_decode = msgspec.json.Decoder(_Page).decode


@dataclass
class Read:
    """One client process that reads: `connections` to one gateway, each asking again when it was answered."""

    port: int
    token: str
    board: str
    what: str
    connections: int
    seed: int
    _requests: list[bytes] = field(default_factory=list)

    def prepare(self) -> None:
        """Encode a fixed set of requests: asked in turn, in an order of each connection's own."""
        chosen = random.Random(self.seed)
        path, host = f"/v1/boards/{self.board}", f"127.0.0.1:{self.port}"

        def get(rest: str) -> bytes:
            return http_request("GET", path + rest, host=host, token=self.token)

        if self.what == "top":
            self._requests = [get("/top?limit=100")]
        elif self.what == "rank":
            self._requests = [get(f"/players/{player(chosen.randrange(PLAYERS))}?view=rank") for _ in range(5000)]
        else:
            lists = ([player(n) for n in chosen.sample(range(PLAYERS), LISTED)] for _ in range(50))
            self._requests = [
                http_request("POST", f"{path}/ranks", host=host, token=self.token, body=msgspec.json.encode({"players": names}))
                for names in lists
            ]

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        tally = Tally()
        run_loop(self._load(window, tally))
        return tally

    async def _load(self, window: Window, tally: Tally) -> None:
        connections = [await HttpConnection.open("127.0.0.1", self.port) for _ in range(self.connections)]
        await asyncio.sleep(max(0.0, window.begins - time.monotonic()))
        await asyncio.gather(*(self._drive(c, n, window, tally) for n, c in enumerate(connections)))

    async def _drive(self, connection: HttpConnection, number: int, window: Window, tally: Tally) -> None:
        wanted = {"top": 100, "rank": 1, "ranks": LISTED}[self.what]
        asked = number * len(self._requests) // self.connections
        try:
            while (began := time.monotonic()) < window.ends:
                asked += 1
                status, body = await connection.ask(self._requests[asked % len(self._requests)])
                ended = time.monotonic()
                if not window.holds(ended):
                    continue
                if status != 200:
                    tally.failures[f"status {status}"] += 1
                elif len(_decode(body).entries) != wanted:
                    tally.failures["another number of entries"] += 1
                else:
                    tally.done += 1
                    tally.latencies.append(ended - began)
        except Lost as error:
            tally.failures[f"lost: {error}"] += 1
        finally:
            connection.close()


class Trickle:
    """One write a second, from `with` to its end, so that generations go on coming."""

    def __init__(self, cluster: Cluster, board: str) -> None:
        self._post = _poster(cluster, board)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.written = 0

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _write(self) -> None:
        for body in event_bodies(1, 7, "trickle", PLAYERS):
            self.written += self._post(body)
            if self._ending.wait(1.0):
                return


def _poster(cluster: Cluster, board: str) -> Callable[[bytes], bool]:
    import httpx

    home = cluster.ports[cluster.regions[0]]
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{home}",
        headers={"authorization": f"Bearer {cluster.token('game-server')}", "content-type": "application/json"},
        timeout=20,
        trust_env=False,
    )
    return lambda body: client.post(f"/v1/boards/{board}/events", content=body).status_code == 200


def fill(cluster: Cluster, board: str) -> None:
    """Give every player a row."""
    post = _poster(cluster, board)
    chosen = random.Random(3)
    for first in range(0, PLAYERS, LOAD_BATCH):
        events = [
            {"event_id": f"fill-{n}", "player_id": player(n), "value": chosen.randrange(1_000_000_000)}
            for n in range(first, first + LOAD_BATCH)
        ]
        if not post(msgspec.json.encode({"events": events})):
            raise RuntimeError("the board could not be filled")


def run(options: Options) -> Iterator[Figure]:
    """Figures for top, rank and ranks, Laurel beside the peer."""
    with ClientProcesses(options.clients) as clients, PeerStore() as peer, Cluster() as cluster:
        options.say(f"filling a board with {PLAYERS:,} players")
        board = cluster.fresh_board(visibility="private")
        fill(cluster, board)
        cluster.settled(cluster.regions[0])
        peer.load(PLAYERS, 3)
        region = cluster.regions[1]
        token = cluster.token("reader")
        for what in ("top",) if options.quick else ("top", "rank", "ranks"):

            def ours(connections: int, trial: int, what: str = what) -> list[Job]:
                return [Read(cluster.ports[region], token, board, what, connections, n * 100 + trial) for n in range(options.clients)]

            def theirs(connections: int, trial: int, what: str = what) -> list[Job]:
                return [PeerReads(peer.port, what, connections, n * 100 + trial, PLAYERS) for n in range(options.clients)]

            options.say(f"{what}: {region}, with one write a second")
            with Trickle(cluster, board) as trickle:
                rate, p50, p99 = _measured(clients, ours, LADDERS[what], options)
            if not trickle.written:
                raise RuntimeError("no write was acknowledged while reading")
            options.say(f"{what}: the peer")
            peer_rate, peer_p50, peer_p99 = _measured(clients, theirs, PEER_LADDERS[what], options)
            name = {"top": "reads_top_100", "rank": "reads_rank", "ranks": "reads_ranks_1000"}[what]
            yield figure(name, rate, "requests/s", peer=peer_redis.NAME, peer_value=peer_rate)
            yield figure(f"{name}_p50", p50, "ms", peer=peer_redis.NAME, peer_value=peer_p50)
            yield figure(f"{name}_p99", p99, "ms", peer=peer_redis.NAME, peer_value=peer_p99)


def _measured(
    clients: ClientProcesses, jobs: Callable[[int, int], list[Job]], ladder: tuple[int, ...], options: Options
) -> tuple[float, float, float]:
    """(requests a second, p50 and p99 in ms) at the knee."""
    rungs: list[Rung] = []
    for trial, connections in enumerate(ladder):
        if not climbing(rungs):
            break
        tally = clients.run(jobs(connections, trial), options.trial_s)
        rungs.append(Rung(connections, tally.done / options.trial_s))
        options.say(f"  {connections} connections a client process: {rungs[-1].rate:,.0f}/s {dict(tally.failures) or ''}")
    rates, p50s, p99s = [], [], []
    for trial in range(options.repeat):
        tally = clients.run(jobs(knee(rungs), 50 + trial), options.seconds)
        rates.append(tally.done / options.seconds)
        p50s.append(percentile(tally.latencies, 0.5) * 1000)
        p99s.append(percentile(tally.latencies, 0.99) * 1000)
    return median(rates), median(p50s), median(p99s)
