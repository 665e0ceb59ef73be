"""Stories of stores that lost data, and of followers that lag; each ends with `Cluster.check`."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from inprocess_cluster import Cluster, tell, until
from inprocess_region import SHARD
from watched_log import WatchedLog

from failover.events import Role
from journal.ports import Granted, Seal


def known_amnesiac(c: Cluster, owner: str, region: str) -> bool:
    """The authority knows that this region's store lost data."""
    replication = c[owner].actor.state.replication
    return replication is not None and replication.peers[region].amnesiac


def empty(c: Cluster, region: str) -> WatchedLog:
    """A store in which nothing was ever written."""
    return WatchedLog(SHARD, region, c.watch)


# -- lag ------------------------------------------------------------------------------------------------------


def test_a_lagging_follower_catches_up_over_many_appends_out_of_order_and_twice(tmp_path: Path) -> None:
    """1. ap is cut off while more than a hundred entries are written. 2. The links heal, but deliver out of order and twice. 3. ap catches
    up by windows of Appends, while writes go on. I1, I3, I8."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.isolate("ap")
        while c["eu"].log.tail.offset < 130:
            await asyncio.gather(*(c.write(1) for _ in range(4)))
        c.heal()
        for wire in (c.wires["eu", "ap"], c.wires["ap", "eu"]):
            wire.delay_s, wire.again_after_s = 0.015, 0.02
        await c.write(10, through="us")
        await until(lambda: c["ap"].log.committed >= 130, "caught up")
        await c.check()

    tell(tmp_path, story)


def test_a_follower_that_lags_is_not_counted_until_it_holds_the_entries(tmp_path: Path) -> None:
    """1. us is away, ap lags far behind and its answers are slow. 2. A write is acknowledged only when ap holds it. I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.isolate("ap")
        for _ in range(10):
            await asyncio.gather(*(c.write(1) for _ in range(4)))
        c.stop("us")
        c.heal()
        sent = c.event()
        while sent.result is None:
            await c.send("eu", sent, direct=True)
        assert c["ap"].log.tail.offset >= sent.result.offset
        c.come_back("us")
        await c.check()

    tell(tmp_path, story)


# -- amnesia of a follower --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["an earlier copy", "an empty store"])
def test_a_follower_whose_store_lost_data_neither_votes_nor_counts_until_readmitted(tmp_path: Path, how: str) -> None:
    """1. ap's store is exchanged for an earlier copy, or an empty one. 2. The authority finds out: with us away nothing is acknowledged,
    with eu away nobody is promoted and nothing is sealed. 3. Its mark outlives the authority. 4. `readmit` brings it back: it votes and
    counts again. I1, I6, I7, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        copy = c["ap"].log.copied() if how == "an earlier copy" else empty(c, "ap")
        await c.write(5, through="us")
        await c.check()
        c["ap"].swap(copy)
        await until(partial(known_amnesiac, c, "eu", "ap"), "found amnesiac")
        await c.write(3, through="ap")
        c.stop("us")
        alone = c.event()
        await c.send("eu", alone, direct=True)
        assert alone.unknowns == 1
        c.come_back("us")
        await c.retry("us")
        await until(lambda: "ap" in c["us"].log.status().peers and c["us"].log.status().peers["ap"].amnesiac, "us knows too")
        c.stop("eu")
        fence = c["us"].log.status().fence
        outcome = await c.force("us")
        assert (outcome["ok"], outcome["code"], c["us"].log.status().fence) == (False, "no_majority", fence)
        outcome = await c.force("ap")
        assert (outcome["ok"], outcome["code"]) == (False, "amnesiac" if how == "an earlier copy" else outcome["code"])
        c.come_back("eu")
        owner = await c.authority("eu", above=1)
        answer = await c[owner].actor.moving.readmit("ap", "operator")
        assert answer["ok"], answer
        await c.write(2, through="ap")
        await c.check()
        c.stop("us")
        await c.write(3)
        c.come_back("us")
        c.stop("eu")
        assert (await c.force("ap"))["ok"]
        await c.write(3, through="us")
        c.come_back("eu")
        await c.check()

    tell(tmp_path, story)


def test_a_readmission_that_is_interrupted_can_be_done_again(tmp_path: Path) -> None:
    """1. ap is amnesiac. 2. It is begun anew, but the new epoch cannot start, since us is away. 3. The owner comes back to serving. 4. A
    second readmission ends well. I1, I6, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        copy = c["ap"].log.copied()
        await c.write(3)
        await c.check()
        c["ap"].swap(copy)
        await until(partial(known_amnesiac, c, "eu", "ap"), "found amnesiac")
        c.stop("us")
        answer = await c["eu"].actor.moving.readmit("ap", "operator")
        assert not answer["ok"], answer
        c.come_back("us")
        owner = await c.authority()
        assert (await c[owner].actor.moving.readmit("ap", "operator"))["ok"]
        await c.write(2, through="ap")
        await c.check()

    tell(tmp_path, story)


def test_a_store_that_has_promised_a_later_epoch_is_begun_anew_by_one_above_it(tmp_path: Path) -> None:
    """1. A coordinator seals ap's store and dies. 2. It is found to have lost data, so the owner ships to it no longer, and does not hear
    of that. 3. `readmit` takes an epoch above the promise first. Found by the simulator (seed 2001130). I10."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        await c.check()
        log = c["ap"].log
        newest = log.status().newest
        assert newest is not None
        sealed = log.seal(
            Seal(
                shard=SHARD, lineage=newest.lineage, config_version=newest.config_version, sender="us", incarnation="", request_id="r",
                epoch=7, target="us", attempt="dead", from_epoch=1, from_owner="eu",
            )
        )  # fmt: skip
        log.mark_amnesiac(log.status().incarnation)
        assert isinstance(sealed, Granted)
        owner = await c.authority()
        assert (await c[owner].actor.moving.readmit("ap", "operator"))["ok"]
        assert c[owner].actor.state.epoch > 7
        await c.write(2, through="ap")
        await c.check()

    tell(tmp_path, story)


def test_a_readmission_never_empties_a_store_that_the_committed_entries_rest_on(tmp_path: Path) -> None:
    """1. us lags: what is committed is held by eu and ap only. 2. An operator readmits ap, which is well. 3. It is refused, and ap keeps
    what it holds. I1."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2)
        await c.check()
        c.isolate("us")
        await c.write(5)
        await until(lambda: c["ap"].log.committed == c["eu"].log.tail.offset, "committed by eu and ap")
        tail = c["ap"].log.tail
        answer = await c["eu"].actor.moving.readmit("ap", "operator")
        assert not answer["ok"] and c["ap"].log.tail >= tail, answer
        c.heal()
        await c.authority("eu")
        await c.write(2)
        await c.check()

    tell(tmp_path, story)


# -- amnesia of the owner ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["an earlier copy", "an empty store"])
def test_an_owner_that_restarts_on_a_store_that_lost_data_does_not_serve(tmp_path: Path, how: str) -> None:
    """1. The owner's region stops; its disk is put back from an earlier copy, or is empty. 2. It starts: it is found amnesiac and seals
    nothing. 3. us is promoted with ap. 4. `readmit` brings eu back, and it may be promoted again. I1, I6, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        copy = c["eu"].log.copied() if how == "an earlier copy" else empty(c, "eu")
        await c.write(5, through="us")
        await c.check()
        fences = [c[name].log.status().fence for name in ("us", "ap")]
        c.stop("eu")
        c["eu"].swap(copy)
        c.come_back("eu")
        await until(lambda: c["eu"].role is Role.AMNESIAC, lambda: f"found amnesiac: {c.told()}")
        assert [c[name].log.status().fence for name in ("us", "ap")] == fences
        assert (await c.force("us"))["ok"]
        await c.write(3, through="ap")
        assert (await c["us"].actor.moving.readmit("eu", "operator"))["ok"]
        await c.write(3, through="ap")
        await c.check()
        assert (await c["eu"].actor.moving.handover("operator"))["ok"]
        await c.write(3, through="us")
        await c.check()

    tell(tmp_path, story)


def test_a_running_owner_whose_store_is_exchanged_steps_down_and_is_found_amnesiac(tmp_path: Path) -> None:
    """1. The owner's store is replaced by an earlier copy of itself. 2. Its next append does not fit: it steps down, probes, and is
    amnesiac. 3. us is promoted: nothing acknowledged is lost. I1, I4, I7, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        copy = c["eu"].log.copied()
        await c.write(10, through="us")
        await c.check()
        c["eu"].swap(copy)
        await until(lambda: c["eu"].role is Role.AMNESIAC, lambda: f"found amnesiac: {c.told()}")
        assert (await c.force("us"))["ok"]
        await c.write(3, through="ap")
        assert (await c["us"].actor.moving.readmit("eu", "operator"))["ok"]
        await c.check()

    tell(tmp_path, story)


def test_a_coordinator_that_finds_amnesia_and_dies_does_not_hide_it_from_the_next(tmp_path: Path) -> None:
    """1. us owns the shard; ap and us hold what eu, which lags, does not. 2. ap's store is put back to an earlier copy. 3. us restarts,
    sees the amnesia, seals, and dies before it starts. 4. eu, which remembers more of ap than ap has, may not be promoted with ap's
    vote: what us and ap had committed would be lost. I1, I13."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        assert (await c.force("us"))["ok"]
        await c.write(2)
        await c.check()
        copy = c["ap"].log.copied()
        await c.write(3)
        await c.check()  # eu remembers of ap what these entries were
        c.cut("us", "eu")
        c.cut("ap", "eu")
        c["us"].directory.owners[SHARD] = (2, "us")
        await c.write(5, through="us")
        c.crash("us")
        c["ap"].swap(copy)
        c.heal()
        c.start("us")
        c["us"].door.blocked.add("append")
        await until(lambda: c["us"].log.status().fence > 2, "sealed by us")
        await until(lambda: c["us"].role is not Role.SEALING, "all have answered")
        c.stop("us")
        outcome = await c.force("eu")
        assert not outcome["ok"] and outcome["code"] == "no_majority", (outcome, c.told())
        c.come_back("us")
        await c.authority("us", above=2)
        assert (await c["us"].actor.moving.readmit("ap", "operator"))["ok"]
        await c.write(2)
        await c.check()

    tell(tmp_path, story)
