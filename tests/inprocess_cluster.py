"""Three regions in one process, without sockets and Ray: real shard actors, replicas, routes and acceptors on watched memory stores.

One shard, or several (`shards=`); a call that names none is about the first. A region's store outlives its actors.
Messages between regions go through the real `HttpLinks` codec and the real `Acceptor`, over wires that can be cut, slowed
and made to deliver twice. `Cluster.check` holds every run against the invariants of the protocol.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import msgspec
from inprocess_region import LINK_S, SHARD, Door, Links, Part, Region, Running, Wire
from watched_log import Applied, Identity, Sent, Watch, check_history

from actors.messages import Batch, NoAuthority, SubmitResult, Unanswered, UnknownBoard
from actors.ports import Limits, ReplicaSpec, ShardSpec
from actors.shard import ShardActor
from boards.identity import fingerprint
from boards.model import BoardRules, Layout, Outcome, Submission
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
BOARDS = {BEST: make_rules("best_score", publish_interval_ms=50), SUM: make_rules("cumulative", publish_interval_ms=50)}
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
LIMITS = Limits(ack_timeout_ms=1000, unreplicated_ms=600, group_ms=4)
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

    def __init__(
        self,
        path: Path,
        *,
        timing: Timing = TIMING,
        limits: Limits = LIMITS,
        mode: str = "quorum",
        shards: Mapping[str, str] = MappingProxyType({SHARD: "eu"}),
        boards: Mapping[str, tuple[BoardRules, Sequence[str]]] | None = None,
        replicas: bool = True,
    ) -> None:
        """`shards`: home of each; `boards`: rules and shards of each board of the configuration (default: `BOARDS`, on the first shard)."""
        self.path, self.timing, self.limits, self.mode = path, timing, limits, mode
        self.shards, self.first, self.replicas = dict(shards), next(iter(shards)), replicas
        self.boards = {board_id: (rules, (self.first,)) for board_id, rules in BOARDS.items()} if boards is None else dict(boards)
        self.watches = {shard: Watch() for shard in shards}
        self.watch = self.watches[self.first]
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
            if self.replicas:
                region.replica = _replica(region)
                region.replica.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for region in self.regions.values():
            for part in region.parts.values():
                for running in list(part.instances):
                    self._kill(part, running)
            if region.replica is not None:
                await region.replica.close()
        for task in self._flying:
            task.cancel()

    def __getitem__(self, name: str) -> Region:
        return self.regions[name]

    # -- faults

    def start(self, *names: str, shards: Sequence[str] = ()) -> None:
        """One more instance of the actor of each shard (or of these) in each region (or in these)."""
        for name in names or REGIONS:
            for shard in shards or self.shards:
                self._start(self.regions[name].parts[shard])

    def _start(self, part: Part) -> None:
        door = Door(part)
        spec = ShardSpec(
            region=part.name,
            shard=part.shard,
            home=self.shards[part.shard],
            regions=REGIONS,
            store_url="",
            ledger_path="",
            timing=self.timing,
            limits=self.limits,
            boards={b: (rules, Layout(1, tuple(shards))) for b, (rules, shards) in self.boards.items() if shards[0] == part.shard},
            mode=self.mode,
        )
        place = part.region.path / part.shard.replace("/", "-") / str(len(part.instances))
        place.mkdir(parents=True, exist_ok=True)
        ledger = LmdbLedger(place, map_size=64 << 20, reserve_bytes=0)
        links = Links(self, part.name, door)
        actor = ShardActor(spec, journal=door, links=links, ledger=ledger, exit_process=functools.partial(self._exited, part, door))
        part.instances.append(Running(actor, door))
        actor.start()

    def _exited(self, part: Part, door: Door, why: str) -> None:
        for running in part.instances:
            if running.door is door:
                self.exits.append((part.name, why))
                self._kill(part, running)
                break

    def _kill(self, part: Part, running: Running) -> None:
        part.instances.remove(running)
        running.dead.set()
        actor = running.actor
        actor._closed = True
        actor._done = lambda task: None  # type: ignore[method-assign]
        for task in list(actor._tasks):
            task.cancel()
        actor.ledger.close()

    def crash(self, *names: str, shards: Sequence[str] = ()) -> None:
        """Kill all instances of these regions' actors in the middle of whatever they do; stores and messages under way live on."""
        for name in names:
            for shard in shards or self.shards:
                part = self.regions[name].parts[shard]
                for running in list(part.instances):
                    self._kill(part, running)

    def stop(self, *names: str) -> None:
        """Whole regions away: no actor, and a store that answers nobody."""
        for name in names:
            self.regions[name].up = False
        self.crash(*names)

    async def restart(self, *names: str, shards: Sequence[str] = ()) -> None:
        """Crash, and start again."""
        self.crash(*names, shards=shards)
        await asyncio.sleep(0)
        self.come_back(*names, shards=shards)

    def come_back(self, *names: str, shards: Sequence[str] = ()) -> None:
        """Store and actor of each region are there again."""
        for name in names:
            self.regions[name].up = True
        self.start(*names, shards=shards)

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
            elif len(self.shards) == 1:
                results = await region.route.submit(Batch(events[0].board, "tests", submissions))
            else:
                info = region.board(events[0].board)
                if info is None:
                    raise UnknownBoard(f"{through} does not know {events[0].board}")
                found = await region.writes.submit(info, submissions, "tests")
                results = [r if r.shard or r.code else msgspec.structs.replace(r, shard=info.shard) for r in found]
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

    def authorities(self, shard: str = "") -> list[str]:
        """Regions that serve a shard now, once for each instance that does."""
        every = [(r.name, i.actor) for r in self.regions.values() for i in r[shard or self.first].instances]
        return [name for name, actor in every if actor.state.role is Role.AUTHORITY and actor.writer is not None]

    async def authority(self, expected: str = "", *, above: int = 0, shard: str = "") -> str:
        """Wait until exactly one instance serves the shard (in region `expected`, in an epoch above `above`)."""
        shard = shard or self.first

        def found() -> bool:
            serving = self.authorities(shard)
            if len(serving) != 1 or (expected and serving != [expected]):
                return False
            actor = self[serving[0]][shard].actor
            led = [board for board, (_, shards) in self.boards.items() if shards[0] == shard]
            return actor.state.epoch > above and all(actor.ledger.board(board) or actor.ledger.gone(board) for board in led)

        await until(found, lambda: f"one authority {expected} of {shard}: {self.told(shard)}")
        if all(self.authorities(other) for other in self.shards):
            self.patience_s = LINK_S
        return self.authorities(shard)[0]

    async def all_authorities(self) -> dict[str, Part]:
        """Wait until each shard has one authority; the parts that serve, by shard."""
        return {shard: self[await self.authority(shard=shard)][shard] for shard in self.shards}

    def told(self, shard: str = "") -> dict[str, Any]:
        """A shard's state everywhere in short, for messages of failed tests."""
        parts = [region[shard or self.first] for region in self.regions.values()]
        return {
            p.name: (
                [(i.actor.state.role.value, i.actor.state.epoch, i.actor.state.why) for i in p.instances],
                p.log.tail,
                p.log.committed,
                p.log._fence,
            )
            for p in parts
        }

    def epochs(self) -> list[tuple[int, str]]:
        """(epoch, owner) of each epoch that the most advanced log holds."""
        log = max((r.log for r in self.regions.values()), key=lambda log: log.tail)
        return [(term.epoch, term.owner) for term in log.status().terms]

    async def force(self, to: str, expect: tuple[int, str] | None = None) -> dict[str, Any]:
        """An operator's forced failover."""
        return await self.regions[to].actor.moving.activate("forced", "operator", expect, timeout_s=3.0)

    async def check(self, *, missing: Mapping[str, str] | None = None, moved: bool = False) -> dict[Identity, Applied]:
        """Wait until all regions but the `missing` (with the reason) agree, then hold everything against the invariants.

        `moved`: a board has moved from shard to shard, so that no journal alone tells what clients were told; that is left out.
        """
        present = [r for r in self.regions.values() if r.name not in (missing or {})]
        events: dict[Identity, Applied] = {}
        for shard in self.shards:
            owner = await self.authority(shard=shard)
            await until(
                functools.partial(self._settled, shard, owner, present),
                functools.partial(self._disagreement, shard),
            )
            clients = [s for s in self.clients if s.result is not None and (s.result.shard or self.first) == shard]
            if not moved:
                events |= check_history({r.name: r[shard].log for r in self.regions.values()}, self.watches[shard], clients, owner)
        self._check_generations(present)
        broken = [exit_ for exit_ in self.exits if "superseded" not in exit_[1]]
        assert not broken, broken
        return events

    def _disagreement(self, shard: str) -> str:
        return f"all regions agree on {shard}: {self.told(shard)}"

    def _settled(self, shard: str, owner: str, present: Sequence[Region]) -> bool:
        tail = self[owner][shard].log.tail
        return self.authorities(shard) == [owner] and all(
            r[shard].log.tail == tail
            and r[shard].log.committed == tail.offset
            and (r.replica is None or r.replica.shards[shard].applied == tail)
            and (not r[shard].instances or r[shard].actor.ledger.applied == tail)
            and not self[owner][shard].actor.ledger.unpublished()
            for r in present
        )

    def _check_generations(self, present: list[Region]) -> None:
        """I8, I11: a generation is the same in every region, and so is the ledger."""
        known: dict[tuple[str, str, int], Any] = {}
        for region in present:
            if region.replica is not None:
                self._check_replica(region, known)
            for part in region.parts.values():
                for state in part.actor.ledger.boards().values() if part.instances else ():
                    what = (state.board_id, state.checksum, state.count, state.generation, state.phase)
                    assert known.setdefault(("ledger", part.shard, state.number), what) == what, f"I8: {region.name}"

    def _check_replica(self, region: Region, known: dict[tuple[str, str, int], Any]) -> None:
        assert region.replica is not None
        for shard, fold in region.replica.shards.items():
            assert not fold.rebuilds or region.name in self.watches[shard].cut, fold.alarm
        for series in region.replica.fold.boards.values():
            for g in series.generations.values():
                what = (g.proposal, g.boundaries)
                assert known.setdefault(("shown", series.board_id, g.number), what) == what, f"I11: {series.board_id} {g.number}"


def _replica(region: Region) -> Any:
    from actors.replica import ReplicaActor

    spec = ReplicaSpec(region=region.name, shards=dict(region.cluster.shards), store_url="", cursor_key=b"k")
    return ReplicaActor(spec, journals={shard: Door(part) for shard, part in region.parts.items()})


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
