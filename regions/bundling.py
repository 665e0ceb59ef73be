"""Parts of one request for several shards, in one call to the region that owns them all.

A short way beside `regions.routing`: tried once, and what it does not settle goes the way of its own shard, which looks for the owner,
holds and tells what is unknown. Requests share a call only if they are for the same shards: one that is for others waits for none of these.
Those for a part of a board's shards go the ways of their shards, where they find more company.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from actors.messages import Batch, NoAuthority, SubmitResult, Unanswered, from_wire
from regions.links import NotSent
from regions.routing import CALLS, EVENTS_PER_CALL, HOLD_S, OF_THE_BOARD, Authorities, ShardRoute

log = logging.getLogger("laurel.routing")

#: What came of one shard's part.
Told = list[SubmitResult] | Unanswered


@dataclass(slots=True)
class _Waiting:
    parts: Mapping[str, Batch]
    since: float
    done: "asyncio.Future[dict[str, Told]]"


#: Owner and shards.
_Key = tuple[str, ...]


@dataclass(slots=True)
class _Line:
    """Requests for the same shards of the same owner."""

    queue: deque[_Waiting] = field(default_factory=deque)
    calls: int = 0


class Bundles:
    """See the module docstring."""

    def __init__(self, routes: Mapping[str, ShardRoute], authorities: Authorities) -> None:
        self._routes, self._authorities, self._directory = routes, authorities, authorities.directory
        self._lines: dict[_Key, _Line] = {}
        #: Until when requests go alone, since a call took long or left something unsettled: a shard that is slow slows nobody else then.
        self._alone_until: dict[_Key, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, parts: Mapping[str, Batch], *, together: bool) -> dict[str, Told]:
        """What came of each part, by shard; each shard has a route. `together`: they are for all shards of their board."""
        if not together:
            return await self._alone(parts, time.monotonic(), sent=set())
        by_owner: dict[str, dict[str, Batch]] = {}
        for shard, batch in parts.items():
            by_owner.setdefault(self._directory.owner(shard)[1] or self._authorities.region, {})[shard] = batch
        told = await asyncio.gather(*(self._to_one(owner, part) for owner, part in by_owner.items()))
        return {shard: result for each in told for shard, result in each.items()}

    async def _to_one(self, owner: str, parts: Mapping[str, Batch]) -> dict[str, Told]:
        since = time.monotonic()
        if len(parts) == 1:
            return await self._alone(parts, since, sent=set())
        key = (owner, *sorted(parts))
        if self._alone_until.get(key, 0.0) > since:
            return await self._alone(parts, since, sent=set())
        self._alone_until.pop(key, None)
        line = self._lines.setdefault(key, _Line())
        waiting = _Waiting(parts, since, asyncio.get_running_loop().create_future())
        line.queue.append(waiting)
        self._start(key, line)
        return await waiting.done

    async def _alone(self, parts: Mapping[str, Batch], since: float, *, sent: set[str]) -> dict[str, Told]:
        """Each part by the way of its shard. `sent`: shards to which it was sent without a certain answer."""
        replies = await asyncio.gather(
            *(self._routes[shard].submit(batch, since=since, sent=shard in sent) for shard, batch in parts.items()), return_exceptions=True
        )
        told: dict[str, Told] = {}
        for shard, reply in zip(parts, replies, strict=True):
            if isinstance(reply, BaseException) and not isinstance(reply, Unanswered):
                raise reply
            told[shard] = reply
        return told

    def _start(self, key: tuple[str, ...], line: _Line) -> None:
        if line.queue and line.calls < CALLS:
            line.calls += 1
            task = asyncio.get_running_loop().create_task(self._call(key, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, key: tuple[str, ...], line: _Line) -> None:
        await asyncio.sleep(0)  # requests that arrive together leave together
        batch: list[_Waiting] = []
        events = 0
        while line.queue and events < EVENTS_PER_CALL:
            waiting = line.queue.popleft()
            if waiting.done.done():
                continue
            moved = any(self._directory.owner(shard)[1] not in ("", key[0]) for shard in key[1:])
            if moved or time.monotonic() - waiting.since > HOLD_S:
                self._go_alone(waiting, {}, set())  # nothing of it was sent
                continue
            batch.append(waiting)
            events += sum(len(part.submissions) for part in waiting.parts.values())
        began = time.monotonic()
        settled = True
        try:
            if batch:
                settled = await self._deliver(key[0], key[1:], batch)
        except BaseException as error:
            settled = False
            for waiting in batch:
                _settle(waiting, _unknown(waiting.parts))
            if not isinstance(error, Exception):
                raise
            log.exception("a call for %s failed", ", ".join(key[1:]))
        finally:
            if not settled or time.monotonic() - began > HOLD_S:
                self._alone_until[key] = time.monotonic() + HOLD_S
            line.calls -= 1
            if line.queue:
                self._start(key, line)
            elif not line.calls:
                self._lines.pop(key, None)

    async def _deliver(self, owner: str, shards: tuple[str, ...], batch: list[_Waiting]) -> bool:
        """Whether all of it was settled."""
        whole = True
        replies, doubt = None, False
        try:
            replies = await self._authorities.submit(owner, [(shard, [waiting.parts[shard] for waiting in batch]) for shard in shards])
        except NotSent:
            pass
        except TimeoutError:
            doubt = True
        for index, waiting in enumerate(batch):
            told: dict[str, Told] = {}
            sent = set(shards) if doubt else set()
            for shard, of_shard in zip(shards, replies or (), strict=replies is not None):
                reply = of_shard[index]
                result: Told = reply if isinstance(reply, list) else from_wire(reply)
                if isinstance(result, NoAuthority) and result.code not in OF_THE_BOARD:
                    if result.owner and result.epoch:
                        self._directory.learn(shard, result.epoch, result.owner)
                    if not result.definite:
                        sent.add(shard)
                else:
                    told[shard] = result
            if len(told) == len(shards):
                _settle(waiting, told)
            else:
                whole = False
                self._go_alone(waiting, told, sent)
        return whole

    def _go_alone(self, waiting: _Waiting, told: dict[str, Told], sent: set[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._rest(waiting, told, sent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rest(self, waiting: _Waiting, told: dict[str, Told], sent: set[str]) -> None:
        """The parts that the call did not settle, by the ways of their shards."""
        left = {shard: batch for shard, batch in waiting.parts.items() if shard not in told}
        try:
            _settle(waiting, told | await self._alone(left, waiting.since, sent=sent))
        except BaseException as error:
            _settle(waiting, told | _unknown(left))
            if not isinstance(error, Exception):
                raise
            log.exception("a request failed here")


def _unknown(parts: Iterable[str]) -> dict[str, Told]:
    detail = "the request failed here; its outcome is not known"
    return {shard: NoAuthority(detail, code="unknown", definite=False) for shard in parts}


def _settle(waiting: _Waiting, told: dict[str, Told]) -> None:
    if not waiting.done.done():
        waiting.done.set_result(told)
