"""Which texts may name a board, a player or an event.

Ids are exact: compared by their UTF-8 bytes, never folded, trimmed or normalised, so `Ann`, `ann`, a
look-alike in another script and the two Unicode forms of one accented letter are distinct ids. Python
orders `str` by code point, which is the order of the UTF-8 bytes, so ids need no encoding to be compared.
"""

import re
import unicodedata

from boards.errors import InvalidInput

#: Longest player or event id, in bytes of UTF-8.
ID_MAX_BYTES = 128

_ID_ALLOWED = (
    f"text of 1 to {ID_MAX_BYTES} bytes of UTF-8 without control characters or slashes, with no space at either edge, and not '.' or '..'"
)
_BOARD_ALLOWED = "game:mode:season:scope, four parts of lower-case letters, digits, '.', '_' and '-', where the season may hold capitals"

#: Every allowed id of printable ASCII: no slash anywhere, no space at an edge.
_ascii_id = re.compile(r"(?!\.{1,2}\Z)[!-.0-~](?:[ -.0-~]{0,126}[!-.0-~])?").fullmatch
_board_id = re.compile(r"[a-z0-9._-]+:[a-z0-9._-]+:[A-Za-z0-9._-]+:[a-z0-9._-]+").fullmatch


def check_board_id(text: object) -> str:
    """Return `text` if it may name a board; raises `InvalidInput` otherwise."""
    if type(text) is str and _board_id(text):
        return text
    raise InvalidInput(code="bad_id", field="board", allowed=_BOARD_ALLOWED)


def check_player_id(text: object, field: str = "player_id") -> str:
    """Return `text` unchanged if it may name a player; raises `InvalidInput` otherwise.

    A JSON number is not text, also where the decoder kept its digits (`boards.numbers.NumberText`).
    """
    if type(text) is str and (_ascii_id(text) or _is_wide_id(text)):
        return text
    raise InvalidInput(code="bad_id", field=field, allowed=_ID_ALLOWED)


def check_event_id(text: object, field: str = "event_id") -> str:
    """As `check_player_id`: both kinds of id follow one rule."""
    return check_player_id(text, field)


def _is_wide_id(text: str) -> bool:
    """The same rule for ids that go beyond ASCII; ASCII ones have been decided by the pattern."""
    if text.isascii() or len(text) > ID_MAX_BYTES or "/" in text or text != text.strip():
        return False
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON can spell it, UTF-8 cannot
        return False
    return len(encoded) <= ID_MAX_BYTES and not any(unicodedata.category(letter) == "Cc" for letter in text)
