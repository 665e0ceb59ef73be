"""Pages and other answers over one slice and over several: the same bytes, complete, disjoint, and bound to their generation."""

import hashlib
import random
from typing import Any

import msgspec
import pytest
from sharded_boards import BOARD, SHARDS, Board, Journals, OneSlice, folded, played

from actors.answers import Cursor, answer, open_cursor, percentile, seal_cursor
from actors.generations_view import BoardSeries, Generation
from actors.messages import BadCursor, BadParameter, Nearby, NotRanked, Percentile, Question, Rank, Ranks, Top
from actors.region_fold import RegionFold
from boards import checksum, histogram
from boards.model import BoardRules, Outcome, Ranking, Row
from boards.policies import make_rules
from boards.views import Key
from journal.records import BoardCreated, Published, Record, Scored, seal_entry

KEY = b"k" * 32
RANKINGS: tuple[Ranking, ...] = ("unique", "competition")


def ask(series: BoardSeries, question: Question, generation: Generation | None = None) -> dict[str, Any]:
    newest = generation or series.newest
    assert newest is not None
    document: dict[str, Any] = msgspec.json.decode(answer(series, newest, question, KEY))
    return document


def one_slice_as_ever(ranking: Ranking) -> BoardSeries:
    """A board as they were before there were slices; its answers are known byte for byte."""
    rules = make_rules("best_score", ranking=ranking, decimals=2, visibility="public")
    region = RegionFold({"eu-west/0": "eu-west"})
    records: list[Record] = []
    total = 0
    for n in range(12):
        row = Row(100 * (n % 5), n % 3, n % 3, 0, 0, 1, "e", 1 if n == 7 else 0)
        records.append(Scored(3, f"p{n}", "e", b"f", Outcome.APPLIED, 0, 0, row, 0, 0, 0, 0, "g"))
        total = checksum.add(total, checksum.row_hash(f"p{n}", row))
    records.append(Published(3, 1, 1_760_000_000_000, total, 11))
    entries = [seal_entry(1, 1, "b1", []), seal_entry(1, 2, "b2", [BoardCreated(3, BOARD, rules, "inc1", "op", 1_000)])]
    entries += [seal_entry(7, offset, "b", []) for offset in range(3, 1040)] + [seal_entry(7, 1040, "b", records)]
    region.apply("eu-west/0", entries, committed=1040, now_ms=0, wall_ms=0)
    return region.boards[BOARD]


#: Of each body the first 16 hex digits of its SHA-256 and its length, made by the code before there were slices.
GOLDEN: dict[tuple[Ranking, str], tuple[str, int]] = {
    ("unique", "top"): ("827d678586150c42", 1513),
    ("unique", "rank"): ("1a584da67be46d8e", 368),
    ("unique", "nearby"): ("db8a4d3a2d95ed94", 903),
    ("unique", "ranks"): ("1f4dad620ac9d09b", 501),
    ("unique", "listed"): ("36bab0062e76535b", 598),
    ("competition", "top"): ("9e6ea4fcc0a26741", 1511),
    ("competition", "rank"): ("1a584da67be46d8e", 368),
    ("competition", "nearby"): ("ca05f8dd89e484f9", 903),
    ("competition", "ranks"): ("664603c0cf82d412", 501),
    ("competition", "listed"): ("1c97cafdf0ca471a", 598),
    ("dense", "top"): ("91a716659634bb4e", 1511),
    ("dense", "rank"): ("49b90da81f4753d3", 368),
    ("dense", "nearby"): ("ad1fab0d87d976e8", 903),
    ("dense", "ranks"): ("33a607554208ee92", 501),
    ("dense", "listed"): ("cea34ad081393141", 598),
}
QUESTIONS: dict[str, Question] = {
    "top": Top(limit=100),
    "rank": Rank("p3"),
    "nearby": Nearby("p3", 2),
    "ranks": Ranks(["p9", "p1", "nobody", "p7", "p1"]),
    "listed": Ranks(["p9", "p1", "p4"], "listed"),
}


@pytest.mark.parametrize(("ranking", "question"), GOLDEN)
def test_answers_of_boards_of_one_slice_are_byte_for_byte_what_they_always_were(ranking: Ranking, question: str) -> None:
    series = one_slice_as_ever(ranking)
    assert series.newest is not None
    body = answer(series, series.newest, QUESTIONS[question], KEY)
    assert (hashlib.sha256(body).hexdigest()[:16], len(body)) == GOLDEN[ranking, question]


def test_the_empty_board_and_a_rank_are_told_as_ever() -> None:
    series = one_slice_as_ever("dense")
    assert answer(series, series.generations[0], Top(), KEY) == (
        b'{"board":"arena-clash:solo:S7:global","generation":"s0","pin":"s0@inc1","epoch":1,"published_at":"1970-01-01T00:00:01.000Z",'
        b'"boundaries":{"eu-west/0":"1-2"},"complete":true,"exact":true,"total":0,"checksum":"0000000000000000","entries":[],'
        b'"limit":100,"next":null,"previous":null,"cursors_valid_ms":120000}'
    )
    assert series.newest is not None
    assert answer(series, series.newest, Rank("p3"), KEY) == (
        b'{"board":"arena-clash:solo:S7:global","generation":"s1","pin":"s1@inc1","epoch":7,"published_at":"2025-10-09T08:53:20.000Z",'
        b'"boundaries":{"eu-west/0":"7-1040"},"complete":true,"exact":true,"total":11,"checksum":"373addcd21bef3f7","player_id":"p3",'
        b'"entries":[{"position":3,"rank":2,"player_id":"p3","value":"3.00","achieved_at":"1970-01-01T00:00:00.000Z","version":1}]}'
    )


def rules_of(ranking: Ranking) -> BoardRules:
    return make_rules("best_score", ranking=ranking, secondary="lower", retention_ms=120_000)


def a_board(ranking: Ranking, slices: int, seed: int = 1) -> tuple[Board, BoardSeries]:
    journals = Journals(SHARDS[:slices])
    board = Board(journals, SHARDS[:slices], rules=rules_of(ranking)) if slices > 1 else OneSlice(journals, rules=rules_of(ranking))
    draw = random.Random(seed)
    for n in range(230):
        board.put(f"p{n:03}", draw.choice((0, 0, 1, 5)), draw.randrange(2), draw.randrange(3), int(draw.random() < 0.05))
    board.publish()
    return board, folded(journals, draw).boards[BOARD]


def ranked(rows: list[tuple[str, int, int, int]], ranking: Ranking) -> dict[str, tuple[int, int]]:
    """Player -> (position, rank), counted."""
    places = {}
    for position, (player, value, second, _) in enumerate(rows, 1):
        better = sum((v, s) != (value, second) for _, v, s, _ in rows[: position - 1]) if ranking == "competition" else position - 1
        places[player] = (position, 1 + better)
    return places


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_sampled_answers_equal_an_offline_sort(ranking: Ranking, slices: int) -> None:
    board, series = a_board(ranking, slices)
    rows = board.shown[1]
    places = ranked(rows, ranking)
    draw = random.Random(9)
    top = ask(series, Top(limit=1000))
    assert [(e["player_id"], e["position"], e["rank"]) for e in top["entries"]] == [(p, *places[p]) for p, *_ in rows]
    assert (top["total"], top["complete"], top["exact"], list(top["boundaries"])) == (len(rows), True, True, list(SHARDS[:slices]))
    for player in draw.sample(sorted(places), 20):
        (entry,) = ask(series, Rank(player))["entries"]
        at = places[player][0] - 1
        assert (entry["position"], entry["rank"], entry["secondary"]) == (*places[player], str(rows[at][2]))
        around = ask(series, Nearby(player, 3))
        near = [e["player_id"] for e in around["entries"]]
        assert near == [p for p, *_ in rows[max(0, at - 3) : at + 4]]
        below, above = (ask(series, Top(2, around[way]))["entries"] if around[way] else [] for way in ("next", "previous"))
        assert [e["player_id"] for e in below] == [p for p, *_ in rows[at + 4 : at + 6]]
        assert [e["player_id"] for e in above] == [p for p, *_ in rows[max(0, at - 5) : max(0, at - 3)]]
    listed = [*draw.sample(sorted(places), 40), "nobody"]
    batch = ask(series, Ranks(listed))
    assert [(e["player_id"], e["position"], e["rank"]) for e in batch["entries"]] == [
        (p, *places[p]) for p, *_ in rows if p in listed
    ]  # fmt: skip
    assert batch["absent"] == ["nobody"]
    among = ranked([row for row in rows if row[0] in listed], ranking)
    assert {e["player_id"]: (e["position"], e["rank"]) for e in ask(series, Ranks(listed, "listed"))["entries"]} == among
    with pytest.raises(NotRanked):
        ask(series, Rank("nobody"))


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_pages_forward_and_back_are_disjoint_and_complete_while_the_board_changes(ranking: Ranking, slices: int) -> None:
    """1. Pages of changing sizes to the end and back. 2. Meanwhile generations are published. 3. No row twice, none missing."""
    board, series = a_board(ranking, slices)
    rows = [player for player, *_ in board.shown[1]]
    draw = random.Random(4)
    first = series.newest
    assert first is not None
    played(5, board, 20)
    region = folded(board.journals, draw)
    series = region.boards[BOARD]
    generation = series.generations[1]
    page = ask(series, Top(limit=7), generation)
    assert page["previous"] is None
    seen, pages = [], [page]
    while page["next"] is not None:
        page = ask(series, Top(limit=draw.randrange(1, 40), cursor=page["next"]), generation)
        pages.append(page)
    for page in pages:
        seen += [e["player_id"] for e in page["entries"]]
    assert seen == rows
    assert [e["position"] for page in pages for e in page["entries"]] == list(range(1, len(rows) + 1))
    back = [e["player_id"] for e in page["entries"]]
    while page["previous"] is not None:
        page = ask(series, Top(limit=draw.randrange(1, 40), cursor=page["previous"]), generation)
        back = [e["player_id"] for e in page["entries"]] + back
    assert back == rows


@pytest.mark.parametrize("slices", [1, 3])
def test_a_hundred_is_a_hundred_positions_inside_a_tie_too(slices: int) -> None:
    journals = Journals(SHARDS[:slices])
    board = Board(journals, SHARDS[:slices], rules=rules_of("competition")) if slices > 1 else OneSlice(journals)
    for n in range(250):
        board.put(f"p{n:03}", 5)
    board.publish()
    series = folded(journals, random.Random(0)).boards[BOARD]
    page = ask(series, Top())
    assert [e["position"] for e in page["entries"]] == list(range(1, 101))
    assert {e["rank"] for e in page["entries"]} == {1}
    page = ask(series, Top(cursor=page["next"]))
    assert [(e["position"], e["player_id"]) for e in page["entries"]] == [(n + 1, f"p{n:03}") for n in range(100, 200)]


def test_a_cursor_that_is_forged_or_of_another_life_or_generation_is_refused() -> None:
    board, series = a_board("unique", 4)
    next_page = ask(series, Top(limit=7))["next"]
    opened = open_cursor(KEY, next_page)
    others = [
        next_page[:-1] + ("A" if next_page[-1] != "A" else "B"),
        seal_cursor(b"another key" * 3, opened),
        seal_cursor(KEY, msgspec.structs.replace(opened, incarnation="inc0")),
        seal_cursor(KEY, msgspec.structs.replace(opened, generation=2)),
        "",
        "~",
    ]
    for text in others:
        with pytest.raises(BadCursor):
            ask(series, Top(cursor=text))
    assert ask(series, Top(limit=2, cursor=next_page))["entries"][0]["position"] == 8
    assert opened.key == Key(*opened.key)
    assert opened == Cursor("inc1", 1, *opened.key, False)
    assert board.generation == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_same_board_on_one_slice_and_on_four_answers_alike(seed: int) -> None:
    _, one = a_board("competition", 1, seed)
    _, four = a_board("competition", 4, seed)
    draw = random.Random(seed)
    questions: list[Question] = [Top(limit=50), *(Rank(f"p{draw.randrange(230):03}") for _ in range(5)), Nearby("p100", 9)]
    for question in [*questions, Percentile("p200"), Ranks([f"p{n:03}" for n in range(0, 230, 7)], "listed")]:
        try:
            left = ask(one, question)
        except NotRanked:
            with pytest.raises(NotRanked):
                ask(four, question)
            continue
        right = ask(four, question)
        for told in (left, right):
            for name in ("boundaries", "next"):
                told.pop(name, None)
        assert left == right


def test_a_percentile_is_the_share_of_players_that_a_rank_is_at_or_better_than() -> None:
    assert [percentile(better, 4) for better in range(4)] == [100.0, 75.0, 50.0, 25.0]
    assert percentile(1, 10_000_000) == 99.9999
    assert percentile(2, 3) == 33.3333
    for ranking in RANKINGS:
        board, series = a_board(ranking, 4)
        places = ranked(board.shown[1], ranking)
        for player in list(places)[::40]:
            body = ask(series, Percentile(player))
            worse = sum(rank >= places[player][1] for _, rank in places.values())
            assert body["percentile"] == pytest.approx(100 * worse / len(places), abs=1e-4)
            assert (body["exact"], "error_bound" in body) == (True, False)


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_an_approximate_answer_says_so_and_holds_its_bound(ranking: Ranking, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a summary of a few scores, so that most lie between two of them."""
    few = histogram.Histogram
    monkeypatch.setattr("actors.answers.Histogram", type("Few", (few,), {"__init__": lambda self, view: few.__init__(self, view, 4)}))
    journals = Journals(SHARDS[:slices])
    board = Board(journals, SHARDS[:slices], rules=rules_of(ranking)) if slices > 1 else OneSlice(journals, rules=rules_of(ranking))
    draw = random.Random(2)
    for n in range(150):
        board.put(f"p{n:03}", draw.randrange(40), draw.randrange(3))
    board.publish()
    series = folded(journals, draw).boards[BOARD]
    places = ranked(board.shown[1], ranking)
    wide = 0
    for player in places:
        body = ask(series, Rank(player, "approximate"))
        (entry,) = body["entries"]
        assert (body["exact"], body["mode"], body["complete"]) == (False, "approximate", True)
        assert "position" not in entry
        assert abs(entry["rank"] - places[player][1]) <= body["error_bound"]
        wide = max(wide, body["error_bound"])
        share = ask(series, Percentile(player, "approximate"))
        assert (share["exact"], share["error_bound"]) == (False, body["error_bound"])
        assert share["percentile"] == percentile(entry["rank"] - 1, len(places))
    assert 10 <= wide <= 40


def test_dense_ranks_are_not_estimated() -> None:
    series = one_slice_as_ever("dense")
    for question in (Rank("p3", "approximate"), Percentile("p3", "approximate")):
        with pytest.raises(BadParameter) as refused:
            ask(series, question)
        assert (refused.value.fields["field"], refused.value.fields["allowed"]) == ("mode", "exact")
