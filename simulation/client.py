"""Gateways and clients: who sends what where, and what they were told.

A gateway routes to the owner of the newest started epoch that it has heard of; a forwarded request is never forwarded
again. A client that gets no answer sends the same event again, most often through another region.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.messages import NoAuthority, SubmitResult
from boards.identity import fingerprint
from boards.model import Outcome, Submission
from simulation.network import Call

if TYPE_CHECKING:
    from simulation.region import Region
    from simulation.world import World

#: Patience of a gateway with the authority; how long it looks for an authority; patience of a client.
CALL_MS, HOLD_MS, CLIENT_MS = 120, 150, 260

Answer = SubmitResult | NoAuthority | None


@dataclass(slots=True, kw_only=True)
class Sent:
    """One event as its client knows it. `sent` and `acked` count the turns of all clients together."""

    board: str
    player: str
    event_id: str
    amount: int
    sent: int
    acked: int = 0
    result: SubmitResult | None = None
    unknowns: int = 0
    refusals: list[str] = field(default_factory=list)
    #: It was answered before, and is sent once more.
    again: bool = False


class Gateway:
    """A region's gateway: its directory of owners, and the way of each event."""

    def __init__(self, world: "World", region: "Region") -> None:
        self.world, self.region = world, region
        self.name = region.name
        self.epoch, self.owner = 0, ""

    def learn(self, epoch: int, owner: str) -> None:
        """News of a started epoch; older ones are ignored."""
        if owner and epoch > self.epoch:
            self.epoch, self.owner = epoch, owner

    def forget(self) -> None:
        """A new life: nobody is known."""
        self.epoch, self.owner = 0, ""

    def deliver(self, hear: Callable[[Any], None], answer: Any) -> None:
        """A gateway never sleeps here."""
        hear(answer)

    def submit(self, board_id: str, submission: Submission, done: Callable[[Answer], None]) -> None:
        """Find the authority and hand the event over, trying again for a while."""
        self._try((board_id, submission), done, self.world.now + HOLD_MS, False)

    def _try(self, request: tuple[str, Submission], done: Callable[[Answer], None], deadline: int, sent: bool) -> None:
        world = self.world
        epoch, to = self.epoch, self.owner or self.name
        hops = 0 if to == self.name else 1

        def heard(answer: Any) -> None:
            unknown = sent
            if isinstance(answer, SubmitResult):
                done(answer)
                return
            if answer is None:
                unknown = True
            else:
                self.learn(answer.epoch, answer.owner)
            if world.now >= deadline or (answer is not None and answer.code in ("lagging", "moving", "moved")):
                done(None if unknown else answer)
                return
            pause = 2 if self.epoch != epoch else 30
            world.at(world.now + pause, self._try, request, done, deadline, unknown)

        world.network.call(
            "submit",
            self,
            self.name,
            to,
            lambda call: self._arrived(to, call),
            heard,
            patience=CALL_MS,
            later=True,
            message=(request, hops),
        )

    def _arrived(self, at: str, call: Call) -> None:
        """At the other end: to that region's process, whether or not it is the authority."""
        world = self.world
        region = world.regions[at]
        process = region.process
        if process is None:
            return
        if world.switches.forward_again and process.writer is None and region.gateway.owner not in ("", at):
            request, hops = call.message
            owner = region.gateway.owner
            world.network.call(
                "submit",
                region.gateway,
                at,
                owner,
                lambda onward: region.gateway._arrived(owner, onward),
                lambda answer: world.network.reply(call, answer),
                patience=CALL_MS,
                later=True,
                message=(request, hops + 1),
            )
            return
        process.submit(call)


class Client:
    """Sends one event at a time; tries again what was not answered, and now and then what was."""

    def __init__(self, world: "World", home: str) -> None:
        self.world, self.home = world, home
        self.current: Sent | None = None
        self.region = home
        self.tries = 0

    def start(self) -> None:
        """Begin."""
        self.world.at(self.world.now + self.world.random.randrange(40), self._act)

    def _act(self) -> None:
        world, random = self.world, self.world.random
        if world.quiet:
            return
        if world.now < world.lull_until:
            world.at(world.lull_until + random.randrange(world.think_ms), self._act)
            return
        if self.current is None:
            self.current, self.region, self.tries = self._next(), self.home, 0
            world.sent.append(self.current)
        elif random.random() < 0.7:
            self.region = random.choice(world.names)
        self._send(self.current)

    def _next(self) -> Sent:
        world, random = self.world, self.world.random
        world.turn += 1
        dice = random.random()
        if world.sent and dice < 0.16:
            old = random.choice(world.sent[-20:])
            if dice < 0.12:  # a redelivery, perhaps while the first is still on its way
                return Sent(board=old.board, player=old.player, event_id=old.event_id, amount=old.amount, sent=old.sent, again=True)
            return Sent(board=old.board, player=old.player, event_id=old.event_id, amount=old.amount + 1, sent=old.sent, again=True)
        world.events += 1
        return Sent(
            board=random.choice(world.board_names),
            player=random.choice(world.players),
            event_id=f"e{world.turn}",
            amount=random.randint(1, 30),
            sent=world.turn,
        )

    def _send(self, sent: Sent) -> None:
        world = self.world
        self.tries += 1
        tried = self.tries
        submission = Submission(sent.event_id, sent.player, sent.amount, 1000 + sent.sent % 7, world.now, content_of(sent))
        over = [False]

        def done(answer: Answer) -> None:
            if over[0]:
                if isinstance(answer, SubmitResult) and answer.outcome != Outcome.UNKNOWN:
                    acknowledge(world, sent, answer)  # late, and still binding
                return
            over[0] = True
            self._told(sent, answer)

        def timeout() -> None:
            if not over[0] and self.current is sent and self.tries == tried:
                over[0] = True
                self._told(sent, None)

        world.regions[self.region].gateway.submit(sent.board, submission, done)
        world.at(world.now + CLIENT_MS, timeout)

    def _told(self, sent: Sent, answer: Answer) -> None:
        world = self.world
        if isinstance(answer, SubmitResult) and answer.outcome != Outcome.UNKNOWN:
            acknowledge(world, sent, answer)
            self.current = None
        elif isinstance(answer, NoAuthority):
            sent.refusals.append(answer.code)
            if self.tries > 8:
                self.current = None
        else:
            sent.unknowns += 1
            if self.tries > 6:
                self.current = None
        if not world.quiet:
            world.at(world.now + world.random.randrange(world.think_ms), self._act)


def content_of(sent: Sent) -> bytes:
    """Fingerprint of what the client sends; its times are part of the identity's first sending."""
    return fingerprint(kind="value", amount=sent.amount, achieved_ms=1000 + sent.sent % 7, submitted_ms=None)


def acknowledge(world: "World", sent: Sent, answer: SubmitResult) -> None:
    """The client was told what became of its event."""
    world.turn += 1
    if world.story is not None:
        world.story.append((world.now, "client", f"{sent.event_id} of {sent.player} on {sent.board} acknowledged", answer))
    if sent.result is None:
        sent.result, sent.acked = answer, world.turn
        world.acknowledged += 1
        world.timeline.told.append((world.now, sent))


def write(world: "World", name: str) -> Sent:
    """One event through the gateway of this region, by nobody who tries again."""
    world.turn += 1
    world.events += 1
    sent = Sent(
        board=world.random.choice(world.board_names),
        player=world.random.choice(world.players),
        event_id=f"e{world.turn}",
        amount=world.random.randint(1, 30),
        sent=world.turn,
    )
    world.sent.append(sent)
    submission = Submission(sent.event_id, sent.player, sent.amount, 1000 + sent.sent % 7, world.now, content_of(sent))

    def done(answer: Answer) -> None:
        if isinstance(answer, SubmitResult) and answer.outcome != Outcome.UNKNOWN:
            acknowledge(world, sent, answer)

    world.regions[name].gateway.submit(sent.board, submission, done)
    return sent
