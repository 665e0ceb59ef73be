"""The history of a chaos run: one JSON object a line, written as things happen, read again by `laurel drill check`.

Times are seconds of the run's monotonic clock since its start (`t`); `Run.wall` says when that was. Amounts and values
are whole numbers: the boards of a run have no decimals. Whatever judges a run reads this file and nothing else.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

VERSION = 1

Policy = Literal["cumulative", "best_score"]


class HistoryError(Exception):
    """The file is no history; the text names the line. Definite: give another file."""

    code = "bad_history"
    definite = True


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    t: float


class Run(_Line, frozen=True, tag="run"):
    """The first line: what is run, on what."""

    version: int
    wall: str
    seed: int
    minutes: float
    shard: str
    regions: list[str]
    #: Board id -> policy.
    boards: dict[str, Policy]
    faults: list[str]
    #: Kinds that were wanted and cannot be done here -> why.
    unavailable: dict[str, str]
    commit: str
    machine: dict[str, str]


class FaultLine(_Line, frozen=True, tag="fault"):
    """`begun`, `ended` (put back, and what was hit works again), `failed` (could not be done) or `slow` (ended, not well in time)."""

    id: int
    phase: Literal["begun", "ended", "failed", "slow"]
    name: str
    regions: list[str]
    detail: str = ""


class Sent(_Line, frozen=True, tag="sent"):
    """A batch leaves a game server. The same `batch` again is a repetition with the same event ids."""

    server: str
    batch: int
    board: str
    #: (event id, player, amount): a delta, or a score.
    events: list[tuple[str, str, int]]


class Result(msgspec.Struct, frozen=True, array_like=True):
    """One event's outcome; epoch and offset are 0 and value and version None where there is none."""

    event_id: str
    outcome: str
    epoch: int = 0
    offset: int = 0
    value: int | None = None
    version: int | None = None


class Answered(_Line, frozen=True, tag="answered"):
    """The end of a `Sent`: a result for each event. Outcome `unknown`: may be in; `refused`: said to be out. `region` answered last."""

    server: str
    batch: int
    region: str
    results: list[Result]
    why: str = ""


class Read(_Line, frozen=True, tag="read"):
    """One read of the first page, from `asked` to `t`. `own`: of the reader's own region alone; `any`: with the others to fall back on."""

    reader: str
    scope: Literal["own", "any"]
    asked: float
    board: str
    #: The region that answered; "" where nobody did.
    region: str = ""
    generation: int = -1
    age_ms: int = 0
    checksum: str = ""
    #: Hash of the page's entries: one generation, one page.
    page: str = ""
    why: str = ""


class Closed(_Line, frozen=True, tag="closed"):
    """All faults are put back, nothing is under way, and the regions were waited for. `agreed` is False where they never agreed.

    `tail` is the last offset then: what is asked again and stands behind it was not in.
    """

    agreed: bool
    tail: int
    why: str = ""


class Authorities(_Line, frozen=True, tag="authorities"):
    """What every region says of the shard: (serving, epoch, owner it knows)."""

    said: dict[str, tuple[bool, int, str]]


class Final(_Line, frozen=True, tag="final"):
    """A board as one region shows it when all is over; round 1 is before events are asked again, 2 after."""

    round: Literal[1, 2]
    region: str
    board: str
    generation: int
    checksum: str
    total: int
    #: Player -> (value, version).
    rows: dict[str, tuple[int, int]]


class Asked(_Line, frozen=True, tag="asked"):
    """Events submitted once more after round 1: `duplicate` says that they were in, anything else that they were not."""

    board: str
    results: list[Result]


class End(_Line, frozen=True, tag="end"):
    """The last line: the run came to its end, by itself (`complete`) or cut short."""

    complete: bool
    why: str = ""


Line = Run | FaultLine | Sent | Answered | Read | Closed | Authorities | Final | Asked | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class History:
    """The file, being written. Safe for use by many threads; each line is handed to the kernel before `write` returns."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock, self._start = clock, clock()
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # `close` closes it
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent; whoever writes later gets ValueError."""
        self._file.close()

    def now(self) -> float:
        """Seconds since the start, as lines have them."""
        return round(self._clock() - self._start, 6)

    def write(self, line: Line) -> None:
        """Append one line."""
        data = _encode(line) + b"\n"
        with self._lock:
            self._file.write(data)


def read_history(path: Path) -> Iterator[tuple[int, Line]]:
    """(line number, line) of a history; a torn last line is left out, as a run that was killed leaves it.

    Raises HistoryError for anything else that is no history.
    """
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, 1):
                if not data.endswith(b"\n"):
                    return
                try:
                    line = _decode(data)
                except msgspec.MsgspecError as error:
                    raise HistoryError(f"line {number} of {path} is no line of a history: {error}") from error
                if number == 1 and not (isinstance(line, Run) and line.version == VERSION):
                    raise HistoryError(f"{path} does not begin with a run of version {VERSION}")
                yield number, line
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror or error}") from error
