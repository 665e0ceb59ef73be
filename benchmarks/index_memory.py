"""`python -m benchmarks.index_memory PLAYERS`: resident bytes a player of all that a read replica holds, as one number.

Ids, their table, the order, versions, moments, and the generations of two minutes, one a second with a hundred changes each.
"""

import ctypes
import gc
import sys
from pathlib import Path

from benchmarks import index_rows
from benchmarks.index import check, filled
from boards import compiled

GENERATIONS = 120


def resident() -> int:
    """Bytes of memory that this process occupies, after what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return 1024 * next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmRSS")
    )


def main(players: int) -> None:
    """Fill an index, publish, count, and check."""
    compiled.load()
    before = resident()
    index, values = filled(players, lambda text: print(text, file=sys.stderr))
    kept = [index.view]
    for round_ in range(GENERATIONS):
        piece = index_rows.changes(players, 100, round_)
        kept.append(index.freeze(index_rows.as_changes(piece, round_ + 2)))
        values[piece[0]] = piece[1]
    index.close()
    held = resident() - before - values.nbytes
    check(kept[-1], values, 1)
    print(held / players)


if __name__ == "__main__":
    main(int(sys.argv[1]))
