"""The kill matrix: each part of a region killed under load from all regions, in the authority's region and in another.

For every case: writes and reads come back, the killed part comes back by itself, a new epoch is taken only where it
must be, and what was acknowledged is there exactly once, in every region alike: on two boards of one shard and on one
that is spread over three. One line of times a case is printed.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest
from load import Load, Watcher, no_region_answered_s, place
from redis.asyncio import Redis
from running_cluster import SHARD, SHARDS

from journal.records import Entry, Scored, open_entry
from journal.redis_journal import RedisJournal, open_client

pytestmark = pytest.mark.cluster

Say = Callable[[str], None]
Record = Callable[[str, object], None]

HOME, OTHER = "eu-west", "us-east"
WHERE = {HOME: "the authority", OTHER: "a follower"}
#: Parts whose death takes the epoch of the leading shard's actor along, where the region is the authority.
EPOCH_BOUND = {"shard", "store", "gcs", "raylet", "region", "supervisor"}
#: What else tells, by a new pid, that a part is back: the region's processes after the death of all of them.
SIGN = {"region": "supervisor"}
#: Which shard's actor a part is.
ACTORS = {"shard": SHARD, "other shard": SHARDS[2]}
#: Both regions take turns, so that each has been well for a while before it is hit again.
PARTS = ("shard", "replica", "gateway", "store", "gcs", "raylet", "supervisor", "region")
KILLS = [("other shard", HOME), *((part, region) for part in PARTS for region in (HOME, OTHER))]
#: Longest time without an answered read in a region that nothing happened to: a bound for a busy machine, not an aim.
BUSY_S = 5.0
COLUMNS = "{:<34}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}{:>9}{:>9}"


class Boards(NamedTuple):
    """Two boards that add up deltas of 1, the second one over all shards, and one of best scores."""

    total: str
    best: str
    spread: str


@pytest.fixture(scope="module")
def boards(cluster: Any) -> Boards:
    """One set for the whole matrix: each case has players of its own, and later cases may not undo earlier ones."""
    return Boards(
        cluster.fresh_board("cumulative", visibility="public"),
        cluster.fresh_board("best_score", visibility="public"),
        cluster.fresh_board("cumulative", visibility="public", shards=list(SHARDS)),
    )


@pytest.fixture(scope="module")
def heading(pytestconfig: pytest.Config) -> Say:
    """Prints a line past pytest's capture, the first one below a heading."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    names = ("killed under load", "write pause", "own writes", "back after", "read gap", "elsewhere", "events", "unknown", "epochs")
    lines = ["\n" + COLUMNS.format(*names)]

    def say(line: str) -> None:
        lines.append(line)
        with capture.global_and_fixture_disabled():
            while lines:
                print(lines.pop(0), flush=True)

    return say


class Seen(NamedTuple):
    """What a case found; times in seconds."""

    #: Longest time without any acknowledgement, and without one for the game server of the victim's region.
    write_pause: float
    own_pause: float
    #: Until the killed part ran again and the region was ready.
    back: float
    #: Longest time without an answered read in the victim's region, and the longest of the others.
    read_gap: float
    elsewhere: float
    none_answered: float
    events: int
    unknown: int
    epochs: int


class Case:
    """One kill, from before it to the proof."""

    def __init__(self, cluster: Any, boards: Boards, name: str, victim: str) -> None:
        self.cluster, self.boards, self.victim = cluster, boards, victim
        self.others = [region for region in cluster.regions if region != victim]
        self.reader = cluster.client(max_attempts=40)
        self.load = Load(cluster, *boards, f"{name}-{os.urandom(3).hex()}")
        self.before = cluster.shard(HOME)
        self.committed = {shard: cluster.shard(HOME, shard)["committed"] for shard in SHARDS}
        self.killed_at = 0.0
        self.back_at = 0.0

    def pid(self, role: str) -> int:
        """Host pid of a part of the victim's region, 0 when it does not run."""
        if role in ACTORS:
            return int(self.cluster.shard_pid(self.victim, ACTORS[role]))
        return next(iter(self.cluster.launcher.regions[self.victim].host_pids()[role]), 0)

    def ready(self) -> bool:
        """Whether the victim's region says that it is."""
        try:
            with self.cluster.http(self.victim, None) as http:
                return bool(http.get("/readyz", timeout=1).status_code == 200)
        except httpx.HTTPError:
            return False

    def warm(self) -> None:
        """All game servers have been answered, and all watchers."""
        since = time.monotonic()
        self.until(lambda: len(self.load.book.sent_and_acknowledged(since)) == 3, "each game server writes")
        self.until(lambda: all(w.newest(board) >= 0 for w in self.load.watchers.values() for board in w.boards), "each region is read")

    def until(self, holds: Callable[[], Any], what: str, timeout_s: float = 240.0) -> Any:
        """As the cluster's, and over at once when a game server has failed."""

        def look() -> Any:
            assert self.load.book.failures == []
            return holds()

        return self.cluster.until(look, what, timeout_s)

    def recovered(self, role: str, old: int) -> None:
        """Wait until the part is back, writes go on from all regions and newest generations are read in all of them."""

        def back() -> bool:
            new = self.pid(role)
            return new not in (0, old) and self.ready()

        self.until(back, f"{role} of {self.victim} is back by itself and the region ready")
        self.back_at = time.monotonic()
        self.writing_and_reading(self.back_at)

    def writing_and_reading(self, since: float) -> None:
        """Wait until every region's game server has had an acknowledgement, and every region shows a newer generation, after `since`."""
        watchers = self.load.watchers
        self.until(lambda: len(self.load.book.sent_and_acknowledged(since)) == 3, "writes from all regions are acknowledged again")
        for board in (self.boards.total, self.boards.spread):
            newest = max(watcher.newest(board) for watcher in watchers.values())
            newer = partial(_all_newer, list(watchers.values()), board, newest, since)
            self.until(newer, f"all regions show more than s{newest} of {board}")

    def seen(self) -> Seen:
        """The times; ends the load."""
        book, watchers, now = self.load.book, self.load.watchers, time.monotonic()
        after = self.cluster.shard(self.owner())
        return Seen(
            write_pause=book.pause_s(self.killed_at),
            own_pause=book.pause_s(self.killed_at, self.victim),
            back=self.back_at - self.killed_at,
            read_gap=watchers[self.victim].gap_s(self.killed_at, now),
            elsewhere=max(watchers[region].gap_s(self.killed_at, now) for region in self.others),
            none_answered=no_region_answered_s(watchers, self.killed_at, now),
            events=len(book.events),
            unknown=book.unknown,
            epochs=after["epoch"] - self.before["epoch"],
        )

    def owner(self) -> str:
        """The region that serves writes; waits for one."""
        return str(self.until(self.cluster.authority, "some region serves the shard"))

    # -- the proof ----------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """No acknowledged event is lost or counted twice: on the boards, in the journals, in all regions alike."""
        book = self.load.book
        assert book.failures == []
        assert [w.backwards for w in self.load.watchers.values()] == [[], [], []]
        assert self._rows(self.boards.total) == dict(Counter(book.counted.values()))
        assert self._rows(self.boards.spread) == dict(Counter(book.spread.values()))
        assert self._rows(self.boards.best) == book.best
        found = asyncio.run(self._journals())
        assert {event: times for event, times in found.items() if times != 1} == {}
        assert found.keys() == book.events

    def _rows(self, board: str) -> dict[str, int]:
        """This load's rows in the newest generation, which must be the same bytes in every region."""
        positions, reader = self.load.book.last[board].values(), self.reader
        asked = [reader.top(board, 1, at_least=at_least, region=region) for region in self.cluster.regions for at_least in positions]
        newest = max(int(page.generation[1:]) for page in asked)
        generation, bodies = f"s{newest}", set()
        for region in self.cluster.regions:
            with self.cluster.http(region, None) as http:
                path = f"/v1/boards/{board}/top?limit=1000&generation={generation}"
                self.until(partial(_answers, http, path), f"{region} has {generation} of {board}")
                bodies.add(http.get(path).content)
        assert len(bodies) == 1
        page = reader.top(board, 1000, generation=generation, region=HOME)
        assert page.next is None
        return {entry.player_id: int(entry.value) for entry in page.entries if entry.player_id in self.players}

    @property
    def players(self) -> set[str]:
        """Players of this case."""
        return set(self.load.players)

    async def _journals(self) -> Counter[str]:
        """How often each event of this case stands in the journals of all shards."""
        urls = {region: self.cluster.launcher.config.regions[region].store.redis_url for region in self.cluster.regions}
        clients = {region: open_client(url) for region, url in urls.items()}
        try:
            logs = {shard: await self._journal(clients, shard) for shard in SHARDS}
        finally:
            for client in clients.values():
                await client.aclose()
        records = [record for log in logs.values() for entry in log for record in open_entry(entry) if isinstance(record, Scored)]
        return Counter(record.event_id for record in records if record.player_id in self.players)

    async def _journal(self, clients: dict[str, Redis], shard: str) -> list[Entry]:
        """Entries of this case; the committed part must be one and the same in all regions, and hold what was acknowledged."""
        logs = {}
        for region, client in clients.items():
            journal = RedisJournal(client, shard, region=region)
            try:
                status = await journal.status()
                first, entries = max(1, self.committed[shard] - 5), []
                while first <= status.committed:
                    part = [entry for entry in await journal.read(first) if entry.offset <= status.committed]
                    entries += part
                    first = part[-1].offset + 1
                logs[region] = entries
            finally:
                await journal.close()
        short = min(len(entries) for entries in logs.values())
        shared = logs[HOME][:short]
        for region, entries in logs.items():
            assert entries[:short] == shared, f"the journal of {shard} in {region} differs from that in {HOME}"
        last = [place(at)[1] for positions in self.load.book.last.values() for of, at in positions.items() if of == shard]
        assert shared[-1].offset >= max(last)
        return shared


def _all_newer(watchers: list[Watcher], board: str, than: int, since: float) -> bool:
    return all(watcher.newest(board, since) > than for watcher in watchers)


def _answers(http: httpx.Client, path: str) -> bool:
    return http.get(path).status_code == 200


def _follows(cluster: Any, shard: str) -> bool:
    return bool(cluster.shard(HOME, shard).get("role") == "follower")


def told(name: str, seen: Seen) -> str:
    """The line of a case."""
    times = (f"{seconds * 1000:.0f} ms" for seconds in seen[:5])
    return COLUMNS.format(name, *times, seen.events, seen.unknown, f"+{seen.epochs}")


def finish(case: Case, name: str, say: Say, record: Record) -> Seen:
    """Ends the load, prints the times, and checks the books."""
    case.load.finish_writing()
    seen = case.seen()
    say(told(name, seen))
    for key, value in seen._asdict().items():
        record(key, value)
    case.prove()
    assert seen.elsewhere < BUSY_S, "a surviving region could not be read for long"
    return seen


@pytest.mark.parametrize(
    ("part", "victim"), KILLS, ids=["-".join((part.replace(" ", "-"), WHERE[region].split()[-1])) for part, region in KILLS]
)
def test_a_killed_part_comes_back_and_no_acknowledged_event_is_lost_or_doubled(
    cluster: Any, boards: Boards, heading: Say, record_property: Record, part: str, victim: str
) -> None:
    """1. Load from three regions. 2. SIGKILL. 3. The part is back by itself; writes and newest generations go on. 4. The books fit."""
    cluster.settled()
    case = Case(cluster, boards, f"{part}-{victim}", victim)
    role = SIGN.get(part, part)
    with case.load:
        case.warm()
        old = case.pid(role)
        case.killed_at = time.monotonic()
        if part == "region":
            cluster.launcher.regions[victim].kill()
        else:
            os.kill(old, signal.SIGKILL)
        case.recovered(role, old)
        finish(case, f"{part} of {WHERE[victim]}", heading, record_property)
    after = cluster.shard(HOME)
    assert after["serving"], "the authority took its own shard again, and nobody else did"
    assert (after["epoch"] > case.before["epoch"]) == (victim == HOME and part in EPOCH_BOUND), (case.before, after)
    cluster.settled()


def test_a_killed_authority_region_is_replaced_by_force_and_comes_back_as_a_follower(
    cluster: Any, boards: Boards, heading: Say, record_property: Record
) -> None:
    """1. The whole region dies and stays away. 2. An operator promotes another. 3. It comes back, is fenced, follows. 4. The books fit."""
    cluster.settled()
    case = Case(cluster, boards, "failover", HOME)
    with case.load:
        case.warm()
        old = case.pid("supervisor")
        cluster.launcher.hold(HOME)
        case.killed_at = time.monotonic()
        cluster.launcher.regions[HOME].kill()
        client = cluster.client(OTHER, scope="operator")
        moved = client.failover(boards.spread, to=OTHER, force=True)["moved"]
        assert {shard["shard"]: shard["owner"] for shard in moved} == dict.fromkeys(SHARDS, OTHER)
        case.until(lambda: len(case.load.book.sent_and_acknowledged(case.killed_at)) == 3, "writes go on without the dead region")
        cluster.launcher.release(HOME)
        case.recovered("supervisor", old)
        for shard in moved:
            assert cluster.shard(OTHER, shard["shard"])["epoch"] == shard["epoch"]
            follows = partial(_follows, cluster, shard["shard"])
            case.until(follows, f"the region that came back follows {shard['shard']}")
        finish(case, "region of the authority, failed over", heading, record_property)
    assert cluster.authority() == OTHER
    cluster.settled()


@pytest.mark.parametrize("part", ["shard", "store"])
def test_a_frozen_part_of_the_authority_loses_and_doubles_nothing(
    cluster: Any, boards: Boards, heading: Say, record_property: Record, part: str
) -> None:
    """1. SIGSTOP for 10 s under load: writes go on or are unknown. 2. SIGCONT, if it was not replaced by then. 3. The books fit."""
    cluster.settled()
    case = Case(cluster, boards, f"frozen-{part}", HOME)
    with case.load:
        case.warm()
        frozen = case.pid(part)
        case.killed_at = time.monotonic()
        os.kill(frozen, signal.SIGSTOP)
        thaw_at = case.killed_at + 10
        case.until(lambda: time.monotonic() >= thaw_at or case.pid(part) not in (0, frozen), f"{part} was frozen or replaced", 20)
        if case.pid(part) == frozen:
            os.kill(frozen, signal.SIGCONT)
        case.until(case.ready, "the region is ready")
        case.back_at = time.monotonic()
        case.writing_and_reading(case.back_at)
        finish(case, f"{part} of the authority frozen for 10 s", heading, record_property)
    assert cluster.authority() == HOME
    cluster.settled()
