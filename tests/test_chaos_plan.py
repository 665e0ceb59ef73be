"""What the nemesis means to do, what a history file is, what is measured of it, and the commands that show it."""

import itertools
import json
import random
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from forged_history import TOTAL, Forged
from typer.testing import CliRunner

from boards.errors import InvalidInput
from chaos import disks, namespaces
from chaos.checker import Checker
from chaos.commands import drill_app
from chaos.faults import FaultFailed, Target, hurt
from chaos.history import End, FaultLine, History, HistoryError, Run, read_history
from chaos.measures import Measures, longest_gap
from chaos.nemesis import Nemesis
from chaos.report import as_json, as_text, judge
from chaos.run import possible
from chaos.schedule import GROUPS, KINDS, Planned, chosen, plan
from laurel.commands import CommandError
from laurel.provenance import commit, machine


def first(count: int, seed: int = 5, words: list[str] | None = None, mean_pause_s: float = 4.0) -> list[Planned]:
    return list(itertools.islice(plan(seed, chosen(words or []), mean_pause_s=mean_pause_s), count))


def test_a_seed_gives_the_same_plan_again_and_another_seed_another() -> None:
    assert first(200) == first(200)
    assert first(200) != first(200, seed=6)


def test_a_long_plan_holds_every_kind_within_its_bounds_and_some_at_the_same_instant() -> None:
    planned = first(2000)
    assert {item.kind.name for item in planned} == {kind.name for kind in KINDS}
    assert all(item.kind.shortest_s <= item.length_s <= item.kind.longest_s for item in planned)
    assert all(0 <= item.pause_s <= 9.0 for item in planned)
    assert sum(item.pause_s == 0 for item in planned) > 200
    assert sum(item.pause_s for item in planned) / 2000 == pytest.approx(4.0, rel=0.1)
    assert {item.aim for item in planned} == {"owner", "other", "any"}


def test_faults_are_chosen_by_group_and_by_name() -> None:
    assert {kind.name for kind in chosen(["net", "kill-store"])} == {"net-isolate", "net-cut", "net-oneway", "kill-store"}
    assert chosen([]) == list(KINDS)
    assert set(GROUPS) == {"kill", "stop", "link", "net", "disk", "failover"}


def test_an_unknown_fault_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InvalidInput, match="kill, stop, link, net, disk, failover") as caught:
        chosen(["kill", "flood"])
    assert caught.value.field == "faults"


def test_a_history_reads_back_as_it_was_written(tmp_path: Path) -> None:
    forged = Forged()
    path = forged.write(tmp_path / "history.jsonl")
    assert list(read_history(path)) == forged.lines()


def test_a_torn_last_line_is_left_out_and_the_rest_is_judged_as_cut_short(tmp_path: Path) -> None:
    path = Forged().write(tmp_path / "history.jsonl")
    path.write_bytes(path.read_bytes()[:-3])
    report = judge(path)
    assert report.verdict == "violated"
    assert report.judgement.broken == {"complete": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"kind":"end","t":1,"complete":true}\n', "does not begin with a run"),
        (b"not json\n", "line 1 of .* is no line of a history"),
        (b'{"kind":"storm","t":1}\n', "line 1 of .* is no line of a history"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    with pytest.raises(HistoryError, match=words):
        list(read_history(path))


def test_a_history_is_never_written_over(tmp_path: Path) -> None:
    path = Forged().write(tmp_path / "history.jsonl")
    with pytest.raises(FileExistsError):
        History(path)


def test_lines_are_in_the_file_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path, clock=lambda: 7.0) as history:
        history.write(Forged().lines()[0][1])
        assert isinstance(next(read_history(path))[1], Run)
        assert history.now() == 0.0


def measured(forged: Forged) -> Measures:
    measures = Measures()
    for number, line in forged.lines():
        measures.feed(number, line)
    return measures


def test_faults_are_counted_by_kind_with_their_write_pauses() -> None:
    figures = measured(Forged()).figures()
    assert figures.faults_done == 2
    assert (figures.faults_overlapping, figures.faults_at_once) == (1, 2)
    assert (figures.faults["link-cut"].done, figures.faults["link-cut"].slow, figures.faults["link-cut"].failed) == (1, 1, 1)
    # acknowledged at 1.5, 2.5, 3.5, 5.5, 7.5, 8.5: u1 and r1 were not
    assert figures.faults["kill-store"].pause_max_ms == 2000
    assert (figures.faults["kill-store"].alone, figures.faults["link-cut"].alone) == (0, 0)
    assert figures.write_pause_max_ms == 2000
    assert (figures.batches, figures.batches_unknown, figures.batches_refused) == (8, 1, 1)


def test_a_fault_that_nothing_overlapped_has_its_pause_counted_apart() -> None:
    forged = Forged()
    begun = FaultLine(t=8.0, id=4, phase="begun", name="kill-store", regions=["eu-west"])
    forged.faults += [begun, msgspec.structs.replace(begun, t=8.4, phase="ended")]
    stores = measured(forged).figures().faults["kill-store"]
    assert (stores.done, stores.pause_max_ms) == (2, 2000)
    assert (stores.alone, stores.pause_alone_p50_ms, stores.pause_alone_max_ms) == (1, 1000, 1000)


@pytest.mark.parametrize(
    ("begun", "ended", "pause"),
    [(0.0, 0.5, 0), (1.1, 1.2, 1), (1.5, 2.5, 4), (6.5, 9.0, 1), (0.0, 9.0, 4), (8.0, 9.0, 0)],
)
def test_a_pause_counts_whole_where_it_meets_the_fault(begun: float, ended: float, pause: int) -> None:
    before, after = longest_gap([1.0, 2.0, 6.0, 7.0], begun, ended)
    assert after - before == pause


def test_reads_are_counted_by_region_and_those_with_fallback_against_the_objective() -> None:
    forged = Forged()
    figures = measured(forged).figures()
    assert figures.objective_met
    assert figures.any_reads.asked == 9
    own = figures.own_reads["eu-west"]
    assert (own.asked, own.answered, own.availability, own.age_max_ms, own.gap_max_ms) == (3, 3, 1.0, 500, 6000)
    forged.reads.append(msgspec.structs.replace(forged.read(9.0, "eu-west", "any", 5), generation=-1, region="", why="unavailable"))
    figures = measured(forged).figures()
    assert figures.any_reads.availability == 0.9
    assert not figures.objective_met


def test_a_report_says_the_verdict_the_figures_and_what_could_not_be_done(tmp_path: Path) -> None:
    report = judge(Forged().write(tmp_path / "history.jsonl"))
    text = as_text(report)
    assert "Held: every acknowledged event is there exactly once" in text
    assert "events acknowledged 6, lost 0, counted twice 0" in text
    assert "objective 99.9% of reads answered by some region: met" in text
    document = json.loads(as_json(report))
    assert document["verdict"] == "held"
    assert document["judgement"]["lost"] == 0
    assert document["figures"]["faults_done"] == 2
    assert document["run"]["machine"] == {"cores": "2"}


def test_evidence_is_the_report_alone_under_a_name_of_its_own(tmp_path: Path) -> None:
    history = Forged().write(tmp_path / "history.jsonl")
    told = CliRunner().invoke(drill_app, ["check", str(history), "--evidence", str(tmp_path / "evidence")])
    assert told.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "evidence").iterdir()) == ["chaos-1.5m-seed1.json", "chaos-1.5m-seed1.txt"]
    text = (tmp_path / "evidence" / "chaos-1.5m-seed1.txt").read_text("utf-8")
    assert text == as_text(judge(history))
    assert str(tmp_path) not in text + (tmp_path / "evidence" / "chaos-1.5m-seed1.json").read_text("utf-8")


def test_check_holds_a_sound_history_and_exits_1_naming_the_first_violation(tmp_path: Path) -> None:
    runner = CliRunner()
    sound = runner.invoke(drill_app, ["check", str(Forged().write(tmp_path / "sound.jsonl"))])
    assert sound.exit_code == 0
    assert "Held" in sound.output
    forged = Forged()
    forged.ask(TOTAL, "a2", outcome="applied", offset=72, epoch=4, value=20, version=5)
    spoiled = forged.write(tmp_path / "spoiled.jsonl")
    told = runner.invoke(drill_app, ["check", str(spoiled)])
    assert told.exit_code == 1
    assert "I1: event a2 was acknowledged and is lost (lines " in told.output
    shown = runner.invoke(drill_app, ["check", "--json", str(spoiled)])
    assert shown.exit_code == 1
    document = json.loads(shown.output)
    assert document["judgement"]["lost"] == 1
    assert document["judgement"]["violations"][0]["rule"] == "I1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chaos", "--minutes", "0"], "--minutes must be a number from 0.05 to 1440, not 0"),
        (["chaos", "--faults", "kill,flood"], "--faults must be of kill, stop, link, net, disk, failover"),
        (["chaos", "--at-once", "11"], "--at-once must be"),
        (["check", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_wrong_use_is_refused_with_exit_code_2_before_anything_starts(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(drill_app, arguments)
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert words in result.exception.sentence


def test_a_run_that_says_it_failed_does_not_hold() -> None:
    forged = Forged()
    forged.ends = [End(t=99.0, complete=False, why="server-eu-west: KeyError()")]
    checker = Checker()
    for number, line in forged.lines():
        checker.feed(number, line)
    assert "server-eu-west: KeyError()" in checker.judge().violations[0].what


def test_every_kind_of_fault_has_lines_of_its_own_in_the_report(tmp_path: Path) -> None:
    forged = Forged()
    forged.faults = [
        FaultLine(t=2.0, id=number, phase=phase, name=kind.name, regions=["eu-west"])
        for number, kind in enumerate(KINDS)
        for phase in ("begun", "ended")
    ]
    text = as_text(judge(forged.write(tmp_path / "history.jsonl")))
    assert all(f"\n{kind.name} " in text for kind in KINDS)


def test_what_cannot_be_done_here_is_said_and_the_rest_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "unavailable", lambda: "network namespaces need root")
    monkeypatch.setattr(disks, "unavailable", lambda: "")
    kinds, unavailable = possible(chosen(["net", "disk", "kill-store"]))
    assert [kind.name for kind in kinds] == ["kill-store", "disk-full"]
    assert unavailable == {"net": "network namespaces need root"}


def test_only_impossible_faults_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(namespaces, "unavailable", lambda: "network namespaces need root")
    result = CliRunner().invoke(drill_app, ["chaos", "--faults", "net", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "network namespaces need root" in result.exception.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_report_tells_the_machine_and_not_its_name() -> None:
    facts = machine()
    assert set(facts) == {"cores", "memory_mb", "kernel", "python", "ray"}
    assert socket.gethostname() not in facts.values()
    assert commit()


class _Owned:
    """A rig whose shard is owned by eu-west; its disk is that of us-east."""

    regions = ("eu-west", "us-east", "ap-south")
    disk_region = "us-east"


def nemesis(tmp_path: Path) -> Nemesis:
    with History(tmp_path / "history.jsonl") as history:
        return Nemesis(_Owned(), history, KINDS, seed=1, seconds=1, mean_pause_s=1, at_once=3)  # type: ignore[arg-type]


def of_kind(name: str, aim: str) -> Planned:
    return Planned(number=9, kind=chosen([name])[0], aim=aim, length_s=1.0, pause_s=0.0, dice=1)  # type: ignore[arg-type]


def test_a_fault_hits_the_owner_or_another_region_as_it_was_aimed(tmp_path: Path) -> None:
    chaos = nemesis(tmp_path)
    hit = {aim: set[str]() for aim in ("owner", "other", "any")}
    for number in range(60):
        for aim, regions in hit.items():
            target = chaos.aimed(of_kind("kill-store", aim), "eu-west", random.Random(number))
            assert target is not None
            regions.add(target.regions[0])
    assert hit == {"owner": {"eu-west"}, "other": {"us-east", "ap-south"}, "any": {"eu-west", "us-east", "ap-south"}}


def test_a_third_region_is_never_hurt_while_two_are(tmp_path: Path) -> None:
    chaos = nemesis(tmp_path)
    chaos.active = {1: (frozenset({"eu-west"}), ("eu-west",)), 2: (frozenset({"us-east"}), ("us-east",))}
    for number in range(60):
        for aim in ("owner", "any"):
            target = chaos.aimed(of_kind("stop-region", aim), "eu-west", random.Random(number))
            assert target is not None
            assert target.regions[0] != "ap-south"
    chaos.active = {1: (frozenset({"us-east"}), ("us-east",)), 2: (frozenset({"ap-south"}), ("ap-south",))}
    assert chaos.aimed(of_kind("kill-store", "owner"), "eu-west", random.Random(1)) is None


def test_a_link_has_one_fault_at_a_time_and_a_full_disk_is_where_the_disk_is(tmp_path: Path) -> None:
    chaos = nemesis(tmp_path)
    for number in range(60):
        chaos.active = {1: (frozenset(), ("eu-west", "us-east"))}
        target = chaos.aimed(of_kind("link-cut", "owner"), "eu-west", random.Random(number))
        assert target is None or target.regions == ("eu-west", "ap-south")
        disk = chaos.aimed(of_kind("disk-full", "owner"), "eu-west", random.Random(number))
        assert disk == Target(regions=("us-east",))


class _Asleep:
    """A rig in which nothing runs and nobody answers."""

    regions = ("eu-west", "us-east", "ap-south")

    def __init__(self) -> None:
        self.turned: list[tuple[str, str, str]] = []

    def set_link(self, region: str, peer: str, direction: str, mode: str, **_: int) -> bool:
        self.turned.append((region, peer, mode))
        return False


def test_a_link_fault_that_nobody_confirms_fails_and_is_cleared_on_both_sides() -> None:
    """The answer may be what was lost: the switch may be turned."""
    rig = _Asleep()
    planned = Planned(number=1, kind=chosen(["link-cut"])[0], aim="any", length_s=1.0, pause_s=0.0, dice=1)
    with pytest.raises(FaultFailed, match="neither"):
        hurt(rig, planned, Target(regions=("eu-west", "us-east")), threading.Event())  # type: ignore[arg-type]
    assert {entry for entry in rig.turned if entry[2] == "clear"} == {("eu-west", "us-east", "clear"), ("us-east", "eu-west", "clear")}
