"""`laurel up` as a process of its own: what it refuses before anything starts, and one region through its whole life."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
LAUREL = [sys.executable, "-m", "laurel.main"]
BOARD = "arena-clash:solo:S7:global"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("LAUREL_URL", "LAUREL_TOKEN")}
#: An idle machine needs 3 s.
START_S = 120


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The shipped file, cut to one region on free ports."""
    raw = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for probe in (a, b, c):
            probe.bind(("127.0.0.1", 0))
        gateway, store, link = (probe.getsockname()[1] for probe in (a, b, c))
    raw["regions"] = {"eu-west": {"port": gateway, "store": {"port": store}, "link": {"host": "127.0.0.1", "port": link}}}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def laurel(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUREL, *words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


def marked(data_dir: Path) -> list[int]:
    """Pids of all processes that carry the run marker of this data directory."""
    wanted = f"LAUREL_RUN={data_dir}/".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if any(word.startswith(wanted) for word in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Running:
    """A `laurel up --json`; its documents come out of `wait`."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.process = subprocess.Popen([*LAUREL, "up", "--json", *words], cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + START_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                pytest.fail(f"no {event} within {START_S} s")
            assert line, f"ended with {self.process.wait()} before {event}"
            document: dict[str, Any] = json.loads(line)
            if document["event"] == event:
                return document

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        return code


@contextmanager
def running(*words: str, cwd: Path) -> Iterator[Running]:
    up = Running(*words, cwd=cwd)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.end(signal.SIGTERM)
        if up.process.stdout is not None:
            up.process.stdout.close()


# --- refused before anything starts ----------------------------------------------------------------------------------


def refused(run: subprocess.CompletedProcess[str]) -> str:
    assert (run.returncode, run.stdout) == (2, ""), run
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.endswith(".\n")
    return run.stderr


@pytest.mark.net
def test_bad_cluster_file_is_one_sentence_and_exit_2(tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text().replace("policy: best_score", "policy: best_scare"))
    assert "did you mean `best_score`" in refused(laurel("up", cwd=tmp_path))
    config.write_text("regions: [")
    assert "is not valid YAML" in refused(laurel("up", cwd=tmp_path))
    assert "there is no such file" in refused(laurel("up", "-c", "elsewhere.yaml", cwd=tmp_path))
    assert not (tmp_path / ".laurel").exists()


@pytest.mark.net
def test_taken_port_is_one_sentence_and_exit_2_and_nothing_is_left(tmp_path: Path, config: Path) -> None:
    port = yaml.safe_load(config.read_text())["regions"]["eu-west"]["link"]["port"]
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port} of eu-west is taken" in refused(laurel("up", cwd=tmp_path)).lower()
    assert marked(tmp_path / ".laurel") == []
    assert not (tmp_path / ".laurel" / "client.json").exists()


@pytest.mark.net
def test_data_directory_that_is_a_file_is_one_sentence_and_exit_2(tmp_path: Path, config: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(laurel("up", "--data-dir", "file", cwd=tmp_path))
    assert "is a file" in refused(laurel("up", "--regions", "1", "--data-dir", "file/deeper", cwd=tmp_path))
    assert (tmp_path / "file").read_text() == ""


# --- one region ------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_one_region_keeps_data_and_owner_over_kill_9_and_stops_without_a_trace(tmp_path: Path, config: Path) -> None:
    """1. Up, submit, read, be refused. 2. Kill -9. 3. Up again, without the ledger and with another rule in the file: all is
    there, in a new epoch of the same owner, and status names the rule. 4. Ctrl-C."""
    data_dir = tmp_path / ".laurel"

    def said(*words: str) -> Any:
        run = laurel(*words, "--json", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def shard() -> Any:
        return said("status")["regions"]["eu-west"]["shards"]["eu-west/0"]

    with running("--regions", "1", cwd=tmp_path) as up:
        assert up.wait("ready")["regions"]["eu-west"]["state"] == "ready"
        result = said("submit", BOARD, "p-ava", "9700", "--event-id", "evt-1")
        assert (result["outcome"], result["acked"]) == ("applied_first", "quorum")
        position = f"{result['epoch']}-{result['offset']}"
        (entry,) = said("top", BOARD, "--at-least", position)["entries"]
        assert (entry["player_id"], entry["value"]) == ("p-ava", "9700")
        before = shard()
        assert (before["role"], before["owner"], before["config_conflicts"]) == ("authority", "eu-west", [])
        second = laurel("up", "--regions", "1", cwd=tmp_path)
        assert second.returncode == 2
        assert f"in use by another `laurel` (pid {up.process.pid})" in second.stderr
        assert up.end(signal.SIGKILL) == -signal.SIGKILL

    shutil.rmtree(data_dir / "eu-west" / "ledger")
    raw = yaml.safe_load(config.read_text())
    raw["boards"][BOARD]["ties"] = "player_id"
    config.write_text(yaml.safe_dump(raw, sort_keys=False))
    with running("--regions", "1", cwd=tmp_path) as up:
        up.wait("ready")
        (entry,) = said("top", BOARD)["entries"]
        assert (entry["player_id"], entry["value"]) == ("p-ava", "9700")
        assert said("submit", BOARD, "p-ava", "9700", "--event-id", "evt-1")["outcome"] == "duplicate"
        after = shard()
        assert (after["role"], after["owner"]) == ("authority", "eu-west")
        assert after["epoch"] > before["epoch"]
        conflict = {"board": BOARD, "rule": "ties", "written": "achieved_at", "configured": "player_id"}
        assert after["config_conflicts"] == [conflict]
        assert marked(data_dir)
        assert up.end(signal.SIGINT) == 0
    assert marked(data_dir) == []
    assert f"boards.{BOARD}.ties must be `achieved_at`" in refused(laurel("up", "--regions", "1", cwd=tmp_path))
