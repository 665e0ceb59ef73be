"""The Ray driver of a region: starts the region's own Ray in its main thread and the actors in it, and stays.

Run by the supervisor as `python -m regions.driver`. It exits non-zero when anything that Ray does not mend
by itself is gone; the supervisor then ends what is left and starts it again.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray._private.node import Node

from actors.remote import RemoteGateway, RemoteReplica, RemoteShard
from config.loading import load_cluster
from config.models import ClusterConfig
from journal.ports import JournalError
from journal.redis_journal import open_client
from journal.store_check import check_store
from regions.specs import gateway_spec, link_spec, replica_spec, shard_specs

log = logging.getLogger("laurel.driver")

#: Ray's shared memory in a region: nothing of ours travels through it but small messages.
OBJECT_STORE_BYTES = 80 << 20
#: An actor that has answered once and then misses so many probes of so many seconds is replaced.
PROBES, PROBE_S = 4, 2


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM (0) or until something is gone for good (1)."""
    parser = argparse.ArgumentParser(prog="python -m regions.driver")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = load_cluster(given.config)
    try:
        asyncio.run(_check_store(config, given.region))
    except JournalError as error:
        print(f"laurel: {given.region}: {error}", file=sys.stderr)
        return 1
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _leave_out_helpers()
    ray.init(
        include_dashboard=False,
        num_cpus=4,
        object_store_memory=OBJECT_STORE_BYTES,
        configure_logging=False,
        log_to_driver=False,
        _temp_dir=os.environ.get("LAUREL_RAY_TMP") or None,
    )
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    handles = start_actors(config, given.region, given.data_dir)
    #: Probes that each actor may still miss; one that never answered yet is starting, and may take its time.
    patience: dict[str, int] = {}
    while not stopping:
        time.sleep(0.5)
        if gone := _probe(handles, patience):
            log.error("%s is gone for good", gone)
            return 1
    return 0


def _probe(handles: "dict[str, ray.actor.ActorHandle[Any]]", patience: dict[str, int]) -> str:
    """Ask all actors at once, and replace the ones that stopped answering; the name of one that Ray gave up, or ""."""
    asked: dict[Any, str] = {handle.__ray_ready__.remote(): name for name, handle in handles.items()}
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=PROBE_S)
    for reply in answered:
        try:
            ray.get(reply)
            patience[asked[reply]] = PROBES
        except ray.exceptions.ActorUnavailableError:
            patience.pop(asked[reply], None)
        except ray.exceptions.ActorDiedError:
            return asked[reply]
    for name in (asked[reply] for reply in silent):
        if name in patience:
            patience[name] -= 1
            log.warning("%s does not answer (%d more)", name, patience[name])
        if patience.get(name, 1) <= 0:
            # A stopped or hung process stays alive for Ray, and calls to it would hang for ever.
            ray.kill(handles[name], no_restart=False)
            del patience[name]
    return ""


def _leave_out_helpers() -> None:
    """Start no autoscaler monitor, log monitor and dashboard server: nothing here uses them, and each is a Python process.

    There is no public switch for it (Ray 2.60), so a Ray that names them otherwise starts them, and all works as well.
    """
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        if hasattr(Node, name):
            setattr(Node, name, lambda *_, **__: None)


async def _check_store(config: ClusterConfig, region: str) -> None:
    client = open_client(config.regions[region].store.redis_url)
    try:
        facts = await check_store(client)
        log.info("store %s %s, run %s", facts.server, facts.version, facts.run_id)
    finally:
        await client.aclose()


def start_actors(config: ClusterConfig, region: str, data_dir: Path) -> dict[str, "ray.actor.ActorHandle[Any]"]:
    """Make the region's actors; each is named after what it is, and made from a specification that a restart uses again.

    The factories are named, not passed: a worker imports only what its own actor needs.
    """
    links = link_spec(config, region, data_dir)
    shards = {
        spec.shard: RemoteShard.options(name=f"shard {spec.shard}").remote("regions.shard_setup:make_shard", spec, links)
        for spec in shard_specs(config, region, data_dir)
    }
    replica = RemoteReplica.options(name="replica").remote("regions.replica_setup:make_replica", replica_spec(config, region, data_dir))
    gateway = RemoteGateway.options(name="gateway").remote(
        "regions.gateway_setup:make_gateway", gateway_spec(config, region, data_dir), list(shards)
    )
    return {**{f"shard {s}": h for s, h in shards.items()}, "replica": replica, "gateway": gateway}


if __name__ == "__main__":
    sys.exit(main())
