"""Three fresh regions on free ports, and the ways to speak to them: SDK clients, bare HTTP for bytes, the stores' journals."""

import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from demo.narrator import Narrator
from laurel import LaurelClient
from laurel.errors import LaurelError
from regions.launcher import Launcher
from regions.specs import make_keys

SHARD, HOME = "eu-west/0", "eu-west"
_CONFIG = Path(__file__).resolve().parent.parent / "cluster.yaml"


def free_ports() -> Iterator[int]:
    """Loopback ports that nobody listens on now; each is given once.

    Below those that the kernel and Ray hand out by themselves: a region that dies must find its ports free when it comes back.
    """
    ports = list(range(20_000, 32_000))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


class DemoCluster:
    """The regions under a temporary directory; `close` ends all that it started, and removes the directory unless `keep`."""

    def __init__(self, *, keep: bool) -> None:
        """Prepares files only; `start` starts the regions."""
        self.keep = keep
        self.data_dir = Path(tempfile.mkdtemp(prefix="laurel-demo-"))
        raw: dict[str, Any] = yaml.safe_load(_CONFIG.read_text("utf-8"))
        ports = free_ports()
        for region in raw["regions"].values():
            region["port"] = next(ports)
            region["store"] = {"port": next(ports)}
            region["link"]["port"] = next(ports)
        raw["boards"] = {}
        config_path = self.data_dir / "cluster.yaml"
        config_path.write_text(yaml.safe_dump(raw, sort_keys=False), "utf-8")
        self.regions: list[str] = list(raw["regions"])
        make_keys(self.data_dir, self.regions)
        self.launcher = Launcher(config_path, self.data_dir)
        self.urls = {name: f"http://127.0.0.1:{region['port']}" for name, region in raw["regions"].items()}
        self._bare = {name: httpx.Client(base_url=url, timeout=5, trust_env=False) for name, url in self.urls.items()}
        #: Game servers of each region: they ask their own region while it answers, and the others when it does not.
        self.servers = {name: self._client("game-server", prefer=name, max_attempts=40) for name in self.regions}
        self.reader = self._client("reader", max_attempts=2, total_timeout_s=5.0)
        self.sender = self._client("game-server", max_attempts=12)
        self.operator = self._client("operator", prefer=self.regions[1])

    def _client(self, scope: str, **options: Any) -> LaurelClient:
        token = (self.data_dir / "tokens" / f"{scope}.token").read_text("utf-8")
        return LaurelClient(self.urls, token, **options)

    def close(self) -> None:
        """End everything, in order. Idempotent."""
        for client in (*self.servers.values(), self.reader, self.sender, self.operator):
            client.close()
        for bare in self._bare.values():
            bare.close()
        self.launcher.stop_all()
        if not self.keep:
            for region in self.launcher.regions.values():
                shutil.rmtree(region.paths.ray_tmp, ignore_errors=True)
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def start(self, narrator: Narrator) -> None:
        """Start all regions and wait until each is ready. Raises `StartError`."""
        shown: set[str] = set()

        def tell(states: dict[str, str]) -> None:
            fresh = [name for name, state in states.items() if state == "ready" and name not in shown]
            shown.update(fresh)
            for name in fresh:
                narrator.say(f"{name} is ready at {self.urls[name]}")

        self.launcher.start_all()
        self.launcher.wait_ready(180, tell)

    def store_urls(self) -> dict[str, str]:
        """Where each region's own store is."""
        return {name: region.store.redis_url for name, region in self.launcher.config.regions.items()}

    def shard(self, region: str) -> dict[str, Any]:
        """What a region says of the shard; {} when it does not answer."""
        try:
            return dict(self.operator.status(region=region)["shards"][SHARD])
        except (LaurelError, KeyError):
            return {}

    def page_bytes(self, region: str, board: str, generation: str) -> bytes | None:
        """The body of a pinned generation's first 1000 entries; None if the region has no answer now (it may be behind, or away)."""
        try:
            reply = self._bare[region].get(f"/v1/boards/{board}/top", params={"generation": generation, "limit": 1000})
        except httpx.HTTPError:
            return None
        return reply.content if reply.status_code == 200 else None

    def ready(self, region: str) -> bool:
        """Whether the region's gateway says that it can serve."""
        try:
            return self._bare[region].get("/readyz", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False
