"""Calls between processes and stores: delay, loss, repetition (also much later), cuts, and holding back by a predicate.

A call is heard exactly once by its sender: the answer, or None when none came within its patience. What becomes of it
at the other end may happen never, once or twice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulation.world import World

Pair = tuple[str, str]


class Hearer(Protocol):
    """Whoever waits for an answer."""

    def deliver(self, hear: Callable[[Any], None], answer: Any) -> None:
        """Hear the answer now, later when it sleeps, or never when it is dead."""
        ...


class Call:
    """One question on its way. `ask` gives the answer, or, with `later`, takes the call and answers by `Network.reply`."""

    __slots__ = ("answered", "ask", "deadline", "done", "granting", "hear", "kind", "later", "message", "origin", "to", "who")

    def __init__(
        self,
        kind: str,
        who: Hearer,
        origin: str,
        to: str,
        ask: Callable[[Any], Any],
        hear: Callable[[Any], None],
        deadline: int,
        later: bool,
        message: Any,
        granting: bool = False,
    ) -> None:
        self.kind, self.who, self.origin, self.to, self.ask, self.hear = kind, who, origin, to, ask, hear
        self.deadline, self.later, self.message = deadline, later, message
        #: A Seal or a Renew: the region's acceptor notes when it comes, and carries it out when its store is free.
        self.granting = granting
        #: The other end has answered; what is on its way is the answer.
        self.answered = False
        self.done = False


class Network:
    """Its faults are plain attributes, which the nemesis sets. Odds are out of 1000, times in ms."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.lose = 0
        self.again = 0
        #: Of repeated messages, how many come much later.
        self.again_late = 300
        self.delay = (1, 6)
        #: Directions on which nothing passes.
        self.cut: set[Pair] = set()
        #: Directions that are slow: so many ms more at most.
        self.slow: dict[Pair, int] = {}
        #: A call for which any of these holds does not arrive.
        self.blocks: list[Callable[[Call], bool]] = []
        #: While set, calls (and answers) that it does not let pass wait in `parked`; their senders do not wait for ever.
        self.only: Callable[[Call], bool] | None = None
        self.parked: list[tuple[Call, bool, Any]] = []
        self.lost = self.repeated = 0

    def call(
        self,
        kind: str,
        who: Hearer,
        origin: str,
        to: str,
        ask: Callable[[Any], Any],
        hear: Callable[[Any], None],
        *,
        patience: int = 60,
        later: bool = False,
        message: Any = None,
        granting: bool = False,
    ) -> Call:
        """Send; the way inside a region is short and sure."""
        world = self.world
        call = Call(kind, who, origin, to, ask, hear, world.now + patience, later, message, granting)
        if origin == to:
            world.at(world.now + world.random.randrange(2), self._arrive, call)
            return call
        random = world.random.random
        if self.again and random() * 1000 < self.again:
            self.repeated += 1
            extra = 150 + int(random() * 900) if random() * 1000 < self.again_late else int(random() * 20)
            world.at(world.now + self._delay(origin, to) + extra, self._arrive_again, call)
        if self.lose and random() * 1000 < self.lose:
            self.lost += 1
            world.at(call.deadline, self._nothing, call)
        else:
            world.at(world.now + self._delay(origin, to), self._arrive, call)
        return call

    def _delay(self, origin: str, to: str) -> int:
        low, high = self.delay
        delay = low + int(self.world.random.random() * (high - low + 1))
        if self.slow and (extra := self.slow.get((origin, to))):
            delay += int(self.world.random.random() * extra)
        return delay

    def _passes(self, call: Call, a: str, b: str) -> bool:
        if a != b and (a, b) in self.cut:
            return False
        return not self.blocks or not any(block(call) for block in self.blocks)

    def _arrive(self, call: Call) -> None:
        if self.only is not None and not self.only(call):
            self.parked.append((call, False, None))
            self.nothing_at_deadline(call)
            return
        world = self.world
        if not self._passes(call, call.origin, call.to):
            world.at(max(call.deadline, world.now), self._nothing, call)
            return
        if world.story is not None:
            world.story.append((world.now, f"{call.origin} > {call.to}", call.kind, call.message))
        world.regions[call.to].take(call)

    def _arrive_again(self, call: Call) -> None:
        """A second copy of a message: what it does is done, its answer is heard by nobody."""
        if call.later or not self._passes(call, call.origin, call.to) or self.only is not None:
            return
        world = self.world
        if world.story is not None:
            world.story.append((world.now, f"{call.origin} > {call.to}", f"{call.kind} again", call.message))
        world.regions[call.to].take_again(call)

    def nothing_at_deadline(self, call: Call) -> None:
        """The other end will not, or not yet, answer."""
        self.world.at(max(call.deadline, self.world.now), self._nothing, call)

    def reply(self, call: Call, answer: Any) -> None:
        """The answer sets out on its way back."""
        world = self.world
        call.answered = True
        if call.origin == call.to:
            world.at(world.now, self.answer, call, answer)
        elif self.lose and world.random.random() * 1000 < self.lose:
            self.lost += 1
            self.nothing_at_deadline(call)
        else:
            world.at(world.now + self._delay(call.to, call.origin), self.answer, call, answer)

    def answer(self, call: Call, answer: Any) -> None:
        """The answer arrives."""
        call.answered = True
        if call.done:
            return
        if self.only is not None and not self.only(call):
            self.parked.append((call, True, answer))
            self.nothing_at_deadline(call)
            return
        world = self.world
        if world.now > call.deadline or not self._passes(call, call.to, call.origin):
            world.at(max(call.deadline, world.now), self._nothing, call)
            return
        call.done = True
        if world.story is not None:
            world.story.append((world.now, f"{call.origin} < {call.to}", call.kind, answer))
        call.who.deliver(call.hear, answer)

    def _nothing(self, call: Call) -> None:
        if call.done:
            return
        call.done = True
        world = self.world
        if world.story is not None:
            world.story.append((world.now, f"{call.origin} < {call.to}", call.kind, "no answer"))
        call.who.deliver(call.hear, None)

    def let_pass(self, only: Callable[[Call], bool] | None) -> None:
        """Set the predicate, and send on what it lets pass now, late as it is."""
        self.only = only
        parked, self.parked = self.parked, []
        for call, answered, answer in parked:
            if answered:
                self.answer(call, answer)
            else:
                self._arrive(call)

    def drop(self, what: Callable[[Call], bool]) -> None:
        """Lose everything held back for which it holds."""
        gone = [held for held in self.parked if what(held[0])]
        self.parked = [held for held in self.parked if not what(held[0])]
        for call, _, _ in gone:
            self._nothing(call)

    def isolate(self, name: str) -> None:
        """Nothing reaches this region, and nothing of it reaches another."""
        self.cut |= {pair for other in self.world.names if other != name for pair in ((name, other), (other, name))}

    def heal(self) -> None:
        """All directions are open and quick again; odds stay."""
        self.cut.clear()
        self.slow.clear()
        self.blocks.clear()
