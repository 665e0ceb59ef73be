"""The proofs: read straight from the three stores, and from all three gateways, and compared with what the clients remember."""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from demo.cluster import SHARDS, DemoCluster
from demo.play import compare_places
from demo.seasons import ALL_TIME, DECIMALS, Season, competition_ranks
from demo.tally import OffTrackError, Tally
from journal.ports import Accepted, Append, JournalStatus, Position, Refused
from journal.records import BoardCreated, Entry, EpochStarted, Manifest, Published, Scored, open_entry, seal_entry
from journal.redis_journal import RedisJournal
from laurel import Page

SETTLE_S = 30.0


class _Body(msgspec.Struct):
    generation: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Log:
    """One region's journal of one shard, whole."""

    status: JournalStatus
    entries: list[Entry]


async def _read_all(url: str, region: str, shard: str) -> Log:
    journal = RedisJournal(url, shard, region=region, timeout_ms=5000)
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


async def _settled_logs(urls: dict[str, str], shard: str) -> dict[str, Log]:
    deadline = time.monotonic() + SETTLE_S
    while True:
        read = await asyncio.gather(*(_read_all(url, region, shard) for region, url in urls.items()))
        logs = dict(zip(urls, read, strict=True))
        states = {(log.status.tail, log.status.committed) for log in logs.values()}
        if len(states) == 1 and all(log.status.committed == log.status.tail.offset for log in logs.values()):
            return logs
        if time.monotonic() > deadline:
            shown = ", ".join(f"{region} ends at {log.status.tail}, committed {log.status.committed}" for region, log in logs.items())
            raise OffTrackError(f"the three journals of {shard} do not come together within {SETTLE_S:g} s: {shown}")
        await asyncio.sleep(0.2)


def _the_one_log(urls: dict[str, str], shard: str) -> list[Entry]:
    """The entries of a shard, which must be the same in all three stores."""
    logs = asyncio.run(_settled_logs(urls, shard))
    first, log = next(iter(logs.items()))
    for region, other in logs.items():
        if len(other.entries) != other.status.tail.offset:
            raise OffTrackError(f"{region} has {len(other.entries)} entries of {shard} up to offset {other.status.tail.offset}")
        for ours, theirs in zip(log.entries, other.entries, strict=True):
            if ours != theirs:
                raise OffTrackError(f"{first} and {region} hold different entries of {shard} at offset {ours.offset}")
    return log.entries


def last_positions(tally: Tally, board: str) -> list[str]:
    """The greatest acknowledged position in each shard of a board of several: what includes them includes everything."""
    last: dict[str, tuple[int, int, str]] = {}
    for ack in tally.all_acks():
        if ack.board == board and ack.result.at_least is not None:
            at = (ack.result.epoch or 0, ack.result.offset or 0, ack.result.at_least)
            shard = ack.result.shard or ""
            last[shard] = max(last.get(shard, at), at)
    return [position for _, _, position in last.values()]


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """What the journals say, each of them one and the same in all regions."""

    entries: int
    #: Acknowledged events that none of them holds.
    lost: int
    #: Board id -> (generation, checksum) of its last publish record, or manifest.
    published: dict[str, tuple[int, int]]


def every_event_is_there_once(cluster: DemoCluster, tally: Tally) -> JournalFacts:
    """Proof 1: the same entries in all three stores, and in them each acknowledged event once, where it was said to be."""
    entries, urls = 0, cluster.store_urls()
    published: dict[str, tuple[int, int]] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for shard in SHARDS:
        log = _the_one_log(urls, shard)
        entries += len(log)
        boards: dict[int, str] = {}
        for entry in log:
            for record in open_entry(entry):
                match record:
                    case BoardCreated():
                        boards[record.number] = record.board_id
                    case Published() | Manifest():
                        board = boards[record.board]
                        published[board] = max(published.get(board, (0, 0)), (record.generation, record.checksum))
                    case Scored():
                        key = (boards[record.board], record.player_id, record.event_id)
                        seen[key] += 1
                        _is_as_acknowledged(tally, key, record, (shard, entry.epoch, entry.offset))
                    case _:
                        pass
    lost = [key for key in tally.acks if key not in seen]
    if lost:
        raise OffTrackError(f"{len(lost)} acknowledged events are not in the journals, such as {lost[0][2]} of {lost[0][0]}")
    twice = [key for key, times in seen.items() if times != 1]
    if twice:
        raise OffTrackError(f"{len(twice)} events are in the journals more than once, such as {twice[0][2]} of {twice[0][0]}")
    return JournalFacts(entries, len(lost), published)


def _is_as_acknowledged(tally: Tally, key: tuple[str, str, str], record: Scored, place: tuple[str, int, int]) -> None:
    """A client was told of this record what is in it, and where it is."""
    ack = tally.acks.get(key)
    if ack is None:
        raise OffTrackError(f"the journal holds {record.event_id} of {key[0]}, which no client got acknowledged")
    result = ack.result
    if result.duplicate and key[0] == ALL_TIME:
        return  # sent again across the board's move, which gives events that came before it a new place
    said = ((result.shard, result.epoch, result.offset), result.version, None if result.value is None else result.value * 10**DECIMALS)
    if said != (place, record.version, record.value):
        raise OffTrackError(f"{record.event_id} of {key[0]} was acknowledged at {said[0]}, and the journal says otherwise at {place}")


def same_generations_everywhere(cluster: DemoCluster, seasons: list[Season], facts: JournalFacts, tally: Tally) -> dict[str, bytes]:
    """Proof 2: the last generation of every board has the published checksum, and is the same bytes in all regions. Returns the pages."""
    pages: dict[str, bytes] = {}
    for board in (*(season.board for season in seasons), ALL_TIME):
        number, checksum = facts.published[board]
        bodies = {region: _page(cluster, region, board, f"s{number}") for region in cluster.regions}
        for region, raw in bodies.items():
            body = msgspec.json.decode(raw, type=_Body)
            if (body.generation, body.checksum) != (f"s{number}", f"{checksum:016x}"):
                raise OffTrackError(f"{region} shows {board} as {body.generation} {body.checksum}, published was s{number} {checksum:016x}")
        if len(set(bodies.values())) != 1:
            raise OffTrackError(f"{board}: s{number} is not the same bytes in all regions")
        tally.checked(pages=len(bodies))
        pages[board] = next(iter(bodies.values()))
    return pages


def _page(cluster: DemoCluster, region: str, board: str, generation: str) -> bytes:
    deadline = time.monotonic() + SETTLE_S
    while (body := cluster.page_bytes(region, board, generation)) is None:
        if time.monotonic() > deadline:
            raise OffTrackError(f"{region} does not show {board} in {generation}")
        time.sleep(0.05)
    return body


def ranks_are_a_plain_sort(
    cluster: DemoCluster, seasons: Iterable[Season], regions: Sequence[str], tally: Tally, generation: str | None = None
) -> Page:
    """One generation of the board of all seasons is the same bytes in `regions`, and all its ranks are those of a plain sort.

    What is sorted comes from the stores and the data files alone: the events up to the boundary of each shard, and their points.
    """
    wanted = generation or cluster.reader.top(ALL_TIME, 1, region=regions[0]).generation
    bodies = {region: _page(cluster, region, ALL_TIME, wanted) for region in regions}
    if len(set(bodies.values())) != 1:
        raise OffTrackError(f"all seasons: {wanted} is not the same bytes in {', '.join(regions)}")
    page = Page.model_validate_json(bodies[regions[0]])
    points = {result.event_id: result.points for season in seasons for race in season.races for result in race.results}
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    for player_id, event_id in asyncio.run(_events_within(cluster.store_urls()[regions[0]], regions[0], page.boundaries)):
        totals[player_id] += points[event_id]
    shown = {entry.player_id: (entry.value, entry.rank) for entry in page.entries}
    ranks = competition_ranks(totals)
    if shown != {player: (total, ranks[player]) for player, total in totals.items()} or len(page.entries) != page.total:
        odd = sorted(player for player in {*shown, *totals} if shown.get(player) != (totals.get(player), ranks.get(player)))
        raise OffTrackError(f"all seasons, {wanted}: a plain sort of its {len(totals)} drivers gives other ranks for {', '.join(odd[:3])}")
    tally.checked(pages=len(bodies))
    tally.sorted_once(len(shown))
    return page


async def _events_within(url: str, region: str, boundaries: dict[str, str]) -> list[tuple[str, str]]:
    """(player, event id) of the board of all seasons, as the shards' journals hold them up to a generation's boundaries."""
    found: list[tuple[str, str]] = []
    for shard, boundary in boundaries.items():
        last, numbers = int(boundary.partition("-")[2]), set[int]()
        for entry in (await _read_all(url, region, shard)).entries:
            if entry.offset > last:
                break
            for record in open_entry(entry):
                if isinstance(record, BoardCreated) and record.board_id == ALL_TIME:
                    numbers.add(record.number)
                elif isinstance(record, Scored) and record.board in numbers:
                    found.append((record.player_id, record.event_id))
    return found


def no_old_epoch_can_write(cluster: DemoCluster, regions: list[str]) -> tuple[int, dict[str, list[EpochStarted]]]:
    """Proof 3: with the very attempts of all older epochs, both ways of writing are refused as fenced, and nothing moves.

    Returns how many writes were tried, and the epochs of each shard.
    """
    urls = cluster.store_urls()
    return asyncio.run(_try_old_epochs({region: urls[region] for region in regions}))


async def _try_old_epochs(urls: dict[str, str]) -> tuple[int, dict[str, list[EpochStarted]]]:
    tried = 0
    epochs: dict[str, list[EpochStarted]] = {}
    for region, url in urls.items():
        for shard in SHARDS:
            log = await _read_all(url, region, shard)
            records = [record for entry in log.entries if entry.term is not None for record in open_entry(entry)]
            started = epochs[shard] = [record for record in records if isinstance(record, EpochStarted)]
            journal = RedisJournal(url, shard, region=region)
            try:
                for old in started[:-1]:
                    for answer in await _write_as(journal, shard, old, started[-1]):
                        tried += 1
                        if not isinstance(answer, Refused) or answer.reason != "fenced":
                            word = "taken" if isinstance(answer, Accepted) else f"refused as {answer.reason}, not as fenced"
                            raise OffTrackError(f"a write of the old epoch {old.epoch} of {shard} in {region} was {word}")
            finally:
                await journal.close()
    return tried, epochs


async def _write_as(journal: RedisJournal, shard: str, old: EpochStarted, newest: EpochStarted) -> list[Accepted | Refused]:
    """What the old owner would send, to its own store and to another's, with the tail as it is now."""
    tail = (await journal.status()).tail
    entry = seal_entry(old.epoch, tail.offset + 1, uuid.uuid4().hex, [])
    message = Append(
        shard=shard,
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
