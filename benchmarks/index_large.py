"""A board of a hundred million players in one process: `python -m benchmarks index --players 100M --evidence FILE`.

The players come from a file that is generated first and then read piece by piece; its place is a temporary directory. Then
10,000 changes a second are published, one generation a second, of which those of the last two minutes are kept. Meanwhile a
thread asks for ranks, windows and pages, and another one watches for pauses. At the end sampled ranks of the last
generation and of the oldest one kept are compared with a sort of all values, in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import index_rows
from benchmarks.figures import Figure, figure, median, percentile
from benchmarks.index import Differs
from benchmarks.options import Options
from boards import compiled
from boards.index import RankIndex
from boards.views import View
from laurel.provenance import commit, machine

CHANGED = 10_000
SECONDS, QUICK_SECONDS = 150, 20
KEPT_S = 120
GIB = 2**30
#: A sleeper as `Watch` has one, alone in its process until its input ends.
_IDLE = """
import select, sys, time
longest, last = 0.0, time.perf_counter()
while not select.select([sys.stdin], [], [], 0.005)[0]:
    now = time.perf_counter()
    longest, last = max(longest, now - last - 0.005), now
print(longest)
"""


class Watch:
    """Threads beside the publishing one: what they saw, in seconds."""

    def __init__(self, view: View, players: int) -> None:
        self.view, self._players = view, players
        self.ranks: list[float] = []
        self.windows: list[float] = []
        self.pages: list[float] = []
        self.gaps: list[float] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._watch)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have the threads end."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        chosen = np.random.default_rng(5)
        while not self._ended.wait(0.002):
            view, number = self.view, index_rows.name(int(chosen.integers(0, self._players)))
            began = time.perf_counter()
            placed = view.place(number)
            ranked = time.perf_counter()
            view.window(number, 10)
            windowed = time.perf_counter()
            if placed is not None:
                view.after(placed.key, 100)
            ended = time.perf_counter()
            self.ranks.append(ranked - began)
            self.windows.append(windowed - ranked)
            self.pages.append(ended - windowed)

    def _watch(self) -> None:
        """How much later than asked for a sleeper wakes: the interpreter, or the machine, was busy with something else."""
        last = time.perf_counter()
        while not self._ended.is_set():
            time.sleep(0.005)
            now = time.perf_counter()
            self.gaps.append(now - last - 0.005)
            last = now


def run(options: Options, players: int, evidence: Path | None) -> Iterator[Figure]:
    """The whole of it, some minutes long. Raises Differs."""
    if not compiled.load():
        options.say(f"no compiled look-ups ({compiled.reason}): numpy alone is measured")
    with tempfile.TemporaryDirectory(prefix="laurel-index-") as directory:
        file = Path(directory) / "players"
        _generate(file, players, options)
        index = RankIndex(direction="higher", ranking="competition", tie_is_achieved=True)
        try:
            loaded_s = _load(index, file, players, options)
            out = list(_measured(options, index, players, file, loaded_s))
        finally:
            index.close()
    if evidence is not None:
        told = {
            "players": players, "commit": commit(), "machine": machine(), "load_average": os.getloadavg(),
            "seconds": QUICK_SECONDS if options.quick else SECONDS, "changes_a_generation": CHANGED, "generations_kept": KEPT_S,
            "figures": [{name: getattr(row, name) for name in row.__struct_fields__} for row in out],
        }  # fmt: skip
        evidence.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    yield from out


def _generate(file: Path, players: int, options: Options) -> None:
    with file.open("wb") as out:
        for piece in index_rows.rows(players, 1):
            out.write(np.ascontiguousarray(piece).tobytes())
            _progress(options, "generated", int(piece[0][-1]) + 1, players)


def pieces(file: Path, players: int) -> Iterator[index_rows.Numbers]:
    """What `_generate` wrote, one piece after the other."""
    with file.open("rb") as source:
        for first in range(0, players, index_rows.PIECE):
            count = min(index_rows.PIECE, players - first)
            yield np.frombuffer(source.read(24 * count), dtype=np.int64).reshape(3, count)


def _load(index: RankIndex, file: Path, players: int, options: Options) -> float:
    began = time.perf_counter()
    for piece in pieces(file, players):
        index.freeze_columns(index_rows.batch(piece))
        _progress(options, "loaded", int(piece[0][-1]) + 1, players)
    index.compact()
    return time.perf_counter() - began


def _progress(options: Options, what: str, done: int, players: int) -> None:
    if done == players or done % (20 * index_rows.PIECE) == 0:
        options.say(f"{what} {done:,} of {players:,} players, {_memory('VmRSS') / GIB:.2f} GiB resident")


def _memory(what: str) -> int:
    text = Path("/proc/self/status").read_text("ascii")
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(what))


def _measured(options: Options, index: RankIndex, players: int, file: Path, loaded_s: float) -> Iterator[Figure]:
    loaded = _memory("VmRSS")
    kept: deque[tuple[int, View]] = deque([(-1, index.view)])
    idle = subprocess.Popen([sys.executable, "-c", _IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    watch = Watch(index.view, players)
    published: list[float] = []
    behind = 0.0
    begins = time.perf_counter()
    try:
        for round_ in range(QUICK_SECONDS if options.quick else SECONDS):
            batch = index_rows.as_changes(index_rows.changes(players, CHANGED, round_), round_ + 2)
            time.sleep(max(0.0, begins + round_ - time.perf_counter()))
            behind = max(behind, time.perf_counter() - begins - round_)
            began = time.perf_counter()
            watch.view = index.freeze(batch)
            published.append(time.perf_counter() - began)
            kept.append((round_, watch.view))
            while len(kept) > KEPT_S:
                kept.popleft()
            if round_ % 10 == 9:
                options.say(f"published {round_ + 1} generations, {_memory('VmRSS') / GIB:.2f} GiB resident")
    finally:
        watch.stop()
        machine_gap = float(idle.communicate("")[0])
    peak = _memory("VmHWM")
    for round_, view in (kept[0], kept[-1]):
        _compare(view, file, players, round_)
    label = f"index_{players // 1_000_000}m"
    yield figure(f"{label}_load", loaded_s, "s")
    yield figure(f"{label}_resident_after_load", loaded / GIB, "GiB")
    yield figure(f"{label}_peak", peak / GIB, "GiB", goal=10.0, lower_is_better=True)
    yield figure(f"{label}_generations_kept", float(len(kept)), "generations", goal=60.0)
    yield figure(f"{label}_publish_10000", median(published) * 1e3, "ms")
    yield figure(f"{label}_publish_10000_max", max(published) * 1e3, "ms")
    yield figure(f"{label}_furthest_behind", behind * 1e3, "ms")
    for name, values, goal in (("rank", watch.ranks, 5.0), ("window", watch.windows, None), ("page_100", watch.pages, None)):
        yield figure(f"{label}_{name}_p50", median(values) * 1e3, "ms")
        yield figure(f"{label}_{name}_p99", percentile(values, 0.99) * 1e3, "ms", goal=goal, lower_is_better=True)
    # What a process that does nothing saw at the same time: pauses of the machine, which is shared, and not of the index.
    yield figure(f"{label}_longest_pause_of_an_idle_process", machine_gap * 1e3, "ms")
    yield figure(f"{label}_longest_pause", max(watch.gaps) * 1e3, "ms", goal=200.0, lower_is_better=True)


def _compare(view: View, file: Path, players: int, last: int) -> None:
    """Sampled ranks of the generation after round `last` with those of a sort, made by a process of its own."""
    command = [sys.executable, "-m", "benchmarks.index_large", str(file), str(players), str(last)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    expected: dict[str, int] = json.loads(said)
    ranks = {name: placed and placed.rank for name, placed in zip(expected, view.places(list(expected)), strict=True)}
    if ranks != expected:
        wrong: Any = next(name for name in expected if ranks[name] != expected[name])
        raise Differs(f"after round {last} the rank of {wrong} is {ranks[wrong]}, by a sort {expected[wrong]}")


def _sorted_offline(file: Path, players: int, last: int) -> dict[str, int]:
    values = np.empty(players, dtype=np.int64)
    for number, value, _ in pieces(file, players):
        values[number] = value
    for round_ in range(last + 1):
        number, value, _ = index_rows.changes(players, CHANGED, round_)
        values[number] = value
    asked = np.random.default_rng(last + 1).integers(0, players, 200)
    # And some of those who changed last.
    if last >= 0:
        asked = np.concatenate((asked, index_rows.changes(players, CHANGED, last)[0][:100]))
    asked = np.unique(asked)
    return dict(zip(map(index_rows.name, asked.tolist()), index_rows.offline_ranks(values, asked), strict=True))


if __name__ == "__main__":
    print(json.dumps(_sorted_offline(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
