"""What only the Redis adapter can get wrong: stalls, restarts, damaged keys, a store that would not keep its word."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from journal.memory import NUMBER_LIMIT
from journal.ports import Accepted, JournalMisconfigured, JournalUnavailable, Peer, Position
from journal.records import Entry
from journal.redis_journal import RedisJournal
from journal.store_check import check_store

sys.path.insert(0, str(Path(__file__).parent))
from store_fixtures import (
    DURABLE,
    StoreServer,
    accepted,
    admit,
    chapter,
    filler,
    redis_binary,
    running_store,
    shipping,
    take,
    tell,
    valkey_binary,
)

pytestmark = pytest.mark.store


@pytest.fixture(scope="module", params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> str:
    return valkey_binary() if request.param == "valkey" else redis_binary()


@pytest.fixture(scope="module")
def server(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """For tests that leave it as it was."""
    with running_store(binary, tmp_path_factory.mktemp("shared")) as store:
        yield store


@pytest.fixture
def own_server(binary: str, tmp_path: Path) -> Iterator[StoreServer]:
    """For tests that hurt it."""
    with running_store(binary, tmp_path) as store:
        yield store


async def started(client: Redis, shard: str, count: int = 3, *, timeout_ms: int = 2000) -> tuple[RedisJournal, list[Entry]]:
    """A journal in epoch 1 with `count` entries, 1 of them committed."""
    journal = RedisJournal(client, shard, region="ap", timeout_ms=timeout_ms)
    await admit(journal, shard)
    entries = chapter(1, 1, count)
    accepted(await take(journal, 1, (0, 0), entries, committed=1))
    return journal, entries


def keys(shard: str) -> dict[str, str]:
    return {name: f"laurel:{{{shard}}}:{name}" for name in ("meta", "log", "terms", "peers", "orphans", "orphans:1", "orphans:2")}


async def contents(client: Redis, shard: str) -> dict[str, bytes | None]:
    """Each key's value, serialised by the store."""
    return {name: await client.dump(key) for name, key in keys(shard).items()}


def test_a_stalled_store_is_unavailable_in_time_and_a_retried_append_is_held_once(own_server: StoreServer) -> None:
    """1. The store stops. 2. An append gets no answer: indefinite. 3. The store goes on: status tells the truth, and
    the same batch again succeeds, whether or not the first one came through."""

    async def story(client: Redis) -> None:
        journal, entries = await started(client, "s", timeout_ms=300)
        batch = [filler(1, 4), filler(1, 5)]
        own_server.signal(signal.SIGSTOP)
        try:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: take(journal, 1, (1, 3), batch),
                journal.status,
                lambda: journal.wait_for(committed_above=9, timeout_ms=9000),
            ]
            for call in calls:
                before = time.monotonic()
                with pytest.raises(JournalUnavailable) as caught:
                    await call()
                assert not caught.value.definite
                assert time.monotonic() - before < 1.5
        finally:
            own_server.signal(signal.SIGCONT)
        patient = RedisJournal(client, "s", region="ap", timeout_ms=10_000)
        tail = (await patient.status()).tail
        assert tail in (Position(1, 3), Position(1, 5))
        assert len(await patient.read(1)) == tail.offset
        assert await take(patient, 1, (1, 3), batch) == Accepted(5, 1, 1, Position(1, 5), "i-ap")
        assert await journal.read(1) == [*entries, *batch]

    tell(own_server, story)


def test_everything_acknowledged_survives_kill_9_and_the_journal_connects_again_by_itself(own_server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, entries = await started(client, "s")
        for offset in range(4, 40):
            accepted(await take(journal, 1, (1, offset - 1), [filler(1, offset)], committed=offset - 1))
        won = chapter(2, 39, 2, owner="us")
        accepted(await journal.accept(shipping("s", 2, (1, 38), won, committed=39)))
        before, held, lost = await journal.status(), await journal.read(1), await journal.orphans()
        facts = await check_store(client)
        own_server.kill()
        with pytest.raises(JournalUnavailable):
            await journal.status()
        own_server.start()
        assert await journal.status() == before
        assert await journal.read(1) == held
        assert await journal.orphans() == lost
        assert (before.committed, before.tail, held[:3]) == (39, Position(2, 40), entries)
        assert (await check_store(client)).run_id != facts.run_id
        accepted(await journal.accept(shipping("s", 2, (2, 40), [filler(2, 41)])))

    tell(own_server, story)


@pytest.mark.parametrize("damaged", ["meta", "log", "terms", "peers", "orphans", "orphans:1", "orphans:2"])
def test_a_key_of_the_wrong_kind_stops_a_script_before_its_first_write(server: StoreServer, damaged: str) -> None:
    """A step that would write to every key: it cuts two epochs, orphans, appends, starts a term, hears of a peer, and commits."""

    async def story(client: Redis) -> None:
        shard = f"damaged-{damaged}"
        journal, entries = await started(client, shard)
        lost = chapter(2, 4, 2)
        accepted(await journal.accept(shipping(shard, 2, (1, 3), lost)))
        key = keys(shard)[damaged]
        if await client.exists(key):
            await client.rename(key, f"{key}:aside")
        await client.set(key, "not ours")
        before = await contents(client, shard)
        message = shipping(shard, 3, (1, 1), chapter(3, 2, 2), committed=3, peers={"us": Peer(1, 1)})
        with pytest.raises(JournalUnavailable, match=r"WRONGTYPE|is a string"):
            await journal.accept(message)
        assert await contents(client, shard) == before
        await client.delete(key)
        if await client.exists(f"{key}:aside"):
            await client.rename(f"{key}:aside", key)
        accepted(await journal.accept(message))
        assert [batch.entries for batch in await journal.orphans()] == [entries[1:], lost]

    tell(server, story)


def test_a_log_that_lost_its_end_behind_our_back_stops_every_script(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "shortened")
        await client.rpop(keys("shortened")["log"])
        with pytest.raises(JournalUnavailable, match="does not end at tail_offset 3"):
            await take(journal, 1, (1, 3), [filler(1, 4)])
        with pytest.raises(JournalUnavailable, match="does not end at tail_offset 3"):
            await journal.status()

    tell(server, story)


def test_a_store_out_of_memory_refuses_a_script_whole(own_server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "s")
        before = await contents(client, "s")
        await client.config_set("maxmemory", "1")
        with pytest.raises(JournalUnavailable, match=r"maxmemory|OOM"):
            await journal.accept(shipping("s", 2, (1, 1), chapter(2, 2, 2)))
        await client.config_set("maxmemory", "0")
        assert await contents(client, "s") == before
        accepted(await journal.accept(shipping("s", 2, (1, 1), chapter(2, 2, 2))))

    tell(own_server, story)


@pytest.mark.parametrize("value", [NUMBER_LIMIT, 2**60, 2**64 - 1, -1, 1.5, "10x"])
def test_the_scripts_themselves_refuse_numbers_they_cannot_compare(server: StoreServer, value: Any) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, f"numbers-{value}")
        before = await contents(client, f"numbers-{value}")
        channel = "c"
        headers: dict[str, tuple[Any, ...]] = {
            "append": (channel, "ap", value, "try-1", 1, 3, 0, True, 0, [], [], []),
            "accept": (channel, "ap", "L1", 1, "eu", 2, "try-2", 1, 3, value, True, [], [], []),
            "adopt": (channel, 1, "try-1", 1, value, 3, True, [], []),
            "seal": (channel, "L1", "eu", value, "try-2", 1, "eu", ""),
            "readmit": (channel, "i-new", value),
        }
        for name, header in headers.items():
            with pytest.raises(JournalUnavailable, match="number out of range"):
                await journal._run(name, header)
        entries: tuple[Any, ...] = (channel, "ap", "L1", 1, "eu", 2, "try-2", 1, 3, 0, True, [value], [], [])
        with pytest.raises(JournalUnavailable, match="number out of range"):
            await journal._run("accept", entries, [b"x" * 20])
        peers: tuple[Any, ...] = (channel, "ap", "L1", 1, "eu", 2, "try-2", 1, 3, 0, True, [], [], [("us", value, 0, False)])
        with pytest.raises(JournalUnavailable, match="number out of range"):
            await journal._run("accept", peers)
        assert await contents(client, f"numbers-{value}") == before

    tell(server, story)


def test_a_script_that_the_store_forgot_is_loaded_again(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "forgotten")
        await client.script_flush()
        accepted(await take(journal, 1, (1, 3), [filler(1, 4)]))

    tell(server, story)


def test_a_lost_message_delays_a_waiter_but_never_hangs_it(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "unheard")
        waiter = asyncio.create_task(journal.wait_for(committed_above=1, timeout_ms=20_000))
        await client.hset(keys("unheard")["meta"], "committed", "2")  # nobody publishes this
        assert await asyncio.wait_for(waiter, 5) == 2
        await journal.close()

    tell(server, story)


def test_waiters_share_one_subscription_and_close_ends_it(server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "shared")
        channel = "laurel:{shared}:committed"
        waiters = [asyncio.create_task(journal.wait_for(committed_above=1, timeout_ms=20_000)) for _ in range(20)]
        async with asyncio.timeout(10):
            while (await client.pubsub_numsub(channel))[0][1] == 0:
                await asyncio.sleep(0)
        assert (await client.pubsub_numsub(channel))[0][1] == 1
        await take(journal, 1, (1, 3), [], committed=3)
        assert set(await asyncio.gather(*waiters)) == {3}
        await journal.close()
        async with asyncio.timeout(10):
            while (await client.pubsub_numsub(channel))[0][1]:
                await asyncio.sleep(0)
        with pytest.raises(JournalUnavailable, match="closed"):
            await journal.status()
        assert await client.ping()

    tell(server, story)


def test_a_client_that_retries_or_decodes_is_not_taken() -> None:
    with pytest.raises(ValueError, match="open_client"):
        RedisJournal(Redis(), "s")
    with pytest.raises(ValueError, match="open_client"):
        RedisJournal(Redis(decode_responses=True, retry=None), "s")  # type: ignore[arg-type]


def test_a_port_where_nothing_listens_is_unavailable(own_server: StoreServer) -> None:
    own_server.kill()

    async def story(client: Redis) -> None:
        journal = RedisJournal(client, "s")
        with pytest.raises(JournalUnavailable):
            await journal.status()
        with pytest.raises(JournalUnavailable):
            await check_store(client)

    tell(own_server, story)


def test_the_check_passes_a_durable_store_and_names_it(server: StoreServer, binary: str) -> None:
    async def story(client: Redis) -> None:
        facts = await check_store(client)
        assert len(facts.run_id) == 40
        assert facts.server == ("valkey" if "valkey" in binary else "redis")
        assert int(facts.version.split(".")[0]) >= 7

    tell(server, story)


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
def test_the_check_names_the_setting_its_value_and_the_command(server: StoreServer, setting: str, value: str, wanted: str) -> None:
    async def story(client: Redis) -> None:
        await client.config_set(setting, value)
        try:
            with pytest.raises(JournalMisconfigured) as caught:
                await check_store(client)
        finally:
            await client.config_set(setting, wanted)
        assert caught.value.definite
        assert f"{setting} is '{value}'" in str(caught.value)
        assert f"CONFIG SET {setting} {wanted}" in str(caught.value)
        await check_store(client)

    tell(server, story)


def test_a_replica_is_found_by_the_check_and_unavailable_to_a_journal(own_server: StoreServer) -> None:
    async def story(client: Redis) -> None:
        journal, _ = await started(client, "s")
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
        with pytest.raises(JournalMisconfigured, match="REPLICAOF NO ONE"):
            await check_store(client)
        with pytest.raises(JournalUnavailable):
            await take(journal, 1, (1, 3), [filler(1, 4)])
        await client.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
        accepted(await take(journal, 1, (1, 3), [filler(1, 4)]))

    tell(own_server, story)


def test_a_store_that_hides_its_settings_is_misconfigured(binary: str, tmp_path: Path) -> None:
    flags = (*DURABLE, "--rename-command", "CONFIG", "")

    async def story(client: Redis) -> None:
        with pytest.raises(ResponseError):
            await client.config_get("appendonly")
        with pytest.raises(JournalMisconfigured, match="CONFIG GET"):
            await check_store(client)

    with running_store(binary, tmp_path, *flags) as store:
        tell(store, story)
