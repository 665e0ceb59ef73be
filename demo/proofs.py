"""The proofs: read straight from the three stores, and from all three gateways, and compared with what the clients remember."""

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import dataclass

import msgspec

from demo.cluster import SHARD, DemoCluster
from demo.play import compare_places
from demo.seasons import DECIMALS, Season
from demo.tally import OffTrackError, Tally
from journal.ports import Accepted, Append, JournalStatus, Position, Refused
from journal.records import BoardCreated, Entry, EpochStarted, Published, Scored, open_entry, seal_entry
from journal.redis_journal import RedisJournal
from laurel import Page

SETTLE_S = 30.0


class _Body(msgspec.Struct):
    generation: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Log:
    """One region's journal, whole."""

    status: JournalStatus
    entries: list[Entry]


async def _read_all(url: str, region: str) -> Log:
    journal = RedisJournal(url, SHARD, region=region, timeout_ms=5000)
    try:
        status = await journal.status()
        entries: list[Entry] = []
        while len(entries) < status.tail.offset:
            part = await journal.read(len(entries) + 1, limit=1000)
            if not part:
                break
            entries += part
        return Log(status, entries[: status.tail.offset])
    finally:
        await journal.close()


async def _settled_logs(urls: dict[str, str]) -> dict[str, Log]:
    deadline = time.monotonic() + SETTLE_S
    while True:
        logs = dict(zip(urls, await asyncio.gather(*(_read_all(url, region) for region, url in urls.items())), strict=True))
        states = {(log.status.tail, log.status.committed) for log in logs.values()}
        if len(states) == 1 and all(log.status.committed == log.status.tail.offset for log in logs.values()):
            return logs
        if time.monotonic() > deadline:
            shown = ", ".join(f"{region} ends at {log.status.tail}, committed {log.status.committed}" for region, log in logs.items())
            raise OffTrackError(f"the three journals do not come together within {SETTLE_S:g} s: {shown}")
        await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """What the one journal of all regions says."""

    entries: int
    #: Acknowledged events that it does not hold.
    lost: int
    #: Board id -> (generation, checksum) of its last publish record.
    published: dict[str, tuple[int, int]]


def every_event_is_there_once(cluster: DemoCluster, tally: Tally) -> JournalFacts:
    """Proof 1: the same entries in all three stores, and in them each acknowledged event once, where it was said to be."""
    logs = asyncio.run(_settled_logs(cluster.store_urls()))
    first, log = next(iter(logs.items()))
    for region, other in logs.items():
        if len(other.entries) != other.status.tail.offset:
            raise OffTrackError(f"{region} has {len(other.entries)} entries up to offset {other.status.tail.offset}")
        for ours, theirs in zip(log.entries, other.entries, strict=True):
            if ours != theirs:
                raise OffTrackError(f"{first} and {region} hold different entries at offset {ours.offset}")
    boards: dict[int, str] = {}
    published: dict[str, tuple[int, int]] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for entry in log.entries:
        for record in open_entry(entry):
            match record:
                case BoardCreated():
                    boards[record.number] = record.board_id
                case Published():
                    published[boards[record.board]] = (record.generation, record.checksum)
                case Scored():
                    key = (boards[record.board], record.player_id, record.event_id)
                    seen[key] += 1
                    ack = tally.acks.get(key)
                    if ack is None:
                        raise OffTrackError(f"the journal holds {record.event_id}, which no client got acknowledged")
                    result = ack.result
                    said = (result.epoch, result.offset, result.version, None if result.value is None else result.value * 10**DECIMALS)
                    if seen[key] == 1 and said != (entry.epoch, entry.offset, record.version, record.value):
                        is_at = f"{entry.epoch}-{entry.offset}"
                        raise OffTrackError(
                            f"{record.event_id} was acknowledged at {result.position}, and the journal says otherwise at {is_at}"
                        )
                case _:
                    pass
    lost = [key for key in tally.acks if key not in seen]
    if lost:
        raise OffTrackError(f"{len(lost)} acknowledged events are not in the journal, such as {lost[0][2]}")
    twice = [key for key, times in seen.items() if times != 1]
    if twice:
        raise OffTrackError(f"{len(twice)} events are in the journal more than once, such as {twice[0][2]}")
    return JournalFacts(len(log.entries), len(lost), published)


def same_generations_everywhere(cluster: DemoCluster, seasons: list[Season], facts: JournalFacts, tally: Tally) -> dict[str, bytes]:
    """Proof 2: the last generation of every board has the published checksum, and is the same bytes in all regions. Returns the pages."""
    pages: dict[str, bytes] = {}
    for season in seasons:
        number, checksum = facts.published[season.board]
        bodies = {region: _page(cluster, region, season.board, f"s{number}") for region in cluster.regions}
        for region, raw in bodies.items():
            body = msgspec.json.decode(raw, type=_Body)
            if (body.generation, body.checksum) != (f"s{number}", f"{checksum:016x}"):
                raise OffTrackError(
                    f"{region} shows {season.year} as {body.generation} {body.checksum}, published was s{number} {checksum:016x}"
                )
        if len(set(bodies.values())) != 1:
            raise OffTrackError(f"{season.year}: s{number} is not the same bytes in all regions")
        tally.checked(pages=len(bodies))
        pages[season.board] = next(iter(bodies.values()))
    return pages


def _page(cluster: DemoCluster, region: str, board: str, generation: str) -> bytes:
    deadline = time.monotonic() + SETTLE_S
    while (body := cluster.page_bytes(region, board, generation)) is None:
        if time.monotonic() > deadline:
            raise OffTrackError(f"{region} does not show {board} in {generation}")
        time.sleep(0.05)
    return body


def no_old_epoch_can_write(cluster: DemoCluster, regions: list[str]) -> tuple[int, list[EpochStarted]]:
    """Proof 3: with the very attempts of all older epochs, both ways of writing are refused as fenced, and nothing moves.

    Returns how many writes were tried, and the epochs of the journal.
    """
    urls = cluster.store_urls()
    return asyncio.run(_try_old_epochs({region: urls[region] for region in regions}))


async def _try_old_epochs(urls: dict[str, str]) -> tuple[int, list[EpochStarted]]:
    tried = 0
    started: list[EpochStarted] = []
    for region, url in urls.items():
        log = await _read_all(url, region)
        started = [
            record for entry in log.entries if entry.term is not None for record in open_entry(entry) if isinstance(record, EpochStarted)
        ]
        journal = RedisJournal(url, SHARD, region=region)
        try:
            for old in started[:-1]:
                for answer in await _write_as(journal, old, started[-1]):
                    tried += 1
                    if not isinstance(answer, Refused) or answer.reason != "fenced":
                        word = "taken" if isinstance(answer, Accepted) else f"refused as {answer.reason}, not as fenced"
                        raise OffTrackError(f"a write of the old epoch {old.epoch} in {region} was {word}")
        finally:
            await journal.close()
    return tried, started


async def _write_as(journal: RedisJournal, old: EpochStarted, newest: EpochStarted) -> list[Accepted | Refused]:
    """What the old owner would send, to its own store and to another's, with the tail as it is now."""
    tail = (await journal.status()).tail
    entry = seal_entry(old.epoch, tail.offset + 1, uuid.uuid4().hex, [])
    message = Append(
        shard=SHARD,
        lineage=newest.lineage,
        config_version=newest.config_version,
        sender=old.owner,
        incarnation=newest.members.get(old.owner, ""),
        request_id=uuid.uuid4().hex,
        epoch=old.epoch,
        attempt=old.attempt,
        prev=Position(*tail),
        entries=[entry],
    )
    own = await journal.append(epoch=old.epoch, attempt=old.attempt, expected=tail, entries=[entry], committed=0, peers={})
    return [own, await journal.accept(message)]


def finals_are_official(seasons: list[Season], pages: dict[str, bytes], tally: Tally) -> None:
    """Proof 4: the last generation of each season is its official final standings, and holds nobody else."""
    for season in seasons:
        last = season.races[-1]
        page = Page.model_validate_json(pages[season.board])
        compare_places(season, last, page, set(last.totals) - {entry.player_id for entry in page.entries})
        tally.checked(rows=len(last.totals))
