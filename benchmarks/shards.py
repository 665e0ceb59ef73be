"""Exact reads over HTTP from a board of a million players on four shards, while ten thousand events a second arrive.

Rates are fixed and the loop is open (`benchmarks.paced`): events come in batches of 100 to the gateways of all three regions,
1000 rank reads and 500 first pages a second go to the gateway of one other region than the board's home. If a goal is missed or the
rates are not held, lower rates are tried, and the highest at which the goals hold is told. Peer: one sorted set of as many members in
one Valkey, with the same arrivals. After the load, one generation that was read under it is sorted offline and compared.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import paced_peer
from benchmarks.clients import ClientProcesses, Job, Tally, Window
from benchmarks.cluster import Cluster
from benchmarks.figures import Figure, figure, percentile
from benchmarks.offline import Differs, Sorted
from benchmarks.options import Options
from benchmarks.paced import say_who_waits
from benchmarks.paced_http import PacedReads, Place
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

#: Requests a second.
RANKS, TOPS, LISTS = 1000, 500, 10
RANK_GOAL_MS, TOP_GOAL_MS = 20.0, 5.0
#: A rate is held when so much of it is answered within the window.
HELD = 0.95
#: Parts of the rates, tried from the left when the full ones do not do.
LOWER = (0.75, 0.5, 0.35, 0.25, 0.1)
#: A trial begins only while there is time for it.
ENOUGH_S = 330.0
_READ_CONNECTIONS = 96
_FIELDS = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one window at fixed rates: tallies of the writers, of the rank reads and of the first pages."""

    writers: list[Tally]
    ranks: Tally
    tops: Tally
    seconds: float
    part: float

    def rates(self) -> tuple[float, float, float]:
        """Events, rank reads and first pages that were answered in the window, a second."""
        events = sum(tally.done for tally in self.writers)
        return events / self.seconds, self.ranks.done / self.seconds, self.tops.done / self.seconds

    def held(self) -> bool:
        """Whether the machine kept up with what arrived."""
        return all(rate >= HELD * self.part * wanted for rate, wanted in zip(self.rates(), (EVENTS, RANKS, TOPS), strict=True))

    def good(self) -> bool:
        """Whether it kept up, and within the goals."""
        return self.held() and ms(self.ranks, 0.95) < RANK_GOAL_MS and ms(self.tops, 0.95) < TOP_GOAL_MS


def ms(tally: Tally | Sequence[Tally], share: float) -> float:
    """A percentile of the latencies, in ms; infinite where so many requests were never answered."""
    tallies = [tally] if isinstance(tally, Tally) else tally
    return percentile([seconds for each in tallies for seconds in each.latencies], share) * 1000


def run(options: Options) -> Iterator[Figure]:
    """Figures at the full rates, the peer's in the same order, and what the offline sort was compared with."""
    started = time.monotonic()
    with ClientProcesses(5) as clients, PeerStore() as peer, Cluster(shards=SHARDS) as cluster:
        say_who_waits(options.say)
        options.say(
            f"filling a board on {SHARDS} shards with {players_of(options):,} players, by quorum, from {len(cluster.regions)} regions"
        )
        board = filled_board(cluster, clients, SHARDS, options)
        region = cluster.regions[1]
        options.say(f"{EVENTS:,} events/s from all regions, {RANKS} ranks/s and {TOPS} first pages/s from {region}, {options.seconds:g} s")
        cores = Cores.of(cluster)
        full = _trial(clients, cluster, board, 1.0, options, "full", cores.watch)
        options.say(f"  {cores}")
        cluster.include(board.board_id, last_positions(sent_by(full.writers), spread=True))
        compared, contents = _compared(cluster, board, full, region, options)

        lists: tuple[list[Tally], Tally] | None = None
        if not options.quick:
            options.say(f"ranks of 1000 players, {LISTS} times a second, with the same events")
            lists = _lists(clients, cluster, board, options)
            cluster.settled(cluster.regions[0])

        options.say("the peer")
        peer.load(board.players, 3)
        theirs = clients.run_each(_peer_jobs(peer, board.players), options.seconds)
        peer_events, peer_ranks, peer_tops = theirs[:3], theirs[3], theirs[4]
        options.say(f"  {sum(t.done for t in peer_events) / options.seconds:,.0f} events/s{told(theirs)}")

        name, goals = paced_peer.NAME, not options.quick
        peer_rates = [sum(t.done for t in peer_events), peer_ranks.done, peer_tops.done]
        for what, unit, rate, other in zip(
            ("events", "ranks", "top_100"), ("events/s", "requests/s", "requests/s"), full.rates(), peer_rates, strict=True
        ):
            yield figure(f"shards_{what}_rate", rate, unit, peer=name, peer_value=other / options.seconds)
        for label, share in _FIELDS:
            goal = RANK_GOAL_MS if label == "p95" and goals else None
            value = ms(full.ranks, share)
            yield figure(f"shards_rank_{label}", value, "ms", peer=name, peer_value=ms(peer_ranks, share), goal=goal, lower_is_better=True)
        for label, share in _FIELDS:
            goal = TOP_GOAL_MS if label == "p95" and goals else None
            value = ms(full.tops, share)
            yield figure(
                f"shards_top_100_{label}", value, "ms", peer=name, peer_value=ms(peer_tops, share), goal=goal, lower_is_better=True
            )
        for label, share in _FIELDS:
            yield figure(f"shards_submit_{label}", ms(full.writers, share), "ms", peer=name, peer_value=ms(peer_events, share))
        if lists is not None:
            asking = [*_peer_writes(peer, board.players), PacedPeer(peer.port, "ranks", LISTS, 8, 77, board.players)]
            peer_lists = clients.run_each(asking, options.seconds)[-1]
            for label, share in _FIELDS:
                yield figure(f"shards_ranks_1000_{label}", ms(lists[1], share), "ms", peer=name, peer_value=ms(peer_lists, share))
            yield figure("shards_ranks_1000_rate", lists[1].done / options.seconds, "requests/s")
            yield figure("shards_ranks_1000_events_rate", sum(tally.done for tally in lists[0]) / options.seconds, "events/s")
        yield figure("shards_cpu", sum(cores.spent.values()), "cores")
        yield figure("shards_fill", board.players / board.filled_s, "players/s")
        yield figure("shards_places_compared", compared, "places")
        yield figure("shards_rows_compared", contents, "rows")
        yield figure("shards_part_within_goals", _part(clients, cluster, board, full, options, started), "of the rates")


def _trial(
    clients: ClientProcesses,
    cluster: Cluster,
    board: Board,
    part: float,
    options: Options,
    unique: str,
    meanwhile: Callable[[Window], None] | None = None,
) -> Trial:
    """One window at a part of the rates."""
    port, token = cluster.ports[cluster.regions[1]], cluster.token("reader")
    reads = [
        PacedReads(port, token, board.board_id, "rank", RANKS * part, _READ_CONNECTIONS, 5, board.players),
        PacedReads(port, token, board.board_id, "top", TOPS * part, _READ_CONNECTIONS, 6, board.players),
    ]
    tallies = clients.run_each([*event_jobs(cluster, board, EVENTS * part, options, unique=unique), *reads], options.seconds, meanwhile)
    trial = Trial(tallies[:-2], tallies[-2], tallies[-1], options.seconds, part)
    events, ranks, tops = trial.rates()
    options.say(
        f"  {events:,.0f} events/s, {ranks:,.0f} ranks/s of p95 {ms(trial.ranks, 0.95):.1f} ms, {tops:,.0f} first pages/s of p95 "
        f"{ms(trial.tops, 0.95):.1f} ms, submits of p95 {ms(trial.writers, 0.95):.0f} ms{told(tallies)}"
    )
    if not trial.held():
        options.say(f"  the machine did not hold these rates: less than {HELD:.0%} of what was due was answered in the window")
    return trial


def _lists(clients: ClientProcesses, cluster: Cluster, board: Board, options: Options) -> tuple[list[Tally], Tally]:
    port = cluster.ports[cluster.regions[1]]
    asking = PacedReads(port, cluster.token("reader"), board.board_id, "ranks", LISTS, 8, 7, board.players)
    tallies = clients.run_each([*event_jobs(cluster, board, EVENTS, options, unique="lists"), asking], options.seconds)
    options.say(f"  {tallies[-1].done / options.seconds:.1f}/s of p95 {ms(tallies[-1], 0.95):.0f} ms{told(tallies)}")
    cluster.include(board.board_id, last_positions(sent_by(tallies), spread=True))
    return tallies[:-1], tallies[-1]


def _compared(cluster: Cluster, board: Board, trial: Trial, region: str, options: Options) -> tuple[int, int]:
    """Sort the generation offline that most rank reads of the load were answered from; (places, rows) compared. Raises `Differs`."""
    places = [kept for kept in trial.ranks.kept if isinstance(kept, Place)]
    if not places:
        raise Differs("no rank was read under load, so nothing could be compared")
    generation, read = Counter(place.generation for place in places).most_common(1)[0]
    began = time.monotonic()
    found = Sorted(board.rules)
    found.read(lambda path: cluster.read(region, path), board.board_id, generation)
    rows = found.compare_contents(board.players, sent_by(trial.writers))
    compared = found.compare(places)
    listed = list(found.places)[:: max(1, len(found.places) // 1000)][:1000]
    bodies = {
        name: cluster.read(name, f"/v1/boards/{board.board_id}/ranks?generation={generation}", {"players": listed})
        for name in cluster.regions
    }
    if len(set(bodies.values())) != 1:
        raise Differs(f"regions answer differently about {generation}")
    compared += found.compare_list(bodies[region], listed)
    options.say(
        f"  {generation} sorted offline ({time.monotonic() - began:.0f} s): {rows:,} rows are what was sent, {read} ranks read under load "
        f"and {len(listed)} in one request from each region are as in the sort"
    )
    return compared, rows


def _peer_writes(peer: PeerStore, players: int) -> list[Job]:
    each = EVENTS / BATCH / 3
    return [PacedPeer(peer.port, "write", each, 16, number, players, BATCH) for number in range(3)]


def _peer_jobs(peer: PeerStore, players: int) -> list[Job]:
    return [
        *_peer_writes(peer, players),
        PacedPeer(peer.port, "rank", RANKS, _READ_CONNECTIONS, 5, players),
        PacedPeer(peer.port, "top", TOPS, _READ_CONNECTIONS, 6, players),
    ]


def _part(clients: ClientProcesses, cluster: Cluster, board: Board, full: Trial, options: Options, started: float) -> float:
    """The highest tried part of the rates at which both goals held and the machine kept up; nan if none did, or time was up."""
    if full.good():
        return 1.0
    if options.quick:
        return math.nan
    for part in LOWER:
        if time.monotonic() - started > ENOUGH_S:
            options.say("time is up: no lower rates are tried")
            break
        options.say(f"{part:.0%} of the rates")
        trial = _trial(clients, cluster, board, part, options, f"part-{part}")
        cluster.settled(cluster.regions[0])
        if trial.good():
            return part
    return math.nan
