"""A gateway among others, over several replicas and nodes: nothing older after something newer, and a status that shows them all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from actors.clocks import monotonic_ms
from actors.messages import Answer, BoardInfo
from actors.remote import LocalHandles, node_number
from regions.gateway_backend import STATUS_S, GatewayBackend
from regions.process_specs import FIRST_GATEWAY


class PooledBackend(GatewayBackend):
    """See the module docstring."""

    #: What the region's other gateways say of themselves, by name.
    _others: dict[str, dict[str, Any]] = {}

    def ready_top(self, board: BoardInfo, limit: int) -> Answer | None:
        """See the port; None while a newer generation is known than the one held ready."""
        top = super().ready_top(board, limit)
        return top if top is None or self._handles.replicas.is_newest(top) else None

    async def follow_gateways(self) -> None:
        """Hold what the region's other gateways say of themselves."""
        names = [name for name in self._spec.gateways if name != self._spec.name]
        while names:
            self._others = dict(zip(names, await asyncio.gather(*(self._health(name) for name in names)), strict=True))
            await asyncio.sleep(STATUS_S)
        await asyncio.Event().wait()  # whoever waits for the first task that ends waits for the others

    async def _health(self, name: str) -> dict[str, Any]:
        try:
            return await self._handles.gateway(name)
        except TimeoutError:
            return {}

    def status(self) -> dict[str, Any]:
        """See the port; and the replicas, gateways and nodes of this region."""
        status = super().status()
        gateways = [self._gateway_line(name, url) for name, url in self._spec.gateways.items()]
        replicas = self._handles.replica_lines
        actors = [
            *((line["gateway"], line["node"]) for line in gateways),
            *((line["replica"], line["node"]) for line in replicas),
            *((f"shard {shard}", facts.get("node")) for shard, facts in status["shards"].items()),
        ]
        nodes = [{"node": number, "actors": [name for name, node in actors if node == number]} for number in range(1, self._spec.nodes + 1)]
        return {**status, "gateway": self._spec.name, "gateways": gateways, "replicas": replicas, "nodes": nodes}

    def _gateway_line(self, name: str, url: str) -> dict[str, Any]:
        own = name == self._spec.name
        said = {"open": True, "node": node_number()} if own else self._others.get(name, {})
        return {"gateway": name, "node": said.get("node"), "url": url, "answers": bool(said.get("open"))}


class HeardElsewhere:
    """What the region's first gateway hears of the authorities, for one that has no acceptor."""

    def __init__(
        self,
        handles: LocalHandles,
        shards: Iterable[str],
        *,
        now_ms: Callable[[], int] = monotonic_ms,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._handles, self._now_ms, self._pause = handles, now_ms, pause
        #: When progress was heard last; as far as is known here, at the beginning.
        self._heard_ms = dict.fromkeys(shards, now_ms())

    async def follow(self) -> None:
        """Ask, again and again. While the first gateway does not answer, nobody is heard."""
        while True:
            try:
                for shard, silent_ms in (await self._handles.silence(FIRST_GATEWAY)).items():
                    self._heard_ms[shard] = self._now_ms() - silent_ms
            except TimeoutError:
                pass
            await self._pause(STATUS_S)

    def silent_ms(self, shard: str) -> int:
        """Since when no progress of the authority was heard in this region."""
        return self._now_ms() - self._heard_ms[shard]
