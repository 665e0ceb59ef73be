"""A region's read replica: folds its store's committed entries with the real `BoardFold`, and shows what it froze.

Every frozen generation, and every generation read later, is compared over the whole run by (board incarnation, lineage,
generation): I11.
"""

from typing import TYPE_CHECKING

from actors.boards_view import BoardFold, Generation, ReplicaMismatch
from journal.records import BoardCreated, Entry, EpochStarted, Published, Scored, open_entry
from simulation.watch import Violation

if TYPE_CHECKING:
    from simulation.region import Region
    from simulation.world import World

#: (epoch, boundary, checksum, ((player, value, version), ...) in display order).
Shown = tuple[int, int, int, tuple[tuple[str, int, int], ...]]


def shown(generation: Generation) -> Shown:
    """What a reader can see of a generation."""
    rows = tuple((p.player_id, p.value, p.version) for p in generation.view.page(0, 1000))
    return generation.epoch, generation.boundary, generation.checksum, rows


class Replica:
    """See the module docstring."""

    def __init__(self, world: "World", region: "Region") -> None:
        self.world, self.region = world, region
        self.applied = 0
        self.boards: dict[int, BoardFold] = {}
        self.lineage = ""
        self.rebuilds = 0
        self._opened: dict[str, list[object]] = {}

    def restart(self) -> None:
        """Everything is in memory only."""
        self.applied, self.boards, self.lineage = 0, {}, ""
        self.rebuilds += 1

    def follow(self) -> None:
        """Fold what is new in the own store."""
        store = self.region.store
        if not store.up or store.stalled:
            return
        log = store.log
        upto = log.tail.offset if self.world.switches.freeze_uncommitted else log.committed
        if upto < self.applied:
            self.restart()
        for entry in log.entries[self.applied : upto]:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        try:
            for record in open_entry(entry):
                if type(record) is Scored:
                    self.boards[record.board].apply(record)
                elif type(record) is Published:
                    board = self.boards[record.board]
                    board.freeze(record, epoch=entry.epoch, offset=entry.offset, now_ms=self.world.now)
                    self._compare(board, board.newest)
                elif type(record) is BoardCreated:
                    self.boards[record.number] = BoardFold.begin(record, self.world.shard, self.world.names[0], entry.epoch, entry.offset)
                elif type(record) is EpochStarted:
                    self.lineage = record.lineage
                    self.region.gateway.learn(record.epoch, record.owner)
        except ReplicaMismatch as error:
            raise Violation("I8", f"the replica of {self.region.name}: {error}") from error
        self.applied = entry.offset

    def _compare(self, board: BoardFold, generation: Generation) -> None:
        place = (board.info.incarnation, self.lineage, generation.number)
        now = shown(generation)
        known = self.world.generations.setdefault(place, now)
        if known != now:
            raise Violation("I11", f"{board.info.board_id} s{generation.number} was {known} and is {now} in {self.region.name}")

    def read(self) -> None:
        """Somebody reads a retained generation of some board here."""
        if not self.boards:
            return
        random = self.world.random
        board = self.boards[random.choice(list(self.boards))]
        newest = board.newest.number
        generation = board.generation(random.randint(max(0, newest - 3), newest))
        self.world.reads += 1
        if generation is not None and generation.number:
            self._compare(board, generation)
