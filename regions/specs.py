"""From the configuration to what each process of a region is made of; and the cluster's key files.

`DIR/keys/` holds the throw-away key pair of a local cluster, one region credential per region, and the
secret that signs cursors. Regions on several machines need copies of the same files.
"""

import hashlib
import hmac
import secrets
from pathlib import Path

import msgspec

from actors.ports import Limits, ReplicaSpec, ShardSpec
from config.models import ClusterConfig
from failover.state import Timing
from regions.process_specs import FIRST_GATEWAY, FriendsSpec, GatewaySpec, LinkSpec, numbered
from regions.region_paths import RegionPaths
from regions.tokens import KeyPair, Scope

#: Life of the tokens that `laurel up` makes, in seconds.
LOCAL_TOKEN_S = 30 * 86_400
#: Life of a region's credential: links must not end because a region has run for long.
REGION_TOKEN_S = 10 * 365 * 86_400


def make_keys(data_dir: Path, regions: list[str]) -> None:
    """Make what is missing under `DIR/keys` and `DIR/tokens`. Idempotent; files are for the owner's eyes only."""
    keys, tokens = data_dir / "keys", data_dir / "tokens"
    for folder in (data_dir, keys, tokens):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private = keys / "cluster.pem"
    if not private.exists():
        KeyPair.generate().save(private)
    pair = KeyPair.load(private)
    _write(keys / "cluster.pub", pair.public_pem())
    secret = keys / "secret"
    if not secret.exists():
        _write(secret, secrets.token_hex(32))
    for region in regions:
        _write(keys / f"region-{region}.token", pair.issue(region, "region", ["*"], REGION_TOKEN_S))
    scopes: tuple[Scope, ...] = ("game-server", "reader", "operator")
    for scope in scopes:
        _write(tokens / f"{scope}.token", pair.issue(f"local-{scope}", scope, ["*"], LOCAL_TOKEN_S))


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(path)


def gateway_specs(config: ClusterConfig, region: str, data_dir: Path) -> list[GatewaySpec]:
    """One for each gateway of the region, the first one first. Raises OSError where a key file is missing."""
    addresses = config.regions[region].gateways
    names = numbered(FIRST_GATEWAY, len(addresses))
    first = gateway_spec(config, region, data_dir)
    gateways = {name: _url(*address) for name, address in zip(names, addresses, strict=True)}
    return [
        msgspec.structs.replace(first, name=name, host=host, port=port, gateways=gateways)
        for name, (host, port) in zip(names, addresses, strict=True)
    ]


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def gateway_spec(config: ClusterConfig, region: str, data_dir: Path) -> GatewaySpec:
    """The first gateway's part. Raises OSError where a key file is missing."""
    own = config.regions[region]
    links = link_spec(config, region, data_dir)
    return GatewaySpec(
        region=region,
        nodes=own.nodes,
        host=own.host,
        port=own.port,
        link_host=own.link.host,
        link_port=own.link.port,
        store_url=own.store.redis_url,
        peers=links.peers,
        own_link=links.own_link,
        urls={name: f"http://{r.host}:{r.port}" for name, r in config.regions.items()},
        shards={name: shard.home for name, shard in config.shards.items()},
        places=config.places,
        holding=[name for name, shard in config.shards.items() if shard.on_region_loss == "hold"],
        public_keys=[(data_dir / "keys" / "cluster.pub").read_text()],
        region_token=links.token,
        max_body_bytes=config.limits.max_body_bytes,
        max_events=config.limits.max_batch_events,
        ack_timeout_ms=config.limits.ack_timeout_ms,
        friends=_friends_spec(config),
    )


def _friends_spec(config: ClusterConfig) -> FriendsSpec | None:
    given = config.friends
    if given is None:
        return None
    return FriendsSpec(static=given.static or "", url=given.url or "", timeout_ms=given.timeout_ms, cache_ms=given.cache_ms)


def link_spec(config: ClusterConfig, region: str, data_dir: Path) -> LinkSpec:
    """This region's way to the others, and to its own acceptor."""
    own = config.regions[region].link
    return LinkSpec(
        region=region,
        store_url=config.regions[region].store.redis_url,
        peers={name: f"http://{r.link.host}:{r.link.port}" for name, r in config.regions.items() if name != region},
        own_link=f"http://{own.host}:{own.port}",
        token=(data_dir / "keys" / f"region-{region}.token").read_text(),
    )


def shard_specs(config: ClusterConfig, region: str, data_dir: Path) -> list[ShardSpec]:
    """One for each shard of the cluster: this region is its authority or follows it."""
    limits, timing = config.limits, config.timing
    layouts = {board: config.layout_of(board) for board in config.boards}
    return [
        ShardSpec(
            region=region,
            shard=name,
            home=shard.home,
            regions=tuple(config.regions),
            store_url=config.regions[region].store.redis_url,
            ledger_path=str(RegionPaths(data_dir, region).ledger(name)),
            timing=Timing(
                heartbeat_ms=timing.heartbeat_ms,
                probe_timeout_ms=timing.probe_timeout_ms,
                seal_restart_ms=timing.seal_restart_ms,
                handover_timeout_ms=timing.handover_timeout_ms,
                backoff_min_ms=timing.backoff_min_ms,
                backoff_max_ms=timing.backoff_max_ms,
                detection_ms=timing.detection_ms if shard.on_region_loss == "promote" else 0,
                lease_ms=timing.lease_ms,
                seal_grace_ms=timing.seal_grace_ms,
            ),
            limits=Limits(
                unreplicated_entries=limits.unreplicated_entries,
                unreplicated_bytes=limits.unreplicated_bytes,
                unreplicated_ms=limits.unreplicated_ms,
                ack_timeout_ms=limits.ack_timeout_ms,
                group_ms=limits.group_commit_ms,
            ),
            boards={board: (config.board_rules(board), layout) for board, layout in layouts.items() if layout.lead == name},
            mode=shard.ack,
        )
        for name, shard in config.shards.items()
    ]


def shard_processes(config: ClusterConfig, region: str) -> dict[str, list[str]]:
    """Actor name -> shards that it holds: pooled shards share the region's `shard_processes` evenly, a dedicated one has its own."""
    count = config.regions[region].shard_processes or config.regions[region].nodes
    pooled = [name for name, shard in config.shards.items() if shard.kind == "pooled"]
    shared = [pooled[first::count] for first in range(min(count, len(pooled)))]
    alone = [[name] for name, shard in config.shards.items() if shard.kind == "dedicated"]
    return {f"shard {held[0]}" if len(held) == 1 else f"shards {number}": held for number, held in enumerate([*shared, *alone], 1)}


def replica_spec(config: ClusterConfig, region: str, data_dir: Path) -> ReplicaSpec:
    """The read replica's part."""
    secret = (data_dir / "keys" / "secret").read_text().encode()
    return ReplicaSpec(
        region=region,
        shards={name: shard.home for name, shard in config.shards.items()},
        store_url=config.regions[region].store.redis_url,
        cursor_key=hmac.new(secret, b"cursors", hashlib.sha256).digest(),
    )
