"""What the lead of a board does with the board's other shards: rounds of marks for generations, removal of slices.

Lives as long as its epoch. It orders the other shards' authorities through the links, like any operator would, and learns from
their refusals who they are; what it decides is in the journal, so another authority of the lead goes on where this one stops.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from actors import board_changes, relocation_changes
from actors.board_changes import Slice
from actors.messages import NoAuthority, Unanswered, WireError, from_wire
from actors.ports import Links
from actors.relocating import Relocation
from actors.writing import Writer
from boards.model import Layout
from failover.generations import Rounds
from journal.records import Mark
from ledger.ports import BoardState

log = logging.getLogger("laurel.coordinating")

#: How often the lead looks for something to do, with boards to coordinate and without.
BUSY_S, IDLE_S = 0.02, 0.1
#: A shard that refused or did not answer is asked again after this.
AGAIN_S = 0.1
#: Moves that ended and are still told of.
ENDED = 100
#: How long one order may take.
ORDER_S = 5.0


class Owners:
    """Who has the authority over the other shards, as far as their refusals tell; the own region until then."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._owners: dict[str, tuple[int, str]] = {}

    def owner(self, shard: str) -> str:
        """The region to ask."""
        return self._owners.get(shard, (0, self._region))[1]

    def learn(self, shard: str, refusal: NoAuthority) -> None:
        """Take what a refusal says of the newest started epoch; one that says nothing ends what was believed."""
        if refusal.owner and refusal.epoch >= self._owners.get(shard, (0, ""))[0]:
            self._owners[shard] = (refusal.epoch, refusal.owner)
        elif not refusal.owner:
            self.forget(shard)

    def forget(self, shard: str) -> None:
        """Whoever was believed to own it did not say so: the own region follows the shard's journal, and knows better."""
        self._owners.pop(shard, None)


class Coordinating:
    """See the module docstring. `writer` is this epoch's; `spawn` runs a task beside the actor.

    `near` takes orders for shards whose actors share this process (none: all go over the links).
    """

    def __init__(
        self,
        *,
        shard: str,
        region: str,
        writer: Writer,
        links: Links,
        near: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]] | None = None,
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.shard, self.region, self.writer, self.links = shard, region, writer, links
        self._spawn, self._wall_ms, self._monotonic_ms = spawn, wall_ms, monotonic_ms
        self._near = near or {}
        self.owners = Owners(region)
        self._rounds: dict[int, Rounds] = {}
        #: Boards that are being removed by a task of this epoch, or have a manifest on its way.
        self._busy: set[int] = set()
        #: Moves under way, and those that ended with a word to operators, by board number.
        self._moves: dict[int, Relocation] = {}
        self._ended: dict[str, Relocation] = {}

    @property
    def over(self) -> bool:
        """The epoch has ended: nothing more is decided here."""
        return not self.writer.accepting

    async def run(self) -> None:
        """Look after the boards until the epoch is over."""
        while not self.over:
            boards = self.writer.pending.coordinated()
            for board in boards:
                self._look_after(board)
            known = {board.number for board in boards}
            self._rounds = {number: rounds for number, rounds in self._rounds.items() if number in known}
            await asyncio.sleep(BUSY_S if boards else IDLE_S)

    def status(self) -> dict[str, Any]:
        """Rounds that take longer than two intervals, by board: which shards have not answered yet, and since when they are waited for."""
        told = {}
        for board in self.writer.pending.coordinated():
            rounds = self._rounds.get(board.number)
            if rounds is not None and rounds.under_way and board.layout is not None and rounds.began_ms is not None:
                for_ms = self._monotonic_ms() - rounds.began_ms
                if for_ms > 2 * board.rules.publish_interval_ms:
                    told[board.board_id] = {"missing": [board.layout.shards[s] for s in rounds.missing()], "for_ms": for_ms}
        return told

    def relocations(self) -> dict[str, dict[str, Any]]:
        """Moves under way, and how the last one ended that did in this epoch, by board."""
        moves = {move.board_id: move for move in self._moves.values()}
        return {board_id: move.told() for board_id, move in (self._ended | moves).items()}

    def _look_after(self, board: BoardState) -> None:
        if board.target is not None and board.number not in self._moves:
            move = Relocation(board, shard=self.shard, writer=self.writer, order=self.order, monotonic_ms=self._monotonic_ms)
            self._moves[board.number] = move
            self._spawn(self._move(move))
        if board.phase == "removing":
            self._once(board, functools.partial(self._remove_slices, board))
        elif board.sharded and board.phase in ("open", "closed"):
            self._make_generations(board)

    async def _move(self, move: Relocation) -> None:
        try:
            await move.run()
        finally:
            del self._moves[move.number]
            self._ended.pop(move.board_id, None)
            self._ended[move.board_id] = move
            if len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]

    def _once(self, board: BoardState, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` unless something for the board is under way."""
        if board.number not in self._busy:
            self._busy.add(board.number)
            self._spawn(self._while_busy(board, work))

    async def _while_busy(self, board: BoardState, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Unanswered as error:
            log.info("%s: %s: %s", self.shard, board.board_id, error.detail)
            await asyncio.sleep(AGAIN_S)
        finally:
            self._busy.discard(board.number)

    # -- generations ------------------------------------------------------------------------------------------------

    def _make_generations(self, board: BoardState) -> None:
        assert board.layout is not None
        rounds = self._rounds.get(board.number)
        if rounds is None:
            committed = self.writer.ledger.numbered(board.number)
            if committed is None or committed.generation != board.generation:
                return  # the newest manifest is on its way: `keeps` speaks of committed ones only
            rounds = Rounds(len(board.layout.shards), board.rules.publish_interval_ms, board.generation, board.marks)
            self._rounds[board.number] = rounds
        if board.number in self._busy:
            return
        for slice_ in rounds.ask(self._monotonic_ms(), self._wall_ms()):
            self._spawn(self._ask(board, rounds, slice_))

    async def _ask(self, board: BoardState, rounds: Rounds, slice_: int) -> None:
        mark: Mark | None = None
        try:
            mark = await self._mark(board, slice_, rounds.generation + 1, rounds.keeps(slice_))
        except Unanswered as error:
            log.debug("%s: no mark of %s slice %d: %s", self.shard, board.board_id, slice_, error.detail)
            await asyncio.sleep(AGAIN_S)
        finally:
            rounds.heard(slice_, mark)
        marks = rounds.complete()
        if marks is not None and not self.over:
            self._once(board, functools.partial(self._publish, board, rounds, marks))

    async def _mark(self, board: BoardState, slice_: int, generation: int, keeps: int) -> Mark:
        """A committed mark of a slice. Raises Unanswered."""
        layout = board.layout
        assert layout is not None
        wanted = Slice(board.board_id, board.incarnation, board.rules, layout, slice_, board.created_by, board.created_ms)
        if layout.shards[slice_] == self.shard:
            decide = board_changes.mark(wanted, generation=generation, lead_epoch=self.writer.epoch, keeps=keeps)
            own: Mark = await self.writer.change(decide, last=True, committed=True)
            return own
        order = {
            "do": "mark",
            "slice": msgspec.to_builtins(wanted),
            "generation": generation,
            "lead_epoch": self.writer.epoch,
            "keeps": keeps,
        }
        reply = await self.order(layout.shards[slice_], order)
        await self._open_forgotten(board, layout, slice_, int(reply.get("closed_at", 0)))
        return msgspec.convert(reply["mark"], Mark)

    async def _open_forgotten(self, board: BoardState, layout: Layout, slice_: int, closed_at: int) -> None:
        """Where no move is under way, a closed slice was closed by an order that came late."""
        state = self.writer.pending.numbered(board.number)
        if closed_at and state is not None and state.target is None and state.phase == "open":
            order = {
                "do": "open_slice",
                "board": board.board_id,
                "incarnation": board.incarnation,
                "layout": layout.number,
                "lead_epoch": self.writer.epoch,
                "generation": state.generation,
                "closed_at": closed_at,
            }
            await self.order(layout.shards[slice_], order)

    async def _publish(self, board: BoardState, rounds: Rounds, marks: tuple[Mark, ...]) -> None:
        decide = board_changes.manifest(board.number, rounds.generation + 1, rounds.asked_at_ms, marks)
        try:
            generation = await self.writer.change(decide, committed=True)
        except Unanswered:
            # It may be there all the same: what the journal says then is where the next round begins.
            self._rounds.pop(board.number, None)
            raise
        rounds.made(generation, marks)

    # -- removal ----------------------------------------------------------------------------------------------------

    async def _remove_slices(self, board: BoardState) -> None:
        """Have the other shards forget their slices, then forget the own one: the board is gone."""
        assert board.layout is not None
        # What was decided and may still be cut removes nothing elsewhere: the board would live on without these slices.
        state: BoardState | None = await self.writer.change(relocation_changes.look(board.number), committed=True)
        if state is None or state.phase != "removing":
            return
        for slice_, shard in enumerate(board.layout.shards):
            if slice_ != board.slice:
                await self._remove_slice(shard, board)
        decide = board_changes.remove_slice(board.board_id, board.incarnation, board.layout_number, "")
        await self.writer.change(decide, committed=True)

    async def _remove_slice(self, shard: str, board: BoardState) -> None:
        """Idempotent."""
        assert board.layout is not None
        at = board.layout.shards.index(shard)
        slice_ = Slice(board.board_id, board.incarnation, board.rules, board.layout, at, board.created_by, board.created_ms)
        order = {
            "do": "remove_slice",
            "board": board.board_id,
            "incarnation": board.incarnation,
            "layout": board.layout_number,
            "slice": msgspec.to_builtins(slice_),
            "asked_by": self.shard,
        }
        await self.order(shard, order)

    # -- orders -----------------------------------------------------------------------------------------------------

    async def order(self, shard: str, order: dict[str, Any], timeout_s: float = ORDER_S) -> dict[str, Any]:
        """Give an order to a shard's authority; once more to the one that a refusal names. Raises Unanswered."""
        for again in (True, False):
            region = self.owners.owner(shard)
            try:
                async with asyncio.timeout(timeout_s):
                    near = self._near.get(shard) if region == self.region else None
                    reply = await (near(order) if near is not None else self.links.operate(region, shard, order))
            except TimeoutError:
                reply = None
            if reply is None:
                self.owners.forget(shard)
                raise NoAuthority(f"no answer of {shard} from {region}", code="unknown", definite=False)
            if "error" not in reply:
                return reply
            error = from_wire(msgspec.convert(reply["error"], WireError))
            if isinstance(error, NoAuthority):
                self.owners.learn(shard, error)
                if again and self.owners.owner(shard) != region:
                    continue
            raise error
        raise AssertionError("unreachable")
