"""A slow sort of one generation, to compare fast answers with: every row read page by page, then sorted by the board's comparator.

What a generation must hold is told a second time by what the clients sent and where each event landed: the best value
of each player up to the boundaries. So a lost or a doubled event, or a mix of two generations, cannot agree with both.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from benchmarks.paced_http import FILL_BATCH, Place, Sent, filled_values
from benchmarks.peer_redis import player
from boards.checksum import EMPTY, add, row_hash
from boards.comparator import sort_key
from boards.model import BoardRules, Row
from boards.times import parse_time

PAGE = 1000


class Differs(Exception):
    """An answer is not what the offline sort says: the figures of this run are worth nothing."""


class _Entry(msgspec.Struct):
    position: int
    rank: int
    player_id: str
    value: str
    achieved_at: str
    version: int


class _Page(msgspec.Struct):
    generation: str
    boundaries: dict[str, str]
    checksum: str
    total: int
    complete: bool
    exact: bool
    entries: list[_Entry]
    next: str | None = None


class _Ranks(msgspec.Struct):
    generation: str
    entries: list[_Entry]


_page = msgspec.json.Decoder(_Page).decode
_ranks = msgspec.json.Decoder(_Ranks).decode


class Sorted:
    """One generation, sorted here. `rules` must break ties by `achieved_at`, and have no decimals and no second column."""

    def __init__(self, rules: BoardRules) -> None:
        assert rules.ties == "achieved_at" and not rules.decimals and rules.secondary is None
        self.rules = rules
        self.generation = ""
        self.boundaries: dict[str, tuple[int, int]] = {}
        self.rows: dict[str, Row] = {}
        self.places: dict[str, tuple[int, int]] = {}

    def read(self, get: Callable[[str], bytes], board: str, generation: str) -> None:
        """Page through a generation with cursors, and compare order, places, count and checksum with the sort.

        `get` answers a path with a body. Raises `Differs`.
        """
        head: tuple[object, ...] | None = None
        shown: list[tuple[str, int, int]] = []
        query = f"limit={PAGE}&generation={generation}"
        while True:
            page = _page(get(f"/v1/boards/{board}/top?{query}"))
            named = (page.generation, page.boundaries, page.checksum, page.total)
            if head is None:
                head = named
            if named != head or page.generation != generation or not (page.complete and page.exact):
                raise Differs(f"a page of {generation} names {named}, another one {head}")
            for entry in page.entries:
                moment = parse_time(entry.achieved_at, "achieved_at")
                self.rows[entry.player_id] = Row(int(entry.value), moment, moment, 0, 0, entry.version, "")
                shown.append((entry.player_id, entry.position, entry.rank))
            if page.next is None:
                break
            query = f"limit={PAGE}&cursor={page.next}"
        self.generation = generation
        self.boundaries = {shard: _position(text) for shard, text in page.boundaries.items()}
        self._sort()
        if [name for name, _, _ in shown] != list(self.places):
            raise Differs(f"the pages of {generation} are not in the order of the offline sort, or overlap")
        for name, *place in shown:
            if tuple(place) != self.places[name]:
                raise Differs(f"{name} is shown at {place} in {generation}, the offline sort says {self.places[name]}")
        checksum = EMPTY
        for name, row in self.rows.items():
            checksum = add(checksum, row_hash(name, row))
        if (f"{checksum:016x}", len(self.rows)) != (page.checksum, page.total):
            raise Differs(f"{generation} holds {len(self.rows)} rows of checksum {checksum:016x}, and says {page.total} of {page.checksum}")

    def _sort(self) -> None:
        ordered = sorted(self.rows.items(), key=sort_key(self.rules))
        values = [-row.value if self.rules.direction == "higher" else row.value for _, row in ordered]
        unique = self.rules.ranking == "unique"
        for position, (name, _) in enumerate(ordered):
            self.places[name] = (position + 1, position + 1 if unique else bisect_left(values, values[position]) + 1)

    def compare(self, places: Iterable[Place]) -> int:
        """How many of these are of this generation; all of those are as sorted here. Raises `Differs`."""
        count = 0
        for place in places:
            if place.generation != self.generation:
                continue
            row = self.rows.get(place.player_id)
            if row is None or (place.position, place.rank) != self.places[place.player_id] or place.value != str(row.value):
                raise Differs(f"{place}, but the offline sort says {self.places.get(place.player_id)} with {row and row.value}")
            count += 1
        return count

    def compare_list(self, body: bytes, listed: Sequence[str]) -> int:
        """The same for the places of many players in one answer, in the order of their positions. Raises `Differs`."""
        page = _ranks(body)
        wanted = sorted(listed, key=self.places.__getitem__)
        if page.generation != self.generation or [entry.player_id for entry in page.entries] != wanted:
            raise Differs(f"a list of {len(listed)} players is not answered in the order of {self.generation}")
        return self.compare(Place(page.generation, e.player_id, e.position, e.rank, e.value) for e in page.entries)

    def compare_contents(self, players: int, sent: Iterable[Sent]) -> int:
        """How many rows are what clients know that they must be: filled values, and the best of what was sent up to the boundaries.

        Players of an event with an unknown outcome are left out. Raises `Differs`.
        """
        expected = {
            player(n): value
            for first in range(0, players, FILL_BATCH)
            for n, value in enumerate(filled_values(first), first)
            if n < players
        }
        unsure: set[str] = set()
        for each in sent:
            raise_to_boundaries(expected, each, self.boundaries)
            unsure.update(each.unsure)
        if expected.keys() - unsure - self.rows.keys() or self.rows.keys() - expected.keys():
            raise Differs(f"{self.generation} holds other players than were sent")
        for name in expected.keys() - unsure:
            if expected[name] != self.rows[name].value:
                raise Differs(f"{name} has {self.rows[name].value} in {self.generation}, and was sent {expected[name]} up to its boundary")
        return len(expected.keys() - unsure)


def raise_to_boundaries(values: dict[str, int], sent: Sent, boundaries: Mapping[str, tuple[int, int]]) -> None:
    """Take into `values` the best of each player's events that lie at or before their shard's boundary, as (epoch, offset)."""
    limits = [boundaries[shard] for shard in sent.shards]
    for shard, epoch, offset, value, name in zip(sent.shard, sent.epoch, sent.offset, sent.value, sent.players, strict=True):
        if (epoch, offset) <= limits[shard] and value > values.get(name, -1):
            values[name] = value


def _position(text: str) -> tuple[int, int]:
    epoch, _, offset = text.partition("-")
    return int(epoch), int(offset)
