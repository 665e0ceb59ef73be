"""Two instances of one region's actor, by the role machine alone: the older one ends instead of taking the shard back."""

from failover import events as e
from failover.events import Role
from failover.machine import step
from failover.state import ShardState
from journal.ports import JournalStatus, Position
from journal.records import Term

REGIONS = ("eu", "us", "ap")
MEMBERS = {region: f"i-{region}" for region in REGIONS}


def looking(epoch: int, attempt: str, newest: Term) -> list[e.Action]:
    """A follower that sealed `epoch` last (0: it is new) looks again, and all regions answer that `newest` has started."""
    state = ShardState("eu", "s", "eu", REGIONS)
    state.role, state.epoch, state.attempt, state.look_at_ms = Role.FOLLOWER, epoch, attempt, 0
    (probe,) = step(state, e.Ticked(now_ms=1, token="t", jitter=0.5))
    assert isinstance(probe, e.Probe)
    actions: list[e.Action] = []
    for region in REGIONS:
        status = JournalStatus(
            shard="s", incarnation=MEMBERS[region], fence=newest.epoch, tail=Position(newest.epoch, newest.first_offset), terms=[newest]
        )
        actions += step(state, e.Probed(now_ms=2, request=probe.request, region=region, status=status))
    return actions


def started(epoch: int, owner: str = "eu") -> Term:
    return Term(epoch, 10 * epoch, owner, MEMBERS, 1, "L")


def test_an_instance_that_finds_a_newer_epoch_of_its_region_started_by_another_one_ends() -> None:
    actions = looking(4, "mine", started(5))
    assert [type(action) for action in actions] == [e.StepDown, e.Exit, e.ActivationEnded]


def test_a_new_instance_takes_over_from_the_one_before_it() -> None:
    actions = looking(0, "", started(5))
    assert [action.epoch for action in actions if isinstance(action, e.SendSeal)] == [6]


def test_an_instance_whose_own_epoch_is_the_newest_comes_back_after_a_seal_that_nobody_started() -> None:
    actions = looking(5, "mine", started(5))
    assert [action.epoch for action in actions if isinstance(action, e.SendSeal)] == [6]


def test_an_instance_follows_when_another_region_has_started_a_newer_epoch() -> None:
    actions = looking(4, "mine", started(5, "us"))
    assert not any(isinstance(action, e.SendSeal | e.Exit) for action in actions)
