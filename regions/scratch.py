"""A cluster file on free ports in a scratch directory: for tests, the demo, benchmarks and chaos, beside whatever else runs here."""

import random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config.loading import load_cluster
from config.models import LOOPBACK, ClusterConfig
from regions.specs import make_keys

#: The cluster file of this repository, which every scratch cluster is like.
CLUSTER_FILE = Path(__file__).resolve().parent.parent / "cluster.yaml"
#: Below the ports that the kernel and Ray hand out by themselves: a region that dies must find its own free when it comes back.
PORTS = range(20_000, 32_000)


def free_ports(host: str = LOOPBACK) -> Iterator[int]:
    """Ports of `PORTS`, shuffled, that nobody listens on now; each is given once."""
    ports = list(PORTS)
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        yield port


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A cluster that is written down and not started."""

    config: ClusterConfig
    #: What `Launcher` is given.
    path: Path
    data_dir: Path

    @property
    def regions(self) -> list[str]:
        """Names, in the order of the file."""
        return list(self.config.regions)

    @property
    def urls(self) -> dict[str, str]:
        """Region -> base URL of its gateway."""
        return {name: f"http://{region.host}:{region.port}" for name, region in self.config.regions.items()}

    def token(self, scope: str) -> str:
        """A token for all games: game-server, reader or operator."""
        return (self.data_dir / "tokens" / f"{scope}.token").read_text("utf-8")


def place(data_dir: Path, *, hosts: Mapping[str, str] | None = None, changes: Mapping[str, Any] | None = None) -> Scratch:
    """Write `cluster.yaml`, keys and tokens into `data_dir`, like `CLUSTER_FILE` but on free ports.

    `hosts` gives regions addresses of their own (gateway and link). `changes` replaces whole top-level keys, such as `boards`.
    Raises `ConfigError` for changes that do not fit.
    """
    config = load_cluster(CLUSTER_FILE).relocate(free_ports())
    raw = config.model_dump(mode="json", exclude_none=True) | dict(changes or {})
    for name, host in (hosts or {}).items():
        raw["regions"][name]["host"] = raw["regions"][name]["link"]["host"] = host
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = data_dir / "cluster.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False, allow_unicode=True), "utf-8")
    config = load_cluster(path)
    make_keys(data_dir, list(config.regions))
    return Scratch(config=config, path=path, data_dir=data_dir)
