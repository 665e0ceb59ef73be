"""Commands of several journals on one connection: in order, each with its own answer, whatever becomes of the connection."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import ResponseError

from journal.ports import JournalUnavailable
from journal.redis_journal import RedisJournal
from journal.redis_line import line_of

sys.path.insert(0, str(Path(__file__).parent))
from store_fixtures import StoreServer, running_store, tell, valkey_binary

pytestmark = pytest.mark.store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with running_store(valkey_binary(), tmp_path) as store:
        yield store


async def connections(client: Redis) -> int:
    return len([line for line in await client.client_list() if line["cmd"] != "client|list"])


def test_each_command_gets_its_own_answer_on_one_connection(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        assert line_of(client) is line
        answers = await asyncio.gather(*(line.run("ECHO", f"{n}".encode() * (1 + n * 97), timeout_s=5) for n in range(200)))
        assert answers == [f"{n}".encode() * (1 + n * 97) for n in range(200)]
        assert await connections(client) == 1

    tell(server, story)


def test_an_error_is_of_its_own_command_alone(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        await line.run("SET", "text", b"x", timeout_s=5)
        answers = await asyncio.gather(
            line.run("ECHO", b"1", timeout_s=5),
            line.run("INCR", "text", timeout_s=5),
            line.run("NONSENSE", timeout_s=5),
            line.run("ECHO", b"2", timeout_s=5),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [bytes, ResponseError, ResponseError, bytes]
        assert (answers[0], answers[3]) == (b"1", b"2")

    tell(server, story)


def test_whoever_stops_waiting_takes_no_answer_from_another(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        tasks = [asyncio.create_task(line.run("ECHO", str(n), timeout_s=5)) for n in range(6)]
        await asyncio.sleep(0)  # asked
        tasks[0].cancel()
        await asyncio.sleep(0)  # on its way
        tasks[3].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answers[n] for n in (1, 2, 4, 5)] == [b"1", b"2", b"4", b"5"]
        assert isinstance(answers[0], asyncio.CancelledError)
        assert isinstance(answers[3], asyncio.CancelledError)

    tell(server, story)


def test_a_broken_connection_fails_what_waits_on_it_and_the_next_command_takes_another(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        own = await line.run("CLIENT", "ID", timeout_s=5)
        await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # type: ignore[no-untyped-call]
        stuck = [asyncio.create_task(line.run("SET", f"key-{n}", b"x", timeout_s=5)) for n in range(3)]
        while (await client.client_list(client_id=[own]))[0]["cmd"] != "set":
            await asyncio.sleep(0.001)
        await client.execute_command("CLIENT", "KILL", "ID", own)  # type: ignore[no-untyped-call]
        assert [type(error) for error in await asyncio.gather(*stuck, return_exceptions=True)] == [Broken] * 3
        await client.execute_command("CLIENT", "UNPAUSE")  # type: ignore[no-untyped-call]
        assert await line.run("ECHO", b"again", timeout_s=5) == b"again"
        assert await line.run("CLIENT", "ID", timeout_s=5) != own

    tell(server, story)


def test_a_store_that_does_not_answer_in_time_is_unavailable_and_answers_after_it_goes_on(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journals = [RedisJournal(client, f"eu/{n}", region="eu", timeout_ms=200) for n in range(3)]
        await asyncio.gather(*(journal.status() for journal in journals))
        server.signal(signal.SIGSTOP)
        try:
            answers = await asyncio.gather(*(journal.status() for journal in journals), return_exceptions=True)
            assert [type(answer) for answer in answers] == [JournalUnavailable] * 3
        finally:
            server.signal(signal.SIGCONT)
        for journal in journals:
            assert (await journal.status()).tail.offset == 0

    tell(server, story)


def test_a_store_that_is_gone_is_told_at_once_and_one_that_is_back_is_used(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal = RedisJournal(client, "eu/0", region="eu", timeout_ms=2000)
        await journal.status()
        server.kill()
        for _ in range(3):
            with pytest.raises(JournalUnavailable):
                await journal.status()
        server.start()
        assert (await journal.status()).tail.offset == 0

    tell(server, story)


def test_much_that_was_never_sent_does_not_keep_a_store_that_goes_on_waiting(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        await line.run("ECHO", b"x", timeout_s=5)
        server.signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                await line.run("SET", "much", b"x" * 24_000_000, timeout_s=0.3)
        finally:
            server.signal(signal.SIGCONT)
        assert await line.run("ECHO", b"again", timeout_s=1) == b"again"

    tell(server, story)


def test_an_answer_that_nobody_asked_for_ends_the_connection(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        line = line_of(client)
        own = await line.run("CLIENT", "ID", timeout_s=5)
        assert line._connection is not None
        await line._connection.send_packed_command(b"*1\r\n$4\r\nPING\r\n", check_health=False)
        while line._connection is not None:
            await asyncio.sleep(0)
        assert await line.run("CLIENT", "ID", timeout_s=5) != own

    tell(server, story)
