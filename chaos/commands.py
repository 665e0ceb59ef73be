"""The command group `laurel drill`: chaos and its checker here, rehearsals on a running cluster from `drills`.

Exit code 1 for a violation or a run that did not come to its end, 2 for wrong use, 130 after a signal.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from boards.errors import InvalidInput
from chaos.disks import DiskError
from chaos.history import HistoryError
from chaos.namespaces import NetworkError
from chaos.report import Report, as_json, as_text, judge, keep_evidence
from chaos.schedule import GROUPS, chosen
from drills.commands import add_drill_commands
from laurel.commands import CommandError, Json
from regions.launcher import StartError

_LONGEST_MINUTES = 24 * 60

Evidence = Annotated[Path | None, typer.Option("--evidence", help="A directory where the report alone is kept, such as docs/evidence.")]

app = typer.Typer()
drill_app = typer.Typer(no_args_is_help=True, help="Rehearse failures: on a cluster of its own (chaos), or on a running one.")
app.add_typer(drill_app, name="drill")


@drill_app.command("chaos")
def chaos(
    minutes: Annotated[float, typer.Option("--minutes", help="How long faults go on.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed means the same faults, as far as processes repeat.")] = 1,
    faults: Annotated[
        str, typer.Option("--faults", help=f"Kinds and groups of faults, by comma: {', '.join(GROUPS)}. All where possible if left out.")
    ] = "",
    every: Annotated[float, typer.Option("--every", help="Mean seconds from one fault to the next.")] = 4.5,
    at_once: Annotated[int, typer.Option("--at-once", help="Faults at the same time, at most.")] = 3,
    events: Annotated[float, typer.Option("--events", help="Events a second, of all regions together.")] = 40.0,
    out: Annotated[Path | None, typer.Option("--out", help="A directory for history and report.")] = None,
    evidence: Evidence = None,
    as_json_: Json = False,
) -> None:
    """Hurt three regions, started for this alone, under load; then prove that nothing was lost."""
    from chaos.run import Interrupted, Settings, run

    _within("--minutes", minutes, 0.05, _LONGEST_MINUTES)
    _within("--every", every, 0.1, 3600)
    _within("--at-once", at_once, 1, 10)
    _within("--events", events, 1, 1000)
    try:
        kinds = chosen([word.strip() for word in faults.split(",") if word.strip()])
    except InvalidInput as error:
        raise CommandError(f"--{error.field} must be {error.allowed}", exit_code=2) from error
    where = out or Path(".laurel-chaos") / f"seed-{seed}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    settings = Settings(minutes=minutes, seed=seed, kinds=kinds, out=where, events_per_s=events, mean_pause_s=every, at_once=at_once)
    try:
        report = run(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except OSError as error:
        raise CommandError(f"{error.filename or where}: {error.strerror or error}", exit_code=2) from error
    except (StartError, NetworkError, DiskError) as error:
        raise CommandError(str(error), exit_code=2) from error
    except Interrupted as error:
        raise CommandError(str(error), exit_code=130) from error
    _show(report, as_json_, where, evidence)


@drill_app.command("check")
def check(
    history: Annotated[Path, typer.Argument(metavar="HISTORY", help="The `history.jsonl` of a chaos run.")],
    evidence: Evidence = None,
    as_json_: Json = False,
) -> None:
    """Judge a history on its own; needs no cluster."""
    try:
        report = judge(history)
    except HistoryError as error:
        raise CommandError(str(error), exit_code=2) from error
    _show(report, as_json_, None, evidence)


def _show(report: Report, as_json_: bool, where: Path | None, evidence: Path | None) -> None:
    kept = keep_evidence(report, evidence) if evidence is not None else None
    if as_json_:
        print(json.dumps(json.loads(as_json(report)), separators=(",", ":")))
    else:
        print(as_text(report), end="")
        if where is not None:
            print(f"History and report are in {where}.")
        if kept is not None:
            print(f"The report alone is kept as {kept}.")
    if report.verdict != "held":
        raise typer.Exit(1)


def _within(option: str, given: float, low: float, high: float) -> None:
    if not low <= given <= high:
        raise CommandError(f"{option} must be a number from {low:g} to {high:g}, not {given:g}", exit_code=2)


add_drill_commands(drill_app)
