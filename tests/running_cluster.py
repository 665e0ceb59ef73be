"""Three real regions for tests marked `cluster`: started once a session, a fresh board for each test instead of a fresh cluster."""

import functools
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from laurel import LaurelClient
from regions import scratch
from regions.launcher import Launcher
from regions.region_paths import RegionPaths

#: Where a fresh board lives unless it says otherwise; and all that are at home in eu-west, the last one dedicated.
SHARD = "eu-west/0"
SHARDS = ("eu-west/0", "eu-west/1", "eu-west/2")
_SHARDS = {name: {"home": "eu-west", "kind": "dedicated" if name == SHARDS[-1] else "pooled"} for name in SHARDS}


def position(submitted: httpx.Response) -> str:
    """The greatest position that a submit's results rest on, as `at_least` takes it."""
    epoch, offset = max((result["epoch"], result["offset"]) for result in submitted.json()["results"] if result.get("offset"))
    return f"{epoch}-{offset}"


class RunningCluster:
    """A cluster under `data_dir` and ways to speak to it. Use as a context manager."""

    def __init__(self, data_dir: Path, *, changes: dict[str, Any] | None = None) -> None:
        """`changes` as `scratch.place` takes them; without any, the cluster has `SHARDS`."""
        self.data_dir = data_dir
        placed = scratch.place(data_dir, changes={"shards": _SHARDS} if changes is None else changes)
        self.config_path, self.regions, self.urls = placed.path, placed.regions, placed.urls
        #: What an order to move a shard was last answered.
        self._refusal = ""
        self._homes = {name: shard.home for name, shard in placed.config.shards.items()}
        self.launcher = Launcher(self.config_path, data_dir)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._clients: list[LaurelClient] = []

    def __enter__(self) -> "RunningCluster":
        self.launcher.start_all()
        self.launcher.wait_ready(180)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self.launcher.stop_all()

    @property
    def shards(self) -> list[str]:
        """Names, in the order of the file."""
        return list(self._homes)

    def token(self, scope: str) -> str:
        """A token of `game-server`, `reader` or `operator` scope for all games."""
        return (self.data_dir / "tokens" / f"{scope}.token").read_text()

    def client(self, *regions: str, scope: str = "game-server", **options: Any) -> LaurelClient:
        """An SDK client that knows these regions (all of them if none is named); closed with the cluster."""
        client = LaurelClient({r: self.urls[r] for r in regions or self.regions}, self.token(scope), **options)
        self._clients.append(client)
        return client

    def http(self, region: str, scope: str | None = "game-server", **options: Any) -> httpx.Client:
        """A bare HTTP client of one region."""
        headers = {"authorization": f"Bearer {self.token(scope)}"} if scope else {}
        return httpx.Client(base_url=self.urls[region], headers=headers, timeout=10, trust_env=False, verify=False, **options)

    def post(self, region: str, board: str, events: Any, query: str = "", **options: Any) -> httpx.Response:
        """Post a list of events (or one event) through one region's gateway; the raw response."""
        with self.http(region) as http:
            body = {"events": events} if isinstance(events, list) else events
            return http.post(f"/v1/boards/{board}/events{query}", json=body, **options)

    def get(self, region: str, path: str, *, after: httpx.Response | None = None, **parameters: Any) -> httpx.Response:
        """GET a path of one region with a reader's token; `after` is a submit's response, whose events the answer must include."""
        if after is not None:
            parameters["at_least"] = position(after)
        with self.http(region, "reader") as http:
            return http.get(path, params=parameters or None)

    def shard(self, region: str, shard: str = SHARD) -> dict[str, Any]:
        """What `region` says of a shard; {} when it does not answer."""
        try:
            with self.http(region, "operator") as http:
                return dict(http.get("/v1/status").json()["shards"][shard])
        except (httpx.HTTPError, KeyError, ValueError):
            return {}

    def authority(self, shard: str = SHARD) -> str | None:
        """The region whose actor serves writes now."""
        return next((r for r in self.regions if self.shard(r, shard).get("serving")), None)

    def until(self, holds: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = 60.0) -> Any:
        """Poll until `holds()` is true and return it; fail with `what` when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not (value := holds()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}"
            time.sleep(0.05)
        return value

    def shard_pid(self, region: str, shard: str = SHARD) -> int:
        """Host pid of a region's actor of a shard, told from the others by the ledger that it has open; 0 when it does not run."""
        ledger = str(RegionPaths(self.data_dir, region).ledger(shard))
        return next((pid for pid in self.launcher.regions[region].host_pids()["shard"] if ledger in _mapped(pid)), 0)

    def settled(self, home: str = "eu-west") -> None:
        """All regions up, links clear, and each shard of `home` served by it (moved there if need be)."""
        for name in self.regions:
            self.launcher.release(name)
        self.launcher.wait_ready(180)
        for region in self.regions:
            with self.http(region, "operator") as http:
                links = http.get("/v1/status").json()["links"]
                for peer in {*links["outward"], *links["inward"]}:
                    http.post("/v1/admin/links", json={"peer": peer, "direction": "both", "mode": "clear"})
        for shard in self.shards:
            if self._homes[shard] == home:
                self._settle(shard, home)

    def _settle(self, shard: str, home: str) -> None:
        owner = self.until(lambda: self.authority(shard), f"some region serves {shard}")
        if owner != home:
            self.until(lambda: self._moved(shard, home), lambda: f"{shard} is home in {home}: {self._refusal}")
        self.until(lambda: self.authority(shard) == home, f"{home} serves {shard}")

    def _knows(self, region: str, board: str) -> bool:
        with self.http(region, "operator") as http:
            return http.get(f"/v1/boards/{board}").status_code == 200

    def _moved(self, shard: str, home: str) -> bool:
        with self.http(home, "operator") as http:
            reply = http.post("/v1/admin/failover", json={"shard": shard, "to": home}, timeout=30)
        self._refusal = reply.text
        return reply.status_code == 200

    def fresh_board(self, policy: str = "best_score", **rules: Any) -> str:
        """A new board, known in every region that is up; in `SHARD` unless `rules` say where."""
        with self._lock:
            number = next(self._numbers)
        if "home" not in rules:
            rules.setdefault("shards", [self.shards[0]])
        board = f"arena-clash:test-{os.getpid()}-{number}-{uuid.uuid4().hex[:6]}:S7:global"
        client = self.client(scope="operator", max_attempts=40)
        client.create_board(board, policy=policy, **rules)
        for region in self.regions:
            if self.launcher.regions[region].alive():
                self.until(functools.partial(self._knows, region, board), f"{region} knows {board}")
        return board


def _mapped(pid: int) -> str:
    """Which files a process has mapped."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""
