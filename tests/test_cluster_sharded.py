"""A board over three shards on three running regions: one board to whoever reads it, complete and exact, or refused.

What clients see is compared with a plain sort of what was submitted. The shards are all at home in eu-west; the last one is
dedicated, so that nothing but these boards lives there.
"""

import itertools
import os
import signal
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest
from running_cluster import SHARD, SHARDS, RunningCluster

from boards.slicing import slice_of
from laurel import LaurelError, SubmitReply

pytestmark = pytest.mark.cluster

Record = Callable[[str, object], None]

HOME, OTHER = "eu-west", "us-east"


def moment(second: int) -> str:
    return f"2025-11-30T10:{second // 60:02}:{second % 60:02}Z"


def in_slice(wanted: int, name: str) -> str:
    """A player id that lives in that slice of three."""
    return next(player for n in itertools.count() if slice_of(player := f"{name}-{n}", len(SHARDS)) == wanted)


class Spread:
    """A public board over all three shards, and its game servers, one in each region."""

    def __init__(self, cluster: RunningCluster, policy: str = "best_score", **rules: Any) -> None:
        self.cluster = cluster
        self.id = cluster.fresh_board(policy, **{"shards": list(SHARDS), "visibility": "public", **rules})
        self.path = f"/v1/boards/{self.id}"
        self._servers = {region: cluster.client(prefer=region) for region in cluster.regions}

    def submit(self, events: list[dict[str, Any]], region: str = HOME) -> SubmitReply:
        return self._servers[region].submit(self.id, events)

    def get(self, region: str, path: str = "/top", **parameters: Any) -> httpx.Response:
        return self.cluster.get(region, self.path + path, **parameters)

    def includes(self, *replies: SubmitReply) -> str:
        """A generation that every region has and that includes these replies: one position of each shard is asked for everywhere."""
        newest = 0
        for region in self.cluster.regions:
            for at_least in {position for reply in replies for position in reply.positions.values()}:
                answer = self.cluster.until(partial(self._answered, region, limit=1, at_least=at_least), f"{region} shows {at_least}")
                newest = max(newest, int(answer.json()["generation"][1:]))
        for region in self.cluster.regions:
            self.cluster.until(partial(self._answered, region, limit=1, generation=f"s{newest}"), f"{region} has s{newest}")
        return f"s{newest}"

    def _answered(self, region: str, **parameters: Any) -> httpx.Response | None:
        answer = self.get(region, **parameters)
        return answer if answer.status_code == 200 else None

    def whole(self, generation: str) -> dict[str, Any]:
        """The body of a pinned generation of at most 1000 players: the same bytes and headers of every region."""
        answers = [self.get(region, limit=1000, generation=generation) for region in self.cluster.regions]
        assert len({(answer.status_code, answer.content, answer.headers["etag"]) for answer in answers}) == 1
        body: dict[str, Any] = answers[0].json()
        assert (body["generation"], body["complete"], body["exact"], body["next"]) == (generation, True, True, None)
        assert body["total"] == len(body["entries"]) == len({entry["player_id"] for entry in body["entries"]})
        assert [entry["position"] for entry in body["entries"]] == list(range(1, body["total"] + 1))
        assert list(body["boundaries"]) == list(SHARDS)
        return body


def attempts(players: int, name: str) -> list[dict[str, Any]]:
    """Two attempts a player: ties of value, of value and second, and of all but the id; the better attempt is the first or the second."""
    events = []
    for n in range(players):
        for part in range(2):
            value, second = (n * 7) % 9 + (part if n % 3 == 0 else 0), (n * 5) % 4 + (part + n) % 2
            at = {"achieved_at": moment((n * 11) % 13 + 20 * part)}
            events.append({"player_id": f"{name}-{n:03}", "event_id": f"{name}-{n}-{part}", "value": value, "secondary": second, **at})
    return events


def best_first(events: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Rows as they must be shown, by a plain sort: highest value, then lowest second, then who was there first, then the id."""

    def key(event: dict[str, Any]) -> tuple[int, int, str, str]:
        return -event["value"], event["secondary"], event["achieved_at"], event["player_id"]

    best: dict[str, dict[str, Any]] = {}
    for event in events:
        held = best.get(event["player_id"])
        # The same tuple once more is no improvement, also with an earlier moment.
        if held is None or key(event)[:2] < key(held)[:2]:
            best[event["player_id"]] = event
    return [(e["player_id"], str(e["value"]), str(e["secondary"]), e["achieved_at"]) for e in sorted(best.values(), key=key)]


def shown(entries: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(e["player_id"], e["value"], e["secondary"], e["achieved_at"].replace(".000", "")) for e in entries]


@pytest.fixture(scope="module")
def tuples(cluster: RunningCluster) -> tuple[Spread, str, dict[str, Any], list[dict[str, Any]]]:
    """A board with a second column and 240 players, submitted through all regions; a generation of it, whole, and its events."""
    cluster.settled()
    board = Spread(cluster, secondary="lower", ranking="competition", publish_interval_ms=50, retention_ms=600_000)
    events = attempts(240, "p")
    parts = [events[n::9] for n in range(9)]
    replies = [board.submit(part, region) for part, region in zip(parts, itertools.cycle(cluster.regions), strict=False)]
    assert {word.shard for reply in replies for word in reply.results} == set(SHARDS)
    generation = board.includes(*replies)
    # Events of one player went through different regions, in order: each part was acknowledged before the next was sent.
    ordered = [event for part in parts for event in part]
    return board, generation, board.whole(generation), ordered


Tuples = tuple[Spread, str, dict[str, Any], list[dict[str, Any]]]


def test_a_generation_of_three_shards_is_the_plain_sort_of_all_best_tuples_and_the_same_bytes_everywhere(tuples: Tuples) -> None:
    """Points high first, then duration low first; ranks compare both (LB-008)."""
    board, generation, body, events = tuples
    assert shown(body["entries"]) == best_first(events)
    pairs = [(-int(value), int(second)) for _, value, second, _ in best_first(events)]
    assert [entry["rank"] for entry in body["entries"]] == [1 + bisect_left(pairs, pair) for pair in pairs]
    assert {slice_of(entry["player_id"], 3) for entry in body["entries"]} == {0, 1, 2}
    known = [board.get(region, limit=1000, generation=body["pin"]) for region in board.cluster.regions]
    for region, answer in zip(board.cluster.regions, known, strict=True):
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        with board.cluster.http(region, None) as http:
            again = http.get(f"{board.path}/top?limit=1000&generation={generation}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_places_neighbours_percentiles_and_subsets_over_shards_are_those_of_the_whole_order(tuples: Tuples) -> None:
    """One pinned generation, another region for each question; the whole page is the oracle (LB-021)."""
    board, generation, body, _ = tuples
    entries, total, regions = body["entries"], body["total"], itertools.cycle(board.cluster.regions)
    percentiles = []
    for index in range(0, total, 17):
        entry, player = entries[index], f"/players/{entries[index]['player_id']}"
        assert board.get(next(regions), player, generation=generation).json()["entries"] == [entry]
        nearby = board.get(next(regions), player, generation=generation, view="nearby", window=4).json()
        assert nearby["entries"] == entries[max(0, index - 4) : index + 5]
        percentile = board.get(next(regions), player, generation=generation, view="percentile").json()
        assert percentile["percentile"] == (total - entry["rank"] + 1) * 1_000_000 // total / 10_000
        percentiles.append(percentile["percentile"])
        about = board.get(next(regions), player, generation=generation, mode="approximate").json()
        assert (about["exact"], about["mode"], about["total"]) == (False, "approximate", total)
        assert abs(about["entries"][0]["rank"] - entry["rank"]) <= about["error_bound"]
    assert percentiles == sorted(percentiles, reverse=True)
    listed = [entry["player_id"] for entry in entries[::-3]]
    reader = board.cluster.client(scope="reader")
    found = reader.ranks(board.id, [*listed, "nobody"], generation=generation)
    places = {entry.player_id: (entry.position, entry.rank) for entry in found.entries}
    assert places == {e["player_id"]: (e["position"], e["rank"]) for e in entries if e["player_id"] in listed}
    assert list(found.absent) == ["nobody"]
    among = reader.ranks(board.id, listed, "listed", generation=generation, region=OTHER)
    assert [entry.player_id for entry in among.entries] == listed[::-1]
    assert [entry.position for entry in among.entries] == list(range(1, len(listed) + 1))
    ranks = [entry["rank"] for entry in entries if entry["player_id"] in listed]
    assert [entry.rank for entry in among.entries] == [1 + bisect_left(ranks, rank) for rank in ranks]


@contextmanager
def writing(board: Spread, events: Iterator[dict[str, Any]]) -> Iterator[list[str]]:
    """Somebody submits all the time; ids of acknowledged events, in their order."""
    over, acked, failed = threading.Event(), list[str](), list[BaseException]()

    def write() -> None:
        try:
            for event, region in zip(events, itertools.cycle(board.cluster.regions), strict=False):
                if over.is_set():
                    return
                board.submit([event], region)
                acked.append(event["event_id"])
        except BaseException as error:  # raised below
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acked
    finally:
        over.set()
        thread.join()
    assert failed == []


def test_pages_there_and_back_are_disjoint_and_complete_while_everybody_moves(tuples: Tuples) -> None:
    """Each page from the next region, borders inside ties, every player improving meanwhile (LB-062 to LB-065, LB-069)."""
    board, generation, body, _ = tuples
    regions = itertools.cycle(board.cluster.regions)
    best = (
        {"player_id": f"p-{n % 240:03}", "event_id": f"later-{n}", "value": 100 + n, "secondary": n % 3, "achieved_at": moment(n % 60)}
        for n in itertools.count()
    )
    with writing(board, best) as acked:
        board.cluster.until(lambda: len(acked) > 3, "others write")
        before = len(acked)
        forward, page = [], board.get(next(regions), limit=7, generation=generation).json()
        forward += page["entries"]
        while page["next"]:
            page = board.get(next(regions), limit=7, cursor=page["next"]).json()
            forward += page["entries"]
        back = [page["entries"]]
        while page["previous"]:
            page = board.get(next(regions), limit=11, cursor=page["previous"]).json()
            back.insert(0, page["entries"])
        board.cluster.until(lambda: len(acked) > before, "others still write")
    assert forward == body["entries"]
    assert [entry for entries in back for entry in entries] == body["entries"]
    inside = next(n for n in range(100, body["total"]) if body["entries"][n - 1]["rank"] == body["entries"][n]["rank"])
    cut = board.get(OTHER, limit=inside, generation=generation).json()["entries"]
    assert cut == body["entries"][:inside], "so many positions, also where that is inside a tie"


def test_what_was_acknowledged_in_any_shard_is_read_in_another_region_at_once(cluster: RunningCluster) -> None:
    board = Spread(cluster, publish_interval_ms=50)
    for number in range(9):
        here, there = cluster.regions[number % 3], cluster.regions[(number + 1) % 3]
        player = in_slice(number % 3, f"p{number}")
        (word,) = board.submit([{"player_id": player, "event_id": f"e{number}", "value": number}], here).results
        assert word.position == f"{SHARDS[number % 3]}:{word.epoch}-{word.offset}"
        answer = board.get(there, f"/players/{player}", at_least=word.position)
        assert [(e["position"], e["player_id"]) for e in answer.json()["entries"]] == [(1, player)], answer.text
    bare = board.get(there, at_least=f"{word.epoch}-{word.offset}")
    assert (bare.status_code, bare.json()["code"], bare.json()["field"]) == (422, "bad_parameter", "at_least"), bare.text
    assert SHARDS[0] in bare.json()["allowed"]


def test_a_missing_shard_delays_the_next_generation_and_nothing_else(cluster: RunningCluster) -> None:
    """1. All actors of one shard are frozen. 2. The others go on acknowledging; the last complete generation is read, and its age told.

    3. Status says who is missing. 4. Thawed, what was acknowledged meanwhile is in the next generation of every region.
    """
    cluster.settled()
    board, other = Spread(cluster, publish_interval_ms=50), cluster.fresh_board(publish_interval_ms=50)
    names = [in_slice(index, "p") for index in range(3)]
    last = board.submit([{"player_id": name, "event_id": "first", "value": 1} for name in names])
    complete = board.includes(last)
    frozen = [cluster.shard_pid(region, SHARDS[2]) for region in cluster.regions]
    assert all(frozen)
    try:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        (word,) = board.submit([{"player_id": names[0], "event_id": "second", "value": 2}], OTHER).results
        assert (word.outcome, word.acked) == ("applied", "quorum")
        cluster.until(lambda: _missing(cluster, board.id) == [SHARDS[2]], "the others have answered, and the lead says whom it waits for")
        refused = board.get(OTHER, at_least=word.position)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_visible_yet")
        ages = []
        for region in (*cluster.regions, HOME):
            answer = board.get(region)
            assert answer.json()["generation"] == complete
            assert answer.json()["boundaries"].keys() == set(SHARDS)
            ages.append(int(answer.headers["x-laurel-age-ms"]))
        assert ages[-1] > ages[0] > 1000, "refused after a second, so it is older than that"
        elsewhere = cluster.post(OTHER, other, {"player_id": "ann", "event_id": "e", "value": 1})
        assert cluster.get(OTHER, f"/v1/boards/{other}/players/ann", after=elsewhere).status_code == 200
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    for region in cluster.regions:
        seen = partial(_value, board, region, names[0], str(word.position))
        assert cluster.until(seen, f"{region} shows the event") == "2"
    cluster.until(lambda: not _missing(cluster, board.id), "nobody is waited for")
    assert int(board.get(HOME).json()["generation"][1:]) == int(complete[1:]) + 1, "one generation for one event"
    cluster.settled()


def _missing(cluster: RunningCluster, board: str) -> list[str]:
    """Shards that the lead waits for."""
    waits = cluster.shard(HOME).get("waiting_for_marks", {})
    return list(waits.get(board, {}).get("missing", []))


def _value(board: Spread, region: str, player: str, at_least: str) -> str | None:
    answer = board.get(region, f"/players/{player}", at_least=at_least)
    return str(answer.json()["entries"][0]["value"]) if answer.status_code == 200 else None


def test_a_failover_of_a_board_moves_all_its_shards_and_their_identities(cluster: RunningCluster) -> None:
    cluster.settled()
    board = Spread(cluster, "cumulative")
    events = [{"player_id": f"p{n}", "event_id": f"e{n}", "delta": n + 1} for n in range(30)]
    before = board.submit(events)
    moved = cluster.client(scope="operator").failover(board.id, to=OTHER)
    assert moved["failed"] == []
    assert {shard["shard"]: (shard["owner"], board.id in shard["boards"]) for shard in moved["moved"]} == dict.fromkeys(
        SHARDS, (OTHER, True)
    )
    after = board.submit(events, "ap-south")
    assert {word.outcome for word in after.results} == {"duplicate"}
    more = board.submit([{**event, "event_id": f"{event['event_id']}-2"} for event in events], "ap-south")
    assert {word.outcome for word in more.results} == {"applied"}
    for old, new in zip(before.results, more.results, strict=True):
        assert (old.shard, old.epoch) < (new.shard, new.epoch)
    body = board.whole(board.includes(more))
    assert {entry["player_id"]: entry["value"] for entry in body["entries"]} == {f"p{n}": str(2 * n + 2) for n in range(30)}
    cluster.settled()


def test_a_board_made_again_answers_nothing_of_its_earlier_life(cluster: RunningCluster) -> None:
    """Cursors, pins, ETags and event ids of the removed board are refused or mean the new one (LB-014)."""
    board, operator = Spread(cluster, publish_interval_ms=50), cluster.client(scope="operator")
    events = [{"player_id": f"p{n}", "event_id": f"e{n}", "value": n} for n in range(40)]
    generation = board.includes(board.submit(events[:20]), board.submit(events[20:]))
    old = board.get(OTHER, limit=5, generation=generation)
    life = cluster.get(HOME, board.path).json()
    operator.remove_board(board.id)
    for region in cluster.regions:
        gone = partial(_status, cluster, region, board.path, 404)
        cluster.until(gone, f"{board.id} is gone in {region}")
        assert board.get(region, cursor=old.json()["next"]).status_code == 404
    made = operator.create_board(board.id, policy="best_score", shards=list(SHARDS), visibility="public", publish_interval_ms=50)
    assert made.total == 0
    for region in cluster.regions:
        cluster.until(partial(_status, cluster, region, board.path, 200), f"{board.id} is there again in {region}")
        again = cluster.get(region, board.path).json()
        assert (again["incarnation"] != life["incarnation"], again["shards"], again["total"]) == (True, list(SHARDS), 0)
        assert board.get(region, cursor=old.json()["next"]).json()["code"] == "bad_cursor"
        assert board.get(region, generation=generation).status_code in (410, 503)
        assert board.get(region, generation=old.json()["pin"]).status_code == 410
    (word,) = board.submit([{**events[7], "value": 1}], OTHER).results
    assert (word.outcome, word.version) == ("applied_first", 1)
    for region in cluster.regions:
        answer = board.get(region, "/players/p7", at_least=word.position)
        first = answer.json()
        assert answer.headers["cache-control"] == "no-cache"
        numbered, pinned = board.get(region, generation=first["generation"]), board.get(region, generation=first["pin"])
        assert (numbered.content, numbered.headers["cache-control"]) == (pinned.content, "no-cache")
        assert "immutable" in pinned.headers["cache-control"]
        assert board.get(region, generation=old.json()["pin"]).status_code == 410
        assert (first["total"], first["entries"][0]["rank"], first["entries"][0]["value"]) == (1, 1, "1")
        with cluster.http(region, None) as http:
            known = http.get(f"{board.path}/top?limit=5", headers={"if-none-match": old.headers["etag"]})
        assert (known.status_code, known.json()["total"]) == (200, 1)


def _status(cluster: RunningCluster, region: str, path: str, wanted: int) -> bool:
    return cluster.get(region, path).status_code == wanted


class Stream:
    """One game server a region that adds 1 to players of a cumulative board; every batch is repeated until it is acknowledged."""

    def __init__(self, board: Spread, *, players: int = 40) -> None:
        self.board, self.players = board, players
        self.acked: dict[str, list[dict[str, Any]]] = {region: [] for region in board.cluster.regions}
        #: When acknowledgements came, by region.
        self.at: dict[str, list[float]] = {region: [] for region in board.cluster.regions}
        self.failures: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(region,)) for region in board.cluster.regions]

    def __enter__(self) -> "Stream":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def finish(self) -> None:
        """Send nothing new; all that was sent is acknowledged when this returns."""
        self.__exit__()

    def go_on(self) -> None:
        """Wait until each game server has been answered for something it sent from now on."""
        before = {region: len(times) for region, times in self.at.items()}
        self.board.cluster.until(lambda: all(len(self.at[r]) > n + 1 for r, n in before.items()) or self.failures, "all game servers write")
        assert self.failures == []

    def longest_pause_ms(self, since: float) -> int:
        """The longest time between two acknowledgements of one region since then."""
        pauses = [b - a for times in self.at.values() for a, b in itertools.pairwise([since, *(t for t in times if t > since)])]
        return round(max(pauses) * 1000)

    @property
    def totals(self) -> dict[str, int]:
        return dict(Counter(event["player_id"] for events in self.acked.values() for event in events))

    def _serve(self, region: str) -> None:
        client = self.board.cluster.client(prefer=region, max_attempts=60, total_timeout_s=60.0)
        try:
            for number in itertools.count():
                if self._over.wait(0.02):
                    return
                events = [
                    {"player_id": f"p{(number * 5 + i) % self.players}", "event_id": f"{region}-{number}-{i}", "delta": 1} for i in range(4)
                ]
                reply = client.submit(self.board.id, events)
                outcomes = {word.outcome for word in reply.results}
                assert outcomes <= {"applied", "applied_first", "duplicate"}, outcomes
                self.acked[region] += events
                self.at[region].append(time.monotonic())
        except Exception as error:  # told by whoever waits
            self.failures.append(f"{region}: {error!r}")


class Auditor(threading.Thread):
    """Reads whole newest generations of a board all the time, of each region in turn, and keeps what contradicts itself."""

    def __init__(self, board: Spread, stream: Stream) -> None:
        super().__init__()
        self.board, self.stream = board, stream
        self.faults: list[str] = []
        self.generations: dict[int, bytes] = {}
        self.layouts: set[tuple[str, ...]] = set()
        self._over = threading.Event()

    def run(self) -> None:
        for region in itertools.cycle(self.board.cluster.regions):
            if self._over.wait(0.02):
                return
            with suppress(httpx.HTTPError):
                answer = self.board.get(region, limit=1000)
                if answer.status_code == 200:
                    self._look(answer)

    def finish(self) -> None:
        self._over.set()
        self.join()

    def _look(self, answer: httpx.Response) -> None:
        body = answer.json()
        number = int(body["generation"][1:])
        if self.generations.setdefault(number, answer.content) != answer.content:
            self.faults.append(f"s{number} has two contents")
        players = [entry["player_id"] for entry in body["entries"]]
        if not (len(set(players)) == len(players) == body["total"]):
            self.faults.append(f"s{number}: {len(players)} entries of {len(set(players))} players, total {body['total']}")
        self.layouts.add(tuple(body["boundaries"]))

    def shrunk(self) -> list[str]:
        """Players whose total was lower in a later generation, or who were missing there."""
        found, held = [], dict[str, int]()
        for number, content in sorted(self.generations.items()):
            rows = {entry["player_id"]: int(entry["value"]) for entry in httpx.Response(200, content=content).json()["entries"]}
            found += [
                f"s{number}: {player} {value} -> {rows.get(player)}" for player, value in held.items() if rows.get(player, -1) < value
            ]
            held = rows
        return found


def test_a_board_goes_from_one_shard_to_three_and_on_to_a_dedicated_one_under_writes(
    cluster: RunningCluster, record_property: Record
) -> None:
    """1. Game servers of all regions write. 2. Reshard 1 -> 3. 3. Move 3 -> the dedicated shard. 4. No event lost or counted twice.

    All generations on the way are read and held against each other; what was acknowledged before a move is a duplicate after it.
    """
    cluster.settled()
    board, operator = Spread(cluster, "cumulative", shards=[SHARD], publish_interval_ms=50), cluster.client(scope="operator")
    with Stream(board) as stream:
        stream.go_on()
        auditor = Auditor(board, stream)
        auditor.start()
        try:
            early = {region: list(events) for region, events in stream.acked.items()}
            for number, target in ((2, list(SHARDS)), (3, [SHARDS[2]])):
                began = time.monotonic()
                told = operator.relocate(board.id, target)
                assert (told.moving, told.layout["number"]) == (True, number)
                for region in cluster.regions:
                    there = partial(_lives_on, cluster, region, board.path, number, target)
                    cluster.until(there, f"{region} shows the board on {target}: {told}", 30)
                took = time.monotonic() - began
                stream.go_on()
                record_property(f"layout {number}: whole move ms", round(took * 1000))
                record_property(f"layout {number}: longest pause ms", stream.longest_pause_ms(began))
                with suppress(LaurelError):
                    record_property(f"layout {number}: told", str(operator.relocation(board.id).model_extra))
            stream.finish()
        finally:
            auditor.finish()
        assert stream.failures == []
    for region, events in early.items():
        again = board.submit(events, region)
        assert {word.outcome for word in again.results} == {"duplicate"}
        assert {word.shard for word in again.results} == {SHARDS[2]}
    for region in cluster.regions:
        reached = partial(_totals, board, region)
        cluster.until(lambda reached=reached: reached() == stream.totals, f"{region} shows every event once")  # type: ignore[misc]
    assert auditor.faults == []
    assert auditor.shrunk() == []
    assert {(SHARD,), SHARDS, (SHARDS[2],)} <= auditor.layouts, auditor.layouts
    operator.remove_board(board.id)


def _lives_on(cluster: RunningCluster, region: str, path: str, layout: int, shards: list[str]) -> bool:
    told = cluster.get(region, path).json()
    return (told["layout"], told["shards"], told["moving_to"]) == (layout, shards, None)


def _totals(board: Spread, region: str) -> dict[str, int]:
    answer = board.get(region, limit=1000)
    return {entry["player_id"]: int(entry["value"]) for entry in answer.json()["entries"]} if answer.status_code == 200 else {}
