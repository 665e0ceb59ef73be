"""Composition of a read replica; runs inside the actor's process."""

from actors.ports import ReplicaSpec
from actors.replica import ReplicaActor
from journal.ports import Journal
from journal.redis_journal import RedisJournal, open_client


def make_replica(spec: ReplicaSpec) -> ReplicaActor:
    """The region's read replica."""
    client = open_client(spec.store_url)
    journals: dict[str, Journal] = {shard: RedisJournal(client, shard, region=spec.region) for shard in spec.shards}
    return ReplicaActor(spec, journals=journals)
