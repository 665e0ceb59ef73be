"""Each mutant of the product is caught on a few known seeds; `laurel simulate --mutants` tries them all on many."""

import pytest

from failover import logs
from journal.memory import MemoryLog
from simulation import runs, schedule
from simulation.mutants import MUTANTS, PROVOKED, broken

#: A mutant escapes when so many seeds show nothing. Which seed shows it first moves with every change of the product.
SEEDS = 150


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught_and_the_product_passes_on_the_same_seed(name: str) -> None:
    faults, shards = (PROVOKED[name],) if name in PROVOKED else (), runs.shards_for(name)
    with broken(name) as switches:
        outcomes = (schedule.run(seed, faults=faults, switches=switches, shards=shards) for seed in range(SEEDS))
        caught = next((outcome.seed for outcome in outcomes if runs.catches(name, outcome)), None)
    assert caught is not None, f"{name} escapes"
    assert schedule.run(caught, faults=faults, shards=shards).violation is None


def test_a_mutant_is_gone_when_it_is_left() -> None:
    seal, best = MemoryLog.seal.__code__, logs.most_advanced.__code__
    with broken("cut_on_hearsay"), broken("log_by_length"):
        assert MemoryLog.seal.__code__ is not seal and logs.most_advanced.__code__ is not best
    assert MemoryLog.seal.__code__ is seal and logs.most_advanced.__code__ is best


def test_a_hunt_ends_at_enough_detections_and_counts_its_runs() -> None:
    name, done, detections, how = runs.hunt(("half_of_the_copies", 0, 50, 2))
    assert (name, detections) == ("half_of_the_copies", 2) and 2 <= done < 50 and how.startswith("seed 0:")
