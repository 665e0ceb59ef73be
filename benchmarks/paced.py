"""Open loop: requests are due at instants of a schedule, and their latency counts from then, whatever became of those before.

A closed loop asks less of a service that is slow, and so hides how slow it is. Here what is late queues up, and the
time in the queue counts. Arrivals are random, from a seed, as those of many clients are; only their number is fixed.

Clients stand for other machines. On this one they would wait for a core whenever it is full, before they send and before they see
the answer, and count that as the service's; so Linux gives them a core at once (`first_served`), which the service then lacks.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from benchmarks.clients import Tally, Window
from benchmarks.http_client import Lost

#: After the window, what was due in it is waited for so long; then it counts as never answered.
GRACE_S = 10.0


class Closing(Protocol):
    """A connection to whatever is measured."""

    def close(self) -> None:
        """Hang up at once."""
        ...


C = TypeVar("C", bound=Closing)


class NotServed(Exception):
    """The answer is none that counts; the text says what it was."""


def arrivals(rate: float, span_s: float, seed: object) -> list[float]:
    """Ascending random instants within [0, span_s), in seconds: a Poisson stream given that exactly `rate * span_s` arrive."""
    chosen = random.Random(f"arrivals {seed}")
    return sorted(chosen.random() * span_s for _ in range(round(rate * span_s)))


@contextmanager
def first_served() -> Iterator[bool]:
    """The calling thread goes before all others, as a real-time one; yields whether that is allowed (`CAP_SYS_NICE`)."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def say_who_waits(say: Callable[[str], None]) -> None:
    """Tell where latencies hold the clients' own waiting."""
    with first_served() as allowed:
        if not allowed:
            say("clients may not go first on this machine (CAP_SYS_NICE): what they wait for a core counts as latency")


async def keep_pace(
    opening: Callable[[], Awaitable[C]],
    connections: int,
    instants: Sequence[float],
    window: Window,
    tally: Tally,
    serve: Callable[[C, int, float], Awaitable[int]],
) -> None:
    """Serve each arrival on the first connection that is free; `instants` are in seconds after the window begins.

    `serve(connection, number of the arrival, instant at which it was due)` answers how many units of work were done. It
    may raise `NotServed` or `Lost`. Latencies are those of all arrivals that were due in the window, infinite for
    what was not served; `done` are the units that were done before its end.
    """
    waiting = iter(enumerate(instants))
    last_start = window.ends + GRACE_S

    async def work(connection: C) -> None:
        try:
            for number, instant in waiting:
                due = window.begins + instant
                while (left := due - time.monotonic()) > 0:
                    await asyncio.sleep(math.ceil(left * 1000) / 1000)  # timers know whole milliseconds only: late, never early
                done = 0
                try:
                    if time.monotonic() > last_start:
                        raise NotServed("not asked in time")
                    done = await serve(connection, number, due)
                    ended = time.monotonic()
                except (NotServed, Lost) as error:
                    ended = math.inf
                    tally.failures[str(error)] += 1
                    if isinstance(error, Lost):
                        connection.close()
                        connection = await opening()
                tally.all_done += done
                if window.holds(ended):
                    tally.done += done
                if window.holds(due):
                    tally.latencies.append(ended - due)
        finally:
            connection.close()

    ready = [await opening() for _ in range(connections)]
    await asyncio.sleep(max(0.0, window.begins - time.monotonic()))
    with first_served():
        await asyncio.gather(*(work(connection) for connection in ready))
