"""Drills on a cluster in memory: every shipped plan, what is put back and when, and what a drill refuses to begin."""

import asyncio
import json
from typing import Any

import pytest
from drill_world import REGIONS, SHARD, WALL_MS, MemoryCluster, drill, run

from drills.loading import parse_plan, shipped, shipped_plan
from drills.page import to_page
from drills.ports import NoAnswer, Refusal, Unfit
from drills.report import Report, from_json, to_json, to_text
from drills.runner import Runner

CUT = """
name: cut-and-wait
summary: The owner is cut off for some time.
steps:
  - {do: cut, region: owner, from: others, for_ms: 60000}
  - {do: wait, for_ms: 5000}
"""


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_plan_is_met_on_a_sound_cluster_and_leaves_it_as_it_was(name: str) -> None:
    cluster = MemoryCluster()
    report = drill(cluster, shipped_plan(name))
    assert report.verdict == "met", to_text(report)
    assert (cluster.owner, cluster.cuts) == (REGIONS[0], {})
    assert cluster.words() == [("drill.began", ""), ("drill.ended", "met")]
    assert report.asked_by == "operator-1"
    assert report.writes.acknowledged == report.writes.sent > 100
    assert (report.writes.lost, report.writes.counted_twice, report.writes.unresolved) == (0, 0, 0)
    assert report.writes.compared >= 3 * len(REGIONS)
    assert from_json(json.loads(json.dumps(to_json(report)))) == report
    assert not report.notes


def test_a_planned_handover_tells_its_pause_and_its_phases() -> None:
    cluster = MemoryCluster()
    report: Report = drill(cluster, shipped_plan("switchover"))
    there, back = report.moves
    assert [(move.kind, move.from_owner, move.owner) for move in report.moves] == [
        ("planned", "eu-west", "us-east"),
        ("planned", "us-east", "eu-west"),
    ]
    assert (there.from_epoch, there.epoch, back.epoch) == (3, 4, 5)
    assert there.phases_ms == {"probe": 3, "seal": 9, "adopt": 1, "start": 12, "catch_up": 2}
    assert there.pause_ms is not None and 150 <= there.pause_ms <= 250


def test_phases_that_nobody_tells_are_shown_as_unknown() -> None:
    cluster = MemoryCluster()
    cluster.phases = None
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert report.verdict == "met"
    assert all(move.phases_ms is None for move in report.moves)
    assert "  -  " in to_text(report)


def test_a_handover_that_pauses_writes_for_too_long_is_not_met() -> None:
    cluster = MemoryCluster()
    cluster.handover_s = 0.8
    report: Report = drill(cluster, shipped_plan("switchover"))
    failed = [objective for objective in report.objectives if not objective.met]
    assert [objective.name for objective in failed] == ["write pause, planned handover"]
    assert failed[0].measured is not None and failed[0].measured > 800
    assert (report.verdict, cluster.words()[-1]) == ("not_met", ("drill.ended", "not_met"))


def test_a_region_loss_is_answered_by_a_forced_failover_and_tells_what_was_stale() -> None:
    cluster = MemoryCluster()
    report: Report = drill(cluster, shipped_plan("region-loss"))
    forced, back = report.moves
    assert (forced.kind, forced.owner, back.kind, back.owner) == ("forced", "us-east", "planned", "eu-west")
    assert forced.first_write_ms is not None and 600 <= forced.first_write_ms <= 800
    assert forced.detect_ms is not None and forced.detect_ms < 100
    by_region = {reads.region: reads for reads in report.reads}
    assert by_region["eu-west"].stale_max_ms > 2000  # cut off, it shows what it had
    assert by_region["ap-south"].stale_max_ms < 1000
    assert report.writes.salvaged > 0


def test_where_the_shard_promotes_the_drill_waits_for_that_and_commands_nothing() -> None:
    cluster = MemoryCluster()
    cluster.promotes_after_s = 2.0
    report: Report = drill(cluster, shipped_plan("region-loss"))
    assert report.verdict == "met", to_text(report)
    assert [move.kind for move in report.moves] == ["automatic", "planned"]
    first, detect = report.moves[0].first_write_ms, report.moves[0].detect_ms
    assert first is not None and 2000 <= first <= 3000
    assert detect is not None and detect <= first - 27  # what the phases took
    assert ("failover", "us-east", True) not in cluster.calls


def test_a_shard_that_has_moved_by_itself_a_moment_ago_is_moved_by_command() -> None:
    """It does not move by itself again within five minutes; the drill waited in vain for that once."""
    cluster = MemoryCluster()
    cluster.promotes_after_s, cluster.automatic_pause_ms = 2.0, 240_000
    report: Report = drill(cluster, shipped_plan("region-loss"))
    assert report.verdict == "met", to_text(report)
    assert [move.kind for move in report.moves] == ["forced", "planned"]


def test_an_event_that_the_cluster_forgets_is_lost() -> None:
    cluster = MemoryCluster()
    runner = Runner(cluster, shipped_plan("switchover"), drill_id="d-1")
    cluster.forgets = {"d-1.us-east.7"}
    report = run(runner.run())
    assert report.writes.lost == 1
    assert {o.name for o in report.objectives if not o.met} >= {"events lost"}


def test_a_wrong_total_in_one_region_alone_is_found() -> None:
    class Wrong(MemoryCluster):
        async def totals(self, region: str, *rest: Any) -> dict[str, int]:
            found = await super().totals(region, *rest)
            return {player: value + (region == "ap-south") for player, value in found.items()}

    report: Report = drill(Wrong(), shipped_plan("switchover"))
    assert report.verdict == "not_met"
    assert len(report.writes.unequal) == 3
    assert all(line.startswith("ap-south shows") for line in report.writes.unequal)


def test_an_acknowledgement_by_a_deposed_epoch_is_found() -> None:
    cluster = MemoryCluster()
    cluster.zombie_acks = True
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert report.writes.by_deposed > 0
    assert "acknowledged by a deposed owner" in {o.name for o in report.objectives if not o.met}


def test_a_local_shard_is_asked_only_when_its_orphans_are_sent_again() -> None:
    cluster = MemoryCluster()
    cluster.changes = {region: {"mode": "local"} for region in REGIONS}
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert report.verdict == "met"
    assert cluster.orphan_asks == 3 + len(REGIONS) - 1


def test_a_cluster_that_is_well_for_a_moment_only_has_not_settled() -> None:
    """1. The first look after the heal shows what a region said before. 2. Then it falls ill for 3 s. 3. The step waits for its end."""

    class Late(MemoryCluster):
        healed_at = 0.0

        async def set_link(self, *told: Any, **named: Any) -> None:
            await super().set_link(*told, **named)
            self.healed_at = self.now()

        async def ready(self, region: str) -> list[str]:
            await super().ready(region)
            return ["late"] if self.healed_at and 0.3 < self.now() - self.healed_at < 3.0 else []

    report: Report = drill(Late(), shipped_plan("partition-reader"))
    settle = next(step for step in report.steps if step.do == "settle")
    assert settle.ended_ms - settle.began_ms > 3000


def test_faults_expire_by_themselves_even_where_nobody_puts_them_back() -> None:
    cluster = MemoryCluster()
    drill(cluster, shipped_plan("region-loss"))
    cuts = [call for call in cluster.calls if call[0] == "link" and call[4] != "clear"]
    assert len(cuts) == 2
    assert all(for_ms == 60_000 for *_, for_ms in cuts)


def test_a_drill_that_is_stopped_puts_back_what_it_did_and_says_so() -> None:
    """1. The owner is cut off. 2. The operator stops the drill. 3. Links are clear, the owner owns, the audit knows the end."""
    cluster = MemoryCluster()
    runner = Runner(cluster, parse_plan(CUT, "cut.yaml"))

    async def story() -> Report:
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(4)
        assert cluster.cuts
        runner.stop("interrupted by the operator")
        return await task

    report = run(story())
    assert (report.verdict, report.why) == ("aborted", "interrupted by the operator")
    assert cluster.cuts == {}
    assert [step.failed for step in report.steps] == ["", "stopped"]
    assert cluster.words()[-1] == ("drill.ended", "aborted")
    assert report.writes.lost == 0


def test_a_failover_that_is_under_way_when_the_drill_is_stopped_is_waited_for_and_taken_back() -> None:
    """1. A region is asked to take authority. 2. The drill is stopped before it has. 3. It does all the same, and gives it back."""
    runners: list[Runner] = []

    class Server(MemoryCluster):
        """What was asked of it goes on when the asker leaves."""

        async def failover(self, to: str, shard: str, *, force: bool) -> dict[str, Any]:
            runners[0].stop("enough")
            return await asyncio.shield(super().failover(to, shard, force=force))

    cluster = Server()
    runners.append(Runner(cluster, shipped_plan("double-failover")))
    report = run(runners[0].run())
    assert [(move.kind, move.owner) for move in report.moves] == [("forced", "us-east"), ("planned", "eu-west")]
    assert (report.verdict, cluster.owner) == ("aborted", "eu-west")


def test_a_refusal_for_want_of_a_lease_passes() -> None:
    class Leaseless(MemoryCluster):
        async def submit(self, *told: Any) -> Any:
            if 3 < self.now() < 4:
                raise Refusal("no_lease", "the lease ran out")
            return await super().submit(*told)

    report: Report = drill(Leaseless(), shipped_plan("partition-reader"))
    assert report.writes.refused > 10
    assert (report.verdict, report.writes.unresolved) == ("not_met", 0)  # a second without writes


def test_a_cancelled_drill_puts_back_what_it_did() -> None:
    cluster = MemoryCluster()

    async def story() -> None:
        task = asyncio.create_task(Runner(cluster, parse_plan(CUT, "cut.yaml")).run())
        await asyncio.sleep(4)
        assert cluster.cuts
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story())
    assert cluster.cuts == {}
    assert cluster.words()[-1] == ("drill.ended", "aborted")


def test_a_step_that_fails_ends_the_drill_and_authority_goes_back() -> None:
    """1. Authority has moved. 2. The next step cannot be done. 3. Authority is given back all the same."""
    steps = "{do: failover, to: successor}, {do: follow, region: successor, within_ms: 500}, {do: wait, for_ms: 9000}"
    plan = parse_plan(f"name: x\nsummary: s\nsteps: [{steps}]", "x.yaml")
    cluster = MemoryCluster()
    report: Report = drill(cluster, plan)
    assert report.verdict == "aborted"
    assert report.why.startswith("step 2 failed: not within 0.5 s: us-east is authority")
    assert cluster.owner == "eu-west"
    assert len(report.steps) == 2


def test_a_failover_that_is_refused_for_long_fails_the_step() -> None:
    cluster = MemoryCluster()
    cluster.refuse_failover = "failover_refused"
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert report.verdict == "aborted"
    assert "us-east did not take authority: not now" in report.why


def test_a_token_that_may_not_fail_over_ends_the_step_at_once() -> None:
    cluster = MemoryCluster()
    cluster.refuse_failover = "wrong_scope"
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert report.verdict == "aborted"
    assert len([call for call in cluster.calls if call[0] == "failover"]) == 1


def test_a_canary_that_is_refused_for_good_aborts_the_drill() -> None:
    class Closed(MemoryCluster):
        async def submit(self, *_: Any) -> Any:
            raise Refusal("foreign_game", "the token is not for this game")

    report: Report = drill(Closed(), shipped_plan("switchover"))
    assert report.verdict == "aborted"
    assert "foreign_game" in report.why


def test_an_end_that_cannot_be_recorded_is_told() -> None:
    class Forgetful(MemoryCluster):
        async def audit(self, region: str, shard: str, what: str, *rest: Any, **named: Any) -> str:
            if what == "drill.ended":
                raise NoAnswer("no answer")
            return await super().audit(region, shard, what, *rest, **named)

    report: Report = drill(Forgetful(), shipped_plan("switchover"))
    assert report.verdict == "met"
    assert report.notes == ["the end could not be written into the journal: no answer"]


def test_redeliveries_and_corrections_count_once() -> None:
    cluster = MemoryCluster()
    report: Report = drill(cluster, shipped_plan("duplicate-storm"))
    w = report.writes
    assert w.duplicates > 2.5 * w.sent
    assert w.counted_twice == 0
    assert set(cluster.boards) == {"laurel:drill-canary:S0:eu-west-0", "laurel:drill-scores:S0:eu-west-0"}
    assert w.compared == 2 * 3 * 3  # two boards, three players, three regions
    amounts = {amount for (board, _, _), (amount, _, _) in cluster.seen.items() if "canary" in board}
    assert amounts == {3, -1}


# -- what is not begun ------------------------------------------------------------------------------------------------


def refused(cluster: MemoryCluster, plan: str = "region-loss", shard: str | None = None) -> str:
    """Why the drill was not begun; nothing may have been changed."""
    with pytest.raises(Unfit) as caught:
        drill(cluster, shipped_plan(plan), shard=shard)
    assert cluster.calls == []
    assert [record for record in cluster.records if record["detail"].get("id") != "other"] == []
    return str(caught.value)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"role": "aside", "why": "5 failed activations"}, "us-east is aside of eu-west/0: 5 failed activations"),
        ({"halted": "a contradiction"}, "halted in us-east: a contradiction"),
        ({"applied": -500}, "the ledger of us-east lags by"),
        ({"replica": {"serving": False, "alarm": "", "applied": 100}}, "the replica of us-east does not serve"),
        ({"replica": {"serving": True, "alarm": "checksum", "applied": 100}}, "the replica of us-east has an alarm: checksum"),
        ({"replica": {"serving": True, "alarm": "", "applied": -300}}, "the replica of us-east lags by"),
        ({"known_owner": "ap-south"}, "us-east takes ap-south for the owner"),
    ],
)  # fmt: skip
def test_a_region_that_is_not_well_keeps_the_drill_from_beginning(facts: dict[str, Any], why: str) -> None:
    cluster = MemoryCluster()
    cluster.changes["us-east"] = facts
    assert why in refused(cluster)


@pytest.mark.parametrize(
    ("lag", "why"),
    [
        ({"entries": 5000, "heard_ms": 10, "amnesiac": False}, "the store of ap-south lags by 5000 entries"),
        ({"entries": 0, "heard_ms": 9000, "amnesiac": False}, "eu-west has not heard the store of ap-south for 9000 ms"),
        ({"entries": 0, "heard_ms": None, "amnesiac": False}, "eu-west has not heard the store of ap-south in this epoch"),
        ({"entries": 0, "heard_ms": 10, "amnesiac": True}, "the store of ap-south has lost data: readmit it"),
    ],
)
def test_a_store_that_is_not_level_keeps_the_drill_from_beginning(lag: dict[str, Any], why: str) -> None:
    cluster = MemoryCluster()
    cluster.changes["eu-west"] = {"lag": {"ap-south": lag}}
    assert refused(cluster) == why


def test_a_region_that_does_not_answer_or_is_not_ready_keeps_the_drill_from_beginning() -> None:
    cluster = MemoryCluster()
    cluster.silent, cluster.missing = {"ap-south"}, {"us-east": ["its actor does not answer"]}
    said = refused(cluster)
    assert "ap-south does not answer" in said
    assert "us-east is not ready: its actor does not answer" in said


def test_a_fault_that_is_on_already_keeps_the_drill_from_beginning() -> None:
    cluster = MemoryCluster()
    cluster.cuts["us-east", "ap-south"] = ("delay", 1e9)
    said = refused(cluster)
    assert "a link fault is on in us-east: delay towards ap-south" in said
    assert "a link fault is on in ap-south: delay from us-east" in said


def test_another_drill_under_way_keeps_the_drill_from_beginning_until_its_time_is_over() -> None:
    cluster = MemoryCluster()
    other = {"id": "other", "plan": "switchover", "until_ms": WALL_MS + 40_000}
    cluster.records.append({"what": "drill.began", "asked_by": "x", "at_ms": WALL_MS, "detail": other})
    assert "the drill switchover (other) is under way: wait for its end, 40 s at most" in refused(cluster)
    other["until_ms"] = WALL_MS - 1
    assert drill(cluster, shipped_plan("switchover")).verdict == "met"


def test_of_two_drills_that_begin_at_once_the_authority_lets_one_begin() -> None:
    cluster = MemoryCluster()

    async def both() -> list[Any]:
        runners = [Runner(cluster, shipped_plan("switchover")) for _ in range(2)]
        for runner in runners:
            await runner.prepare()
        return await asyncio.gather(*(runner.run() for runner in runners), return_exceptions=True)

    first, second = run(both())
    assert first.verdict == "met"
    assert isinstance(second, Unfit)
    assert "another drill is under way" in str(second)


@pytest.mark.parametrize("plan", ["region-loss", "partition-reader", "store-stall", "slow-link"])
def test_plans_that_cut_need_three_regions(plan: str) -> None:
    assert refused(MemoryCluster(REGIONS[:2]), plan) == f"{plan} needs 3 regions; here are 2"


def test_a_switchover_needs_only_two_regions() -> None:
    assert drill(MemoryCluster(REGIONS[:2]), shipped_plan("switchover")).verdict == "met"


def test_a_plan_that_would_take_the_majority_away_is_not_begun() -> None:
    steps = "{do: cut, region: owner, from: others, for_ms: 9000}, {do: cut, region: successor, from: third, for_ms: 9000}"
    with pytest.raises(Unfit, match="after step 2 no majority of 3 regions could speak to each other"):
        drill(MemoryCluster(), parse_plan(f"name: x\nsummary: s\nsteps: [{steps}]", "x.yaml"))


def test_a_plan_that_sends_authority_to_a_region_that_is_cut_off_is_not_begun() -> None:
    steps = "{do: cut, region: successor, from: others, for_ms: 9000}, {do: failover, to: successor, force: true}"
    with pytest.raises(Unfit, match="step 2 sends authority to us-east, which is cut off"):
        drill(MemoryCluster(), parse_plan(f"name: x\nsummary: s\nsteps: [{steps}]", "x.yaml"))


def test_an_unknown_shard_is_named_with_those_that_there_are() -> None:
    assert refused(MemoryCluster(), shard="us-east/0") == "there is no shard us-east/0; there are eu-west/0"
    assert drill(MemoryCluster(), shipped_plan("switchover"), shard=SHARD).verdict == "met"


def test_the_statement_says_what_will_be_done_and_what_will_be_unavailable() -> None:
    text = run(Runner(MemoryCluster(), shipped_plan("region-loss")).prepare()).text()
    assert "Drill region-loss on eu-west/0, which eu-west owns in epoch 3" in text
    assert "Parts: owner eu-west, successor us-east, third ap-south." in text
    assert "1. cut the owner off from the others (ends by itself after 60 s)" in text
    assert "for the 4 boards of eu-west/0" in text
    assert "writes, until authority has moved: at most 4 s" in text
    assert "at most 186 s" in text


def test_the_page_stands_alone_and_shows_every_lane() -> None:
    page = to_page(drill(MemoryCluster(), shipped_plan("region-loss")))
    assert page.startswith("<!doctype html>")
    for outside in ("http://", "https://", "<script", "<link", "@import", "url(", "src="):
        assert outside not in page.replace('xmlns="http://www.w3.org/2000/svg"', ""), outside
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    for lane in ("Steps", "Authority, by epoch", "Writes: red", "Reads: height"):
        assert lane in page
    assert page.count("<svg") == page.count("</svg>") == 1


def test_what_operators_write_is_escaped_on_the_page() -> None:
    plan = parse_plan('name: x\nsummary: "<b>bold</b> & more"\nsteps: [{do: wait, for_ms: 100}]', "x.yaml")
    page = to_page(drill(MemoryCluster(), plan))
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in page
    assert "<b>" not in page


def test_a_drill_that_ends_before_its_traffic_still_has_a_report_and_a_page() -> None:
    class Full(MemoryCluster):
        async def create_board(self, *_: Any) -> None:
            raise Refusal("board_exists", "a board of this id exists with other rules")

    cluster = Full()
    report: Report = drill(cluster, shipped_plan("switchover"))
    assert (report.verdict, report.why) == ("aborted", "a board of this id exists with other rules (board_exists)")
    assert (report.steps, report.moves, report.writes.sent) == ([], [], 0)
    assert "Aborted" in to_page(report)
    assert "Aborted" in to_text(report)
    assert cluster.words()[-1] == ("drill.ended", "aborted")


def test_a_board_that_one_region_never_shows_aborts_the_drill() -> None:
    class Behind(MemoryCluster):
        async def read(self, region: str, board: str) -> Any:
            if region == "ap-south":
                raise Refusal("unknown_board", "no such board here")
            return await super().read(region, board)

    report: Report = drill(Behind(), shipped_plan("switchover"))
    assert report.why == "not every region shows the canary's boards within 5 s"
