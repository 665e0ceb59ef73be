"""The link fault switch: drop or delay what this region says to a peer, hears from it, or both.

Set by an operator, kept in the region's own store (so that a restarted process obeys it too), and ended by
its own expiry. Every process of the region reads it each 100 ms. It touches no network of the machine.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Literal

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

KEY = b"laurel:links"
POLL_S = 0.1


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of the link to one peer. `until_ms` is a wall clock instant, 0 for no end."""

    mode: Literal["drop", "delay"]
    delay_ms: int = 0
    until_ms: int = 0


class FaultTable(msgspec.Struct, frozen=True, kw_only=True):
    """Peer -> fault, by direction as seen from this region."""

    outward: dict[str, Fault] = {}
    inward: dict[str, Fault] = {}


class LinkDropped(Exception):
    """The switch cuts this message; the caller treats it like a message that got no answer."""


def changed(table: FaultTable, peer: str, direction: str, fault: Fault | None) -> FaultTable:
    """The table with `peer`'s `direction` (in, out, both) set to `fault`, or cleared."""
    outward, inward = dict(table.outward), dict(table.inward)
    for side, name in ((outward, "out"), (inward, "in")):
        if direction in (name, "both"):
            side.pop(peer, None)
            if fault is not None:
                side[peer] = fault
    return FaultTable(outward=outward, inward=inward)


class Faults:
    """One process's view of the switch. `run` keeps it fresh; without it the table stays empty."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        self._client = client
        self._table = FaultTable()
        self._setting = asyncio.Lock()

    async def run(self) -> None:
        """Read the table for ever."""
        while True:
            try:
                raw = await asyncio.wait_for(self._client.get(KEY), 1.0)
                self._table = msgspec.json.decode(raw, type=FaultTable) if raw else FaultTable()
            except (RedisError, OSError, TimeoutError):
                pass
            await asyncio.sleep(POLL_S)

    async def set(self, peer: str, direction: str, fault: Fault | None) -> FaultTable:
        """Change the table for every process of the region; returns when they have had time to read it.

        Only the gateway sets it, and one setting at a time: none undoes another. Raises RedisError or OSError when the store does
        not answer; the table may be changed then.
        """
        async with self._setting:
            raw = await self._client.get(KEY)
            table = changed(msgspec.json.decode(raw, type=FaultTable) if raw else FaultTable(), peer, direction, fault)
            await self._client.set(KEY, msgspec.json.encode(table))
            self._table = table
        await asyncio.sleep(2 * POLL_S)
        return table

    async def stall(self, for_ms: int) -> None:
        """Have the region's store answer nobody for so long; it goes on by itself. Raises RedisError or TimeoutError."""
        paused: Awaitable[object] = self._client.execute_command("CLIENT", "PAUSE", for_ms, "ALL")  # type: ignore[no-untyped-call]
        await asyncio.wait_for(paused, 1.0)

    @property
    def table(self) -> FaultTable:
        """The switch as it stands."""
        return self._table

    async def outward(self, peer: str) -> None:
        """Before sending to `peer`. Raises LinkDropped, or waits."""
        await _suffer(self._table.outward.get(peer))

    async def inward(self, peer: str) -> None:
        """After receiving from `peer`. Raises LinkDropped, or waits."""
        await _suffer(self._table.inward.get(peer))


async def _suffer(fault: Fault | None) -> None:
    if fault is None or (fault.until_ms and fault.until_ms < time.time_ns() // 1_000_000):
        return
    if fault.mode == "drop":
        raise LinkDropped
    await asyncio.sleep(fault.delay_ms / 1000)
