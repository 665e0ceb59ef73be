"""What a read over HTTP asks for: views, modes and positions, and what is refused with the field named."""

import pytest
from fake_backend import FakeBoard
from http_edge import SOLO, World, problem

from actors.messages import Answer, Ask, Nearby, Percentile, Question, Rank
from boards.policies import make_rules
from journal.ports import Position

SHARDED = "arena-clash:squad:S7:global"
PLAYER = f"/v1/boards/{SOLO}/players/ann"


class Edge(World):
    """Every question is answered with the same body; `asks` are the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.asks: list[Ask] = []
        self.backend.kept[SHARDED] = FakeBoard(SHARDED, make_rules("best_score", visibility="public"), ("eu-west/0", "eu-west/1"))
        self.backend.ask = self._ask  # type: ignore[method-assign]

    async def _ask(self, ask: Ask) -> Answer:
        self.asks.append(ask)
        return Answer(board_id=ask.board_id, incarnation="i", lineage="l", generation=1, published_ms=0, body=b"{}")


@pytest.fixture
def edge() -> Edge:
    return Edge()


@pytest.mark.parametrize(
    ("query", "question"),
    [
        ("", Rank("ann", "exact")),
        ("?view=rank&mode=exact", Rank("ann", "exact")),
        ("?mode=approximate", Rank("ann", "approximate")),
        ("?view=percentile", Percentile("ann", "exact")),
        ("?view=percentile&mode=approximate", Percentile("ann", "approximate")),
        ("?view=nearby&window=3&mode=exact", Nearby("ann", 3)),
    ],
)
def test_an_answer_is_exact_unless_less_is_asked_for(edge: Edge, query: str, question: Question) -> None:
    assert edge.get(PLAYER + query).status_code == 200
    assert [ask.question for ask in edge.asks] == [question]


def test_an_exact_answer_and_an_estimate_have_different_validators(edge: Edge) -> None:
    queries = ("", "?mode=approximate", "?view=percentile", "?view=percentile&mode=approximate")
    assert len({edge.get(PLAYER + query).headers["etag"] for query in queries}) == len(queries)


@pytest.mark.parametrize(
    ("query", "field", "allowed"),
    [
        ("?view=share", "view", "rank, percentile or nearby"),
        ("?mode=rough", "mode", "exact or approximate"),
        ("?view=nearby&mode=approximate", "mode", "exact, or the views rank and percentile"),
    ],
)
def test_a_view_or_mode_that_is_none_is_refused_with_its_field(edge: Edge, query: str, field: str, allowed: str) -> None:
    body = problem(edge.get(PLAYER + query), 422, "bad_parameter", field)
    assert body["allowed"] == allowed
    assert not edge.asks


@pytest.mark.parametrize("text", ["eu-west/1:7-1042", "eu-west%2F1%3A7-1042"])
def test_a_position_of_a_board_of_several_slices_names_its_shard(edge: Edge, text: str) -> None:
    for path in ("top", "players/ann"):
        assert edge.get(f"/v1/boards/{SHARDED}/{path}?at_least={text}").status_code == 200
    assert [(ask.at_least, ask.at_shard) for ask in edge.asks] == [(Position(7, 1042), "eu-west/1")] * 2


@pytest.mark.parametrize("text", ["7-1042", "eu-west/1:7", "eu-west/1", "eu-west/1:7-1042-3", ""])
def test_a_position_without_its_shard_is_refused_where_there_are_several(edge: Edge, text: str) -> None:
    body = problem(edge.get(f"/v1/boards/{SHARDED}/top?at_least={text}"), 422, "bad_parameter", "at_least")
    assert "<shard>:<epoch>-<offset>" in body["allowed"]
    assert not edge.asks


def test_the_plain_form_is_for_boards_of_one_slice(edge: Edge) -> None:
    assert edge.get(f"/v1/boards/{SOLO}/top?at_least=7-1042").status_code == 200
    assert [(ask.at_least, ask.at_shard) for ask in edge.asks] == [(Position(7, 1042), None)]
