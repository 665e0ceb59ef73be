"""Forgetting orphans, the only way by which they go: the memory adapter and the Redis one, on Valkey 9 and on Redis 7, alike."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from journal.memory import NumberOutOfRange
from journal.ports import Journal, JournalUnavailable
from journal.records import Entry
from journal.redis_journal import RedisJournal, open_client

sys.path.insert(0, str(Path(__file__).parent))
from store_fixtures import Run, accepted, admit, chapter, run, running_store, shipping, store_url, take, valkey_binary


async def deposed(journal: Journal, shard: str, *, lost: int = 4, older: int = 1, newer: int = 2) -> list[Entry]:
    """Epoch `older` holds 3 entries that stay and `lost` that are cut by `newer`; the orphans."""
    await admit(journal, shard, older)
    entries = chapter(older, 1, 3 + lost)
    accepted(await take(journal, older, (0, 0), entries, committed=3))
    accepted(await journal.accept(shipping(shard, newer, (older, 3), chapter(newer, 4, 1, owner="us"))))
    return entries[3:]


#: Fixtures, used by name.
__all__ = ["run", "store_url"]


async def offsets(journal: Journal) -> dict[int, list[int]]:
    return {batch.epoch: [entry.offset for entry in batch.entries] for batch in await journal.orphans()}


def test_only_the_named_epoch_and_offsets_go_and_a_repeated_call_changes_nothing(run: Run) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await deposed(journal, shard)
        before, log = await journal.status(), await journal.read(1)
        assert await offsets(journal) == {1: [4, 5, 6, 7]}
        assert await journal.forget_orphans(2, 100) == 0
        assert await journal.forget_orphans(1, 3) == 0
        assert await journal.forget_orphans(1, 6, from_offset=5) == 2
        assert await offsets(journal) == {1: [4, 7]}
        assert await journal.forget_orphans(1, 6, from_offset=5) == 0
        assert await journal.forget_orphans(1, 7) == 2
        assert await journal.orphans() == []
        assert await journal.forget_orphans(1, 7) == 0
        assert (await journal.status(), await journal.read(1)) == (before, log)

    run(story)


def test_what_is_orphaned_after_a_sign_off_of_the_same_epoch_stays(run: Run) -> None:
    """1. Entries 4 to 7 of epoch 1 are signed off. 2. Then 2 and 3 are cut too: the same call does not touch them. I5."""

    async def story(journal: Journal, shard: str) -> None:
        await admit(journal, shard)
        entries = chapter(1, 1, 7)
        accepted(await take(journal, 1, (0, 0), entries, committed=1))
        accepted(await journal.accept(shipping(shard, 2, (1, 3), chapter(2, 4, 1, owner="us"))))
        assert await offsets(journal) == {1: [4, 5, 6, 7]}
        accepted(await journal.accept(shipping(shard, 3, (1, 1), chapter(3, 2, 1, owner="us"))))
        assert await offsets(journal) == {1: [2, 3, 4, 5, 6, 7], 2: [4]}
        assert await journal.forget_orphans(1, 7, from_offset=4) == 4
        assert await offsets(journal) == {1: [2, 3], 2: [4]}
        assert [batch.entries for batch in await journal.orphans()] == [entries[1:3], chapter(2, 4, 1, owner="us")]

    run(story)


def test_numbers_cross_a_digit_and_many_entries_go_in_one_step(run: Run) -> None:
    """Offsets 9 -> 10 and 99 -> 100 as numbers, and more entries than a script moves at a time."""

    async def story(journal: Journal, shard: str) -> None:
        lost = await deposed(journal, shard, lost=700, older=9, newer=10)
        assert await journal.forget_orphans(9, 99, from_offset=10) == 90
        assert (await offsets(journal))[9] == [*range(4, 10), *range(100, 704)]
        assert (await journal.orphans())[0].entries == lost[:6] + lost[96:]
        assert await journal.forget_orphans(9, 2**53 - 1, from_offset=0) == 610
        assert await journal.orphans() == []

    run(story)


@pytest.mark.parametrize(("epoch", "upto", "first"), [(0, 1, 1), (2**53, 1, 1), (1, 2**53, 1), (1, -1, 1), (1, 1, -1), (1, 1, 2**53)])
def test_numbers_that_a_store_could_not_compare_are_refused_before_anything_is_done(run: Run, epoch: int, upto: int, first: int) -> None:
    async def story(journal: Journal, shard: str) -> None:
        await deposed(journal, shard)
        with pytest.raises(NumberOutOfRange):
            await journal.forget_orphans(epoch, upto, from_offset=first)
        assert await offsets(journal) == {1: [4, 5, 6, 7]}

    run(story)


@pytest.mark.store
@pytest.mark.parametrize("damaged", ["orphans", "orphans:1"])
def test_a_key_of_another_kind_stops_it_before_the_first_write(tmp_path: Path, damaged: str) -> None:
    async def story(url: str) -> None:
        journal = RedisJournal(url, "s", region="ap")
        client = open_client(url)
        execute: Callable[..., Awaitable[Any]] = client.execute_command
        try:
            await deposed(journal, "s")
            key = f"laurel:{{s}}:{damaged}"
            await execute("RENAME", key, "kept")
            await execute("SET", key, "x")
            with pytest.raises(JournalUnavailable, match="broken"):
                await journal.forget_orphans(1, 7)
            await execute("RENAME", "kept", key)
            assert await offsets(journal) == {1: [4, 5, 6, 7]}
        finally:
            await client.aclose()
            await journal.close()

    with running_store(valkey_binary(), tmp_path) as server:
        asyncio.run(story(server.url))
