"""What the benchmarks of big boards share: a filled board, events at a fixed rate from every region, and the peer beside it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.clients import ClientProcesses, Job, Tally, Window
from benchmarks.cluster import Cluster
from benchmarks.options import Options
from benchmarks.paced_http import FILL_BATCH, Fill, PacedEvents, Sent
from boards.model import BoardRules
from boards.policies import make_rules

PLAYERS, QUICK_PLAYERS = 1_000_000, 20_000
SHARDS = 4
#: Events a second, in batches.
EVENTS, BATCH = 10_000, 100
#: Players between two lines of progress.
_STEP = 100_000
_FILL_CONNECTIONS, _EVENT_CONNECTIONS = 4, 48


@dataclass(frozen=True, slots=True)
class Board:
    """A board that holds `players` rows, in every region. `filled_s` is how long that took."""

    board_id: str
    rules: BoardRules
    players: int
    slices: int
    filled_s: float


def players_of(options: Options) -> int:
    """How many players a board gets."""
    return QUICK_PLAYERS if options.quick else PLAYERS


def filled_board(cluster: Cluster, clients: ClientProcesses, slices: int, options: Options) -> Board:
    """Make a board and give every player a row, through the gateways of all regions. Raises RuntimeError."""
    rules = make_rules("best_score", ties="achieved_at")
    board_id = cluster.fresh_board(ties=rules.ties, visibility=rules.visibility, shards=slices)
    players, token = players_of(options), cluster.token("game-server")
    began = time.monotonic()
    regions = cluster.regions
    for first in range(0, players, _STEP):
        end = min(players, first + _STEP)
        jobs: list[Job] = [
            Fill(
                cluster.ports[region],
                token,
                board_id,
                first + n * FILL_BATCH,
                len(regions) * FILL_BATCH,
                end,
                _FILL_CONNECTIONS,
            )
            for n, region in enumerate(regions)
        ]
        tally = clients.run(jobs, 0.0)
        if tally.all_done != end - first:
            raise RuntimeError(f"{end - first} players were sent, {tally.all_done} were taken")
        spent = time.monotonic() - began
        again = f" {dict(tally.failures)}" if tally.failures else ""
        options.say(f"  {end:,} of {players:,} players after {spent:.1f} s, {end / spent:,.0f}/s{again}")
    cluster.settled(regions[0])
    cluster.shown(board_id, player_id="player-000000")
    spent = time.monotonic() - began
    options.say(f"  filled, and shown in every region, after {spent:.1f} s; at rest {cluster.rested():.1f} s later")
    return Board(board_id, rules, players, slices, spent)


def event_jobs(cluster: Cluster, board: Board, rate: float, options: Options, *, unique: str, follow: int = 0) -> list[Job]:
    """One client process a region; together they send `rate` events a second in batches."""
    regions, seconds = cluster.regions, options.seconds + 1
    each = rate / BATCH / len(regions)
    return [
        PacedEvents(
            region=region,
            ports=cluster.ports,
            token=cluster.token("game-server"),
            board=board.board_id,
            spread=board.slices > 1,
            batch=BATCH,
            rate=each,
            connections=_EVENT_CONNECTIONS,
            seed=number,
            unique=f"{unique}-{region}",
            players=board.players,
            encoded=int(each * seconds) + 1,
            follow=follow,
        )
        for number, region in enumerate(regions)
    ]


def sent_by(tallies: Iterable[Tally]) -> list[Sent]:
    """What the writers kept."""
    return [kept for tally in tallies for kept in tally.kept if isinstance(kept, Sent)]


def last_positions(sent: Iterable[Sent], *, spread: bool) -> list[str]:
    """The newest position of each shard that took something, as `at_least` takes it."""
    last: dict[str, tuple[int, int]] = {}
    for each in sent:
        for shard, epoch, offset in zip(each.shard, each.epoch, each.offset, strict=True):
            name = each.shards[shard]
            last[name] = max(last.get(name, (0, 0)), (epoch, offset))
    return [f"{shard}:{epoch}-{offset}" if spread else f"{epoch}-{offset}" for shard, (epoch, offset) in sorted(last.items())]


def told(failures: Iterable[Tally]) -> str:
    """What went otherwise, for a line of progress; empty when nothing did."""
    total = Tally()
    for tally in failures:
        total.failures.update(tally.failures)
    return f"; not counted: {dict(total.failures)}" if total.failures else ""


@dataclass(slots=True)
class Cores:
    """CPU seconds a second that the regions spend within the measured window, by role."""

    cluster: Cluster
    roles: dict[int, str]
    spent: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> "Cores":
        """Of the processes that run now: they are looked for before the window, not in it."""
        return cls(cluster, cluster.roles())

    def watch(self, window: Window, meanwhile: Callable[[Window], None] | None = None) -> None:
        """Look at both ends of the window, and do something else in it."""
        time.sleep(max(0.0, window.counts_from - time.monotonic()))
        before, began = self.cluster.cpu_s(self.roles), time.monotonic()
        if meanwhile is not None:
            meanwhile(window)
        time.sleep(max(0.0, window.ends - time.monotonic()))
        after, seconds = self.cluster.cpu_s(self.roles), time.monotonic() - began
        self.spent = {role: (spent - before.get(role, 0.0)) / seconds for role, spent in sorted(after.items())}

    def __str__(self) -> str:
        return f"cores: {', '.join(f'{role} {share:.2f}' for role, share in self.spent.items())}"
