"""`laurel simulate`: many seeded schedules of the whole cluster, or the mutants that they must catch.

Exit code 1 when an invariant was broken or a mutant escaped, 2 for wrong use, 130 when it was interrupted.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from laurel import showing
from laurel.commands import CommandError, Json
from simulation import runs as many
from simulation.fleet_scripts import FLEET_SCRIPTS
from simulation.mutants import MUTANTS
from simulation.nemesis import known_faults
from simulation.schedule import Outcome, run

#: Lines of the story that are shown of a violation.
STORY_LINES = 60

app = typer.Typer()


@app.callback()
def _group() -> None:
    """Keeps a lone command a command of a group."""


@app.command()
def simulate(
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="How many seeds; for mutants, how many of them each.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    faults: Annotated[str, typer.Option("--faults", help="Only these kinds of faults, comma separated; `list` shows them.")] = "",
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=8, help="Shards; a board over all where several. Else: mixed.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = os.cpu_count() or 1,
    story: Annotated[bool, typer.Option("--story", help="Tell the whole story of the (first) seed.")] = False,
    evidence: Annotated[Path | None, typer.Option("--evidence", help="Append what was done to this file, a line of JSON each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last seed of --evidence.")] = False,
    total: Annotated[bool, typer.Option("--total", help="Only add up what --evidence holds.")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="Break one rule at a time; each must be caught.")] = False,
    only: Annotated[list[str] | None, typer.Option("--mutant", help="Only this mutant; may be given again.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate the whole cluster in one thread from each seed, with faults, and check every invariant."""
    kinds = _kinds(faults)
    if kinds == ["list"]:
        print("\n".join(known_faults()))
        return
    if (resume or total) and evidence is None:
        raise CommandError("--resume and --total need the file: add --evidence FILE", exit_code=2)
    if shards == 1 and (spread := [kind for kind in kinds if kind in FLEET_SCRIPTS]):
        raise CommandError(f"--shards must be 2 to 8 for {', '.join(spread)}, not 1", exit_code=2)
    if mutants or only:
        _mutants(only or [], runs, workers, as_json)
        return
    if total:
        assert evidence is not None
        _total(evidence, as_json)
        return
    if resume:
        assert evidence is not None
        seed = many.next_seed(_lines(evidence))
    if story and (runs or 1) == 1:
        outcome = run(seed, faults=kinds, shards=shards, story=True)
        _tell(outcome, len(outcome.story))
    _simulate(seed, runs or 1, kinds, shards, workers, evidence, as_json, quiet=story)


def _simulate(
    seed: int, count: int, kinds: list[str], shards: int | None, workers: int, evidence: Path | None, as_json: bool, *, quiet: bool
) -> None:
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was done is kept then too
    with _progress(count, "schedules", hidden=as_json) as advance:
        tally, whole = many.simulate(seed, count, faults=kinds, shards=shards, processes=workers, evidence=evidence, progress=advance)
    seconds = time.monotonic() - begun
    for found in tally.found[:3]:
        told = sys.stderr if as_json else sys.stdout
        print(f"seed {found.seed} breaks {found.invariant}: {found.detail}", file=told)
        if not quiet:
            _tell(run(found.seed, faults=kinds, shards=shards, story=True), STORY_LINES, told)
        print(f"replay it with: {_replay(found.seed, kinds, shards)}", file=told)
    if as_json:
        showing.print_json(tally.document(seconds))
    else:
        speed = f"{1000 * seconds / max(1, tally.runs):.1f} ms each"
        print(
            f"{tally.runs:,} schedules from seed {seed} on, {tally.events:,} events, {tally.failovers:,} activations, "
            f"{tally.generations:,} generations over shards, "
            f"{tally.moves:,} moves, {sum(tally.faults.values()):,} faults: {len(tally.found)} violations in {seconds:.1f} s ({speed})"
        )
    if not whole:
        raise typer.Exit(130)
    if tally.found:
        raise typer.Exit(1)


def _replay(seed: int, kinds: list[str], shards: int | None = None) -> str:
    parts = ["laurel", "simulate", "--runs", "1", "--seed", str(seed)]
    if kinds:
        parts += ["--faults", ",".join(kinds)]
    if shards is not None:
        parts += ["--shards", str(shards)]
    return shlex.join([*parts, "--story"])


def _tell(outcome: Outcome, most: int, file: Any = None) -> None:
    """The last lines of a story: when (ms), where, what, and the message or answer."""
    width = 220
    for at, where, what, detail in outcome.story[-most:]:
        text = "" if detail in (None, "") else str(detail)
        print(f"{at:6} {where:12} {what:24} {text if len(text) <= width else text[:width] + ' ...'}", file=file or sys.stdout)


def _mutants(names: list[str], runs: int | None, workers: int, as_json: bool) -> None:
    for name in names:
        if name not in MUTANTS:
            raise CommandError(f"--mutant must be one of {', '.join(MUTANTS)}, not {name!r}", exit_code=2)
    names = names or list(MUTANTS)
    with _progress(len(names) * (runs or 1), "mutants", hidden=as_json) as advance:
        result = many.try_mutants(names, runs=runs, processes=workers, progress=advance)
    escaped = [name for name, counts in result.items() if not counts["detections"]]
    if as_json:
        showing.print_json({"mutants": result})
    else:
        table = showing.table("mutant", "broken rule", "caught", "of runs", "first")
        for name, counts in result.items():
            showing.add_row(table, name, MUTANTS[name].rule, counts["detections"], counts["runs"], counts["first"])
        showing.show(table)
        if runs is None:
            print(f"Each was tried until it was caught {many.ENOUGH} times, in {many.AT_MOST} schedules at most; --runs N tries all N.")
        print(f"{len(result) - len(escaped)} of {len(result)} mutants were caught.")
    if escaped:
        raise CommandError(f"escaped: {', '.join(escaped)}")


def _total(evidence: Path, as_json: bool) -> None:
    summary = many.sum_up(_lines(evidence))
    if as_json:
        showing.print_json(summary)
        return
    print(
        f"{summary['runs']:,} schedules ({summary['current']:,} of the code as it is now, {summary['codes']} versions in all), "
        f"{summary['events']:,} events, {summary['failovers']:,} activations, {sum(summary['faults'].values()):,} faults, "
        f"{summary['violations']} violations, {summary['seconds']:,} s"
    )


def _lines(evidence: Path) -> list[dict[str, Any]]:
    try:
        return many.read_lines(evidence)
    except (OSError, ValueError) as error:
        raise CommandError(str(error), exit_code=2) from error


def _kinds(text: str) -> list[str]:
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    known = [*known_faults(), "genesis_late"]
    for kind in kinds:
        if kind not in known and kinds != ["list"]:
            raise CommandError(f"--faults must be of {', '.join(known)}, not {kind!r}", exit_code=2)
    return kinds


@contextmanager
def _progress(count: int, what: str, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Progress on standard error, where that is a terminal; give it how many are done more."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task(what, total=count)
        yield lambda done: bar.advance(task, done)
