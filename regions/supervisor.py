"""One region's supervisor: a plain process that starts, probes, restarts and ends the store, the Ray driver and further nodes.

    python -m regions.supervisor --config cluster.yaml --region eu-west --data-dir .laurel

It owns every process of the region: as PID 1 of a PID namespace (the launcher makes it), else as the subreaper of its
tree. A child fails when it exits, when it was well and misses too many probes in a row, or when it never becomes well;
a stopped or hung one therefore fails too. So does the driver, at once, when Ray's control server or raylet is gone:
actors go on answering without them, and nothing in Ray brings them back. Then all of it is killed, waited for, started again.
A further node that dies is started again alone: Ray runs its actors elsewhere meanwhile.
SIGTERM, SIGINT or SIGHUP stops in order: driver, its leftovers, store (whose log is then complete on disk).

What it loses when it is killed: nothing. All state is the store's and the ledger's; `run/supervisor.json` only reports.
Exit code 2 means that a restart cannot help: wrong use, wrong configuration.
"""

import argparse
import asyncio
import fcntl
import logging
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from config.loading import load_cluster
from config.models import LOOPBACK, ConfigError, RegionConfig
from regions import preflight, process_tree, ray_settings
from regions.children import Child, end_within, executable, http_status, set_within
from regions.process_tree import Process
from regions.region_paths import ChildReport, Containment, RegionPaths, Report, prune_sessions, rotate, write_report
from regions.store_process import StoreAddress, server_binary, store_command, store_health

#: Environment variable with a command that stands in for `python -m regions.driver`.
DRIVER_COMMAND = "LAUREL_DRIVER_COMMAND"

log = logging.getLogger("laurel.supervisor")


@dataclass(slots=True)
class Backoff:
    """Pauses between restarts: `first_s`, doubling to `limit_s`, beginning anew after a life that was well for `reset_s`."""

    first_s: float
    limit_s: float
    reset_s: float = 10.0
    _pause_s: float = field(default=0.0, init=False)

    def after(self, healthy_s: float) -> float:
        """The pause to make now, given for how long the life that ended was well without a break."""
        self._pause_s = self.first_s if healthy_s >= self.reset_s or not self._pause_s else min(self._pause_s * 2, self.limit_s)
        return self._pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a child may be silent."""

    probe_s: float = 1.0
    misses: int = 5
    #: The driver's are those of its gateway, which Ray or the driver brings back; on a busy machine that takes seconds.
    driver_misses: int = 15
    first_answer_s: float = 30.0
    stop_s: float = 10.0


#: Programs of Ray's head: a region without one of them is dying, however well it answers.
_HEAD = {"gcs_server", "raylet"}
Probe = Callable[[], Awaitable[str]]


class Supervisor:
    """The children of one region and what is done about them. One thread: children get SIGKILL when it ends."""

    def __init__(
        self,
        *,
        config_path: Path,
        settings: RegionConfig,
        paths: RegionPaths,
        containment: Containment,
        driver: list[str],
        patience: Patience,
    ) -> None:
        self._settings = settings
        self._paths = paths
        self._containment = containment
        self._patience = patience
        self._driver_command = [*driver, "--config", str(config_path), "--region", paths.region, "--data-dir", str(paths.data_dir)]
        self._address = StoreAddress(host=LOOPBACK, port=settings.store.port or 0, directory=paths.root / "store")
        self._store = Child("store", ChildReport(state="starting" if settings.store.embedded else "external"))
        self._driver = Child("driver", ChildReport(state="starting"))
        #: By number; those on other machines are not this supervisor's.
        here = range(2, 1 if settings.head else settings.nodes + 1)
        self._nodes = {number: Child(f"node-{number}", ChildReport(state="starting")) for number in here}
        self._ray_token = ""
        self._store_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._started_at = _now()
        self._was_running = False
        self._written: Report | None = None

    async def run(self) -> int:
        """Keep the region until it is told to stop; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._publish()
        tasks = [asyncio.create_task(self._keep_driver()), asyncio.create_task(self._keep_logs())]
        tasks += [asyncio.create_task(self._keep_node(number)) for number in self._nodes]
        if self._settings.store.embedded:
            tasks.append(asyncio.create_task(self._keep_store()))
        else:
            self._store_ready.set()
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in tasks if task.done()]  # keepers never return: it raised
        for task in [stop, *tasks]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for task, outcome in zip(tasks, outcomes, strict=True):
            if task in failed and isinstance(outcome, Exception):
                log.error("the supervisor itself failed", exc_info=outcome)
        await self._stop()
        return 1 if failed else 0

    # --- keeping -------------------------------------------------------------------------------------------------

    async def _keep_store(self) -> None:
        async def probe() -> str:
            health = await store_health(self._address, pid=self._store.pid, timeout_s=self._patience.probe_s)
            if health == "ready":
                self._store_ready.set()
            return health

        backoff = Backoff(0.1, 5.0)
        while True:
            healthy_s = 0.0
            if self._spawn(self._store, store_command(self._address), dict(os.environ), self._paths.marker):
                healthy_s = await self._watch(self._store, probe, self._patience.misses)
            self._store_ready.clear()
            self._end(self._store, self._store_tree)
            await asyncio.sleep(backoff.after(healthy_s))

    async def _keep_driver(self) -> None:
        async def probe() -> str:
            self._check_head()
            status = await http_status(self._settings.host, self._settings.port, "/healthz", self._patience.probe_s)
            if status != 200:
                raise ConnectionError(f"/healthz answered {status}")
            return "ready"

        backoff = Backoff(0.1, 5.0)
        while True:
            await self._store_ready.wait()
            healthy_s = 0.0
            self._driver.needs.clear()
            prune_sessions(self._paths.ray_tmp)
            self._ray_token = self._new_token()
            if self._spawn(self._driver, self._driver_command, self._ray_environment(1), self._paths.marker):
                healthy_s = await self._watch(self._driver, probe, self._patience.driver_misses)
            self._end(self._driver, self._driver_tree)
            await asyncio.sleep(backoff.after(healthy_s))

    async def _keep_node(self, number: int) -> None:
        child, paths = self._nodes[number], self._paths

        async def probe() -> str:
            below = process_tree.descendants(child.pid)
            raylet = next((process for process in below if process_tree.program_name(process.pid) == "raylet"), None)
            if raylet is None:
                raise ConnectionError("its raylet does not run")
            child.needs["raylet"] = raylet
            if process_tree.stopped(raylet):
                raise TimeoutError("its raylet is stopped")
            return "ready"

        backoff = Backoff(0.1, 5.0)
        while True:
            head = await self._head()
            healthy_s = 0.0
            child.needs.clear()
            prune_sessions(paths.node_tmp(number))
            command = [sys.executable, "-m", "regions.node", "--region", paths.region, "--data-dir", str(paths.data_dir)]
            command += ["--head", head, "--number", str(number)]
            if self._spawn(child, command, self._ray_environment(number), paths.node_marker(number)):
                healthy_s = await self._watch(child, probe, self._patience.misses)
            self._end(child, lambda: self._node_tree(number))
            await asyncio.sleep(backoff.after(healthy_s))

    async def _head(self) -> str:
        """Address of the Ray head of the driver that runs now, once there is one."""
        while True:
            head = ray_settings.read_head(self._paths)
            if head is not None and head.pid == self._driver.pid:
                return head.address
            await asyncio.sleep(0.05)

    async def _watch(self, child: Child, probe: Probe, most_misses: int) -> float:
        """Wait until `child` fails; return its longest time in seconds without a miss. Why it failed goes into its report."""
        patience, born = self._patience, time.monotonic()
        misses, answered, well_since, well_s, health = 0, False, 0.0, 0.0, "starting"
        while True:
            hurry = health in {"starting", "loading"}
            if why := await end_within(child, min(0.1, patience.probe_s) if hurry else patience.probe_s):
                break
            try:
                health = await probe()
            except (OSError, TimeoutError, ValueError, EOFError) as error:
                misses += 1
                if misses >= most_misses and answered:
                    why = f"no answer to {misses} probes in a row ({str(error) or type(error).__name__})"
                    break
                if not answered and time.monotonic() - born > patience.first_answer_s:
                    why = f"never well in {patience.first_answer_s:g} s ({str(error) or type(error).__name__})"
                    break
                health, well_since = "failing" if answered else "starting", 0.0
            else:
                misses, answered = 0, True
                well_since = well_since or time.monotonic()
                well_s = max(well_s, time.monotonic() - well_since)
            self._show(child, state=health)
        self._show(child, state="waiting", last_end=why)
        return well_s

    async def _keep_logs(self) -> None:
        while True:
            for name in ("supervisor", *self._children):
                rotate(self._paths.log(name))
            await asyncio.sleep(5.0)

    # --- children ------------------------------------------------------------------------------------------------

    @property
    def _children(self) -> dict[str, Child]:
        return {child.name: child for child in (self._store, self._driver, *self._nodes.values())}

    def _spawn(self, child: Child, command: list[str], environment: dict[str, str], marker: str) -> bool:
        child.ended.clear()
        try:
            with open(self._paths.log(child.name), "ab") as output:
                child.process = subprocess.Popen(
                    [*process_tree.dying_with_parent(signal.SIGKILL), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment | {process_tree.RUN_MARKER: marker},
                    cwd=self._paths.root / "run",  # nothing there that an import could take for one of ours
                    start_new_session=True,
                )
        except OSError as error:
            self._show(child, state="waiting", last_end=f"did not start ({error})")
            return False
        log.info("%s started as %d", child.name, child.pid)
        self._show(child, state="starting", pid=child.pid, started_at=_now())
        return True

    def _end(self, child: Child, tree: Callable[[], list[Process]]) -> None:
        """Kill what is left of a child and wait until it is gone: two lives never overlap."""
        left = process_tree.kill_until_gone(tree, timeout_s=self._patience.stop_s, reap=self._reap)
        if left:
            log.error("%s: the kernel does not end %s", child.name, ", ".join(str(process.pid) for process in left))
        log.warning("%s failed: %s", child.name, child.report.last_end)
        self._show(child, state="waiting", pid=None, restarts=child.report.restarts + 1)

    def _store_tree(self) -> list[Process]:
        """The store and what it forks to rewrite its log, which may have lost it."""
        if not self._settings.store.embedded:
            return []
        binary = os.path.realpath(server_binary())
        below = process_tree.descendants(os.getpid())
        return [process for process in below if process.pid == self._store.pid or executable(process.pid) == binary]

    def _driver_tree(self) -> list[Process]:
        """All of the region but the store: workers and agents of Ray outlive their parents and are adopted."""
        store = self._store_tree()
        return [process for process in process_tree.descendants(os.getpid()) if process not in store]

    def _node_tree(self, number: int) -> list[Process]:
        """A node and all below it, what has lost its parent by now too."""
        pid = self._nodes[number].pid
        own = [process for process in (process_tree.identify(pid),) if pid and process]
        below = process_tree.descendants(pid) if pid else []
        outputs = [str(self._paths.node_tmp(number))]
        return [*own, *below, *process_tree.processes_marked(self._paths.node_marker(number), outputs=outputs)]

    def _new_token(self) -> str:
        """Of one life of the region's Ray, or, where nodes on other machines join it, of all."""
        return ray_settings.shared_token(self._paths.data_dir, self._paths.region) if self._settings.head else secrets.token_hex(32)

    def _ray_environment(self, node: int) -> dict[str, str]:
        return ray_settings.environment(self._paths, self._settings, node=node, token=self._ray_token)

    def _check_head(self) -> None:
        """Remember the parts of Ray's head as they come up. Raises `TimeoutError` when one is stopped."""
        for process in process_tree.descendants(self._driver.pid) if self._driver.pid else ():
            if (name := process_tree.program_name(process.pid)) in _HEAD:
                self._driver.needs.setdefault(name, process)
        for name, process in self._driver.needs.items():
            if process_tree.stopped(process):
                raise TimeoutError(f"Ray's {name} is stopped")

    def _reap(self) -> None:
        """Take leave of every dead child, adopted ones too; `Popen` gets its own exit codes."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            child = next((child for child in self._children.values() if child.pid == found.si_pid), None)
            if child is not None and child.process is not None and child.process.returncode is None:
                child.process.poll()
                child.ended.set()
            else:
                os.waitpid(found.si_pid, 0)

    # --- ending --------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Driver, its leftovers, store, everything: bounded by `stop_s`, after which SIGKILL leaves nothing."""
        log.info("stopping")
        self._stopping.set()
        self._show(self._driver, state="stopping")
        deadline = time.monotonic() + self._patience.stop_s
        await self._terminate(self._driver, deadline - time.monotonic() - 0.4 * self._patience.stop_s)
        process_tree.kill_until_gone(self._driver_tree, timeout_s=2.0, reap=self._reap)
        for child in (self._driver, *self._nodes.values()):
            self._show(child, state="stopped", pid=None)
        if self._settings.store.embedded:
            await self._terminate(self._store, deadline - time.monotonic())
            self._show(self._store, state="stopped", pid=None)
        left = process_tree.kill_until_gone(lambda: process_tree.descendants(os.getpid()), timeout_s=2.0, reap=self._reap)
        shutil.rmtree(self._paths.ray_tmp, ignore_errors=True)
        self._publish(state="stopped")
        log.info("stopped%s", f", but the kernel does not end {[process.pid for process in left]}" if left else "")

    async def _terminate(self, child: Child, timeout_s: float) -> None:
        if child.process is not None and child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
            if child.process.returncode is None:
                await set_within(child.ended, max(timeout_s, 0.1))

    # --- reporting -----------------------------------------------------------------------------------------------

    def _show(self, child: Child, **changes: object) -> None:
        child.report = msgspec.structs.replace(child.report, **changes)
        self._publish()

    def _publish(self, state: str = "") -> None:
        """Write `supervisor.json`, in one step, if anything in it changed."""
        children = {name: child.report for name, child in self._children.items()}
        well = all(report.state in {"ready", "external"} for report in children.values())
        self._was_running = self._was_running or well
        state = state or ("stopping" if self._stopping.is_set() else "running" if well else "degraded" if self._was_running else "starting")
        report = Report(
            region=self._paths.region,
            pid=os.getpid(),
            started_at=self._started_at,
            containment=self._containment,
            state=state,
            restarts=sum(child.restarts for child in children.values()),
            ray_tmp=str(self._paths.ray_tmp),
            children=children,
        )
        if report != self._written:
            write_report(self._paths.report, report)
            self._written = report


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lock(paths: RegionPaths) -> int:
    """Two supervisors of one region would run two stores on one log. The kernel gives the lock back when this process ends."""
    handle = os.open(paths.root / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise RuntimeError(f"{paths.root} has a supervisor already: stop that one first.") from None
    return handle


def main(arguments: list[str] | None = None) -> int:
    """Run one region's supervisor; the exit code is 2 for wrong use or configuration, with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m regions.supervisor")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--containment", choices=("namespace", "subreaper"), default="subreaper", help="namespace: it runs as PID 1")
    parser.add_argument("--driver", default=os.environ.get(DRIVER_COMMAND, ""), help="command that stands in for the Ray driver")
    parser.add_argument("--probe-ms", type=int, default=1000, help="time between probes, and for the answer to one")
    parser.add_argument("--grace-ms", type=int, default=180_000, help="time for a child's first good answer")
    given = parser.parse_args(arguments)
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)sZ %(levelname)s %(message)s")
    try:
        cluster = load_cluster(given.config)
        if given.region not in cluster.regions:
            raise ConfigError(f"has no `{given.region}`; it has {', '.join(cluster.regions)}", path="regions", file=str(given.config))
        if given.containment == "namespace" and os.getpid() != 1:
            raise RuntimeError("`--containment namespace` needs a PID namespace of its own: start it with `unshare --pid --fork`.")
        settings = cluster.regions[given.region]
        if settings.store.embedded:
            server_binary()
        paths = RegionPaths(Path(os.path.realpath(given.data_dir)), given.region)
        paths.create()
        lock = _lock(paths)
        for warning in preflight.check(cluster, given.region, paths.data_dir, file=str(given.config)):
            log.warning("%s", warning)
    except (ConfigError, RuntimeError, OSError) as error:
        print(f"laurel: {error}", file=sys.stderr)
        return 2
    os.environ[process_tree.RUN_MARKER] = paths.marker
    process_tree.become_subreaper()
    driver = shlex.split(given.driver) or [sys.executable, "-m", "regions.driver"]
    patience = Patience(probe_s=given.probe_ms / 1000, first_answer_s=given.grace_ms / 1000)

    async def supervise() -> int:
        return await Supervisor(
            config_path=Path(os.path.abspath(given.config)),
            settings=settings,
            paths=paths,
            containment=given.containment,
            driver=driver,
            patience=patience,
        ).run()

    try:
        return asyncio.run(supervise())
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
