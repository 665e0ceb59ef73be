"""How authority over a shard comes to this region and leaves it: what operators and other regions ask of its shard actor."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from actors.clocks import monotonic_ms, wall_ms
from actors.messages import NoAuthority
from actors.ports import Links, ShardSpec
from failover import events as e
from failover.events import Role
from failover.lease import promise_ms
from failover.state import ShardState
from journal.ports import Journal
from journal.records import HandedOver

#: A region that is so many entries behind is not handed the shard: writes would pause until it has them.
HANDOVER_LAG = 1000


class Moving:
    """See the module docstring. `hear` gives an event to the machine; what it answers comes back here."""

    def __init__(self, spec: ShardSpec, state: ShardState, journal: Journal, links: Links, *, hear: Callable[[e.Event], None]) -> None:
        self._spec, self._state, self._journal, self._links, self._hear = spec, state, journal, links, hear
        self._activation: asyncio.Future[e.ActivationEnded] | None = None
        self._drain: asyncio.Future[int | None] | None = None
        self._record: HandedOver | None = None
        #: The last activation that started here: cause, who asked, epoch and the durations of its phases in ms; None before.
        self.last: dict[str, Any] | None = None

    # -- what the machine tells ---------------------------------------------------------------------------------

    def activation_ended(self, ended: e.ActivationEnded) -> None:
        """An activation of this region has started, or will not."""
        if ended.ok:
            self.last = {"cause": ended.cause, "asked_by": ended.asked_by, "epoch": self._state.epoch, "phases_ms": dict(ended.phases_ms)}
        if self._activation is not None and not self._activation.done():
            self._activation.set_result(ended)

    def record(self) -> HandedOver:
        """The record that a drain ends with."""
        assert self._record is not None
        return self._record

    def drained(self, offset: int | None) -> None:
        """The handover record at `offset` is committed; None: this region has stepped down before."""
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(offset)
        if offset is None:
            self._drain = None

    # -- what is asked --------------------------------------------------------------------------------------------

    async def activate(
        self,
        cause: str,
        asked_by: str,
        expect: tuple[int, str] | None = None,
        readmit: dict[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> dict[str, Any]:
        """Make this region the authority by a new epoch. Returns what came of it; `ok` False says why in `code`, `detail`.

        In a `local` shard a promise to the owner is waited for beside `timeout_s`.
        """
        timing = self._spec.timing
        leased_s = promise_ms(timing.lease_ms) / 1000 if self._state.mode == "local" else 0.0
        deadline, tries = time.monotonic() + timeout_s + leased_s, 0
        while True:
            ended = await self._activate_once(cause, asked_by, expect, readmit, max(0.05, deadline - time.monotonic()))
            if ended.ok or ended.code not in ("fenced", "adopt_failed") or time.monotonic() >= deadline:
                epoch, owner = self._state.epoch, self._spec.region
                reply = {"ok": ended.ok, "code": ended.code, "detail": ended.detail, "epoch": epoch, "owner": owner}
                return reply | ({"phases_ms": dict(ended.phases_ms)} if ended.ok else {})
            # Two coordinators that try again at once would depose each other for ever.
            tries += 1
            await asyncio.sleep(self._spec.timing.backoff_min_ms / 1000 * tries * (0.5 + random.random()))

    async def _activate_once(
        self, cause: str, asked_by: str, expect: tuple[int, str] | None, readmit: dict[str, str] | None, timeout_s: float
    ) -> e.ActivationEnded:
        state = self._state
        if state.role is Role.HALTED:
            return e.ActivationEnded(ok=False, code="halted", detail=state.why)
        if self._activation is not None and not self._activation.done():
            return e.ActivationEnded(ok=False, code="busy", detail="an activation that was asked for before is under way")
        waiting: asyncio.Future[e.ActivationEnded] = asyncio.get_running_loop().create_future()
        self._activation = waiting
        asked = e.ActivationAsked(
            now_ms=monotonic_ms(), cause=cause, asked_by=asked_by, token=uuid.uuid4().hex, expect=expect, readmit=readmit
        )
        self._hear(asked)
        try:
            return await asyncio.wait_for(waiting, timeout_s)
        except TimeoutError:
            return e.ActivationEnded(ok=False, code="timeout", detail=f"not started within {timeout_s:.1f} s: {state.why}")

    async def handover(self, asked_by: str) -> dict[str, Any]:
        """Planned handover to this region: drain the owner, wait until its last entry is here, then activate."""
        spec, status = self._spec, await self._journal.status()
        newest = status.newest
        if newest is None:
            return _not_moved("no_authority", "no epoch has started yet", 0, "")
        epoch, owner = newest.epoch, newest.owner
        if owner == spec.region:
            return _not_moved("already_owner", f"{owner} owns the shard already", epoch, owner)
        theirs = await self._links.probe(owner, spec.shard)
        if theirs is None:
            return _not_moved("unreachable", f"{owner} does not answer; use a forced failover", epoch, owner)
        if theirs.tail.offset - status.tail.offset > HANDOVER_LAG:
            return _not_moved("lagging", f"{spec.region} lags by {theirs.tail.offset - status.tail.offset} entries", epoch, owner)
        began = monotonic_ms()
        offset = await self._links.drain(owner, spec.shard, epoch, spec.region, asked_by)
        if offset is None:
            return _not_moved("drain_failed", f"{owner} did not finish draining", epoch, owner)
        deadline = monotonic_ms() + spec.timing.handover_timeout_ms
        committed = status.committed
        while committed < offset and monotonic_ms() < deadline:
            committed = await self._journal.wait_for(committed_above=offset - 1, timeout_ms=deadline - monotonic_ms())
        if committed < offset:
            return _not_moved("handover_timeout", "the last entry did not arrive in time", epoch, owner)
        drained = monotonic_ms() - began
        reply = await self.activate("handover", asked_by, (epoch, owner))
        return reply | ({"phases_ms": {"drain": drained, **reply["phases_ms"]}} if reply["ok"] else {})

    async def drain(self, epoch: int, to: str, asked_by: str) -> int | None:
        """Stop accepting for good in this epoch; the offset of the committed handover record, None if it cannot be.

        Asking again is harmless: an epoch that is drained, or draining, answers with the record that it has.
        """
        state = self._state
        if state.epoch != epoch or state.role not in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED):
            return None
        if state.role is Role.DRAINED:
            return state.drain_offset
        if state.role is Role.AUTHORITY:
            self._drain = asyncio.get_running_loop().create_future()
            self._record = HandedOver(to, asked_by, wall_ms())
            self._hear(e.DrainAsked(now_ms=monotonic_ms(), epoch=epoch))
        if self._drain is None:
            return None
        try:
            return await asyncio.wait_for(asyncio.shield(self._drain), self._spec.timing.handover_timeout_ms / 1000)
        except TimeoutError:
            return None

    async def readmit(self, region: str, asked_by: str) -> dict[str, Any]:
        """As authority: begin `region`'s store anew and start an epoch whose members name its new token, without its vote."""
        state, spec = self._state, self._spec
        if state.role is not Role.AUTHORITY:
            raise NoAuthority(
                "only the shard's authority can readmit a region", code="no_authority", epoch=state.newest_epoch, owner=state.newest_owner
            )
        there = await self._links.probe(region, spec.shard)
        if there is not None and there.fence > state.epoch:
            # Promised to somebody who did not start, or deposed this epoch: only an epoch above it may begin the store anew.
            moved = await self.activate("unstarted_seal", asked_by, (state.epoch, spec.region))
            if not moved["ok"]:
                return moved
            there = await self._links.probe(region, spec.shard)
        if there is None:
            return {"ok": False, "code": "unreachable", "detail": f"{region} does not answer"}
        if state.role is not Role.AUTHORITY or state.replication is None or not state.replication.leave_out(region, monotonic_ms()):
            detail = f"without {region} no majority holds all that is committed; wait for the others"
            return {"ok": False, "code": "not_held", "detail": detail}
        token = f"{region}.{uuid.uuid4().hex}"
        status = await self._links.readmit(region, spec.shard, token, epoch := state.epoch, there.incarnation)
        if status is None:
            return {"ok": False, "code": "unreachable", "detail": f"{region} does not answer"}
        if status.incarnation != token:
            return {
                "ok": False,
                "code": "superseded",
                "detail": f"the store of {region} was changed meanwhile; look at the status, try again",
            }
        return await self.activate("readmit", asked_by, (epoch, spec.region), {region: token})


def _not_moved(code: str, detail: str, epoch: int, owner: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "detail": detail, "epoch": epoch, "owner": owner}
