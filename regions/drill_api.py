"""Drills over HTTP: the same runner as the command's, inside the gateway, speaking to all regions with the caller's own token.

A drill lives in its gateway's memory. If the gateway dies, link faults end by themselves, and the journal's record that
the drill began keeps others out until the time that it stated.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from actors.messages import Unanswered
from boards.times import format_time
from config.models import ConfigError
from drills.http_cluster import HttpCluster
from drills.loading import shipped, shipped_plan
from drills.plan import STALL_MAX_MS
from drills.ports import Cluster, NoAnswer, Refusal, Unfit
from drills.report import Report, to_json, to_text
from drills.runner import Runner, Statement
from regions.answering import Edge, Reply, json_reply
from regions.problems import TABLE, ProblemError
from regions.submit_api import check_fields, read_object, read_query
from regions.tokens import Scope

log = logging.getLogger("laurel.drills")

_OPERATOR: tuple[Scope, ...] = ("operator",)
#: Drills that are remembered, with their reports.
KEPT = 20
_NAME_CHARS = 128

State = Literal["running", "met", "not_met", "aborted"]


def connect(urls: dict[str, str], token: str) -> Cluster:
    """The cluster behind a drill; tests put one in memory here."""
    return HttpCluster(urls, token)


@dataclass(slots=True)
class Drill:
    """One drill of this gateway."""

    runner: Runner
    statement: Statement
    asked_by: str
    began_ms: int
    lines: list[str]
    state: State = "running"
    report: Report | None = None
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    def told(self) -> dict[str, Any]:
        """As lists show it."""
        return {
            "id": self.runner.drill_id,
            "plan": self.statement.plan,
            "shard": self.statement.shard,
            "state": self.state,
            "asked_by": self.asked_by,
            "began_at": format_time(self.began_ms),
        }


class Drills:
    """See the module docstring. The newest `KEPT` are remembered."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._drills: OrderedDict[str, Drill] = OrderedDict()

    async def begin(self, request: Request) -> Reply:
        """`POST /v1/admin/drills`: 202 once the journal has it that the drill began; without `yes`, 200 with what would be done."""
        edge = self._edge
        claims = edge.admitted(request, _OPERATOR, "*")
        read_query(request, ())
        document = await read_object(request, edge.limits.max_body_bytes)
        check_fields(document, ("plan", "shard", "yes"), ("plan",))
        yes = document.get("yes", False)
        if not isinstance(yes, bool):
            raise ProblemError("invalid", "yes must be true or false", field="yes", allowed="true or false")
        lines: list[str] = []
        token = request.headers["authorization"].partition(" ")[2].strip()
        urls = {name: str(facts["url"]) for name, facts in edge.backend.status().get("regions", {}).items()}
        cluster = connect(urls, token)
        began = False
        try:
            runner = Runner(cluster, _plan(document), shard=_shard(document), tell=lines.append)
            try:
                statement = await runner.prepare()
                if yes:
                    await runner.begin()
            except Unfit as error:
                code = "unknown_shard" if error.reasons[0].startswith("there is no shard ") else "drill_refused"
                raise ProblemError(code, str(error), extra={"reasons": error.reasons}) from error
            except (NoAnswer, Refusal) as error:
                code = error.code if error.code in TABLE else "unavailable"
                raise Unanswered(str(error), code=code, definite=error.definite) from error
            if not yes:
                body = {"statement": msgspec.to_builtins(statement), "text": statement.text()}
                return json_reply(body, region=edge.backend.region)
            began = True
        finally:
            if not began:
                await _close(cluster)
        drill = Drill(runner, statement, claims.sub, edge.backend.now_ms(), lines)
        self._drills[runner.drill_id] = drill
        while len(self._drills) > KEPT:
            self._drills.popitem(last=False)
        log.warning("%s begins the drill %s of %s (%s)", claims.sub, statement.plan, statement.shard, runner.drill_id)
        drill.task = asyncio.get_running_loop().create_task(_run(drill, cluster))
        body = {**drill.told(), "statement": msgspec.to_builtins(statement), "text": statement.text()}
        return json_reply(body, status=202, region=edge.backend.region)

    async def listed(self, request: Request) -> Reply:
        """`GET /v1/admin/drills`: the newest last."""
        self._edge.admitted(request, _OPERATOR, "*")
        read_query(request, ())
        told = [drill.told() for drill in self._drills.values()]
        return json_reply({"region": self._edge.backend.region, "drills": told}, region=self._edge.backend.region)

    async def shown(self, request: Request) -> Reply:
        """`GET /v1/admin/drills/{drill}`."""
        self._edge.admitted(request, _OPERATOR, "*")
        read_query(request, ())
        name = request.path_params["drill"]
        drill = self._drills.get(name)
        if drill is None:
            detail = f"{self._edge.backend.region} remembers no drill {name[:_NAME_CHARS]}; ask the region that ran it"
            raise ProblemError("unknown_drill", detail, field="drill", allowed=", ".join(self._drills) or "none was run here")
        report = None if drill.report is None else {"report": to_json(drill.report), "text": to_text(drill.report)}
        body = {**drill.told(), "progress": list(drill.lines), "statement": msgspec.to_builtins(drill.statement), **(report or {})}
        return json_reply(body, region=self._edge.backend.region)


async def stall(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/stall`: this region's store answers nobody for `for_ms`, and goes on by itself."""
    claims = edge.admitted(request, _OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, ("for_ms",), ("for_ms",))
    for_ms = document["for_ms"]
    if type(for_ms) is not int or not 1 <= for_ms <= STALL_MAX_MS:
        allowed = f"a whole number of milliseconds from 1 to {STALL_MAX_MS}"
        raise ProblemError("invalid", "for_ms must be a whole number", field="for_ms", allowed=allowed)
    return json_reply(await edge.backend.stall(for_ms, subject=claims.sub), region=edge.backend.region)


async def _run(drill: Drill, cluster: Cluster) -> None:
    """To the report. What ends it otherwise has put back what the drill did, and is told as its last line."""
    try:
        drill.report = await drill.runner.run()
        drill.state = drill.report.verdict
    except BaseException as error:
        drill.state = "aborted"
        drill.lines.append(f"ended by {type(error).__name__}: {error}")
        if not isinstance(error, asyncio.CancelledError):
            log.exception("the drill %s ended", drill.runner.drill_id)
        if not isinstance(error, Exception):
            raise
    finally:
        await _close(cluster)


async def _close(cluster: Cluster) -> None:
    if isinstance(cluster, HttpCluster):
        await cluster.aclose()


def _plan(document: dict[str, Any]) -> Any:
    """A shipped plan alone: nobody reads files of this machine by their name."""
    name = document["plan"]
    if type(name) is not str or len(name) > _NAME_CHARS:
        raise ProblemError("invalid", "plan names a shipped plan", field="plan", allowed=", ".join(shipped()))
    try:
        return shipped_plan(name)
    except ConfigError as error:
        raise ProblemError("invalid", str(error), field="plan", allowed=", ".join(shipped())) from error


def _shard(document: dict[str, Any]) -> str | None:
    shard = document.get("shard")
    if shard is not None and (type(shard) is not str or not 0 < len(shard) <= _NAME_CHARS or not shard.isprintable()):
        raise ProblemError("invalid", "shard names a shard", field="shard", allowed="a name such as eu-west/0, or left out")
    return shard
