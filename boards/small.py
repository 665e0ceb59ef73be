"""The rows of a small board, as tuples in order: a change of one row costs microseconds, where arrays cost some for each call.

Rows lie in pieces, and so do the same rows by slot, so that the next generation shares all pieces but those that changed. A
piece is a tuple, which the garbage collector stops looking at. A player takes some 250 bytes with the id, so `boards.index`
turns to columns when a board grows.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import getsizeof
from typing import Final

import numpy as np

from boards.model import VALUE_MAX, VALUE_MIN
from boards.players import Ids
from boards.rows import Ints, Order
from boards.views import Found, Key, Keys, Placed, View

#: Key, second key (0 without), tie moment, player id, achieved moment, version: sorts into display order, for text sorts as its UTF-8 does.
Row = tuple[int, int, int, str, int, int]
#: The begin of a row, to search with.
Prefix = tuple[int, int] | tuple[int, int, int, str]
Piece = tuple[Row, ...]

#: Rows of a piece that is made new, as a power of two; one of twice as many is divided.
_PIECE_BITS: Final = 7
#: Slots of departed players that are kept beyond the number of present ones.
_SPARE_SLOTS: Final = 64


def check_id(player_id: str) -> None:
    """Raises ValueError as `boards.players.words_of` does."""
    player_id.encode()
    if "\0" in player_id:
        raise ValueError("player ids may not hold the character U+0000")


def check_number(number: int) -> None:
    """Raises OverflowError outside the signed 64-bit range."""
    if not VALUE_MIN <= number <= VALUE_MAX:
        raise OverflowError(f"numbers must be from {VALUE_MIN} to {VALUE_MAX}, got {number}")


def prefix_of(order: Order, value: int, second: int) -> tuple[int, int]:
    """Key and second key. Raises OverflowError as `check_number`."""
    check_number(value)
    key = ~value if order.direction == "higher" else value
    if order.secondary is None:
        return key, 0
    check_number(second)
    return key, ~second if order.secondary == "higher" else second


class Small:
    """One generation of rows, never changed but for the slots, which others share: a player whose slot came later is absent."""

    __slots__ = ("_by_slot", "_pieces", "_slots", "total")

    #: Players in it.
    total: int
    #: Rows in display order; no piece is empty.
    _pieces: tuple[Piece, ...]
    #: The same rows, and None for those who left, by slot: 2**_PIECE_BITS a piece, the last one shorter.
    _by_slot: tuple[tuple[Row | None, ...], ...]
    #: Slot by player, shared with generations before and after: grows only.
    _slots: dict[str, int]

    def __init__(self, pieces: tuple[Piece, ...], by_slot: tuple[tuple[Row | None, ...], ...], slots: dict[str, int], total: int) -> None:
        self._pieces, self._by_slot, self._slots, self.total = pieces, by_slot, slots, total

    @staticmethod
    def of(rows: Iterable[Row]) -> "Small":
        """A generation with slots of its own, from rows of distinct players in any order."""
        ordered = sorted(rows)
        return Small(_cut(ordered), _cut(ordered), {row[3]: slot for slot, row in enumerate(ordered)}, len(ordered))

    @property
    def nbytes(self) -> int:
        """Of rows, ids and slots, about; what generations share is counted in each."""
        rows = sum(getsizeof(row) + sum(map(getsizeof, row)) for row in self)
        return rows + getsizeof(self._slots) + sum(map(getsizeof, (*self._pieces, *self._by_slot)))

    def __iter__(self) -> Iterator[Row]:
        """In display order."""
        return chain.from_iterable(self._pieces)

    def find(self, player_id: str) -> Row | None:
        """The player's row. Raises ValueError if the id cannot be one."""
        slot = self._slots.get(player_id)
        if slot is None:
            check_id(player_id)
            return None
        number, at = slot >> _PIECE_BITS, slot & ((1 << _PIECE_BITS) - 1)
        if number >= len(self._by_slot) or at >= len(self._by_slot[number]):
            return None
        return self._by_slot[number][at]

    def ahead(self, wanted: Row | Prefix) -> int:
        """How many rows are strictly before a row, or the begin of one."""
        pieces = self._pieces
        number = bisect_left(pieces, (wanted,)) - 1
        return sum(map(len, pieces[:number])) + bisect_left(pieces[number], wanted) if number >= 0 else 0

    def between(self, start: int, stop: int) -> list[Row]:
        """The rows from position `start` (from 0) up to `stop`, as far as there are any."""
        out: list[Row] = []
        for piece in self._pieces:
            if stop <= 0:
                break
            if start < len(piece):
                out += piece[max(0, start) : stop]
            start, stop = start - len(piece), stop - len(piece)
        return out

    def changed(self, rows: Iterable[Row], leaving: Iterable[str]) -> "Small":
        """The next generation, this very one if everything is so already.

        `rows` are new ones of distinct players of proper ids, `leaving` are players that need not be here, none of them in `rows`.
        """
        gone = [row for row in map(self.find, dict.fromkeys(leaving)) if row is not None]
        added: list[Row] = []
        for row in rows:
            former = self.find(row[3])
            if former != row:
                added.append(row)
                if former is not None:
                    gone.append(former)
        if not gone and not added:
            return self
        total = self.total + len(added) - len(gone)
        departed = len(self._slots) > 2 * total + _SPARE_SLOTS
        thin = len(self._pieces) > 8 + (4 * self.total >> _PIECE_BITS)
        if departed or thin or len(gone) + len(added) > 8 + (self.total >> 4):
            return self._made_anew(gone, added, departed)
        pieces = list(self._pieces)
        for row in gone:
            _take_out(pieces, row)
        for row in added:
            _put_in(pieces, row)
        return Small(tuple(pieces), self._slotted(gone, added), self._slots, total)

    def _made_anew(self, gone: Sequence[Row], added: Sequence[Row], departed: bool) -> "Small":
        vanished = {row[3] for row in gone}
        rows = [row for row in self if row[3] not in vanished]
        rows += added
        if departed or not self._slots:
            return Small.of(rows)
        rows.sort()
        return Small(_cut(rows), self._slotted(gone, added), self._slots, len(rows))

    def _slotted(self, gone: Sequence[Row], added: Sequence[Row]) -> tuple[tuple[Row | None, ...], ...]:
        """The rows by slot after a change; whoever is new gets a slot."""
        slots, copied = self._slots, dict[int, list[Row | None]]()
        by_slot = list(self._by_slot)
        for row, now in chain(((row, None) for row in gone), ((row, row) for row in added)):
            slot = slots.get(row[3])
            if slot is None:
                slot = slots[row[3]] = len(slots)
            number, at = slot >> _PIECE_BITS, slot & ((1 << _PIECE_BITS) - 1)
            piece = copied.get(number)
            if piece is None:
                piece = copied[number] = list(by_slot[number]) if number < len(by_slot) else []
                if number == len(by_slot):
                    by_slot.append(())
            if at == len(piece):
                piece.append(now)
            else:
                piece[at] = now
        for number, piece in copied.items():
            by_slot[number] = tuple(piece)
        return tuple(by_slot)


def _cut(rows: Sequence[Row]) -> tuple[Piece, ...]:
    return tuple(tuple(rows[start : start + (1 << _PIECE_BITS)]) for start in range(0, len(rows), 1 << _PIECE_BITS))


def _take_out(pieces: list[Piece], row: Row) -> None:
    number = bisect_left(pieces, (row,))
    # The pieces before this one begin before the row; this one may begin with it.
    if number == len(pieces) or pieces[number][0] != row:
        number -= 1
    piece = pieces[number]
    if len(piece) == 1:
        del pieces[number]
    else:
        at = bisect_left(piece, row)
        pieces[number] = piece[:at] + piece[at + 1 :]


def _put_in(pieces: list[Piece], row: Row) -> None:
    if not pieces:
        pieces.append((row,))
        return
    number = max(0, bisect_left(pieces, (row,)) - 1)
    piece = pieces[number]
    at = bisect_left(piece, row)
    piece = (*piece[:at], row, *piece[at:])
    half = 1 << _PIECE_BITS
    pieces[number : number + 1] = [piece] if len(piece) <= 2 * half else [piece[:half], piece[half:]]


class SmallView(View):
    """A view of a small board: the same questions as `View`, with the same answers. A lookup is some binary searches of tuples."""

    __slots__ = ("_firsts", "rows")

    #: What it shows.
    rows: Small

    def __init__(self, rows: Small, order: Order) -> None:
        # There is no run beneath: whatever of `View` reads one is answered here instead.
        self.rows, self.order, self.total = rows, order, rows.total
        self._firsts: list[tuple[int, int]] | None = None

    @property
    def nbytes(self) -> int:
        """See `Small.nbytes`."""
        return self.rows.nbytes

    def page(self, offset: int, limit: int) -> list[Placed]:
        """See `View.page`."""
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit must not be negative, got {offset} and {limit}")
        rows = self.rows.between(offset, offset + limit)
        return self._placed(rows, offset, self._rank(offset, rows[0])) if rows else []

    def place(self, player_id: str) -> Placed | None:
        """See `View.place`."""
        row = self.rows.find(player_id)
        if row is None:
            return None
        at = self.rows.ahead(row)
        return self._answer(at + 1, self._rank(at, row), row)

    def places(self, player_ids: Sequence[str]) -> list[Placed | None]:
        """See `View.places`."""
        return [self.place(player_id) for player_id in player_ids]

    def window(self, player_id: str, radius: int) -> list[Placed]:
        """See `View.window`."""
        if radius < 0:
            raise ValueError(f"radius must not be negative, got {radius}")
        row = self.rows.find(player_id)
        if row is None:
            return []
        at = self.rows.ahead(row)
        start = max(0, at - radius)
        return self.page(start, at + radius + 1 - start)

    def subset(self, player_ids: Sequence[str]) -> list[Placed]:
        """See `View.subset`."""
        found = map(self.rows.find, dict.fromkeys(player_ids))
        return self._placed(sorted(row for row in found if row is not None), 0, 1)

    def tally(self, value: Ints, second: Ints) -> tuple[Ints, Ints]:
        """See `View.tally`."""
        better, through = [], []
        for one, other in zip(value.tolist(), second.tolist(), strict=True):
            key, second_key = prefix_of(self.order, one, other)
            better.append(self.rows.ahead((key, second_key)))
            through.append(self.rows.ahead((key, second_key + 1)))
        return np.array(better, dtype=np.int64), np.array(through, dtype=np.int64)

    def counts(self, keys: Sequence[Key]) -> tuple[Ints, Ints]:
        """See `View.counts`."""
        better, ahead = [], []
        for value, second, tie_ms, player_id in keys:
            prefix = prefix_of(self.order, value, second)
            check_number(tie_ms)
            check_id(player_id)
            better.append(self.rows.ahead(prefix))
            ahead.append(self.rows.ahead((*prefix, tie_ms, player_id)))
        return np.array(better, dtype=np.int64), np.array(ahead, dtype=np.int64)

    def count_columns(self, keys: Keys) -> tuple[Ints, Ints]:
        """See `View.counts`."""
        columns = (keys.value.tolist(), keys.second.tolist(), keys.tie_ms.tolist(), keys.ids.texts)
        return self.counts(list(map(Key, *columns)))

    def find(self, ids: Ids) -> Found:
        """See `View.find`."""
        out = []
        for player_id in ids.texts:
            row = self.rows.find(player_id)
            if row is None:
                out.append((-1, 0, 0, 0, 0, 0))
            else:
                placed = self._answer(0, 0, row)
                out.append((self.rows.ahead(row), placed.value, placed.second, placed.tie_ms, placed.achieved_ms, placed.version))
        return Found(*np.array(out, dtype=np.int64).reshape(-1, 6).T)

    def sample(self, count: int) -> list[tuple[int, int]]:
        """See `View.sample`."""
        if not self.total:
            return []
        rows = list(self.rows)
        at = np.unique(np.linspace(0, self.total - 1, num=max(2, count)).astype(np.int64)).tolist()
        return [(placed.value, placed.second) for placed in (self._answer(0, 0, rows[i]) for i in at)]

    def _ahead(self, key: Key) -> tuple[int, int]:
        prefix = prefix_of(self.order, key.value, key.second)
        check_number(key.tie_ms)
        row = self.rows.find(key.player_id)
        wanted = (*prefix, key.tie_ms, key.player_id)
        return self.rows.ahead(wanted), int(row is not None and row[:4] == wanted)

    def _rank(self, at: int, row: Row) -> int:
        """Of the row at a position from 0."""
        ranking = self.order.ranking
        if ranking == "unique":
            return at + 1
        if ranking == "competition":
            return self.rows.ahead(row[:2]) + 1
        if self._firsts is None:
            # Once a view, O(n): the distinct values. Two readers may both do it, with the same result.
            self._firsts = list(dict.fromkeys(each[:2] for each in self.rows))
        return bisect_left(self._firsts, row[:2]) + 1

    def _placed(self, rows: Sequence[Row], at: int, rank: int) -> list[Placed]:
        """Rows that follow one another, of which the first is at a position from 0 and has this rank."""
        out: list[Placed] = []
        ranking, former = self.order.ranking, rows[0][:2] if rows else None
        for position, row in enumerate(rows, start=at + 1):
            if ranking == "unique":
                rank = position
            elif row[:2] != former:
                rank, former = position if ranking == "competition" else rank + 1, row[:2]
            out.append(self._answer(position, rank, row))
        return out

    def _answer(self, position: int, rank: int, row: Row) -> Placed:
        key, second, tie, player_id, achieved, version = row
        value = ~key if self.order.direction == "higher" else key
        if self.order.secondary == "higher":
            second = ~second
        return Placed(position, rank, player_id, value, achieved, version, second, tie)
