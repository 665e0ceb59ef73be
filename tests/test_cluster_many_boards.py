"""Many small boards on the shards of one running cluster, made and removed at run time: no process for any of them.

`LAUREL_MANY_BOARDS=5000` runs the same with more of them, and prints what they cost.
"""

import itertools
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from running_cluster import SHARD, SHARDS, RunningCluster

from laurel import LaurelClient
from regions import process_tree

pytestmark = pytest.mark.cluster

#: More than these are made to measure.
CI_BOARDS = 300
BOARDS = int(os.environ.get("LAUREL_MANY_BOARDS", CI_BOARDS))
THREADS = 8
MEASURED_S = 10.0
HOME = "eu-west"


def processes(cluster: RunningCluster) -> dict[str, Counter[str]]:
    """How many processes of each role a region has."""
    return {
        region: Counter({role: len(pids) for role, pids in cluster.launcher.regions[region].host_pids().items()})
        for region in cluster.regions
    }


def megabytes(cluster: RunningCluster, role: Any) -> float:
    """What the processes of a role in all regions hold for themselves, shared pages by their share; 0 where the kernel does not tell."""
    total = 0.0
    for region in cluster.regions:
        for pid in cluster.launcher.regions[region].host_pids()[role]:
            with suppress(OSError, StopIteration), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


def cpu_s(cluster: RunningCluster) -> float:
    """CPU seconds of everything below the regions' supervisors so far."""
    ticks = 0
    for region in cluster.regions:
        (supervisor,) = cluster.launcher.regions[region].host_pids()["supervisor"]
        for pid in (supervisor, *(process.pid for process in process_tree.descendants(supervisor))):
            with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Pool:
    """The boards, and clients of all regions that a few threads share."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self.game = f"pool{uuid.uuid4().hex[:6]}"
        self.ids = [f"{self.game}:b{n:05}:S1:all" for n in range(BOARDS)]
        self.operators = [cluster.client(scope="operator", prefer=region, max_attempts=40) for region in cluster.regions]
        self.servers = [cluster.client(prefer=region, max_attempts=40) for region in cluster.regions]
        self.threads = ThreadPoolExecutor(THREADS)

    def each(self, work: Callable[[int, str], Any], ids: list[str]) -> list[Any]:
        """`work(number, board id)` for all of them, some at a time; results in their order. Raises what the first one raised."""
        return list(self.threads.map(work, range(len(ids)), ids))

    def create(self, number: int, board: str) -> Any:
        return self.operators[number % 3].create_board(board, policy="cumulative", visibility="public")

    def remove(self, number: int, board: str) -> Any:
        return self.operators[number % 3].remove_board(board)

    def make_and_write_elsewhere(self, number: int, board: str) -> list[int]:
        """Made through one region and written at once through the two others; their statuses."""
        self.create(number, board)
        regions = self.cluster.regions
        event = {"player_id": "p", "delta": 1}
        return [
            self.cluster.post(regions[(number + step) % 3], board, {**event, "event_id": f"from-{step}"}).status_code for step in (1, 2)
        ]

    def write(self, number: int, board: str, event_id: str = "e1", delta: int = 1) -> Any:
        """One event through one region; its result."""
        server: LaurelClient = self.servers[number % 3]
        return server.submit(board, {"player_id": f"p{number % 7}", "event_id": event_id, "delta": delta}).results[0]

    def listed(self, region: str, limit: int = 100) -> list[Any]:
        """All boards of the game that a region lists, page by page."""
        found, cursor = [], None
        client = self.operators[0]
        while True:
            page = client.list_boards(limit, cursor, region=region)
            assert len(page.boards) <= limit
            found += [board for board in page.boards if board.board.startswith(f"{self.game}:")]
            if page.next is None:
                return found
            cursor = page.next

    def known_everywhere(self, ids: list[str]) -> None:
        """Wait until each region lists exactly these."""
        for region in self.cluster.regions:
            known = partial(self._lists, region, ids)
            self.cluster.until(known, f"{region} lists {len(ids)} boards of {self.game}")

    def _lists(self, region: str, ids: list[str]) -> bool:
        return [board.board for board in self.listed(region, 1000)] == ids


@pytest.fixture(scope="module")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Prints a line past pytest's capture, for runs that measure."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def said(line: str) -> None:
        if BOARDS > CI_BOARDS:
            with capture.global_and_fixture_disabled():
                print(line, flush=True)

    return said


def cost(pool: Pool, board: str) -> str:
    """What the cluster burns when nobody asks for anything, and how long one caller waits for a write and for a page."""
    before = cpu_s(pool.cluster)
    time.sleep(MEASURED_S)
    idle = (cpu_s(pool.cluster) - before) / MEASURED_S
    writes, reads = list[float](), list[float]()
    for number in range(60):
        began = time.monotonic()
        pool.write(number, board, f"timed-{uuid.uuid4().hex}")
        writes.append(time.monotonic() - began)
        began = time.monotonic()
        pool.servers[number % 3].top(board, 10)
        reads.append(time.monotonic() - began)
    told = (
        f"{name} p50 {sorted(t)[30] * 1000:.1f} ms, p95 {sorted(t)[57] * 1000:.1f} ms"
        for name, t in (("write", writes), ("page of 10", reads))
    )
    return f"idle {idle * 100:.0f} % of a core in all regions together; {'; '.join(told)}; load of the machine {os.getloadavg()[0]:.0f}"


@pytest.fixture(scope="module")
def pool(cluster: RunningCluster, say: Callable[[str], None]) -> Iterator[Pool]:
    """All boards, made through the gateways of all regions, and removed at the end."""
    cluster.settled()
    pool, before = Pool(cluster), processes(cluster)
    if BOARDS > CI_BOARDS:
        say(f"\none board: {cost(pool, cluster.fresh_board('cumulative'))}")
    held = {role: megabytes(cluster, role) for role in ("gateway", "replica", "shard")}
    began = time.monotonic()
    pool.each(pool.create, pool.ids)
    took = time.monotonic() - began
    pool.known_everywhere(pool.ids)
    say(f"{BOARDS} boards made in {took:.1f} s, {took / BOARDS * 1000:.1f} ms each; listed everywhere {time.monotonic() - began:.1f} s")
    for role, was in held.items():
        count = sum(counts[role] for counts in processes(cluster).values())
        say(f"  {role}: {(megabytes(cluster, role) - was) * 1024 / count / BOARDS:.2f} KiB a board and process")
    assert processes(cluster) == before, "a board is no process"
    if BOARDS > CI_BOARDS:
        say(f"{BOARDS} boards: {cost(pool, cluster.fresh_board('cumulative'))}")
    yield pool
    began = time.monotonic()
    pool.each(pool.remove, [board.board for board in pool.listed(HOME)])
    pool.known_everywhere([])
    say(f"{BOARDS} boards removed in {time.monotonic() - began:.1f} s")
    pool.threads.shutdown()


def test_boards_made_at_run_time_share_the_pooled_shards_and_are_listed_page_by_page(pool: Pool, say: Callable[[str], None]) -> None:
    for region in pool.cluster.regions:
        began = time.monotonic()
        boards = pool.listed(region)
        say(f"list of {len(boards)} boards in {region}, 100 a page: {time.monotonic() - began:.2f} s")
        assert [board.board for board in boards] == sorted(pool.ids)
        where = Counter(board.shard for board in boards)
        assert where.keys() == set(SHARDS[:2]), "a dedicated shard takes no board that does not name it"
        assert min(where.values()) > BOARDS * 0.4


def test_a_board_takes_writes_through_every_region_from_the_moment_it_is_made(pool: Pool) -> None:
    """A 404 of a region that has not heard of it yet would be final for whoever writes."""
    ids = [f"{pool.game}:new{n:02}:S1:all" for n in range(30)]
    for number, board in enumerate(ids):
        assert pool.make_and_write_elsewhere(number, board) == [200, 200], board
    pool.each(pool.remove, ids)
    pool.known_everywhere(pool.ids)


def test_each_of_many_boards_is_written_and_read_like_the_only_one(pool: Pool, say: Callable[[str], None]) -> None:
    """One event for each, through all regions; what was acknowledged is read in the next region at once."""
    cluster = pool.cluster
    before, began = cpu_s(cluster), time.monotonic()
    results = pool.each(pool.write, pool.ids)
    took = time.monotonic() - began
    say(f"{BOARDS} events to as many boards in {took:.1f} s, {(cpu_s(cluster) - before) * 1000 / BOARDS:.1f} ms of CPU each in all regions")
    assert {(word.outcome, word.value, word.acked) for word in results} == {("applied_first", 1, "quorum")}
    for number in range(0, BOARDS, max(1, BOARDS // 60)):
        region = cluster.regions[(number + 1) % 3]
        page = pool.servers[0].top(pool.ids[number], at_least=results[number], region=region)
        assert [(entry.position, entry.player_id, entry.value) for entry in page.entries] == [(1, f"p{number % 7}", 1)]


def test_status_stays_short_however_many_boards_there_are(pool: Pool, say: Callable[[str], None]) -> None:
    for region in pool.cluster.regions:
        with pool.cluster.http(region, "operator") as http:
            status = http.get("/v1/status")
            counts = [status.json()["shards"][shard]["replica"]["boards_count"] for shard in SHARDS[:2]]
        say(f"status of {region}: {len(status.content) // 1024} KiB")
        assert len(status.content) < 160 * 1024
        assert sum(counts) >= BOARDS


def test_removed_boards_are_gone_everywhere_and_begin_anew_when_made_again(pool: Pool) -> None:
    """The others keep their rows; an event id of an earlier life is news."""
    again = pool.ids[:: max(1, BOARDS // 30)]
    lives = {board.board: board.incarnation for board in pool.listed(HOME)}
    pool.each(pool.write, again)
    pool.each(pool.remove, again)
    pool.known_everywhere([board for board in pool.ids if board not in again])
    pool.each(pool.create, again)
    pool.known_everywhere(pool.ids)
    now = {board.board: board.incarnation for board in pool.listed("us-east")}
    assert {board for board, life in lives.items() if now[board] != life} == set(again)
    words = pool.each(partial(pool.write, delta=5), again)
    assert {(word.outcome, word.value, word.version) for word in words} == {("applied_first", 5, 1)}
    for number, word in enumerate(words[:20]):
        page = pool.servers[0].top(again[number], at_least=word, region="ap-south")
        assert (page.total, page.entries[0].value) == (1, 5)
    other = next(number for number, board in enumerate(pool.ids) if board not in again)
    (entry,) = pool.servers[0].top(pool.ids[other], at_least=pool.write(other, pool.ids[other], "e2")).entries
    assert entry.value == 2


def test_a_hot_board_moves_from_the_pool_to_a_dedicated_shard_and_its_neighbours_notice_nothing(pool: Pool) -> None:
    """1. Two boards of one shard are written. 2. One moves. 3. Both have every event once, and identities went along."""
    cluster = pool.cluster
    hot, neighbour = [board.board for board in pool.listed(HOME) if board.shard == SHARD][:2]
    with ThreadPoolExecutor(2) as threads:
        over: list[bool] = []
        written = [threads.submit(_write_until, pool, over, turn, board) for turn, board in enumerate((hot, neighbour))]
        told = pool.operators[1].relocate(hot, [SHARDS[2]])
        assert told.to is None or told.to["shards"] == [SHARDS[2]]
        for region in cluster.regions:
            moved = partial(_shard_is, pool.operators[0], hot, region, SHARDS[2])
            cluster.until(moved, f"{hot} lives in its own shard, as {region} knows", 30)
        over.append(True)
        sent = [future.result() for future in written]
    for board, words in zip((hot, neighbour), sent, strict=True):
        assert {word.outcome for word in words} <= {"applied", "applied_first"}
        held = {entry.player_id: entry.value for entry in pool.servers[2].top(board, at_least=words[-1]).entries}
        assert held["hot"] == len(words)
        first = pool.servers[0].submit(board, {"player_id": "hot", "event_id": "hot-0", "delta": 1}).results[0]
        assert (first.outcome, first.shard) == ("duplicate", SHARDS[2] if board == hot else SHARD)
    assert [board.board for board in pool.listed("ap-south") if board.shard == SHARDS[2]] == [hot]


def _write_until(pool: Pool, over: list[bool], turn: int, board: str) -> list[Any]:
    """One event after the other for one player, through all regions; their results."""
    words: list[Any] = []
    for number in itertools.count():
        if over and number > 3:
            return words
        event = {"player_id": "hot", "event_id": f"hot-{number}", "delta": 1}
        words.append(pool.servers[(number + turn) % 3].submit(board, event).results[0])
    raise AssertionError("unreachable")


def _shard_is(client: LaurelClient, board: str, region: str, shard: str) -> bool:
    return bool(client.board(board, region=region).shard == shard)
