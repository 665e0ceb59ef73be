"""The lease of a `local` shard: how long the holder counts it, how long a granter honours it, and when an answer may leave. Pure."""

import itertools

import pytest

from failover.acknowledging import Acknowledging
from failover.lease import Lease, Promises, needed, promise_ms
from failover.replication import RequestNumbers

L = 1000


def renewed(lease: Lease, numbers: RequestNumbers, now_ms: int, *regions: str) -> None:
    """Send renewals at `now_ms`, which these regions grant; the holder has looked at its clock until then."""
    lease.looked_ms = now_ms
    for request, region in lease.renewals(now_ms, numbers):
        if region in regions:
            lease.granted(request)


def begun(now_ms: int = 0) -> tuple[Lease, RequestNumbers]:
    return Lease(L, ("us", "ap"), 1, now_ms), RequestNumbers()


def at_once(lease: Lease, now_ms: int) -> bool:
    """As of a holder that looks at its clock all the time."""
    lease.looked_ms = now_ms
    return lease.valid(now_ms)


def test_a_granter_honours_a_lease_for_longer_than_any_clock_lets_its_holder_count() -> None:
    assert promise_ms(1000) == 1223
    for lease_ms in (1, 300, 1500, 60_000):
        assert promise_ms(lease_ms) * 0.9 >= lease_ms * 1.1 - 1e-6, "a slow holder's clock against a fast granter's"


def test_the_holder_counts_from_the_moment_it_sent_the_renewal_not_from_the_answer() -> None:
    lease, numbers = begun()
    ((request, _), _) = lease.renewals(100, numbers)
    assert not lease.valid(100)
    lease.granted(request)
    assert lease.until_ms() == 100 + L
    assert at_once(lease, 1099) and not at_once(lease, 1100)


def test_a_lease_ends_with_the_renewal_that_enough_regions_granted() -> None:
    lease = Lease(L, ("us", "ap", "sa", "af"), 2, 0)
    numbers = RequestNumbers()
    renewed(lease, numbers, 0, "us", "ap", "sa", "af")
    renewed(lease, numbers, 400, "us")
    assert lease.until_ms() == L
    renewed(lease, numbers, 800, "us", "ap")
    assert lease.until_ms() == 800 + L


def test_an_answer_to_a_renewal_that_is_older_than_the_newest_does_not_shorten_the_lease() -> None:
    lease, numbers = begun()
    ((old, _), _) = lease.renewals(0, numbers)
    lease.looked_ms = 400
    ((new, _), _) = lease.renewals(400, numbers)
    lease.granted(new)
    lease.granted(old)
    lease.granted(new)
    assert lease.until_ms() == 400 + L


def test_renewals_leave_three_times_a_lease() -> None:
    lease, numbers = begun()
    sent = [now for now in range(0, 2000, 25) if lease.renewals(now, numbers)]
    assert [b - a for a, b in itertools.pairwise(sent)] == [350] * (len(sent) - 1)


def test_a_holder_whose_loop_stood_still_lets_go_of_what_was_granted_before() -> None:
    lease, numbers = begun()
    renewed(lease, numbers, 0, "us")
    assert lease.valid(L // 4) and not lease.valid(L // 4 + 1), "it has not looked at its clock for a quarter of the lease"
    lease.renewals(600, numbers)
    assert not lease.valid(600)
    renewed(lease, numbers, 950, "us")
    assert lease.valid(950)


def test_a_lease_that_was_given_up_is_never_valid_again() -> None:
    lease, numbers = begun()
    renewed(lease, numbers, 0, "us")
    lease.give_up()
    assert not lease.valid(1) and lease.renewals(400, numbers) == []


def test_a_region_that_is_a_majority_by_itself_needs_no_promise() -> None:
    assert (needed(["eu"], "eu", 1), needed(["eu", "us"], "eu", 2), needed(["eu", "us", "ap"], "eu", 2)) == (0, 1, 1)
    assert needed(["us", "ap"], "eu", 2) == 2, "a holder that is no member counts for nothing"
    assert at_once(Lease(L, (), 0, 0), 10**9)


def test_no_other_region_is_sealed_for_until_the_promise_is_over() -> None:
    promises = Promises()
    promises.renewed("eu", "a", L, 500)
    assert promises.left_ms("us", 501) == 500 + promise_ms(L) - 501
    assert promises.left_ms("eu", 501) == 0, "the holder's own region seals its own store first"
    assert promises.left_ms("us", 500 + promise_ms(L)) == 0


def test_a_lease_given_up_frees_the_seal_and_only_the_attempt_that_held_it_can() -> None:
    promises = Promises()
    promises.renewed("eu", "a", L, 0)
    promises.given_up("eu", "an older one")
    assert promises.left_ms("us", 1) > 0
    promises.given_up("eu", "a")
    assert promises.left_ms("us", 1) == 0
    assert not promises.may_renew("eu", "a", 2) and promises.may_renew("eu", "a later one", 2), "a renewal that was overtaken"


def test_a_region_that_waits_to_seal_gets_its_turn_though_the_holder_asks_again_and_again() -> None:
    """An authority that is heard and hears nobody renews for ever without ever holding a lease."""
    promises = Promises()
    promises.renewed("eu", "a", L, 0)
    assert promises.may_renew("eu", "a", 1)
    promises.wanted("us", 1)
    over = promise_ms(L)
    assert not promises.may_renew("eu", "a", over + 999) and promises.may_renew("us", "b", 2)
    assert promises.left_ms("us", over) == 0
    assert promises.may_renew("eu", "a", over + 1000), "it did not come"


def test_an_old_holders_promise_holds_on_beside_a_new_ones() -> None:
    promises = Promises()
    promises.renewed("eu", "a", L, 0)
    promises.renewed("us", "b", 100, 10)
    assert promises.left_ms("ap", 20) == promise_ms(L) - 20
    assert promises.left_ms("us", 20) == promise_ms(L) - 20 and promises.left_ms("eu", 20) == 10 + promise_ms(100) - 20


def test_whoever_takes_the_acceptors_role_waits_as_long_as_the_last_one_may_have_promised() -> None:
    promises = Promises()
    promises.taken_over("eu", "a", 0, 7)
    assert promises.left_ms("us", 7) == 0, "no lease was ever promised here"
    promises.taken_over("eu", "a", L, 7)
    assert promises.left_ms("us", 7) == promise_ms(L)


@pytest.mark.parametrize("valid", [True, False])
def test_what_only_the_own_store_holds_is_answered_under_a_lease_seen_before_the_append_and_again_at_the_answer(valid: bool) -> None:
    lease, numbers = begun()
    told = Acknowledging(3, lease)
    if valid:
        renewed(lease, numbers, 0, "us")
    assert told.leased(1) is valid
    assert told.hold(4, leased_before=True, now_ms=2) is valid
    assert told.may_answer(4, 3) is valid and told.may_answer(3, 3)
    assert not told.may_answer(4, L), "the lease has run out: the commit decides"
    told.commit(4)
    assert told.may_answer(4, L)


def test_an_append_that_was_sent_without_a_lease_waits_for_the_commit() -> None:
    lease, numbers = begun()
    told = Acknowledging(0, lease)
    before = told.leased(0)
    renewed(lease, numbers, 0, "us")
    assert not told.hold(1, leased_before=before, now_ms=1) and not told.may_answer(1, 1)


def test_a_deposed_authority_answers_nothing_but_what_was_committed_by_then() -> None:
    lease, numbers = begun()
    told = Acknowledging(1, lease)
    renewed(lease, numbers, 0, "us")
    told.hold(2, leased_before=True, now_ms=1)
    told.depose()
    told.commit(9)
    assert told.may_answer(1, 2) and not told.may_answer(2, 2) and not told.leased(2)


def test_without_a_lease_only_the_commit_counts() -> None:
    told = Acknowledging()
    assert not told.hold(1, leased_before=False, now_ms=0) and not told.may_answer(1, 0)
    told.commit(1)
    assert told.may_answer(1, 0)
