"""`laurel region node`: this machine as a further node of a region whose head runs on another one, until a signal ends it.

The node comes back by itself when its raylet dies, or when the head was away. The region's supervisor on the other machine
knows nothing of it: the region's driver waits for it a while at the start, and puts actors on it when it is there.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from config.models import ClusterConfig, ConfigError, RegionConfig, join_path
from regions import process_tree, ray_settings
from regions.launcher import StartError, namespace_command
from regions.region_paths import RegionPaths
from regions.supervisor import Backoff

#: Time for the raylet to take its leave of the head.
_LEAVE_S = 3.0


def join(cluster: ClusterConfig, region: str, *, number: int, data_dir: Path, head: str, host: str, stop: threading.Event) -> None:
    """Keep node `number` of `region` until `stop`. `head` is HOST:PORT, "" for what the file says; `host` this machine's address.

    Raises `ConfigError` for what the file does not allow, `StartError` where keys or the address of this machine are missing.
    """
    settings, default_head = _checked(cluster, region, number)
    data_dir = Path(os.path.realpath(data_dir))
    paths = RegionPaths(data_dir, region)
    head = head or default_head
    host = host or _own_address(head)
    try:
        token = ray_settings.shared_token(data_dir, region)
    except OSError as error:
        raise StartError(f"{data_dir}/keys has no secret: copy the keys directory of the cluster there.") from error
    paths.create()
    command = [sys.executable, "-m", "regions.node", "--region", region, "--data-dir", str(data_dir)]
    command += ["--head", head, "--number", str(number), "--host", host]
    environment = ray_settings.environment(paths, settings, node=number, token=token)
    environment |= {process_tree.RUN_MARKER: paths.node_marker(number)}
    backoff = Backoff(1.0, 10.0)
    while not stop.is_set():
        began = time.monotonic()
        print(f"node {number} of {region} at {host} joins {head}; its log is {paths.log(f'node-{number}')}", flush=True)
        why = _live(command, environment, paths, number, stop)
        if stop.is_set():
            return
        pause = backoff.after(time.monotonic() - began)
        print(f"laurel: node {number} of {region} {why}; again in {pause:g} s", file=sys.stderr, flush=True)
        stop.wait(pause)


def _checked(cluster: ClusterConfig, region: str, number: int) -> tuple[RegionConfig, str]:
    if region not in cluster.regions:
        raise ConfigError(f"has no `{region}`; it has {', '.join(cluster.regions)}", path="regions")
    settings = cluster.regions[region]
    if settings.head is None:
        raise ConfigError("is missing: it says where nodes on other machines find this region", path=join_path("regions", region, "head"))
    if not 2 <= number <= settings.nodes:
        problem = f"is {settings.nodes}, so further nodes have the numbers 2 to {settings.nodes}, not {number}"
        raise ConfigError(problem, path=join_path("regions", region, "nodes"))
    return settings, f"{settings.head.host}:{settings.head.port}"


def _own_address(head: str) -> str:
    """The address by which this machine speaks to the head. Nothing is sent."""
    host, _, port = head.rpartition(":")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise StartError(f"{head} cannot be reached from here ({error}): name the head as HOST:PORT with --head.") from error


def _live(command: Sequence[str], environment: dict[str, str], paths: RegionPaths, number: int, stop: threading.Event) -> str:
    """One life of the node; why it ended. Nothing of it is left."""
    with open(paths.log(f"node-{number}"), "ab") as output:
        process = subprocess.Popen(
            [*process_tree.dying_with_parent(signal.SIGKILL), *(namespace_command() or ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=paths.root / "run",
            start_new_session=True,  # Ctrl-C reaches this command alone, which stops in order
        )
    root = process_tree.identify(process.pid)
    try:
        while process.poll() is None and not stop.wait(0.1):
            pass
        if stop.is_set() and process.poll() is None:
            for pid in process_tree.find(process.pid, "regions.node"):
                if (found := process_tree.identify(pid)) is not None and pid != process.pid:
                    process_tree.send(found, signal.SIGTERM)
            if namespace_command() is None and root is not None:
                process_tree.send(root, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVE_S)
    finally:
        if root is not None:
            process_tree.kill_tree_until_gone(root, timeout_s=_LEAVE_S, reap=process.poll)
        marker, outputs = paths.node_marker(number), [str(paths.node_tmp(number))]
        process_tree.kill_until_gone(lambda: process_tree.processes_marked(marker, outputs=outputs), timeout_s=_LEAVE_S)
    return f"ended with exit code {process.returncode}"
