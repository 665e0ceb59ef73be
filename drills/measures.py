"""From what the canary saw to figures and a verdict. Pure; times are ms since the drill began."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from drills.book import Book, Look
from drills.plan import Objectives
from drills.report import Move, Objective, Reads, Reign, Slice, StepTold, Timeline, Writes

#: The pause of a move is looked for from so long before its command to so long after its first write.
AROUND_MS = 1000.0
#: Pauses shown in the picture: shorter ones are the pace of the canary.
SHOWN_MS, SHOWN = 200.0, 40
#: Parts of the timeline at most, and the shortest part: it holds reads at the usual pace.
SLICES, SLICE_MS = 120, 250.0


def longest_gap(times: Iterable[float], since: float, until: float) -> float:
    """The longest time between neighbours of [since, times within, until]."""
    inside = sorted(at for at in times if since <= at <= until)
    return max((b - a for a, b in itertools.pairwise([since, *inside, until])), default=0.0)


def measured_moves(moves: Sequence[Move], book: Book) -> list[Move]:
    """Each move with its first write and its pause."""
    fresh = sorted((ack.at_ms, ack.epoch) for ack in book.acks if ack.fresh)
    times = [ack.at_ms for ack in book.acks if ack.first]
    done = []
    for move in moves:
        since = move.fault_ms if move.kind == "automatic" and move.fault_ms is not None else move.asked_ms
        since = move.seen_ms if since is None else since
        first = next((at for at, epoch in fresh if epoch >= move.epoch and at >= since), None)
        begin, end = max(book.began_ms, since - AROUND_MS), min(book.ended_ms, (move.seen_ms if first is None else first) + AROUND_MS)
        pause = longest_gap(times, begin, end) if end > begin else None
        detect = move.detect_ms
        if detect is None and move.asked_ms is None and move.fault_ms is not None and move.phases_ms:
            # Nobody here saw it begin: what the activation took lies before its first write, and before it was seen.
            serving = move.seen_ms if first is None else min(first, move.seen_ms)
            detect = max(0.0, serving - move.fault_ms - sum(move.phases_ms.values()))
        first_write = None if first is None else first - since
        done.append(msgspec.structs.replace(move, detect_ms=detect, first_write_ms=first_write, pause_ms=pause))
    return done


def by_deposed(book: Book, moves: Sequence[Move]) -> int:
    """Fresh acknowledgements by an epoch that had been deposed, as everybody could know, before the event was sent."""
    steps = sorted((move.seen_ms, move.epoch) for move in moves)
    count = 0
    for ack in book.acks:
        newest = max((epoch for seen, epoch in steps if seen <= ack.sent_ms), default=0)
        count += ack.fresh and ack.epoch < newest
    return count


def writes(book: Book, moves: Sequence[Move], regions: Sequence[str]) -> Writes:
    """What became of the events. An acknowledged one that was not confirmed at the end counts as lost."""
    events = book.sent.values()
    acknowledged = [event for event in events if event.acked_ms is not None]
    times = [ack.at_ms for ack in book.acks if ack.first]
    gaps = {
        region: longest_gap((ack.at_ms for ack in book.acks if ack.first and ack.region == region), book.began_ms, book.ended_ms)
        for region in regions
    }
    return Writes(
        sent=len(book.sent),
        acknowledged=len(acknowledged),
        lost=len(book.lost),
        salvaged=sum(event.doubted or event.moved for event in acknowledged),
        unresolved=len(book.unresolved()),
        duplicates=book.duplicates,
        refused=book.refused,
        held_back=book.held_back,
        counted_twice=sum(event.fresh > 1 for event in events),
        by_deposed=by_deposed(book, moves),
        pause_ms=longest_gap(times, book.began_ms, book.ended_ms),
        pause_by_region_ms=gaps,
        compared=book.compared,
        unequal=list(book.unequal[:20]),
        wrong=list(book.wrong[:20]),
    )


class Staleness:
    """How old a read was: since when an event that it does not show had been acknowledged."""

    def __init__(self, book: Book) -> None:
        acks = sorted((ack.offset, ack.at_ms) for ack in book.acks if ack.fresh)
        self._offsets = [offset for offset, _ in acks]
        #: The earliest acknowledgement at this offset or a later one.
        self._earliest = list(itertools.accumulate((at for _, at in reversed(acks)), min))[::-1]

    def of(self, look: Look) -> float:
        """0 for a read that showed everything that was acknowledged when it was asked."""
        at = bisect_right(self._offsets, look.boundary)
        asked_ms = look.at_ms - look.took_ms
        return max(0.0, asked_ms - self._earliest[at]) if at < len(self._offsets) else 0.0


def reads(book: Book, regions: Sequence[str]) -> list[Reads]:
    """All together first: a beat is answered if any region answered it."""
    stale = Staleness(book)
    table = [_reads(region, [look for look in book.looks if look.region == region], stale) for region in regions]
    best: dict[int, float] = {}
    beats = set()
    for look in book.looks:
        beats.add(look.beat)
        if look.generation >= 0:
            best[look.beat] = min(best.get(look.beat, float("inf")), stale.of(look))
    ages = list(best.values())
    together = Reads(
        region="", asked=len(beats), answered=len(best), stale_median_ms=median(ages) if ages else 0.0,
        stale_max_ms=max(ages, default=0.0), backwards=sum(row.backwards for row in table),
    )  # fmt: skip
    return [together, *table]


def _reads(region: str, looks: Sequence[Look], stale: Staleness) -> Reads:
    answered = [look for look in looks if look.generation >= 0]
    ages = [stale.of(look) for look in answered]
    backwards, newest = 0, [(-1.0, -1)]
    # A read that was answered before another was asked: only then is an older generation a step back.
    for look in sorted(answered, key=lambda look: look.at_ms):
        seen = max((number for at, number in newest if at <= look.at_ms - look.took_ms), default=-1)
        backwards += look.generation < seen
        if look.generation > newest[-1][1]:
            newest.append((look.at_ms, look.generation))
            newest = newest[-50:]
    return Reads(
        region=region, asked=len(looks), answered=len(answered), stale_median_ms=median(ages) if ages else 0.0,
        stale_max_ms=max(ages, default=0.0), backwards=backwards,
    )  # fmt: skip


def judge(
    wanted: Objectives, moves: Sequence[Move], wrote: Writes, read: Sequence[Reads], steps: Sequence[StepTold], *, proved: bool, local: bool
) -> list[Objective]:
    """Each objective with what was measured and whether it is met."""

    def of(kind: str) -> list[Move]:
        return [move for move in moves if move.kind == kind]

    def most(name: str, values: Sequence[float | None], limit: int | None) -> list[Objective]:
        if limit is None:
            return []
        # A move after which nothing was acknowledged has no figure, and cannot have met one.
        known = [float("inf") if value is None else value for value in values]
        worst = max(known, default=None)
        shown = None if worst in (None, float("inf")) else worst
        return [Objective(name=name, measured=shown, allowed=float(limit), unit="ms", met=worst is None or worst <= limit)]

    def none(name: str, count: int, unit: str = "", limit: int = 0) -> Objective:
        return Objective(name=name, measured=float(count), allowed=float(limit), unit=unit, met=count <= limit)

    share = read[0].percent
    forced_ms = wanted.forced_first_write_local_ms if local else wanted.forced_first_write_ms
    return [
        *most("write pause, planned handover", [move.pause_ms for move in of("planned")], wanted.planned_pause_ms),
        *most("command to first write, forced", [move.first_write_ms for move in of("forced")], forced_ms),
        *most("fault to first write, automatic", [move.first_write_ms for move in of("automatic")], wanted.automatic_first_write_ms),
        *most("write pause, whole drill", [wrote.pause_ms], wanted.write_pause_ms),
        *most("well again", [step.ended_ms - step.began_ms for step in steps if step.do == "settle"], wanted.settle_ms),
        Objective(
            name="reads answered by some region",
            measured=share,
            allowed=wanted.reads_percent,
            unit="%",
            met=share >= wanted.reads_percent and read[0].asked > 0,
        ),
        none("events lost", wrote.lost, "events", wanted.lost),
        none("events unresolved", wrote.unresolved, "events"),
        none("events counted twice", wrote.counted_twice, "events"),
        none("acknowledged by a deposed owner", wrote.by_deposed, "events"),
        none("reads that went backwards", read[0].backwards, "reads"),
        none("answers that none may get", len(wrote.wrong), "answers"),
        Objective(
            name="values unequal, in all regions",
            measured=float(len(wrote.unequal)) if proved else None,
            allowed=0.0,
            unit="values",
            met=proved and not wrote.unequal and wrote.compared > 0,
        ),
    ]


def timeline(
    book: Book, regions: Sequence[str], seen: Sequence[tuple[float, int, str]], moves: Sequence[Move], length_ms: float
) -> Timeline:
    """What the picture needs. `seen` are (time, epoch, serving region), as the watch saw them."""
    slice_ms = max(SLICE_MS, length_ms / SLICES)
    stale = Staleness(book)
    table: dict[str, list[Slice]] = {}
    for region in regions:
        parts: dict[int, list[Look]] = {}
        for look in book.looks:
            if look.region == region:
                parts.setdefault(int(look.at_ms // slice_ms), []).append(look)
        table[region] = [
            Slice(
                at_ms=part * slice_ms,
                answered=sum(look.generation >= 0 for look in looks),
                unanswered=sum(look.generation < 0 for look in looks),
                stale_ms=max((stale.of(look) for look in looks if look.generation >= 0), default=0.0),
            )
            for part, looks in sorted(parts.items())
        ]
    pauses = {region: _pauses(book, region) for region in ("", *regions)}
    return Timeline(length_ms=length_ms, slice_ms=slice_ms, reigns=_reigns(seen, moves), pauses=pauses, reads=table)


def _pauses(book: Book, region: str) -> list[tuple[float, float]]:
    times = sorted(ack.at_ms for ack in book.acks if ack.first and region in ("", ack.region))
    gaps = [(a, b) for a, b in itertools.pairwise([book.began_ms, *times, book.ended_ms]) if b - a >= SHOWN_MS]
    return sorted(gaps, key=lambda gap: gap[0] - gap[1])[:SHOWN]


def _reigns(seen: Sequence[tuple[float, int, str]], moves: Sequence[Move]) -> list[Reign]:
    """What was seen, which lags: a reign that is known to have begun or to have been ended by a move is drawn so."""
    spans: dict[tuple[int, str], tuple[float, float]] = {}
    for at, epoch, region in seen:
        first, _ = spans.get((epoch, region), (at, at))
        spans[epoch, region] = (first, at)
    reigns = []
    for (epoch, region), (first, last) in sorted(spans.items()):
        begin = min([first, *(move.seen_ms for move in moves if move.epoch == epoch)])
        ends = (move.seen_ms if move.asked_ms is None else move.asked_ms for move in moves if move.epoch > epoch)
        end = min([last, *ends])
        reigns.append(Reign(epoch=epoch, region=region, from_ms=min(begin, end), to_ms=end))
    return reigns
