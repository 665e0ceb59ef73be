"""`on_region_loss: promote` on three regions in one process: who takes over, when, and when nobody does (I10)."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from inprocess_cluster import TIMING, Cluster, tell, until

from failover.events import Role

DETECTION_MS = 250
PROMOTE = replace(TIMING, detection_ms=DETECTION_MS)


def test_a_lost_region_is_replaced_by_the_first_of_the_others_within_its_detection_time_and_follows_when_it_returns(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3, through="ap")
        c.stop("eu")
        lost = time.monotonic()
        await until(lambda: c.authorities() == ["us"], lambda: str(c.told()))
        assert (time.monotonic() - lost) * 1000 >= DETECTION_MS * 0.7, "not before the region was silent for so long"
        await c.write(3, through="ap")
        c.come_back("eu")
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "us")]

    tell(tmp_path, story, timing=PROMOTE)


def test_a_region_that_is_heard_but_hears_nobody_is_lost_too(tmp_path: Path) -> None:
    """Its heartbeats say how long ago its last round with a majority was."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        for other in ("us", "ap"):
            c.wires["eu", other].lost.add("append reply")
            c.wires[other, "eu"].lost.add("append reply")
        await until(lambda: "us" in c.authorities(), lambda: str(c.told()))
        c.heal()
        await c.authority("us")

    tell(tmp_path, story, timing=PROMOTE)


def test_an_authority_whose_own_store_dies_while_it_catches_up_gives_up_and_is_replaced(tmp_path: Path) -> None:
    """Its heartbeats need no store of its own: nobody would ever find it lost."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        us = c["us"].actor

        async def rebuilding() -> None:
            await asyncio.sleep(0.02)

        us.folding._fold_some = rebuilding  # type: ignore[method-assign]
        forced = asyncio.ensure_future(c.force("us"))
        await until(lambda: us.state.role is Role.CATCHING_UP, lambda: str(c.told()))
        c["us"].up = False
        ended = await forced
        assert (ended["ok"], ended["code"]) == (False, "store_unavailable")
        await until(lambda: set(c.authorities()) & {"eu", "ap"}, lambda: str(c.told()))
        await c.restart("us")
        c["us"].up = True
        await c.check()

    tell(tmp_path, story, timing=PROMOTE)


def test_the_second_candidate_takes_over_where_the_first_cannot(tmp_path: Path) -> None:
    """The store of us answers, its actor is dead: ap waits one more detection time, then takes over."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.crash("us")
        c.stop("eu")
        await until(lambda: c.authorities() == ["ap"], lambda: str(c.told()))
        c.come_back("eu")
        c.start("us")
        await c.check()
        assert c.epochs() == [(1, "eu"), (2, "ap")]

    tell(tmp_path, story, timing=PROMOTE)


def test_after_one_automatic_failover_the_next_region_that_is_lost_is_waited_for(tmp_path: Path) -> None:
    """1. eu is lost, us takes over. 2. eu returns, us is lost: nobody takes over by itself. 3. An operator does."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.stop("eu")
        await until(lambda: c.authorities() == ["us"], lambda: str(c.told()))
        c.come_back("eu")
        await c.authority("us")
        await until(lambda: c["ap"].actor.state.detector.automatic_ms is not None, "ap has read how us came to own it")
        await until(lambda: c["eu"].actor.state.detector.automatic_ms is not None, "eu too")
        c.stop("us")
        probes = len(c["ap"].actor.links.sent)  # type: ignore[attr-defined]
        looked = 3 * 4 * 4  # three detection times, four looks each, three regions and more
        await until(lambda: len(c["ap"].actor.links.sent) > probes + looked, "ap has looked for long")  # type: ignore[attr-defined]
        assert c.authorities() == []
        assert (await c.force("ap"))["ok"]
        c.come_back("us")
        await c.check()

    tell(tmp_path, story, timing=PROMOTE)


def test_a_minority_never_promotes_itself(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.isolate("us")
        sent = len(c["us"].actor.links.sent)  # type: ignore[attr-defined]
        await until(lambda: len(c["us"].actor.links.sent) > sent + 40, "us has looked for long")  # type: ignore[attr-defined]
        assert c["us"].log.status().fence == 1 and c.authorities() == ["eu"]
        c.heal()
        await c.write(2)
        await c.check()
        assert c.epochs() == [(1, "eu")]

    tell(tmp_path, story, timing=PROMOTE)


def test_hold_leaves_a_lost_region_to_the_operator(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.stop("eu")
        await asyncio.sleep(0)
        refused = c.event(1)
        await c.send("us", refused)
        assert c.authorities() == [] and refused.result is None
        c.come_back("eu")
        await c.authority("eu", above=1)
        await c.retry("us")
        await c.check()

    tell(tmp_path, story)
