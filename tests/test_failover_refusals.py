"""Stories of what is refused or has to wait: a lost majority, bounds, duplicates, routes; each ends with `Cluster.check`."""

import asyncio
from functools import partial
from pathlib import Path

from inprocess_cluster import BEST, LIMITS, SUM, Cluster, tell, until
from inprocess_region import SHARD
from msgspec.structs import replace
from watched_log import WatchedLog, fold_naively

from boards.model import Outcome


def grown(log: WatchedLog, offset: int) -> bool:
    return log.tail.offset > offset


# -- a lost majority, bounds ----------------------------------------------------------------------------------


def test_with_the_majority_lost_nothing_is_acknowledged_and_nothing_is_sealed(tmp_path: Path) -> None:
    """1. Both other regions are away. 2. Writes are unknown, then refused as lagging; no failover seals anything, nor does a restart.
    3. They come back: what was in flight may commit, once. I4, I6, I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(3)
        c.stop("us", "ap")
        lost = [c.event() for _ in range(4)]
        await asyncio.gather(*(c.send("eu", sent, direct=True) for sent in lost))
        late = c.event()
        await c.send("eu", late, direct=True)
        assert all(s.unknowns == 1 for s in lost) and late.refusals == ["lagging"]
        outcome = await c.force("eu")
        assert (outcome["ok"], outcome["code"]) == (False, "no_majority") and "us" in outcome["detail"] and "ap" in outcome["detail"]
        await c.restart("eu")
        await until(lambda: "must; missing" in c["eu"].actor.state.why, "it says who is missing")
        assert c["eu"].log.status().fence == 1
        c.come_back("us", "ap")
        await c.authority("eu", above=1)
        await c.retry("us")
        assert len(await c.check()) == 8

    tell(tmp_path, story)


def test_beyond_the_unreplicated_bound_events_are_refused_definitely(tmp_path: Path) -> None:
    """1. Nobody confirms. 2. Entries are appended up to the bound. 3. The next event is refused as `lagging` and not appended. I7."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(1)
        await c.check()
        c.isolate("eu")
        log, asking = c["eu"].log, []
        while log.tail.offset - log.committed < 6:
            tail = log.tail.offset
            asking.append(asyncio.ensure_future(c.send("eu", c.event(board=BEST), direct=True)))
            await until(partial(grown, log, tail), "one more")
        refused, number = c.event(), len(asking)
        await c.send("eu", refused, direct=True)
        assert refused.refusals == ["lagging"] and 3 <= number <= 6
        assert all(s.result is None for s in c.clients[1:])
        held = fold_naively(log.read(1, limit=1000))
        assert (refused.board, refused.player, refused.event_id) not in held
        c.heal()
        await asyncio.gather(*asking)
        await c.retry("eu")
        await c.check()

    tell(tmp_path, story, limits=replace(LIMITS, unreplicated_entries=6))


def test_a_duplicate_of_an_uncommitted_event_waits_for_its_commit(tmp_path: Path) -> None:
    """1. An event is appended, not committed. 2. The same id comes again, and a conflicting one. 3. None is answered. 4. The links heal:
    all three are. I7, I12."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(1)
        await c.check()
        for other in ("us", "ap"):
            c.wires["eu", other].lost.add("append")
        sent = c.event(5, event_id="twice")
        asking = [asyncio.ensure_future(c.send("eu", sent, direct=True))]
        await until(lambda: c["eu"].log.tail.offset > c["eu"].log.committed, "appended")
        asking.append(asyncio.ensure_future(c.send("eu", sent, direct=True)))
        other_content = c.event(6, event_id="twice", player=sent.player)
        c.clients.remove(other_content)
        asking.append(asyncio.ensure_future(c.send("eu", other_content, direct=True)))
        done, _ = await asyncio.wait(asking, timeout=0.15)
        assert not done
        c.heal()
        first, again, conflict = await asyncio.gather(*asking)
        assert [r[0].outcome for r in (first, again, conflict)] == [Outcome.APPLIED_FIRST, Outcome.DUPLICATE, Outcome.CONFLICT]
        assert {r[0].offset for r in (first, again, conflict)} == {first[0].offset}
        await c.check()

    tell(tmp_path, story)


# -- routes -------------------------------------------------------------------------------------------------


def test_a_route_that_names_oneself_or_bounces_ends_in_one_refusal_after_one_hop(tmp_path: Path) -> None:
    """LB-121, LB-122. 1. us believes that it owns the shard itself: no hop, a refusal. 2. us believes in ap, ap in us: one hop a try, no
    forwarded request is forwarded again. 3. The event is applied at most once. I4."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(1, through="us")
        sent = c.event()
        c["us"].directory.owners[SHARD] = (99, "us")
        c["us"].links.sent.clear()
        await c.send("us", sent)
        assert sent.refusals == ["no_authority"] and c["us"].links.sent == []
        c["us"].directory.owners[SHARD], c["ap"].directory.owners[SHARD] = (99, "ap"), (99, "us")
        c["ap"].links.sent.clear()
        await c.send("us", sent)
        assert sent.refusals == ["no_authority"] * 2 and set(c["us"].links.sent) == {"submit"} and c["ap"].links.sent == []
        c["us"].directory.owners.clear()
        await c.write(1, through="us")
        await c.retry("us")
        assert len(await c.check()) == 3

    tell(tmp_path, story)


def test_writes_through_all_regions_for_both_boards_come_out_once_and_in_order(tmp_path: Path) -> None:
    """1. Clients of all regions write to two boards while links are slow, out of order and deliver twice. I4, I7, I8, I9, I11."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        for wire in c.wires.values():
            wire.delay_s, wire.again_after_s = 0.02, 0.03
        over = asyncio.Event()
        load = asyncio.ensure_future(c.load(over))
        await until(lambda: sum(s.result is not None for s in c.clients) > 80, "load")
        over.set()
        await load
        await c.retry("us")
        events = await c.check()
        assert {board for board, _, _ in events} == {BEST, SUM}

    tell(tmp_path, story)
