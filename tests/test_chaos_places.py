"""What chaos makes on the machine for itself: networks that are really cut, a disk that is really full; and that nothing stays."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import disks, namespaces
from chaos.disks import DiskError, SmallDisk
from chaos.namespaces import Networks
from chaos.rig import Rig, remove_leftovers

pytestmark = pytest.mark.net

PORT = 20_001


@pytest.fixture(scope="module")
def network_rights() -> None:
    if why := namespaces.unavailable():
        pytest.skip(why)


@pytest.fixture
def disk_rights() -> None:
    if why := disks.unavailable():
        pytest.skip(why)


def links() -> set[str]:
    shown = subprocess.run(["ip", "-json", "link", "show"], capture_output=True, text=True, check=True).stdout
    return {link["ifname"] for link in json.loads(shown)}


def spaces() -> set[str]:
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.partition(" ")[0] for line in shown.splitlines()}


_SERVER = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].close()
"""


@contextlib.contextmanager
def listening(networks: Networks, region: str) -> Iterator[None]:
    process = subprocess.Popen([*networks.prefixes()[region], sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def reached(networks: Networks, region: str, peer: str) -> bool:
    """Whether a connection from one region's namespace to the other's comes about."""
    script = f"import socket; socket.create_connection(({networks.hosts[peer]!r}, {PORT}), timeout=0.5)"
    return subprocess.run([*networks.prefixes()[region], sys.executable, "-W", "ignore", "-c", script], capture_output=True).returncode == 0


def reached_from_here(networks: Networks, region: str) -> bool:
    try:
        socket.create_connection((networks.hosts[region], PORT), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("network_rights")
def test_regions_reach_each_other_until_cut_and_again_after_it() -> None:
    with Networks(["a", "b", "c"]) as networks, listening(networks, "a"), listening(networks, "b"):
        assert reached(networks, "a", "b")
        assert reached_from_here(networks, "b")
        networks.isolate("b")
        assert not reached(networks, "a", "b")
        assert not reached_from_here(networks, "b")
        networks.heal()
        assert reached(networks, "a", "b")
        networks.mute("b", "a")  # nothing that b sends arrives, so no connection either way comes about
        assert not reached(networks, "b", "a")
        assert not reached(networks, "a", "b")
        assert reached(networks, "c", "a")
        assert reached(networks, "c", "b")
        networks.unmute("b", "a")
        assert reached(networks, "b", "a")


@pytest.mark.usefixtures("network_rights")
def test_nothing_stays_of_closed_networks() -> None:
    before = links(), spaces()
    networks = Networks(["a", "b"])
    assert (links(), spaces()) != before
    networks.close()
    networks.close()
    assert (links(), spaces()) == before


@pytest.mark.usefixtures("network_rights")
def test_what_a_killed_run_left_is_removed_by_the_next_one_and_the_living_are_spared() -> None:
    before = links(), spaces()
    script = (
        "import time; from chaos.namespaces import Networks; n = Networks(['a', 'b']); print(*n.hosts.values(), flush=True); time.sleep(60)"
    )
    root = Path(namespaces.__file__).parent.parent
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    hosts = process.stdout.readline().split()
    assert len(hosts) == 2
    with Networks(["a"]) as living:
        assert set(living.hosts.values()).isdisjoint(hosts)
        during = links(), spaces()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with Networks(["c"]):
            assert len(spaces() & during[1]) == len(during[1]) - 2  # those of the killed run are gone, those of `living` are not
    assert (links(), spaces()) == before


@pytest.mark.usefixtures("disk_rights")
def test_a_full_disk_refuses_a_write_keeps_what_it_has_and_takes_more_when_it_is_freed(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk")
    file = tmp_path / "disk" / "log"
    try:
        file.write_bytes(b"a" * 10_000)
        disk.fill()
        with pytest.raises(OSError, match="No space left") as caught, open(file, "ab", buffering=0) as writer:
            while True:
                writer.write(b"b" * 4096)
        assert caught.value.errno == errno.ENOSPC
        assert file.read_bytes()[:10_000] == b"a" * 10_000
        disk.free()
        (tmp_path / "disk" / "more").write_bytes(b"c" * 100_000)
    finally:
        disk.close()
    assert not os.path.ismount(tmp_path / "disk")
    disk.close()
    disk.free()


@pytest.mark.usefixtures("disk_rights")
def test_a_disk_is_filled_also_while_somebody_writes(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk")
    full = threading.Event()

    def write() -> None:
        with open(tmp_path / "disk" / "log", "ab", buffering=0) as writer:
            try:
                while True:
                    writer.write(b"x" * 512)
            except OSError:
                full.set()

    writer = threading.Thread(target=write)
    try:
        writer.start()
        disk.fill()
        assert full.wait(10)
    finally:
        disk.free()
        writer.join()
        disk.close()


@pytest.mark.usefixtures("disk_rights")
def test_the_disk_and_directory_of_a_killed_run_are_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, dead = (Rig(network=False, disk=False, seed=1) for _ in range(2))
    try:
        disk = SmallDisk(dead.data_dir / "eu-west" / "store")
        assert os.path.ismount(dead.data_dir / "eu-west" / "store")
        os.close(dead._lock)  # what the kernel does for a process that is killed
        remove_leftovers()
        assert not dead.data_dir.exists()
        assert living.data_dir.exists()
        with pytest.raises(DiskError):
            disk.close()
    finally:
        living.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [namespaces, disks])
def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in module.unavailable()  # type: ignore[attr-defined]
