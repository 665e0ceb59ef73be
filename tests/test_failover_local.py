"""`ack: local` on three regions in one process: what is acknowledged alone, who must wait, what becomes of the orphans (I5, I7, I12)."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from inprocess_cluster import TIMING, Cluster, tell, until
from inprocess_region import SHARD, Door
from watched_log import Sent, WatchedLog

from boards.model import Outcome
from failover.lease import Promises, promise_ms
from journal.ports import Refused, Seal
from journal.records import Scored, open_entry
from regions.granting import Granting

LEASE_MS = 400
LOCAL = replace(TIMING, lease_ms=LEASE_MS, seal_grace_ms=150)


def tell_local(path: Path, story: Callable[[Cluster], Awaitable[None]]) -> None:
    """Run a story on a cluster whose home serves under a lease."""

    async def begun(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await leased(c, "eu")
        await until(lambda: c["eu"].actor.waiters.committed == c["eu"].actor.state.tail.offset, "all is committed")
        await story(c)

    tell(path, begun, timing=LOCAL, mode="local")


async def leased(c: Cluster, name: str) -> None:
    await until(lambda: bool(c[name].actor.waiters.leased()), f"{name} holds a lease")


async def alone(c: Cluster) -> Sent:
    """An event that only eu's store holds, acknowledged."""
    for other in ("us", "ap"):
        c.wires["eu", other].lost.add("append")
    sent = c.event(3)
    await c.send("eu", sent)
    assert sent.result is not None and sent.result.offset > c["eu"].actor.waiters.committed, "no majority holds it"
    return sent


def held(c: Cluster, name: str) -> set[str]:
    """Ids of the events in a region's log."""
    records = [r for entry in c[name].log.read(1, limit=10**6) for r in open_entry(entry)]
    return {r.event_id for r in records if isinstance(r, Scored)}


def orphaned(c: Cluster, name: str) -> set[str]:
    records = [r for batch in c[name].log.orphans() for entry in batch.entries for r in open_entry(entry)]
    return {r.event_id for r in records if isinstance(r, Scored)}


def test_a_forced_failover_waits_until_no_lease_check_of_the_old_epoch_can_succeed(tmp_path: Path) -> None:
    """1. eu is cut off under a lease. 2. us is forced: its epoch starts only when eu's lease is over, and soon after. I7."""

    async def story(c: Cluster) -> None:
        c.isolate("eu")
        began = time.monotonic()
        assert (await c.force("us"))["ok"]
        took_ms = (time.monotonic() - began) * 1000
        assert not c["eu"].actor.waiters.leased() and c["us"].actor.state.epoch == 2
        assert LEASE_MS / 2 < took_ms < promise_ms(LEASE_MS) + 2000
        c.heal()
        await c.authority("us")

    tell_local(tmp_path, story)


def test_what_was_acknowledged_alone_is_orphaned_by_a_failover_and_then_salvaged(tmp_path: Path) -> None:
    """1. eu acknowledges an event that only its store holds, and is cut off. 2. us takes over without it. 3. eu returns: the event is among
    its orphans, and is sent again by itself, under its own id, until it is in the lineage. I5."""

    async def story(c: Cluster) -> None:
        sent = await alone(c)
        c.isolate("eu")
        assert (await c.force("us"))["ok"]
        assert sent.event_id not in held(c, "us")
        c.heal()
        await c.authority("us")
        await until(lambda: sent.event_id in orphaned(c, "eu") and sent.event_id in held(c, "us"), "salvaged")
        again = await c.send("us", sent)
        assert [r.outcome for r in again] == [Outcome.DUPLICATE]

    tell_local(tmp_path, story)


def test_a_failover_that_reaches_the_old_owners_store_loses_nothing(tmp_path: Path) -> None:
    """1. eu acknowledges an event alone, and its process dies while its store lives. 2. us seals that store and adopts its log."""

    async def story(c: Cluster) -> None:
        sent = await alone(c)
        c.crash("eu")
        assert (await c.force("us"))["ok"]
        assert sent.event_id in held(c, "us")
        c.heal()
        c.come_back("eu")
        await c.authority("us")
        assert orphaned(c, "eu") == set()

    tell_local(tmp_path, story)


def test_a_planned_handover_gives_the_lease_up_and_does_not_wait_for_its_end(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        began = time.monotonic()
        assert (await c["us"].actor.moving.handover("operator"))["ok"]
        assert (time.monotonic() - began) * 1000 < LEASE_MS / 2
        assert not c["eu"].actor.waiters.leased()
        await leased(c, "us")
        await c.check()

    tell_local(tmp_path, story)


def test_a_holder_that_is_cut_off_refuses_definitely_once_its_lease_is_over(tmp_path: Path) -> None:
    """1. eu acknowledges alone. 2. Nobody renews any more: `no_lease`, and nothing is appended. 3. The link is back: it serves again."""

    async def story(c: Cluster) -> None:
        await alone(c)
        c.isolate("eu")
        eu = c["eu"].actor
        await until(lambda: eu.waiters.lost_lease, "the lease ran out")
        tail, refused = eu.state.tail, c.event(1)
        await c.send("eu", refused, direct=True)
        assert refused.refusals == ["no_lease"] and eu.state.tail == tail
        c.heal()
        await c.authority("eu")
        await leased(c, "eu")
        await c.retry("eu")
        await c.check()

    tell_local(tmp_path, story)


def test_an_owner_that_is_heard_but_hears_nobody_does_not_keep_the_others_out(tmp_path: Path) -> None:
    """Its renewals arrive, their answers do not. A drill found that the shard had no authority for as long as that lasted. I10."""

    async def story(c: Cluster) -> None:
        for other in ("us", "ap"):
            c.cut(other, "eu", one_way=True)
        began = time.monotonic()
        assert (await c.force("us"))["ok"]
        assert (time.monotonic() - began) * 1000 < promise_ms(LEASE_MS) + 2000
        c.heal()
        await c.authority("us")

    tell_local(tmp_path, story)


def test_a_store_that_was_exchanged_and_readmitted_promises_leases_again(tmp_path: Path) -> None:
    """1. us's store is exchanged for an empty one under a gateway that lives on, and readmitted. 2. ap goes away: us alone must renew."""

    async def story(c: Cluster) -> None:
        c["us"].swap(WatchedLog(SHARD, "us", c.watch))
        await until(lambda: c["eu"].actor.state.replication.peers["us"].amnesiac, "eu sees that it lost its data")  # type: ignore[union-attr]
        assert (await c["eu"].actor.moving.readmit("us", "operator"))["ok"]
        await c.authority("eu", above=1)
        await c.write(2)
        c.stop("ap")
        await until(lambda: "us" in c["eu"].actor.state.lease._granted, "us grants leases")  # type: ignore[union-attr]
        await c.write(2)
        c.come_back("ap")

    tell_local(tmp_path, story)


def test_a_forced_failover_does_not_wait_out_a_lease_that_its_owner_has_given_up(tmp_path: Path) -> None:
    """In a healthy cluster the owner hears of the seal at once, and steps down."""

    async def story(c: Cluster) -> None:
        began = time.monotonic()
        assert (await c.force("us"))["ok"]
        assert (time.monotonic() - began) * 1000 < LEASE_MS / 2
        await c.check()

    tell_local(tmp_path, story)


def test_what_was_cut_from_a_local_epoch_is_salvaged_though_the_configuration_says_quorum_by_now(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        sent = await alone(c)
        c.isolate("eu")
        assert (await c.force("us"))["ok"]
        c.mode = "quorum"
        c.heal()
        await c.restart("eu")
        await c.authority("us")
        await until(lambda: sent.event_id in held(c, "us"), "salvaged")

    tell_local(tmp_path, story)


def test_an_acceptor_that_was_replaced_does_not_seal_past_its_successors_promise(tmp_path: Path) -> None:
    """The old one's own promises are over; a process that comes past every acceptor is refused too. I7."""

    async def story(c: Cluster) -> None:
        await until(lambda: "us" in c["eu"].actor.state.lease._granted, "us has granted a lease")  # type: ignore[union-attr]
        c.isolate("us")
        now = [0]
        successor = Granting({SHARD: Door(c["us"])}, now_ms=lambda: now[0])
        await successor.take_over()
        now[0] = 10**9
        newest = c["us"].log.status().newest
        assert newest is not None
        message = Seal(
            shard=SHARD, lineage=newest.lineage, config_version=newest.config_version, sender="ap", incarnation="", request_id="r",
            epoch=2, target="ap", attempt="x", from_epoch=1, from_owner="eu",
        )  # fmt: skip
        past = c["us"].log.seal(message)
        assert isinstance(past, Refused) and past.reason == "superseded"
        old = c["us"].acceptor._granting
        old._shards[SHARD].promises = Promises()
        for acceptor in (old, successor):
            late = await acceptor.seal(message)
            assert isinstance(late, Refused) and (late.reason, late.wait_ms) == ("leased", promise_ms(LEASE_MS)), "it takes the role first"
        now[0] += promise_ms(LEASE_MS)
        assert not isinstance(await successor.seal(message), Refused)
        c.heal()
        await c.authority("eu", above=2)

    tell_local(tmp_path, story)


def test_the_owners_own_region_is_sealed_for_at_once_after_a_restart(tmp_path: Path) -> None:
    """The others have promised not to seal for another region; eu's own store stops its last life."""

    async def story(c: Cluster) -> None:
        await c.restart("eu")
        began = time.monotonic()
        await c.authority("eu", above=1)
        assert c["eu"].actor.state.epoch == 2
        assert (time.monotonic() - began) * 1000 < LEASE_MS
        await c.check()

    tell_local(tmp_path, story)


def test_a_new_acceptor_honours_what_the_last_one_may_have_promised(tmp_path: Path) -> None:
    """A Seal through the region's old acceptor and through its successor are refused alike; the old one renews nothing any more."""

    async def story(c: Cluster) -> None:
        await until(lambda: "us" in c["eu"].actor.state.lease._granted, "us has granted a lease")  # type: ignore[union-attr]
        c.isolate("us")  # so that no renewal comes between
        log, now = c["us"].log, [0]
        successor = Granting({SHARD: Door(c["us"])}, now_ms=lambda: now[0])
        newest = log.status().newest
        assert newest is not None
        message = Seal(
            shard=SHARD, lineage=newest.lineage, config_version=newest.config_version, sender="ap", incarnation="", request_id="r",
            epoch=2, target="ap", attempt="x", from_epoch=1, from_owner="eu",
        )  # fmt: skip
        answer = await successor.seal(message)
        assert isinstance(answer, Refused) and (answer.reason, answer.wait_ms) == ("leased", promise_ms(LEASE_MS))
        attempt = log.status().granted_attempt
        old = log.renew(epoch=1, attempt=attempt, acceptor=c["us"].acceptor._granting._token, lease_ms=LEASE_MS)
        assert isinstance(old, Refused) and old.reason == "superseded"
        now[0] = promise_ms(LEASE_MS)
        assert not isinstance(await successor.seal(message), Refused) and log.status().fence == 2
        c.heal()
        await c.authority("eu", above=2)

    tell_local(tmp_path, story)
