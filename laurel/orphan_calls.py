"""Calls about orphans: always to one region, about what its stores keep."""

from collections.abc import Mapping
from typing import Any

from laurel.models import Call

#: A region sends orphans again for up to 20 s a shard.
RESUBMIT_TIMEOUT_S = 60.0
SIGN_OFF_TIMEOUT_S = 35.0

_PATH = "/v1/admin/orphans"


def _object(document: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def listed(region: str, shard: str | None, limit: int) -> Call[dict[str, Any]]:
    """Orphans of one shard or all."""
    params = {"limit": str(limit), **({} if shard is None else {"shard": shard})}
    return Call(method="GET", path=_PATH, params=params, decode=_object, only=region)


def resubmit(region: str, shard: str | None) -> Call[dict[str, Any]]:
    """Events keep their ids, so it may be asked for again."""
    return Call(
        method="POST",
        path=f"{_PATH}/resubmit",
        params={},
        body={} if shard is None else {"shard": shard},
        decode=_object,
        effect="by_identity",
        only=region,
        timeout_s=RESUBMIT_TIMEOUT_S,
    )


def sign_off(region: str, shard: str, epoch: int, why: str) -> Call[dict[str, Any]]:
    """Not repeated by itself: a second record would say that somebody did it twice."""
    return Call(
        method="POST",
        path=f"{_PATH}/sign-off",
        params={},
        body={"shard": shard, "epoch": epoch, "why": why},
        decode=_object,
        effect="once",
        only=region,
        timeout_s=SIGN_OFF_TIMEOUT_S,
    )
