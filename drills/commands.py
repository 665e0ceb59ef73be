"""`laurel drill run|plans|show|list`: the runner on the operator's machine, over the public HTTP interface alone.

Exit code 0: the objectives were met. 1: they were not, or the drill was not begun or aborted. 2: wrong use.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from config.loading import load_cluster
from config.models import ConfigError
from drills.loading import find_plan, shipped
from laurel import showing
from laurel.commands import DATA_DIR, CommandError, DataDir, Json, Token, Url

if TYPE_CHECKING:
    from drills.plan import Plan
    from drills.ports import Cluster
    from drills.report import Report

T = TypeVar("T")

ConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="Take the regions' addresses from this cluster file.")]
PlanName = Annotated[str, typer.Argument(metavar="PLAN", help="A shipped plan (see `laurel drill plans`), or a YAML file.")]


def open_cluster(urls: list[str], token: str) -> Coroutine[Any, Any, "Cluster"]:
    """All regions, found through those that were named; tests put a cluster in memory here."""
    from drills.http_cluster import HttpCluster, discover

    async def find() -> "Cluster":
        return HttpCluster(await discover(urls, token), token)

    return find()


def run(
    plan: PlanName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    shard: Annotated[str | None, typer.Option("--shard", help="The shard to rehearse on; needed where there are several.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where the report goes; DATA_DIR/drills/ID if left out.")] = None,
    config: ConfigFile = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Rehearse a failure on the running cluster; put everything back; report."""
    with _told():
        wanted = find_plan(plan)
        if as_json and not yes:
            raise CommandError("--json cannot ask: add --yes", exit_code=2)
        urls, credential = _where(config, url, token, data_dir)
        report = asyncio.run(_rehearse(wanted, urls, credential, shard=shard, yes=yes, quiet=as_json))
        files = write_report(report, out or data_dir / "drills" / report.drill)
    _show(report, as_json, files)
    if report.verdict != "met":
        raise typer.Exit(1)


def plans(as_json: Json = False) -> None:
    """List the plans that are shipped."""
    with _told():
        known = list(shipped().values())
    if as_json:
        rows = [{"plan": p.name, "regions": p.fewest_regions, "at_most_ms": p.max_ms, "summary": p.summary} for p in known]
        showing.print_json({"plans": rows})
        return
    table = showing.table("plan", "regions", "at most", "what it does")
    for p in known:
        showing.add_row(table, p.name, f"{p.fewest_regions} or more", f"{p.max_ms / 1000:.0f} s", p.summary)
    showing.show(table)


def show(
    name: Annotated[str, typer.Argument(metavar="PLAN|ID", help="A plan, or the id of a drill that a region has run.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the report of a drill there.")] = None,
    config: ConfigFile = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show a plan; or, by its id, a drill that was begun over HTTP, and its report."""
    with _told():
        if not name.startswith("d-"):
            _show_plan(find_plan(name), as_json)
            return
        urls, credential = _where(config, url, token, data_dir)
        told = asyncio.run(_ask_for(name, urls, credential))
        if out is not None and told.get("report"):
            from drills.report import from_json

            write_report(from_json(told["report"]), out)
    if as_json:
        showing.print_json(told)
        return
    print(told.get("text") or "\n".join([f"{told['id']}: {told['plan']} on {told['shard']}, {told['state']}", *told["progress"]]))


def list_drills(
    config: ConfigFile = None, url: Url = None, token: Token = None, data_dir: DataDir = DATA_DIR, as_json: Json = False
) -> None:
    """List the drills that the journal knows: who, when, plan, outcome."""
    with _told():
        urls, credential = _where(config, url, token, data_dir)
        rows = history(asyncio.run(_records(urls, credential)))
    if as_json:
        showing.print_json({"drills": rows})
        return
    table = showing.table("drill", "plan", "begun", "by", "ended", "outcome")
    for row in rows:
        showing.add_row(table, *(row[name] for name in ("id", "plan", "began_at", "asked_by", "ended_at", "outcome")))
    showing.show(table)


def add_drill_commands(app: typer.Typer) -> None:
    """All of the above, for the group `drill`."""
    app.command("run")(run)
    app.command("plans")(plans)
    app.command("show")(show)
    app.command("list")(list_drills)


# -- where to, with which token ------------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[None]:
    """Errors of configuration and of the cluster as one sentence."""
    from drills.ports import DrillError, Refusal, Unfit

    try:
        yield
    except ConfigError as error:
        raise CommandError(str(error), exit_code=2) from error
    except Unfit as error:
        raise CommandError(f"the drill was not begun: {error}; nothing was changed") from error
    except Refusal as error:
        hint = "; use an operator's token for all games" if error.code.endswith(("_token", "_scope", "_game")) else ""
        raise CommandError(f"{error}{hint}") from error
    except DrillError as error:
        raise CommandError(f"{error}; see `laurel status`") from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", exit_code=2) from error


def _where(config: Path | None, url: str | None, token: str | None, data_dir: Path) -> tuple[list[str], str]:
    """Base URLs of regions, and an operator's token; that of the data directory is given to its own regions only."""
    from laurel.client import find_cluster, read_token

    local = find_cluster(data_dir)
    if url:
        named = [part.strip() for part in url.split(",") if part.strip()]
        # NAME=URL as other commands take it: the regions tell their names themselves.
        urls = [part if part.startswith(("http://", "https://")) else part.partition("=")[2] for part in named]
        if bad := next((part for part, base in zip(named, urls, strict=True) if not base.startswith(("http://", "https://"))), None):
            raise CommandError(f"{bad!r} is no base URL: give one such as http://127.0.0.1:8101", exit_code=2)
    elif config is not None:
        urls = [f"http://{region.host}:{region.port}" for region in load_cluster(config).regions.values()]
    else:
        urls = list(local.regions.values())
    if not urls:
        raise CommandError("no region to ask: start one with `laurel up`, or give -c, --url or LAUREL_URL", exit_code=2)
    if token is None:
        known = {base.rstrip("/") for base in local.regions.values()}
        token = local.token("operator") if all(base.rstrip("/") in known for base in urls) else ""
        if not token:
            raise CommandError("a drill needs an operator's token for all games: give --token or LAUREL_TOKEN", exit_code=2)
    elif token.startswith("@"):
        token = read_token(Path(token[1:]))
    return urls, token


# -- running -------------------------------------------------------------------------------------------------------


async def _rehearse(plan: "Plan", urls: list[str], token: str, *, shard: str | None, yes: bool, quiet: bool) -> "Report":
    from drills.runner import Runner

    cluster = await open_cluster(urls, token)
    with _progress() as tell:
        runner = Runner(cluster, plan, shard=shard, tell=tell.line)
        try:
            statement = await runner.prepare()
            if not quiet:
                print(statement.text(), file=sys.stderr)
            if not yes:
                typer.confirm("Go on?", abort=True, err=True)
            tell.begin(plan.name)
            task = asyncio.ensure_future(runner.run())
            with _signals(runner.stop, task, tell.line):
                return await task
        finally:
            await _close(cluster)


@contextmanager
def _signals(stop: Any, task: "asyncio.Task[Any]", tell: Any) -> Iterator[None]:
    """The first signal ends the drill and has everything put back; the second leaves at once."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []

    def heard(name: str) -> None:
        seen.append(name)
        if len(seen) == 1:
            stop(f"interrupted by {name}")
            tell("interrupted: putting everything back; interrupt again to leave at once (link faults then end by themselves)")
        else:
            task.cancel()

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, heard, each.name)
    try:
        yield
    except asyncio.CancelledError as error:
        raise CommandError("left before everything was put back: see `laurel status`; link faults end by themselves") from error
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


class _Teller:
    """Progress on standard error: a moving line on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._status: Any = None

    def begin(self, name: str) -> None:
        """The drill starts."""
        if self._console.is_terminal:
            self._status = self._console.status(f"drill {name}")
            self._status.start()

    def line(self, text: str) -> None:
        """One turn of the drill."""
        if self._status is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._console.print(text, markup=False, highlight=False)
            self._status.update(text.replace("[", "\\["))

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def _progress() -> Iterator[_Teller]:
    teller = _Teller()
    try:
        yield teller
    finally:
        teller.end()


async def _close(cluster: Any) -> None:
    close = getattr(cluster, "aclose", None)
    if close is not None:
        await close()


async def _records(urls: list[str], token: str) -> list[dict[str, Any]]:
    from drills.ports import NoAnswer, Refusal

    cluster = await open_cluster(urls, token)
    last: NoAnswer | Refusal = NoAnswer("no region answered")
    try:
        for region in cluster.regions:
            try:
                return await cluster.audits(region, "", "drill")
            except (NoAnswer, Refusal) as error:
                last = error
    finally:
        await _close(cluster)
    raise last


async def _ask_for(name: str, urls: list[str], token: str) -> dict[str, Any]:
    """The drill `name`, from the region that has run it."""
    from drills.http_cluster import HttpCluster, discover
    from drills.ports import NoAnswer, Refusal

    last: NoAnswer | Refusal = NoAnswer("no region answered")
    async with HttpCluster(await discover(urls, token), token) as cluster:
        for region in cluster.regions:
            try:
                return await cluster.drill(region, name)
            except (NoAnswer, Refusal) as error:
                last = error
    raise last


# -- showing -------------------------------------------------------------------------------------------------------


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a drill, the newest last, out of audit records; without an end, the outcome is "open"."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        detail = record.get("detail") or {}
        name = str(detail.get("id"))
        if record.get("what") == "drill.began":
            facts = {"plan": detail.get("plan"), "began_at": record.get("at"), "asked_by": record.get("asked_by")}
            rows[name] = {"id": name, **facts, "ended_at": None, "outcome": "open"}
        elif name in rows:
            rows[name] |= {"ended_at": record.get("at"), "outcome": detail.get("outcome"), "why": detail.get("why")}
    return list(rows.values())


def write_report(report: "Report", folder: Path) -> dict[str, str]:
    """Write report.txt, report.json and report.html; their paths."""
    from drills.page import to_page
    from drills.report import to_json, to_text

    folder.mkdir(parents=True, exist_ok=True)
    texts = {"text": to_text(report), "json": json.dumps(to_json(report), indent=1) + "\n", "html": to_page(report)}
    files = {}
    for kind, suffix in (("text", "txt"), ("json", "json"), ("html", "html")):
        path = folder / f"report.{suffix}"
        path.write_text(texts[kind], "utf-8")
        files[kind] = str(path)
    return files


def _show(report: "Report", as_json: bool, files: dict[str, str]) -> None:
    from drills.report import to_json, to_text

    if as_json:
        showing.print_json({**to_json(report), "files": files})
    else:
        print(to_text(report), end="")
        print(f"\nThe report is in {files['html']}.")


def _show_plan(plan: "Plan", as_json: bool) -> None:
    if as_json:
        at_most = {"at_most_ms": plan.max_ms, "regions": plan.fewest_regions}
        showing.print_json({**plan.model_dump(mode="json", by_alias=True, exclude_none=True), **at_most})
        return
    print(f"{plan.name}: {plan.summary}")
    print(f"Needs {plan.fewest_regions} regions or more; takes at most {plan.max_ms / 1000:.0f} s.")
    print("Steps:")
    for number, step in enumerate(plan.steps, 1):
        print(f"  {number}. {step.words()}")
    print("Unavailable:")
    for item in plan.unavailable:
        print(f"  {item.what}: at most {item.at_most_ms / 1000:g} s")
    print("Objectives:")
    for name, limit in plan.objectives.model_dump(exclude_none=True).items():
        print(f"  {name} {limit:g}")
