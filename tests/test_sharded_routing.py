"""Where the events of a board go that is spread over shards, or on the move; and orders about such boards."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from gateways import bare_gateway
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.messages import (
    Answer,
    Batch,
    BoardExists,
    BoardInfo,
    NoAuthority,
    NotServing,
    SubmitResult,
    Unanswered,
    UnknownBoard,
    to_wire,
)
from actors.remote import LocalHandles
from actors.replica import News
from actors.shard import decode_submit
from boards.errors import InvalidInput
from boards.model import Layout, Outcome, Submission
from boards.policies import make_rules
from boards.slicing import slice_of
from config.placing import Place
from regions import board_orders, routing, spreading
from regions.backend import FailoverRequest
from regions.bundling import Bundles
from regions.gateway_backend import FailoverRefused, GatewayBackend
from regions.routing import Authorities, Directory, ShardRoute
from regions.spreading import BoardWrites

BOARD = "arena-clash:big:S7:global"
OTHER = "arena-clash:other:S7:global"
RULES = make_rules("best_score")
FOUR = tuple(f"eu-west/{n}" for n in range(4))

_encode = msgspec.msgpack.Encoder().encode


def board(*shards: str, number: int = 1, incarnation: str = "i1", board_id: str = BOARD, **fields: Any) -> BoardInfo:
    layout = Layout(number, shards) if len(shards) > 1 or number > 1 else None
    info = BoardInfo(
        board_id=board_id, number=1, incarnation=incarnation, shard=shards[0], home="eu-west", rules=RULES, layout=layout
    )  # fmt: skip
    return msgspec.structs.replace(info, **fields)


def event(number: int, player: str | None = None) -> Submission:
    return Submission(f"e-{number}", player if player is not None else f"p-{number}", number, 0, 0, b"")


class _Method:
    """A method of an actor handle."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class _Handle:
    """A process with one shard."""

    def __init__(self, shards: "Shards", shard: str) -> None:
        self.submit, self.channel = _Method(self._submit), _Method(self._channel)
        self._shards, self._shard = shards, shard

    async def _channel(self) -> None:
        return None

    async def _submit(self, payload: bytes) -> bytes:
        return _encode([self._shards.take(shard, batches) for shard, batches in decode_submit(payload)])


class Shards:
    """This region's shard actors, each with the events that it has taken. `say` has one answer otherwise."""

    def __init__(self) -> None:
        self.taken: dict[str, list[Submission]] = {}
        self.calls: list[tuple[str, list[Batch]]] = []
        #: Board and shard -> what is raised, or what to do first; it is asked at each call.
        self.say: dict[tuple[str, str], Callable[[], Unanswered | None]] = {}
        self.silent: set[str] = set()

    async def submit(self, payload: bytes) -> bytes:
        """As if each had a process of its own."""
        handles = {shard: (_Handle(self, shard), [shard]) for shard, _ in decode_submit(payload)}
        return await LocalHandles(handles, {}).submit(payload)

    def take(self, shard: str, batches: list[Batch]) -> list[Any]:
        self.calls.append((shard, batches))
        if shard in self.silent:
            raise TimeoutError("slow")
        return [self._one(shard, batch) for batch in batches]

    def _one(self, shard: str, batch: Batch) -> Any:
        submissions = batch.submissions
        refusal = self.say.get((batch.board_id, shard), lambda: None)()
        if refusal is not None:
            return to_wire(refusal)
        kept = self.taken.setdefault(shard, [])
        before = {(e.player_id, e.event_id) for e in kept}
        kept += [e for e in submissions if (e.player_id, e.event_id) not in before]
        return [
            SubmitResult(
                int(Outcome.DUPLICATE if (e.player_id, e.event_id) in before else Outcome.APPLIED_FIRST), e.amount, 1, True, 7, len(kept)
            )
            for e in submissions
        ]

    async def drain(self, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        raise AssertionError

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError


class Gateway:
    """The write path of a gateway on these shards. `known` is what the replica has told."""

    def __init__(self, *infos: BoardInfo, shards: Sequence[str] = FOUR) -> None:
        self.shards = Shards()
        self.known = {info.board_id: info for info in infos}
        self.news = asyncio.Event()
        unused: Any = None
        authorities = Authorities("eu-west", Directory(), self.shards, unused, call_timeout_s=1)
        self.routes = {shard: ShardRoute(shard, authorities) for shard in shards}
        self.writes = BoardWrites(self.routes, Bundles(self.routes, authorities), self.known.get, self._hear)
        self.looked = 0
        #: What happens at each look for news.
        self.on_look: Callable[[int], None] = lambda nth: None

    async def _hear(self, timeout_s: float) -> None:
        self.looked += 1
        self.on_look(self.looked)
        await asyncio.sleep(0.001)

    def submit(self, submissions: list[Submission], info: BoardInfo | None = None) -> list[SubmitResult]:
        return asyncio.run(self.writes.submit(info or self.known[BOARD], submissions, "server-1"))


def words(results: Sequence[SubmitResult]) -> list[tuple[str, str]]:
    return [(Outcome(result.outcome).name, result.code) for result in results]


def here(events: Sequence[Submission], shard: int, count: int = 4) -> list[Submission]:
    return [e for e in events if slice_of(e.player_id, count) == shard]


@pytest.fixture
def short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held for two seconds is held for a moment."""
    for module in (routing, spreading, board_orders):
        monkeypatch.setattr(module, "HOLD_S", 0.05)


# Boards that stay where they are


def test_board_of_one_slice_takes_the_direct_way() -> None:
    gateway = Gateway(board("eu-west/2"))
    events = [event(n) for n in range(30)]
    results = gateway.submit(events)
    assert [call[0] for call in gateway.shards.calls] == ["eu-west/2"]
    assert gateway.shards.calls[0][1] == [Batch(BOARD, "server-1", events, "i1")]
    assert [result.value for result in results] == list(range(30))


def test_each_event_goes_to_the_shard_of_its_player_and_results_come_in_order() -> None:
    gateway = Gateway(board(*FOUR))
    events = [event(n) for n in range(200)]
    results = gateway.submit(events)
    assert [result.value for result in results] == [e.amount for e in events]
    for index, shard in enumerate(FOUR):
        assert gateway.shards.taken[shard] == here(events, index)
    assert [result.shard for result in results] == [FOUR[slice_of(e.player_id, 4)] for e in events]
    assert sorted(call[0] for call in gateway.shards.calls) == list(FOUR)


@given(players=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=40), count=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_event_is_lost_doubled_or_swapped(players: list[str], count: int) -> None:
    gateway = Gateway(board(*FOUR[:count]))
    events = [event(n, player) for n, player in enumerate(players)]
    results = gateway.submit(events)
    assert [result.value for result in results] == list(range(len(players)))
    taken = {shard: kept for shard, kept in gateway.shards.taken.items() if kept}
    assert sorted(e.amount for kept in taken.values() for e in kept) == list(range(len(players)))
    for shard, kept in taken.items():
        assert all(FOUR[slice_of(e.player_id, count)] == shard for e in kept)
        assert all(one.amount < other.amount for one, other in pairwise(kept))  # one player's events stay in order


def test_requests_of_many_callers_share_the_calls_of_each_shard() -> None:
    gateway = Gateway(board(*FOUR))

    async def many() -> None:
        info = gateway.known[BOARD]
        await asyncio.gather(*(gateway.writes.submit(info, [event(n), event(n + 500)], "s") for n in range(100)))

    asyncio.run(many())
    assert sum(len(kept) for kept in gateway.shards.taken.values()) == 200
    assert len(gateway.shards.calls) <= 12


# Shards that refuse, or do not answer


def refusing(code: str, **fields: Any) -> Callable[[], Unanswered]:
    return lambda: NoAuthority(f"because of {code}", code=code, **fields)


def test_events_of_a_shard_that_refuses_carry_its_code_and_the_others_count() -> None:
    gateway = Gateway(board(*FOUR))
    gateway.shards.say[BOARD, FOUR[1]] = refusing("lagging", definite=True)
    events = [event(n) for n in range(40)]
    results = gateway.submit(events)
    for e, word in zip(events, words(results), strict=True):
        assert word == (("UNKNOWN", "lagging") if slice_of(e.player_id, 4) == 1 else ("APPLIED_FIRST", ""))
    assert FOUR[1] not in gateway.shards.taken


def test_events_of_a_shard_that_does_not_answer_are_unknown_without_a_code(short_hold: None) -> None:
    gateway = Gateway(board(*FOUR))
    gateway.shards.silent = {FOUR[2]}
    events = [event(n) for n in range(40)]
    unknown = [e for e, word in zip(events, words(gateway.submit(events)), strict=True) if word == ("UNKNOWN", "")]
    assert unknown == here(events, 2)


def test_request_that_all_shards_refuse_is_refused_as_a_whole() -> None:
    gateway = Gateway(board(*FOUR))
    for shard in FOUR:
        gateway.shards.say[BOARD, shard] = refusing("lagging", definite=True)
    with pytest.raises(NoAuthority) as caught:
        gateway.submit([event(n) for n in range(40)])
    assert (caught.value.code, caught.value.definite) == ("lagging", True)


def test_request_that_no_shard_answers_is_unknown_as_a_whole(short_hold: None) -> None:
    gateway = Gateway(board(*FOUR))
    gateway.shards.silent = set(FOUR)
    with pytest.raises(NoAuthority) as caught:
        gateway.submit([event(n) for n in range(40)])
    assert (caught.value.code, caught.value.definite) == ("unknown", False)


def test_refusal_beside_a_missing_answer_stays_certain_for_its_own_events(short_hold: None) -> None:
    gateway = Gateway(board(*FOUR[:2]))
    gateway.shards.silent = {FOUR[0]}
    gateway.shards.say[BOARD, FOUR[1]] = refusing("lagging", definite=True)
    events = [event(n) for n in range(20)]
    for e, word in zip(events, words(gateway.submit(events)), strict=True):
        assert word == ("UNKNOWN", "lagging" if slice_of(e.player_id, 2) == 1 else "")


# Boards on the move


MOVED = Layout(2, ("eu-west/3", "eu-west/1"))


def moved(*shards: str) -> Callable[[], Unanswered]:
    return refusing("moved", definite=True, layout=msgspec.to_builtins(Layout(2, shards)))


@pytest.mark.parametrize("old", [("eu-west/0",), ("eu-west/0", "eu-west/2")])
def test_events_follow_a_board_to_where_the_refusal_says(old: tuple[str, ...]) -> None:
    gateway = Gateway(board(*old))
    for shard in old:
        gateway.shards.say[BOARD, shard] = moved(*MOVED.shards)
    events = [event(n) for n in range(60)]
    results = gateway.submit(events)
    assert {word for word, _ in words(results)} == {"APPLIED_FIRST"}
    for index, shard in enumerate(MOVED.shards):
        assert gateway.shards.taken[shard] == here(events, index, 2)
    assert [result.shard for result in results] == [MOVED.shards[slice_of(e.player_id, 2)] for e in events]
    assert gateway.looked == 0


@pytest.mark.parametrize("code", ["moving", "moved"])
def test_events_of_a_closed_slice_wait_for_the_replica_to_tell_the_layout(code: str) -> None:
    """1. Slice 1 is closed while slice 0 still takes events. 2. The board switches. 3. Only what was refused is sent again."""
    three = ("eu-west/3", "eu-west/2", "eu-west/1")
    gateway = Gateway(board("eu-west/0", "eu-west/2"))
    gateway.shards.say[BOARD, "eu-west/2"] = refusing(code, definite=True)

    def look(nth: int) -> None:
        if nth == 3:
            gateway.known[BOARD] = board(*three, number=2)
            gateway.shards.say.clear()

    gateway.on_look = look
    events = [event(n) for n in range(60)]
    results = gateway.submit(events)
    assert {word for word, _ in words(results)} == {"APPLIED_FIRST"}
    assert gateway.shards.taken["eu-west/0"] == here(events, 0, 2)
    again = here(events, 1, 2)
    for index, shard in enumerate(three):
        assert gateway.shards.taken[shard] == here(again, index, 3)


def test_slice_that_opens_again_takes_the_events_that_waited() -> None:
    """The move was given up."""
    gateway = Gateway(board("eu-west/0", "eu-west/2"))
    left = [refusing("moving", definite=True)()] * 3
    gateway.shards.say[BOARD, "eu-west/2"] = lambda: left.pop() if left else None
    events = [event(n) for n in range(20)]
    assert {word for word, _ in words(gateway.submit(events))} == {"APPLIED_FIRST"}
    assert gateway.shards.taken["eu-west/2"] == here(events, 1, 2)


@pytest.mark.parametrize("shards", [FOUR[:1], FOUR[:2]])
def test_board_that_moves_for_too_long_is_refused_definitely(short_hold: None, shards: tuple[str, ...]) -> None:
    gateway = Gateway(board(*shards))
    for shard in shards:
        gateway.shards.say[BOARD, shard] = refusing("moving", definite=True)
    with pytest.raises(NoAuthority) as caught:
        gateway.submit([event(n) for n in range(9)])
    assert (caught.value.code, caught.value.definite) == ("moving", True)


def test_other_boards_of_the_shard_do_not_wait_for_the_one_that_moves() -> None:
    gateway = Gateway(board("eu-west/0"), board("eu-west/0", board_id=OTHER))
    gateway.shards.say[BOARD, "eu-west/0"] = refusing("moving", definite=True)

    async def both() -> None:
        held = [asyncio.create_task(gateway.writes.submit(gateway.known[BOARD], [event(n)], "s")) for n in range(5)]
        for n in range(20):
            await asyncio.wait_for(gateway.writes.submit(gateway.known[OTHER], [event(n)], "s"), 1)
        assert not any(task.done() for task in held)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(both())
    assert len(gateway.shards.taken["eu-west/0"]) == 20


def test_event_that_was_once_unanswered_is_not_called_refused_later(short_hold: None) -> None:
    """1. The old owner may have appended it and is silent. 2. Asked again, it says that the slice is closed. 3. Nobody knows."""
    gateway = Gateway(board("eu-west/0"))
    gateway.shards.silent = {"eu-west/0"}

    def closed() -> Unanswered:
        return NoAuthority("closed", code="moving", definite=True)

    gateway.shards.say[BOARD, "eu-west/0"] = closed

    async def run() -> None:
        task = asyncio.create_task(gateway.writes.submit(gateway.known[BOARD], [event(1)], "s"))
        while not gateway.shards.calls:
            await asyncio.sleep(0)
        gateway.shards.silent = set()
        with pytest.raises(NoAuthority) as caught:
            await task
        assert (caught.value.code, caught.value.definite) == ("unknown", False)

    asyncio.run(run())


def test_event_sent_again_after_a_move_is_recognised_where_its_player_lives_now() -> None:
    gateway = Gateway(board("eu-west/0"))
    gateway.shards.taken["eu-west/3"] = [event(1)]  # came along with its player
    gateway.shards.say[BOARD, "eu-west/0"] = moved("eu-west/3")
    (result,) = gateway.submit([event(1)])
    assert (result.outcome, result.shard) == (int(Outcome.DUPLICATE), "eu-west/3")


# Boards that go


GONE: Callable[[], Unanswered] = lambda: UnknownBoard("no such board")  # noqa: E731  # said by a shard


@pytest.mark.parametrize("shards", [FOUR[:1], FOUR])
@pytest.mark.parametrize("successor", [None, "i2"])
def test_board_removed_under_a_request_is_unknown(shards: tuple[str, ...], successor: str | None) -> None:
    """Also where one of that id was made since: the request was for the former one."""
    gateway = Gateway(board(*shards))
    gateway.shards.say[BOARD, shards[-1]] = GONE

    def look(nth: int) -> None:
        if nth == 2:
            del gateway.known[BOARD]
            if successor:
                gateway.known[BOARD] = board("eu-west/1", incarnation=successor)

    gateway.on_look = look
    with pytest.raises(UnknownBoard):
        gateway.submit([event(n) for n in range(40)], board(*shards))
    assert gateway.looked == 2


def test_slice_that_was_moved_away_and_forgotten_is_found_by_the_replicas_word() -> None:
    gateway = Gateway(board("eu-west/0"))
    gateway.shards.say[BOARD, "eu-west/0"] = GONE
    gateway.on_look = lambda nth: gateway.known.update({BOARD: board("eu-west/1", number=2)})
    (result,) = gateway.submit([event(1)])
    assert (result.outcome, result.shard) == (int(Outcome.APPLIED_FIRST), "eu-west/1")


def test_events_of_a_slice_that_nobody_finds_are_moving_while_the_board_is_still_shown(short_hold: None) -> None:
    """The others' events are applied and counted: a word on the whole request, such as 404, would be untrue."""
    gateway = Gateway(board(*FOUR))
    gateway.shards.say[BOARD, FOUR[3]] = GONE
    events = [event(n) for n in range(40)]
    for e, word in zip(events, words(gateway.submit(events)), strict=True):
        assert word == (("UNKNOWN", "moving") if slice_of(e.player_id, 4) == 3 else ("APPLIED_FIRST", ""))


@pytest.mark.parametrize("shards", [FOUR[:1], FOUR])
def test_board_that_is_found_nowhere_is_moving_for_as_long_as_it_is_shown(short_hold: None, shards: tuple[str, ...]) -> None:
    gateway = Gateway(board(*shards))
    for shard in shards:
        gateway.shards.say[BOARD, shard] = GONE
    with pytest.raises(NoAuthority) as caught:
        gateway.submit([event(n) for n in range(40)])
    assert (caught.value.code, caught.value.definite) == ("moving", True)
    del gateway.known[BOARD]
    with pytest.raises(UnknownBoard):
        gateway.submit([event(n) for n in range(40)], board(*shards))


def test_each_shard_is_told_which_life_of_the_board_is_meant() -> None:
    gateway = Gateway(board(*FOUR, incarnation="i7"))
    gateway.submit([event(n) for n in range(40)])
    assert {batch.incarnation for _, batches in gateway.shards.calls for batch in batches} == {"i7"}


def test_shard_that_this_region_does_not_know_is_a_refusal() -> None:
    gateway = Gateway(board("eu-west/0", "eu-west/7"))
    events = [event(n) for n in range(20)]
    assert {w for e, w in zip(events, words(gateway.submit(events)), strict=True) if slice_of(e.player_id, 2)} == {
        ("UNKNOWN", "no_authority")
    }


# What the replica tells of boards


class Replica:
    """Gives one piece of news after the other, and then none."""

    def __init__(self, *news: News | TimeoutError) -> None:
        self.left = list(news)
        self.told = asyncio.Event()

    async def news(self, since: int) -> News:
        if not self.left:
            self.told.set()
            await asyncio.Event().wait()
        found = self.left.pop(0)
        if isinstance(found, TimeoutError):
            raise found
        return found


def news(seq: int, *boards: BoardInfo, removed: Sequence[str] = (), serving: bool = True) -> News:
    tops = [Answer(board_id=b.board_id, incarnation=b.incarnation, lineage="l", generation=1, published_ms=1, body=b"{}") for b in boards]
    return News(seq=seq, boards=list(boards), tops=tops, owners={}, serving=serving, removed=list(removed))


def after(*told: News | TimeoutError) -> GatewayBackend:
    replica = Replica(*told)
    gateway = bare_gateway(handles=replica)

    async def follow() -> None:
        task = asyncio.create_task(gateway.follow_replica())
        await asyncio.wait_for(replica.told.wait(), 5)
        task.cancel()

    asyncio.run(follow())
    return gateway


A, B = board("eu-west/0"), board("eu-west/1", board_id=OTHER)


def test_removed_board_is_forgotten_with_its_ready_page() -> None:
    gateway = after(news(1, A, B), news(2, removed=[BOARD]))
    assert gateway.board(BOARD) is None
    assert gateway.ready_top(A, 100) is None
    assert gateway.boards() == [B]


def test_board_removed_and_made_again_in_one_piece_of_news_is_the_new_one() -> None:
    again = board("eu-west/2", incarnation="i2")
    gateway = after(news(1, A), news(2, again, removed=[BOARD]))
    assert gateway.board(BOARD) == again


@pytest.mark.parametrize("gap", [[TimeoutError()], [news(1)]], ids=["silent", "begun anew"])
def test_board_removed_while_nobody_listened_is_forgotten_once_all_others_are_told(gap: list[News | TimeoutError]) -> None:
    assert after(news(900, A, B), *gap, news(2, B, serving=False)).board(BOARD) == A
    gateway = after(news(900, A, B), *gap, news(2, B, serving=False), news(3))
    assert gateway.board(BOARD) is None
    assert gateway.boards() == [B]


# Orders


PLACES = {
    **{shard: Place("eu-west", "quorum", "hold") for shard in FOUR},
    "eu-west/4": Place("eu-west", "quorum", "hold", pooled=False),
    "eu-west/5": Place("eu-west", "local", "hold", pooled=False),
    "us-east/0": Place("us-east", "quorum", "hold"),
}


class Actors:
    """Shard actors that carry orders out at once; the replica's word follows by itself unless it is `late`."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {}
        self.gateway = bare_gateway(handles=self, places=PLACES, urls=("eu-west", "us-east", "ap-south"))
        self.gateway._knows_boards = True
        self.late = False

    def know(self, *infos: BoardInfo) -> None:
        self.gateway._boards.update({info.board_id: info for info in infos})

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        self.orders.append((shard, order))
        try:
            return self.answers.get(order["do"], self._done)(shard, order)
        except Unanswered as error:
            return {"ok": False, "error": msgspec.to_builtins(to_wire(error))}

    def _done(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "create_board":
                if not self.late:
                    self.know(board(*order["layout"]["shards"], board_id=order["board"], incarnation="new"))
                return {"ok": True, "created": True, "number": 1}
            case "remove_board":
                if not self.late:
                    self.gateway._boards.pop(order["board"])
                return {"ok": True}
            case "relocate_board":
                return {"ok": True, "moving": True, "layout": {"number": 2, "shards": order["shards"]}}
            case "relocation":
                return {
                    "ok": True,
                    "phase": "copying",
                    "slices": [{"shard": "eu-west/4", "copied_rows": 5}],
                    "to": {"number": 2, "shards": ["eu-west/4"]},
                }
            case _:
                return {"ok": True}

    def create(self, board_id: str = BOARD, home: str | None = "eu-west", shards: Any = None, **rules: Any) -> tuple[BoardInfo, bool]:
        return asyncio.run(self.gateway.create_board(board_id, make_rules("best_score", **rules), home, shards, subject="op"))


def test_new_board_goes_to_a_pooled_shard_by_its_id_and_stays_with_its_lead_later() -> None:
    actors = Actors()
    _, created = actors.create()
    (shard, order), *_ = actors.orders
    assert created
    assert shard in FOUR
    assert order["layout"] == {"number": 1, "shards": [shard]}
    actors.answers["create_board"] = lambda shard, order: {"ok": True, "created": False, "number": 1}
    actors.know(board("eu-west/4", number=3))
    assert actors.create() == (board("eu-west/4", number=3), False)
    assert actors.orders[-1][0] == "eu-west/4"
    assert {Actors().create(f"a:b:c:{n}")[0].shard for n in range(40)} == set(FOUR)


def test_new_board_is_spread_by_count_or_by_name() -> None:
    info, _ = Actors().create(shards=3)
    assert len(set(info.layout_in_effect.shards)) == 3
    assert set(info.layout_in_effect.shards) <= set(FOUR)
    named, _ = Actors().create(home=None, shards=("eu-west/4", "eu-west/0"))
    assert named.layout_in_effect.shards == ("eu-west/4", "eu-west/0")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"shards": 5}, "shards"),
        ({"shards": ("eu-west/9",)}, "shards"),
        ({"shards": ("eu-west/0", "us-east/0"), "home": None}, "shards"),
        ({"shards": ("us-east/0",)}, "shards"),
        ({"shards": 2, "ranking": "dense"}, "ranking"),
    ],
)
def test_new_board_that_cannot_be_there_is_refused_before_anyone_is_asked(wanted: dict[str, Any], field: str) -> None:
    actors = Actors()
    with pytest.raises(InvalidInput) as caught:
        actors.create(**wanted)
    assert caught.value.field == field
    assert actors.orders == []


@pytest.mark.parametrize(("wanted", "field"), [({"shards": 2}, "shards"), ({"shards": FOUR[1:]}, "shards"), ({"home": "us-east"}, "home")])
def test_board_that_exists_elsewhere_is_not_made_twice(wanted: dict[str, Any], field: str) -> None:
    actors = Actors()
    actors.know(board(*FOUR))
    with pytest.raises(BoardExists) as caught:
        actors.create(**wanted)
    assert caught.value.fields["field"] == field
    order = {"do": "relocation", "board": BOARD}
    assert actors.orders == [(FOUR[0], order)], "asked whether it is still there"


def test_board_that_was_removed_elsewhere_a_moment_ago_is_made_where_it_is_wanted(short_hold: None) -> None:
    """This region still shows it; the shard that led it knows that it is gone."""
    actors = Actors()
    actors.know(board(*FOUR))

    def gone(shard: str, order: dict[str, Any]) -> dict[str, Any]:
        if not actors.late:
            actors.gateway._boards.pop(BOARD)
        raise UnknownBoard("it is gone")

    actors.answers["relocation"] = gone
    info, created = actors.create(shards=2)
    assert (created, info.incarnation, len(info.layout_in_effect.shards)) == (True, "new", 2)
    actors.know(board(*FOUR))
    actors.late = True
    with pytest.raises(NotServing):
        actors.create(shards=2)


def test_a_home_that_is_missing_or_none_is_told_with_those_there_are() -> None:
    for home, said in ((None, "home is missing"), ("mars", "no shard is at home in mars")):
        with pytest.raises(Unanswered, match=f"{said}; home must be one of eu-west, us-east") as caught:
            Actors().create(home=home)
        assert (caught.value.code, caught.value.fields["field"]) == ("unknown_region", "home")


def test_nothing_is_created_before_all_boards_are_known() -> None:
    """The id might be there, on another shard than the hash says."""
    actors = Actors()
    actors.gateway._knows_boards = False
    with pytest.raises(NotServing):
        actors.create()
    assert actors.orders == []


def test_board_made_again_is_shown_only_in_its_new_life(short_hold: None) -> None:
    actors = Actors()
    actors.late = True
    actors.know(board("eu-west/1", number=1, incarnation="old"))
    actors.answers["create_board"] = lambda shard, order: {"ok": True, "created": True, "number": 9}
    with pytest.raises(NotServing):
        actors.create()


def test_removal_names_the_life_that_is_meant_and_waits_until_it_is_gone_here(short_hold: None) -> None:
    actors = Actors()
    actors.know(board(*FOUR))
    assert asyncio.run(actors.gateway.remove_board(BOARD, subject="op"))["removed"] is True
    assert actors.orders == [(FOUR[0], {"do": "remove_board", "board": BOARD, "incarnation": "i1", "asked_by": "op"})]
    actors.know(board(*FOUR))
    actors.late = True
    with pytest.raises(NotServing):
        asyncio.run(actors.gateway.remove_board(BOARD, subject="op"))


def relocate(actors: Actors, shards: Any) -> dict[str, Any]:
    return asyncio.run(actors.gateway.relocate(BOARD, shards, subject="op"))


def test_move_is_ordered_of_the_lead() -> None:
    actors = Actors()
    actors.know(board("eu-west/2", "eu-west/1"))
    assert relocate(actors, ("eu-west/4",)) == {"board": BOARD, "moving": True, "layout": {"number": 2, "shards": ["eu-west/4"]}}
    assert actors.orders == [("eu-west/2", {"do": "relocate_board", "shards": ["eu-west/4"], "asked_by": "op", "board": BOARD})]
    relocate(actors, 4)
    assert actors.orders[-1][1]["shards"][:2] == ["eu-west/2", "eu-west/1"]
    assert set(actors.orders[-1][1]["shards"]) == set(FOUR)


def test_move_to_where_the_board_is_does_nothing_and_one_under_way_goes_on() -> None:
    actors = Actors()
    actors.know(board("eu-west/2", "eu-west/1"))
    here = {"number": 1, "shards": ["eu-west/2", "eu-west/1"]}
    assert relocate(actors, 2) == relocate(actors, ("eu-west/2", "eu-west/1")) == {"board": BOARD, "moving": False, "layout": here}
    assert actors.orders == []
    actors.know(board("eu-west/2", "eu-west/1", moving=Layout(2, ("eu-west/3", "eu-west/0", "eu-west/1"))))
    relocate(actors, 3)
    assert actors.orders[-1][1]["shards"] == ["eu-west/3", "eu-west/0", "eu-west/1"]


@pytest.mark.parametrize(
    ("shards", "ranking"), [(("us-east/0",), "unique"), (5, "unique"), (("eu-west/8",), "unique"), (2, "dense"), (("eu-west/5",), "unique")]
)
def test_move_that_cannot_be_is_refused_by_its_field(shards: Any, ranking: Any) -> None:
    actors = Actors()
    actors.know(board("eu-west/2", rules=make_rules("best_score", ranking=ranking)))
    with pytest.raises(InvalidInput, match=r"^shards must be"):
        relocate(actors, shards)
    assert actors.orders == []


def test_progress_says_where_the_board_lives_and_where_it_goes() -> None:
    actors = Actors()
    actors.know(board("eu-west/2"))
    told = asyncio.run(actors.gateway.relocation(BOARD))
    assert told == {
        "board": BOARD, "moving": True, "phase": "copying", "slices": [{"shard": "eu-west/4", "copied_rows": 5}],
        "layout": {"number": 1, "shards": ["eu-west/2"]}, "to": {"number": 2, "shards": ["eu-west/4"]},
    }  # fmt: skip
    stays: dict[str, Any] = {"phase": "given up", "slices": [], "layout": {"number": 1, "shards": ["eu-west/2"]}, "to": None}
    actors.answers["relocation"] = lambda shard, order: {"ok": True, **stays}
    actors.know(msgspec.structs.replace(board("eu-west/2"), moving=Layout(2, ("eu-west/4",))))  # the replica is a moment behind
    assert asyncio.run(actors.gateway.relocation(BOARD)) == {"board": BOARD, "moving": False, **stays}
    del actors.answers["relocation"]
    actors.know(board("eu-west/4", number=2))
    there = asyncio.run(actors.gateway.relocation(BOARD))
    assert (there["moving"], there["to"], there["layout"]["number"]) == (False, None, 2)
    assert asyncio.run(actors.gateway.abort_relocation(BOARD, subject="op"))["moving"] is False


def test_order_follows_a_board_whose_lead_has_just_changed() -> None:
    actors = Actors()
    actors.know(board("eu-west/2"))

    def only_there(shard: str, order: dict[str, Any]) -> dict[str, Any]:
        if shard == "eu-west/2":
            actors.know(board("eu-west/4", number=2))
            raise NoAuthority("it lives elsewhere", code="moved", definite=True)
        return {"ok": True}

    actors.answers["abort_relocation"] = only_there
    asyncio.run(actors.gateway.abort_relocation(BOARD, subject="op"))
    assert [shard for shard, _ in actors.orders] == ["eu-west/2", "eu-west/4"]


# Failover of a board's shards


def failing_over(owners: dict[str, str], refuse: Sequence[str] = ()) -> tuple[Actors, GatewayBackend]:
    actors = Actors()
    directory = Directory({shard: (3, owner) for shard, owner in owners.items()})
    actors.gateway = bare_gateway(handles=actors, places=PLACES, urls=("eu-west", "us-east"), directory=directory)
    actors.know(board(*FOUR[:3]), board(FOUR[1], board_id=OTHER))

    def hand_over(shard: str, order: dict[str, Any]) -> dict[str, Any]:
        if shard in refuse:
            return {"ok": False, "code": "lagging", "detail": "eu-west lags"}
        return {"ok": True, "epoch": 4, "owner": "eu-west"}

    actors.answers["handover"] = hand_over
    return actors, actors.gateway


AWAY = dict.fromkeys(FOUR, "us-east")


def fail_over(gateway: GatewayBackend, **fields: Any) -> dict[str, Any]:
    return asyncio.run(gateway.failover(FailoverRequest(to="eu-west", board=BOARD, **fields), subject="op"))


def test_failover_of_a_board_moves_each_of_its_shards_and_names_what_goes_along() -> None:
    actors, gateway = failing_over(AWAY)
    told = fail_over(gateway)
    assert {move["shard"]: move["boards"] for move in told["moved"]} == {FOUR[0]: [BOARD], FOUR[1]: [BOARD, OTHER], FOUR[2]: [BOARD]}
    assert told["failed"] == []
    assert sorted(shard for shard, _ in actors.orders) == list(FOUR[:3])


def test_failover_leaves_shards_alone_that_are_there_already() -> None:
    _, gateway = failing_over({**AWAY, FOUR[0]: "eu-west"})
    assert sorted(move["shard"] for move in fail_over(gateway)["moved"]) == [FOUR[1], FOUR[2]]
    with pytest.raises(FailoverRefused, match="owns"):
        fail_over(failing_over(dict.fromkeys(FOUR, "eu-west"))[1])


def test_shard_that_cannot_move_is_told_beside_those_that_have() -> None:
    told = fail_over(failing_over(AWAY, refuse=[FOUR[1]])[1])
    assert sorted(move["shard"] for move in told["moved"]) == [FOUR[0], FOUR[2]]
    assert told["failed"] == [{"shard": FOUR[1], "code": "failover_refused", "detail": f"{FOUR[1]}: eu-west lags", "definite": True}]
    with pytest.raises(FailoverRefused):
        fail_over(failing_over(AWAY, refuse=FOUR)[1])


def test_expected_epoch_is_of_one_shard() -> None:
    actors, gateway = failing_over(AWAY)
    with pytest.raises(InvalidInput, match=r"^expect_epoch must be left out"):
        fail_over(gateway, expect_epoch=3)
    assert actors.orders == []
