"""Three real regions for a measurement: started as `laurel up` starts them, in a temporary directory, on free ports.

Nothing that production does is left out: tokens are checked, every store syncs each write to disk before it answers,
and an event counts only when a majority of the regions holds it.
"""

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from regions import process_tree, scratch
from regions.launcher import Launcher

HOME = "eu-west"
SHARD = f"{HOME}/0"
#: A gateway asks its actors for their status this often, with some to spare.
_STATUS_S = 0.4
#: Three regions with four shards use some 0.35 cores when nobody asks anything.
REST_CORES = 0.6
_TICKS = os.sysconf("SC_CLK_TCK")


class Cluster:
    """The regions, from `with` to its end. All `shards` are at home in the first region, and acknowledge by quorum."""

    def __init__(self, *, shards: int = 1) -> None:
        self.data_dir = Path(tempfile.mkdtemp(prefix="laurel-bench-"))
        self.shards = [f"{HOME}/{number}" for number in range(shards)]
        placed = {name: {"home": HOME, "ack": "quorum", "on_region_loss": "hold"} for name in self.shards}
        self._placed = scratch.place(self.data_dir, changes={"boards": {}, "shards": placed})
        self.regions = self._placed.regions
        self.launcher = Launcher(self._placed.path, self.data_dir)
        self.ports = {name: region.port for name, region in self._placed.config.regions.items()}
        self._operators = {
            name: httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"authorization": f"Bearer {self.token('operator')}"},
                timeout=30,
                trust_env=False,
            )
            for name, port in self.ports.items()
        }

    def __enter__(self) -> Self:
        try:
            self.launcher.start_all()
            self.launcher.wait_ready(120)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for client in self._operators.values():
            client.close()
        self.launcher.stop_all()
        for region in self.launcher.regions.values():
            shutil.rmtree(region.paths.ray_tmp, ignore_errors=True)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def token(self, scope: str) -> str:
        """A token for all games: game-server, reader or operator."""
        return self._placed.token(scope)

    def fresh_board(self, **rules: Any) -> str:
        """A new best-score board that every region knows."""
        board = f"arena-clash:bench-{uuid.uuid4().hex[:8]}:S7:global"
        home = self._operators[self.regions[0]]
        reply = home.post("/v1/admin/boards", json={"board": board, "policy": "best_score", **rules})
        _check(reply)
        for name, client in self._operators.items():
            until(lambda client=client: client.get(f"/v1/boards/{board}").status_code == 200, f"{name} knows {board}")  # type: ignore[misc]
        return board

    def shard(self, region: str, name: str = SHARD) -> dict[str, Any]:
        """What a region says of a shard; {} when it does not answer."""
        try:
            return dict(self._operators[region].get("/v1/status", timeout=2).json()["shards"][name])
        except (httpx.HTTPError, KeyError, ValueError):
            return {}

    def failover(self, to: str, *, force: bool) -> int:
        """An operator's command, given to region `to`; the epoch that it started. Raises httpx.HTTPStatusError when it is refused."""
        reply = self._operators[to].post("/v1/admin/failover", json={"shard": SHARD, "to": to, "force": force})
        _check(reply)
        return int(reply.json()["moved"][0]["epoch"])

    def shown(self, board: str, *, player_id: str = "the-last") -> None:
        """Submit one more event, which improves no row that has a value, and wait until every region shows a generation that includes it.

        On a board of one slice that includes all before it; elsewhere it says so only of the player's slice.
        """
        event = {"event_id": uuid.uuid4().hex, "player_id": player_id, "value": 0}
        headers = {"authorization": f"Bearer {self.token('game-server')}"}
        reply = self._operators[self.regions[0]].post(f"/v1/boards/{board}/events", json=event, headers=headers)
        _check(reply)
        result = reply.json()["results"][0]
        self.include(board, [result.get("at_least", f"{result['epoch']}-{result['offset']}")])

    def include(self, board: str, positions: Iterable[str]) -> None:
        """Wait until every region shows generations that include `positions`, each as `at_least` takes it."""
        headers = {"authorization": f"Bearer {self.token('game-server')}"}
        for position in positions:
            path = f"/v1/boards/{board}/top?limit=1&at_least={position}"
            for name, client in self._operators.items():
                until(lambda c=client, p=path: c.get(p, headers=headers).status_code == 200, f"{name} shows {position}")  # type: ignore[misc]

    def read(self, region: str, path: str, document: dict[str, Any] | None = None) -> bytes:
        """The body of an answer for a reader: GET, or POST with a document. Raises httpx.HTTPStatusError."""
        headers = {"authorization": f"Bearer {self.token('reader')}"}
        client = self._operators[region]
        reply = client.get(path, headers=headers) if document is None else client.post(path, json=document, headers=headers)
        _check(reply)
        return reply.content

    def settled(self, home: str) -> None:
        """Wait until `home` serves and every region has folded all that is committed, as its status tells with some delay."""
        time.sleep(_STATUS_S)
        for shard in self.shards:
            until(lambda shard=shard: self.shard(home, shard).get("serving"), f"{home} serves {shard}")  # type: ignore[misc]
            for name in self.regions:
                until(lambda name=name, shard=shard: self._level(name, home, shard), f"{name} has caught up with {shard}")  # type: ignore[misc]

    def rested(self, timeout_s: float = 40.0) -> float:
        """Wait until the regions use little CPU: what was filled in is written out and compacted. How long that took, in seconds.

        Raises TimeoutError.
        """
        began, roles = time.monotonic(), self.roles()
        os.sync()
        used = REST_CORES
        while used >= REST_CORES:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"not at rest within {timeout_s:g} s: {used:.2f} cores")
            before, since = sum(self.cpu_s(roles).values()), time.monotonic()
            time.sleep(1.0)
            used = (sum(self.cpu_s(roles).values()) - before) / (time.monotonic() - since)
        return time.monotonic() - began

    def _level(self, name: str, home: str, shard: str) -> bool:
        theirs, ours = self.shard(name, shard), self.shard(home, shard)
        return (
            bool(theirs)
            and bool(theirs.get("replica"))
            and theirs["replica"]["applied"] >= ours["committed"] - 1
            and theirs["applied"] >= ours["committed"] - 1
        )

    def roles(self) -> dict[int, str]:
        """Pid -> role of all living processes of the regions; `other` is Ray and the supervisors.

        Cost: a look at every process of the machine.
        """
        found: dict[int, str] = {}
        for region in self.launcher.regions.values():
            roles = {pid: role for role, pids in region.host_pids().items() for pid in pids}
            supervisor = next((pid for pid, role in roles.items() if role == "supervisor"), None)
            if supervisor is None:
                continue
            for pid in [supervisor, *(process.pid for process in process_tree.descendants(supervisor))]:
                role: str = roles.get(pid, "other")
                found[pid] = role if role in ("store", "shard", "replica", "gateway") else "other"
        return found

    def cpu_s(self, roles: Mapping[int, str] | None = None) -> dict[str, float]:
        """CPU seconds so far by role, of all living processes or of those in `roles`, which is quick."""
        spent: dict[str, float] = {}
        for pid, role in (self.roles() if roles is None else roles).items():
            spent[role] = spent.get(role, 0.0) + _cpu_s(pid)
        return spent


def _check(reply: httpx.Response) -> None:
    """Raises httpx.HTTPStatusError that says what the region said."""
    if reply.status_code >= 400:
        raise httpx.HTTPStatusError(f"{reply.status_code}: {reply.text[:500]}", request=reply.request, response=reply)


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def until(holds: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
    """Poll until `holds()`. Raises TimeoutError that says what did not come."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)
