"""Orders that operators, and other regions on their behalf, give to a shard actor: maps in, maps out, errors inside.

An order is `{"do": ...}` with its fields; the answer has `ok`, or an `error` (`actors.messages.WireError`).
"""

from typing import Any

import msgspec

from actors import auditing, board_changes
from actors.board_changes import Slice
from actors.messages import Unanswered, to_wire
from actors.shard import ShardActor
from boards.model import BoardRules, Layout
from journal.ports import JournalUnavailable

#: How long one order may go on sending orphans again; the caller waits for 30 s.
RESUBMIT_S = 20.0
#: Orders about what this region's store holds.
OF_THE_STORE = ("audits", "orphans", "resubmit_orphans", "sign_off_orphans")


async def operate(actor: ShardActor, order: dict[str, Any]) -> dict[str, Any]:
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


async def _carry_out(actor: ShardActor, order: dict[str, Any]) -> dict[str, Any]:
    match order["do"]:
        case "activate":
            expect = order.get("expect")
            return await actor.moving.activate(order["cause"], order["asked_by"], tuple(expect) if expect else None)
        case "handover":
            return await actor.moving.handover(order["asked_by"])
        case "readmit":
            return await actor.moving.readmit(order["region"], order["asked_by"])
        case "create_board":
            rules = msgspec.convert(order["rules"], BoardRules)
            wanted_layout = order.get("layout")
            layout = Layout(wanted_layout["number"], tuple(wanted_layout["shards"])) if wanted_layout else None
            state, created = await actor.create_board(order["board"], rules, order["asked_by"], layout)
            return {"ok": True, "created": created, "number": state.number}
        case "remove_board":
            await actor.change(board_changes.remove(order["board"], order["incarnation"], order["asked_by"]))
            return {"ok": True}
        case "mark":
            wanted = msgspec.convert(order["slice"], Slice)
            decide = board_changes.mark(wanted, generation=order["generation"], lead_epoch=order["lead_epoch"], keeps=order["keeps"])
            return {"ok": True, "mark": msgspec.to_builtins(await actor.change(decide, last=True, committed=True))}
        case "remove_slice":
            removed = await actor.change(
                board_changes.remove_slice(order["board"], order["incarnation"], order["layout"], order["asked_by"])
            )
            return {"ok": True, "removed": removed}
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
