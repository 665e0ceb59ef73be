"""Many schedules: in parallel processes, counted, written down as evidence, resumed, and with a mutant instead of the product.

Workers are spawned, so nothing of this process leaks into them; each does a stretch of seeds and sends back its counts.
"""

import hashlib
import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from laurel.provenance import commit
from simulation.fleet_mutants import FLEET_MUTANTS
from simulation.mutants import MUTANTS, PROVOKED, broken
from simulation.schedule import Outcome, run

#: Seeds that a worker does at a time; seeds in one line of evidence.
STRETCH, LINE = 25, 5000
#: A mutant is caught well enough after so many detections, and escapes when so many seeds show none.
ENOUGH, AT_MOST = 3, 1500
#: What is simulated; evidence of other code says nothing of this one.
CODE = ("boards", "failover", "journal/memory.py", "journal/ports.py", "journal/records.py")
CODE_TOO = ("ledger/fold.py", "ledger/memory.py", "ledger/pending.py", "ledger/ports.py", "ledger/running.py", "simulation")
ACTORS = (
    "board_changes", "boards_view", "coordinating", "exporting", "generations_view", "importing", "messages", "orders", "region_fold",
    "relocating", "relocation_changes", "waiting",
)  # fmt: skip

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Found:
    """A seed whose schedule broke an invariant."""

    seed: int
    invariant: str
    detail: str


@dataclass(slots=True)
class Tally:
    """Counts of a stretch of seeds."""

    runs: int = 0
    events: int = 0
    acknowledged: int = 0
    failovers: int = 0
    steps: int = 0
    #: Of boards over several shards.
    generations: int = 0
    moves: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def count(self, outcome: Outcome) -> None:
        """Take one schedule in."""
        self.runs += 1
        self.events += outcome.events
        self.acknowledged += outcome.acknowledged
        self.failovers += outcome.failovers
        self.steps += outcome.steps
        self.generations += outcome.generations
        self.moves += outcome.moves
        self.faults.update(outcome.faults)
        if outcome.violation is not None:
            self.found.append(Found(outcome.seed, outcome.violation.invariant, outcome.violation.detail))

    def add(self, other: "Tally") -> None:
        """Take another tally in."""
        self.runs += other.runs
        self.events += other.events
        self.acknowledged += other.acknowledged
        self.failovers += other.failovers
        self.steps += other.steps
        self.generations += other.generations
        self.moves += other.moves
        self.faults.update(other.faults)
        self.found += other.found

    def document(self, seconds: float) -> dict[str, Any]:
        """For `--json`."""
        return {
            "runs": self.runs,
            "events": self.events,
            "acknowledged": self.acknowledged,
            "failovers": self.failovers,
            "faults": sum(self.faults.values()),
            "steps": self.steps,
            "generations": self.generations,
            "moves": self.moves,
            "violations": len(self.found),
            "seeds": [found.seed for found in self.found[:20]],
            "seconds": round(seconds, 1),
        }


def stretch(seeds: tuple[int, int], faults: Sequence[str] = (), shards: int | None = None) -> Tally:
    """Run seeds first..last; `shards` as in `simulation.schedule.run`."""
    tally = Tally()
    for seed in range(seeds[0], seeds[1] + 1):
        tally.count(run(seed, faults=faults, shards=shards))
    return tally


def hunt(task: tuple[str, int, int, int]) -> tuple[str, int, int, str]:
    """(mutant, first seed, how many at most, enough detections) -> (mutant, runs, detections, what was broken first).

    Where a compound fault is known to provoke it, every other seed plays just that one.
    """
    name, first, most, enough = task
    runs, detections, how = 0, 0, ""
    with broken(name) as switches:
        for seed in range(first, first + most):
            runs += 1
            faults = (PROVOKED[name],) if seed % 2 and name in PROVOKED else ()
            outcome = run(seed, faults=faults, switches=switches, shards=shards_for(name))
            violation = outcome.violation
            if violation is not None and catches(name, outcome):
                detections += 1
                how = how or f"seed {seed}{''.join(f' --faults {kind}' for kind in faults)}: {violation.invariant}"
                if detections >= enough:
                    break
    return name, runs, detections, how


def shards_for(name: str) -> int:
    """In how many shards a mutant is looked for: rules of one shard show themselves soonest where there is only one."""
    return 3 if name in FLEET_MUTANTS else 1


def catches(name: str, outcome: Outcome) -> bool:
    """Whether this mutant was caught, by what its rule is for."""
    return outcome.violation is not None and MUTANTS[name].invariant in ("", outcome.violation.invariant)


def _quiet_worker() -> None:
    """Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def workers(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A map over that many processes that gives results in order; with one, no process is started."""
    if count <= 1:
        yield map
        return
    pool = multiprocessing.get_context("spawn").Pool(count, initializer=_quiet_worker)
    try:
        yield pool.imap
    finally:
        pool.terminate()
        pool.join()


def simulate(
    first: int,
    count: int,
    *,
    faults: Sequence[str] = (),
    shards: int | None = None,
    processes: int = 1,
    evidence: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Tally, bool]:
    """Run `count` seeds from `first` on; the counts, and whether all were done (Ctrl-C ends it early and keeps what was done).

    `evidence`: a line is appended for each `LINE` seeds that are done, and for the rest at the end.
    """
    total, line, begun = Tally(), Tally(), time.monotonic()
    tasks = [(at, min(at + STRETCH, first + count) - 1) for at in range(first, first + count, STRETCH)]
    line_first, whole = first, True
    try:
        with workers(min(processes, len(tasks))) as mapped:
            for tally in mapped(partial(stretch, faults=tuple(faults), shards=shards), tasks):
                total.add(tally)
                line.add(tally)
                progress(tally.runs)
                if evidence is not None and line.runs >= LINE:
                    write_line(evidence, line_first, line, time.monotonic() - begun, faults, shards)
                    line_first, line, begun = line_first + line.runs, Tally(), time.monotonic()
    except KeyboardInterrupt:
        whole = False
    if evidence is not None and line.runs:
        write_line(evidence, line_first, line, time.monotonic() - begun, faults, shards)
    return total, whole


def try_mutants(
    names: Sequence[str] = (), *, runs: int | None = None, processes: int = 1, progress: Callable[[int], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """Mutant -> runs, detections and how it was seen first. Without `runs` it ends at `ENOUGH` detections."""
    names = list(names) or list(MUTANTS)
    result: dict[str, dict[str, Any]] = {name: {"runs": 0, "detections": 0, "first": ""} for name in names}
    if runs is None:
        tasks = [(name, 0, AT_MOST, ENOUGH) for name in names]
    else:
        tasks = [(name, at, min(STRETCH, runs - at), runs + 1) for name in names for at in range(0, runs, STRETCH)]
    with workers(min(processes, len(tasks))) as mapped:
        for name, done, detections, how in mapped(hunt, tasks):
            counts = result[name]
            counts["runs"] += done
            counts["detections"] += detections
            counts["first"] = counts["first"] or how
            progress(1 if runs is None else done)
    return result


# -- evidence -------------------------------------------------------------------------------------------------------------


def write_line(path: Path, first: int, tally: Tally, seconds: float, faults: Sequence[str], shards: int | None = None) -> None:
    """Append what was done to the evidence: one JSON object on a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "from": first,
        "runs": tally.runs,
        "events": tally.events,
        "acknowledged": tally.acknowledged,
        "failovers": tally.failovers,
        "steps": tally.steps,
        "generations": tally.generations,
        "moves": tally.moves,
        "violations": [[found.seed, found.invariant] for found in tally.found],
        "seconds": round(seconds, 1),
        "only": list(faults),
        "shards": shards,
        "faults": dict(sorted(tally.faults.items())),
        "commit": commit(),
        "code": code_fingerprint(),
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of an evidence file; [] when it is not there. Raises ValueError with the number of a line that is none."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if not {"from", "runs", "events", "failovers", "violations", "seconds", "code"} <= line.keys():
                raise ValueError
        except (ValueError, AttributeError):
            raise ValueError(f"line {number} of {path} is no line of evidence") from None
        lines.append(line)
    return lines


def next_seed(lines: Sequence[dict[str, Any]]) -> int:
    """The seed after the last one that was done."""
    return max((line["from"] + line["runs"] for line in lines), default=0)


def sum_up(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Totals of an evidence file; `current` counts the runs of the code as it is now."""
    code = code_fingerprint()
    faults: Counter[str] = Counter()
    for line in lines:
        faults.update(line.get("faults", {}))
    return {
        "runs": sum(line["runs"] for line in lines),
        "current": sum(line["runs"] for line in lines if line["code"] == code),
        "events": sum(line["events"] for line in lines),
        "acknowledged": sum(line.get("acknowledged", 0) for line in lines),
        "generations": sum(line.get("generations", 0) for line in lines),
        "moves": sum(line.get("moves", 0) for line in lines),
        "failovers": sum(line["failovers"] for line in lines),
        "faults": dict(faults.most_common()),
        "violations": sum(len(line["violations"]) for line in lines),
        "seconds": round(sum(line["seconds"] for line in lines), 1),
        "codes": len({line["code"] for line in lines}),
    }


def code_fingerprint() -> str:
    """16 hex digits over the sources of what is simulated and of the simulator."""
    whole = hashlib.blake2b(digest_size=8)
    for name in (*CODE, *CODE_TOO, *(f"actors/{name}.py" for name in ACTORS)):
        path = _ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            whole.update(file.relative_to(_ROOT).as_posix().encode())
            whole.update(file.read_bytes())
    return whole.hexdigest()
