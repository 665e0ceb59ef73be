"""Generations of boards as a read replica serves them: made of views that slices have frozen, in order of number.

A series is one life (incarnation) of a board, over all its layouts. Each lead's journal proposes generations; one is made
once every slice of its layout has frozen the mark that it names, and each mark says what the slice says (I8, I11). A
generation whose marks are not all here yet waits, and so do those behind it: never a mix, never out of order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.boards_view import Frozen, Proposal, ReplicaMismatch, SliceFold, Turn
from actors.messages import BoardInfo
from boards.index import View
from boards.merging import MergedView
from boards.model import Layout
from journal.ports import Position

#: The newest so many generations are kept whatever their age, as long as a replica has room: see `RegionFold.expiring`.
COUNT = 60
#: None of them goes for want of room before it was replaced for so many times as long as its board retains the others.
SPARE_TIMES = 5


class BadGeneration(ReplicaMismatch):
    """What a lead's journal says of a generation is not what the slices of that layout say."""

    def __init__(self, detail: str, layout: int) -> None:
        super().__init__(detail, layout)
        self.layout = layout

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(slots=True, eq=False)
class Generation:
    """One published view. What is said here never changes, but for `replaced_ms`."""

    proposal: Proposal
    #: Shard -> place of its slice's mark, in the order of the layout; of `s0`, the slices' creation.
    boundaries: dict[str, Position]
    view: View | MergedView
    #: Replica clock, monotonic: when the next generation replaced it (None while it is the newest).
    replaced_ms: int | None = None
    #: Encoded answers and estimates that are asked for again and again; made by `actors.answers`.
    kept: dict[str, object] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """`s17` is 17; 0 is the empty board."""
        return self.proposal.number

    @property
    def epoch(self) -> int:
        """Of the entry that published it."""
        return self.proposal.at.epoch

    @property
    def published_ms(self) -> int:
        """By the clock of the authority that published it."""
        return self.proposal.published_ms

    @property
    def checksum(self) -> int:
        """Over all rows, modulo 2**64."""
        return self.proposal.checksum

    @property
    def count(self) -> int:
        """Active rows."""
        return self.proposal.count


class BoardSeries:
    """One life of a board in this region. What it knows follows from its slices: no fact is kept twice."""

    __slots__ = ("_layout", "board_id", "created_ms", "generations", "incarnation", "past", "rules", "slices")

    def __init__(self, first: SliceFold) -> None:
        created = first.created
        self.board_id, self.incarnation, self.rules = created.board_id, created.incarnation, created.rules
        self.created_ms = created.at_ms
        #: By number of the layout, then by slice.
        self.slices: dict[int, dict[int, SliceFold]] = {}
        #: Retained generations by number, ascending; the last is the newest.
        self.generations: dict[int, Generation] = {}
        #: Shards of layouts that it has left: whatever they acknowledged is in every later generation.
        self.past: set[str] = set()
        self._layout: Layout | None = None

    # -- what slices say --------------------------------------------------------------------------------------

    def put(self, fold: SliceFold) -> None:
        """A slice of this board, new or folded anew."""
        self.slices.setdefault(fold.layout.number, {})[fold.created.slice] = fold
        self.created_ms = min(self.created_ms, fold.created.at_ms)
        self.past |= set(fold.layout.shards)
        self.reconsider()

    def drop(self, fold: SliceFold) -> None:
        """A slice that is no longer here."""
        here = self.slices.get(fold.layout.number, {})
        if here.get(fold.created.slice) is fold:
            del here[fold.created.slice]
            if not here:
                del self.slices[fold.layout.number]
            self.reconsider()

    def reconsider(self) -> None:
        """A slice has come, gone, opened or switched."""
        self._layout = None

    @property
    def layout(self) -> Layout:
        """Where events go: the newest layout whose slices are open, or that the lead has switched to."""
        if self._layout is not None:
            return self._layout
        found: Layout | None = None
        for here in self.slices.values():
            for fold in here.values():
                for layout in (None if fold.importing else fold.layout, fold.switched):
                    if layout is not None and (found is None or layout.number > found.number):
                        found = layout
        self._layout = found = found or next(iter(next(iter(self.slices.values())).values())).layout
        return found

    @property
    def moving(self) -> Layout | None:
        """The layout that it is on its way to."""
        lead = self.lead(self.layout.number)
        return lead.moving if lead is not None else None

    def lead(self, layout: int) -> SliceFold | None:
        """Slice 0 of a layout, if it is here."""
        return self.slices.get(layout, {}).get(0)

    def whole(self, layout: Layout) -> list[SliceFold] | None:
        """All slices of a layout in order; None while one is missing or not to be trusted."""
        here = self.slices.get(layout.number, {})
        folds = [here[i] for i in range(len(layout.shards)) if i in here and not here[i].broken]
        return folds if len(folds) == len(layout.shards) else None

    # -- generations ------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Generation | None:
        """The newest complete generation; None before the empty board is complete here."""
        return self.generations[next(reversed(self.generations))] if self.generations else None

    @property
    def missed(self) -> bool:
        """There was a generation after the newest one here, and the one to be served is not here yet."""
        newest, lead = self.newest, self.lead(self.layout.number)
        return newest is None or (lead is not None and newest.number <= lead.missed)

    @property
    def waits(self) -> bool:
        """Something may be made of it when another shard has been folded further."""
        return not self.generations or any((lead := self.lead(number)) is not None and lead.proposals for number in self.slices)

    def awaited(self, applied: Mapping[str, int]) -> dict[str, int]:
        """Shard -> offset of the mark in it that some next proposal names and that is not read yet."""
        found: dict[str, int] = {}
        for here in self.slices.values():
            lead = here.get(0)
            if lead is None or not lead.proposals or lead.proposals[0].layout != lead.layout.number:
                continue
            for shard, mark in zip(lead.layout.shards, lead.proposals[0].marks, strict=False):
                if applied.get(shard, mark.offset) < mark.offset:
                    found[shard] = min(mark.offset, found.get(shard, mark.offset))
        return found

    def advance(self, turn: Turn, applied: Mapping[str, int], *, settled: bool) -> bool:
        """Make what can be made, in order of number; whether there is something new.

        `applied`: shard -> offset folded so far. `settled`: every shard was read to its end, or is being read again.

        Raises:
            BadGeneration: a proposal does not fit the slices. It is gone from the lead's queue and was never shown.
        """
        made = not self.generations and self._begin()
        while (lead := self._proposing(settled)) is not None:
            proposal, folds = lead.proposals[0], self.whole(lead.layout)
            if folds is None:
                break
            try:
                frozen = _named(proposal, folds, applied)
            except BadGeneration:
                lead.proposals.popleft()
                if lead.proposals:  # superseded: what comes is judged by itself
                    self._miss(lead, proposal)
                    continue
                raise
            if frozen is None:
                break
            lead.proposals.popleft()
            if not frozen:
                self._miss(lead, proposal)
            elif self._is_next(proposal):
                boundaries = {fold.shard: Position(mark.epoch, mark.offset) for fold, mark in zip(folds, proposal.marks, strict=True)}
                views = [one.view for one in frozen]
                self._add(Generation(proposal, boundaries, views[0] if len(views) == 1 else MergedView(views)), turn)
                made = True
        if len(self.slices) > 1:
            self._tidy()
        return made

    def _tidy(self) -> None:
        """Let slices go that left their shards, once generations of a later layout are made."""
        begun = self.newest.proposal.layout if self.newest is not None else 0
        for number, here in list(self.slices.items()):
            if number < begun and all(fold.left for fold in here.values()):
                del self.slices[number]
                self.reconsider()

    def _begin(self) -> bool:
        """`s0`, the empty board, once all slices it was created with are here."""
        first = min((fold for here in self.slices.values() for fold in here.values()), key=lambda fold: fold.layout.number)
        folds = self.whole(first.layout)
        if folds is None or first.created.importing:
            return False
        lead, views = folds[0], [fold.empty for fold in folds]
        proposal = Proposal(0, lead.place, lead.created.at_ms, lead.layout.number, (), 0, 0)
        boundaries = {fold.shard: fold.place for fold in folds}
        self.generations[0] = Generation(proposal, boundaries, views[0] if len(views) == 1 else MergedView(views))
        return True

    def _proposing(self, settled: bool) -> SliceFold | None:
        """The lead whose proposal is next: a layout's turn comes when those before it can propose no more."""
        newest = self.newest
        begun = newest.proposal.layout if newest is not None and newest.number else 0
        follows = False
        for number in sorted(self.slices):
            lead = self.lead(number)
            if lead is None or lead.broken:
                continue
            left = lead.switched is not None
            if number < begun or (left and settled and self.whole(lead.layout) is None):
                lead.proposals.clear()
            if lead.proposals:
                return lead if number in (1, begun) or follows or settled else None
            if not left and not lead.importing:
                return None
            follows = follows or left
        return None

    def _miss(self, lead: SliceFold, proposal: Proposal) -> None:
        """A generation is passed over: it was superseded. Where none was made yet, the one to be served is still to come."""
        if self.newest is None or not self.newest.number:
            lead.missed = max(lead.missed, proposal.number)

    def _is_next(self, proposal: Proposal) -> bool:
        """Whether it comes after the newest; one that is here already has to be the same."""
        known = self.generations.get(proposal.number)
        if known is not None and known.proposal != proposal:
            raise BadGeneration(f"s{proposal.number} is at {proposal.at}, and was at {known.proposal.at}", proposal.layout)
        newest = self.newest
        return newest is None or proposal.number > newest.number

    def _add(self, generation: Generation, turn: Turn) -> None:
        newest = self.newest
        if newest is not None:
            newest.replaced_ms = turn.now_ms
            newest.kept.pop("top", None)  # the first page is kept for the newest one only
        self.generations[generation.number] = generation
        self.expire(turn.now_ms)

    def expire(self, now_ms: int) -> None:
        """Drop generations that were replaced longer ago than the board retains them, but for the newest `COUNT`."""
        more = len(self.generations) - COUNT
        if more > 0:
            for number, _ in self._past(now_ms - self.rules.retention_ms)[:more]:
                del self.generations[number]

    def spare(self, now_ms: int) -> list[tuple[int, int]]:
        """(number, since when it is replaced) of those that are kept for their number alone, and long since; the oldest first."""
        return self._past(now_ms - SPARE_TIMES * self.rules.retention_ms)

    def _past(self, replaced_ms: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for number, generation in self.generations.items():
            if generation.replaced_ms is None or generation.replaced_ms >= replaced_ms:
                break
            found.append((number, generation.replaced_ms))
        return found

    def suspend(self) -> None:
        """A slice is to be folded anew: what was made becomes proposals again, and is made again once that slice is back."""
        newest, leading = self.newest, self.lead(self.layout.number)
        if newest is not None and leading is not None:
            leading.missed = newest.number - 1
        for generation in reversed(self.generations.values()):
            proposal = generation.proposal
            lead = self.lead(proposal.layout)
            if lead is None or lead.broken or not proposal.marks:
                continue
            lead.proposals.appendleft(proposal)
            for index, mark in enumerate(proposal.marks):
                fold = self.slices[proposal.layout].get(index)
                if fold is not None:
                    fold.keep_for((mark.offset,))
        self.generations = {}

    # -- what gateways are told -------------------------------------------------------------------------------

    def info(self, home: str) -> BoardInfo:
        """The board as a gateway is told it; `home` is that of the leading shard."""
        newest, layout = self.newest, self.layout
        lead = self.lead(layout.number)
        return BoardInfo(
            board_id=self.board_id,
            number=lead.number if lead is not None else 0,
            incarnation=self.incarnation,
            shard=layout.lead,
            home=home,
            rules=self.rules,
            generation=newest.number if newest is not None else 0,
            count=newest.count if newest is not None else 0,
            created_ms=self.created_ms,
            layout=None if lead is not None and lead.created.layout is None else layout,
            moving=self.moving,
        )

    def status(self, wall_ms: int) -> dict[str, Any]:
        """What is held of it, for people. Call it only where there is a generation."""
        newest, layout = self.newest, self.layout
        if newest is None:
            return {}
        said: dict[str, Any] = {
            "generation": newest.number,
            "checksum": f"{newest.checksum:016x}",
            "retained": len(self.generations),
        }
        if len(layout.shards) > 1 or self.moving is not None:
            folds = [fold for _, fold in sorted(self.slices.get(layout.number, {}).items())]
            said["age_ms"] = max(0, wall_ms - newest.published_ms)
            said["slices"] = {fold.shard: _slice_status(fold, newest, wall_ms) for fold in folds}
            lead = self.lead(layout.number)
            said["waiting"] = [proposal.number for proposal in lead.proposals][:10] if lead is not None else []
            said["moving"] = None if self.moving is None else list(self.moving.shards)
        return said


def _slice_status(fold: SliceFold, newest: Generation, wall_ms: int) -> dict[str, Any]:
    """How far a slice is frozen, and since when its oldest mark waits to be named by a manifest (None: none does)."""
    boundary = newest.boundaries.get(fold.shard)
    after = 0 if boundary is None else boundary.offset
    waiting = next((frozen for offset, frozen in fold.frozen.items() if offset > after), None)
    return {
        "marked": fold.marked,
        "named": after,
        "frozen": len(fold.frozen),
        "unnamed": None if waiting is None else {"offset": waiting.mark.offset, "age_ms": max(0, wall_ms - waiting.marked_ms)},
    }


def _named(proposal: Proposal, folds: list[SliceFold], applied: Mapping[str, int]) -> list[Frozen] | None:
    """The views that the marks name; None while one is not here yet, [] when one is let go already.

    Raises:
        BadGeneration: a slice has no such mark, or another one there.
    """
    if not proposal.adds_up or proposal.layout != folds[0].layout.number or len(proposal.marks) != len(folds):
        raise BadGeneration(
            f"s{proposal.number} does not have one mark for each slice of its layout, or not their sums", folds[0].layout.number
        )
    found: list[Frozen] = []
    here = True
    for mark, fold in zip(proposal.marks, folds, strict=True):
        frozen = fold.frozen.get(mark.offset)
        if frozen is not None:
            if frozen.mark != mark:
                raise BadGeneration(f"s{proposal.number} names {mark} in {fold.shard}, where there is {frozen.mark}", fold.layout.number)
            found.append(frozen)
        elif mark.offset > fold.forgotten:
            if applied[fold.shard] >= mark.offset:
                raise BadGeneration(f"s{proposal.number} names {mark.offset} in {fold.shard}, where no mark is", fold.layout.number)
            here = False
    if not here:
        return None
    return found if len(found) == len(folds) else []
