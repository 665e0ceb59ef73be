"""The one file that calls `ray.remote`: how the plain classes become actors, and how a gateway calls them.

Every actor: no CPU reserved (they share the region's cores), restarted for ever, calls never re-executed
(`max_task_retries=0`: an error means that the outcome is unknown, and identities make a retry safe). Results
travel as bytes, with expected errors inside, so that no exception has to survive the way.
"""

import asyncio
import functools
import gc
import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError, RayTaskError

from actors import orders, precedence
from actors.channel import Address, Asking, connect, listen
from actors.gateway import GatewayActor
from actors.messages import Answer, Ask, Batch, NoAuthority, SubmitResult, Unanswered, WireError, to_wire
from actors.replica import News, ReplicaActor
from actors.replica_pool import ReplicaPool
from actors.shard import ShardActor, decode_submit

log = logging.getLogger("laurel.actors")

#: A Ray actor handle; Ray's stubs type its methods only where the class is decorated in place.
Handle = Any

_encode = msgspec.msgpack.Encoder().encode
_asks = msgspec.msgpack.Decoder(list[Ask])
_answers = msgspec.msgpack.Decoder(list[Answer | WireError])
_news = msgspec.msgpack.Decoder(News)
_parts = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])

#: Seconds after which a call to an actor of this region counts as unanswered.
CALL_S = 8.0


#: Pause before an actor's socket is looked for again.
RECONNECT_S = 1.0

#: Set for each node of a region by what starts it; 1 is the head.
NODE_NUMBER = "LAUREL_NODE"


def node_number() -> int:
    """Number of the node that this process runs on, within its region."""
    return int(os.environ.get(NODE_NUMBER, "1"))


def exit_process(why: str) -> None:
    """End this worker at once; Ray makes the actor anew. Nothing is flushed: what matters is durable elsewhere."""
    log.error("this actor ends: %s", why)
    logging.shutdown()
    os._exit(1)


def _make(factory: str, *arguments: Any, niceness: int | None = None) -> Any:
    """Import and run an actor's factory (`module:function`). Ray never restarts an actor whose constructor raised,
    so a failure ends the process. `niceness`: see `actors.precedence`."""
    log_file = os.environ.get("LAUREL_ACTOR_LOG")
    logging.basicConfig(
        level=logging.INFO, filename=log_file, format="%(asctime)s %(levelname)s %(process)d %(name)s %(message)s", force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if niceness is not None:
        precedence.go_first(niceness)
    module, _, function = factory.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)(*arguments)
        _spare_the_collector()
        return made
    except BaseException:
        log.exception("the actor could not be made")
        time.sleep(0.5)
        exit_process("its constructor failed")
        raise


def _spare_the_collector() -> None:
    """What is loaded by now stays, and events come by the thousand and leave no cycles: Python's defaults would spend
    a fifth of all CPU on looking for some."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class ShardWorker:
    """One or more `actors.shard.ShardActor` in a worker process, by shard."""

    def __init__(self, factory: str, *arguments: Any) -> None:
        self.actors: dict[str, ShardActor] = _make(factory, *arguments)
        for actor in self.actors.values():
            actor.start()
        self._listening = asyncio.get_running_loop().create_task(listen(self.submit))

    async def channel(self) -> Address | None:
        """Where gateways of the same machine submit, see `actors.channel`."""
        listening = await self._listening
        return None if listening is None else listening.address

    async def submit(self, payload: bytes) -> bytes:
        """Joined requests (`actors.messages.Batch`) by shard, all of this process -> for each shard, when all have answered, what came of
        its requests: for each a list of results, or an error as a map."""
        waiting = [_submitted(self.actors[shard], batches) for shard, batches in decode_submit(payload)]
        return _encode([await _results(each) for each in waiting])

    async def drain(self, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """See `ShardActor.drain`."""
        return await self.actors[shard].moving.drain(epoch, to, asked_by)

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """See `actors.orders.operate`."""
        return await orders.operate(self.actors[shard], order)

    async def status(self) -> dict[str, dict[str, Any]]:
        """See `ShardActor.status`; and the node."""
        return {shard: {**actor.status(), "node": node_number()} for shard, actor in self.actors.items()}


def unanswered(count: int, why: str) -> list[WireError]:
    """Replies to so many requests of which nobody knows what became."""
    return [to_wire(NoAuthority(why, code="unknown", definite=False))] * count


_Submitted = list[asyncio.Future[list[SubmitResult]] | WireError]


def _submitted(actor: ShardActor, batches: list[Batch]) -> _Submitted:
    waiting: _Submitted = []
    for batch in batches:
        try:
            waiting.append(actor.submit_later(batch))
        except Unanswered as error:
            waiting.append(to_wire(error))
    return waiting


async def _results(waiting: _Submitted) -> list[list[SubmitResult] | WireError]:
    replies: list[list[SubmitResult] | WireError] = []
    for answer in waiting:
        try:
            replies.append(answer if isinstance(answer, WireError) else await answer)
        except Unanswered as error:
            replies.append(to_wire(error))
    return replies


class ReplicaWorker:
    """`actors.replica.ReplicaActor` in a worker process."""

    def __init__(self, factory: str, *arguments: Any) -> None:
        self.actor: ReplicaActor = _make(factory, *arguments, niceness=precedence.REPLICA)
        self.actor.start()
        self._listening = asyncio.get_running_loop().create_task(listen(self.ask))

    async def channel(self) -> Address | None:
        """Where gateways of the same machine ask, see `actors.channel`."""
        listening = await self._listening
        return None if listening is None else listening.address

    async def ask(self, payload: bytes) -> bytes:
        """Questions -> for each an answer, or an error as a value, in order."""
        return _encode(await self.actor.ask_all(_asks.decode(payload)))

    async def news(self, since: int) -> bytes:
        """See `ReplicaActor.news`."""
        return _encode(await self.actor.news(since))

    async def status(self) -> dict[str, Any]:
        """See `actors.replica_pool.ReplicaCalls.status`."""
        return {"node": node_number(), "shards": self.actor.status()}

    async def place(self) -> tuple[int, bool]:
        """Number of its node, and whether it serves all shards."""
        return node_number(), all(facts["serving"] for facts in self.actor.status().values())


class GatewayWorker:
    """`actors.gateway.GatewayActor` in a worker process."""

    def __init__(self, factory: str, spec: Any, shards: dict[str, list[str]], replicas: list[str], gateways: list[str]) -> None:
        """`shards`: by the name of the actor that they are in. `gateways` are the region's other ones, by name; they may start later."""
        handles = LocalHandles(
            {name: (ray.get_actor(name), held) for name, held in shards.items()},
            {name: ray.get_actor(name) for name in replicas},
            {name: functools.partial(ray.get_actor, name) for name in gateways},
            # Less than another region's gateway waits for this one, so that it hears of the shards that did answer.
            call_s=min(CALL_S, spec.ack_timeout_ms / 1000 + 1),
        )
        self.actor = GatewayActor(_make(factory, spec, handles, niceness=precedence.GATEWAY), exit_process)
        self.actor.start()

    async def health(self) -> dict[str, Any]:
        """See `GatewayActor.health`; and the node."""
        return {**self.actor.health(), "node": node_number()}

    async def silence(self) -> dict[str, int]:
        """See `GatewayActor.silence`."""
        return self.actor.silence()


async def _await(call: Callable[[], Any], timeout_s: float) -> Any:
    """The result of a call to an actor; TimeoutError means that its outcome is unknown."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call()
    except RayError as error:
        if isinstance(error, RayTaskError):
            # It answered with an exception that nobody foresaw: whoever waits learns nothing from it, so it is told here.
            log.error("a call to an actor of this region failed there: %s", error)
        raise TimeoutError(f"an actor of this region did not answer: {type(error).__name__}") from error


class ChannelCall:
    """The one call of an actor that its gateways make all the time: over its socket where there is one, else by a call to the actor."""

    def __init__(self, handle: Handle, method: str) -> None:
        self._handle, self._method = handle, method
        self._asking: Asking | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def __call__(self, payload: bytes, timeout_s: float) -> bytes:
        """Raises TimeoutError: the outcome is unknown."""
        if self._asking is not None and self._asking.is_open:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._asking.call(payload)
            except ConnectionError as error:
                raise TimeoutError(f"an actor of this region did not answer: {error}") from error
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        result: bytes = await _await(functools.partial(getattr(self._handle, self._method).remote, payload), timeout_s)
        return result

    async def _connect(self) -> None:
        try:
            address = await _await(self._handle.channel.remote, 2.0)
            self._asking = None if address is None else await connect(address)
        except (TimeoutError, OSError) as error:
            log.info("%s goes by calls: %s", self._method, error)
        if self._asking is None or not self._asking.is_open:
            await asyncio.sleep(RECONNECT_S)
        self._connecting = None


class RayReplica:
    """`actors.replica_pool.ReplicaCalls` of a replica actor."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._ask = ChannelCall(handle, "ask")

    async def ask(self, asks: list[Ask], timeout_s: float) -> list[Answer | WireError]:
        """See the port."""
        return _answers.decode(await self._ask(_encode(asks), timeout_s))

    async def news(self, since: int) -> News:
        """See the port."""
        return _news.decode(await _await(functools.partial(self._handle.news.remote, since), 10.0))

    async def status(self) -> dict[str, Any]:
        """See the port."""
        result: dict[str, Any] = await _await(self._handle.status.remote, 2.0)
        return result


class LocalHandles:
    """A gateway's way to the actors of its own region. Every call has a timeout; TimeoutError means unknown."""

    def __init__(
        self,
        shards: Mapping[str, tuple[Handle, list[str]]],
        replicas: Mapping[str, Handle],
        gateways: Mapping[str, Callable[[], Handle]] | None = None,
        *,
        call_s: float = CALL_S,
    ) -> None:
        """`shards`: a handle and the shards that its actor holds, by name; `gateways`: how to find the region's other ones."""
        self._shard_actors, self._call_s = {name: handle for name, (handle, _) in shards.items()}, call_s
        self._submits = {name: ChannelCall(handle, "submit") for name, handle in self._shard_actors.items()}
        self._actor_of = {shard: name for name, (_, held) in shards.items() for shard in held}
        self._gateways = dict(gateways or {})
        self._found: dict[str, Handle] = {}
        self.replicas = ReplicaPool({name: RayReplica(handle) for name, handle in replicas.items()})
        #: A line for each replica, as of the last `replica_status`.
        self.replica_lines: list[dict[str, Any]] = []

    async def submit(self, payload: bytes) -> bytes:
        """See `ShardWorker.submit`; the shards may be in several processes, of which some may not answer in time."""
        parts = _parts.decode(payload)
        by_actor: dict[str, list[int]] = {}
        for index, (shard, _) in enumerate(parts):
            by_actor.setdefault(self._actor_of[shard], []).append(index)
        if len(by_actor) == 1:
            return await self._submit(next(iter(by_actor)), payload)
        calls = (self._submit(name, _encode([parts[index] for index in indexes])) for name, indexes in by_actor.items())
        replies: list[msgspec.Raw | list[WireError]] = [msgspec.Raw()] * len(parts)
        for indexes, reply in zip(by_actor.values(), await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(reply, BaseException) and not isinstance(reply, TimeoutError):
                raise reply
            told = None if isinstance(reply, TimeoutError) else _raws.decode(reply)
            for place, index in enumerate(indexes):
                replies[index] = told[place] if told is not None else unanswered(len(_raws.decode(parts[index][1])), str(reply))
        return _encode(replies)

    async def _submit(self, name: str, payload: bytes) -> bytes:
        return await self._submits[name](payload, self._call_s)

    def _handle(self, shard: str) -> Handle:
        return self._shard_actors[self._actor_of[shard]]

    async def drain(self, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """See `ShardActor.drain`."""
        result: int | None = await _await(functools.partial(self._handle(shard).drain.remote, shard, epoch, to, asked_by), 12.0)
        return result

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """See `ShardWorker.operate`."""
        result: dict[str, Any] = await _await(functools.partial(self._handle(shard).operate.remote, shard, order), 30.0)
        return result

    async def shard_status(self) -> dict[str, dict[str, Any]]:
        """See `ShardActor.status`, of all shards; without those that did not answer in time."""
        calls = (_await(handle.status.remote, 2.0) for handle in self._shard_actors.values())
        told = await asyncio.gather(*calls, return_exceptions=True)
        return {shard: status for each in told if isinstance(each, dict) for shard, status in each.items()}

    async def ask(self, ask: Ask) -> Answer:
        """See `ReplicaPool.ask`."""
        return await self.replicas.ask(ask)

    async def news(self, since: int) -> News:
        """See `ReplicaPool.news`."""
        return await self.replicas.news(since)

    async def replica_status(self) -> dict[str, Any]:
        """See `ReplicaActor.status`: of the most advanced replica."""
        status = await self.replicas.status()
        self.replica_lines = status.replicas
        return status.shards

    async def gateway(self, name: str) -> dict[str, Any]:
        """See `GatewayWorker.health`, of another gateway of this region."""
        result: dict[str, Any] = await _await(self._gateway(name).health.remote, 2.0)
        return result

    async def silence(self, name: str) -> dict[str, int]:
        """See `GatewayActor.silence`, of another gateway of this region."""
        result: dict[str, int] = await _await(self._gateway(name).silence.remote, 2.0)
        return result

    def _gateway(self, name: str) -> Handle:
        try:
            if name not in self._found:
                self._found[name] = self._gateways[name]()
            return self._found[name]
        except ValueError as error:
            raise TimeoutError(f"{name} has not been started yet") from error


def _actor(worker: type[Any], *, max_concurrency: int) -> Any:
    """An actor class with the options of every actor here; untyped, since Ray's stubs do not know `max_concurrency`."""
    decorate: Any = ray.remote
    return decorate(num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=max_concurrency)(worker)


RemoteShard = _actor(ShardWorker, max_concurrency=2000)
RemoteReplica = _actor(ReplicaWorker, max_concurrency=2000)
RemoteGateway = _actor(GatewayWorker, max_concurrency=100)
