"""A process that a supervisor keeps: what is known of it, how its end is noticed, how it is asked whether it is well."""

import asyncio
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field

from config.models import LOOPBACK
from regions import process_tree
from regions.process_tree import Process
from regions.region_paths import ChildReport

#: How soon the end of something that a child cannot do without is noticed.
LOOK_S = 0.1


@dataclass(slots=True)
class Child:
    """See the module docstring."""

    name: str
    report: ChildReport
    process: subprocess.Popen[bytes] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: Processes below it that it cannot do without, by program.
    needs: dict[str, Process] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """0 when it has ended: its number may be another's by now."""
        return self.process.pid if self.process and self.process.returncode is None else 0


async def http_status(host: str, port: int, path: str, timeout_s: float) -> int:
    """Status of a GET. Raises `OSError`, `TimeoutError` or `ValueError` when there is no proper answer in time."""
    near = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(near, port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {near}:{port}\r\nConnection: close\r\n\r\n".encode())
            words = (await reader.readline()).split()
        finally:
            writer.close()
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ConnectionResetError("no HTTP answer")
    return int(words[1])


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether it is set, waiting at most so long."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def end_within(child: Child, timeout_s: float) -> str:
    """Why `child` ended within that time, by itself or because what it needs is gone; "" if it did not."""
    until = time.monotonic() + timeout_s
    while (left := until - time.monotonic()) > 0:
        if await set_within(child.ended, min(left, LOOK_S) if child.needs else left):
            return _exit_words(child.process.returncode if child.process else None)
        if gone := [name for name, process in child.needs.items() if not process_tree.alive(process)]:
            return f"Ray's {gone[0]} is gone"
    return ""


def _exit_words(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def executable(pid: int) -> str:
    """Path of its program, "" when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
