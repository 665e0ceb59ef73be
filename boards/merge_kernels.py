"""Compiled merges of positions for a rank index: the same results as the numpy code of `boards.runs` and `boards.compiled`.

One pass over each column instead of a search for each number, without the interpreter's lock. Loaded by `boards.compiled`.
"""

from typing import Any

import numpy as np
from numba import njit, types

_places = types.Array(types.int32, 1, "C")
_numbers = types.Array(types.int64, 1, "C")
_landings: Any = types.UniTuple(_places, 2)  # type: ignore[no-untyped-call]
_folded: Any = types.Tuple((_places, _places, _numbers, _places, _places))  # type: ignore[no-untyped-call]


@njit(_landings(_places, _places), cache=True, nogil=True)
def landings(gone: Any, before: Any) -> Any:
    """Of a delta: its own positions of the added rows, and how many survivors precede each vanished position."""
    landed, gaps, passed = np.empty(before.size, dtype=np.int32), np.empty(gone.size, dtype=np.int32), 0
    for i in range(before.size):
        while passed < gone.size and gone[passed] < before[i]:
            passed += 1
        landed[i] = before[i] - passed + i
    for i in range(gone.size):
        gaps[i] = gone[i] - i
    return landed, gaps


@njit(types.void(_places, types.int64, _places), cache=True, nogil=True)
def stretches(column: Any, shift: int, table: Any) -> None:
    """How many numbers of an ascending column are below each multiple of 2**shift, from 0 on."""
    at = 0
    for i in range(table.size):
        while at < column.size and column[at] < i << shift:
            at += 1
        table[i] = at


@njit(_folded(_places, _places, _places, _places, _places, _places, _places, _places, _places, _places), cache=True, nogil=True)
def folded(
    gone: Any, gaps: Any, before: Any, landed: Any, slots: Any, slot_rows: Any,
    upper_gone: Any, upper_before: Any, upper_slots: Any, upper_slot_rows: Any,
) -> Any:  # fmt: skip
    """A delta and an upper one on it as one: gone, before, source of each row (the upper rows count first), slots, slot rows."""
    count, more = before.size, upper_before.size
    kept, left = np.ones(count, dtype=np.bool_), count
    row = 0
    for i in range(upper_gone.size):
        while row < count and landed[row] < upper_gone[i]:
            row += 1
        if row < count and landed[row] == upper_gone[i]:
            kept[row] = False
            left -= 1
    all_gone, size = np.empty(gone.size + upper_gone.size - (count - left), dtype=np.int32), 0
    row = hole = own = 0
    for i in range(upper_gone.size):
        while row < count and landed[row] < upper_gone[i]:
            row += 1
        if row < count and landed[row] == upper_gone[i]:
            continue
        survivor = upper_gone[i] - row
        while hole < gone.size and gaps[hole] <= survivor:
            hole += 1
        while own < gone.size and gone[own] < survivor + hole:
            all_gone[size] = gone[own]
            own, size = own + 1, size + 1
        all_gone[size] = survivor + hole
        size += 1
    while own < gone.size:
        all_gone[size] = gone[own]
        own, size = own + 1, size + 1

    total = left + more
    all_before, source = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int64)
    place = np.empty(count + more, dtype=np.int32)
    row = hole = out = 0
    for i in range(more + 1):
        while row < count and (i == more or landed[row] < upper_before[i]):
            if kept[row]:
                all_before[out], source[out], place[more + row] = before[row], more + row, out
                out += 1
            row += 1
        if i == more:
            break
        if row < count and landed[row] == upper_before[i]:
            all_before[out] = before[row]
        else:
            survivor = upper_before[i] - row
            while hole < gone.size and gaps[hole] <= survivor:
                hole += 1
            all_before[out] = survivor + hole
        source[out], place[i] = i, out
        out += 1

    all_slots, all_rows = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int32)
    own = out = 0
    for i in range(more + 1):
        while own < count and (i == more or slots[own] <= upper_slots[i]):
            if kept[slot_rows[own]]:
                all_slots[out], all_rows[out] = slots[own], place[more + slot_rows[own]]
                out += 1
            own += 1
        if i < more:
            all_slots[out], all_rows[out] = upper_slots[i], place[upper_slot_rows[i]]
            out += 1
    return all_gone, all_before, source, all_slots, all_rows
