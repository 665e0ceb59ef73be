"""`laurel board`: create, list, show, remove, and spread boards over shards."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laurel import showing
from laurel.commands import (
    DATA_DIR,
    OPERATOR,
    READER,
    BoardId,
    CommandError,
    DataDir,
    InRegion,
    Json,
    Token,
    Url,
    check_region,
    client_for,
)

if TYPE_CHECKING:
    from laurel.board_calls import Relocation, Shards
    from laurel.client import LaurelClient

#: How often a move is looked at; tests put something else here.
LOOK_S = 0.5
sleep = time.sleep
#: Looks in a row at which nothing moves any more before it counts as given up.
_GONE_LOOKS = 6

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def board_list(
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 1000,
    cursor: Annotated[str | None, typer.Option(help="Go on from here: `next` of an earlier page.")] = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """List the boards, in the order of their ids."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        page = client.list_boards(limit, cursor, region=region)
    if as_json:
        showing.print_json({"boards": [showing.dump(board) for board in page.boards], "next": page.next})
        return
    table = showing.table("board", "policy", "ranking", "home", "shards", "total", "generation")
    for board in page.boards:
        shards = board.shard if (board.slices or 1) == 1 else f"{board.slices}: {board.shard}, ..."
        showing.add_row(table, board.board, board.policy, board.ranking, board.home, shards, board.total, board.generation)
    showing.show(table)
    if page.next:
        print(f"next page: --cursor {page.next}")


def board_show(
    board: BoardId, region: InRegion = None, url: Url = None, token: Token = None, data_dir: DataDir = DATA_DIR, as_json: Json = False
) -> None:
    """Show a board's rules and state."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        found = client.board(board, region=region)
    _show_board(found, as_json)


def _show_board(board: Any, as_json: bool) -> None:
    if as_json:
        showing.print_json(showing.dump(board))
        return
    for name, item in showing.dump(board).items():
        print(f"{name:20} {_word(item)}")


def _word(item: Any) -> str:
    if isinstance(item, list):
        return ", ".join(map(str, item))
    return ", ".join(f"{name} {_word(part)}" for name, part in item.items()) if isinstance(item, dict) else str(item)


def board_create(
    board: BoardId,
    policy: Annotated[str, typer.Option(help="best_score, fastest_time, cumulative or latest.")],
    direction: Annotated[str | None, typer.Option(help="higher or lower; on `latest` boards.")] = None,
    secondary: Annotated[str | None, typer.Option(help="A second column decides between equal values: higher or lower.")] = None,
    ties: Annotated[str | None, typer.Option(help="achieved_at, submitted_at or player_id.")] = None,
    ranking: Annotated[str | None, typer.Option(help="unique, competition or dense.")] = None,
    decimals: Annotated[int | None, typer.Option(help="Fraction digits of a value.")] = None,
    home: Annotated[str | None, typer.Option(help="Region that should own it.")] = None,
    shards: Annotated[str | None, typer.Option(help="Over how many shards it is spread, or which: eu-west/0,eu-west/1.")] = None,
    visibility: Annotated[str | None, typer.Option(help="public or private.")] = None,
    publish_interval_ms: Annotated[int | None, typer.Option(help="A new generation this often, while there are writes.")] = None,
    retention_ms: Annotated[int | None, typer.Option(help="How long a generation is kept once a newer one is there.")] = None,
    max_value: Annotated[str | None, typer.Option(help="Greatest value of a `fastest_time` board.")] = None,
    max_age_ms: Annotated[int | None, typer.Option(help="Older events are refused.")] = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Create a board; the same board with the same rules may be created again."""
    wanted = None if shards is None else _shards(shards, "--shards")
    with client_for(url, token, data_dir, OPERATOR) as client:
        limits = {"decimals": decimals, "max_value": max_value, "max_age_ms": max_age_ms}
        times = {"publish_interval_ms": publish_interval_ms, "retention_ms": retention_ms}
        rules = {"policy": policy, "direction": direction, "ties": ties, "ranking": ranking, "home": home, "visibility": visibility}
        places = {"shards": wanted, "secondary": secondary}
        made = client.create_board(board, **{**rules, **limits, **times, **places})  # type: ignore[arg-type]  # policy is text
    _show_board(made, as_json)


def board_remove(
    board: BoardId, yes: Yes = False, url: Url = None, token: Token = None, data_dir: DataDir = DATA_DIR, as_json: Json = False
) -> None:
    """Remove a board for good: its rows, event ids and generations, in all regions."""
    if as_json and not yes:
        raise CommandError("--json cannot ask: add --yes", exit_code=2)
    with client_for(url, token, data_dir, OPERATOR) as client:
        if not yes:
            found = client.board(board)
            typer.confirm(f"Remove {board} with {found.total or 0} players, for good and in all regions?", abort=True, err=True)
        told = client.remove_board(board)
    if as_json:
        showing.print_json(told)
    else:
        print(f"{board} is removed; a board that is created under this id again begins empty")


def board_reshard(
    board: BoardId,
    shards: Annotated[int | None, typer.Option("--shards", min=1, help="So many pooled shards at the board's home.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="These shards: eu-west/0,eu-west/1.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Show how far a move is.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Give a move up: the board stays.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait until it has switched.")] = False,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Spread a board over other shards, while it is in use; or go on with that."""
    if (status, abort, shards is not None or to is not None).count(True) != 1:
        raise CommandError("say what to do: --shards M, --to SHARD,SHARD, --status or --abort", exit_code=2)
    with client_for(url, token, data_dir, OPERATOR) as client:
        if status or abort:
            told = client.abort_relocation(board) if abort else client.relocation(board)
            _tell(told, "stays on" if abort else "lives on", as_json, _ending(told) if abort else _way(told))
            return
        wanted: Shards = shards if shards is not None else []
        if to is not None:
            names = _shards(to, "--to")
            if isinstance(names, int) or shards not in (None, len(names)):
                raise CommandError("--to names shards, as many as --shards says if both are given", exit_code=2)
            wanted = names
        _relocate(client, board, wanted, detach, as_json)


def board_move(
    board: BoardId,
    to: Annotated[str, typer.Option("--to", help="A shard such as eu-west/3.")],
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait until it has switched.")] = False,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Move a whole board to one shard, such as a dedicated one, while it is in use; or go on with that."""
    names = _shards(to, "--to")
    if isinstance(names, int) or len(names) != 1:
        raise CommandError("--to names one shard; `laurel board reshard` spreads a board over several", exit_code=2)
    with client_for(url, token, data_dir, OPERATOR) as client:
        _relocate(client, board, names, detach, as_json)


def _shards(text: str, option: str) -> int | list[str]:
    """A count, or names."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isascii() and parts[0].isdigit() and len(parts[0]) < 5:
        return int(parts[0])
    if not all("/" in part for part in parts):
        raise CommandError(f"{option} {text!r} names no shards: give them as in eu-west/0,eu-west/1", exit_code=2)
    return parts


def _relocate(client: "LaurelClient", board: str, wanted: "Shards", detach: bool, as_json: bool) -> None:
    began = client.relocate(board, wanted)
    target = began.layout
    if not began.moving or detach:
        _tell(began, "goes to" if began.moving else "lives on", as_json)
        return
    how = f"see it with `laurel board reshard {board} --status`, give it up with `laurel board reshard {board} --abort`"
    try:
        with _progress(hidden=as_json) as tell:
            told = _watch(client, board, int(target["number"]), tell)
    except KeyboardInterrupt:
        raise CommandError(f"the move of {board} goes on; {how}", exit_code=130) from None
    if int(told.layout["number"]) < int(target["number"]):
        alarm = f", {_alarm(told)}" if _alarm(told) else ""
        stays = f"it stays on {_places(told.layout)}; run the command again to begin anew"
        raise CommandError(f"the move of {board} was given up{alarm}, and {stays}")
    _tell(told, "lives on", as_json)


def _watch(client: "LaurelClient", board: str, number: int, tell: Callable[[str], None]) -> "Relocation":
    """Wait until layout `number` is in effect, or nothing moves any more; the last word."""
    from laurel.errors import Unavailable

    still = 0
    while True:
        try:
            told = client.relocation(board)
        except Unavailable as exc:  # its authority is on the move itself: the order is in the journal
            tell(f"waiting: {exc.detail.rstrip('.')}")
            sleep(LOOK_S)
            continue
        still = 0 if told.moving else still + 1
        if int(told.layout["number"]) >= number or still >= _GONE_LOOKS:
            return told
        if told.moving:
            tell(_stage(told))
        sleep(LOOK_S)


#: What operators are told of each stage but copying. Those of an earlier move are not here: what moves has not begun then.
_STAGES = {
    "beginning": "beginning: its shards are asked whether they take writes",
    "closing": "closing: writes are held until it has switched",
    "replaying": "replaying: the last entries are carried over, writes are held until it has switched",
    "switching": "switching: all is carried over, writes are held until it has switched",
    "opening again": "opening again: it could not switch in time, writes go on where it lives",
    "giving up": "giving up: what was copied is being removed",
    "opening": "opening: it has switched, and its new shards begin to take writes",
    "removing": "removing: it has switched, and what is left on its former shards is being removed",
}
_ENDED = ("none", "given up", "there")


def _stage(told: "Relocation") -> str:
    """The stage of a move under way, as `STAGE: what that means`."""
    if told.phase is None or told.phase in _ENDED:
        return "beginning: the order is in the journal"
    said = _STAGES.get(told.phase)
    if said is None:
        rows = sum(int(part.get("copied_rows") or 0) for part in told.slices)
        lags = [int(part["lag"]) for part in told.slices if part.get("lag") is not None]
        behind = f"{max(lags)} entries behind" if lags and len(lags) == len(told.slices) else "how far behind is not known yet"
        said = f"{told.phase}: {rows} rows are copied, {behind}"
    trouble = _alarm(told) or _trouble(told)
    return f"{said}; {trouble}" if trouble else said


def _alarm(told: "Relocation") -> str:
    alarm = (told.model_extra or {}).get("alarm")
    return f"alarm: {alarm}" if alarm else ""


def _trouble(told: "Relocation") -> str:
    """What a new shard has to say now, or else what went wrong last, which may be over."""
    answering = [part for part in told.slices if part.get("copied_rows") is not None]
    now = next((f"{part.get('shard')}: {part['trouble']}" for part in answering if part.get("trouble")), "")
    last = (told.model_extra or {}).get("why")
    return now or (f"last trouble: {last}" if last else "")


def _way(told: "Relocation") -> str:
    """What a status says of a move, empty where there is none."""
    if told.to is not None:
        way = "it was on its way to" if told.phase == "giving up" else "on its way to"
        return f"{way} {_places(told.to)} (layout {told.to.get('number')}); {_stage(told)}"
    if told.moving or told.phase in ("opening", "removing"):
        return _stage(told)
    if told.phase == "given up":
        was = ", ".join(str(part["shard"]) for part in told.slices if part.get("shard"))
        return "; ".join(filter(None, (f"it was to go to {was or 'other shards'}, which was given up", _alarm(told))))
    return ""


def _ending(told: "Relocation") -> str:
    """What an abort says of the move that it ends."""
    if not (told.model_extra or {}).get("giving_up", True):
        return "nothing was on its way"
    return f"its move is being given up; see it with `laurel board reshard {told.board} --status`"


def _tell(told: "Relocation", verb: str, as_json: bool, more: str = "") -> None:
    if as_json:
        showing.print_json(showing.dump(told))
        return
    print(f"{told.board} {verb} {_places(told.layout)} (layout {told.layout.get('number')})")
    if more:
        print(more)


def _places(layout: dict[str, Any]) -> str:
    return ", ".join(map(str, layout.get("shards") or ()))


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Callable[[str], None]]:
    """The stage on standard error: one line that changes on a terminal, a line for each change of its first word elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal and not hidden:
        with console.status("beginning") as shown:
            yield shown.update
        return
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        word = text.partition(":")[0]
        if word != last and not hidden:
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        last = word

    yield tell


def add_board_commands(app: typer.Typer) -> None:
    """All of the above."""
    board = typer.Typer(no_args_is_help=True, help="Create, list, show, remove and move boards.")
    board.command("create")(board_create)
    board.command("list")(board_list)
    board.command("show")(board_show)
    board.command("remove")(board_remove)
    board.command("reshard")(board_reshard)
    board.command("move")(board_move)
    app.add_typer(board, name="board")
