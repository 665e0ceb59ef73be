"""`python -m benchmarks ingest|reads|failover|shards|publish [--json]`: measure on this machine, now, and say what came out.

Exit code 0 when all was measured, whether goals were met or not; 1 when it could not be measured; 2 for wrong use.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, line
from benchmarks.options import Options
from laurel.provenance import commit, machine

#: A run ends by then, whatever happens; stopping the regions may take some seconds more.
LIMIT_S = 160
#: Those that fill a big board first take longer.
LIMITS_S = {"shards": 400, "publish": 400, "index": 600}

DEFAULTS = {"ingest": (6.0, 1), "reads": (4.0, 1), "failover": (1.0, 5), "shards": (10.0, 1), "publish": (10.0, 1), "index": (2.0, 1)}


class TooLong(Exception):
    """The run did not end by itself in time."""


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and print its figures as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Laurel beside its peer on this machine.")
    parser.add_argument("what", choices=sorted(DEFAULTS))
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--seconds", type=float, help="measured seconds of each figure (ingest 6, reads 4, shards and publish 10)")
    parser.add_argument("--clients", type=int, default=3, help="client processes (default 3, one a region)")
    parser.add_argument("--repeat", type=int, help="repetitions, of which the median counts (ingest and reads 1, failover 5)")
    parser.add_argument("--quick", action="store_true", help="the shortest run that says anything")
    parser.add_argument("--players", type=_players, help="index: one board of so many players, such as 100M, without a limit of time")
    parser.add_argument("--evidence", type=Path, help="index --players: write the report to this file too")
    given = parser.parse_args(arguments)
    if (given.players or given.evidence) and not (given.what == "index" and given.players):
        parser.error("--players and --evidence belong to index, --evidence to --players")
    seconds, repeat = DEFAULTS[given.what]
    if given.quick:
        seconds, repeat = 2.0, min(repeat, 2)
    options = Options(seconds=given.seconds or seconds, clients=given.clients, repeat=given.repeat or repeat, quick=given.quick)
    if not (0 < options.seconds <= 30 and 1 <= options.clients <= 16 and 1 <= options.repeat <= 20):
        parser.error("--seconds is up to 30, --clients up to 16, --repeat up to 20")
    options.say(context())
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGTERM, _stopped)
    signal.alarm(0 if given.players else LIMITS_S.get(given.what, LIMIT_S))
    rows: list[Figure] = []
    try:
        for row in _figures(given, options):
            rows.append(row)
            if given.json:
                print(line(row), flush=True)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"benchmarks: {given.what}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        signal.alarm(0)
        if not given.json and rows:
            Console().print(table(given.what, rows))
    return 0


def _figures(given: argparse.Namespace, options: Options) -> Iterator[Figure]:
    if given.players:
        large: Iterator[Figure] = importlib.import_module("benchmarks.index_large").run(options, given.players, given.evidence)
        return large
    usual: Iterator[Figure] = importlib.import_module(f"benchmarks.{given.what}").run(options)
    return usual


def _players(text: str) -> int:
    """A whole number of at least 1M, such as 100M."""
    number = int(text.upper().removesuffix("M")) * (1_000_000 if text.upper().endswith("M") else 1)
    if not 1_000_000 <= number <= 1_000_000_000:
        raise argparse.ArgumentTypeError("a board of 1M to 1000M players")
    return number


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong("not done in time")


def _stopped(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the regions are stopped on the way out


def context() -> str:
    """What a figure is worth nothing without: when, on what, of which commit."""
    load, here = os.getloadavg()[0], machine()
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, {here['cores']} cores, load {load:.1f}, "
        f"{here['kernel']}, Python {here['python']}"
    )


def table(title: str, rows: list[Figure]) -> Table:
    """The figures for people."""
    shown = Table(title=title)
    for name in ("figure", "value", "unit", "peer", "ratio", "goal", "met"):
        shown.add_column(name, justify="left" if name in ("figure", "unit", "met") else "right")
    for row in rows:
        shown.add_row(
            row.name,
            f"{row.value:,g}",
            row.unit,
            "" if row.peer_value is None else f"{row.peer_value:,g}",
            "" if row.ratio is None else f"{row.ratio:,g}",
            "" if row.goal is None else f"{row.goal:,g}",
            "" if row.goal_met is None else "yes" if row.goal_met else "no",
        )
    peers = {row.peer for row in rows if row.peer}
    if peers:
        shown.caption = f"peer: {', '.join(sorted(peers))}"
    return shown


if __name__ == "__main__":
    sys.exit(main())
