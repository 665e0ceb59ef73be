"""Processes as /proc shows them: who descends from whom, who carries a region's marker, and how to end exactly those.

A process is named by (pid, start time), and signalled through a pidfd, so a re-used pid is never hit.
Everything a region starts inherits `LAUREL_RUN=<data dir>/<region>` in its environment. A program that
sets its own title may write over that memory (some of Ray's agents do, and Valkey), so a process that
writes to a file in one of the region's log directories counts as marked too. Linux only.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

RUN_MARKER = "LAUREL_RUN"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
#: Arguments: option, signal, pid of the parent, command. The parent may be gone before the call: nothing would tell then.
_PRELUDE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(int(sys.argv[1]), int(sys.argv[2]), 0, 0, 0)
os.getppid() == int(sys.argv[3]) or os._exit(1)
os.execvp(sys.argv[4], sys.argv[4:])
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was seen. `started` is its start time in clock ticks since boot: the same in every PID namespace."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything, brackets too
    return _Stat(fields[0], int(fields[1]), int(fields[19])) if len(fields) > 19 else None


def identify(pid: int) -> Process | None:
    """The process that has `pid` now, None if there is none or only its zombie."""
    stat = _stat(pid)
    return None if stat is None or stat.state in "ZX" else Process(pid, stat.started)


def alive(process: Process) -> bool:
    """Whether this very process still runs (a stopped one does, a zombie does not)."""
    return identify(process.pid) == process


def stopped(process: Process) -> bool:
    """Whether it stands still after a SIGSTOP."""
    stat = _stat(process.pid)
    return stat is not None and stat.started == process.started and stat.state == "T"


def program_name(pid: int) -> str:
    """First 15 characters of its program's name, or of its main thread's; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> list[Process]:
    """Living processes below `root`, without it, parents first. Cost: one read for each process of the machine."""
    children: dict[int, list[int]] = {}
    seen: dict[int, _Stat] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            seen[pid] = stat
            children.setdefault(stat.parent, []).append(pid)
    found: list[Process] = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop(0)
        if seen[pid].state not in "ZX":
            found.append(Process(pid, seen[pid].started))
        queue.extend(children.get(pid, ()))
    return found


def command_line(pid: int) -> str:
    """Arguments joined by spaces, or the title that the process gave itself; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def find(root: int, substring: str) -> list[int]:
    """Pids at or below `root` whose command line holds `substring`, as this PID namespace counts them."""
    pids = [root, *(process.pid for process in descendants(root))]
    return [pid for pid in pids if substring in command_line(pid)]


def namespace_pid(pid: int) -> int | None:
    """What the innermost PID namespace of `pid` calls it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)


def processes_marked(marker: str, *, outputs: Iterable[str] = ()) -> list[Process]:
    """Living processes that run for `marker`: a region's own path, or a data directory for all regions in it.

    A file open for writing below one of `outputs` marks a process as well. The caller itself is never among them.
    """
    below = tuple(f"{directory.rstrip('/')}/" for directory in outputs)
    found = []
    for pid in _pids():
        process = None if pid == os.getpid() else identify(pid)  # first, so that what is read below belongs to it or to a later one
        if process is not None and (_environment_marks(pid, marker) or _writes_below(pid, below)) and alive(process):
            found.append(process)
    return found


def _environment_marks(pid: int, marker: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    prefix = f"{RUN_MARKER}=".encode()
    values = (os.fsdecode(entry[len(prefix) :]) for entry in environment.split(b"\0") if entry.startswith(prefix))
    return any(value == marker or value.startswith(f"{marker.rstrip('/')}/") for value in values)


def _writes_below(pid: int, directories: tuple[str, ...]) -> bool:
    """Whether it has a file there open for writing. Hidden files do not count: an editor keeps one beside what it shows."""
    if not directories:
        return False
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            if path.startswith(directories) and not os.path.basename(path).startswith(".") and _open_for_writing(pid, number):
                return True
    except OSError:  # it, or the file, is gone by now; a process that lives is looked at again
        return False
    return False


def _open_for_writing(pid: int, number: str) -> bool:
    lines = Path(f"/proc/{pid}/fdinfo/{number}").read_text("utf-8").splitlines()
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY


def send(process: Process, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone already."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_until_gone(look: Callable[[], list[Process]], *, timeout_s: float, reap: Callable[[], object] = lambda: None) -> list[Process]:
    """SIGKILL what `look` finds, again and again until it finds nothing twice; return what is left after `timeout_s`.

    Twice, because a look that races with a fork may miss parent and child. Zombies count as gone; `reap` is called in each
    round for the caller's own. Only a process that the kernel cannot end (it hangs in a disk) is ever left.
    """
    deadline = time.monotonic() + timeout_s
    empty = 0
    while True:
        left = look()
        for process in left:
            send(process, signal.SIGKILL)
        reap()
        empty = 0 if left else empty + 1
        if empty == 2 or time.monotonic() > deadline:
            return left
        if left:
            time.sleep(0.003)


def kill_tree_until_gone(root: Process, *, timeout_s: float, reap: Callable[[], object] = lambda: None) -> list[Process]:
    """SIGKILL `root` and what descends from it; return what is left after `timeout_s`.

    Children that lost their parent on the way are found again because they were seen before; new ones of theirs are too.
    """
    known: dict[Process, None] = {root: None}

    def look() -> list[Process]:
        for process in list(known):
            if alive(process):
                known.update(dict.fromkeys(descendants(process.pid)))
        return [process for process in known if alive(process)]

    return kill_until_gone(look, timeout_s=timeout_s, reap=reap)


def become_subreaper() -> None:
    """From now on orphans below this process become its children."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def dying_with_parent(number: signal.Signals) -> list[str]:
    """What to put before a command so that it is sent `number` when the *thread* that starts it ends: start it from one that stays.

    A program that sets this for itself and becomes the command, since a `preexec_fn` is unsafe beside threads. Cost: about 20 ms.
    """
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(_PR_SET_PDEATHSIG), str(int(number)), str(os.getpid())]
