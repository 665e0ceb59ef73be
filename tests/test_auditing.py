"""Audit records: found from the end of a journal, committed ones only; which drill is open."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_fixtures import accepted, admit, opening, take

from actors import auditing
from actors.auditing import CHUNK, AuditRequest, Drills, decide
from actors.messages import Busy, NoAuthority
from actors.waiting import CommitWaiters
from boards.model import Outcome, Row
from failover.lease import Lease
from journal.memory import MemoryJournal, MemoryLog
from journal.ports import Position
from journal.records import Audited, Entry, HandedOver, Record, Scored, open_entry, seal_entry
from ledger.memory import MemoryLedger

SHARD = "eu/0"


class Counted(MemoryJournal):
    """Counts what is read, and gives at most `most` entries at a time."""

    def __init__(self, most: int = 10**6) -> None:
        super().__init__(MemoryLog(SHARD, "ap"))
        self.most, self.read_entries = most, 0

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        found = await super().read(first, limit=min(limit, self.most), max_bytes=max_bytes)
        self.read_entries += len(found)
        return found


def audited(what: str, offset: int, detail: str = "{}") -> Entry:
    return seal_entry(1, offset, f"b{offset}", [HandedOver("x", "x", 1), Audited(what, "operator-1", offset, detail)])


async def filled(journal: Counted, audits: dict[int, str], length: int, committed: int) -> None:
    await admit(journal, SHARD)
    entries = [opening(1, 1)]
    entries += [
        audited(audits[n], n) if n in audits else seal_entry(1, n, f"b{n}", [HandedOver("x", "x", n)]) for n in range(2, length + 1)
    ]
    accepted(await take(journal, 1, (0, 0), entries, committed=committed))


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


@pytest.mark.parametrize("most", [10**6, 100])
def test_committed_records_are_found_newest_first_over_several_chunks(most: int) -> None:
    async def story() -> None:
        journal = Counted(most)
        last = 3 * CHUNK
        await filled(journal, {2: "drill.began", CHUNK: "note.a", CHUNK + 1: "drill.ended", last: "note.b"}, last + 5, committed=last)
        found = await auditing.newest(journal, "", 10)
        assert [(r.offset, r.what) for r in found] == [(last, "note.b"), (257, "drill.ended"), (256, "note.a"), (2, "drill.began")]
        assert [r.offset for r in await auditing.newest(journal, "drill", 10)] == [257, 2]
        assert [r.offset for r in await auditing.newest(journal, "drill.began", 10)] == [2]
        assert await auditing.newest(journal, "dri", 10) == []

    run(story)


def test_what_is_not_committed_is_not_reported() -> None:
    async def story() -> None:
        journal = Counted()
        await filled(journal, {5: "note.a", 9: "note.b"}, 10, committed=8)
        assert [r.offset for r in await auditing.newest(journal, "", 10)] == [5]

    run(story)


def test_reading_stops_with_the_chunk_in_which_the_limit_is_reached() -> None:
    async def story() -> None:
        journal = Counted()
        last = 5 * CHUNK
        await filled(journal, {last - 1: "note.a", last: "note.b"}, last, committed=last)
        assert [r.what for r in await auditing.newest(journal, "", 1)] == ["note.b"]
        assert journal.read_entries == CHUNK

    run(story)


def test_bytes_of_an_event_that_look_like_the_mark_are_no_record() -> None:
    scored = Scored(1, "p", "e", auditing.MARK * 8, int(Outcome.APPLIED), 1, 1, Row(1, 1, 1, 1, 1, 1, "e"), 1, 1, 1, 1, "s")

    async def story() -> None:
        journal = Counted()
        await admit(journal, SHARD)
        lookalike = seal_entry(1, 2, "b", [scored])
        assert auditing.MARK in lookalike.data
        accepted(await take(journal, 1, (0, 0), [opening(1, 1), lookalike], committed=2))
        assert await auditing.newest(journal, "", 10) == []

    run(story)


@pytest.mark.parametrize("detail", ["{}", '{"a":1}', '{"why":"' + "x" * 70_000 + '"}'])
def test_every_audit_record_holds_the_mark_whatever_stands_beside_it(detail: str) -> None:
    before: list[Record] = [HandedOver("x", "y", 1)] * 20
    assert auditing.MARK in seal_entry(1, 1, "b", [*before, Audited("w" * 200, "", 2**40, detail), *before]).data


def test_an_audit_record_changes_nothing_in_a_ledger() -> None:
    ledger = MemoryLedger()
    entry = audited("drill.began", 1)
    ledger.apply([entry], [open_entry(entry)])
    assert (ledger.applied, ledger.boards()) == (Position(1, 1), {})


# Drills


def request(what: str, detail: dict[str, Any], unless_open: str = "") -> AuditRequest:
    return AuditRequest(what, "operator-1", detail, unless_open, asyncio.Future())


def ask(drills: Drills, what: str, name: str, *, until_ms: int = 1000, now_ms: int = 500, gated: bool = True, offset: int = 7) -> Any:
    async def one() -> Any:
        return decide(request(what, {"id": name, "until_ms": until_ms}, "drill" if gated else ""), drills, offset=offset, now_ms=now_ms)

    return asyncio.run(one())


def test_a_drill_is_refused_while_another_is_open_and_the_refusal_rests_on_that_ones_record() -> None:
    drills = Drills(known=True)
    assert ask(drills, "drill.began", "one", offset=7).record is not None
    refused = ask(drills, "drill.began", "two", offset=9)
    assert (refused.record, refused.depends) == (None, 7)
    assert isinstance(refused.refusal, Busy)
    assert (refused.refusal.drill, refused.refusal.retry_after_ms) == ("one", 500)
    assert "two" not in drills.open


def test_a_drill_past_its_time_is_open_no_longer() -> None:
    drills = Drills(known=True)
    ask(drills, "drill.began", "one", until_ms=1000)
    assert ask(drills, "drill.began", "two", now_ms=999).refusal is not None
    assert ask(drills, "drill.began", "two", now_ms=1000).refusal is None


def test_only_the_end_of_that_drill_opens_the_gate() -> None:
    drills = Drills(known=True)
    ask(drills, "drill.began", "one")
    ask(drills, "drill.ended", "other", gated=False)
    assert ask(drills, "drill.began", "two").refusal is not None
    ask(drills, "drill.ended", "one", gated=False)
    assert ask(drills, "drill.began", "two").refusal is None


def test_an_ungated_record_is_written_whatever_is_open() -> None:
    drills = Drills(known=True)
    ask(drills, "drill.began", "one")
    assert ask(drills, "drill.note", "one", gated=False).record is not None


def test_an_epoch_learns_from_the_journal_once_and_keeps_what_it_decided_meanwhile() -> None:
    """1. The journal says that `old` and `gone` began. 2. `gone` has ended in this epoch, not yet in the journal. 3. `old` is open."""

    async def story() -> None:
        journal = Counted()
        await admit(journal, SHARD)
        entries = [opening(1, 1)]
        entries += [audited("drill.began", n, f'{{"id":"{name}","until_ms":1000}}') for n, name in ((2, "old"), (3, "gone"), (4, "ended"))]
        entries.append(audited("drill.ended", 5, '{"id":"ended"}'))
        accepted(await take(journal, 1, (0, 0), entries, committed=5))
        drills = Drills()
        drills.note("drill.ended", {"id": "gone"}, 9)
        await asyncio.gather(drills.learn(journal), drills.learn(journal))
        assert list(drills.open) == ["old"]
        assert journal.read_entries == 5

    run(story)


def test_under_a_lease_an_event_is_answered_by_the_own_store_and_an_audit_record_only_by_the_commit() -> None:
    """1. The own store holds offset 7 under a lease: an event's answer may leave. 2. The record's waits for the commit of 7."""

    async def story() -> None:
        waiters = CommitWaiters(6, lease=Lease(1000, (), 0, 0), now_ms=lambda: 0)
        asked = request("orphans.signed_off", {})
        decided = decide(asked, Drills(), offset=7, now_ms=1)
        telling = asyncio.create_task(auditing.answer(asked, decided, 3, waiters, 5.0))
        event = asyncio.create_task(waiters.wait(7, 5.0))
        await asyncio.sleep(0)
        waiters.hold(7, leased_before=True)
        await event
        assert not asked.done.done()
        waiters.advance(7)
        await telling
        assert asked.done.result() == Position(3, 7)

    run(story)


def test_a_record_whose_commit_is_not_heard_of_is_unknown() -> None:
    async def story() -> None:
        waiters = CommitWaiters(6)
        asked = request("note.a", {})
        telling = asyncio.create_task(auditing.answer(asked, decide(asked, Drills(), offset=7, now_ms=1), 3, waiters, 5.0))
        await asyncio.sleep(0)
        waiters.depose()
        await telling
        with pytest.raises(NoAuthority) as caught:
            asked.done.result()
        assert (caught.value.code, caught.value.definite) == ("unknown", False)

    run(story)
