"""A seed is a whole history, also in another process: what is a set of names must not decide an order."""

import os
import subprocess
import sys

SCRIPT = "from simulation.schedule import run\nfor seed in range(40): print(run(seed, fingerprint=True).fingerprint)"


def told(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout.split()


def test_a_seed_gives_the_same_history_whatever_the_process_hashes_names_to() -> None:
    first = told("1")
    assert len(set(first)) == 40
    assert told("2") == first
