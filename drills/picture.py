"""The timeline of a drill as inline SVG, drawn by hand: steps, authority by epoch, pauses of writes, reads by region.

Colours are CSS variables of the page around it, so that light and dark need one picture. Every shape tells itself in a `title`.
"""

from collections.abc import Iterator
from html import escape
from itertools import pairwise

from drills.report import Report, ms

WIDTH, LEFT, RIGHT = 960.0, 8.0, 8.0
_LANE, _ROW, _GAP = 22.0, 18.0, 14.0
_READ = 34.0
#: Staleness that fills a lane of reads; more is cut there and told in the title.
_STALE_FULL_MS = 5000.0
#: Steps between ticks of the axis that are fit to be read, in ms.
_TICKS = (500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000)


class _Canvas:
    """SVG elements in a column of lanes; x is time."""

    def __init__(self, length_ms: float) -> None:
        self._scale = (WIDTH - LEFT - RIGHT) / max(1.0, length_ms)
        self.length_ms = length_ms
        self.y = 0.0
        self.parts: list[str] = []

    def x(self, at_ms: float) -> float:
        """Place of an instant."""
        return LEFT + min(max(at_ms, 0.0), self.length_ms) * self._scale

    def heading(self, text: str) -> None:
        """Begin a lane."""
        self.y += _GAP
        self.text(LEFT, self.y + 11, text, "head")
        self.y += 17

    def text(self, x: float, y: float, text: str, kind: str = "label", anchor: str = "start") -> None:
        """One line."""
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def bar(self, a: float, b: float, y: float, height: float, kind: str, title: str, *, least: float = 1.5) -> float:
        """From instant `a` to `b`; its width, at least `least`."""
        x, width = self.x(a), max(least, self.x(b) - self.x(a))
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
        self.parts.append(f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>')
        return width


def draw(report: Report) -> str:
    """The whole picture, an `svg` element."""
    canvas = _Canvas(report.timeline.length_ms)
    kinds = {region: f"r{at % 6}" for at, region in enumerate(report.regions)}
    for lane in (_steps(canvas, report), _authority(canvas, report, kinds), _pauses(canvas, report, kinds), _reads(canvas, report, kinds)):
        for _ in lane:
            pass
    height = canvas.y + 26
    grid = "".join(_axis(canvas, height))
    words = f"Timeline of the drill {report.plan}: steps, authority by epoch, pauses of writes and reads by region."
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(words, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{grid}{"".join(canvas.parts)}</svg>'
    )


def _axis(canvas: _Canvas, height: float) -> Iterator[str]:
    every = next((tick for tick in _TICKS if canvas.length_ms / tick <= 14), _TICKS[-1])
    for at in range(0, int(canvas.length_ms) + 1, every):
        x = canvas.x(at)
        yield f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 16:.1f}"/>'
        anchor = "start" if at == 0 else "end" if x > WIDTH - 30 else "middle"
        yield f'<text class="tick" x="{x:.1f}" y="{height - 4:.1f}" text-anchor="{anchor}">{at / 1000:g} s</text>'


def _steps(canvas: _Canvas, report: Report) -> Iterator[None]:
    canvas.heading("Steps")
    # A number that has no room beside the one before joins it.
    labels: list[tuple[float, str]] = []
    for step in report.steps:
        words = f"{step.number}. {step.words}: {ms(step.ended_ms - step.began_ms)}"
        kind = "failed" if step.failed else "step"
        canvas.bar(step.began_ms, step.ended_ms, canvas.y, _ROW, kind, f"{words}; {step.failed}" if step.failed else words, least=3)
        x = canvas.x(step.began_ms)
        if labels and x < labels[-1][0] + 7.0 * len(labels[-1][1]) + 4:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]} {step.number}")
        else:
            labels.append((x, str(step.number)))
        yield
    for x, label in labels:
        canvas.text(x + 1, canvas.y + _ROW + 12, label, "tick")
    canvas.y += _ROW + 16


def _authority(canvas: _Canvas, report: Report, kinds: dict[str, str]) -> Iterator[None]:
    canvas.heading("Authority, by epoch")
    reigns = sorted(report.timeline.reigns, key=lambda reign: reign.from_ms)
    for reign, after in pairwise([*reigns, None]):
        assert reign is not None
        # It was seen serving up to here, and went on until somebody else was: where nobody is drawn, nobody was seen.
        title = f"epoch {reign.epoch}, {reign.region}: {ms(reign.from_ms)} to {ms(reign.to_ms)}"
        end = reign.to_ms if after is None else min(reign.to_ms, max(after.from_ms, reign.from_ms))
        width = canvas.bar(reign.from_ms, end, canvas.y, _LANE, kinds.get(reign.region, "r0"), title, least=2)
        label = f"{reign.epoch} {reign.region}"
        if width > 7.5 * len(label):
            canvas.text(canvas.x(reign.from_ms) + 5, canvas.y + 15, label, "onbar")
        yield
    for move in report.moves:
        x = canvas.x(move.seen_ms)
        canvas.parts.append(
            f'<line class="move" x1="{x:.1f}" y1="{canvas.y - 3:.1f}" x2="{x:.1f}" y2="{canvas.y + _LANE + 3:.1f}">'
            f"<title>{escape(f'{move.kind}: epoch {move.epoch} of {move.owner}')}</title></line>"
        )
    canvas.y += _LANE


def _pauses(canvas: _Canvas, report: Report, kinds: dict[str, str]) -> Iterator[None]:
    canvas.heading("Writes: red where no acknowledgement came")
    began, ended = _traffic(report)
    for region in ("", *report.regions):
        name = region or "all regions"
        canvas.text(LEFT, canvas.y + 10, name)
        canvas.bar(began, ended, canvas.y + 14, 6, f"{kinds[region]} faint" if region else "flow", f"{name}: acknowledged")
        for a, b in report.timeline.pauses.get(region, []):
            canvas.bar(a, b, canvas.y + 12, 10, "pause", f"{name}: no acknowledgement for {ms(b - a)}")
        canvas.y += 26
        yield


def _traffic(report: Report) -> tuple[float, float]:
    """When there was any."""
    spans = [part.at_ms for parts in report.timeline.reads.values() for part in parts]
    return (min(spans), max(spans) + report.timeline.slice_ms) if spans else (0.0, 0.0)


def _reads(canvas: _Canvas, report: Report, kinds: dict[str, str]) -> Iterator[None]:
    canvas.heading(f"Reads: height is how stale ({_STALE_FULL_MS / 1000:g} s fills the lane), red where none was answered")
    for region in report.regions:
        base = canvas.y + _READ
        canvas.parts.append(f'<line class="base" x1="{LEFT}" y1="{base:.1f}" x2="{WIDTH - RIGHT}" y2="{base:.1f}"/>')
        for part in report.timeline.reads.get(region, []):
            share = min(1.0, part.stale_ms / _STALE_FULL_MS)
            until, title = part.at_ms + report.timeline.slice_ms, f"{region}: {part.answered} answered, {part.unanswered} not"
            if part.answered:
                height = 2 + (_READ - 6) * share
                canvas.bar(part.at_ms, until, base - height, height, kinds[region], f"{title}, up to {ms(part.stale_ms)} stale")
            if part.unanswered:
                height = (_READ - 4) * part.unanswered / (part.answered + part.unanswered)
                canvas.bar(part.at_ms, until, base - height, height, "pause", title)
        canvas.text(LEFT, canvas.y + 10, region)
        canvas.y += _READ + 4
        yield
