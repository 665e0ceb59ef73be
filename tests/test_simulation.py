"""The simulator: seeds, directed scripts, found seeds, and what its own checkers notice. `laurel simulate --seed N --story` replays one."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from actors.messages import SubmitResult
from boards.model import Outcome, Row
from boards.policies import make_rules
from journal.ports import Append, Position, Seal
from journal.records import BoardCreated, Entry, EpochStarted, Published, Record, Scored, seal_entry
from laurel.main import app
from simulation import checks, commands, nemesis, runs, schedule
from simulation.client import Sent
from simulation.model import tell
from simulation.mutants import MUTANTS, RuleMoved, _code
from simulation.nemesis import COMPOUND
from simulation.watch import Violation, Watch, WatchedLog
from simulation.world import World

SEEDS = 500


def told(tally: runs.Tally) -> str:
    return "; ".join(f"{commands._replay(found.seed, [])} breaks {found.invariant}: {found.detail}" for found in tally.found[:3])


# -- schedules ----------------------------------------------------------------------------------------------------------


def test_five_hundred_seeds_keep_every_invariant() -> None:
    """I1 to I13, some seeds with `ack: local`, some with the detector on. A failure names the command that replays it."""
    tally, whole = runs.simulate(0, SEEDS, processes=min(2, os.cpu_count() or 1))
    assert whole and tally.runs == SEEDS
    assert not tally.found, told(tally)
    assert tally.acknowledged > 20 * SEEDS and tally.failovers > 2 * SEEDS, "a cluster that does nothing breaks nothing"
    assert set(tally.faults) >= {*nemesis.FAULTS, *COMPOUND, "genesis_late"}, "every kind of fault was on"


@pytest.mark.parametrize("script", [*COMPOUND, "genesis_late"])
def test_each_compound_fault_keeps_every_invariant(script: str) -> None:
    tally = runs.stretch((0, 11), (script,))
    assert not tally.found, told(tally)
    assert tally.faults[script] >= 12


def test_a_seed_gives_the_same_history_each_time_and_in_each_process() -> None:
    """The fingerprint covers all stores' entries, all answers and the number of steps; hashes of text are random in each process."""
    seeds = (3, 54, 129)
    here = [schedule.run(seed, fingerprint=True).fingerprint for seed in seeds]
    assert here == [schedule.run(seed, fingerprint=True).fingerprint for seed in seeds]
    assert len(set(here)) == len(seeds)
    code = f"from simulation.schedule import run\nprint([run(s, fingerprint=True).fingerprint for s in {seeds}])"
    for hashing in ("1", "77"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parent.parent,
        )
        assert there.stdout.strip() == str(here), there.stderr


def test_telling_the_story_changes_nothing() -> None:
    quiet, story = schedule.run(54, fingerprint=True), schedule.run(54, fingerprint=True, story=True)
    assert quiet.fingerprint == story.fingerprint
    assert not quiet.story and story.story
    assert any(what == "append" for _, _, what, _ in story.story)


def test_only_the_kinds_of_faults_that_are_asked_for_are_on() -> None:
    tally = runs.stretch((0, 9), ("killed", "forced"))
    assert set(tally.faults) == {"killed", "forced"} and not tally.found, told(tally)


def test_the_nemesis_never_takes_what_a_majority_holds() -> None:
    """1. One of three stores loses its disk. 2. Until it is whole again, no other may."""
    world = World(5)
    world.populate()
    world.start()
    world.run(200)
    assert nemesis.may_lose(world, "us", None)
    world.regions["us"].store.exchange(None)
    assert not world.regions["us"].store.whole()
    assert not nemesis.may_lose(world, "ap", None) and not nemesis.may_lose(world, "eu", None)
    schedule.agree(world)
    assert world.regions["us"].store.whole() and nemesis.may_lose(world, "ap", None)


# -- what the checkers notice -----------------------------------------------------------------------------------------------


RULES = make_rules("best_score")


def start(
    epoch: int, offset: int, attempt: str = "a", *, before: tuple[int, str] = (0, ""), owner: str = "eu", cause: str = "forced"
) -> Entry:
    record = EpochStarted(epoch, owner, attempt, *before, cause, "op", "quorum", {"eu": "e", "us": "u"}, 1, "l", 0)
    return seal_entry(epoch, offset, f"{attempt}{epoch}", [record])


def scored(event: str, value: int, version: int = 1, *, row: bool = True, outcome: int = Outcome.APPLIED_FIRST) -> Scored:
    new = Row(value, 1, 1, 1, 1, version, event) if row else None
    return Scored(1, "p", event, b"f" * 16, outcome, value, version, new, value, 1, 1, 1, "s")


def log_of(*batches: list[Record]) -> list[Entry]:
    """Epoch 1 with a board, and one entry for each batch."""
    board = BoardCreated(1, "b", RULES, "i", "c", 0)
    return [start(1, 1), seal_entry(1, 2, "b", [board]), *(seal_entry(1, 3 + n, f"e{n}", batch) for n, batch in enumerate(batches))]


def test_an_event_that_is_applied_twice_is_noticed() -> None:
    with pytest.raises(Violation, match="I4"):
        tell(log_of([scored("x", 5)], [scored("x", 5)]))


def test_a_decision_that_the_rules_would_not_make_is_noticed() -> None:
    with pytest.raises(Violation, match="rules"):
        tell(log_of([scored("x", 5)], [scored("y", 4, 2, outcome=Outcome.APPLIED)]))


def test_a_generation_number_that_is_given_twice_is_noticed() -> None:
    with pytest.raises(Violation, match="I11"):
        tell(log_of([scored("x", 5), Published(1, 1, 0, 0, 1)], [Published(1, 1, 0, 0, 1)]))


def test_a_count_of_rows_that_is_wrong_is_noticed() -> None:
    with pytest.raises(Violation, match="I8"):
        tell(log_of([scored("x", 5), Published(1, 1, 0, 0, 2)]))


def test_an_epoch_that_deposed_another_than_stood_is_noticed() -> None:
    with pytest.raises(Violation, match="from"):
        tell([start(1, 1), start(2, 2, before=(1, "eu")), start(3, 3, before=(1, "eu"))])


def test_a_restart_that_takes_over_from_another_region_is_noticed() -> None:
    with pytest.raises(Violation, match="follow"):
        tell([start(1, 1), start(2, 2, before=(1, "eu"), owner="us", cause="restart")])


def watched() -> WatchedLog:
    log = WatchedLog("eu/0", "eu", Watch())
    log.seal(seal(1, admit_as="e"))
    log.append(epoch=1, attempt="a", expected=Position(0, 0), entries=[start(1, 1)], committed=1, peers={})
    return log


def seal(epoch: int, attempt: str = "a", *, admit_as: str = "", from_epoch: int = 0) -> Seal:
    return Seal(
        shard="eu/0",
        lineage="",
        config_version=1,
        sender="eu",
        incarnation="",
        request_id="",
        epoch=epoch,
        target="eu",
        attempt=attempt,
        from_epoch=from_epoch,
        from_owner="eu" if from_epoch else "",
        admit_as=admit_as,
    )


def test_a_fence_that_falls_and_an_epoch_that_is_granted_twice_are_noticed() -> None:
    log = watched()
    log.seal(seal(5, from_epoch=1))
    with pytest.raises(Violation, match="I6"):
        log._end((6, ("eu", "a"), 1), None)
    with pytest.raises(Violation, match="I6"):
        log._end((5, ("eu", "b"), 1), None)


def test_a_cut_below_what_is_committed_and_a_cut_by_a_seal_are_noticed() -> None:
    log = watched()
    log._doing = "accept"
    with pytest.raises(Violation, match="I13"):
        log._cut(0)
    log._doing = "seal"
    with pytest.raises(Violation, match="hearsay"):
        log._cut(0)


def test_two_entries_at_one_place_and_two_attempts_in_one_epoch_are_noticed() -> None:
    log = watched()
    for attempt, invariant in (("b", "I3"), ("a", "I2")):
        other = WatchedLog("eu/0", "us", log.watch)
        other.seal(seal(1, "z", admit_as="u"))
        other._granted = ("eu", "z")
        with pytest.raises(Violation, match=invariant):
            other.accept(append_of("z", start(1, 1, attempt)))


def append_of(attempt: str, *entries: Entry) -> Append:
    return Append(
        shard="eu/0",
        lineage="",
        config_version=1,
        sender="eu",
        incarnation="e",
        request_id="",
        epoch=1,
        attempt=attempt,
        prev=Position(0, 0),
        entries=list(entries),
    )


def test_an_order_of_acknowledgements_that_contradicts_the_log_is_noticed() -> None:
    """I9: a was acknowledged before b was sent, and stands behind it."""

    def sent(event: str, sent_at: int, acked: int, offset: int) -> Sent:
        result = SubmitResult(Outcome.APPLIED, 1, 1, True, 1, offset)
        return Sent(board="b", player="p", event_id=event, amount=1, sent=sent_at, acked=acked, result=result)

    checks.check_order([sent("a", 1, 2, 5), sent("b", 3, 4, 6), sent("c", 1, 6, 4)])
    with pytest.raises(Violation, match="I9"):
        checks.check_order([sent("a", 1, 2, 5), sent("b", 3, 4, 4)])


def test_an_answer_before_a_majority_holds_it_is_noticed() -> None:
    """I7 and I12: the claim of an authority is compared with what stores hold at that moment."""
    world = World(5)
    world.populate()
    world.start()
    world.run(200)
    (authority,) = world.authorities()
    tail = authority.region.store.log.tail
    with pytest.raises(Violation, match="I7"):
        world._majority(authority, authority.state.terms[-1], tail.epoch, tail.offset + 1, "I7", "calls committed")


def test_a_violation_survives_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(Violation("I4", "twice")))
    assert (error.invariant, error.detail, str(error)) == ("I4", "twice", "I4: twice")


def test_a_mutant_whose_words_are_gone_fails_instead_of_passing() -> None:
    with pytest.raises(RuleMoved):
        _code(tell, ("words that are not there", ""))


# -- the command ----------------------------------------------------------------------------------------------------------------


def command(*args: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *args])


def test_json_ends_with_one_object_on_one_line() -> None:
    result = command("--runs", "3", "--seed", "7", "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["runs"] == 3 and document["violations"] == 0
    assert {"runs", "events", "failovers", "violations", "seconds"} <= document.keys()
    assert document["events"] > 0 and document["failovers"] > 0


def test_a_violation_is_told_with_its_seed_its_story_and_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_end(world: World) -> None:
        raise Violation("I4", "as if")

    monkeypatch.setattr(checks, "at_end", broken_end)
    result = command("--runs", "1", "--seed", "11", "--workers", "1", "--faults", "killed")
    assert result.exit_code == 1
    assert "seed 11 breaks I4: as if" in result.stdout
    assert "laurel simulate --runs 1 --seed 11 --faults killed --story" in result.stdout
    assert "append" in result.stdout, "the messages that led there"


def test_evidence_is_appended_resumed_and_added_up(tmp_path: Path) -> None:
    file = str(tmp_path / "evidence.jsonl")
    assert command("--runs", "4", "--seed", "100", "--workers", "1", "--evidence", file).exit_code == 0
    assert command("--runs", "3", "--workers", "1", "--evidence", file, "--resume").exit_code == 0
    lines = runs.read_lines(tmp_path / "evidence.jsonl")
    assert [(line["from"], line["runs"]) for line in lines] == [(100, 4), (104, 3)]
    assert all(line["code"] == runs.code_fingerprint() and line["violations"] == [] for line in lines)
    result = command("--total", "--evidence", file, "--json")
    total = json.loads(result.stdout)
    assert total["runs"] == 7 and total["current"] == 7 and total["events"] == sum(line["events"] for line in lines)


def test_wrong_use_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.jsonl"
    spoilt.write_text("{}\n")
    for args, said in (
        (("--faults", "rain"), "killed"),
        (("--mutant", "rain"), "log_by_length"),
        (("--resume",), "--evidence"),
        (("--total", "--evidence", str(spoilt)), "ine 1 of"),
    ):
        result = command(*args)
        assert said in result.output, (args, result.exception, result.output)
        assert result.exit_code == 2


def test_the_mutants_table_counts_runs_and_detections() -> None:
    result = command("--mutants", "--mutant", "half_of_the_copies", "--runs", "4", "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)["mutants"]["half_of_the_copies"]
    assert counts["runs"] == 4 and counts["detections"] >= 3


def test_there_are_at_least_eighteen_mutants() -> None:
    assert len(MUTANTS) >= 18
