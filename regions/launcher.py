"""Starts regions on this machine, each under a supervisor of its own, and ends exactly what it started.

Where the kernel allows it a region lives in a PID namespace: it dies as one when its supervisor does. Elsewhere its
processes are found by their marker. A launcher that is killed takes its regions along; should any process remain, the
next launcher on the same data directory ends it before it starts. A lock keeps two launchers off one data directory.

Errors:
    StartError   one sentence on why a region cannot start (exit code 2). Definite; mend what it names and start again.
"""

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self

from config.loading import load_cluster
from config.models import LOOPBACK, ClusterConfig, RegionConfig
from regions import process_tree
from regions.children import http_status
from regions.process_tree import Process
from regions.ray_settings import PACKAGES
from regions.region_paths import Containment, RegionPaths, Report, read_report
from regions.supervisor import Backoff

Progress = Callable[[dict[str, str]], None]
Role = Literal["supervisor", "store", "driver", "node", "gcs", "raylet", "shard", "replica", "gateway"]

#: What the command line of a role begins with, or (with the slash) what its program is called.
_TITLES: dict[Role, tuple[str, ...]] = {
    "gcs": ("/gcs_server",),
    "raylet": ("/raylet",),
    "shard": ("ray::Shard",),
    "replica": ("ray::Replica", "ray::ReadReplica"),
    "gateway": ("ray::Gateway",),
}
_NAMESPACE_COMMANDS = (
    ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"],
    ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--"],
)
#: Longer than the supervisor's own bound.
_STOP_S = 16.0
_KILL_S = 10.0


class StartError(Exception):
    """A region cannot be started; the text is one sentence for the operator."""

    code: ClassVar[str] = "start"
    definite: ClassVar[bool] = True


@functools.cache
def namespace_command() -> tuple[str, ...] | None:
    """How to run a command in a PID namespace of its own, None where this user may not. Tried once."""
    if shutil.which("unshare") is None:
        return None
    for command in _NAMESPACE_COMMANDS:
        try:
            if subprocess.run([*command, "true"], check=False, capture_output=True, timeout=10).returncode == 0:
                return tuple(command)
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


#: Children get a signal when the thread that started them ends, so all are started from this one, which stays.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="region-starter")


class RegionProcess:
    """One region: its supervisor and all below it. Methods may be called from any thread; each returns when it is done."""

    def __init__(
        self,
        *,
        config_path: Path,
        region: str,
        data_dir: Path,
        containment: Containment | None = None,
        supervisor_arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """`containment` None takes the best that works here. `supervisor_arguments` are handed on as they are.

        `prefix` is a command that becomes the rest of its own line, such as one that enters a network namespace.
        """
        self.region = region
        self.paths = RegionPaths(Path(os.path.realpath(data_dir)), region)
        self._wrapper = namespace_command() if containment != "subreaper" else None
        if containment == "namespace" and self._wrapper is None:
            raise StartError("PID namespaces are not allowed here: use `--containment subreaper`.")
        self.containment: Containment = "namespace" if self._wrapper else "subreaper"
        self._command = [
            *(*prefix, *(self._wrapper or ())),
            *(sys.executable, "-m", "regions.supervisor", "--config", os.path.abspath(config_path), "--region", region),
            *("--data-dir", str(self.paths.data_dir), "--containment", self.containment, *supervisor_arguments),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the supervisor, if it does not run, and return at once; an earlier life is ended to its last process before.

        Raises `StartError` when it does not even begin.
        """
        with self._lock:
            if self.alive():
                return
            self.kill()
            try:
                self.paths.create()
                self._process = _starter.submit(self._spawn).result()
            except OSError as error:
                raise StartError(f"{self.region} cannot be started: {error}.") from error

    def _spawn(self) -> subprocess.Popen[bytes]:
        packages = [str(PACKAGES), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
        # A namespace dies with `unshare`; a bare supervisor must still end its tree by itself.
        last_signal = signal.SIGKILL if self._wrapper else signal.SIGTERM
        with open(self.paths.log("supervisor"), "ab") as output:
            return subprocess.Popen(
                [*process_tree.dying_with_parent(last_signal), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {process_tree.RUN_MARKER: self.paths.marker, "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages))},
                cwd=self.paths.root / "run",
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which stops in order
            )

    def alive(self) -> bool:
        """Whether the supervisor runs (a stopped one does too)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The supervisor's, None while it runs or before its start; 2 says that starting again cannot help."""
        return self._process.poll() if self._process is not None else None

    def stop(self) -> None:
        """Stop in order, store last; what does not go within 16 s is killed. No process of the region is left."""
        with self._lock:
            deadline = time.monotonic() + _STOP_S
            while self._process is not None and self.alive() and time.monotonic() < deadline:
                supervisor = self._supervisor()
                if supervisor is not None:
                    process_tree.send(supervisor, signal.SIGTERM)
                try:  # again: PID 1 of a namespace drops what comes before it has a handler
                    self._process.wait(0.25)
                except subprocess.TimeoutExpired:
                    continue
            self.kill()

    def kill(self) -> None:
        """SIGKILL the whole region, the supervisor first, and wait until no process with its marker is left."""
        with self._lock:
            victims: list[Process] = []
            if self._process is not None and self.alive():
                root = process_tree.identify(self._process.pid)
                victims = ([root] if root else []) + process_tree.descendants(self._process.pid)
                for process in victims:
                    process_tree.send(process, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # then it is named below
                    self._process.wait(_KILL_S)
            left = process_tree.kill_until_gone(
                lambda: (
                    [process for process in victims if process_tree.alive(process)]
                    + process_tree.processes_marked(self.paths.marker, outputs=self.paths.outputs)
                ),
                timeout_s=_KILL_S,
            )
            if left:
                raise StartError(f"{self.region} still has processes that the kernel does not end: {_numbers(left)}.")

    def clean(self) -> None:
        """End what a supervisor that died has left; nothing if it runs."""
        with self._lock:
            if not self.alive():
                self.kill()

    def report(self) -> Report | None:
        """What the supervisor last wrote, None unless it is of this life."""
        report = read_report(self.paths.report)
        supervisor = self._supervisor()
        if report is None or supervisor is None or process_tree.namespace_pid(supervisor.pid) != report.pid:
            return None
        return report

    def host_pids(self) -> dict[Role, list[int]]:
        """Pids by role as this machine counts them; [] for what does not run. Roles inside Ray go by process title."""
        supervisor = self._supervisor()
        pids: dict[Role, list[int]] = {role: [] for role in ("supervisor", "store", "driver", "node", *_TITLES)}
        if supervisor is None:
            return pids
        pids["supervisor"] = [supervisor.pid]
        below = process_tree.descendants(supervisor.pid)
        report = self.report()
        children = report.children if report else {}
        inner = {process_tree.namespace_pid(process.pid): process.pid for process in below}
        for name, child in children.items():
            if child.pid is not None and child.pid in inner:
                role: Role = "store" if name == "store" else "driver" if name == "driver" else "node"
                pids[role].append(inner[child.pid])
        for process in below:
            line = process_tree.command_line(process.pid)
            program = f"/{os.path.basename(line.partition(' ')[0])}"
            for titled, titles in _TITLES.items():
                if any(program == title if title[0] == "/" else line.startswith(title) for title in titles):
                    pids[titled].append(process.pid)
        return pids

    def _supervisor(self) -> Process | None:
        if self._process is None or not self.alive():
            return None
        if self._wrapper is None:
            return process_tree.identify(self._process.pid)
        below = process_tree.descendants(self._process.pid)
        return next((process for process in below if process_tree.namespace_pid(process.pid) == 1), None)


class Launcher:
    """The regions of one data directory. `start_all` takes the directory's lock, `stop_all` gives it back.

    A region whose supervisor dies is cleaned up and started again (after 0.5 s, doubling to 10 s) unless it is held.
    Use it as a context manager to stop on the way out.
    """

    def __init__(
        self,
        config_path: str | Path,
        data_dir: str | Path,
        regions: Sequence[str] = (),
        auto_restart: bool = True,
        *,
        config: ClusterConfig | None = None,
        containment: Containment | None = None,
        supervisor_arguments: Sequence[str] = (),
        prefixes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """No `regions` means all of the file. `config` is what the file will say once `start_all` has prepared it.

        `prefixes` are those of `RegionProcess`, by region; such a region listens elsewhere, so its ports are not checked here.
        Raises `ConfigError`, or `StartError` for a region that the file has not.
        """
        self.config: ClusterConfig = config or load_cluster(config_path)
        self.data_dir = Path(os.path.realpath(data_dir))
        names = list(regions) or list(self.config.regions)
        for name in names:
            if name not in self.config.regions:
                raise StartError(f"{config_path} has no region {name}; it has {', '.join(self.config.regions)}.")
        self.regions = {
            name: RegionProcess(
                config_path=Path(config_path),
                region=name,
                data_dir=self.data_dir,
                containment=containment,
                supervisor_arguments=supervisor_arguments,
                prefix=(prefixes or {}).get(name, ()),
            )
            for name in names
        }
        self._elsewhere = set(prefixes or {})
        self._auto_restart = auto_restart
        self._held: set[str] = set()
        self._guards = {name: threading.RLock() for name in names}
        self._ending = threading.Event()
        self._watcher: threading.Thread | None = None
        self._lock_file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_all()

    def start_all(self, prepare: Callable[[], None] | None = None) -> None:
        """Lock the directory, end what an earlier launcher left in it, check the ports, `prepare`, start all regions at once.

        While `prepare` runs, nothing else uses the directory. Raises `StartError`, or what it raised, with nothing started.
        """
        self._take_lock()
        try:
            self._end_leftovers()
            for name in self.regions:
                if name not in self._elsewhere:
                    _check_ports(name, self.config.regions[name])
            if prepare is not None:
                prepare()
            for region in self.regions.values():
                region.start()
        except BaseException:
            self.stop_all()
            raise
        self._ending.clear()
        self._watcher = threading.Thread(target=self.watch, name="region-watch", daemon=True)
        self._watcher.start()

    def wait_ready(self, timeout: float = 60.0, progress: Progress | None = None) -> None:
        """Wait until `/readyz` of all gateways answers 200, held regions aside; `progress` gets the states, four times a second.

        Raises `StartError` that names the regions which are not ready, their states and where their logs are.
        """
        deadline = time.monotonic() + timeout
        while True:
            names = [name for name in self.regions if name not in self._held]
            ready = asyncio.run(_ready({name: self.config.regions[name] for name in names}))
            states = {name: "ready" if ready[name] else self.state(name) for name in names}
            if progress is not None:
                progress(states)
            for name, state in states.items():
                if state == "refused":
                    raise StartError(self.refusal(name))
            late = [f"{name} ({state})" for name, state in states.items() if state != "ready"]
            if not late:
                return
            if time.monotonic() > deadline:
                raise StartError(f"not ready after {timeout:g} s: {', '.join(late)}; see the logs in {self.data_dir}/<region>/log.")
            if self._ending.wait(0.25):
                raise StartError("the regions were stopped before they were ready.")

    def state(self, name: str) -> str:
        """The supervisor's word for the region, else held, refused (its configuration), dead or starting."""
        region = self.regions[name]
        if region.alive():
            report = region.report()
            return report.state if report else "starting"
        return "held" if name in self._held else "refused" if region.exit_code == 2 else "dead"

    def refusal(self, name: str) -> str:
        """Why a region whose state is refused did not start, in a sentence."""
        return f"{name} does not start: {_last_line(self.regions[name].paths.log('supervisor'))}"

    def stop_all(self) -> None:
        """Stop all regions in order, in parallel; then no process of them is left. Idempotent."""
        self._ending.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
            self._watcher = None
        try:
            if self._lock_file is not None:
                with ThreadPoolExecutor(len(self.regions)) as pool:
                    list(pool.map(self._stop_one, self.regions))
        finally:
            self._drop_lock()

    def _stop_one(self, name: str) -> None:
        with self._guards[name]:
            self.regions[name].stop()

    def hold(self, name: str) -> None:
        """From now on do not start this region again. It goes on running if it does; `regions[name].kill()` ends it."""
        with self._guards[name]:
            self._held.add(name)

    def release(self, name: str) -> None:
        """End a hold; a region that is down starts at once."""
        with self._guards[name]:
            self._held.discard(name)
            if not self._ending.is_set():
                self.regions[name].start()

    def watch(self) -> None:
        """Until `stop_all`: clean up after a supervisor that died, at once, and start it again when its pause is over."""
        backoffs = {name: Backoff(0.5, 10.0) for name in self.regions}
        alive_since = dict.fromkeys(self.regions, time.monotonic())
        due: dict[str, float] = {}
        while not self._ending.wait(0.05):
            for name, region in self.regions.items():
                with self._guards[name]:
                    if region.alive():
                        due.pop(name, None)
                        alive_since.setdefault(name, time.monotonic())
                    elif name in alive_since:
                        _attempt(region.clean)
                        due[name] = time.monotonic() + backoffs[name].after(time.monotonic() - alive_since.pop(name))
                    elif self._auto_restart and name not in self._held and region.exit_code != 2 and time.monotonic() >= due.get(name, 0.0):
                        _attempt(region.start)
                        due[name] = time.monotonic() + backoffs[name].after(0.0)

    # --- the data directory --------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        if self._lock_file is not None:
            raise StartError(f"the regions in {self.data_dir} are started already.")
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.data_dir / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError):
            raise StartError(f"{self.data_dir} is a file or lies below one: name a directory as data directory.") from None
        except OSError as error:
            raise StartError(f"the data directory {self.data_dir} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel gives it back when its holder ends, however it ends
        except OSError:
            holder = _holder(os.pread(handle, 200, 0))
            os.close(handle)
            raise StartError(f"{self.data_dir} is in use by another `laurel`{holder}: stop that, or name another data directory.") from None
        me = process_tree.identify(os.getpid())
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "started": me.started if me else 0}).encode(), 0)
        self._lock_file = handle

    def _drop_lock(self) -> None:
        if self._lock_file is not None:
            os.ftruncate(self._lock_file, 0)
            os.close(self._lock_file)
            self._lock_file = None

    def _end_leftovers(self) -> None:
        """End processes of this data directory alone, also those of regions that the file no longer has."""
        names = {*self.regions, *(path.parent.name for path in self.data_dir.glob("*/run"))}
        outputs = [path for name in names for path in RegionPaths(self.data_dir, name).outputs]
        left = process_tree.kill_until_gone(
            lambda: process_tree.processes_marked(str(self.data_dir), outputs=outputs),
            timeout_s=_KILL_S,
        )
        if left:
            raise StartError(f"processes of an earlier run in {self.data_dir} do not end: {_numbers(left)}.")


def _check_ports(name: str, region: RegionConfig) -> None:
    """Raises `StartError` for the first address of the region at which it cannot listen."""
    addresses = [(region.link.host, region.link.port), *region.gateways[: 1 if region.head else None]]
    if region.head is not None:
        addresses.append((region.head.host, region.head.port))
    if region.store.port is not None:
        addresses.append((LOOPBACK, region.store.port))
    for host, port in addresses:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartError(f"port {port} of {name} is taken by another process: stop it, or give {name} another port.") from error
            if error.errno == errno.EACCES:
                raise StartError(f"port {port} of {name} needs rights that you do not have: give {name} a port above 1023.") from error
            raise StartError(f"{name} cannot listen at {host}:{port}: {error.strerror}.") from error


def _attempt(action: Callable[[], None]) -> None:
    try:
        action()
    except StartError as error:
        print(f"laurel: {error}", file=sys.stderr)


async def _ready(regions: dict[str, RegionConfig]) -> dict[str, bool]:
    async def one(host: str, port: int) -> bool:
        try:
            return await http_status(host, port, "/readyz", 1.0) == 200
        except (OSError, TimeoutError, ValueError):
            return False

    async def all_of(region: RegionConfig) -> bool:
        return all(await asyncio.gather(*(one(*address) for address in region.gateways)))

    answers = await asyncio.gather(*(all_of(region) for region in regions.values()))
    return dict(zip(regions, answers, strict=True))


def _holder(content: bytes) -> str:
    """ " (pid 12)" of the process that wrote the lock, if it still is that process."""
    try:
        fields = json.loads(content)
        holder = Process(int(fields["pid"]), int(fields["started"]))
    except (ValueError, KeyError, TypeError):
        return ""
    return f" (pid {holder.pid})" if process_tree.alive(holder) else ""


def _numbers(processes: list[Process]) -> str:
    return ", ".join(str(process.pid) for process in processes)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return (lines[-1] if lines else f"see {path}.").removeprefix("laurel: ")
