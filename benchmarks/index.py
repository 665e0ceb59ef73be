"""The rank index in process, beside a sorted set: ranks, published generations, bytes a player. `--players 100M` is in `index_large`.

Every fast answer is checked: sampled ranks against a plain sort of the same generation. A difference ends the run.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import index_rows
from benchmarks.figures import Figure, figure, median, percentile
from benchmarks.index_peer import REDIS, SortedSet
from benchmarks.options import Options
from boards import compiled
from boards.index import RankIndex
from boards.views import View

PLAYERS = 1_000_000
CHANGED = 10_000
ROUNDS = 60
KEPT = 60


class Differs(Exception):
    """A rank is not what the offline sort says: the figures of this run are worth nothing."""


def run(options: Options) -> Iterator[Figure]:
    """One million players, and ten million for the memory (one with `--quick`)."""
    if not compiled.load():
        options.say(f"no compiled look-ups ({compiled.reason}): numpy alone is measured")
    with SortedSet() as peer:
        options.say(f"filling the peer with {PLAYERS:,} players")
        peer.fill(PLAYERS)
        index, values = filled(PLAYERS, options.say)
        try:
            yield from _publishing(options, index, values, peer)
            yield from _ranks(options, index.view, peer)
        finally:
            index.close()
    yield from _memory(options, 1_000_000 if options.quick else 10_000_000)


def filled(players: int, say: Callable[[str], None]) -> tuple[RankIndex, index_rows.Numbers]:
    """An index with so many players, and their values by number."""
    began = time.perf_counter()
    index = RankIndex(direction="higher", ranking="competition", tie_is_achieved=True)
    values = np.empty(players, dtype=np.int64)
    for piece in index_rows.rows(players, 1):
        index.freeze_columns(index_rows.batch(piece))
        values[piece[0]] = piece[1]
    index.compact()
    say(f"filled the index in {time.perf_counter() - began:.1f} s")
    return index, values


def check(view: View, values: index_rows.Numbers, seed: int) -> None:
    """Compare a hundred sampled places with a sort of all values. Raises Differs."""
    asked = np.random.default_rng(seed).integers(0, values.size, 100)
    ranks = [None if placed is None else placed.rank for placed in view.places([index_rows.name(n) for n in asked.tolist()])]
    singly = [view.place(index_rows.name(n)) for n in asked[:10].tolist()]
    expected = index_rows.offline_ranks(values, asked)
    if ranks != expected or [placed and placed.rank for placed in singly] != expected[:10]:
        raise Differs(f"ranks {ranks[:5]} are by a sort {expected[:5]}")


def _publishing(options: Options, index: RankIndex, values: index_rows.Numbers, peer: SortedSet) -> Iterator[Figure]:
    """Generations of 10,000 changes each, and ZADDs of the same changes, in turns."""
    kept, own, other = [], [], []
    for round_ in range(10 if options.quick else ROUNDS):
        piece = index_rows.changes(PLAYERS, CHANGED, round_)
        changes = index_rows.as_changes(piece, round_ + 2)
        scores = {change.player_id: change.value for change in changes}
        began = time.perf_counter()
        kept.append(index.freeze(changes))
        own.append(time.perf_counter() - began)
        other.append(peer.add(scores))
        values[piece[0]] = piece[1]
        del kept[:-KEPT]
        if round_ % 20 == 0:
            check(kept[-1], values, round_)
    check(kept[-1], values, ROUNDS)
    name = "redis-py, one variadic ZADD"
    mine, its = median(own) * 1e3, median(other) * 1e3
    yield figure("index_1m_publish_10000", mine, "ms", peer=name, peer_value=its, goal=its / 4, lower_is_better=True)
    yield figure("index_1m_publish_10000_p99", percentile(own, 0.99) * 1e3, "ms", goal=100.0, lower_is_better=True)


def _ranks(options: Options, view: View, peer: SortedSet) -> Iterator[Figure]:
    ids = [index_rows.name(n) for n in np.random.default_rng(3).integers(0, PLAYERS, 100_000).tolist()]
    seconds = min(2.0, options.seconds)

    def singly() -> float:
        done, place = 0, view.place
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for player_id in ids[done % 99_000 : done % 99_000 + 1000]:
                place(player_id)
            done += 1000
        return done / (time.perf_counter() - began)

    def together() -> float:
        done = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            view.places(ids[done % 99_000 : done % 99_000 + 1000])
            done += 1000
        return done / (time.perf_counter() - began)

    # In turns, so that what else the machine does strikes all alike; of each the best of three.
    c_client, one_by_one, piped, alone, batched = [], [], [], [], []
    for _ in range(1 if options.quick else 3):
        alone.append(singly())
        batched.append(together())
        c_client.append(peer.c_client(PLAYERS, 300_000))
        one_by_one.append(peer.ranks_one_by_one(PLAYERS, seconds))
        piped.append(peer.ranks_in_pipelines(PLAYERS, seconds))
    native = max((rate for rate in c_client if rate is not None), default=None)
    if native is None:
        options.say("this machine has neither redis-benchmark nor valkey-benchmark (package redis-tools): no C client to compare with")
    for what, mine, python in (("rank_one", max(alone), max(one_by_one)), ("ranks_1000", max(batched), max(piped))):
        yield figure(f"index_1m_{what}", mine, "ranks/s", peer="C client, pipelines of 100", peer_value=native, goal=native)
        yield figure(f"index_1m_{what}_beside_redis_py", mine, "ranks/s", peer="redis-py", peer_value=python, goal=10 * python)


def _memory(options: Options, players: int) -> Iterator[Figure]:
    """Resident bytes of fresh processes, less what they have before the first player."""
    options.say(f"measuring the memory of {players:,} players in fresh processes")
    said = subprocess.run([sys.executable, "-m", "benchmarks.index_memory", str(players)], check=True, capture_output=True, text=True)
    mine, label = float(said.stdout), f"index_{players // 1_000_000}m_bytes"
    redis = shutil.which(REDIS)
    if redis is None:
        options.say(f"this machine has no {REDIS}: bytes are compared with the regions' own store alone, and with no goal")
    else:
        its = _held(SortedSet(redis), players)
        yield figure(label, mine, "B/player", peer="Redis sorted set", peer_value=its, goal=its / 2, lower_is_better=True)
    yield figure(f"{label}_beside_valkey", mine, "B/player", peer="Valkey sorted set", peer_value=_held(SortedSet(), players))


def _held(store: SortedSet, players: int) -> float:
    with store as peer:
        empty = peer.resident()
        peer.fill(players)
        return (peer.resident() - empty) / players
