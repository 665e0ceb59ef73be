"""Real networks to cut: each region in a network namespace of its own, joined by a bridge that is made for the run.

A cut takes a region's cable out (`isolate`) or makes one region send another's packets to a hardware address that nobody
has (`mute`): they leave and never arrive, as on a broken path, and no side is told. Needs root, `ip` and `nsenter`. Names
and addresses are taken only where nothing has them; `close` removes all of it, and a run that was killed leaves a
lock file that the next one finds free, and cleans up after it.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, ip_network
from pathlib import Path

#: Where the tag of each run that has networks is locked while it lives.
_LOCKS = Path("/run/laurel-chaos")
#: A locally administered address that no interface here is given.
_NOBODY = "02:00:5e:00:00:00"


class NetworkError(Exception):
    """A network command failed; the text is what it said. Indefinite: `close` removes whatever was made."""

    code = "network"
    definite = False


def unavailable() -> str:
    """Why real networks cannot be cut here, "" where they can. Tries it once, with a namespace that is removed at once."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed"
    try:
        with Networks(["probe"]):
            return ""
    except (NetworkError, OSError) as error:
        return f"network namespaces cannot be made here: {error}"


class Networks:
    """The namespaces of `regions`, from its making to `close`."""

    def __init__(self, regions: Sequence[str]) -> None:
        """Raises NetworkError or OSError with nothing left behind."""
        _remove_leftovers()
        self._tag, self._lock = _take_tag()
        self._namespaces = {region: f"{self._tag}n{index}" for index, region in enumerate(regions)}
        self._cables = {region: f"{self._tag}v{index}" for index, region in enumerate(regions)}
        try:
            network = _free_network()
            addresses = network.hosts()
            here = next(addresses)
            self.hosts: dict[str, str] = {region: str(next(addresses)) for region in regions}
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{here}/{network.prefixlen}", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for region, host in self.hosts.items():
                self._plug(region, f"{host}/{network.prefixlen}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Networks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _bridge(self) -> str:
        return f"{self._tag}br"

    def _plug(self, region: str, address: str) -> None:
        space, cable = self._namespaces[region], self._cables[region]
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", address, "dev", "eth0")
        for name in ("lo", "eth0"):
            _ip("-n", space, "link", "set", name, "up")

    def prefixes(self) -> dict[str, list[str]]:
        """For `Launcher`: what a region's supervisor is started through."""
        nsenter = shutil.which("nsenter") or "nsenter"
        return {region: [nsenter, f"--net=/run/netns/{space}", "--"] for region, space in self._namespaces.items()}

    def isolate(self, region: str) -> None:
        """Take the region's cable out: neither regions nor clients reach it."""
        _ip("link", "set", self._cables[region], "down")

    def rejoin(self, region: str) -> None:
        """Put the cable in again."""
        _ip("link", "set", self._cables[region], "up")

    def mute(self, region: str, peer: str) -> None:
        """From now on nothing that `region` sends reaches `peer`; what `peer` sends does arrive."""
        _ip("-n", self._namespaces[region], "neigh", "replace", self.hosts[peer], "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def unmute(self, region: str, peer: str) -> None:
        """End a `mute`; nothing if there is none."""
        with contextlib.suppress(NetworkError):
            _ip("-n", self._namespaces[region], "neigh", "delete", self.hosts[peer], "dev", "eth0")

    def heal(self) -> None:
        """End every cut."""
        for region in self._namespaces:
            self.rejoin(region)
            for peer in self._namespaces.keys() - {region}:
                self.unmute(region, peer)

    def close(self) -> None:
        """Remove namespaces, cables and bridge. Processes in them lose their network. Idempotent."""
        if self._lock is not None:
            _remove(self._tag)
            (_LOCKS / self._tag).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=10)
    if done.returncode != 0:
        raise NetworkError(f"`ip {' '.join(words)}` said: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _take_tag() -> tuple[str, int | None]:
    """A tag that nobody uses, and its lock. Interface names have 15 characters at most."""
    _LOCKS.mkdir(mode=0o700, exist_ok=True)
    while True:
        tag = f"lrl{random.randrange(16**6):06x}"
        with contextlib.suppress(FileExistsError):
            handle = os.open(_LOCKS / tag, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return tag, handle


def _remove_leftovers() -> None:
    """What runs left that were killed: their locks are free."""
    for path in _LOCKS.glob("lrl*"):
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path.name)
            path.unlink()


def _remove(tag: str) -> None:
    for name in _named(tag):
        with contextlib.suppress(NetworkError):
            _ip("link", "delete", name)
    for line in _ip("netns", "list").splitlines():
        name = line.partition(" ")[0]
        if name.startswith(tag):
            with contextlib.suppress(NetworkError):
                _ip("netns", "delete", name)


def _named(tag: str) -> Iterator[str]:
    links = json.loads(_ip("-json", "link", "show") or "[]")
    yield from (link["ifname"] for link in links if link["ifname"].startswith(tag))


def _free_network() -> IPv4Network:
    """A /24 of 10.0.0.0/8 that no interface and no route of this machine overlaps."""
    taken = []
    for route in json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]"):
        with contextlib.suppress(ValueError):
            network = ip_network(route["dst"], strict=False)
            if isinstance(network, IPv4Network):
                taken.append(network)
    while True:
        network = IPv4Network((10 << 24 | random.randrange(1 << 16) << 8, 24))
        if not any(network.overlaps(other) for other in taken):
            return network
