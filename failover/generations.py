"""Rounds of marks: how the lead of a board of several slices makes its generations. Pure; the shell asks and appends.

A round asks every slice's authority for a mark and ends when all have answered with a committed one. If any of them is new, they
become the next manifest. A slice that has answered is not asked again in the same round, so no slice is ever more than one mark
ahead of the newest manifest, however long another one is missing; what is published then names that slice's older mark, and the next round
follows at once. Nothing is published meanwhile: the last complete generation stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from journal.records import Mark


@dataclass(slots=True)
class Rounds:
    """The rounds of one board in one epoch of its lead's authority."""

    slices: int
    interval_ms: int
    #: Newest committed manifest, and its marks (none yet: empty).
    generation: int
    marks: tuple[Mark, ...]
    #: Lead's clocks when the round began to ask; `began_ms` is monotonic, `asked_at_ms` is what readers are told.
    began_ms: int | None = None
    asked_at_ms: int = 0
    under_way: bool = False
    _gathered: dict[int, Mark] = field(default_factory=dict)
    _asking: set[int] = field(default_factory=set)

    def due_in_ms(self, now_ms: int) -> int:
        """Until the next round may begin; 0 while one is under way."""
        if self.under_way or self.began_ms is None:
            return 0
        return max(0, self.began_ms + self.interval_ms - now_ms)

    def ask(self, now_ms: int, wall_ms: int) -> list[int]:
        """Slices to be asked now, for generation `generation + 1`; begins a round if one is due. Each must be `heard`."""
        if not self.under_way:
            if self.due_in_ms(now_ms) > 0:
                return []
            self.under_way, self.began_ms, self.asked_at_ms = True, now_ms, wall_ms
            self._gathered.clear()
        slices = [s for s in range(self.slices) if s not in self._gathered and s not in self._asking]
        self._asking.update(slices)
        return slices

    def keeps(self, slice_: int) -> int:
        """Offset of the slice's mark that the newest manifest names; 0 for none."""
        return self.marks[slice_].offset if self.marks else 0

    def heard(self, slice_: int, mark: Mark | None) -> None:
        """The answer of a slice: its committed mark; None when it gave none, and is asked again."""
        self._asking.discard(slice_)
        if mark is not None and self.under_way:
            self._gathered[slice_] = mark

    def missing(self) -> list[int]:
        """Slices that have not answered in the round under way."""
        return [s for s in range(self.slices) if s not in self._gathered] if self.under_way else []

    def complete(self) -> tuple[Mark, ...] | None:
        """The marks of the next manifest, once all have answered; the round is over then. None: wait, or nothing has changed."""
        if not self.under_way or self._asking or len(self._gathered) < self.slices:
            return None
        marks = tuple(self._gathered[s] for s in range(self.slices))
        self.under_way = False
        if marks == self.marks or (not self.marks and all(mark.count == 0 and mark.checksum == 0 for mark in marks)):
            return None
        return marks

    def made(self, generation: int, marks: tuple[Mark, ...]) -> None:
        """The manifest of `generation` is committed."""
        self.generation, self.marks = generation, marks


def totals(marks: Iterable[Mark]) -> tuple[int, int]:
    """Checksum and count of a whole board, from those of its slices: sums, the former modulo 2**64."""
    checksum = count = 0
    for mark in marks:
        checksum, count = checksum + mark.checksum, count + mark.count
    return checksum % 2**64, count
