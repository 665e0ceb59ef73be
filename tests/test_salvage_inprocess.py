"""Orphans on three regions in one process: an isolated authority's entries are cut, listed, sent again, signed off."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inprocess_cluster import BEST, SUM, TIMING, Cluster, tell, until
from inprocess_region import SHARD
from watched_log import Sent, fold_naively

from actors import orders
from actors.messages import Busy, NoAuthority, NotServing, WireError, from_wire
from boards.model import VALUE_MAX, Outcome
from boards.policies import make_rules
from failover.salvage import SALVAGED
from journal.ports import Granted, Seal
from journal.records import Audited, BoardCreated, EpochStarted, Scored, open_entry

TEAM, CREW = "arena:team:S1:all", "arena:crew:S1:all"


async def cut_off(c: Cluster, *events: Sent) -> None:
    """1. eu serves and is cut off. 2. It appends `events` that nobody else gets. 3. us takes over. 4. eu is back: they are cut."""
    c.isolate("eu")
    tail = c["eu"].log.tail.offset
    sending = [asyncio.create_task(c.send("eu", event, direct=True)) for event in events]

    def appended() -> bool:
        held = [record for entry in c["eu"].log.read(tail + 1, limit=1000) for record in open_entry(entry)]
        return {r.event_id for r in held if isinstance(r, Scored)} >= {event.event_id for event in events}

    await until(appended, "eu's store holds the events")
    assert (await c.force("us"))["ok"]
    await asyncio.gather(*sending)
    c.heal()
    await until(c["eu"].log.orphans, "eu's entries were cut")


async def order(c: Cluster, region: str, do: str, **fields: Any) -> dict[str, Any]:
    reply = await orders.operate(c[region].actor, {"do": do, **fields})
    if "error" in reply:
        raise from_wire(msgspec.convert(reply["error"], WireError))
    return reply


def states(listed: dict[str, Any]) -> dict[str, tuple[str, str, bool]]:
    return {item["event_id"]: (item["state"], item["outcome"], item["in_lineage"]) for item in listed["orphans"] if item["kind"] == "event"}


def records(c: Cluster, kind: type[Any], region: str = "us") -> list[Any]:
    log = c[region].log
    return [r for entry in log.read(1, limit=log.committed) for r in open_entry(entry) if isinstance(r, kind)]


async def folded(c: Cluster, region: str = "eu") -> None:
    await until(lambda: c[region].actor.ledger.applied == c["us"].log.tail == c[region].log.tail, f"{region} follows")


def test_orphans_of_an_isolated_authority_are_listed_sent_again_once_and_signed_off(tmp_path: Path) -> None:
    """5. Listed as open. 6. Sent again when asked: once in the lineage, subject marked. 7. Signed off: recorded, then gone. I4, I5."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2, board=SUM)
        lost = [c.event(amount, player="p", board=SUM) for amount in (5, 7)]
        again = c.event(9, player="q", board=SUM)
        await cut_off(c, *lost, again)
        await c.authority("us")
        # Its client has retried one of them in the meantime.
        await c.send("us", again)
        await folded(c)

        before = await order(c, "eu", "orphans", limit=100)
        assert (before["total"], before["caught_up"]) == (3, True)
        assert states(before) == {
            lost[0].event_id: ("open", "", False),
            lost[1].event_id: ("open", "", False),
            again.event_id: ("done", "applied", True) if again.result and again.result.outcome == 2 else ("done", "applied_first", True),
        }
        assert {(item["board"], item["player_id"], item["amount"]) for item in before["orphans"]} == {
            (SUM, "p", "5"),
            (SUM, "p", "7"),
            (SUM, "q", "9"),
        }
        assert sum(entry["open"] for entry in before["entries"]) == 2

        sent = await order(c, "eu", "resubmit_orphans")
        assert sum(sent["outcomes"].values()) == 2
        assert [(entry["done"], entry["open"]) for entry in sent["entries"] if entry["done"] or entry["open"]] != []
        assert sum(entry["done"] for entry in sent["entries"]) == 3
        assert sum(entry["open"] for entry in sent["entries"]) == 0
        log = c["us"].log
        lineage = fold_naively(log.read(1, limit=log.committed))
        assert [lineage[SUM, "p", event.event_id].amount for event in lost] == [5, 7]
        marked = {r.event_id for r in records(c, Scored) if r.subject == f"{SALVAGED}tests"}
        assert marked == {event.event_id for event in lost}
        tail = log.committed
        assert (await order(c, "eu", "resubmit_orphans"))["outcomes"] == {}
        assert [r.event_id for r in records(c, Scored) if r.player_id == "p"] == [event.event_id for event in lost]

        (epoch,) = {item["epoch"] for item in before["orphans"]}
        done = await order(c, "eu", "sign_off_orphans", epoch=epoch, why="checked by hand", asked_by="operator-1")
        assert (done["entries"], done["events"], done["states"]["done"], done["why"]) == (len(before["entries"]), 3, 3, "checked by hand")
        assert c["eu"].log.orphans() == []
        (audit,) = records(c, Audited)
        assert (audit.what, audit.asked_by) == ("orphans.signed_off", "operator-1")
        assert done["recorded"]["offset"] > tail
        assert (await order(c, "eu", "sign_off_orphans", epoch=epoch, why="again", asked_by="operator-1"))["entries"] == 0
        assert len(records(c, Audited)) == 1
        # Any region's own journal tells of it.
        await folded(c, "ap")
        (found,) = (await order(c, "ap", "audits", what="orphans", limit=10))["records"]
        assert (found["detail"]["region"], found["detail"]["epoch"], found["offset"]) == ("eu", epoch, done["recorded"]["offset"])
        await c.check()

    tell(tmp_path, story)


def test_nothing_is_deleted_while_the_audit_record_cannot_be_committed(tmp_path: Path) -> None:
    """5. us is away. 6. The sign-off at eu fails. 7. The orphans are still there; when us is back it works. I5."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await cut_off(c, c.event(5, board=SUM))
        await c.authority("us")
        await folded(c)
        (batch,) = c["eu"].log.orphans()
        c.stop("us")
        with pytest.raises(NoAuthority):
            await order(c, "eu", "sign_off_orphans", epoch=batch.epoch, why="too early", asked_by="operator-1")
        assert c["eu"].log.orphans() == [batch]
        c.come_back("us")
        await c.authority("us")

        async def signed_off() -> None:
            while True:
                try:
                    await order(c, "eu", "sign_off_orphans", epoch=batch.epoch, why="now", asked_by="operator-1")
                    return
                except NoAuthority:
                    await asyncio.sleep(0.02)

        await asyncio.wait_for(signed_off(), 5)
        assert c["eu"].log.orphans() == []

    tell(tmp_path, story)


def test_a_local_shard_salvages_by_itself_and_a_quorum_shard_only_when_asked(tmp_path: Path) -> None:
    """5. Nobody asks. 6. `local`: everything is in the lineage; a restart sends nothing again. `quorum`: all of it is still open."""

    async def story(c: Cluster, lost: list[Sent]) -> None:
        c.start()
        await c.authority("eu")
        await c.write(2, board=SUM)
        lost += [c.event(amount, player="p", board=SUM) for amount in (3, 4)]
        await cut_off(c, *lost)
        await c.authority("us")

    async def local(c: Cluster) -> None:
        lost: list[Sent] = []
        await story(c, lost)
        ids = [event.event_id for event in lost]
        await until(lambda: {r.event_id for r in records(c, Scored)} >= set(ids), "eu salvages by itself")
        assert [r.event_id for r in records(c, Scored) if r.player_id == "p"] == ids
        await folded(c)
        assert c["eu"].log.orphans(), "only a sign-off deletes"
        await c.restart("eu")
        # At once: its new ledger knows nothing yet, and is waited for.
        seen, outcomes = await c["eu"].actor.salvaging.resubmit(5.0)
        assert (outcomes, sum(count.done for count in seen.counts())) == ({}, len(ids))
        await until(lambda: not c["eu"].actor.salvaging._wake.is_set(), "it has looked by itself too")
        sent = getattr(c["eu"].actor.links, "sent")  # noqa: B009
        assert "submit" not in sent
        assert [r.event_id for r in records(c, Scored) if r.player_id == "p"] == ids

    async def quorum(c: Cluster) -> None:
        lost: list[Sent] = []
        await story(c, lost)
        await folded(c)
        await c.write(3, through="us", board=BEST)
        assert "submit" not in getattr(c["eu"].actor.links, "sent")  # noqa: B009
        assert set(states(await order(c, "eu", "orphans", limit=10)).values()) == {("open", "", False)}

    (tmp_path / "local").mkdir()
    (tmp_path / "quorum").mkdir()
    tell(tmp_path / "local", local, mode="local")
    tell(tmp_path / "quorum", quorum)


def test_an_orphaned_board_is_made_again_under_another_number_and_its_events_find_it(tmp_path: Path) -> None:
    """1. The isolated eu makes TEAM and takes an event for it. 2. us makes CREW, under the same number. 3. The event goes to TEAM."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        c.isolate("eu")
        rules = make_rules("cumulative", publish_interval_ms=50, decimals=2)
        making = asyncio.create_task(order(c, "eu", "create_board", board=TEAM, rules=_plain(rules), asked_by="operator-1"))
        await until(lambda: any(_creates(c, "eu", TEAM)), "eu's store holds the board")
        event = c.event(1250, player="p", board=TEAM)
        sending = asyncio.create_task(c.send("eu", event, direct=True))
        await until(lambda: any(_scores(c, "eu", event.event_id)), "eu's store holds the event")
        assert (await c.force("us"))["ok"]
        with pytest.raises(NoAuthority):
            await making
        await sending
        await order(c, "us", "create_board", board=CREW, rules=_plain(rules), asked_by="operator-1")
        (team,), (crew,) = _creates(c, "eu", TEAM), _creates(c, "us", CREW)
        assert team.number == crew.number
        c.heal()
        await until(c["eu"].log.orphans, "eu's entries were cut")
        await folded(c)

        listed = await order(c, "eu", "orphans", limit=10)
        assert {(item["kind"], item["board"], item["state"]) for item in listed["orphans"]} == {
            ("board", TEAM, "open"),
            ("event", TEAM, "open"),
        }
        assert [item["amount"] for item in listed["orphans"] if item["kind"] == "event"] == ["12.50"]
        sent = await order(c, "eu", "resubmit_orphans")
        assert sent["outcomes"] == {"board": 1, "applied_first": 1}
        (made,) = _creates(c, "us", TEAM)
        assert made.number != crew.number and made.rules == rules
        (scored,) = _scores(c, "us", event.event_id)
        assert (scored.board, scored.amount) == (made.number, 1250)

    tell(tmp_path, story)


def test_the_same_id_with_other_content_is_left_to_an_operator(tmp_path: Path) -> None:
    """5. The lineage gets the orphan's id with another amount. 6. It is a conflict, listed as such, and not sent again. I4."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await cut_off(c, c.event(5, player="p", event_id="twice", board=SUM))
        await c.authority("us")
        other = c.event(6, player="p", event_id="twice", board=SUM)
        (result,) = await c.send("us", other)
        assert result.outcome == Outcome.APPLIED_FIRST
        await folded(c)
        assert (await order(c, "eu", "resubmit_orphans"))["outcomes"] == {}
        assert states(await order(c, "eu", "orphans", limit=10)) == {"twice": ("operator", "conflict", True)}

    tell(tmp_path, story)


def test_of_two_drills_asked_for_at_once_one_begins_also_after_a_handover(tmp_path: Path) -> None:
    """1. Two ask at once. 2. One is refused as busy. 3. After a failover the new authority refuses too. 4. It ended: another may begin."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")

        def begin(region: str, name: str, until_ms: int = 2**45) -> Any:
            return order(
                c,
                region,
                "audit",
                what="drill.began",
                asked_by="operator-1",
                detail={"id": name, "until_ms": until_ms},
                unless_open="drill",
            )

        both = await asyncio.gather(begin("eu", "one"), begin("eu", "two"), return_exceptions=True)
        assert sum(isinstance(outcome, BaseException) for outcome in both) == 1
        (refusal,) = (outcome for outcome in both if isinstance(outcome, Busy))
        begun = partial(records, c, Audited, "eu")
        await until(begun, "the store has the news of its commit")
        began = [r for r in begun() if r.what == "drill.began"]
        assert len(began) == 1
        assert f'"id":"{refusal.drill}"' in began[0].detail
        running = refusal.drill
        await c.force("us")
        await c.authority("us")
        with pytest.raises(Busy):
            await begin("us", "three")
        await order(c, "us", "audit", what="drill.ended", asked_by="operator-1", detail={"id": running})
        await begin("us", "four", until_ms=1)
        # That one was past its time when it began.
        await begin("us", "five")
        with pytest.raises(Busy):
            await begin("us", "six")
        await folded(c, "ap")
        found = (await order(c, "ap", "audits", what="drill", limit=100))["records"]
        assert [(r["what"], r["detail"]["id"]) for r in found] == [
            ("drill.began", "five"),
            ("drill.began", "four"),
            ("drill.ended", running),
            ("drill.began", running),
        ]
        assert [r["detail"]["id"] for r in (await order(c, "ap", "audits", what="drill.ended", limit=100))["records"]] == [running]
        assert len((await order(c, "ap", "audits", what="", limit=2))["records"]) == 2
        assert len(records(c, EpochStarted)) == 2
        await c.check()

    tell(tmp_path, story)


def _plain(rules: Any) -> dict[str, Any]:
    return {name: getattr(rules, name) for name in rules.__struct_fields__}


def _creates(c: Cluster, region: str, board: str) -> list[BoardCreated]:
    entries = c[region].log.read(1, limit=1000) + [e for batch in c[region].log.orphans() for e in batch.entries]
    return [r for entry in entries for r in open_entry(entry) if isinstance(r, BoardCreated) and r.board_id == board]


def _scores(c: Cluster, region: str, event_id: str) -> list[Scored]:
    entries = c[region].log.read(1, limit=1000)
    return [r for entry in entries for r in open_entry(entry) if isinstance(r, Scored) and r.event_id == event_id]


def test_what_the_rules_refuse_by_now_is_left_to_an_operator_with_the_reason(tmp_path: Path) -> None:
    """5. The lineage fills p's sum up to the limit. 6. The orphan would overflow it: told as such, and not sent again by itself."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        lost = c.event(5, player="p", board=SUM)
        await cut_off(c, lost)
        await c.authority("us")
        await c.send("us", c.event(VALUE_MAX, player="p", board=SUM))
        await folded(c)
        assert (await order(c, "eu", "resubmit_orphans"))["outcomes"] == {"invalid": 1}
        listed = await order(c, "eu", "orphans", limit=10)
        assert states(listed) == {lost.event_id: ("operator", "invalid", False)}
        assert [item["code"] for item in listed["orphans"]] == ["overflow"]
        sent = getattr(c["eu"].actor.links, "sent").count("submit")  # noqa: B009
        await c["eu"].actor.salvaging.resubmit(5.0)
        assert getattr(c["eu"].actor.links, "sent").count("submit") == sent  # noqa: B009
        # The operator has an old row corrected and asks again.
        await c.send("us", c.event(-1000, player="p", board=SUM))
        assert (await order(c, "eu", "resubmit_orphans"))["outcomes"] == {"applied": 1}

    tell(tmp_path, story)


def test_a_region_that_owns_the_shard_again_sends_its_orphans_to_itself_and_signs_them_off(tmp_path: Path) -> None:
    """5. The shard goes back to eu, whose store keeps the orphans. 6. eu decides them, records the sign-off and deletes them."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        lost = c.event(5, player="p", board=SUM)
        await cut_off(c, lost)
        await c.authority("us")
        epoch = c["us"].actor.state.epoch
        assert (await c.force("eu"))["ok"]
        await c.authority("eu", above=epoch)
        assert (await order(c, "eu", "resubmit_orphans"))["outcomes"] == {"applied_first": 1}
        sent = getattr(c["eu"].actor.links, "sent")  # noqa: B009
        assert "submit" not in sent
        (batch,) = c["eu"].log.orphans()
        assert (await order(c, "eu", "sign_off_orphans", epoch=batch.epoch, why="done", asked_by="operator-1"))["events"] == 1
        assert c["eu"].log.orphans() == []
        assert [r.what for r in records(c, Audited, "eu")] == ["orphans.signed_off"]
        await c.check()

    tell(tmp_path, story)


def test_while_nobody_takes_writes_orphans_stay_open_and_the_order_ends_in_time(tmp_path: Path) -> None:
    """5. us and ap are away. 6. Sending again ends without an answer: all is open, nothing is lost. 7. They are back: it works."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        lost = c.event(5, player="p", board=SUM)
        await cut_off(c, lost)
        await c.authority("us")
        await folded(c)
        c.stop("us", "ap")
        seen, outcomes = await c["eu"].actor.salvaging.resubmit(0.3)
        assert (outcomes, [event.submission.event_id for event in seen.events()]) == ({}, [lost.event_id])
        c.come_back("us", "ap")
        await c.authority("us")
        seen, outcomes = await c["eu"].actor.salvaging.resubmit(5.0)
        assert (outcomes, seen.events()) == ({"applied_first": 1}, [])

    tell(tmp_path, story)


def test_a_readmitted_region_waits_for_its_log_instead_of_sending_the_whole_journal_again(tmp_path: Path) -> None:
    """1. ap is begun anew: all its entries are orphans at first. 2. They come back as its log. 3. Nothing was sent again meanwhile."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await c.write(20, board=SUM)
        await folded(c, "ap")
        c.wires["eu", "ap"].lost.add("append")
        assert (await c["eu"].actor.moving.readmit("ap", "operator-1"))["ok"]
        await c.authority("eu", above=1)
        assert c["ap"].log.tail.offset == 0 and c["ap"].log.orphans()
        with pytest.raises(NotServing):
            await c["ap"].actor.salvaging.resubmit(0.2)
        assert (await order(c, "ap", "orphans", limit=1))["caught_up"] is False
        with pytest.raises(NotServing):
            await order(c, "ap", "sign_off_orphans", epoch=1, why="too early", asked_by="operator-1")
        assert c["ap"].log.orphans()
        c.heal()
        await folded(c, "ap")
        seen, outcomes = await c["ap"].actor.salvaging.resubmit(5.0)
        assert (outcomes, seen.orphans.events, seen.orphans.boards) == ({}, [], [])
        sent = getattr(c["ap"].actor.links, "sent")  # noqa: B009
        assert not {"submit", "operate"} & set(sent)

    tell(tmp_path, story, mode="local", timing=replace(TIMING, lease_ms=400, seal_grace_ms=150))


def test_a_region_that_is_not_caught_up_says_so_and_sends_nothing(tmp_path: Path) -> None:
    """5. eu's store is promised to an epoch that has not started. 6. The order is refused, definitely, in its time."""

    async def story(c: Cluster) -> None:
        c.start()
        await c.authority("eu")
        await cut_off(c, c.event(5, player="p", board=SUM))
        await c.authority("us")
        await folded(c)
        log = c["eu"].log
        c.stop("us", "ap")
        status = log.status()
        assert status.newest is not None
        sealed = log.seal(
            Seal(
                shard=SHARD, lineage=status.lineage, config_version=status.newest.config_version, sender="ap", incarnation="",
                request_id="r", epoch=status.fence + 1, target="ap", attempt="late", from_epoch=status.newest.epoch, from_owner="us",
            )
        )  # fmt: skip
        assert isinstance(sealed, Granted)
        with pytest.raises(NotServing) as caught:
            await c["eu"].actor.salvaging.resubmit(0.2)
        assert caught.value.definite
        assert "submit" not in getattr(c["eu"].actor.links, "sent")  # noqa: B009

    tell(tmp_path, story)
