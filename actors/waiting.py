"""Answers that wait until what they rest on may be acknowledged (I12: none leaves before that)."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from actors.clocks import monotonic_ms
from failover.acknowledging import Acknowledging
from failover.lease import Lease


class Deposed(Exception):
    """The authority stepped down before the awaited offset was acknowledgeable: the outcome is unknown."""


class CommitWaiters:
    """Futures ordered by the offset that each waits for. Lives on one event loop, and for one epoch: offsets of the
    next may hold other entries, so what an epoch decided is never answered by the commits of another."""

    def __init__(self, committed: int = 0, *, lease: Lease | None = None, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._acknowledging = Acknowledging(committed, lease)
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()

    @property
    def committed(self) -> int:
        """Highest committed offset told so far."""
        return self._acknowledging.committed

    @property
    def lost_lease(self) -> bool:
        """`local` only: the lease was held in this epoch, and is not now."""
        told = self._acknowledging
        return told.held > 0 and not told.leased(self._now_ms())

    def may_answer(self, offset: int) -> bool:
        """Whether an answer that rests on `offset` may leave now."""
        return self._acknowledging.may_answer(offset, self._now_ms())

    async def wait(self, offset: int, timeout_s: float, *, committed: bool = False) -> None:
        """Return when an answer that rests on `offset` may leave, at once; with `committed`, when it is committed, lease or not.

        Raises `Deposed`, or `TimeoutError` (it may still be committed later).
        """
        if self._passes(offset, committed):
            return
        async with asyncio.timeout(timeout_s):
            # What the own store alone holds is let go while the lease is valid; where it ran out just then, the commit decides.
            while not self._passes(offset, committed):
                if self._acknowledging.deposed:
                    raise Deposed("the authority stepped down")
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                heapq.heappush(self._heap, (offset, next(self._number), future))
                await future

    def _passes(self, offset: int, committed: bool) -> bool:
        return self.committed >= offset if committed else self.may_answer(offset)

    def leased(self) -> bool:
        """`local` only: whether an append that is sent now may be acknowledged by the own store alone."""
        return self._acknowledging.leased(self._now_ms())

    def hold(self, offset: int, *, leased_before: bool) -> None:
        """The own store holds `offset`; see `Acknowledging.hold`."""
        if self._acknowledging.hold(offset, leased_before=leased_before, now_ms=self._now_ms()):
            self._let_go(offset)

    def advance(self, committed: int) -> None:
        """Let go whatever waits for an offset up to `committed`; nothing once deposed."""
        self._acknowledging.commit(committed)
        if not self._acknowledging.deposed:
            self._let_go(self._acknowledging.committed)

    def _let_go(self, offset: int) -> None:
        while self._heap and self._heap[0][0] <= offset:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)

    def depose(self) -> None:
        """Everything that waits, now or later, for more than is committed gets `Deposed`."""
        self._acknowledging.depose()
        heap, self._heap = self._heap, []
        for _, _, future in heap:
            if not future.done():
                future.set_exception(Deposed("the authority stepped down"))
                future.exception()
