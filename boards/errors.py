"""Errors of this package.

Errors:
    ValueError
    └── InvalidInput   one field of what a client or operator sent is not allowed. Definite: nothing was done.
"""

from typing import Any, ClassVar


class InvalidInput(ValueError):
    """`field` holds something that is not `allowed`; a mended try may follow at once.

    `code` is a stable word for programs: `bad_json`, `bad_id`, `bad_time`, `bad_rule`, `not_a_number`,
    `too_precise` or `out_of_range`. `allowed` completes the sentence "<field> must be ...". What was sent is
    not repeated, so a message is always short and printable.
    """

    definite: ClassVar[bool] = True

    def __init__(self, *, code: str, field: str, allowed: str) -> None:
        super().__init__(f"{field} must be {allowed}.")
        self.code = code
        self.field = field
        self.allowed = allowed

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.code, self.field, self.allowed)


def _rebuild(code: str, field: str, allowed: str) -> InvalidInput:
    return InvalidInput(code=code, field=field, allowed=allowed)
