"""What a drill asks of a running cluster and is answered: the port between the runner and HTTP, or a cluster in memory.

DrillError
├── NoAnswer    nobody answered in time. Indefinite: ask again, with the same event ids.
├── Refusal     the cluster refused: `code` and `detail` are its own. Definite; `again` tells whether waiting may help.
└── Unfit       a drill was not begun: `reasons` says why, one sentence each. Definite: nothing was changed.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

Direction = Literal["in", "out", "both"]

#: Codes of refusals that end by themselves.
PASSING = frozenset(
    (
        *("no_authority", "draining", "lagging", "no_lease", "hold", "unavailable", "not_serving", "not_ready", "not_visible_yet"),
        *("rate_limited", "unreachable"),
    )
)


class DrillError(Exception):
    """Base of this package's errors."""

    code = "drill"
    definite = True


class NoAnswer(DrillError):
    """No answer in time, or the connection broke; it may have happened."""

    code = "no_answer"
    definite = False


class Refusal(DrillError):
    """The cluster's own refusal; nothing happened."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.detail} ({self.code})"

    @property
    def again(self) -> bool:
        """Whether the same may be taken later."""
        return self.code in PASSING


class Unfit(DrillError):
    """The drill was not begun."""

    code = "drill_refused"

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(tuple(reasons))
        self.reasons = list(reasons)

    def __str__(self) -> str:
        return "; ".join(self.reasons)


class Event(msgspec.Struct, frozen=True):
    """A canary event. `amount` is a delta on a cumulative board, a value on a best-score board."""

    event_id: str
    player_id: str
    amount: int


class Outcome(msgspec.Struct, frozen=True):
    """One event's answer. (0, 0) where it rests on no position: `unknown` and `invalid`."""

    event_id: str
    outcome: str
    epoch: int = 0
    offset: int = 0


class Reading(msgspec.Struct, frozen=True):
    """One read: which generation, and the last offset that it includes."""

    generation: int
    boundary: int


class Cluster(Protocol):
    """Every call may raise `NoAnswer` or `Refusal`, and ends within some seconds."""

    @property
    def regions(self) -> tuple[str, ...]:
        """All regions, in the order of the cluster file."""
        ...

    async def status(self, region: str) -> dict[str, Any]:
        """The region's `/v1/status`."""
        ...

    async def ready(self, region: str) -> list[str]:
        """What the region misses to serve; [] when it is ready."""
        ...

    async def create_board(self, region: str, board: str, policy: str, home: str, shard: str) -> None:
        """In that shard, through `region`; it is no error if the board is there with these rules."""
        ...

    async def submit(self, region: str, board: str, events: Sequence[Event]) -> list[Outcome]:
        """One outcome for each event, in order; some may be `unknown`."""
        ...

    async def read(self, region: str, board: str) -> Reading:
        """The newest generation that the region serves."""
        ...

    async def totals(self, region: str, board: str, players: Sequence[str], at_least: tuple[int, int]) -> dict[str, int]:
        """Values of these players (absent ones are left out) in a generation that includes the position (epoch, offset)."""
        ...

    async def failover(self, to: str, shard: str, *, force: bool) -> dict[str, Any]:
        """Ask region `to` to take the shard; its word on the move: at least `epoch`, `owner`, `from`, perhaps `phases_ms`."""
        ...

    async def set_link(self, region: str, peer: str, direction: Direction, *, mode: str, delay_ms: int = 0, for_ms: int = 0) -> None:
        """Drop, delay or clear what `region` exchanges with `peer`, as seen from `region`; it ends by itself after `for_ms`."""
        ...

    async def stall(self, region: str, for_ms: int) -> None:
        """Have the region's store answer nobody for so long."""
        ...

    async def orphans(self, region: str, shard: str) -> int:
        """How many events that were cut off at the region's store are not sent again yet."""
        ...

    async def audit(self, region: str, shard: str, what: str, detail: dict[str, Any], *, unless_open: str = "") -> str:
        """Write a record into the shard's journal; whose it is. Refused as `busy` while a record of kind `unless_open` is open."""
        ...

    async def audits(self, region: str, shard: str, what: str) -> list[dict[str, Any]]:
        """The newest records of that kind, of one shard or of all (""), oldest first: `what`, `asked_by`, `at`, `detail`."""
        ...
