"""What a simulated process has to do with the other shards: orders to their authorities, and the watched rounds of a lead."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from actors import orders
from actors.coordinating import Coordinating
from actors.importing import Importing
from actors.relocating import Relocation
from journal.memory import MemoryLog
from journal.ports import JournalUnavailable
from journal.records import Entry, Mark
from ledger.ports import BoardState
from simulation.network import Call
from simulation.watch import Violation

if TYPE_CHECKING:
    from actors.ports import Links
    from actors.shard import ShardActor
    from actors.writing import Writer as ShardWriter
    from simulation.process import Process
    from simulation.region import Store
    from simulation.writer import Writer

#: Patience with an order's answer, in ms.
ORDER_MS = 400


@dataclass(frozen=True, slots=True)
class Spec:
    """What the product's code asks of an actor's specification."""

    region: str
    shard: str


class OwnJournal:
    """The own store as `journal.ports.Journal`, to be read: a slice's journal is told to those that are filled from it."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        """See the port."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while (committed := self._log().committed) <= committed_above and loop.time() < until:
            await asyncio.sleep(0.02)
        return committed

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        """See the port."""
        return self._log().read(first, limit=limit, max_bytes=max_bytes)

    def _log(self) -> MemoryLog:
        if not self._store.up or self._store.stalled:
            raise JournalUnavailable(f"the store of {self._store.name} is gone")
        return self._store.log


class Neighbours:
    """That of one process. An order travels on the network of the shard that it is for."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def operate(self, region: str, shard: str, order: dict[str, Any]) -> dict[str, Any] | None:
        """See `actors.ports.Links.operate`: None when no answer came in time."""
        process = self._process
        world = process.world if shard == process.world.shard else process.world.neighbours[shard]
        answered: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

        def heard(answer: Any) -> None:
            if not answered.done():
                answered.set_result(answer)

        def arrived(call: Call) -> None:
            other = world.regions[region].process
            if other is not None:
                other.operate(call)

        world.network.call("order", process, process.name, region, arrived, heard, patience=ORDER_MS, later=True, message=order)
        return await answered


class WatchedCoordinating(Coordinating):
    """The lead of boards; a slice that has answered is not asked again in the same round, and keeps what the newest manifest names."""

    async def _mark(self, board: BoardState, slice_: int, generation: int, keeps: int) -> Mark:
        rounds = self._rounds[board.number]
        if slice_ in rounds._gathered:
            raise Violation("rounds", f"slice {slice_} of {board.board_id} is asked again in the round of s{generation}")
        return await super()._mark(board, slice_, generation, keeps)

    async def _move(self, move: Relocation) -> None:
        await super()._move(move)
        if move.alarm:
            raise Violation("moves", f"the sums of a move differ: {move.alarm}")


def look_after(process: "Process", writer: "Writer") -> tuple[Coordinating, Importing]:
    """What an epoch's authority does for the other slices of its boards, and for boards on their way to it."""
    links, as_writer = cast("Links", Neighbours(process)), cast("ShardWriter", writer)
    coordinating = WatchedCoordinating(
        shard=process.world.shard,
        region=process.name,
        writer=as_writer,
        links=links,
        near={process.world.shard: lambda order: orders.operate(cast("ShardActor", process), order)},
        spawn=process.spawn,
        wall_ms=process.wall_ms,
        monotonic_ms=process.now,
    )
    importing = Importing(region=process.name, regions=process.world.names, writer=as_writer, links=links, spawn=process.spawn)
    return coordinating, importing
