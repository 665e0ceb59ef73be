"""What a gateway and the actors of its region say to each other.

Errors:
    Unanswered                 base: `code` (one of the table in `regions.problems`), `definite`, `retry_after_ms`
    ├── NoAuthority            nothing was appended, or (`definite=False`) the outcome is unknown
    ├── UnknownBoard           no such board here
    ├── BoardExists            a board of that id has other rules
    ├── NotRanked              the player has no active row in that generation
    ├── GenerationGone         the pinned generation is no longer retained; `newest` says where to start again
    ├── NotVisibleYet          no generation that includes `at_least` came up in time
    ├── BadCursor              not one of ours, or of another board
    ├── BadParameter           what is asked cannot be asked of this board: `field`, `allowed`
    ├── Busy                   a drill is running: another may begin when it has ended, or is past its time
    └── NotServing             this region's replica has no generation to serve yet
"""

from typing import Any, Literal

import msgspec

from boards.model import BoardRules, Layout, Submission
from journal.ports import Position


class BoardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A board as a region's replica knows it from committed entries."""

    board_id: str
    number: int
    incarnation: str
    #: The only shard, or the one that leads.
    shard: str
    #: Region that should own the shard when all is well.
    home: str
    rules: BoardRules
    #: Newest generation served here, 0 for the empty board, and its active rows.
    generation: int = 0
    count: int = 0
    created_ms: int = 0
    #: Where the slices live; None: the board was made with one slice, in `shard`, and has never moved.
    layout: Layout | None = None
    #: The layout it is on its way to.
    moving: Layout | None = None

    @property
    def layout_in_effect(self) -> Layout:
        """Where events of this board go: slice i to `shards[i]`."""
        return self.layout or Layout(1, (self.shard,))


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events of one caller for one board, on their way to the authority of one shard.

    `incarnation`: the life of the board whose rules they were checked by, or "" for whatever life is there.
    """

    board_id: str
    subject: str
    submissions: list[Submission]
    incarnation: str = ""


class SubmitResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The authority's word on one event; numbers as in `boards.model.Outcome`.

    For a duplicate, (epoch, offset, value, version) are those of the saved result and `outcome` is DUPLICATE.
    `visible_by` is the generation number that will include it at the latest. `alone`: acknowledged by the owner's store
    under its lease (`ack: local`), not by a majority yet. `shard` is where it was decided.
    """

    outcome: int
    value: int = 0
    version: int = 0
    improved: bool = False
    epoch: int = 0
    offset: int = 0
    visible_by: int = 0
    code: str = ""
    field: str = ""
    allowed: str = ""
    alone: bool = False
    shard: str = ""


class Top(msgspec.Struct, frozen=True, tag="top"):
    """A page in display order: from the start, or from where `cursor` points. 1 <= limit <= 1000."""

    limit: int = 100
    cursor: str | None = None


Mode = Literal["exact", "approximate"]


class Rank(msgspec.Struct, frozen=True, tag="rank"):
    """One player's place; `approximate` estimates it from the generation's histogram and says so."""

    player_id: str
    mode: Mode = "exact"


class Percentile(msgspec.Struct, frozen=True, tag="percentile"):
    """Which share of the players one player's rank is at or better than."""

    player_id: str
    mode: Mode = "exact"


class Nearby(msgspec.Struct, frozen=True, tag="nearby"):
    """The player and up to `window` neighbours on each side, clamped at the edges. 0 <= window <= 100."""

    player_id: str
    window: int = 5


class Ranks(msgspec.Struct, frozen=True, tag="ranks"):
    """Places of up to 1000 players: on the board, or among the listed only."""

    players: list[str]
    among: Literal["board", "listed"] = "board"


Question = Top | Rank | Percentile | Nearby | Ranks


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a read replica about one generation: the newest, a pinned one, or one that includes a position."""

    board_id: str
    question: Question
    generation: int | None = None
    #: Of that generation only in this life of the board; empty: in the present one.
    incarnation: str = ""
    at_least: Position | None = None
    #: The shard that `at_least` is a position of; None: the board's only one.
    at_shard: str | None = None
    wait_ms: int = 1000


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """An immutable answer: `body` is the same JSON bytes in every region."""

    board_id: str
    incarnation: str
    #: Of the journal that names the generation, which is that of `shard`.
    lineage: str
    generation: int
    published_ms: int
    body: bytes
    shard: str = ""
    #: Number of the layout whose slices it was made of.
    layout: int = 1


class Unanswered(Exception):
    """A question or submission that got no answer; survives pickling."""

    code: str = "unavailable"
    definite: bool = True
    retry_after_ms: int | None = None

    def __init__(self, detail: str, **fields: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.detail, self.fields)


def _rebuild(kind: type[Unanswered], detail: str, fields: dict[str, Any]) -> Unanswered:
    return kind(detail, **fields)


class NoAuthority(Unanswered):
    """No authority took the write. Fields: `code` (no_authority, draining, lagging, no_lease, hold, unknown, moving, moved),
    `definite`, `epoch` and `owner` (newest started epoch known, 0 and "" if none), `started`.

    `moving`: the slice is closed for a move, try again soon. `moved`: it lives elsewhere now; `layout` is the new one, as builtins.
    """

    code = "no_authority"
    retry_after_ms = 1000
    epoch = 0
    owner = ""


class UnknownBoard(Unanswered):
    """No such board."""

    code = "unknown_board"


class BoardExists(Unanswered):
    """A board of that id exists with other rules."""

    code = "board_exists"


class NotRanked(Unanswered):
    """The player has no active row in that generation."""

    code = "not_ranked"


class GenerationGone(Unanswered):
    """Pinned generation not retained; `newest` is the number to start again with."""

    code = "generation_gone"
    newest = 0


class NotVisibleYet(Unanswered):
    """No generation that includes the wanted position came up in time."""

    code = "not_visible_yet"
    retry_after_ms = 500


class BadCursor(Unanswered):
    """Not a cursor of this board and generation."""

    code = "bad_cursor"


class BadParameter(Unanswered):
    """Not for this board: a position of no shard of it, an estimate of dense ranks. Fields: `field`, `allowed`."""

    code = "bad_parameter"


class Busy(Unanswered):
    """A drill is running, `drill` by its id; `retry_after_ms` is when it will be past its time at the latest."""

    code = "busy"
    retry_after_ms = 1000
    drill = ""


class NotServing(Unanswered):
    """The replica is still reading its journal."""

    code = "not_serving"
    retry_after_ms = 500


class WireError(msgspec.Struct, frozen=True, tag="error"):
    """An `Unanswered` on its way through a reply that may hold several results."""

    kind: str
    detail: str
    fields: dict[str, Any]


def to_wire(error: Unanswered) -> WireError:
    """An error as a value."""
    return WireError(type(error).__name__, error.detail, error.fields)


def from_wire(raw: WireError) -> Unanswered:
    """The error that `to_wire` wrote; a kind that is not known here becomes `Unanswered`."""
    kinds = {cls.__name__: cls for cls in Unanswered.__subclasses__()}
    return kinds.get(raw.kind, Unanswered)(raw.detail, **raw.fields)
