"""How the Ray cluster of a region is set up: the environment of its processes, where its head is found, which node an actor prefers.

Knows Ray's names and imports none of it: the supervisor, which reads this, stays small.
"""

import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from config.models import RegionConfig
from regions.region_paths import RegionPaths

PACKAGES = Path(__file__).resolve().parent.parent

#: Ray's shared memory on a node: nothing of ours travels through it but small messages.
OBJECT_STORE_BYTES = 80 << 20
#: CPUs that a node claims to have; actors reserve none.
NODE_CPUS = 4
#: Labels of a node: its number within the region, and the address that its machine is known by.
NUMBER_LABEL, HOST_LABEL = "laurel-node", "laurel-host"

#: A killed raylet is noticed after three refused connections: 1.0 to 1.4 s until its actors run elsewhere, where Ray's own values
#: take 15 s (docs/adr/0009). Ray's patience with a raylet that is merely slow, 10 s a question, stays as it is.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "3",
}


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """`run/head.json`: the head of a region's Ray cluster, written by each life of its driver."""

    #: HOST:PORT of its control server.
    address: str
    #: The driver's, as the supervisor counts it.
    pid: int


def write_head(paths: RegionPaths, head: Head) -> None:
    """In one step: a reader sees all of it or the one before it."""
    fresh = paths.root / "run" / "head.json.new"
    fresh.write_bytes(msgspec.json.encode(head))
    fresh.replace(paths.root / "run" / "head.json")


def read_head(paths: RegionPaths) -> Head | None:
    """What a driver wrote last; compare its pid with that of the one that runs."""
    try:
        return msgspec.json.decode((paths.root / "run" / "head.json").read_bytes(), type=Head)
    except (OSError, msgspec.MsgspecError):
        return None


def shared_token(data_dir: Path, region: str) -> str:
    """The token by which nodes on other machines join this region's Ray: whoever has the cluster's secret can make it.

    Raises OSError where the key file is missing.
    """
    secret = (data_dir / "keys" / "secret").read_text().encode()
    return hmac.new(secret, f"ray {region}".encode(), hashlib.sha256).hexdigest()


def environment(paths: RegionPaths, settings: RegionConfig, *, node: int, token: str) -> dict[str, str]:
    """Of a process that starts a node, and so of all below it."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"}}
    others = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PACKAGES)]
    return inherited | {
        # 0 keeps a region on the loopback interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1" if settings.head else "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_raylet_client_connect_timeout_milliseconds": "50",
        "RAY_raylet_client_num_connect_attempts": "200",
        "RAY_timeout_ms_task_wait_for_death_info": "0",
        **(_HEALTH if settings.nodes > 1 else {}),
        **dict.fromkeys(("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"), "0"),
        **dict.fromkeys(("RAY_task_events_report_interval_ms", "RAY_event_stats", "RAY_enable_metrics_collection"), "0"),  # unread here
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        "RAY_process_group_cleanup_enabled": "0",  # workers that lead a group could not leave the session, see `actors.precedence`
        "RAY_worker_niceness": "0",  # Ray's own 15 gives a busy neighbour 28 times the share of our actors
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "HOME": str(paths.root / "ray"),
        "LAUREL_NODE": str(node),
        "LAUREL_RAY_TMP": str(paths.node_tmp(node)),
        "LAUREL_ACTOR_LOG": str(paths.log("actors")),
        "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others]),
    }


def labels(number: int, host: str) -> dict[str, str]:
    """Of a node; `host` is the address that its machine is known by, "" for the one that all are on."""
    return {NUMBER_LABEL: str(number), **({HOST_LABEL: host} if host else {})}


class Wish(msgspec.Struct, frozen=True):
    """Where an actor should run: on a node with `wanted` labels; if there is none, anywhere, unless `only`."""

    wanted: Mapping[str, str]
    only: bool = False


def spread(settings: RegionConfig, shards: Sequence[str], replicas: Sequence[str], gateways: Sequence[str]) -> Iterator[tuple[str, Wish]]:
    """(actor, where it should run). Replicas and gateways begin at the head, shards at the last node: the head has the least to do.

    On several machines a gateway can only be where its address is.
    """
    for i, shard in enumerate(shards):
        yield shard, Wish({NUMBER_LABEL: str(settings.nodes - i % settings.nodes)})
    for i, replica in enumerate(replicas):
        yield replica, Wish({NUMBER_LABEL: str(1 + i % settings.nodes)})
    for i, gateway in enumerate(gateways):
        host, elsewhere = settings.gateways[i][0], settings.head is not None
        if elsewhere and i > 0 and host != settings.host:
            yield gateway, Wish({HOST_LABEL: host}, True)
        elif elsewhere:
            yield gateway, Wish({NUMBER_LABEL: "1"}, True)
        else:
            yield gateway, Wish({NUMBER_LABEL: str(1 + i % settings.nodes)})
