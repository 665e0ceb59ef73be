"""What a drill found: the record that becomes JSON, and its text. `drills.page` makes the HTML page from the same record."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Verdict = Literal["met", "not_met", "aborted"]
#: `restart`: the owner itself began a new epoch.
MoveKind = Literal["planned", "forced", "automatic", "restart"]
#: The phases of an activation, in their order.
PHASES = ("probe", "seal", "adopt", "start", "catch_up")


class StepTold(msgspec.Struct, frozen=True, kw_only=True):
    """One step as it went. Times are ms since the drill began; `failed` is "" where it was done."""

    number: int
    do: str
    words: str
    began_ms: float
    ended_ms: float
    failed: str = ""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Authority has moved. `asked_ms` is None for what moved by itself; `fault_ms` the last fault before it."""

    step: int
    kind: MoveKind
    from_epoch: int
    from_owner: str
    epoch: int
    owner: str
    asked_ms: float | None
    fault_ms: float | None
    seen_ms: float
    #: From the fault until somebody asked, or until the activation began by itself; None where there was no fault, or nobody said.
    detect_ms: float | None = None
    phases_ms: dict[str, float] | None = None
    #: From the command (or the fault) to the first write acknowledged in this epoch or later.
    first_write_ms: float | None = None
    #: Longest time around it in which no region had an acknowledgement.
    pause_ms: float | None = None


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the canary's events."""

    sent: int
    acknowledged: int
    #: Acknowledged, and unknown when asked for again at the end, or asked for and not confirmed.
    lost: int
    #: In doubt at first (no answer) or cut off, and in the end acknowledged by the same id.
    salvaged: int
    unresolved: int
    duplicates: int
    refused: int
    held_back: int
    counted_twice: int
    #: Acknowledged anew by an epoch that had been deposed before the event was sent.
    by_deposed: int
    pause_ms: float
    pause_by_region_ms: dict[str, float]
    #: Values compared in all regions, and those that are not what they must be.
    compared: int
    unequal: list[str]
    wrong: list[str]


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """One region's reads, or those of all together (`region` ""). Stale: since when an event that is not shown was acknowledged."""

    region: str
    asked: int
    answered: int
    stale_median_ms: float
    stale_max_ms: float
    #: Reads that showed an older generation than an earlier one of the same region had shown.
    backwards: int

    @property
    def percent(self) -> float:
        """Share that was answered."""
        return 100.0 * self.answered / self.asked if self.asked else 100.0


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was judged. `measured` None: nothing of the kind happened, so it is not judged (`met` is True)."""

    name: str
    measured: float | None
    allowed: float
    unit: str
    met: bool


class Reign(msgspec.Struct, frozen=True, kw_only=True):
    """An authority served: from the first to the last time that was seen."""

    epoch: int
    region: str
    from_ms: float
    to_ms: float


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Reads of one region in one part of the timeline."""

    at_ms: float
    answered: int
    unanswered: int
    stale_ms: float


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What the picture is drawn from."""

    length_ms: float
    slice_ms: float
    reigns: list[Reign]
    #: Region ("" for all together) -> pauses of its acknowledgements, (from, to), longest first.
    pauses: dict[str, list[tuple[float, float]]]
    reads: dict[str, list[Slice]]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    drill: str
    plan: str
    summary: str
    shard: str
    asked_by: str
    began_at_ms: int
    verdict: Verdict
    #: Why it was aborted, "" otherwise.
    why: str
    regions: list[str]
    owner: str
    steps: list[StepTold]
    moves: list[Move]
    writes: Writes
    reads: list[Reads]
    objectives: list[Objective]
    notes: list[str]
    timeline: Timeline
    #: Of the process that drove the drill; see `laurel.provenance`.
    commit: str = ""
    machine: dict[str, str] = {}


def provenance(report: Report) -> str:
    """Commit and machine in one line, "" where nobody said."""
    here = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return ", ".join(filter(None, (report.commit and f"commit {report.commit}", here)))


def to_json(report: Report) -> dict[str, Any]:
    """The record as JSON, each region's share of reads that was answered included."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    for shown, reads in zip(document["reads"], report.reads, strict=True):
        shown["percent"] = round(reads.percent, 3)
    return document


def from_json(document: Any) -> Report:
    """The record out of its JSON."""
    return msgspec.convert(document, Report)


def ms(duration: float | None) -> str:
    """For people; "-" for what is not known."""
    if duration is None:
        return "-"
    return f"{duration / 1000:.2f} s" if duration >= 10_000 else f"{duration:.0f} ms"


def measured(objective: Objective) -> str:
    """What was measured, with its unit."""
    if objective.measured is None:
        return "-"
    return f"{objective.measured:.2f} %" if objective.unit == "%" else f"{objective.measured:.0f} {objective.unit}".rstrip()


def allowed(objective: Objective) -> str:
    """What is allowed, with its direction and unit."""
    return f"at least {objective.allowed:g} %" if objective.unit == "%" else f"at most {objective.allowed:g} {objective.unit}".rstrip()


def phases_of(move: Move) -> list[str]:
    """Detect, and each phase of the activation, for people."""
    return [ms(move.detect_ms), *(ms((move.phases_ms or {}).get(phase)) for phase in PHASES)]


def verdict_words(report: Report) -> str:
    """The verdict in words."""
    return {"met": "All objectives are met", "not_met": "Not all objectives are met", "aborted": f"Aborted: {report.why}"}[report.verdict]


def to_text(report: Report) -> str:
    """The report as text, at most 120 columns wide but for sentences."""
    w = report.writes
    lines = [
        f"Drill {report.plan} on {report.shard}: {verdict_words(report)}.",
        f"{report.drill}, asked by {report.asked_by}",
        provenance(report),
        "",
        "Steps",
    ]
    for step in report.steps:
        failed = f"  FAILED: {step.failed}" if step.failed else ""
        lines.append(f"  {step.began_ms / 1000:7.2f} s  {step.words}, {ms(step.ended_ms - step.began_ms)}{failed}")
    lines += ["", "Authority"]
    lines += _columns(
        [("epoch", "from", "to", "how", "detect", *(phase.replace("_", " ") for phase in PHASES), "first write", "pause")]
        + [
            (str(move.epoch), move.from_owner, move.owner, move.kind, *phases_of(move), ms(move.first_write_ms), ms(move.pause_ms))
            for move in report.moves
        ]
    )
    lines += [
        "",
        f"Writes: {w.sent} sent, {w.acknowledged} acknowledged, {w.lost} lost, {w.salvaged} salvaged, {w.unresolved} unresolved; "
        f"{w.duplicates} duplicates recognised, {w.refused} refusals repeated, {w.held_back} held back",
        f"  longest pause {ms(w.pause_ms)}; by region: {', '.join(f'{name} {ms(gap)}' for name, gap in w.pause_by_region_ms.items())}",
        f"  {w.compared} values compared, {len(w.unequal)} unequal; {w.counted_twice} counted twice; {w.by_deposed} by a deposed owner",
        *(f"  {line}" for line in [*w.unequal, *w.wrong]),
        "",
        "Reads",
    ]
    rows = [("region", "answered", "of", "percent", "stale, median", "stale, at most", "backwards")]
    for r in report.reads:
        stale = (ms(r.stale_median_ms), ms(r.stale_max_ms))
        rows.append((r.region or "some region", str(r.answered), str(r.asked), f"{r.percent:.2f}", *stale, str(r.backwards)))
    lines += [*_columns(rows), "", "Objectives"]
    judged = [(o.name, measured(o), allowed(o), "met" if o.met else "NOT MET") for o in report.objectives]
    lines += _columns([("objective", "measured", "allowed", ""), *judged])
    if report.notes:
        lines += ["", "Notes", *(f"  {note}" for note in report.notes)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = list(rows)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
