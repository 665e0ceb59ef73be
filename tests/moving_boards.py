"""A board that moves from shard to shard under a stream of events, and what must hold of all that anybody was ever shown of it."""

import asyncio
import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from inprocess_cluster import REGIONS, Cluster, until
from watched_log import Sent

from actors.clocks import wall_ms
from boards.model import Layout, Outcome, Row, Submission
from boards.policies import decider, make_rules
from boards.slicing import slice_of
from journal.records import BoardCreated, Manifest, Published, Record, Scored, open_entry
from ledger.ports import BoardState

BOARD = "arena:moving:S1:all"
SHARDS = ("eu/0", "eu/1", "eu/2")
RULES = make_rules("cumulative", publish_interval_ms=50)
#: A move with a kill in the middle of it, on a busy machine.
MOVE_S = 15.0


class Moving:
    """See the module docstring. Each player's events are sent one after the other, so that their order is known."""

    def __init__(self, path: Path, at: Sequence[str] = SHARDS[:1], *, seed: int = 1, **settings: Any) -> None:
        boards = {BOARD: (RULES, tuple(at))}
        self.c = Cluster(path, shards=dict.fromkeys(SHARDS, "eu"), boards=boards, **settings)
        self.random = random.Random(seed)
        self.layout = Layout(1, tuple(at))
        #: By player, in the order in which they were sent.
        self.sent: dict[str, list[Sent]] = {}
        #: Event id -> when its answer was here, by the clock that generations are dated with.
        self.answered_ms: dict[str, int] = {}
        self.longest_wait_ms = 0
        self._stop = asyncio.Event()
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Moving":
        await self.c.__aenter__()
        self.c.start()
        await self.c.all_authorities()
        await until(lambda: all(self.c[r].board(BOARD) for r in REGIONS), "the board is known everywhere")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self.c.__aexit__(*error)

    # -- clients ------------------------------------------------------------------------------------------------------

    async def send(self, player: str, through: str) -> Sent:
        """One more event of a player, until it is answered."""
        one = self.c.event(self.random.randint(1, 50), player=player, board=BOARD)
        self.sent.setdefault(player, []).append(one)
        began = time.monotonic()
        while one.result is None:
            await self.c.send(through, one)
            await asyncio.sleep(0.002)
        self.longest_wait_ms = max(self.longest_wait_ms, round(1000 * (time.monotonic() - began)))
        self.answered_ms[one.event_id] = wall_ms()
        return one

    async def fill(self, players: int) -> None:
        """Everybody has an event."""
        await asyncio.gather(*(self.send(f"p{n}", REGIONS[n % 3]) for n in range(players)))

    def stream(self, clients: int = 3) -> None:
        """Clients in all regions that send until `settle`."""

        async def client(number: int) -> None:
            while not self._stop.is_set():
                await self.send(f"p{number + clients * self.random.randrange(6)}", REGIONS[number % 3])

        self._clients += [asyncio.ensure_future(client(number)) for number in range(clients)]

    async def settle(self) -> None:
        """No more events; all that were sent are answered."""
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._clients), MOVE_S)
        self._clients.clear()

    # -- operators ----------------------------------------------------------------------------------------------------

    async def order(self, order: dict[str, Any], shard: str = "") -> dict[str, Any]:
        """Give an order to a shard's authority (the lead's, unless named), as a gateway does: again while there is none."""
        shard = shard or self.layout.lead
        deadline = time.monotonic() + MOVE_S
        while True:
            for region in self.c.authorities(shard):
                try:
                    reply = await self.c[region].operate(shard, {"board": BOARD, "asked_by": "operator", **order})
                except TimeoutError:
                    continue
                if reply.get("error", {}).get("kind") != "NoAuthority":
                    return reply
            assert time.monotonic() < deadline, f"no authority of {shard} carries out {order}: {self.c.told(shard)}"
            await asyncio.sleep(0.01)

    async def begin(self, *shards: str) -> Layout:
        """Order a move; where it goes."""
        reply = await self.order({"do": "relocate_board", "shards": list(shards)})
        assert reply["ok"], reply
        return Layout(reply["layout"]["number"], tuple(reply["layout"]["shards"]))

    async def move(self, *shards: str) -> None:
        """Order a move, and wait until it has come to its end."""
        await self.arrived(await self.begin(*shards))

    async def arrived(self, target: Layout) -> None:
        """The board lives there, in every region's ledgers, and nothing of it is left elsewhere."""
        await until(lambda: self.lives_in(target), lambda: f"the board lives in {target}: {self.told()}", MOVE_S)
        self.layout = target

    def lives_in(self, layout: Layout) -> bool:
        """Whether that is so."""
        return all(self._lives(region, layout) for region in REGIONS)

    def _lives(self, region: str, layout: Layout) -> bool:
        found = {}
        for shard in SHARDS:
            states = self.states(region, shard)
            if len(states) > 1 or (states and (states[0].phase != "open" or states[0].target is not None)):
                return False
            if states:
                found[shard] = (states[0].layout_number, states[0].slice)
        return found == {shard: (layout.number, index) for index, shard in enumerate(layout.shards)}

    def states(self, region: str, shard: str) -> list[BoardState]:
        """What a region's ledger of a shard holds of the board."""
        part = self.c[region][shard]
        if not part.instances:
            return []
        ledger = part.actor.ledger
        return [state for n in ledger.numbers(BOARD) if (state := ledger.numbered(n)) is not None]

    def told(self) -> dict[str, Any]:
        """For messages of failed tests."""
        moves = {}
        for shard in SHARDS:
            for region in self.c.authorities(shard):
                moves[shard] = self.c[region][shard].actor.status()["relocations"]
        slices = {s: [(x.layout_number, x.slice, x.phase) for x in self.states("eu", s)] for s in SHARDS}
        return {"slices": slices, "moves": moves, "shards": {s: self.c.told(s) for s in SHARDS}}

    def relocation(self, shard: str) -> dict[str, Any]:
        """What the authority of the lead says of the move, in this very moment; {} where there is none."""
        for region in self.c.authorities(shard):
            return self.relocation_in(region, shard)
        return {}

    def relocation_in(self, region: str, shard: str) -> dict[str, Any]:
        """The same of the actor in this region."""
        return dict(self.c[region][shard].actor.status()["relocations"].get(BOARD, {}))

    # -- faults -------------------------------------------------------------------------------------------------------

    def at(self, kind: type[Record], do: Callable[[], None], *, times: int = 1) -> Callable[[], bool]:
        """Have something happen right after an authority's store takes a record of this kind, whichever shard it is: whether it has."""
        left = [times]

        def watched(append: Callable[..., Any], **message: Any) -> Any:
            answer = append(**message)
            records = [record for entry in message["entries"] for record in open_entry(entry)]
            hit = any(type(r) is kind and not (type(r) is BoardCreated and not r.importing) for r in records)
            if hit and left[0]:
                left[0] -= 1
                asyncio.get_running_loop().call_soon(do)
            return answer

        for region in REGIONS:
            for shard in SHARDS:
                log: Any = self.c[region][shard].log
                log.append = functools.partial(watched, log.append)
        return lambda: left[0] < times

    def kill(self, shard: str, *, for_s: float = 0.03) -> None:
        """The authority of a shard dies, and its region starts another actor after a while."""
        for region in self.c.authorities(shard):
            self.c.crash(region, shards=(shard,))
            asyncio.get_running_loop().call_later(for_s, functools.partial(self.c.come_back, region, shards=(shard,)))

    # -- what must hold -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """All of it, once everything is answered and no move is under way. I4, I7, I8, I11."""
        await self.c.check(moved=True)
        self._check_rows()
        await until(self._all_shown, lambda: f"the newest generation holds everything: {self.told()}")
        self._check_journals()
        for region in REGIONS:
            self._check_generations(region)
        await self._check_identities()

    def _expected(self, player: str) -> list[Row]:
        """The player's row after each of its events, on a board that nobody moves."""
        rule, row, rows = decider(RULES), None, []
        for one in self.sent[player]:
            row = rule(row, Submission(one.event_id, player, one.amount, 1000, 1000, b""), 0).row
            assert row is not None
            rows.append(row)
        return rows

    def _check_rows(self) -> None:
        """Every player is in one slice, with the row that it would have on a board that nobody moved."""
        found: dict[str, Row] = {}
        for index, shard in enumerate(self.layout.shards):
            (state,) = self.states("us", shard)
            with self.c["us"][shard].actor.ledger.reader() as reader:
                for player, row in reader.rows(state.number):
                    assert player not in found, f"{player} is in two slices"
                    assert slice_of(player, len(self.layout.shards)) == index
                    found[player] = row
        assert found.keys() == self.sent.keys()
        for player, row in found.items():
            due = self._expected(player)[-1]
            assert _lasting(row) == _lasting(due), player

    def _all_shown(self) -> bool:
        due = {player: len(sent) for player, sent in self.sent.items()}
        return all(self._shown(self._series(region).newest) == due for region in REGIONS)

    def _series(self, region: str) -> Any:
        replica = self.c[region].replica
        assert replica is not None
        return replica.fold.boards[BOARD]

    def _shown(self, generation: Any) -> dict[str, int]:
        return {place.player_id: place.version for place in generation.view.page(0, generation.view.total)}

    def _check_generations(self, region: str) -> None:
        """In each generation: nobody twice, nobody missing, no event twice, and all that was acknowledged before it was dated."""
        sums = {player: [row.value for row in self._expected(player)] for player in self.sent}
        answered = {
            (player, version): self.answered_ms[one.event_id]
            for player, sent in self.sent.items()
            for version, one in enumerate(sent, start=1)
        }
        before: dict[str, int] = {}
        for number, generation in self._series(region).generations.items():
            places = generation.view.page(0, generation.view.total)
            versions = {place.player_id: place.version for place in places}
            assert len(versions) == len(places) == generation.count, f"s{number} in {region}: a player is counted twice, or not at all"
            for place in places:
                assert place.value == sums[place.player_id][place.version - 1], f"s{number} in {region}: {place}"
            for player, version in before.items():
                assert versions.get(player, 0) >= version, f"s{number} in {region}: {player} has gone back"
            for (player, version), at_ms in answered.items():
                if at_ms <= generation.published_ms and number:
                    assert versions.get(player, 0) >= version, f"s{number} in {region}: {player} was acknowledged {version} before it"
            before = versions

    def _records(self) -> Iterator[tuple[str, BoardCreated, Record]]:
        """(shard, slice, record) of all that journals hold about the board."""
        for shard in SHARDS:
            log, boards = self.c["eu"][shard].log, dict[int, BoardCreated]()
            for entry in log.read(1, limit=10**6, max_bytes=1 << 40):
                for record in open_entry(entry):
                    if type(record) is BoardCreated:
                        boards[record.number] = record
                    elif (number := getattr(record, "board", 0)) in boards:
                        yield shard, boards[number], record

    def _check_journals(self) -> None:
        """No event was accepted by two layouts, none by the slice of another; every generation has one number."""
        events: Counter[tuple[str, str]] = Counter()
        numbers: Counter[int] = Counter()
        for shard, created, record in self._records():
            if type(record) is Scored:
                events[record.player_id, record.event_id] += 1
                parts = 1 if created.layout is None else len(created.layout.shards)
                assert slice_of(record.player_id, parts) == created.slice, (shard, record)
            elif type(record) is Published or type(record) is Manifest:
                numbers[record.generation] += 1
        assert events == {(one.player, one.event_id): 1 for sent in self.sent.values() for one in sent}
        assert numbers == dict.fromkeys(range(1, len(numbers) + 1), 1)

    async def _check_identities(self) -> None:
        """What was sent at any time is a duplicate of itself with its first result, and a conflict with anything else."""
        for player, sent in self.sent.items():
            for one in self.random.sample(sent, min(2, len(sent))):
                assert one.result is not None
                (again,) = await self.c.send("ap", one)
                assert (again.outcome, again.value, again.version) == (Outcome.DUPLICATE, one.result.value, one.result.version), one
                other = Sent(board=BOARD, player=player, event_id=one.event_id, amount=one.amount + 1, sent=0)
                (refused,) = await self.c.send("us", other)
                assert refused.outcome == Outcome.CONFLICT, one


def _lasting(row: Row) -> tuple[Any, ...]:
    """All of a row but the moment at which it was processed."""
    return row.value, row.version, row.tie_ms, row.achieved_ms, row.submitted_ms, row.last_event_id, row.status, row.second
