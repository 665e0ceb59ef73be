"""Links from one process of a region to the other regions: msgpack over HTTP under `/internal/v1`.

A call that got no answer in time returns None (the outcome is unknown). `submit` alone tells a refused
connection (definite: nothing was sent) from silence.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from journal.ports import Accepted, Append, Granted, JournalStatus, Refused, Seal
from journal.records import Entry
from regions.faults import Faults, LinkDropped

log = logging.getLogger("laurel.links")

_encode = msgspec.msgpack.Encoder().encode
_appended = msgspec.msgpack.Decoder(Accepted | Refused)
_sealed = msgspec.msgpack.Decoder(Granted | Refused)
_status = msgspec.msgpack.Decoder(JournalStatus)
_entries = msgspec.msgpack.Decoder(list[Entry])


class NotSent(Exception):
    """The peer could not be reached at all: nothing was sent. Definite."""


class HttpLinks:
    """See the module docstring. One per process; safe for concurrent use on one event loop."""

    def __init__(self, region: str, peers: Mapping[str, str], token: str, faults: Faults, *, timeout_s: float = 2.0) -> None:
        self._region, self._faults = region, faults
        self._timeout_s = timeout_s
        headers = {"authorization": f"Bearer {token}", "content-type": "application/msgpack", "x-laurel-from": region}
        self._clients = {
            peer: httpx.AsyncClient(
                base_url=url,
                headers=headers,
                timeout=httpx.Timeout(timeout_s, connect=1.0),
                limits=httpx.Limits(max_connections=64, max_keepalive_connections=32, keepalive_expiry=60),
                trust_env=False,
            )
            for peer, url in peers.items()
        }

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(c.aclose() for c in self._clients.values()))

    async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """One request. Raises NotSent (definite), or TimeoutError (unknown; also for every broken connection)."""
        await self._outward(peer)
        client = self._clients.get(peer)
        if client is None:
            raise NotSent(f"{peer} is not a region of this cluster")
        timeout = timeout_s or self._timeout_s
        try:
            # A deadline of our own: httpx's limits are per read, and a trickling peer must not hold us.
            async with asyncio.timeout(timeout):
                reply = await client.post(f"/internal/v1/{path}", content=body, timeout=httpx.Timeout(timeout, connect=min(1.0, timeout)))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSent(str(error)) from error
        except httpx.HTTPError as error:
            raise TimeoutError(str(error)) from error
        if reply.status_code == 503:
            raise TimeoutError(f"{peer} has no answer")
        if reply.status_code != 200:
            log.warning("%s answered %s to %s: %s", peer, reply.status_code, path, reply.text[:200])
            raise TimeoutError(f"{peer} answered {reply.status_code}")
        await self._inward(peer)
        return reply.content

    async def _outward(self, peer: str) -> None:
        try:
            await self._faults.outward(peer)
        except LinkDropped:
            await asyncio.sleep(0.2)
            raise TimeoutError(f"the link to {peer} is cut") from None

    async def _inward(self, peer: str) -> None:
        try:
            await self._faults.inward(peer)
        except LinkDropped:
            raise TimeoutError(f"the link from {peer} is cut") from None

    async def _ask(self, peer: str, path: str, body: Any, timeout_s: float | None = None) -> bytes | None:
        try:
            return await self.call(peer, path, _encode(body), timeout_s=timeout_s)
        except (NotSent, TimeoutError):
            return None

    async def probe(self, region: str, shard: str) -> JournalStatus | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "probe", {"shard": shard}, 1.0)
        return None if raw is None else _status.decode(raw)

    async def seal(self, region: str, message: Seal) -> Granted | Refused | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "seal", message, 1.0)
        return None if raw is None else _sealed.decode(raw)

    async def append(self, region: str, message: Append) -> Accepted | Refused | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "append", message)
        return None if raw is None else _appended.decode(raw)

    async def fetch(self, region: str, shard: str, first: int, limit: int) -> list[Entry] | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "fetch", {"shard": shard, "first": first, "limit": limit}, 5.0)
        return None if raw is None else _entries.decode(raw)

    async def drain(self, region: str, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "drain", {"shard": shard, "epoch": epoch, "to": to, "asked_by": asked_by}, 12.0)
        return None if raw is None else msgspec.msgpack.decode(raw, type=int | None)

    async def readmit(self, region: str, shard: str, incarnation: str, fence: int) -> JournalStatus | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "readmit", {"shard": shard, "incarnation": incarnation, "fence": fence}, 30.0)
        return None if raw is None else _status.decode(raw)
