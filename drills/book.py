"""What the canary saw, kept by itself so that the drill's verdict rests on nobody else's word. Times are ms since the drill began."""

from dataclasses import dataclass, field

from drills.ports import Outcome

#: Outcomes that say: this event is in the journal, once.
FRESH = frozenset({"applied", "applied_first", "not_an_improvement"})
#: Reads and acknowledgements kept at most; a drill lasts minutes.
KEPT = 200_000


@dataclass(slots=True, kw_only=True)
class Sent:
    """One canary event, through all its deliveries."""

    event_id: str
    player_id: str
    region: str
    board: str
    amount: int
    sent_ms: float
    acked_ms: float | None = None
    epoch: int = 0
    offset: int = 0
    #: A delivery got no answer before the event was acknowledged: it may or may not have been in the journal.
    doubted: bool = False
    #: How often an answer said that the event was new.
    fresh: int = 0
    #: Acknowledged at one place and found at another in the end: it was cut off, and sent again by its region.
    moved: bool = False


@dataclass(slots=True, frozen=True)
class Ack:
    """One acknowledgement. `sent_ms` is when this delivery was sent; `fresh` is False for a duplicate, `first` for a repetition."""

    at_ms: float
    sent_ms: float
    region: str
    epoch: int
    offset: int
    fresh: bool
    first: bool = True


@dataclass(slots=True, frozen=True)
class Look:
    """One read of a region; `generation` -1 when it was not answered. `beat` numbers the reads that went to all regions at once."""

    at_ms: float
    region: str
    beat: int
    generation: int
    boundary: int
    took_ms: float


@dataclass(slots=True)
class Book:
    """Everything the canary has sent and seen."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    #: Answers `duplicate`, and definite refusals after which an event was sent again.
    duplicates: int = 0
    refused: int = 0
    #: Deliveries that were due and not sent, since too many of the region were under way.
    held_back: int = 0
    #: Answers that no canary event may get.
    wrong: list[str] = field(default_factory=list)
    #: Event ids whose acknowledgement could not be confirmed at the end, with the answer.
    lost: dict[str, str] = field(default_factory=dict)
    #: Acknowledged events that were asked for again at the end and known.
    confirmed: int = 0
    #: A sentence for each player's value that is not what it must be.
    unequal: list[str] = field(default_factory=list)
    #: How many values of players were compared in all regions.
    compared: int = 0
    #: Traffic began and ended.
    began_ms: float = 0.0
    ended_ms: float = 0.0

    def heard(self, event: Sent, answer: Outcome, *, region: str, sent_ms: float, now_ms: float) -> bool:
        """Take an answer; whether the event is acknowledged by it."""
        if answer.outcome in FRESH or answer.outcome == "duplicate":
            fresh = answer.outcome in FRESH
            event.fresh += fresh
            self.duplicates += not fresh
            first = event.acked_ms is None
            if first:
                event.acked_ms, event.epoch, event.offset = now_ms, answer.epoch, answer.offset
            if len(self.acks) < KEPT:
                self.acks.append(Ack(now_ms, sent_ms, region, answer.epoch, answer.offset, fresh, first))
            return True
        if answer.outcome == "unknown":
            event.doubted = event.doubted or event.acked_ms is None
            return False
        self.wrong.append(f"{event.event_id} through {region}: {answer.outcome}")
        return True

    def unresolved(self) -> list[Sent]:
        """Events that nobody has acknowledged."""
        return [event for event in self.sent.values() if event.acked_ms is None]

    def expected(self, board: str, *, best: bool) -> dict[str, int]:
        """What each player's value on the board must be, from the acknowledged events alone."""
        values: dict[str, int] = {}
        for event in self.sent.values():
            if event.board != board or event.acked_ms is None:
                continue
            before = values.get(event.player_id)
            if before is None:
                values[event.player_id] = event.amount
            else:
                values[event.player_id] = max(before, event.amount) if best else before + event.amount
        return values

    def last(self) -> tuple[int, int]:
        """The greatest (epoch, offset) that an answer rested on."""
        return max(((ack.epoch, ack.offset) for ack in self.acks), default=(0, 0))
