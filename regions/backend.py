"""What the HTTP edge asks of a region: the port between `regions.app` and the gateway actor.

All calls may raise `actors.messages.Unanswered`, whose `code` is a key of `regions.problems.TABLE`.
Besides those named there, `create_board` raises one with the code `unknown_region`; `failover` with
`unknown_shard`, `unknown_region`, `epoch_moved` or `failover_refused`; `readmit` with `unknown_region` or `readmit_refused`;
`set_link` with `unknown_region`; `audit` with `busy`; those about audit records and orphans with `unknown_shard` or `unavailable`.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from actors.messages import Answer, Ask, BoardInfo, SubmitResult
from boards.model import BoardRules, Submission
from regions.board_orders import Wish


class FailoverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Move authority to region `to`: of one shard, of all shards of a board, or of all that `from_region` owns.

    Exactly one of `shard`, `board` and `from_region` is set. `force` deposes an authority that does not answer;
    `expect_epoch`, of one shard only, refuses when that is in another epoch by now.
    """

    to: str
    shard: str | None = None
    board: str | None = None
    from_region: str | None = None
    force: bool = False
    expect_epoch: int | None = None


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Set the fault switch of the link to `peer`, as seen from this region; it ends by itself after `for_ms`.

    `delay_ms` is above 0 for mode `delay` only.
    """

    peer: str
    direction: Literal["in", "out", "both"]
    mode: Literal["drop", "delay", "clear"]
    delay_ms: int = 0
    for_ms: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one request may ask for."""

    max_body_bytes: int = 1 << 20
    max_events: int = 1000
    max_players: int = 1000
    #: How far `achieved_at` and `submitted_at` may lie ahead of this gateway's clock.
    max_future_ms: int = 300_000
    #: Longest wait for a generation (`at_least`, `include=rank`).
    wait_ms: int = 1000


class Backend(Protocol):
    """A region as its edge sees it."""

    @property
    def region(self) -> str:
        """Name of this region."""
        ...

    @property
    def now_ms(self) -> Callable[[], int]:
        """This gateway's wall clock, Unix milliseconds."""
        ...

    def board(self, board_id: str) -> BoardInfo | None:
        """The board as of the newest generation here. In memory, well below a microsecond."""
        ...

    async def board_soon(self, board_id: str) -> BoardInfo | None:
        """The board, also where another region made it a moment ago: waits for news of one that is not known here, for a second at most.

        Raises `NotServing` where too many wait already.
        """
        ...

    def boards(self) -> list[BoardInfo]:
        """All boards known here."""
        ...

    @property
    def knows_boards(self) -> bool:
        """Whether all boards of the journal are known here; until then, one that is not known may exist all the same."""
        ...

    async def submit(self, board: BoardInfo, submissions: list[Submission], *, subject: str) -> list[SubmitResult]:
        """Have the authorities of the board's shards decide these events; one result each, in order, all of them acknowledged.

        A result may be `Outcome.UNKNOWN`; with a `code`, nothing was appended for it. Raises `NoAuthority` where there is no result
        at all; indefinite means that all are unknown.
        """
        ...

    async def ask(self, ask: Ask) -> Answer:
        """Answer a question from this region's replica; never waits longer than `ask.wait_ms` for a generation."""
        ...

    def ready_top(self, board: BoardInfo, limit: int) -> Answer | None:
        """The newest generation's first page, held ready encoded, or None if it has to be asked for.

        The same object is returned until the generation changes: the edge keeps what it derives from it by identity.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Roles, epochs, generations and lags, as `/v1/status` shows them."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether this region can serve, and what is missing if not."""
        ...

    async def create_board(
        self, board_id: str, rules: BoardRules, home: str | None, shards: Wish | None, *, subject: str
    ) -> tuple[BoardInfo, bool]:
        """Make the board known in all regions; (info, True) if it was created, (info, False) if it was there with the same rules.

        `shards`: how many, or which; None: one, chosen by the id. Raises `InvalidInput` for a place that cannot be.
        """
        ...

    async def remove_board(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """Remove the board everywhere; `board`, `incarnation` and `removed`, once this region no longer shows that life of it."""
        ...

    async def relocate(self, board_id: str, shards: Wish, *, subject: str) -> dict[str, Any]:
        """Begin to move the board to so many shards, or to these; `moving`, and `layout`: the one it goes to. Idempotent.

        Raises `InvalidInput`, and what the lead refuses it with (`relocation_refused`).
        """
        ...

    async def relocation(self, board_id: str) -> dict[str, Any]:
        """How far a move is: `moving`, `layout` (in effect here), `to`, and the lead's `phase` and `slices`."""
        ...

    async def abort_relocation(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """Give a move up; the board stays where it is."""
        ...

    async def failover(self, request: FailoverRequest, *, subject: str) -> dict[str, Any]:
        """Move authority; `moved` names each shard, its new epoch and owner, and the boards that went along; `failed` what stayed, and why.

        Raises where nothing was moved.
        """
        ...

    async def readmit(self, region: str, *, subject: str) -> dict[str, Any]:
        """Take back a region whose store has lost data: empty it, and make it a member again without its vote.

        The answer names each shard and its new epoch. Shards go one after another; when one is refused, those before it are done.
        """
        ...

    async def stall(self, for_ms: int, *, subject: str) -> dict[str, Any]:
        """Have this region's store answer nobody for so long; it goes on by itself. Raises with the code `unavailable`."""
        ...

    async def audit(self, what: str, detail: dict[str, Any], shard: str | None, unless_open: str | None, *, subject: str) -> dict[str, Any]:
        """Write an audit record at the shard's authority (None: of the first shard); `shard`, `epoch` and `offset` of it, committed."""
        ...

    async def audits(self, what: str, limit: int, shard: str | None) -> list[dict[str, Any]]:
        """At most `limit` committed audit records of one shard or all, the newest first, from this region's journals."""
        ...

    async def orphans(self, shard: str | None, limit: int) -> dict[str, dict[str, Any]]:
        """This region's orphans by shard: `total`, `entries` (counts), and the first `limit` `orphans`."""
        ...

    async def resubmit_orphans(self, shard: str | None, *, subject: str) -> dict[str, dict[str, Any]]:
        """Send this region's open orphans again; `outcomes` and `entries` by shard."""
        ...

    async def sign_off_orphans(self, shard: str, epoch: int, why: str, *, subject: str) -> dict[str, Any]:
        """Delete this region's orphans of an epoch, once the authority has recorded it; what the record says."""
        ...

    async def set_link(self, request: LinkRequest, *, subject: str) -> dict[str, Any]:
        """Set a link's fault switch; the answer is the state of all links."""
        ...
