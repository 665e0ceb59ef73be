"""A gateway that has just started, or whose replica has, never says that a board does not exist before it can know.

Found by chaos: a gateway killed and back within two seconds answered a submit with 404, which clients believe.
"""

import asyncio

import pytest
from gateways import bare_gateway
from http_edge import LAPS, OPERATOR, SERVER, SOLO, World, event, problem

from actors.messages import BoardInfo
from actors.replica import News
from boards.policies import make_rules
from regions.gateway_backend import GatewayBackend

BOARD = BoardInfo(board_id=SOLO, number=1, incarnation="i", shard="eu-west/0", home="eu-west", rules=make_rules("best_score"))


class Replica:
    """Gives one piece of news after the other, and then none; `asked` are the numbers it was asked from."""

    def __init__(self, *news: News | TimeoutError) -> None:
        self.left = list(news)
        self.asked: list[int] = []
        self.told = asyncio.Event()

    async def news(self, since: int) -> News:
        self.asked.append(since)
        if not self.left:
            self.told.set()
            await asyncio.Event().wait()
        found = self.left.pop(0)
        if isinstance(found, TimeoutError):
            raise found
        return found


def news(seq: int, *boards: BoardInfo, serving: bool = True) -> News:
    return News(seq=seq, boards=list(boards), tops=[], owners={}, serving=serving)


def after(*told: News | TimeoutError) -> tuple[GatewayBackend, Replica]:
    """A gateway that has heard these news."""
    replica = Replica(*told)
    gateway = bare_gateway(handles=replica)

    async def follow() -> None:
        task = asyncio.create_task(gateway.follow_replica())
        await asyncio.wait_for(replica.told.wait(), 5)
        task.cancel()

    asyncio.run(follow())
    return gateway, replica


def test_a_gateway_knows_its_boards_once_the_replica_has_read_its_journal() -> None:
    assert not after()[0].knows_boards
    assert not after(news(1, BOARD, serving=False))[0].knows_boards
    assert after(news(1, BOARD, serving=False), news(2))[0].knows_boards


def test_a_replica_that_begins_anew_takes_no_board_away_and_is_asked_for_everything() -> None:
    """1. The replica told a board at 900. 2. It dies unnoticed, and counts from 1 again. 3. The gateway asks from 0, not from 4."""
    gateway, replica = after(news(900, BOARD), news(4), news(4, BOARD))
    assert replica.asked == [0, 900, 0, 4]
    assert gateway.board(SOLO) == BOARD
    assert gateway.knows_boards


def test_a_replica_that_does_not_answer_takes_no_board_away() -> None:
    gateway, replica = after(news(900, BOARD), TimeoutError(), news(2, serving=False))
    assert replica.asked == [0, 900, 0, 2]
    assert gateway.board(SOLO) == BOARD


@pytest.fixture
def starting() -> World:
    world = World()
    del world.backend.kept[SOLO]
    world.backend.knows_boards = False
    return world


def test_an_unknown_board_is_a_503_to_try_again_until_all_boards_are_known(starting: World) -> None:
    for response in (
        starting.submit(event()),
        starting.get(f"/v1/boards/{SOLO}"),
        starting.get(f"/v1/boards/{SOLO}/top"),
        starting.get("/v1/boards", headers=SERVER),
        starting.call("POST", "/v1/admin/failover", json={"board": SOLO, "to": "us-east"}, headers=OPERATOR),
    ):
        body = problem(response, 503, "not_serving")
        assert body["definite"] is True
        assert int(response.headers["retry-after"]) >= 1
    starting.backend.knows_boards = True
    problem(starting.submit(event()), 404, "unknown_board")


def test_a_board_that_is_known_is_served_before_all_are(starting: World) -> None:
    assert starting.get(f"/v1/boards/{LAPS}").status_code == 200
