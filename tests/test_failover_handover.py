"""Stories of planned handovers, and of two instances of one region's actor; each ends with `Cluster.check`."""

import asyncio
from pathlib import Path

import pytest
from inprocess_cluster import Cluster, tell, until

from actors.messages import BoardExists
from actors.waiting import Deposed
from boards.policies import make_rules
from failover.events import Role
from journal.records import EpochStarted, HandedOver, open_entry


def causes(c: Cluster) -> list[str]:
    """Cause of each epoch in the most advanced log."""
    log = max((r.log for r in c.regions.values()), key=lambda log: log.tail)
    return [record.cause for entry in log.read(1, limit=10**6) for record in open_entry(entry) if isinstance(record, EpochStarted)]


async def loaded(c: Cluster, count: int = 20) -> None:
    """Wait until so many more events were answered."""
    before = sum(s.result is not None for s in c.clients)
    await until(lambda: sum(s.result is not None for s in c.clients) >= before + count, "load")


# -- planned handover -----------------------------------------------------------------------------------------


def test_a_planned_handover_under_load_loses_no_event_and_leaves_none_unknown(tmp_path: Path) -> None:
    """1. Clients of all regions write. 2. Authority goes to us, to ap and home again. 3. No event was ever unknown. I1, I4, I7, I9."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over))
        for target in ("us", "ap", "eu"):
            await loaded(c)
            outcome = await c[target].actor.moving.handover("operator")
            assert outcome["ok"], outcome
        await loaded(c)
        over.set()
        await load
        assert sum(s.unknowns for s in c.clients) == 0
        await c.retry("ap")
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "us"), (3, "ap"), (4, "eu")]
        assert causes(c)[1:] == ["handover"] * 3
        log = c["eu"].log.read(1, limit=10**6)
        handed = [(entry.epoch, record.to) for entry in log for record in open_entry(entry) if isinstance(record, HandedOver)]
        assert handed == [(1, "us"), (2, "ap"), (3, "eu")]

    tell(tmp_path, story)


def test_a_drained_owner_refuses_and_a_lost_drain_reply_leaves_no_dead_shard(tmp_path: Path) -> None:
    """1. The reply to Drain is lost. 2. The owner is drained: it refuses definitely, and appends nothing in that epoch. 3. Nobody comes, so
    it activates again, as a new epoch. I2, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c.wires["eu", "us"].lost.add("drain reply")
        asked = asyncio.ensure_future(c["us"].actor.moving.handover("operator"))
        await until(lambda: c["eu"].role is Role.DRAINED, "drained")
        refused = c.event()
        await c.send("eu", refused, direct=True)
        assert refused.refusals == ["draining"]
        await c.authority("eu", above=1)
        asked.cancel()
        c.heal()
        await c.retry("ap")
        await c.check()
        assert [owner for _, owner in c.epochs()] == ["eu", "eu"]

    tell(tmp_path, story)


def test_a_handover_whose_drain_reply_was_lost_can_be_asked_for_again(tmp_path: Path) -> None:
    """1. The reply to Drain is lost. 2. The operator asks again at once: the drained owner names its record. 3. us serves. I2."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c.wires["eu", "us"].lost.add("drain reply")
        asked = asyncio.ensure_future(c["us"].actor.moving.handover("operator"))
        await until(lambda: c["eu"].role is Role.DRAINED, "drained")
        asked.cancel()
        c.heal()
        outcome = await c["us"].actor.moving.handover("operator")
        assert outcome["ok"], outcome
        await c.write(2, through="ap")
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "us")]

    tell(tmp_path, story)


@pytest.mark.parametrize("lost", ["drain", "probe", "seal", "append", "fetch"])
def test_a_handover_interrupted_at_any_message_ends_with_one_authority(tmp_path: Path, lost: str) -> None:
    """1. One kind of message of the target is lost. 2. Whatever came of the handover, one region serves. 3. The links heal. I1, I2, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over, through=("eu", "ap")))
        await loaded(c)
        for other in ("eu", "ap"):
            c.wires["us", other].lost.add(lost)
        asked = asyncio.ensure_future(c["us"].actor.moving.handover("operator"))
        done, _ = await asyncio.wait([asked], timeout=0.8)
        if lost == "fetch":
            assert done and asked.result()["ok"]
        c.heal()
        asked.cancel()
        await c.authority()
        await loaded(c)
        over.set()
        await load
        await c.retry("ap")
        await c.check()

    tell(tmp_path, story)


def test_a_target_that_dies_after_the_drain_leaves_the_owner_to_activate_again(tmp_path: Path) -> None:
    """1. The owner is drained. 2. The target's region dies. 3. The owner waits for the handover, then serves a new epoch (and once
    more a higher one, if the dead target's store had promised that one). The drained one is never taken up again. I2, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c["us"].door.blocked.add("append")
        for other in ("eu", "ap"):
            c.wires["us", other].lost.add("seal")
        asked = asyncio.ensure_future(c["us"].actor.moving.handover("operator"))
        await until(lambda: c["eu"].role is Role.DRAINED, "drained")
        c.stop("us")
        asked.cancel()
        await c.authority("eu", above=1)
        c.heal()
        await c.write(3, through="ap")
        c.come_back("us")
        await c.check()
        assert {owner for _, owner in c.epochs()} == {"eu"}

    tell(tmp_path, story)


def test_a_drain_that_is_deposed_answers_that_it_did_not_finish(tmp_path: Path) -> None:
    """1. The owner drains, but nobody confirms its record. 2. ap is promoted by force meanwhile. 3. Drain answers None. I2, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        await c.check()
        for other in ("us", "ap"):
            c.wires["eu", other].lost.add("append")
        draining = asyncio.ensure_future(c["eu"].actor.moving.drain(1, "us", "operator"))
        await until(lambda: c["eu"].log.tail.offset > c["eu"].log.committed, "its record is appended")
        assert (await c.force("ap"))["ok"]
        assert await draining is None
        c.heal()
        await c.write(2, through="us")
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "ap")]

    tell(tmp_path, story)


# -- two instances of one actor ---------------------------------------------------------------------------------


def test_of_two_instances_under_load_the_older_exits_and_nothing_is_applied_twice(tmp_path: Path) -> None:
    """1. Load goes to the first instance. 2. A second one of the region starts and takes a new epoch. 3. The first one's next append is
    refused by its own store: it exits. I2, I4, I6, I7, I9."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over))
        await loaded(c)
        (zombie,) = c["eu"].instances
        late = [c.event() for _ in range(5)]
        c.start("eu")
        asking = [asyncio.ensure_future(c.send("eu", sent, to=zombie)) for sent in late]
        await until(zombie.dead.is_set, "the older one exits")
        assert c.exits == [("eu", "superseded by a newer instance of this actor")]
        await c.authority("eu", above=1)
        await loaded(c)
        over.set()
        await asyncio.gather(load, *asking)
        await c.retry("us")
        await c.check()

    tell(tmp_path, story)


def test_a_sleeping_instance_that_wakes_after_its_successor_exits_without_a_trace(tmp_path: Path) -> None:
    """1. The first instance falls asleep with events in hand. 2. A second one serves; the clients retried there. 3. The first wakes: FENCED
    by its own store, it exits, and nothing of what it held is appended. I2, I4, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        await c.check()
        (zombie,) = c["eu"].instances
        zombie.door.awake.clear()
        held = [c.event() for _ in range(4)]
        asking = [asyncio.ensure_future(c.send("eu", sent, to=zombie)) for sent in held]
        c.start("eu")
        await until(lambda: c["eu"].role is Role.AUTHORITY, "the second serves")
        await c.retry("us")
        zombie.door.awake.set()
        await until(zombie.dead.is_set, "it exits")
        await asyncio.gather(*asking)
        assert len(await c.check()) == 7
        assert c.epochs() == [(1, "eu"), (2, "eu")]

    tell(tmp_path, story)


def test_a_sleeping_instance_that_wakes_after_a_failover_to_another_region_does_no_harm(tmp_path: Path) -> None:
    """1. The owner's instance falls asleep with events in hand. 2. A second instance starts, then us is promoted. 3. The sleeper wakes into
    epoch 3 of us: it appends nothing and does not take the shard back. I1, I2, I4, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        await c.check()
        (zombie,) = c["eu"].instances
        zombie.door.awake.clear()
        held = [c.event() for _ in range(4)]
        asking = [asyncio.ensure_future(c.send("eu", sent, to=zombie)) for sent in held]
        c.start("eu")
        await until(lambda: c["eu"].role is Role.AUTHORITY, "the second serves")
        assert (await c.force("us"))["ok"]
        await c.retry("ap")
        zombie.door.awake.set()
        await until(lambda: zombie.actor.writer is None, "it stepped down")
        await asyncio.gather(*asking)
        state = zombie.actor.state
        await until(lambda: state.role is Role.FOLLOWER and "us owns" in state.why, "it follows")
        assert len(await c.check()) == 7
        assert c.epochs() == [(1, "eu"), (2, "eu"), (3, "us")]

    tell(tmp_path, story)


def test_two_instances_that_boot_together_end_with_one_authority(tmp_path: Path) -> None:
    """1. Two instances of the home start at the same moment, three times over. 2. One serves. I2, I6, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        for _ in range(3):
            c.crash("eu")
            c.start("eu", "eu")
            await c.authority("eu")
            await c.write(2, through="us")
        await c.check()

    tell(tmp_path, story)


def test_answers_of_an_epoch_never_come_from_the_commits_of_the_next(tmp_path: Path) -> None:
    """1. The owner decides an event for offset n, and steps down in the same turn, before the event's answer has begun to wait. 2. The same
    actor activates again, and its new epoch commits offset n. 3. The wait of the first epoch ends as deposed. I7, I12."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        await c.check()
        actor, waiters, following = c["eu"].actor, c["eu"].actor.waiters, c["eu"].log.tail.offset + 1
        assert (await c.force("eu"))["ok"]
        await c.write(2)
        assert c["eu"].actor is actor and c["eu"].log.committed >= following
        with pytest.raises(Deposed):
            await waiters.wait(following, 1.0)
        await c.check()

    tell(tmp_path, story)


def test_a_board_that_is_not_committed_yet_decides_no_answer(tmp_path: Path) -> None:
    """1. A board is created, and nobody confirms it. 2. The same board is asked for again, and with other rules. 3. All three answers wait.
    I7, I12."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(1)
        await c.check()
        for other in ("us", "ap"):
            c.wires["eu", other].lost.add("append")
        actor, rules, others = c["eu"].actor, make_rules("latest"), make_rules("fastest_time")
        ask = [asyncio.ensure_future(actor.create_board("arena:new:S1:all", wanted, "tests")) for wanted in (rules, rules, others)]
        await until(lambda: c["eu"].log.tail.offset > c["eu"].log.committed, "appended")
        ask += [asyncio.ensure_future(actor.create_board("arena:new:S1:all", wanted, "tests")) for wanted in (rules, others)]
        done, _ = await asyncio.wait(ask, timeout=0.15)
        assert not done
        c.heal()
        answers = await asyncio.gather(*ask, return_exceptions=True)
        assert [a[1] for a in answers if isinstance(a, tuple)] == [True, False, False]
        assert [n for n, a in enumerate(answers) if isinstance(a, BoardExists)] == [2, 4]
        await c.check()

    tell(tmp_path, story)
