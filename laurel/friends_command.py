"""The command `laurel friends BOARD PLAYER`."""

from typing import Annotated

import typer

from laurel import showing
from laurel.commands import (
    DATA_DIR,
    READER,
    AtLeast,
    BoardId,
    DataDir,
    Generation,
    InRegion,
    Json,
    Player,
    Token,
    Url,
    check_region,
    client_for,
)


def friends(
    board: BoardId,
    player: Player,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    generation: Generation = None,
    at_least: AtLeast = None,
    region: InRegion = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show a player and the player's friends, ranked among themselves."""
    with client_for(url, token, data_dir, READER) as client:
        check_region(client, region)
        found = client.friends(board, player, limit, generation=generation, at_least=at_least, region=region)
    if as_json:
        showing.print_json(showing.dump(found))
    else:
        showing.show_entries(found, mark=player)


def add_friends_command(app: typer.Typer) -> None:
    """The above."""
    app.command()(friends)
