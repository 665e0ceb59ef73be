"""The process layer with a stand-in for the Ray driver: what dies comes back, what is stopped is gone, and nothing else is touched."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from regions import process_tree
from regions.launcher import Launcher, RegionProcess, StartError, namespace_command
from regions.process_tree import Process
from regions.ray_settings import PACKAGES
from regions.region_paths import Containment, RegionPaths, prune_sessions, read_report, rotate
from regions.store_process import StoreAddress, ask_store, store_command
from regions.supervisor import Backoff
from regions.supervisor import main as supervisor_main

#: Answers like a gateway. Its helper is as hard to find as Ray's agents: own session, orphaned, no marker in its environment.
FAKE_DRIVER = """
import http.server, os, shutil, signal, subprocess, sys, yaml
config, region = sys.argv[sys.argv.index("--config") + 1], sys.argv[sys.argv.index("--region") + 1]
assert os.environ["RAY_AUTH_MODE"] == "token" and os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
with open(os.environ["LAUREL_RAY_TMP"] + "/helper.out", "w") as out:
    line = "exec -a ray::Replica" + "Actor sleep 1000 & exit"
    subprocess.run(["bash", "-c", line], env={}, pass_fds=[out.fileno()], start_new_session=True)
copy = os.environ["LAUREL_RAY_TMP"] + "/raylet"
shutil.copy("/bin/sleep", copy)
subprocess.Popen([copy, "1000"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in ("/healthz", "/readyz") else 404)
        self.end_headers()
    def log_message(self, *words): pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = yaml.safe_load(open(config))["regions"][region]["port"]
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
#: A `laurel up` reduced to its launcher; runs until it is killed.
FAKE_UP = """
import sys, threading
sys.path.insert(0, sys.argv.pop())
from regions.launcher import Launcher, StartError
launcher = Launcher(sys.argv[1], sys.argv[2], supervisor_arguments=sys.argv[4:], containment=sys.argv[3])
try:
    launcher.start_all()
    launcher.wait_ready(30)
except StartError as error:
    print(error, flush=True)
    sys.exit(2)
print("ready", flush=True)
threading.Event().wait()
"""
REGION = "eu-west"
CONTAINMENTS: list[Containment] = ["namespace", "subreaper"]


def until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Wait for the condition; return how long it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - begin


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write_config(directory: Path, *regions: str) -> Path:
    ports = iter(free_ports(3 * len(regions)))
    place = "{{port: {}, store: {{port: {}}}, link: {{host: 127.0.0.1, port: {}}}}}"
    lines = ["name: test", "regions:", *(f"  {name}: {place.format(next(ports), next(ports), next(ports))}" for name in regions)]
    lines += ["shards:", f"  {regions[0]}/0: {{home: {regions[0]}}}", ""]
    path = directory / "cluster.yaml"
    path.write_text("\n".join(lines), "utf-8")
    return path


def supervisor_arguments(directory: Path) -> list[str]:
    script = directory / "fake_driver.py"
    script.write_text(FAKE_DRIVER, "utf-8")
    return ["--driver", f"{sys.executable} {script}", "--probe-ms", "200"]


def marked(paths: RegionPaths) -> list[Process]:
    return process_tree.processes_marked(paths.marker, outputs=paths.outputs)


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A stand-in for `laurel up`, ready; killed with SIGKILL at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline() == "ready\n"
            yield up
        finally:
            up.kill()


class Bench:
    """One region under a launcher of its own."""

    def __init__(self, directory: Path, containment: Containment, *, auto_restart: bool = True) -> None:
        self.config = write_config(directory, REGION)
        arguments = supervisor_arguments(directory)
        self.launcher = Launcher(
            self.config, directory / "data", auto_restart=auto_restart, containment=containment, supervisor_arguments=arguments
        )
        self.region: RegionProcess = self.launcher.regions[REGION]
        self.paths = self.region.paths

    def pid(self, role: Any) -> int:
        pids = self.region.host_pids()[role]
        return pids[0] if pids else 0

    def kill(self, role: Any, number: signal.Signals = signal.SIGKILL) -> Process:
        process = process_tree.identify(self.pid(role))
        assert process is not None, f"{role} does not run"
        assert process_tree.send(process, number)
        return process

    def store(self, *words: str) -> str:
        port = self.launcher.config.regions[REGION].store.port
        assert port is not None
        return asyncio.run(ask_store(StoreAddress(host="127.0.0.1", port=port, directory=self.paths.root), *words, timeout_s=2.0))

    def running(self) -> bool:
        report = self.region.report()
        return report is not None and report.state == "running"

    def back_without(self, role: Any, dead: Process) -> None:
        until(lambda: self.pid(role) not in {0, dead.pid} and self.running(), 15, f"another {role}")
        assert not process_tree.alive(dead)


@pytest.fixture(params=CONTAINMENTS)
def containment(request: pytest.FixtureRequest) -> Containment:
    if request.param == "namespace" and namespace_command() is None:
        pytest.skip("PID namespaces are not allowed here")
    kind: Containment = request.param
    return kind


@pytest.fixture
def bench(tmp_path: Path, containment: Containment) -> Iterator[Bench]:
    bench = Bench(tmp_path, containment)
    with bench.launcher:
        bench.launcher.start_all()
        bench.launcher.wait_ready(30)
        until(bench.running, 10, "running")
        yield bench
    assert marked(bench.paths) == []


@pytest.fixture
def idle(request: pytest.FixtureRequest) -> Iterator[Callable[..., Process]]:
    """Starts idle processes of this test, each in a session of its own, and ends them."""
    with ExitStack() as stack:

        def start(**options: Any) -> Process:
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True, **options)
            stack.callback(child.wait)
            stack.callback(child.kill)
            until(lambda: process_tree.command_line(child.pid).startswith("sleep"), 5, "exec")
            process = process_tree.identify(child.pid)
            assert process is not None
            return process

        yield start


# --- without a region ----------------------------------------------------------------------------------------------


def test_pauses_double_to_the_limit_and_begin_anew_after_health() -> None:
    backoff = Backoff(0.1, 5.0)
    assert [round(backoff.after(1.0), 3) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.after(10.0) == 0.1


def test_ray_directory_is_short_and_differs_by_data_directory_and_region(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    found = {RegionPaths(path, name).ray_tmp for path in (deep, tmp_path) for name in ("eu-west", "us-east")}
    assert len(found) == 4
    assert all(len(str(path)) < 50 for path in found)


def test_store_writes_to_disk_before_it_answers_and_never_evicts(tmp_path: Path) -> None:
    words = store_command(StoreAddress(host="127.0.0.1", port=1, directory=tmp_path))
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert flags["--appendonly"] == "yes"
    assert flags["--appendfsync"] == "always"
    assert flags["--no-appendfsync-on-rewrite"] == "no"
    assert flags["--maxmemory-policy"] == "noeviction"
    assert (flags["--bind"], flags["--protected-mode"], flags["--save"]) == ("127.0.0.1", "yes", "")


def test_marker_finds_a_data_directory_and_its_regions_but_no_namesake(tmp_path: Path, idle: Callable[..., Process]) -> None:
    ours = idle(env={"LAUREL_RUN": f"{tmp_path}/data/eu-west"})
    idle(env={"LAUREL_RUN": f"{tmp_path}/data2/eu-west"})
    idle(env={"OTHER": f"{tmp_path}/data/eu-west"})
    assert process_tree.processes_marked(f"{tmp_path}/data") == [ours]
    assert process_tree.processes_marked(f"{tmp_path}/data/eu-west") == [ours]
    assert process_tree.processes_marked(f"{tmp_path}/data/eu") == []


def test_process_without_marker_is_found_by_the_log_it_writes_and_a_reader_is_not(tmp_path: Path, idle: Callable[..., Process]) -> None:
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "out", "rb") as reading, open(tmp_path / ".out.swp", "wb") as editor:
        ours = idle(env={}, pass_fds=[out.fileno()])
        idle(env={}, pass_fds=[reading.fileno(), editor.fileno()])
    assert process_tree.processes_marked("/nowhere", outputs=[str(tmp_path)]) == [ours]


def test_signal_spares_a_process_that_took_over_the_pid(idle: Callable[..., Process]) -> None:
    process = idle()
    assert not process_tree.send(Process(process.pid, process.started - 1), signal.SIGKILL)
    assert process_tree.alive(process)


def test_tree_is_killed_across_sessions_and_a_bystander_stays(idle: Callable[..., Process]) -> None:
    bystander = idle()
    script = "setsid sleep 1001 & setsid sleep 1002 & wait"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True) as child:
        until(lambda: len(process_tree.find(child.pid, "sleep 100")) >= 3, 5, "children")
        tree = process_tree.descendants(child.pid)
        root = process_tree.identify(child.pid)
        assert root is not None
        assert process_tree.kill_tree_until_gone(root, timeout_s=5, reap=child.poll) == []
    assert tree
    assert not any(process_tree.alive(process) for process in tree)
    assert process_tree.alive(bystander)


def test_log_that_grew_is_set_aside_and_its_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regions.region_paths.LOG_BYTES", 10)
    path = tmp_path / "store.log"
    with open(path, "ab", buffering=0) as writer:
        writer.write(b"a long first part\n")
        rotate(path)
        writer.write(b"second\n")
        rotate(path)
    assert path.read_bytes() == b"second\n"
    assert path.with_suffix(".log.1").read_bytes() == b"a long first part\n"


def test_ray_session_of_the_last_life_is_kept_and_older_ones_removed(tmp_path: Path) -> None:
    for name in ("session_2026-01-01", "session_2026-01-02", "session_2026-01-03"):
        (tmp_path / name).mkdir()
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_2026-01-03")
    prune_sessions(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session_2026-01-03", "session_latest"]


@pytest.mark.net
def test_data_directory_that_is_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("")
    with pytest.raises(StartError, match=f"^{path} is a file or lies below one: name a directory"):
        Launcher(write_config(tmp_path, REGION), path).start_all()
    with pytest.raises(StartError, match="is a file or lies below one"):
        Launcher(write_config(tmp_path, REGION), path / "deeper").start_all()


@pytest.mark.net
def test_taken_port_is_named_with_its_region_and_nothing_is_started(tmp_path: Path) -> None:
    launcher = Launcher(write_config(tmp_path, REGION), tmp_path / "data")
    for port in (launcher.config.regions[REGION].port, launcher.config.regions[REGION].store.port):
        with socket.create_server(("127.0.0.1", port or 0)), pytest.raises(StartError, match=f"^port {port} of eu-west is taken"):
            launcher.start_all()
    assert marked(launcher.regions[REGION].paths) == []


@pytest.mark.net
def test_region_that_the_file_has_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, REGION)
    with pytest.raises(StartError, match="has no region mars; it has eu-west"):
        Launcher(config, tmp_path / "data", ["mars"])
    assert supervisor_main(["--config", str(config), "--region", "mars", "--data-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- with a region -------------------------------------------------------------------------------------------------


@pytest.mark.store
def test_killed_store_comes_back_with_its_data(bench: Bench) -> None:
    driver = bench.pid("driver")
    assert bench.store("SET", "kept", "yes") == "OK"
    dead = bench.kill("store")
    bench.back_without("store", dead)
    assert bench.store("GET", "kept") == "yes"
    assert bench.pid("driver") == driver


@pytest.mark.store
def test_stopped_store_is_replaced(bench: Bench) -> None:
    assert bench.store("SET", "kept", "yes") == "OK"
    bench.back_without("store", bench.kill("store", signal.SIGSTOP))
    assert bench.store("GET", "kept") == "yes"


@pytest.mark.store
def test_killed_driver_comes_back_and_its_orphans_go(bench: Bench) -> None:
    store, (helper,) = bench.pid("store"), bench.region.host_pids()["replica"]
    orphan = process_tree.identify(helper)
    assert orphan is not None
    bench.back_without("driver", bench.kill("driver"))
    assert not process_tree.alive(orphan)
    assert bench.pid("store") == store
    report = bench.region.report()
    assert report is not None
    assert (report.restarts, report.children["driver"].last_end) == (1, "ended by SIGKILL")


@pytest.mark.store
def test_stopped_driver_is_replaced(bench: Bench) -> None:
    bench.back_without("driver", bench.kill("driver", signal.SIGSTOP))
    report = bench.region.report()
    assert report is not None
    assert report.children["driver"].last_end.startswith("no answer to 15 probes in a row")


@pytest.mark.store
def test_driver_whose_raylet_died_is_replaced_though_its_gateway_answers(bench: Bench) -> None:
    driver = process_tree.identify(bench.pid("driver"))
    assert driver is not None
    bench.kill("raylet")
    bench.back_without("driver", driver)
    report = bench.region.report()
    assert report is not None
    assert report.children["driver"].last_end == "Ray's raylet is gone"


@pytest.mark.store
def test_killed_supervisor_takes_its_region_along_and_is_started_again(bench: Bench) -> None:
    before = marked(bench.paths)
    assert bench.store("SET", "kept", "yes") == "OK"
    bench.kill("supervisor")
    took = until(lambda: not any(process_tree.alive(process) for process in before), 1.0, "the whole region gone")
    print(f"{bench.region.containment}: gone {took * 1000:.0f} ms after the supervisor")
    bench.launcher.wait_ready(20)
    assert bench.store("GET", "kept") == "yes"


@pytest.mark.store
def test_held_region_stays_down_until_it_is_released(bench: Bench) -> None:
    bench.launcher.hold(REGION)
    begin = time.monotonic()
    bench.region.kill()
    print(f"{bench.region.containment}: killed in {(time.monotonic() - begin) * 1000:.0f} ms")
    assert marked(bench.paths) == []
    assert bench.launcher.state(REGION) == "held"
    bench.launcher.release(REGION)
    bench.launcher.wait_ready(20)


@pytest.mark.store
def test_stop_in_order_leaves_no_process_and_no_ray_directory(bench: Bench) -> None:
    assert bench.store("SET", "kept", "yes") == "OK"
    assert bench.paths.ray_tmp.is_dir()
    assert bench.paths.ray_tmp.stat().st_mode & 0o777 == 0o700
    begin = time.monotonic()
    bench.launcher.stop_all()
    print(f"{bench.region.containment}: stopped in {(time.monotonic() - begin) * 1000:.0f} ms")
    assert marked(bench.paths) == []
    assert not bench.paths.ray_tmp.exists()
    report = read_report(bench.paths.report)
    assert report is not None
    assert report.state == "stopped"
    assert "ready to exit" in bench.paths.log("store").read_text("utf-8")
    assert bench.paths.log("driver").exists()
    bench.launcher.start_all()
    bench.launcher.wait_ready(20)
    assert bench.store("GET", "kept") == "yes"


@pytest.mark.store
def test_second_launcher_and_second_supervisor_of_one_directory_are_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartError, match=rf"is in use by another `laurel` \(pid {os.getpid()}\)"):
        Launcher(bench.config, bench.paths.data_dir).start_all()
    arguments = ["--config", str(bench.config), "--region", REGION, "--data-dir", str(bench.paths.data_dir)]
    assert supervisor_main(arguments) == 2
    assert "has a supervisor already" in capsys.readouterr().err
    assert bench.running()


@pytest.mark.store
def test_driver_that_never_gets_well_is_started_again(tmp_path: Path, containment: Containment) -> None:
    driver = f"{sys.executable} -c 'import time; time.sleep(1000)'"
    arguments = ["--driver", driver, "--probe-ms", "100", "--grace-ms", "500"]
    launcher = Launcher(write_config(tmp_path, REGION), tmp_path / "data", containment=containment, supervisor_arguments=arguments)
    with launcher:
        launcher.start_all()

        def restarted() -> bool:
            report = launcher.regions[REGION].report()
            return report is not None and report.children["driver"].last_end.startswith("never well in 0.5 s") and report.restarts > 0

        until(restarted, 15, "a second life")
        with pytest.raises(StartError, match=r"not ready after 0.1 s: eu-west \(starting\)"):
            launcher.wait_ready(0.1)


@pytest.mark.store
def test_killed_launcher_leaves_nothing_to_the_next_one_which_ends_only_its_own(
    tmp_path: Path, containment: Containment, idle: Callable[..., Process]
) -> None:
    """1. An `up` of two regions is killed. 2. A leftover of it and two bystanders run. 3. The next `up` starts; the bystanders go on."""
    config = write_config(tmp_path, REGION, "us-east")
    command = [
        sys.executable,
        "-c",
        FAKE_UP,
        str(config),
        str(tmp_path / "data"),
        containment,
        *supervisor_arguments(tmp_path),
        str(PACKAGES),
    ]
    paths = RegionPaths(Path(os.path.realpath(tmp_path / "data")), REGION)
    with running(command) as up:
        second = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30)
        assert f"is in use by another `laurel` (pid {up.pid})" in second.stdout
        assert second.returncode == 2
    leftover = idle(env={"LAUREL_RUN": paths.marker})
    bystanders = [idle(env={"LAUREL_RUN": f"{paths.data_dir}-2/eu-west"}), idle()]
    launcher = Launcher(config, tmp_path / "data", containment=containment, supervisor_arguments=supervisor_arguments(tmp_path))
    with launcher:
        launcher.start_all()
        assert not process_tree.alive(leftover)
        launcher.wait_ready(30)
    assert process_tree.processes_marked(str(paths.data_dir)) == []
    assert all(process_tree.alive(process) for process in bystanders)


@pytest.mark.store
def test_killed_launcher_takes_its_regions_along(tmp_path: Path, containment: Containment) -> None:
    config = write_config(tmp_path, REGION)
    command = [
        sys.executable,
        "-c",
        FAKE_UP,
        str(config),
        str(tmp_path / "data"),
        containment,
        *supervisor_arguments(tmp_path),
        str(PACKAGES),
    ]
    paths = RegionPaths(Path(os.path.realpath(tmp_path / "data")), REGION)
    with running(command):
        before = marked(paths)
        assert len(before) == (6 if containment == "namespace" else 5)
    took = until(lambda: not any(process_tree.alive(process) for process in before), 12, "its regions gone")
    print(f"{containment}: gone {took * 1000:.0f} ms after the launcher")
    assert marked(paths) == []
    shutil.rmtree(paths.ray_tmp, ignore_errors=True)
