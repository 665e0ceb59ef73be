"""Instants on the wire: RFC 3339 text with an offset, and Unix epoch milliseconds inside."""

import re
from datetime import UTC, datetime, timedelta

from boards.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)

#: First and last millisecond of the years 0001 to 9999, in UTC.
TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999

#: The date is left to `datetime`; everything it would be lax about is settled here.
_rfc3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
).fullmatch


def parse_time(text: object, field: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time, whose offset is required; finer digits are cut toward the past.

    A leap second (`:60`) is refused: a clock that counts Unix time never shows one, and folding it into a
    neighbouring second would invent a tie. The instant must lie in the years 0001 to 9999 in UTC.

    Raises:
        InvalidInput: `bad_time`.
    """
    if type(text) is str and _rfc3339(text):
        try:
            since = datetime.fromisoformat(text.upper()) - _EPOCH
        except ValueError:  # no such day
            pass
        else:
            instant = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
            if TIME_MIN_MS <= instant <= TIME_MAX_MS:
                return instant
    raise InvalidInput(code="bad_time", field=field, allowed="an RFC 3339 time with an offset, such as 2026-11-30T10:05:00.250Z")


def format_time(instant_ms: int) -> str:
    """UTC with milliseconds and `Z`; `parse_time` gives `instant_ms` back. The caller keeps to the years 0001 to 9999."""
    return (_NAIVE_EPOCH + timedelta(milliseconds=instant_ms)).isoformat(timespec="milliseconds") + "Z"
