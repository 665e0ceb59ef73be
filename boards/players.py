"""The ids behind the slots of a rank index, without an object for each: some 25 bytes a player beside the id itself.

An id is kept as words: its UTF-8 bytes, padded with zero bytes to a multiple of 8 and read as big-endian numbers, so that
words compare as ids do. The words of all ids lie one behind the other; `starts` says where each slot's begin. A table with
open addressing and linear probing, of 32-bit entries, finds the slot of an id. A table that became too full is replaced by
one of twice the size, which is filled bit by bit by the calls that admit: until it holds all, both are asked.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.signedinteger[Any]]

#: The slot of an id that nobody registered: larger than any real slot.
NOWHERE: Final = 2**31 - 1

#: Numbers a chunk holds, as a power of two.
_CHUNK_BITS: Final = 22
#: A table is replaced when more than this share of its entries is taken, in sixteenths.
_FULL_16THS: Final = 12
#: Slots moved to the larger table by a call that admits, besides twice as many as it admits itself.
_MOVED_AT_LEAST: Final = 16_384
#: Batches of ids are worked on in pieces of this many.
_PIECE: Final = 65_536

_SEED: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xD6E8FEB86659FD93
_LAST: Final = 0xCA5A826395121157
_MASK64: Final = 2**64 - 1

_NO_ZERO: Final = "player ids may not hold the character U+0000"


class Ids:
    """Ids to look up, in the forms that this takes: each is made once, when it is first wanted.

    Both raise ValueError if an id holds a zero character, or is no Unicode text.
    """

    __slots__ = ("_joined", "_words", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._joined: bytes | None = None
        self._words: Words | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def joined(self) -> bytes:
        """UTF-8, with a zero byte between any two."""
        if self._joined is None:
            joined = "\0".join(self.texts).encode()
            if joined.count(b"\0") != max(0, len(self.texts) - 1):
                raise ValueError(_NO_ZERO)
            self._joined = joined
        return self._joined

    @property
    def words(self) -> Words:
        """One row each, padded with zero words to the longest."""
        if self._words is None:
            self._words = words_of(self.texts)
        return self._words


def words_of(ids: Sequence[str]) -> Words:
    """See `Ids.words`."""
    if not ids:
        return np.empty((0, 1), dtype=np.uint64)
    raw = "\0".join(ids).encode().split(b"\0")
    if len(raw) != len(ids):
        raise ValueError(_NO_ZERO)
    width = max(1, (max(map(len, raw)) + 7) >> 3)
    return np.array(raw, dtype=f"S{8 * width}").view(">u8").reshape(len(raw), width).astype(np.uint64)


def texts_of(words: Words) -> list[str]:
    """The ids that the rows of words stand for."""
    width = words.shape[1]
    return [text.decode() for text in words.astype(">u8").view(f"S{8 * width}").ravel().tolist()]


def lengths_of(words: Words) -> Slots:
    """How many words each id has; the padding behind it is not counted. No word of an id is zero."""
    lengths: Slots = np.count_nonzero(words, axis=1)
    return lengths


def hashes_of(words: Words) -> Words:
    """64-bit hashes, which padding does not change."""
    out = np.full(words.shape[0], _SEED, dtype=np.uint64)
    for column in words.T:
        mixed = (out ^ column) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(32)
        out = np.where(column, mixed, out)
    out *= np.uint64(_LAST)
    return out ^ (out >> np.uint64(29))


def hash_of(words: Sequence[int]) -> int:
    """The same of one id, whose words are given without padding."""
    out = _SEED
    for word in words:
        out = ((out ^ word) * _MIX) & _MASK64
        out ^= out >> 32
    out = (out * _LAST) & _MASK64
    return out ^ (out >> 29)


class Growing:
    """A column that only grows. One thread extends it, others may read what was there when they learnt of it.

    The first chunk doubles, by copying, until it is full; later ones come whole and take memory only as they are written.
    """

    __slots__ = ("chunks", "count")

    count: int

    def __init__(self, dtype: type[np.unsignedinteger[Any]], room: int = 8) -> None:
        self.chunks: list[npt.NDArray[Any]] = [np.zeros(min(max(8, room), 1 << _CHUNK_BITS), dtype=dtype)]
        self.count = 0

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Append."""
        done = 0
        while done < values.size:
            number, begin = self.count >> _CHUNK_BITS, self.count & ((1 << _CHUNK_BITS) - 1)
            piece = min(values.size - done, (1 << _CHUNK_BITS) - begin)
            if number == len(self.chunks):
                self.chunks.append(np.zeros(1 << _CHUNK_BITS, dtype=values.dtype))
            elif begin + piece > self.chunks[number].size:
                room = min(1 << _CHUNK_BITS, max(begin + piece, 2 * self.chunks[number].size))
                grown = np.zeros(room, dtype=values.dtype)
                grown[:begin] = self.chunks[number][:begin]
                self.chunks[number] = grown
            self.chunks[number][begin : begin + piece] = values[done : done + piece]
            self.count += piece
            done += piece

    def take(self, at: Slots) -> npt.NDArray[Any]:
        """Values by place; all places are within the column."""
        if len(self.chunks) == 1:
            return self.chunks[0].take(at)
        out = np.empty(at.shape, dtype=self.chunks[0].dtype)
        chunk = at >> _CHUNK_BITS
        within = at & ((1 << _CHUNK_BITS) - 1)
        for number in np.unique(chunk).tolist():
            here = np.flatnonzero(chunk == number)
            out[here] = self.chunks[number].take(within[here])
        return out

    def get(self, at: int) -> int:
        """One value."""
        return int(self.chunks[at >> _CHUNK_BITS][at & ((1 << _CHUNK_BITS) - 1)])

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self.chunks)


class Players:
    """Ids by slot and slots by id. Slots count from 0 and are never reused, also not after a removal.

    One thread admits; others may look up meanwhile, and see the newcomers or not. A slot says nothing
    about being on the board: a run that does not hold it answers so.
    """

    __slots__ = ("_moved", "_starts", "_tables", "_to_move", "_words", "count", "described")

    #: Slots given so far.
    count: int
    #: The table that takes newcomers, and the smaller one before it until all of its slots are moved. Entries are slot + 1, 0 if free.
    _tables: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]
    #: For `boards.kernels`: kept here for as long as the arrays above stay what they are.
    described: Any

    def __init__(self, room: int = 0) -> None:
        self._words = Growing(np.uint64, 2 * room)
        self._starts = Growing(np.uint32, room + 1)
        self._starts.extend(np.zeros(1, dtype=np.uint32))
        self._tables = np.zeros(_table_size(room), dtype=np.int32), None
        #: Slots of the former table: all below `_to_move`, of which those below `_moved` are in both.
        self._moved = self._to_move = 0
        self.count = 0
        self.described = None

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Of ids and tables; memory set aside and not written is counted."""
        return self._words.nbytes + self._starts.nbytes + sum(table.nbytes for table in self._tables if table is not None)

    @property
    def chunk_bits(self) -> int:
        """Numbers in a chunk of the columns, as a power of two."""
        return _CHUNK_BITS

    @property
    def parts(self) -> tuple[Growing, Growing, npt.NDArray[np.int32], npt.NDArray[np.int32] | None]:
        """Words, starts, and the two tables, for kernels."""
        return self._words, self._starts, *self._tables

    def admit(self, ids: Sequence[str]) -> Slots:
        """Slots of `ids`, which are distinct; new ones are registered. Raises as `words_of`, with nothing registered."""
        return self.admit_words(words_of(ids))

    def admit_words(self, words: Words, *, known: Slots | None = None) -> Slots:
        """See `admit`. `known` is what `find_words` says now of them, where that has been asked already.

        Raises:
            OverflowError: there would be more than 2**31 - 2 players, or more than 32 GiB of ids.
        """
        out = np.empty(words.shape[0], dtype=np.int64)
        if self._tables[1] is not None:
            self._move(_MOVED_AT_LEAST)
        for first in range(0, out.size, _PIECE):
            piece = words[first : first + _PIECE]
            slots = self.find_words(piece) if known is None else known[first : first + _PIECE]
            fresh = np.flatnonzero(slots == NOWHERE)
            if fresh.size:
                slots[fresh] = self._register(piece[fresh])
            out[first : first + _PIECE] = slots
        return out

    def _register(self, words: Words) -> Slots:
        lengths = lengths_of(words)
        ends = self._words.count + lengths.cumsum()
        if self.count + ends.size >= NOWHERE or int(ends[-1]) >= 2**32:
            raise OverflowError("the table of ids is full: it holds up to 2**31 - 2 players and 32 GiB of ids")
        self._make_room(ends.size)
        self._words.extend(words[np.arange(words.shape[1]) < lengths[:, np.newaxis]])
        self._starts.extend(ends.astype(np.uint32))
        slots = np.arange(self.count, self.count + ends.size)
        # Who reads the count finds arrays that hold so many (`boards.compiled` describes them by it).
        self.count += ends.size
        # The name went in before its slot can be found.
        _insert(self._tables[0], hashes_of(words), slots)
        return slots

    def _make_room(self, newcomers: int) -> None:
        """Have a table that takes so many more, and go on moving the slots of the former one."""
        full = 16 * (self.count + newcomers) > _FULL_16THS * self._tables[0].size
        if full and self._tables[1] is not None:
            self._move(self.count)
        if full:
            self._moved, self._to_move = 0, self.count
            self._tables = np.zeros(_table_size(self.count + newcomers), dtype=np.int32), self._tables[0]
        if self._tables[1] is not None:
            self._move(max(_MOVED_AT_LEAST, 2 * newcomers))

    def _move(self, most: int) -> None:
        """Copy so many slots of the former table into the other one, which holds those given since; let go of an empty one."""
        table = self._tables[0]
        stop = min(self._to_move, self._moved + most)
        for first in range(self._moved, stop, _PIECE):
            slots = np.arange(first, min(first + _PIECE, stop))
            _insert(table, hashes_of(self.words(slots)), slots)
        self._moved = stop
        if stop == self._to_move:
            self._tables, self.described = (table, None), None

    def find(self, ids: Sequence[str]) -> Slots:
        """Slots of `ids`, `NOWHERE` for the unknown. Raises as `words_of`."""
        if len(ids) == 1:
            return np.array([self.find_one(ids[0])])
        return self.find_words(words_of(ids))

    def find_words(self, words: Words) -> Slots:
        """See `find`."""
        if words.shape[0] == 1:
            one = words[0].tolist()
            while one and not one[-1]:
                one.pop()
            return np.array([self._find_one(one)])
        return self._find(words, hashes_of(words))

    def find_one(self, player_id: str) -> int:
        """See `find`; without arrays, for one id."""
        raw = player_id.encode()
        if b"\0" in raw:
            raise ValueError(_NO_ZERO)
        raw += bytes(-len(raw) % 8)
        return self._find_one([int.from_bytes(raw[i : i + 8], "big") for i in range(0, len(raw), 8)])

    def _find_one(self, words: Sequence[int]) -> int:
        hashed = hash_of(words)
        for table in self._tables:
            if table is None:
                continue
            mask = table.size - 1
            at = hashed & mask
            while entry := int(table[at]):
                if self._is(entry - 1, words):
                    return entry - 1
                at = (at + 1) & mask
        return NOWHERE

    def _is(self, slot: int, words: Sequence[int]) -> bool:
        start = self._starts.get(slot)
        if self._starts.get(slot + 1) - start != len(words):
            return False
        return all(self._words.get(start + i) == word for i, word in enumerate(words))

    def _find(self, words: Words, hashes: Words) -> Slots:
        table, former = self._tables
        out = self._probe(table, words, hashes)
        if former is not None:
            rest = np.flatnonzero(out == NOWHERE)
            if rest.size:
                out[rest] = self._probe(former, words[rest], hashes[rest])
        return out

    def _probe(self, table: npt.NDArray[np.int32], words: Words, hashes: Words) -> Slots:
        out = np.full(hashes.size, NOWHERE, dtype=np.int64)
        mask = table.size - 1
        at = (hashes & np.uint64(mask)).astype(np.int64)
        live = np.arange(hashes.size)
        while live.size:
            entry = table.take(at)
            taken = np.flatnonzero(entry)
            live, at, slots = live[taken], at[taken], entry[taken].astype(np.int64) - 1
            right = self.compare(slots, words[live]) == 0
            out[live[right]] = slots[right]
            wrong = ~right
            live, at = live[wrong], (at[wrong] + 1) & mask
        return out

    def words(self, slots: Slots) -> Words:
        """The words of the slots' ids, one row each, padded."""
        if slots.size == 1:
            slot = int(slots[0])
            one = [self._words.get(at) for at in range(self._starts.get(slot), self._starts.get(slot + 1))]
            return np.array([one or [0]], dtype=np.uint64)
        slots = slots.astype(np.int64, copy=False)
        start, end = self._starts.take(slots).astype(np.int64), self._starts.take(slots + 1).astype(np.int64)
        lengths = end - start
        width = max(1, int(lengths.max(initial=0)))
        out = np.zeros((slots.size, width), dtype=np.uint64)
        for i in range(width):
            here = np.flatnonzero(lengths > i)
            out[here, i] = self._words.take(start[here] + i)
        return out

    def names(self, slots: Slots) -> list[str]:
        """The ids of slots."""
        return texts_of(self.words(slots))

    def compare(self, slots: Slots, words: Words) -> npt.NDArray[np.int8]:
        """-1, 0 or 1 where the id of the slot is before, equal to or behind the id of the same row of words."""
        own = self.words(slots)
        out = np.zeros(slots.size, dtype=np.int8)
        for i in range(max(own.shape[1], words.shape[1]) - 1, -1, -1):
            if i >= own.shape[1]:
                out[words[:, i] != 0] = -1
            elif i >= words.shape[1]:
                out[own[:, i] != 0] = 1
            else:
                out[own[:, i] < words[:, i]] = -1
                out[own[:, i] > words[:, i]] = 1
        return out


def _table_size(players: int) -> int:
    size = 16
    while _FULL_16THS * size < 16 * players:
        size *= 2
    return size


def _insert(table: npt.NDArray[np.int32], hashes: Words, slots: Slots) -> None:
    """Put slots that are not in the table into it."""
    mask = table.size - 1
    at = (hashes & np.uint64(mask)).astype(np.int64)
    entries = (slots + 1).astype(np.int32)
    while at.size:
        free = np.flatnonzero(table.take(at) == 0)
        # Of several that want one place, whoever was written last has it; the others go on with those who found it taken.
        table[at[free]] = entries[free]
        left = np.flatnonzero(table.take(at) != entries)
        at, entries = (at[left] + 1) & mask, entries[left]
