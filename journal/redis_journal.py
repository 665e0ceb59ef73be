"""The journal in a Redis-protocol store: every step is one Lua script on the keys of one hash slot.

Keys of a shard, all under `laurel:{<shard>}:`

    meta              hash: fence, granted_region, granted_attempt, incarnation, base, committed, tail_epoch, tail_offset, amnesiac,
                      lease_epoch, lease_ms, acceptor
    log               list: an element is the digest (16 hex digits) and the msgpack of the `Entry`; index 0 is offset base + 1
    terms             hash: epoch -> "<first offset>|<msgpack of the Term>"; never trimmed
    peers             hash: region -> "<fence>|<verified>|<0 or 1: amnesiac>"
    orphans           set of epochs, each with a list `orphans:<epoch>` of log elements
    committed         not a key but the channel that hears when `committed` moved

The rules are written twice, here in `scripts/` and in `journal.memory`; the contract suite holds them equal.
"""

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from journal.memory import DIGEST_LENGTH, check_numbers, check_shard, continues, orphan_batches
from journal.ports import (
    Accepted,
    Append,
    Granted,
    JournalStatus,
    JournalUnavailable,
    OrphanBatch,
    Peer,
    Position,
    Reason,
    Refused,
    Seal,
)
from journal.records import Entry, Term
from journal.redis_line import line_of

#: A waiter reads again at least this often, so a message that was lost costs this much and no more.
REREAD_S = 0.25
#: Elements a plain LRANGE takes at a time.
CHUNK = 256

_encode = msgspec.msgpack.Encoder().encode
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_term_decoder = msgspec.msgpack.Decoder(Term)


def open_client(url: str, *, max_connections: int = 100) -> Redis:
    """A client whose pool several journals may share: no retries of its own (a stalled append would be sent twice),
    bytes in and out, no time-out of its own (each journal sets one around each command)."""
    return Redis.from_url(
        url,
        decode_responses=False,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None,
        max_connections=max_connections,
        health_check_interval=0,
    )


class _Script(NamedTuple):
    text: str
    sha: str


@functools.cache
def _script(name: str) -> _Script:
    folder = resources.files("journal") / "scripts"
    text = (folder / "common.lua").read_text("utf-8") + (folder / f"{name}.lua").read_text("utf-8")
    return _Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _element(entry: Entry) -> bytes:
    return entry.digest.encode() + _encode(entry)


def _entry(element: bytes) -> Entry:
    return _entry_decoder.decode(memoryview(element)[DIGEST_LENGTH:])


def _head_length(entry: Entry) -> int:
    """How much of the element says digest, epoch, offset and batch id: what makes an own append recognisable."""
    return DIGEST_LENGTH + len(_encode((entry.epoch, entry.offset, entry.batch_id, entry.digest)))


def _body(entries: Sequence[Entry]) -> tuple[list[tuple[int, int]], list[bytes]]:
    """(index of its first entry from 1, epoch) of each term, and the arguments: elements, then those terms."""
    starts: list[tuple[int, int]] = []
    terms: list[bytes] = []
    for index, entry in enumerate(entries, 1):
        if entry.term is not None:
            starts.append((index, entry.epoch))
            terms.append(b"%d|%b" % (entry.term.first_offset, _encode(entry.term)))
    return starts, [*map(_element, entries), *terms]


def _peer_list(peers: dict[str, Peer]) -> list[tuple[str, int, int, bool]]:
    return [(region, peer.fence, peer.verified, peer.amnesiac) for region, peer in peers.items()]


def _pairs(flat: list[bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def _status(shard: str, reply: list[Any]) -> JournalStatus:
    """From {word, meta, terms, peers}, which a script read in one step."""
    meta = _pairs(reply[1])
    terms = [_term_decoder.decode(value[value.index(b"|") + 1 :]) for value in reply[2][1::2]]
    peers = {}
    for region, value in _pairs(reply[3]).items():
        fence, verified, amnesiac = value.split(b"|")
        peers[region] = Peer(int(fence), int(verified), amnesiac == b"1")
    return JournalStatus(
        shard=shard,
        incarnation=meta.get("incarnation", b"").decode(),
        fence=int(meta.get("fence", 0)),
        granted_region=meta.get("granted_region", b"").decode(),
        granted_attempt=meta.get("granted_attempt", b"").decode(),
        base=int(meta.get("base", 0)),
        tail=Position(int(meta.get("tail_epoch", 0)), int(meta.get("tail_offset", 0))),
        committed=int(meta.get("committed", 0)),
        terms=sorted(terms, key=lambda term: term.epoch),
        peers=peers,
        amnesiac=meta.get("amnesiac") == b"1",
        lease_ms=int(meta.get("lease_ms", 0)) if meta.get("lease_epoch") == meta.get("fence") else 0,
    )


class RedisJournal:
    """One shard's journal at one region's store.

    `region` is whose store this is: its own line in `peers` is not kept, but an `amnesiac` mark in it is obeyed.
    A client that is passed in stays open on `close()`; one made here from a URL is closed with it. A call that ends in
    `JournalUnavailable` (no answer within `timeout_ms`, a broken connection, a store that is loading, read-only, out of
    memory or damaged) may have happened; the next call connects again by itself. Nothing is tried twice here, except that
    a script which the store does not know is loaded first.
    """

    def __init__(self, client_or_url: Redis | str, shard: str, *, region: str = "", timeout_ms: int = 2000) -> None:
        self._owns_client = isinstance(client_or_url, str)
        self._client = open_client(client_or_url) if isinstance(client_or_url, str) else client_or_url
        settings = self._client.connection_pool.connection_kwargs
        retry = settings.get("retry")
        if settings.get("decode_responses") or (retry is not None and retry.get_retries()):
            raise ValueError("this client decodes answers or retries by itself: make it with journal.redis_journal.open_client")
        self._line = line_of(self._client)
        self.shard = shard
        self.region = region
        self._timeout_s = timeout_ms / 1000
        prefix = f"laurel:{{{shard}}}:"
        self._keys = [prefix + name for name in ("meta", "log", "terms", "peers", "orphans")]
        self._meta, self._orphans = self._keys[0], self._keys[4]
        self._channel = prefix + "committed"
        self._closed = False
        #: Set, and replaced by a new one, whenever the channel may have said something.
        self._bell = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        #: What the channel last said, while the subscription that heard it stands.
        self._heard: int | None = None

    async def status(self) -> JournalStatus:
        """See the port."""
        return _status(self.shard, await self._run("status", ()))

    async def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        """See the port. Refused `diverged` when entries of another epoch, or out of order, are given."""
        check_numbers(epoch, *expected, expected.offset + len(entries), committed, peers=peers)
        starts, body = _body(entries)
        follows = continues(expected, entries, epoch) and all(entry.epoch == epoch for entry in entries)
        last_epoch = epoch if entries else 0
        heads = [_head_length(entry) for entry in entries]
        header = (
            *(self._channel, self.region, epoch, attempt, *expected, committed, follows, last_epoch),
            *(heads, starts, _peer_list(peers)),
        )
        return self._answer(await self._run("append", header, body))

    async def accept(self, message: Append) -> Accepted | Refused:
        """See the port. Only `mismatch` leaves a trace: the fence is raised."""
        check_shard(self.shard, message.shard)
        m, entries = message, message.entries
        check_numbers(m.epoch, *m.prev, m.prev.offset + len(entries), m.committed, m.config_version, peers=m.peers)
        starts, body = _body(entries)
        follows = continues(m.prev, entries, m.epoch)
        epochs = [entry.epoch for entry in entries] if follows else []
        header = (
            *(self._channel, self.region, m.lineage, m.config_version, m.sender, m.epoch, m.attempt, *m.prev, m.committed),
            *(follows, epochs, starts, _peer_list(m.peers)),
        )
        return self._answer(await self._run("accept", header, body))

    async def seal(self, message: Seal) -> Granted | Refused:
        """See the port."""
        check_shard(self.shard, message.shard)
        m = message
        check_numbers(m.epoch, m.from_epoch, m.config_version, *m.remembered.pair)
        header = (
            self._channel,
            m.lineage,
            m.target,
            m.epoch,
            m.attempt,
            m.from_epoch,
            m.from_owner,
            m.admit_as,
            *m.remembered.pair,
            m.acceptor,
        )
        return self._granted(await self._run("seal", header))

    async def take_acceptor(self, token: str) -> JournalStatus:
        """See the port."""
        await self._command("HSET", self._meta, "acceptor", token)
        return await self.status()

    async def renew(self, *, epoch: int, attempt: str, acceptor: str, lease_ms: int) -> Granted | Refused:
        """See the port."""
        check_numbers(epoch, lease_ms)
        return self._granted(await self._run("renew", (epoch, attempt, acceptor, lease_ms)))

    async def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        """See the port. Refused `diverged` also when keep is above the tail or `entries` cannot follow it."""
        check_numbers(epoch, *expected, keep, keep + len(entries))
        starts, body = _body(entries)
        follows = True
        if entries:
            # The epoch at `keep` is the store's to know: suppose one that fits, and let the script compare.
            fits = entries[0].epoch - (entries[0].term is not None)
            follows = continues(Position(fits, keep), entries, epoch)
        epochs = [entry.epoch for entry in entries] if follows else []
        header = (self._channel, epoch, attempt, *expected, keep, follows, epochs, starts)
        return self._answer(await self._run("adopt", header, body))

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        """See the port. `max_bytes` bounds what is stored, 16 bytes of digest and a few of framing an entry included."""
        if first < 1:
            return []
        return [_entry(element) for element in await self._run("read", (first, max(limit, 1), max_bytes))]

    async def orphans(self) -> list[OrphanBatch]:
        """See the port. Cost: reads all orphans, and where one may have come back also that stretch of the log."""
        by_epoch: dict[int, list[Entry]] = {}
        for epoch in await self._command("SMEMBERS", self._orphans):
            found = by_epoch[int(epoch)] = []
            key = f"{self._orphans}:{int(epoch)}"
            while part := await self._command("LRANGE", key, len(found), len(found) + CHUNK - 1):
                found.extend(map(_entry, part))
        if not by_epoch:
            return []
        status = await self.status()
        known = [entry for found in by_epoch.values() for entry in found]
        back = [e.offset for e in known if e.offset <= status.tail.offset and status.epoch_at(e.offset) == e.epoch]
        held: set[tuple[int, int, str]] = set()
        first = min(back, default=1)
        while first <= max(back, default=0) and (entries := await self.read(first)):
            held.update((entry.epoch, entry.offset, entry.digest) for entry in entries)
            first = entries[-1].offset + 1
        return orphan_batches(by_epoch, held)

    async def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        """See the port. What was orphaned twice is stored, and counted, twice."""
        check_numbers(epoch, upto_offset, from_offset)
        (count,) = await self._run("forget_orphans", (epoch, from_offset, upto_offset))
        return int(count)

    async def mark_amnesiac(self, incarnation: str) -> None:
        """See the port."""
        await self._run("mark_amnesiac", (incarnation,))

    async def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        """See the port. With the token that is already this store's (a repeated call) only the fence is raised."""
        check_numbers(1, fence)
        return _status(self.shard, await self._run("readmit", (self._channel, incarnation, fence, replaces is not None, replaces or "")))

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        """See the port. The shard's channel says where `committed` is now; read anyway every 250 ms in case a message was lost."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_ms / 1000
        ask = False
        while True:
            bell = self._bell  # before the read: what moves after it rings this very bell
            left = deadline - clock()
            heard = None if self._closed else self._heard
            if heard is not None and heard > committed_above:
                return heard
            if ask or heard is None or left <= 0:
                committed = int(await self._command("HGET", self._meta, "committed") or 0)
                left = deadline - clock()
                if committed > committed_above or left <= 0:
                    return committed
            if self._listener is None:
                self._listener = asyncio.create_task(self._listen(), name=f"journal-listener:{self.shard}")
            ask = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, REREAD_S)):
                    await bell.wait()
                    ask = False

    async def close(self) -> None:
        """Give the connection back. Idempotent; any later call is `JournalUnavailable`."""
        self._closed = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        if self._owns_client:
            await self._client.aclose()

    async def _run(self, name: str, header: Sequence[Any], body: Sequence[bytes] = ()) -> list[Any]:
        script = _script(name)
        arguments: tuple[bytes | str | int, ...] = (len(self._keys), *self._keys, _encode(header), *body)
        with self._in_time(name):
            try:
                reply = await self._line.run("EVALSHA", script.sha, *arguments, timeout_s=self._timeout_s)
            except NoScriptError:  # nothing ran
                await self._line.run("SCRIPT", "LOAD", script.text, timeout_s=self._timeout_s)
                reply = await self._line.run("EVALSHA", script.sha, *arguments, timeout_s=self._timeout_s)
        return cast(list[Any], reply)

    async def _command(self, *arguments: str | int) -> Any:
        with self._in_time(str(arguments[0])):
            return await self._line.run(*arguments, timeout_s=self._timeout_s)

    @contextlib.contextmanager
    def _in_time(self, what: str) -> Iterator[None]:
        if self._closed:
            raise JournalUnavailable(f"{what}: this journal is closed")
        try:
            yield
        except TimeoutError:
            raise JournalUnavailable(f"{what}: no answer from the store within {self._timeout_s:g} s") from None
        except (RedisError, OSError) as error:
            raise JournalUnavailable(f"{what}: {error}") from error

    def _granted(self, reply: list[Any]) -> Granted | Refused:
        status = _status(self.shard, reply)
        return Granted(status) if reply[0] == b"ok" else Refused(cast(Reason, reply[0].decode()), status)

    def _answer(self, reply: list[Any]) -> Accepted | Refused:
        if reply[0] != b"ok":
            return Refused(cast(Reason, reply[0].decode()), _status(self.shard, reply))
        _, verified, committed, fence, tail_epoch, tail_offset, incarnation = reply
        return Accepted(verified, committed, fence, Position(tail_epoch, tail_offset), incarnation.decode())

    def _ring(self, heard: int | None) -> None:
        self._heard = heard
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def _listen(self) -> None:
        """The one subscription of this journal; it rings also when it begins, for what was said before."""
        while True:
            pubsub = self._client.pubsub()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await pubsub.subscribe(self._channel)
                while True:
                    message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
                    self._ring(int(message["data"]) if message else None)
            except (RedisError, OSError, TimeoutError):
                pass  # waiters go on reading by themselves
            finally:
                self._heard = None
                with contextlib.suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(REREAD_S)
