"""What a read replica answers from its retained generations: pinned, expired, not here yet, and none at all when its fold is wrong."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from sharded_boards import BOARD, SHARDS, Board, Journals

import actors.replica
from actors import boards_view
from actors.answers import TOGETHER_FROM, answer, ranks
from actors.generations_view import COUNT, SPARE_TIMES
from actors.messages import (
    Answer,
    Ask,
    BadCursor,
    BadParameter,
    GenerationGone,
    Nearby,
    NotServing,
    NotVisibleYet,
    Question,
    Rank,
    Top,
    Unanswered,
    UnknownBoard,
    WireError,
    to_wire,
)
from actors.ports import ReplicaSpec
from actors.replica import ReplicaActor
from actors.steps import at_once
from boards import checksum
from boards.index import RankIndex
from boards.model import Outcome, Row
from boards.policies import make_rules
from boards.slicing import slice_of
from journal.memory import MemoryJournal, MemoryLog
from journal.ports import Accepted, Position, Seal
from journal.records import BoardCreated, BoardRemoved, EpochStarted, Published, Record, Scored, seal_entry

SHARD, OTHER = "eu-west/0", "arena-clash:duo:S7:global"
RETENTION_MS = 120_000
ATTEMPT = "a1"


class Region:
    """One region's journal and replica; `write` commits an entry, `clock_ms` is the replica's clock."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(MemoryLog(SHARD, "ap-south"))
        spec = ReplicaSpec(region="ap-south", shards={SHARD: "eu-west"}, store_url="", cursor_key=b"k" * 32)
        self.replica = ReplicaActor(spec, journals={SHARD: self.journal})
        self.clock_ms = 1_000
        self.generation = self.checksum = 0
        self.rows: dict[str, Row] = {}
        self._tail = Position(0, 0)

    async def open(self) -> None:
        await self.journal.seal(
            Seal(
                shard=SHARD, lineage="", config_version=0, sender="eu-west", incarnation="", request_id="r1", epoch=1, target="eu-west",
                attempt=ATTEMPT, from_epoch=0, from_owner="", admit_as="i-ap",
            )
        )  # fmt: skip
        started = EpochStarted(1, "eu-west", ATTEMPT, 0, "", "genesis", "eu-west", "quorum", {"ap-south": "i-ap"}, 1, "l1", 0)
        rules = make_rules("best_score", visibility="public", retention_ms=RETENTION_MS)
        await self.write(started)
        await self.write(BoardCreated(0, BOARD, rules, "inc1", "op", 0))
        self.replica.start()
        await self.has(self._tail.offset)

    async def write(self, *records: Record) -> Position:
        offset = self._tail.offset + 1
        entry = seal_entry(1, offset, f"b{offset}", records)
        answer = await self.journal.append(epoch=1, attempt=ATTEMPT, expected=self._tail, entries=[entry], committed=offset, peers={})
        assert isinstance(answer, Accepted), answer
        self._tail = Position(1, offset)
        return self._tail

    async def score(self, player: str, value: int) -> Scored:
        old = self.rows.get(player)
        row = Row(value, 0, 0, 0, 0, old.version + 1 if old else 1, f"e-{player}-{value}")
        if old is not None:
            self.checksum = checksum.remove(self.checksum, checksum.row_hash(player, old))
        self.checksum = checksum.add(self.checksum, checksum.row_hash(player, row))
        self.rows[player] = row
        return self.scored(player, row, Outcome.APPLIED)

    def scored(self, player: str, row: Row | None, outcome: Outcome) -> Scored:
        return Scored(0, player, "e", b"f", outcome, 0, 0, row, 0, 0, 0, 0, "game-1")

    async def publish(self, *records: Record, wrong: int = 0) -> Position:
        """Commit records and the next generation in one entry, and wait until the replica has it."""
        self.generation += 1
        position = await self.write(*records, Published(0, self.generation, 0, self.checksum + wrong, len(self.rows)))
        await self.has(position.offset)
        return position

    async def has(self, offset: int) -> None:
        async with asyncio.timeout(5):
            while self.replica.shards[SHARD].applied.offset < offset or not self.replica.shards[SHARD].serving:
                await asyncio.sleep(0)

    async def ask(
        self,
        question: Question | None = None,
        generation: int | None = None,
        at_least: Position | None = None,
        wait_ms: int = 0,
        life: str = "",
    ) -> Answer:
        ask = Ask(board_id=BOARD, question=question or Top(), generation=generation, incarnation=life, at_least=at_least, wait_ms=wait_ms)
        return await self.replica.ask(ask)


Story = Callable[[Region], Awaitable[None]]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Story], None]]:
    def run(story: Story) -> None:
        async def whole() -> None:
            region = Region()
            monkeypatch.setattr(actors.replica, "monotonic_ms", lambda: region.clock_ms)
            await region.open()
            try:
                await story(region)
            finally:
                await region.replica.close()

        asyncio.run(whole())

    yield run


@pytest.mark.parametrize("listed", [1, TOGETHER_FROM - 1, TOGETHER_FROM, 40])
def test_joined_questions_get_what_each_would_get_alone(tell: Callable[[Story], None], listed: int) -> None:
    async def story(region: Region) -> None:
        await region.publish(*[await region.score(f"p{n}", n % 7) for n in range(50)])
        await region.publish(await region.score("p3", 100))
        await region.publish(await region.score("p4", 200))
        players = [f"p{(13 * n) % 60}" for n in range(listed)]
        others = [
            Ask(board_id=OTHER, question=Rank("p1")),
            Ask(board_id=BOARD, question=Top(limit=3)),
            Ask(board_id=BOARD, question=Rank("p1", "approximate")),
            Ask(board_id=BOARD, question=Nearby("p1", 2)),
            Ask(board_id=BOARD, question=Rank("p1"), generation=9, wait_ms=0),
            Ask(board_id=BOARD, question=Rank("p1"), at_least=Position(1, 10_000), wait_ms=0),
            Ask(board_id=BOARD, question=Top(cursor="none of ours")),
        ]
        for generation in (None, 1, 2):
            asks = [Ask(board_id=BOARD, question=Rank(player), generation=generation) for player in players]
            asks[1:1] = others
            told = await region.replica.ask_all(asks)
            assert len(told) == len(asks)
            for ask, reply in zip(asks, told, strict=True):
                try:
                    assert reply == await region.replica.ask(ask)
                except Unanswered as error:
                    assert reply == to_wire(error)
            assert any(isinstance(reply, Answer) for reply in told)

    tell(story)


def test_a_body_about_one_exact_place_has_the_envelope_of_its_generation(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1), await region.score('b"o\\b', 2))
        for player in ("ann", 'b"o\\b'):
            for generation in (None, 1):
                told = body(await region.ask(Rank(player), generation))
                around = body(await region.ask(Nearby(player, 0), generation))
                for name in ("window", "next", "previous", "cursors_valid_ms"):
                    del around[name]
                assert list(told.items()) == list(around.items())

    tell(story)


def body(answer: Answer) -> dict[str, object]:
    document: dict[str, object] = msgspec.json.decode(answer.body)
    return document


def test_a_generation_is_kept_for_the_retention_after_it_was_replaced_and_is_then_gone_with_the_newest_named(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.generations_view, "COUNT", 1)

    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        region.clock_ms += 10 * RETENTION_MS  # s1 was the newest all that time
        await region.publish(await region.score("ann", 2))
        kept = await region.ask(generation=1)
        region.clock_ms += RETENTION_MS
        assert await region.ask(generation=1) == kept
        region.clock_ms += 1
        with pytest.raises(GenerationGone) as gone:
            await region.ask(generation=1)
        assert (gone.value.code, gone.value.newest, gone.value.definite) == ("generation_gone", 2, True)
        told = ("generation", "s2, which is the newest, or another that is still retained")
        assert (gone.value.fields["field"], gone.value.fields["allowed"]) == told
        region.clock_ms += 100 * RETENTION_MS
        assert (await region.ask()).generation == (await region.ask(generation=2)).generation == 2

    tell(story)


def test_the_newest_sixty_generations_are_kept_whatever_their_age(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        for value in range(COUNT + 10):
            await region.publish(await region.score("ann", value))
        newest = COUNT + 10
        held = region.replica.fold.boards[BOARD].generations
        assert list(held) == list(range(newest + 1)), "and s0, the empty board"
        region.clock_ms += RETENTION_MS
        assert (await region.ask(generation=1)).generation == 1
        region.clock_ms += 1
        with pytest.raises(GenerationGone):
            await region.ask(generation=newest - COUNT)
        assert list(held) == list(range(newest - COUNT + 1, newest + 1)) and len(held) == COUNT
        region.clock_ms += 1000 * RETENTION_MS
        at_once(region.replica.fold.expiring(region.clock_ms))
        for number in (newest - COUNT + 1, newest):
            assert body(await region.ask(generation=number))["entries"][0]["value"] == str(number - 1)  # type: ignore[index]
        assert len(held) == COUNT

    tell(story)


def test_a_board_that_rests_lets_go_of_its_oldest_generations_where_there_is_no_room(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were replaced first go first, and none before it was replaced for `SPARE_TIMES` times as long as others are retained."""
    monkeypatch.setattr(actors.region_fold, "SPARE", 2)

    async def story(region: Region) -> None:
        for value in range(5):
            await region.publish(await region.score("ann", value))
        fold = region.replica.fold
        (one,) = fold.shards[SHARD].slices.values()
        held = fold.boards[BOARD].generations
        region.clock_ms += SPARE_TIMES * RETENTION_MS
        at_once(fold.expiring(region.clock_ms))
        assert (len(held), len(one.frozen)) == (6, 1), "views are kept by their generations alone"
        region.clock_ms += 1
        at_once(fold.expiring(region.clock_ms))
        assert list(held) == [3, 4, 5]
        assert (await region.ask()).generation == 5
        with pytest.raises(GenerationGone):
            await region.ask(generation=2)

    tell(story)


def test_letting_go_of_what_is_not_retained_goes_on_after_an_error(tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        await region.publish(await region.score("ann", 2))
        fold, failed = region.replica.fold, list[int]()
        expiring = fold.expiring

        def fails_once(now_ms: int) -> Any:
            if not failed:
                failed.append(now_ms)
                raise MemoryError
            return expiring(now_ms)

        monkeypatch.setattr(fold, "expiring", fails_once)
        region.clock_ms += SPARE_TIMES * RETENTION_MS + 1
        async with asyncio.timeout(10):
            while len(fold.boards[BOARD].generations) > 1:
                await asyncio.sleep(0.001)
        assert failed

    monkeypatch.setattr(actors.replica, "EXPIRE_S", 0.001)
    monkeypatch.setattr(actors.region_fold, "SPARE", 0)
    tell(story)


def test_a_cursor_goes_with_its_generation(tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.generations_view, "COUNT", 1)

    async def story(region: Region) -> None:
        await region.publish(*[await region.score(f"p{n}", n) for n in range(4)])
        first = body(await region.ask(Top(limit=2)))
        cursor = first["next"]
        assert isinstance(cursor, str)
        await region.publish(await region.score("new", 100))
        page = await region.ask(Top(limit=2, cursor=cursor))
        assert page.generation == 1
        assert [entry["player_id"] for entry in body(page)["entries"]] == ["p1", "p0"]  # type: ignore[attr-defined]
        with pytest.raises(BadCursor):
            await region.ask(Top(limit=2, cursor=cursor), generation=2)
        region.clock_ms += RETENTION_MS + 1
        with pytest.raises(GenerationGone) as gone:
            await region.ask(Top(limit=2, cursor=cursor))
        assert gone.value.newest == 2
        told = ("cursor", "a cursor of s2, which is the newest, or another that is still retained")
        assert (gone.value.fields["field"], gone.value.fields["allowed"]) == told

    tell(story)


def test_a_generation_that_is_not_here_yet_is_not_gone(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        with pytest.raises(NotVisibleYet) as late:
            await region.ask(generation=2)
        assert (late.value.fields["newest"], late.value.fields["field"], late.value.definite) == (1, "generation", True)

    tell(story)


def test_a_cursor_of_a_generation_that_is_not_here_yet_is_told_as_the_cursor(tell: Callable[[Story], None]) -> None:
    """A page of a region that is ahead goes on in one that is behind: nobody sent a generation."""

    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        ahead = Region()
        await ahead.open()
        try:
            await ahead.publish(await ahead.score("ann", 1))
            await ahead.publish(await ahead.score("bob", 2))
            cursor = body(await ahead.ask(Top(limit=1)))["next"]
        finally:
            await ahead.replica.close()
        with pytest.raises(NotVisibleYet) as late:
            await region.ask(Top(cursor=cursor))  # type: ignore[arg-type]
        assert (late.value.fields["newest"], late.value.fields["field"]) == (1, "cursor")

    tell(story)


def test_at_least_waits_for_the_generation_that_includes_it(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        position = await region.write(await region.score("ann", 2))
        await region.has(position.offset)
        with pytest.raises(NotVisibleYet) as late:
            await region.ask(at_least=position, wait_ms=1)
        assert late.value.fields["field"] == "at_least"
        waiting = asyncio.ensure_future(region.ask(Rank("ann"), at_least=position, wait_ms=5000))
        await asyncio.sleep(0)
        assert not waiting.done()
        await region.publish()
        answer = await waiting
        assert (answer.generation, body(answer)["entries"][0]["value"]) == (2, "2")  # type: ignore[index]

    tell(story)


def test_an_event_that_changed_no_row_needs_no_generation_of_its_own(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        position = await region.write(region.scored("ann", None, Outcome.NOT_AN_IMPROVEMENT))
        await region.has(position.offset)
        assert (await region.ask(at_least=position)).generation == 1

    tell(story)


def test_nothing_is_served_of_a_board_whose_fold_differs_from_what_the_authority_published_and_others_go_on(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A generation does not fit its rows. 2. Its board is refused, with an alarm; another in the same shard is not.
    3. The next one fits: folded anew beside the others, the board is back, and what did not fit was never shown."""

    async def story(region: Region) -> None:
        await region.write(BoardCreated(1, OTHER, make_rules("best_score"), "inc2", "op", 0))
        await region.publish(await region.score("ann", 1))
        wrong = await region.publish(await region.score("ann", 2), wrong=1)
        await region.has(wrong.offset)
        fold = region.replica.shards[SHARD]
        assert (fold.rebuilds, fold.serving, "checksum" in fold.alarm) == (0, True, True)
        with pytest.raises((NotServing, UnknownBoard)) as refused:
            await region.ask()
        assert refused.type is NotServing
        assert (await region.replica.ask(Ask(board_id=OTHER, question=Top()))).generation == 0
        await region.publish(await region.score("ann", 3))
        async with asyncio.timeout(20):
            while fold.alarm:
                await asyncio.sleep(0)
        assert (await region.ask()).generation == 3
        with pytest.raises(GenerationGone):
            await region.ask(generation=2)

    monkeypatch.setattr(actors.replica, "MEND_MIN_S", 0.0)
    tell(story)


def test_news_tell_what_changed_and_what_is_gone_and_each_once(tell: Callable[[Story], None]) -> None:
    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        first = await region.replica.news(0)
        assert [(info.board_id, info.generation, info.count) for info in first.boards] == [(BOARD, 1, 1)]
        assert (first.removed, first.serving, first.owners) == ([], True, {SHARD: (1, "eu-west")})
        position = await region.write(BoardCreated(1, OTHER, make_rules("best_score"), "inc2", "op", 0))
        await region.has(position.offset)
        second = await region.replica.news(first.seq)
        assert [(info.board_id, top.board_id) for info, top in zip(second.boards, second.tops, strict=True)] == [(OTHER, OTHER)]
        position = await region.write(BoardRemoved(1, "op", 0))
        await region.has(position.offset)
        third = await region.replica.news(second.seq)
        assert (third.boards, third.removed) == ([], [OTHER])
        assert (await region.replica.news(0)).removed == [], "who asks for everything has nothing to forget"
        with pytest.raises(UnknownBoard):
            await region.replica.ask(Ask(board_id=OTHER, question=Top()))
        position = await region.write(BoardCreated(2, OTHER, make_rules("best_score"), "inc3", "op", 0))
        await region.has(position.offset)
        fourth = await region.replica.news(third.seq)
        assert ([info.incarnation for info in fourth.boards], fourth.removed) == (["inc3"], [])

    tell(story)


def test_a_board_that_cannot_be_told_is_left_out_of_the_news_and_holds_up_no_other(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Whatever is asked of one board, there is an error that nobody foresaw. 2. News and questions of the others go on."""

    async def story(region: Region) -> None:
        position = await region.write(BoardCreated(1, OTHER, make_rules("best_score"), "inc2", "op", 0))
        await region.has(position.offset)
        monkeypatch.setattr(actors.replica, "answer", fails_for(answer, OTHER))
        monkeypatch.setattr(actors.replica, "ranks", fails_for(ranks, OTHER))
        await region.publish(await region.score("ann", 1))
        told = await region.replica.news(0)
        assert [info.board_id for info in told.boards] == [top.board_id for top in told.tops] == [BOARD]
        asks = [Ask(board_id=board_id, question=question) for board_id in (OTHER, BOARD) for question in (Rank("ann"), Top(limit=5))]
        replies = await region.replica.ask_all(asks)
        assert [reply.kind if isinstance(reply, WireError) else reply.generation for reply in replies] == ["NotServing", "NotServing", 1, 1]

    def fails_for(function: Callable[..., Any], board_id: str) -> Callable[..., Any]:
        def wrapped(series: Any, *arguments: Any) -> Any:
            if series.board_id == board_id:
                raise OverflowError("nobody foresaw this")
            return function(series, *arguments)

        return wrapped

    tell(story)


def test_a_board_made_again_answers_no_cursor_of_the_one_before(tell: Callable[[Story], None]) -> None:
    """Its old cursor is refused at once, also one of a generation that the new life has not come to yet."""

    async def story(region: Region) -> None:
        for _ in range(2):
            await region.publish(*[await region.score(f"p{n}", n) for n in range(4)])
        cursor = body(await region.ask(Top(limit=2)))["next"]
        assert isinstance(cursor, str)
        rules = make_rules("best_score", visibility="public", retention_ms=RETENTION_MS)
        position = await region.write(BoardRemoved(0, "op", 0), BoardCreated(1, BOARD, rules, "inc2", "op", 1))
        await region.has(position.offset)
        with pytest.raises(BadCursor):
            await region.ask(Top(cursor=cursor), wait_ms=5000)
        assert (await region.ask()).incarnation == "inc2"

    tell(story)


@pytest.mark.parametrize("question", [Top(), Rank("p3"), Nearby("p3", 1)])
def test_a_board_made_again_answers_no_pin_of_the_one_before(tell: Callable[[Story], None], question: Question) -> None:
    """1. A pin of the second life waits until that is here. 2. One of the first is gone then, also where the new life has that number."""

    async def story(region: Region) -> None:
        await region.publish(*[await region.score(f"p{n}", n) for n in range(4)])
        assert (await region.ask(question, 1, life="inc1")).incarnation == "inc1"
        with pytest.raises(GenerationGone):
            await region.ask(question, 1, life="inc2")
        early = asyncio.ensure_future(region.ask(question, 1, life="inc2", wait_ms=5000))
        await asyncio.sleep(0)
        rules = make_rules("best_score", visibility="public", retention_ms=RETENTION_MS)
        await region.write(BoardRemoved(0, "op", 0), BoardCreated(1, BOARD, rules, "inc2", "op", 1))
        row = Row(7, 0, 0, 0, 0, 1, "e")
        scored = Scored(1, "p3", "e", b"f", Outcome.APPLIED_FIRST, 0, 0, row, 0, 0, 0, 0, "game-1")
        position = await region.write(scored, Published(1, 1, 0, checksum.row_hash("p3", row), 1))
        assert (await early).incarnation == "inc2"
        await region.has(position.offset)
        with pytest.raises(GenerationGone) as gone:
            await region.ask(question, 1, life="inc1")
        assert (gone.value.fields["newest"], gone.value.fields["field"]) == (1, "generation")
        assert gone.value.fields["allowed"].startswith("s1, which is the newest")
        assert (await region.ask(question, 1)).incarnation == (await region.ask(question, 1, life="inc2")).incarnation == "inc2"
        (reply,) = await region.replica.ask_all([Ask(board_id=BOARD, question=question, generation=1, incarnation="inc1", wait_ms=0)])
        assert not isinstance(reply, Answer)

    tell(story)


def test_a_position_names_its_shard_where_there_are_several() -> None:
    """1. A board over two shards. 2. A write in one: its position is waited for in that shard. 3. One of no shard, or of a foreign one, is
    refused with what is allowed."""

    async def story() -> None:
        journals = Journals(SHARDS[:2])
        board = Board(journals, SHARDS[:2])
        spec = ReplicaSpec(region="ap-south", shards=dict.fromkeys(SHARDS[:2], "eu-west"), store_url="", cursor_key=b"k" * 32)
        replica = ReplicaActor(spec, journals={shard: MemoryJournal(MemoryLog(shard, "ap-south")) for shard in SHARDS[:2]})

        async def fold() -> None:
            for shard, entries in journals.entries.items():
                at = replica.shards[shard].applied.offset
                told = replica.fold.apply(shard, entries[at:], committed=len(entries), now_ms=0, wall_ms=0)
                replica.fold.caught_up(shard, now_ms=0, wall_ms=0)
                await replica._tell(told)

        board.put("ann", 1)
        board.publish()
        await fold()
        put = board.put("ann", 2)
        at = board.slices[slice_of("ann", 2)].shard
        ask = Ask(board_id=BOARD, question=Rank("ann"), at_least=put, at_shard=at, wait_ms=5000)
        with pytest.raises(NotVisibleYet):
            await replica.ask(msgspec.structs.replace(ask, wait_ms=0))
        waiting = asyncio.ensure_future(replica.ask(ask))
        await asyncio.sleep(0)
        await fold()
        assert not waiting.done()
        board.publish()
        await fold()
        assert body(await waiting)["generation"] == "s2"
        for shard in (None, "eu-west/3"):
            with pytest.raises(BadParameter) as refused:
                await replica.ask(msgspec.structs.replace(ask, at_shard=shard))
            assert refused.value.code == "bad_parameter"
            assert refused.value.fields["field"] == "at_least"
            assert all(shard in refused.value.fields["allowed"] for shard in SHARDS[:2])
        status = replica.status()[SHARDS[0]]["boards"][BOARD]
        assert (status["generation"], status["waiting"], list(status["slices"])) == (2, [], list(SHARDS[:2]))

    asyncio.run(story())


def test_a_question_that_waits_while_the_shard_is_folded_anew_is_answered_from_the_new_fold(tell: Callable[[Story], None]) -> None:
    """1. Somebody waits for a position. 2. The replica begins its fold anew (its journal was readmitted, or did not fit). 3. The
    position comes: the answer is the generation that includes it, never what the old fold held."""

    async def story(region: Region) -> None:
        position = await region.publish(await region.score("ann", 1))
        waiting = asyncio.ensure_future(region.ask(at_least=Position(position.epoch, position.offset + 1), wait_ms=5000))
        await asyncio.sleep(0)
        shard = region.replica.shards[SHARD]
        await region.replica._rebuild(shard, "for the test")
        await region.has(position.offset)
        await region.publish(await region.score("bob", 2))
        answer = body(await waiting)
        assert (answer["generation"], answer["total"]) == ("s2", 2)

    tell(story)


def test_questions_are_answered_from_the_newest_complete_generation_while_the_next_is_frozen(
    tell: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. s1 is here. 2. The freeze of s2 has begun, in its thread. 3. Questions get s1; who waits for s2 gets it once it is frozen."""
    monkeypatch.setattr(boards_view, "LARGE", 0)

    async def story(region: Region) -> None:
        await region.publish(await region.score("ann", 1))
        begun, go_on, freeze = threading.Event(), threading.Event(), RankIndex.freeze

        def slow(self: RankIndex, *arguments: Any, **more: Any) -> Any:
            begun.set()
            assert go_on.wait(10)
            return freeze(self, *arguments, **more)

        monkeypatch.setattr(RankIndex, "freeze", slow)
        bob = await region.score("bob", 2)
        position = await region.write(bob, Published(0, 2, 0, region.checksum, 2))
        try:
            assert await asyncio.to_thread(begun.wait, 10)
            answer = body(await region.ask())
            assert (answer["generation"], answer["total"]) == ("s1", 1)
            with pytest.raises(NotVisibleYet):
                await region.ask(at_least=position)
        finally:
            go_on.set()
        answer = body(await region.ask(at_least=position, wait_ms=5000))
        assert (answer["generation"], answer["total"]) == ("s2", 2)

    tell(story)


def test_whoever_waits_for_a_position_ends_the_rest_between_two_reads(
    tell: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The replica has read all, and rests for an hour. 2. More is committed. 3. A question that waits for it is answered."""
    monkeypatch.setattr(actors.replica, "REST_S", 3600.0)

    async def story(region: Region) -> None:
        for number in (1, 2):
            score = await region.score("ann", number)
            position = await region.write(score, Published(0, number, 0, region.checksum, 1))
            assert body(await region.ask(at_least=position, wait_ms=5000))["generation"] == f"s{number}"

    tell(story)
