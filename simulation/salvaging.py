"""Salvage in one simulated region, as `actors.salvaging` does it: what was cut from its store goes through its gateway again.

What is open, and what an answer means, says the real `failover.salvage`.
"""

from typing import TYPE_CHECKING

from actors.messages import SubmitResult
from failover import salvage
from failover.salvage import Finding, Known, OrphanEvent, Place

if TYPE_CHECKING:
    from simulation.client import Answer
    from simulation.process import Process

#: Between two looks while something is open.
RETRY_MS = 60


class Salvaging:
    """That of one process; what it was told dies with it."""

    def __init__(self, process: "Process") -> None:
        self.process, self.world = process, process.world
        self.running = self._wanted = False
        self._told: dict[Place, Finding] = {}

    def wake(self) -> None:
        """An epoch has started: entries may have been cut here."""
        self._wanted = True
        if self.world.mode == "local" and not self.running:
            self.running = True
            self._later(self.world.random.randint(1, 20))

    def _later(self, ms: int) -> None:
        self.world.at(self.world.now + ms, self.process.deliver, self._pass, None)

    def _pass(self, _: None) -> None:
        store = self.process.region.store
        if not store.up or store.stalled or not self.caught_up():
            self._later(RETRY_MS)
            return
        self._wanted = False
        events = self.open_events()
        for request in salvage.requests(events):
            for event in request.events:
                self._send(request.board_id, event)
        if events or self._wanted:
            self._later(RETRY_MS + self.world.random.randrange(RETRY_MS))
        else:
            self.running = False

    def caught_up(self) -> bool:
        """Whether the ledger holds the beginning of the epoch that the store is promised to, and all that is committed there."""
        log, applied = self.process.region.store.log, self.process.ledger.applied.offset
        newest = log.status().newest
        return newest is not None and newest.epoch == log.fence and newest.first_offset <= log.committed <= applied

    def over(self) -> bool:
        """Whether this region has nothing left to send, and knows that."""
        return not self.running and self.caught_up() and not self.open_events()

    def open_events(self) -> list[OrphanEvent]:
        """What the lineage, as far as it is folded here, does not have."""
        batches = self.process.region.store.log.orphans()
        if not batches:
            return []
        ledger = self.process.ledger
        boards = {number: Known(state.board_id, state.rules, state.created_ms) for number, state in ledger.boards().items()}
        found: list[OrphanEvent] = []
        with ledger.reader() as reader:
            for event in salvage.sort_out(batches, boards).events:
                board = ledger.board(event.board_id)
                saved = None if board is None else reader.identity(board.number, event.submission.player_id, event.submission.event_id)
                finding = salvage.finding(event, None if saved is None else (saved.fingerprint, saved.outcome))
                if finding.state == "open" and self._told.get(event.place, finding).state == "open":
                    found.append(event)
        return found

    def _send(self, board_id: str, event: OrphanEvent) -> None:
        def answered(answer: "Answer") -> None:
            if isinstance(answer, SubmitResult):
                finding = salvage.answered(answer.outcome, answer.code)
                if finding.state in ("operator", "held"):
                    self._told[event.place] = finding

        self.world.salvaged += 1
        self.process.region.gateway.submit(board_id, event.submission, answered)
