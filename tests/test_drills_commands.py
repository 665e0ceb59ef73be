"""`laurel drill run|plans|show|list` on a cluster in memory: what is asked, said and written, and the exit codes."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from drill_world import MemoryCluster
from drill_world import run as run_jumping
from typer.testing import CliRunner, Result

from drills import commands, http_cluster
from drills.commands import history, write_report
from drills.loading import shipped, shipped_plan
from drills.ports import Refusal
from drills.runner import Runner
from laurel import main

URL = "http://127.0.0.1:7411"
Shell = Callable[..., Result]


@pytest.fixture
def memory() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def asked() -> list[tuple[list[str], str]]:
    return []


@pytest.fixture
def shell(memory: MemoryCluster, asked: list[tuple[list[str], str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """Runs `laurel drill ...` with the cluster in memory and a clock that jumps."""

    async def opened(urls: list[str], token: str) -> MemoryCluster:
        asked.append((urls, token))
        return memory

    monkeypatch.setattr(commands, "open_cluster", opened)
    monkeypatch.setattr("drills.commands.asyncio.run", run_jumping)
    monkeypatch.delenv("LAUREL_URL", raising=False)
    monkeypatch.delenv("LAUREL_TOKEN", raising=False)

    def call(*words: str, answer: str | None = None) -> Result:
        where = [] if words[0] == "plans" else ["--data-dir", str(tmp_path / ".laurel")]
        return CliRunner().invoke(main.app, ["drill", *words, *where], input=answer)

    return call


def run(shell: Shell, *words: str, **options: Any) -> Result:
    return shell("run", *words, "--url", URL, "--token", "t", **options)


def test_a_drill_that_is_met_exits_0_and_leaves_three_reports(shell: Shell, memory: MemoryCluster, tmp_path: Path) -> None:
    result = run(shell, "switchover", "--yes", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "Drill switchover on eu-west/0: All objectives are met." in result.stdout
    assert "1/3 hand authority over to the successor" in result.stderr
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"report.txt", "report.json", "report.html"}
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"] == "met"
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert memory.words() == [("drill.began", ""), ("drill.ended", "met")]


def test_the_report_goes_into_the_data_directory_unless_told(shell: Shell, tmp_path: Path) -> None:
    result = run(shell, "switchover", "--yes", "--json")
    document = json.loads(result.stdout)
    assert document["files"]["html"] == str(tmp_path / ".laurel" / "drills" / document["drill"] / "report.html")
    assert Path(document["files"]["json"]).is_file()


def test_json_is_one_document_on_standard_output(shell: Shell) -> None:
    result = run(shell, "region-loss", "--yes", "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    document = json.loads(result.stdout)
    assert (document["plan"], document["verdict"]) == ("region-loss", "met")
    assert [move["kind"] for move in document["moves"]] == ["forced", "planned"]
    assert {reads["region"] for reads in document["reads"]} == {"", "eu-west", "us-east", "ap-south"}


def test_a_drill_that_is_not_met_exits_1(shell: Shell, memory: MemoryCluster) -> None:
    memory.handover_s = 0.9
    result = run(shell, "switchover", "--yes")
    assert result.exit_code == 1
    assert "NOT MET" in result.stdout


def test_it_says_what_it_will_do_and_asks(shell: Shell, memory: MemoryCluster) -> None:
    declined = run(shell, "switchover", answer="n\n")
    assert declined.exit_code == 1
    assert "which eu-west owns in epoch 3" in declined.stderr
    assert "Go on?" in declined.stderr
    assert memory.records == []
    assert run(shell, "switchover", answer="y\n").exit_code == 0


def test_json_cannot_ask(shell: Shell, memory: MemoryCluster) -> None:
    assert run(shell, "switchover", "--json").exit_code == 2
    assert memory.records == []


def test_a_cluster_that_would_not_survive_is_told_and_nothing_is_changed(shell: Shell, memory: MemoryCluster) -> None:
    memory.missing["ap-south"] = ["its replica is reading"]
    result = run(shell, "region-loss", "--yes")
    assert result.exit_code == 1
    assert result.stderr == "The drill was not begun: ap-south is not ready: its replica is reading; nothing was changed.\n"


def test_an_interrupted_drill_puts_everything_back_and_exits_1(
    shell: Shell, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The operator interrupts while the owner is cut off. 2. The links are put back. 3. The report says so."""
    set_link = memory.set_link
    told: list[dict[Any, Any]] = []

    async def interrupted(*words: Any, **named: Any) -> None:
        await set_link(*words, **named)
        if not told:
            told.append(dict(memory.cuts))
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(memory, "set_link", interrupted)
    result = run(shell, "region-loss", "--yes")
    assert told[0]
    assert result.exit_code == 1
    assert "Aborted: interrupted by SIGTERM" in result.stdout
    assert "interrupted: putting everything back" in result.stderr
    assert (memory.cuts, memory.words()[-1]) == ({}, ("drill.ended", "aborted"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_interruption_leaves_at_once(shell: Shell, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    set_link = memory.set_link

    async def interrupted(*words: Any, **named: Any) -> None:
        await set_link(*words, **named)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(memory, "set_link", interrupted)
    result = run(shell, "region-loss", "--yes")
    assert result.exit_code == 1
    assert "Left before everything was put back: see `laurel status`; link faults end by themselves." in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["switchovr", "--url", URL, "--token", "t"], "there is no plan `switchovr` (did you mean `switchover`?)"),
        (["none.yaml", "--url", URL, "--token", "t"], "none.yaml: there is no such file"),
        (["switchover", "--url", "127.0.0.1", "--token", "t"], "'127.0.0.1' is no base URL"),
        (["switchover"], "No region to ask"),
        (["switchover", "--url", URL], "a drill needs an operator's token"),
        (["switchover", "-c", "none.yaml", "--token", "t"], "none.yaml: there is no such file"),
    ],
)
def test_wrong_use_exits_2_with_one_sentence(shell: Shell, words: list[str], said: str) -> None:
    result = shell("run", *words, "--yes")
    assert result.exit_code == 2
    assert said.lower() in result.stderr.lower()
    assert result.stderr.count("\n") == 1


def test_a_plan_of_ones_own_is_taken_from_its_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nsummary: s\nsteps: [{do: wait, for_ms: 500}]")
    assert "Drill mine on eu-west/0: All objectives are met." in run(shell, str(file), "--yes").stdout
    file.write_text("name: mine\nsummary: s\nsteps: [{do: wait, for_ms: 0}]")
    wrong = run(shell, str(file), "--yes")
    assert wrong.exit_code == 2
    assert "steps.0.for_ms must be" in wrong.stderr


def test_addresses_come_from_the_option_the_cluster_file_or_the_data_directory(
    shell: Shell, asked: list[tuple[list[str], str]], tmp_path: Path
) -> None:
    run(shell, "switchover", "--yes")
    shell("run", "switchover", "--yes", "--url", f"eu-west={URL},http://other:1", "--token", "t")
    cluster_file = str(Path(__file__).resolve().parent.parent / "cluster.yaml")
    shell("run", "switchover", "--yes", "-c", cluster_file, "--token", "t")
    home = tmp_path / ".laurel"
    home.mkdir(exist_ok=True)
    (home / "op.token").write_text("secret\n")
    (home / "client.json").write_text(json.dumps({"regions": {"eu-west": URL}, "tokens": {"operator": "op.token"}}))
    shell("run", "switchover", "--yes")
    assert asked == [
        ([URL], "t"),
        ([URL, "http://other:1"], "t"),
        ([f"http://127.0.0.1:{port}" for port in (7411, 7412, 7413)], "t"),
        ([URL], "secret"),
    ]
    assert shell("run", "switchover", "--yes", "--url", "http://elsewhere:1").exit_code == 2  # the token is for its own regions


def test_a_token_of_another_scope_is_told_what_is_needed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(urls: list[str], token: str) -> Any:
        raise Refusal("wrong_scope", "eu-west: This call needs the scope operator")

    monkeypatch.setattr(commands, "open_cluster", refused)
    result = run(shell, "switchover", "--yes")
    assert result.exit_code == 1
    assert "use an operator's token for all games" in result.stderr


def test_plans_lists_what_is_shipped(shell: Shell) -> None:
    assert all(name in shell("plans").stdout for name in shipped())
    told = json.loads(shell("plans", "--json").stdout)["plans"]
    assert {plan["plan"]: plan["regions"] for plan in told}["region-loss"] == 3


def test_show_tells_a_plan(shell: Shell) -> None:
    text = shell("show", "region-loss").stdout
    for words in ("1. cut the owner off from the others", "forced_first_write_ms 1500", "writes, until authority has moved: at most 4 s"):
        assert words in text
    document = json.loads(shell("show", "region-loss", "--json").stdout)
    assert document["steps"][0] == {"do": "cut", "region": "owner", "from": "others", "direction": "both", "for_ms": 60000}


def test_show_tells_a_drill_that_a_region_has_run(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = run_jumping(Runner(MemoryCluster(), shipped_plan("switchover")).run())
    files = write_report(report, tmp_path / "first")
    told = {"id": "d-1", "state": "met", "report": json.loads(Path(files["json"]).read_text()), "text": "All objectives are met"}

    async def found(urls: list[str], token: str) -> dict[str, str]:
        return {"eu-west": URL}

    async def drill(self: Any, region: str, name: str) -> dict[str, Any]:
        return told if name == "d-1" else {}

    monkeypatch.setattr(http_cluster, "discover", found)
    monkeypatch.setattr(http_cluster.HttpCluster, "drill", drill)
    shown = shell("show", "d-1", "--url", URL, "--token", "t", "--out", str(tmp_path / "second"))
    assert shown.stdout == "All objectives are met\n"
    for name in ("report.txt", "report.json", "report.html"):
        assert (tmp_path / "second" / name).read_text() == (tmp_path / "first" / name).read_text()


def test_list_tells_who_when_which_plan_and_how_it_ended(shell: Shell) -> None:
    run(shell, "switchover", "--yes")
    (row,) = json.loads(shell("list", "--url", URL, "--token", "t", "--json").stdout)["drills"]
    assert (row["plan"], row["asked_by"], row["outcome"]) == ("switchover", "operator-1", "met")
    assert "switchover" in shell("list", "--url", URL, "--token", "t").stdout


def test_a_drill_without_an_end_is_open_in_the_list() -> None:
    began = {"what": "drill.began", "asked_by": "a", "at": "T1", "detail": {"id": "d-1", "plan": "switchover"}}
    ended = {"what": "drill.ended", "asked_by": "a", "at": "T2", "detail": {"id": "d-1", "outcome": "not_met"}}
    assert [(row["outcome"], row["ended_at"]) for row in history([began])] == [("open", None)]
    assert [(row["outcome"], row["ended_at"]) for row in history([began, ended])] == [("not_met", "T2")]


def test_the_commands_are_found_in_the_group_drill() -> None:
    app = typer.Typer()
    commands.add_drill_commands(app)
    assert [command.name for command in app.registered_commands] == ["run", "plans", "show", "list"]
    assert CliRunner().invoke(main.app, ["drill", "run", "--help"]).exit_code == 0
