"""A gateway without servers, for tests of what it makes of its parts' words."""

from collections.abc import Mapping
from typing import Any

from config.placing import Place
from regions.gateway_backend import GatewayBackend
from regions.process_specs import GatewaySpec
from regions.routing import Directory


def bare_gateway(
    *,
    region: str = "eu-west",
    handles: Any = None,
    faults: Any = None,
    links: Any = None,
    peers: tuple[str, ...] = (),
    urls: tuple[str, ...] = (),
    places: Mapping[str, Place] | None = None,
    directory: Directory | None = None,
) -> GatewayBackend:
    """A gateway that knows no board, and the shards of `places`; parts that are left out must not be used."""
    places = places or {}
    spec = GatewaySpec(
        region=region,
        host="127.0.0.1",
        port=1,
        link_host="127.0.0.1",
        link_port=2,
        own_link="http://127.0.0.1:2",
        store_url="redis://127.0.0.1:3/0",
        peers=dict.fromkeys(peers, "http://127.0.0.1:4"),
        urls=dict.fromkeys(urls, "http://127.0.0.1:5"),
        shards={shard: place.home for shard, place in places.items()},
        places=dict(places),
        holding=[],
        public_keys=[],
        region_token="",
        max_body_bytes=1,
        max_events=1,
        ack_timeout_ms=1,
    )
    return GatewayBackend(spec, handles=handles, links=links, faults=faults, directory=directory or Directory(), silent_ms=lambda _: 0)
