"""The cluster under chaos: three regions started for the run alone, with networks and a small disk of their own where that is possible.

All that a fault needs to find its victims: processes below the launcher's own supervisors, links, namespaces, the disk.
`heal` puts back whatever may be amiss, in any state; `close` ends and removes all of it.
"""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx

from chaos.disks import DiskError, SmallDisk, unmount_below
from chaos.history import Policy
from chaos.namespaces import Networks
from config.loading import load_cluster
from laurel import LaurelClient
from regions import process_tree, scratch
from regions.launcher import Launcher, Progress, Role
from regions.process_tree import Process

SHARD = "eu-west/0"
#: What is written to; a `cumulative` board shows every event that is missing or counted twice.
BOARDS: dict[str, Policy] = {"chaos:total:S1:global": "cumulative", "chaos:best:S1:global": "best_score"}
_PREFIX, _LOCK = "laurel-chaos-", "chaos.lock"
#: Longest answer of a region to a question of the nemesis.
_ASK_S = 1.0


class Rig:
    """Use as a context manager: `start` may fail half-way, and `close` ends what there is."""

    def __init__(self, *, network: bool, disk: bool, seed: int) -> None:
        """`network`, `disk`: give the regions network namespaces, and one of them a disk that can be full."""
        remove_leftovers()
        self.data_dir = Path(tempfile.mkdtemp(prefix=_PREFIX))
        #: Held as long as the run lives, and given back by the kernel however it ends.
        self._lock = os.open(self.data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._closed = False
        self.networks: Networks | None = None
        self._disk: SmallDisk | None = None
        self.launcher: Launcher | None = None
        self._network, self._wants_disk = network, disk
        self._dice = random.Random(f"rig {seed}")
        self.disk_region = ""
        self.regions: list[str] = []
        self.urls: dict[str, str] = {}
        self._http: dict[str, httpx.Client] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, progress: Progress | None = None) -> None:
        """Start all regions and wait until they are ready. Raises StartError, NetworkError, DiskError, or what `progress` does."""
        names = list(load_cluster(scratch.CLUSTER_FILE).regions)
        if self._network:
            self.networks = Networks(names)
        boards = {board: {"policy": policy, "visibility": "public"} for board, policy in BOARDS.items()}
        hosts = self.networks.hosts if self.networks else None
        self._placed = scratch.place(self.data_dir, hosts=hosts, changes={"boards": boards})
        self.regions, self.urls = self._placed.regions, self._placed.urls
        if self._wants_disk:
            self.disk_region = self._dice.choice(self.regions)
            self._disk = SmallDisk(self.data_dir / self.disk_region / "store")
        prefixes: dict[str, Sequence[str]] = dict(self.networks.prefixes()) if self.networks else {}
        self.launcher = Launcher(self._placed.path, self.data_dir, prefixes=prefixes)
        headers = {"authorization": f"Bearer {self.token('operator')}"}
        for name, url in self.urls.items():
            self._http[name] = httpx.Client(base_url=url, headers=headers, timeout=_ASK_S, trust_env=False)
        self.launcher.start_all()
        self.launcher.wait_ready(180, progress)

    def close(self) -> None:
        """Put everything back, end everything, remove everything but what the run keeps elsewhere. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.heal()
        finally:
            for http in self._http.values():
                http.close()
            try:
                if self.launcher is not None:
                    self.launcher.stop_all()
                    for region in self.launcher.regions.values():
                        shutil.rmtree(region.paths.ray_tmp, ignore_errors=True)
            finally:
                if self._disk is not None:
                    self._disk.close()
                if self.networks is not None:
                    self.networks.close()
                    self.networks = None
                shutil.rmtree(self.data_dir, ignore_errors=True)
                os.close(self._lock)

    def token(self, scope: str) -> str:
        """A token for all games."""
        return self._placed.token(scope)

    def client(self, scope: str, **options: Any) -> LaurelClient:
        """An SDK client of all regions; the caller closes it."""
        return LaurelClient(self.urls, self.token(scope), **options)

    def keep_logs(self, directory: Path) -> None:
        """Copy the regions' logs there."""
        for region in self.regions:
            shutil.copytree(self.data_dir / region / "log", directory / region, dirs_exist_ok=True, ignore_dangling_symlinks=True)

    # -- what a region is and says ------------------------------------------------------------------------------------

    def pids(self, region: str, part: str) -> list[Process]:
        """Processes of a part of a region; for `region` all of them, its supervisor first."""
        assert self.launcher is not None
        found = self.launcher.regions[region].host_pids()
        numbers = found["supervisor"] if part in ("region", "supervisor") else found[cast(Role, part)]
        roots = [process for number in numbers if (process := process_tree.identify(number))]
        if part == "region":
            return [process for root in roots for process in (root, *process_tree.descendants(root.pid))]
        return roots

    def kill_region(self, region: str) -> None:
        """SIGKILL all of a region; the launcher starts it again."""
        assert self.launcher is not None
        self.launcher.regions[region].kill()

    def ask(self, region: str, method: str, path: str, *, timeout_s: float = _ASK_S, **options: Any) -> httpx.Response | None:
        """A region's answer to an operator, whatever its status; None if there is none in time."""
        try:
            return self._http[region].request(method, path, timeout=timeout_s, **options)
        except httpx.HTTPError:
            return None

    def shard(self, region: str) -> dict[str, Any]:
        """What a region says of the shard; {} without an answer."""
        reply = self.ask(region, "GET", "/v1/status")
        try:
            return dict(reply.json()["shards"][SHARD]) if reply is not None and reply.status_code == 200 else {}
        except (ValueError, KeyError):
            return {}

    def owner(self) -> str:
        """The region that owns the shard by the newest epoch that any region knows of; "" if none answers."""
        with ThreadPoolExecutor(len(self.regions)) as pool:
            known = [(said.get("known_epoch", 0), said.get("known_owner", "")) for said in pool.map(self.shard, self.regions)]
        return str(max(known, default=(0, ""))[1])

    def readable(self, region: str) -> bool:
        """Whether the region's replica answers a read by itself."""
        reply = self.ask(region, "GET", f"/v1/boards/{next(iter(BOARDS))}/top?limit=1")
        return reply is not None and reply.status_code == 200

    # -- faults -------------------------------------------------------------------------------------------------------

    def set_link(self, region: str, peer: str, direction: str, mode: str, *, for_ms: int = 0, delay_ms: int = 0) -> bool:
        """Turn the region's switch; it turns back by itself after `for_ms`. False if the region did not do it."""
        body: dict[str, Any] = {"peer": peer, "direction": direction, "mode": mode}
        body |= {"for_ms": for_ms} if for_ms else {}
        body |= {"delay_ms": delay_ms} if delay_ms else {}
        reply = self.ask(region, "POST", "/v1/admin/links", json=body)
        return reply is not None and reply.status_code == 200

    def failover(self, via: str, to: str, *, force: bool, timeout_s: float = 15.0) -> tuple[bool, str]:
        """Order a move through the gateway of `via`: whether it was done, and what was said."""
        body = {"shard": SHARD, "to": to, "force": force}
        reply = self.ask(via, "POST", "/v1/admin/failover", timeout_s=timeout_s, json=body)
        if reply is None:
            return False, f"to {to} by {via}: no answer"
        try:
            said = reply.json()
        except ValueError:
            said = {}
        if reply.status_code == 200:
            moved = said["moved"][0]
            return True, f"to {to} by {via}: epoch {moved['epoch']} in {moved['duration_ms']} ms"
        return False, f"to {to} by {via}: {reply.status_code} {said.get('detail', '')}"

    def fill_disk(self) -> None:
        """No space is left for the store of `disk_region`."""
        assert self._disk is not None
        self._disk.fill()

    def free_disk(self) -> None:
        """There is space again."""
        assert self._disk is not None
        self._disk.free()

    def heal(self) -> None:
        """End every fault there may be: processes go on, cables are in, the disk has space, links are clear where a gateway answers."""
        if self.launcher is not None:
            for region in self.regions:
                for process in self.pids(region, "region"):
                    process_tree.send(process, signal.SIGCONT)
        if self.networks is not None:
            self.networks.heal()
        if self._disk is not None:
            self._disk.free()
        for region in self.regions if self._http else ():
            for peer in self.regions:
                if peer != region and not self._http[region].is_closed:
                    self.set_link(region, peer, "both", "clear")


def remove_leftovers() -> None:
    """What runs left that were killed: scratch directories whose lock is free, and the disks in them. Their processes died with them."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError, DiskError), open(lock, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unmount_below(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)
