"""A player's friends board: the call, and its answer."""

from laurel.models import AtLeast, Call, Envelope, board_path, path_segment, read_envelope, read_params


class FriendsBoard(Envelope):
    """The player and the player's friends as far as they are on the board, ranked among themselves.

    `total` is of the whole board. The player may be missing: without an own row there are only friends.
    """

    player_id: str
    among: str = "friends"
    limit: int | None = None


def board(
    board_id: str, player_id: str, limit: int, generation: str | None, at_least: AtLeast | None, *, region: str | None
) -> Call[FriendsBoard]:
    """A player's friends board."""
    path = f"{board_path(board_id)}/friends/{path_segment(player_id, 'player_id')}"
    params = read_params(generation, at_least, limit=limit)
    return Call(method="GET", path=path, params=params, decode=read_envelope(FriendsBoard, player_id=player_id), only=region)
