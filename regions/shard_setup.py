"""Composition of the shard actors of one process; runs inside it."""

import logging
from collections.abc import Sequence
from pathlib import Path

from actors.ports import ShardSpec
from actors.remote import exit_process
from actors.shard import ShardActor
from journal.redis_journal import RedisJournal, open_client
from ledger.lmdb_ledger import LmdbLedger
from ledger.ports import LedgerUnavailable
from regions.faults import Faults
from regions.links import HttpLinks
from regions.process_specs import LinkSpec

log = logging.getLogger("laurel.shard")

#: A second instance of an actor may still hold the ledger; it is derived data, so the newer one takes another place.
LEDGER_PLACES = 4


def make_shards(specs: Sequence[ShardSpec], spec: LinkSpec) -> dict[str, ShardActor]:
    """Shard actors, by shard, on this region's store, links and ledgers: one store client and one link to each region for all."""
    client = open_client(spec.store_url)
    faults = Faults(client)
    links = HttpLinks(spec.region, spec.peers | {spec.region: spec.own_link}, spec.token, faults)
    actors: dict[str, ShardActor] = {}
    for shard in specs:
        actors[shard.shard] = ShardActor(
            shard,
            journal=RedisJournal(client, shard.shard, region=shard.region),
            links=links,
            ledger=open_ledger(shard.ledger_path),
            exit_process=exit_process,
            near=actors,
        )
    next(iter(actors.values())).background(faults.run())
    return actors


def open_ledger(path: str) -> LmdbLedger:
    """Open the ledger at `path`, or beside it while a dying instance still holds that one."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for place in range(LEDGER_PLACES):
        try:
            return LmdbLedger(path if place == 0 else f"{path}.{place}")
        except LedgerUnavailable as error:
            log.warning("%s", error)
            if place == LEDGER_PLACES - 1:
                raise
    raise AssertionError("unreachable")
