"""`ack: local` and the detector in the simulator: that they are exercised, and what its checkers notice of them."""

import pytest
from pure_cluster import SHARD, TIMING, Schedule

from actors.messages import SubmitResult
from boards.model import Outcome
from failover.lease import Lease
from journal.ports import Append, Position, Renew, Seal
from ledger.pending import Decided
from simulation import checks, schedule
from simulation.client import Sent, write
from simulation.nemesis import COMPOUND
from simulation.process import Process
from simulation.scripts_local import AUTOMATIC, LOCAL
from simulation.watch import Violation
from simulation.world import World


def local_world(seed: int = 3) -> tuple[World, Process]:
    """Three regions under `ack: local`, one entry after the other acknowledged, and the authority, which holds a lease."""
    world = World(seed, mode="local")
    world.populate()
    world.start()
    for client in world.clients:
        client.start()
    world.run(400)
    (authority,) = world.authorities()
    assert authority.state.lease is not None and authority.state.lease.valid(authority.now())
    return world, authority


def decided(epoch: int, offset: int) -> Decided:
    return Decided(Outcome.APPLIED, 1, 1, True, epoch, offset, offset)


def alone(event: str, epoch: int, offset: int, *, sent: int = 1, acked: int = 2, lonely: bool = True) -> Sent:
    result = SubmitResult(Outcome.APPLIED, 1, 1, True, epoch, offset, alone=lonely)
    return Sent(board="b", player="p", event_id=event, amount=1, sent=sent, acked=acked, result=result)


# -- it happens -----------------------------------------------------------------------------------------------------------


def test_one_store_alone_acknowledges_in_local_mode_and_never_in_quorum_mode() -> None:
    world, _ = local_world()
    assert sum(sent.result is not None and sent.result.alone for sent in world.sent) > 5
    schedule.agree(world)
    checks.at_end(world)
    quorum = World(3)
    quorum.populate()
    quorum.start()
    for client in quorum.clients:
        client.start()
    quorum.run(400)
    assert quorum.acknowledged and not any(sent.result is not None and sent.result.alone for sent in quorum.sent)


def test_what_was_acknowledged_alone_and_cut_is_salvaged_when_its_region_is_back() -> None:
    """1. eu is cut off and acknowledges alone. 2. us takes over: it is cut. 3. eu is back, sends it again: in the lineage, once (I5)."""
    world, authority = local_world()
    world.quiet = True
    world.network.isolate("eu")
    sent = [write(world, "eu") for _ in range(3)]
    world.run(40)
    assert all(s.result is not None and s.result.alone for s in sent)
    us = world.regions["us"].process
    assert us is not None
    us.activate("forced")
    world.run(3000)
    schedule.agree(world)
    checks.kept(world)
    schedule.salvage(world)
    schedule.agree(world)
    told = checks.at_end(world)
    assert world.salvaged >= 1 and all((s.board, s.player, s.event_id) in told.events for s in sent)
    assert authority.state.epoch < world.regions["us"].store.log.tail.epoch


def test_the_detector_starts_an_epoch_without_an_operator() -> None:
    outcomes = [schedule.run(seed, faults=("region_lost",)) for seed in range(6)]
    assert not any(outcome.violation for outcome in outcomes)
    assert all(outcome.failovers >= 2 for outcome in outcomes)


def test_clocks_are_as_wrong_as_the_protocol_allows_and_no_more() -> None:
    world = World(1)
    world.skewed = False
    rates = {world.clock()[1] for _ in range(200)}
    assert min(rates) == 0.9 and max(rates) == 1.1 and len(rates) > 10


def test_scripts_of_leases_need_local_mode_and_those_of_the_detector_need_it_on() -> None:
    for kind in (*LOCAL, *AUTOMATIC):
        assert kind in COMPOUND
        assert schedule.run(0, faults=(kind,)).faults[kind] >= 1


# -- what is noticed ------------------------------------------------------------------------------------------------------


def test_a_lease_that_is_valid_while_a_later_epoch_serves_is_noticed() -> None:
    """I7 of `local`. An epoch that the holder's own store has granted is excepted."""
    world, authority = local_world()
    world.served[9] = "us", frozenset(("us", "eu"))
    world.lease_checked(authority)
    world.served[9] = "us", frozenset(("us", "ap"))
    with pytest.raises(Violation, match="I7"):
        world.lease_checked(authority)
    lease = authority.state.lease
    assert isinstance(lease, Lease)
    lease.give_up()
    world.lease_checked(authority)


def test_an_answer_for_what_the_own_store_does_not_hold_is_noticed() -> None:
    world, authority = local_world()
    tail = authority.region.store.log.tail
    world.answering(authority, 1, decided(*tail), True)
    with pytest.raises(Violation, match="I12"):
        world.answering(authority, 1, decided(tail.epoch, tail.offset + 1), True)


def test_an_answer_of_a_deposed_epoch_that_the_later_one_does_not_hold_is_noticed() -> None:
    world, authority = local_world()
    tail = authority.region.store.log.tail
    world.regions["us"].store.log._entries = world.regions["us"].store.log._entries[: tail.offset - 1]
    world.served[9] = "us", frozenset(("us", "eu"))
    with pytest.raises(Violation, match="I7"):
        world.answering(authority, 1, decided(*tail), True)


def test_an_acknowledged_event_that_is_nowhere_is_noticed_unless_its_disk_was_taken() -> None:
    """I5 before and after salvage."""
    world, authority = local_world()
    world.quiet = True
    schedule.agree(world)
    world.sent.append(alone("x", 9, 7))
    with pytest.raises(Violation, match="I5"):
        checks.kept(world)
    with pytest.raises(Violation, match="I5"):
        checks.at_end(world)
    world.taken.add((9, 7))
    checks.kept(world)
    assert authority.alive


def test_orders_of_acknowledgements_are_held_against_the_own_epoch_where_one_store_alone_gave_them() -> None:
    """I9: the next epoch may not have what one store alone acknowledged; what a majority holds, it has."""
    checks.check_order([alone("a", 1, 9), alone("b", 2, 5, sent=3, acked=4)])
    with pytest.raises(Violation, match="I9"):
        checks.check_order([alone("a", 1, 9), alone("b", 1, 5, sent=3, acked=4)])
    with pytest.raises(Violation, match="I9"):
        checks.check_order([alone("a", 1, 9, lonely=False), alone("b", 2, 5, sent=3, acked=4)])


# -- the acceptor ---------------------------------------------------------------------------------------------------------


def renew(attempt: str, lease_ms: int = 200) -> Renew:
    return Renew(shard=SHARD, sender="eu", request_id="", epoch=1, attempt=attempt, lease_ms=lease_ms)


def seal_for_us(world: World) -> Seal:
    return Seal(
        shard=SHARD,
        lineage="",
        config_version=1,
        sender="us",
        incarnation="",
        request_id="",
        epoch=9,
        target="us",
        attempt="z",
        from_epoch=1,
        from_owner="eu",
    )


def test_a_promise_counts_from_the_moment_when_the_renewal_came_not_when_the_store_had_time() -> None:
    """ap's store stalls with a renewal in it; its promise is over so much earlier than the store's answer says."""
    s = Schedule()
    s.start()
    s.run(300)
    acceptor, attempt = s.world.regions["ap"].acceptor, s.state("eu").attempt
    carry_out = acceptor.received(renew(attempt))
    received = acceptor.now()
    s.run(100)
    assert carry_out(None).status.fence == 1
    left = acceptor.promises.left_ms("us", acceptor.now())
    assert left == acceptor.promises._held["eu"][1] - acceptor.now()
    assert acceptor.promises._held["eu"][1] - received < 200 * 1.1 / 0.9 + 1


def test_an_acceptor_whose_role_an_older_process_took_takes_it_again_and_honours_that_ones_promises() -> None:
    """1. The old process takes the role late and promises. 2. It is gone. 3. The new one is asked to seal: not yet, but not never."""
    s = Schedule()
    s.start()
    s.run(300)
    world, region = s.world, s.world.regions["ap"]
    region.restart_acceptor(beside=False)
    old = region.acceptor
    old.taken = False
    region.restart_acceptor(beside=True)
    new = region.acceptor
    new.take()
    attempt = s.state("eu").attempt
    old.received(renew(attempt))(None)
    region.old_acceptor_ends()
    first = new.received(seal_for_us(world))(None)
    assert first.reason == "leased" and first.wait_ms > 0
    s.run(600)
    assert new.received(seal_for_us(world))(None).status.fence == 9


def test_an_acceptor_that_is_gone_promises_and_seals_nothing() -> None:
    s = Schedule()
    s.start()
    s.run(300)
    region = s.world.regions["ap"]
    late = region.acceptor.received(seal_for_us(s.world))
    region.restart_acceptor(beside=False)
    assert late(None) is None and region.store.log.fence == 1


def test_a_message_of_an_authority_tells_the_acceptor_of_its_progress() -> None:
    s = Schedule(timing=TIMING)
    s.start()
    s.run(300)
    acceptor = s.world.regions["us"].acceptor
    assert acceptor.heard.epoch == 1 and acceptor.heard.silent_ms(acceptor.now()) <= 2 * TIMING.heartbeat_ms
    tail = s.logs["us"].tail
    refused = Append(
        shard=SHARD,
        lineage="another",
        config_version=1,
        sender="ap",
        incarnation="",
        request_id="",
        epoch=7,
        attempt="z",
        prev=Position(tail.epoch, tail.offset),
    )
    acceptor.append(refused)
    assert acceptor.heard.epoch == 1, "only what is taken is progress"
