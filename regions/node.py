"""A further node of a region's Ray cluster: a raylet that joins the head, and what runs below it.

    python -m regions.node --region eu-west --data-dir .laurel --head 127.0.0.1:6379 --number 2

Started by the region's supervisor, or by `laurel region node` on another machine, with the environment of `regions.ray_settings`.
It ends when its raylet does, and takes all that the raylet had started along at once: a worker that outlives its raylet would go
on writing for a second or two beside the one that Ray starts elsewhere. SIGTERM ends it in order (0), anything else is 1.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams

from regions import process_tree
from regions.ray_settings import NODE_CPUS, OBJECT_STORE_BYTES, labels

log = logging.getLogger("laurel.node")

#: How soon the death of the raylet is noticed.
LOOK_S = 0.05
#: Time for a raylet to take its leave.
LEAVE_S = 1.5


def leave_out_helpers() -> None:
    """Start no autoscaler monitor, log monitor and dashboard server: nothing here uses them, and each is a Python process.

    There is no public switch for it (Ray 2.60), so a Ray that names them otherwise starts them, and all works as well.
    """
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        if hasattr(Node, name):
            setattr(Node, name, lambda *_, **__: None)


def join(head: str, *, number: int, host: str, temp: Path) -> Any:
    """Start a raylet that belongs to the cluster of `head` (HOST:PORT). Raises whatever Ray raises where it cannot."""
    leave_out_helpers()
    parameters = RayParams(
        gcs_address=head,
        redis_address=head,
        node_ip_address=host or None,
        num_cpus=NODE_CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        labels=labels(number, host),
        node_manager_port=0,
        min_worker_port=0,
        max_worker_port=0,
        temp_dir=str(temp),
    )
    return Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=True)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM (0), or until the raylet is gone or could not join (1)."""
    parser = argparse.ArgumentParser(prog="python -m regions.node")
    parser.add_argument("--region", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--head", required=True, help="HOST:PORT of the region's Ray head")
    parser.add_argument("--number", type=int, required=True, help="number of this node, from 2 on")
    parser.add_argument("--host", default="", help="address of this machine, on a cluster of several")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    process_tree.become_subreaper()
    temp = Path(os.environ["LAUREL_RAY_TMP"])
    temp.mkdir(mode=0o700, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        node = join(given.head, number=given.number, host=given.host, temp=temp)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        log.info("node %d of %s has joined %s", given.number, given.region, given.head)
        while not stopping:
            if node.dead_processes():
                log.error("the raylet of node %d is gone", given.number)
                return 1
            _reap()
            time.sleep(LOOK_S)
        _take_leave(node)
        return 0
    finally:
        me = os.getpid()
        process_tree.kill_until_gone(lambda: process_tree.descendants(me), timeout_s=5.0, reap=_reap)


def _take_leave(node: Any) -> None:
    """Let the raylet tell the head that it goes, so that its actors are started elsewhere at once."""
    for each in node.all_processes.get("raylet", ()):
        each.process.terminate()
    deadline = time.monotonic() + LEAVE_S
    while not node.dead_processes() and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _reap() -> None:
    """Take leave of workers that lost their raylet; the raylet's own end is Ray's to see."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            os.waitpid(found.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main())
