"""Three role machines on watched memory stores, without a loop or a clock: a schedule delivers, loses or repeats each message.

`Schedule` runs them by hand (directed tests) or by a seed. Nothing here decides anything: it only carries out
the machine's actions, as the shard actor does.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watched_log import Key, Watch, WatchedLog, key

from failover import events as e
from failover.events import Role
from failover.machine import heard_newer, step
from failover.state import ShardState, Timing
from journal.ports import Accepted, Append, Position, Refused, Seal
from journal.records import EpochStarted, HandedOver, Record, Scored, seal_entry

SHARD = "eu/0"
REGIONS = ("eu", "us", "ap")
TIMING = Timing(
    heartbeat_ms=20,
    probe_timeout_ms=120,
    grace_ms=20,
    seal_restart_ms=100,
    rest_ms=400,
    handover_timeout_ms=300,
    backoff_min_ms=10,
    backoff_max_ms=80,
    aside_failures=1000,
)


@dataclass(slots=True, kw_only=True)
class Message:
    """A question on its way to a store, or its answer on the way back (`store` None)."""

    kind: str
    sender: str
    to: str
    #: Which life of the sender's process asked; an answer to an earlier life is lost.
    life: int
    ask: Callable[[WatchedLog], Any]
    hear: Callable[[Any], None]
    answer: Any = None
    answered: bool = False

    @property
    def local(self) -> bool:
        return self.sender == self.to


@dataclass(slots=True)
class Machine:
    """One region's process."""

    state: ShardState
    life: int
    serving: bool = False
    #: One append at a time, as the writer does.
    appending: bool = False


class Schedule:
    """See the module docstring."""

    def __init__(self, seed: int = 0, *, timing: Timing = TIMING) -> None:
        self.random = random.Random(seed)
        self.timing, self.now, self.lives, self.numbers = timing, 1000, 0, 0
        self.watch = Watch()
        self.logs = {r: WatchedLog(SHARD, r, self.watch) for r in REGIONS}
        self.machines: dict[str, Machine | None] = dict.fromkeys(REGIONS)
        self.messages: list[Message] = []
        self.cut: set[tuple[str, str]] = set()
        #: What some authority counted as committed, and so acknowledged, by (lineage, offset).
        self.acknowledged: dict[tuple[str, int], Key] = {}
        self.ended: list[tuple[str, e.ActivationEnded]] = []

    # -- faults and orders ------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names or REGIONS:
            self.lives += 1
            self.machines[name] = Machine(ShardState(name, SHARD, "eu", REGIONS, self.timing), self.lives)

    def crash(self, name: str) -> None:
        self.machines[name] = None

    def isolate(self, name: str) -> None:
        self.cut |= {pair for other in REGIONS if other != name for pair in ((name, other), (other, name))}

    def token(self) -> str:
        self.numbers += 1
        return f"t{self.numbers}"

    def activate(self, name: str, cause: str = "forced") -> None:
        self.hear(name, e.ActivationAsked(now_ms=self.now, cause=cause, asked_by="op", token=self.token()))

    def drain(self, name: str) -> None:
        machine = self.machines[name]
        if machine is not None:
            self.hear(name, e.DrainAsked(now_ms=self.now, epoch=machine.state.epoch))

    def write(self, name: str) -> bool:
        """One event at an authority that serves and is not in the middle of an append."""
        machine = self.machines[name]
        if machine is None or not machine.serving or machine.appending or machine.state.role is not Role.AUTHORITY:
            return False
        self.numbers += 1
        event = Scored(1, "p", f"e{self.numbers}", b"", 1, 1, 1, None, 1, 0, 0, 0, "")
        self._append(name, machine, [event], None)
        return True

    def _append(self, name: str, machine: Machine, records: list[Record], then: Callable[[int], None] | None) -> None:
        state, machine.appending = machine.state, True
        epoch, attempt, expected = state.epoch, state.attempt, state.tail
        entry = seal_entry(epoch, expected.offset + 1, self.token(), records)
        committed = state.replication.committed if state.replication is not None else 0

        def heard(answer: Any) -> None:
            machine.appending = False
            self.hear(name, e.OwnAppended(now_ms=self.now, epoch=epoch, answer=answer))
            if then is not None and isinstance(answer, Accepted):
                then(entry.offset)

        self._ask(
            "own append",
            name,
            name,
            lambda log: log.append(epoch=epoch, attempt=attempt, expected=expected, entries=[entry], committed=committed, peers={}),
            heard,
        )

    # -- time and messages --------------------------------------------------------------------------------------

    def tick(self, ms: int = 10) -> None:
        self.now += ms
        for name in REGIONS:
            machine = self.machines[name]
            if machine is not None:
                self._news(name, machine)
                self.hear(name, e.Ticked(now_ms=self.now, token=self.token(), jitter=self.random.random()))

    def _news(self, name: str, machine: Machine) -> None:
        """What folding the own journal tells a follower."""
        log = self.logs[name]
        for term in reversed(log.status().terms):
            if term.first_offset <= log.committed:
                heard_newer(machine.state, term.epoch, term.owner)
                break

    def _ask(self, kind: str, sender: str, to: str, ask: Callable[[WatchedLog], Any], hear: Callable[[Any], None]) -> None:
        machine = self.machines[sender]
        assert machine is not None
        self.messages.append(Message(kind=kind, sender=sender, to=to, life=machine.life, ask=ask, hear=hear))

    def deliver(self, message: Message, *, lost: bool = False, again: bool = False) -> None:
        """One step of one message: question to answer, or answer to its sender. A lost one is heard as no answer."""
        if not again:
            self.messages.remove(message)
        a, b = (message.to, message.sender) if message.answered else (message.sender, message.to)
        lost = (lost or (a, b) in self.cut) and not message.local
        if not message.answered and not lost:
            message.answer, message.answered = message.ask(self.logs[message.to]), True
            if again:
                message.answered = False
            else:
                self.messages.append(message)
            return
        sender = self.machines[message.sender]
        if sender is not None and sender.life == message.life and not again:
            message.hear(None if lost else message.answer)

    def settle(self, only: Callable[[Message], bool] = lambda _: True, *, limit: int = 10_000) -> None:
        """Deliver all that `only` lets pass, oldest first, until nothing of it is left."""
        for _ in range(limit):
            message = next((m for m in self.messages if only(m)), None)
            if message is None:
                return
            self.deliver(message)
        raise AssertionError("messages without end")

    def run(self, ms: int, only: Callable[[Message], bool] = lambda _: True) -> None:
        """Let time pass, delivering at once."""
        for _ in range(ms // 10):
            self.tick()
            self.settle(only)

    # -- the machine's actions ----------------------------------------------------------------------------------

    def hear(self, name: str, event: e.Event) -> None:
        machine = self.machines[name]
        if machine is None:
            return
        for action in step(machine.state, event):
            if self.machines[name] is machine:
                self._do(name, machine, action)

    def _do(self, name: str, machine: Machine, action: e.Action) -> None:
        match action:
            case e.Probe():
                for region in action.regions:
                    self._probe(name, region, action.request)
            case e.SendSeal():
                for region in action.regions:
                    self._seal(name, region, action)
            case e.Adopt():
                self._adopt(name, action)
            case e.AppendStart():
                self._start(name, machine, action)
            case e.SendAppend():
                self._ship(name, machine, action)
            case e.CommitMoved(offset=offset):
                log = self.logs[name]
                for entry in log.read(1, limit=offset):
                    place = (machine.state.terms[-1].lineage, entry.offset)
                    held = self.acknowledged.setdefault(place, key(entry))
                    assert held == key(entry), f"I7: {held} was acknowledged, now {key(entry)} is committed"
                self._persist(name, machine)
            case e.CatchUp(offset=offset):
                self._ask("fold", name, name, lambda _: offset, lambda at: self.hear(name, e.LedgerCaughtUp(now_ms=self.now, offset=at)))
            case e.Serve():
                machine.serving = True
            case e.StepDown() | e.StopAccepting():
                machine.serving = False
                if isinstance(action, e.StopAccepting):
                    record = HandedOver("us", "op", 0)
                    self._append(name, machine, [record], lambda at: self.hear(name, e.DrainAppended(now_ms=self.now, offset=at)))
            case e.MarkAmnesiac(incarnation=incarnation):
                self.logs[name].mark_amnesiac(incarnation)
            case e.ActivationEnded():
                self.ended.append((name, action))
            case e.Exit():
                self.machines[name] = None

    def _probe(self, name: str, region: str, request: int) -> None:
        def heard(status: Any) -> None:
            self.hear(name, e.Probed(now_ms=self.now, request=request, region=region, status=status))

        self._ask("probe", name, region, lambda log: log.status(), heard)

    def _seal(self, name: str, region: str, action: e.SendSeal) -> None:
        message = Seal(
            shard=SHARD,
            lineage=action.lineage,
            config_version=action.config_version,
            sender=name,
            incarnation="",
            request_id="",
            epoch=action.epoch,
            target=name,
            attempt=action.attempt,
            from_epoch=action.from_epoch,
            from_owner=action.from_owner,
            admit_as=action.admit_as.get(region, ""),
        )

        def heard(answer: Any) -> None:
            self.hear(name, e.SealAnswered(now_ms=self.now, request=action.request, region=region, answer=answer))

        self._ask("seal", name, region, lambda log: log.seal(message), heard)

    def _adopt(self, name: str, action: e.Adopt) -> None:
        """Fetch in chunks of 3, each adopted at once; a lost Fetch ends it half-way."""

        def ended(tail: Position | None) -> None:
            self.hear(name, e.Adopted(now_ms=self.now, request=action.request, tail=tail))

        def adopt(keep: int, expected: Position, entries: Any) -> Any:
            log = self.logs[name]
            return log.adopt(epoch=action.epoch, attempt=action.attempt, expected=expected, keep=keep, entries=entries)

        def fetched(keep: int, expected: Position, entries: Any) -> None:
            if not entries:
                return ended(None)
            answer = adopt(keep, expected, entries)
            if not isinstance(answer, Accepted):
                return ended(None)
            return more(entries[-1].offset, answer.tail)

        def more(keep: int, expected: Position) -> None:
            if keep >= action.last:
                return ended(expected)
            limit = min(3, action.last - keep)
            self._ask("fetch", name, action.source, lambda log: log.read(keep + 1, limit=limit), lambda got: fetched(keep, expected, got))
            return None

        if action.keep == action.last and action.expected.offset > action.keep:
            answer = adopt(action.keep, action.expected, [])
            ended(answer.tail if isinstance(answer, Accepted) else None)
        else:
            more(action.keep, action.expected)

    def _start(self, name: str, machine: Machine, action: e.AppendStart) -> None:
        record = EpochStarted(
            epoch=action.epoch,
            owner=name,
            attempt=action.attempt,
            from_epoch=action.from_epoch,
            from_owner=action.from_owner,
            cause=action.cause,
            asked_by=action.asked_by,
            mode="quorum",
            members=dict(action.members),
            config_version=action.config_version,
            lineage=action.lineage,
            at_ms=0,
        )
        self._append(name, machine, [record], None)

    def _persist(self, name: str, machine: Machine) -> None:
        replication, state = machine.state.replication, machine.state
        if replication is None or machine.appending:
            return
        epoch, attempt, committed, peers = state.epoch, state.attempt, replication.committed, replication.memories()
        answer: Accepted | Refused = self.logs[name].append(
            epoch=epoch, attempt=attempt, expected=state.tail, entries=[], committed=committed, peers=peers
        )
        if isinstance(answer, Refused):
            self.hear(name, e.OwnAppended(now_ms=self.now, epoch=epoch, answer=answer))

    def _ship(self, name: str, machine: Machine, action: e.SendAppend) -> None:
        state, replication = machine.state, machine.state.replication
        if replication is None or state.epoch != action.epoch:
            return
        term = state.terms[-1]
        message = Append(
            shard=SHARD,
            lineage=term.lineage,
            config_version=term.config_version,
            sender=name,
            incarnation=term.members[name],
            request_id="",
            epoch=action.epoch,
            attempt=action.attempt,
            prev=Position(state.own_status().epoch_at(action.first - 1), action.first - 1),
            entries=self.logs[name].read(action.first, limit=action.last - action.first + 1) if action.last >= action.first else [],
            committed=action.committed,
            peers=replication.memories(),
        )

        def heard(answer: Any) -> None:
            self.hear(
                name, e.PeerAnswered(now_ms=self.now, request=action.request, region=action.region, epoch=action.epoch, answer=answer)
            )

        self._ask("append", name, action.region, lambda log: log.accept(message), heard)

    # -- what is asked of it at the end -------------------------------------------------------------------------

    def authorities(self) -> list[str]:
        return [name for name, m in self.machines.items() if m is not None and m.serving and m.state.role is Role.AUTHORITY]

    def check(self) -> str:
        """After the faults stopped: one authority (I10), one log, everything acknowledged in it (I1, I3, I7, I13)."""
        self.cut.clear()
        for name in REGIONS:
            if self.machines[name] is None:
                self.start(name)
        for _ in range(40):
            self.run(100)
            tails = {(log.tail, log.committed) for log in self.logs.values()}
            if len(self.authorities()) == 1 and tails == {(self.logs["eu"].tail, self.logs["eu"].tail.offset)}:
                break
        else:
            states = {n: m and (m.state.role.value, m.state.epoch, m.state.why) for n, m in self.machines.items()}
            raise AssertionError(f"I10: no agreement: {states} {[(log.tail, log.committed) for log in self.logs.values()]}")
        (owner,) = self.authorities()
        log = self.logs[owner].read(1, limit=10**6)
        lineage = self.logs[owner].status().lineage
        for places in (self.acknowledged, self.watch.committed):
            for (of, offset), held in places.items():
                assert of != lineage or (offset <= len(log) and key(log[offset - 1]) == held), f"I1: {held} is lost"
        for region, other in self.logs.items():
            assert [key(x) for x in other.read(1, limit=10**6)] == [key(x) for x in log], f"I3: {region}"
            orphans = {key(x) for batch in other.orphans() for x in batch.entries}
            assert orphans == self.watch.cut.get(region, {}).keys() - {key(x) for x in log}, f"orphans of {region}"
        return owner


@dataclass(slots=True)
class Odds:
    """How a seeded run chooses its next step, out of 1000."""

    lose: int = 40
    again: int = 40
    write: int = 150
    tick: int = 200
    force: int = 6
    drain: int = 6
    crash: int = 8
    start: int = 30
    part: int = 8
    heal: int = 12


def seeded(seed: int, steps: int = 500, odds: Odds | None = None) -> Schedule:
    """A run of random steps with compound faults, then `check`."""
    s, odds = Schedule(seed), odds or Odds()
    s.start()
    s.run(200)
    for _ in range(steps):
        dice, name = s.random.randrange(1000), s.random.choice(REGIONS)
        for what in ("write", "tick", "force", "drain", "crash", "start", "part", "heal"):
            if dice < getattr(odds, what):
                _act(s, what, name)
                break
            dice -= getattr(odds, what)
        else:
            if s.messages:
                message = s.random.choice(s.messages[:12])
                luck = s.random.randrange(1000)
                if luck < odds.again and message.kind == "append" and not message.answered and (message.sender, message.to) not in s.cut:
                    s.deliver(message, again=True)
                else:
                    s.deliver(message, lost=luck >= 1000 - odds.lose)
    s.check()
    return s


def _act(s: Schedule, what: str, name: str) -> None:
    match what:
        case "write":
            for region in s.authorities():
                s.write(region)
        case "tick":
            s.tick()
        case "force":
            s.activate(name)
        case "drain":
            s.drain(name)
        case "crash":
            s.crash(name)
        case "start" if s.machines[name] is None:
            s.start(name)
        case "part":
            s.isolate(name)
        case "heal":
            s.cut.clear()
