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
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from actors.remote import RemoteGateway, RemoteReplica, RemoteShard
from config.loading import load_cluster
from config.models import LOOPBACK, ClusterConfig, RegionConfig
from journal.ports import JournalError
from journal.redis_journal import open_client
from journal.store_check import check_store
from regions.node import leave_out_helpers
from regions.process_specs import FIRST_REPLICA, numbered
from regions.ray_settings import NODE_CPUS, NUMBER_LABEL, OBJECT_STORE_BYTES, Head, Wish, labels, spread, write_head
from regions.region_paths import RegionPaths
from regions.specs import gateway_specs, link_spec, replica_spec, shard_processes, shard_specs

log = logging.getLogger("laurel.driver")

#: How long the actors wait for the nodes that they are to be spread over, here and on other machines; then they start without.
NODES_S, NODES_ELSEWHERE_S = 60.0, 20.0
#: How often it is looked whether a replica can go back to its node.
RETURN_S = 2.0
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
    settings = config.regions[given.region]
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
    leave_out_helpers()
    host = ""
    if settings.head is not None:
        host = settings.head.host
        os.environ["RAY_GCS_SERVER_PORT"] = str(settings.head.port)
    ray.init(
        include_dashboard=False,
        num_cpus=NODE_CPUS,
        labels=labels(1, host),
        _node_ip_address=host or LOOPBACK,
        object_store_memory=OBJECT_STORE_BYTES,
        configure_logging=False,
        log_to_driver=False,
        _temp_dir=os.environ.get("LAUREL_RAY_TMP") or None,
    )
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    write_head(RegionPaths(given.data_dir, given.region), Head(address=ray.get_runtime_context().gcs_address, pid=os.getpid()))
    _await_nodes(settings, lambda: stopping)
    handles = start_actors(config, given.region, given.data_dir)
    returning = Returning(settings, {name: handle for name, handle in handles.items() if name.startswith(FIRST_REPLICA)})
    #: Probes that each actor may still miss; one that never answered yet is starting, and may take its time.
    patience: dict[str, int] = {}
    while not stopping:
        time.sleep(0.5)
        if gone := _probe(handles, patience):
            log.error("%s is gone for good", gone)
            return 1
        returning.look()
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


def _await_nodes(settings: RegionConfig, stopping: Callable[[], bool]) -> None:
    """Return when nodes of all numbers are there; what starts without them may end up anywhere."""
    patience_s = NODES_ELSEWHERE_S if settings.head else NODES_S
    deadline = time.monotonic() + patience_s
    while settings.nodes > 1 and not stopping():
        missing = set(range(1, settings.nodes + 1)) - _numbers_there()
        if not missing:
            return
        if time.monotonic() > deadline:
            log.warning("nodes %s have not come in %g s: the actors start without them", sorted(missing), patience_s)
            return
        time.sleep(0.05)


class Returning:
    """Brings a replica back to its own node, when that has come back after its death; one at a time, while all of them serve.

    Shards and gateways stay where they are until they are started again: their callers would notice.
    """

    def __init__(self, settings: RegionConfig, replicas: "dict[str, ray.actor.ActorHandle[Any]]") -> None:
        self._replicas = replicas if settings.nodes > 1 and len(replicas) > 1 else {}
        self._wishes = {name: int(wish.wanted[NUMBER_LABEL]) for name, wish in spread(settings, [], list(replicas), [])}
        self._next = time.monotonic() + RETURN_S
        #: Nodes that were there at the last look.
        self._there: set[int] = set()

    def look(self) -> None:
        """Look, if it is time, and begin to bring one back, if all is well. Takes 2 s at most."""
        if not self._replicas or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + RETURN_S
        before, self._there = self._there, _numbers_there()
        steady = before & self._there
        asked = {name: handle.place.remote() for name, handle in self._replicas.items()}
        try:
            places: dict[str, tuple[int, bool]] = dict(zip(asked, ray.get(list(asked.values()), timeout=PROBE_S), strict=True))
        except (ray.exceptions.RayError, TimeoutError):
            return
        astray = [name for name, (node, _) in places.items() if node != self._wishes[name] and self._wishes[name] in steady]
        if astray and all(serving for _, serving in places.values()):
            log.warning("%s goes back to node %d", astray[0], self._wishes[astray[0]])
            ray.kill(self._replicas[astray[0]], no_restart=False)


def _numbers_there() -> set[int]:
    list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    return {int(node["Labels"].get(NUMBER_LABEL, 0)) for node in list_nodes() if node["Alive"]}


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
    settings = config.regions[region]
    links = link_spec(config, region, data_dir)
    specs = {spec.shard: spec for spec in shard_specs(config, region, data_dir)}
    shards = shard_processes(config, region)
    replicas = numbered(FIRST_REPLICA, settings.replicas)
    gateways = {spec.name: spec for spec in gateway_specs(config, region, data_dir)}
    wishes = dict(spread(settings, list(shards), replicas, list(gateways)))
    handles = {}
    for name, held in shards.items():
        handles[name] = _placed(RemoteShard, name, settings, wishes).remote(
            "regions.shard_setup:make_shards", [specs[shard] for shard in held], links
        )
    for name in replicas:
        spec = replica_spec(config, region, data_dir)
        handles[name] = _placed(RemoteReplica, name, settings, wishes).remote("regions.replica_setup:make_replica", spec)
    for name, gateway in gateways.items():
        others = [other for other in gateways if other != name]
        handles[name] = _placed(RemoteGateway, name, settings, wishes).remote(
            "regions.gateway_setup:make_gateway", gateway, shards, replicas, others
        )
    return handles


def _placed(actor: Any, name: str, settings: RegionConfig, wishes: dict[str, Wish]) -> Any:
    """The actor class under its name. A label, since Ray heeds neither SPREAD nor a soft affinity where no CPU is reserved."""
    if settings.nodes == 1:
        return actor.options(name=name)
    wish = wishes[name]
    elsewhere: Any = {} if wish.only else {"fallback_strategy": [{"label_selector": {}}]}
    return actor.options(name=name, label_selector=dict(wish.wanted), **elsewhere)


if __name__ == "__main__":
    sys.exit(main())
