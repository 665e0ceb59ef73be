"""The main path on three running regions: forward, acknowledge, publish the same bytes everywhere, fail over, come back."""

import pytest

pytestmark = pytest.mark.cluster


def test_writes_posted_to_each_region_succeed_and_all_regions_answer_the_same_bytes(cluster):
    """1. Every region takes writes for the one board. 2. One generation is read from all three: identical bodies."""
    cluster.settled()
    board = cluster.fresh_board("best_score", visibility="public")
    last = None
    for number, region in enumerate(cluster.regions * 3):
        reply = cluster.client(region).submit(board, [{"player_id": f"p{number}", "value": number, "event_id": f"e{number}"}])
        assert reply.region == region
        assert reply.results[0].outcome == "applied_first"
        assert reply.results[0].acked == "quorum"
        last = reply.results[0]
    generation = cluster.client("us-east").top(board, at_least=last.position).generation
    bodies, etags = set(), set()
    for region in cluster.regions:
        with cluster.http(region, None) as http:
            cluster.until(lambda http=http: http.get(f"/v1/boards/{board}/top?generation={generation}").status_code == 200, f"{region} has {generation}")
            answer = http.get(f"/v1/boards/{board}/top?generation={generation}")
            assert answer.headers["x-laurel-region"] == region
            bodies.add(answer.content)
            etags.add(answer.headers["etag"])
    assert len(bodies) == 1
    assert len(etags) == 1
