"""Values on the wire: decimal text, JSON numbers and scaled integers, with no binary float anywhere.

A value is an integer scaled by `10**decimals`. JSON numbers with a fraction or an exponent are kept as the
text they were written in (`NumberText`) until the board, and so its `decimals`, is known.
"""

import json
import re
from typing import Any

import msgspec

from boards.errors import InvalidInput
from boards.model import VALUE_MAX, VALUE_MIN

#: Most fraction digits that a board may have.
DECIMALS_MAX = 9

_SCALES: list[int] = [10**decimals for decimals in range(DECIMALS_MAX + 1)]

#: Digits of the largest value. A longer whole part is out of range whatever it says, and is not converted.
_WHOLE_DIGITS_MAX = 19

#: Longest integer literal that is converted; Python refuses to convert more than 4300 digits.
_INTEGER_CHARS_MAX = 4000

_decimal = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?").fullmatch


class NumberText(str):
    """Digits of a JSON number that is not a plain integer, exactly as they were sent; also `NaN` and `Infinity`."""

    __slots__ = ()


def parse_value(raw: object, decimals: int, field: str) -> int:
    """Scale `raw`, an int or decimal text, to an integer: `12.5`, `"12.5"` and `12.50` are the same value.

    Decimal text is what JSON calls a number, without exponent: `-12.50`, not `+5`, `.5`, `05` or ` 5`. Zeros
    at the end of a fraction are not digits that count. `-0` is 0. A Python float is refused: its digits are gone.

    Raises:
        InvalidInput: `not_a_number`, `too_precise` (more than `decimals` fraction digits) or `out_of_range`
            (not a signed 64-bit integer after scaling).
    """
    if type(raw) is int:
        value = raw * _SCALES[decimals]
    elif isinstance(raw, str):
        value = _scale_text(raw, decimals, field)
    else:
        raise InvalidInput(code="not_a_number", field=field, allowed=_describe(decimals))
    if VALUE_MIN <= value <= VALUE_MAX:
        return value
    raise _out_of_range(decimals, field)


def format_value(value: int, decimals: int) -> str:
    """Decimal text with exactly `decimals` fraction digits; `parse_value` gives `value` back. Never rounds."""
    if decimals == 0:
        return str(value)
    whole, fraction = divmod(abs(value), _SCALES[decimals])
    return f"{'-' if value < 0 else ''}{whole}.{fraction:0{decimals}d}"


def _scale_text(text: str, decimals: int, field: str) -> int:
    match = _decimal(text)
    if match is None:
        raise InvalidInput(code="not_a_number", field=field, allowed=_describe(decimals))
    sign, whole, fraction = match.groups("")
    fraction = fraction.rstrip("0")
    if len(fraction) > decimals:
        raise InvalidInput(code="too_precise", field=field, allowed=_describe(decimals))
    if len(whole) > _WHOLE_DIGITS_MAX:
        raise _out_of_range(decimals, field)
    value = int(whole + fraction.ljust(decimals, "0"))
    return -value if sign else value


def _describe(decimals: int) -> str:
    if decimals == 0:
        return "a whole number, as a JSON integer or as decimal text without an exponent"
    digits = "1 fraction digit" if decimals == 1 else f"{decimals} fraction digits"
    return f"a JSON number or decimal text with at most {digits} and without an exponent"


def _out_of_range(decimals: int, field: str) -> InvalidInput:
    low, high = format_value(VALUE_MIN, decimals), format_value(VALUE_MAX, decimals)
    return InvalidInput(code="out_of_range", field=field, allowed=f"from {low} to {high}")


_fast = msgspec.json.Decoder(float_hook=NumberText)


def decode_json(body: bytes) -> Any:
    """Decode a JSON body; numbers that are not plain integers arrive as `NumberText`, integers exact.

    `NaN`, `Infinity` and text with a lone surrogate are let through, so that the check of the field can name
    it and the other events of a batch still count. A key that is given twice in one object is refused: two
    readers of the same bytes might choose differently.

    Cost: about 0.5 µs an event; three times that where a body spells its keys so that only the slow decoder can tell.

    Raises:
        InvalidInput: `bad_json`, also for bytes that are not UTF-8 and for nesting of about a thousand levels.
    """
    try:
        document = _fast.decode(body)
        if _keys_at_most(body) == _keys_seen(document):
            return document
    except RecursionError:
        raise _bad_json() from None
    except msgspec.MsgspecError:
        pass  # malformed, or one of the spellings that are let through
    try:
        return _exact.decode(str(body, "utf-8"))
    except (ValueError, RecursionError):
        raise _bad_json() from None


def _keys_at_most(body: bytes) -> int:
    """Never less than the number of keys in `body`: the quote that closes a key stands before a colon."""
    return body.translate(None, b" \t\r\n").count(b'":')


def _keys_seen(document: Any) -> int:
    """Never more than the number of distinct keys: those of an object, and of the objects in its lists."""
    if not isinstance(document, dict):
        return 0
    count = len(document)
    for value in document.values():
        if isinstance(value, list):
            count += sum([len(item) for item in value if isinstance(item, dict)])
    return count


def _integer(text: str) -> int | NumberText:
    return int(text) if len(text) <= _INTEGER_CHARS_MAX else NumberText(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is given twice")
    return members


_exact = json.JSONDecoder(parse_float=NumberText, parse_constant=NumberText, parse_int=_integer, object_pairs_hook=_object)


def _bad_json() -> InvalidInput:
    return InvalidInput(code="bad_json", field="body", allowed="one JSON value in UTF-8 without deep nesting or repeated keys")
