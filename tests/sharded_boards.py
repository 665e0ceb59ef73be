"""Boards over several shards, written into journals by hand as their authorities would, and folded in any order."""

import random
from collections.abc import Callable, Sequence

from actors.boards_view import Turn
from actors.region_fold import RegionFold
from actors.steps import at_once
from boards import checksum
from boards.comparator import sort_key
from boards.model import BoardRules, Layout, Outcome, Row
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.ports import Position
from journal.records import (
    BoardCreated,
    BoardRemoved,
    Entry,
    Imported,
    Manifest,
    Mark,
    Marked,
    Published,
    Record,
    Relocating,
    Scored,
    SliceClosed,
    SliceOpened,
    Switched,
    seal_entry,
)

BOARD = "arena-clash:solo:S7:global"
SHARDS = ("eu-west/0", "eu-west/1", "eu-west/2", "eu-west/3")
RULES = make_rules("best_score", ranking="competition", secondary="lower", retention_ms=120_000)
MASK = 2**64 - 1
#: (proposal's number, boundaries, rows in display order)
Made = tuple[int, dict[str, Position], list[tuple[str, int, int, int]]]


class Journals:
    """Journals of some shards, written by hand; `epochs` are those that entries get from now on."""

    def __init__(self, shards: Sequence[str] = SHARDS) -> None:
        self.entries: dict[str, list[Entry]] = {shard: [] for shard in shards}
        self.epochs = dict.fromkeys(shards, 1)
        #: The shards in the order in which they were written to.
        self.order: list[str] = []

    def write(self, shard: str, *records: Record) -> Position:
        offset = len(self.entries[shard]) + 1
        self.order.append(shard)
        self.entries[shard].append(seal_entry(self.epochs[shard], offset, f"b{offset}", records))
        return Position(self.epochs[shard], offset)

    def swap(self, shard: str, offset: int, *records: Record) -> None:
        """Another entry in the place of one."""
        self.entries[shard][offset - 1] = seal_entry(self.entries[shard][offset - 1].epoch, offset, "other", records)


class Slice:
    """One slice as its authority has it."""

    def __init__(self, journals: Journals, shard: str, number: int) -> None:
        self.journals, self.shard, self.number = journals, shard, number
        self.rows: dict[str, Row] = {}
        self.mark: Mark | None = None
        self.named = 0
        self.changed = True

    @property
    def checksum(self) -> int:
        return sum(checksum.row_hash(player, row) for player, row in self.rows.items()) & MASK

    def put(self, player: str, row: Row) -> Position:
        self.rows[player], self.changed = row, True
        return self.journals.write(
            self.shard, Scored(self.number, player, f"e{row.version}", b"f", Outcome.APPLIED, 0, 0, row, 0, 0, 0, 0, "game-1")
        )

    def marked(self, generation: int, at_ms: int = 0) -> Mark:
        if self.changed or self.mark is None:
            count = sum(row.status == 0 for row in self.rows.values())
            record = Marked(self.number, generation, 1, self.named, at_ms, self.checksum, count)
            at = self.journals.write(self.shard, record)
            self.mark, self.changed = Mark(at.epoch, at.offset, self.checksum, count), False
        return self.mark


class Board:
    """A board over several shards as its authorities have it; `shown` is what each generation must be."""

    def __init__(
        self, journals: Journals, shards: Sequence[str] = SHARDS, *, rules: BoardRules = RULES, life: str = "inc1", number: int = 1
    ) -> None:
        self.journals, self.rules, self.life, self.generation = journals, rules, life, 0
        self.layout = Layout(1, tuple(shards))
        self.slices = self._create(number, importing=False)
        self.shown: dict[int, list[tuple[str, int, int, int]]] = {0: []}

    def _create(self, number: int, *, importing: bool) -> list[Slice]:
        for index, shard in enumerate(self.layout.shards):
            created = BoardCreated(number, BOARD, self.rules, self.life, "op", 5, self.layout, index, importing)
            self.journals.write(shard, created)
        return [Slice(self.journals, shard, number) for shard in self.layout.shards]

    def put(self, player: str, value: int, second: int = 0, tie_ms: int = 0, status: int = 0) -> Position:
        one = self.slices[slice_of(player, len(self.slices))]
        version = one.rows[player].version + 1 if player in one.rows else 1
        return one.put(player, Row(value, tie_ms, tie_ms, 0, 0, version, f"e{version}", status, second))

    def manifest(self, at_ms: int = 0) -> Manifest:
        """The next one, with the marks that it names; not written yet."""
        self.generation += 1
        marks = tuple(one.marked(self.generation, at_ms) for one in self.slices)
        for one, mark in zip(self.slices, marks, strict=True):
            one.named = mark.offset
        total = sum(mark.checksum for mark in marks) & MASK
        count = sum(mark.count for mark in marks)
        return Manifest(self.slices[0].number, self.generation, at_ms, self.layout.number, marks, total, count)

    def publish(self, at_ms: int = 0) -> Position:
        manifest = self.manifest(at_ms)
        self.shown[self.generation] = self.standing()
        return self.journals.write(self.layout.lead, manifest)

    def standing(self) -> list[tuple[str, int, int, int]]:
        """An offline sort of all active rows by the comparator."""
        rows = [(p, row) for one in self.slices for p, row in one.rows.items() if row.status == 0]
        return [(p, row.value, row.second, row.version) for p, row in sorted(rows, key=sort_key(self.rules))]

    def move(self, shards: Sequence[str], number: int, *, between: Callable[[], None] = lambda: None) -> None:
        """To another layout: copy, close, switch, open; `between` comes after the copy and before the close."""
        old, lead = self.slices, self.slices[0]
        layout = Layout(self.layout.number + 1, tuple(shards))
        self.journals.write(lead.shard, Relocating(lead.number, layout, "op", 0))
        former, self.layout = self.layout, layout
        new = self._create(number, importing=True)

        def copy() -> None:
            for source, one in enumerate(old):
                for target, other in enumerate(new):
                    rows = [(p, row) for p, row in one.rows.items() if slice_of(p, len(new)) == target]
                    self.journals.write(other.shard, Imported(number, source, rows, [], None, 0))
                    other.rows.update(rows)

        copy()
        self.layout = former
        between()
        for one in old:
            self.journals.write(one.shard, SliceClosed(one.number, layout.number, 1, 0))
        self.publish()
        copy()
        self.layout, self.slices = layout, new
        self.journals.write(lead.shard, Switched(lead.number, layout, self.generation, 0))
        for other in new:
            self.journals.write(other.shard, SliceOpened(number, self.generation, 1, 0))
        self.publish()
        for one in reversed(old):
            self.journals.write(one.shard, BoardRemoved(one.number, "op", 0))


class OneSlice(Board):
    """A board of one slice: `Published` makes its generations."""

    def __init__(self, journals: Journals, shard: str = SHARDS[0], *, rules: BoardRules = RULES, life: str = "inc1") -> None:
        super().__init__(journals, (shard,), rules=rules, life=life)

    def publish(self, at_ms: int = 0) -> Position:
        if len(self.slices) > 1:
            return super().publish(at_ms)
        (one,) = self.slices
        self.generation += 1
        self.shown[self.generation] = self.standing()
        one.changed = False
        count = sum(row.status == 0 for row in one.rows.values())
        return self.journals.write(one.shard, Published(one.number, self.generation, at_ms, one.checksum, count))


def played(seed: int, board: Board, steps: int = 60) -> None:
    """Writes with ties at every level, rounds that no manifest came of, players that leave and come back, restarts."""
    draw = random.Random(seed)
    for _ in range(steps):
        match draw.randrange(8):
            case 0:
                board.publish()
            case 1:
                draw.choice(board.slices).marked(board.generation + 1)
            case 2:
                board.journals.epochs[draw.choice(board.layout.shards)] += 1
            case _:
                status = int(draw.random() < 0.1)
                board.put(f"p{draw.randrange(25)}", draw.randrange(4), draw.randrange(3), draw.randrange(2), status)
    board.publish()


def folded(
    journals: Journals, draw: random.Random, *, until: dict[str, int] | None = None, wall_ms: int = 0, fold: RegionFold | None = None
) -> RegionFold:
    """Journals read shard by shard in pieces, in an order drawn by chance, each followed to its end."""
    region = fold or RegionFold(dict.fromkeys(journals.entries, "eu-west"))
    ends = {shard: (until or {}).get(shard, len(entries)) for shard, entries in journals.entries.items()}
    left = [shard for shard, end in ends.items() if region.shards[shard].applied.offset < end]
    while left:
        shard = draw.choice(left)
        at, end = region.shards[shard].applied.offset, ends[shard]
        entries = journals.entries[shard][at : min(end, at + draw.choice((1, 2, 5, 64)))]
        region.apply(shard, entries, committed=end, now_ms=0, wall_ms=wall_ms)
        if region.shards[shard].applied.offset == end:
            region.caught_up(shard, now_ms=0, wall_ms=wall_ms)
            left.remove(shard)
    return region


def followed(journals: Journals, draw: random.Random) -> RegionFold:
    """Journals read as they are written, one shard now and then behind the others."""
    region = RegionFold(dict.fromkeys(journals.entries, "eu-west"))
    for shard in region.shards:
        region.caught_up(shard, now_ms=0, wall_ms=0)
    written = dict.fromkeys(region.shards, 0)
    for shard in journals.order:
        written[shard] += 1
        if draw.random() < 0.7:
            behind = draw.choice(list(written))
            at = region.shards[behind].applied.offset
            region.apply(behind, journals.entries[behind][at : written[behind]], committed=written[behind], now_ms=0, wall_ms=10**12)
    return folded(journals, draw, fold=region)


def made(region: RegionFold) -> list[Made]:
    series = region.boards[BOARD]
    return [
        (
            number,
            generation.boundaries,
            [(p.player_id, p.value, p.second, p.version) for p in generation.view.after(None, 1000)],
        )
        for number, generation in series.generations.items()
    ]


def alarms(region: RegionFold) -> list[str]:
    return [fold.alarm for fold in region.shards.values() if fold.alarm]


def mend(region: RegionFold, journals: Journals) -> None:
    """Fold broken slices anew, once."""
    for shard, fold in region.shards.items():
        mending = region.mending(shard)
        if mending is not None:
            at_once(mending.feeding(journals.entries[shard][mending.applied : fold.applied.offset], Turn(0, 0, live=False)))
            region.mended(shard, mending, now_ms=0, wall_ms=0)
