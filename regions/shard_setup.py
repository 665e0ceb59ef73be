"""Composition of a shard actor; runs inside the actor's process."""

import logging
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


def make_shard(spec: ShardSpec, links: LinkSpec) -> ShardActor:
    """A shard actor on this region's store, links and ledger."""
    client = open_client(spec.store_url)
    faults = Faults(client)
    actor = ShardActor(
        spec,
        journal=RedisJournal(client, spec.shard, region=spec.region),
        links=HttpLinks(spec.region, links.peers | {spec.region: links.own_link}, links.token, faults),
        ledger=open_ledger(spec.ledger_path),
        exit_process=exit_process,
    )
    actor.background(faults.run())
    return actor


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
