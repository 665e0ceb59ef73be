"""The command `laurel ranks BOARD PLAYER...`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laurel import showing
from laurel.commands import (
    DATA_DIR,
    READER,
    AtLeast,
    BoardId,
    CommandError,
    DataDir,
    Generation,
    InRegion,
    Json,
    Token,
    Url,
    check_region,
    client_for,
    named,
)

if TYPE_CHECKING:
    from laurel.models import Among

#: Ids that one call takes.
MOST = 1000
_STANDARD_INPUT = Path("-")
_AMONG: "dict[str, Among]" = {"board": "board", "listed": "listed"}


def ranks(
    board: BoardId,
    players: Annotated[list[str] | None, typer.Argument(metavar="PLAYER", help="Ids, or - for those on standard input.")] = None,
    among: Annotated[str, typer.Option(metavar="board|listed", help="Ranked on the board, or among those listed only.")] = "board",
    file: Annotated[Path | None, typer.Option("--file", help="Ids, one a line, at most 1000; - is standard input.")] = None,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show the places of many players in one generation."""
    if among not in _AMONG:
        raise CommandError(f"--among {among!r} is neither board nor listed", exit_code=2)
    ids = _ids(players or [], file)
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        places = client.ranks(board, ids, _AMONG[among], generation=generation, at_least=at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(places))
        return
    showing.show_entries(places)
    if among == "listed":
        print("places are among the listed players only")
    if places.absent:
        print(f"without a row: {named(places.absent)}")


def _ids(players: list[str], file: Path | None) -> list[str]:
    if players == ["-"] and file is None:
        players, file = [], _STANDARD_INPUT
    if "-" in players:
        raise CommandError("- stands alone: all ids come from standard input then", exit_code=2)
    if bool(players) == (file is not None):
        raise CommandError("say whose places: BOARD PLAYER PLAYER..., BOARD --file FILE with one id a line, or BOARD -", exit_code=2)
    ids = players if file is None else _read_ids(file)
    if len(ids) > MOST:
        raise CommandError(f"{len(ids)} player ids are more than the {MOST} that one call takes: ask for them in parts", exit_code=2)
    return ids


def _read_ids(path: Path) -> list[str]:
    """One id a line; no id has white space at its edges, and blank lines are none."""
    name = "standard input" if path == _STANDARD_INPUT else str(path)
    try:
        raw = sys.stdin.buffer.read() if path == _STANDARD_INPUT else path.read_bytes()
    except OSError as exc:
        raise CommandError(f"{name} cannot be read: {exc.strerror}", exit_code=2) from exc
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise CommandError(f"{name} line {line} is not UTF-8: mend it, nothing was asked", exit_code=2) from exc
    ids = [line.strip() for line in text.split("\n") if line.strip()]
    if not ids:
        raise CommandError(f"{name} holds no player id: write one a line", exit_code=2)
    return ids


def add_ranks_command(app: typer.Typer) -> None:
    """The above."""
    app.command()(ranks)
