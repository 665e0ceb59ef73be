"""A drill's report as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from drills.picture import draw
from drills.report import PHASES, Report, allowed, measured, ms, phases_of, provenance, verdict_words

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --paper: #fbfbf9; --line: #d9dde3; --card: #ffffff;
  --good: #1b7f4b; --bad: #c2332b; --step: #7d8796; --flow: #b9c2cd;
  --r0: #2f6fb5; --r1: #c77a12; --r2: #6a4fb0; --r3: #1f8a8a; --r4: #a83e7c; --r5: #5d7a1f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --paper: #12161c; --line: #303844; --card: #1a2028;
  --good: #4cc38a; --bad: #f0655c; --step: #78839a; --flow: #465162;
  --r0: #5b9be0; --r1: #e0a045; --r2: #9a82e0; --r3: #4dbcbc; --r4: #d873b0; --r5: #9cbd57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.verdict { display: inline-block; padding: .25rem .7rem; border-radius: 1rem; font-weight: 600; color: #fff; background: var(--bad); }
.verdict.met { background: var(--good); }
@media (prefers-color-scheme: dark) { .verdict { color: #10141a; } }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem; }
.wide svg { display: block; min-width: 44rem; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); } td.words { white-space: normal; min-width: 14rem; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
svg .head { font-weight: 600; fill: var(--soft); } svg .tick { font-size: 11px; fill: var(--soft); }
svg .onbar { fill: #fff; font-weight: 600; }
@media (prefers-color-scheme: dark) { svg .onbar { fill: #10141a; } }
svg .grid { stroke: var(--line); } svg .base { stroke: var(--line); } svg .move { stroke: var(--ink); stroke-width: 1.5; }
svg .step { fill: var(--step); } svg .failed, svg .pause { fill: var(--bad); } svg .flow { fill: var(--flow); } svg .faint { opacity: .5; }
svg .r0 { fill: var(--r0); } svg .r1 { fill: var(--r1); } svg .r2 { fill: var(--r2); } svg .r3 { fill: var(--r3); }
svg .r4 { fill: var(--r4); } svg .r5 { fill: var(--r5); }
""".strip()


def to_page(report: Report) -> str:
    """The page, complete."""
    title = f"Drill {report.plan} on {report.shard}"
    at = datetime.fromtimestamp(report.began_at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    w = report.writes
    gaps = ", ".join(f"{region} {ms(gap)}" for region, gap in w.pause_by_region_ms.items())
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p><span class="verdict {report.verdict}">{escape(verdict_words(report))}</span></p>',
        f"<p>{escape(report.summary)}</p>",
        f'<p class="soft">{escape(report.drill)}, begun {at} by {escape(report.asked_by or "an operator")}; '
        f"the owner was {escape(report.owner)}</p>",
        f'<p class="soft">{escape(provenance(report))}</p>',
        "<h2>Timeline</h2>",
        f'<div class="wide">{draw(report)}</div>',
        "<h2>Objectives</h2>",
        _table(
            ("objective", "measured", "allowed", ""),
            [(o.name, measured(o), allowed(o), _mark(o.met, "met", "not met")) for o in report.objectives],
        ),
        "<h2>Authority</h2>",
        _table(
            ("epoch", "from", "to", "how", "detect", *(phase.replace("_", " ") for phase in PHASES), "first write", "write pause"),
            [
                (str(m.epoch), m.from_owner, m.owner, m.kind, *phases_of(m), ms(m.first_write_ms), ms(m.pause_ms)) for m in report.moves
            ] or [("none",)],
        ),
        "<h2>Writes</h2>",
        _table(
            ("sent", "acknowledged", "lost", "salvaged", "unresolved", "duplicates", "counted twice", "by a deposed owner"),
            [tuple(map(str, (w.sent, w.acknowledged, w.lost, w.salvaged, w.unresolved, w.duplicates, w.counted_twice, w.by_deposed)))],
        ),
        f"<p>Longest pause of acknowledgements: {ms(w.pause_ms)}; by region: {escape(gaps)}.</p>",
        f"<p>{w.compared} values compared in all regions, {len(w.unequal)} unequal.</p>",
        *(f'<p class="bad">{escape(line)}</p>' for line in [*w.unequal, *w.wrong]),
        "<h2>Reads</h2>",
        _table(
            ("region", "answered", "of", "percent", "stale, median", "stale, at most", "backwards"),
            [
                (
                    r.region or "some region", str(r.answered), str(r.asked), f"{r.percent:.2f}", ms(r.stale_median_ms),
                    ms(r.stale_max_ms), str(r.backwards),
                )
                for r in report.reads
            ],
        ),
        '<p class="soft">Stale: how long before the read an event was acknowledged that the read does not show.</p>',
        "<h2>Steps</h2>",
        _table(
            ("", "begun", "took", "step", ""),
            [
                (str(s.number), f"{s.began_ms / 1000:.2f} s", ms(s.ended_ms - s.began_ms), s.words, _mark(not s.failed, "done", s.failed))
                for s in report.steps
            ] or [("none",)],
        ),
        *(["<h2>Notes</h2>", *(f"<p>{escape(note)}</p>" for note in report.notes)] if report.notes else []),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


class _Mark(str):
    """Text that is HTML already."""

    __slots__ = ()


def _mark(good: bool, yes: str, no: str) -> _Mark:
    return _Mark(f'<span class="{"good" if good else "bad"}">{escape(yes if good else no)}</span>')


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        kind = ' class="words"' if len(text) > 40 and not isinstance(text, _Mark) else ""
        return f"<td{kind}>{text if isinstance(text, _Mark) else escape(text)}</td>"

    header = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{header}</tr>{lines}</table></div>'
