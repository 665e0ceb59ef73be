"""Folding in steps: whoever reads between two of them finds whole generations only, and the end is the same as without steps."""

import random
from collections.abc import Callable, Sequence

import pytest
from sharded_boards import BOARD, SHARDS, Board, Journals, folded, made, played

from actors import boards_view
from actors.region_fold import RegionFold
from boards.slicing import slice_of
from journal.ports import Position
from journal.records import Entry


class Watched(RegionFold):
    """Somebody looks between all steps. `work` counts what could have been done in another thread."""

    def __init__(self, look: Callable[["Watched"], None]) -> None:
        super().__init__(dict.fromkeys(SHARDS, "eu-west"))
        self.look, self.work = look, 0

    def apply(self, shard: str, entries: Sequence[Entry], *, committed: int, now_ms: int, wall_ms: int) -> set[str]:
        steps = self.applying(shard, entries, committed=committed, now_ms=now_ms, wall_ms=wall_ms)
        applied = self.shards[shard].applied
        while True:
            try:
                work = next(steps)
            except StopIteration as end:
                told: set[str] = end.value
                return told
            self.look(self)
            assert self.shards[shard].applied == applied
            if work is not None:
                self.work += 1
                work()
                self.look(self)


@pytest.mark.parametrize("seed", range(12))
def test_between_two_steps_there_are_whole_generations_only(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A board over all shards is folded in small steps, shards at any distance. 2. At each, all generations are as they were published,
    one that is said to include a position shows what was written there, and nothing new counts as folded. 3. The end is the same."""
    for name, value in (("SETTLED_AT_ONCE", 2), ("LARGE", 0)):
        monkeypatch.setattr(boards_view, name, value)
    journals = Journals()
    board = Board(journals)
    written: list[tuple[str, Position, str, int]] = []
    put = board.put

    def noted(player: str, *numbers: int) -> Position:
        at, one = put(player, *numbers), board.slices[slice_of(player, len(SHARDS))]
        written.append((one.shard, at, player, one.rows[player].version))
        return at

    board.put = noted  # type: ignore[method-assign,assignment]
    played(seed, board)
    draw = random.Random(seed)

    def look(region: Watched) -> None:
        series = region.boards.get(BOARD)
        if series is None:
            return
        for number, _, rows in made(region):
            assert rows == board.shown[number]
        shard, at, player, version = draw.choice(written)
        status = board.slices[slice_of(player, len(SHARDS))].rows[player].status
        if not region.unready(series) and series.newest is not None and region.includes(series, shard, at) and not status:
            shown = {row.player_id: row.version for row in series.newest.view.after(None, 1000)}
            assert shown.get(player, version) >= version

    region = Watched(look)
    folded(journals, random.Random(seed), fold=region)
    assert made(region) == made(folded(journals, random.Random(seed)))
    assert region.work > len(SHARDS)
