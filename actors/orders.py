"""Orders that operators, and other regions on their behalf, give to a shard actor: maps in, maps out, errors inside.

An order is `{"do": ...}` with its fields; the answer has `ok`, or an `error` (`actors.messages.WireError`).
"""

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from actors import auditing, board_changes, exporting, relocation_changes
from actors.board_changes import Life, Slice
from actors.exporting import Wanted
from actors.messages import NoAuthority, Unanswered, to_wire
from actors.relocation_changes import Looked
from boards.model import BoardRules, Layout
from journal.ports import JournalUnavailable
from ledger.ports import Gone

if TYPE_CHECKING:
    from actors.shard import ShardActor

#: How long one order may go on sending orphans again; the caller waits for 30 s.
RESUBMIT_S = 20.0
#: How long the removal of a board of several slices waits for them: so many looks of so many seconds.
REMOVAL_LOOKS, REMOVAL_LOOK_S = 250, 0.02
#: Orders about what this region's store holds.
OF_THE_STORE = ("audits", "orphans", "resubmit_orphans", "sign_off_orphans", "export", "export_tail")


async def operate(actor: "ShardActor", order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order, see `_carry_out` for which there are.

    `OF_THE_STORE` are for any region, about what is there; the others are for the authority, or who is to become it.
    """
    try:
        return await _carry_out(actor, order)
    except Unanswered as error:
        return {"ok": False, "error": msgspec.to_builtins(to_wire(error))}
    except JournalUnavailable as error:
        if order["do"] not in OF_THE_STORE:
            raise
        silent = Unanswered(f"the store of {actor.spec.region} does not answer: {error}", code="unavailable", definite=False)
        return {"ok": False, "error": msgspec.to_builtins(to_wire(silent))}


async def _until_gone(actor: "ShardActor", board_id: str, incarnation: str) -> None:
    """Let the other slices go first, for a while, so that the board can be made anew once the order is answered."""
    for _ in range(REMOVAL_LOOKS):
        here = [actor.ledger.numbered(number) for number in actor.ledger.numbers(board_id)]
        if all(state is None or state.incarnation != incarnation for state in here):
            return
        await asyncio.sleep(REMOVAL_LOOK_S)


async def _carry_out(actor: "ShardActor", order: dict[str, Any]) -> dict[str, Any]:
    match order["do"]:
        case "activate":
            expect = order.get("expect")
            return await actor.moving.activate(order["cause"], order["asked_by"], tuple(expect) if expect else None)
        case "handover":
            return await actor.moving.handover(order["asked_by"])
        case "readmit":
            return await actor.moving.readmit(order["region"], order["asked_by"])
        case "create_board":
            return {"ok": True, **await _create(actor, order)}
        case "find_life":
            life = await actor.change(board_changes.find_life(order["board"], order["incarnation"]), committed=True)
            return {"ok": True, "life": msgspec.to_builtins(life)}
        case "remove_board":
            remove = board_changes.remove(order["board"], order["incarnation"], order["asked_by"])
            if await actor.change(remove, committed=True):
                await _until_gone(actor, order["board"], order["incarnation"])
            return {"ok": True}
        case "mark":
            wanted = msgspec.convert(order["slice"], Slice)
            decide = board_changes.mark(wanted, generation=order["generation"], lead_epoch=order["lead_epoch"], keeps=order["keeps"])
            marked = await actor.change(decide, last=True, committed=True)
            return {"ok": True, "mark": msgspec.to_builtins(marked), "closed_at": actor.closed_at(wanted)}
        case "remove_slice":
            never = msgspec.convert(order["slice"], Slice) if "slice" in order else None
            decide = board_changes.remove_slice(order["board"], order["incarnation"], order["layout"], order["asked_by"], wanted=never)
            return {"ok": True, "removed": await actor.change(decide, committed=True)}
        case "relocate_board" | "abort_relocation" | "relocation":
            return {"ok": True, **await _relocate(actor, order)}
        case "import_slice" | "close_slice" | "open_slice" | "open_imported" | "forget_slice":
            return {"ok": True, **await _move_slice(actor, order)}
        case "export":
            wanted_part = msgspec.convert(order["wanted"], Wanted)
            return {"ok": True, "chunk": exporting.copy(actor.ledger, wanted_part, order["after"], order["at_least"])}
        case "export_tail":
            wanted_part = msgspec.convert(order["wanted"], Wanted)
            told = await exporting.replay(actor.journal, actor.ledger, wanted_part, order["after"], order["wait_ms"])
            return {"ok": True, "chunk": told}
        case "audit":
            at = await actor.audit(order["what"], order["asked_by"], order["detail"], order.get("unless_open") or "")
            return {"ok": True, "epoch": at.epoch, "offset": at.offset}
        case "audits":
            found = await auditing.newest(actor.journal, order["what"], order["limit"])
            return {"ok": True, "records": msgspec.to_builtins(found)}
        case "orphans":
            return {"ok": True, **await actor.salvaging.listed(order["limit"])}
        case "resubmit_orphans":
            seen, outcomes = await actor.salvaging.resubmit(RESUBMIT_S, afresh=True)
            return {"ok": True, "outcomes": outcomes, "entries": msgspec.to_builtins(seen.counts())}
        case "sign_off_orphans":
            return {"ok": True, **await actor.salvaging.sign_off(order["epoch"], order["why"], order["asked_by"])}
        case other:
            return {"ok": False, "code": "unknown_order", "detail": str(other)}


async def _create(actor: "ShardActor", order: dict[str, Any]) -> dict[str, Any]:
    """A board, unless its last life moved away from here and still goes on elsewhere."""
    board_id, rules, asked_by = order["board"], msgspec.convert(order["rules"], BoardRules), order["asked_by"]
    told = order.get("layout")
    layout = Layout(told["number"], tuple(told["shards"])) if told else None
    try:
        state, created = await actor.create_board(board_id, rules, asked_by, layout)
    except NoAuthority as refusal:
        gone = actor.writer.pending.gone(board_id) if actor.writer is not None else None
        if refusal.code != "moved" or gone is None or await _goes_on(actor, board_id, gone):
            raise
        decide = board_changes.create(board_id, rules, uuid.uuid4().hex[:12], asked_by, layout, dead=gone.incarnation)
        state, created = await actor.change(decide)
        if state.rules != rules:
            raise board_changes.other_rules(board_id, state.rules, rules) from None
    return {"created": created, "number": state.number}


async def _goes_on(actor: "ShardActor", board_id: str, gone: Gone) -> bool:
    """Whether a life that moved away from here is still somewhere: lead after lead is asked. Raises Unanswered."""
    number, layout = 0, gone.moved_to
    while layout is not None and layout.number > number:
        if actor.coordinating is None:
            raise NoAuthority("this region stepped down before the board was created", code="no_authority", definite=True)
        reply = await actor.coordinating.order(layout.lead, {"do": "find_life", "board": board_id, "incarnation": gone.incarnation})
        life = msgspec.convert(reply["life"], Life)
        if life.here:
            return True
        number, layout = layout.number, life.moved_to
    return False


async def _relocate(actor: "ShardActor", order: dict[str, Any]) -> dict[str, Any]:
    """What operators ask of a board's lead."""
    board_id = order["board"]
    match order["do"]:
        case "relocate_board":
            _refuse_local(actor)
            decide = relocation_changes.begin(board_id, tuple(order["shards"]), order["asked_by"], shard=actor.spec.shard)
            target: Layout = await actor.change(decide, committed=True)
            return {"moving": True, "layout": {"number": target.number, "shards": list(target.shards)}}
        case "abort_relocation":
            moving = await actor.change(relocation_changes.give_up(board_id, "", order["asked_by"]), committed=True)
            return {"giving_up": moving}
    return actor.relocation(board_id)


async def _move_slice(actor: "ShardActor", order: dict[str, Any]) -> dict[str, Any]:
    """What the lead of a moving board asks of a slice, of the present layout or of the next.

    A shard that has become `local` meanwhile begins nothing, and lets what is begun come to its end, whichever that is.
    """
    if order["do"] in ("import_slice", "close_slice"):
        _refuse_local(actor)
    match order["do"]:
        case "import_slice":
            return await actor.importing_now().fill(
                msgspec.convert(order["slice"], Slice),
                order["sources"],
                order["layout"],
                lead_epoch=order["lead_epoch"],
                boundaries=order["boundaries"],
                wait_ms=order["wait_ms"],
                known=order.get("known", ()),
            )
        case "forget_slice":
            decide = relocation_changes.forget(msgspec.convert(order["slice"], Slice), order["asked_by"])
            return {"forgotten": await actor.change(decide, committed=True)}
    at = (order["board"], order["incarnation"], order["layout"])
    match order["do"]:
        case "close_slice":
            decide = relocation_changes.close(*at, target=order["target"], lead_epoch=order["lead_epoch"], above=order["above"])
            return {"closed": msgspec.to_builtins(await actor.change(decide, committed=True))}
        case "open_slice":
            decide = relocation_changes.open_again(
                *at, generation=order["generation"], lead_epoch=order["lead_epoch"], closed_at=order["closed_at"]
            )
            looked: Looked = await actor.change(decide, committed=True)
            return {"closed_at": looked.closed_at, "upto": looked.upto}
    decide = relocation_changes.open_imported(*at, generation=order["generation"], lead_epoch=order["lead_epoch"])
    return {"phase": await actor.change(decide, committed=True)}


def _refuse_local(actor: "ShardActor") -> None:
    if actor.mode == "local":
        detail = f"{actor.spec.shard} acknowledges by itself, and what it loses is salvaged by shard: its boards stay where they are"
        raise Unanswered(detail, code="relocation_refused", field="shards", allowed="those where it is")
