"""Links from one process of a region to the other regions: msgpack over HTTP under `/internal/v1`.

A call that got no answer in time returns None (the outcome is unknown). `submit` alone tells a refused
connection (definite: nothing was sent) from silence.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from actors.messages import Batch, SubmitResult, WireError
from boards.model import Submission
from journal.ports import Accepted, Append, Granted, JournalStatus, Refused, Renew, Seal
from journal.records import Entry
from regions.faults import Faults, LinkDropped

log = logging.getLogger("laurel.links")

_encode = msgspec.msgpack.Encoder().encode
_appended = msgspec.msgpack.Decoder(list[Accepted | Refused | None])
_sealed = msgspec.msgpack.Decoder(Granted | Refused)
_status = msgspec.msgpack.Decoder(JournalStatus)
_entries = msgspec.msgpack.Decoder(list[Entry])
#: What a `submit` message is answered: by shard, for each request its results or an error.
decode_replies = msgspec.msgpack.Decoder(list[list[list[SubmitResult] | WireError]]).decode

#: Longest wait for an authority's answer to submissions: longer than it waits for a commit itself.
SUBMIT_S = 8.0


#: Appends share a request until their entries have so many bytes.
BYTES_TOGETHER = 1 << 20

_Appending = tuple[Append, "asyncio.Future[Accepted | Refused | None]"]


def _bytes_of(appending: _Appending) -> int:
    return sum(len(entry.data) for entry in appending[0].entries)


class NotSent(Exception):
    """The peer could not be reached at all: nothing was sent. Definite."""


class HttpLinks:
    """See the module docstring. One per process; safe for concurrent use on one event loop."""

    def __init__(self, region: str, peers: Mapping[str, str], token: str, faults: Faults, *, timeout_s: float = 2.0) -> None:
        self._region, self._faults = region, faults
        self._timeout_s = timeout_s
        self._urls = {peer: f"{url}/internal/v1/" for peer, url in peers.items()}
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/msgpack"}
        self._session: aiohttp.ClientSession | None = None
        self._appends: dict[str, list[_Appending]] = {}
        self._shipping: set[asyncio.Task[None]] = set()

    def _open(self) -> aiohttp.ClientSession:
        """Made on first use, since it belongs to the loop that runs it."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit_per_host=64, keepalive_timeout=60, force_close=False)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False, auto_decompress=False)
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """One request. Raises NotSent (definite), or TimeoutError (unknown; also for every broken connection)."""
        await self._outward(peer)
        url = self._urls.get(peer)
        if url is None:
            raise NotSent(f"{peer} is not a region of this cluster")
        limits = aiohttp.ClientTimeout(total=timeout_s or self._timeout_s, connect=1.0)
        try:
            async with self._open().post(url + path, data=body, timeout=limits) as reply:
                status, content = reply.status, await reply.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSent(str(error)) from error
        except aiohttp.ClientError as error:
            raise TimeoutError(str(error)) from error
        if status == 503:
            raise TimeoutError(f"{peer} has no answer")
        if status != 200:
            log.warning("%s answered %s to %s: %s", peer, status, path, content[:200])
            raise TimeoutError(f"{peer} answered {status}")
        await self._inward(peer)
        return content

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

    async def renew(self, region: str, message: Renew) -> Granted | Refused | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "renew", message, 1.0)
        return None if raw is None else _sealed.decode(raw)

    async def append(self, region: str, message: Append) -> Accepted | Refused | None:
        """See `actors.ports.Links`. What one turn of the loop sends to a region shares a request: heartbeats of many shards do."""
        done: asyncio.Future[Accepted | Refused | None] = asyncio.get_running_loop().create_future()
        waiting = self._appends.setdefault(region, [])
        waiting.append((message, done))
        if len(waiting) == 1:
            asyncio.get_running_loop().call_soon(self._ship, region)
        return await done

    def _ship(self, region: str) -> None:
        waiting = [each for each in self._appends.pop(region) if not each[1].done()]
        while waiting:
            some = [waiting.pop(0)]
            size = _bytes_of(some[0])
            while waiting and (size := size + _bytes_of(waiting[0])) <= BYTES_TOGETHER:
                some.append(waiting.pop(0))
            task = asyncio.get_running_loop().create_task(self._append_some(region, some))
            self._shipping.add(task)
            task.add_done_callback(self._shipping.discard)

    async def _append_some(self, region: str, some: "list[_Appending]") -> None:
        answers: Sequence[Accepted | Refused | None] = [None] * len(some)
        try:
            raw = await self._ask(region, "append", [message for message, _ in some])
            answers = answers if raw is None else _appended.decode(raw)
        finally:
            for (_, done), answer in zip(some, answers, strict=True):
                if not done.done():
                    done.set_result(answer)

    async def fetch(self, region: str, shard: str, first: int, limit: int) -> list[Entry] | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "fetch", {"shard": shard, "first": first, "limit": limit}, 5.0)
        return None if raw is None else _entries.decode(raw)

    async def drain(self, region: str, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "drain", {"shard": shard, "epoch": epoch, "to": to, "asked_by": asked_by}, 12.0)
        return None if raw is None else msgspec.msgpack.decode(raw, type=int | None)

    async def submit(
        self, region: str, shard: str, requests: Sequence[Batch | tuple[str, str, Sequence[Submission]]]
    ) -> list[list[SubmitResult] | WireError] | None:
        """See `actors.ports.Links`."""
        try:
            (replies,) = decode_replies(await self.call(region, "submit", _encode([(shard, requests)]), timeout_s=SUBMIT_S))
        except (NotSent, TimeoutError):
            return None
        return replies

    async def operate(self, region: str, shard: str, order: dict[str, Any]) -> dict[str, Any] | None:
        """See `actors.ports.Links`."""
        raw = await self._ask(region, "operate", {"shard": shard, "order": order}, 12.0)
        return None if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Any])

    async def readmit(self, region: str, shard: str, incarnation: str, fence: int, replaces: str) -> JournalStatus | None:
        """See `actors.ports.Links`."""
        asked = {"shard": shard, "incarnation": incarnation, "fence": fence, "replaces": replaces}
        raw = await self._ask(region, "readmit", asked, 30.0)
        return None if raw is None else _status.decode(raw)
