"""Calls about the cluster: status, moving authority, readmission, the link switch."""

from collections.abc import Mapping
from typing import Any

from laurel.models import Call, path_segment


def _object(document: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def status(*, region: str | None) -> Call[dict[str, Any]]:
    """A region's view of the cluster."""
    return Call(method="GET", path="/v1/status", params={}, decode=_object, only=region)


def health(*, region: str | None) -> Call[dict[str, Any]]:
    """Liveness of a region."""
    return Call(method="GET", path="/healthz", params={}, decode=_object, only=region)


def failover(
    what: str | None, *, to: str, force: bool, from_region: str | None, expect_epoch: int | None, timeout_s: float
) -> Call[dict[str, Any]]:
    """Move authority. Not repeated by itself once it may have begun."""
    if (what is None) == (from_region is None):
        raise ValueError("name either a shard or board, or from_region")
    body: dict[str, Any] = {"to": to, "force": force}
    if what is None:
        body["from"] = from_region
    else:
        body["shard" if "/" in what else "board"] = what
    if expect_epoch is not None:
        body["expect_epoch"] = expect_epoch
    return Call(
        method="POST", path="/v1/admin/failover", params={}, body=body, decode=_object, effect="once", first=to, timeout_s=timeout_s
    )


def readmit(region: str, timeout_s: float) -> Call[dict[str, Any]]:
    """Readmission. Not repeated by itself once it may have begun."""
    path = f"/v1/admin/regions/{path_segment(region, 'region')}/readmit"
    return Call(method="POST", path=path, params={}, decode=_object, effect="once", timeout_s=timeout_s)


def set_link(region: str, peer: str, direction: str, mode: str, delay_ms: int | None, for_ms: int | None) -> Call[dict[str, Any]]:
    """Sets the fault switch of one region's link; the same setting may be sent again."""
    body = {"peer": peer, "direction": direction, "mode": mode, "delay_ms": delay_ms, "for_ms": for_ms}
    body = {name: item for name, item in body.items() if item is not None}
    return Call(method="POST", path="/v1/admin/links", params={}, body=body, decode=_object, effect="by_identity", only=region)
