"""How long writes pause when authority moves: a planned handover, and an operator's forced failover with the owner dead.

A game server in each region submits one event after the other, the same event again until it is acknowledged. Two pauses
are told: `command`, from the operator's command to the first acknowledgement by the new owner; and `writes`, the longest
time around it in which no game server of a surviving region got any acknowledgement.
"""

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from benchmarks.cluster import Cluster, until
from benchmarks.figures import Figure, figure, longest_gap, median
from benchmarks.options import Options

PLANNED_GOAL_MS, FORCED_GOAL_MS = 500.0, 1500.0
#: Load before a command, and after it until pauses are read off.
BEFORE_S, AFTER_S = 0.6, 1.0
#: Repetitions begin only while there is time for one more.
ENOUGH_S = 115.0


@dataclass(slots=True)
class GameServer:
    """One thread at one region's gateway; `acknowledged` holds the instant and the epoch of each acknowledgement."""

    region: str
    port: int
    token: str
    board: str
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End after the event under way."""
        self.ending.set()
        if self.thread is not None:
            self.thread.join(10)

    def _serve(self) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        # Ids that no earlier failover has used: a duplicate would be answered with the epoch that first took it.
        number, unique = 0, uuid.uuid4().hex[:8]
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=5, trust_env=False) as client:
            while not self.ending.is_set():
                number += 1
                event = {"event_id": f"{unique}-{number}", "player_id": f"p-{self.region}-{number % 50}", "value": number}
                while not self.ending.is_set():
                    epoch = self._post(client, event)
                    if epoch:
                        self.acknowledged.append((time.monotonic(), epoch))
                        break
                    self.ending.wait(0.01)
                self.ending.wait(0.004)

    def _post(self, client: httpx.Client, event: dict[str, object]) -> int:
        """The epoch that acknowledged the event, 0 if none did."""
        try:
            reply = client.post(f"/v1/boards/{self.board}/events", json=event)
            result = reply.json()["results"][0]
            return int(result["epoch"]) if reply.status_code == 200 and result["acked"] == "quorum" else 0
        except (httpx.HTTPError, KeyError, ValueError):
            return 0


@dataclass(frozen=True, slots=True)
class Pause:
    """One failover, in milliseconds."""

    command: float
    writes: float


def pause_of(seen: Sequence[tuple[float, int]], epoch: int, *, since: float, command: float, end: float) -> Pause:
    """From (instant, epoch) of all acknowledgements; `epoch` is the one that the failover started."""
    first = min((at for at, by in seen if by >= epoch), default=end)
    return Pause((first - command) * 1000, longest_gap([at for at, _ in seen], since, end) * 1000)


def _seen(servers: list[GameServer]) -> list[tuple[float, int]]:
    return [pair for server in servers for pair in list(server.acknowledged)]


def run(options: Options) -> Iterator[Figure]:
    """Medians and worst cases of some repetitions."""
    began = time.monotonic()
    planned: list[Pause] = []
    forced: list[Pause] = []
    with Cluster() as cluster:
        board = cluster.fresh_board()
        home, other = cluster.regions[0], cluster.regions[1]
        for number in range(options.repeat):
            if number and time.monotonic() - began > ENOUGH_S:
                options.say(f"time is up after {number} repetitions")
                break
            round_began = time.monotonic()
            cluster.settled(home)
            planned.append(_planned(cluster, board, other))
            cluster.settled(other)
            planned.append(_planned(cluster, board, home))
            cluster.settled(home)
            forced.append(_forced(cluster, board, home, other))
            cluster.launcher.release(home)
            cluster.launcher.wait_ready(60)
            cluster.settled(other)
            until(lambda: _moved(cluster, home), f"the shard is home in {home}")
            options.say(
                f"  {number + 1}: planned {planned[-2].writes:.0f} and {planned[-1].writes:.0f} ms, forced {forced[-1].writes:.0f} ms "
                f"({forced[-1].command:.0f} from the command); {time.monotonic() - round_began:.0f} s"
            )
    for name, pauses, goal in (("failover_planned", planned, PLANNED_GOAL_MS), ("failover_forced", forced, FORCED_GOAL_MS)):
        writes, commands = [p.writes for p in pauses], [p.command for p in pauses]
        yield figure(f"{name}_writes_pause", median(writes), "ms", goal=goal, lower_is_better=True)
        yield figure(f"{name}_writes_pause_worst", max(writes), "ms")
        yield figure(f"{name}_command_to_write", median(commands), "ms", goal=goal, lower_is_better=True)
        yield figure(f"{name}_command_to_write_worst", max(commands), "ms")
        yield figure(f"{name}_repetitions", len(pauses), "failovers")


def _servers(cluster: Cluster, board: str, regions: list[str]) -> list[GameServer]:
    servers = [GameServer(name, cluster.ports[name], cluster.token("game-server"), board) for name in regions]
    for server in servers:
        server.start()
    until(lambda: all(server.acknowledged for server in servers), "every game server was acknowledged once", 20)
    time.sleep(BEFORE_S)
    return servers


def _planned(cluster: Cluster, board: str, to: str) -> Pause:
    servers = _servers(cluster, board, cluster.regions)
    try:
        command = time.monotonic()
        epoch = cluster.failover(to, force=False)
        time.sleep(AFTER_S)
        return pause_of(_seen(servers), epoch, since=command - BEFORE_S / 2, command=command, end=time.monotonic())
    finally:
        for server in servers:
            server.stop()


def _forced(cluster: Cluster, board: str, owner: str, to: str) -> Pause:
    """The owner's whole region is killed, then the operator commands at once."""
    servers = _servers(cluster, board, [name for name in cluster.regions if name != owner])
    try:
        killed = time.monotonic()
        cluster.launcher.hold(owner)
        cluster.launcher.regions[owner].kill()
        command = time.monotonic()
        epoch = cluster.failover(to, force=True)
        # Requests that hung on the dead owner come back only when their gateway has learnt of the new one.
        until(lambda: any(by >= epoch for _, by in _seen(servers)), "a write after the failover", 20)
        time.sleep(AFTER_S)
        return pause_of(_seen(servers), epoch, since=killed, command=command, end=time.monotonic())
    finally:
        for server in servers:
            server.stop()


def _moved(cluster: Cluster, home: str) -> bool:
    if cluster.shard(home).get("serving"):
        return True
    try:
        cluster.failover(home, force=False)
    except httpx.HTTPError:
        return False
    return True
