"""Joined questions: fewer calls, every asker its own answer or error, in order, and nobody held up by one who left."""

import asyncio

import pytest

from actors.asking import CALLS, QUESTIONS, JoinedAsks, answers_at_once
from actors.messages import Answer, Ask, NotRanked, Rank, Top, WireError, to_wire
from journal.ports import Position


def question(number: int) -> Ask:
    return Ask(board_id="b", question=Rank(f"p{number}"))


def reply_to(ask: Ask) -> Answer | WireError:
    assert isinstance(ask.question, Rank)
    if ask.question.player_id.endswith("3"):
        return to_wire(NotRanked(ask.question.player_id))
    return Answer(board_id="b", incarnation="i", lineage="l", generation=1, published_ms=0, body=ask.question.player_id.encode())


def test_what_comes_while_calls_are_under_way_shares_the_next_one() -> None:
    """1. 500 askers at once. 2. The first call carries what was there when it left; the others few and full. 3. Each gets its own."""
    sizes: list[int] = []

    async def call(asks: list[Ask]) -> list[Answer | WireError]:
        sizes.append(len(asks))
        await asyncio.sleep(0)
        return [reply_to(ask) for ask in asks]

    async def story() -> list[Answer | BaseException]:
        joined = JoinedAsks(call)
        return await asyncio.gather(*(joined.ask(question(n)) for n in range(500)), return_exceptions=True)

    results = asyncio.run(story())
    for number, result in enumerate(results):
        if str(number).endswith("3"):
            assert isinstance(result, NotRanked)
            assert result.detail == f"p{number}"
        else:
            assert isinstance(result, Answer)
            assert result.body == f"p{number}".encode()
    assert sum(sizes) == 500
    assert len(sizes) <= CALLS + 500 // QUESTIONS + 1
    assert max(sizes) <= QUESTIONS


def test_a_question_after_a_pause_leaves_at_once_and_those_soon_after_it_share_a_call() -> None:
    """1. One alone is asked without delay. 2. The gap never ends here: the next leave when a call is full. 3. Here it ends soon."""

    async def story(gap_s: float, more: int) -> list[int]:
        sizes: list[int] = []

        async def call(asks: list[Ask]) -> list[Answer | WireError]:
            sizes.append(len(asks))
            return [reply_to(ask) for ask in asks]

        joined = JoinedAsks(call, gap_s=gap_s)
        await joined.ask(question(1))
        await asyncio.gather(*(joined.ask(question(10 * n)) for n in range(more)))
        return sizes

    assert asyncio.run(story(3600.0, QUESTIONS)) == [1, QUESTIONS]
    assert asyncio.run(story(0.02, 5)) == [1, 5]


def test_a_call_that_fails_fails_its_own_askers_only_and_an_asker_that_left_is_passed_over() -> None:
    calls = 0

    async def call(asks: list[Ask]) -> list[Answer | WireError]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise TimeoutError("no answer")
        return [reply_to(ask) for ask in asks]

    async def story() -> None:
        joined = JoinedAsks(call)
        first = asyncio.ensure_future(joined.ask(question(1)))
        gone = asyncio.ensure_future(joined.ask(question(2)))
        with pytest.raises(TimeoutError):
            await first
        gone.cancel()
        later = await joined.ask(question(4))
        assert later.body == b"p4"

    asyncio.run(story())


def test_questions_that_may_wait_are_not_joined() -> None:
    assert answers_at_once(question(1))
    assert answers_at_once(Ask(board_id="b", question=Top()))
    assert not answers_at_once(Ask(board_id="b", question=Top(cursor="c")))
    assert not answers_at_once(Ask(board_id="b", question=Top(), generation=3))
    assert not answers_at_once(Ask(board_id="b", question=Top(), at_least=Position(1, 2)))
