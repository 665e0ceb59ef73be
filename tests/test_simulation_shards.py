"""The simulator's boards over several shards: seeds, scripts, moves, and what its checkers notice. `laurel simulate --shards 3`."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards.model import Layout, Outcome, Row
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.records import (
    BoardCreated,
    EpochStarted,
    Imported,
    ImportedEvent,
    Manifest,
    Mark,
    Marked,
    Published,
    Record,
    Scored,
    SliceClosed,
    SliceOpened,
    Switched,
    seal_entry,
)
from laurel.main import app
from simulation import commands, fleet_checks, fleet_schedule, runs, schedule
from simulation.fleet import BOARD, Fleet, write
from simulation.fleet_mutants import FLEET_MUTANTS, FLEET_PROVOKED
from simulation.fleet_scripts import FLEET_SCRIPTS, MOVES
from simulation.model import Told, tell
from simulation.process import Process
from simulation.watch import Violation
from simulation.world import TIMING, World

SEEDS = 16


def told(tally: runs.Tally, *kinds: str) -> str:
    return "; ".join(f"{commands._replay(found.seed, [*kinds], 3)} breaks {found.invariant}: {found.detail}" for found in tally.found[:3])


# -- schedules ----------------------------------------------------------------------------------------------------------


def test_seeds_of_three_shards_keep_every_invariant() -> None:
    """A failure names the command that replays it."""
    tally = runs.stretch((0, SEEDS - 1), shards=3)
    assert not tally.found, told(tally)
    assert tally.generations > 3 * SEEDS and tally.failovers > 6 * SEEDS and tally.moves, "a board that does nothing breaks nothing"


@pytest.mark.parametrize("script", FLEET_SCRIPTS)
def test_each_compound_fault_of_shards_keeps_every_invariant(script: str) -> None:
    tally = runs.stretch((0, 1), (script,), shards=3)
    assert not tally.found, told(tally, script)
    assert tally.faults[script] == 2
    assert script not in MOVES or tally.moves


def test_plain_seeds_have_several_shards_now_and_then() -> None:
    tally = runs.stretch((0, 39))
    assert not tally.found, told(tally)
    assert tally.generations


def test_a_seed_of_several_shards_gives_the_same_history_each_time_and_in_each_process() -> None:
    seeds = (3, 7)
    code = (
        "from simulation.schedule import run\n"
        f"print([run(s, shards=3, faults=('moved', 'killed'), fingerprint=True).fingerprint for s in {seeds}])"
    )
    here = [schedule.run(seed, shards=3, faults=("moved", "killed"), fingerprint=True).fingerprint for seed in seeds]
    assert len(set(here)) == len(seeds)
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent,
    )
    assert there.stdout.strip() == str(here), there.stderr


def test_each_mutant_of_shards_says_which_fault_provokes_it_or_shows_in_any_seed() -> None:
    assert len(FLEET_MUTANTS) >= 12
    assert FLEET_PROVOKED.keys() <= FLEET_MUTANTS.keys() and set(FLEET_PROVOKED.values()) <= FLEET_SCRIPTS.keys()


# -- what the checkers of logs notice -------------------------------------------------------------------------------------


RULES = make_rules("best_score")
LAYOUT = Layout(1, ("a", "b"))
#: A player of each slice.
ONE, TWO = (next(f"p{n}" for n in range(100) if slice_of(f"p{n}", 2) == slice_) for slice_ in (0, 1))


def log_of(shard: str, *batches: list[Record], layout: Layout = LAYOUT, importing: bool = False) -> Told:
    """Epoch 1 at offset 1, the slice of that shard at 2, then one entry for each batch, told naively."""
    start = EpochStarted(1, "eu", "a", 0, "", "genesis", "op", "quorum", {"eu": "e"}, 1, "l", 0)
    board = BoardCreated(1, BOARD, RULES, "i", "c", 0, layout, layout.shards.index(shard), importing)
    entries = [seal_entry(1, 1, "s", [start]), seal_entry(1, 2, "b", [board])]
    return tell(entries + [seal_entry(1, 3 + n, f"e{n}", batch) for n, batch in enumerate(batches)])


def scored(player: str, event: str, value: int, version: int = 1) -> Scored:
    row = Row(value, 1, 1, 1, 1, version, event)
    outcome = Outcome.APPLIED_FIRST if version == 1 else Outcome.APPLIED
    return Scored(1, player, event, b"f" * 16, outcome, value, version, row, value, 1, 1, 1, "s")


def marked(checksum: int, count: int, *, lead_epoch: int = 1, keeps: int = 0) -> Marked:
    return Marked(1, 1, lead_epoch, keeps, 0, checksum, count)


def manifest(*marks: Mark, count: int = 2, checksum: int = 12, generation: int = 1) -> Manifest:
    return Manifest(1, generation, 0, 1, marks, checksum, count)


FIRST, SECOND = Mark(1, 4, 5, 1), Mark(1, 4, 7, 1)


def two_logs(record: Manifest, *, second: Marked | None = None) -> dict[str, Told]:
    """Each slice has one player and a mark at offset 4; the manifest follows in the lead's."""
    first = log_of("a", [scored(ONE, "x", 5)], [marked(5, 1)], [record])
    return {"a": first, "b": log_of("b", [scored(TWO, "y", 9)], [second or marked(7, 1)])}


def test_a_manifest_of_one_committed_mark_a_slice_makes_a_generation() -> None:
    (made,) = fleet_checks.generations(two_logs(manifest(FIRST, SECOND)))
    assert made.rows == ((TWO, 9, 1), (ONE, 5, 1)) and made.number == 1


@pytest.mark.parametrize(
    "record",
    [
        manifest(FIRST, count=1, checksum=5),
        manifest(FIRST, Mark(1, 3, 7, 1)),
        manifest(FIRST, Mark(2, 4, 7, 1)),
        manifest(FIRST, Mark(1, 4, 8, 1), checksum=13),
        manifest(FIRST, SECOND, count=3),
        manifest(FIRST, SECOND, checksum=11),
    ],
    ids=["slice missing", "no mark there", "of an epoch that was cut", "other checksum", "wrong count", "wrong sum"],
)
def test_a_manifest_that_does_not_name_one_committed_mark_a_slice_is_noticed(record: Manifest) -> None:
    with pytest.raises(Violation, match="I11"):
        fleet_checks.generations(two_logs(record))


def test_a_number_of_a_generation_that_is_left_out_is_noticed() -> None:
    with pytest.raises(Violation, match="I11"):
        two_logs(manifest(FIRST, SECOND, generation=2))


def test_a_mark_that_keeps_what_no_manifest_names_is_noticed() -> None:
    with pytest.raises(Violation, match="keeps"):
        fleet_checks.generations(two_logs(manifest(FIRST, SECOND), second=marked(7, 1, keeps=3)))


def test_a_player_in_a_slice_of_others_is_noticed() -> None:
    with pytest.raises(Violation, match="slices"):
        log_of("a", [scored(TWO, "x", 5)])


def test_a_mark_for_an_earlier_epoch_of_the_lead_is_noticed() -> None:
    with pytest.raises(Violation, match="marks"):
        log_of("a", [marked(0, 0, lead_epoch=3)], [marked(0, 0, lead_epoch=2)])


def test_an_event_that_two_shards_have_applied_is_noticed() -> None:
    other = Layout(2, ("b",))
    tolds = {"a": log_of("a", [scored(ONE, "x", 5)]), "b": log_of("b", [scored(ONE, "x", 5)], layout=other)}
    with pytest.raises(Violation, match="I4"):
        fleet_checks.once(tolds)


def test_an_event_after_the_declared_boundary_and_one_before_the_opening_are_noticed() -> None:
    with pytest.raises(Violation, match="moves"):
        log_of("a", [SliceClosed(1, 2, 1, 0)], [scored(ONE, "x", 5)])
    with pytest.raises(Violation, match="moves"):
        log_of("a", [scored(ONE, "x", 5)], importing=True)


def test_players_that_come_into_an_open_slice_and_an_event_that_came_and_is_applied_again_are_noticed() -> None:
    came = Imported(1, 0, [(ONE, Row(5, 1, 1, 1, 1, 1, "x"))], [ImportedEvent(ONE, "x", b"f" * 16, Outcome.APPLIED_FIRST, 5, 1)], None, 3)
    with pytest.raises(Violation, match="moves"):
        log_of("a", [came])
    with pytest.raises(Violation, match="I4"):
        log_of("a", [came], [SliceOpened(1, 0, 1, 0), scored(ONE, "x", 9, 2)], importing=True)


def moved_to_c(*came: Record) -> dict[str, Told]:
    """Slices in a and b, one event and generation s1; then all of it goes to c alone, and is published there as s2."""
    target = Layout(2, ("c",))
    closed = SliceClosed(1, 2, 1, 0)
    first = log_of("a", [scored(ONE, "x", 5)], [marked(5, 1)], [manifest(FIRST, SECOND)], [closed], [Switched(1, target, 1, 0)])
    second = log_of("b", [scored(TWO, "y", 9)], [marked(7, 1)], [closed])
    published: list[Record] = [Published(1, 2, 0, 0, len(came))]
    third = log_of("c", list(came), [SliceOpened(1, 1, 1, 0)], published, layout=target, importing=True)
    return {"a": first, "b": second, "c": third}


def test_a_player_that_is_missed_by_a_move_is_noticed_in_the_next_generation() -> None:
    one = Imported(1, 0, [(ONE, Row(5, 1, 1, 1, 1, 1, "x"))], [], None, 6)
    two = Imported(1, 1, [(TWO, Row(9, 1, 1, 1, 1, 1, "y"))], [], None, 5)
    made = fleet_checks.generations(moved_to_c(one, two))
    assert [m.number for m in made] == [1, 2] and made[0].rows == made[1].rows
    with pytest.raises(Violation, match="I8"):
        fleet_checks.generations(moved_to_c(one))


# -- what the checkers of a cluster notice --------------------------------------------------------------------------------


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three shards that made generations, without faults, and have agreed."""
    with schedule._sizes(2, 4, 300):
        fleet = Fleet(5, timing=TIMING)
        fleet.populate()
        fleet.start()
        fleet.run(200)
        for client in fleet.clients:
            client.start()
        fleet.run(500)
        fleet_schedule.end(fleet)
        yield fleet
        fleet.close()


def test_what_was_acknowledged_before_a_generation_and_is_not_in_it_is_noticed(fleet: Fleet) -> None:
    fleet_checks.at_end(fleet)
    last = next(sent for _, sent in reversed(fleet.timeline.told) if sent.result is not None and sent.result.improved)
    fleet.timeline.told.append((1, last))
    with pytest.raises(Violation, match="published"):
        fleet_checks.at_end(fleet)


def test_a_region_that_showed_another_boundary_is_noticed(fleet: Fleet) -> None:
    place, shown = next(iter(fleet.timeline.generations.items()))
    fleet.timeline.generations[place] = shown._replace(boundaries=shown.boundaries[1:])
    with pytest.raises(Violation, match="I11"):
        fleet_checks.at_end(fleet)


def test_a_replica_that_cannot_serve_the_newest_generation_again_is_noticed(fleet: Fleet) -> None:
    for world in fleet.worlds.values():
        world.regions["us"].store.stall()
    with pytest.raises(Violation, match="keeps"):
        fleet_schedule._begin_afresh(fleet)


def test_a_missing_shard_delays_generations_and_the_last_one_stays(fleet: Fleet) -> None:
    """1. All processes of the last shard are gone. 2. Events come in elsewhere: no generation. 3. They are back: one with all of it."""
    for region in fleet.worlds["eu/2"].regions.values():
        region.kill()
    before = {name: newest(fleet, name) for name in fleet.names}
    sent = [write(fleet, "us", fleet.players_of("eu/0")[0]) for _ in range(3)]
    fleet.run(800)
    assert all(s.result is not None for s in sent)
    assert {name: newest(fleet, name) for name in fleet.names} == before
    for region in fleet.worlds["eu/2"].regions.values():
        region.start()
    fleet_schedule.end(fleet)
    assert newest(fleet, "eu") > before["eu"]


def newest(fleet: Fleet, name: str) -> int:
    series = fleet.series(name)
    assert series is not None and series.newest is not None
    return series.newest.number


# -- asynchronous code in simulated processes -----------------------------------------------------------------------------


def process() -> Process:
    world = World(1)
    world.start()
    found = world.regions["eu"].process
    assert found is not None
    return found


def test_a_task_goes_on_by_the_clock_of_the_world_and_stands_still_while_its_process_sleeps() -> None:
    one, ticks = process(), list[int]()

    async def tick() -> None:
        while True:
            ticks.append(one.world.now)
            await asyncio.sleep(0.01)

    one.spawn(tick())
    one.world.run(35)
    assert [at - ticks[0] for at in ticks] == [0, 10, 20, 30]
    one.pause()
    one.world.run(50)
    assert len(ticks) == 4
    one.resume()
    assert len(ticks) == 5
    one.die()
    one.world.run(50)
    assert len(ticks) == 5


def test_what_a_task_raises_comes_out_of_the_step_that_runs_it() -> None:
    one = process()

    async def fail() -> None:
        await asyncio.sleep(0.005)
        raise Violation("I4", "as if")

    one.spawn(fail())
    with pytest.raises(Violation, match="I4"):
        one.world.run(10)


def test_a_timeout_of_the_product_ends_what_waits_for_nothing() -> None:
    one, ended = process(), list[int]()

    async def wait() -> None:
        begun = one.world.now
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.get_running_loop().create_future()
        ended.append(one.world.now - begun)

    one.spawn(wait())
    one.world.run(50)
    assert ended == [20]


# -- the command ----------------------------------------------------------------------------------------------------------


def command(*args: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *args])


def test_the_command_takes_a_number_of_shards_and_counts_generations_and_moves() -> None:
    result = command("--runs", "2", "--shards", "2", "--faults", "moved", "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["generations"] > 2 and document["moves"] >= 1


def test_faults_of_several_shards_are_refused_where_there_is_one() -> None:
    result = command("--shards", "1", "--faults", "moved")
    assert result.exit_code == 2 and "--shards must be 2 to 8 for moved" in result.output
