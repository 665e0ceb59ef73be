"""What a gateway and the links of any process are made from.

Apart from `regions.specs`, which reads the configuration: an actor that starts again imports only this, and is back sooner.
"""

import msgspec


class GatewaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway is made from."""

    region: str
    host: str
    port: int
    link_host: str
    link_port: int
    store_url: str
    #: Region -> base URL of its link server, this region left out.
    peers: dict[str, str]
    #: Base URL of this region's own link server.
    own_link: str
    #: Region -> base URL of its public address.
    urls: dict[str, str]
    #: Shard -> home region.
    shards: dict[str, str]
    #: Shards that wait for an operator when their region is lost.
    holding: list[str]
    public_keys: list[str]
    region_token: str
    max_body_bytes: int
    max_events: int
    ack_timeout_ms: int


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to speak to the other regions, and to its own region's acceptor."""

    region: str
    store_url: str
    peers: dict[str, str]
    own_link: str
    token: str
