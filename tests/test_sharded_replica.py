"""Generations over several shards: the same in whatever order journals arrive, never a mix, never from a manifest that does not fit."""

import random
from collections.abc import Callable

import msgspec
import pytest
from sharded_boards import BOARD, MASK, RULES, SHARDS, Board, Journals, OneSlice, alarms, folded, followed, made, mend, played

from actors.boards_view import SliceFold
from actors.region_fold import RegionFold
from actors.steps import at_once
from boards.model import Layout, Row
from journal.ports import Position
from journal.records import BoardCreated, BoardRemoved, Imported, Manifest, Relocating


@pytest.mark.parametrize("seed", range(12))
def test_generations_are_an_offline_sort_of_their_marks_in_whatever_order_journals_arrive(seed: int) -> None:
    journals = Journals()
    board = Board(journals)
    played(seed, board)
    first = made(folded(journals, random.Random(0)))
    assert [number for number, _, _ in first] == list(range(board.generation + 1))
    assert {number: rows for number, _, rows in first} == board.shown
    for order in range(1, 8):
        region = folded(journals, random.Random(order))
        assert made(region) == first
        assert (alarms(region), region.unready(region.boards[BOARD])) == ([], "")


@pytest.mark.parametrize("seed", range(5))
def test_after_a_restart_the_newest_complete_generation_is_served_and_what_is_old_was_not_frozen(seed: int) -> None:
    """1. Years later. 2. Every shard is read from entry 1, in any order. 3. No board is answered for from an older generation."""
    journals = Journals()
    board = Board(journals)
    played(seed, board, 400)
    region = RegionFold(dict.fromkeys(SHARDS, "eu-west"))
    draw = random.Random(seed)
    at = dict.fromkeys(SHARDS, 0)
    while at:
        shard = draw.choice(sorted(at))
        entries = journals.entries[shard][at[shard] : at[shard] + 16]
        region.apply(shard, entries, committed=len(journals.entries[shard]), now_ms=0, wall_ms=10**12)
        at[shard] += len(entries)
        if at[shard] == len(journals.entries[shard]):
            del at[shard]
            region.caught_up(shard, now_ms=0, wall_ms=10**12)
        series = region.boards.get(BOARD)
        if series is not None and not region.unready(series):
            assert series.newest is not None
            assert series.newest.number == board.generation
    series = region.boards[BOARD]
    assert (region.unready(series), alarms(region)) == ("", [])
    assert made(region)[-1][2] == board.shown[board.generation]
    assert max(len(one.frozen) for one in series.slices[1].values()) <= 3


def test_a_manifest_waits_for_every_mark_and_no_later_one_overtakes_it() -> None:
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    for value in range(20):
        board.put(f"p{value}", value)
    board.publish()
    board.put("p1", 100)
    board.publish()
    lead, other = SHARDS[:2]
    region = folded(journals, random.Random(0), until={other: 3})
    assert [number for number, _, _ in made(region)] == [0]
    assert [proposal.number for proposal in region.boards[BOARD].slices[1][0].proposals] == [1, 2]
    assert folded(journals, random.Random(1), until={lead: 1}).boards[BOARD].generations.keys() == {0}
    assert [number for number, _, _ in made(folded(journals, random.Random(0), fold=region))] == [0, 1, 2]


def test_a_board_is_shown_only_once_all_its_slices_are_here() -> None:
    journals = Journals(SHARDS[:3])
    board = Board(journals, SHARDS[:3])
    region = folded(journals, random.Random(0), until={SHARDS[1]: 0})
    assert region.boards[BOARD].newest is None
    assert region.unready(region.boards[BOARD])
    series = folded(journals, random.Random(0), fold=region).boards[BOARD]
    assert made(region) == [(0, dict.fromkeys(board.layout.shards, Position(1, 1)), [])]
    info = region.info(series)
    assert (info.layout, info.shard, info.generation) == (board.layout, SHARDS[0], 0)


Mutation = Callable[[Manifest], Manifest]


def _mark(manifest: Manifest, index: int, **changes: int) -> Manifest:
    marks = list(manifest.marks)
    marks[index] = msgspec.structs.replace(marks[index], **changes)
    total, count = sum(mark.checksum for mark in marks) & MASK, sum(mark.count for mark in marks)
    return msgspec.structs.replace(manifest, marks=tuple(marks), checksum=total, count=count)


MUTATIONS: dict[str, Mutation] = {
    "a mark is missing": lambda m: msgspec.structs.replace(m, marks=m.marks[:-1]),
    "a mark is missing, and the sums fit": lambda m: msgspec.structs.replace(
        m, marks=m.marks[:-1], checksum=(m.checksum - m.marks[-1].checksum) & MASK, count=m.count - m.marks[-1].count
    ),
    "the count is of another generation": lambda m: msgspec.structs.replace(m, count=m.count - 1),
    "a slice's count is of another generation": lambda m: _mark(m, 1, count=m.marks[1].count - 1),
    "the checksum is of another generation": lambda m: msgspec.structs.replace(m, checksum=m.checksum ^ 1),
    "a slice's checksum is of another generation": lambda m: _mark(m, 1, checksum=m.marks[1].checksum ^ 1),
    "a mark is of another epoch": lambda m: _mark(m, 1, epoch=m.marks[1].epoch + 1),
    "a mark is named where there is none": lambda m: _mark(m, 1, offset=m.marks[1].offset - 1),
    "it is of another layout": lambda m: msgspec.structs.replace(m, layout=2),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_manifest_that_does_not_fit_is_never_shown_and_stops_its_board_alone(mutation: str) -> None:
    """1. s1 is right. 2. The manifest of s2 is not. 3. Nothing is answered, but for another board in the same shards.

    4. Its slices are folded anew, beside the others: still nothing. 5. s3 is right: it is answered again, and s2 never was."""
    journals = Journals(SHARDS[:3])
    board, other = Board(journals, SHARDS[:3]), "arena-clash:duo:S7:global"
    journals.write(SHARDS[0], BoardCreated(2, other, RULES, "inc2", "op", 0))
    for value in range(30):
        board.put(f"p{value}", value)
    board.publish()
    board.put("p1", 100)
    board.put("p2", 200)
    right = board.manifest()
    journals.write(SHARDS[0], MUTATIONS[mutation](right))
    region = folded(journals, random.Random(4))
    series = region.boards[BOARD]
    assert region.unready(series)
    assert alarms(region)
    assert region.unready(region.boards[other]) == ""
    mend(region, journals)
    assert region.unready(region.boards[BOARD])
    board.put("p3", 300)
    board.publish()
    folded(journals, random.Random(5), fold=region)
    mend(region, journals)
    assert (alarms(region), region.unready(region.boards[BOARD])) == ([], "")
    newest = region.boards[BOARD].newest
    assert newest is not None
    assert newest.number == 3
    assert 2 not in region.boards[BOARD].generations
    assert made(region)[-1][2] == board.shown[3]


def test_a_mark_that_is_not_committed_makes_no_generation() -> None:
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    for value in range(10):
        board.put(f"p{value}", value)
    board.publish()
    mark = board.slices[1].mark
    assert mark is not None
    region = folded(journals, random.Random(0), until={SHARDS[1]: mark.offset - 1})
    region.caught_up(SHARDS[1], now_ms=0, wall_ms=0)
    assert region.boards[BOARD].generations.keys() == {0}
    assert made(folded(journals, random.Random(0), fold=region))[-1][0] == 1


def test_a_slice_that_differs_from_its_mark_stops_its_board_until_it_is_mended() -> None:
    """1. A wrong row got into one fold (a bit flipped, say). 2. The next mark tells. 3. Folded anew from the journal, it is right."""
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    for value in range(10):
        board.put(f"p{value}", value)
    board.publish()
    region = folded(journals, random.Random(0))
    series = region.boards[BOARD]
    before = made(region)
    broken: SliceFold = series.slices[1][1]
    broken.rows.checksum ^= 1
    for value in range(10):
        board.put(f"p{value}", 50 + value)
    board.publish()
    folded(journals, random.Random(0), fold=region)
    assert "checksum" in region.shards[SHARDS[1]].alarm
    assert not region.shards[SHARDS[0]].alarm
    assert region.unready(series)
    mend(region, journals)
    assert (alarms(region), region.unready(region.boards[BOARD])) == ([], "")
    assert [one[0] for one in made(region)] == [0, 1, 2]
    assert made(region)[:2] == before
    assert made(region)[-1][2] == board.shown[2]


def test_a_board_that_rests_lets_go_of_views_that_were_kept_for_a_mend() -> None:
    """1. Six generations. 2. The sixth shows a fault in one fold: the views of all are needed again. 3. Made again, most are superseded."""
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    region = folded(journals, random.Random(0))
    for generation in range(6):
        for value in range(10):
            board.put(f"p{value}", 10 * generation + value)
        board.publish()
        if generation == 5:
            region.boards[BOARD].slices[1][1].rows.checksum ^= 1
        folded(journals, random.Random(0), fold=region)
    series = region.boards[BOARD]
    assert region.unready(series)
    at_once(region.expiring(10**9))
    assert len(series.slices[1][0].frozen) == 6, "they are waited for"
    mend(region, journals)
    assert list(series.generations) == list(range(7))
    at_once(region.expiring(10**9))
    at_once(region.expiring(10**9 + RULES.retention_ms + 1))
    assert [len(one.frozen) for one in series.slices[1].values()] == [2, 2], "the newest mark, and the one named before it"
    assert made(region)[-1][2] == board.shown[6]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (1, 3), (3, 1)])
def test_a_move_goes_on_with_the_same_generations_in_whatever_order_journals_arrive(seed: int, old: int, new: int) -> None:
    """The old slices may be gone before the new ones are read, and the other way round; a shard may hold slices of both layouts."""
    journals = Journals()
    board = Board(journals, SHARDS[:old]) if old > 1 else OneSlice(journals)
    played(seed, board, 40)
    board.move(SHARDS[4 - new :], 7, between=lambda: played(seed + 100, board, 10))
    played(seed + 200, board, 40)
    numbers = list(range(board.generation + 1))
    for order in range(8):
        region = folded(journals, random.Random(order)) if order % 2 else followed(journals, random.Random(order))
        series = region.boards[BOARD]
        assert (alarms(region), region.unready(series)) == ([], "")
        assert (series.layout, series.moving) == (board.layout, None)
        shown = made(region)
        assert [number for number, _, _ in shown] == numbers
        assert {number: rows for number, _, rows in shown} == board.shown
        assert list(shown[-1][1]) == list(board.layout.shards)
        assert list(series.slices) == [2]
        assert region.includes(series, SHARDS[0], Position(1, 1))


def test_a_position_is_included_once_its_own_shard_says_so() -> None:
    """A shard's position says nothing of another shard; an event that changed no row needs no generation of its own."""
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    for value in range(10):
        board.put(f"p{value}", value)
    board.publish()
    here = [one.shard for one in board.slices]
    late = {shard: journals.write(shard) for shard in here}
    region = folded(journals, random.Random(0))
    series = region.boards[BOARD]
    assert all(region.includes(series, shard, late[shard]) for shard in here)
    player = next(f"p{n}" for n in range(10) if board.slices[1].rows.get(f"p{n}") is not None)
    put = board.put(player, 99)
    folded(journals, random.Random(0), fold=region)
    assert not region.includes(series, here[1], put)
    assert region.includes(series, here[0], late[here[0]])
    assert not region.includes(series, here[0], Position(1, put.offset + 50))
    board.slices[1].marked(2)
    folded(journals, random.Random(0), fold=region)
    assert not region.includes(series, here[1], put)
    board.publish()
    folded(journals, random.Random(0), fold=region)
    assert region.includes(series, here[1], put)


def test_a_board_that_is_removed_is_gone_and_one_made_again_knows_nothing_of_it() -> None:
    """1. Removed at the lead first, then elsewhere. 2. Made again over other shards. 3. In any order, at most the later life is left."""
    journals = Journals()
    board = Board(journals, SHARDS[:2])
    played(1, board, 30)
    lead, other = board.slices
    journals.write(lead.shard, BoardRemoved(lead.number, "op", 0, done=False))
    for order in range(6):
        region = folded(journals, random.Random(order))
        assert BOARD not in region.boards
        assert all(not one.frozen for fold in region.shards.values() for one in fold.slices.values())
    journals.write(other.shard, BoardRemoved(other.number, "op", 0))
    journals.write(lead.shard, BoardRemoved(lead.number, "op", 0))
    again = Board(journals, SHARDS[1:], life="inc2", number=9)
    again.put("new", 1)
    again.publish()
    for order in range(6):
        region = folded(journals, random.Random(order)) if order % 2 else followed(journals, random.Random(order))
        series = region.boards[BOARD]
        assert (alarms(region), region.unready(series), series.incarnation) == ([], "", "inc2")
        assert [(number, [row[0] for row in rows]) for number, _, rows in made(region)] == [(0, []), (1, ["new"])]
        assert [one.created.incarnation for fold in region.shards.values() for one in fold.slices.values()] == ["inc2"] * 3


def test_a_move_that_is_given_up_leaves_no_trace() -> None:
    journals = Journals()
    board = Board(journals, SHARDS[:2])
    played(1, board, 20)
    layout, lead = Layout(2, SHARDS[1:]), board.slices[0]
    journals.write(lead.shard, Relocating(lead.number, layout, "op", 0))
    for index, shard in enumerate(layout.shards):
        journals.write(shard, BoardCreated(7, BOARD, RULES, "inc1", "op", 9, layout, index, True))
        journals.write(shard, Imported(7, 0, [("p1", Row(1, 0, 0, 0, 0, 1, "e"))], [], None, 0))
    region = folded(journals, random.Random(3))
    assert (region.boards[BOARD].moving, region.boards[BOARD].layout) == (layout, board.layout)
    before = made(region)
    journals.write(lead.shard, Relocating(lead.number, layout, "op", 0, aborting=True))
    for shard in layout.shards:
        journals.write(shard, BoardRemoved(7, "op", 0))
    journals.write(lead.shard, Relocating(lead.number, None, "op", 0))
    for order in range(6):
        region = folded(journals, random.Random(order))
        series = region.boards[BOARD]
        assert (alarms(region), region.unready(series), series.moving, series.layout) == ([], "", None, board.layout)
        assert made(region) == before
    board.put("p1", 7)
    board.publish()
    assert made(folded(journals, random.Random(0)))[-1][2] == board.shown[board.generation]


def test_views_that_a_manifest_may_name_yet_are_kept_whatever_their_age_and_others_for_the_retention() -> None:
    """1. s1 names a mark. 2. Long after, other marks come, no manifest does: the lead's shard is far behind. 3. s1 is made of its mark."""
    lead, other = SHARDS[:2]
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    for value in range(10):
        board.put(f"p{value}", value)
    board.publish()
    first = journals.entries[lead][-1].offset
    one = board.slices[1]
    player = next(iter(one.rows))
    region = RegionFold(dict.fromkeys(SHARDS[:2], "eu-west"))
    folded(journals, random.Random(0), until={lead: first - 1}, fold=region)

    def at(now_ms: int) -> None:
        entries = journals.entries[other][region.shards[other].applied.offset :]
        region.apply(other, entries, committed=len(journals.entries[other]), now_ms=now_ms, wall_ms=0)

    for hour in range(1, 6):
        board.put(player, 100 + hour)
        one.marked(2)
        at(hour * 3_600_000)
    fold = region.boards[BOARD].slices[1][1]
    assert len(fold.frozen) == 6
    folded(journals, random.Random(0), fold=region)
    assert [number for number, _, _ in made(region)] == [0, 1]
    board.publish()
    board.put(player, 200)
    one.marked(3)
    at(20 * 3_600_000)
    assert len(fold.frozen) == 7
    board.put(player, 201)
    one.marked(3)
    at(20 * 3_600_000 + RULES.retention_ms + 1)
    assert len(fold.frozen) == 3


def test_shards_that_are_folded_anew_take_their_boards_with_them_and_no_others() -> None:
    journals = Journals()
    board, other = Board(journals, SHARDS[:2]), "arena-clash:duo:S7:global"
    journals.write(SHARDS[3], BoardCreated(2, other, RULES, "inc2", "op", 0))
    played(1, board, 40)
    region = folded(journals, random.Random(0))
    before = made(region)
    for shard in SHARDS[:2]:
        region.restart(shard, "the journal was begun anew")
        assert region.unready(region.boards[BOARD])
        assert region.unready(region.boards[other]) == ""
        folded(journals, random.Random(1), fold=region)
        assert (alarms(region), region.unready(region.boards[BOARD])) == ([], "")
        assert made(region) == before
