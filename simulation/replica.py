"""A region's read replica: folds its stores' committed entries with the real folds, and shows the generations that they make.

It follows the shards of all worlds of a timeline, each as far as its own store is. Every generation that it makes, and every
one that is read later, is compared over the whole run by (board incarnation, lineage of its lead, number): I11.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from actors.boards_view import ReplicaMismatch
from actors.generations_view import BoardSeries, Generation
from actors.region_fold import RegionFold
from simulation.watch import Violation

if TYPE_CHECKING:
    from simulation.region import Region
    from simulation.world import World

#: What a reader sees of one player.
SeenRow = tuple[str, int, int]


class Shown(NamedTuple):
    """What a reader can see of a generation; `shard`, `epoch` and `offset` are where its record is."""

    shard: str
    epoch: int
    offset: int
    checksum: int
    published_ms: int
    layout: int
    #: (shard, epoch, offset) of each slice's mark.
    boundaries: tuple[tuple[str, int, int], ...]
    #: (player, value, version) in display order.
    rows: tuple[SeenRow, ...]


def shown(generation: Generation, shard: str) -> Shown:
    """See `Shown`."""
    proposal = generation.proposal
    return Shown(
        shard,
        proposal.at.epoch,
        proposal.at.offset,
        generation.checksum,
        generation.published_ms,
        proposal.layout,
        tuple((shard, *place) for shard, place in generation.boundaries.items()),
        tuple((p.player_id, p.value, p.version) for p in generation.view.page(0, 1000)),
    )


@dataclass(slots=True)
class Part:
    """One shard that is followed here."""

    world: "World"
    region: "Region"


class Replica:
    """See the module docstring."""

    def __init__(self, world: "World", name: str) -> None:
        #: The world of the first shard, whose clock and chance it shares with all others.
        self.world, self.name = world, name
        self.parts: dict[str, Part] = {}
        self.rebuilds = 0
        #: Incarnation -> newest generation that was made and compared.
        self._compared: dict[str, int] = {}

    def reads(self, world: "World", region: "Region") -> None:
        """Follow one shard more."""
        self.parts[world.shard] = Part(world, region)
        self.restart()

    def applied(self, shard: str) -> int:
        """Offset up to which that shard is folded."""
        return self.fold.shards[shard].applied.offset

    def restart(self) -> None:
        """Everything is in memory only."""
        self.fold = RegionFold(dict.fromkeys(self.parts, self.world.names[0]))
        self._compared = {}
        self.rebuilds += 1

    def follow(self) -> None:
        """Fold what is new in the own stores."""
        several = len(self.parts) > 1
        told: set[str] = set()
        for shard, part in self.parts.items():
            if several and not self.world.quiet and self.world.random.random() < 0.2:
                continue  # its entries come to be read later than those of the others
            told |= self._follow(shard, part)
        for shard, fold in self.fold.shards.items():
            if fold.alarm and not fold.stopped:
                raise Violation("I8", f"the replica of {self.name}, {shard}: {fold.alarm}")
        for board_id in self.fold.boards:
            if board_id in told:
                self._compare_new(self.fold.boards[board_id])

    def _follow(self, shard: str, part: Part) -> set[str]:
        store = part.region.store
        if not store.up or store.stalled:
            return set()
        log, fold = store.log, self.fold.shards[shard]
        upto = log.tail.offset if part.world.switches.freeze_uncommitted else log.committed
        if upto < fold.applied.offset:
            self.fold.restart(shard, "the journal was begun anew")
            self.rebuilds += 1
        now_ms, wall_ms = self.world.now, 1_000_000 + self.world.now
        entries = log.entries[fold.applied.offset : upto]
        told: set[str] = set()
        if entries:
            try:
                told = self.fold.apply(shard, entries, committed=upto, now_ms=now_ms, wall_ms=wall_ms)
            except ReplicaMismatch as error:
                raise Violation("I8", f"the replica of {self.name}, {shard}: {error}") from error
            part.region.gateway.learn(*fold.owner)
        if upto and (not fold.serving or fold.stopped):
            told |= self.fold.caught_up(shard, now_ms=now_ms, wall_ms=wall_ms)
        return told

    def _compare_new(self, series: BoardSeries) -> None:
        before = self._compared.get(series.incarnation, 0)
        for number, generation in series.generations.items():
            if number > before:
                self._compare(series, generation)
        if series.newest is not None:
            self._compared[series.incarnation] = series.newest.number

    def _compare(self, series: BoardSeries, generation: Generation) -> None:
        lead = next(iter(generation.boundaries))
        place = (series.incarnation, self.fold.shards[lead].lineage, generation.number)
        now = shown(generation, lead)
        known = self.world.timeline.generations.setdefault(place, now)
        if known != now:
            raise Violation("I11", f"{series.board_id} s{generation.number} was {known} and is {now} in {self.name}")

    def read(self) -> None:
        """Somebody reads a retained generation of some board here."""
        random = self.world.random
        boards = sorted(self.fold.boards)
        if not boards:
            return
        series = self.fold.boards[random.choice(boards)]
        newest = series.newest
        self.world.reads += 1
        if newest is not None and not self.fold.unready(series):
            generation = series.generations.get(random.randint(max(0, newest.number - 3), newest.number))
            if generation is not None and generation.number:
                self._compare(series, generation)
