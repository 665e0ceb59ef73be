"""What the tests of the drills share: a cluster in memory that can be cut, stalled and failed over, and a loop whose time jumps.

The cluster keeps the promises that a real one does (a majority, fencing by epoch, one answer an id), and has switches to break them.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from drills.plan import Plan
from drills.ports import Direction, Event, NoAnswer, Outcome, Reading, Refusal
from drills.runner import Runner

T = TypeVar("T")

SHARD = "eu-west/0"
REGIONS = ("eu-west", "us-east", "ap-south")
#: Wall clock when the loop's time is 0.
WALL_MS = 1_796_033_400_000
PUBLISH_S = 0.1


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: it moves the loop's time to where the wait would have ended."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits, and nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, with a clock of its own that costs no time."""
    selector = _Jumping()

    def make() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)


class MemoryCluster:
    """Implements `drills.ports.Cluster`."""

    def __init__(self, regions: Sequence[str] = REGIONS) -> None:
        self._regions = tuple(regions)
        self.owner, self.epoch, self.cause = regions[0], 3, "genesis"
        self.cuts: dict[tuple[str, str], tuple[str, float]] = {}
        self.stalled: dict[str, float] = {}
        self.boards: dict[str, str] = {}
        #: (board, player, event id) -> (amount, epoch, offset)
        self.seen: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        self.rows: dict[str, dict[str, int]] = {}
        self.offset = 100
        #: (offset, at) of the entries; a region shows those that it had when it was last connected.
        self.shown: dict[str, int] = dict.fromkeys(regions, 100)
        self.records: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.paused_until = 0.0
        self.promotes_after_s: float | None = None
        #: It has moved by itself a moment ago, and does not again for so long.
        self.automatic_pause_ms = 0
        #: Switches that break promises or the cluster.
        self.forgets: set[str] = set()
        self.silent: set[str] = set()
        self.changes: dict[str, dict[str, Any]] = {}
        self.refuse_failover = ""
        self.missing: dict[str, list[str]] = {}
        self.handover_s, self.forced_s = 0.15, 0.6
        self.zombie_acks = False
        self._lost_at: float | None = None
        self.orphan_asks = 0
        self.phases: dict[str, float] | None = {"probe": 3, "seal": 9, "adopt": 1, "start": 12, "catch_up": 2}

    @property
    def regions(self) -> tuple[str, ...]:
        return self._regions

    # -- the network ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def cut(self, a: str, b: str) -> bool:
        """Whether a message from `a` does not reach `b`, or its answer does not come back."""
        return any(mode == "drop" and until > self.now() for pair in ((a, b), (b, a)) for mode, until in [self.cuts.get(pair, ("", 0.0))])

    def reached(self, hub: str) -> set[str]:
        now = self.now()
        return {r for r in self._regions if r == hub or (not self.cut(hub, r) and self.stalled.get(r, 0.0) <= now)}

    def majority(self, hub: str) -> bool:
        return self.stalled.get(hub, 0.0) <= self.now() and len(self.reached(hub)) > len(self._regions) // 2

    def _promote(self) -> None:
        """A shard that promotes by itself moves so long after its owner has lost the majority."""
        if self.promotes_after_s is None or self.automatic_pause_ms or self.majority(self.owner):
            self._lost_at = None
            return
        self._lost_at = self.now() if self._lost_at is None else self._lost_at
        if self.now() - self._lost_at >= self.promotes_after_s:
            able = [region for region in self._regions if region != self.owner and self.majority(region)]
            if able:
                self.owner, self.epoch, self._lost_at, self.cause = able[0], self.epoch + 1, None, "automatic"

    async def _answers(self, region: str) -> None:
        await asyncio.sleep(0.002)
        self._promote()
        if region in self.silent:
            raise NoAnswer(f"no answer from {region}")

    # -- the port ----------------------------------------------------------------------------------------------------

    async def status(self, region: str) -> dict[str, Any]:
        await self._answers(region)
        here = region == self.owner or not self.cut(region, self.owner)
        owner = self.owner if here else "nobody knows"
        serving = region == self.owner and self.majority(region)
        links: dict[str, dict[str, Any]] = {"outward": {}, "inward": {}}
        for (a, b), (mode, until) in self.cuts.items():
            if region in (a, b) and until > self.now():
                side, peer = ("outward", b) if region == a else ("inward", a)
                links[side][peer] = {"mode": mode, "until_ms": WALL_MS + round(until * 1000)}
        level = self.offset if here else self.offset - 1000
        facts: dict[str, Any] = {
            "role": "authority" if region == self.owner else "follower", "why": "", "epoch": self.epoch, "owner": owner,
            "known_owner": owner, "serving": serving, "committed": self.offset, "applied": level, "halted": "",
            "lag": {}, "replica": {"serving": True, "alarm": "", "applied": level, "boards_count": 4},
            "automatic_pause_ms": self.automatic_pause_ms,
            "on_region_loss": "promote" if self.promotes_after_s is not None else "hold",
            "activation": {"cause": self.cause, "epoch": self.epoch, "phases_ms": self.phases},
        }  # fmt: skip
        if serving:
            facts["lag"] = {
                peer: {"entries": 0, "heard_ms": 9000 if self.cut(region, peer) else 40, "amnesiac": False}
                for peer in self._regions if peer != region
            }  # fmt: skip
        facts |= self.changes.get(region, {})
        return {"region": region, "shards": {SHARD: facts}, "links": links, "at_ms": WALL_MS + round(self.now() * 1000)}

    async def ready(self, region: str) -> list[str]:
        await self._answers(region)
        return self.missing.get(region, [])

    async def create_board(self, region: str, board: str, policy: str, home: str, shard: str) -> None:
        await self._answers(region)
        self.boards.setdefault(board, policy)

    def _takes(self, region: str) -> bool:
        """Whether a write through `region` reaches an authority with a majority now."""
        self._promote()
        return self.now() >= self.paused_until and self.majority(self.owner) and (region == self.owner or not self.cut(region, self.owner))

    async def submit(self, region: str, board: str, events: Sequence[Event]) -> list[Outcome]:
        await self._answers(region)
        deadline = self.now() + 0.5
        while not self._takes(region):
            if self.now() > deadline:
                raise NoAnswer(f"no answer through {region}")
            await asyncio.sleep(0.02)
        return [self._decide(board, event) for event in events]

    def _decide(self, board: str, event: Event) -> Outcome:
        key = (board, event.player_id, event.event_id)
        before = self.seen.get(key)
        if before is not None and event.event_id not in self.forgets:
            return Outcome(event.event_id, "duplicate" if before[0] == event.amount else "conflict", before[1], before[2])
        self.offset += 1
        rows = self.rows.setdefault(board, {})
        old = rows.get(event.player_id)
        self.seen[key] = (event.amount, self.epoch, self.offset)
        better = old is None or self.boards[board] == "cumulative" or event.amount > old
        if better:
            rows[event.player_id] = event.amount + (old or 0 if self.boards[board] == "cumulative" else 0)
        word = "applied_first" if old is None else "applied" if better else "not_an_improvement"
        epoch = self.epoch - 1 if self.zombie_acks and self.epoch > 3 else self.epoch
        return Outcome(event.event_id, word, epoch, self.offset)

    async def read(self, region: str, board: str) -> Reading:
        await self._answers(region)
        if region == self.owner or not self.cut(region, self.owner):
            self.shown[region] = max(self.shown[region], self.offset)
        return Reading(self.shown[region], self.shown[region])

    async def totals(self, region: str, board: str, players: Sequence[str], at_least: tuple[int, int]) -> dict[str, int]:
        await self._answers(region)
        if self.cut(region, self.owner) and region != self.owner:
            raise Refusal("not_visible_yet", "not here yet")
        return {player: value for player, value in self.rows.get(board, {}).items() if player in players}

    async def failover(self, to: str, shard: str, *, force: bool) -> dict[str, Any]:
        await self._answers(to)
        self.calls.append(("failover", to, force))
        if self.refuse_failover:
            raise Refusal(self.refuse_failover, "not now")
        before = {"epoch": self.epoch, "owner": self.owner}
        if not self.majority(to) or (not force and self.cut(to, self.owner)):
            raise Refusal("failover_refused", "no majority would grant")
        self.paused_until = self.now() + (self.forced_s if force else self.handover_s)
        await asyncio.sleep(self.paused_until - self.now())
        self.epoch, self.owner, self.cause = self.epoch + 1, to, "forced" if force else "handover"
        return {"epoch": self.epoch, "owner": to, "from": before, **({"phases_ms": self.phases} if self.phases else {})}

    async def set_link(self, region: str, peer: str, direction: Direction, *, mode: str, delay_ms: int = 0, for_ms: int = 0) -> None:
        await self._answers(region)
        self.calls.append(("link", region, peer, direction, mode, for_ms))
        for way, pair in (("out", (region, peer)), ("in", (peer, region))):
            if direction in (way, "both"):
                self.cuts.pop(pair, None)
                if mode != "clear":
                    self.cuts[pair] = (mode, self.now() + for_ms / 1000)

    async def stall(self, region: str, for_ms: int) -> None:
        await self._answers(region)
        self.calls.append(("stall", region, for_ms))
        self.stalled[region] = self.now() + for_ms / 1000

    async def orphans(self, region: str, shard: str) -> int:
        await self._answers(region)
        self.orphan_asks += 1
        return max(0, 3 - self.orphan_asks)

    async def audit(self, region: str, shard: str, what: str, detail: dict[str, Any], *, unless_open: str = "") -> str:
        await self._answers(region)
        now = WALL_MS + round(self.now() * 1000)
        ended = {record["detail"]["id"] for record in self.records if record["what"] == "drill.ended"}
        for record in self.records:
            begun = record["detail"]
            if unless_open and record["what"] == "drill.began" and begun["id"] not in ended and begun["until_ms"] > now:
                raise Refusal("busy", f"drill {begun['id']} is running")
        self.records.append({"what": what, "asked_by": "operator-1", "at_ms": now, "detail": detail})
        return "operator-1"

    async def audits(self, region: str, shard: str, what: str) -> list[dict[str, Any]]:
        await self._answers(region)
        return [record for record in self.records if record["what"].startswith(what)]

    def words(self) -> list[tuple[str, str]]:
        """(what, outcome) of the audit."""
        return [(record["what"], record["detail"].get("outcome", "")) for record in self.records]


def drill(cluster: MemoryCluster, plan: Plan, **options: Any) -> Any:
    """Run a plan to its report."""
    return run(Runner(cluster, plan, **options).run())
