"""The peer: what a game would build on one Redis instead, measured with the store binary that the regions use.

One server, every write synced to disk before its answer (the same flags as a region's store), no replica, no HTTP,
no token. Clients are redis-py, one connection a thread, and send pipelines as its users would.
"""

import random
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from benchmarks.clients import Tally, Window
from benchmarks.cluster import until
from regions import scratch
from regions.store_process import StoreAddress, store_command

NAME = "redis-py, one Valkey, AOF always"
IDENTITIES, BOARD = "events", "board"
#: Deduplicate by event id, keep the best score: what Laurel's `best_score` does, without ties, versions or history.
SUBMIT = """
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[3]) == 0 then return 2 end
return redis.call('ZADD', KEYS[2], 'GT', 'CH', ARGV[3], ARGV[2])
"""


class PeerStore:
    """One store in a directory of its own, from `with` to its end."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="laurel-peer-"))
        self.port = next(scratch.free_ports())
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = store_command(StoreAddress(host="127.0.0.1", port=self.port, directory=self._directory))
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, "the peer's store answers", 15)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def empty(self) -> None:
        """Begin anew."""
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def load(self, players: int, seed: int) -> None:
        """A board of `players` with random values."""
        chosen = random.Random(seed)
        with redis.Redis(port=self.port) as client:
            for first in range(0, players, 1000):
                client.zadd(BOARD, {player(n): chosen.randrange(1_000_000_000) for n in range(first, min(players, first + 1000))})


def player(number: int) -> str:
    """A player id, here and at the regions."""
    return f"player-{number:06d}"


@dataclass
class PeerIngest:
    """One client process of the peer: `connections` threads, each sending pipelines of `batch` EVALSHA."""

    port: int
    batch: int
    connections: int
    seed: int
    players: int
    _clients: list[Any] = field(default_factory=list)
    _sha: str = ""

    def prepare(self) -> None:
        """Connect, and load the script."""
        self._clients = [redis.Redis(port=self.port) for _ in range(self.connections)]
        self._sha = str(self._clients[0].script_load(SUBMIT))
        for client in self._clients:
            client.ping()

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        return _in_threads(self._clients, self._work, window)

    def _work(self, client: Any, number: int, window: Window, tally: Tally) -> None:
        chosen = random.Random(f"{self.seed}-{number}")
        prefix, sent = f"{self.seed}-{number}-{window.begins:.3f}", 0
        while (began := time.monotonic()) < window.ends:
            pipe = client.pipeline(transaction=False)
            for _ in range(self.batch):
                sent += 1
                pipe.evalsha(
                    self._sha,
                    2,
                    IDENTITIES,
                    BOARD,
                    f"{prefix}-{sent}",
                    player(chosen.randrange(self.players)),
                    chosen.randrange(1_000_000_000),
                )
            answers = pipe.execute()
            ended = time.monotonic()
            if window.holds(ended):
                tally.done += sum(answer in (0, 1) for answer in answers)
                tally.latencies.append(ended - began)


@dataclass
class PeerReads:
    """One client process of the peer that reads: `what` is top, rank or ranks (1000 ZREVRANK in one pipeline)."""

    port: int
    what: str
    connections: int
    seed: int
    players: int
    _clients: list[Any] = field(default_factory=list)

    def prepare(self) -> None:
        """Connect."""
        self._clients = [redis.Redis(port=self.port) for _ in range(self.connections)]
        for client in self._clients:
            client.ping()

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        return _in_threads(self._clients, self._work, window)

    def _work(self, client: Any, number: int, window: Window, tally: Tally) -> None:
        chosen = random.Random(f"{self.seed}-{number}")
        while (began := time.monotonic()) < window.ends:
            if self.what == "top":
                done = len(client.zrevrange(BOARD, 0, 99, withscores=True)) == 100
            elif self.what == "rank":
                done = client.zrevrank(BOARD, player(chosen.randrange(self.players))) is not None
            else:
                pipe = client.pipeline(transaction=False)
                for _ in range(1000):
                    pipe.zrevrank(BOARD, player(chosen.randrange(self.players)))
                done = None not in pipe.execute()
            ended = time.monotonic()
            if window.holds(ended):
                tally.done += done
                tally.latencies.append(ended - began)


def _in_threads(clients: list[Any], work: Any, window: Window) -> Tally:
    """One thread a connection; the sum of what they did."""
    tallies = [Tally() for _ in clients]
    threads = [
        threading.Thread(target=work, args=(client, number, window, tally), daemon=True)
        for number, (client, tally) in enumerate(zip(clients, tallies, strict=True))
    ]
    time.sleep(max(0.0, window.begins - time.monotonic()))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total
