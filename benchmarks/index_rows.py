"""The players of the index benchmarks, made from their numbers: the same ones for Laurel, the peer and the offline sort."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from boards.index import Batch, Change

Numbers = npt.NDArray[np.int64]

#: Rows that are made, written or loaded at a time.
PIECE = 100_000
_BEGIN_MS = 1_700_000_000_000


def name(number: int) -> str:
    """A player's id; twelve digits, as the C client fills them in."""
    return f"p-{number:012d}"


def rows(players: int, seed: int) -> Iterator[Numbers]:
    """Pieces of shape (3, n): number, value, moment. A value in about a thousand is shared by many players."""
    for first in range(0, players, PIECE):
        chosen = np.random.default_rng((seed, first))
        number = np.arange(first, min(first + PIECE, players))
        yield np.array([number, chosen.integers(0, 2**40, number.size), _BEGIN_MS + chosen.integers(0, 10**9, number.size)])


def batch(piece: Numbers, version: int = 1) -> Batch:
    """For an index whose tie moment is the achieved one."""
    number, value, moment = piece
    return Batch([name(n) for n in number.tolist()], value, np.zeros_like(value), moment, moment, np.full(value.size, version))


def changes(players: int, count: int, round_: int) -> Numbers:
    """What `count` players did in a round, as `rows` has it."""
    chosen = np.random.default_rng((players, round_, 7))
    number = np.unique(chosen.integers(0, players, count + count // 50))[:count]
    return np.array([number, chosen.integers(0, 2**40, number.size), np.full(number.size, _BEGIN_MS + 10**9 + round_)])


def as_changes(piece: Numbers, version: int) -> list[Change]:
    """The same as a replica has them."""
    return [Change(name(number), value, moment, moment, version) for number, value, moment in piece.T.tolist()]


def offline_ranks(values: Numbers, asked: Numbers) -> list[int]:
    """Competition ranks of the asked players, higher values first, from one plain sort of all."""
    ordered = np.sort(values)
    ranks: list[int] = (1 + values.size - ordered.searchsorted(values[asked], "right")).tolist()
    return ranks
