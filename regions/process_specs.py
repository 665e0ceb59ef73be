"""What a gateway and the links of any process are made from.

Apart from `regions.specs`, which reads the configuration: an actor that starts again imports only this, and is back sooner.
"""

import msgspec

from config.placing import Place


class FriendsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway learns who a player's friends are: a file, or a service."""

    #: Path of a JSON file; empty where there is a `url`.
    static: str = ""
    #: Address with `{player}`, and `{game}` if the service needs it.
    url: str = ""
    timeout_ms: int = 0
    cache_ms: int = 0


#: Names of the actors that every region has; further ones have a number from 2 on behind it.
FIRST_GATEWAY, FIRST_REPLICA = "gateway", "replica"


def numbered(first: str, count: int) -> list[str]:
    """Names of so many actors of a kind: `gateway`, `gateway 2`, ..."""
    return [first, *(f"{first} {number}" for number in range(2, count + 1))]


class GatewaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway is made from."""

    region: str
    #: Among the actors of its region.
    name: str = FIRST_GATEWAY
    #: Gateways of this region: name -> base URL of the public address.
    gateways: dict[str, str] = {}
    #: Nodes that this region should have.
    nodes: int = 1
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
    #: Where boards may be put, in the order of the configuration.
    places: dict[str, Place]
    #: Shards that wait for an operator when their region is lost.
    holding: list[str]
    public_keys: list[str]
    region_token: str
    max_body_bytes: int
    max_events: int
    ack_timeout_ms: int
    #: None: no friends boards.
    friends: FriendsSpec | None = None

    @property
    def first(self) -> bool:
        """Whether this one is the region's acceptor too, with the link address."""
        return self.name == FIRST_GATEWAY


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to speak to the other regions, and to its own region's acceptor."""

    region: str
    store_url: str
    peers: dict[str, str]
    own_link: str
    token: str
