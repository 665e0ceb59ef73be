"""Schedules of reading and writing that a review found, at a gateway and a replica: each names the promise that holds in it."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from inprocess_cluster import BEST, Cluster, until
from sharded_boards import BOARD, RULES, SHARDS, Board, Journals, OneSlice, alarms, folded, mend

import actors.region_fold
import actors.replica
import actors.replica_pool
from actors.generations_view import BoardSeries
from actors.messages import Answer, Ask, BadParameter, Batch, BoardInfo, NotVisibleYet, Top, UnknownBoard
from actors.orders import operate
from actors.ports import ReplicaSpec
from actors.region_fold import RegionFold
from actors.replica import News, ReplicaActor
from actors.replica_pool import ReplicaPool
from actors.shard import decode_submit
from boards.model import Layout, Outcome, Submission
from boards.policies import make_rules
from journal.memory import MemoryJournal, MemoryLog
from journal.ports import Position
from journal.records import BoardCreated, BoardRemoved, Imported, Manifest, Published, Relocating, SliceClosed, SliceOpened, Switched

HERE, THERE = SHARDS[:2]


def close_and_switch(journals: Journals, board: Board) -> None:
    """A board of one slice is copied to `THERE` and opened there; its old slice stays for now."""
    (old,), layout = board.slices, Layout(2, (THERE,))
    journals.write(old.shard, Relocating(old.number, layout, "op", 0))
    board.layout = layout
    board.slices = board._create(2, importing=True)
    (new,) = board.slices
    journals.write(old.shard, SliceClosed(old.number, layout.number, 1, 0))
    journals.write(new.shard, Imported(2, 0, list(old.rows.items()), [], None, 0))
    new.rows.update(old.rows)
    journals.write(old.shard, Switched(old.number, layout, board.generation, 0))
    journals.write(new.shard, SliceOpened(2, board.generation, 1, 0))


# -- events are for one life of a board -------------------------------------------------------------------------------------


def test_events_that_were_checked_by_the_rules_of_a_former_life_are_not_decided_in_the_next(tmp_path: Path) -> None:
    """1. A gateway has read the board. 2. It is removed and made again, with other rules. 3. Nothing of its events is taken."""

    async def story() -> None:
        async with Cluster(tmp_path, replicas=False) as c:
            c.start()
            await until(lambda: c.authorities() == ["eu"], "eu serves")
            await c.write(2, board=BEST)
            region = c["eu"]
            former = region.board(BEST)
            assert former is not None
            actor = region.first.actor
            event = Submission("e", "p", 7, 1000, 1000, b"f")
            (first,) = await region.route.submit(Batch(BEST, "tests", [event], former.incarnation))
            assert first.outcome == Outcome.APPLIED_FIRST
            assert (await operate(actor, {"do": "remove_board", "board": BEST, "incarnation": former.incarnation, "asked_by": "op"}))["ok"]
            await until(lambda: region.board(BEST) is None, "it is gone")
            await actor.create_board(BEST, make_rules("fastest_time", direction="lower"), "tests")
            await until(lambda: region.board(BEST) is not None, "it is here again")
            for work in (
                actor.submit(BEST, [event], "tests", former.incarnation),
                region.writes.submit(former, [event], "tests"),
                c["us"].route.submit(Batch(BEST, "tests", [event], former.incarnation)),
            ):
                with pytest.raises(UnknownBoard):
                    await work
            present = region.board(BEST)
            assert present is not None
            assert (present.count, present.generation) == (0, 0)
            (taken,) = await region.writes.submit(present, [event], "tests")
            (whatever,) = await actor.submit(BEST, [event], "tests")
            assert (taken.outcome, whatever.outcome) == (Outcome.APPLIED_FIRST, Outcome.DUPLICATE)

    asyncio.run(story())


def test_a_request_without_a_life_is_read_as_one_for_any() -> None:
    event = Submission("e", "p", 7, 1000, 1000, b"f")
    plain = msgspec.msgpack.encode([("eu/0", [("b", "subject", [event])])])
    assert decode_submit(plain) == [("eu/0", [Batch("b", "subject", [event], "")])]


# -- a slice that is being mended -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_target", [1, 3], ids=["the target is behind", "the target is read"])
def test_a_board_that_moves_while_its_slice_is_mended_is_not_buried_with_that_slice(at_target: int) -> None:
    """`at_target`: how many entries of the other shard are read when the old slice is removed."""
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    (old,) = board.slices
    journals.write(HERE, Published(old.number, 2, 0, 12345, 1))
    board.generation = 2
    close_and_switch(journals, board)
    journals.write(HERE, BoardRemoved(old.number, "op", 0))
    region = RegionFold(dict.fromkeys(SHARDS[:2], "eu-west"))
    for shard, end in ((THERE, 1), (HERE, 3), (HERE, 4), (THERE, at_target), (HERE, len(journals.entries[HERE]))):
        folded(journals, random.Random(0), until={other: end if other == shard else 0 for other in SHARDS[:2]}, fold=region)
    series = region.boards[BOARD]
    assert series.layout == board.layout
    board.put("q", 2)
    board.publish()
    folded(journals, random.Random(0), fold=region)
    mend(region, journals)
    assert (alarms(region), region.unready(series)) == ([], "")
    assert series.newest is not None
    assert [p.player_id for p in series.newest.view.after(None, 10)] == ["q", "p"]


def test_a_target_that_is_mended_while_its_board_moves_there_is_known_to_be_open() -> None:
    journals = Journals(SHARDS[:2])
    board = OneSlice(journals)
    board.put("p", 1)
    board.publish()
    close_and_switch(journals, board)
    opened = journals.entries[THERE].pop()
    journals.write(THERE, Published(2, 2, 0, 12345, 1))
    journals.write(THERE, SliceOpened(2, board.generation, 1, 0))
    assert opened.offset == 3
    region = folded(journals, random.Random(0), until={HERE: 4})
    assert region.shards[THERE].broken
    assert region.boards[BOARD].layout == board.layout


# -- many boards that wait for one shard ------------------------------------------------------------------------------------


def waiting_boards(count: int) -> tuple[Journals, str]:
    """Boards over two shards, each with a generation; in a third shard there is one more board."""
    journals = Journals(SHARDS[:3])
    for number in range(1, count + 1):
        for index, shard in enumerate((HERE, THERE)):
            layout = Layout(1, (HERE, THERE))
            journals.write(shard, BoardCreated(number, f"{BOARD}-{number}", RULES, f"inc{number}", "op", 5, layout, index))
    return journals, SHARDS[2]


def test_a_shard_that_is_away_costs_the_others_nothing_however_many_boards_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Manifests of many boards name marks of a shard that stands still. 2. Another shard goes on. 3. Nobody looks at those boards."""
    journals, third = waiting_boards(50)
    for shard in SHARDS[:3]:
        journals.write(shard, BoardCreated(99, f"{BOARD}-alone-{shard}", RULES, f"inc-{shard}", "op", 5))
    boards: list[Board] = []
    for number in range(1, 51):
        board = Board.__new__(Board)
        boards.append(board)
        board.journals, board.rules, board.generation, board.layout, board.shown = journals, RULES, 0, Layout(1, (HERE, THERE)), {}
        board.slices = [slice_at(journals, shard, number) for shard in board.layout.shards]
    region = folded(journals, random.Random(0))
    ends = {shard: len(entries) for shard, entries in journals.entries.items()}
    for board in boards:
        board.put("p", 1)
        board.put("q", 2)
        board.publish()
    folded(journals, random.Random(0), until={THERE: ends[THERE], third: ends[third]}, fold=region)
    assert len(region._waiting) == 50
    looked: list[str] = []
    real = BoardSeries.advance

    def advance(self: BoardSeries, *args: Any, **kwargs: Any) -> bool:
        looked.append(self.board_id)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(BoardSeries, "advance", advance)
    for shard in (HERE, third):
        for generation in range(1, 20):
            journals.write(shard, Published(99, generation, 0, 0, 0))
    folded(journals, random.Random(0), until={THERE: ends[THERE]}, fold=region)
    assert set(looked) == {f"{BOARD}-alone-{shard}" for shard in (HERE, third)}
    folded(journals, random.Random(0), fold=region)
    assert region._waiting == {}
    assert not any(region._due.values())
    for number in range(1, 51):
        newest = region.boards[f"{BOARD}-{number}"].newest
        assert newest is not None
        assert newest.number == 1


def slice_at(journals: Journals, shard: str, number: int) -> Any:
    board = OneSlice(Journals((shard,)), shard)
    (one,) = board.slices
    one.journals, one.number = journals, number
    return one


def test_a_mark_that_is_not_where_a_waiting_generation_names_it_is_noticed_when_its_shard_gets_there() -> None:
    """No record of that board is read then: only the offset says that the mark will never come."""
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    journals.write(THERE, BoardCreated(9, "other", RULES, "inc9", "op", 0))
    manifest = board.manifest()
    end = len(journals.entries[THERE])
    marks = (manifest.marks[0], msgspec.structs.replace(manifest.marks[1], offset=end + 1))
    journals.write(HERE, Manifest(manifest.board, 1, 0, 1, marks, manifest.checksum, manifest.count))
    region = folded(journals, random.Random(0))
    assert alarms(region) == []
    journals.write(THERE, Published(9, 1, 0, 0, 0))
    folded(journals, random.Random(0), fold=region)
    assert alarms(region)
    assert region.unready(region.boards[BOARD])


# -- positions without a shard ----------------------------------------------------------------------------------------------


def test_a_position_without_a_shard_is_refused_once_the_board_has_moved_and_one_with_its_old_shard_is_seen_at_once() -> None:
    """Read as one of the new shard, which is far behind that number, it would be waited for in vain."""

    async def story() -> None:
        journals = Journals(SHARDS[:2])
        board = OneSlice(journals)
        spec = ReplicaSpec(region="eu-west", shards=dict.fromkeys(SHARDS[:2], "eu-west"), store_url="", cursor_key=b"k" * 32)
        replica = ReplicaActor(spec, journals={shard: MemoryJournal(MemoryLog(shard, "eu-west")) for shard in SHARDS[:2]})
        for value in range(30):
            at = board.put("p", value)
        board.publish()
        folded(journals, random.Random(0), fold=replica.fold)
        ask = Ask(board_id=BOARD, question=Top(), at_least=at, wait_ms=0)
        assert (await replica.ask(ask)).generation == board.generation
        close_and_switch(journals, board)
        folded(journals, random.Random(0), fold=replica.fold)
        board.publish()
        folded(journals, random.Random(0), fold=replica.fold)
        assert (await replica.ask(msgspec.structs.replace(ask, at_shard=HERE))).generation == board.generation
        with pytest.raises(BadParameter) as refused:
            await replica.ask(ask)
        assert refused.value.fields["field"] == "at_least"
        assert all(shard in refused.value.fields["allowed"] for shard in SHARDS[:2])
        later = msgspec.structs.replace(ask, at_least=Position(1, len(journals.entries[THERE]) + 1), at_shard=THERE)
        with pytest.raises(NotVisibleYet):
            await replica.ask(later)

    asyncio.run(story())


# -- what is remembered of boards that are gone -----------------------------------------------------------------------------


def test_who_asks_for_news_from_before_what_is_remembered_is_told_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.replica, "REMOVED", 2)

    async def story() -> None:
        journals = Journals((HERE,))
        for number in range(5):
            journals.write(HERE, BoardCreated(number, f"b{number}", RULES, f"inc{number}", "op", 0))
        spec = ReplicaSpec(region="eu-west", shards={HERE: "eu-west"}, store_url="", cursor_key=b"k" * 32)
        replica = ReplicaActor(spec, journals={HERE: MemoryJournal(MemoryLog(HERE, "eu-west"))})

        async def fold() -> int:
            entries = journals.entries[HERE]
            at = replica.fold.shards[HERE].applied.offset
            told = replica.fold.apply(HERE, entries[at:], committed=len(entries), now_ms=0, wall_ms=0)
            await replica._tell(told | replica.fold.caught_up(HERE, now_ms=0, wall_ms=0))
            return replica._seq

        early = await fold()
        journals.write(HERE, BoardRemoved(0, "op", 0))
        since = await fold()
        assert (await replica.news(early)).removed == ["b0"]
        for number in (1, 2, 3):
            journals.write(HERE, BoardRemoved(number, "op", 0))
            await fold()
        lost = await replica.news(early)
        assert (lost.seq, lost.removed, lost.boards) == (0, [], [])
        assert (await replica.news(since)).seq == 0, "the removal of b1 is not remembered"
        assert [info.board_id for info in (await replica.news(0)).boards] == ["b4"]
        assert (await replica.news(since + 1)).removed == ["b3", "b2"]

    asyncio.run(story())


def test_a_shard_that_no_longer_remembers_all_removed_boards_is_read_again_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.region_fold, "GONE", 1)
    journals = Journals(SHARDS[:2])
    region = RegionFold(dict.fromkeys(SHARDS[:2], "eu-west"))
    for number, life in ((1, "a"), (2, "b"), (3, "c")):
        moved_and_removed(journals, number, life)
        folded(journals, random.Random(number), fold=region)
        assert region.boards == {}
    ends = {shard: len(entries) for shard, entries in journals.entries.items()}
    assert list(region.shards[THERE].gone) == ["c"]
    region.restart(HERE, "the journal was begun anew")
    assert region.shards[THERE].applied == Position(0, 0)
    folded(journals, random.Random(0), until={HERE: ends[HERE], THERE: 0}, fold=region)
    assert all(region.unready(series) for series in region.boards.values())
    folded(journals, random.Random(0), fold=region)
    assert region.boards == {}


def moved_and_removed(journals: Journals, number: int, life: str) -> None:
    """A board moves from `HERE` to `THERE`, and is removed there."""
    board_id, layout = f"{BOARD}-{life}", Layout(2, (THERE,))
    journals.write(HERE, BoardCreated(number, board_id, RULES, life, "op", 5))
    journals.write(HERE, Relocating(number, layout, "op", 0))
    journals.write(THERE, BoardCreated(number, board_id, RULES, life, "op", 5, layout, 0, True))
    journals.write(HERE, SliceClosed(number, 2, 1, 0))
    journals.write(HERE, Switched(number, layout, 0, 0))
    journals.write(THERE, SliceOpened(number, 0, 1, 0))
    journals.write(HERE, BoardRemoved(number, "op", 0))
    journals.write(THERE, BoardRemoved(number, "op", 0))


# -- several replicas, and a board that moves -------------------------------------------------------------------------------


def told(generation: int, lineage: str, shard: str, layout: int, *, owners: dict[str, tuple[int, str]]) -> News:
    info = BoardInfo(
        board_id=BOARD, number=1, incarnation="i", shard=shard, home="eu", rules=RULES, created_ms=5, layout=Layout(layout, (shard,))
    )  # fmt: skip
    top = Answer(
        board_id=BOARD, incarnation="i", lineage=lineage, generation=generation, published_ms=1, body=b"{}", shard=shard, layout=layout
    )  # fmt: skip
    return News(seq=generation, boards=[info], tops=[top], owners=owners, serving=True)


@pytest.mark.parametrize("first", [0, 1])
def test_the_shard_that_a_board_moved_to_is_later_whatever_the_epochs_of_both_are(first: int) -> None:
    """One replica has read the move, the other has not; the gateway hears of them in either order, and has heard of nothing before."""
    pool = ReplicaPool({"a": SimpleNamespace(), "b": SimpleNamespace()})
    behind = told(17, "lineage of here", HERE, 1, owners={HERE: (90, "eu"), THERE: (1, "eu")})
    ahead = told(18, "lineage of there", THERE, 2, owners={HERE: (90, "eu"), THERE: (1, "eu")})
    for member, news in list(zip(pool._members, (behind, ahead), strict=True))[:: -1 if first else 1]:
        pool._merge(member, news)
    assert pool._shown[BOARD].top.generation == 18
    pool._merge(pool._members[0], behind)
    pool._merge(pool._members[1], told(19, "lineage of there", THERE, 2, owners={}))
    assert pool._shown[BOARD].top.generation == 19


def test_an_older_generation_of_before_a_move_that_somebody_asks_for_takes_nothing_back() -> None:
    pool = ReplicaPool({"a": SimpleNamespace()})
    (member,) = pool._members
    pool._merge(member, told(18, "lineage of there", THERE, 2, owners={}))
    older = told(17, "lineage of here", HERE, 1, owners={}).tops[0]
    assert pool._take_answer(member, older, None)
    assert pool.is_newest(pool._shown[BOARD].top)


def test_a_replica_that_makes_generations_of_before_a_move_again_takes_nothing_back() -> None:
    """A slice of the new layout is being folded anew there, and the old layout's are done first."""
    pool = ReplicaPool({"a": SimpleNamespace()})
    (member,) = pool._members
    for generation, lineage, shard, layout in ((17, "lineage of here", HERE, 1), (18, "lineage of there", THERE, 2)) * 2:
        pool._merge(member, told(generation, lineage, shard, layout, owners={}))
        shown = pool._shown[BOARD].top.generation
        assert shown == 18 or pool._newest[BOARD].began[1] == 1, "17 only before 18 was told"
    assert pool._shown[BOARD].top.generation == 18
    pool._merge(member, told(17, "lineage of here", HERE, 1, owners={}))
    assert pool._shown[BOARD].top.generation == 18


def test_a_gateway_that_missed_removals_asks_its_pool_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.replica_pool, "REMOVED", 1)

    async def story() -> None:
        pool = ReplicaPool({"a": SimpleNamespace()})
        (member,) = pool._members
        pool._tasks["follow a"] = asyncio.get_running_loop().create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        for number in (1, 2):
            one = told(1, "l", HERE, 1, owners={})
            named = f"{BOARD}-{number}"
            pool._merge(
                member,
                msgspec.structs.replace(
                    one,
                    boards=[msgspec.structs.replace(one.boards[0], board_id=named)],
                    tops=[msgspec.structs.replace(one.tops[0], board_id=named)],
                ),
            )
        since = (await pool.news(0, 0.0)).seq
        pool._merge(member, News(seq=9, boards=[], tops=[], owners={}, serving=True, removed=[f"{BOARD}-{n}" for n in (1, 2)]))
        assert (await pool.news(since, 0.0)).seq == 0
        everything = await pool.news(0, 0.0)
        assert (everything.boards, everything.seq > since) == ([], True)
        await pool.close()

    asyncio.run(story())


def test_a_fold_of_shards_that_all_serve_waits_for_nothing() -> None:
    journals = Journals(SHARDS[:2])
    board = Board(journals, SHARDS[:2])
    board.put("p", 1)
    board.publish()
    region = folded(journals, random.Random(3))
    assert (region._waiting, [due for due in region._due.values() if due]) == ({}, [])
