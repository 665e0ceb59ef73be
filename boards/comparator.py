"""The comparator: the one place that says which of two rows stands higher.

Value by the board's direction, then the second column by its own where the board has one, then the earlier tie moment, then
the lower player id by UTF-8 bytes. Every
other order in the project (rank index, pages, friends, offline sorts) has to agree with it, pair by pair.
"""

from collections.abc import Callable

from boards.model import BoardRules, Row

#: Sorts ascending into display order; the last part is compared by code point, which is the order of UTF-8 bytes.
SortKey = tuple[int, int, int, str]


def compare(rules: BoardRules, a_id: str, a: Row, b_id: str, b: Row) -> int:
    """-1 if `a` stands above `b`, 1 if below, 0 only for one and the same player and key."""
    if a.value != b.value:
        return -1 if (a.value > b.value) == (rules.direction == "higher") else 1
    if rules.secondary is not None and a.second != b.second:
        return -1 if (a.second > b.second) == (rules.secondary == "higher") else 1
    if a.tie_ms != b.tie_ms:
        return -1 if a.tie_ms < b.tie_ms else 1
    return (a_id > b_id) - (a_id < b_id)


def sort_key(rules: BoardRules) -> Callable[[tuple[str, Row]], SortKey]:
    """A key for (player id, row) pairs, such as `rows.items()`, that sorts them as `compare` does."""
    sign = -1 if rules.direction == "higher" else 1
    second = {"higher": -1, "lower": 1, None: 0}[rules.secondary]
    return lambda item: (sign * item[1].value, second * item[1].second, item[1].tie_ms, item[0])
