"""The peer of the rank index: a sorted set in one store of the kind that regions use, kept in memory only, which is its fastest.

Its clients are redis-py and the store's own C client with pipelines of 100 (`redis-benchmark` or `valkey-benchmark`), if
this machine has one.
"""

import csv
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from benchmarks.cluster import until
from benchmarks.index_rows import name
from regions import scratch
from regions.store_process import server_binary

BOARD = "board"
C_CLIENTS = ("redis-benchmark", "valkey-benchmark")
#: The store that the goal of bytes a player was set by; newer ones, as the regions' own, hold sorted sets in less.
REDIS = "redis-server"
#: Fills in the store itself, which is quicker than any client.
_FILL = """
math.randomseed(tonumber(ARGV[3]))
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  redis.call('ZADD', KEYS[1], math.floor(math.random() * 1099511627776), string.format('p-%012d', i))
end
"""


class SortedSet:
    """One store with one sorted set, from `with` to its end; `binary` is the regions' own unless another is given."""

    def __init__(self, binary: str | None = None) -> None:
        self._binary = binary or server_binary()
        self._directory = Path(tempfile.mkdtemp(prefix="laurel-peer-"))
        self.port = next(scratch.free_ports())
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Any = redis.Redis(port=self.port)

    def __enter__(self) -> Self:
        flags = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--lua-time-limit",  # the older name of the bound on a script's time, known to all
            "0",
            "--dir",
            str(self._directory),
        ]
        self._process = subprocess.Popen([self._binary, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, "the peer's store answers", 30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def fill(self, players: int) -> None:
        """Give the set so many players with random scores."""
        for first in range(0, players, 10_000):
            self.client.eval(_FILL, 1, BOARD, first, min(first + 10_000, players), first)

    def resident(self) -> int:
        """Bytes of memory that the store's process occupies."""
        return int(self.client.info("memory")["used_memory_rss"])

    def ranks_one_by_one(self, players: int, seconds: float) -> float:
        """ZREVRANK of random players, one after the other, a second."""
        chosen, done = random.Random(1), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            done += self.client.zrevrank(BOARD, name(chosen.randrange(players))) is not None
        return done / (time.perf_counter() - began)

    def ranks_in_pipelines(self, players: int, seconds: float) -> float:
        """The same in pipelines of 1000."""
        chosen, done = random.Random(1), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            pipe = self.client.pipeline(transaction=False)
            for _ in range(1000):
                pipe.zrevrank(BOARD, name(chosen.randrange(players)))
            done += sum(rank is not None for rank in pipe.execute())
        return done / (time.perf_counter() - began)

    def add(self, scores: dict[str, int]) -> float:
        """One variadic ZADD; seconds it took."""
        began = time.perf_counter()
        self.client.zadd(BOARD, scores)
        return time.perf_counter() - began

    def c_client(self, players: int, requests: int) -> float | None:
        """ZREVRANK of random players a second by the C client with pipelines of 100; None where there is no such client."""
        found = next((path for path in map(shutil.which, C_CLIENTS) if path), None)
        if found is None:
            return None
        command = [found, "-p", str(self.port), "-c", "1", "-P", "100", "-n", str(requests), "-r", str(players), "--csv"]
        said = subprocess.run(
            [*command, "ZREVRANK", BOARD, "p-__rand_int__"], check=True, capture_output=True, text=True, timeout=120
        ).stdout
        return float(list(csv.DictReader(said.splitlines()))[-1]["rps"])
