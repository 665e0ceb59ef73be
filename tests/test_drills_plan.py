"""Plans: what the shipped ones say, and how a file that is wrong is told so."""

from pathlib import Path

import pytest

from config.models import ConfigError
from drills.checks import lost_majority, open_drill, parts
from drills.loading import find_plan, parse_plan, shipped, shipped_plan
from drills.plan import FINISH_MS, STEPS, CutStep, Plan, SlowStep, StallStep

WANTED = {
    "switchover", "region-loss", "partition-home", "partition-reader", "slow-link", "store-stall", "double-failover",
    "return-of-the-deposed", "duplicate-storm",
}  # fmt: skip
HEAD = "name: x\nsummary: s\n"


def test_the_shipped_plans_are_named_as_their_files_are() -> None:
    assert set(shipped()) == WANTED
    folder = Path(__file__).resolve().parent.parent / "drills" / "plans"
    assert {file.stem for file in folder.glob("*.yaml")} == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_every_shipped_plan_states_its_objectives_and_what_it_makes_unavailable(name: str) -> None:
    plan = shipped_plan(name)
    assert plan.objectives.reads_percent == 99.9
    assert plan.objectives.lost == 0
    assert plan.unavailable
    moves = [step for step in plan.steps if step.do == "failover"]
    if any(not step.force for step in moves):
        assert plan.objectives.planned_pause_ms == 500
    if any(step.force for step in moves):
        assert plan.objectives.forced_first_write_ms == 1500


@pytest.mark.parametrize("name", sorted(WANTED))
def test_every_fault_of_a_shipped_plan_outlives_its_steps_and_ends_by_itself(name: str) -> None:
    """A fault that ended before it is healed would rehearse nothing; one without an end would stay if the drill died."""
    plan = shipped_plan(name)
    for at, step in enumerate(plan.steps):
        if isinstance(step, (CutStep, SlowStep)):
            until_heal = [later.do for later in plan.steps[at:]].index("heal")
            waits = sum(later.for_ms for later in plan.steps[at + 1 : at + until_heal] if later.do == "wait")
            assert waits + 10_000 < step.for_ms <= 60_000
        if isinstance(step, StallStep):
            assert step.for_ms <= 10_000


@pytest.mark.parametrize("name", sorted(WANTED))
def test_no_shipped_plan_takes_a_majority_away(name: str) -> None:
    for regions in (("a", "b", "c"), ("a", "b", "c", "d", "e")):
        for owner in regions:
            assert lost_majority(shipped_plan(name), parts(regions, owner), regions) == []


def test_the_bound_of_a_plan_is_that_of_its_steps_and_its_finish() -> None:
    plan = parse_plan(f"{HEAD}before_ms: 100\nafter_ms: 10\nsteps: [{{do: wait, for_ms: 1000}}, {{do: settle, within_ms: 5000}}]", "x.yaml")
    assert plan.max_ms == 100 + 1000 + 5000 + 10 + FINISH_MS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: x\n", "summary is missing; it must be text of 1 to 400 characters."),
        ("- a\n", "the file must be a mapping with `name`, `summary` and `steps`."),
        ("name: [\n", "the file is not valid YAML at line 2, column 1"),
        (f"{HEAD}name: y\n", "the key `name` is given twice in one mapping"),
        (f"{HEAD}steps: []", "steps must be a list of 1 to 50 steps, each a mapping with `do`, not a list."),
        (f"{HEAD}steps: [{{do: cutt}}]", "`stall`, `heal`, `follow` or `settle`, not `cutt` (did you mean `cut`?)."),
        (f"{HEAD}steps: [{{for_ms: 3}}]", "steps.0.do is missing; it must be `wait`"),
        (f"{HEAD}steps: [3]", "steps.0 must be a mapping, not 3."),
        (f"{HEAD}steps: [{{do: heal}}, {{do: wait, for: 3}}]", "steps.1.for is no known key (did you mean `for_ms`?); allowed"),
        (f"{HEAD}steps: [{{do: wait, for_ms: 0}}]", "steps.0.for_ms must be a whole number of milliseconds from 1 to 120000, not 0."),
        (f"{HEAD}steps: [{{do: wait, for_ms: '9'}}]", 'steps.0.for_ms must be a whole number of milliseconds from 1 to 120000, not "9".'),
        (f"{HEAD}steps: [{{do: stall, region: owner, for_ms: 10001}}]", "milliseconds from 1 to 10000"),
        (f"{HEAD}steps: [{{do: failover, to: ownr}}]", 'steps.0.to must be `owner`, `successor` or `third`, not "ownr" (did'),
        (f"{HEAD}steps: [{{do: cut, region: owner, for_ms: 9}}]", "steps.0.from is missing; it must be `owner`, `successor`, `third`"),
        (f"{HEAD}steps: [{{do: heal}}]\nobjectives: {{lots: 1}}", "objectives.lots is no known key (did you mean `lost`?)"),
        (f"{HEAD}steps: [{{do: heal}}]\ntraffic: {{every_ms: 1}}", "traffic.every_ms must be a whole number of milliseconds from 20"),
        (f"{HEAD}steps: [{{do: heal}}]\nunavailable: [{{what: x}}]", "unavailable.0.at_most_ms is missing"),
        (f"{HEAD}stepps: [{{do: heal}}]", "stepps is no known key (did you mean `steps`?)"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_told_where_and_what_is_allowed(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_plan(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert sentence in str(caught.value)


def test_a_plan_is_found_by_its_shipped_name_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{HEAD}steps: [{{do: heal}}]")
    assert find_plan(str(file)).name == "x"
    assert find_plan("switchover") is shipped()["switchover"]
    with pytest.raises(ConfigError, match=r"there is no plan `switchovr` \(did you mean `switchover`\?\); shipped are"):
        find_plan("switchovr")
    with pytest.raises(ConfigError, match="there is no such file"):
        find_plan(str(tmp_path / "none.yaml"))
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 1\)"):
        find_plan(str(file))


def test_every_step_says_itself_in_words_and_how_long_it_may_take() -> None:
    steps = "{do: wait, for_ms: 1500}, {do: failover, to: third, force: true}, "
    steps += "{do: cut, region: owner, from: others, direction: in, for_ms: 9000}, "
    steps += "{do: slow, region: owner, from: third, delay_ms: 9, for_ms: 9000}, {do: stall, region: owner, for_ms: 900}, {do: heal}, "
    steps += "{do: follow, region: owner, within_ms: 4000}, {do: settle, within_ms: 9000}"
    plan: Plan = parse_plan(f"{HEAD}steps: [{steps}]", "x.yaml")
    assert {step.do for step in plan.steps} == set(STEPS)
    assert [step.words() for step in plan.steps] == [
        "watch for 1.5 s",
        "force authority to the third",
        "cut the owner off from the others, so that it hears nothing (ends by itself after 9 s)",
        "delay each message between owner and third by 9 ms (for 9 s at most)",
        "stall the store of the owner for 0.9 s",
        "put all links back",
        "wait until the owner has stepped down and follows (at most 4 s)",
        "wait until every region is well and level (at most 9 s)",
    ]
    assert all(step.bound_ms() > 0 for step in plan.steps)


def began(name: str, until_ms: int) -> dict[str, object]:
    return {"what": "drill.began", "detail": {"id": name, "until_ms": until_ms}}


def test_a_drill_is_open_until_its_end_or_its_time() -> None:
    ended = {"what": "drill.ended", "detail": {"id": "a"}}
    assert open_drill([began("a", 100)], 99) == {"id": "a", "until_ms": 100}
    assert open_drill([began("a", 100)], 100) is None
    assert open_drill([began("a", 100), ended], 50) is None
    assert open_drill([began("a", 100), ended, began("b", 200)], 50) == {"id": "b", "until_ms": 200}
    assert open_drill([{"what": "orphans.signed_off", "detail": {}}], 50) is None
