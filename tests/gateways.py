"""A gateway without servers, for tests of what it makes of its parts' words."""

from typing import Any

from regions.gateway_backend import GatewayBackend
from regions.process_specs import GatewaySpec
from regions.routing import Directory


def bare_gateway(*, handles: Any = None, faults: Any = None, peers: tuple[str, ...] = ()) -> GatewayBackend:
    """A gateway of `eu-west` that knows no board and no shard; parts that are left out must not be used."""
    spec = GatewaySpec(
        region="eu-west",
        host="127.0.0.1",
        port=1,
        link_host="127.0.0.1",
        link_port=2,
        own_link="http://127.0.0.1:2",
        store_url="redis://127.0.0.1:3/0",
        peers=dict.fromkeys(peers, "http://127.0.0.1:4"),
        urls={},
        shards={},
        holding=[],
        public_keys=[],
        region_token="",
        max_body_bytes=1,
        max_events=1,
        ack_timeout_ms=1,
    )
    unused: Any = None
    return GatewayBackend(spec, handles=handles, links=unused, faults=faults, directory=Directory(), silent_ms=lambda _: 0)
