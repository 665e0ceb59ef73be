"""Where a shard's writes go: the directory of owners, joining of concurrent requests, forwarding with one hop.

A request that was forwarded is never forwarded again: only the first gateway looks for the owner, and it
holds a request for up to 2 s while an activation is under way.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from actors.messages import Batch, NoAuthority, SubmitResult, Unanswered, UnknownBoard, WireError, from_wire
from regions.link_server import LocalShards
from regions.links import HttpLinks, NotSent, decode_replies

log = logging.getLogger("laurel.routing")

HOLD_S = 2.0
#: Calls under way to one shard's authority; what comes meanwhile joins the next call.
CALLS = 2
EVENTS_PER_CALL = 2000
#: Refusals that concern one board and not the shard: its slice is about to be elsewhere, or is. The caller looks where.
OF_THE_BOARD = ("moving", "moved")

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Directory:
    """Who owns each shard, by the newest started epoch heard of. Never goes back to an older epoch."""

    owners: dict[str, tuple[int, str]] = field(default_factory=dict)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def learn(self, shard: str, epoch: int, owner: str) -> None:
        """Take news of a started epoch; older ones are ignored."""
        if owner and epoch > self.owners.get(shard, (0, ""))[0]:
            self.owners[shard] = (epoch, owner)
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def owner(self, shard: str) -> tuple[int, str]:
        """(epoch, region), or (0, "")."""
        return self.owners.get(shard, (0, ""))

    async def news(self, timeout_s: float) -> None:
        """Wait for any change, or until the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), timeout_s)


@dataclass(frozen=True, slots=True)
class Authorities:
    """The regions that own shards, as this gateway knows them, and how submissions get there: by a call in its own, by a link elsewhere."""

    region: str
    directory: Directory
    local: LocalShards
    links: HttpLinks
    call_timeout_s: float

    async def submit(self, owner: str, parts: Sequence[tuple[str, Sequence[Batch]]]) -> list[list[list[SubmitResult] | WireError]]:
        """One call with batches for shards of one owner, in this region if none is known: for each shard, what came of each batch.

        Raises NotSent, or TimeoutError: what became of them is not known then.
        """
        payload = _encode(parts)
        if owner == self.region or not owner:
            return decode_replies(await self.local.submit(payload))
        return decode_replies(await self.links.call(owner, "submit", payload, timeout_s=self.call_timeout_s))


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    since: float
    done: "asyncio.Future[list[SubmitResult]]"
    #: Sent at least once without an answer: from then on a failure is unknown, not definite.
    sent: bool = False


class ShardRoute:
    """All writes of this gateway to one shard, joined into few calls."""

    def __init__(self, shard: str, authorities: Authorities, *, on_hold: Callable[[str], str] = lambda shard: "") -> None:
        self._shard, self._authorities, self._directory = shard, authorities, authorities.directory
        self._on_hold = on_hold
        self._queue: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, batch: Batch, *, since: float | None = None, sent: bool = False) -> list[SubmitResult]:
        """One caller's events. Raises NoAuthority or another `Unanswered`.

        `since`: monotonic seconds from which on they may be held (now). `sent`: they were sent in another way, without an answer.
        """
        waiting = _Waiting(batch, time.monotonic() if since is None else since, asyncio.get_running_loop().create_future(), sent)
        self._queue.append(waiting)
        self._start()
        return await waiting.done

    def _start(self) -> None:
        while self._queue and len(self._calls) < CALLS:
            task = asyncio.get_running_loop().create_task(self._call_some())
            self._calls.add(task)
            task.add_done_callback(self._ended)
            # One turn of the loop, so that requests that arrive together leave together.
            break

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a call failed", self._shard, exc_info=task.exception())
        self._start()

    async def _call_some(self) -> None:
        await asyncio.sleep(0)
        batch: list[_Waiting] = []
        events = 0
        while self._queue and events < EVENTS_PER_CALL:
            waiting = self._queue.popleft()
            if waiting.done.done():
                continue
            if time.monotonic() - waiting.since > HOLD_S:
                # The calls before it got no answer for so long; nobody has seen this one.
                epoch, owner = self._directory.owner(self._shard)
                detail = f"{owner} did not answer" if waiting.sent else f"{owner} is too slow; nothing was sent"
                waiting.done.set_exception(_refusal(detail, "unknown" if waiting.sent else "no_authority", epoch, owner))
                continue
            batch.append(waiting)
            events += len(waiting.batch.submissions)
        if not batch:
            return
        if self._queue:
            self._start()
        try:
            await self._deliver(batch)
        except BaseException as error:
            for waiting in batch:
                if not waiting.done.done():
                    waiting.done.set_exception(
                        NoAuthority("the request failed here; its outcome is not known", code="unknown", definite=False)
                    )
            if not isinstance(error, Exception):
                raise
            log.exception("%s: delivery failed", self._shard)

    async def _deliver(self, batch: list[_Waiting]) -> None:
        """Find the authority and hand the batch over, trying again within the hold time."""
        refusal: NoAuthority | None = None
        while True:
            epoch, owner = self._directory.owner(self._shard)
            replies: list[list[SubmitResult] | WireError] | None = None
            try:
                (replies,) = await self._authorities.submit(owner, [(self._shard, [w.batch for w in batch])])
            except NotSent as error:
                refusal = _refusal(f"{owner} does not answer ({error})", "no_authority", epoch, owner)
            except TimeoutError as error:
                for waiting in batch:
                    waiting.sent = True
                refusal = _refusal(f"no answer from {owner or self._authorities.region} in time ({error})", "unknown", epoch, owner)
            if replies is not None:
                batch, refusal = self._settle(batch, replies)
                if not batch:
                    return
            assert refusal is not None
            if refusal.owner and refusal.epoch:
                self._directory.learn(self._shard, refusal.epoch, refusal.owner)
            final, now = refusal.code in ("lagging", "no_lease"), time.monotonic()
            self._refuse([w for w in batch if final or now - w.since >= HOLD_S], refusal)
            batch = [w for w in batch if not (final or now - w.since >= HOLD_S)]
            if not batch:
                return
            if self._directory.owner(self._shard) == (epoch, owner):
                await self._directory.news(min(min(w.since for w in batch) + HOLD_S - now, 0.1))

    def _refuse(self, batch: list[_Waiting], refusal: NoAuthority) -> None:
        """Their time is over, or waiting would not help."""
        held = self._on_hold(self._shard) if batch else ""
        for waiting in batch:
            if not waiting.done.done():
                code = refusal.code if refusal.definite and not waiting.sent else "unknown"
                if held and code == "no_authority":
                    code = "hold"
                detail = f"{refusal.detail}; {held}" if held else refusal.detail
                waiting.done.set_exception(_refusal(detail, code, refusal.epoch, refusal.owner))

    def _settle(self, batch: list[_Waiting], replies: list[list[SubmitResult] | WireError]) -> tuple[list[_Waiting], NoAuthority | None]:
        """Answer what was answered; what found no authority stays for another try."""
        left: list[_Waiting] = []
        refusal: NoAuthority | None = None
        for waiting, reply in zip(batch, replies, strict=True):
            if waiting.done.done():
                continue
            if isinstance(reply, list):
                waiting.done.set_result(reply)
                continue
            error: Unanswered = from_wire(reply)
            if isinstance(error, NoAuthority) and error.code not in OF_THE_BOARD:
                refusal = error
                left.append(waiting)
            else:
                if waiting.sent and isinstance(error, (NoAuthority, UnknownBoard)):  # an earlier call may have been carried out
                    error = type(error)(error.detail, **{**error.fields, "definite": False})
                waiting.done.set_exception(error)
        return left, refusal


def _refusal(detail: str, code: str, epoch: int, owner: str) -> NoAuthority:
    return NoAuthority(detail, code=code, definite=code != "unknown", epoch=epoch, owner=owner, retry_after_ms=500)
