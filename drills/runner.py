"""One drill, from the look before it to its report. Drives a `drills.ports.Cluster`; all of its time is that of the running loop.

`prepare` changes nothing. `run` always puts faults back, whatever ends it: its own end, `stop`, an error, or the task's
cancellation; and each fault ends by itself if nothing is left that could put it back.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from drills import measures
from drills.canary import Canary
from drills.checks import ailments, authority, facts_of, lost_majority, open_drill, parts, pick_shard
from drills.course import Course, StepFailed
from drills.plan import Plan
from drills.ports import Cluster, DrillError, NoAnswer, Refusal, Unfit
from drills.report import Report, StepTold, Verdict
from laurel.provenance import commit, machine

#: The canary's last events, and the proof, take at most so long each.
LAST_S, PROOF_S = 10.0, 20.0
#: The end is written into the journal within this time, or the report says that it is not.
AUDIT_S = 5.0
#: Between the first look, from which a drill's time counts in the journal, and its beginning lie some calls.
AGREED_MS = 8000


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill is about to do, for whoever has to agree."""

    plan: str
    summary: str
    shard: str
    boards: int
    owner: str
    epoch: int
    roles: dict[str, str]
    steps: list[str]
    unavailable: list[str]
    at_most_ms: int

    def text(self) -> str:
        """For people."""
        parts_named = ", ".join(f"{role} {region}" for role, region in self.roles.items())
        lines = [
            f"Drill {self.plan} on {self.shard}, which {self.owner} owns in epoch {self.epoch}: {self.summary}",
            f"Parts: {parts_named}.",
            "Steps:",
            *(f"  {number}. {words}" for number, words in enumerate(self.steps, 1)),
            f"Unavailable meanwhile, for the {self.boards} boards of {self.shard}:",
            *(f"  {words}" for words in self.unavailable or ["nothing"]),
            f"It takes at most {self.at_most_ms / 1000:.0f} s, and puts back whatever it did, also when it is interrupted.",
        ]
        return "\n".join(lines)


class Runner:
    """See the module docstring. `tell` hears a line at each turn."""

    def __init__(
        self, cluster: Cluster, plan: Plan, *, shard: str | None = None, tell: Callable[[str], None] = lambda line: None, drill_id: str = ""
    ) -> None:
        self._cluster, self.plan, self._wanted, self._tell = cluster, plan, shard, tell
        #: Subject of the token, as the journal has it.
        self._asked_by = ""
        self.drill_id = drill_id or f"d-{uuid.uuid4().hex[:10]}"
        self.shard = ""
        self._stopped = asyncio.Event()
        self._why = ""
        self._notes: list[str] = []
        self._steps: list[StepTold] = []
        self._began_s = 0.0
        self._began_at_ms = 0
        self._statement: Statement | None = None
        self._recorded = False
        #: The shard acknowledges alone, under a lease.
        self._local = False

    def now_ms(self) -> float:
        """Since the drill began."""
        return (asyncio.get_running_loop().time() - self._began_s) * 1000

    def stop(self, why: str) -> None:
        """End the drill early: faults are put back, authority returns, and the report says why. Idempotent."""
        self._why = self._why or why
        self._stopped.set()

    # -- before ----------------------------------------------------------------------------------------------------

    async def prepare(self) -> Statement:
        """Look whether the cluster would survive the drill. Changes nothing. Raises `Unfit`, or `Refusal` for a bad token."""
        statuses, missing = await survey(self._cluster)
        self.shard, reasons = pick_shard(statuses, self._wanted)
        if not reasons:
            reasons = ailments(statuses, missing, self.shard)
        if reasons:
            raise Unfit(reasons)
        epoch, owner = authority(statuses, self.shard)
        roles = parts(self._cluster.regions, owner)
        reasons = lost_majority(self.plan, roles, self._cluster.regions)
        self._began_at_ms = int((statuses[owner] or {}).get("at_ms") or 0)
        try:
            other = open_drill(await self._cluster.audits(owner, self.shard, "drill"), self._began_at_ms)
        except NoAnswer as error:
            raise Unfit([f"{owner} does not say whether another drill is under way"]) from error
        if other is not None:
            left = max(1, round((int(other["until_ms"]) - self._began_at_ms) / 1000))
            reasons.append(f"the drill {other.get('plan')} ({other.get('id')}) is under way: wait for its end, {left} s at most")
        if reasons:
            raise Unfit(reasons)
        facts = facts_of(statuses[owner], self.shard)
        self._local = facts.get("mode") == "local"
        boards = facts.get("replica", {}).get("boards_count") or 0
        self._statement = Statement(
            plan=self.plan.name,
            summary=self.plan.summary,
            shard=self.shard,
            boards=int(boards),
            owner=owner,
            epoch=epoch,
            roles=roles,
            steps=[f"{step.words()}" for step in self.plan.steps],
            unavailable=[f"{item.what}: at most {item.at_most_ms / 1000:g} s" for item in self.plan.unavailable],
            at_most_ms=self.plan.max_ms,
        )
        return self._statement

    async def begin(self) -> None:
        """Write into the journal that the drill begins; `run` has to follow at once. Raises `Unfit`: nothing was changed."""
        statement = self._statement or await self.prepare()
        owner, until_ms = statement.owner, self._began_at_ms + statement.at_most_ms + AGREED_MS
        detail = {"id": self.drill_id, "plan": self.plan.name, "until_ms": until_ms}
        try:
            self._asked_by = await self._cluster.audit(owner, self.shard, "drill.began", detail, unless_open="drill")
        except Refusal as refusal:
            said = "another drill is under way" if refusal.code == "busy" else "the journal does not take the record that it begins"
            raise Unfit([f"{said}: {refusal.detail}"]) from refusal
        except NoAnswer as error:
            # It may be recorded, and would then keep others out until its time is over.
            with suppress(DrillError):
                await self._cluster.audit(owner, self.shard, "drill.ended", {**detail, "outcome": "aborted"})
            raise Unfit(["the authority did not say whether it recorded the drill: look at the audit before you try again"]) from error
        self._recorded = True
        self._tell(f"drill {self.drill_id} began")

    # -- the drill -------------------------------------------------------------------------------------------------

    async def run(self) -> Report:
        """Do it; what was not done yet of `prepare` and `begin` comes first. Once it has begun there is always a report."""
        if not self._recorded:
            await self.begin()
        assert self._statement is not None
        self._began_s = asyncio.get_running_loop().time()
        owner = self._statement.owner
        canary = Canary(
            self._cluster,
            shard=self.shard,
            drill_id=self.drill_id,
            traffic=self.plan.traffic,
            now_ms=self.now_ms,
            failed=lambda error: self.stop(f"the canary failed: {error}"),
            salvages=self._local,
        )
        course = Course(self._cluster, self.shard, self._statement.roles, now_ms=self.now_ms)
        watch = asyncio.get_running_loop().create_task(course.watch())
        proved = False
        try:
            await self._steps_of(canary, course, owner)
        except asyncio.CancelledError:
            self.stop("the drill was cancelled")
            raise
        finally:
            # Done in this order even where an earlier one fails; a cancelled drill still does it.
            await self._put_back(course, owner)
            proved = await self._finish(canary)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            report = self._report(canary, course, proved)
            await self._end(report, owner)
        return msgspec.structs.replace(report, notes=list(self._notes))

    async def _steps_of(self, canary: Canary, course: Course, owner: str) -> None:
        """Traffic, then the steps; the first that fails, or `stop`, ends them."""
        try:
            await self._unless_stopped(canary.open(owner, self.shard.rpartition("/")[0]))
            canary.start()
            await self._unless_stopped(asyncio.sleep(self.plan.before_ms / 1000))
            for number, step in enumerate(self.plan.steps, 1):
                began = self.now_ms()
                words = step.words()
                self._tell(f"{number}/{len(self.plan.steps)} {words}")
                failed = ""
                try:
                    await self._unless_stopped(course.take(number, step))
                except (StepFailed, DrillError) as error:
                    failed = str(error)
                except _Stopped:
                    failed = "stopped"
                    raise
                finally:
                    self._steps.append(
                        StepTold(number=number, do=step.do, words=words, began_ms=began, ended_ms=self.now_ms(), failed=failed)
                    )
                if failed:
                    self.stop(f"step {number} failed: {failed}")
                    return
            await self._unless_stopped(asyncio.sleep(self.plan.after_ms / 1000))
        except _Stopped:
            self._tell(f"stopping: {self._why}")
        except DrillError as error:
            self.stop(str(error))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            else:
                raise _Stopped
        finally:
            for each in (task, stopped):
                each.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    # -- after -----------------------------------------------------------------------------------------------------

    async def _put_back(self, course: Course, owner: str) -> None:
        self._tell("putting back what the drill has changed")
        try:
            self._notes += await course.put_back(owner)
        except Exception as error:  # the report is due all the same
            self._notes.append(f"not everything could be put back: {error!r}")

    async def _finish(self, canary: Canary) -> bool:
        """Let the canary end and prove that nothing is lost; whether it could be proved."""
        self._tell("asking for every event again")
        try:
            await canary.finish(LAST_S)
            await canary.prove(PROOF_S)
        except Exception as error:  # the report is due all the same
            self._notes.append(f"the proof is not complete: {error}")
            self.stop("it could not be proved that nothing is lost")
            return False
        return True

    def _report(self, canary: Canary, course: Course, proved: bool) -> Report:
        assert self._statement is not None
        regions, book = list(self._cluster.regions), canary.book
        if not book.began_ms:
            book.began_ms = book.ended_ms = self.now_ms()
        moves = measures.measured_moves(course.moves, book)
        wrote, read = measures.writes(book, moves, regions), measures.reads(book, regions)
        objectives = measures.judge(self.plan.objectives, moves, wrote, read, self._steps, proved=proved, local=self._local)
        verdict: Verdict = "aborted" if self._stopped.is_set() else "met" if all(o.met for o in objectives) else "not_met"
        return Report(
            drill=self.drill_id,
            plan=self.plan.name,
            summary=self.plan.summary,
            shard=self.shard,
            asked_by=self._asked_by,
            began_at_ms=self._began_at_ms,
            verdict=verdict,
            why=self._why,
            regions=regions,
            owner=self._statement.owner,
            steps=self._steps,
            moves=moves,
            writes=wrote,
            reads=read,
            objectives=objectives,
            notes=list(self._notes),
            timeline=measures.timeline(book, regions, course.seen, moves, self.now_ms()),
            commit=commit(),
            machine=machine(),
        )

    async def _end(self, report: Report, owner: str) -> None:
        detail = {"id": self.drill_id, "plan": self.plan.name, "outcome": report.verdict}
        if report.why:
            detail["why"] = report.why[:200]
        last: Exception | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUDIT_S
        while loop.time() < deadline:
            try:
                await self._cluster.audit(owner, self.shard, "drill.ended", detail)
                self._tell(f"drill {self.drill_id} ended: {report.verdict}")
                return
            except DrillError as error:
                last = error
                await asyncio.sleep(0.3)
        self._notes.append(f"the end could not be written into the journal: {last}")


class _Stopped(Exception):
    """`stop` was called."""


async def survey(cluster: Cluster) -> tuple[dict[str, dict[str, Any] | None], dict[str, list[str]]]:
    """Every region's status (None where there is no answer) and what it misses to be ready. Raises `Refusal` for a bad token."""

    async def one(region: str) -> tuple[dict[str, Any] | None, list[str]]:
        try:
            return await cluster.status(region), await cluster.ready(region)
        except NoAnswer:
            return None, []
        except Refusal as refusal:
            if not refusal.again:
                raise
            return None, []

    found = await asyncio.gather(*(one(region) for region in cluster.regions))
    pairs = dict(zip(cluster.regions, found, strict=True))
    return {region: pair[0] for region, pair in pairs.items()}, {region: pair[1] for region, pair in pairs.items()}
