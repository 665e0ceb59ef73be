"""Boards move from shard to shard while they are in use: nobody is counted twice or missed, and a kill loses nothing (I4, I7, I8, I11)."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inprocess_cluster import REGIONS, until
from moving_boards import BOARD, RULES, SHARDS, Moving

from actors import exporting, importing, relocating, relocation_changes
from actors.messages import NoAuthority
from boards.model import Layout, Submission
from boards.slicing import slice_of
from journal.records import BoardCreated, BoardRemoved, Imported, Record, Relocating, SliceClosed, SliceOpened, Switched

#: Stories of random kills; `LAUREL_TEST_SEEDS` tells more of them.
SEEDS = int(os.environ.get("LAUREL_TEST_SEEDS", "3"))


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes many chunks, and events come in between. Whoever is dead is not waited for as long as in another continent."""
    monkeypatch.setattr(exporting, "THINGS", 7)
    monkeypatch.setattr(importing, "ANSWER_S", 0.7)
    for name, value in (("ORDER_S", 0.7), ("PAUSE_S", 1.5), ("REST_MS", 100), ("REST_MAX_MS", 800)):
        monkeypatch.setattr(relocating, name, value)


def tell(path: Path, story: Callable[[Moving], Awaitable[None]], *at: str, seed: int = 1) -> None:
    async def whole() -> None:
        async with Moving(path, at or ("eu/0",), seed=seed) as m:
            await story(m)

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("eu/0",), ("eu/1",)),
        (("eu/0",), ("eu/0", "eu/1", "eu/2")),
        (("eu/0",), ("eu/1", "eu/2")),
        (("eu/0", "eu/1"), ("eu/1", "eu/2", "eu/0")),
        (("eu/0", "eu/1", "eu/2"), ("eu/2",)),
        (("eu/0", "eu/1"), ("eu/1", "eu/0")),
    ],
    ids=lambda shards: "+".join(shards).replace("eu/", ""),
)
def test_a_board_moves_under_a_stream_of_events(tmp_path: Path, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    async def story(m: Moving) -> None:
        await m.fill(40)
        m.stream()
        await m.move(*new)
        await m.settle()
        await m.check()

    tell(tmp_path, story, *old)


#: Each move has its kill at one kind of record, in this order.
STEPS: list[tuple[type[Record], tuple[str, ...]]] = [
    (Relocating, ("eu/1", "eu/2")),
    (BoardCreated, ("eu/0", "eu/1", "eu/2")),
    (Imported, ("eu/2", "eu/0")),
    (SliceClosed, ("eu/1",)),
    (Switched, ("eu/1", "eu/0", "eu/2")),
    (SliceOpened, ("eu/0", "eu/2")),
    (BoardRemoved, ("eu/1", "eu/2")),
]


@pytest.mark.parametrize("role", ["lead", "source", "target"])
def test_a_kill_at_any_step_loses_nothing_and_the_move_ends(tmp_path: Path, role: str) -> None:
    """1. A move begins. 2. Right after a record of each kind in turn the authority of one shard dies. 3. It goes on, to the end."""

    async def story(m: Moving) -> None:
        await m.fill(30)
        m.stream()
        for kind, shards in STEPS:
            victim = {"lead": m.layout.lead, "source": m.layout.shards[-1], "target": shards[-1]}[role]
            killed = m.at(kind, partial(m.kill, victim))
            await m.move(*shards)
            assert killed(), kind
        await m.settle()
        await m.check()

    tell(tmp_path, story)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_moves_go_on_whoever_is_killed_whenever(tmp_path: Path, seed: int) -> None:
    """1. The board moves again and again. 2. Meanwhile authorities die at random moments, and wires lose messages for a while."""

    async def story(m: Moving) -> None:
        await m.fill(30)
        m.stream()
        moving = asyncio.ensure_future(wander(m))
        while not moving.done():
            await asyncio.wait((moving,), timeout=m.random.uniform(0.05, 0.5))
            if m.random.random() < 0.7:
                m.kill(m.random.choice(SHARDS), for_s=m.random.choice((0.0, 0.03, 0.2)))
            else:
                m.c.wires[m.random.choice(list(m.c.wires))].lost.add(m.random.choice(("operate", "operate reply", "append reply")))
            if m.random.random() < 0.5:
                m.c.heal()
        m.c.heal()
        await moving
        await m.settle()
        await m.check()

    async def wander(m: Moving) -> None:
        for _ in range(4):
            shards = tuple(m.random.sample(SHARDS, m.random.randint(1, 3)))
            if shards != m.layout.shards:
                await m.move(*shards)

    tell(tmp_path, story, seed=seed)


def away(m: Moving, shard: str) -> None:
    """No region has an actor of this shard."""
    m.c.crash(*REGIONS, shards=(shard,))


def test_events_are_taken_again_while_a_target_that_went_down_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. All sources are closed. 2. A target is gone. 3. They are opened again, and take events. 4. It comes back: the move ends."""
    monkeypatch.setattr(relocating, "PAUSE_S", 0.4)

    async def story(m: Moving) -> None:
        await m.fill(20)
        m.at(SliceClosed, partial(away, m, "eu/2"))
        target = await m.begin("eu/0", "eu/2")
        await until(lambda: m.relocation("eu/0").get("reopened_ms"), "the board is opened again")
        await m.fill(20)
        assert m.longest_wait_ms < 1000 * (0.4 + relocating.ORDER_S + 1)
        assert "eu/2" in m.relocation("eu/0")["why"]
        m.stream()
        m.c.come_back(*REGIONS, shards=("eu/2",))
        await m.arrived(target)
        await m.settle()
        await m.check()

    tell(tmp_path, story, "eu/0", "eu/1")


@pytest.mark.parametrize("closed", [False, True], ids=["while it is copied", "while it is closed"])
def test_a_move_that_is_given_up_leaves_nothing_and_its_number_is_not_used_again(tmp_path: Path, closed: bool) -> None:
    """1. A target goes away. 2. The move is given up, and the board stays open. 3. The target comes back. 4. The next move is another."""

    async def story(m: Moving) -> None:
        await m.fill(20)
        m.stream()
        gone = m.at(SliceClosed if closed else BoardCreated, partial(away, m, "eu/2"))
        first = await m.begin("eu/1", "eu/2")
        await until(gone, "the target is gone")
        assert (await m.order({"do": "abort_relocation"}))["giving_up"] is True
        again = await m.order({"do": "relocate_board", "shards": ["eu/1"]})
        assert again["error"]["fields"]["code"] == "relocation_refused"
        m.c.come_back(*REGIONS, shards=("eu/2",))
        await m.arrived(m.layout)
        assert (await m.order({"do": "abort_relocation"}))["giving_up"] is False
        told = await m.order({"do": "relocation"})
        assert (told["phase"], told["to"]) == ("given up", None), "it goes nowhere any more"
        second = await m.begin("eu/2", "eu/1")
        assert (first.number, second.number) == (2, 3)
        await m.arrived(second)
        await m.settle()
        await m.check()

    tell(tmp_path, story)


@pytest.mark.parametrize("kind", [BoardCreated, SliceClosed, Switched], ids=lambda kind: kind.__name__)
def test_a_lead_that_slept_through_its_deposition_disturbs_nothing(tmp_path: Path, kind: type[Record]) -> None:
    """1. The lead's actor stops in the middle of a move. 2. Another region takes its shard and goes on. 3. It wakes up, and goes on too."""

    async def story(m: Moving) -> None:
        await m.fill(20)
        m.stream()
        asleep = m.at(kind, m.c["eu"]["eu/0"].door.awake.clear)
        target = await m.begin("eu/1", "eu/0", "eu/2")
        await until(asleep, "the lead sleeps")
        old = m.c["eu"]["eu/0"].actor
        await m.c["us"]["eu/0"].actor.moving.activate("forced", "operator", None, timeout_s=3.0)
        await until(lambda: m.relocation_in("us", "eu/0") or m.states("us", "eu/0")[0].phase == "open", "the other one goes on")
        m.c["eu"]["eu/0"].door.awake.set()
        await until(lambda: old.writer is None, "it has heard of it")
        await m.arrived(target)
        await m.settle()
        await m.check()

    tell(tmp_path, story, "eu/0", "eu/1")


def test_what_cannot_move_there_is_refused(tmp_path: Path) -> None:
    async def story(m: Moving) -> None:
        await m.fill(3)

        async def code(order: dict[str, Any], shard: str = "eu/0") -> str:
            error = (await m.order(order, shard))["error"]
            return str(error["fields"].get("code", error["kind"]))

        assert await code({"do": "relocate_board", "shards": ["eu/0"]}) == "invalid"
        assert await code({"do": "relocate_board", "shards": ["eu/1", "eu/1"]}) == "invalid"
        assert await code({"do": "relocate_board", "shards": []}) == "invalid"
        assert await code({"do": "relocate_board", "shards": ["eu/0"], "board": "arena:no:S1:all"}) == "UnknownBoard"
        assert await code({"do": "relocate_board", "shards": ["eu/0"]}, "eu/2") == "UnknownBoard"
        assert await code({"do": "abort_relocation"}, "eu/2") == "UnknownBoard"
        assert (await m.order({"do": "relocation"}))["phase"] == "none"
        away(m, "eu/1")
        first = await m.begin("eu/1")
        assert await m.begin("eu/1") == first
        assert await code({"do": "relocate_board", "shards": ["eu/2"]}) == "relocation_refused"
        m.c.come_back(*REGIONS, shards=("eu/1",))
        await m.arrived(first)
        await m.check()

    tell(tmp_path, story)


def test_boards_of_shards_that_acknowledge_alone_stay_where_they_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with Moving(tmp_path, mode="local") as m:
            refused = (await m.order({"do": "relocate_board", "shards": ["eu/1"]}))["error"]["fields"]
            assert (refused["code"], refused["field"], refused["allowed"]) == ("relocation_refused", "shards", "those where it is")

    asyncio.run(story())


def test_events_that_come_by_an_older_layout_are_told_the_new_one_and_not_taken(tmp_path: Path) -> None:
    """1. A board of one slice comes to lie on three shards, one of them the old one. 2. A gateway that has not heard of it sends there."""

    async def story(m: Moving) -> None:
        await m.fill(20)
        await m.move("eu/0", "eu/1", "eu/2")
        stranger = next(p for p in m.sent if slice_of(p, 3) != 0)
        actor = m.c[m.c.authorities("eu/0")[0]]["eu/0"].actor
        with pytest.raises(NoAuthority) as refused:
            await actor.submit(BOARD, [Submission("late", stranger, 1, 1000, 1000, b"f")], "tests")
        assert (refused.value.code, refused.value.definite) == ("moved", True)
        assert msgspec.convert(refused.value.fields["layout"], Layout) == m.layout
        await m.check()

    tell(tmp_path, story)


def test_sums_that_differ_sound_an_alarm_and_the_board_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A source leaves out one player. 2. Nobody decides to switch; what was copied is thrown away, and the alarm stays in the status."""
    told = exporting.Wanted.here
    monkeypatch.setattr(exporting.Wanted, "here", lambda self, player_id: player_id != "p3" and told(self, player_id))

    async def story(m: Moving) -> None:
        await m.fill(20)
        m.stream()
        await m.begin("eu/1", "eu/2")
        await until(lambda: m.relocation("eu/0").get("phase") == "given up", "it is given up")
        assert "20 rows" in m.relocation("eu/0")["alarm"]
        await m.arrived(m.layout)
        await m.settle()
        await m.check()

    tell(tmp_path, story)


async def created_again(m: Moving) -> dict[str, Any]:
    """The board is ordered from the shard that led it first, by whoever knows nothing of where it went."""
    rules = {name: getattr(RULES, name) for name in ("policy", "direction", "ties", "publish_interval_ms")}
    layout = {"number": 1, "shards": ["eu/0"]}
    order = {"do": "create_board", "board": BOARD, "rules": rules, "layout": layout, "asked_by": "op"}
    return await m.c[m.c.authorities("eu/0")[0]].operate("eu/0", order)


def test_a_board_that_went_away_is_made_again_only_once_it_is_gone_from_where_it_went(tmp_path: Path) -> None:
    """1. The board moves twice. 2. It is created where it was first: it lives. 3. It is removed. 4. It is created there: a new life."""

    async def story(m: Moving) -> None:
        await m.fill(5)
        await m.move("eu/1")
        await m.move("eu/2", "eu/1")
        (state,) = m.states("us", "eu/2")
        lead = m.c[m.c.authorities("eu/0")[0]]["eu/0"].actor
        with pytest.raises(NoAuthority) as refused:
            await lead.change(relocation_changes.give_up(BOARD, "", "op"))
        assert refused.value.code == "moved"
        assert (await created_again(m))["error"]["fields"]["code"] == "moved"
        assert not any(m.states(region, "eu/0") for region in REGIONS)
        assert (await m.order({"do": "remove_board", "incarnation": state.incarnation}))["ok"]
        await until(lambda: not any(m.states(region, shard) for region in REGIONS for shard in SHARDS), "it is gone")
        assert (await created_again(m))["created"] is True
        assert (await created_again(m))["created"] is False
        await until(lambda: all(m.states(region, "eu/0") for region in REGIONS), "it is there")
        assert m.states("ap", "eu/0")[0].incarnation != state.incarnation

    tell(tmp_path, story)


def test_a_move_is_given_up_also_where_shards_have_become_local_meanwhile(tmp_path: Path) -> None:
    """1. A move waits for one target. 2. The configuration makes the other target, and the source, `local`. 3. It is given up."""

    async def story(m: Moving) -> None:
        await m.fill(10)
        away(m, "eu/2")
        await m.begin("eu/1", "eu/2")
        await until(lambda: m.states("eu", "eu/1"), "the first one is being filled")
        m.c.come_back(*REGIONS, shards=("eu/2",))
        await m.c.all_authorities()
        for region in REGIONS:
            for shard in SHARDS:
                m.c[region][shard].actor._epoch_mode = "local"
        assert (await m.order({"do": "abort_relocation"}))["giving_up"] is True
        await m.arrived(m.layout)
        await m.check()

    tell(tmp_path, story)
