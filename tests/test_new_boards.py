"""A write to a board that another region made a moment ago waits for news of it: a 404 would be a guess, and clients believe it."""

import asyncio

import pytest
from fake_backend import FakeBoard
from gateways import bare_gateway
from http_edge import OPERATOR, World, event, problem

import regions.gateway_backend
from actors.messages import BoardInfo, NotServing
from boards.policies import make_rules
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
