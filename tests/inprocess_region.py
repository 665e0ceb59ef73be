"""One region in one process: its watched stores, its actors, replica, routes and acceptor, and the wires to the others.

A region has a store and actors for each shard (`Part`); what is said of a region without naming a shard is about the first
one. An actor reaches its store through a `Door` of its own, so that one instance can sleep or die while another lives.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from watched_log import Watch, WatchedLog

from actors import orders
from actors.messages import Batch, BoardInfo, Unanswered, to_wire
from actors.shard import ShardActor, decode_submit
from boards.model import Layout
from failover.events import Role
from journal.memory import MemoryJournal
from journal.ports import Accepted, Append, Granted, JournalStatus, JournalUnavailable, OrphanBatch, Peer, Position, Refused, Seal
from journal.records import Entry
from regions.bundling import Bundles
from regions.granting import Granting
from regions.link_server import Acceptor
from regions.links import HttpLinks
from regions.routing import Authorities, Directory, ShardRoute
from regions.spreading import BoardWrites

if TYPE_CHECKING:
    from inprocess_cluster import Cluster

    from actors.replica import ReplicaActor

SHARD = "eu/0"
#: After so long a message without an answer is unknown.
LINK_S = 0.15

_encode = msgspec.msgpack.Encoder().encode


class Store(Protocol):
    """What a door opens to: a region's store of one shard."""

    @property
    def name(self) -> str:
        """The region's."""
        ...

    @property
    def up(self) -> bool:
        """Whether it answers."""
        ...

    @property
    def store(self) -> MemoryJournal:
        """What is behind the door."""
        ...


class Door:
    """One actor's way to its region's store: shut while it sleeps, gone when it died, unanswered while the store is down."""

    def __init__(self, region: Store) -> None:
        self._region = region
        self.awake = asyncio.Event()
        self.awake.set()
        #: Methods that never answer here.
        self.blocked: set[str] = set()
        #: So many of the next appends are carried out without an answer.
        self.answers_to_lose = 0
        self.appends = 0
        #: Appends without an entry that were asked for.
        self.news = 0

    async def _open(self, what: str = "") -> MemoryJournal:
        await self.awake.wait()
        while what in self.blocked:
            await asyncio.sleep(0.005)
        if not self._region.up:
            await asyncio.sleep(0.01)
            raise JournalUnavailable(f"the store of {self._region.name} is down")
        return self._region.store

    async def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        self.news += not entries
        store = await self._open("append" if entries else "")
        answer = await store.append(epoch=epoch, attempt=attempt, expected=expected, entries=entries, committed=committed, peers=peers)
        self.appends += bool(entries)
        if entries and self.answers_to_lose:
            self.answers_to_lose -= 1
            raise JournalUnavailable("the answer was lost")
        return answer

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        store = await self._open()
        return await store.wait_for(committed_above=committed_above, timeout_ms=min(timeout_ms, 50))

    async def status(self) -> JournalStatus:
        return await (await self._open()).status()

    async def accept(self, message: Append) -> Accepted | Refused:
        return await (await self._open()).accept(message)

    async def seal(self, message: Seal) -> Any:
        return await (await self._open()).seal(message)

    async def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        return await (await self._open()).adopt(epoch=epoch, attempt=attempt, expected=expected, keep=keep, entries=entries)

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        return await (await self._open()).read(first, limit=limit, max_bytes=max_bytes)

    async def orphans(self) -> list[OrphanBatch]:
        return await (await self._open()).orphans()

    async def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        return await (await self._open()).forget_orphans(epoch, upto_offset, from_offset=from_offset)

    async def mark_amnesiac(self, incarnation: str) -> None:
        await (await self._open()).mark_amnesiac(incarnation)

    async def take_acceptor(self, token: str) -> JournalStatus:
        return await (await self._open()).take_acceptor(token)

    async def renew(self, *, epoch: int, attempt: str, acceptor: str, lease_ms: int) -> Granted | Refused:
        return await (await self._open()).renew(epoch=epoch, attempt=attempt, acceptor=acceptor, lease_ms=lease_ms)

    async def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        return await (await self._open()).readmit(incarnation=incarnation, fence=fence, replaces=replaces)

    async def close(self) -> None:
        """Nothing to give back: the store is the region's."""


@dataclass(slots=True)
class Wire:
    """One direction between two regions."""

    cut: bool = False
    delay_s: float = 0.0
    #: Each message is delivered a second time, this much later.
    again_after_s: float | None = None
    #: Kinds of messages that are lost (`append`, `seal`, ...) while the others pass.
    lost: set[str] = field(default_factory=set)


class Links(HttpLinks):
    """The real codec over the wires of the cluster."""

    def __init__(self, cluster: "Cluster", region: str, door: Door | None) -> None:
        unused: Any = None  # the fault table: these wires have faults of their own
        super().__init__(region, {}, "", unused, timeout_s=LINK_S)
        self._cluster, self._door = cluster, door
        self.sent: list[str] = []

    async def close(self) -> None:
        """Nothing to close."""

    async def call(self, peer: str, path: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        if self._door is not None:
            await self._door.awake.wait()
        patience = timeout_s if path in ("drain", "submit", "operate") and timeout_s else self._cluster.patience_s
        self.sent.append(path)
        return await self._cluster.carry(self._region, peer, path, body, patience)


@dataclass(slots=True)
class Running:
    """One instance of a region's shard actor."""

    actor: ShardActor
    door: Door
    dead: asyncio.Event = field(default_factory=asyncio.Event)


class Part:
    """One shard in one region: its store, the instances of its actor, and the gateway's way to it."""

    def __init__(self, region: "Region", shard: str) -> None:
        self.region, self.shard, self.name = region, shard, region.name
        self.log = WatchedLog(shard, region.name, region.cluster.watches[shard])
        self.store = MemoryJournal(self.log)
        self.instances: list[Running] = []
        self.route = ShardRoute(shard, region.authorities)

    @property
    def up(self) -> bool:
        """Whether the region's stores answer."""
        return self.region.up

    @property
    def actor(self) -> ShardActor:
        """The newest instance."""
        return self.instances[-1].actor

    @property
    def door(self) -> Door:
        """The newest instance's door."""
        return self.instances[-1].door

    @property
    def role(self) -> Role | None:
        """Role of the newest instance; None when there is none."""
        return self.actor.state.role if self.instances else None

    @property
    def watch(self) -> Watch:
        """What all stores of this shard were seen to do."""
        return self.region.cluster.watches[self.shard]

    def swap(self, log: WatchedLog) -> None:
        """Another store in the place of this one: an earlier copy, or an empty one."""
        self.log = self.store.log = log
        self.watch.cut[self.name] = {(e.epoch, e.offset, e.digest): e for batch in log.orphans() for e in batch.entries}

    def newest(self) -> Running:
        """The instance that calls reach. Raises TimeoutError where there is none."""
        if not self.up or not self.instances:
            raise TimeoutError(f"no actor of {self.shard} in {self.name} answers")
        return self.instances[-1]

    async def alive(self, running: Running, work: Awaitable[Any]) -> Any:
        """What an actor answers, unless it dies before it does."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(running.dead.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not running.dead.is_set():
                return task.result()
            raise TimeoutError(f"the actor of {self.shard} in {self.name} died")
        finally:
            # Cancelled replies that were gathered are an exception that somebody has to take: told at some later collection, in the
            # middle of whatever runs then, their traceback is parsed, and a parser that is interrupted by another one fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.cancel()
            death.cancel()


class Region:
    """A region's parts, its replica, its acceptor and its gateway's routes."""

    def __init__(self, cluster: "Cluster", name: str, path: Path) -> None:
        self.cluster, self.name, self.path = cluster, name, path
        self.up = True
        self.directory = Directory()
        self.links = Links(cluster, name, None)
        self.authorities = Authorities(name, self.directory, self, self.links, call_timeout_s=1.5)
        self.parts = {shard: Part(self, shard) for shard in cluster.shards}
        self.first = next(iter(self.parts.values()))
        doors = {shard: Door(part) for shard, part in self.parts.items()}
        unused: Any = None  # tokens and fault table: messages are handed to it behind both
        self.acceptor = Acceptor(
            region=name,
            journals=doors,
            shards=self,
            verifier=unused,
            faults=unused,
            granting=Granting({shard: Door(part) for shard, part in self.parts.items()}),
            on_authority=self.directory.learn,
        )
        routes = {shard: part.route for shard, part in self.parts.items()}
        self.writes = BoardWrites(routes, Bundles(routes, self.authorities), self.board, self.directory.news)
        self.replica: ReplicaActor | None = None

    def __getitem__(self, shard: str) -> Part:
        return self.parts[shard]

    def board(self, board_id: str) -> BoardInfo | None:
        """A board as the followers of this region know it: in the newest layout whose slices take events."""
        found: BoardInfo | None = None
        for part in self.parts.values():
            if not part.instances:
                continue
            for state in [state for n in part.actor.ledger.numbers(board_id) if (state := part.actor.ledger.numbered(n)) is not None]:
                if state.phase in ("importing", "removing"):
                    continue
                layout = state.layout or Layout(1, (part.shard,))
                if state.phase == "moved" and state.target is not None:
                    layout = state.target
                if found is None or layout.number > found.layout_in_effect.number:
                    found = BoardInfo(
                        board_id=board_id,
                        number=state.number,
                        incarnation=state.incarnation,
                        shard=layout.lead,
                        home=self.cluster.shards[layout.lead],
                        rules=state.rules,
                        generation=state.generation,
                        count=state.count,
                        layout=layout,
                    )
        return found

    # -- the actors of this region, as its gateway and its acceptor reach them

    def _newest(self) -> Running:
        return self.first.newest()

    async def _alive(self, running: Running, work: Awaitable[Any]) -> Any:
        return await self.first.alive(running, work)

    async def submit(self, payload: bytes) -> bytes:
        replies = await asyncio.gather(*(self._submit(shard, batches) for shard, batches in decode_submit(payload)))
        return _encode(replies)

    async def _submit(self, shard: str, batches: list[Batch]) -> list[Any]:
        part = self.parts[shard]
        running = part.newest()

        async def one(batch: Batch) -> Any:
            try:
                return await running.actor.submit_later(batch)
            except Unanswered as error:
                return to_wire(error)

        replies: list[Any] = await part.alive(running, asyncio.gather(*map(one, batches)))
        return replies

    async def drain(self, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        part = self.parts[shard]
        running = part.newest()
        offset: int | None = await part.alive(running, running.actor.moving.drain(epoch, to, asked_by))
        return offset

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        part = self.parts[shard]
        running = part.newest()
        reply: dict[str, Any] = await part.alive(running, orders.operate(running.actor, order))
        return reply

    # -- the first shard's part, for stories with one

    @property
    def log(self) -> WatchedLog:
        """Its store's."""
        return self.first.log

    @property
    def store(self) -> MemoryJournal:
        """Its store."""
        return self.first.store

    @property
    def instances(self) -> list[Running]:
        """Of its actor."""
        return self.first.instances

    @property
    def route(self) -> ShardRoute:
        """The gateway's way to it."""
        return self.first.route

    @property
    def actor(self) -> ShardActor:
        """The newest instance."""
        return self.first.actor

    @property
    def door(self) -> Door:
        """The newest instance's door."""
        return self.first.door

    @property
    def role(self) -> Role | None:
        """Role of the newest instance; None when there is none."""
        return self.first.role

    def swap(self, log: WatchedLog) -> None:
        """See `Part.swap`."""
        self.first.swap(log)
