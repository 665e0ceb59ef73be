"""Questions to a replica, joined: what comes shortly after a call, or while calls are under way, shares the next one.

A call to an actor costs its caller and its callee more than most answers do, so one call carries many questions as soon as
there are many; a question after a pause is asked at once. One that may have to wait for a generation never comes here: it
would hold up the others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from actors.messages import Answer, Ask, Top, WireError, from_wire

#: Calls under way at most, and questions in one.
CALLS = 2
QUESTIONS = 128
#: Seconds from one call to the next, unless that one is full: at most so much later is an answer than it could be.
GAP_S = 0.004

Call = Callable[[list[Ask]], Awaitable[list[Answer | WireError]]]


def answers_at_once(ask: Ask) -> bool:
    """Whether the replica answers without waiting: the newest generation is asked, whatever it is."""
    cursor = isinstance(ask.question, Top) and ask.question.cursor is not None
    return ask.generation is None and ask.at_least is None and not cursor


class JoinedAsks:
    """See the module docstring. `call` gives one answer for each question, in order, or raises for all of them."""

    def __init__(self, call: Call, *, gap_s: float = GAP_S) -> None:
        self._call, self._gap_s = call, gap_s
        self._queue: deque[tuple[Ask, asyncio.Future[Answer]]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        #: A call left less than the gap ago.
        self._resting = False

    async def ask(self, ask: Ask) -> Answer:
        """Raises `Unanswered`, or what the call raised."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((ask, done))
        self._start()
        return await done

    def _start(self) -> None:
        if not self._queue or len(self._calls) >= CALLS or (self._resting and len(self._queue) < QUESTIONS):
            return
        loop = asyncio.get_running_loop()
        if not self._resting:
            self._resting = True
            loop.call_later(self._gap_s, self._rested)
        task = loop.create_task(self._call_some())
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _rested(self) -> None:
        self._resting = False
        self._start()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        self._start()

    async def _call_some(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(QUESTIONS, len(self._queue)))]
        batch = [(ask, done) for ask, done in batch if not done.done()]
        if not batch:
            return
        try:
            replies = await self._call([ask for ask, _ in batch])
        except Exception as error:
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), reply in zip(batch, replies, strict=True):
            if done.done():
                continue
            if isinstance(reply, Answer):
                done.set_result(reply)
            else:
                done.set_exception(from_wire(reply))
