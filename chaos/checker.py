"""What must hold of a history, whoever wrote it: nothing acknowledged is lost, doubled, moved or reordered; all regions agree.

One pass to read, then O(n log n) over the events. Every violation names the invariant of `ARCHITECTURE.md` that it breaks,
or `complete` where the history does not hold what is needed to judge it, and the lines that show it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from chaos.history import Answered, Asked, Authorities, Closed, End, FaultLine, Final, Line, Read, Result, Run, Sent

#: Outcomes that say: this submission put the event into the journal.
FRESH = {"applied", "applied_first", "not_an_improvement"}
RECORDED = FRESH | {"duplicate"}
#: Of one kind so many are kept; one fault of the product may show in every event.
_KEPT = 10


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not be. `rule` is an invariant's number, or `complete`."""

    rule: str
    what: str
    lines: list[int]

    def __str__(self) -> str:
        return f"{self.rule}: {self.what} (line{'s' if len(self.lines) > 1 else ''} {', '.join(map(str, self.lines))})"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wrong with a history, in the order of its lines, and what was counted."""

    violations: list[Violation]
    #: Violations by rule, those that are not listed included.
    broken: dict[str, int]
    acknowledged: int
    #: Events that were never answered for certain, and how many of them were in.
    unknown: int
    unknown_in: int
    #: Events that were refused each time, and so must be out.
    refused: int
    #: Acknowledged and not found again.
    lost: int
    #: Players whose sum or number of events is too large.
    doubled: int
    #: Reads with regions to fall back on that showed an older generation than the read before: allowed, and worth knowing.
    older_elsewhere: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


@dataclass(slots=True)
class _Event:
    board: str
    player: str
    amount: int
    sent_at: float
    sent_line: int
    state: Literal["open", "refused", "unknown", "acknowledged"] = "open"
    answered_at: float = 0.0
    answered_line: int = 0
    #: What was acknowledged, and what was found when it was asked again.
    result: Result | None = None
    asked: Result | None = None
    asked_line: int = 0

    def was_in(self, tail: int) -> bool:
        """Whether the event stood in the journal before events were asked again."""
        return self.asked is not None and self.asked.outcome == "duplicate" and self.asked.offset <= tail

    @property
    def place(self) -> Result | None:
        """The result with its position, as far as it is known."""
        return self.result or self.asked


@dataclass(slots=True)
class Checker:
    """Takes lines one after the other; `judge` at the end. Memory: some hundred bytes for each event and each generation."""

    _run: Run | None = None
    _events: dict[str, _Event] = field(default_factory=dict)
    #: (board, generation) -> checksum and its line, page and its line.
    _checksums: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _pages: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    #: (reader, scope, board) -> newest generation and its line.
    _newest: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    _finals: dict[int, dict[str, dict[str, tuple[Final, int]]]] = field(
        default_factory=lambda: {1: defaultdict(dict), 2: defaultdict(dict)}
    )
    _authorities: tuple[Authorities, int] | None = None
    _closed: tuple[Closed, int] | None = None
    _end: tuple[End, int] | None = None
    _last_line: int = 1
    _older_elsewhere: int = 0
    _found: list[Violation] = field(default_factory=list)
    _broken: Counter[str] = field(default_factory=Counter)
    _doubled: int = 0

    def feed(self, number: int, line: Line) -> None:
        """Take the next line."""
        self._last_line = number
        match line:
            case Run():
                self._run = line
            case Sent():
                self._sent(number, line)
            case Answered():
                self._answered(number, line)
            case Read():
                self._read(number, line)
            case Final():
                self._finals[line.round][line.board][line.region] = (line, number)
                self._generation(number, line.board, line.generation, line.checksum)
            case Asked():
                self._asked(number, line)
            case Authorities():
                self._authorities = (line, number)
            case Closed():
                self._closed = (line, number)
            case End():
                self._end = (line, number)
            case FaultLine():
                pass

    def _wrong(self, rule: str, what: str, *lines: int) -> None:
        self._broken[rule] += 1
        if self._broken[rule] <= _KEPT:
            self._found.append(Violation(rule=rule, what=what, lines=sorted(set(lines))))

    # -- while it is read -------------------------------------------------------------------------------------------

    def _sent(self, number: int, line: Sent) -> None:
        for event_id, player, amount in line.events:
            if event_id not in self._events:
                self._events[event_id] = _Event(line.board, player, amount, line.t, number)

    def _answered(self, number: int, line: Answered) -> None:
        for result in line.results:
            event = self._events.get(result.event_id)
            if event is None:
                self._wrong("complete", f"event {result.event_id} is answered and was never sent", number)
            elif result.outcome in RECORDED:
                if result.offset < 1 or result.epoch < 1:
                    self._wrong("I12", f"event {result.event_id} is acknowledged without a position", number)
                if event.result is not None:
                    self._repeated(number, event, event.result, result)
                    continue
                event.state, event.result = "acknowledged", result
                event.answered_at, event.answered_line = line.t, number
            elif result.outcome == "unknown":
                if event.state != "acknowledged":
                    event.state, event.answered_line = "unknown", number
            elif result.outcome == "refused":
                if event.state == "open":
                    event.state, event.answered_line = "refused", number
            else:
                self._wrong("I4", f"event {result.event_id} got the outcome {result.outcome}, which no event of a run can have", number)

    def _repeated(self, number: int, event: _Event, before: Result, result: Result) -> None:
        """An acknowledged event was delivered again."""
        if result.outcome != "duplicate":
            self._wrong("I4", f"event {result.event_id} was applied twice", event.answered_line, number)
        elif _saved(before) != _saved(result):
            said = f"{_saved(before)} at first and {_saved(result)} later"
            self._wrong("I1", f"the result of event {result.event_id} changed: {said}", event.answered_line, number)

    def _asked(self, number: int, line: Asked) -> None:
        for result in line.results:
            event = self._events.get(result.event_id)
            if event is None:
                self._wrong("complete", f"event {result.event_id} is asked again and was never sent", number)
            else:
                event.asked, event.asked_line = result, number

    def _read(self, number: int, line: Read) -> None:
        if line.generation < 0:
            return
        self._generation(number, line.board, line.generation, line.checksum, line.page)
        key = (line.reader, line.scope, line.board)
        newest, newest_line = self._newest.get(key, (-1, 0))
        if line.generation > newest:
            self._newest[key] = (line.generation, number)
        elif line.generation < newest and line.scope == "any":
            self._older_elsewhere += 1
        elif line.generation < newest:
            said = f"{line.reader} showed s{line.generation} of {line.board} after s{newest}"
            self._wrong("I8", f"generations went backwards: {said}", newest_line, number)

    def _generation(self, number: int, board: str, generation: int, checksum: str, page: str = "") -> None:
        for known, text, what in ((self._checksums, checksum, "checksum"), (self._pages, page, "first page")):
            if text:
                before, line = known.setdefault((board, generation), (text, number))
                if before != text:
                    self._wrong("I11", f"generation s{generation} of {board} changed: its {what} is {text} and was {before}", line, number)

    # -- at the end -------------------------------------------------------------------------------------------------

    def judge(self) -> Judgement:
        """Check what needs the whole history."""
        self._check_complete()
        self._check_authority()
        if self._closed is not None:  # else all of it would only say again that the run was cut short
            self._check_regions()
            self._check_asked()
        self._check_order()
        self._check_epochs()
        for board, policy in (self._run.boards if self._run and self._closed else {}).items():
            check: Callable[[str, str, list[_Event]], None] = self._check_sums if policy == "cumulative" else self._check_best
            players: dict[str, list[_Event]] = defaultdict(list)
            for event in self._events.values():
                if event.board == board and event.place is not None:
                    players[event.player].append(event)
            for player, events in players.items():
                check(board, player, events)
            self._check_strangers(board, players)
        every = list(self._events.values())
        open_ones = [event for event in every if event.state in ("open", "unknown")]
        return Judgement(
            violations=sorted(self._found, key=lambda violation: violation.lines[:1] or [self._last_line]),
            broken=dict(self._broken),
            acknowledged=sum(event.state == "acknowledged" for event in every),
            unknown=len(open_ones),
            unknown_in=sum(event.was_in(self._tail) for event in open_ones),
            refused=sum(event.state == "refused" for event in every),
            lost=sum(event.state == "acknowledged" and event.asked is not None and not event.was_in(self._tail) for event in every),
            doubled=self._doubled,
            older_elsewhere=self._older_elsewhere,
        )

    def _check_complete(self) -> None:
        if self._run is None:
            self._wrong("complete", "the history has no line of kind `run`", 1)
        if self._end is None or not self._end[0].complete:
            why = self._end[0].why if self._end else "it has no line of kind `end`"
            self._wrong("complete", f"the run was cut short, so it proves nothing: {why}", self._end[1] if self._end else self._last_line)
        if self._closed is None:
            self._wrong("complete", "the run was never closed: no line says that all faults were put back", self._last_line)
        elif not self._closed[0].agreed:
            self._wrong("I10", f"the regions did not agree after the faults: {self._closed[0].why}", self._closed[1])

    def _check_authority(self) -> None:
        if self._authorities is None:
            self._wrong("complete", "no line says who owns the shard in the end", self._last_line)
            return
        line, number = self._authorities
        serving = [region for region, (serves, _, _) in line.said.items() if serves]
        if len(serving) != 1:
            who = " and ".join(serving) or "no region"
            self._wrong("I10", f"{who} serve{'' if len(serving) > 1 else 's'} writes in the end, and exactly one must", number)
        known = {(epoch, owner) for _, epoch, owner in line.said.values()}
        if len(known) > 1 or (serving and any(owner not in serving for _, owner in known)):
            self._wrong("I10", f"the regions name different owners: {line.said}", number)
        if self._run and set(line.said) != set(self._run.regions):
            self._wrong("complete", "not all regions were asked who owns the shard", number)

    def _check_regions(self) -> None:
        if self._run is None:
            return
        for number, boards in self._finals.items():
            for board in self._run.boards:
                shown = boards.get(board, {})
                missing = [region for region in self._run.regions if region not in shown]
                if missing:
                    said = f"{board} was not read in {', '.join(missing)} in round {number}"
                    self._wrong("complete", said, self._last_line)
                    continue
                (first, at), *others = shown.values()
                for other, line in others:
                    for what in ("generation", "checksum", "total", "rows"):
                        if getattr(first, what) != getattr(other, what):
                            said = f"{what} of {board} differs between {first.region} and {other.region} in round {number}"
                            self._wrong("I8", said, at, line)
                            break

    def _check_asked(self) -> None:
        """Every event again: what was acknowledged is there, at its place; what was refused is not."""
        for event_id, event in self._events.items():
            asked, line = event.asked, event.asked_line
            if asked is None or asked.outcome not in RECORDED:
                said = "was never asked again" if asked is None else f"got {asked.outcome} when it was asked again"
                self._wrong("complete", f"event {event_id} {said}", event.sent_line, *([line] if line else []))
            elif event.state == "acknowledged" and event.result is not None:
                before = event.result
                if not event.was_in(self._tail):
                    self._wrong("I1", f"event {event_id} was acknowledged and is lost", event.answered_line, line)
                elif _saved(before) != _saved(asked):
                    said = f"{_saved(before)} at first and {_saved(asked)} in the end"
                    self._wrong("I1", f"the result of event {event_id} changed: {said}", event.answered_line, line)
            elif event.state == "refused" and event.was_in(self._tail):
                self._wrong("I12", f"event {event_id} was refused as not appended, and is there", event.answered_line, line)

    def _check_order(self) -> None:
        """I9: what was sent after a fresh acknowledgement has a higher place."""
        fresh = sorted(
            (
                (event.answered_at, event.result.epoch, event.result.offset, event.answered_line, event_id)
                for event_id, event in self._events.items()
                if event.state == "acknowledged" and event.result is not None and event.result.outcome in FRESH
            ),
        )
        later = sorted(
            (event.sent_at, place.epoch, place.offset, event.sent_line, event_id)
            for event_id, event in self._events.items()
            if (place := event.place) is not None and (event.state == "acknowledged" or event.was_in(self._tail))
        )
        highest, upto = (0, 0, 0, ""), 0
        for sent_at, epoch, offset, line, event_id in later:
            while upto < len(fresh) and fresh[upto][0] < sent_at:
                highest = max(highest, fresh[upto][1:])
                upto += 1
            if upto and (offset <= highest[1] or epoch < highest[0]):
                said = (
                    f"{highest[3]} was acknowledged at {highest[0]}-{highest[1]} before {event_id} was sent, which is at {epoch}-{offset}"
                )
                self._wrong("I9", said, highest[2], line)

    def _check_epochs(self) -> None:
        """I3: along the journal epochs never decrease, and one offset has one epoch."""
        placed = sorted(
            (place.offset, place.epoch, event.answered_line or event.asked_line, event_id)
            for event_id, event in self._events.items()
            if (place := event.place) is not None and place.outcome in RECORDED
        )
        before: tuple[int, int, int, str] | None = None
        for here in placed:
            if before is not None and (here[1] < before[1] or (here[0] == before[0] and here[1] != before[1])):
                self._wrong("I3", f"{before[3]} is at {before[1]}-{before[0]} and {here[3]} at {here[1]}-{here[0]}", before[2], here[2])
            before = here

    @property
    def _tail(self) -> int:
        return self._closed[0].tail if self._closed else 0

    def _counted(self, number: int, events: list[_Event]) -> list[_Event]:
        """Events that a board of that round must show."""
        return [event for event in events if number == 2 or event.was_in(self._tail)]

    def _check_sums(self, board: str, player: str, events: list[_Event]) -> None:
        """Each event added its delta once, one after the other: versions 1, 2, 3... and values that are running sums."""
        chain = sorted(events, key=lambda event: (event.place.version or 0) if event.place else 0)
        value, last = 0, (0, 0)
        for version, event in enumerate(chain, 1):
            place = event.place
            if place is None:
                continue
            value += event.amount
            if place.version != version or place.value != value or (place.offset, place.epoch) < last:
                said = f"version {place.version} with value {place.value} stands where version {version} with {value} must"
                lines = [line for line in (event.answered_line, event.asked_line) if line]
                self._wrong("I4", f"{player} on {board}: {said}", *lines)
                break
            last = (place.offset, place.epoch)
        for number in (1, 2):
            counted = self._counted(number, events)
            self._row(number, board, player, sum(event.amount for event in counted), len(counted), counted)

    def _check_best(self, board: str, player: str, events: list[_Event]) -> None:
        for number in (1, 2):
            counted = self._counted(number, events)
            self._row(number, board, player, max((event.amount for event in counted), default=None), None, counted)

    def _row(self, number: int, board: str, player: str, value: int | None, version: int | None, counted: list[_Event]) -> None:
        for final, line in self._finals[number].get(board, {}).values():
            row = final.rows.get(player)
            wanted = None if not counted else (value, version)
            shown = None if row is None else (row[0], None if version is None else row[1])
            if shown != wanted:
                more = row is not None and (not counted or row[0] > (value or 0) or (version is not None and row[1] > version))
                self._doubled += more
                what = "counts more than once, or something never sent" if more else "misses events"
                said = f"{player} on {board} {what}: {final.region} shows {shown} and the events give {wanted} in round {number}"
                self._wrong("I4" if more else "I1", said, line, *([max(event.asked_line for event in counted)] if counted else []))
                return

    def _check_strangers(self, board: str, players: dict[str, list[_Event]]) -> None:
        for shown in self._finals.values():
            for final, line in shown.get(board, {}).values():
                if strangers := final.rows.keys() - players.keys():
                    self._wrong("I4", f"{board} has {sorted(strangers)[0]}, for whom nothing was ever recorded", line)


def _saved(result: Result) -> tuple[str, int | None, int | None]:
    """(position, value, version): what every later answer about the event repeats."""
    return f"{result.epoch}-{result.offset}", result.value, result.version


def check(lines: Iterable[tuple[int, Line]]) -> Judgement:
    """Judge a whole history."""
    checker = Checker()
    for number, line in lines:
        checker.feed(number, line)
    return checker.judge()


def sent_events(lines: Iterable[tuple[int, Line]]) -> Iterator[tuple[str, str, str, int]]:
    """(board, event id, player, amount) of each event of a history, once, as first sent."""
    seen: set[str] = set()
    for _, line in lines:
        if isinstance(line, Sent):
            for event_id, player, amount in line.events:
                if event_id not in seen:
                    seen.add(event_id)
                    yield line.board, event_id, player, amount
