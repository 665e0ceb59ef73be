"""The main path on three running regions: forward, acknowledge, publish the same bytes everywhere, fail over, come back."""

import pytest
from running_cluster import RunningCluster

pytestmark = pytest.mark.cluster


def test_writes_posted_to_each_region_succeed_and_all_regions_answer_the_same_bytes(cluster: RunningCluster) -> None:
    """1. Every region takes writes for the one board. 2. One generation is read from all three: identical bodies."""
    cluster.settled()
    board = cluster.fresh_board("best_score", visibility="public")
    acknowledged = None
    for number, region in enumerate(cluster.regions * 3):
        reply = cluster.client(region).submit(board, [{"player_id": f"p{number}", "value": number, "event_id": f"e{number}"}])
        assert reply.region == region
        assert reply.results[0].outcome == "applied_first"
        assert reply.results[0].acked == "quorum"
        acknowledged = reply.results[0].position
    generation = cluster.client("us-east").top(board, at_least=acknowledged).generation
    bodies, etags = set(), set()
    for region in cluster.regions:
        page = cluster.client(region).top(board, at_least=acknowledged)
        assert page.generation == generation
        with cluster.http(region, None) as http:
            answer = http.get(f"/v1/boards/{board}/top?generation={generation}")
            assert answer.headers["x-laurel-region"] == region
            bodies.add(answer.content)
            etags.add(answer.headers["etag"])
    assert len(bodies) == 1
    assert len(etags) == 1
