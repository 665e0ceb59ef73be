"""Where compiled look-ups come in: `boards.kernels` when it is loaded, and what its functions are told of runs and tables of ids.

Without it, numpy does the same; the answers are equal, and the tests compare them.
"""

import importlib
from typing import Any, Final, NamedTuple

import numpy as np

from boards import runs
from boards.players import Ids, Players, Slots
from boards.rows import Ints, Rows, Wanted
from boards.runs import Base, Run, base_of

#: Numbers of a column for each entry of its table, about.
_PER_STRETCH: Final = 4

#: The module, once `load` has been called and could.
kernels: Any = None
#: Why there is none, for people: "not asked for", "not loaded yet", "" when it is loaded, or what went wrong.
reason = "not asked for"


def wanted() -> bool:
    """Whether nobody has asked for it yet; says yes once."""
    global reason  # noqa: PLW0603 - see `load`
    if reason != "not asked for":
        return False
    reason = "not loaded yet"
    return True


def load() -> bool:
    """Compile, or take from numba's cache beside the module or in the user's cache directory: half a second, or some the first time."""
    global kernels, reason  # noqa: PLW0603 - one process, one set of compiled code
    if kernels is None and reason in ("not asked for", "not loaded yet"):
        try:
            runs.kernels = importlib.import_module("boards.merge_kernels")
            kernels = importlib.import_module("boards.kernels")
            reason = ""
        except Exception as error:  # whatever it is: numba is absent, or has nowhere to keep what it compiles
            reason = f"{type(error).__name__}: {error}"
    return kernels is not None


class Described(NamedTuple):
    """An array of addresses, and the arrays that they point to, so that they stay."""

    places: Ints
    holds: tuple[Any, ...]
    #: Players in the table when it was described: those who came later may be elsewhere.
    players: int = 0


def _players(players: Players) -> Any:
    described = players.described
    if described is None or described.players != players.count:
        # The count is read first: whoever comes while this is put together makes it count as old.
        count = players.count
        words, starts, table, former = players.parts
        chunks, beginnings = tuple(words.chunks), tuple(starts.chunks)
        head = [count, table.ctypes.data, table.size - 1, 0, 0, players.chunk_bits, len(chunks)]
        if former is not None:
            head[3:5] = former.ctypes.data, former.size - 1
        places = [*head, *(chunk.ctypes.data for chunk in (*chunks, *beginnings))]
        described = Described(np.array(places, dtype=np.int64), (chunks, beginnings, table, former), count)
        players.described = described
    return described


class _Part(NamedTuple):
    """What a kernel is told of a run and all below it, and the arrays made for that."""

    whole: Ints
    holds: tuple[Ints, ...]


def _of_rows(rows: Rows) -> list[int]:
    columns = (rows.key, rows.second, rows.tie, rows.slot, rows.achieved, rows.version)
    return [len(rows), *(0 if column is None else column.ctypes.data for column in columns), int(rows.wide)]


def _stretches(column: Ints, limit: int) -> tuple[Ints, int]:
    """The place of the first number of each stretch of 2**shift in an ascending column of numbers up to `limit`, and the shift."""
    shift = 0
    while (limit >> shift) > max(1, column.size // _PER_STRETCH):
        shift += 1
    table = np.empty((limit >> shift) + 2, dtype=np.int32)
    runs.kernels.stretches(column, shift, table)
    return table, shift


def _part(run: Run) -> _Part:
    part: _Part | None = run.described
    if part is not None:
        return part
    if isinstance(run, Base):
        own = [*_of_rows(run.rows), run.where.ctypes.data, run.where.size]
        part = _Part(np.array([0, int(run.rows.second is not None), *own], dtype=np.int64), ())
    else:
        below = _part(run.below)
        own, holds = [*_of_rows(run.added), run.gone.size], []
        last = int(run.slots[-1]) if run.slots.size else 0
        for column, limit in ((run.gone, run.below.total), (run.before, run.below.total), (run.slots, last)):
            table, shift = _stretches(column, limit)
            own += [column.ctypes.data, table.ctypes.data, shift]
            holds.append(table)
        own += [run.landed.ctypes.data, run.slot_rows.ctypes.data, run.gaps.ctypes.data]
        whole = np.concatenate((below.whole, np.array(own, dtype=np.int64)))
        whole[0] += 1
        part = _Part(whole, (*below.holds, *holds))
    run.described = part
    return part


def place_one(run: Run, player_id: str) -> tuple[int, ...]:
    """Position from 0 (-1: absent), better, key, second key, tie moment, achieved moment and version; the kernels are loaded."""
    players = _players(run.players)
    placed: tuple[int, ...] = kernels.place_one(players.places, _part(run).whole, player_id.encode())
    return placed


def find_slots(players: Players, ids: Ids) -> Slots:
    """See `Players.find_words`."""
    if kernels is None:
        return players.find_words(ids.words)
    out = np.empty(len(ids), dtype=np.int64)
    if out.size:
        described = _players(players)
        kernels.find_slots(described.places, ids.joined, out)
    return out


def find(run: Run, slots: Slots) -> tuple[Ints, Rows]:
    """See `Base.find`; slots of the rows are those asked for, also of the absent."""
    return run.find(slots) if kernels is None else _found(run, slots, False)[:2]


def find_with_better(run: Run, slots: Slots) -> tuple[Ints, Rows, Ints]:
    """The same, and for each row what `better` says of it, arbitrary for the absent."""
    if kernels is None:
        at, rows = run.find(slots)
        return at, rows, run.better(rows.key, rows.second)
    return _found(run, slots, True)


def _found(run: Run, slots: Slots, counting: bool) -> tuple[Ints, Rows, Ints]:
    out = np.zeros((7, slots.size), dtype=np.int64)
    kernels.find_rows(_part(run).whole, slots.astype(np.int64, copy=False), counting, out)
    base = base_of(run).rows
    at, key, second, tie, achieved, version, better = out
    rows = Rows(key, None if base.second is None else second, tie, slots, None if base.achieved is None else achieved, version)
    return at, rows, better


def better(run: Run, key: Ints, second: Ints | None) -> Ints:
    """See `Base.better`."""
    if kernels is None:
        return run.better(key, second)
    out = np.empty(key.size, dtype=np.int64)
    key = np.ascontiguousarray(key)
    kernels.count_better(_part(run).whole, key, key if second is None else np.ascontiguousarray(second), out)
    return out


def lower_bound(run: Run, key: Ints, second: Ints | None, tie: Ints, ids: Ids) -> Ints:
    """See `Base.lower_bound`."""
    if kernels is None:
        return run.lower_bound(Wanted(key, second, tie, ids.words))
    return _ahead(run, key, second, tie, np.empty(0, dtype=np.int64), ids.joined)


def lower_bound_of_rows(run: Run, rows: Rows) -> Ints:
    """The same for rows of players who have slots in the table of this run."""
    if kernels is None:
        return run.lower_bound(Wanted(rows.key, rows.second, rows.tie, run.players.words(rows.slot)))
    return _ahead(run, rows.key, rows.second, rows.tie, rows.slot.astype(np.int64), b"")


def _ahead(run: Run, key: Ints, second: Ints | None, tie: Ints, slots: Ints, joined: bytes) -> Ints:
    out = np.empty(key.size, dtype=np.int64)
    described = _players(run.players)
    key, second, tie = (np.ascontiguousarray(column) for column in (key, key if second is None else second, tie))
    kernels.count_ahead(described.places, _part(run).whole, key, second, tie, slots, joined, out)
    return out
