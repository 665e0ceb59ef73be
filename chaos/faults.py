"""How each kind of fault is done and put back. A fault never leaves `hurt` without having put itself back, whatever happens in it."""

import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from chaos.disks import DiskError
from chaos.namespaces import NetworkError
from chaos.rig import Rig
from chaos.schedule import Planned
from regions import process_tree
from regions.launcher import StartError
from regions.process_tree import Process

#: A link fault ends by itself so much after its time, should nobody end it.
_EXPIRY_MS = 2_000
_LOOK_S = 0.25
#: So long a part that does not run is waited for.
_APPEAR_S = 6.0


class FaultFailed(Exception):
    """It could not be done now: the victim does not run, or did not answer. Nothing was left undone."""

    code = "fault_failed"
    definite = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom a planned fault hits: regions, the first one foremost."""

    regions: tuple[str, ...]


def hurt(rig: Rig, planned: Planned, target: Target, stop: threading.Event) -> tuple[str, Sequence[Process]]:
    """Do the fault for its length, or until `stop`, and put it back: (what was done, processes that must be replaced or go on).

    Raises FaultFailed.
    """
    group, _, part = planned.kind.name.partition("-")
    try:
        match group:
            case "kill":
                return _kill(rig, target.regions[0], part, stop)
            case "stop":
                return _stop(rig, target.regions[0], part, planned.length_s, stop)
            case "failover":
                return _failover(rig, part, planned.dice), ()
        with _broken(rig, planned, target) as detail:
            stop.wait(planned.length_s)
        return detail, ()
    except (NetworkError, DiskError, StartError) as error:
        raise FaultFailed(str(error)) from error


def _kill(rig: Rig, region: str, part: str, stop: threading.Event) -> tuple[str, Sequence[Process]]:
    victims = _victims(rig, region, part, stop)
    if part == "region":
        rig.kill_region(region)
        victims = victims[:1]  # the supervisor stands for all
    else:
        for process in victims:
            process_tree.send(process, signal.SIGKILL)
    return f"{part} of {region}", victims


def _stop(rig: Rig, region: str, part: str, length_s: float, stop: threading.Event) -> tuple[str, Sequence[Process]]:
    victims = _victims(rig, region, part, stop)
    try:
        for process in victims:
            process_tree.send(process, signal.SIGSTOP)
        stop.wait(length_s)
    finally:
        # Children first, so that a supervisor that wakes finds them awake.
        for process in reversed(victims):
            process_tree.send(process, signal.SIGCONT)
    return f"{part} of {region}", ()


def _victims(rig: Rig, region: str, part: str, stop: threading.Event) -> list[Process]:
    """The part's processes, waited for a while: an earlier fault may just have taken them."""
    deadline = time.monotonic() + _APPEAR_S
    while not (found := rig.pids(region, part)):
        if time.monotonic() > deadline or stop.wait(_LOOK_S):
            raise FaultFailed(f"{region} has no {part} running")
    return found


@contextmanager
def _broken(rig: Rig, planned: Planned, target: Target) -> Iterator[str]:
    """Links, networks and the disk."""
    first, second = target.regions[0], target.regions[-1]
    match planned.kind.name:
        case "disk-full":
            try:
                rig.fill_disk()
                yield f"the store's disk of {first}"
            finally:
                rig.free_disk()
        case "net-isolate":
            assert rig.networks is not None
            try:
                rig.networks.isolate(first)
                yield f"{first} from all others and from clients"
            finally:
                rig.networks.rejoin(first)
        case "net-cut" | "net-oneway":
            assert rig.networks is not None
            both = planned.kind.name == "net-cut"
            try:
                rig.networks.mute(first, second)
                if both:
                    rig.networks.mute(second, first)
                yield f"packets from {first} to {second}{' and back' if both else ''}"
            finally:
                rig.networks.unmute(first, second)
                if both:
                    rig.networks.unmute(second, first)
        case _:
            with _switched(rig, planned, first, second) as detail:
                yield detail


@contextmanager
def _switched(rig: Rig, planned: Planned, region: str, peer: str) -> Iterator[str]:
    dice = random.Random(planned.dice)
    direction = dice.choice(("in", "out")) if planned.kind.name == "link-oneway" else "both"
    delay_ms = dice.choice((20, 80, 200, 600)) if planned.kind.name == "link-delay" else 0
    mode, for_ms = "delay" if delay_ms else "drop", int(planned.length_s * 1000) + _EXPIRY_MS
    try:
        if not rig.set_link(region, peer, direction, mode, for_ms=for_ms, delay_ms=delay_ms):
            region, peer = peer, region
            if not rig.set_link(region, peer, direction, mode, for_ms=for_ms, delay_ms=delay_ms):
                raise FaultFailed(f"neither {peer} nor {region} turned its switch")
        yield f"{region} to {peer}, {direction}: {f'{delay_ms} ms' if delay_ms else mode}"
    finally:  # of both: a switch may have been turned although its answer was lost
        rig.set_link(region, peer, direction, "clear")
        rig.set_link(peer, region, direction, "clear")


def _failover(rig: Rig, how: str, dice_seed: int) -> str:
    dice = random.Random(dice_seed)
    owner = rig.owner()
    others = [region for region in rig.regions if region != owner]
    dice.shuffle(others)
    if how != "twice":
        done, said = rig.failover(dice.choice(rig.regions), others[0], force=how == "forced")
    else:  # two operators who do not know of each other
        with ThreadPoolExecutor(2) as pool:
            orders = [(dice.choice(rig.regions), to, dice.random() < 0.7) for to in (others[0], dice.choice(rig.regions))]
            replies = list(pool.map(lambda order: rig.failover(order[0], order[1], force=order[2]), orders))
        done, said = any(reply[0] for reply in replies), "; ".join(reply[1] for reply in replies)
    if not done:
        raise FaultFailed(said)
    return said


def recovered(rig: Rig, planned: Planned, target: Target, victims: Sequence[Process], stop: threading.Event, timeout_s: float) -> bool:
    """Wait until killed processes are replaced and the region answers reads again; False if it did not in time, or `stop` came."""
    if planned.kind.hurts != "region":
        return True
    region, part = target.regions[0], planned.kind.name.partition("-")[2]
    deadline = time.monotonic() + timeout_s
    while not _back(rig, region, part, victims):
        if time.monotonic() > deadline or stop.wait(_LOOK_S):
            return False
    return True


def _back(rig: Rig, region: str, part: str, victims: Sequence[Process]) -> bool:
    if victims:
        now = rig.pids(region, "supervisor" if part == "region" else part)
        if not now or any(process in now for process in victims):
            return False
    return rig.readable(region)
