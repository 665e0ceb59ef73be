"""Reading from running regions: one generation is the same bytes everywhere, read-your-writes in another region, pages, caches."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_cluster import RunningCluster, position

pytestmark = pytest.mark.cluster

IMMUTABLE = "public, max-age=31536000, immutable"


def event(event_id: str, player_id: str, value: int, second: int = 0) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "player_id": player_id,
        "value": value,
        "achieved_at": f"2025-11-30T10:{second // 60:02}:{second % 60:02}Z",
    }


def entries(response: httpx.Response) -> list[tuple[int, int, str]]:
    assert response.status_code == 200, response.text
    return [(entry["position"], entry["rank"], entry["player_id"]) for entry in response.json()["entries"]]


class Pages:
    """One reader that goes through pages, each from the next region in turn."""

    def __init__(self, cluster: RunningCluster, board: str) -> None:
        self.path = f"/v1/boards/{board}/top"
        self._clients = [cluster.http(region, "reader") for region in cluster.regions]
        self._turns = itertools.cycle(self._clients)

    def __enter__(self) -> "Pages":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    def ask(self, **parameters: Any) -> httpx.Response:
        return next(self._turns).get(self.path, params=parameters)

    def from_all(self, **parameters: Any) -> list[httpx.Response]:
        return [client.get(self.path, params=parameters) for client in self._clients]

    def follow(self, first: httpx.Response, link: str, limit: int) -> Iterator[httpx.Response]:
        """`first` and all pages behind it."""
        page = first
        while True:
            yield page
            cursor = page.json()[link]
            if cursor is None:
                return
            page = self.ask(limit=limit, cursor=cursor)


def test_an_empty_board_serves_s0_in_every_region(cluster: RunningCluster) -> None:
    board = cluster.fresh_board()
    bodies = set()
    for region in cluster.regions:
        answer = cluster.get(region, f"/v1/boards/{board}/top")
        assert (answer.status_code, answer.json()["generation"], answer.json()["total"], answer.json()["entries"]) == (200, "s0", 0, [])
        assert answer.json()["next"] is answer.json()["previous"] is None
        assert cluster.get(region, f"/v1/boards/{board}/players/ann").json()["code"] == "not_ranked"
        bodies.add(answer.content)
    assert len(bodies) == 1


def test_what_was_acknowledged_in_one_region_is_read_in_another_at_once(cluster: RunningCluster) -> None:
    """Right after each acknowledgement the next region is asked with `at_least`: it waits, and its answer holds the event."""
    board = cluster.fresh_board()
    for number in range(9):
        here, there = cluster.regions[number % 3], cluster.regions[(number + 1) % 3]
        acknowledged = cluster.post(here, board, event(f"e{number}", f"p{number}", number))
        answer = cluster.get(there, f"/v1/boards/{board}/players/p{number}", after=acknowledged)
        assert entries(answer) == [(1, 1, f"p{number}")]
        epoch, offset = map(int, position(acknowledged).split("-"))
        assert [epoch, offset] <= list(map(int, answer.json()["boundaries"]["eu-west/0"].split("-")))
        promised = acknowledged.json()["results"][0]["visible_by"]
        assert int(answer.json()["generation"][1:]) >= int(promised[1:])


def test_a_position_that_no_generation_includes_is_503_after_a_second_and_says_so(cluster: RunningCluster) -> None:
    board = cluster.fresh_board()
    began = time.monotonic()
    answer = cluster.get("us-east", f"/v1/boards/{board}/top", at_least="1-99999999")
    assert (answer.status_code, answer.json()["code"], answer.json()["definite"]) == (503, "not_visible_yet", True)
    assert answer.headers["retry-after"] == "1"
    assert 0.9 < time.monotonic() - began < 5


def test_a_pinned_generation_is_the_same_bytes_in_all_regions_and_for_ever(cluster: RunningCluster) -> None:
    """1. Four generations. 2. Each is pinned in each region. 3. More writes. 4. Pinned again: nothing of them has changed."""
    board = cluster.fresh_board(visibility="public", publish_interval_ms=50)
    generations = []
    for number in range(4):
        last = cluster.post("us-east", board, [event(f"e{number}-{n}", f"p{n}", number * 10 + n) for n in range(20)])
        generations.append(cluster.get("ap-south", f"/v1/boards/{board}/top", after=last).json()["pin"])
    assert len(set(generations)) == 4

    def pinned() -> dict[str, tuple[bytes, str]]:
        found = {}
        for generation in generations:
            answers = [cluster.get(region, f"/v1/boards/{board}/top", generation=generation) for region in cluster.regions]
            assert len({(answer.status_code, answer.content, answer.headers["etag"]) for answer in answers}) == 1
            assert [answer.headers["x-laurel-region"] for answer in answers] == cluster.regions
            assert all(int(answer.headers["x-laurel-age-ms"]) >= 0 for answer in answers)
            assert {answer.headers["cache-control"] for answer in answers} == {IMMUTABLE}
            found[generation] = (answers[0].content, answers[0].headers["etag"])
        return found

    cluster.until(
        lambda: all(cluster.get(r, f"/v1/boards/{board}/top", generation=generations[-1]).is_success for r in cluster.regions),
        "it is everywhere",
    )
    before = pinned()
    last = cluster.post("eu-west", board, [event(f"later-{n}", f"p{n}", 1000 + n) for n in range(20)])
    for region in cluster.regions:
        assert cluster.get(region, f"/v1/boards/{board}/top", after=last).json()["generation"] not in generations
    assert pinned() == before
    assert len({etag for _, etag in before.values()}) == 4


def test_validators_head_and_gzip(cluster: RunningCluster) -> None:
    board = cluster.fresh_board(visibility="public")
    last = cluster.post("eu-west", board, [event(f"e{n}", f"p{n}", n) for n in range(50)])
    for region in cluster.regions:
        assert cluster.get(region, f"/v1/boards/{board}/top", after=last).is_success
        with cluster.http(region, None) as http:
            for path in (f"/v1/boards/{board}/top", f"/v1/boards/{board}/top?limit=50", f"/v1/boards/{board}/players/p7?view=nearby"):
                plain = http.get(path, headers={"accept-encoding": "identity"})
                zipped = http.get(path, headers={"accept-encoding": "gzip"})
                etag = plain.headers["etag"]
                assert zipped.headers.get("content-encoding") == ("gzip" if len(plain.content) >= 1000 else None)
                assert zipped.content == plain.content
                assert plain.headers["cache-control"] == "no-cache"
                for sent in (etag, f'"nothing", {etag}', f"W/{etag}", "*", zipped.headers["etag"]):
                    kept = http.get(path, headers={"if-none-match": sent, "accept-encoding": "identity"})
                    assert (kept.status_code, kept.content, kept.headers["etag"]) == (304, b"", etag)
                assert http.get(path, headers={"if-none-match": '"other"'}).status_code == 200
                head = http.head(path, headers={"accept-encoding": "identity"})
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-length"] == str(len(plain.content))
                assert head.headers["etag"] == etag
    changed = cluster.post("eu-west", board, event("new", "new", 10_000))
    cluster.get("us-east", f"/v1/boards/{board}/top", after=changed)
    with cluster.http("us-east", None) as http:
        assert http.get(f"/v1/boards/{board}/top", headers={"if-none-match": etag}).status_code == 200


def test_public_boards_are_open_to_pages_and_private_ones_to_tokens_of_their_game_only(cluster: RunningCluster) -> None:
    public, private = cluster.fresh_board(visibility="public"), cluster.fresh_board(visibility="private")
    for region in cluster.regions:
        with cluster.http(region, None) as http:
            page = {"origin": "https://game.example"}
            shown, hidden = http.get(f"/v1/boards/{public}/top", headers=page), http.get(f"/v1/boards/{private}/top", headers=page)
            assert (shown.status_code, hidden.status_code) == (200, 401)
            assert shown.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-origin" not in hidden.headers
            asked = {**page, "access-control-request-method": "GET"}
            assert http.options(f"/v1/boards/{public}/top", headers=asked).headers["access-control-allow-methods"] == "GET, HEAD"
            assert "access-control-allow-origin" not in http.options(f"/v1/boards/{private}/top", headers=asked).headers
            listed = {board["board"] for board in http.get("/v1/boards").json()["boards"]}
            assert public in listed
            assert private not in listed
            assert http.post(f"/v1/boards/{public}/events", json=event("e", "p", 1), headers=page).status_code == 401
        answer = cluster.get(region, f"/v1/boards/{private}/top")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "private, no-store")
        assert private in {board["board"] for board in cluster.get(region, "/v1/boards").json()["boards"]}


def test_include_rank_is_the_players_own_place_also_without_improvement(cluster: RunningCluster) -> None:
    """LB-010: a 90, b 80; c 85 is second; c 10 improves nothing and c is second still, as a read of that generation says."""
    board = cluster.fresh_board()
    cluster.post("eu-west", board, [event("e1", "a", 90), event("e2", "b", 80)])
    for region, event_id, value, outcome in (("us-east", "e3", 85, "applied_first"), ("ap-south", "e4", 10, "not_an_improvement")):
        reply = cluster.post(region, board, event(event_id, "c", value), "?include=rank")
        result = reply.json()["results"][0]
        assert (result["outcome"], result["value"], result["rank"], result["position"]) == (outcome, "85", 2, 2)
        read = cluster.get(region, f"/v1/boards/{board}/players/c", generation=result["generation"])
        assert entries(read) == [(2, 2, "c")]
    again = cluster.post("eu-west", board, event("e3", "c", 85), "?include=rank").json()["results"][0]
    assert (again["outcome"], again["rank"], again["position"]) == ("duplicate", 2, 2)


def test_pages_of_every_size_are_complete_and_disjoint_there_and_back_while_others_write(cluster: RunningCluster) -> None:
    """LB-062, 063: 30 rows that share value and millisecond, pages of 1 to 7, each page from another region, a writer all the time."""
    board = cluster.fresh_board(ranking="competition")
    players = [f"p{number:02}" for number in range(30)]
    last = cluster.post("eu-west", board, [event(f"e-{player}", player, 100) for player in reversed(players)])
    everything = [(place, 1, player) for place, player in enumerate(players, 1)]
    over, written, failed = threading.Event(), itertools.count(), list[str]()

    def write() -> None:
        """New leaders all the time: positions of newer generations shift."""
        with cluster.http("us-east") as http:
            while not over.is_set():
                number = next(written)
                reply = http.post(f"/v1/boards/{board}/events", json=event(f"w{number}", f"w{number}", 1000 + number))
                if reply.status_code != 200:
                    failed.append(reply.text)

    with Pages(cluster, board) as pages:
        generation = pages.ask(at_least=position(last)).json()["generation"]
        cluster.until(lambda: all(r.is_success for r in pages.from_all(generation=generation)), f"{generation} is everywhere")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for limit in range(1, 8):
                there = list(pages.follow(pages.ask(generation=generation, limit=limit), "next", limit))
                assert [row for page in there for row in entries(page)] == everything
                assert {page.json()["generation"] for page in there} == {generation}
                assert all(len(entries(page)) == limit for page in there[:-1])
                back = list(pages.follow(there[-1], "previous", limit))
                assert [entries(page) for page in reversed(back)] == [entries(page) for page in there]
                once_more = list(pages.follow(back[-1], "next", limit))
                assert [page.content for page in once_more] == [page.content for page in there]
        finally:
            over.set()
            writer.join()
    assert not failed
    assert next(written) > 20


def test_a_cursor_gives_the_same_page_each_time_in_every_region_and_for_all_at_once(cluster: RunningCluster) -> None:
    """LB-070: cursors are stateless; a lost reply is asked for again."""
    board = cluster.fresh_board()
    last = cluster.post("eu-west", board, [event(f"e{n}", f"p{n}", n) for n in range(40)])
    with Pages(cluster, board) as pages:
        first = pages.ask(limit=5, at_least=position(last)).json()
        cluster.until(lambda: all(r.is_success for r in pages.from_all(generation=first["generation"])), "it is everywhere")
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.extend(r.content for r in pages.from_all(limit=5, cursor=first["next"])))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 12
        assert len(set(found)) == 1
        assert pages.ask(limit=5, cursor=first["next"]).json()["entries"][0]["position"] == 6


def test_a_cursor_of_another_board_or_altered_is_refused(cluster: RunningCluster) -> None:
    board, other = cluster.fresh_board(), cluster.fresh_board()
    for each in (board, other):
        last = cluster.post("eu-west", each, [event(f"e{n}", f"p{n}", n) for n in range(10)])
    cursor = cluster.get("us-east", f"/v1/boards/{board}/top", after=last, limit=3).json()["next"]
    altered = cursor[:-3] + ("A" if cursor[-3] != "A" else "B") + cursor[-2:]
    for path, sent in ((f"/v1/boards/{other}/top", cursor), (f"/v1/boards/{board}/top", altered), (f"/v1/boards/{board}/top", "x" * 3000)):
        for region in cluster.regions:
            answer = cluster.get(region, path, cursor=sent, limit=3)
            assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, "bad_cursor", "cursor"), (
                region,
                answer.text,
            )


def test_page_two_alone_goes_on_counting_where_page_one_ends(cluster: RunningCluster) -> None:
    """LB-064 and LB-065: positions do not restart, and a tie over the border keeps its rank."""
    board = cluster.fresh_board(ranking="competition")
    values = [*range(1000, 963, -1), *[500] * 18, *range(400, 395, -1)]
    last = cluster.post("eu-west", board, [event(f"e{n}", f"p{n:02}", value) for n, value in enumerate(values)])
    first = cluster.get("ap-south", f"/v1/boards/{board}/top", after=last, limit=50).json()
    second = entries(cluster.get("us-east", f"/v1/boards/{board}/top", after=last, limit=50, cursor=first["next"]))
    assert [(place, rank) for place, rank, _ in second] == [
        *((place, 38) for place in range(51, 56)),
        *((place, place) for place in range(56, 61)),
    ]


def test_next_is_followed_to_the_end_of_12000_rows_and_no_link_is_refused(cluster: RunningCluster) -> None:
    """LB-066."""
    board = cluster.fresh_board()
    for start in range(0, 12_000, 1000):
        region = cluster.regions[start // 1000 % 3]
        last = cluster.post(region, board, [event(f"e{n}", f"p{n}", n) for n in range(start, start + 1000)])
        assert last.status_code == 200
    with Pages(cluster, board) as pages:
        answer = pages.ask(limit=200, at_least=position(last))
        generation = answer.json()["generation"]
        cluster.until(lambda: all(r.is_success for r in pages.from_all(generation=generation)), f"{generation} is everywhere")
        rows = [row for page in pages.follow(answer, "next", 200) for row in entries(page)]
    assert [place for place, _, _ in rows] == list(range(1, 12_001))
    assert {player for _, _, player in rows} == {f"p{n}" for n in range(12_000)}
