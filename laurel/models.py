"""What is sent and what comes back: events, answers, and `Call`, one request with its way to read the answer.

Answers are frozen and keep fields they do not know (`answer.model_extra`). Ids and generations are text
and stay text; values are int, or Decimal where the text has a point, so they compare as numbers.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from unicodedata import category
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from laurel.errors import BadRequest

T = TypeVar("T")

#: A number as a caller gives it; text is sent as it is, a float is refused because it has already been rounded.
Number = int | Decimal | str

_VALUE_TEXT = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)


def read_value(raw: object) -> int | Decimal:
    """A value of an answer: text with a point is a Decimal, other text an int."""
    if isinstance(raw, (int, Decimal)) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _VALUE_TEXT.fullmatch(raw):
        return Decimal(raw) if "." in raw else int(raw)
    raise ValueError("not a decimal number")


def show_value(value: int | Decimal) -> str:
    """Decimal text without an exponent."""
    return format(value, "f") if isinstance(value, Decimal) else str(value)


Value = Annotated[int | Decimal, PlainValidator(read_value), PlainSerializer(show_value, return_type=str, when_used="json")]
#: A percentage of four fraction digits at most: JSON has it as a number, and a float shows all of them.
Share = Annotated[int | Decimal, PlainValidator(read_value), PlainSerializer(float, return_type=float, when_used="json")]


def write_number(number: Number, name: str) -> int | str:
    """A number for the wire: an int stays a JSON integer, a Decimal becomes text, text goes as it is."""
    if isinstance(number, bool) or not isinstance(number, (int, Decimal, str)):
        raise TypeError(f"{name} must be int, Decimal or text, not {type(number).__name__}: a binary float has been rounded already")
    if isinstance(number, Decimal):
        if not number.is_finite():
            raise ValueError(f"{name} must be a finite number, not {number}")
        return format(number, "f")
    return number


def write_moment(moment: datetime | str, name: str) -> str:
    """RFC 3339 text with milliseconds; a datetime must know its offset."""
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{name} needs a time zone, such as datetime.now(timezone.utc)")
    return moment.isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event to submit: `value`, or `delta` on cumulative boards. The client makes an `event_id` where there is none.

    Keep the id if you may submit the event again: the same id is counted once, another id is another event.
    """

    player_id: str
    value: Number | None = None
    delta: Number | None = None
    event_id: str | None = None
    achieved_at: datetime | str | None = None
    submitted_at: datetime | str | None = None
    #: The second column, a whole number, on boards that have one.
    secondary: int | str | None = None


EventLike = Event | Mapping[str, Any]


def write_event(event: EventLike, new_id: str) -> dict[str, Any]:
    """The event as the wire has it, with `new_id` if it has no id of its own; unknown keys of a mapping go along."""
    if isinstance(event, Event):
        body = {f.name: getattr(event, f.name) for f in fields(event) if getattr(event, f.name) is not None}
    else:
        body = {name: item for name, item in event.items() if item is not None}
    body.setdefault("event_id", new_id)
    for name in ("event_id", "player_id"):
        if name in body and not isinstance(body[name], str):
            raise TypeError(f"{name} must be text, not {type(body[name]).__name__}")
    for name in ("value", "delta", "secondary", "points"):
        if name in body:
            body[name] = write_number(body[name], name)
    for name in ("achieved_at", "submitted_at"):
        if name in body:
            body[name] = write_moment(body[name], name)
    return body


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class EventResult(_Answer):
    """The authority's word on one event. For a `duplicate`, value, version and position are those of the saved result."""

    event_id: str
    outcome: str
    value: Value | None = None
    version: int | None = None
    improved: bool | None = None
    shard: str | None = None
    epoch: int | None = None
    offset: int | None = None
    acked: str | None = None
    visible_by: str | None = None
    at_least: str | None = None
    code: str | None = None
    field: str | None = None
    allowed: str | None = None

    @property
    def position(self) -> str | None:
        """Place of the acknowledgement with its shard, such as `eu-west/1:7-1042`, so that it means the same after the board has moved.

        Pass the result as `at_least` to read your write.
        """
        if self.at_least is not None and ":" in self.at_least:
            return self.at_least
        if self.epoch is None or self.offset is None:
            return None
        return f"{self.shard}:{self.epoch}-{self.offset}" if self.shard else f"{self.epoch}-{self.offset}"

    @property
    def applied(self) -> bool:
        """This very submission changed the player's row."""
        return self.outcome in ("applied", "applied_first")

    @property
    def duplicate(self) -> bool:
        """The event had been recorded before; it counted then, and once."""
        return self.outcome == "duplicate"

    @property
    def unknown(self) -> bool:
        """No answer in time: it may have been recorded or not."""
        return self.outcome == "unknown"

    @property
    def recorded(self) -> bool:
        """The event is in the journal, now or from an earlier submission, whether or not it changed the row."""
        return self.outcome in _RECORDED


_RECORDED = frozenset({"applied", "applied_first", "not_an_improvement", "duplicate", "superseded", "stale_revision", "held"})


class SubmitReply(_Answer):
    """One result for each event, in the order of the events. `region` is the one that answered last."""

    board: str
    region: str | None = None
    results: tuple[EventResult, ...]

    @property
    def position(self) -> str | None:
        """The greatest position of the results; a generation that includes it includes all of them.

        None where no result has one, and where they are of several shards: then `positions` has them.
        """
        found = list(self.positions.values())
        return found[0] if len(found) == 1 else None

    @property
    def positions(self) -> dict[str, str]:
        """The greatest position of each shard that decided something."""
        last: dict[str, EventResult] = {}
        for result in self.results:
            if result.epoch is not None and result.offset is not None:
                shard = result.shard or ""
                if shard not in last or (last[shard].epoch, last[shard].offset) < (result.epoch, result.offset):
                    last[shard] = result
        return {shard: result.position or "" for shard, result in last.items()}


class Entry(_Answer):
    """A player's place in one generation. `position` is unique, None in an estimate; `rank` follows the board's ranking rule."""

    position: int | None = None
    rank: int
    player_id: str
    value: Value
    #: The second column, on boards that have one.
    secondary: Value | None = None
    achieved_at: datetime | None = None
    version: int | None = None


class Envelope(_Answer):
    """What every read says about the generation it was answered from.

    The body is the same in every region; `region` and `age_ms` come from the headers and are not.
    """

    board: str
    generation: str
    #: Names the generation together with the life of the board that it is of: the number alone means another once that is made anew.
    pin: str | None = None
    epoch: int | None = None
    published_at: datetime | None = None
    boundaries: dict[str, str] = {}
    complete: bool = True
    exact: bool = True
    total: int | None = None
    checksum: str | None = None
    entries: tuple[Entry, ...] = ()
    region: str | None = None
    age_ms: int | None = None


class Page(Envelope):
    """A part of the board in display order; `next` and `previous` are cursors, None at the ends."""

    next: str | None = None
    previous: str | None = None


class PlayerPlace(Envelope):
    """One player's place (`rank`, `percentile`), or the entries around it (`nearby`)."""

    player_id: str
    #: Of `nearby`: cursors of `top`, which go on below and above these entries in the same generation; None at the ends.
    next: str | None = None
    previous: str | None = None
    #: `approximate` where that was asked for; then places may be off by `error_bound` positions either way.
    mode: str | None = None
    error_bound: int | None = None
    #: Of the players, what share the player's rank is at or better than, in percent.
    percentile: Share | None = None

    @property
    def entry(self) -> Entry:
        """The player's own entry."""
        for entry in self.entries:
            if entry.player_id == self.player_id:
                return entry
        raise LookupError(f"the answer holds no entry of {self.player_id!r}")


class Places(Envelope):
    """Places of many players: on the board, or among the listed only. `absent` have no active row."""

    among: str = "board"
    absent: tuple[str, ...] = ()


class Board(_Answer):
    """A board's rules and state, as the region that answered knows it."""

    board: str
    policy: str | None = None
    direction: str | None = None
    ties: str | None = None
    ranking: str | None = None
    decimals: int | None = None
    visibility: str | None = None
    state: str | None = None
    home: str | None = None
    #: The shard that leads, and all of them in the order of the slices.
    shard: str | None = None
    slices: int | None = None
    shards: tuple[str, ...] | None = None
    layout: int | None = None
    #: `{number, shards}` of the layout that it is on its way to.
    moving_to: dict[str, Any] | None = None
    secondary: dict[str, str] | None = None
    total: int | None = None
    generation: str | None = None
    incarnation: str | None = None


#: Anything that names a journal position: an acknowledgement, a reply, or its text.
AtLeast = str | EventResult | SubmitReply


def at_least_text(at_least: AtLeast) -> str:
    """`7-1042`, or `eu-west/1:7-1042`, from whatever names a position."""
    text = at_least if isinstance(at_least, str) else at_least.position
    if text is None and isinstance(at_least, SubmitReply) and len(at_least.positions) > 1:
        raise ValueError("this reply is of several shards: pass the result of the event that you want to see, or one of `positions`")
    if text is None:
        raise ValueError("this result has no position to wait for: the event was not recorded")
    return text


def load_json(content: bytes) -> Any:
    """JSON whose fractions are Decimals; ValueError if it is none."""
    return json.loads(content, parse_float=Decimal)


#: What may be repeated when the outcome is unknown: reads and calls with an identity may, `once` may not.
Effect = Literal["none", "by_identity", "once"]
Among = Literal["board", "listed"]


@dataclass(kw_only=True)
class Call(Generic[T]):
    """One call of the API: what to send, what may be repeated, how to read the answer."""

    method: str
    path: str
    #: From the JSON document and the headers; raises ValueError where it is not what was agreed.
    decode: Callable[[Any, Mapping[str, str]], T]
    params: Mapping[str, str]
    body: Any = None
    effect: Effect = "none"
    #: Region to ask first, and region to ask alone.
    first: str | None = None
    only: str | None = None
    #: Longer than usual for calls that wait by nature.
    timeout_s: float | None = None

    def payload(self) -> Any:
        """The JSON body of the next attempt, None for no body."""
        return self.body

    def read(self, document: Any, headers: Mapping[str, str]) -> T:
        """The answer of a successful attempt."""
        return self.decode(document, headers)


class SubmitCall(Call[SubmitReply]):
    """A submission. Results that are known stay; only events without one are sent again."""

    def __init__(self, board: str, events: Sequence[EventLike], *, only: str | None) -> None:
        super().__init__(method="POST", path=board_path(board) + "/events", decode=self._reply, params={}, effect="by_identity", only=only)
        self._board = board
        self._events = [write_event(event, uuid4().hex) for event in events]
        self._results: list[EventResult | None] = [None] * len(self._events)

    def left(self) -> list[dict[str, Any]]:
        """Events without a known result, in order."""
        return [event for event, result in zip(self._events, self._results, strict=True) if result is None]

    def results(self) -> list[EventResult]:
        """One for each event, in order."""
        return [
            result or EventResult(event_id=event["event_id"], outcome="unknown")
            for event, result in zip(self._events, self._results, strict=True)
        ]

    def payload(self) -> Any:
        """The events that are left, with the ids they had the first time."""
        return {"events": self.left()}

    def absorb(self, document: Any) -> bool:
        """Take in the results of an answer; True when none is left.

        Matched by order, since one id may belong to two players. ValueError, and nothing is taken, where they do not fit.
        """
        given = document.get("results") if isinstance(document, Mapping) else None
        places = [i for i, result in enumerate(self._results) if result is None]
        if not isinstance(given, list) or len(given) != len(places):
            raise ValueError("not one result for each event")
        read = [_read_result(result, self._events[i]["event_id"]) for i, result in zip(places, given, strict=True)]
        for i, result in zip(places, read, strict=True):
            if not result.unknown:
                self._results[i] = result
        return all(result is not None for result in self._results)

    def settle_last(self, status: int, problem: Mapping[str, Any]) -> bool:
        """A 4xx for the last event left of a batch is that event's result: alone, it is not answered by a list."""
        places = [i for i, result in enumerate(self._results) if result is None]
        if len(self._results) < 2 or len(places) != 1:
            return False
        if "results" in problem:
            return self.absorb(problem)
        if status != 409:
            return False
        self._results[places[0]] = _read_result({"outcome": "conflict", "event_id": None}, self._events[places[0]]["event_id"])
        return True

    def _reply(self, document: Any, headers: Mapping[str, str]) -> SubmitReply:
        rest = {name: item for name, item in document.items() if name in ("board", "region")}
        rest = {"board": self._board, "region": headers.get("x-laurel-region"), **rest}
        return SubmitReply(**rest, results=tuple(self.results()))


def _read_result(raw: Any, event_id: str) -> EventResult:
    """A result of the event of that id; the id of one that could not be read may come back cut or missing."""
    if isinstance(raw, Mapping) and (raw.get("outcome") == "invalid" or raw.get("event_id") is None):
        raw = {**raw, "event_id": event_id}
    result = EventResult.model_validate(raw)
    if result.event_id != event_id:
        raise ValueError("results are not in the order of the events")
    return result


def submit(board: str, events: EventLike | Sequence[EventLike], *, region: str | None) -> SubmitCall:
    """POST events; a single one is a list of one."""
    return SubmitCall(board, [events] if isinstance(events, (Event, Mapping)) else list(events), only=region)


def path_segment(text: str, name: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text, not {type(text).__name__}")
    if text in ("", ".", "..") or "/" in text or any(category(char) in ("Cc", "Cs") for char in text):
        raise BadRequest(
            f"{text!r} is no {name}: it may not be empty, '.' or '..', nor hold a slash or control characters",
            code="invalid_id",
            field=name,
            allowed="1 to 128 bytes of UTF-8 without slash and control characters",
        )
    return quote(text, safe=":")


def board_path(board: str) -> str:
    return f"/v1/boards/{path_segment(board, 'board')}"


def read_params(generation: str | None, at_least: AtLeast | None, **others: object) -> dict[str, str]:
    params = {name: str(value) for name, value in others.items() if value is not None}
    if generation is not None:
        params["generation"] = generation
    if at_least is not None:
        params["at_least"] = at_least_text(at_least)
    return params


E = TypeVar("E", bound=Envelope)


def read_envelope(kind: type[E], **defaults: Any) -> Callable[[Any, Mapping[str, str]], E]:
    def decode(document: Any, headers: Mapping[str, str]) -> E:
        age = headers.get("x-laurel-age-ms", "")
        age_ms = int(age) if age.isascii() and age.isdigit() else None
        return kind.model_validate({**defaults, **_object(document, headers), "region": headers.get("x-laurel-region"), "age_ms": age_ms})

    return decode


def _object(document: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def top(board: str, limit: int, cursor: str | None, generation: str | None, at_least: AtLeast | None, *, region: str | None) -> Call[Page]:
    """A page."""
    params = read_params(generation, at_least, limit=limit, cursor=cursor)
    return Call(method="GET", path=board_path(board) + "/top", params=params, decode=read_envelope(Page), only=region)


def place(
    board: str,
    player_id: str,
    view: str,
    window: int | None,
    generation: str | None,
    at_least: AtLeast | None,
    *,
    mode: str | None = None,
    region: str | None,
) -> Call[PlayerPlace]:
    """A player's `rank`, `percentile` or `nearby` view."""
    path = f"{board_path(board)}/players/{path_segment(player_id, 'player_id')}"
    params = read_params(generation, at_least, view=view, window=window, mode=mode)
    return Call(method="GET", path=path, params=params, decode=read_envelope(PlayerPlace, player_id=player_id), only=region)


def ranks(
    board: str, players: Sequence[str], among: Among, generation: str | None, at_least: AtLeast | None, *, region: str | None
) -> Call[Places]:
    """Places of many players."""
    body = {"players": list(players), "among": among}
    params = read_params(generation, at_least)
    return Call(method="POST", path=board_path(board) + "/ranks", params=params, body=body, decode=read_envelope(Places), only=region)
