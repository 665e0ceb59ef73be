"""What a region's acceptor keeps in memory: leases it has promised, and when each authority was last heard to make progress.

Safety of a promise rests on three things: Seal and Renew of one shard are carried out one after the other here; the
store renews only for the acceptor that took the role last; and whoever takes it first honours the longest promise seen there.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from actors.clocks import monotonic_ms
from failover.detector import Heard
from failover.lease import Promises
from journal.ports import Append, Granted, Journal, JournalStatus, JournalUnavailable, Refused, Renew, Seal

log = logging.getLogger("laurel.acceptor")


@dataclass(slots=True)
class _Shard:
    """One shard's part; `lock` is held by a Seal or a Renew for as long as its store works at it."""

    heard: Heard
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    promises: Promises = field(default_factory=Promises)
    taken: bool = False


class Granting:
    """See the module docstring. `now_ms` is a monotonic clock that goes on while the machine sleeps."""

    def __init__(self, journals: Mapping[str, Journal], *, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._journals, self._now_ms = journals, now_ms
        self._token = uuid.uuid4().hex
        self._shards = {shard: _Shard(Heard(now_ms())) for shard in journals}

    async def take_over(self) -> None:
        """Take the acceptor's role of this region now; a store that does not answer is asked again when it is needed."""
        for name, shard in self._shards.items():
            async with shard.lock:
                with suppress(JournalUnavailable):
                    await self._take(name, shard)

    async def seal(self, message: Seal) -> Granted | Refused:
        """`Journal.seal`, refused `leased` while another region's authority has a promise. Raises JournalUnavailable."""
        shard = self._shards[message.shard]
        async with shard.lock:
            answer = await self._seal(message, shard)
            if isinstance(answer, Refused) and answer.reason == "superseded":
                # A process that was started before this one took the role after it. Whoever is asked must have it, or nobody
                # could seal here once the other is gone; it honours what the other may have promised.
                shard.taken = False
                answer = await self._seal(message, shard)
            return answer

    async def _seal(self, message: Seal, shard: _Shard) -> Granted | Refused:
        await self._take(message.shard, shard)
        left = shard.promises.left_ms(message.target, self._now_ms())
        if left > 0:
            status = await self._journals[message.shard].status()
            newest = status.newest
            if message.epoch > status.fence and (newest is None or newest.epoch <= message.from_epoch):
                shard.promises.wanted(message.target, self._now_ms())
            return Refused("leased", status, left)
        return await self._journals[message.shard].seal(msgspec.structs.replace(message, acceptor=self._token))

    async def renew(self, message: Renew) -> Granted | Refused:
        """Promise a lease, or take note that it was given up. Raises JournalUnavailable: nothing is promised."""
        shard, received_ms = self._shards[message.shard], self._now_ms()
        async with shard.lock:
            if message.lease_ms == 0:
                shard.promises.given_up(message.sender, message.attempt)
                return Granted(JournalStatus(shard=message.shard))
            await self._take(message.shard, shard)
            if not shard.promises.may_renew(message.sender, message.attempt, received_ms):
                return Refused("leased", await self._journals[message.shard].status())
            answer = await self._journals[message.shard].renew(
                epoch=message.epoch, attempt=message.attempt, acceptor=self._token, lease_ms=message.lease_ms
            )
            if isinstance(answer, Granted):
                shard.promises.renewed(message.sender, message.attempt, message.lease_ms, received_ms)
            elif answer.reason == "superseded":
                shard.taken = False
                log.warning("%s: this region's store knows another acceptor: no lease is promised", message.shard)
            return answer

    async def readmit(self, shard: str, incarnation: str, fence: int, replaces: str) -> JournalStatus:
        """`Journal.readmit`; a store that was begun anew, or exchanged before, must be told again who its acceptor is."""
        part = self._shards[shard]
        async with part.lock:
            part.taken = False
            return await self._journals[shard].readmit(incarnation=incarnation, fence=fence, replaces=replaces)

    def heard(self, message: Append) -> None:
        """An authority's Append was taken."""
        self._shards[message.shard].heard.append(message.epoch, message.since_majority_ms, self._now_ms())

    def silent_ms(self, shard: str) -> int:
        """Since when no progress of the authority was heard; at most as long as this process lives."""
        return self._shards[shard].heard.silent_ms(self._now_ms())

    def with_silence(self, status: JournalStatus) -> JournalStatus:
        """A store's status with what only its acceptor knows."""
        heard = self._shards[status.shard].heard
        return msgspec.structs.replace(status, silent_ms=heard.silent_ms(self._now_ms()), silent_epoch=heard.epoch)

    async def _take(self, name: str, shard: _Shard) -> None:
        if not shard.taken:
            status = await self._journals[name].take_acceptor(self._token)
            shard.promises.taken_over(status.granted_region, status.granted_attempt, status.lease_ms, self._now_ms())
            shard.taken = True
