"""The arithmetic of the benchmarks; the measurements themselves are run, not tested."""

import asyncio
import json
import math
import random
import time
from bisect import bisect_right
from collections import Counter
from itertools import islice

import pytest

from benchmarks.clients import Tally, Window
from benchmarks.failover import pause_of
from benchmarks.figures import Rung, climbing, figure, knee, line, longest_gap, median, percentile
from benchmarks.http_client import Lost, content_length, http_request
from benchmarks.ingest import count_acknowledged, event_bodies
from benchmarks.offline import Differs, Sorted, raise_to_boundaries
from benchmarks.paced import NotServed, arrivals, keep_pace
from benchmarks.paced_http import FILL_BATCH, Place, Sent, decode_results, filled_values
from benchmarks.paced_peer import LINES, RespConnection, command
from benchmarks.peer_redis import player
from benchmarks.sharded_board import EVENTS, last_positions
from benchmarks.shards import RANKS, TOPS, Trial
from boards.checksum import EMPTY, add, row_hash
from boards.comparator import sort_key
from boards.model import BoardRules, Row
from boards.numbers import decode_json
from boards.policies import make_rules
from boards.times import format_time
from regions.submit_api import parse_events


def test_a_line_holds_exactly_the_promised_keys() -> None:
    row = json.loads(line(figure("x", 30.0, "events/s", peer="redis", peer_value=60.0, goal=20.0)))
    assert row == {
        "name": "x", "value": 30.0, "unit": "events/s", "peer": "redis", "peer_value": 60.0, "ratio": 0.5, "goal": 20.0, "goal_met": True
    }  # fmt: skip


def test_what_has_no_peer_and_no_goal_says_null() -> None:
    row = json.loads(line(figure("x", 1.0, "ms")))
    assert [row[key] for key in ("peer", "peer_value", "ratio", "goal", "goal_met")] == [None] * 5


def test_a_value_that_was_not_measured_is_null_and_meets_no_goal() -> None:
    row = figure("x", math.nan, "ms", goal=500.0, lower_is_better=True)
    assert row.goal_met is False
    assert json.loads(line(row))["value"] is None


@pytest.mark.parametrize(("value", "lower", "met"), [(20.0, False, True), (19.9, False, False), (500.0, True, False), (499.0, True, True)])
def test_goals_are_reached_upwards_and_undercut_downwards(value: float, lower: bool, met: bool) -> None:
    goal = 500.0 if lower else 20.0
    assert figure("x", value, "u", goal=goal, lower_is_better=lower).goal_met is met


def test_values_keep_four_digits() -> None:
    assert figure("x", 31_498.7, "events/s").value == 31_500
    assert figure("x", 0.0123456, "s").value == 0.01235


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 0.0)) == (3.0, 5.0, 1.0)
    assert (median([1.0, 9.0]), median([9.0, 1.0, 2.0])) == (5.0, 2.0)
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(median([]))


def test_the_knee_is_the_rung_that_the_next_hardly_beats() -> None:
    assert knee([Rung(1, 100), Rung(2, 190), Rung(4, 195)]) == 2
    assert knee([Rung(1, 100), Rung(2, 190), Rung(4, 300)]) == 4
    assert knee([Rung(1, 100), Rung(2, 60)]) == 1
    assert knee([Rung(8, 10)]) == 8


def test_climbing_ends_with_the_first_rung_that_brings_nothing() -> None:
    assert climbing([])
    assert climbing([Rung(1, 100)])
    assert climbing([Rung(1, 100), Rung(2, 150)])
    assert not climbing([Rung(1, 100), Rung(2, 101)])


def test_only_what_a_quorum_holds_and_was_decided_now_counts() -> None:
    results = [
        {"event_id": "1", "outcome": "applied_first", "acked": "quorum"},
        {"event_id": "2", "outcome": "applied", "acked": "quorum"},
        {"event_id": "3", "outcome": "not_an_improvement", "acked": "quorum"},
        {"event_id": "4", "outcome": "duplicate", "acked": "quorum"},
        {"event_id": "5", "outcome": "unknown"},
        {"event_id": "6", "outcome": "invalid", "code": "bad_id"},
    ]
    assert count_acknowledged(json.dumps({"results": results}).encode()) == 3


def test_bodies_are_good_events_whose_ids_never_repeat() -> None:
    from actors.messages import BoardInfo  # only here: the rest needs no actors

    rules = BoardRules(policy="best_score", direction="higher", ties="achieved_at")
    board = BoardInfo(board_id="g:m:s:x", number=1, incarnation="i", shard="s", home="h", rules=rules)
    seen: set[str] = set()
    for body in islice(event_bodies(50, 1, "a"), 4):
        submissions, rejects = parse_events(decode_json(body)["events"], board, 0)
        assert (len(submissions), rejects) == (50, [])
        seen |= {event.event_id for event in submissions}
    assert len(seen) == 200


def test_the_same_seed_gives_the_same_load() -> None:
    assert next(event_bodies(3, 5, "a")) == next(event_bodies(3, 5, "a"))
    assert next(event_bodies(3, 5, "a")) != next(event_bodies(3, 6, "a"))


def test_a_request_names_its_length_and_a_response_is_read_by_its_own() -> None:
    request = http_request("POST", "/p", host="h:1", token="t", body=b"{}")
    head, _, body = request.partition(b"\r\n\r\n")
    assert (content_length(head), body) == (2, b"{}")
    assert b"authorization: Bearer t" in head
    assert content_length(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y") == 12
    assert content_length(b"HTTP/1.1 304 Not Modified\r\nx: content-length") == 0


def test_what_ends_in_the_warm_up_or_after_the_window_does_not_count() -> None:
    window = Window(0.0, 1.0, 3.0)
    assert [window.holds(t) for t in (0.5, 1.0, 2.9, 3.0)] == [False, True, True, False]


def test_tallies_add_up() -> None:
    a, b = Tally(done=1, all_done=2), Tally(done=10, all_done=20)
    b.latencies.append(0.5)
    b.failures["lost"] += 1
    a.add(b)
    assert (a.done, a.all_done, list(a.latencies), a.failures["lost"]) == (11, 22, [0.5], 1)


def test_a_pause_is_the_longest_silence_and_reaches_to_the_end() -> None:
    assert longest_gap([1.0, 2.0, 6.0], 0.0, 7.0) == 4.0
    assert longest_gap([], 0.0, 7.0) == 7.0
    assert longest_gap([-5.0, 1.0, 9.0], 0.0, 7.0) == 6.0


def test_the_command_is_answered_by_the_new_owner_alone() -> None:
    """The old owner goes on acknowledging after the command until it is drained: that is no handover yet."""
    seen = [(0.9, 4), (1.05, 4), (1.2, 5), (1.3, 5)]
    pause = pause_of(seen, 5, since=0.8, command=1.0, end=1.4)
    assert pause.command == pytest.approx(200)
    assert pause.writes == pytest.approx(150)


# -- open loop ------------------------------------------------------------------------------------------------


def test_a_schedule_has_so_many_arrivals_spread_at_random_and_the_same_seed_gives_the_same() -> None:
    instants = arrivals(1000, 2.0, "a")
    assert len(instants) == 2000 and instants == sorted(instants) and instants[0] >= 0 and instants[-1] < 2.0
    assert instants == arrivals(1000, 2.0, "a") != arrivals(1000, 2.0, "b")
    a_tenth = Counter(int(instant * 10) for instant in instants)
    assert len(a_tenth) == 20 and max(a_tenth.values()) > 105  # clumps, as real arrivals have


class _Connection:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_latency_counts_from_when_a_request_was_due_so_what_waits_in_line_shows() -> None:
    """1. Four requests are due at once, and one connection is there. 2. Each takes 20 ms. 3. The last one waited for three."""
    tally = Tally()

    async def serve(connection: _Connection, number: int, due: float) -> int:
        await asyncio.sleep(0.02)
        return 10

    async def opening() -> _Connection:
        return _Connection()

    begins = time.monotonic()
    asyncio.run(keep_pace(opening, 1, [0.0, 0.0, 0.0, 0.0], Window(begins, begins, begins + 5), tally, serve))
    assert (tally.done, len(tally.latencies)) == (40, 4)
    assert [latency >= 0.02 * n for n, latency in enumerate(tally.latencies, 1)] == [True] * 4


def test_what_is_not_served_counts_as_never_answered_and_a_lost_connection_is_replaced() -> None:
    tally, opened = Tally(), []

    async def opening() -> _Connection:
        opened.append(_Connection())
        return opened[-1]

    async def serve(connection: _Connection, number: int, due: float) -> int:
        if number == 0:
            raise NotServed("status 503")
        if number == 1:
            raise Lost("closed")
        return 1

    begins = time.monotonic()
    asyncio.run(keep_pace(opening, 1, [0.0, 0.0, 0.0], Window(begins, begins, begins + 5), tally, serve))
    assert sorted(tally.latencies)[1:] == [math.inf, math.inf]
    assert (tally.done, tally.failures, len(opened)) == (1, {"status 503": 1, "closed": 1}, 2)
    assert opened[0].closed >= 1 and opened[1].closed == 1


def test_what_is_due_in_the_warm_up_is_served_and_not_counted() -> None:
    tally = Tally()

    async def opening() -> _Connection:
        return _Connection()

    async def serve(connection: _Connection, number: int, due: float) -> int:
        return 1

    begins = time.monotonic() - 1.0
    asyncio.run(keep_pace(opening, 2, [0.0, 0.4, 0.9], Window(begins, begins + 0.5, begins + 60), tally, serve))
    assert len(tally.latencies) == 1
    assert (tally.all_done, tally.done) == (3, 3)  # all ended in the window, as work of a rate does


def _trial(events: int, ranks: "list[float]", tops: "list[float]", *, part: float = 1.0) -> Trial:
    rank, top = Tally(done=len(ranks)), Tally(done=len(tops))
    rank.latencies.extend(ranks)
    top.latencies.extend(tops)
    return Trial([Tally(done=events)], rank, top, 1.0, part)


def test_a_rate_is_held_only_if_the_window_saw_its_answers_and_a_goal_only_if_the_95th_of_all_due_was_in_time() -> None:
    quick_ranks, quick_tops = [0.004] * RANKS, [0.001] * TOPS
    assert _trial(EVENTS, quick_ranks, quick_tops).good()
    assert not _trial(EVENTS * 9 // 10, quick_ranks, quick_tops).held()
    assert _trial(EVENTS // 2, quick_ranks, quick_tops, part=0.5).held()
    slow = [0.004] * (RANKS * 94 // 100) + [math.inf] * (RANKS * 6 // 100)
    assert _trial(EVENTS, slow, quick_tops).held()
    assert not _trial(EVENTS, slow, quick_tops).good()


def test_a_command_is_written_as_the_store_reads_it_and_an_answer_ends_with_its_last_line() -> None:
    assert command("ZADD", "b", 5, "é") == b"*4\r\n$4\r\nZADD\r\n$1\r\nb\r\n$1\r\n5\r\n$2\r\n\xc3\xa9\r\n"
    assert LINES["top"] == 1 + 2 * 100 * 2

    async def answered(*chunks: bytes, lines: int) -> bytes:
        connection = RespConnection()
        connection._transport = _Transport()  # type: ignore[assignment]
        asking = asyncio.create_task(connection.ask(b"", lines))
        await asyncio.sleep(0)
        for chunk in chunks:
            assert not asking.done()
            connection.data_received(chunk)
            await asyncio.sleep(0)
        return await asking

    assert asyncio.run(answered(b"*2\r\n$1\r\na\r", b"\n$1\r\n5\r\n", lines=5)) == b"*2\r\n$1\r\na\r\n$1\r\n5\r\n"
    assert asyncio.run(answered(b"-ERR no\r\n", lines=401)) == b"-ERR no\r\n"


class _Transport:
    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        assert data == b""


# -- offline sort ---------------------------------------------------------------------------------------------

_RULES = make_rules("best_score", ties="achieved_at", ranking="competition")
_BOARD = "g:m:s:x"


class _Generation:
    """Pages of one generation as a region answers them: `rows` in display order, with their (position, rank)."""

    def __init__(self, rows: dict[str, Row], boundaries: dict[str, str]) -> None:
        self.rows, self.boundaries = rows, boundaries
        self.ordered = sorted(rows.items(), key=sort_key(_RULES))
        values = sorted(row.value for row in rows.values())
        self.rank = {value: 1 + len(values) - bisect_right(values, value) for value in set(values)}
        self.checksum = EMPTY
        for name, row in rows.items():
            self.checksum = add(self.checksum, row_hash(name, row))

    def get(self, path: str) -> bytes:
        query = dict(part.split("=") for part in path.partition("?")[2].split("&"))
        first, limit = int(query.get("cursor", "0")), int(query["limit"])
        entries = [
            {
                "position": at + 1,
                "rank": self.rank[row.value],
                "player_id": name,
                "value": str(row.value),
                "achieved_at": format_time(row.achieved_ms),
                "version": row.version,
            }
            for at, (name, row) in enumerate(self.ordered)
        ][first : first + limit]
        return json.dumps(
            {
                "generation": "s7",
                "boundaries": self.boundaries,
                "checksum": f"{self.checksum:016x}",
                "total": len(self.rows),
                "complete": True,
                "exact": True,
                "entries": entries,
                "next": str(first + limit) if first + limit < len(self.rows) else None,
            }
        ).encode()


def _generation(count: int = 2500) -> _Generation:
    values = random.Random(1)
    rows = {player(n): Row(values.randrange(900), n // 7, n // 7, 0, 0, 1, "") for n in range(count)}
    return _Generation(rows, {"eu-west/0": "1-10", "eu-west/1": "1-20"})


def test_a_generation_is_read_through_its_cursors_and_sorted_again() -> None:
    shown = _generation()
    found = Sorted(_RULES)
    found.read(shown.get, _BOARD, "s7")
    assert len(found.places) == 2500
    assert found.boundaries == {"eu-west/0": (1, 10), "eu-west/1": (1, 20)}
    some = [Place("s7", name, *found.places[name], str(found.rows[name].value)) for name in list(found.places)[::100]]
    assert found.compare([*some, Place("s8", "player-000000", 0, 0, "0")]) == 25


@pytest.mark.parametrize("what", ["order", "rank", "value", "missing", "boundary"])
def test_a_wrong_page_is_noticed(what: str) -> None:
    shown = _generation()
    pages = 0

    def get(path: str) -> bytes:
        nonlocal pages
        pages += 1
        page = json.loads(shown.get(path))
        entries = page["entries"]
        if pages == 2:
            if what == "order":
                entries[3]["player_id"], entries[700]["player_id"] = entries[700]["player_id"], entries[3]["player_id"]
            elif what == "rank":
                entries[3]["rank"] += 1
            elif what == "value":
                entries[3]["value"] = str(int(entries[3]["value"]) - 400)
            elif what == "missing":
                del entries[3]
            else:
                page["boundaries"] = {**page["boundaries"], "eu-west/1": "1-21"}
        return json.dumps(page).encode()

    with pytest.raises(Differs):
        Sorted(_RULES).read(get, _BOARD, "s7")


def test_a_wrong_place_is_noticed() -> None:
    found = Sorted(_RULES)
    found.read(_generation().get, _BOARD, "s7")
    name = next(iter(found.places))
    with pytest.raises(Differs):
        found.compare([Place("s7", name, 1, 2, str(found.rows[name].value))])


def _sent(*events: tuple[str, int, int, str, int]) -> Sent:
    sent = Sent()
    for shard, epoch, offset, name, value in events:
        body = json.dumps({"events": [{"player_id": name, "value": value}]}).encode()
        result = {"outcome": "applied", "shard": shard, "epoch": epoch, "offset": offset}
        sent.take(body, decode_results(json.dumps({"results": [result]}).encode()))
    return sent


def test_only_what_lies_up_to_its_own_shards_boundary_is_expected_in_a_generation() -> None:
    values = {"a": 5, "b": 5}
    sent = _sent(("s/0", 1, 10, "a", 7), ("s/0", 1, 11, "a", 9), ("s/1", 1, 11, "b", 6), ("s/1", 2, 3, "b", 8), ("s/0", 1, 9, "a", 3))
    raise_to_boundaries(values, sent, {"s/0": (1, 10), "s/1": (1, 20)})
    assert values == {"a": 7, "b": 6}


def test_contents_are_what_was_filled_and_sent_and_players_of_unknown_outcomes_are_left_out() -> None:
    rows = {player(n): Row(value, 5, 5, 0, 0, 1, "") for n, value in enumerate(filled_values(0))}
    better = rows[player(3)].value + 1
    rows[player(3)] = Row(better, 6, 6, 0, 0, 2, "")
    found = Sorted(_RULES)
    found.read(_Generation(rows, {"s/0": "1-10"}).get, _BOARD, "s7")
    sent = _sent(("s/0", 1, 10, player(3), better), ("s/0", 1, 11, player(4), 2_000_000_000))
    assert found.compare_contents(FILL_BATCH, [sent]) == FILL_BATCH
    with pytest.raises(Differs):
        found.compare_contents(FILL_BATCH, [])
    sent.unsure.append(player(3))
    assert found.compare_contents(FILL_BATCH, [sent]) == FILL_BATCH - 1


def test_the_last_position_of_each_shard_is_named_as_the_board_needs_it() -> None:
    sent = _sent(("s/1", 1, 10, "a", 7), ("s/0", 2, 3, "a", 9), ("s/0", 1, 99, "a", 9))
    assert last_positions([sent], spread=True) == ["s/0:2-3", "s/1:1-10"]
    assert last_positions([_sent(("s/0", 2, 3, "a", 9))], spread=False) == ["2-3"]
