"""The fault switch of links: settings that meet do not undo each other, and a store that is away is a 503, not a failure of ours."""

import asyncio
from typing import Any

import pytest
from gateways import bare_gateway
from redis.exceptions import ConnectionError as StoreAway

from actors.messages import Unanswered
from regions.backend import LinkRequest
from regions.faults import Fault, Faults
from regions.gateway_backend import GatewayBackend

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
    return bare_gateway(faults=Faults(store), peers=tuple(PEERS))


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
