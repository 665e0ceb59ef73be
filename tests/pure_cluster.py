"""A simulated cluster that a test drives by hand: who is started, who dies, which messages pass, when time goes on."""

from collections.abc import Callable

from boards.policies import make_rules
from failover import events as e
from failover.state import ShardState, Timing
from simulation import operators, schedule
from simulation.checks import at_end
from simulation.client import Sent, write
from simulation.network import Call
from simulation.process import Process
from simulation.watch import WatchedLog
from simulation.world import SHARD, TIMING, World

__all__ = ["REGIONS", "SHARD", "TIMING", "Schedule"]

REGIONS = ("eu", "us", "ap")


class Schedule:
    """See the module docstring. Messages take 1 ms and none is lost unless `run` is told what may pass."""

    def __init__(self, seed: int = 0, *, timing: Timing = TIMING) -> None:
        self.world = World(seed, timing=timing)
        self.world.tick_ms, self.world.network.delay = 10, (1, 1)
        self.world.boards = {"b": make_rules("best_score", publish_interval_ms=1000)}
        self.world.board_names, self.world.players = ["b"], ["p"]
        self.network, self.watch = self.world.network, self.world.watch

    @property
    def logs(self) -> dict[str, WatchedLog]:
        """The stores' logs."""
        return {name: region.store.log for name, region in self.world.regions.items()}

    def process(self, name: str) -> Process | None:
        """The newest process of a region that lives."""
        return self.world.regions[name].process

    def state(self, name: str) -> ShardState:
        """Its machine's state."""
        process = self.process(name)
        assert process is not None
        return process.state

    def start(self, *names: str) -> None:
        self.world.start(*names)

    def crash(self, name: str) -> None:
        """Its process dies, and what it had under way is lost."""
        self.world.regions[name].kill()
        self.network.drop(lambda call: call.origin == name)

    def isolate(self, name: str) -> None:
        self.network.isolate(name)

    def join(self) -> None:
        """All ways are open."""
        self.network.heal()

    def activate(self, name: str) -> None:
        operators.force(self.world, name)

    def drain(self, name: str) -> None:
        """A coordinator in another region asks for the handover, and is not heard of again."""
        process = self.process(name)
        assert process is not None
        ask = Call(
            "drain", self.world.regions["us"].gateway, "us", name, process.drain, lambda _: None, 0, True, (process.state.epoch, "us")
        )
        process.drain(ask)

    def write(self, name: str) -> Sent:
        """One event at this region's gateway."""
        return write(self.world, name)

    def run(self, ms: int, only: Callable[[Call], bool] | None = None) -> None:
        """Let time pass; messages (and answers) for which `only` does not hold wait until a later `run` lets them pass."""
        self.network.let_pass(only)
        self.world.run(ms)

    def hear(self, name: str, event: e.Event) -> None:
        process = self.process(name)
        assert process is not None
        process.hear(event)

    def authorities(self) -> list[str]:
        return [process.name for process in self.world.authorities()]

    def check(self) -> str:
        """After the faults stopped: one authority, one log, everything acknowledged in it, what was cut among the orphans; the owner."""
        schedule.agree(self.world)
        at_end(self.world)
        (owner,) = self.authorities()
        return owner
