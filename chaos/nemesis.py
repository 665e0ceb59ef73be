"""Does what the plan says, at the time and on the victims that the state of the cluster allows, and writes all of it down.

At most `at_once` faults at a time, and never in three regions: one is always left to read from, as the objective counts
reads that *some* region answers. No fault takes the data of a store.
"""

import random
import threading
import time
from collections.abc import Sequence

from chaos.faults import FaultFailed, Target, hurt, recovered
from chaos.history import FaultLine, History
from chaos.rig import Rig
from chaos.schedule import Kind, Planned, plan

#: So long a region may take to come back on a busy machine before its fault is called slow.
_RECOVER_S = 60.0
_WAIT_S = 0.05


class Nemesis(threading.Thread):
    """Hurts the cluster from `start` until `stop`, or for `seconds`."""

    def __init__(
        self, rig: Rig, history: History, kinds: Sequence[Kind], *, seed: int, seconds: float, mean_pause_s: float, at_once: int
    ) -> None:
        super().__init__(name="nemesis")
        self._rig, self._history = rig, history
        self._plan = plan(seed, kinds, mean_pause_s=mean_pause_s)
        self._seconds, self._at_once = seconds, at_once
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        #: Faults under way -> regions whose reads they take, and the regions that they are about.
        self.active: dict[int, tuple[frozenset[str], tuple[str, ...]]] = {}
        self._workers: list[threading.Thread] = []
        #: How many faults were begun, and why the nemesis ended before its time; "" if it did not.
        self.begun = 0
        self.failure = ""

    def run(self) -> None:
        """Until the time is over or `stop`; all faults are put back when it returns."""
        deadline = time.monotonic() + self._seconds
        try:
            while not self._stop_event.is_set() and time.monotonic() < deadline:
                planned = next(self._plan)
                if self._stop_event.wait(min(planned.pause_s, max(0.0, deadline - time.monotonic()))):
                    break
                self._begin(planned, deadline)
                self._workers = [worker for worker in self._workers if worker.is_alive()]
        except Exception as error:  # told by the run
            self.failure = f"the nemesis: {error!r}"
        finally:
            if self.failure:
                self._stop_event.set()  # put back at once what is under way
            for worker in self._workers:
                worker.join()

    def stop(self) -> None:
        """Begin nothing new, and put back at once what is under way."""
        self._stop_event.set()

    def _begin(self, planned: Planned, deadline: float) -> None:
        """Start the fault as soon as it is allowed."""
        dice = random.Random(planned.dice)
        while time.monotonic() < deadline and not self._stop_event.is_set():
            owner = self._rig.owner() if planned.aim != "any" and len(self.active) < self._at_once else ""
            with self._lock:
                target = self.aimed(planned, owner, dice) if len(self.active) < self._at_once else None
                if target is not None:
                    hurts = frozenset(target.regions[:1]) if planned.kind.hurts == "region" else frozenset()
                    self.active[planned.number] = (hurts, target.regions)
            if target is not None:
                worker = threading.Thread(target=self._carry_out, args=(planned, target), name=f"fault-{planned.number}")
                self._workers.append(worker)
                self.begun += 1
                worker.start()
                return
            self._stop_event.wait(_WAIT_S)

    def aimed(self, planned: Planned, owner: str, dice: random.Random) -> Target | None:
        """Whom to hit now, if `owner` owns the shard; None if nobody may be."""
        regions, kind = self._rig.regions, planned.kind
        if kind.hurts == "none":
            return Target(regions=())
        if kind.name == "disk-full":
            allowed = [self._rig.disk_region]
        else:
            wanted = {"owner": [owner], "other": [region for region in regions if region != owner]}.get(planned.aim, regions)
            allowed = [region for region in wanted if region in regions] or list(regions)
        if kind.hurts == "region":
            hurting = frozenset[str]().union(*(hurts for hurts, _ in self.active.values()))
            allowed = [region for region in allowed if len(hurting | {region}) < len(regions)]
            return Target(regions=(dice.choice(allowed),)) if allowed else None
        first = dice.choice(allowed)
        pair = (first, dice.choice([region for region in regions if region != first]))
        busy = [set(about) for _, about in self.active.values() if len(about) == len(pair)]
        return None if set(pair) in busy else Target(regions=pair)  # one fault of a link at a time: one would put back the other

    def _carry_out(self, planned: Planned, target: Target) -> None:
        try:
            self._tell(planned, target, "begun", "")
            try:
                detail, victims = hurt(self._rig, planned, target, self._stop_event)
            except FaultFailed as error:
                self._tell(planned, target, "failed", str(error))
                return
            well = recovered(self._rig, planned, target, victims, self._stop_event, _RECOVER_S)
            self._tell(planned, target, "ended" if well else "slow", detail)
        except Exception as error:  # told by the run
            self.failure = f"fault {planned.number} ({planned.kind.name}): {error!r}"
        finally:
            with self._lock:
                del self.active[planned.number]

    def _tell(self, planned: Planned, target: Target, phase: str, detail: str) -> None:
        self._history.write(
            FaultLine(
                t=self._history.now(),
                id=planned.number,
                phase=phase,  # type: ignore[arg-type]  # one of the four words
                name=planned.kind.name,
                regions=list(target.regions),
                detail=detail,
            )
        )
