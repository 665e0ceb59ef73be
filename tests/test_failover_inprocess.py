"""Stories of genesis, restarts and forced failovers on three regions in one process; each ends with `Cluster.check`."""

import asyncio
import itertools
import time
from functools import partial
from pathlib import Path

import pytest
from inprocess_cluster import REGIONS, Cluster, tell, until
from watched_log import WatchedLog

from actors.shard import TICK_S
from boards.model import Outcome
from failover.events import Role

ORDERS = list(itertools.permutations(REGIONS))


def names(order: tuple[str, ...]) -> str:
    return "-".join(order)


def looked_around(c: Cluster, name: str) -> bool:
    return c[name].role is not Role.BOOTING


def grown(log: WatchedLog, offset: int) -> bool:
    return log.tail.offset > offset


def answered(c: Cluster, before: int, count: int) -> bool:
    return sum(s.result is not None for s in c.clients[before:]) > count


# -- genesis ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS, ids=names)
def test_nothing_is_promised_or_served_before_all_three_regions_answer_the_first_start(tmp_path: Path, order: tuple[str, ...]) -> None:
    """1. All regions are away. 2. Two come, in any order: no fence moves, nobody serves. 3. The third comes: the home serves epoch 1.
    I2, I6."""

    async def story(c: Cluster) -> None:
        c.stop(*REGIONS)
        for name in order[:2]:
            c.come_back(name)
        probes = [i.actor.links for name in order[:2] for i in c[name].instances]
        await until(lambda: all(getattr(p, "sent").count("probe") >= 6 for p in probes), "both probe again and again")  # noqa: B009
        assert c.authorities() == []
        assert [r.log.status().fence for r in c.regions.values()] == [0, 0, 0]
        c.come_back(order[2])
        await c.authority("eu")
        await c.write(3, through="ap")
        await c.check()
        assert c.epochs() == [(1, "eu")]

    tell(tmp_path, story)


@pytest.mark.parametrize("reached", [(), ("us",), ("us", "ap")], ids=["own store", "two stores", "all stores"])
def test_a_first_start_that_dies_after_some_seals_is_begun_again(tmp_path: Path, reached: tuple[str, ...]) -> None:
    """1. The home seals at some stores. 2. It dies before its start record. 3. It starts again: one epoch serves. I2, I6."""

    async def story(c: Cluster) -> None:
        for other in {"us", "ap"} - set(reached):
            c.wires["eu", other].lost.add("seal")
        c.start()
        c["eu"].door.blocked.add("append")
        sealed = {"eu", *reached}
        await until(lambda: {r.name for r in c.regions.values() if r.log.status().fence} == sealed, "sealed where it should")
        c.crash("eu")
        assert all(r.log.tail.offset == 0 for r in c.regions.values())
        c.heal()
        c.come_back("eu")
        await c.authority("eu")
        await c.write(2)
        await c.check()
        assert len(c.epochs()) == 1

    tell(tmp_path, story)


def test_a_first_start_whose_record_reached_only_its_own_store_goes_on_after_a_restart(tmp_path: Path) -> None:
    """1. The start record is durable at home alone. 2. The home dies. 3. After its restart the lineage is the one that began. I1, I3."""

    async def story(c: Cluster) -> None:
        for other in ("us", "ap"):
            c.wires["eu", other].lost.add("append")
        c.start()
        await until(lambda: c["eu"].log.tail.offset == 1, "the record is at home")
        lineage = c["eu"].log.status().lineage
        c.crash("eu")
        c.heal()
        c.come_back("eu")
        await c.authority("eu")
        await c.write(2)
        await c.check()
        assert c["ap"].log.status().lineage == lineage
        assert [owner for _, owner in c.epochs()] == ["eu", "eu"]

    tell(tmp_path, story)


def test_while_a_start_record_is_on_its_way_its_store_is_asked_for_nothing_else(tmp_path: Path) -> None:
    """Whatever said what it takes for the tail there would be refused, and the epoch with it. 1. A failover. 2. Its start record is not
    stored for some ticks. 3. It is stored, and the new owner serves."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c["us"].door.blocked.add("append")
        moving = asyncio.create_task(c.force("us"))
        await until(lambda: c["us"].role is Role.STARTING, "its start record is on its way")
        asked, began = c["us"].door.news, time.monotonic()
        await until(lambda: time.monotonic() - began > 3 * TICK_S, "ticks pass")
        assert c["us"].door.news == asked
        c["us"].door.blocked.clear()
        assert (await moving)["ok"]
        await c.authority("us")
        await c.check()

    tell(tmp_path, story)


# -- restarts -----------------------------------------------------------------------------------------------


def test_a_restarted_authority_takes_a_new_epoch(tmp_path: Path) -> None:
    """1. Events are acknowledged. 2. The actor dies and comes back. 3. It serves a higher epoch; a retry is a duplicate. I1, I2, I4."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        (first, *_) = await c.write(3)
        await c.restart("eu")
        await c.authority("eu", above=1)
        (again,) = await c.send("us", first)
        assert again.outcome == Outcome.DUPLICATE and first.result is not None
        assert (again.epoch, again.offset, again.value) == (first.result.epoch, first.result.offset, first.result.value)
        await c.write(3)
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "eu")]

    tell(tmp_path, story)


def test_the_restart_of_a_deposed_region_follows_and_does_not_undo_the_failover(tmp_path: Path) -> None:
    """LB-115. 1. An operator moves authority from the home to us. 2. us accepts 30 events. 3. The home's actor restarts, twice: it follows,
    and nothing is lost. I1, I2."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c.stop("eu")
        assert (await c.force("us"))["ok"]
        await c.write(30, through="ap")
        c.come_back("eu")
        await until(lambda: c["eu"].role is Role.FOLLOWER and "us owns" in c["eu"].actor.state.why, "the home follows")
        await c.restart("eu")
        await until(lambda: c["eu"].role is Role.FOLLOWER and "us owns" in c["eu"].actor.state.why, "the home follows again")
        assert len(await c.check()) == 33
        assert c.epochs() == [(1, "eu"), (2, "us")]

    tell(tmp_path, story)


@pytest.mark.parametrize("order", ORDERS, ids=names)
def test_after_a_full_stop_the_last_owner_is_the_one_authority(tmp_path: Path, order: tuple[str, ...]) -> None:
    """LB-114. 1. us took the shard over from the home. 2. Everything stops. 3. All start in any order: us serves, alone, without a manual
    edit. I1, I2, I6, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        assert (await c.force("us"))["ok"]
        await c.write(2)
        c.stop(*REGIONS)
        for name in order:
            c.come_back(name)
            await until(partial(looked_around, c, name), "it looked around")
        await c.authority("us", above=2)
        await c.write(2, through="eu")
        assert len(await c.check()) == 6

    tell(tmp_path, story)


def test_submits_during_a_restart_are_acknowledged_or_refused_and_none_is_lost(tmp_path: Path) -> None:
    """LB-134. 1. The authority's actor is gone. 2. 100 events come from all regions. 3. It comes back within the hold time. I4, I7, I9."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.crash("eu")
        events = [c.event() for _ in range(100)]
        sends = [asyncio.ensure_future(c.send(REGIONS[n % 3], sent)) for n, sent in enumerate(events)]
        await asyncio.sleep(0)
        c.come_back("eu")
        await asyncio.gather(*sends)
        assert all(s.result is not None or s.refusals or s.unknowns for s in events)
        await c.retry("ap")
        assert len(await c.check()) == 100

    tell(tmp_path, story)


def test_kills_between_applied_and_replied_never_count_an_event_twice(tmp_path: Path) -> None:
    """LB-135. 1. `+1` to one player is appended and its answer lost, or the actor is killed then. 2. The client sends the same id again.
    3. The total is the number of ids. I4, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        for n in range(12):
            sent = c.event(1, player="one")
            if n % 2:
                c["eu"].door.answers_to_lose = 1
                await c.send("us", sent)
            else:
                tail, asking = c["eu"].log.tail.offset, asyncio.ensure_future(c.send("us", sent))
                await until(partial(grown, c["eu"].log, tail), "it is appended")
                await c.restart("eu")
                await asking
            await c.authority("eu")
            while sent.result is None:
                await c.send("ap", sent)
        events = await c.check()
        assert max(applied.value for applied in events.values()) == 12

    tell(tmp_path, story)


# -- forced failover ----------------------------------------------------------------------------------------


def test_forced_failover_away_from_a_dead_owner_loses_nothing(tmp_path: Path) -> None:
    """1. Clients of all regions write. 2. The owner's region dies. 3. us is promoted; clients retry with the same ids. 4. The dead region
    comes back and catches up. I1, I4, I7, I8, I9."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over))
        await until(partial(answered, c, 0, 40), "load")
        c.stop("eu")
        assert (await c.force("us", (1, "eu")))["ok"]
        before = len(c.clients)
        await until(partial(answered, c, before, 40), "load on the new owner")
        c.come_back("eu")
        over.set()
        await load
        await c.retry("us")
        assert len(await c.check()) == len(c.clients)

    tell(tmp_path, story)


def test_forced_failover_of_a_living_owner_under_load_fences_it(tmp_path: Path) -> None:
    """1. Load. 2. us is promoted while the owner is well, and back, three times. 3. The deposed one follows. I1, I2, I4, I7, I9, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over))
        for target in ("us", "ap", "eu"):
            before = len(c.clients)
            await until(partial(answered, c, before, 20), "load")
            assert (await c.force(target))["ok"]
        over.set()
        await load
        await c.retry("eu")
        await c.check()
        assert [owner for _, owner in c.epochs()] == ["eu", "us", "ap", "eu"]

    tell(tmp_path, story)


@pytest.mark.parametrize("way", ["both ways", "outward", "inward"])
def test_an_owner_cut_off_by_the_switch_is_fenced_and_keeps_its_orphans(tmp_path: Path, way: str) -> None:
    """LB-125. 1. The owner is cut off and appends 5 events that nobody else gets, or nobody confirms. 2. us is promoted and goes on.
    3. The clients of the 5 got `unknown`. 4. After healing the old owner is fenced and cut; what it alone had is kept as orphans.
    5. The same ids are sent again: each is there exactly once. I1, I3, I4, I7, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(4)
        for other in ("us", "ap"):
            if way != "inward":
                c.cut("eu", other, one_way=True)
            if way != "outward":
                c.cut(other, "eu", one_way=True)
        lonely = [c.event() for _ in range(5)]
        asking = [asyncio.ensure_future(c.send("eu", sent, direct=True)) for sent in lonely]
        await until(lambda: any(entry.epoch == 1 for entry in c["eu"].log.read(c["eu"].log.committed + 1)), "appended alone")
        assert (await c.force("us", (1, "eu")))["ok"]
        await c.write(4, through="ap")
        await asyncio.gather(*asking)
        assert all(s.unknowns == 1 and s.result is None for s in lonely)
        c.heal()
        await until(lambda: c["eu"].log.tail == c["us"].log.tail and c["eu"].role is Role.FOLLOWER, lambda: f"caught up: {c.told()}")
        if way != "inward":
            assert sum(len(batch.entries) for batch in c["eu"].log.orphans()) >= 1
        await c.retry("us")
        events = await c.check()
        assert len(events) == 13
        assert c.epochs() == [(1, "eu"), (2, "us")]

    tell(tmp_path, story)


@pytest.mark.parametrize("reached", [("us",), ("us", "ap"), ("us", "eu"), ("us", "ap", "eu")], ids=names)
def test_a_coordinator_that_dies_after_some_seals_leaves_no_dead_shard(tmp_path: Path, reached: tuple[str, ...]) -> None:
    """1. us seals at some stores and dies. 2. The old authority steps down. 3. Nobody starts the sealed epoch, so it activates again by
    itself, in a higher one. I1, I2, I6, I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        for other in {"eu", "ap"} - set(reached):
            c.wires["us", other].lost.add("seal")
        c["us"].door.blocked.add("append")
        asked = asyncio.ensure_future(c.force("us"))
        await until(lambda: {r.name for r in c.regions.values() if r.log.status().granted_region == "us"} == set(reached), "sealed")
        c.crash("us")
        asked.cancel()
        c.heal()
        await c.authority("eu", above=2)
        await c.write(3, through="ap")
        c.come_back("us")
        await c.check()
        assert [owner for _, owner in c.epochs()] == ["eu", "eu"]

    tell(tmp_path, story)


def test_two_coordinators_at_once_end_with_one_authority(tmp_path: Path) -> None:
    """1. Under load, one operator promotes us and another ap, both to depose epoch 1. 2. At most one of them starts (the old
    owner may come between them), and each is told.
    I1, I2, I4, I6, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over, through=("eu", "ap")))
        await until(partial(answered, c, 0, 20), "load")
        first, second = await asyncio.gather(c.force("us", (1, "eu")), c.force("ap", (1, "eu")))
        assert not (first["ok"] and second["ok"]), (first, second)
        assert {first["code"], second["code"]} <= {"started", "moved"}, (first, second)
        over.set()
        await load
        await c.retry("eu")
        await c.check()

    tell(tmp_path, story)


def test_double_failover_with_each_owner_isolated_keeps_every_acknowledged_event(tmp_path: Path) -> None:
    """1. The owner is isolated with events of its own. 2. us is promoted and acknowledges events with ap alone. 3. us is isolated, with
    events of its own, and the first owner is healed but lags. 4. Authority goes back to it: it must take ap's log. I1, I3, I4, I7, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c.isolate("eu")
        lonely = [c.event() for _ in range(3)]
        asking = [asyncio.ensure_future(c.send("eu", sent, direct=True)) for sent in lonely]
        await until(lambda: c["eu"].log.tail.offset > c["eu"].log.committed, "alone")
        assert (await c.force("us"))["ok"]
        await c.write(5, through="ap")
        c.heal()
        c.isolate("us")
        more = [c.event() for _ in range(3)]
        asking += [asyncio.ensure_future(c.send("us", sent, direct=True)) for sent in more]
        await until(lambda: c["us"].log.tail.offset > c["ap"].log.committed, "alone again")
        assert (await c.force("eu"))["ok"]
        await c.write(4, through="ap")
        await asyncio.gather(*asking)
        c.heal()
        await c.retry("us")
        assert len(await c.check()) == 18
        assert [owner for _, owner in c.epochs()] == ["eu", "us", "eu"]

    tell(tmp_path, story)


def test_a_returning_region_with_a_longer_but_older_log_loses(tmp_path: Path) -> None:
    """1. The isolated owner appends 40 entries of epoch 1. 2. us starts epoch 2 with ap and a few entries. 3. us dies; eu and ap are left:
    eu's log is longer, ap's is ahead by (last epoch, last offset). 4. eu is promoted and must adopt ap's. I1, I3, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        c.isolate("eu")
        asking = []
        for _ in range(40):
            asking.append(asyncio.ensure_future(c.send("eu", c.event(), direct=True)))
            tail = c["eu"].log.tail.offset
            await until(partial(grown, c["eu"].log, tail), "one entry more")
        assert (await c.force("us"))["ok"]
        await c.write(3, through="ap")
        await asyncio.gather(*asking)
        c.stop("us")
        c.heal()
        assert c["eu"].log.tail.offset > c["ap"].log.tail.offset
        c["eu"].actor.state.look_at_ms = None  # it must be asked before it is healed by an authority
        assert (await c.force("eu"))["ok"]
        c.come_back("us")
        await c.retry("ap")
        await c.check()

    tell(tmp_path, story)
