"""The pure questions of `failover.logs`, `failover.activation` and `failover.replication`, each against the protocol's words."""

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from failover.activation import NotNow, Plan, evaluate, in_doubt
from failover.logs import has_lost_data, last_common, later, majority, most_advanced, newest_started, remembered
from failover.replication import WINDOW, PeerProgress, ProbePeer, Replication, RequestNumbers, Ship
from journal.ports import Accepted, JournalStatus, Peer, Position, Refused
from journal.records import Term

REGIONS = ("eu", "us", "ap")
MEMBERS = {region: f"i-{region}" for region in REGIONS}


def store(
    region: str, epochs: Sequence[int], *, owners: Mapping[int, str] | None = None, fence: int = 0, **fields: object
) -> JournalStatus:
    """A member's store whose entry at offset n has the epoch `epochs[n - 1]`."""
    terms = [
        Term(epoch, offset, (owners or {}).get(epoch, "eu"), MEMBERS, 1, "L")
        for offset, (before, epoch) in enumerate(itertools.pairwise([0, *epochs]), 1)
        if epoch != before
    ]
    tail = Position(epochs[-1], len(epochs)) if epochs else Position(0, 0)
    status = JournalStatus(shard="s", incarnation=MEMBERS[region], fence=max(fence, tail.epoch), tail=tail, committed=0, terms=terms)
    return replace(status, **fields)


# -- logs -----------------------------------------------------------------------------------------------------


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Epochs of two logs as I3 allows them: one beginning, then parts of the same last epoch, then epochs of their own."""

    def grow(epochs: list[int], floor: int, parity: int) -> list[int]:
        for _ in range(draw(st.integers(0, 3))):
            floor = floor + 1 + (floor + 1 + parity) % 2
            epochs += [floor] * draw(st.integers(1, 3))
        return epochs

    shared: list[int] = []
    for epoch in range(1, draw(st.integers(1, 4))):
        shared += [epoch] * draw(st.integers(1, 4))
    last = shared[-1] if shared else 0
    a = shared + [last] * (draw(st.integers(0, 2)) if shared else 0)
    return grow(a, last, 0), grow(list(shared), last, 1)


@given(two_logs())
def test_two_logs_part_where_their_epochs_do(logs: tuple[list[int], list[int]]) -> None:
    """I3 makes equal (epoch, offset) mean equal entries, so the common part is the common prefix of epochs."""
    a, b = logs
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))
    assert last_common(store("eu", a), store("us", b)) == common
    assert last_common(store("us", b), store("eu", a)) == common


def test_the_log_with_the_later_epoch_is_ahead_of_a_longer_one_and_a_tie_goes_to_the_preferred() -> None:
    stores = {"eu": store("eu", [1] * 50), "us": store("us", [1, 1, 2]), "ap": store("ap", [1, 1, 2])}
    assert most_advanced(stores, "us") == "us"
    assert most_advanced(stores, "ap") == "ap"
    assert most_advanced({"eu": stores["eu"], "us": store("us", [1] * 49)}, "us") == "eu"


@pytest.mark.parametrize(("members", "need"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_any_two_majorities_meet(members: int, need: int) -> None:
    assert majority(members) == need
    assert 2 * majority(members) > members


def test_the_newest_started_epoch_is_that_of_any_store_committed_or_not() -> None:
    newest = newest_started([store("eu", [1, 1, 3], owners={3: "us"}), store("us", [1, 2]), store("ap", [])])
    assert newest is not None and (newest.epoch, newest.owner) == (3, "us")
    assert newest_started([store("ap", [])]) is None


def test_memories_keep_the_most_that_was_heard_and_its_mark() -> None:
    assert later(None, Peer(1, 2)) == Peer(1, 2)
    assert later(Peer(2, 1), Peer(1, 9)) == Peer(2, 1)
    assert later(Peer(2, 1, True), Peer(2, 1)) == Peer(2, 1, True)
    assert later(Peer(9, 1), Peer(10, 0)) == Peer(10, 0)
    heard = [store("eu", [1], peers={"ap": Peer(3, 7)}), store("us", [1], peers={"ap": Peer(3, 9), "eu": Peer(1, 1)})]
    assert remembered(heard) == {"ap": Peer(3, 9), "eu": Peer(1, 1)}


def test_a_store_has_lost_data_when_it_is_another_marked_or_below_what_is_remembered() -> None:
    status = store("ap", [1] * 5, fence=4)
    assert not has_lost_data(status, None, MEMBERS["ap"])
    assert not has_lost_data(status, Peer(4, 5), MEMBERS["ap"])
    assert has_lost_data(status, Peer(4, 6), MEMBERS["ap"])
    assert has_lost_data(status, Peer(5, 0), MEMBERS["ap"])
    assert has_lost_data(status, Peer(1, 1, amnesiac=True), MEMBERS["ap"])
    assert has_lost_data(replace(status, amnesiac=True), None, MEMBERS["ap"])
    assert has_lost_data(status, None, "another token")
    # Cut by a newer authority, it has fewer entries and a higher fence: nothing is lost.
    assert not has_lost_data(replace(status, fence=5), Peer(4, 6), MEMBERS["ap"])


# -- activation -------------------------------------------------------------------------------------------------


def judge(
    answers: dict[str, JournalStatus], region: str = "us", cause: str = "forced", expect: tuple[int, str] | None = None, **more: object
) -> Plan | NotNow:
    before = remembered(answers.values())
    options = {"leaving_out": frozenset[str](), "remembered_before": before} | more
    return evaluate(region=region, regions=REGIONS, home="eu", answers=answers, cause=cause, expect=expect, **options)  # type: ignore[arg-type]


def code(judged: Plan | NotNow) -> str:
    return judged.code if isinstance(judged, NotNow) else "plan"


def three(**changes: JournalStatus) -> dict[str, JournalStatus]:
    return {region: store(region, [1, 1, 1]) for region in REGIONS} | changes


def test_genesis_needs_every_region_and_the_home() -> None:
    nothing = {region: JournalStatus(shard="s") for region in REGIONS}
    assert code(judge({"eu": nothing["eu"], "us": nothing["us"]}, "eu")) == "genesis_waits"
    assert code(judge(nothing, "us", "restart")) == "not_home"
    plan = judge(nothing | {"ap": JournalStatus(shard="s", fence=4, incarnation="kept")}, "eu", "restart")
    assert isinstance(plan, Plan) and plan.genesis
    assert (plan.epoch, plan.need, plan.asked) == (5, 3, REGIONS)


def test_a_restart_goes_on_only_in_its_own_epoch_and_an_order_in_any() -> None:
    """I10: home decides at genesis only."""
    assert code(judge(three(), "eu", "restart")) == "plan"
    assert code(judge(three(), "us", "restart")) == "follow"
    assert code(judge(three(), "us", "unstarted_seal")) == "follow"
    mine = three(us=store("us", [1, 1, 1, 2], owners={2: "us"}))
    assert code(judge(mine, "us", "restart")) == "plan"
    assert code(judge(mine, "eu", "restart")) == "follow"


def test_an_operator_is_asked_again_when_another_epoch_than_the_named_one_has_started() -> None:
    assert code(judge(three(), expect=(1, "eu"))) == "plan"
    moved = judge(three(), expect=(1, "ap"))
    assert isinstance(moved, NotNow) and (moved.code, moved.newest_epoch, moved.newest_owner) == ("moved", 1, "eu")


def test_without_a_majority_that_may_vote_nothing_is_planned_and_the_missing_are_named() -> None:
    """I6."""
    answers = three()
    alone = judge({"us": answers["us"]})
    assert isinstance(alone, NotNow) and alone.code == "no_majority" and "eu, ap" in alone.detail
    assert code(judge({"eu": answers["eu"], "ap": answers["ap"]})) == "no_majority"
    assert code(judge({"us": answers["us"], "ap": answers["ap"]})) == "plan"
    forgetful = judge({"us": replace(answers["us"], peers={"ap": Peer(1, 9)}), "ap": answers["ap"]})
    assert isinstance(forgetful, NotNow) and forgetful.code == "no_majority" and "ap" in forgetful.detail


def test_a_plan_takes_the_next_epoch_after_every_fence_and_seals_no_store_that_may_have_lost_data() -> None:
    """A raised fence would hide the loss from the next coordinator (I1)."""
    lost = store("ap", [1], fence=7)
    plan = judge(three(ap=lost, us=replace(store("us", [1, 1, 1]), peers={"ap": Peer(7, 3)})))
    assert isinstance(plan, Plan)
    assert (plan.epoch, plan.from_epoch, plan.from_owner) == (8, 1, "eu")
    assert plan.voters == {"eu", "us"} and plan.asked == ("eu", "us")
    silent = judge({region: store(region, [1]) for region in ("us", "ap")})
    assert isinstance(silent, Plan) and silent.asked == ("us", "ap")
    readmitting = judge(three(ap=replace(lost, incarnation="new")), leaving_out=frozenset({"ap"}))
    assert isinstance(readmitting, Plan) and readmitting.asked == REGIONS and readmitting.voters == {"eu", "us"}


def test_a_region_that_lost_data_does_not_activate_and_marks_only_the_store_that_was_a_member() -> None:
    """A store that was begun anew for its readmission a moment ago has another token: it must not be marked again."""
    own = store("us", [1])
    told = {"eu": replace(store("eu", [1, 1, 1]), peers={"us": Peer(1, 3)}), "us": own}
    marked = judge(told)
    assert isinstance(marked, NotNow) and (marked.code, marked.mark) == ("amnesiac", "i-us")
    for other in (replace(own, amnesiac=True), replace(own, incarnation="new"), JournalStatus(shard="s")):
        again = judge(told | {"us": other})
        assert isinstance(again, NotNow) and (again.code, again.mark) == ("amnesiac", "")


def test_what_was_heard_of_a_store_before_it_was_begun_anew_says_nothing_of_it_since() -> None:
    """1. ap is marked amnesiac in epoch 2, with 9 entries. 2. Epoch 3 names its new token. 3. us still has the old mark: ap, with one
    entry, votes all the same, and does not mark itself. I10."""
    renewed = MEMBERS | {"ap": "anew"}
    terms = [Term(2, 1, "eu", MEMBERS, 1, "L"), Term(3, 10, "eu", renewed, 2, "L")]
    old = {"ap": Peer(2, 9, amnesiac=True)}
    eu = JournalStatus(shard="s", incarnation="i-eu", fence=3, tail=Position(3, 10), terms=terms)
    us = JournalStatus(shard="s", incarnation="i-us", fence=3, tail=Position(2, 9), terms=terms[:1], peers=old)
    ap = JournalStatus(shard="s", incarnation="anew", fence=2, tail=Position(2, 1), terms=terms[:1])
    answers = {"eu": eu, "us": us, "ap": ap}
    assert not in_doubt(answers)
    plan = judge(answers, "eu", "restart")
    assert isinstance(plan, Plan) and plan.voters == set(REGIONS) and "ap" not in plan.memories
    assert code(judge(answers, "ap", "restart")) == "follow"
    again = judge(answers | {"us": replace(us, peers={"ap": Peer(3, 5)})}, "eu", "restart")
    assert isinstance(again, Plan) and again.voters == {"eu", "us"}


def test_what_is_remembered_newer_than_a_status_of_the_same_round_proves_nothing() -> None:
    """While an authority writes, one store's memory may be newer than another's status; the second round decides."""
    answers = three(eu=replace(store("eu", [1] * 5), peers={"ap": Peer(1, 5)}))
    assert in_doubt(answers)
    plan = judge(answers, remembered_before={"ap": Peer(1, 3)})
    assert isinstance(plan, Plan) and "ap" in plan.voters
    assert not in_doubt(three())


# -- replication ------------------------------------------------------------------------------------------------


def epoch_of(epoch: int = 2, *, start: int = 4, tail: int = 4, committed: int = 3) -> tuple[Replication, JournalStatus, RequestNumbers]:
    own = store("eu", [1] * (start - 1) + [epoch] * (tail - start + 1))
    peers = {r: PeerProgress(r, MEMBERS[r], Peer()) for r in ("us", "ap")}
    made = Replication(
        epoch=epoch, region="eu", members=MEMBERS, start_offset=start, tail=tail, committed=committed, peers=peers, heartbeat_ms=20
    )
    return made, own, RequestNumbers()


def shipped(sends: list[ProbePeer | Ship], region: str) -> list[tuple[int, int]]:
    return [(s.first, s.last) for s in sends if isinstance(s, Ship) and s.region == region]


def streaming(made: Replication, own: JournalStatus, take: RequestNumbers, region: str, status: JournalStatus) -> None:
    """Answer this region's probe."""
    sends = [s for s in made.sends(0, take) if isinstance(s, ProbePeer)]
    for probe in sends:
        if probe.region == region:
            assert made.probed(region, probe.request, status, own, 0)


def accepted(verified: int, tail: int, region: str = "us", epoch: int = 2) -> Accepted:
    return Accepted(verified, 0, epoch, Position(epoch, tail), MEMBERS[region])


def test_a_peer_is_probed_before_anything_is_sent_and_then_gets_what_it_lacks() -> None:
    made, own, take = epoch_of(tail=30)
    first = made.sends(0, take)
    assert sorted(s.region for s in first if isinstance(s, ProbePeer)) == ["ap", "us"] and not shipped(first, "us")
    (probe,) = [s for s in first if isinstance(s, ProbePeer) and s.region == "us"]
    assert made.probed("us", probe.request, store("us", [1, 1]), own, 1)
    assert not made.probed("us", probe.request, store("us", []), own, 1)
    assert shipped(made.sends(1, take), "us") == [(3, 18), (19, 30)]


def test_a_window_bounds_what_is_under_way_and_silence_begins_with_a_probe_again() -> None:
    made, own, take = epoch_of(tail=400)
    streaming(made, own, take, "us", store("us", [1] * 3))
    ships = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    assert len(ships) == WINDOW and not shipped(made.sends(2, take), "us")
    made.answered("us", ships[0].request, None, own, 3)
    made.answered("us", ships[1].request, accepted(20, 20), own, 3)
    assert made.peers["us"].verified == 0
    later_sends = made.sends(2000, take)
    assert [s.region for s in later_sends if isinstance(s, ProbePeer)] == ["us"] and not shipped(later_sends, "us")


def test_only_what_an_answer_verified_counts_as_held_and_only_with_an_entry_of_this_epoch() -> None:
    """Raft's figure 8: a majority that holds entries of older epochs commits nothing (I1, I13)."""
    made, own, take = epoch_of(start=4, tail=4, committed=1)
    streaming(made, own, take, "us", store("us", [1]))
    (ship,) = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    assert (ship.first, ship.last) == (2, 4)
    made.answered("us", ship.request, accepted(3, tail=9), own, 2)
    assert made.peers["us"].verified == 3 and made.advance(2) is None
    made.peers["us"].verified = 4
    assert made.advance(3) == 4 and made.advance(3) is None


def test_an_idle_peer_gets_a_heartbeat_in_time_and_at_once_when_the_commit_moved() -> None:
    made, own, take = epoch_of()
    streaming(made, own, take, "us", store("us", [1] * 3))
    (ship,) = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    made.answered("us", ship.request, accepted(4, 4), own, 2)
    assert made.advance(2) == 4
    assert shipped(made.sends(2, take), "us") == [(5, 4)]
    beat = max(made.peers["us"].in_flight)
    made.answered("us", beat, accepted(4, 4), own, 3)
    assert shipped(made.sends(10, take), "us") == []
    assert shipped(made.sends(30, take), "us") == [(5, 4)]


def test_a_peer_that_answers_less_than_it_held_has_lost_data_and_stops_counting() -> None:
    made, own, take = epoch_of(tail=6)
    streaming(made, own, take, "us", store("us", [1] * 3))
    (ship,) = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    made.answered("us", ship.request, accepted(6, 6), own, 2)
    made.appended(7)
    (ship,) = [s for s in made.sends(2, take) if isinstance(s, Ship) and s.region == "us"]
    made.answered("us", ship.request, Refused("mismatch", store("us", [1, 1], fence=2)), own, 3)
    peer = made.peers["us"]
    assert peer.amnesiac and not peer.counts and made.memories()["us"].amnesiac
    assert made.advance(3) is None
    assert {type(s) for s in made.sends(5000, take) if s.region == "us"} == {ProbePeer}


def test_a_peer_whose_log_differs_is_sent_what_follows_the_common_part() -> None:
    made, own, take = epoch_of(start=4, tail=6)
    streaming(made, own, take, "us", store("us", [1] * 3))
    (ship,) = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    made.answered("us", ship.request, Refused("mismatch", store("us", [1, 1], fence=2)), own, 2)
    assert shipped(made.sends(2, take), "us") == [(3, 6)]


def test_a_readmitted_member_does_not_vote_and_a_store_is_begun_anew_only_if_others_hold_what_is_committed() -> None:
    made, _, _ = epoch_of()
    made.not_voting = frozenset({"ap"})
    made.peers["ap"].verified = 4
    assert made.advance(1) is None
    made.peers["us"].verified = 4
    assert made.advance(1) == 4
    assert made.held_without("ap")
    made.peers["us"].verified, made.peers["ap"].verified = 3, 4
    assert not made.held_without("ap") and made.held_without("us")


def test_a_store_that_is_begun_anew_counts_no_more_in_this_epoch_whatever_it_has_said_or_still_says() -> None:
    """Found by the simulator: an answer that was under way, or known from before, made a majority of one store and an emptied one."""
    made, own, take = epoch_of(start=4, tail=6)
    streaming(made, own, take, "us", store("us", [1] * 3))
    (ship,) = [s for s in made.sends(1, take) if isinstance(s, Ship) and s.region == "us"]
    assert not made.leave_out("us", 2), "ap is not known to hold what is committed"
    made.peers["ap"].verified = 3
    assert made.leave_out("us", 2)
    made.answered("us", ship.request, accepted(6, 6), own, 3)
    assert made.peers["us"].verified == 0 and made.advance(3) is None
    (probe,) = [s for s in made.sends(5000, take) if isinstance(s, ProbePeer) and s.region == "us"]
    assert made.probed("us", probe.request, store("us", [1, 1, 1, 2, 2, 2], fence=2), own, 5001)
    assert not made.peers["us"].counts and shipped(made.sends(9000, take), "us") == []


def test_a_majority_confirms_an_epoch_only_by_what_was_sent_after_somebody_asked() -> None:
    """1. A heartbeat is under way. 2. Somebody asks. 3. Its answer does not count; the next one, sent at once, does, with the own store."""
    made, own, take = epoch_of()
    made.not_voting = frozenset({"ap"})
    streaming(made, own, take, "us", store("us", [1, 1, 1, 2]))
    (early,) = [s for s in made.sends(20, take) if isinstance(s, Ship) and s.region == "us"]
    made.asked = take.last
    own_append = take()
    assert shipped(made.sends(21, take), "us") == []
    made.answered("us", early.request, accepted(4, 4), own, 22)
    made.appended(4, own_append)
    assert (made.confirmed() or 0) <= made.asked
    (late,) = [s for s in made.sends(23, take) if isinstance(s, Ship) and s.region == "us"]
    assert late.request > own_append
    made.answered("us", late.request, accepted(4, 4), own, 24)
    assert made.confirmed() == own_append
    assert made.confirmed() is None, "it is told once"
    assert shipped(made.sends(25, take), "us") == [], "and nobody asks any more"
