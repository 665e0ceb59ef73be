"""Three fresh regions on free ports, and the ways to speak to them: SDK clients, bare HTTP for bytes, the stores' journals."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx

from demo.narrator import Narrator
from laurel import LaurelClient
from laurel.errors import LaurelError
from regions import scratch
from regions.launcher import Launcher

HOME = "eu-west"
#: All at home there; the boards of the seasons share them.
SHARDS = ("eu-west/0", "eu-west/1", "eu-west/2")


class DemoCluster:
    """The regions under a temporary directory; `close` ends all that it started, and removes the directory unless `keep`."""

    def __init__(self, *, keep: bool) -> None:
        """Prepares files only; `start` starts the regions."""
        self.keep = keep
        self.data_dir = Path(tempfile.mkdtemp(prefix="laurel-demo-"))
        shards = {name: {"home": HOME, "ack": "quorum", "on_region_loss": "hold"} for name in SHARDS}
        self._placed = scratch.place(self.data_dir, changes={"boards": {}, "shards": shards})
        self.regions, self.urls = self._placed.regions, self._placed.urls
        self.launcher = Launcher(self._placed.path, self.data_dir)
        self._bare = {name: httpx.Client(base_url=url, timeout=5, trust_env=False) for name, url in self.urls.items()}
        #: Game servers of each region: they ask their own region while it answers, and the others when it does not.
        self.servers = {name: self._client("game-server", prefer=name, max_attempts=40) for name in self.regions}
        self.reader = self._client("reader", max_attempts=2, total_timeout_s=5.0)
        self.sender = self._client("game-server", max_attempts=12)
        self.operator = self._client("operator", prefer=self.regions[1])

    def _client(self, scope: str, **options: Any) -> LaurelClient:
        return LaurelClient(self.urls, self._placed.token(scope), **options)

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

    def shards(self, region: str) -> dict[str, dict[str, Any]]:
        """What a region says of each shard; {} when it does not answer."""
        try:
            return dict(self.operator.status(region=region)["shards"])
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
