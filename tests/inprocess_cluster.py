"""Three regions in one process, without sockets and Ray: real shard actors, replicas, routes and acceptors on watched memory stores.

A region's store outlives its actors. Messages between regions go through the real `HttpLinks` codec and the real
`Acceptor`, over wires that can be cut, slowed and made to deliver twice. `Cluster.check` holds every run against
the invariants of the protocol.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from inprocess_region import LINK_S, SHARD, Door, Links, Region, Running, Wire
from watched_log import Applied, Identity, Sent, Watch, check_history

from actors.messages import NoAuthority, SubmitResult, Unanswered, UnknownBoard
from actors.ports import Limits, ReplicaSpec, ShardSpec
from actors.replica import ReplicaActor
from actors.shard import ShardActor
from boards.identity import fingerprint
from boards.model import Outcome, Submission
from boards.policies import make_rules
from failover import replication
from failover.events import Role
from failover.state import Timing
from journal.ports import JournalUnavailable
from ledger.lmdb_ledger import LmdbLedger
from regions import routing
from regions.links import NotSent

REGIONS = ("eu", "us", "ap")
BEST, SUM = "arena:best:S1:all", "arena:sum:S1:all"
BOARDS = {BEST: make_rules("best_score", publish_interval_ms=20), SUM: make_rules("cumulative", publish_interval_ms=20)}
TIMING = Timing(
    heartbeat_ms=20,
    probe_timeout_ms=1000,
    grace_ms=30,
    seal_restart_ms=100,
    rest_ms=400,
    handover_timeout_ms=600,
    backoff_min_ms=20,
    backoff_max_ms=150,
    aside_failures=100,
)
LIMITS = Limits(ack_timeout_ms=1000, unreplicated_ms=600, grow_ms=4)
DEADLINE_S = 8.0


async def until(what: Callable[[], Any], why: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> Any:
    """Wait for a condition, or fail saying what was awaited."""
    deadline = time.monotonic() + deadline_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {why if isinstance(why, str) else why()}"
        await asyncio.sleep(0.004)
    return value


class Cluster:
    """See the module docstring. Use as an async context manager."""

    def __init__(self, path: Path, *, timing: Timing = TIMING, limits: Limits = LIMITS, mode: str = "quorum") -> None:
        self.path, self.timing, self.limits, self.mode = path, timing, limits, mode
        self.watch = Watch()
        self.wires = {(a, b): Wire() for a in REGIONS for b in REGIONS}
        self.regions: dict[str, Region] = {}
        self.clients: list[Sent] = []
        self.turn = 0
        #: How long a message is waited for: long until the first authority serves, so that it does so in epoch 1.
        self.patience_s = 1.5
        self.exits: list[tuple[str, str]] = []
        self.random = random.Random(7)
        self._flying: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "Cluster":
        for name in REGIONS:
            region = self.regions[name] = Region(self, name, self.path / name)
            spec = ReplicaSpec(region=name, shards={SHARD: "eu"}, store_url="", cursor_key=b"k")
            region.replica = ReplicaActor(spec, journals={SHARD: Door(region)})
            region.replica.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for region in self.regions.values():
            for running in list(region.instances):
                self._kill(region, running)
            if region.replica is not None:
                await region.replica.close()
        for task in self._flying:
            task.cancel()

    def __getitem__(self, name: str) -> Region:
        return self.regions[name]

    # -- faults

    def start(self, *names: str) -> None:
        """One more instance of the shard actor in each region."""
        for name in names or REGIONS:
            region = self.regions[name]
            door = Door(region)
            spec = ShardSpec(
                region=name,
                shard=SHARD,
                home="eu",
                regions=REGIONS,
                store_url="",
                ledger_path="",
                timing=self.timing,
                limits=self.limits,
                boards=BOARDS,
                mode=self.mode,
            )
            place = region.path / str(len(region.instances))
            place.mkdir(parents=True, exist_ok=True)
            ledger = LmdbLedger(place, map_size=64 << 20, reserve_bytes=0)
            actor = ShardActor(
                spec, journal=door, links=Links(self, name, door), ledger=ledger, exit_process=functools.partial(self._exited, region, door)
            )
            region.instances.append(Running(actor, door))
            actor.start()

    def _exited(self, region: Region, door: Door, why: str) -> None:
        for running in region.instances:
            if running.door is door:
                self.exits.append((region.name, why))
                self._kill(region, running)
                break

    def _kill(self, region: Region, running: Running) -> None:
        region.instances.remove(running)
        running.dead.set()
        actor = running.actor
        actor._closed = True
        actor._done = lambda task: None  # type: ignore[method-assign]
        for task in list(actor._tasks):
            task.cancel()
        actor.ledger.close()

    def crash(self, *names: str) -> None:
        """Kill all instances of these regions' actors in the middle of whatever they do; stores and messages under way live on."""
        for name in names:
            for running in list(self.regions[name].instances):
                self._kill(self.regions[name], running)

    def stop(self, *names: str) -> None:
        """Whole regions away: no actor, and a store that answers nobody."""
        for name in names:
            self.regions[name].up = False
        self.crash(*names)

    async def restart(self, *names: str) -> None:
        """Crash, and start again."""
        self.crash(*names)
        await asyncio.sleep(0)
        self.come_back(*names)

    def come_back(self, *names: str) -> None:
        """Store and actor of each region are there again."""
        for name in names:
            self.regions[name].up = True
        self.start(*names)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Messages from `a` to `b` are lost; and the other way round, unless `one_way`."""
        self.wires[a, b].cut = True
        if not one_way:
            self.wires[b, a].cut = True

    def isolate(self, name: str) -> None:
        """Cut one region off from all others."""
        for other in REGIONS:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """All wires are as new."""
        for pair in self.wires:
            self.wires[pair] = Wire()

    async def carry(self, sender: str, to: str, path: str, body: bytes, patience_s: float) -> bytes:
        """One message and its answer. It is delivered whether or not the sender still lives."""
        there, back, target = self.wires[sender, to], self.wires[to, sender], self.regions.get(to)
        if target is None or not target.up:
            await asyncio.sleep(0.005)
            raise NotSent(f"{to} is away")
        lost: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if there.cut or path in there.lost:
            answer: Awaitable[bytes] = lost
        else:
            answer = self._fly(self._deliver(there, target, path, body))
            if there.again_after_s is not None:
                self._fly(self._deliver(Wire(delay_s=there.delay_s + there.again_after_s), target, path, body))
        try:
            async with asyncio.timeout(patience_s):
                reply = await asyncio.shield(answer)
                if back.cut or f"{path} reply" in back.lost:
                    await lost
                if back.delay_s:
                    await asyncio.sleep(back.delay_s * self.random.random())
                return reply
        except JournalUnavailable as error:
            raise TimeoutError(str(error)) from None

    def _fly(self, work: Any) -> "asyncio.Task[bytes]":
        task: asyncio.Task[bytes] = asyncio.get_running_loop().create_task(work)
        self._flying.add(task)
        task.add_done_callback(self._landed)
        return task

    def _landed(self, task: "asyncio.Task[bytes]") -> None:
        self._flying.discard(task)
        if not task.cancelled():
            task.exception()

    async def _deliver(self, wire: Wire, target: Region, path: str, body: bytes) -> bytes:
        if wire.delay_s:
            await asyncio.sleep(wire.delay_s * self.random.random())
        return await target.acceptor._dispatch(path, body)

    # -- what clients do

    async def send(self, through: str, *events: Sent, direct: bool = False, to: Running | None = None) -> list[SubmitResult]:
        """Submit events of one board through a region's gateway (or straight to its actor, or to this one), and note what came of each."""
        submissions = [Submission(s.event_id, s.player, s.amount, 1000, 1000, _content(s.amount)) for s in events]
        region = self.regions[through]
        try:
            if direct or to is not None:
                running = to or region._newest()
                results = await region._alive(running, running.actor.submit(events[0].board, submissions, "tests"))
            else:
                results = await region.route.submit(events[0].board, submissions, "tests")
        except (TimeoutError, NoAuthority, UnknownBoard) as error:
            for sent in events:
                if isinstance(error, Unanswered) and error.definite:
                    sent.refusals.append(error.code)
                else:
                    sent.unknowns += 1
            return []
        self.turn += 1
        for sent, result in zip(events, results, strict=True):
            if result.outcome == Outcome.UNKNOWN:
                sent.unknowns += 1
            elif sent.result is None:
                sent.acked, sent.result = self.turn, result
        return list(results)

    def event(self, amount: int = 1, *, player: str = "", board: str = SUM, event_id: str = "") -> Sent:
        """A new event of a client; nothing is sent yet."""
        self.turn += 1
        number = len(self.clients)
        sent = Sent(board=board, player=player or f"p{number % 7}", event_id=event_id or f"e{number}", amount=amount, sent=self.turn)
        self.clients.append(sent)
        return sent

    async def write(self, count: int = 1, *, through: str = "eu", board: str = SUM) -> list[Sent]:
        """Events that must be acknowledged, one after the other."""
        done = []
        for _ in range(count):
            sent = self.event(self.random.randint(0, 50), board=board)
            await self.send(through, sent)
            assert sent.result is not None, sent
            done.append(sent)
        return done

    async def load(self, stop: asyncio.Event, *, through: Sequence[str] = REGIONS) -> None:
        """Clients in several regions that send until `stop`, each retrying with the same id until it is answered."""

        async def client(region: str) -> None:
            while not stop.is_set():
                sent = self.event(self.random.randint(0, 50), board=self.random.choice((BEST, SUM)))
                while sent.result is None and not stop.is_set():
                    await self.send(region, sent)
                    await asyncio.sleep(0.004)

        await asyncio.gather(*(client(region) for region in through))

    async def retry(self, through: str) -> None:
        """Send everything unanswered again, with the same ids, until all is answered."""

        async def answered() -> bool:
            for sent in self.clients:
                if sent.result is None:
                    await self.send(through, sent)
            return all(sent.result is not None for sent in self.clients)

        deadline = time.monotonic() + DEADLINE_S
        while not await answered():
            assert time.monotonic() < deadline, [s for s in self.clients if s.result is None][:3]

    # -- what is awaited, and what must hold

    def authorities(self) -> list[str]:
        """Regions that serve now, once for each instance that does."""
        every = [(r.name, i.actor) for r in self.regions.values() for i in r.instances]
        return [name for name, actor in every if actor.state.role is Role.AUTHORITY and actor.writer is not None]

    async def authority(self, expected: str = "", *, above: int = 0) -> str:
        """Wait until exactly one instance serves (in region `expected`, in an epoch above `above`)."""

        def found() -> bool:
            serving = self.authorities()
            if len(serving) != 1 or (expected and serving != [expected]):
                return False
            actor = self[serving[0]].actor
            return actor.state.epoch > above and all(actor.ledger.board(board) for board in BOARDS)

        await until(found, lambda: f"one authority {expected}: {self.told()}")
        self.patience_s = LINK_S
        return self.authorities()[0]

    def told(self) -> dict[str, Any]:
        """Everything's state in short, for messages of failed tests."""
        states = {r.name: [i.actor.state for i in r.instances] for r in self.regions.values()}
        return {
            r.name: ([(s.role.value, s.epoch, s.why) for s in states[r.name]], r.log.tail, r.log.committed, r.log._fence)
            for r in self.regions.values()
        }

    def epochs(self) -> list[tuple[int, str]]:
        """(epoch, owner) of each epoch that the most advanced log holds."""
        log = max((r.log for r in self.regions.values()), key=lambda log: log.tail)
        return [(term.epoch, term.owner) for term in log.status().terms]

    async def force(self, to: str, expect: tuple[int, str] | None = None) -> dict[str, Any]:
        """An operator's forced failover."""
        return await self.regions[to].actor.moving.activate("forced", "operator", expect, timeout_s=3.0)

    async def check(self, *, missing: Mapping[str, str] | None = None) -> dict[Identity, Applied]:
        """Wait until all regions but the `missing` (with the reason) agree, then hold everything against the invariants."""
        present = [r for r in self.regions.values() if r.name not in (missing or {})]
        owner = await self.authority()

        def settled() -> bool:
            tail = self[owner].log.tail
            return self.authorities() == [owner] and all(
                r.log.tail == tail
                and r.log.committed == tail.offset
                and r.replica is not None
                and r.replica.shards[SHARD].applied == tail
                and (not r.instances or r.actor.ledger.applied == tail)
                and not self[owner].actor.ledger.unpublished()
                for r in present
            )

        await until(settled, lambda: f"all regions agree: {self.told()}")
        events = check_history({r.name: r.log for r in self.regions.values()}, self.watch, self.clients, owner)
        self._check_generations(present)
        broken = [exit_ for exit_ in self.exits if "superseded" not in exit_[1]]
        assert not broken, broken
        return events

    def _check_generations(self, present: list[Region]) -> None:
        """I8, I11: a generation is the same in every region, and so is the ledger."""
        known: dict[tuple[str, int], Any] = {}
        for region in present:
            assert region.replica is not None
            fold = region.replica.shards[SHARD]
            assert not fold.rebuilds or region.name in self.watch.cut, fold.alarm
            for board in fold.boards.values():
                for g in board.generations:
                    place = (board.info.board_id, g.number)
                    what = (g.epoch, g.boundary, g.published_ms, g.checksum, g.count)
                    assert known.setdefault(place, what) == what, f"I11: {place}"
            if region.instances:
                for state in region.actor.ledger.boards().values():
                    ledger = ("ledger", state.board_id, state.checksum, state.count, state.generation)
                    assert known.setdefault((f"ledger {state.board_id}", 0), ledger) == ledger, f"I8: {region.name}"


def _content(amount: int) -> bytes:
    return fingerprint(kind="value", amount=amount, achieved_ms=1000, submitted_ms=1000)


def tell(path: Path, story: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    """Run one story on a fresh cluster, with back-off and hold times in proportion to its short timing."""

    async def whole() -> None:
        async with Cluster(path, **settings) as cluster:
            await story(cluster)

    with (
        mock.patch.object(replication, "BACKOFF_MIN_MS", 10),
        mock.patch.object(replication, "BACKOFF_MAX_MS", 80),
        mock.patch.object(routing, "HOLD_S", 0.5),
    ):
        asyncio.run(whole())
