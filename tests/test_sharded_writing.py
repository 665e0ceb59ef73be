"""A board over three shards: its lead makes generations of committed marks, whatever happens to the shards (I8, I11)."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inprocess_cluster import Cluster, until
from inprocess_region import Region
from watched_log import Sent

from actors import board_changes
from actors.board_changes import Slice
from actors.messages import NoAuthority
from actors.writing import MUCH, Writer
from boards.comparator import sort_key
from boards.model import Layout, Outcome, Row
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.ports import Position
from journal.records import BoardCreated, Manifest, Marked, Record, open_entry

BOARD = "arena:wide:S1:all"
SHARDS = ("eu/0", "eu/1", "eu/2")
RULES = make_rules("cumulative", publish_interval_ms=50)


def wide(path: Path) -> Cluster:
    return Cluster(path, shards=dict.fromkeys(SHARDS, "eu"), boards={BOARD: (RULES, SHARDS)})


async def begun(cluster: Cluster) -> None:
    cluster.start()
    await cluster.all_authorities()
    for region in cluster.regions.values():
        await until(lambda region=region: newest(region) is not None, "the board is whole")  # type: ignore[misc]


def series(region: Region) -> Any:
    assert region.replica is not None
    return region.replica.fold.boards.get(BOARD)


def newest(region: Region) -> Any:
    found = series(region)
    return None if found is None else found.newest


def number(region: Region) -> int:
    generation = newest(region)
    return -1 if generation is None else int(generation.number)


def records(cluster: Cluster, shard: str, kind: type[Record]) -> list[Any]:
    log = cluster["eu"][shard].log
    entries = log.read(1, limit=log.tail.offset)
    return [record for entry in entries for record in open_entry(entry) if type(record) is kind]


async def shown(cluster: Cluster, sent: list[Sent]) -> None:
    """Every region shows a generation with what was acknowledged, and the rows are those of a plain sum."""
    totals: dict[str, int] = {}
    for one in sent:
        totals[one.player] = totals.get(one.player, 0) + one.amount
    for region in cluster.regions.values():

        def all_there(region: Region = region) -> bool:
            view = newest(region).view
            return {p.player_id: p.value for p in view.page(0, view.total)} == totals

        await until(all_there, f"{region.name} shows everything")


async def write(cluster: Cluster, count: int, *, through: str = "eu") -> list[Sent]:
    sent = []
    for n in range(count):
        event = cluster.event(n % 9 + 1, player=f"player-{n % 40}", board=BOARD)
        while event.result is None:
            await cluster.send(through, event)
        sent.append(event)
    return sent


def test_every_region_shows_the_same_generations_of_a_board_over_three_shards(tmp_path: Path) -> None:
    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            sent = [*await write(cluster, 60), *await write(cluster, 30, through="ap")]
            assert {s.result.shard for s in sent if s.result is not None} == set(SHARDS)
            for one in sent:
                assert one.result is not None
                assert one.result.shard == SHARDS[slice_of(one.player, 3)]
            await shown(cluster, sent)
            await cluster.check()
            for manifest in records(cluster, SHARDS[0], Manifest):
                for shard, mark in zip(SHARDS, manifest.marks, strict=True):
                    (entry,) = cluster["us"][shard].log.read(mark.offset, limit=1)
                    assert entry.epoch == mark.epoch
                    assert any(type(record) is Marked for record in open_entry(entry))

    asyncio.run(story())


def test_the_order_over_shards_is_the_order_of_an_offline_sort(tmp_path: Path) -> None:
    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            await shown(cluster, await write(cluster, 120))
            region = cluster["us"]
            rows: dict[str, Row] = {}
            for shard in SHARDS:
                ledger, tail = region[shard].actor.ledger, cluster["eu"][shard].log.tail
                await until(lambda ledger=ledger, tail=tail: ledger.applied >= tail, "its ledger holds what the replica shows")  # type: ignore[misc]
                for n in ledger.numbers(BOARD):
                    with ledger.reader() as reader:
                        rows |= dict(reader.rows(n))
            view = newest(region).view
            expected = [player for player, _ in sorted(rows.items(), key=sort_key(RULES))]
            assert [p.player_id for p in view.page(0, view.total)] == expected

    asyncio.run(story())


def test_a_missing_shard_delays_publication_and_the_last_complete_generation_stays(tmp_path: Path) -> None:
    """1. All is shown. 2. One shard's actors are gone; others take writes. 3. Nothing new is shown. 4. It is back: all is shown."""

    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            sent = await write(cluster, 40)
            await shown(cluster, sent)
            cluster.crash("eu", "us", "ap", shards=("eu/1",))
            last = {name: number(region) for name, region in cluster.regions.items()}
            marked = len(records(cluster, "eu/2", Marked))
            for n in range(30):
                player = next(p for p in (f"q{n}-{k}" for k in range(50)) if slice_of(p, 3) != 1)
                event = cluster.event(5, player=player, board=BOARD)
                while event.result is None:
                    await cluster.send("us", event)
                sent.append(event)
            lead = cluster["eu"]["eu/0"].actor
            await until(lambda: lead.status()["waiting_for_marks"].get(BOARD, {}).get("missing") == ["eu/1"], "the lead waits for it")
            await until(lambda: lead.status()["waiting_for_marks"][BOARD]["for_ms"] > 200, "ten rounds' time")
            assert {name: number(region) for name, region in cluster.regions.items()} == last
            assert len(records(cluster, "eu/2", Marked)) <= marked + 2, "who has answered is not asked again and again"
            cluster.start(shards=("eu/1",))
            await cluster.authority(shard="eu/1")
            await shown(cluster, sent)
            await cluster.check()

    asyncio.run(story())


def test_generations_go_on_when_shards_and_lead_are_owned_by_different_regions(tmp_path: Path) -> None:
    """1. A slice's shard fails over, then 2. the lead's, under writes; numbers go on without a gap or a second boundary."""

    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            sent = await write(cluster, 30)
            await shown(cluster, sent)
            before = number(cluster["eu"])
            await cluster["us"]["eu/1"].actor.moving.activate("forced", "operator", None, timeout_s=3.0)
            await cluster.authority("us", shard="eu/1")
            sent += await write(cluster, 30, through="ap")
            await shown(cluster, sent)
            await cluster["ap"]["eu/0"].actor.moving.activate("forced", "operator", None, timeout_s=3.0)
            await cluster.authority("ap", shard="eu/0")
            sent += await write(cluster, 30, through="us")
            await shown(cluster, sent)
            assert number(cluster["us"]) > before
            made = [m.generation for m in records(cluster, "eu/0", Manifest)]
            assert made == list(range(1, len(made) + 1))
            await cluster.check()

    asyncio.run(story())


def test_whoever_leads_next_goes_on_numbering_after_kills_under_writes(tmp_path: Path) -> None:
    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            chosen = random.Random(4)
            sent: list[Sent] = []
            for _ in range(4):
                writing = asyncio.create_task(write(cluster, 25, through=chosen.choice(("eu", "us", "ap"))))
                await asyncio.sleep(0)
                await cluster.restart("eu", shards=(chosen.choice(SHARDS), "eu/0"))
                sent += await writing
            await cluster.all_authorities()
            await shown(cluster, sent)
            await cluster.check()
            made = [m.generation for m in records(cluster, "eu/0", Manifest)]
            assert made == list(range(1, len(made) + 1))

    asyncio.run(story())


def test_a_removed_board_is_gone_everywhere_and_its_next_life_knows_nothing_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            (event,) = await write(cluster, 1)
            await shown(cluster, [event])
            lead = cluster["eu"]["eu/0"].actor
            state = lead.ledger.board(BOARD)
            assert state is not None
            reply = await cluster["eu"].operate(
                "eu/0", {"do": "remove_board", "board": BOARD, "incarnation": state.incarnation, "asked_by": "op"}
            )
            assert reply == {"ok": True}
            await until(
                lambda: (
                    all(not cluster["ap"][shard].actor.ledger.numbers(BOARD) for shard in SHARDS)
                    and all(series(cluster[name]) is None for name in ("eu", "us", "ap"))
                ),
                "nothing is left of it",
            )
            await cluster.restart("eu", shards=("eu/0",))
            await until(lambda: cluster.authorities("eu/0"), "the lead is back")
            assert lead.ledger is not cluster["eu"]["eu/0"].actor.ledger
            assert not cluster["eu"]["eu/0"].actor.ledger.numbers(BOARD), "the configuration does not bring it back"
            made = await cluster["eu"].operate(
                "eu/0",
                {
                    "do": "create_board",
                    "board": BOARD,
                    "rules": {"policy": "cumulative", "direction": "higher", "ties": "achieved_at", "publish_interval_ms": 50},
                    "layout": {"number": 1, "shards": list(SHARDS)},
                    "asked_by": "op",
                },
            )
            assert made["created"] is True
            for region in cluster.regions.values():
                await until(lambda region=region: newest(region) is not None, "the new life is whole")  # type: ignore[misc]
            again = Sent(board=BOARD, player=event.player, event_id=event.event_id, amount=event.amount, sent=0)
            while again.result is None:
                await cluster.send("eu", again)
            assert again.result.outcome == Outcome.APPLIED_FIRST, "its identities are its own"
            await shown(cluster, [again])

    asyncio.run(story())


def test_a_late_order_of_a_life_that_is_gone_makes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            state = cluster["eu"]["eu/0"].actor.ledger.board(BOARD)
            assert state is not None
            order = {
                "do": "mark",
                "slice": msgspec.to_builtins(Slice(BOARD, state.incarnation, RULES, Layout(1, SHARDS), 1, "x", 1)),
                "generation": 1,
                "lead_epoch": 1,
                "keeps": 0,
            }
            made = len(records(cluster, "eu/1", BoardCreated))
            await cluster["eu"].operate(
                "eu/1", {"do": "remove_slice", "board": BOARD, "incarnation": "other", "layout": 1, "asked_by": "x"}
            )
            assert len(records(cluster, "eu/1", BoardCreated)) == made
            await cluster["eu"].operate("eu/0", {"do": "remove_board", "board": BOARD, "incarnation": state.incarnation, "asked_by": "op"})
            await until(lambda: not cluster["eu"]["eu/1"].actor.ledger.numbers(BOARD), "the slice is gone")
            reply = await cluster["eu"].operate("eu/1", order)
            assert reply["ok"] is False
            assert reply["error"]["kind"] == "UnknownBoard"
            assert len(records(cluster, "eu/1", BoardCreated)) == made

    asyncio.run(story())


def test_a_deposed_authority_repeats_no_mark_of_a_slice_that_rests(tmp_path: Path) -> None:
    """1. A slice rests. 2. Its authority is cut off, and another region takes the shard. 3. The old one is asked for a mark.

    What the other one has acknowledged since is not in that mark: as an answer it would date a generation that lacks it.
    """

    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            await shown(cluster, await write(cluster, 30))
            old = cluster["eu"]["eu/1"].actor
            state = old.ledger.board(BOARD)
            assert state is not None
            assert not state.unpublished
            wanted = Slice(BOARD, state.incarnation, RULES, Layout(1, SHARDS), 1, "x", 1)
            order = board_changes.mark(wanted, generation=state.generation + 1, lead_epoch=state.lead_epoch, keeps=0)
            assert await old.change(order, last=True, committed=True) == state.mark
            cluster.isolate("eu")
            await cluster["us"]["eu/1"].actor.moving.activate("forced", "operator", None, timeout_s=3.0)
            assert old.writer is not None, "it has not heard of it"
            with pytest.raises(NoAuthority):
                await old.change(order, last=True, committed=True)
            cluster.heal()
            await cluster.authority("us", shard="eu/1")
            await cluster.check()

    asyncio.run(story())


def test_what_rests_is_marked_without_waiting_for_a_heartbeat_and_without_an_entry(tmp_path: Path) -> None:
    """Here no heartbeat ever comes by itself. Several that ask at once are confirmed together."""

    async def story() -> None:
        async with wide(tmp_path) as cluster:
            await begun(cluster)
            await shown(cluster, await write(cluster, 30))
            actor = cluster["eu"]["eu/1"].actor
            state, replication, tail = actor.ledger.board(BOARD), actor.state.replication, actor.state.tail
            assert state is not None
            assert replication is not None
            replication.heartbeat_ms = 10**9
            wanted = Slice(BOARD, state.incarnation, RULES, Layout(1, SHARDS), 1, "x", 1)
            order = board_changes.mark(wanted, generation=state.generation + 1, lead_epoch=state.lead_epoch, keeps=0)
            for _ in range(5):
                marks = await asyncio.gather(*(actor.change(order, last=True, committed=True) for _ in range(3)))
                assert marks == [state.mark] * 3
            assert actor.state.tail == tail

    asyncio.run(story())


def test_a_writer_remembers_only_boards_that_have_to_wait_for_their_next_generation() -> None:
    unused: Any = None
    writer = Writer(
        shard="s",
        epoch=1,
        tail=Position(1, 1),
        ledger=unused,
        pending=unused,
        limits=unused,
        waiters=unused,
        append=unused,
        wall_ms=unused,
        monotonic_ms=unused,
        new_id=unused,
        heard=unused,
    )
    for now in range(20 * MUCH):
        writer._publish_again(number=now, now_ms=now, at_ms=now + 10)
        assert len(writer.not_before_ms) <= MUCH
        assert all(writer.not_before_ms[number] == number + 10 for number in range(max(0, now - 9), now + 1))
