"""The report of a run, made from its history alone: a document for programs and a page of text for people."""

from pathlib import Path

import msgspec

from chaos.checker import Checker, Judgement
from chaos.history import Run, read_history
from chaos.measures import OBJECTIVE, FaultFigures, Figures, Measures, ReadFigures

_FAULTS = "{:<18}{:>6}{:>6}{:>8}{:>14}{:>14}{:>8}{:>14}{:>14}"
_READS = "{:<20}{:>9}{:>11}{:>14}{:>11}{:>11}{:>11}{:>11}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`report.json`. `verdict` is `held` if nothing is wrong with the history, else `violated`."""

    verdict: str
    run: Run | None
    judgement: Judgement
    figures: Figures


def judge(path: Path) -> Report:
    """Read the history once, and judge and measure it. Raises HistoryError."""
    checker, measures = Checker(), Measures()
    run: Run | None = None
    for number, line in read_history(path):
        if isinstance(line, Run):
            run = line
        checker.feed(number, line)
        measures.feed(number, line)
    judgement = checker.judge()
    return Report(verdict="held" if judgement.holds else "violated", run=run, judgement=judgement, figures=measures.figures())


def as_json(report: Report) -> str:
    """One object, indented."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()


def as_text(report: Report) -> str:
    """The same for people."""
    run, found, figures = report.run, report.judgement, report.figures
    lines = []
    if run is not None:
        lines += [
            f"Chaos of {run.minutes:g} minutes, seed {run.seed}, begun {run.wall}",
            f"commit {run.commit}; " + ", ".join(f"{key} {value}" for key, value in run.machine.items()),
            *(f"not possible there: {kinds} ({why})" for kinds, why in run.unavailable.items()),
            "",
        ]
    lines += [
        f"{figures.faults_done} faults in {figures.seconds:g} s, {figures.faults_overlapping} while another lasted, "
        f"at most {figures.faults_at_once} at once",
        _FAULTS.format("fault", "done", "slow", "failed", "pause p50 ms", "pause max ms", "alone", "pause p50 ms", "pause max ms"),
        *(_fault_line(name, kind) for name, kind in figures.faults.items()),
        "",
        f"events acknowledged {found.acknowledged}, lost {found.lost}, counted twice {found.doubled}",
        f"left unknown {found.unknown} (of them in: {found.unknown_in}), refused and out {found.refused}",
        f"batches {figures.batches}: {figures.batches_unknown} answers unknown, {figures.batches_refused} refused; "
        f"longest write pause {figures.write_pause_max_ms} ms",
        "",
        _READS.format("reads", "asked", "answered", "availability", "age p50", "age p99", "age max", "longest gap"),
        *(_read_line(f"{region} alone", reads) for region, reads in figures.own_reads.items()),
        _read_line("by some region", figures.any_reads),
        f"objective {OBJECTIVE:.1%} of reads answered by some region: {'met' if figures.objective_met else 'MISSED'}",
        f"fallbacks that showed an older generation than before: {found.older_elsewhere}",
        "",
    ]
    if found.holds:
        lines.append("Held: every acknowledged event is there exactly once, in order, and all regions agree.")
    else:
        total = sum(found.broken.values())
        lines.append(f"VIOLATED, {total} time{'s' if total > 1 else ''}; the first:")
        lines += [f"  {violation}" for violation in found.violations[:10]]
    return "\n".join(lines) + "\n"


def _fault_line(name: str, kind: FaultFigures) -> str:
    pauses = (kind.pause_p50_ms, kind.pause_max_ms, kind.alone, kind.pause_alone_p50_ms, kind.pause_alone_max_ms)
    return _FAULTS.format(name, kind.done, kind.slow, kind.failed, *pauses)


def _read_line(name: str, reads: ReadFigures) -> str:
    ages = (reads.age_p50_ms, reads.age_p99_ms, reads.age_max_ms, reads.gap_max_ms)
    return _READS.format(name, reads.asked, reads.answered, f"{reads.availability:.3%}", *ages)


def keep_evidence(report: Report, directory: Path) -> Path:
    """The report under a name of its own, without its history, such as `chaos-60m-seed7.txt` and `.json`; the path of the text."""
    minutes, seed = (report.run.minutes, report.run.seed) if report.run else (0.0, 0)
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / f"chaos-{minutes:g}m-seed{seed}.txt"
    text.write_text(as_text(report), "utf-8")
    text.with_suffix(".json").write_text(as_json(report) + "\n", "utf-8")
    return text


def write_report(report: Report, directory: Path) -> None:
    """`report.json` and `report.txt` in the directory."""
    (directory / "report.json").write_text(as_json(report) + "\n", "utf-8")
    (directory / "report.txt").write_text(as_text(report), "utf-8")
