"""This region's orphans over HTTP: what a deposed authority had written here and the lineage does not hold."""

from typing import Any

from starlette.requests import Request

from boards.times import format_time
from regions.answering import Edge, Reply, json_reply
from regions.audit_api import OPERATOR, limit_of, shard_of, text_of
from regions.problems import ProblemError
from regions.submit_api import check_fields, read_object, read_query

LIMIT_DEFAULT, LIMIT_MAX = 1000, 10_000
_WHY_CHARS = 500


async def listed(edge: Edge, request: Request) -> Reply:
    """`GET /v1/admin/orphans?shard=&limit=`: for each shard counts by entry, and its first orphans with their state.

    `state`: `done` (the lineage has it, `outcome` says how), `open` (it can be sent again), `held`, or `operator`
    (sending it again would change nothing; `code` says why). Until `caught_up`, some may only not be back in the log yet.
    """
    edge.admitted(request, OPERATOR, "*")
    query = read_query(request, ("shard", "limit"))
    shards = await edge.backend.orphans(query.get("shard"), limit_of(query, LIMIT_DEFAULT, LIMIT_MAX))
    for found in shards.values():
        for item in found["orphans"]:
            if "achieved_ms" in item:
                item["achieved_at"] = format_time(item.pop("achieved_ms"))
    return json_reply({"region": edge.backend.region, "shards": shards}, region=edge.backend.region)


async def resubmit(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/orphans/resubmit`: send open ones again, of one shard or all; `entries` counts what is known then.

    Harmless however often it is done. It ends within about 20 s a shard; what is still open may be asked for again.
    """
    claims = edge.admitted(request, OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, ("shard",), ())
    shards = await edge.backend.resubmit_orphans(shard_of(document), subject=claims.sub)
    return json_reply({"region": edge.backend.region, "shards": shards}, region=edge.backend.region)


async def sign_off(edge: Edge, request: Request) -> Reply:
    """`POST /v1/admin/orphans/sign-off`: record who gives one epoch's orphans up and why, then delete them here."""
    claims = edge.admitted(request, OPERATOR, "*")
    read_query(request, ())
    document = await read_object(request, edge.limits.max_body_bytes)
    check_fields(document, ("shard", "epoch", "why"), ("shard", "epoch", "why"))
    shard, epoch, why = text_of(document, "shard", 128), _epoch(document), text_of(document, "why", _WHY_CHARS)
    done = await edge.backend.sign_off_orphans(shard, epoch, why, subject=claims.sub)
    return json_reply({"region": edge.backend.region, "shard": shard, **done}, region=edge.backend.region)


def _epoch(document: dict[str, Any]) -> int:
    epoch = document["epoch"]
    if type(epoch) is not int or not 1 <= epoch < 2**53:
        raise ProblemError("invalid", "epoch must be a whole number", field="epoch", allowed="a whole number from 1 to 2**53 - 1")
    return epoch
