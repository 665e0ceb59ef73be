"""Canary traffic: events and reads through every region at an even pace, on boards of the drills' own.

Each event is sent, again and again with the same id, until it is acknowledged; meanwhile later ones go on, so that a
request that hangs hides no pause. Reads go to all regions on the same beats.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from boards.ids import check_board_id
from drills.book import Book, Look, Sent
from drills.plan import Traffic
from drills.ports import Cluster, Event, NoAnswer, Refusal

#: Deliveries and reads of one region that may be under way at once.
UNDER_WAY = 40
#: A delivery that failed is sent again after so long.
AGAIN_S = 0.05
#: Reads without an answer for so long count as not answered.
READ_S = 1.0
#: A new board is known everywhere within this time.
SHOWN_S = 5.0
#: Events asked for again in one request.
ASK_AGAIN = 200
SALVAGE_LOOK_S = 0.3


def canary_boards(shard: str) -> tuple[str, str]:
    """Ids of the shard's two canary boards: totals (cumulative), and best scores. The game `laurel` is the service's own."""
    scope = shard.replace("/", "-")
    return check_board_id(f"laurel:drill-canary:S0:{scope}"), check_board_id(f"laurel:drill-scores:S0:{scope}")


class Canary:
    """See the module docstring. Players and event ids begin with `drill_id`, so that no drill meets another's."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        shard: str,
        drill_id: str,
        traffic: Traffic,
        now_ms: Callable[[], float],
        failed: Callable[[Exception], None],
        salvages: bool = False,
    ) -> None:
        self._shard, self._salvages = shard, salvages
        self._cluster, self._traffic, self._now_ms, self._drill_id = cluster, traffic, now_ms, drill_id
        #: Told what ends a delivery for good: the drill cannot go on without its canary.
        self._failed = failed
        self.totals_board, self.scores_board = canary_boards(shard)
        self.book = Book()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, int] = dict.fromkeys(cluster.regions, 0)
        self._pacing: list[asyncio.Task[None]] = []
        self._sending = asyncio.Event()
        self._finishing = False

    async def open(self, region: str, home: str) -> None:
        """Create the boards where they are missing; return when every region shows them. Raises `NoAnswer` when one does not in time."""
        await self._cluster.create_board(region, self.totals_board, "cumulative", home, self._shard)
        if self._traffic.corrections:
            await self._cluster.create_board(region, self.scores_board, "best_score", home, self._shard)
        try:
            async with asyncio.timeout(SHOWN_S):
                for board in (self.totals_board, self.scores_board)[: 1 + self._traffic.corrections]:
                    await asyncio.gather(*(self._shown(name, board) for name in self._cluster.regions))
        except TimeoutError as error:
            raise NoAnswer(f"not every region shows the canary's boards within {SHOWN_S:g} s") from error

    async def _shown(self, region: str, board: str) -> None:
        while True:
            try:
                await self._cluster.read(region, board)
                return
            except NoAnswer:
                pass
            except Refusal as refusal:
                if not refusal.again and refusal.code != "unknown_board":
                    raise
            await asyncio.sleep(AGAIN_S)

    def start(self) -> None:
        """Begin."""
        self._sending.set()
        self.book.began_ms = self._now_ms()
        loop = asyncio.get_running_loop()
        self._pacing = [loop.create_task(self._pace(at, region)) for at, region in enumerate(self._cluster.regions)]
        self._pacing.append(loop.create_task(self._look_round()))

    async def finish(self, timeout_s: float) -> None:
        """Send nothing new; return when everything is acknowledged, or the time is over. Idempotent."""
        self._sending.clear()
        for task in self._pacing:
            task.cancel()
        await asyncio.gather(*self._pacing, return_exceptions=True)
        if self.book.began_ms and not self.book.ended_ms:
            self.book.ended_ms = self._now_ms()
        # From here on an event may go through any region: its own may be away for good.
        self._finishing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for left in self._tasks:
            left.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _pace(self, place: int, region: str) -> None:
        """One event a beat. Regions are spread over the beat, so that together they see short pauses."""
        beat_s = self._traffic.every_ms / 1000
        loop = asyncio.get_running_loop()
        due = loop.time() + beat_s * place / len(self._cluster.regions)
        number = 0
        while self._sending.is_set():
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + beat_s, loop.time())
            if self._under_way[region] >= UNDER_WAY:
                self.book.held_back += 1
                continue
            number += 1
            event = self._event(region, number)
            self.book.sent[event.event_id] = event
            self._spawn(self._deliver(event, [region]), region)
            others = [name for name in self._cluster.regions if name != region] or [region]
            for copy in range(self._traffic.redeliver):
                self._spawn(self._deliver(event, [others[copy % len(others)]]), region)

    def _event(self, region: str, number: int) -> Sent:
        board, amount, kind = self.totals_board, 3, number % 3
        if self._traffic.corrections and kind == 1:
            amount = -1
        elif self._traffic.corrections and kind == 2:
            board, amount = self.scores_board, number if number % 2 else number - 5
        name = f"{self._drill_id}.{region}"
        return Sent(
            event_id=f"{name}.{number}", player_id=name, region=region, board=board, amount=amount, sent_ms=self._now_ms()
        )  # fmt: skip

    def _spawn(self, work: Coroutine[Any, Any, None], region: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[region] += 1
        self._tasks.add(task)

        def ended(done: "asyncio.Task[None]") -> None:
            self._tasks.discard(done)
            self._under_way[region] -= 1
            if not done.cancelled() and isinstance(error := done.exception(), Exception):
                self._failed(error)

        task.add_done_callback(ended)

    async def _deliver(self, event: Sent, through: list[str]) -> None:
        """One delivery and its repetitions. Raises `Refusal` for what will never be taken."""
        tries = 0
        while True:
            regions = list(self._cluster.regions) if self._finishing else through
            region, sent_ms = regions[tries % len(regions)], self._now_ms()
            tries += 1
            try:
                (answer,) = await self._cluster.submit(region, event.board, [Event(event.event_id, event.player_id, event.amount)])
            except NoAnswer:
                event.doubted = event.doubted or event.acked_ms is None
            except Refusal as refusal:
                # A region that was cut off learns of a new board late.
                if not refusal.again and refusal.code != "unknown_board":
                    raise
                self.book.refused += 1
            else:
                if self.book.heard(event, answer, region=region, sent_ms=sent_ms, now_ms=self._now_ms()):
                    return
            await asyncio.sleep(AGAIN_S)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _look_round(self) -> None:
        """One read from every region a beat."""
        loop = asyncio.get_running_loop()
        due, beat = loop.time(), 0
        reading: dict[str, int] = dict.fromkeys(self._cluster.regions, 0)
        looks: set[asyncio.Task[None]] = set()
        try:
            while self._sending.is_set():
                await asyncio.sleep(max(0.0, due - loop.time()))
                due, beat = max(due + self._traffic.every_ms / 1000, loop.time()), beat + 1
                for region in self._cluster.regions:
                    if reading[region] >= UNDER_WAY:
                        self.book.looks.append(Look(self._now_ms(), region, beat, -1, 0, 0.0))
                        continue
                    task = loop.create_task(self._look(region, beat, reading))
                    looks.add(task)
                    task.add_done_callback(looks.discard)
        finally:
            # What is under way is given its time: a read cut short here would count as not answered.
            await asyncio.gather(*looks, return_exceptions=True)

    async def _look(self, region: str, beat: int, reading: dict[str, int]) -> None:
        asked_ms = self._now_ms()
        reading[region] += 1
        try:
            async with asyncio.timeout(READ_S):
                reading_now = await self._cluster.read(region, self.totals_board)
            now = self._now_ms()
            self.book.looks.append(Look(now, region, beat, reading_now.generation, reading_now.boundary, now - asked_ms))
        except (NoAnswer, Refusal, TimeoutError):
            now = self._now_ms()
            self.book.looks.append(Look(now, region, beat, -1, 0, now - asked_ms))
        finally:
            reading[region] -= 1

    # -- the proof -------------------------------------------------------------------------------------------------

    async def prove(self, timeout_s: float) -> None:
        """Ask for every event again by its id: acknowledged ones must be known. Then compare every player's value in every region.

        Raises `NoAnswer` when the cluster does not answer all of it in time: then nothing is proved.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_salvaged()
                acknowledged = [event for event in self.book.sent.values() if event.acked_ms is not None]
                for board in (self.totals_board, self.scores_board):
                    await self._ask_again([event for event in acknowledged if event.board == board])
                for event in self.book.unresolved():
                    await self._deliver(event, list(self._cluster.regions))
                for region in self._cluster.regions:
                    await self._compare(region)
        except TimeoutError as error:
            raise NoAnswer("the cluster did not answer in time whether all events are known") from error

    async def _until_salvaged(self) -> None:
        """In a `local` shard a region that returns sends its orphans again by itself: asked for sooner, they would seem lost."""
        if not self._salvages:
            return
        for region in self._cluster.regions:
            while True:
                try:
                    if not await self._cluster.orphans(region, self._shard):
                        break
                except (NoAnswer, Refusal) as error:
                    if isinstance(error, Refusal) and not error.again:
                        raise
                await asyncio.sleep(SALVAGE_LOOK_S)

    async def _ask_again(self, events: Sequence[Sent]) -> None:
        for first in range(0, len(events), ASK_AGAIN):
            left = list(events[first : first + ASK_AGAIN])
            tries = 0
            while left:
                region = self._cluster.regions[tries % len(self._cluster.regions)]
                tries += 1
                try:
                    asked = [Event(event.event_id, event.player_id, event.amount) for event in left]
                    answers = await self._cluster.submit(region, left[0].board, asked)
                except (NoAnswer, Refusal) as error:
                    if isinstance(error, Refusal) and not error.again:
                        raise
                    await asyncio.sleep(AGAIN_S)
                    continue
                left = self._judge(zip(left, answers, strict=True))

    def _judge(self, answers: Iterable[tuple[Sent, Any]]) -> list[Sent]:
        unanswered = []
        for event, answer in answers:
            if answer.outcome == "unknown":
                unanswered.append(event)
            elif answer.outcome == "duplicate":
                self.book.confirmed += 1
                event.moved = (answer.epoch, answer.offset) != (event.epoch, event.offset)
            else:
                self.book.lost[event.event_id] = answer.outcome
        return unanswered

    async def _compare(self, region: str) -> None:
        for board, best in ((self.totals_board, False), (self.scores_board, True)):
            expected = self.book.expected(board, best=best)
            if not expected:
                continue
            while True:
                try:
                    found = await self._cluster.totals(region, board, sorted(expected), self.book.last())
                    break
                except (NoAnswer, Refusal) as error:
                    if isinstance(error, Refusal) and not error.again:
                        raise
                    await asyncio.sleep(AGAIN_S)
            for player, value in expected.items():
                self.book.compared += 1
                if found.get(player) != value:
                    self.book.unequal.append(f"{region} shows {found.get(player)} of {player} on {board}, not {value}")
