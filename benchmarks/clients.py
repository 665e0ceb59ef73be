"""Client processes: each runs one job at a time on its own interpreter, so that no client waits for another's.

A job is prepared first (bodies encoded, connections opened) and begins at one moment in all processes. What
ends within the measured window counts; what is under way at its end is waited for and does not.
"""

import contextlib
import multiprocessing
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self

#: Load before the measured window: caches fill, group commits grow to their size.
WARM_UP_S = 0.7
#: Longest that a client process may take beyond its window.
_PATIENCE_S = 45.0


@dataclass(slots=True)
class Tally:
    """What one client process, or all of them, did within the window."""

    #: Units of work: events, reads.
    done: int = 0
    #: Those of the warm-up and of what ended late as well, where the job counts them.
    all_done: int = 0
    #: Seconds of each request that ended within the window.
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    #: What went otherwise, by what it was; not counted in `done`.
    failures: Counter[str] = field(default_factory=Counter)
    #: What a job keeps of its answers, for a check afterwards; plain data.
    kept: list[Any] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Take another process's work in."""
        self.done += other.done
        self.all_done += other.all_done
        self.latencies.extend(other.latencies)
        self.failures.update(other.failures)
        self.kept.extend(other.kept)


@dataclass(frozen=True, slots=True)
class Window:
    """Instants of the machine's monotonic clock, which all processes share."""

    begins: float
    counts_from: float
    ends: float

    def holds(self, instant: float) -> bool:
        """Whether what ended at `instant` counts."""
        return self.counts_from <= instant < self.ends


class Job(Protocol):
    """What a client process does; it is pickled, so it holds only plain data."""

    def prepare(self) -> None:
        """Everything that is not part of the load."""
        ...

    def run(self, window: Window) -> Tally:
        """Load until `window.ends`."""
        ...


def _serve(pipe: Connection) -> None:
    """A client process: jobs in, tallies out, until None.

    Linux shares a machine that is full between sessions. Each region has some, so each client gets one too: clients stand for other
    machines, and shall not wait for each other. Those that keep a pace wait for nobody (`benchmarks.paced.first_served`).
    """
    os.setsid()
    while (job := pipe.recv()) is not None:
        try:
            job.prepare()
            pipe.send(None)
            pipe.send(job.run(pipe.recv()))
        except Exception as error:
            pipe.send(error)
            return


class ClientFailed(Exception):
    """A client process ended before its job."""


class ClientProcesses:
    """A fixed number of client processes. As a context manager it ends them on the way out."""

    def __init__(self, count: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs,), name=f"client-{number}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(2.0)
            if process.is_alive():
                process.kill()

    def run(self, jobs: Sequence[Job], seconds: float) -> Tally:
        """One job a process, all at once; the sum of what they did in `seconds`. Raises `ClientFailed`."""
        total = Tally()
        for tally in self.run_each(jobs, seconds):
            total.add(tally)
        return total

    def run_each(self, jobs: Sequence[Job], seconds: float, meanwhile: Callable[[Window], None] | None = None) -> list[Tally]:
        """One job a process, all at once; what each did, in their order. `meanwhile` is called while they work. Raises `ClientFailed`."""
        assert len(jobs) <= len(self._pipes)
        for pipe, job in zip(self._pipes, jobs, strict=False):
            pipe.send(job)
        for pipe, _ in zip(self._pipes, jobs, strict=False):
            self._receive(pipe)
        begins = time.monotonic() + 0.05
        window = Window(begins, begins + WARM_UP_S, begins + WARM_UP_S + seconds)
        for pipe, _ in zip(self._pipes, jobs, strict=False):
            pipe.send(window)
        if meanwhile is not None:
            meanwhile(window)
        tallies: list[Tally] = []
        for pipe, _ in zip(self._pipes, jobs, strict=False):
            tally = self._receive(pipe, WARM_UP_S + seconds)
            assert tally is not None
            tallies.append(tally)
        return tallies

    def _receive(self, pipe: Connection, seconds: float = 0.0) -> Tally | None:
        try:
            if not pipe.poll(seconds + _PATIENCE_S):
                raise ClientFailed("a client process does not come to an end")
            answer: Tally | Exception | None = pipe.recv()
        except EOFError as error:
            raise ClientFailed("a client process ended") from error
        if isinstance(answer, Exception):
            raise ClientFailed(repr(answer)) from answer
        return answer
