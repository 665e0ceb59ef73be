"""Values that the rules work on: a board's rules, a player's row, a submission, an outcome.

All numbers are integers: values are scaled by `10**decimals` at the edge, instants are Unix epoch
milliseconds (UTC), versions count accepted changes of one row from 1.
"""

from enum import IntEnum
from typing import Literal

import msgspec

Policy = Literal["best_score", "fastest_time", "cumulative", "latest"]
Direction = Literal["higher", "lower"]
Ties = Literal["achieved_at", "submitted_at", "player_id"]
Ranking = Literal["unique", "competition", "dense"]
Visibility = Literal["public", "private"]

#: Values live in the signed 64-bit range after scaling.
VALUE_MIN, VALUE_MAX = -(2**63), 2**63 - 1


class BoardRules(msgspec.Struct, frozen=True, kw_only=True):
    """What decides outcomes and order on one board; written into the journal when the board is created.

    `direction` is fixed by the policy except on `latest` boards. `ties` names the moment that breaks
    equal values (`player_id`: none does); the lower player id by UTF-8 bytes is always the last key.
    """

    policy: Policy
    direction: Direction
    ties: Ties
    ranking: Ranking = "unique"
    decimals: int = 0
    #: Greatest plausible value of a `fastest_time` board, scaled; None means no bound.
    max_value: int | None = None
    #: Oldest `achieved_at` accepted, measured back from the gateway's clock; None means any.
    max_age_ms: int | None = None
    visibility: Visibility = "private"
    publish_interval_ms: int = 250
    retention_ms: int = 120_000
    rule_version: int = 1
    #: Direction of a second column that decides between equal values, before the tie moment; None: the board has none.
    secondary: Direction | None = None


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """How a board is spread over shards: slice i lives on `shards[i]`, slice 0's shard leads. A reshard or a move makes the next number."""

    number: int
    shards: tuple[str, ...]

    @property
    def lead(self) -> str:
        """The shard whose journal holds the board's manifests."""
        return self.shards[0]


class Status(IntEnum):
    """Moderation state of a row; only `ACTIVE` rows are ranked."""

    ACTIVE = 0
    INVALIDATED = 1


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One player's authoritative row on one board."""

    value: int
    #: The moment that breaks ties by the board's rule; 0 on `ties: player_id` boards. Moves only with `value`.
    tie_ms: int
    achieved_ms: int
    submitted_ms: int
    #: Processing time of the change, by the authority's clock; never decides anything.
    updated_ms: int
    version: int
    last_event_id: str
    status: int = Status.ACTIVE
    #: The second column, on boards whose rules have `secondary`; 0 elsewhere.
    second: int = 0


class Outcome(IntEnum):
    """What became of one event; `name.lower()` is the word on the wire. Numbers are written to journals: never reuse one."""

    APPLIED_FIRST = 1
    APPLIED = 2
    NOT_AN_IMPROVEMENT = 3
    DUPLICATE = 4
    CONFLICT = 5
    SUPERSEDED = 6
    INVALID = 7
    UNKNOWN = 8


class Submission(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A validated event on its way from a gateway to the shard's authority.

    `amount` is the scaled value, or the delta on cumulative boards. `fingerprint` covers what the
    client sent and nothing that the gateway stamped (see `boards.identity`).
    """

    event_id: str
    player_id: str
    amount: int
    achieved_ms: int
    submitted_ms: int
    fingerprint: bytes
    #: The second column; 0 on boards without one.
    second: int = 0


class Decision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rules' answer for one submission. `row` is the complete new row, or None when it stays as it was."""

    outcome: int
    #: Value and version of the row after the event: the new ones, or the stored ones when unchanged.
    value: int
    version: int
    row: Row | None = None
    #: For `INVALID` only: a stable word such as `overflow`, and what would be allowed.
    code: str = ""
    allowed: str = ""
