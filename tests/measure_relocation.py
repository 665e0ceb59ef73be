"""What a move costs: `python tests/measure_relocation.py [--players N] [--to SHARDS]`, three regions in one process on memory journals.

Fills a board with one event a player, moves it while clients in all regions go on, and prints as JSON: rows and event identities
copied a second, from the order to the first closure, and in a second of this process's CPU, which all three regions share; the
pause of the board's writes, from the first closure to the last opening.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from inprocess_cluster import until  # noqa: E402 - the path is made above
from moving_boards import BOARD, Moving  # noqa: E402

from boards.model import Submission  # noqa: E402
from journal.records import SliceClosed  # noqa: E402


async def fill(m: Moving, players: int) -> None:
    """One event each, a few hundred to an entry."""
    actor = m.c["eu"]["eu/0"].actor
    for first in range(0, players, 500):
        events = [Submission("first", f"player-{n}", 1 + n % 1000, 1000, 1000, b"f") for n in range(first, min(players, first + 500))]
        await actor.submit(BOARD, events, "measure")


async def measure(players: int, to: list[str]) -> dict[str, Any]:
    """One move; see the module docstring."""
    with tempfile.TemporaryDirectory() as path:
        async with Moving(Path(path), replicas=False) as m:
            await fill(m, players)
            m.stream()
            closed_at: list[tuple[float, float]] = []
            m.at(SliceClosed, lambda: closed_at.append((time.monotonic(), time.process_time())))
            began, began_cpu = time.monotonic(), time.process_time()
            target = await m.begin(*to)
            await until(lambda: m.lives_in(target), "the move ends", 300.0)
            ended = time.monotonic()
            await m.settle()
            told = m.relocation("eu/0")
            things, copy_s, cpu_s = 2 * players, closed_at[0][0] - began, closed_at[0][1] - began_cpu
            return {
                "players": players,
                "to": to,
                "copy_s": round(copy_s, 2),
                "things_per_s": round(things / copy_s),
                "copy_cpu_s": round(cpu_s, 2),
                "things_per_cpu_s": round(things / cpu_s),
                "write_pause_ms": told["paused_ms"],
                "attempts": told["attempts"],
                "whole_s": round(ended - began, 2),
                "longest_wait_of_a_client_ms": m.longest_wait_ms,
            }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--players", type=int, default=50_000)
    parser.add_argument("--to", default="eu/1,eu/2")
    words = parser.parse_args()
    print(json.dumps(asyncio.run(measure(words.players, words.to.split(",")))))


if __name__ == "__main__":
    main()
