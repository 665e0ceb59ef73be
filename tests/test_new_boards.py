"""A write to a board that another region made a moment ago waits for news of it: a 404 would be a guess, and clients believe it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBoard
from gateways import bare_gateway
from http_edge import OPERATOR, World, event, problem
from inprocess_cluster import REGIONS, Cluster, until
from inprocess_cluster import tell as in_process
from inprocess_region import Region

import regions.gateway_backend
from actors.messages import BoardInfo, NotServing
from actors.replica import News
from boards.model import Outcome, Submission
from boards.policies import make_rules
from boards.slicing import slice_of
from config.placing import Place
from regions.gateway_backend import GatewayBackend

BOARD, OTHER = "arena-clash:solo:S8:global", "arena-clash:solo:S9:global"


def info(board_id: str) -> BoardInfo:
    return BoardInfo(
        board_id=board_id, number=1, incarnation="i1", shard="eu-west/0", home="eu-west", rules=make_rules("best_score"), generation=0,
        count=0, created_ms=0,
    )  # fmt: skip


def gateway() -> GatewayBackend:
    found = bare_gateway()
    found._knows_boards = True
    return found


def tell(gateway: GatewayBackend, *boards: str) -> None:
    gateway._boards.update({board_id: info(board_id) for board_id in boards})
    event, gateway._news = gateway._news, asyncio.Event()
    event.set()


def test_it_waits_for_the_news_that_have_it_and_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions.gateway_backend, "NEW_BOARD_S", 60.0)

    async def story() -> None:
        here = gateway()
        waiting = asyncio.ensure_future(here.board_soon(BOARD))
        for others in ((), (OTHER,)):
            await asyncio.sleep(0)
            tell(here, *others)
        await asyncio.sleep(0)
        assert not waiting.done()
        tell(here, BOARD)
        found = await waiting
        assert found is not None and found.board_id == BOARD
        assert await here.board_soon(OTHER) is not None

    asyncio.run(story())


def test_what_nobody_has_made_is_unknown_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions.gateway_backend, "NEW_BOARD_S", 0.01)
    here = gateway()
    assert asyncio.run(here.board_soon(BOARD)) is None
    here._knows_boards = False
    assert asyncio.run(here.board_soon(BOARD)) is None, "the caller tells that it is not certain"


def test_a_write_is_taken_and_who_may_not_write_does_not_even_wait() -> None:
    world = World()
    world.backend.coming[BOARD] = FakeBoard(BOARD, make_rules("best_score", visibility="public"))
    url = f"/v1/boards/{BOARD}/events"
    problem(world.call("POST", url, json={"events": [event()]}), 401, "missing_token")
    problem(world.call("POST", url, json={"events": [event()]}, headers=OPERATOR), 403, "wrong_scope")
    assert BOARD in world.backend.coming
    assert world.submit(event(), board=BOARD).json()["results"][0]["outcome"] == "applied_first"
    problem(world.submit(event(), board=OTHER), 404, "unknown_board")


def test_few_wait_at_a_time_and_the_others_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions.gateway_backend, "NEW_BOARD_S", 60.0)
    monkeypatch.setattr(regions.gateway_backend, "EXPECTING", 2)

    async def story() -> None:
        here = gateway()
        waiting = [asyncio.ensure_future(here.board_soon(board_id)) for board_id in (BOARD, OTHER)]
        await asyncio.sleep(0)
        with pytest.raises(NotServing):
            await here.board_soon("arena-clash:solo:S10:global")
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        waiting.append(asyncio.ensure_future(here.board_soon("arena-clash:solo:S10:global")))
        await asyncio.sleep(0)
        tell(here, OTHER, "arena-clash:solo:S10:global")
        assert None not in await asyncio.gather(*waiting[1:])

    asyncio.run(story())


class Handles:
    """A region's actors as its gateway reaches them; news come through while `hearing` is set."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.submit, self.operate, self.drain = region.submit, region.operate, region.drain
        self.hearing = asyncio.Event()
        self.hearing.set()

    async def news(self, since: int) -> News:
        assert self._region.replica is not None
        found: News = await self._region.replica.news(since, timeout_s=0.5)
        await self.hearing.wait()
        return found


async def follow(stack: AsyncExitStack, region: Region) -> tuple[GatewayBackend, Handles]:
    """A real gateway over a region's actors and replica, until the stack is left."""
    handles: Any = Handles(region)
    places = {shard: Place(home=home, ack="quorum", on_region_loss="promote") for shard, home in region.cluster.shards.items()}
    gateway = bare_gateway(region=region.name, handles=handles, links=region.links, places=places, directory=region.directory)
    task = asyncio.create_task(gateway.follow_replica())
    stack.callback(task.cancel)
    await until(lambda: gateway.knows_boards, f"{region.name} knows its boards")
    return gateway, handles


@pytest.mark.parametrize("slices", [1, 2])
def test_a_board_made_in_one_region_is_written_in_the_others_before_they_have_heard_of_it(
    tmp_path: Path, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. News reach two regions no more. 2. The third makes a board, and it is written through the two. 3. News reach them again."""
    monkeypatch.setattr(regions.gateway_backend, "NEW_BOARD_S", 60.0)

    async def story(c: Cluster) -> None:
        c.start()
        await c.all_authorities()
        async with AsyncExitStack() as stack:
            (maker, _), *others = [await follow(stack, c[name]) for name in REGIONS]
            for _, handles in others:
                handles.hearing.clear()
            _, created = await maker.create_board(BOARD, make_rules("cumulative"), "eu", slices, subject="op")
            assert created

            async def write(gateway: GatewayBackend) -> list[Outcome]:
                info = await gateway.board_soon(BOARD)
                assert info is not None
                assert len(info.layout_in_effect.shards) == slices
                batch = [Submission(f"{gateway.region}-{player}", player, 1, 1000, 1000, b"f") for player in ("a", "b", "c", "d")]
                assert {slice_of(event.player_id, 2) for event in batch} == {0, 1}
                return [Outcome(word.outcome) for word in await gateway.submit(info, batch, subject="game")]

            writing = [asyncio.ensure_future(write(gateway)) for gateway, _ in others]
            await until(lambda: all(gateway._expecting == 1 for gateway, _ in others), "both writes wait")
            assert [gateway.board(BOARD) for gateway, _ in others] == [None, None]
            for _, handles in others:
                handles.hearing.set()
            first, second = await asyncio.gather(*writing)
            assert set(first) | set(second) == {Outcome.APPLIED_FIRST, Outcome.APPLIED}
            assert all(gateway._expecting == 0 for gateway, _ in others)

    in_process(tmp_path, story, shards={"eu/0": "eu", "eu/1": "eu"}, boards={})
