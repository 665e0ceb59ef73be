"""Orders about whole boards: create, remove, spread anew; given to the shard that leads the board, wherever its authority is."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from actors.messages import BoardExists, BoardInfo, NoAuthority, NotServing, Unanswered, UnknownBoard
from boards.errors import InvalidInput
from boards.model import BoardRules, Layout
from config import placing
from config.placing import Place
from regions.routing import HOLD_S, OF_THE_BOARD

#: How many shards, or which.
Wish = int | tuple[str, ...]
_LOOK_S = 0.25


class UnknownRegion(Unanswered):
    """No region of that name."""

    code = "unknown_region"


class BoardOrders:
    """The orders of one gateway. `boards` is what is known here, kept up to date by others; `news` waits for a change of it.

    `order` gives an order to a shard's authority and holds it while authority moves.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        boards: Mapping[str, BoardInfo],
        news: Callable[[float], Awaitable[None]],
        order: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> None:
        self._places, self._boards, self._news, self._order = places, boards, news, order

    async def create(
        self, board_id: str, rules: BoardRules, home: str | None, wish: Wish | None, *, subject: str
    ) -> tuple[BoardInfo, bool]:
        """See `regions.backend.Backend.create_board`. To be asked only where all boards are known: an id is placed once."""
        known = self._boards.get(board_id)
        try:
            shards = self._placed(board_id, home, wish) if known is None else _as_it_is(known, home, wish)
        except BoardExists:
            if known is None or await self._is_there(board_id):
                raise
            await self._until_gone(known)
            return await self.create(board_id, rules, home, wish, subject=subject)
        placing.check_spread(rules, len(shards))
        order = {
            "do": "create_board",
            "board": board_id,
            "rules": msgspec.to_builtins(rules),
            "layout": layout_map(Layout(1, shards)),
            "asked_by": subject,
        }
        reply = await self._order(shards[0], order)
        created = bool(reply["created"])

        def shown() -> bool:
            info = self._boards.get(board_id)
            return info is not None and not (created and (info.shard, info.number) != (shards[0], reply["number"]))

        await self._until(shown, f"{board_id} was created, but this region does not show it yet")
        return self._boards[board_id], created

    async def remove(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """See `regions.backend.Backend.remove_board`."""
        info = self._known(board_id)
        with suppress(UnknownBoard):  # then it is gone there, and here it soon will be
            await self._to_lead(board_id, {"do": "remove_board", "incarnation": info.incarnation, "asked_by": subject})
        await self._until_gone(info)
        return {"board": board_id, "incarnation": info.incarnation, "removed": True}

    async def relocate(self, board_id: str, wish: Wish, *, subject: str) -> dict[str, Any]:
        """See `regions.backend.Backend.relocate`."""
        info = self._known(board_id)
        now = info.layout_in_effect
        names = self._target(info, wish)
        if len(names) > 1 and info.rules.ranking == "dense":
            raise InvalidInput(code="bad_rule", field="shards", allowed="one shard: a board with dense ranks cannot be spread")
        if info.moving is None and names == now.shards:
            return {"board": board_id, "moving": False, "layout": layout_map(now)}
        reply = await self._to_lead(board_id, {"do": "relocate_board", "shards": list(names), "asked_by": subject})
        return {"board": board_id, "moving": bool(reply.get("moving", True)), "layout": layout_map(_read_layout(reply["layout"]))}

    async def relocation(self, board_id: str) -> dict[str, Any]:
        """See `regions.backend.Backend.relocation`."""
        self._known(board_id)
        reply = await self._to_lead(board_id, {"do": "relocation"})
        info = self._known(board_id)
        now = info.layout_in_effect
        if "layout" in reply:  # the lead knows first
            now = max(now, _read_layout(reply["layout"]), key=lambda layout: layout.number)
        target = _read_layout(reply["to"]) if reply.get("to") else None
        moving = target is not None and target.number > now.number
        return {
            "board": board_id,
            **{name: value for name, value in reply.items() if name not in ("ok", "layout", "to")},
            "moving": moving,
            "layout": layout_map(now),
            "to": layout_map(target) if target is not None and moving else None,
        }

    async def abort(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """See `regions.backend.Backend.abort_relocation`."""
        info = self._known(board_id)
        reply = await self._to_lead(board_id, {"do": "abort_relocation", "asked_by": subject})
        giving_up = bool(reply.get("giving_up"))
        return {
            "board": board_id,
            "moving": giving_up,
            "giving_up": giving_up,
            "layout": layout_map(info.layout_in_effect),
        }

    def _placed(self, board_id: str, home: str | None, wish: Wish | None) -> tuple[str, ...]:
        homes = placing.homes(self._places)
        if isinstance(wish, tuple):
            names = placing.by_name(self._places, wish)
            at = self._places[names[0]].home
            if home not in (None, at):
                raise InvalidInput(code="bad_rule", field="shards", allowed=f"shards at home in {home}; {names[0]} is not")
            return names
        if home is None and len(homes) == 1:
            home = homes[0]
        if home not in homes:
            listed = ", ".join(homes)
            wrong = "home is missing" if home is None else f"no shard is at home in {home}"
            raise UnknownRegion(f"{wrong}; home must be one of {listed}", field="home", allowed=listed)
        return placing.by_hash(self._places, home, board_id, wish or 1)

    def _target(self, info: BoardInfo, wish: Wish) -> tuple[str, ...]:
        now = info.layout_in_effect.shards
        if isinstance(wish, int):
            if info.moving is not None and len(info.moving.shards) == wish:
                return info.moving.shards
            return now if len(now) == wish else placing.for_reshard(self._places, info.board_id, now, wish)
        names = placing.by_name(self._places, wish)
        if (home := self._places[names[0]].home) != info.home:
            raise InvalidInput(
                code="bad_rule", field="shards", allowed=f"shards at home in {info.home}, as the board is; {names[0]} is at home in {home}"
            )
        if self._places[names[0]].ack == "local":
            raise InvalidInput(code="bad_rule", field="shards", allowed=f"shards with ack: quorum, which {names[0]} is not")
        return names

    def _known(self, board_id: str) -> BoardInfo:
        info = self._boards.get(board_id)
        if info is None:
            raise UnknownBoard(f"there is no board {board_id}")
        return info

    async def _to_lead(self, board_id: str, order: dict[str, Any]) -> dict[str, Any]:
        """Order it of the shard that leads the board, also when that has just become another one."""
        deadline = time.monotonic() + HOLD_S
        while True:
            try:
                return await self._order(self._known(board_id).shard, {**order, "board": board_id})
            except NoAuthority as error:
                if error.code not in OF_THE_BOARD or time.monotonic() > deadline:
                    raise
                await self._news(_LOOK_S)

    async def _is_there(self, board_id: str) -> bool:
        """Whether the shard that led it still does: another region may just have had it removed. True where it does not say."""
        try:
            await self._to_lead(board_id, {"do": "relocation"})
        except UnknownBoard:
            return False
        except NoAuthority:
            pass
        return True

    async def _until_gone(self, info: BoardInfo) -> None:
        def gone() -> bool:
            now = self._boards.get(info.board_id)
            return now is None or now.incarnation != info.incarnation

        await self._until(gone, f"{info.board_id} was removed, but this region still shows it")

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + HOLD_S
        while not holds():
            if time.monotonic() > deadline:
                raise NotServing(otherwise)
            await self._news(_LOOK_S)


def layout_map(layout: Layout) -> dict[str, Any]:
    """A layout as answers show it."""
    return {"number": layout.number, "shards": list(layout.shards)}


def _read_layout(told: Any) -> Layout:
    """A layout out of an order's answer, where it is a map or an array."""
    if isinstance(told, Layout):
        return told
    return Layout(told["number"], tuple(told["shards"])) if isinstance(told, dict) else msgspec.convert(told, Layout)


def _as_it_is(known: BoardInfo, home: str | None, wish: Wish | None) -> tuple[str, ...]:
    """Where a board is that is to be created again. Raises `BoardExists` when that is not where it is wanted."""
    layout = known.layout_in_effect
    if home not in (None, known.home):
        raise BoardExists(f"{known.board_id} exists at home in {known.home}", field="home", allowed=known.home)
    if wish not in (None, len(layout.shards), layout.shards):
        there = ", ".join(layout.shards)
        raise BoardExists(f"{known.board_id} exists on {there}: reshard it to change that", field="shards", allowed=there)
    return layout.shards
