"""A store whose file was torn, damaged, or had no room (LB-129, LB-130): what it acknowledged is there, or it refuses and says why."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_fixtures import StoreServer, accepted, admit, chapter, filler, take, valkey_binary

from journal.ports import Accepted, JournalUnavailable, Position
from journal.records import Entry, HandedOver, seal_entry
from journal.redis_journal import RedisJournal, open_client

pytestmark = pytest.mark.store


def newest_file(folder: Path) -> Path:
    """The part of the append-only file that is written to."""
    return next((folder / "appendonlydir").glob("*.incr.aof"))


async def fill(server: StoreServer, count: int) -> list[Entry]:
    """`count` entries of epoch 1, each appended and acknowledged by itself."""
    client = open_client(server.url)
    try:
        journal = RedisJournal(client, "s", region="ap")
        await admit(journal, "s")
        entries = chapter(1, 1, count)
        accepted(await take(journal, 1, (0, 0), entries[:2], committed=0))
        for entry in entries[2:]:
            accepted(await take(journal, 1, (1, entry.offset - 1), [entry], committed=entry.offset - 1))
        return entries
    finally:
        await client.aclose()


async def look(server: StoreServer) -> tuple[Position, int, list[Entry]]:
    """Tail, committed, and everything that can be read."""
    client = open_client(server.url)
    try:
        journal = RedisJournal(client, "s", region="ap")
        status = await journal.status()
        return status.tail, status.committed, await journal.read(1)
    finally:
        await client.aclose()


def test_a_file_torn_anywhere_in_its_last_record_starts_without_that_record_only(tmp_path: Path) -> None:
    """LB-129. The end is cut by 1..n bytes, for n over the last append: the store starts and holds the entries before, whole."""
    origin = tmp_path / "origin"
    origin.mkdir()
    server = StoreServer(valkey_binary(), origin)
    server.start()
    try:
        before = asyncio.run(fill(server, 5))
        size = newest_file(origin).stat().st_size
        last = asyncio.run(append_one(server, filler(1, 6)))
    finally:
        server.kill()
    whole = newest_file(origin).stat().st_size
    for cut in sorted({1, 2, 7, *range(1, whole - size, 41), whole - size - 1, whole - size}):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(origin, folder)
        os.truncate(newest_file(folder), whole - cut)
        torn = StoreServer(valkey_binary(), folder)
        torn.start()
        try:
            tail, committed, entries = asyncio.run(look(torn))
        finally:
            torn.kill()
        assert entries == before, f"cut by {cut} bytes"
        assert (tail, committed) == (Position(1, 5), 4)
        shutil.rmtree(folder)
    assert last.offset == 6


async def append_one(server: StoreServer, entry: Entry) -> Entry:
    client = open_client(server.url)
    try:
        accepted(await take(RedisJournal(client, "s", region="ap"), 1, (1, entry.offset - 1), [entry]))
        return entry
    finally:
        await client.aclose()


def test_a_file_broken_in_the_middle_is_a_hard_refusal_and_not_a_silent_cut(tmp_path: Path) -> None:
    """LB-130, second half: one command header in the middle is damaged; the server refuses to start and names the file."""
    server = StoreServer(valkey_binary(), tmp_path)
    server.start()
    try:
        asyncio.run(fill(server, 8))
    finally:
        server.kill()
    file = newest_file(tmp_path)
    raw = bytearray(file.read_bytes())
    middle = raw.index(b"\r\n*", len(raw) // 2) + 2
    raw[middle] = ord("?")
    file.write_bytes(raw)
    with pytest.raises(RuntimeError, match=r"(?i)bad file format|error reading|unexpected"):
        server.start()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own; `mount -o remount,size=` makes room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False).returncode
    ):
        pytest.skip("no right to mount a small file system here: a full disk was not tried")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_refuses_the_append_and_what_was_acknowledged_survives_with_room_again(small_disk: Path) -> None:
    """LB-130. 1. Appends until the disk is full: the failing one is not acknowledged. 2. Room is made, the store started again.
    3. Every acknowledged entry is there, nothing stray behind it, and 100 more are taken and survive another restart."""
    server = StoreServer(valkey_binary(), small_disk)
    server.start()
    try:
        held = asyncio.run(append_until_full(server))
        server.kill()
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        server.start()
        tail, _, entries = asyncio.run(look(server))
        assert entries[: len(held)] == held
        assert len(entries) - len(held) <= 1, "the unacknowledged one may be there, nothing else"
        more = [filler(1, tail.offset + n) for n in range(1, 101)]

        async def add() -> None:
            for entry in more:
                await append_one(server, entry)

        asyncio.run(add())
        server.kill()
        server.start()
        _, _, after = asyncio.run(look(server))
        assert after == [*entries, *more][:256]
    finally:
        server.stop()


async def append_until_full(server: StoreServer) -> list[Entry]:
    client = open_client(server.url)
    try:
        journal = RedisJournal(client, "s", region="ap", timeout_ms=3000)
        await admit(journal, "s")
        held = chapter(1, 1, 1)
        accepted(await take(journal, 1, (0, 0), held))
        for offset in range(2, 400):
            entry = seal_entry(1, offset, f"big-{offset}", [HandedOver(to="x" * 40_000, asked_by="test", at_ms=offset)])
            try:
                answer = await take(journal, 1, (1, offset - 1), [entry])
            except JournalUnavailable:
                return held
            assert isinstance(answer, Accepted)
            held.append(entry)
        raise AssertionError("the disk was never full")
    finally:
        await client.aclose()
