"""Several shards of one cluster, a `World` each: the same regions, one clock, one source of chance; a board spread over them.

Each shard has stores, processes, a network and faults of its own, as if nothing but the region's name were shared; what
hits a whole region hits it in all shards. Clients route by the layout that they know, replicas fold all shards.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from actors.messages import NoAuthority, SubmitResult
from boards.model import Layout, Outcome, Submission
from boards.policies import make_rules
from boards.slicing import slice_of
from failover.state import Timing
from simulation.client import CLIENT_MS, Answer, Sent, acknowledge, content_of
from simulation.neighbours import ORDER_MS
from simulation.network import Call
from simulation.world import POLICIES, Switches, Timeline, World

if TYPE_CHECKING:
    from actors.generations_view import BoardSeries

#: The board of several slices, and one of one slice beside it.
BOARD, ALONE = "spread", "alone"
#: Milliseconds that views are kept after they were superseded. Short: what must be kept longer has to be known for it.
RETENTION_MS = 60


class Fleet:
    """See the module docstring. `layout` is the one that the configuration says."""

    def __init__(
        self,
        seed: int,
        *,
        shards: int = 3,
        slices: int = 0,
        regions: int = 3,
        timing: Timing,
        switches: Switches | None = None,
        first_fence: int = 0,
        mode: str = "quorum",
        pause_ms: int = 0,
        story: bool = False,
    ) -> None:
        """`slices`: of the board, on the first shards; 0 for one on each."""
        self.timeline = Timeline(seed)
        self.random = self.timeline.random
        self.worlds: dict[str, World] = {}
        for number in range(shards):
            shard = f"eu/{number}"
            self.worlds[shard] = World(
                seed,
                regions=regions,
                timing=timing,
                switches=switches,
                first_fence=first_fence,
                mode=mode,
                pause_ms=pause_ms,
                story=story,
                shard=shard,
                timeline=self.timeline,
            )
        self.first = self.worlds["eu/0"]
        self.names = self.first.names
        for world in self.worlds.values():
            world.neighbours = {shard: other for shard, other in self.worlds.items() if other is not world}
            world.skewed = self.first.skewed
        self.layout = Layout(1, tuple(self.worlds)[: slices or shards])
        self.players: list[str] = []
        self.clients: list[FleetClient] = []
        self.sent: list[Sent] = []
        #: Newest layout that a region's gateways heard of in a refusal.
        self.learned: dict[str, Layout] = {}
        self.quiet = False
        self.think_ms = 60
        #: Generations of the board, and layouts in which it made some beside the first.
        self.generations = self.moves = 0
        self.first.at(self.now + 7, self.first.follow)

    # -- time

    @property
    def now(self) -> int:
        """Milliseconds, the same in all worlds."""
        return self.first.now

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.first.run(ms)

    # -- setting up

    def populate(self, *, players: int = 6, clients: int = 4, alone: bool = False) -> None:
        """The board, players in each of its slices, and clients in all regions."""
        draw = self.random
        rules = make_rules(draw.choice(POLICIES), publish_interval_ms=draw.choice((50, 110, 220)))
        rules = msgspec.structs.replace(rules, retention_ms=RETENTION_MS)
        lead = self.worlds[self.layout.lead]
        lead.boards[BOARD] = rules
        lead.layouts[BOARD] = self.layout
        shards = len(self.layout.shards)
        number = 0
        while len(self.players) < players or len({slice_of(p, shards) for p in self.players}) < shards:
            self.players.append(f"p{number}")
            number += 1
        for shard, world in self.worlds.items():
            world.board_names = [BOARD]
            world.players = self.players_of(shard)
        if alone:
            world = draw.choice(list(self.worlds.values()))
            world.boards[ALONE] = make_rules(draw.choice(POLICIES), publish_interval_ms=110)
            self.alone: World | None = world
        else:
            self.alone = None
        self.clients = [FleetClient(self, self.names[n % len(self.names)]) for n in range(clients)]

    def players_of(self, shard: str, layout: Layout | None = None) -> list[str]:
        """Players whose slice that shard holds."""
        layout = layout or self.layout
        return [p for p in self.players if layout.shards[slice_of(p, len(layout.shards))] == shard]

    def start(self) -> None:
        """Start the processes of all regions and shards."""
        for world in self.worlds.values():
            world.start()

    def close(self) -> None:
        """Nothing goes on; what is half done is dropped without a word."""
        for world in self.worlds.values():
            world.close()

    # -- what is known where

    def series(self, region: str, board_id: str = BOARD) -> "BoardSeries | None":
        """A board as that region's replica knows it."""
        return self.timeline.replicas[region].fold.boards.get(board_id)

    def layout_at(self, region: str) -> Layout:
        """Where a gateway of that region sends events of the board."""
        series = self.series(region)
        told = self.learned.get(region, self.layout)
        return told if series is None or series.layout.number < told.number else series.layout

    def learn(self, region: str, refusal: NoAuthority) -> None:
        """A refusal says where the board lives now."""
        told = getattr(refusal, "layout", None)
        if told is not None and (layout := msgspec.convert(told, Layout)).number > self.layout_at(region).number:
            self.learned[region] = layout

    @property
    def lead(self) -> World:
        """The shard that leads the board, as far as the most advanced region knows."""
        return self.worlds[max((self.layout_at(name) for name in self.names), key=lambda layout: layout.number).lead]

    def order(self, order: dict[str, Any], heard: Callable[[Any], None] = lambda _: None) -> None:
        """What an operator orders the board's lead, through some gateway."""
        world = self.lead
        gateway = world.regions[self.random.choice(self.names)].gateway
        owner = world.owner()

        def arrived(call: Call) -> None:
            process = world.regions[owner].process
            if process is not None:
                process.operate(call)

        message = {"board": BOARD, "asked_by": "op", **order}
        world.network.call("order", gateway, gateway.name, owner, arrived, heard, patience=ORDER_MS, later=True, message=message)

    def relocate(self) -> tuple[str, ...]:
        """Order a move to shards that are drawn: more, fewer, others, or the same in another order."""
        present = max((self.layout_at(name) for name in self.names), key=lambda layout: layout.number).shards
        while True:
            shards = tuple(self.random.sample(list(self.worlds), self.random.randint(1, len(self.worlds))))
            if shards != present:
                break
        if self.first.story is not None:
            self.first.story.append((self.now, "operator", f"orders a move to {shards}", present))
        self.order({"do": "relocate_board", "shards": list(shards)})
        return shards

    def same_dice(self, fault: Callable[[World], None]) -> None:
        """A fault that hits all shards alike: each draws the same."""
        seed = self.random.random()
        for world in self.worlds.values():
            shared, world.random = world.random, random.Random(seed)
            try:
                fault(world)
            finally:
                world.random = shared

    def fingerprint(self) -> str:
        """Of all worlds: equal seeds give equal ones."""
        return ".".join(world.fingerprint() for world in self.worlds.values())


class FleetClient:
    """Sends one event at a time, to the shard that holds its player; tries again what was not answered, and now and then what was."""

    def __init__(self, fleet: Fleet, home: str) -> None:
        self.fleet, self.home, self.region = fleet, home, home
        self.current: Sent | None = None
        self.tries = 0

    def start(self) -> None:
        """Begin."""
        self._later(self.fleet.random.randrange(40))

    def _later(self, ms: int) -> None:
        self.fleet.first.at(self.fleet.now + ms, self._act)

    def _act(self) -> None:
        fleet, draw = self.fleet, self.fleet.random
        if fleet.quiet:
            return
        lull = max(world.lull_until for world in fleet.worlds.values())
        if fleet.now < lull:
            self._later(lull - fleet.now + draw.randrange(fleet.think_ms))
            return
        if self.current is None:
            self.current, self.region, self.tries = self._next(), self.home, 0
            fleet.sent.append(self.current)
        elif draw.random() < 0.7:
            self.region = draw.choice(fleet.names)
        self.send(self.current)

    def _next(self) -> Sent:
        fleet, draw = self.fleet, self.fleet.random
        fleet.first.turn += 1
        dice = draw.random()
        if fleet.sent and dice < 0.2:
            old = draw.choice(fleet.sent[-20:] if dice < 0.14 else fleet.sent)
            amount = old.amount + (1 if dice < 0.05 else 0)
            return Sent(board=old.board, player=old.player, event_id=old.event_id, amount=amount, sent=old.sent, again=True)
        return fresh(fleet, ALONE if fleet.alone is not None and draw.random() < 0.15 else BOARD, draw.choice(fleet.players))

    def send(self, sent: Sent) -> None:
        """Route it, and wait for a while."""
        self.tries += 1
        tried, over = self.tries, [False]

        def done(answer: Answer) -> None:
            if not over[0]:
                over[0] = True
                self._told(sent, answer)

        def timeout() -> None:
            if not over[0] and self.current is sent and self.tries == tried:
                over[0] = True
                self._told(sent, None)

        submit(self.fleet, self.region, sent, done)
        self.fleet.first.at(self.fleet.now + CLIENT_MS, timeout)

    def _told(self, sent: Sent, answer: Answer) -> None:
        if isinstance(answer, SubmitResult) and answer.outcome != Outcome.UNKNOWN:
            self.current = None
        elif isinstance(answer, NoAuthority):
            sent.refusals.append(answer.code)
            if self.tries > 8:
                self.current = None
        else:
            sent.unknowns += 1
            if self.tries > 6:
                self.current = None
        if not self.fleet.quiet:
            self._later(self.fleet.random.randrange(self.fleet.think_ms))


def fresh(fleet: Fleet, board: str, player: str) -> Sent:
    """An event that nobody has sent."""
    first = fleet.first
    first.events += 1
    return Sent(board=board, player=player, event_id=f"e{first.turn}", amount=fleet.random.randint(1, 30), sent=first.turn)


def submit(fleet: Fleet, region: str, sent: Sent, done: Callable[[Answer], None]) -> None:
    """Send an event through a region's gateway, to the shard that this region believes to hold its player."""
    if sent.board == ALONE:
        assert fleet.alone is not None
        world = fleet.alone
    else:
        layout = fleet.layout_at(region)
        count = len(layout.shards)
        other = fleet.first.switches.other_modulo and region == fleet.names[-1]
        slice_ = slice_of(sent.player, count + 1) % count if other else slice_of(sent.player, count)
        world = fleet.worlds[layout.shards[slice_]]
    submission = Submission(sent.event_id, sent.player, sent.amount, 1000 + sent.sent % 7, fleet.now, content_of(sent))

    def answered(answer: Answer) -> None:
        if isinstance(answer, SubmitResult) and answer.outcome != Outcome.UNKNOWN:
            acknowledge(fleet.first, sent, answer)
        if isinstance(answer, NoAuthority) and sent.board == BOARD:
            fleet.learn(region, answer)
        done(answer)

    world.regions[region].gateway.submit(sent.board, submission, answered)


def write(fleet: Fleet, region: str, player: str) -> Sent:
    """One event of that player, by nobody who tries again."""
    fleet.first.turn += 1
    sent = fresh(fleet, BOARD, player)
    fleet.sent.append(sent)
    submit(fleet, region, sent, lambda _: None)
    return sent
