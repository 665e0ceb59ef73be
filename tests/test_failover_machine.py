"""The role machine: directed schedules in a simulated cluster that is driven by hand. Seeded ones are in `test_simulation.py`."""

import asyncio
from dataclasses import replace
from unittest import mock

import pytest
from pure_cluster import REGIONS, SHARD, TIMING, Schedule

from actors.waiting import CommitWaiters, Deposed
from failover import events as e
from failover import replication
from failover.events import Role
from failover.machine import heard_newer, step
from failover.state import ShardState, Timing
from simulation.mutants import broken
from simulation.network import Call
from simulation.watch import Violation


def begun() -> Schedule:
    """A cluster whose home serves epoch 1, with a committed entry."""
    s = Schedule()
    s.start()
    s.run(300)
    assert s.authorities() == ["eu"]
    s.write("eu")
    s.run(100)
    return s


# -- Raft's figure 8 ------------------------------------------------------------------------------------------------


def figure_eight() -> Schedule:
    """1. The isolated eu appends x in epoch 1. 2. us starts epoch 2, its record at its own store only, and dies. 3. eu activates again, and
    x, but not its start record, reaches ap: a majority holds x. 4. eu dies, us returns: its log is ahead, and x is cut."""
    s = begun()
    n = s.logs["eu"].tail.offset
    s.isolate("eu")
    s.write("eu")
    s.run(10)
    s.activate("us")
    s.run(100, only=lambda m: not (m.kind == "append" and m.origin == "us"))
    assert s.logs["us"].tail == (2, n + 1) and s.logs["eu"].tail == (1, n + 1)
    s.crash("us")
    s.join()
    s.isolate("us")

    def only_x(m: Call) -> bool:
        return m.answered or m.kind != "append" or m.to != "ap" or s.logs["ap"].tail.offset <= n

    s.run(600, only=only_x)
    assert s.logs["ap"].tail == (1, n + 1), "x is held by eu and ap"
    assert s.state("eu").role is Role.STARTING
    x = next(x for x in s.logs["eu"].read(n + 1))
    s.crash("eu")
    s.join()
    s.isolate("eu")
    s.start("us")
    s.run(400)
    assert s.authorities() == ["us"] and s.logs["ap"].read(n + 1)[0].epoch == 2
    s.check()
    assert any(x in batch.entries for batch in s.logs["eu"].orphans())
    return s


def test_figure_eight_commits_nothing_of_an_older_epoch_by_counting() -> None:
    """I1, I7, I13."""
    with mock.patch.object(replication, "ENTRIES_PER_APPEND", 1):
        figure_eight()


def test_figure_eight_catches_a_machine_that_counts_without_its_start_record() -> None:
    """I1: with that rule left out, x is called committed and lost."""
    with mock.patch.object(replication, "ENTRIES_PER_APPEND", 1), broken("no_start_record"), pytest.raises(Violation, match="I1"):
        figure_eight()


def longer_but_older() -> None:
    """1. The isolated eu appends 8 entries of epoch 1. 2. us starts epoch 2 with ap and commits 2 entries. 3. us dies, eu is promoted."""
    s = begun()
    s.isolate("eu")
    for _ in range(8):
        s.write("eu")
        s.run(10)
    s.activate("us")
    s.run(200)
    for _ in range(2):
        s.write("us")
        s.run(30)
    s.crash("us")
    s.join()
    s.isolate("us")
    assert s.logs["eu"].tail.offset > s.logs["ap"].tail.offset
    s.activate("eu")
    s.run(300)
    s.check()


def test_a_longer_but_older_log_is_cut_for_the_one_with_the_later_epoch() -> None:
    """I1, I7, I13."""
    longer_but_older()


def test_a_machine_that_chooses_the_log_by_length_is_caught() -> None:
    with broken("log_by_length"), pytest.raises(Violation):
        longer_but_older()


# -- partial activations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [("us",), ("us", "ap"), ("us", "eu"), REGIONS], ids="-".join)
def test_a_seal_that_nobody_starts_is_followed_by_a_new_epoch_of_the_old_authority(reached: tuple[str, ...]) -> None:
    """1. us seals at some stores and dies. 2. eu steps down when it hears of it, and activates again by itself. I2, I6, I10."""
    s = begun()
    s.activate("us")
    s.run(40, only=lambda m: m.kind == "probe" or m.origin != "us" or (m.kind == "seal" and m.to in reached and not m.answered))
    assert {name for name, log in s.logs.items() if log.status().granted_region == "us"} == set(reached)
    s.crash("us")
    s.run(800)
    assert s.authorities() == ["eu"] and s.logs["eu"].tail.epoch > 2
    assert s.check() == "eu"


@pytest.mark.parametrize("kind", ["own append", "append"])
def test_a_target_that_dies_at_any_later_step_leaves_a_shard_that_comes_back(kind: str) -> None:
    """us dies before its start record is appended, or shipped, and comes back. I1, I10."""
    s = begun()
    s.activate("us")
    s.run(60, only=lambda m: not (m.origin == "us" and m.kind == kind))
    assert s.state("us").role is Role.STARTING
    s.crash("us")
    s.check()


def test_a_target_that_dies_before_its_ledger_has_caught_up_leaves_a_shard_that_comes_back() -> None:
    """I1, I10."""
    s = begun()
    s.activate("us")
    for _ in range(100):
        s.run(1)
        if s.state("us").role is Role.CATCHING_UP:
            break
    assert s.state("us").role is Role.CATCHING_UP
    s.crash("us")
    s.check()


def test_nothing_is_cut_by_a_seal_a_refusal_or_a_probe() -> None:
    """1. eu, isolated, has entries of its own. 2. Its store is sealed, refuses and is probed by us, which has not finished step 3. 3. It
    keeps every entry. I13, and the rule on hearsay."""
    s = begun()
    s.isolate("eu")
    for _ in range(3):
        s.write("eu")
        s.run(10)
    tail = s.logs["eu"].tail
    s.join()
    s.activate("us")
    s.run(60, only=lambda m: m.origin == "us" and m.kind in ("probe", "seal"))
    assert s.logs["eu"].status().fence == 2 and s.logs["eu"].tail == tail and s.watch.cuts == 0


def test_a_drained_epoch_is_never_taken_up_again() -> None:
    """1. eu is drained. 2. Nobody comes. 3. It activates again: the entry after the handover record opens a new epoch. I2, I10."""
    s = begun()
    s.drain("eu")
    s.run(50)
    assert s.state("eu").role is Role.DRAINED
    tail = s.logs["eu"].tail
    refused = s.write("eu")
    s.run(20)
    assert refused.result is None and s.logs["eu"].tail == tail
    s.run(800)
    assert s.authorities() == ["eu"]
    (following,) = s.logs["eu"].read(tail.offset + 1, limit=1)
    assert following.epoch > tail.epoch and following.term is not None


# -- waiting, backing off, standing aside ---------------------------------------------------------------------------


def test_a_region_whose_activations_fail_backs_off_and_stands_aside_after_five() -> None:
    """1. eu may probe and seal, but its own store never takes a start record. 2. After five failures it stands aside, and says so; after
    the window it tries again."""
    timing = replace(TIMING, aside_failures=5, aside_window_ms=5000)
    s = Schedule(timing=timing)
    s.start()

    def refusing(m: Call) -> bool:
        return m.kind != "own append"

    fences: list[int] = []
    for _ in range(200):
        s.run(10, only=refusing)
        s.network.drop(lambda m: m.kind == "own append")
        fences.append(s.logs["eu"].status().fence)
    assert s.state("eu").role is Role.ASIDE and "standing aside after 5" in s.state("eu").why
    assert max(fences) == 5, "no epoch was sealed while it stood aside"
    s.run(5000)
    assert s.authorities() == ["eu"]


def alone(**timing: int) -> ShardState:
    return ShardState("us", SHARD, "eu", REGIONS, replace(Timing(), **timing))


def begin(machine_state: ShardState, event: e.Event) -> e.Probe:
    (probe,) = [a for a in step(machine_state, event) if isinstance(a, e.Probe)]
    return probe


def test_late_news_of_an_older_epoch_does_not_stop_a_region_from_looking() -> None:
    """A follower that backs off after its own failed epoch 3 folds the start record of epoch 2: it must still look. I10."""
    s = alone()
    s.role, s.epoch, s.attempt, s.look_at_ms = Role.FOLLOWER, 3, "mine", 500
    heard_newer(s, 2, "ap")
    assert (s.look_at_ms, s.newest_owner) == (500, "ap")
    assert begin(s, e.Ticked(now_ms=501, token="t", jitter=0.5)).regions == REGIONS


def test_an_order_that_failed_before_anything_was_known_leaves_the_region_looking() -> None:
    """1. A restarted region is asked at once; its own store does not answer in time. 2. It looks again by itself: it may be the
    owner. I10."""
    s = alone()
    probe = begin(s, e.ActivationAsked(now_ms=0, cause="forced", asked_by="op", token="t"))
    actions: list[e.Action] = []
    for region in REGIONS:
        actions += step(s, e.Probed(now_ms=1, request=probe.request, region=region, status=None))
    assert [a.code for a in actions if isinstance(a, e.ActivationEnded)] == ["no_majority"]
    assert s.look_at_ms is not None and s.look_at_ms < 1000


def test_a_follower_looks_again_now_and_then() -> None:
    """An append of its last life may land after it looked; all others follow that epoch, so only it can find it. I10."""
    s = alone(rest_ms=7000)
    s.role, s.look_at_ms = Role.FOLLOWER, 0
    probe = begin(s, e.Ticked(now_ms=1, token="t", jitter=0.5))
    other = Schedule()
    other.start()
    other.run(300)
    for region in REGIONS:
        step(s, e.Probed(now_ms=2, request=probe.request, region=region, status=other.logs[region].status()))
    assert (s.role, s.look_at_ms, s.why) == (Role.FOLLOWER, 7002, "eu owns epoch 1")


def test_an_answer_to_a_request_that_was_given_up_changes_nothing() -> None:
    s = alone()
    old = begin(s, e.Ticked(now_ms=0, token="t1", jitter=0.5))
    new = begin(s, e.ActivationAsked(now_ms=1, cause="forced", asked_by="op", token="t2"))
    assert step(s, e.Probed(now_ms=2, request=old.request, region="us", status=None)) == []
    assert s.trying is not None and s.trying.request == new.request and not s.trying.silent


def test_a_wait_that_begins_after_the_step_down_is_unknown_whatever_is_committed_later() -> None:
    """I7, I12."""

    async def story() -> None:
        waiters = CommitWaiters(3)
        waiting = asyncio.ensure_future(waiters.wait(5, 1.0))
        await asyncio.sleep(0)
        waiters.depose()
        waiters.advance(100)
        for late in (waiting, asyncio.ensure_future(waiters.wait(5, 1.0))):
            with pytest.raises(Deposed):
                await late
        await waiters.wait(3, 1.0)

    asyncio.run(story())


def test_an_exit_is_asked_for_only_when_the_own_store_names_another_attempt_of_this_region() -> None:
    """1. A second process of eu seals epoch 2. 2. The first one's next append is refused by its own store: it must end. I2."""
    s = begun()
    older = s.process("eu")
    assert older is not None and older.alive
    s.start("eu")
    s.run(300)
    (serving,) = s.world.authorities()
    assert serving.name == "eu" and serving is not older
    assert not older.alive and s.world.regions["eu"].processes == [serving], older.state.why
