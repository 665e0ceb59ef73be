"""What must hold of a board that is spread over shards, once the faults have stopped: I11 over all its journals, and moves.

Everything is told again from the logs alone (`simulation.model`); only the sums of checksums are the product's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boards.slicing import slice_of
from journal.records import Manifest, Scored
from simulation import checks
from simulation.fleet import BOARD
from simulation.model import MarkTold, SliceTold, Told, fold_events
from simulation.replica import SeenRow
from simulation.watch import Violation

if TYPE_CHECKING:
    from simulation.client import Sent
    from simulation.fleet import Fleet

_WALL_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """A generation as the logs have it."""

    number: int
    shard: str
    epoch: int
    offset: int
    layout: int
    published_ms: int
    marks: tuple[MarkTold, ...]
    rows: tuple[SeenRow, ...]


def deal_out(fleet: "Fleet") -> None:
    """Give every event to the shard that answered for it."""
    of_world = [sent for world in fleet.worlds.values() for sent in world.sent if sent not in fleet.sent]
    for world in fleet.worlds.values():
        world.sent = []
    for sent in [*fleet.sent, *of_world]:
        shard = sent.result.shard if sent.result is not None else next(iter(fleet.worlds))
        fleet.worlds[shard].sent.append(sent)


def at_end(fleet: "Fleet") -> list[Made]:
    """Everything, once there is agreement; the generations of the board that is spread, oldest first."""
    tolds = {shard: checks.at_end(world) for shard, world in fleet.worlds.items()}
    once(tolds)
    made = generations(tolds)
    _check_shown(fleet, made)
    _check_told(fleet, tolds, made)
    _check_newest(fleet, tolds, made)
    return made


def once(tolds: dict[str, Told]) -> None:
    """I4 over all shards: no event is decided by two."""
    by: dict[tuple[str, str, str], str] = {}
    for shard, told in tolds.items():
        for identity in told.events:
            other = by.setdefault(identity, shard)
            if other != shard:
                raise Violation("I4", f"{identity} was applied in {other} and in {shard}")


def slices(tolds: dict[str, Told]) -> dict[int, dict[int, tuple[str, SliceTold]]]:
    """Layout number -> slice -> (shard, what its log says), of the board that is spread."""
    found: dict[int, dict[int, tuple[str, SliceTold]]] = {}
    for shard, told in tolds.items():
        for one in told.slices.values():
            if one.created.board_id == BOARD:
                found.setdefault(one.layout_number, {})[one.created.slice] = (shard, one)
    return found


def generations(tolds: dict[str, Told]) -> list[Made]:
    """All generations, oldest first. Raises `Violation` I11 for a manifest that is not of one committed mark a slice."""
    layouts = slices(tolds)
    made: list[Made] = []
    for number in sorted(layouts):
        here = layouts[number]
        if 0 not in here:
            continue
        shard, lead = here[0]
        for manifest, epoch, offset in lead.manifests:
            marks = _named(manifest, here, lead)
            made.append(_of(shard, epoch, offset, number, manifest.generation, manifest.published_ms, marks))
        for record, epoch, offset in lead.published:
            made.append(_of(shard, epoch, offset, number, record.generation, record.published_ms, (lead.marks[offset],)))
        _check_marks(here, lead)
    for before, after in zip([0, *(m.number for m in made)], made, strict=False):
        if after.number != before + 1:
            raise Violation("I11", f"s{after.number} of layout {after.layout} follows s{before}")
    _check_rows(layouts, made)
    return made


def _named(manifest: Manifest, here: dict[int, tuple[str, SliceTold]], lead: SliceTold) -> tuple[MarkTold, ...]:
    """The marks that a manifest names, one for each slice of its layout."""
    shards = lead.shards
    name = f"manifest {manifest.generation}"
    if manifest.layout != lead.layout_number or len(manifest.marks) != len(shards):
        raise Violation("I11", f"{name} has {len(manifest.marks)} marks of layout {manifest.layout}, there are {len(shards)} slices")
    found = []
    for number, mark in enumerate(manifest.marks):
        shard, one = here.get(number, ("nowhere", None))
        told = one.marks.get(mark.offset) if one is not None else None
        if one is None or told is None or (told.epoch, told.checksum, len(told.rows)) != (mark.epoch, mark.checksum, mark.count):
            raise Violation("I11", f"{name} names {mark} in slice {number} ({shard}), where there is {told}")
        found.append(told)
    sums = sum(mark.checksum for mark in found) % 2**64, sum(len(mark.rows) for mark in found)
    if (manifest.checksum, manifest.count) != sums:
        raise Violation("I11", f"{name} says {(manifest.checksum, manifest.count)}, its marks sum up to {sums}")
    return tuple(found)


def _of(shard: str, epoch: int, offset: int, layout: int, number: int, published_ms: int, marks: tuple[MarkTold, ...]) -> Made:
    order: dict[str, tuple[int, int, str]] = {}
    rows: dict[str, tuple[int, int]] = {}
    for mark in marks:
        if twice := rows.keys() & mark.rows.keys():
            raise Violation("slices", f"{sorted(twice)} are in two slices of s{number}")
        rows |= mark.rows
        order |= mark.order
    seen = tuple((player, *rows[player]) for player in sorted(rows, key=lambda player: order[player]))
    return Made(number, shard, epoch, offset, layout, published_ms, marks, seen)


def _check_marks(here: dict[int, tuple[str, SliceTold]], lead: SliceTold) -> None:
    """Marks that manifests name go forward, and what a mark keeps is never older than what was named before it."""
    for number, (shard, one) in here.items():
        named = [manifest.marks[number].offset for manifest, _, _ in lead.manifests]
        if named != sorted(named):
            raise Violation("I11", f"manifests go back in slice {number} of {shard}: {named}")
        known = {0, *named}
        for mark in one.marks.values():
            if mark.keeps not in known:
                raise Violation("keeps", f"the mark at {mark.offset} in {shard} keeps {mark.keeps}, which no manifest names")


def _check_rows(layouts: dict[int, dict[int, tuple[str, SliceTold]]], made: Iterable[Made]) -> None:
    """The rows of each generation are those of all events that were decided in earlier layouts, and in its own up to its marks."""
    for one in made:
        events: list[Scored] = []
        for number in sorted(layouts):
            if number > one.layout:
                break
            for slice_, (_, told) in sorted(layouts[number].items()):
                upto = one.marks[slice_].offset if number == one.layout else None
                events += [event for offset, event in told.scored if upto is None or offset <= upto]
        lead = layouts[one.layout][0][1]
        due = fold_events(lead.created, events)
        if due != one.rows:
            raise Violation("I8", f"s{one.number} has {one.rows}, the events up to its boundary make {due}")


def _check_shown(fleet: "Fleet", made: list[Made]) -> None:
    """Whatever any region ever showed is a generation of the logs: its boundary, its rows, its time."""
    by = {one.number: one for one in made}
    incarnations = {series.incarnation for name in fleet.names if (series := fleet.series(name)) is not None}
    for (incarnation, _, number), shown in fleet.timeline.generations.items():
        if incarnation not in incarnations:
            continue
        one = by.get(number)
        if one is None:
            raise Violation("I11", f"s{number} was shown, and no log makes it: {shown}")
        boundary = tuple((mark.epoch, mark.offset) for mark in one.marks)
        if (one.shard, one.epoch, one.offset, one.published_ms, one.layout, boundary, one.rows) != (
            shown.shard,
            shown.epoch,
            shown.offset,
            shown.published_ms,
            shown.layout,
            tuple((epoch, offset) for _, epoch, offset in shown.boundaries),
            shown.rows,
        ):
            raise Violation("I11", f"s{number} was shown as {shown}, the logs make it {one}")


def _check_told(fleet: "Fleet", tolds: dict[str, Told], made: list[Made]) -> None:
    """Whatever was acknowledged before a generation's time, and changed a row, is in it."""
    place: dict[tuple[str, str], tuple[int, int, int]] = {}
    for number, here in slices(tolds).items():
        for slice_, (_, told) in here.items():
            for offset, event in told.scored:
                if event.row is not None:
                    place[event.player_id, event.event_id] = (number, slice_, offset)
    acknowledged: list[tuple[int, Sent]] = [
        (at, sent) for at, sent in fleet.timeline.told if sent.board == BOARD and sent.result is not None and not sent.result.alone
    ]
    for one in made:
        for at, sent in acknowledged:
            if at >= one.published_ms - _WALL_MS or (sent.player, sent.event_id) not in place:
                continue
            layout, slice_, offset = place[sent.player, sent.event_id]
            if layout > one.layout or (layout == one.layout and offset > one.marks[slice_].offset):
                raise Violation(
                    "published", f"{sent} was acknowledged at {at}, and is not in s{one.number} of {one.published_ms - _WALL_MS}"
                )


def _check_newest(fleet: "Fleet", tolds: dict[str, Told], made: list[Made]) -> None:
    """After the faults every region shows the newest generation, and it has everything."""
    if not made:
        raise Violation("I10", "no generation was ever made")
    newest = made[-1]
    here = slices(tolds)[newest.layout]
    for slice_, (shard, told) in here.items():
        if {p: (row.value, row.version) for p, row in told.rows.items()} != newest.marks[slice_].rows:
            raise Violation("I10", f"s{newest.number} is the newest, and {shard} has gone on since")
    for name in fleet.names:
        series = fleet.series(name)
        if series is None or series.newest is None or series.newest.number != newest.number:
            shown = None if series is None or series.newest is None else series.newest.number
            raise Violation("I10", f"{name} shows s{shown}, s{newest.number} is published")
    for player, _, _ in newest.rows:
        if player not in newest.marks[slice_of(player, len(newest.marks))].rows:
            raise Violation("slices", f"{player} is in another slice of s{newest.number} than its id says")
