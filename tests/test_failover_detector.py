"""When a region is lost, and whose turn it is to take over (`on_region_loss: promote`). Pure."""

from dataclasses import replace

import msgspec
from pure_cluster import REGIONS, Schedule

from failover import events as e
from failover.detector import PAUSE_MS, Detector, Heard, Lost, find_lost
from failover.down import heard_newer
from failover.events import Role
from failover.lease import promise_ms
from failover.machine import step
from failover.state import ShardState, Timing
from journal.ports import JournalStatus, Position

DETECTION_MS = 2000


def statuses(**silent_ms: int) -> dict[str, JournalStatus]:
    """Stores of a cluster in epoch 1 of eu, as their acceptors answer."""
    s = Schedule()
    s.start()
    s.run(300)
    return {region: msgspec.structs.replace(s.logs[region].status(), silent_ms=ms, silent_epoch=1) for region, ms in silent_ms.items()}


def lost(region: str, answers: dict[str, JournalStatus]) -> Lost | None:
    return find_lost(region, REGIONS, answers, DETECTION_MS)


def test_a_region_is_lost_when_a_majority_of_the_members_has_seen_no_progress_for_the_detection_time() -> None:
    assert lost("us", statuses(us=2000, ap=2000)) == Lost(1, "eu", 0)
    assert lost("us", statuses(us=2000, ap=1999)) is None
    assert lost("us", statuses(us=1999, ap=9000)) is None, "this region hears it"
    assert lost("us", statuses(us=9000)) is None, "one of three is no majority"


def test_the_authoritys_own_acceptor_has_no_say() -> None:
    assert lost("us", statuses(eu=9000, us=9000, ap=10)) is None
    assert lost("eu", statuses(eu=9000, us=9000, ap=9000)) is None, "and it does not replace itself"


def test_the_most_advanced_log_comes_first_and_the_order_of_the_file_decides_a_tie() -> None:
    answers = statuses(us=9000, ap=9000)
    assert [lost(r, answers) for r in ("us", "ap")] == [Lost(1, "eu", 0), Lost(1, "eu", 1)]
    epoch, offset = answers["ap"].tail
    answers["ap"] = msgspec.structs.replace(answers["ap"], tail=Position(epoch, offset + 1))
    assert [lost(r, answers) for r in ("us", "ap")] == [Lost(1, "eu", 1), Lost(1, "eu", 0)]


def test_a_store_that_lost_data_or_was_begun_anew_is_no_candidate() -> None:
    for changes in ({"amnesiac": True}, {"incarnation": "other"}):
        answers = statuses(us=9000, ap=9000)
        answers["us"] = msgspec.structs.replace(answers["us"], **changes)
        assert lost("us", answers) is None and lost("ap", answers) == Lost(1, "eu", 0)


def test_the_second_candidate_waits_for_the_first_as_long_as_a_detection_takes() -> None:
    detector = Detector(DETECTION_MS)
    second = Lost(1, "eu", 1)
    assert not detector.turn(second, 1000) and not detector.turn(second, 2999) and detector.turn(second, 3000)
    assert not detector.turn(None, 3100), "it was heard again"
    assert not detector.turn(second, 3200)


def test_one_automatic_failover_in_five_minutes_counted_from_the_epoch_that_it_started() -> None:
    detector = Detector(DETECTION_MS, automatic_ms=1000)
    assert not detector.turn(Lost(2, "us", 0), 1000 + PAUSE_MS - 1)
    assert detector.turn(Lost(2, "us", 0), 1000 + PAUSE_MS)


def test_an_acceptor_that_has_heard_nobody_yet_may_have_begun_to_listen_just_now() -> None:
    answers = {r: msgspec.structs.replace(s, silent_epoch=0) for r, s in statuses(us=9000, ap=9000).items()}
    assert find_lost("us", REGIONS, answers, DETECTION_MS, known_ms=9000, start_ms=15_000) is None
    assert find_lost("us", REGIONS, answers, DETECTION_MS, known_ms=9000, start_ms=7000) == Lost(1, "eu", 0)


def test_an_epoch_that_has_just_begun_is_not_judged_by_the_silence_of_the_one_before() -> None:
    """us has begun epoch 2 and ap looks before it has heard of it: eu and ap are silent, of epoch 1."""
    answers = statuses(eu=9000, us=9000, ap=9000)
    newest = answers["us"].newest
    assert newest is not None
    term = msgspec.structs.replace(newest, epoch=2, first_offset=answers["us"].tail.offset + 1, owner="us")
    answers["us"] = msgspec.structs.replace(answers["us"], terms=[newest, term])
    assert find_lost("ap", REGIONS, answers, DETECTION_MS, known_ms=100) is None
    assert find_lost("ap", REGIONS, answers, DETECTION_MS, known_ms=2000) == Lost(2, "us", 1)


def test_a_candidate_of_a_shard_under_a_lease_leaves_the_one_before_it_the_time_of_the_promise_too() -> None:
    detector = Detector(DETECTION_MS)
    second = Lost(1, "eu", 1, lease_ms=1500)
    assert not detector.turn(second, 0, 500)
    needed = DETECTION_MS + promise_ms(1500) + 500
    assert not detector.turn(second, needed - 1, 500) and detector.turn(second, needed, 500)


def test_the_turn_of_a_candidate_begins_anew_with_another_epoch_and_after_its_own_attempt() -> None:
    detector = Detector(DETECTION_MS)
    assert not detector.turn(Lost(1, "eu", 1), 0) and detector.turn(Lost(1, "eu", 1), 2000)
    detector.tried()
    assert not detector.turn(Lost(1, "eu", 1), 2100)
    assert not detector.turn(Lost(2, "us", 1), 4100) and detector.turn(Lost(2, "us", 1), 6100)


def test_only_the_newest_epochs_cause_counts_and_a_persons_order_ends_the_pause() -> None:
    state = follower()
    heard_newer(state, 2, "us", automatic_ms=50)
    assert state.detector.automatic_ms == 50
    heard_newer(state, 1, "eu")
    assert state.detector.automatic_ms == 50, "late news of an older epoch"
    heard_newer(state, 3, "eu")
    assert state.detector.automatic_ms is None


def test_progress_is_what_the_heartbeat_says_and_a_new_epoch_has_all_its_time_before_it() -> None:
    heard = Heard(at_ms=100)
    assert heard.silent_ms(1100) == 1000
    heard.append(1, 5000, 1200)
    assert heard.silent_ms(1200) == 0, "an epoch heard of for the first time"
    heard.append(1, 300, 2000)
    assert heard.silent_ms(2000) == 300
    heard.append(1, 900, 2100)
    assert heard.silent_ms(2100) == 400, "heard, but it makes no progress"
    heard.append(2, 10**9, 3000)
    heard.append(1, 0, 4000)
    assert heard.silent_ms(4000) == 1000, "late news of a deposed authority"


def follower(detection_ms: int = DETECTION_MS) -> ShardState:
    timing = replace(Timing(), detection_ms=detection_ms)
    return ShardState("us", "eu/0", "eu", REGIONS, timing, role=Role.FOLLOWER, look_at_ms=10**9)


def ticked(state: ShardState, now_ms: int) -> list[e.Action]:
    return step(state, e.Ticked(now_ms=now_ms, token="t", jitter=0.5))


def answer(state: ShardState, probe: e.Action, answers: dict[str, JournalStatus], now_ms: int = 0) -> None:
    assert isinstance(probe, e.Probe) and probe.silence and probe.regions == REGIONS
    for region in REGIONS:
        assert step(state, e.Probed(now_ms=now_ms, request=probe.request, region=region, status=answers.get(region))) == []


def test_a_follower_of_a_promote_shard_looks_four_times_a_detection_and_activates_for_what_is_lost() -> None:
    state = follower()
    (first,) = ticked(state, 100)
    answer(state, first, statuses(us=100, ap=100), now_ms=110)
    assert ticked(state, 599) == []
    (second,) = ticked(state, 600)
    answer(state, second, statuses(us=2000, ap=2000), now_ms=610)
    (probe,) = ticked(state, 1100)
    assert isinstance(probe, e.Probe) and not probe.silence and state.trying is not None
    assert (state.role, state.trying.cause, state.trying.expect) == (Role.PROBING, "automatic", (1, "eu"))


def test_answers_that_take_longer_than_a_look_count_until_they_are_a_detection_old() -> None:
    """Over a long way each answer comes after the next look has begun."""
    state = follower()
    (first,) = ticked(state, 100)
    (_,) = ticked(state, 600)
    answer(state, first, statuses(us=9000, ap=9000), now_ms=700)
    (probe,) = ticked(state, 1100)
    assert state.role is Role.PROBING and isinstance(probe, e.Probe)
    late = follower()
    (first,) = ticked(late, 100)
    (_,) = ticked(late, 600)
    answer(late, first, statuses(us=9000, ap=9000), now_ms=700)
    (_,) = ticked(late, 2700)
    assert late.role is Role.FOLLOWER, "two seconds old"


def test_after_an_attempt_that_failed_the_detector_waits_out_the_back_off() -> None:
    state = follower()
    (first,) = ticked(state, 100)
    answer(state, first, statuses(us=9000, ap=9000), now_ms=200)
    state.retry_ms = 1000
    ticked(state, 600)
    assert state.trying is None
    ticked(state, 1100)
    assert state.trying is not None


def test_a_follower_of_a_hold_shard_never_looks() -> None:
    state = follower(0)
    assert ticked(state, 10**6) == [] and state.role is Role.FOLLOWER
