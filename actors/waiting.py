"""Answers that wait for an offset to be committed (I12: none leaves before its offset is acknowledgeable)."""

import asyncio
import heapq
from itertools import count


class Deposed(Exception):
    """The authority stepped down before the awaited offset was committed: the outcome is unknown."""


class CommitWaiters:
    """Futures ordered by the offset that each waits for. Lives on one event loop, and for one epoch: offsets of the
    next may hold other entries, so what an epoch decided is never answered by the commits of another."""

    def __init__(self, committed: int = 0) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()
        self._deposed = False
        #: Highest committed offset told so far.
        self.committed = committed

    async def wait(self, offset: int, timeout_s: float) -> None:
        """Return when `offset` is committed. Raises `Deposed`, or `TimeoutError` (it may still be committed later)."""
        if offset <= self.committed:
            return
        if self._deposed:
            raise Deposed("the authority stepped down")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (offset, next(self._number), future))
        await asyncio.wait_for(future, timeout_s)

    def advance(self, committed: int) -> None:
        """Let go whatever waits for an offset up to `committed`; nothing once deposed."""
        if self._deposed:
            return
        self.committed = max(self.committed, committed)
        while self._heap and self._heap[0][0] <= self.committed:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)

    def depose(self) -> None:
        """Everything that waits, now or later, for more than is committed gets `Deposed`."""
        self._deposed = True
        heap, self._heap = self._heap, []
        for _, _, future in heap:
            if not future.done():
                future.set_exception(Deposed("the authority stepped down"))
                future.exception()
