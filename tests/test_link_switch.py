"""The fault switch of links: settings that meet do not undo each other, and a store that is away is a 503, not a failure of ours."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as StoreAway

from actors.messages import Unanswered
from regions.backend import LinkRequest
from regions.faults import Fault, Faults
from regions.gateway_backend import GatewayBackend
from regions.process_specs import GatewaySpec
from regions.routing import Directory

PEERS = ("us-east", "ap-south")


class SlowStore:
    """Lets every other task run between a question and its answer."""

    def __init__(self) -> None:
        self.value: bytes | None = None

    async def get(self, key: bytes) -> bytes | None:
        value = self.value
        await asyncio.sleep(0)
        return value

    async def set(self, key: bytes, value: bytes) -> None:
        await asyncio.sleep(0)
        self.value = value


class AwayStore:
    async def get(self, key: bytes) -> bytes | None:
        raise StoreAway("connection refused")


def backend(store: Any) -> GatewayBackend:
    spec = GatewaySpec(
        region="eu-west",
        host="127.0.0.1",
        port=1,
        link_host="127.0.0.1",
        link_port=2,
        store_url="redis://127.0.0.1:3/0",
        peers=dict.fromkeys(PEERS, "http://127.0.0.1:4"),
        own_link="http://127.0.0.1:2",
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
    return GatewayBackend(spec, handles=unused, links=unused, faults=Faults(store), directory=Directory(), silent_ms=lambda _: 0)


def test_two_settings_at_the_same_time_both_hold() -> None:
    """1. Both read the empty table. 2. Each writes its own part: the second must not write over the first."""
    faults = Faults(SlowStore())  # type: ignore[arg-type]

    async def both() -> None:
        await asyncio.gather(*(faults.set(peer, "both", Fault(mode="drop")) for peer in PEERS))

    asyncio.run(both())
    assert set(faults.table.outward) == set(faults.table.inward) == set(PEERS)


def test_a_store_that_is_away_is_told_as_unavailable_and_not_definite() -> None:
    wanted = LinkRequest(peer="us-east", direction="both", mode="drop", delay_ms=0, for_ms=None)
    with pytest.raises(Unanswered, match="store of eu-west") as caught:
        asyncio.run(backend(AwayStore()).set_link(wanted, subject="operator"))
    assert caught.value.code == "unavailable"
    assert caught.value.definite is False
