"""Several replicas as one: who is asked, who is left out, and that nothing older is shown after something newer."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.messages import (
    Answer,
    Ask,
    BoardInfo,
    GenerationGone,
    NotRanked,
    NotServing,
    NotVisibleYet,
    Rank,
    Top,
    Unanswered,
    UnknownBoard,
    WireError,
    to_wire,
)
from actors.replica import News
from actors.replica_pool import ReplicaPool
from boards.policies import make_rules
from journal.ports import Position

BOARD = "arena:solo:S1:global"
RULES = make_rules("best_score")
Life = tuple[str, int]
FIRST: Life = ("first", 1000)
SECOND: Life = ("second", 2000)


class Replica:
    """A replica of one board that says what a test has it say. `silent`: it answers nothing and fails no call either."""

    def __init__(self, *, serving: bool = True) -> None:
        self.serving, self.silent, self.dead = serving, False, False
        self.life = FIRST
        self.newest = -1
        self.oldest = 0
        self.asked: list[Ask] = []
        self.refuses: Unanswered | None = None
        self.owners: dict[str, tuple[int, str]] = {}
        self._seq = self._begun = 0
        self._removed: list[str] = []
        self._told = asyncio.Condition()
        self._back = asyncio.Event()
        self._back.set()

    # -- what the test does ---------------------------------------------------------------------------------------

    async def publish(self, generation: int, *, life: Life | None = None) -> None:
        """Serve this generation and tell it."""
        self.life, self.newest = life or self.life, generation
        await self.tell()

    async def remove(self) -> None:
        """The board is gone, and it tells so."""
        self.newest = -1
        self._removed.append(BOARD)
        await self.tell()

    async def tell(self) -> None:
        """Answer the long poll."""
        async with self._told:
            self._seq += 1
            self._told.notify_all()

    async def begin_anew(self) -> None:
        """As a process that was started again: calls under way fail, and its sequence is at its beginning."""
        async with self._told:
            self._seq, self._begun = 1, self._begun + 1
            self._told.notify_all()

    def hang(self) -> None:
        """Answer no call from now on."""
        self.silent = True
        self._back.clear()

    def wake(self) -> None:
        """Answer again."""
        self.silent = False
        self._back.set()

    # -- the port -------------------------------------------------------------------------------------------------

    async def _fit(self, timeout_s: float) -> None:
        if self.dead:
            raise TimeoutError("dead")
        if self.silent:
            await asyncio.wait_for(self._back.wait(), timeout_s)

    async def ask(self, asks: list[Ask], timeout_s: float) -> list[Answer | WireError]:
        """See the port."""
        self.asked += asks
        await self._fit(timeout_s)
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Answer | WireError:
        try:
            if self.refuses is not None:
                raise self.refuses
            if not self.serving:
                raise NotServing("reading")
            if self.newest < 0:
                raise UnknownBoard("none")
            wanted = self.newest if ask.generation is None else ask.generation
            if wanted > self.newest:
                raise NotVisibleYet("not yet", newest=self.newest)
            if wanted < self.oldest:
                raise GenerationGone("gone", newest=self.newest)
            return answer(wanted, self.life)
        except Unanswered as error:
            return to_wire(error)

    async def news(self, since: int) -> News:
        """See the port."""
        await self._fit(60.0)
        async with self._told:
            begun = self._begun
            await self._told.wait_for(lambda: self._seq > since or self._begun != begun)
        if self._begun != begun or self.dead:
            raise TimeoutError("died")
        there = self.newest >= 0
        return News(
            seq=self._seq,
            boards=[board(self.life)] if there else [],
            tops=[answer(self.newest, self.life)] if there else [],
            removed=list(self._removed),
            owners=self.owners,
            serving=self.serving,
        )

    async def status(self) -> dict[str, Any]:
        """See the port."""
        await self._fit(60.0)
        return {"node": 1, "shards": {"eu-west/0": {"applied": self.newest, "serving": self.serving, "boards": {}}}}


def answer(generation: int, life: Life = FIRST) -> Answer:
    return Answer(board_id=BOARD, incarnation=life[0], lineage="l", generation=generation, published_ms=generation, body=b"{}")


def board(life: Life) -> BoardInfo:
    return BoardInfo(
        board_id=BOARD, number=1, incarnation=life[0], shard="eu-west/0", home="eu-west", rules=RULES, created_ms=life[1]
    )  # fmt: skip


class Gateway:
    """What a gateway would show: the newest news of the board."""

    def __init__(self, pool: ReplicaPool) -> None:
        self.pool = pool
        self.shown: list[tuple[str, int]] = []
        self.serving = False
        self._seq = 0

    async def hear(self) -> None:
        """One round of news."""
        news = await self.pool.news(self._seq, 1.0)
        self._seq, self.serving = news.seq, news.serving
        self.shown += [(top.incarnation, top.generation) for top in news.tops]
        self.shown += [("removed", -1) for _ in news.removed]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Hear news until it holds."""
        async with asyncio.timeout(5):
            while not holds():
                await self.hear()


Story = Callable[[Gateway, Replica, Replica], Coroutine[Any, Any, None]]


def run(story: Story) -> None:
    """A story about two replicas that both serve generation 1."""

    async def told() -> None:
        a, b = Replica(), Replica()
        pool = ReplicaPool({"a": a, "b": b}, first_s=0.05)
        gateway = Gateway(pool)
        try:
            await a.publish(1)
            await b.publish(1)
            await gateway.until(lambda: sum(member.serving for member in pool._members) == 2)
            await story(gateway, a, b)
        finally:
            await pool.close()

    asyncio.run(told())


NEWEST = Ask(board_id=BOARD, question=Rank("p"))


def test_questions_are_spread_over_the_replicas_that_serve() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        for _ in range(10):
            await gateway.pool.ask(NEWEST)
        assert (len(a.asked), len(b.asked)) == (5, 5)

    run(story)


def test_the_least_busy_replica_is_asked() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.hang()
        waiting = [asyncio.ensure_future(gateway.pool.ask(Ask(board_id=BOARD, question=Rank("p"), generation=1))) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(4):
            await gateway.pool.ask(Ask(board_id=BOARD, question=Rank("p"), generation=1))
        assert len(a.asked) == 1
        a.wake()
        assert [each.generation for each in await asyncio.gather(*waiting)] == [1, 1]

    run(story)


def test_a_question_about_the_newest_never_gets_an_older_one_than_was_shown() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        await a.publish(2)
        await gateway.until(lambda: gateway.shown[-1] == ("first", 2))
        assert {(await gateway.pool.ask(NEWEST)).generation for _ in range(6)} == {2}
        assert not b.asked

    run(story)


def test_an_answer_binds_what_comes_after_it_before_any_news_of_it() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        b.newest = 7  # and tells nobody yet
        asked = Ask(board_id=BOARD, question=Rank("p"), at_least=Position(1, 1))
        while (await gateway.pool.ask(asked)).generation != 7:
            pass
        assert not gateway.pool.is_newest(answer(1))
        assert {(await gateway.pool.ask(NEWEST)).generation for _ in range(6)} == {7}

    run(story)


def test_news_of_a_replica_that_is_behind_are_not_shown() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        await a.publish(5)
        await gateway.until(lambda: gateway.shown[-1] == ("first", 5))
        await b.publish(4)
        await gateway.until(lambda: gateway.pool._members[1].told[BOARD][1] == 4)
        await b.publish(6)
        await gateway.until(lambda: gateway.shown[-1] == ("first", 6))
        assert [generation for _, generation in gateway.shown] == [1, 5, 6]

    run(story)


def test_the_newest_stays_shown_when_its_replica_dies_and_is_not_answered_older() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        await a.publish(2)
        await gateway.until(lambda: gateway.shown[-1] == ("first", 2))
        a.dead = True
        with pytest.raises(NotServing):
            await gateway.pool.ask(NEWEST)
        await b.publish(2)
        await gateway.until(lambda: gateway.pool._members[1].told[BOARD][1] == 2)
        assert (await gateway.pool.ask(NEWEST)).generation == 2

    run(story)


def test_a_replica_that_is_silent_is_left_out_and_another_answers() -> None:
    """1. `a` hangs; the question put to it is answered by `b`. 2. `a` is asked no more. 3. It gives a sign of life, and is asked again."""

    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.hang()
        answers = await asyncio.gather(*(gateway.pool.ask(NEWEST) for _ in range(4)))
        assert [each.generation for each in answers] == [1] * 4
        before = len(a.asked)
        for _ in range(4):
            await gateway.pool.ask(NEWEST)
        assert len(a.asked) == before
        a.wake()
        await gateway.pool._tasks["probe a"]
        for _ in range(4):
            await gateway.pool.ask(NEWEST)
        assert len(a.asked) > before

    run(story)


def test_a_question_that_waits_is_not_put_a_second_time_when_there_is_no_answer() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.dead = b.dead = True
        with pytest.raises(TimeoutError):
            await gateway.pool.ask(Ask(board_id=BOARD, question=Rank("p"), at_least=Position(1, 1), wait_ms=0))
        assert len(a.asked) + len(b.asked) == 1
        with pytest.raises(TimeoutError):
            await gateway.pool.ask(NEWEST)
        assert len(a.asked) + len(b.asked) <= 3

    run(story)


def test_a_generation_that_one_replica_no_longer_holds_is_answered_by_the_other() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.oldest = a.newest = 9  # it was started again, and froze only the newest
        b.newest = 9
        pinned = Ask(board_id=BOARD, question=Top(cursor="of generation 3"), generation=3)
        for _ in range(4):
            assert (await gateway.pool.ask(pinned)).generation == 3
        b.oldest = 9
        with pytest.raises(GenerationGone) as gone:
            await gateway.pool.ask(pinned)
        assert gone.value.newest == 9

    run(story)


def test_a_replica_that_began_anew_answers_with_a_newer_one_than_it_was_asked_for() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        for replica in (a, b):
            replica.newest = replica.oldest = 4
        assert (await gateway.pool.ask(NEWEST)).generation == 4

    run(story)


def test_a_player_that_is_not_ranked_is_no_reason_to_ask_another_replica() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.refuses = b.refuses = NotRanked("nobody")
        with pytest.raises(NotRanked):
            await gateway.pool.ask(NEWEST)
        assert len(a.asked) + len(b.asked) == 1

    run(story)


def test_while_one_replica_reads_its_journal_the_other_answers_and_the_region_serves() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.serving = False
        await a.publish(0)
        assert {(await gateway.pool.ask(NEWEST)).generation for _ in range(4)} == {1}
        b.serving = False
        await b.tell()
        await gateway.until(lambda: not gateway.serving)
        with pytest.raises(NotServing):
            await gateway.pool.ask(NEWEST)
        assert [generation for _, generation in gateway.shown] == [1]

    run(story)


def test_what_a_replica_tells_while_it_catches_up_is_shown_when_it_serves() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.serving = False
        await a.publish(3)
        a.serving = True
        await a.tell()
        await gateway.until(lambda: gateway.shown[-1] == ("first", 3))

    run(story)


def test_a_board_that_was_made_anew_is_not_shown_in_its_old_life_again() -> None:
    """1. `a` has left the first life for the second. 2. `b`, behind, tells a high generation of the first. 3. It follows.

    The clock of the region that made it anew was behind.
    """
    second: Life = ("second", 500)

    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        await a.publish(0, life=second)
        await gateway.until(lambda: gateway.shown[-1] == ("second", 0))
        await b.publish(50)
        await gateway.until(lambda: gateway.pool._members[1].told[BOARD][1] == 50)
        await a.publish(1)
        await gateway.until(lambda: gateway.shown[-1] == ("second", 1))
        answered = await gateway.pool.ask(NEWEST)
        assert (answered.incarnation, answered.generation) == ("second", 1)
        await b.publish(2, life=second)
        await gateway.until(lambda: gateway.shown[-1] == ("second", 2))
        assert ("first", 50) not in gateway.shown

    run(story)


@pytest.mark.parametrize("order", ["older first", "newer first"])
def test_of_two_lives_that_nobody_was_seen_to_change_the_later_one_counts(order: str) -> None:
    async def told() -> None:
        a, b = Replica(), Replica()
        a.life, b.life = FIRST, SECOND
        members = {"a": a, "b": b} if order == "older first" else {"b": b, "a": a}
        gateway = Gateway(ReplicaPool(members))
        try:
            await a.publish(50)
            await b.publish(3)
            await gateway.until(lambda: sum(member.serving for member in gateway.pool._members) == 2)
            await gateway.until(lambda: gateway.shown[-1] == ("second", 3))
            answered = await gateway.pool.ask(NEWEST)
            assert answered.incarnation == "second"
        finally:
            await gateway.pool.close()

    asyncio.run(told())


def test_a_removed_board_goes_once_and_is_not_brought_back_by_a_replica_that_is_behind() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        await a.remove()
        await gateway.until(lambda: gateway.shown[-1] == ("removed", -1))
        await b.publish(2)
        await gateway.until(lambda: gateway.pool._members[1].told[BOARD][1] == 2)
        await b.remove()
        b.owners = {"eu-west/0": (4, "eu-west")}
        await b.tell()
        news = await gateway.pool.news(0)
        while not news.owners:
            news = await gateway.pool.news(news.seq)
        assert news.boards == []
        await a.publish(0, life=SECOND)
        await gateway.until(lambda: gateway.shown[-1] == ("second", 0))
        assert ("first", 2) not in gateway.shown

    run(story)


def test_a_board_that_was_removed_while_no_replica_ran_is_gone_when_they_serve_again() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        for replica in (a, b):
            replica.newest = -1
            await replica.begin_anew()
        await gateway.until(lambda: gateway.shown[-1] == ("removed", -1))

    run(story)


def test_one_replica_alone_is_asked_as_it_is() -> None:
    async def told() -> None:
        only = Replica()
        gateway = Gateway(ReplicaPool({"replica": only}))
        try:
            await only.publish(1)
            await gateway.until(lambda: gateway.shown == [("first", 1)])
            await gateway.pool.ask(NEWEST)
            assert only.asked == [NEWEST]
            only.dead = True
            with pytest.raises(TimeoutError):
                await gateway.pool.ask(NEWEST)
            only.dead = False
            await gateway.pool.ask(NEWEST)
        finally:
            await gateway.pool.close()

    asyncio.run(told())


def test_status_has_a_line_for_each_replica_and_the_shards_of_the_most_advanced() -> None:
    async def story(gateway: Gateway, a: Replica, b: Replica) -> None:
        a.newest, b.dead = 8, True
        status = await gateway.pool.status()
        assert status.shards["eu-west/0"]["applied"] == 8
        assert [(line["replica"], line["answers"]) for line in status.replicas] == [("a", True), ("b", False)]

    run(story)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["publish", "ask", "die", "back", "read"])), max_size=30))
def test_whatever_happens_nothing_older_comes_after_something_newer(steps: list[tuple[str, str]]) -> None:
    """Replicas of one journal, each somewhere behind its end, that die, catch up and are asked, in any order."""

    async def told() -> None:
        replicas = {"a": Replica(), "b": Replica()}
        pool = ReplicaPool(replicas)
        gateway = Gateway(pool)
        seen = [0]
        end = 0
        try:
            for name, step in steps:
                replica = replicas[name]
                if step == "publish":
                    end += 1
                    await replica.publish(end)
                elif step == "read":
                    await replica.publish(max(end, 0))
                elif step == "die":
                    replica.dead, replica.oldest = True, end
                    await replica.begin_anew()
                elif step == "back":
                    replica.dead = False
                    await replica.publish(max(end, 0))
                else:
                    with suppress(Unanswered, TimeoutError):
                        seen.append((await pool.ask(NEWEST)).generation)
                news = await pool.news(0, 0.0)
                seen += [top.generation for top in news.tops if pool.is_newest(top)]
                await asyncio.sleep(0)
            assert seen == sorted(seen), gateway
        finally:
            await pool.close()

    asyncio.run(told())
