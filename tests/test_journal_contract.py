"""The contract of `journal.ports.Journal`: the memory adapter and the Redis one, on Valkey 9 and on Redis 7, alike."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from journal.memory import NumberOutOfRange
from journal.ports import Accepted, Granted, Journal, Peer, Position, Refused
from journal.records import Entry

sys.path.insert(0, str(Path(__file__).parent))
from store_fixtures import (
    Run,
    accepted,
    admit,
    chapter,
    filler,
    opening,
    reason,
    run,
    sealing,
    shipping,
    store_url,
    take,
)


def test_a_store_that_was_never_admitted_takes_nothing_and_stays_empty(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        before = await journal.status()
        assert (before.incarnation, before.fence, before.tail, before.terms) == ("", 0, Position(0, 0), [])
        assert reason(await journal.seal(sealing(shard, 1))) == "not_admitted"
        assert reason(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 2)))) == "not_admitted"
        assert reason(await take(journal, 1, (0, 0), chapter(1, 1, 2))) == "not_admitted"
        assert await journal.status() == before
        assert await journal.read(1) == []

    run(story)


#: Fixtures, used by name.
__all__ = ["run", "store_url"]


def test_genesis_seal_admits_in_the_same_step_and_keeps_the_first_token(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        first = await journal.seal(sealing(shard, 1, admit_as="i-ap"))
        assert isinstance(first, Granted)
        assert (first.status.incarnation, first.status.fence, first.status.granted_region) == ("i-ap", 1, "eu")
        assert await journal.seal(sealing(shard, 1, admit_as="i-ap")) == first
        second = await journal.seal(sealing(shard, 2, admit_as="another"))
        assert isinstance(second, Granted)
        assert second.status.incarnation == "i-ap"

    run(story)


def test_append_reads_back_and_moves_the_tail_the_terms_and_committed(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 3)
        answer = accepted(await take(journal, 1, (0, 0), entries, committed=99))
        assert answer == Accepted(3, 3, 1, Position(1, 3), "i-ap")
        assert await journal.read(1) == entries
        assert await journal.read(2, limit=1) == entries[1:2]
        assert await journal.read(4) == []
        status = await journal.status()
        assert status.terms == [entries[0].term]
        assert (status.newest, status.lineage, status.tail, status.committed) == (entries[0].term, "L1", Position(1, 3), 3)

    run(story)


@pytest.mark.parametrize(("older", "newer"), [(9, 10), (99, 100)])
def test_epochs_compare_as_numbers_across_a_digit(run: Run, older: int, newer: int) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard, older)
        accepted(await take(journal, older, (0, 0), chapter(older, 1, 12)))
        sealed = await journal.seal(sealing(shard, newer, target="us", deposes=(older, "eu")))
        assert isinstance(sealed, Granted)
        assert reason(await take(journal, older, (older, 12), [filler(older, 13)])) == "fenced"
        assert reason(await journal.seal(sealing(shard, older, deposes=(older, "eu")))) == "fenced"
        accepted(await journal.accept(shipping(shard, newer, (older, 12), chapter(newer, 13, 90, owner="us"))))
        status = await journal.status()
        assert [term.epoch for term in status.terms] == [older, newer]
        assert (status.tail, status.fence) == (Position(newer, 102), newer)
        assert (status.epoch_at(12), status.epoch_at(13)) == (older, newer)
        # Offsets 99 -> 100 as numbers too: this Append overlaps, and cuts nothing.
        late = [filler(newer, offset) for offset in (99, 100, 101)]
        assert accepted(await journal.accept(shipping(shard, newer, (newer, 98), late))).verified == 101
        assert (await journal.status()).tail == Position(newer, 102)
        assert reason(await journal.accept(shipping(shard, older, (newer, 102)))) == "fenced"

    run(story)


def test_the_same_batch_at_the_tail_is_success_and_is_held_once(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 2)))
        batch = [filler(1, 3), filler(1, 4)]
        first = accepted(await take(journal, 1, (1, 2), batch))
        assert accepted(await take(journal, 1, (1, 2), batch)) == first
        assert accepted(await take(journal, 1, (1, 2), batch, committed=4)).committed == 4
        assert [entry.offset for entry in await journal.read(1)] == [1, 2, 3, 4]
        # Only the last of them, or another batch at the same place, is not that batch.
        assert reason(await take(journal, 1, (1, 2), batch[:1])) == "mismatch"
        assert reason(await take(journal, 1, (1, 2), [filler(1, 3), filler(1, 4, "other")])) == "mismatch"
        assert reason(await take(journal, 1, (2, 2), batch)) == "mismatch"

    run(story)


def test_a_stale_tail_is_refused_with_the_whole_status(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 3)))
        answer = await take(journal, 1, (1, 2), [filler(1, 3, "x")])
        assert reason(answer) == "mismatch"
        assert isinstance(answer, Refused)
        assert answer.status == await journal.status()
        assert reason(await take(journal, 1, (1, 4), [filler(1, 5)])) == "mismatch"
        assert reason(await take(journal, 1, (1, 2), [])) == "mismatch"

    run(story)


def test_an_append_without_entries_moves_only_committed_clamped_to_the_tail_and_never_back(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 5)))
        assert accepted(await take(journal, 1, (1, 5), [], committed=3)).committed == 3
        assert accepted(await take(journal, 1, (1, 5), [], committed=2)).committed == 3
        assert accepted(await take(journal, 1, (1, 5), [], committed=50)).committed == 5

    run(story)


def test_entries_that_do_not_continue_the_journal_are_refused_as_diverged(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 2)))
        before = await journal.status()
        assert reason(await take(journal, 1, (1, 2), [filler(1, 4)])) == "diverged"
        assert reason(await take(journal, 1, (1, 2), [opening(1, 3)])) == "diverged"
        bad = [
            shipping(shard, 3, (1, 2), [filler(1, 3), filler(1, 5)]),
            shipping(shard, 3, (1, 2), [opening(3, 3), filler(1, 4)]),
            shipping(shard, 3, (1, 2), [opening(4, 3)]),
            shipping(shard, 3, (1, 2), [filler(3, 3)]),
        ]
        for message in bad:
            assert reason(await journal.accept(message)) == "diverged"
        assert await journal.status() == before

    run(story)


def test_a_late_short_append_cuts_nothing(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 6)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), entries)))
        answer = accepted(await journal.accept(shipping(shard, 1, (1, 1), entries[1:3], committed=6)))
        assert (answer.verified, answer.committed, answer.tail) == (3, 3, Position(1, 6))
        assert await journal.read(1) == entries
        assert await journal.orphans() == []

    run(story)


def test_committed_is_clamped_to_what_this_append_verified(run: Run) -> None:
    """1. A deposed authority left a longer suffix here. 2. The new one's heartbeat at an earlier place says all is committed."""

    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 6))))
        answer = accepted(await journal.accept(shipping(shard, 2, (1, 4), committed=6)))
        assert (answer.verified, answer.committed, answer.tail) == (4, 4, Position(1, 6))
        assert accepted(await journal.accept(shipping(shard, 2, (1, 2), committed=6))).committed == 4

    run(story)


def test_a_conflicting_suffix_moves_to_the_orphans_with_its_terms_in_the_same_step(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        base = chapter(1, 1, 3)
        lost = [filler(1, 4, "lost"), *chapter(2, 5, 2, tag="lost")]
        accepted(await journal.accept(shipping(shard, 1, (0, 0), base, committed=3)))
        accepted(await journal.accept(shipping(shard, 2, (1, 3), lost)))
        won = chapter(3, 4, 2, owner="us")
        answer = accepted(await journal.accept(shipping(shard, 3, (1, 2), [base[2], *won], sender="us", committed=5)))
        assert answer == Accepted(5, 5, 3, Position(3, 5), "i-ap")
        assert await journal.read(1) == [*base, *won]
        status = await journal.status()
        assert [(term.epoch, term.first_offset) for term in status.terms] == [(1, 1), (3, 4)]
        assert (status.granted_region, status.granted_attempt) == ("us", "try-3")
        assert [(batch.epoch, batch.entries) for batch in await journal.orphans()] == [(1, lost[:1]), (2, lost[1:])]

    run(story)


def test_more_than_a_chunk_is_appended_cut_and_kept(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        base = chapter(1, 1, 700)
        accepted(await take(journal, 1, (0, 0), base))
        assert accepted(await take(journal, 1, (0, 0), base)).verified == 700
        won = chapter(2, 11, 600, owner="us")
        accepted(await journal.accept(shipping(shard, 2, (1, 10), won)))
        assert await journal.read(1, limit=5000) == [*base[:10], *won]
        assert [(batch.epoch, batch.entries) for batch in await journal.orphans()] == [(1, base[10:])]

    run(story)


def test_the_same_place_with_another_digest_is_diverged_and_nothing_is_written(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 4)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), entries)))
        before = await journal.status()
        altered = [entries[1], filler(1, 3, "altered"), entries[3], filler(1, 5)]
        assert reason(await journal.accept(shipping(shard, 2, (1, 1), altered))) == "diverged"
        assert await journal.status() == before
        assert await journal.read(1) == entries

    run(story)


def test_what_is_committed_is_never_cut(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 5)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), entries, committed=3)))
        before = await journal.status()
        assert reason(await journal.accept(shipping(shard, 2, (1, 2), chapter(2, 3, 4)))) == "diverged"
        assert await journal.status() == before
        assert await journal.read(1) == entries
        assert await journal.orphans() == []
        accepted(await journal.accept(shipping(shard, 2, (1, 3), chapter(2, 4, 1))))

    run(story)


def test_a_prev_that_is_not_here_raises_the_fence_and_answers_mismatch(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 3))))
        for epoch, prev in [(2, (1, 7)), (3, (2, 2)), (4, (1, 0)), (5, (0, 3))]:
            answer = await journal.accept(shipping(shard, epoch, prev, committed=3, sender="us"))
            assert reason(answer) == "mismatch"
            assert isinstance(answer, Refused)
            assert (answer.status.fence, answer.status.granted_region, answer.status.committed) == (epoch, "us", 0)
        assert (await journal.status()).fence == 5
        assert reason(await journal.accept(shipping(shard, 4, (1, 3)))) == "fenced"

    run(story)


def test_the_fence_never_goes_down_and_an_epoch_belongs_to_one_attempt(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard, 7)
        assert reason(await journal.seal(sealing(shard, 7, attempt="another"))) == "fenced"
        assert reason(await journal.seal(sealing(shard, 7, target="us"))) == "fenced"
        assert reason(await journal.seal(sealing(shard, 6))) == "fenced"
        assert reason(await journal.accept(shipping(shard, 7, (0, 0), chapter(7, 1, 1), attempt="another"))) == "fenced"
        assert reason(await journal.accept(shipping(shard, 6, (0, 0)))) == "fenced"
        for epoch, attempt in [(7, "another"), (6, "try-7"), (8, "try-7"), (8, "try-8")]:
            assert reason(await take(journal, epoch, (0, 0), attempt=attempt)) == "fenced"
        assert (await journal.readmit(incarnation="i-new", fence=3)).fence == 7
        status = await journal.status()
        assert (status.fence, status.granted_region, status.granted_attempt) == (7, "", ""), (
            "what was sent to the old store is not for the new"
        )

    run(story)


def test_a_seal_that_deposes_what_is_no_longer_the_newest_is_answered_moved(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 2))))
        accepted(await journal.accept(shipping(shard, 4, (1, 2), chapter(4, 3, 1, owner="us"))))
        before = await journal.status()
        assert reason(await journal.seal(sealing(shard, 5, deposes=(1, "eu")))) == "moved"
        assert reason(await journal.seal(sealing(shard, 5, deposes=(4, "eu")))) == "moved"
        assert await journal.status() == before
        granted = await journal.seal(sealing(shard, 5, deposes=(4, "us")))
        assert isinstance(granted, Granted)
        assert granted.status.fence == 5
        assert await journal.seal(sealing(shard, 5, deposes=(4, "us"))) == granted
        # This store lags: it does not know the epoch yet that is deposed.
        assert isinstance(await journal.seal(sealing(shard, 9, deposes=(8, "eu"))), Granted)

    run(story)


def test_another_lineage_and_an_older_configuration_are_refused(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 2, config_version=3), lineage="any", config_version=3)))
        before = await journal.status()
        assert reason(await journal.accept(shipping(shard, 2, (1, 2), lineage="L2", config_version=3))) == "lineage"
        assert reason(await journal.seal(sealing(shard, 2, deposes=(1, "eu"), lineage="L2"))) == "lineage"
        assert reason(await journal.accept(shipping(shard, 2, (1, 2), config_version=2))) == "stale_config"
        assert await journal.status() == before
        assert isinstance(await journal.seal(sealing(shard, 2, deposes=(1, "eu"), lineage="")), Granted)

    run(story)


def test_an_amnesiac_store_refuses_until_it_is_readmitted(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 3)
        accepted(await take(journal, 1, (0, 0), entries, committed=2))
        await journal.mark_amnesiac("i-old")
        assert not (await journal.status()).amnesiac, "this store was begun anew since"
        await journal.mark_amnesiac("i-ap")
        assert (await journal.status()).amnesiac
        assert reason(await journal.accept(shipping(shard, 2, (1, 3)))) == "amnesiac"
        assert reason(await journal.seal(sealing(shard, 2, deposes=(1, "eu")))) == "amnesiac"
        assert reason(await take(journal, 1, (1, 3), [])) == "amnesiac"
        status = await journal.readmit(incarnation="i-new", fence=6)
        assert (status.incarnation, status.amnesiac, status.fence, status.granted_attempt) == ("i-new", False, 6, "")
        assert (status.tail, status.committed, status.terms) == (Position(0, 0), 0, [])
        assert [(batch.epoch, batch.entries) for batch in await journal.orphans()] == [(1, entries)]
        # A learner now: it follows, and what comes back is no orphan any longer.
        accepted(await journal.accept(shipping(shard, 7, (0, 0), entries[:2], committed=2)))
        assert [(batch.epoch, batch.entries) for batch in await journal.orphans()] == [(1, entries[2:])]
        # The same call again, late: nothing is lost.
        assert (await journal.readmit(incarnation="i-new", fence=6)).tail == Position(1, 2)

    run(story)


def test_the_mark_of_an_authority_makes_this_store_amnesiac(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await journal.accept(shipping(shard, 1, (0, 0), peers={"ap": Peer(1, 0, amnesiac=True)})))
        assert ((await journal.status()).amnesiac, (await journal.status()).peers) == (True, {})

    run(story)


def test_a_store_below_what_was_heard_of_it_marks_itself_and_refuses(run: Run) -> None:
    """It was exchanged between a probe and the first Append or Seal: raising its fence would hide that."""

    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 3)
        accepted(await take(journal, 1, (0, 0), entries))
        accepted(await journal.accept(shipping(shard, 2, (1, 3), peers={"ap": Peer(1, 3)})))
        assert isinstance(await journal.seal(sealing(shard, 3, deposes=(1, "eu"), remembered=Peer(2, 3))), Granted)
        before = await journal.status()
        assert reason(await journal.accept(shipping(shard, 4, (1, 3), [opening(4, 4)], peers={"ap": Peer(3, 4)}))) == "amnesiac"
        assert await journal.status() == msgspec.structs.replace(before, amnesiac=True)
        await journal.readmit(incarnation="i-new", fence=4)
        assert reason(await journal.seal(sealing(shard, 5, remembered=Peer(4, 1)))) == "amnesiac"
        status = await journal.status()
        assert (status.amnesiac, status.fence) == (True, 4)

    run(story)


def test_a_late_readmission_does_not_empty_the_store_again(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 2)))
        assert (await journal.readmit(incarnation="i-1", fence=1, replaces="other")).incarnation == "i-ap"
        begun = await journal.readmit(incarnation="i-1", fence=1, replaces="i-ap")
        assert (begun.incarnation, begun.tail, begun.fence, begun.granted_attempt) == ("i-1", Position(0, 0), 1, "")
        assert await journal.readmit(incarnation="i-1", fence=1, replaces="i-ap") == begun
        assert reason(await journal.accept(shipping(shard, 1, (0, 0), chapter(1, 1, 2)))) == "fenced", "sent to the store as it was"
        accepted(await journal.accept(shipping(shard, 2, (0, 0), chapter(1, 1, 2))))
        for late in ("i-ap", "i-1"):
            status = await journal.readmit(incarnation="i-2", fence=1, replaces=late)
            assert (status.incarnation, status.tail) == ("i-1", Position(1, 2)), "an order of epoch 1, after epoch 2 was heard of"

    run(story)


def test_a_lease_is_renewed_only_for_the_granted_attempt_and_by_the_newest_acceptor(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await journal.take_acceptor("a-1")

        async def renew(epoch: int, *, attempt: str = "", acceptor: str = "a-1", lease_ms: int = 1500) -> Granted | Refused:
            return await journal.renew(epoch=epoch, attempt=attempt or f"try-{epoch}", acceptor=acceptor, lease_ms=lease_ms)

        assert reason(await renew(1)) == "not_admitted"
        await admit(journal, shard, 9)
        granted = await renew(9)
        assert isinstance(granted, Granted) and granted.status.lease_ms == 1500
        assert reason(await renew(8)) == "fenced" and reason(await renew(10)) == "fenced"
        assert reason(await renew(9, attempt="other")) == "fenced"
        assert isinstance(await renew(9, lease_ms=0), Granted)
        assert (await journal.take_acceptor("a-2")).lease_ms == 1500, "the next acceptor knows how long to wait"
        assert reason(await renew(9)) == "superseded"
        assert isinstance(await renew(9, acceptor="a-2", lease_ms=2000), Granted)
        for past in ("", "a-1"):
            assert reason(await journal.seal(sealing(shard, 10, target="us", acceptor=past))) == "superseded"
        sealed = await journal.seal(sealing(shard, 10, target="us", acceptor="a-2"))
        assert isinstance(sealed, Granted) and sealed.status.lease_ms == 0, "another region has waited for all earlier promises"
        assert reason(await renew(9, acceptor="a-2")) == "fenced"
        shorter = await renew(10, acceptor="a-2", lease_ms=300)
        assert isinstance(shorter, Granted) and shorter.status.lease_ms == 300
        again = await journal.seal(sealing(shard, 12, target="us", acceptor="a-2"))
        assert isinstance(again, Granted) and again.status.lease_ms == 300, "for the holder's own region nobody has waited"
        shipped = shipping(shard, 13, (0, 0), sender="us")
        assert reason(await journal.accept(msgspec.structs.replace(shipped, prev=Position(1, 1)))) == "mismatch"
        assert (await journal.status()).lease_ms == 300
        await journal.mark_amnesiac("i-ap")
        assert reason(await renew(13, acceptor="a-2")) == "amnesiac"

    run(story)


def test_peers_keep_the_maximum_and_a_mark_at_the_same_point(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)

        async def hear(epoch: int, peer: Peer) -> Peer:
            accepted(await journal.accept(shipping(shard, epoch, (0, 0), peers={"us": peer})))
            return (await journal.status()).peers["us"]

        assert await hear(9, Peer(9, 50)) == Peer(9, 50)
        assert await hear(10, Peer(9, 7)) == Peer(9, 50)
        assert await hear(10, Peer(10, 3)) == Peer(10, 3)
        assert await hear(10, Peer(10, 2, amnesiac=True)) == Peer(10, 3)
        assert await hear(10, Peer(10, 3, amnesiac=True)) == Peer(10, 3, amnesiac=True)
        assert await hear(10, Peer(10, 3)) == Peer(10, 3, amnesiac=True), "sent before the mark was set, heard after it"
        assert await hear(11, Peer(11, 0)) == Peer(11, 0)
        assert isinstance(await journal.seal(sealing(shard, 12)), Granted)
        accepted(await take(journal, 12, (0, 0), peers={"us": Peer(11, 9), "eu": Peer(12, 1)}))
        assert (await journal.status()).peers == {"us": Peer(11, 9), "eu": Peer(12, 1)}

    run(story)


def test_adopt_cuts_and_appends_in_one_step_under_the_seal(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        own = chapter(1, 1, 5, tag="own")
        accepted(await take(journal, 1, (0, 0), own, committed=2))
        better = [*chapter(2, 4, 2, owner="us")]

        async def adopt(epoch: int, expected: tuple[int, int], keep: int, entries: list[Entry]) -> Accepted | Refused:
            return await journal.adopt(epoch=epoch, attempt=f"try-{epoch}", expected=Position(*expected), keep=keep, entries=entries)

        assert reason(await adopt(3, (1, 5), 3, better)) == "fenced"
        assert isinstance(await journal.seal(sealing(shard, 3, target="ap", deposes=(2, "us"))), Granted)
        assert reason(await adopt(3, (1, 4), 3, better)) == "mismatch"
        assert reason(await adopt(3, (1, 5), 1, [opening(2, 2)])) == "diverged"
        assert reason(await adopt(3, (1, 5), 6, [])) == "diverged"
        assert reason(await adopt(3, (1, 5), 2, better)) == "diverged"
        assert reason(await adopt(3, (1, 5), 3, [filler(2, 4)])) == "diverged"
        assert reason(await adopt(3, (1, 5), 3, [opening(1, 4)])) == "diverged"
        assert reason(await adopt(3, (1, 5), 3, [opening(4, 4)])) == "diverged"
        assert await journal.read(1) == own
        assert accepted(await adopt(3, (1, 5), 3, better)) == Accepted(5, 2, 3, Position(2, 5), "i-ap")
        assert await journal.read(1) == [*own[:3], *better]
        assert [(batch.epoch, batch.entries) for batch in await journal.orphans()] == [(1, own[3:])]
        accepted(await adopt(3, (2, 5), 5, [opening(3, 6, "ap")]))
        assert [term.epoch for term in (await journal.status()).terms] == [1, 2, 3]

    run(story)


def test_read_keeps_to_its_limits_but_gives_at_least_one(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 60)
        accepted(await take(journal, 1, (0, 0), entries))
        assert await journal.read(1, limit=40) == entries[:40]
        assert await journal.read(1, max_bytes=1) == entries[:1]
        some = await journal.read(10, max_bytes=300)
        assert 1 < len(some) < 50
        assert some == entries[9 : 9 + len(some)]
        assert sum(len(entry.data) for entry in some) <= 300
        assert await journal.read(0) == []

    run(story)


def test_wait_for_wakes_when_committed_moves(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        assert await journal.wait_for(committed_above=0, timeout_ms=20) == 0
        waiters = [asyncio.create_task(journal.wait_for(committed_above=above, timeout_ms=20_000)) for above in (0, 0, 2)]
        accepted(await take(journal, 1, (0, 0), chapter(1, 1, 4), committed=2))
        assert await waiters[0] == 2
        assert await waiters[1] == 2
        assert not waiters[2].done()
        accepted(await journal.accept(shipping(shard, 1, (1, 4), committed=4)))
        assert await waiters[2] == 4
        assert await journal.wait_for(committed_above=1, timeout_ms=0) == 4

    run(story)


@pytest.mark.parametrize("number", [-1, 2**53, 2**64])
def test_numbers_that_a_store_cannot_compare_are_refused_before_anything(run: Run, number: int) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        before = await journal.status()
        for call in (
            lambda: journal.seal(sealing(shard, number, admit_as="i-ap")),
            lambda: journal.accept(shipping(shard, 2, (1, number))),
            lambda: journal.accept(shipping(shard, 2, (0, 0), committed=number)),
            lambda: journal.accept(shipping(shard, 2, (0, 0), peers={"us": Peer(number, 0)})),
            lambda: journal.readmit(incarnation="i-new", fence=number),
        ):
            with pytest.raises(NumberOutOfRange):
                await call()
        assert await journal.status() == before

    run(story)


def test_the_highest_number_is_kept_exactly(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        top = 2**53 - 1
        await admit(journal, shard, top - 1)
        assert isinstance(await journal.seal(sealing(shard, top)), Granted)
        assert reason(await journal.seal(sealing(shard, top - 1))) == "fenced"
        accepted(await journal.accept(shipping(shard, top, (0, 0), [opening(top, 1)], peers={"us": Peer(top, top)})))
        status = await journal.status()
        assert (status.fence, status.tail, status.peers) == (top, Position(top, 1), {"us": Peer(top, top)})
        assert status.terms[0].epoch == top

    run(story)


def test_a_message_for_another_shard_is_a_mistake_of_the_caller(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        for call in (lambda: journal.seal(sealing("another", 1)), lambda: journal.accept(shipping("another", 1, (0, 0)))):
            with pytest.raises(ValueError, match="another"):
                await call()

    run(story)
