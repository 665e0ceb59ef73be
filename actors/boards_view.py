"""Boards as a read replica holds them: rows as folded so far, and the generations that are retained.

Every published generation is frozen from committed entries only, up to and including its publish record,
and checked against the record's checksum and count before anybody can read it (I8, I11).
"""

from collections import deque
from dataclasses import dataclass, field, replace

from actors.messages import BoardInfo
from boards import checksum
from boards.index import Change, RankIndex, View
from boards.model import Row, Status
from journal.records import BoardCreated, Published, Scored

#: A plain int: comparing with a member of an IntEnum costs more than all the rest of a row's turn.
_ACTIVE = int(Status.ACTIVE)


class ReplicaMismatch(Exception):
    """This replica's fold differs from what the authority published, or one version has two rows. Stop and rebuild."""

    code = "replica_mismatch"
    definite = True


@dataclass(frozen=True, slots=True)
class Generation:
    """One published view. `boundary` is the offset of its publish record in the shard's journal."""

    number: int
    epoch: int
    boundary: int
    published_ms: int
    checksum: int
    count: int
    view: View
    #: Replica clock, monotonic: when the next generation replaced it (None while it is the newest).
    replaced_ms: int | None = None


@dataclass(slots=True)
class BoardFold:
    """One board of one shard in this region."""

    info: BoardInfo
    created: BoardCreated
    index: RankIndex
    rows: dict[str, Row] = field(default_factory=dict)
    checksum: int = 0
    #: Players whose row changed since the last freeze.
    changed: set[str] = field(default_factory=set)
    #: Retained generations, oldest first; the newest is last. `s0` is the empty board.
    generations: deque[Generation] = field(default_factory=deque)

    @staticmethod
    def begin(created: BoardCreated, shard: str, home: str, epoch: int, offset: int) -> "BoardFold":
        """The empty board: generation 0, whose boundary is the entry that created it."""
        rules = created.rules
        info = BoardInfo(
            board_id=created.board_id,
            number=created.number,
            incarnation=created.incarnation,
            shard=shard,
            home=home,
            rules=rules,
            created_ms=created.at_ms,
        )
        index = RankIndex(direction=rules.direction, ranking=rules.ranking)
        fold = BoardFold(info, created, index)
        fold.generations.append(Generation(0, epoch, offset, created.at_ms, 0, 0, index.view))
        return fold

    def apply(self, record: Scored) -> None:
        """Take one decided event. Lower versions are ignored, an equal version must carry the same row."""
        row = record.row
        if row is None:
            return
        player = record.player_id
        old = self.rows.get(player)
        if old is not None:
            if row.version < old.version:
                return
            if row.version == old.version:
                if row != old:
                    raise ReplicaMismatch(f"{self.info.board_id}: version {row.version} of {player} has two rows")
                return
            self.checksum = checksum.remove(self.checksum, checksum.row_hash(player, old))
        self.checksum = checksum.add(self.checksum, checksum.row_hash(player, row))
        self.rows[player] = row
        self.changed.add(player)

    def freeze(self, record: Published, *, epoch: int, offset: int, now_ms: int) -> Generation:
        """Publish: freeze the index at this record. Raises `ReplicaMismatch` if the fold is not what the authority has."""
        changes: list[Change] = []
        removed: list[str] = []
        for player in self.changed:
            row = self.rows[player]
            if row.status == _ACTIVE:
                changes.append(Change(player, row.value, row.tie_ms, row.achieved_ms, row.version))
            else:
                removed.append(player)
        view = self.index.freeze(changes, removed)
        self.changed.clear()
        if (record.checksum, record.count) != (self.checksum, view.total):
            raise ReplicaMismatch(
                f"{self.info.board_id} s{record.generation}: folded {view.total} rows, checksum {self.checksum:016x}; "
                f"published {record.count} rows, checksum {record.checksum:016x}"
            )
        last = self.generations.pop()
        generation = Generation(record.generation, epoch, offset, record.published_ms, self.checksum, view.total, view)
        self.generations.append(replace(last, replaced_ms=now_ms))
        self.generations.append(generation)
        self.expire(now_ms)
        return generation

    def expire(self, now_ms: int) -> None:
        """Drop generations that were replaced longer ago than the board retains them."""
        keep_from = now_ms - self.info.rules.retention_ms
        while len(self.generations) > 1:
            replaced = self.generations[0].replaced_ms
            if replaced is None or replaced >= keep_from:
                break
            self.generations.popleft()

    @property
    def newest(self) -> Generation:
        """The newest generation."""
        return self.generations[-1]

    def generation(self, number: int) -> Generation | None:
        """A retained generation by its number, or None. Cost: O(1), numbers are contiguous."""
        index = number - self.generations[0].number
        return self.generations[index] if 0 <= index < len(self.generations) else None
