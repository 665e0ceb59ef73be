"""Friends boards over HTTP: who may ask, what is ranked, and that nobody's list shows."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import jwt
import pytest
from fake_backend import EPOCH, START_MS, FakeBoard
from http_edge import COINS, KEYS, OPERATOR, PRIVATE, SERVER, SOLO, VERIFIER, World, event, problem, token
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from actors.messages import Answer, Ask, Unanswered
from boards.comparator import sort_key
from boards.model import BoardRules, Row
from boards.numbers import format_value
from boards.policies import make_rules
from laurel import AsyncLaurelClient, Forbidden, LaurelClient, NotFound, Unavailable, commands, main
from regions import friends_api
from regions.app import create_app
from regions.friends import FriendsInvalid, FriendsUnavailable
from regions.friends_api import ranked_among
from regions.specs import make_keys
from regions.tokens import Scope, TokenError, TokenVerifier, public_keys


class Friends:
    """A friends source in memory; records whom it was asked about, and for whom."""

    def __init__(self) -> None:
        self.lists: dict[str, Sequence[str]] = {}
        self.error: Unanswered | None = None
        self.asked: list[tuple[str, str, str]] = []

    async def friends_of(self, game: str, player: str, *, scope: str) -> tuple[str, ...]:
        self.asked.append((game, player, scope))
        if self.error is not None:
            raise self.error
        return tuple(self.lists.get(player, ()))

    async def close(self) -> None:
        pass


class FriendsWorld(World):
    """A region's edge with a friends service."""

    def __init__(self) -> None:
        super().__init__()
        self.friends = Friends()
        self.app = create_app(self.backend, verifier=VERIFIER, friends=self.friends)

    def board(self, player: str, query: str = "", board: str = SOLO, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.get(f"/v1/boards/{board}/friends/{player}{query}", headers=SERVER if headers is None else headers)

    def put(self, board: str, rows: dict[str, Row]) -> None:
        """Rows of a board, published."""
        self.backend.kept[board].rows = rows
        self.backend.publish(board)


@pytest.fixture
def world() -> FriendsWorld:
    return FriendsWorld()


def bearer(scope: Scope = "reader", games: tuple[str, ...] = ("arena-clash",), player: str | None = None) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS.issue(f'{scope}-1', scope, games, 3600, now_s=START_MS / 1000, player=player)}"}


def row(value: int, tie_ms: int = 0, version: int = 1, second: int = 0) -> Row:
    return Row(value, tie_ms, tie_ms, tie_ms, 0, version, "e", second=second)


def places(response: httpx.Response) -> list[tuple[int, int, str]]:
    assert response.status_code == 200, response.text
    return [(entry["position"], entry["rank"], entry["player_id"]) for entry in response.json()["entries"]]


# What is ranked


def test_friends_are_ranked_among_themselves_with_the_player_included(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["p-2"] = ["p-4", "p-1", "p-absent"]
    assert places(world.board("p-2")) == [(1, 1, "p-1"), (2, 2, "p-2"), (3, 3, "p-4")]
    assert world.friends.asked == [("arena-clash", "p-2", "subject:game-server-1")]


def test_a_friend_far_outside_the_global_top_is_there(world: FriendsWorld) -> None:
    world.put(SOLO, {f"p-{n}": row(10_000 - n) for n in range(3000)})
    world.friends.lists["p-2999"] = ["p-2500", "p-7"]
    top = {entry["player_id"] for entry in world.get(f"/v1/boards/{SOLO}/top?limit=1000").json()["entries"]}
    assert "p-2500" not in top
    assert places(world.board("p-2999")) == [(1, 1, "p-7"), (2, 2, "p-2500"), (3, 3, "p-2999")]


def test_the_answer_holds_the_generation_and_rows_and_nothing_that_tells_of_a_list(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["p-2"] = ["p-4", "ghost-1", "ghost-2"]
    response = world.board("p-2")
    body = response.json()
    assert list(body) == [
        "board", "generation", "pin", "epoch", "published_at", "boundaries", "complete", "exact", "total", "checksum",
        "among", "player_id", "limit", "entries",
    ]  # fmt: skip
    assert (body["generation"], body["boundaries"], body["exact"], body["among"]) == ("s1", {"eu-west/0": f"{EPOCH}-1005"}, True, "friends")
    assert (body["total"], body["player_id"], body["limit"]) == (5, "p-2", 100)
    assert "ghost" not in response.text
    assert set(body["entries"][0]) == {"position", "rank", "player_id", "value", "achieved_at", "version"}


@pytest.mark.parametrize("chunk", [1000, 2])
def test_friends_who_are_not_on_the_board_change_neither_body_nor_validator(world: FriendsWorld, chunk: int) -> None:
    world.fill(5)
    answers = []
    with mock.patch.object(friends_api, "CHUNK", chunk):
        for strangers in (0, 1, 500):
            world.friends.lists["p-2"] = ["p-4", "p-0", *(f"ghost-{n}" for n in range(strangers))]
            response = world.board("p-2")
            answers.append((response.content, dict(response.headers)))
    assert answers[0] == answers[1] == answers[2]


def test_an_unknown_player_is_answered_as_one_who_has_no_rows_to_see(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["idle"] = ["idle-too"]
    known, unknown = world.board("idle"), world.board("nobody")
    assert places(known) == places(unknown) == []
    assert known.json() == {**unknown.json(), "player_id": "idle"}
    assert places(world.board("p-3")) == [(1, 1, "p-3")]


def test_an_empty_board_has_an_empty_friends_board_of_s0(world: FriendsWorld) -> None:
    world.friends.lists["p-2"] = ["p-4"]
    response = world.board("p-2")
    assert places(response) == []
    assert response.json()["generation"] == "s0"


@pytest.mark.parametrize("chunk", [1000, 7])
def test_limit_cuts_what_has_been_ranked_whole(world: FriendsWorld, chunk: int) -> None:
    world.fill(50)
    world.friends.lists["p-49"] = [f"p-{n}" for n in range(20, 50)]
    with mock.patch.object(friends_api, "CHUNK", chunk):
        assert places(world.board("p-49", "?limit=3")) == [(1, 1, "p-20"), (2, 2, "p-21"), (3, 3, "p-22")]


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1", "1.5"])
def test_a_limit_out_of_range_is_named(world: FriendsWorld, limit: str) -> None:
    problem(world.board("p-1", f"?limit={limit}"), 422, "bad_parameter", "limit")


def test_unknown_parameters_are_named(world: FriendsWorld) -> None:
    problem(world.board("p-1", "?cursor=x"), 422, "unknown_parameter", "cursor")


def test_equal_scores_share_a_rank_on_a_competition_board_and_no_rank_depends_on_strangers(world: FriendsWorld) -> None:
    world.put(COINS, {"a": row(900), "b": row(700, 5), "c": row(700, 3), "d": row(800), "e": row(600)})
    world.friends.lists["e"] = ["b", "c"]
    assert places(world.board("e", board=COINS)) == [(1, 1, "c"), (2, 1, "b"), (3, 3, "e")]


ROWS = st.dictionaries(
    st.integers(0, 60).map("p-{}".format),
    st.builds(row, value=st.integers(-3, 3), tie_ms=st.integers(0, 3)),
    max_size=40,
)
RULES = st.builds(
    make_rules,
    st.just("latest"),
    direction=st.sampled_from(["higher", "lower"]),
    ties=st.sampled_from(["achieved_at", "submitted_at"]),
    ranking=st.sampled_from(["unique", "competition", "dense"]),
    visibility=st.just("public"),
)
SHARED = FriendsWorld()


@given(ROWS, RULES, st.sets(st.integers(0, 80).map("p-{}".format)), st.integers(1, 40), st.sampled_from([1, 2, 3, 10, 1000]))
def test_a_friends_board_is_an_offline_filter_and_sort_by_the_comparator(
    rows: dict[str, Row], rules: BoardRules, friends: set[str], limit: int, chunk: int
) -> None:
    SHARED.backend.kept[SOLO] = FakeBoard(SOLO, rules)
    SHARED.put(SOLO, rows)
    SHARED.friends.lists["p-7"] = shuffled(friends)
    with mock.patch.object(friends_api, "CHUNK", chunk):
        response = SHARED.board("p-7", f"?limit={limit}")
    assert places(response) == offline(rows, rules, {*friends, "p-7"})[:limit]
    values = [entry["value"] for entry in response.json()["entries"]]
    assert values == [format_value(rows[who].value, 0) for _, _, who in places(response)]


def shuffled(ids: set[str]) -> list[str]:
    """An order that has nothing to do with the board's."""
    return sorted(ids, key=lambda player_id: player_id[::-1])


def offline(rows: dict[str, Row], rules: BoardRules, eligible: set[str]) -> list[tuple[int, int, str]]:
    """(position, rank, player) of all eligible rows: the slow way, from the rows themselves."""
    kept = sorted(((who, line) for who, line in rows.items() if who in eligible), key=sort_key(rules))
    scores = [sort_key(rules)(item)[:2] for item in kept]
    ranks = {
        "unique": range(1, len(kept) + 1),
        "competition": [1 + sum(other < score for other in scores) for score in scores],
        "dense": [1 + len({other for other in scores if other < score}) for score in scores],
    }[rules.ranking]
    return [(position, rank, who) for position, (rank, (who, _)) in enumerate(zip(ranks, kept, strict=True), start=1)]


TWO_COLUMNS = st.dictionaries(
    st.integers(0, 30).map("p-{}".format),
    st.builds(row, value=st.integers(0, 2), tie_ms=st.integers(0, 2), second=st.integers(0, 2)),
)


@given(
    TWO_COLUMNS,
    st.sampled_from(["unique", "competition"]),
    st.sampled_from(["higher", "lower"]),
    st.sets(st.integers(0, 30).map("p-{}".format)),
)
def test_merged_ranks_compare_both_columns(rows: dict[str, Row], ranking: Any, second: Any, friends: set[str]) -> None:
    rules = make_rules("best_score", ranking=ranking, secondary=second)
    board = offline(rows, rules, set(rows))
    entries = [
        {"position": position, "rank": rank, "player_id": who, "value": str(rows[who].value), "secondary": str(rows[who].second)}
        for position, rank, who in board
        if who in friends
    ]
    found = ranked_among(sorted(entries, key=lambda entry: entry["player_id"][::-1]), ranking, 1000)
    assert [(e["position"], e["rank"], e["player_id"]) for e in found] == offline(rows, rules, friends)


# One generation


def test_a_list_of_several_questions_is_answered_from_one_generation_whatever_is_published_meanwhile(world: FriendsWorld) -> None:
    world.fill(9)
    world.friends.lists["p-8"] = [f"p-{n}" for n in range(8)]
    honest = world.backend.ask

    async def publish_behind(ask: Ask) -> Answer:
        told = await honest(ask)
        world.backend.kept[SOLO].rows["p-8"] = row(10**6, version=2 + len(world.backend.asked))
        world.backend.publish(SOLO)
        return told

    with mock.patch.object(friends_api, "CHUNK", 4), mock.patch.object(world.backend, "ask", publish_behind):
        response = world.board("p-8")
    assert places(response)[-1] == (9, 9, "p-8")
    assert response.json()["generation"] == "s1"
    assert [ask.generation for ask in world.backend.asked] == [None, 1, 1]
    assert world.backend.kept[SOLO].newest == 4


def test_a_board_that_is_made_anew_between_two_questions_is_not_mixed(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["p-1"] = ["p-2", "p-3"]
    honest = world.backend.ask

    async def another_life(ask: Ask) -> Answer:
        told = await honest(ask)
        fields = {name: getattr(told, name) for name in told.__struct_fields__}
        return told if ask.generation is None else Answer(**{**fields, "incarnation": "b2"})

    with mock.patch.object(friends_api, "CHUNK", 2), mock.patch.object(world.backend, "ask", another_life):
        problem(world.board("p-1"), 503, "not_serving")


def test_a_pinned_generation_and_one_that_is_gone(world: FriendsWorld) -> None:
    world.fill(3)
    world.submit(event("late", "p-2", 99_999))
    world.backend.publish(SOLO)
    world.friends.lists["p-2"] = ["p-0"]
    assert places(world.board("p-2", "?generation=s1")) == [(1, 1, "p-0"), (2, 2, "p-2")]
    assert places(world.board("p-2", "?generation=s2")) == [(1, 1, "p-2"), (2, 2, "p-0")]
    assert problem(world.board("p-2", "?generation=s9"), 410, "generation_gone", "generation")["newest"] == "s2"
    problem(world.board("p-2", "?generation=s1&at_least=7-1"), 422, "bad_parameter", "at_least")


def test_at_least_waits_for_the_event(world: FriendsWorld) -> None:
    world.fill(3)
    said = world.submit(event("late", "p-2", 99_999)).json()["results"][0]
    world.friends.lists["p-2"] = ["p-0"]
    assert places(world.board("p-2"))[0] == (1, 1, "p-0")
    assert places(world.board("p-2", f"?at_least={said['epoch']}-{said['offset']}"))[0] == (1, 1, "p-2")
    problem(world.board("p-2", f"?at_least={EPOCH}-99999"), 503, "not_visible_yet", "at_least")


# How it may be kept


def test_nobody_keeps_a_friends_board_also_of_a_public_board(world: FriendsWorld) -> None:
    world.fill(5)
    for query in ("", "?generation=s1"):
        response = world.board("p-2", query)
        assert response.headers["cache-control"] == "private, no-store"
        assert "Authorization" in response.headers["vary"]
        assert "access-control-allow-origin" not in response.headers
        assert int(response.headers["x-laurel-age-ms"]) >= 0


def test_who_has_the_same_board_already_is_told_so(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["p-2"] = ["p-4"]
    etag = world.board("p-2").headers["etag"]
    assert world.board("p-2", headers={**SERVER, "if-none-match": etag}).status_code == 304
    world.friends.lists["p-2"] = ["p-3"]
    assert world.board("p-2", headers={**SERVER, "if-none-match": etag}).status_code == 200


def test_head_has_the_headers_and_no_body(world: FriendsWorld) -> None:
    world.fill(5)
    head = world.call("HEAD", f"/v1/boards/{SOLO}/friends/p-1", headers=SERVER)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", world.board("p-1").headers["etag"])


# Who may ask


def test_without_a_token_nobody_sees_a_friends_board_also_of_a_public_board(world: FriendsWorld) -> None:
    world.fill(5)
    problem(world.board("p-1", headers={}), 401, "missing_token")
    problem(world.board("p-1", headers={"authorization": "Bearer x.y.z"}), 401, "bad_token")
    assert world.friends.asked == []


@pytest.mark.parametrize("board", [SOLO, PRIVATE, "arena-clash:none:S7:global"])
def test_tokens_of_another_game_or_scope_see_nothing(world: FriendsWorld, board: str) -> None:
    world.fill(5)
    problem(world.board("p-1", board=board, headers=bearer(games=("kart",))), 403, "foreign_game")
    problem(world.board("p-1", board=board, headers=bearer("region", ("*",))), 403, "wrong_scope")
    assert world.friends.asked == []


@pytest.mark.parametrize("headers", [bearer(), bearer("game-server"), OPERATOR])
@pytest.mark.parametrize("board", [SOLO, PRIVATE])
def test_whoever_may_read_the_board_of_a_game_may_read_its_friends_boards(world: FriendsWorld, headers: dict[str, str], board: str) -> None:
    world.fill(5, board=board)
    assert places(world.board("p-1", board=board, headers=headers)) == [(1, 1, "p-1")]


def test_a_token_of_one_player_sees_the_own_friends_board_alone(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists = {"p-1": ["p-2"], "p-3": ["p-4"]}
    own = bearer(player="p-1")
    assert places(world.board("p-1", headers=own)) == [(1, 1, "p-1"), (2, 2, "p-2")]
    for other in ("p-3", "nobody"):
        problem(world.board(other, headers=own), 403, "foreign_player")
    assert world.friends.asked == [("arena-clash", "p-1", "player:p-1")]
    # Boards that are not friends boards are the same for all readers.
    assert world.get(f"/v1/boards/{SOLO}/players/p-3", headers=own).status_code == 200


def test_the_friends_service_is_asked_on_behalf_of_whoever_asks(world: FriendsWorld) -> None:
    world.fill(5)
    for headers in (bearer(), bearer("game-server"), bearer(player="p-1")):
        world.board("p-1", headers=headers)
    assert [scope for _, _, scope in world.friends.asked] == ["subject:reader-1", "subject:game-server-1", "player:p-1"]


def test_only_a_readers_token_is_bound_to_a_player() -> None:
    assert VERIFIER.verify(token()).player is None
    assert VERIFIER.verify(bearer(player="Zoë")["authorization"][7:]).player == "Zoë"
    for scope, player in (("game-server", "p-1"), ("operator", "p-1"), ("reader", ""), ("reader", "a/b")):
        with pytest.raises(ValueError, match="bound to a player"):
            KEYS.issue("s", scope, ["*"], 60, player=player)  # type: ignore[arg-type]  # texts of the loop


@pytest.mark.parametrize(
    ("scope", "player"), [("game-server", "p-1"), ("reader", 7), ("reader", ""), ("reader", None), ("reader", ["p-1"])]
)
def test_a_signed_token_with_a_claim_that_makes_no_sense_is_refused(scope: str, player: object) -> None:
    claims = {"sub": "s", "scope": scope, "games": ["*"], "exp": START_MS // 1000 + 60, "jti": "j", "player": player}
    signed = jwt.encode(claims, KEYS._private, algorithm="EdDSA", headers={"kid": KEYS.kid})
    with pytest.raises(TokenError) as caught:
        VERIFIER.verify(signed)
    assert caught.value.code == "bad_token"


# What can go wrong


def test_without_a_friends_service_there_are_no_friends_boards() -> None:
    world = World()
    world.fill(5)
    told = problem(world.get(f"/v1/boards/{SOLO}/friends/p-1", headers=SERVER), 404, "friends_not_configured")
    assert told["definite"] is True


def test_while_the_service_is_down_there_is_no_board_and_no_part_of_one(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.error = FriendsUnavailable("The friends service does not answer", retry_after_ms=2000)
    response = world.board("p-1")
    told = problem(response, 503, "friends_unavailable")
    assert (told["definite"], told["retry_after_ms"], response.headers["retry-after"]) == (True, 2000, "2")
    assert "entries" not in told
    assert world.backend.asked == []
    assert world.get(f"/v1/boards/{SOLO}/top").status_code == 200


def test_an_invalid_list_is_a_problem_of_the_service(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.error = FriendsInvalid("not a list")
    assert problem(world.board("p-1"), 502, "friends_invalid")["definite"] is True
    assert world.backend.asked == []


def test_an_unknown_board_is_named_before_the_service_is_asked(world: FriendsWorld) -> None:
    problem(world.board("p-1", board="arena-clash:none:S7:global"), 404, "unknown_board")
    assert world.friends.asked == []


@pytest.mark.parametrize("player", ["a%2Fb", "a/b", "..%2f", "%00", "%ff", "%2e%2e"])
def test_what_can_be_no_player_is_named(world: FriendsWorld, player: str) -> None:
    problem(world.board(player), 422, "bad_id", "player_id")
    assert world.friends.asked == []


def test_an_id_in_any_script_is_found(world: FriendsWorld) -> None:
    world.put(SOLO, {"Zoë": row(5), "50%": row(7)})
    world.friends.lists["Zoë"] = ["50%"]
    assert places(world.board("Zo%C3%AB")) == [(1, 1, "50%"), (2, 2, "Zoë")]


# The clients


def test_the_asynchronous_client_reads_what_the_edge_answers(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["p-3"] = ["p-1", "p-0"]

    async def main() -> None:
        async with AsyncLaurelClient(
            {"eu-west": "http://region"}, bearer(player="p-3")["authorization"][7:], transport=httpx.ASGITransport(app=world.app)
        ) as client:
            board = await client.friends(SOLO, "p-3", 2)
            assert [(e.position, e.rank, e.player_id, e.value) for e in board.entries] == [(1, 1, "p-0", 9800), (2, 2, "p-1", 9700)]
            assert (board.player_id, board.among, board.generation, board.exact, board.region) == ("p-3", "friends", "s1", True, "eu-west")
            with pytest.raises(Forbidden) as caught:
                await client.friends(SOLO, "p-1")
            assert caught.value.code == "foreign_player"

    asyncio.run(main())


def sync_client(answer: httpx.Response, sent: list[httpx.Request]) -> LaurelClient:
    def answered(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer

    return LaurelClient({"eu-west": "http://eu"}, "t0ken", transport=httpx.MockTransport(answered), max_attempts=2, sleep=lambda _: None)


def test_the_synchronous_client_sends_the_question_and_reads_the_board(world: FriendsWorld) -> None:
    world.fill(5)
    world.friends.lists["Zoë"] = ["p-1"]
    told, sent = world.board("Zo%C3%AB"), list[httpx.Request]()
    with sync_client(httpx.Response(200, content=told.content, headers={"x-laurel-region": "eu-west"}), sent) as client:
        board = client.friends(SOLO, "Zoë", 7, at_least="eu-west/1:7-1042")
    assert [entry.player_id for entry in board.entries] == ["p-1"]
    assert sent[0].url.raw_path == f"/v1/boards/{SOLO}/friends/Zo%C3%AB?limit=7&at_least=eu-west%2F1%3A7-1042".encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "friends_not_configured", NotFound), (503, "friends_unavailable", Unavailable), (502, "friends_invalid", Unavailable)],
)
def test_the_clients_errors_keep_the_code(status: int, code: str, kind: type[Exception]) -> None:
    body = json.dumps({"status": status, "code": code, "detail": "said", "definite": True})
    with sync_client(httpx.Response(status, content=body), []) as client, pytest.raises(kind) as caught:
        client.friends(SOLO, "p-1")
    assert getattr(caught.value, "code", None) == code


class Shell:
    """The `laurel` command against one answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: httpx.Response) -> None:
        self.sent: list[httpx.Request] = []
        self.tmp_path = tmp_path
        monkeypatch.setattr(commands, "connect", lambda *_, **__: sync_client(answer, self.sent))

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(
            main.app, [*words, "--url", "http://eu", "--token", "t", "--data-dir", str(self.tmp_path)], prog_name="laurel"
        )


def test_the_command_shows_the_board_or_prints_it_as_json(world: FriendsWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world.fill(5)
    world.friends.lists["p-3"] = ["p-1"]
    told = world.board("p-3")
    shell = Shell(monkeypatch, tmp_path, httpx.Response(200, content=told.content))
    shown = shell.run("friends", SOLO, "p-3", "--limit", "7", "--at-least", "7-1042")
    assert shown.exit_code == 0, shown.output
    assert [line.split()[:4] for line in shown.stdout.splitlines() if "p-" in line] == [["1", "1", "p-1", "9700"], ["2", "2", "p-3", "<"]]
    printed = json.loads(shell.run("friends", SOLO, "p-3", "--json").stdout)
    assert [entry["player_id"] for entry in printed["entries"]] == ["p-1", "p-3"]
    assert [request.url.query for request in shell.sent] == [b"limit=7&at_least=7-1042", b"limit=20"]


def test_the_command_fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = json.dumps({"status": 404, "code": "friends_not_configured", "detail": "No friends service is configured here"})
    failed = Shell(monkeypatch, tmp_path, httpx.Response(404, content=body)).run("friends", SOLO, "p-3")
    assert failed.exit_code == 1
    assert failed.stderr == "No friends service is configured here.\n"


def test_a_token_for_one_player_is_issued_by_command(tmp_path: Path) -> None:
    make_keys(tmp_path, ["eu-west"])

    def issue(*words: str) -> Any:
        return CliRunner().invoke(main.app, ["token", "issue", *words, "--game", "*", "--data-dir", str(tmp_path)], prog_name="laurel")

    issued = issue("--scope", "reader", "--player", "p-1", "--json")
    told = json.loads(issued.stdout)
    verifier = TokenVerifier(public_keys([(tmp_path / "keys" / "cluster.pub").read_text()]))
    assert told["player"] == verifier.verify(told["token"]).player == "p-1"
    assert verifier.verify(issue("--scope", "reader").stdout.strip()).player is None
    for words in (("--scope", "game-server", "--player", "p-1"), ("--scope", "reader", "--player", "a/b")):
        refused = issue(*words)
        assert refused.exit_code == 2
        assert "--player" in refused.stderr
