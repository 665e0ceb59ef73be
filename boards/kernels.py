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
        # Who was admitted after this was described stands in the table already, and nowhere else that is known here.
        start = _start(players, slot) if slot < players[0] else int64(0)
        if slot < players[0] and _start(players, slot + 1) - start == count:
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
def _find_in(run: Any, delta: int, slot: int, at: int, rows: int, row: int) -> Any:
    """What `_find` says of a delta, from what it says of the run below. Who is there already is among the added only if gone from there."""
    if at >= 0:
        skipped = _lower32(run, delta + _GONE, at)
        if skipped == run[delta + ROWS] or _i32(run[delta + _GONE], skipped) != at:
            return at + _lower32(run, delta + _BEFORE, at + 1) - skipped, rows, row
    if run[delta] and slot <= _i32(run[delta + _SLOTS], run[delta] - 1):
        entry = _lower32(run, delta + _SLOTS, slot)
        if entry < run[delta] and _i32(run[delta + _SLOTS], entry) == slot:
            own = int64(_i32(run[delta + _SLOT_ROWS], entry))
            return int64(_i32(run[delta + _LANDED], own)), delta, own
    return int64(-1), rows, row


@njit
def _find(run: Any, slot: int) -> Any:
    """Position, the place of the rows that hold the player in the description, and the row among them; -1 first if absent."""
    rows, at = HEAD, -1
    if slot < run[HEAD + ROWS + 1]:
        at = int64(_i32(run[HEAD + ROWS], slot))
    row = at
    for i in range(run[0]):
        at, rows, row = _find_in(run, HEAD + BASE + i * DELTA, slot, at, rows, row)
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
def _better_from(run: Any, count: int, key: int, second: int) -> Any:
    """See `_better`; `count` rows of the base are strictly before."""
    for i in range(run[0]):
        delta = HEAD + BASE + i * DELTA
        low, high, skipped = _between(run, delta, count)
        low = _lower64(run[delta + _KEY], low, high, key)
        if run[1]:
            low = _lower64(run[delta + _SECOND], low, _upper64(run[delta + _KEY], low, high, key), second)
        count += low - skipped
    return count


@njit
def _better_in_base(run: Any, low: int, key: int, second: int) -> Any:
    """How many rows of the base are strictly before, if those before `low` have better keys and the others have not."""
    if run[1] and low < run[HEAD] and _i64(run[HEAD + _KEY], low) == key:
        return _lower64(run[HEAD + _SECOND], low, _upper64(run[HEAD + _KEY], low, run[HEAD], key), second)
    return low


@njit
def _better(run: Any, key: int, second: int) -> Any:
    """How many rows are strictly before a key and second key."""
    low = _lower64(run[HEAD + _KEY], 0, run[HEAD], key)
    return _better_from(run, _better_in_base(run, low, key, second), key, second)


@njit
def _name_before(players: Any, own: int, slot: int, raw: Any, begin: int, end: int) -> Any:
    """Whether the id of slot `own` is before that of `slot`, or before bytes `begin` to `end` of `raw` if `slot` is negative."""
    start = _start(players, own)
    mine = _start(players, own + 1) - start
    other = _start(players, slot) if slot >= 0 else 0
    its = _start(players, slot + 1) - other if slot >= 0 else (end - begin + 7) >> 3
    for i in range(min(mine, its)):
        word, wanted = _word(players, start + i), uint64(0)
        if slot >= 0:
            wanted = _word(players, other + i)
        else:
            for at in range(begin + 8 * i, min(end, begin + 8 * i + 8)):
                wanted |= uint64(raw[at]) << uint64(56 - 8 * ((at - begin) & 7))
        if word != wanted:
            return word < wanted
    return mine < its


@njit
def _ahead_among(
    players: Any, run: Any, rows: int, low: int, high: int, key: int, second: int, tie: int, slot: int, raw: Any, begin: int, end: int
) -> Any:
    """How many of the rows at a place of the description come before a full key, if those before `low` do and those from `high` do not."""
    low = _lower64(run[rows + _KEY], low, high, key)
    if low == high or _i64(run[rows + _KEY], low) != key:
        return low
    high = _upper64(run[rows + _KEY], low, high, key)
    if run[1]:
        low = _lower64(run[rows + _SECOND], low, high, second)
        high = _upper64(run[rows + _SECOND], low, high, second)
    low = _lower64(run[rows + _TIE], low, high, tie)
    high = _upper64(run[rows + _TIE], low, high, tie)
    while low < high:
        middle = (low + high) >> 1
        if _name_before(players, int64(_i32(run[rows + _SLOT], middle)), slot, raw, begin, end):
            low = middle + 1
        else:
            high = middle
    return low


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
_out = types.Array(types.int64, 1, "C")
_table2 = types.Array(types.int64, 2, "C")
_raw: Any = types.Bytes(types.uint8, 1, "C", readonly=True)
_seven: Any = types.UniTuple(types.int64, 7)  # type: ignore[no-untyped-call]


@njit(_seven(_ints, _ints, _raw), cache=True)
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


@njit
def _parse(raw: Any, words: Any, begins: Any, hashes: Any) -> None:
    """Words, one id behind the other, their beginnings and the end, and the hashes of ids joined by zero bytes."""
    place, number, at, size = 0, 0, 0, len(raw)
    word, hashed = uint64(0), _SEED
    begins[0] = 0
    for i in range(size + 1):
        byte = uint64(raw[i]) if i < size else uint64(0)
        word |= byte << uint64(56 - 8 * at)
        at = (at + 1) & 7 if byte else at
        if (byte and not at) or (not byte and word):
            words[place] = word
            place += 1
            hashed = (hashed ^ word) * _MIX
            hashed ^= hashed >> uint64(32)
            word = uint64(0)
        if not byte:
            hashed *= _LAST
            hashes[number] = hashed ^ (hashed >> uint64(29))
            number += 1
            begins[number] = place
            at, hashed = 0, _SEED


@njit
def _probe(players: Any, table: int, mask: int, words: Any, begins: Any, hashes: Any, live: Any, count: int, slots: Any) -> None:
    """Write the slots of the `count` ids that `live` has the numbers of, as far as the table holds them. `live` is used up.

    Each round does one thing for all ids before the next, so that the memory answers several at a time.
    """
    at, entries = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    starts, sizes, firsts = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint64)
    for j in range(count):
        at[j] = int64(hashes[live[j]] & uint64(mask))
    while count:
        for j in range(count):
            entries[j] = int64(_i32(table, at[j])) - 1
        left = 0
        for j in range(count):
            live[left], at[left], entries[left] = live[j], at[j], entries[j]
            left += 1 if entries[j] >= 0 else 0
        count = left
        for j in range(count):
            # Who was admitted after this was described stands in the table already, and nowhere else that is known here.
            known = entries[j] < players[0]
            starts[j] = _start(players, entries[j]) if known else int64(0)
            sizes[j] = _start(players, entries[j] + 1) - starts[j] if known else int64(-1)
        for j in range(count):
            firsts[j] = _word(players, starts[j]) if sizes[j] > 0 else uint64(0)
        left = 0
        for j in range(count):
            i = live[j]
            begin, size = begins[i], begins[i + 1] - begins[i]
            same = sizes[j] == size and (not size or firsts[j] == words[begin])
            if same:
                for k in range(1, size):
                    same &= _word(players, starts[j] + k) == words[begin + k]
            slots[i] = entries[j] if same else slots[i]
            live[left], at[left] = i, (at[j] + 1) & mask
            left += 0 if same else 1
        count = left


@njit
def _lower_many(column: int, size: int, wanted: Any, lows: Any) -> None:
    """How many numbers of an ascending column are below each wanted one; all searches go on at once, see `_probe`."""
    lows[:] = 0
    if not size:
        return
    while size > 1:
        half = size >> 1
        for i in range(lows.size):
            lows[i] += half if _i64(column, lows[i] + half - 1) < wanted[i] else 0
        size -= half
    for i in range(lows.size):
        lows[i] += 1 if _i64(column, lows[i]) < wanted[i] else 0


@njit
def _count_better(run: Any, rows: Any, key: Any, second: Any, out: Any) -> None:
    """How many rows are before each (key, second key); `out` has which of the rows at a place of the description is the player's."""
    lows = np.empty(out.size, dtype=np.int64)
    elsewhere = np.flatnonzero(rows != HEAD)
    found = np.empty(elsewhere.size, dtype=np.int64)
    _lower_many(run[HEAD + _KEY], run[HEAD], key[elsewhere], found)
    lows[elsewhere] = found
    for i in range(out.size):
        if rows[i] == HEAD:
            # A row of the base: whether the one before it is better says all, unless there are ties.
            low = out[i]
            if low and _i64(run[HEAD + _KEY], low - 1) == key[i]:
                low = _lower64(run[HEAD + _KEY], 0, low, key[i])
            lows[i] = low
    for i in range(out.size):
        out[i] = _better_from(run, _better_in_base(run, lows[i], key[i], second[i]), key[i], second[i])


@njit(types.void(_ints, _raw, _out), cache=True, nogil=True)
def find_slots(players: Any, raw: Any, slots: Any) -> None:
    """Slots of ids, which are joined by zero bytes."""
    count = slots.size
    words, begins = np.empty(count + (len(raw) >> 3) + 1, dtype=np.uint64), np.empty(count + 1, dtype=np.int64)
    hashes, live = np.empty(count, dtype=np.uint64), np.arange(count)
    _parse(raw, words, begins, hashes)
    slots[:] = _NOWHERE
    _probe(players, players[1], players[2], words, begins, hashes, live, count, slots)
    if players[3]:
        live = np.flatnonzero(slots == _NOWHERE)
        _probe(players, players[3], players[4], words, begins, hashes, live, live.size, slots)


@njit(types.void(_ints, _ints, types.boolean, _table2), cache=True, nogil=True)
def find_rows(run: Any, slots: Any, better: Any, out: Any) -> None:
    """Position, key, second key, tie moment, achieved moment and version of the players, one row of `out` each; positions -1: absent.

    And how many rows are strictly better, if that is wanted.
    """
    count = slots.size
    at, rows, row = out[0], np.full(count, HEAD, dtype=np.int64), out[6]
    for i in range(count):
        at[i] = int64(_i32(run[HEAD + ROWS], slots[i])) if slots[i] < run[HEAD + ROWS + 1] else -1
    for i in range(count):
        row[i] = at[i]
    for number in range(run[0]):
        delta = HEAD + BASE + number * DELTA
        for i in range(count):
            at[i], rows[i], row[i] = _find_in(run, delta, slots[i], at[i], rows[i], row[i])
    for i in range(count):
        if at[i] < 0:
            rows[i], row[i] = HEAD, 0
        else:
            out[1, i], out[2, i], out[3, i], out[4, i], out[5, i] = _row(run, rows[i], row[i])
    if better:
        _count_better(run, rows, out[1], out[2], row)


@njit(types.void(_ints, _ints, _ints, _out), cache=True, nogil=True)
def count_better(run: Any, key: Any, second: Any, out: Any) -> None:
    """How many rows are strictly before each (key, second key)."""
    _lower_many(run[HEAD + _KEY], run[HEAD], key, out)
    for i in range(key.size):
        out[i] = _better_from(run, _better_in_base(run, out[i], key[i], second[i]), key[i], second[i])


@njit(types.void(_ints, _ints, _ints, _ints, _ints, _ints, _raw, _out), cache=True, nogil=True)
def count_ahead(players: Any, run: Any, key: Any, second: Any, tie: Any, slots: Any, raw: Any, out: Any) -> None:
    """How many rows are strictly before each full key; the ids are those of `slots`, or where there are none joined by zero bytes."""
    _lower_many(run[HEAD + _KEY], run[HEAD], key, out)
    end, slot = -1, -1
    for i in range(key.size):
        begin = end + 1
        if slots.size:
            slot = slots[i]
        else:
            end = begin
            while end < len(raw) and raw[end]:
                end += 1
        ahead = out[i]
        if ahead < run[HEAD] and _i64(run[HEAD + _KEY], ahead) == key[i]:
            ahead = _ahead_among(players, run, HEAD, ahead, run[HEAD], key[i], second[i], tie[i], slot, raw, begin, end)
        for number in range(run[0]):
            delta = HEAD + BASE + number * DELTA
            low, high, skipped = _between(run, delta, ahead)
            if low < high:
                low = _ahead_among(players, run, delta, low, high, key[i], second[i], tie[i], slot, raw, begin, end)
            ahead += low - skipped
        out[i] = ahead
