"""One chaos run, from the first region's start to the last one's end."""

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from chaos import closing, disks, namespaces
from chaos.history import VERSION, End, History, Run
from chaos.load import GameServer, Place, Reader
from chaos.nemesis import Nemesis
from chaos.report import Report, judge, write_report
from chaos.rig import BOARDS, SHARD, Rig
from chaos.schedule import Kind
from laurel.provenance import commit, machine
from regions.launcher import StartError

#: Writes before the first fault, and after the last one, in seconds.
_CALM_S = 2.0
#: An owner that failed to activate five times stands aside for five minutes: I10 allows it that, and no more than that.
_READY_S = _AGREE_S = 360.0
_TELL_S = 10.0
_ROOT = Path(__file__).resolve().parent.parent

Say = Callable[[str], None]


class Interrupted(Exception):
    """A signal came; all was put back and ended."""

    code = "interrupted"
    definite = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to run. `events_per_s` is of all regions together; `out` is a directory that is made."""

    minutes: float
    seed: int
    kinds: Sequence[Kind]
    out: Path
    events_per_s: float = 40.0
    mean_pause_s: float = 4.5
    at_once: int = 3


def run(settings: Settings, say: Say) -> Report:
    """Run, close, judge; history, report and the regions' logs are in `out`.

    Raises StartError, NetworkError or DiskError where the cluster does not start or none of the faults is possible,
    FileExistsError where `out` has a history already, and Interrupted, with the report of what there was written down.
    """
    kinds, unavailable = possible(settings.kinds)
    if not kinds:
        raise StartError(f"none of these faults can be done here: {'; '.join(unavailable.values())}.")
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / "history.jsonl"
    if path.exists():
        raise FileExistsError(errno.EEXIST, "there is a history already: name another directory with --out", str(path))
    stop = threading.Event()
    groups = {kind.name.partition("-")[0] for kind in kinds}
    with _signals(stop), Rig(network="net" in groups, disk="disk" in groups, seed=settings.seed) as rig:
        for kind, why in unavailable.items():
            say(f"skipped: {kind}: {why}")
        say("starting three regions")
        rig.start(lambda _: _go_on(stop))
        say(f"{settings.minutes:g} minutes of {len(kinds)} kinds of faults, seed {settings.seed}; history: {path}")
        with History(path) as history:
            history.write(_first_line(settings, kinds, unavailable, rig))
            try:
                why = _hurt(rig, history, settings, kinds, stop, say)
            except BaseException as error:
                history.write(End(t=history.now(), complete=False, why=f"the run failed: {error!r}"))
                raise
            history.write(End(t=history.now(), complete=not why, why=why))
        report = judge(path)
        write_report(report, settings.out)
        rig.keep_logs(settings.out / "logs")
    if stop.is_set():
        raise Interrupted(f"interrupted; what there was is in {settings.out}")
    return report


def possible(kinds: Sequence[Kind]) -> tuple[list[Kind], dict[str, str]]:
    """The kinds that can be done here, and for the others (by group) why not."""
    groups = {kind.name.partition("-")[0] for kind in kinds}
    checks = {"net": namespaces.unavailable, "disk": disks.unavailable}
    why = {group: said for group, check in checks.items() if group in groups and (said := check())}
    return [kind for kind in kinds if kind.name.partition("-")[0] not in why], why


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("interrupted before the regions were ready; nothing is left")


def _hurt(rig: Rig, history: History, settings: Settings, kinds: Sequence[Kind], stop: threading.Event, say: Say) -> str:
    """Load, nemesis, closing. Why the run is not complete, "" if it is."""
    place = Place(urls=rig.urls, token=rig.token("game-server"), boards=BOARDS, seed=settings.seed)
    pace = settings.events_per_s / len(rig.regions)
    servers = [GameServer(region, place, history, events_per_s=pace) for region in rig.regions]
    readers = [Reader(region, place, history, pause_s=0.25) for region in rig.regions]
    nemesis = Nemesis(
        rig,
        history,
        kinds,
        seed=settings.seed,
        seconds=settings.minutes * 60,
        mean_pause_s=settings.mean_pause_s,
        at_once=settings.at_once,
    )
    clients: list[GameServer | Reader] = [*servers, *readers]
    try:
        for client in clients:
            client.start()
        stop.wait(_CALM_S)
        nemesis.start()
        told = time.monotonic()
        while nemesis.is_alive() and not stop.is_set() and not _failures(clients, nemesis):
            nemesis.join(0.2)
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                say(f"{history.now():7.0f} s  faults {nemesis.begun}  acknowledged {sum(server.acknowledged for server in servers)}")
        nemesis.stop()
        nemesis.join()
        rig.heal()
        if not stop.is_set() and rig.launcher is not None:
            say("all faults are put back; waiting until the regions are ready")
            try:
                rig.launcher.wait_ready(_READY_S, lambda _: _go_on(stop))
            except (StartError, Interrupted) as error:  # told below, by what the regions say of themselves or by `stop`
                say(str(error))
            stop.wait(_CALM_S)
    finally:
        nemesis.stop()
        if nemesis.ident is not None:
            nemesis.join()
        for client in clients:
            client.stop()
        for client in clients:
            if client.ident is not None:
                client.join()
    if failed := _failures(clients, nemesis):
        return failed
    if stop.is_set():
        return "interrupted"
    say("asking for every event once more")
    return closing.close(rig, history, BOARDS, timeout_s=_AGREE_S, stop=stop)


def _failures(clients: Sequence[GameServer | Reader], nemesis: Nemesis) -> str:
    return "; ".join(who.failure for who in (*clients, nemesis) if who.failure)


def _first_line(settings: Settings, kinds: Sequence[Kind], unavailable: dict[str, str], rig: Rig) -> Run:
    return Run(
        t=0.0,
        version=VERSION,
        wall=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        seed=settings.seed,
        minutes=settings.minutes,
        shard=SHARD,
        regions=rig.regions,
        boards=BOARDS,
        faults=[kind.name for kind in kinds],
        unavailable=unavailable,
        commit=commit(),
        machine=machine(),
    )


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Signals that end a command set `stop`: a second one must not cut the putting back short. In the main thread only."""

    def heard(number: int, frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
