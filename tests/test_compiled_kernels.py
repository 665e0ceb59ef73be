"""Compiled look-ups and merges beside the numpy code that they stand for: the same numbers, array by array."""

import random
from concurrent.futures import Executor, Future
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import boards.index as index_module
from boards import compiled, runs
from boards.index import Change, RankIndex
from boards.model import Direction
from boards.players import Ids, Players
from boards.runs import Delta, deltas_of


class Never(Executor):
    """Takes work and does not do it, so that every delta stays on the stack."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return Future()


def arrays(delta: Delta) -> list[list[int]]:
    own = (delta.gone, delta.gaps, delta.before, delta.landed, delta.slots, delta.slot_rows)
    return [column.tolist() for column in (*own, *delta.added.arrays)]


class Board:
    """A few hundred players with ties of every kind, and as many deltas on each other as there were batches."""

    def __init__(self, seed: int, batches: list[int], secondary: Direction | None, values: int) -> None:
        self.random, self.values = random.Random(seed), values
        self.names = [f"{'player-' * (i % 4)}{i}" for i in range(400)]
        self.index = RankIndex(direction="higher", ranking="competition", secondary=secondary, executor=Never(), small_up_to=0)
        self.index.freeze([self.change(name) for name in self.names[:300]])
        self.index.compact()
        with pytest.MonkeyPatch.context() as patch:
            # From here on nothing is merged, whatever its size.
            patch.setattr(index_module, "_MERGED_AT_ONCE", 0)
            for size in batches:
                chosen = self.random.sample(self.names, size)
                self.index.freeze([self.change(name) for name in chosen], self.random.sample(self.names, size // 4))

    def change(self, name: str) -> Change:
        number = self.random.randrange
        return Change(name, number(-self.values, self.values), number(3), number(9), number(2**33), number(3))


@pytest.mark.parametrize("secondary", [None, "lower"])
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    batches=st.lists(st.integers(0, 150), min_size=2, max_size=5),
    values=st.sampled_from([1, 20, 2**62]),
)
def test_kernels_say_what_numpy_says(secondary: Direction | None, seed: int, batches: list[int], values: int) -> None:
    assert compiled.load(), compiled.reason
    board = Board(seed, batches, secondary, values)
    run = board.index.view.run
    ids = Ids([*board.random.choices(board.names, k=200), "nobody", ""])
    stack = deltas_of(run)
    strangers = [board.change(name) for name in ids.texts]
    second = None if secondary is None else np.array([change.second for change in strangers])
    wanted = np.array([change.value for change in strangers]), second, np.array([change.tie_ms for change in strangers]), ids

    def everything() -> list[Any]:
        slots = compiled.find_slots(run.players, ids)
        at, rows, better = compiled.find_with_better(run, slots)
        here = np.flatnonzero(at >= 0)
        present = rows.take(here)
        return [
            slots.tolist(),
            at.tolist(),
            compiled.find(run, slots)[0].tolist(),
            [column.tolist() for column in present.arrays],
            better[here].tolist(),
            compiled.better(run, wanted[0], second).tolist(),
            compiled.lower_bound(run, *wanted).tolist(),
            compiled.lower_bound_of_rows(run, present).tolist(),
            [arrays(lower.folded(upper)) for upper, lower in pairwise(stack)],
            [arrays(Delta(each.below, each.gone, each.before, each.added, each.slots, each.slot_rows)) for each in stack],
        ]

    said = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernels", None)
        patch.setattr(runs, "kernels", None)
        assert said == everything()
    # A row's own place is where its key would go.
    assert said[7] == [at for at in said[1] if at >= 0]


def test_a_description_finds_nobody_who_was_admitted_after_it_and_reads_nothing_outside_of_it() -> None:
    """A reader may hold it while newcomers are put into the same table, in a thread: their slots are in chunks that it does not have."""
    if not compiled.load():
        pytest.skip(f"no compiled kernels here: {compiled.reason}")
    assert compiled.kernels is not None
    for known in (255, 256, 1023, 1024):
        players = Players()
        names = [f"a-player-with-a-long-name-{n:07}" for n in range(known)]
        players.admit(names)
        described = compiled._players(players)
        fresh = [f"newcomer-{n}-{'x' * (n % 40)}" for n in range(600)]
        players.admit(fresh)
        asked = [name for pair in zip(names, fresh[:known] * 2, strict=False) for name in pair][:1000]
        out = np.empty(len(asked), dtype=np.int64)
        compiled.kernels.find_slots(described.places, Ids(asked).joined, out)
        expected = [known_slot if (known_slot := int(players.find((name,))[0])) < known else -1 for name in asked]
        assert [slot if slot < known else -1 for slot in out.tolist()] == expected
