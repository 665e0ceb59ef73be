"""Commands that talk to running regions over HTTP.

Where to: `--url`/`LAUREL_URL`, else `client.json` of the data directory, which `laurel up` writes. With which token:
`--token`/`LAUREL_TOKEN` (`@FILE` reads one), else that of the role in `client.json`; it is given to the regions of that
file only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laurel import showing

if TYPE_CHECKING:
    from laurel.client import LaurelClient
    from laurel.models import Board, EventResult

Url = Annotated[str | None, typer.Option("--url", envvar="LAUREL_URL", help="Base URLs of regions, comma separated; NAME=URL names one.")]
Token = Annotated[str | None, typer.Option("--token", envvar="LAUREL_TOKEN", help="Token, or @FILE.", show_envvar=True)]
DataDir = Annotated[Path, typer.Option("--data-dir", help="Where `laurel up` keeps its data.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
InRegion = Annotated[str | None, typer.Option("--region", help="Ask this region alone.")]
Generation = Annotated[str | None, typer.Option("--generation", help="Read this generation: s17, or the pin of an answer.")]
AtLeast = Annotated[
    str | None, typer.Option("--at-least", help="Read a generation that includes this position, such as 7-1042, or eu-west/1:7-1042.")
]
BoardId = Annotated[str, typer.Argument(metavar="BOARD", help="game:mode:season:scope")]
Player = Annotated[str, typer.Argument(metavar="PLAYER")]

DATA_DIR = Path(".laurel")
FILE_BATCH = 500

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)

#: Roles whose token may do it, the best first.
READER = ("reader", "game-server", "operator")
WRITER = ("game-server",)
OPERATOR = ("operator",)


class CommandError(Exception):
    """A failure told in one sentence that says what to do next."""

    def __init__(self, sentence: str, *, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.exit_code = exit_code


#: Makes the client; tests put one with a mock transport here.
def connect(regions: dict[str, str], token: str, **options: Any) -> "LaurelClient":
    """A client for one command."""
    from laurel.client import LaurelClient

    return LaurelClient(regions, token, **options)


def _parse_urls(text: str) -> dict[str, str]:
    regions = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, base = part.partition("=")
        named = bool(equals) and "/" not in name
        base = base if named else part
        if not base.startswith(("http://", "https://")):
            raise CommandError(f"{base!r} is no base URL: give one such as http://127.0.0.1:8101", exit_code=2)
        regions[name if named else base] = base
    return regions


def client_for(url: str | None, token: str | None, data_dir: Path, roles: Sequence[str], **options: Any) -> "LaurelClient":
    """A client by the options of a command, with the token of the first of `roles` that the data directory has."""
    from laurel.client import find_cluster, read_token

    local = find_cluster(data_dir)
    regions = _parse_urls(url) if url else local.regions
    if not regions:
        raise CommandError("no region to ask: start one with `laurel up`, or give --url or LAUREL_URL", exit_code=2)
    if token is None:
        known = {base.rstrip("/") for base in local.regions.values()}
        token = local.token(*roles) if all(base.rstrip("/") in known for base in regions.values()) else ""
    elif token.startswith("@"):
        token = read_token(Path(token[1:]))
    return connect(regions, token, **options)


def check_region(client: "LaurelClient", region: str | None) -> None:
    """Raises CommandError unless the client knows the region."""
    if region is not None and region not in client.regions:
        raise CommandError(f"region {region!r} is none of {', '.join(client.regions)}", exit_code=2)


def top(
    board: BoardId,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on from here: `next` of an earlier page.")] = None,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show the first places of a board."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        page = client.top(board, limit, cursor, generation, at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(page))
        return
    showing.show_entries(page)
    for word, there in (("next", page.next), ("previous", page.previous)):
        if there:
            print(f"{word} page: --cursor {there}")


def rank(
    board: BoardId,
    player: Player,
    approximate: Annotated[bool, typer.Option("--approximate", help="An estimate, with how far it may be off.")] = False,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show a player's place."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        place = client.rank(board, player, approximate=approximate, generation=generation, at_least=at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(place))
    else:
        showing.show_entries(place)


def percentile(
    board: BoardId,
    player: Player,
    approximate: Annotated[bool, typer.Option("--approximate", help="An estimate, with how far it may be off.")] = False,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show what share of the players a player's rank is at or better than."""
    from laurel.models import show_value

    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        place = client.percentile(board, player, approximate=approximate, generation=generation, at_least=at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(place))
        return
    showing.show_entries(place)
    if place.percentile is not None:
        print(f"percentile: {'' if place.exact else 'about '}{show_value(place.percentile)} % of the players have this rank or a worse one")


def nearby(
    board: BoardId,
    player: Player,
    window: Annotated[int, typer.Option(min=0, max=100, help="Neighbours on each side.")] = 5,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show a player's place and those around it."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        place = client.nearby(board, player, window, generation=generation, at_least=at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(place))
        return
    showing.show_entries(place, mark=player)
    for word, there in (("below", place.next), ("above", place.previous)):
        if there:
            print(f"further {word}: laurel top {board} --cursor {there}")


def status(region: InRegion = None, url: Url = None, token: Token = None, data_dir: DataDir = DATA_DIR, as_json: Json = False) -> None:
    """Ask each region for its shards: role, epoch, owner, positions."""
    from laurel.errors import LaurelError, Refused

    answers: dict[str, Any] = {}
    failed: dict[str, LaurelError] = {}
    with client_for(url, token, data_dir, OPERATOR, max_attempts=2, total_timeout_s=5.0, timeout_s=3.0) as client:
        check_region(client, region)
        for name in sorted(client.regions) if region is None else [region]:
            try:
                answers[name] = client.status(region=name)
            except LaurelError as exc:
                if isinstance(exc, Refused):
                    raise
                failed[name] = exc
    if as_json:
        told = {name: {"error": {"code": exc.code, "detail": exc.detail}} for name, exc in failed.items()}
        showing.print_json({"regions": answers | told})
    else:
        showing.show_status(answers, failed)
    if not answers:
        raise CommandError("no region answered: start them with `laurel up`, or check --url")


def submit(
    board: BoardId,
    player: Annotated[str | None, typer.Argument(metavar="PLAYER")] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="A decimal number.")] = None,
    delta: Annotated[bool, typer.Option("--delta", help="VALUE is added; for cumulative boards.")] = False,
    event_id: Annotated[str | None, typer.Option("--event-id", help="Made up if missing; the same id counts once.")] = None,
    secondary: Annotated[int | None, typer.Option("--secondary", help="Second column, a whole number, on boards that have one.")] = None,
    achieved_at: Annotated[str | None, typer.Option("--achieved-at", help="RFC 3339 with an offset; now if missing.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="JSON lines, one event each, with its event_id.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=1000, help="Events a request, with --file.")] = FILE_BATCH,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Submit an event, or the events of a file."""
    if file is not None:
        if player is not None or event_id or achieved_at or delta or secondary is not None:
            raise CommandError("with --file the events say everything: leave out PLAYER, VALUE and the options of one event", exit_code=2)
        count = sum(1 for _ in _events(file))
        with client_for(url, token, data_dir, WRITER) as client:
            check_region(client, region)
            _submit_file(client, board, file, count, batch, region, as_json)
        return
    if player is None or value is None:
        raise CommandError("say what to submit: BOARD PLAYER VALUE, or BOARD --file events.jsonl", exit_code=2)
    if not _NUMBER.fullmatch(value):
        raise CommandError(f"VALUE {value!r} is no decimal number: give one such as 9700, 12.5 or -3", exit_code=2)
    with client_for(url, token, data_dir, WRITER) as client:
        check_region(client, region)
        amount = {"delta" if delta else "value": value}
        result = client.submit_one(board, player, event_id=event_id, achieved_at=achieved_at, secondary=secondary, region=region, **amount)
    if as_json:
        showing.print_json(showing.dump(result))
    elif result.recorded:
        at = f", at {result.position}" if result.position else ""
        seen = f", visible by {result.visible_by}" if result.visible_by else ""
        print(f"{result.event_id}: {result.outcome}, value {result.value}{at}{seen}")
    if not result.recorded:
        raise CommandError(_refused(result))


def _refused(result: "EventResult") -> str:
    what = f"event {result.event_id} was not recorded: {result.outcome}"
    why = ", ".join(filter(None, (result.code, result.field and f"at {result.field}", result.allowed and f"allowed is {result.allowed}")))
    advice = "use another --event-id for another event" if result.outcome == "conflict" else "mend it and submit it again"
    return f"{what}{f' ({why})' if why else ''}; {advice}"


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a file of JSON lines; each must have its id, or sending the file twice would count it twice."""
    from laurel.models import load_json

    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    event = load_json(line)
                except ValueError as exc:
                    raise CommandError(f"{path} line {number} is not JSON: mend it, nothing more was sent", exit_code=2) from exc
                if not isinstance(event, dict):
                    raise CommandError(f"{path} line {number} is no JSON object: write one event a line", exit_code=2)
                for name in ("event_id", "player_id"):
                    if not isinstance(event.get(name), str):
                        raise CommandError(
                            f"{path} line {number} has no {name} as text: give each event its own, so that the file can be sent again",
                            exit_code=2,
                        )
                yield event
    except OSError as exc:
        raise CommandError(f"{path} cannot be read: {exc.strerror}", exit_code=2) from exc


def _submit_file(client: "LaurelClient", board: str, path: Path, count: int, size: int, region: str | None, as_json: bool) -> None:
    from laurel.errors import LaurelError, OutcomeUnknown, Refused

    outcomes: dict[str, int] = {}
    refused: list[EventResult] = []
    positions: dict[str, str] = {}
    failure: LaurelError | None = None
    with _progress(count, hidden=as_json) as advance:
        events = _events(path)
        for batch in iter(lambda: list(islice(events, size)), []):
            try:
                reply = client.submit(board, batch, region=region)
                results = reply.results
                positions.update(reply.positions)
            except LaurelError as exc:
                failure, results = exc, exc.results if isinstance(exc, OutcomeUnknown) else ()
            for result in results:
                outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
            refused.extend(result for result in results if not result.recorded and not result.unknown)
            if failure is not None:
                break
            advance(len(batch))
    done = sum(outcomes.values()) - outcomes.get("unknown", 0) - len(refused)
    summary = {"file": str(path), "board": board, "events": count, "recorded": done, "outcomes": outcomes}
    summary["position"] = next(iter(positions.values())) if len(positions) == 1 else None
    summary["positions"] = positions
    if as_json:
        showing.print_json({**summary, "refused": [showing.dump(result) for result in refused]})
    else:
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        print(f"{done} of {count} events are recorded" + (f": {told}" if told else ""))
    if failure is not None:
        mend = "mend that and " if isinstance(failure, Refused) else ""
        again = f"{mend}run the same command again: events already recorded are recognised by their ids"
        raise CommandError(f"{done} of {count} events are recorded, then {failure.detail.rstrip('.')}; {again}") from failure
    if refused:
        raise CommandError(f"{len(refused)} of {count} events were refused, the first: {_refused(refused[0])}")


@contextmanager
def _progress(total: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Progress on standard error, where that is a terminal; give it how many are done more."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("submitting", total=total)
        yield lambda count: bar.advance(task, count)


def failover(
    what: Annotated[str | None, typer.Argument(metavar="SHARD|BOARD", help="A shard such as eu-west/0, or a board.")] = None,
    to: Annotated[str, typer.Option("--to", help="The new owner.")] = "",
    from_region: Annotated[str | None, typer.Option("--from", help="Move every shard that this region owns.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Without the old owner, which does not answer.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Move a shard, or all shards of a board, to another region, and with them all boards they carry."""
    if not to or (what is None) == (from_region is None):
        raise CommandError("say what to move and where: SHARD|BOARD --to REGION, or --from REGION --to REGION", exit_code=2)
    if as_json and not yes:
        raise CommandError("--json cannot ask: add --yes", exit_code=2)
    with client_for(url, token, data_dir, OPERATOR) as client:
        if not yes:
            plan = _plan(client, what, from_region)
            typer.confirm(f"{'Force' if force else 'Move'} {plan} to {to}?", abort=True, err=True)
        answer = client.failover(what, to=to, force=force, from_region=from_region)
    moved, failed = answer.get("moved") or [], answer.get("failed") or []
    if as_json:
        showing.print_json(answer)
    else:
        table = showing.table("shard", "owner", "epoch", "ms", "moved along")
        for move in moved:
            showing.add_row(table, *(move.get(key) for key in ("shard", "owner", "epoch", "duration_ms")), named(move.get("boards") or ()))
        showing.show(table)
    if failed:
        stayed = "; ".join(f"{part.get('shard')}: {part.get('detail')}" for part in failed)
        raise CommandError(f"{len(moved)} of {len(moved) + len(failed)} shards have moved, these have not: {stayed}")
    if not moved:
        raise CommandError("nothing was moved: see `laurel status` for who owns what")


def named(names: Sequence[str], most: int = 8) -> str:
    """Names of boards or players for people: a pool may hold thousands."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _plan(client: "LaurelClient", what: str | None, from_region: str | None) -> str:
    """Which shards move, and which boards go along."""
    boards = client.boards()
    if what is None:
        shards = sorted(name for name, fact in showing.shards_of(client.status()).items() if fact.get("owner") == from_region)
        if not shards:
            raise CommandError(f"region {from_region} owns no shard: see `laurel status`")
    else:
        shards = next((_shards_of(board) for board in boards if board.board == what and board.shard), [what])
    carried = {shard: [board.board for board in boards if shard in _shards_of(board)] for shard in shards}
    return "; ".join(f"{shard} with {named(names) or 'no boards'}" for shard, names in carried.items())


def _shards_of(board: "Board") -> list[str]:
    return list(board.shards or ()) or ([board.shard] if board.shard else [])


def add_client_commands(app: typer.Typer) -> None:
    """All of the above."""
    app.command()(status)
    app.command(context_settings={"ignore_unknown_options": True})(submit)  # so that -3 is a value
    app.command()(top)
    app.command()(rank)
    app.command()(percentile)
    app.command()(nearby)
    app.command()(failover)
