"""The peer of the sharded board at the same fixed rates: one Valkey with one sorted set, over bare connections.

The connections send ready-made commands and wait for as many lines as the answer has, so the peer's client costs as little
as that of the regions.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import cast

from benchmarks.clients import Tally, Window
from benchmarks.http_client import Lost, run_loop
from benchmarks.paced import NotServed, arrivals, keep_pace
from benchmarks.peer_redis import BOARD, player

NAME = "one Valkey ZSET, AOF always, bare client"
SEEN_NAME = "one Valkey, which has no generations: ZADD answered, then ZREVRANK answered"
#: Lines of an answer: an integer, or a list of a hundred members with scores, each with a line that tells its length.
LINES = {"write": 1, "seen": 1, "rank": 1, "ranks": 1000, "top": 401}


def command(*words: str | int) -> bytes:
    """A command as the store reads it."""
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RespConnection(asyncio.Protocol):
    """One connection; one request, or one pipeline, at a time. Values may not hold a line feed."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._buffer = bytearray()
        self._lines = self._wanted = 0

    @classmethod
    async def open(cls, port: int) -> "RespConnection":
        """Connect. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, request: bytes, lines: int) -> bytes:
        """The answer's `lines` lines. Raises `Lost`."""
        if self._transport is None or self._transport.is_closing():
            raise Lost("not connected")
        self._lines, self._wanted = 0, lines
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._lines += data.count(b"\n")
        # An error is one line, whatever was wanted.
        if (self._lines >= self._wanted or self._buffer[:1] == b"-") and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._buffer))
            self._buffer.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(str(exc or "closed")))


@dataclass
class PacedPeer:
    """One client process of the peer: `what` is write (variadic ZADD GT of `batch` players), seen (the same, then the rank of one of
    them), rank, ranks (1000 in a pipeline) or top."""

    port: int
    what: str
    #: Requests a second.
    rate: float
    connections: int
    seed: int
    players: int
    batch: int = 100
    requests: int = 2000
    _ready: list[bytes] = field(default_factory=list)
    _members: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Encode a fixed set of requests; writes are never the same twice within a run of usual length."""
        chosen = random.Random(self.seed)

        def anyone() -> str:
            return player(chosen.randrange(self.players))

        def scored() -> list[str | int]:
            return [word for _ in range(self.batch) for word in (chosen.randrange(1_000_000_000), anyone())]

        if self.what == "top":
            self._ready = [command("ZREVRANGE", BOARD, 0, 99, "WITHSCORES")]
        elif self.what == "rank":
            self._ready = [command("ZREVRANK", BOARD, anyone()) for _ in range(self.requests)]
        elif self.what == "ranks":
            self._ready = [b"".join(command("ZREVRANK", BOARD, anyone()) for _ in range(1000)) for _ in range(50)]
        else:
            writes = [scored() for _ in range(self.requests)]
            self._ready = [command("ZADD", BOARD, "GT", "CH", *words) for words in writes]
            self._members = [str(words[-1]) for words in writes]

    def run(self, window: Window) -> Tally:
        """See `Job`."""
        tally, lines, units = Tally(), LINES[self.what], self.batch if self.what in ("write", "seen") else 1
        ranks = [command("ZREVRANK", BOARD, member) for member in self._members]

        async def serve(connection: RespConnection, number: int, due: float) -> int:
            answer = await connection.ask(self._ready[number % len(self._ready)], lines)
            if self.what == "seen" and answer[:1] == b":":
                answer = await connection.ask(ranks[number % len(ranks)], 1)
            if answer[:1] in (b"-", b"$"):
                raise NotServed(answer[:80].decode("utf-8", "replace"))
            return units

        async def load() -> None:
            instants = arrivals(self.rate, window.ends - window.begins, self.seed)
            await keep_pace(lambda: RespConnection.open(self.port), self.connections, instants, window, tally, serve)

        run_loop(load())
        return tally
