"""Compiled look-ups in a rank index: the same answers as the numpy code of `boards.players`, `boards.rows` and `boards.runs`.

Loaded by `boards.compiled`, on large boards only: importing numba takes half a second and some 60 MB. What a kernel reads
is told by an array of addresses and sizes, because to pass an array costs more than to search it; the caller keeps the
arrays alive. Layouts, in places of 8 bytes:

* a table of ids: `_PLAYERS` fixed places, then the addresses of the chunks of words, then those of the chunks of starts;
* a run: its number of deltas, whether there is a second column, the base (`BASE` places), then each delta, lowest first.

An ascending column of a delta comes with a table: the place of the first number of each stretch of 2**shift, so that a
search looks at a few neighbours only. Rows added to a delta are not searched by key at all. Of the rows below, c are before
what is wanted: then so is every added row that was inserted before one of these, and none that was inserted behind the first
other one that is still there. Only the few in between are compared.
"""

from typing import Any

import numpy as np
from numba import int64, njit, types, uint64
from numba.extending import intrinsic

#: Places of a table of ids: slots, table, its size - 1, former table (0: none), its size - 1, chunk bits, number of word chunks.
PLAYERS = 7
#: Places before the base, and of rows: count, key, second, tie, slot, achieved, version, whether versions are wide.
HEAD = 2
ROWS = 8
#: Of the base: rows, where, size of where. Of a delta: rows, count of gone, then gone, before and slots with table and shift each,
#: landed, slot rows, gaps.
BASE = ROWS + 2
DELTA = ROWS + 13
_GONE, _BEFORE, _SLOTS, _LANDED, _SLOT_ROWS, _GAPS = ROWS + 1, ROWS + 4, ROWS + 7, ROWS + 10, ROWS + 11, ROWS + 12

_COUNT, _KEY, _SECOND, _TIE, _SLOT, _ACHIEVED, _VERSION, _WIDE = range(8)
_NOWHERE = 2**31 - 1
_SEED, _MIX, _LAST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(0xCA5A826395121157)


def _loader(bits: int, native: Any) -> Any:
    """A function (address, place) -> the number of so many bits there."""

    @intrinsic
    def load(typing: Any, address: Any, place: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = context.get_value_type(native)
            pointer = builder.inttoptr(arguments[0], number.as_pointer())
            return builder.load(builder.gep(pointer, [arguments[1]]))

        return native(types.int64, types.int64), code

    return load


_i64, _i32 = _loader(64, types.int64), _loader(32, types.int32)
_u64, _u32 = _loader(64, types.uint64), _loader(32, types.uint32)


@njit
def _lower64(column: int, low: int, high: int, wanted: int) -> Any:
    size = high - low
    while size > 0:
        half = size >> 1
        right = _i64(column, low + half) < wanted
        low += (half + 1) if right else 0
        size = (size - half - 1) if right else half
    return low


@njit
def _upper64(column: int, low: int, high: int, wanted: int) -> Any:
    size = high - low
    while size > 0:
        half = size >> 1
        right = _i64(column, low + half) <= wanted
        low += (half + 1) if right else 0
        size = (size - half - 1) if right else half
    return low


@njit
def _lower32(run: Any, column: int, wanted: int) -> Any:
    """Where a wanted number, of at least 0 and within the table, would go in a column with a table: address, table, shift."""
    address, table, stretch = run[column], run[column + 1], wanted >> run[column + 2]
    low, high = int64(_i32(table, stretch)), int64(_i32(table, stretch + 1))
    while low < high:
        middle = (low + high) >> 1
        if _i32(address, middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _upper32(run: Any, column: int, count: int, low: int, wanted: int) -> Any:
    """The place behind all numbers that equal the wanted one, of which there may be many; `low` is where they begin."""
    address, size = run[column], 1
    while low + size < count and _i32(address, low + size) == wanted:
        size *= 2
    high = min(count, low + size)
    while low < high:
        middle = (low + high) >> 1
        if _i32(address, middle) <= wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _start(players: Any, slot: int) -> Any:
    bits = players[5]
    return int64(_u32(players[PLAYERS + players[6] + (slot >> bits)], slot & ((1 << bits) - 1)))


@njit
def _word(players: Any, place: int) -> Any:
    bits = players[5]
    return _u64(players[PLAYERS + (place >> bits)], place & ((1 << bits) - 1))


@njit
def _hash(words: Any, count: int) -> Any:
    hashed = _SEED
    for i in range(count):
        hashed = (hashed ^ words[i]) * _MIX
        hashed ^= hashed >> uint64(32)
    hashed *= _LAST
    return hashed ^ (hashed >> uint64(29))


@njit
def _slot_in(players: Any, table: int, mask: int, words: Any, count: int, hashed: Any) -> Any:
    at = int64(hashed & uint64(mask))
    while True:
        slot = int64(_i32(table, at)) - 1
        if slot < 0:
            return _NOWHERE
        start = _start(players, slot)
        if _start(players, slot + 1) - start == count:
            same = True
            for i in range(count):
                if _word(players, start + i) != words[i]:
                    same = False
                    break
            if same:
                return slot
        at = (at + 1) & mask


@njit
def _slot(players: Any, words: Any, count: int) -> Any:
    hashed = _hash(words, count)
    slot = _slot_in(players, players[1], players[2], words, count, hashed)
    if slot == _NOWHERE and players[3]:
        slot = _slot_in(players, players[3], players[4], words, count, hashed)
    return slot


@njit
def _length(words: Any) -> Any:
    count = words.size
    while count and not words[count - 1]:
        count -= 1
    return count


@njit
def _find(run: Any, slot: int) -> Any:
    """Position, the place of the rows that hold the player in the description, and the row among them; -1 first if absent."""
    rows, at = HEAD, -1
    if slot < run[HEAD + ROWS + 1]:
        at = int64(_i32(run[HEAD + ROWS], slot))
    row = at
    for i in range(run[0]):
        delta = HEAD + BASE + i * DELTA
        if at >= 0:
            skipped = _lower32(run, delta + _GONE, at)
            if skipped < run[delta + ROWS] and _i32(run[delta + _GONE], skipped) == at:
                at = -1
            else:
                at += _upper32(run, delta + _BEFORE, run[delta], _lower32(run, delta + _BEFORE, at), at) - skipped
        if run[delta] and slot <= _i32(run[delta + _SLOTS], run[delta] - 1):
            entry = _lower32(run, delta + _SLOTS, slot)
            if entry < run[delta] and _i32(run[delta + _SLOTS], entry) == slot:
                rows, row = delta, int64(_i32(run[delta + _SLOT_ROWS], entry))
                at = int64(_i32(run[delta + _LANDED], row))
    return at, rows, row


@njit
def _between(run: Any, delta: int, count: int) -> Any:
    """The added rows of which it is open whether they come before what is wanted, as `count` rows below do; how many of these are gone."""
    skipped = _lower32(run, delta + _GONE, count)
    low, kept = _lower32(run, delta + _BEFORE, count), count
    if skipped < run[delta + ROWS] and _i32(run[delta + _GONE], skipped) == count:
        gap = _i32(run[delta + _GAPS], skipped)
        kept += _upper32(run, delta + _GAPS, run[delta + ROWS], skipped, gap) - skipped
    start = low if kept == count else _lower32(run, delta + _BEFORE, kept)
    return low, _upper32(run, delta + _BEFORE, run[delta], start, kept), skipped


@njit
def _better(run: Any, key: int, second: int) -> Any:
    count = _lower64(run[HEAD + _KEY], 0, run[HEAD], key)
    if run[1]:
        count = _lower64(run[HEAD + _SECOND], count, _upper64(run[HEAD + _KEY], count, run[HEAD], key), second)
    for i in range(run[0]):
        delta = HEAD + BASE + i * DELTA
        low, high, skipped = _between(run, delta, count)
        low = _lower64(run[delta + _KEY], low, high, key)
        if run[1]:
            low = _lower64(run[delta + _SECOND], low, _upper64(run[delta + _KEY], low, high, key), second)
        count += low - skipped
    return count


@njit
def _ahead_among(players: Any, run: Any, rows: int, low: int, high: int, key: int, second: int, tie: int, words: Any, count: int) -> Any:
    low = _lower64(run[rows + _KEY], low, high, key)
    high = _upper64(run[rows + _KEY], low, high, key)
    if run[1]:
        low = _lower64(run[rows + _SECOND], low, high, second)
        high = _upper64(run[rows + _SECOND], low, high, second)
    low = _lower64(run[rows + _TIE], low, high, tie)
    high = _upper64(run[rows + _TIE], low, high, tie)
    while low < high:
        middle = (low + high) >> 1
        slot = int64(_i32(run[rows + _SLOT], middle))
        start = _start(players, slot)
        own = _start(players, slot + 1) - start
        before, i = own < count, 0
        while i < own and i < count:
            word = _word(players, start + i)
            if word != words[i]:
                before = word < words[i]
                break
            i += 1
        if before:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _ahead(players: Any, run: Any, key: int, second: int, tie: int, words: Any, count: int) -> Any:
    ahead = _ahead_among(players, run, HEAD, 0, run[HEAD], key, second, tie, words, count)
    for i in range(run[0]):
        delta = HEAD + BASE + i * DELTA
        low, high, skipped = _between(run, delta, ahead)
        own = _ahead_among(players, run, delta, low, high, key, second, tie, words, count)
        ahead += own - skipped
    return ahead


@njit
def _row(run: Any, rows: int, row: int) -> Any:
    """Key, second key, tie moment, achieved moment and version of a row."""
    second, tie = int64(0), _i64(run[rows + _TIE], row)
    achieved = tie
    if run[1]:
        second = _i64(run[rows + _SECOND], row)
    if run[rows + _ACHIEVED]:
        achieved = _i64(run[rows + _ACHIEVED], row)
    version = _i64(run[rows + _VERSION], row) if run[rows + _WIDE] else int64(_i32(run[rows + _VERSION], row))
    return _i64(run[rows + _KEY], row), second, tie, achieved, version


_ints = types.Array(types.int64, 1, "C")
_words2 = types.Array(types.uint64, 2, "C")
_table2 = types.Array(types.int64, 2, "C")
_seven: Any = types.UniTuple(types.int64, 7)  # type: ignore[no-untyped-call]


@njit(_seven(_ints, _ints, types.Bytes(types.uint8, 1, "C", readonly=True)), cache=True)
def place_one(players: Any, run: Any, raw: Any) -> Any:
    """Position (-1: absent), better, key, second key, tie moment, achieved moment, version of the player with this id."""
    words = np.zeros(17, dtype=np.uint64)
    size = len(raw)
    count = (size + 7) >> 3
    if count <= words.size:
        for i in range(size):
            words[i >> 3] |= uint64(raw[i]) << uint64(56 - 8 * (i & 7))
        slot = _slot(players, words[:count], count)
    else:
        longer = np.zeros(count, dtype=np.uint64)
        for i in range(size):
            longer[i >> 3] |= uint64(raw[i]) << uint64(56 - 8 * (i & 7))
        slot = _slot(players, longer, count)
    at, rows, row = _find(run, slot)
    if at < 0:
        return at, at, at, at, at, at, at
    key, second, tie, achieved, version = _row(run, rows, row)
    return at, _better(run, key, second), key, second, tie, achieved, version


@njit(types.void(_ints, _words2, types.Array(types.int64, 1, "C")), cache=True, nogil=True)
def find_slots(players: Any, words: Any, out: Any) -> None:
    """Slots of the ids that rows of words stand for."""
    for i in range(words.shape[0]):
        out[i] = _slot(players, words[i], _length(words[i]))


@njit(types.void(_ints, _ints, _table2), cache=True, nogil=True)
def find_rows(run: Any, slots: Any, out: Any) -> None:
    """Position, key, second key, tie moment, achieved moment and version of the players, one row of `out` each; positions -1: absent."""
    for i in range(slots.size):
        at, rows, row = _find(run, slots[i])
        out[0, i] = at
        if at >= 0:
            out[1, i], out[2, i], out[3, i], out[4, i], out[5, i] = _row(run, rows, row)


@njit(types.void(_ints, _ints, _ints, types.Array(types.int64, 1, "C")), cache=True, nogil=True)
def count_better(run: Any, key: Any, second: Any, out: Any) -> None:
    """How many rows are strictly before each (key, second key)."""
    for i in range(key.size):
        out[i] = _better(run, key[i], second[i])


@njit(types.void(_ints, _ints, _ints, _ints, _ints, _words2, types.Array(types.int64, 1, "C")), cache=True, nogil=True)
def count_ahead(players: Any, run: Any, key: Any, second: Any, tie: Any, words: Any, out: Any) -> None:
    """How many rows are strictly before each full key."""
    for i in range(key.size):
        out[i] = _ahead(players, run, key[i], second[i], tie[i], words[i], _length(words[i]))
