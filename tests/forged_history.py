"""A small chaos history in which nothing is wrong, made of parts that a test can spoil before they are written."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from chaos.history import Answered, Asked, Authorities, Closed, End, FaultLine, Final, History, Line, Read, Result, Run, Sent

TOTAL, BEST = "chaos:total:S1:global", "chaos:best:S1:global"
REGIONS = ["eu-west", "us-east", "ap-south"]


@dataclass
class Forged:
    """Two players on a board of sums and one on a board of best scores; event `u1` stays unknown and is in, `r1` is refused.

    The lists are what the lines hold; change them, then `lines`.
    """

    sent: list[Sent] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    asked: dict[str, list[Result]] = field(default_factory=lambda: {TOTAL: [], BEST: []})
    authorities: dict[str, tuple[bool, int, str]] = field(default_factory=dict)
    closed: Closed = field(default_factory=lambda: Closed(t=90.0, agreed=True, tail=60))
    ends: list[End] = field(default_factory=lambda: [End(t=99.0, complete=True)])
    faults: list[FaultLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._event(1.0, TOTAL, "a1", "ann", 5, Result("a1", "applied_first", 3, 10, 5, 1))
        self._event(2.0, TOTAL, "a2", "ann", 7, Result("a2", "applied", 3, 12, 12, 2))
        self._event(3.0, TOTAL, "b1", "bob", 4, Result("b1", "applied_first", 3, 13, 4, 1))
        self._event(4.0, TOTAL, "u1", "bob", 6, Result("u1", "unknown"), found=Result("u1", "duplicate", 3, 20, 10, 2))
        self._event(5.0, TOTAL, "a3", "ann", 1, Result("a3", "duplicate", 4, 31, 13, 3))
        self._event(6.0, TOTAL, "r1", "ann", 2, Result("r1", "refused"), found=Result("r1", "applied", 4, 71, 15, 4))
        self._event(7.0, BEST, "s1", "ann", 90, Result("s1", "applied_first", 4, 40, 90, 1))
        self._event(8.0, BEST, "s2", "ann", 80, Result("s2", "not_an_improvement", 4, 44, 90, 1))
        for region in REGIONS:
            for scope in ("own", "any"):
                for t, generation in ((1.5, 1), (2.5, 2), (8.5, 5)):
                    self.reads.append(self.read(t, region, scope, generation))
            for number, ann, generation in ((1, (13, 3), 6), (2, (15, 4), 7)):
                self._final(number, region, TOTAL, generation, {"ann": ann, "bob": (10, 2)})
                self._final(number, region, BEST, 3, {"ann": (90, 1)})
        self.authorities = {region: (region == "us-east", 4, "us-east") for region in REGIONS}
        self.faults = [
            FaultLine(t=2.0, id=1, phase="begun", name="kill-store", regions=["eu-west"]),
            FaultLine(t=3.0, id=2, phase="begun", name="link-cut", regions=["eu-west", "us-east"]),
            FaultLine(t=5.5, id=1, phase="ended", name="kill-store", regions=["eu-west"], detail="store of eu-west"),
            FaultLine(t=6.0, id=2, phase="slow", name="link-cut", regions=["eu-west", "us-east"]),
            FaultLine(t=7.0, id=3, phase="begun", name="link-cut", regions=["eu-west", "us-east"]),
            FaultLine(t=7.0, id=3, phase="failed", name="link-cut", regions=["eu-west", "us-east"], detail="no answer"),
        ]

    def _event(self, t: float, board: str, event_id: str, player: str, amount: int, said: Result, found: Result | None = None) -> None:
        batch = len(self.sent)
        self.sent.append(Sent(t=t, server="server-eu-west", batch=batch, board=board, events=[(event_id, player, amount)]))
        self.answered.append(Answered(t=t + 0.5, server="server-eu-west", batch=batch, region="eu-west", results=[said]))
        self.asked[board].append(found or msgspec.structs.replace(said, outcome="duplicate"))

    def read(self, t: float, reader: str, scope: str, generation: int) -> Read:
        """A read of the board of sums that fits the others."""
        return Read(
            t=t,
            reader=reader,
            scope=scope,  # type: ignore[arg-type]
            asked=t - 0.1,
            board=TOTAL,
            region=reader,
            generation=generation,
            age_ms=100 * generation,
            checksum=f"c{generation}",
            page=f"p{generation}",
        )

    def _final(self, number: int, region: str, board: str, generation: int, rows: dict[str, tuple[int, int]]) -> None:
        self.finals.append(
            Final(
                t=91.0,
                round=number,  # type: ignore[arg-type]
                region=region,
                board=board,
                generation=generation,
                checksum=f"c{generation}",
                total=len(rows),
                rows=rows,
            )
        )

    def find(self, event_id: str) -> tuple[Answered, int]:
        """The answer to that event, and where it stands in `answered`."""
        place = next(i for i, line in enumerate(self.answered) if line.results[0].event_id == event_id)
        return self.answered[place], place

    def answer(self, event_id: str, **changes: object) -> None:
        """Change what was answered about an event."""
        line, place = self.find(event_id)
        result = msgspec.structs.replace(line.results[0], **changes)
        self.answered[place] = msgspec.structs.replace(line, results=[result])

    def ask(self, board: str, event_id: str, **changes: object) -> None:
        """Change what was found when an event was asked again."""
        self.asked[board] = [msgspec.structs.replace(r, **changes) if r.event_id == event_id else r for r in self.asked[board]]

    def final(self, number: int, region: str | None, board: str, **changes: object) -> None:
        """Change what a region (all of them for None) shows in the end."""
        self.finals = [
            msgspec.structs.replace(f, **changes) if (f.round, f.board) == (number, board) and region in (None, f.region) else f
            for f in self.finals
        ]

    def lines(self) -> list[tuple[int, Line]]:
        """All lines with their numbers, in the order of a run."""
        run = Run(
            t=0.0,
            version=1,
            wall="2026-01-01T00:00:00.000Z",
            seed=1,
            minutes=1.5,
            shard="eu-west/0",
            regions=REGIONS,
            boards={TOTAL: "cumulative", BEST: "best_score"},
            faults=["kill-store"],
            unavailable={},
            commit="abc",
            machine={"cores": "2"},
        )
        middle: list[Line] = sorted([*self.sent, *self.answered, *self.reads, *self.faults], key=lambda line: line.t)
        ending: list[Line] = [
            self.closed,
            Authorities(t=90.5, said=self.authorities),
            *(final for final in self.finals if final.round == 1),
            *(Asked(t=92.0, board=board, results=results) for board, results in self.asked.items()),
            *(final for final in self.finals if final.round == 2),
            *self.ends,
        ]
        return list(enumerate([run, *middle, *ending], 1))

    def write(self, path: Path) -> Path:
        """The history as a file."""
        with History(path) as history:
            for _, line in self.lines():
                history.write(line)
        return path
