"""A board's move to another layout, as the authority of its present lead drives it (docs/adr/0010-resharding.md).

Copy, close, replay, switch, open, remove; or, until the switch, everything back. All that it knows is in journals: the lead's says that
the board is on its way, and where it is decided that it has arrived; the slices' say which are closed, how far each new one is, and
which are open. So whoever has the authority next goes on, and never trusts a closure that another epoch has ordered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from actors import board_changes, relocation_changes
from actors.board_changes import Slice
from actors.messages import NoAuthority, Unanswered, UnknownBoard
from actors.relocation_changes import Closed
from actors.writing import Writer
from boards.model import Layout
from failover.generations import totals
from ledger.ports import BoardState

log = logging.getLogger("laurel.relocating")

#: How often targets are asked how far they are, and after what a refusal is met with another try.
STEP_S, AGAIN_S = 0.1, 0.05
#: How long one look at a source that was found open is good for.
LOOK_MS = 1000
#: Sources are closed once no target is more entries behind than this.
BEHIND = 100
#: How long one order may take; each may be given again.
ORDER_S = 2.0
#: From the first closure to the switch; beyond it all is opened again.
PAUSE_S = 3.0
#: After a switch that did not come: the pause before the next one, doubling.
REST_MS, REST_MAX_MS = 1000, 15_000
#: How long a target may wait for its sources before it says how far it is, while they are closed.
WAIT_MS = 500


class Relocation:
    """One move of one board in one epoch. `order` gives an order to a shard's authority, and raises Unanswered."""

    def __init__(
        self,
        board: BoardState,
        *,
        shard: str,
        writer: Writer,
        order: Callable[[str, dict[str, Any], float], Awaitable[dict[str, Any]]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        assert board.target is not None
        self.number, self.board_id, self.shard = board.number, board.board_id, shard
        self.layout = board.layout or Layout(1, (shard,))
        self.target = board.target
        self._writer, self._orders, self._monotonic_ms = writer, order, monotonic_ms
        self.phase, self.why, self.alarm = "beginning", "", ""
        self.attempts = 0
        #: How long events were refused for the switch, and for tries that failed, by this epoch's knowledge.
        self.paused_ms: int | None = None
        self.reopened_ms: list[int] = []
        self._closing_since: int | None = None
        self._progress: list[dict[str, Any] | None] = [None] * len(self.target.shards)
        #: Highest closure of each source that was seen here.
        self._closures = [0] * len(self.layout.shards)
        #: Offset of each source that was committed when it was looked at last.
        self._committed = [0] * len(self.layout.shards)
        #: All sources were seen open then; None: some may be closed.
        self._open_at: int | None = None
        self._rest_until, self._rest_ms = 0, REST_MS

    @property
    def over(self) -> bool:
        """The epoch has ended."""
        return not self._writer.accepting

    async def _give(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order, unless the epoch is over. Raises Unanswered."""
        if self.over:
            raise NoAuthority("the lead's epoch is over", code="no_authority", definite=True)
        return await self._orders(shard, order, ORDER_S)

    def told(self) -> dict[str, Any]:
        """How far it is, for operators."""
        slices = []
        for shard, progress in zip(self.target.shards, self._progress, strict=True):
            sources = progress["sources"] if progress is not None and "sources" in progress else []
            behind = [s["behind"] for s in sources]
            slices.append(
                {
                    "shard": shard,
                    "sources": sources,
                    "copied_rows": progress.get("count") if progress is not None else None,
                    "lag": max(behind, default=None) if None not in behind else None,
                    "trouble": progress.get("trouble", "") if progress is not None else "no answer",
                }
            )
        return {
            "phase": self.phase,
            "slices": slices,
            "attempts": self.attempts,
            "paused_ms": self.paused_ms,
            "reopened_ms": list(self.reopened_ms),
            "why": self.why,
            "alarm": self.alarm,
        }

    async def run(self) -> None:
        """Go on until the board is there, or stays; or the epoch is over."""
        while not self.over:
            try:
                # What follows rests on what is committed: a step that may still be cut is none.
                state: BoardState | None = await self._writer.change(relocation_changes.look(self.number), committed=True)
                if state is None or state.target != self.target:
                    return
                await self._step(state)
            except Unanswered as error:
                self.why = error.detail
                log.info("%s: %s %s: %s", self.shard, self.board_id, self.phase, error.detail)
                await asyncio.sleep(AGAIN_S)

    async def _step(self, state: BoardState) -> None:
        if state.phase == "moved":
            await self._arrive(state)
        elif state.aborting:
            await self._go_back(state)
        else:
            await self._copy(state)

    # -- on the way ---------------------------------------------------------------------------------------------------

    async def _copy(self, state: BoardState) -> None:
        if self._open_at is None or self._monotonic_ms() - self._open_at >= LOOK_MS:
            await self._open_sources(state)
        self.phase = "copying"
        self._progress = await asyncio.gather(*(self._ask_target(state, index) for index in range(len(self.target.shards))))
        if self._monotonic_ms() >= self._rest_until and all(map(self._nearly_there, self._progress)):
            await self._close_and_switch(state)
        else:
            await asyncio.sleep(STEP_S)

    async def _ask_target(self, state: BoardState, index: int) -> dict[str, Any] | None:
        try:
            return await self._import(state, index, (), 0)
        except Unanswered as error:
            self.why = f"{self.target.shards[index]}: {error.detail}"
            return None

    async def _import(self, state: BoardState, index: int, boundaries: Sequence[int], wait_ms: int) -> dict[str, Any]:
        order = {
            "do": "import_slice",
            "slice": self._slice_order(state, index),
            "sources": list(self.layout.shards),
            "layout": self.layout.number,
            "lead_epoch": self._writer.epoch,
            "boundaries": list(boundaries),
            "wait_ms": wait_ms,
            "known": list(self._committed),
        }
        return await self._give(self.target.shards[index], order)

    def _nearly_there(self, progress: dict[str, Any] | None) -> bool:
        """Whether a target has copied everything and lags little behind all its sources.

        It reads them in some region, which may itself lag behind what the sources say of themselves.
        """
        if progress is None or "sources" not in progress:
            return False
        return all(
            s["copied"] and s["behind"] is not None and max(s["behind"], committed - s["replayed"]) <= BEHIND
            for s, committed in zip(progress["sources"], self._committed, strict=True)
        )

    def _slice(self, state: BoardState, index: int) -> Slice:
        return Slice(self.board_id, state.incarnation, state.rules, self.target, index, state.created_by, state.created_ms)

    def _slice_order(self, state: BoardState, index: int) -> Any:
        return msgspec.to_builtins(self._slice(state, index))

    # -- the switch ---------------------------------------------------------------------------------------------------

    async def _close_and_switch(self, state: BoardState) -> None:
        """Close all sources, see that the targets have all of it, decide. What is closed for too long is opened again by the next step.

        Not once a handover is asked for here: whoever comes next would find all closed, and begin by opening.
        """
        if self.over:
            return
        self.phase, self._open_at = "closing", None
        self.attempts += 1
        began = self._closing_since = self._monotonic_ms()
        try:
            async with asyncio.timeout(PAUSE_S):
                closed = await _all(self._close(state, index) for index in range(len(self.layout.shards)))
                self.phase = "replaying"
                boundaries = [one.offset for one in closed]
                filled = await _all(self._fill(state, index, boundaries) for index in range(len(self.target.shards)))
                if totals(closed) != totals(filled):
                    await self._sound_alarm(state, totals(closed), totals(filled))
                    return
                self.phase = "switching"
                await self._writer.change(relocation_changes.switch(self.number, self.target, closed[0].offset), committed=True)
        except TimeoutError:
            self.why = f"the switch did not come within {PAUSE_S:g} s while {self.phase}: {self.why}"
            log.warning("%s: %s: %s; opening again", self.shard, self.board_id, self.why)
        finally:
            self._rest_until, self._rest_ms = self._monotonic_ms() + self._rest_ms, min(2 * self._rest_ms, REST_MAX_MS)
            log.info("%s: %s was closed for %d ms so far", self.shard, self.board_id, self._monotonic_ms() - began)

    async def _close(self, state: BoardState, index: int) -> Closed:
        """The committed closure of a source; asks until there is one."""
        above, shard = self._closures[index], self.layout.shards[index]
        order = {
            "do": "close_slice",
            **self._source_order(state),
            "target": self.target.number,
            "above": above,
        }
        while True:
            try:
                reply = await self._give(shard, order)
            except Unanswered as error:
                self._meet(shard, error)
                await asyncio.sleep(AGAIN_S)
                continue
            closed = msgspec.convert(reply["closed"], Closed)
            self._closures[index] = max(above, closed.offset)
            return closed

    async def _fill(self, state: BoardState, index: int, boundaries: Sequence[int]) -> Closed:
        """What a target holds once it is filled up to the boundaries; asks until it is."""
        while True:
            try:
                reply = await self._import(state, index, boundaries, WAIT_MS)
            except Unanswered as error:
                self._meet(self.target.shards[index], error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._progress[index] = reply
            if reply.get("reached"):
                return Closed(0, reply["checksum"], reply["count"])
            self.why = f"{self.target.shards[index]} is not filled yet"

    def _meet(self, shard: str, error: Unanswered) -> None:
        """A refusal on the way to the switch is tried again until the time is over, or the epoch."""
        self.why = f"{shard}: {error.detail}"
        if self.over:
            raise error

    async def _sound_alarm(self, state: BoardState, closed: tuple[int, int], filled: tuple[int, int]) -> None:
        self.alarm = f"the slices closed with {closed[1]} rows ({closed[0]:016x}), the new ones hold {filled[1]} ({filled[0]:016x})"
        log.error("%s: the move of %s is given up: %s", self.shard, self.board_id, self.alarm)
        await self._writer.change(relocation_changes.give_up(self.board_id, state.incarnation, self.shard), committed=True)

    # -- opening again ------------------------------------------------------------------------------------------------

    async def _open_sources(self, state: BoardState) -> None:
        """See to it that every source is open. Raises Unanswered where one does not say so."""
        self.phase = "opening again" if self._closing_since is not None else "beginning"
        await _each(self._open_source(state, index) for index in range(len(self.layout.shards)))
        self._open_at = self._monotonic_ms()
        if self._closing_since is not None:
            self.reopened_ms.append(self._open_at - self._closing_since)
            self._closing_since = None

    async def _open_source(self, state: BoardState, index: int) -> None:
        order = {"do": "open_slice", **self._source_order(state), "generation": state.generation, "closed_at": self._closures[index]}
        while True:
            reply = await self._give(self.layout.shards[index], order)
            closed_at = int(reply["closed_at"])
            self._committed[index] = max(self._committed[index], int(reply.get("upto", 0)))
            if not closed_at:
                return
            self._closures[index] = max(self._closures[index], closed_at)
            order["closed_at"] = closed_at

    def _source_order(self, state: BoardState) -> dict[str, Any]:
        return {
            "board": self.board_id,
            "incarnation": state.incarnation,
            "layout": self.layout.number,
            "lead_epoch": self._writer.epoch,
        }

    async def _go_back(self, state: BoardState) -> None:
        """Nothing of the next layout is left, every source is open, and the journal says so."""
        self.phase = "giving up"
        await self._open_sources(state)
        self.phase = "giving up"
        await _each(
            self._give(shard, {"do": "forget_slice", "slice": self._slice_order(state, index), "asked_by": self.shard})
            for index, shard in enumerate(self.target.shards)
        )
        await self._writer.change(relocation_changes.settle(self.number, self.shard), committed=True)
        self.phase = "given up"

    # -- there --------------------------------------------------------------------------------------------------------

    async def _arrive(self, state: BoardState) -> None:
        """It is decided: open the slices of the new layout, then remove those of the old one, the own one last."""
        self.phase = "opening"
        await _each(self._open_target(state, index) for index in range(len(self.target.shards)))
        if self._closing_since is not None:
            self.paused_ms, self._closing_since = self._monotonic_ms() - self._closing_since, None
        self.phase = "removing"
        remove = {
            "do": "remove_slice",
            "board": self.board_id,
            "incarnation": state.incarnation,
            "layout": self.layout.number,
            "asked_by": self.shard,
        }
        await _each(self._give(shard, remove) for shard in self.layout.shards if shard != self.shard)
        decide = board_changes.remove_slice(self.board_id, state.incarnation, self.layout.number, self.shard)
        await self._writer.change(decide, committed=True)
        self.phase = "there"

    async def _open_target(self, state: BoardState, index: int) -> None:
        order = {"do": "open_imported", **self._source_order(state), "layout": self.target.number, "generation": state.generation}
        try:
            await self._give(self.target.shards[index], order)
        except UnknownBoard:
            # It was opened, and has gone on to the next layout, or was removed: nothing of it is waited for.
            log.info("%s: layout %d of %s is no longer in %s", self.shard, self.target.number, self.board_id, self.target.shards[index])


async def _all(works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results; none goes on once one has failed."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _each(works: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Let all come to their end, also where one fails; then raise the first failure."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
