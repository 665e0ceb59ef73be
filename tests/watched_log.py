"""The checks of the simulator, by the names that the tests of real actors use."""

from simulation.checks import check_history
from simulation.client import Sent
from simulation.model import Applied, Identity, fold_naively
from simulation.watch import Key, Watch, WatchedLog, key

__all__ = ["Applied", "Identity", "Key", "Sent", "Watch", "WatchedLog", "check_history", "fold_naively", "key"]
