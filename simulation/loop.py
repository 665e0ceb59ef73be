"""An event loop on the world's clock: asynchronous code of the product runs in a simulated process, step by step from the seed.

Nothing is awaited but what the process itself hears: futures, timers and calls of the network. A process that sleeps
runs no step until it wakes; one that dies never runs another.
"""

import asyncio
import contextvars
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from simulation.process import Process


class Loop:
    """That of one process: of `asyncio.AbstractEventLoop` what tasks, futures and timers need.

    What a callback raises comes out where the step was run.
    """

    def __init__(self, process: "Process") -> None:
        self._process, self._world = process, process.world
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = self._running = self._closed = False
        self._raised: BaseException | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._as_loop = cast("asyncio.AbstractEventLoop", self)

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """Seconds of the world."""
        return self._world.now / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._ready.append(handle)
        if not self._planned and not self._running and not self._closed:
            self._planned = True
            self._world.at(self._world.now, self._process.deliver, self._run, None)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        if not self._closed:
            self._world.at(max(self._world.now, math.ceil(when * 1000 - 1e-6)), self._process.deliver, self._due, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._as_loop)

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """As `spawn`; whoever makes it looks after what it raises."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._as_loop, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._over)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: it comes out of the step. What asyncio says of tasks that nobody waited for is not heard."""
        error = context.get("exception")
        if error is not None and "handle" in context and self._raised is None:
            self._raised = error

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is looked at when its time comes."""

    # -- what the process does with it

    def spawn(self, work: Coroutine[Any, Any, Any], failed: Callable[[BaseException], None]) -> asyncio.Task[Any]:
        """Run `work` beside all else; `failed` is told what it raises."""
        task = self.create_task(work)

        def done(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        task.add_done_callback(done)
        return task

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Code that is called meanwhile finds this loop running, as `asyncio.get_running_loop` says."""
        before = events._get_running_loop()
        events._set_running_loop(self._as_loop)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def close(self) -> None:
        """The process is gone: what is half done is dropped where it stands."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        for task in list(self._tasks):
            coro = task.get_coro()
            if isinstance(coro, (Coroutine, Generator)):
                with suppress(RuntimeError, ValueError):  # it asks for more while it is dropped, or is the one that ends all
                    coro.close()
        self._tasks.clear()
        self._ready.clear()

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled() and not self._closed:
            self._ready.append(handle)
            self._run(None)

    def _run(self, _: None) -> None:
        self._planned = False
        if self._running or self._closed:
            return
        self._running = True
        try:
            with self.entered():
                while self._ready and self._raised is None:
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
        finally:
            self._running = False
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
