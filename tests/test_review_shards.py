"""Schedules of boards over several shards that a review found: each names the promise that holds in it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sharded_boards import BOARD, SHARDS, Board, Journals, OneSlice, folded

from actors import board_changes, relocation_changes
from actors.board_changes import Draft, Result, Slice
from actors.coordinating import Coordinating
from actors.exporting import Chunk
from actors.importing import Filling
from actors.messages import Unanswered
from actors.region_fold import RegionFold
from boards.model import Layout
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.records import (
    BoardRemoved,
    EpochStarted,
    Imported,
    Relocating,
    SliceClosed,
    SliceOpened,
    Switched,
    seal_entry,
)
from ledger.memory import MemoryLedger
from ledger.pending import Pending
from ledger.ports import SliceImport

WIDE = make_rules("best_score")
LIFE, THREE = "i1", Layout(1, ("eu/0", "eu/1", "eu/2"))


# -- positions that a reader waits for (`at_least`) -------------------------------------------------------------------------


def moved(journals: Journals, board: Board, shards: tuple[str, ...], number: int) -> tuple[Layout, int]:
    """The board on its way, up to where its new slices are open and nothing is published yet: the layout, and the offset of the switch."""
    old, layout = board.slices, Layout(board.layout.number + 1, shards)
    journals.write(old[0].shard, Relocating(old[0].number, layout, "op", 0))
    board.layout = layout
    board.slices = board._create(number, importing=True)
    for source, one in enumerate(old):
        journals.write(one.shard, SliceClosed(one.number, layout.number, 1, 0))
        for target, other in enumerate(board.slices):
            rows = [(p, row) for p, row in one.rows.items() if slice_of(p, len(shards)) == target]
            journals.write(other.shard, Imported(number, source, rows, [], None, 0))
            other.rows.update(rows)
    switched = journals.write(old[0].shard, Switched(old[0].number, layout, board.generation, 0))
    for other in board.slices:
        journals.write(other.shard, SliceOpened(number, board.generation, 1, 0))
    return layout, switched.offset


def player_of(slice_: int, count: int) -> str:
    return next(p for p in (f"q{n}" for n in range(1000)) if slice_of(p, count) == slice_)


def test_what_the_new_slice_took_is_not_called_visible_by_a_generation_of_the_old_one_in_the_same_shard() -> None:
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    moved(journals, board, SHARDS[:2], 2)
    player = player_of(0, 2)
    at = board.put(player, 7)
    region = folded(journals, random.Random(0))
    series = region.boards[BOARD]
    newest = series.newest
    assert newest is not None
    assert newest.view.place(player) is None
    assert not region.includes(series, SHARDS[0], at)


def test_a_position_of_a_shard_that_the_board_moves_to_is_not_called_visible_before_its_opening_is_read() -> None:
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    _, switched = moved(journals, board, (SHARDS[1],), 2)
    at = board.put("q", 7)
    created_and_imported = 2
    region = folded(journals, random.Random(0), until={SHARDS[0]: switched - 1, SHARDS[1]: created_and_imported})
    series = region.boards[BOARD]
    assert SHARDS[1] in series.past, "the gateway's question is taken"
    assert not region.includes(series, SHARDS[1], at)


def test_what_was_taken_right_before_the_move_is_not_called_visible_when_its_slice_has_left() -> None:
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    at = board.put("q", 7)
    old = board.slices[0]
    moved(journals, board, (SHARDS[1],), 2)
    journals.write(old.shard, BoardRemoved(old.number, "op", 0))
    region = folded(journals, random.Random(0))
    series = region.boards[BOARD]
    newest = series.newest
    assert newest is not None
    assert newest.view.place("q") is None
    assert not region.includes(series, SHARDS[0], at)


# -- boards that are gone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", SHARDS[:2])
def test_a_board_that_moved_and_was_removed_stays_gone_in_whatever_order_journals_are_read_again(first: str) -> None:
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    old = board.slices[0]
    moved(journals, board, (SHARDS[1],), 2)
    board.publish()
    journals.write(old.shard, BoardRemoved(old.number, "op", 0))
    journals.write(SHARDS[1], BoardRemoved(2, "op", 0))
    region = RegionFold(dict.fromkeys(SHARDS[:2], "eu-west"))
    for shard in (first, *(s for s in SHARDS[:2] if s != first)):
        entries = journals.entries[shard]
        region.apply(shard, entries, committed=len(entries), now_ms=0, wall_ms=0)
        region.caught_up(shard, now_ms=0, wall_ms=0)
    assert BOARD not in region.boards


# -- removal ----------------------------------------------------------------------------------------------------------------


class Authority:
    """Decisions of one authority; an entry is what `entry` is given, as `Writer._write_one` orders it."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.pending = Pending(self.ledger)
        self.offset = 0

    def entry(self, *changes: tuple[Callable[[Draft], Result], bool], fold: bool = True) -> list[Result | Unanswered]:
        """Changes (decision, whether it is `last`) of one entry; their results in the order given."""
        results: dict[int, Result | Unanswered] = {}
        with self.ledger.reader() as reader:
            draft = Draft(self.pending, reader, 1, self.offset + 1, 1000)
            for last in (False, True):
                for index, (decide, is_last) in enumerate(changes):
                    if is_last is last:
                        try:
                            results[index] = decide(draft)
                        except Unanswered as error:
                            results[index] = error
        if draft.records:
            self.offset += 1
            if fold:
                self.ledger.apply([seal_entry(1, self.offset, f"b{self.offset}", draft.records)])
                self.pending.settle(self.offset)
        return [results[index] for index in range(len(changes))]


def wanted(life: str = LIFE) -> Slice:
    return Slice(BOARD, life, WIDE, THREE, 1, "op", 5)


def mark_order(life: str = LIFE) -> tuple[Callable[[Draft], Result], bool]:
    return board_changes.mark(wanted(life), generation=1, lead_epoch=1, keeps=0), True


def remove_order(life: str = LIFE) -> tuple[Callable[[Draft], Result], bool]:
    return board_changes.remove_slice(BOARD, life, 1, "eu/0", wanted=wanted(life)), False


def test_an_order_for_a_mark_that_is_overtaken_by_the_removal_makes_no_slice_that_nobody_removes() -> None:
    """The slice was never made. Both orders wait in one queue: the mark, being last in its entry, is decided after the removal."""
    shard = Authority()
    _, removed = shard.entry(mark_order(), remove_order())
    assert isinstance(removed, Result)
    assert shard.ledger.numbers(BOARD) == ()
    (again,) = shard.entry(mark_order("i2"))
    assert isinstance(again, Result), again


def test_a_late_order_of_the_life_before_the_last_makes_no_slice() -> None:
    shard = Authority()
    for life in (LIFE, "i2"):
        shard.entry(mark_order(life))
        shard.entry(remove_order(life))
    shard.entry(mark_order(LIFE))
    assert shard.ledger.numbers(BOARD) == ()


def test_a_removal_that_is_ordered_twice_is_not_answered_before_it_is_committed() -> None:
    shard = Authority()
    shard.entry(mark_order())
    first, second = shard.entry(remove_order(), remove_order(), fold=False)
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert second.depends == first.depends == shard.offset


def test_nothing_of_a_board_is_removed_elsewhere_before_its_removal_is_committed() -> None:
    """The lead's own record may still be cut with its epoch: the board lives on then, and has to have all its slices."""
    lead = Authority()
    lead.entry((board_changes.create(BOARD, WIDE, LIFE, "op", THREE), False))
    lead.entry((board_changes.remove(BOARD, LIFE, "op"), False), fold=False)
    ordered: list[dict[str, Any]] = []

    class Links:
        async def operate(self, _region: str, _shard: str, order: dict[str, Any]) -> dict[str, Any]:
            ordered.append(order)
            return {"ok": True}

    async def never(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()  # what is to be committed never is

    async def story() -> None:
        writer: Any = SimpleNamespace(accepting=True, pending=lead.pending, ledger=lead.ledger, epoch=1, change=never)
        tasks: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, Any]) -> None:
            tasks.append(asyncio.get_running_loop().create_task(work))

        links: Any = Links()
        coordinating = Coordinating(
            shard="eu/0", region="eu", writer=writer, links=links, spawn=spawn, wall_ms=lambda: 0, monotonic_ms=lambda: 0
        )
        (board,) = lead.pending.coordinated()
        coordinating._look_after(board)
        for _ in range(20):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())
    assert [order["do"] for order in ordered] == []


# -- what a reader holds a generation by ------------------------------------------------------------------------------------


def test_a_generation_keeps_its_lineage_while_its_board_moves() -> None:
    """ETags, cursors and the order of generations go by it."""
    journals = Journals(SHARDS[:2])
    for shard in SHARDS[:2]:
        journals.write(shard, EpochStarted(1, "eu", "a", 0, "", "genesis", "op", "quorum", {}, 1, f"lineage of {shard}", 0))
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    written = len(journals.entries[SHARDS[0]])
    moved(journals, board, (SHARDS[1],), 2)
    region = folded(journals, random.Random(0), until={SHARDS[0]: written, SHARDS[1]: 2})
    series = region.boards[BOARD]
    before = (series.newest.number if series.newest else None, region.lineage(series))
    folded(journals, random.Random(0), until={SHARDS[0]: written}, fold=region)
    assert (series.newest.number if series.newest else None, region.lineage(series)) == before


def test_a_region_that_does_not_follow_the_shard_that_a_board_moved_to_still_tells_news() -> None:
    """Its configuration is older: the board cannot be answered for there, and every other board can."""
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    moved(journals, board, (SHARDS[1],), 2)
    region = RegionFold({SHARDS[0]: "eu-west"})
    entries = journals.entries[SHARDS[0]]
    region.apply(SHARDS[0], entries, committed=len(entries), now_ms=0, wall_ms=0)
    region.caught_up(SHARDS[0], now_ms=0, wall_ms=0)
    series = region.boards[BOARD]
    assert region.unready(series)
    assert region.info(series).home == ""
    region.lineage(series)


# -- moves ------------------------------------------------------------------------------------------------------------------


def test_a_board_is_not_made_a_second_time_where_it_has_moved_away_from() -> None:
    """A gateway that still believes the old layout is asked to create the board again, which is to change nothing."""
    lead, target = Authority(), Layout(2, ("eu/1",))
    lead.entry((board_changes.create(BOARD, WIDE, LIFE, "op", None), False))
    lead.entry((relocation_changes.begin(BOARD, target.shards, "op", shard="eu/0"), False))
    (closed,) = lead.entry((relocation_changes.close(BOARD, LIFE, 1, target=2, lead_epoch=1, above=0), False))
    assert isinstance(closed, Result)
    lead.entry((relocation_changes.switch(1, target, closed.value.offset), False))
    lead.entry((board_changes.remove_slice(BOARD, LIFE, 1, "eu/0"), False))
    assert lead.ledger.numbers(BOARD) == ()
    (again,) = lead.entry((board_changes.create(BOARD, WIDE, "i2", "op", Layout(1, ("eu/0",))), False))
    assert isinstance(again, Unanswered), again
    assert lead.ledger.numbers(BOARD) == ()


def test_a_source_that_lags_in_the_own_region_is_read_in_another_one_up_to_the_boundary() -> None:
    """eu is cut off from the journal of the source, and has no news of it; us has the entry that closed it."""
    state = SimpleNamespace(phase="importing", imports=(SliceImport(0, None, 5),), checksum=0, count=0)

    class Links:
        async def operate(self, region: str, _shard: str, order: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(0)
            upto = order["after"] if region == "eu" else 9
            return {"ok": True, "chunk": msgspec.msgpack.encode(Chunk([], [], None, upto))}

    async def change(_decide: object, **_: object) -> Any:
        return state

    async def story() -> bool:
        writer: Any = SimpleNamespace(accepting=True, pending=SimpleNamespace(numbered=lambda _: state), change=change)
        links: Any = Links()
        wanted = Slice(BOARD, LIFE, WIDE, Layout(2, ("eu/1",)), 0, "op", 5)
        filling = Filling(wanted, 1, ("eu/0",), 1, ("eu", "us", "ap"), writer, links)
        running = asyncio.ensure_future(filling.run())
        await filling.wait_for((9,), 0.5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return filling.reached((9,))

    assert asyncio.run(story())
