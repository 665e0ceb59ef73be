"""The steps of a drill, carried out one by one; and everything that they have changed, put back."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from drills.checks import ailments, authority, facts_of, peers_of
from drills.plan import (
    AUTOMATIC_MS,
    COMMAND_MS,
    CutStep,
    FailoverStep,
    FollowStep,
    HealStep,
    SettleStep,
    SlowStep,
    StallStep,
    Step,
    WaitStep,
)
from drills.ports import Cluster, Direction, DrillError, NoAnswer, Refusal
from drills.report import Move, MoveKind

#: How often the regions are asked for their status, and how old one may be.
WATCH_S, STATUS_S = 0.2, 0.5
#: Faults are put back, health comes back and authority returns, within this time each.
HEAL_S, HEALTH_S, RETURN_S = 5.0, 20.0, 15.0
#: A handover that was refused for a passing reason is asked for again after so long.
AGAIN_S = 0.3


#: How a move was brought about, by the cause in its epoch's first record.
_CAUSES: dict[str, MoveKind] = {"handover": "planned", "forced": "forced", "automatic": "automatic"}


class StepFailed(Exception):
    """A step did not do what it is for; the text says why."""


@dataclass(slots=True)
class Course:
    """See the module docstring. `roles` names the region of each part; `now_ms` is the drill's clock."""

    cluster: Cluster
    shard: str
    roles: Mapping[str, str]
    now_ms: Callable[[], float]
    moves: list[Move] = field(default_factory=list)
    #: (time, epoch, serving region), at each look.
    seen: list[tuple[float, int, str]] = field(default_factory=list)
    _faults: dict[tuple[str, str], Direction] = field(default_factory=dict)
    _fault_ms: float | None = None
    _owner: tuple[int, str] = (0, "")
    #: A move was asked for here: new epochs are its doing.
    _asking: bool = False
    _moving: "asyncio.Future[None] | None" = None
    #: The drill is over: a command that is refused is not given again.
    _ending: bool = False
    _statuses: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    _looked: asyncio.Event = field(default_factory=asyncio.Event)

    # -- looking ---------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at all regions for ever."""
        while True:
            await self.look()
            await asyncio.sleep(WATCH_S)

    async def look(self) -> None:
        """One look at all regions; a new epoch that nobody here has asked for is a move by itself."""

        async def one(region: str) -> dict[str, Any] | None:
            try:
                async with asyncio.timeout(2.0):
                    return await self.cluster.status(region)
            except (DrillError, TimeoutError):
                return None

        found = await asyncio.gather(*(one(region) for region in self.cluster.regions))
        self._statuses = dict(zip(self.cluster.regions, found, strict=True))
        now = self.now_ms()
        for region, status in self._statuses.items():
            facts = facts_of(status, self.shard)
            if facts.get("serving"):
                self.seen.append((now, int(facts.get("epoch") or 0), region))
            self._learn_phases(facts.get("activation") or {})
        epoch, owner = authority(self._statuses, self.shard)
        if epoch > self._owner[0]:
            before, self._owner = self._owner, (epoch, owner)
            if before[0] and not self._asking:
                told = facts_of(self._statuses[owner], self.shard).get("activation") or {}
                phases = _phases(told) if told.get("epoch") == epoch else None
                kind: MoveKind = _CAUSES.get(str(told.get("cause")), "restart") if told.get("epoch") == epoch else "automatic"
                self._moved("restart" if owner == before[1] else kind, 0, before, self._owner, None, phases)
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    def _learn_phases(self, told: Mapping[str, Any]) -> None:
        """An answer does not always tell them, or came from an earlier try; the activation's own region does."""
        for at, move in enumerate(self.moves):
            if move.phases_ms is None and move.epoch == told.get("epoch") and (phases := _phases(told)) is not None:
                self.moves[at] = msgspec.structs.replace(move, phases_ms=phases)

    def _moved(
        self,
        kind: MoveKind,
        step: int,
        before: tuple[int, str],
        after: tuple[int, str],
        asked_ms: float | None,
        phases: dict[str, float] | None,
    ) -> None:
        seen = self.now_ms()
        detect = max(0.0, asked_ms - self._fault_ms) if self._fault_ms is not None and asked_ms is not None else None
        self.moves.append(
            Move(
                step=step, kind=kind, from_epoch=before[0], from_owner=before[1], epoch=after[0], owner=after[1],
                asked_ms=asked_ms, fault_ms=self._fault_ms, seen_ms=seen, detect_ms=detect, phases_ms=phases,
            )
        )  # fmt: skip

    # -- steps -----------------------------------------------------------------------------------------------------

    async def take(self, number: int, step: Step) -> None:
        """Do one step. Raises `StepFailed`, or what the cluster said."""
        match step:
            case WaitStep():
                await asyncio.sleep(step.for_ms / 1000)
            case FailoverStep():
                await self._fail_over(number, step)
            case CutStep():
                await self._fault(step, "drop", 0)
            case SlowStep():
                await self._fault(step, "delay", step.delay_ms)
            case StallStep():
                await self.cluster.stall(self.roles[step.region], step.for_ms)
                self._fault_ms = self.now_ms()
            case HealStep():
                if left := await self._heal():
                    raise StepFailed("; ".join(left))
            case FollowStep():
                await self._until(lambda: self._follows(self.roles[step.region]), step.within_ms / 1000)
            case SettleStep():
                await self._until_well(step.within_ms / 1000)

    async def _fault(self, step: CutStep | SlowStep, mode: str, delay_ms: int) -> None:
        region = self.roles[step.region]
        for peer in peers_of(step, self.roles, self.cluster.regions):
            # Noted first: what may have been set is put back.
            self._faults[region, peer] = "both"
            await self.cluster.set_link(region, peer, step.direction, mode=mode, delay_ms=delay_ms, for_ms=step.for_ms)
        self._fault_ms = self.now_ms()

    async def _heal(self) -> list[str]:
        """Clear every link fault of this drill; a sentence for each that could not be cleared in time."""
        deadline, left = asyncio.get_running_loop().time() + HEAL_S, []
        for region, peer in list(self._faults):
            while True:
                try:
                    await self.cluster.set_link(region, peer, "both", mode="clear")
                    del self._faults[region, peer]
                    break
                except DrillError as error:
                    if asyncio.get_running_loop().time() > deadline:
                        left.append(f"the link of {region} to {peer} could not be cleared ({error}); it ends by itself")
                        break
                    await asyncio.sleep(AGAIN_S)
        self._fault_ms = None
        return left

    async def _fail_over(self, number: int, step: FailoverStep) -> None:
        to = self.roles[step.to]
        await self.look()
        before = self._owner
        if step.unless_automatic and self._promotes():
            await self._until(lambda: None if self._owner[0] > before[0] else "authority has not moved by itself", AUTOMATIC_MS / 1000)
            return
        if before[1] != to or step.force:
            # A command goes on at the region when its asker leaves, so nobody may leave before its end is known.
            self._moving = asyncio.ensure_future(self._command(number, to, before, force=step.force))
            await asyncio.shield(self._moving)

    def _promotes(self) -> bool:
        """Whether the shard moves by itself now: not within five minutes after it last did, when an operator must order it."""
        told = [facts_of(status, self.shard) for status in self._statuses.values()]
        return any(facts.get("on_region_loss") == "promote" for facts in told) and not any(
            facts.get("automatic_pause_ms") for facts in told
        )

    async def _command(self, number: int, to: str, before: tuple[int, str], *, force: bool, within_s: float = COMMAND_MS / 1000) -> None:
        """Ask for the move; again, for a while, where the refusal may pass."""
        asked, self._asking = self.now_ms(), True
        try:
            moved = await self._ask(to, before, force=force, deadline=asyncio.get_running_loop().time() + within_s)
        finally:
            self._asking = False
        origin = moved.get("from") or {}
        came = (int(origin.get("epoch") or before[0]), str(origin.get("owner") or before[1]))
        after = (int(moved["epoch"]), str(moved["owner"]))
        self._owner = max(self._owner, after)
        self._moved("forced" if force else "planned", number, came, after, asked, _phases(moved))

    async def _ask(self, to: str, before: tuple[int, str], *, force: bool, deadline: float) -> dict[str, Any]:
        while True:
            try:
                return await self.cluster.failover(to, self.shard, force=force)
            except (Refusal, NoAnswer) as error:
                if isinstance(error, Refusal) and error.code not in ("failover_refused", "epoch_moved") and not error.again:
                    raise
                if self._ending or asyncio.get_running_loop().time() + AGAIN_S > deadline:
                    raise StepFailed(f"{to} did not take authority: {error}") from error
            await asyncio.sleep(AGAIN_S)
            await self.look()
            if self._owner[1] == to and self._owner[0] > before[0]:  # an earlier try has succeeded, and nobody said so
                return {"epoch": self._owner[0], "owner": to}

    def _follows(self, region: str) -> str | None:
        facts = facts_of(self._statuses.get(region), self.shard)
        if facts.get("role") == "follower" and not facts.get("serving") and facts.get("owner") == self._owner[1]:
            return None
        return f"{region} is {facts.get('role') or 'silent'}, under {facts.get('owner') or 'nobody'}, not following {self._owner[1]}"

    async def _until(self, lacks: Callable[[], str | None], within_s: float) -> None:
        """Look again and again until nothing is lacking. Raises `StepFailed` with what is."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            await self.look()
            lacking = lacks()
            if lacking is None:
                return
            if asyncio.get_running_loop().time() + WATCH_S / 2 > deadline:
                raise StepFailed(f"not within {within_s:g} s: {lacking}")
            await asyncio.sleep(WATCH_S / 2)

    async def _until_well(self, within_s: float) -> None:
        """Well twice: the first look may show what a region had said before it fell ill."""
        deadline, well = asyncio.get_running_loop().time() + within_s, False
        while True:
            await self.look()
            missing: dict[str, list[str]] = {}
            for region in self.cluster.regions:
                try:
                    missing[region] = await self.cluster.ready(region)
                except DrillError as error:
                    missing[region] = [str(error) or error.code]
            ails = ailments(self._statuses, missing, self.shard)
            if not ails and well:
                return
            if asyncio.get_running_loop().time() + STATUS_S > deadline:
                raise StepFailed(f"not well within {within_s:g} s: {'; '.join(ails) or 'well for the first time only now'}")
            well = not ails
            await asyncio.sleep(STATUS_S if well else WATCH_S)

    # -- putting back ----------------------------------------------------------------------------------------------

    async def put_back(self, owner: str) -> list[str]:
        """Clear faults, wait until all is well, give authority back to `owner`; a sentence for each thing that was not possible."""
        notes, self._ending = await self._heal(), True
        if self._moving is not None and not self._moving.done():
            await asyncio.wait((self._moving,))
            if (failed := self._moving.exception()) is not None:
                notes.append(f"a move was under way: {failed}")
        self._ending = False
        try:
            await self._until_well(HEALTH_S)
        except StepFailed as error:
            notes.append(str(error))
        await self.look()
        if self._owner[1] != owner:
            try:
                await self._command(0, owner, self._owner, force=False, within_s=RETURN_S)
                await self._until_well(HEALTH_S / 2)
            except (StepFailed, DrillError) as error:
                notes.append(f"authority returns to {owner}: {error}")
        return list(dict.fromkeys(notes))


def _phases(told: Mapping[str, Any]) -> dict[str, float] | None:
    """`phases_ms` of an answer or a status, if it has any."""
    phases = told.get("phases_ms")
    return {str(name): float(took) for name, took in phases.items() if took is not None} if isinstance(phases, Mapping) else None
