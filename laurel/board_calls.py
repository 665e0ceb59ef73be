"""Calls about boards as a whole: list, show, create, remove, spread over other shards."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from laurel.models import Board, Call, board_path, path_segment, write_number

#: A region shows what was changed within 2 s, and waits as long for a new authority before.
CHANGE_TIMEOUT_S = 15.0

#: How many shards, or their names.
Shards = int | Sequence[str]


class BoardPage(BaseModel):
    """A part of the list of boards, in the order of their ids; `next` is the cursor of the one that follows."""

    model_config = ConfigDict(frozen=True, extra="allow")

    boards: tuple[Board, ...]
    next: str | None = None


class Relocation(BaseModel):
    """How far a board's move to other shards is; fields that are not known here are in `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    board: str
    moving: bool
    #: `{number, shards}`: where the board lives now, as the region that answered knows; of a move just ordered, where it goes.
    layout: dict[str, Any]
    to: dict[str, Any] | None = None
    phase: str | None = None
    #: Of each slice of the layout to come: `shard`, `copied_rows`, and `lag`, how many entries it is behind.
    slices: tuple[dict[str, Any], ...] = ()


def _object(document: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def _board(document: Any, headers: Mapping[str, str]) -> Board:
    return Board.model_validate(document)


def _page(document: Any, headers: Mapping[str, str]) -> BoardPage:
    return BoardPage.model_validate(document)


def _relocation(document: Any, headers: Mapping[str, str]) -> Relocation:
    return Relocation.model_validate(document)


def page(limit: int | None, cursor: str | None, *, region: str | None) -> Call[BoardPage]:
    """A page of the list."""
    params = {name: str(value) for name, value in (("limit", limit), ("cursor", cursor)) if value is not None}
    return Call(method="GET", path="/v1/boards", params=params, decode=_page, only=region)


def board(board_id: str, *, region: str | None) -> Call[Board]:
    """One board."""
    return Call(method="GET", path=board_path(board_id), params={}, decode=_board, only=region)


def create(board_id: str, rules: Mapping[str, Any]) -> Call[Board]:
    """The same board with the same rules may be created again."""
    body = {"board": board_id, **{name: item for name, item in rules.items() if item is not None}}
    if "max_value" in body:
        body["max_value"] = write_number(body["max_value"], "max_value")
    if isinstance(body.get("secondary"), str):
        body["secondary"] = {"direction": body["secondary"]}
    if "shards" in body:
        body["shards"] = write_shards(body["shards"])
    return Call(
        method="POST", path="/v1/admin/boards", params={}, body=body, decode=_board, effect="by_identity", timeout_s=CHANGE_TIMEOUT_S
    )


def remove(board_id: str) -> Call[dict[str, Any]]:
    """Not repeated by itself once it may have been done: a board of that id that was made since would go too."""
    return Call(method="DELETE", path=_admin_path(board_id), params={}, decode=_object, effect="once", timeout_s=CHANGE_TIMEOUT_S)


def relocate(board_id: str, shards: Shards) -> Call[Relocation]:
    """The same move may be ordered again: it goes on."""
    return Call(
        method="POST",
        path=_admin_path(board_id) + "/relocate",
        params={},
        body={"shards": write_shards(shards)},
        decode=_relocation,
        effect="by_identity",
        timeout_s=CHANGE_TIMEOUT_S,
    )


def relocation(board_id: str, *, region: str | None) -> Call[Relocation]:
    """How far it is."""
    return Call(method="GET", path=_admin_path(board_id) + "/relocate", params={}, decode=_relocation, only=region)


def abort_relocation(board_id: str) -> Call[Relocation]:
    """Giving up what was given up changes nothing."""
    return Call(
        method="DELETE",
        path=_admin_path(board_id) + "/relocate",
        params={},
        decode=_relocation,
        effect="by_identity",
        timeout_s=CHANGE_TIMEOUT_S,
    )


def write_shards(shards: Shards) -> int | list[str]:
    """A count, or names, for the wire."""
    if isinstance(shards, bool) or not isinstance(shards, (int, Sequence)):
        raise TypeError(f"shards must be a number, or names of shards, not {type(shards).__name__}")
    return shards if isinstance(shards, int) else [shards] if isinstance(shards, str) else list(shards)


def _admin_path(board_id: str) -> str:
    return f"/v1/admin/boards/{path_segment(board_id, 'board')}"
