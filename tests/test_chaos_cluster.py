"""A minute of chaos on three real regions: nothing acknowledged is lost, doubled or reordered, and all regions agree in the end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.history import FaultLine, Run, Sent, read_history
from chaos.report import judge
from chaos.run import Settings, possible, run
from chaos.schedule import KINDS, chosen

pytestmark = pytest.mark.cluster


def test_a_minute_of_overlapping_faults_loses_and_doubles_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """1. Load from all regions. 2. Faults for a minute. 3. All is put back. 4. The history holds, also when it is judged again."""
    lines: list[str] = []
    settings = Settings(minutes=1.0, seed=20, kinds=chosen([]), out=tmp_path / "chaos", mean_pause_s=2.5)
    report = run(settings, lines.append)
    kinds, unavailable = possible(KINDS)
    assert len(lines) >= len(unavailable)
    assert [str(violation) for violation in report.judgement.violations] == []
    assert report.verdict == "held"
    assert report.judgement.lost == 0
    assert report.judgement.acknowledged > 100
    assert report.figures.faults_done >= 5
    assert report.figures.faults_overlapping >= 1
    assert report.figures.objective_met, report.figures.any_reads
    for name, figure in (("faults", report.figures.faults_done), ("events", report.judgement.acknowledged)):
        record_property(name, figure)
    path = settings.out / "history.jsonl"
    assert judge(path) == report
    assert json.loads((settings.out / "report.json").read_text("utf-8"))["verdict"] == "held"
    begun = [line for _, line in read_history(path) if isinstance(line, FaultLine) and line.phase == "begun"]
    ended = [line for _, line in read_history(path) if isinstance(line, FaultLine) and line.phase != "begun"]
    assert sorted(line.id for line in begun) == sorted(line.id for line in ended), "every fault that began was put back"
    assert {line.name for line in begun} <= {kind.name for kind in kinds}


def test_an_interrupted_run_puts_everything_back_and_leaves_nothing_running(tmp_path: Path) -> None:
    """1. A region is stopped and links are cut. 2. Ctrl-C. 3. Exit code 130; no process, namespace or mount of it is left."""
    out = tmp_path / "chaos"
    command = [sys.executable, "-m", "laurel.main", "drill", "chaos", "--minutes", "5", "--every", "0.3", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--faults", "stop,link,net,disk"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "faults" in line and "acknowledged" in line:
                break
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(120) == 130
        process.stderr.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "interrupted" in told.lower()
    lines = [line for _, line in read_history(out / "history.jsonl")]
    assert isinstance(lines[0], Run)
    assert any(isinstance(line, Sent) for line in lines)
    faults = [line for line in lines if isinstance(line, FaultLine)]
    assert {line.id for line in faults if line.phase == "begun"} == {line.id for line in faults if line.phase != "begun"}
    assert judge(out / "history.jsonl").judgement.broken == {"complete": 3}
    assert [number for number in os.listdir("/proc") if number.isdigit() and _of_run(int(number), tmp_path)] == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text("utf-8")


def _of_run(pid: int, directory: Path) -> bool:
    """Whether a process was started for a region in that directory."""
    try:
        return f"LAUREL_RUN={directory}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
