"""Laurel's client: `LaurelClient` and `AsyncLaurelClient`, their models and errors.

Names are loaded on first use, so that the command's `--help` does not pay for httpx and pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laurel.async_client import AsyncLaurelClient
    from laurel.board_calls import BoardPage, Relocation
    from laurel.client import LaurelClient
    from laurel.errors import (
        BadRequest,
        Conflict,
        Forbidden,
        GenerationGone,
        LaurelError,
        Misconfigured,
        NotFound,
        NotRanked,
        OutcomeUnknown,
        RateLimited,
        Refused,
        TooLarge,
        Unauthorized,
        Unavailable,
        UnknownBoard,
    )
    from laurel.friends import FriendsBoard
    from laurel.models import Board, Entry, Event, EventResult, Page, Places, PlayerPlace, SubmitReply, Value

_HOMES = {
    "laurel.async_client": ("AsyncLaurelClient",),
    "laurel.board_calls": ("BoardPage", "Relocation"),
    "laurel.client": ("LaurelClient",),
    "laurel.errors": (
        "BadRequest",
        "Conflict",
        "Forbidden",
        "GenerationGone",
        "LaurelError",
        "Misconfigured",
        "NotFound",
        "NotRanked",
        "OutcomeUnknown",
        "RateLimited",
        "Refused",
        "TooLarge",
        "Unauthorized",
        "Unavailable",
        "UnknownBoard",
    ),
    "laurel.friends": ("FriendsBoard",),
    "laurel.models": ("Board", "Entry", "Event", "EventResult", "Page", "Places", "PlayerPlace", "SubmitReply", "Value"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncLaurelClient",
    "BadRequest",
    "Board",
    "BoardPage",
    "Conflict",
    "Entry",
    "Event",
    "EventResult",
    "Forbidden",
    "FriendsBoard",
    "GenerationGone",
    "LaurelClient",
    "LaurelError",
    "Misconfigured",
    "NotFound",
    "NotRanked",
    "OutcomeUnknown",
    "Page",
    "Places",
    "PlayerPlace",
    "RateLimited",
    "Refused",
    "Relocation",
    "SubmitReply",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnknownBoard",
    "Value",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'laurel' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
