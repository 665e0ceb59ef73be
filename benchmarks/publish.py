"""How long until an event is in a complete generation, at ten thousand events a second: on a board of four slices, and on one of one.

Batches of 100 arrive at all three regions at a fixed rate, in an open loop. One event of every third batch is followed: from
the instant at which it was due to be sent to the first answer of a generation that includes it, which every region is asked for by
`at_least`. So the time holds the way to the owner, the quorum, the marks of all slices, the manifest and the replica. Peer: Redis has
no generations; told beside it is when ZADD and a ZREVRANK after it were answered.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from benchmarks import paced_peer
from benchmarks.clients import ClientProcesses, Job, Tally, Window
from benchmarks.cluster import Cluster
from benchmarks.figures import Figure, figure, percentile
from benchmarks.options import Options
from benchmarks.paced import say_who_waits
from benchmarks.paced_http import Sighting
from benchmarks.paced_peer import PacedPeer
from benchmarks.peer_redis import PeerStore
from benchmarks.sharded_board import (
    BATCH,
    EVENTS,
    SHARDS,
    Board,
    Cores,
    event_jobs,
    filled_board,
    last_positions,
    players_of,
    sent_by,
    told,
)

GOAL_MS = 1000.0
#: One event of every so many batches.
FOLLOW = 3
_LOOK_S = 0.1


@dataclass(slots=True)
class Ages:
    """What the regions' newest generations were, looked at ten times a second while the load runs."""

    cluster: Cluster
    board: str
    #: Region -> (instant, number of the generation, its age in ms).
    seen: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)

    def watch(self, window: Window) -> None:
        """Look until the window ends."""
        headers = {"authorization": f"Bearer {self.cluster.token('reader')}"}
        clients = {
            name: httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=5, trust_env=False)
            for name, port in self.cluster.ports.items()
        }
        try:
            time.sleep(max(0.0, window.counts_from - time.monotonic()))
            while time.monotonic() < window.ends:
                for name, client in clients.items():
                    try:
                        reply = client.get(f"/v1/boards/{self.board}/top", params={"limit": 1})
                        number, age = int(reply.json()["generation"][1:]), float(reply.headers["x-laurel-age-ms"])
                    except (httpx.HTTPError, KeyError, ValueError):
                        continue
                    self.seen.setdefault(name, []).append((time.monotonic(), number, age))
                time.sleep(_LOOK_S)
        finally:
            for client in clients.values():
                client.close()

    def generations(self, region: str) -> tuple[int, float]:
        """How many generations came up in one region, and in how many seconds."""
        seen = self.seen.get(region, [])
        return (seen[-1][1] - seen[0][1], seen[-1][0] - seen[0][0]) if len(seen) > 1 else (0, 0.0)

    def ages(self) -> list[float]:
        """All ages that were seen, in ms."""
        return [age for seen in self.seen.values() for _, _, age in seen]


def run(options: Options) -> Iterator[Figure]:
    """Figures of both boards, each beside the peer."""
    with ClientProcesses(3) as clients, PeerStore() as peer, Cluster(shards=SHARDS) as cluster:
        say_who_waits(options.say)
        options.say("the peer")
        peer.load(players_of(options), 3)
        each = EVENTS / BATCH / 3
        jobs: list[Job] = [PacedPeer(peer.port, "seen", each, 16, number, players_of(options), BATCH) for number in range(3)]
        theirs = clients.run(jobs, options.seconds)
        for slices in (SHARDS, 1):
            options.say(f"filling a board of {slices} {'slices' if slices > 1 else 'slice'} with {players_of(options):,} players")
            board = filled_board(cluster, clients, slices, options)
            yield from _measured(cluster, clients, board, theirs, options)
            cluster.settled(cluster.regions[0])


def _measured(cluster: Cluster, clients: ClientProcesses, board: Board, theirs: Tally, options: Options) -> Iterator[Figure]:
    options.say(f"{EVENTS:,} events/s from all regions for {options.seconds:g} s, one of every {FOLLOW * BATCH} followed")
    home, ages, cores = cluster.regions[0], Ages(cluster, board.board_id), Cores.of(cluster)
    tallies = clients.run_each(
        event_jobs(cluster, board, EVENTS, options, unique=f"publish-{board.slices}", follow=FOLLOW),
        options.seconds,
        lambda window: cores.watch(window, ages.watch),
    )
    ended = time.monotonic()
    cluster.include(board.board_id, last_positions(sent_by(tallies), spread=board.slices > 1))
    caught_up = time.monotonic() - ended
    sightings = [kept for tally in tallies for kept in tally.kept if isinstance(kept, Sighting)]
    at_home = [s.seconds * 1000 for s in sightings if s.region == home]
    elsewhere = [s.seconds * 1000 for s in sightings if s.region != home]
    rate = sum(tally.done for tally in tallies) / options.seconds
    made, over_s = ages.generations(home)
    changed = sum(sent.changed for sent in sent_by(tallies)) / options.seconds
    a_second = made / over_s if over_s else math.nan
    options.say(
        f"  {rate:,.0f} events/s; at home p99 {percentile(at_home, 0.99):.0f} ms, elsewhere {percentile(elsewhere, 0.99):.0f} ms of "
        f"{len(at_home)} events; {a_second:.1f} generations/s{told(tallies)}"
    )
    options.say(f"  {cores}")
    name, peer, goal = f"publish_{board.slices}", paced_peer.SEEN_NAME, None if options.quick else GOAL_MS
    peers = {share: percentile(theirs.latencies, share) * 1000 for share in (0.5, 0.99)}
    yield figure(f"{name}_events_rate", rate, "events/s", peer=peer, peer_value=theirs.done / options.seconds)
    for where, times in (("home", at_home), ("elsewhere", elsewhere)):
        yield figure(f"{name}_{where}_p50", percentile(times, 0.5), "ms", peer=peer, peer_value=peers[0.5])
        p99 = percentile(times, 0.99)
        yield figure(f"{name}_{where}_p99", p99, "ms", peer=peer, peer_value=peers[0.99], goal=goal, lower_is_better=True)
    submits = [seconds * 1000 for tally in tallies for seconds in tally.latencies]
    yield figure(f"{name}_submit_p50", percentile(submits, 0.5), "ms")
    yield figure(f"{name}_submit_p99", percentile(submits, 0.99), "ms")
    yield figure(f"{name}_followed", len(at_home), "events")
    yield figure(f"{name}_generations", a_second, "generations/s")
    yield figure(f"{name}_rows", changed / a_second if a_second else math.nan, "rows/generation")
    yield figure(f"{name}_age_p50", percentile(ages.ages(), 0.5), "ms")
    yield figure(f"{name}_age_p99", percentile(ages.ages(), 0.99), "ms")
    yield figure(f"{name}_replica_lag", caught_up, "s")
    yield figure(f"{name}_cpu", sum(cores.spent.values()), "cores")
