"""A region in memory, for the tests of its HTTP edge: the real rules and rank index, no journals, one view however many slices.

Generations come into being only by `publish`, and time only moves when a test moves it.
"""

import base64
import copy
from collections.abc import Callable
from typing import Any

import msgspec

from actors.board_changes import other_rules
from actors.messages import (
    Answer,
    Ask,
    BadCursor,
    BoardInfo,
    Busy,
    Nearby,
    NoAuthority,
    NotRanked,
    NotServing,
    NotVisibleYet,
    Percentile,
    Rank,
    SubmitResult,
    Top,
    Unanswered,
    UnknownBoard,
)
from actors.replica import generation_gone
from boards.index import Change, Placed, RankIndex, View
from boards.model import BoardRules, Layout, Outcome, Row, Submission
from boards.numbers import format_value
from boards.policies import decider, make_rules
from boards.slicing import slice_of
from boards.times import format_time
from journal.ports import Position
from regions.backend import FailoverRequest, LinkRequest
from regions.board_orders import Wish, layout_map

EPOCH = 7
#: Incarnation of every board.
LIFE = "b1"
#: 2026-11-30T10:10:00Z
START_MS = 1_796_033_400_000


class Generation(msgspec.Struct, frozen=True):
    """What one generation answers from."""

    view: View
    #: Last offset of each shard that it includes.
    offsets: dict[str, int]
    published_ms: int


class FakeBoard:
    """Rows, identities and generations of one board."""

    def __init__(self, board_id: str, rules: BoardRules, shards: tuple[str, ...] = ("eu-west/0",)) -> None:
        self.board_id, self.rules, self.layout = board_id, rules, Layout(1, shards)
        self.moving: Layout | None = None
        self.offsets = dict.fromkeys(shards, 0)
        self.decide = decider(rules)
        self.rows: dict[str, Row] = {}
        self.seen: dict[tuple[str, str], tuple[bytes, SubmitResult]] = {}
        self.index = RankIndex(direction=rules.direction, ranking=rules.ranking, secondary=rules.secondary)
        self.newest = 0
        self.generations = {0: Generation(self.index.view, dict(self.offsets), 0)}
        self.ready: dict[int, Answer] = {}


class FakeBackend:
    """Implements `regions.backend.Backend`; the lists record what it was asked to do."""

    def __init__(self, region: str = "eu-west") -> None:
        self.region = region
        self.clock_ms = START_MS
        self.offset = 1000
        self.kept: dict[str, FakeBoard] = {}
        #: Boards that are there as soon as somebody waits for them.
        self.coming: dict[str, FakeBoard] = {}
        #: Set to have the next submissions refused, or some of their results unknown.
        self.refusal: NoAuthority | None = None
        #: Event id -> code of the refusal, empty where there was no answer.
        self.unknown_ids: dict[str, str] = {}
        self.missing: list[str] = []
        self.knows_boards = True
        #: Publish as soon as someone waits for it.
        self.publish_on_wait = True
        self.submitted: list[tuple[str, list[Submission], str]] = []
        self.asked: list[Ask] = []
        self.failovers: list[tuple[FailoverRequest, str]] = []
        self.readmitted: list[tuple[str, str]] = []
        self.removals: list[tuple[str, str]] = []
        self.relocations: list[tuple[str, Wish | None, str]] = []
        self.links: list[tuple[LinkRequest, str]] = []
        self.stalls: list[tuple[int, str]] = []
        self.audit_log: list[dict[str, Any]] = []
        #: By shard, as `actors.salvaging.Salvaging.listed` tells it.
        self.orphaned: dict[str, dict[str, Any]] = {"eu-west/0": {"caught_up": True, "total": 0, "entries": [], "orphans": []}}
        self.resubmitted: list[tuple[str | None, str]] = []
        self.signed_off: list[tuple[str, int, str, str]] = []

    @property
    def now_ms(self) -> Callable[[], int]:
        return lambda: self.clock_ms

    def add(self, board_id: str, policy: str = "best_score", *, shards: tuple[str, ...] = ("eu-west/0",), **rules: Any) -> FakeBoard:
        board = FakeBoard(board_id, make_rules(policy, **rules), shards)
        self.kept[board_id] = board
        return board

    async def board_soon(self, board_id: str) -> BoardInfo | None:
        if board_id not in self.kept and board_id in self.coming:
            self.kept[board_id] = self.coming.pop(board_id)
        return self.board(board_id)

    def board(self, board_id: str) -> BoardInfo | None:
        board = self.kept.get(board_id)
        if board is None:
            return None
        return BoardInfo(
            board_id=board_id,
            number=1,
            incarnation=LIFE,
            shard=board.layout.lead,
            layout=None if len(board.layout.shards) == 1 else board.layout,
            moving=board.moving,
            home="eu-west",
            rules=board.rules,
            generation=board.newest,
            count=board.generations[board.newest].view.total,
            created_ms=START_MS,
        )

    def boards(self) -> list[BoardInfo]:
        return [info for info in map(self.board, self.kept) if info is not None]

    async def submit(self, board: BoardInfo, submissions: list[Submission], *, subject: str) -> list[SubmitResult]:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((board.board_id, submissions, subject))
        return [self._decide(self.kept[board.board_id], event) for event in submissions]

    def _decide(self, board: FakeBoard, event: Submission) -> SubmitResult:
        if event.event_id in self.unknown_ids:
            return SubmitResult(Outcome.UNKNOWN, code=self.unknown_ids[event.event_id])
        before = board.seen.get((event.player_id, event.event_id))
        if before is not None:
            return msgspec.structs.replace(
                before[1], outcome=int(Outcome.DUPLICATE if before[0] == event.fingerprint else Outcome.CONFLICT)
            )
        decision = board.decide(board.rows.get(event.player_id), event, self.clock_ms)
        if decision.outcome == Outcome.INVALID:
            return SubmitResult(decision.outcome, code=decision.code, allowed=decision.allowed)
        self.offset += 1
        if decision.row is not None:
            board.rows[event.player_id] = decision.row
        shard = board.layout.shards[slice_of(event.player_id, len(board.layout.shards))]
        board.offsets[shard] = self.offset
        result = SubmitResult(
            int(decision.outcome), decision.value, decision.version, decision.row is not None, EPOCH, self.offset,
            board.newest + 1 if len(board.layout.shards) == 1 else 0, shard=shard,
        )  # fmt: skip
        board.seen[event.player_id, event.event_id] = (event.fingerprint, result)
        return result

    def publish(self, board_id: str) -> None:
        board = self.kept[board_id]
        changes = [Change(who, row.value, row.tie_ms, row.achieved_ms, row.version, row.second) for who, row in board.rows.items()]
        view = board.index.freeze(changes)
        board.newest += 1
        board.generations[board.newest] = Generation(view, dict(board.offsets), self.clock_ms)
        board.ready = {}

    async def ask(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        board = self.kept.get(ask.board_id)
        if board is None:
            raise UnknownBoard("no such board")
        if self.missing:
            raise NotServing("still reading the journal")
        if ask.incarnation not in ("", LIFE):
            raise generation_gone("another life", board.newest, "generation")
        number = board.newest if ask.generation is None else ask.generation
        if ask.at_least is not None and ask.at_least > Position(
            EPOCH, board.generations[number].offsets[ask.at_shard or board.layout.lead]
        ):
            if not self.publish_on_wait or ask.at_least > Position(EPOCH, self.offset):
                raise NotVisibleYet("not published in time", field="at_least")
            self.publish(ask.board_id)
            number = board.newest
        return self._answer(board, number, ask.question)

    def _answer(self, board: FakeBoard, number: int, question: Any) -> Answer:
        start = 0
        if isinstance(question, Top) and question.cursor is not None:
            number, start = _read_cursor(question.cursor)
        generation = board.generations.get(number)
        if generation is None:
            raise generation_gone(f"s{number} is no longer retained", board.newest, "generation")
        view = generation.view
        extra: dict[str, Any] = {}
        if isinstance(question, Top):
            rows = view.page(start, question.limit)
            after = start + question.limit
            extra = {"next": _cursor(number, after) if after < view.total else None, "previous": None}
        elif isinstance(question, Rank | Percentile):
            rows = [_placed(view, question.player_id)]
            extra = {} if isinstance(question, Rank) else {"percentile": 100 * rows[0].position / view.total}
        elif isinstance(question, Nearby):
            _placed(view, question.player_id)
            rows, extra = view.window(question.player_id, question.window), {"player_id": question.player_id}
        else:
            found = view.places(question.players)
            rows = view.subset(question.players) if question.among == "listed" else [row for row in found if row is not None]
            absent = [who for who, row in zip(question.players, found, strict=True) if row is None]
            extra = {"among": question.among, "absent": absent}
        body = {
            "board": board.board_id,
            "generation": f"s{number}",
            "pin": f"s{number}@{LIFE}",
            "epoch": EPOCH,
            "published_at": format_time(generation.published_ms),
            "boundaries": {shard: f"{EPOCH}-{offset}" for shard, offset in generation.offsets.items()},
            "complete": True,
            "exact": True,
            "total": view.total,
            "checksum": "0",
            "entries": [_entry(row, board.rules) for row in rows],
            **extra,
        }
        return Answer(
            board_id=board.board_id,
            incarnation=LIFE,
            lineage="l1",
            generation=number,
            published_ms=generation.published_ms,
            body=msgspec.json.encode(body),
        )

    def ready_top(self, board: BoardInfo, limit: int) -> Answer | None:
        kept = self.kept[board.board_id]
        if limit not in kept.ready:
            kept.ready[limit] = self._answer(kept, kept.newest, Top(limit=limit))
        return kept.ready[limit]

    def status(self) -> dict[str, Any]:
        return {"region": self.region, "shards": []}

    def ready(self) -> tuple[bool, list[str]]:
        return not self.missing, self.missing

    async def create_board(
        self, board_id: str, rules: BoardRules, home: str | None, shards: Wish | None, *, subject: str
    ) -> tuple[BoardInfo, bool]:
        if home not in (None, "eu-west", "us-east", "ap-south"):
            raise Unanswered("no such region", code="unknown_region", field="home", allowed="one of eu-west, us-east, ap-south")
        there = self.kept.get(board_id)
        if there is not None and there.rules != rules:
            raise other_rules(board_id, there.rules, rules)
        if there is None:
            names = shards if isinstance(shards, tuple) else tuple(f"eu-west/{n}" for n in range(shards or 1))
            self.kept[board_id] = FakeBoard(board_id, rules, names)
        info = self.board(board_id)
        assert info is not None
        return info, there is None

    async def remove_board(self, board_id: str, *, subject: str) -> dict[str, Any]:
        del self.kept[board_id]
        self.removals.append((board_id, subject))
        return {"board": board_id, "incarnation": LIFE, "removed": True}

    async def relocate(self, board_id: str, shards: Wish, *, subject: str) -> dict[str, Any]:
        board = self.kept[board_id]
        names = shards if isinstance(shards, tuple) else tuple(f"eu-west/{n}" for n in range(shards))
        if names == board.layout.shards:
            return {"board": board_id, "moving": False, "layout": layout_map(board.layout)}
        board.moving = Layout(board.layout.number + 1, names)
        self.relocations.append((board_id, shards, subject))
        return {"board": board_id, "moving": True, "layout": layout_map(board.moving)}

    async def relocation(self, board_id: str) -> dict[str, Any]:
        board = self.kept[board_id]
        to = None if board.moving is None else layout_map(board.moving)
        return {"board": board_id, "phase": "copying" if to else None, "slices": [], "moving": to is not None,
                "layout": layout_map(board.layout), "to": to}  # fmt: skip

    async def abort_relocation(self, board_id: str, *, subject: str) -> dict[str, Any]:
        board = self.kept[board_id]
        board.moving = None
        self.relocations.append((board_id, None, subject))
        return {"board": board_id, "moving": False, "layout": layout_map(board.layout)}

    async def failover(self, request: FailoverRequest, *, subject: str) -> dict[str, Any]:
        if request.expect_epoch not in (None, EPOCH):
            raise Unanswered("the shard is in epoch 7", code="epoch_moved", epoch=EPOCH, owner="eu-west")
        self.failovers.append((request, subject))
        return {"moved": [{"shard": "eu-west/0", "epoch": EPOCH + 1, "owner": request.to}], "failed": []}

    async def readmit(self, region: str, *, subject: str) -> dict[str, Any]:
        if region not in ("eu-west", "us-east", "ap-south"):
            raise Unanswered("there is no such region", code="unknown_region", field="name", allowed="eu-west, us-east, ap-south")
        if region == self.region:
            raise Unanswered(f"{region} owns eu-west/0", code="readmit_refused", definite=True)
        self.readmitted.append((region, subject))
        return {"readmitted": region, "shards": {"eu-west/0": {"epoch": EPOCH + 1, "owner": self.region}}}

    async def audit(self, what: str, detail: dict[str, Any], shard: str | None, unless_open: str | None, *, subject: str) -> dict[str, Any]:
        (at,) = self._shards(shard or "eu-west/0")
        if unless_open and any(record["what"] == f"{unless_open}.began" for record in self.audit_log):
            raise Busy("a drill is running", drill="d-1", retry_after_ms=5000)
        self.offset += 1
        record = {"shard": at, "epoch": EPOCH, "offset": self.offset, "what": what, "asked_by": subject, "at_ms": self.clock_ms}
        self.audit_log.append({**record, "detail": detail})
        return {"shard": at, "epoch": EPOCH, "offset": self.offset}

    async def audits(self, what: str, limit: int, shard: str | None) -> list[dict[str, Any]]:
        shards = self._shards(shard)
        found = [dict(record) for record in reversed(self.audit_log) if record["shard"] in shards and record["what"].startswith(what)]
        return found[:limit]

    async def orphans(self, shard: str | None, limit: int) -> dict[str, dict[str, Any]]:
        found = {at: copy.deepcopy(self.orphaned[at]) for at in self._shards(shard)}
        return {at: {**told, "orphans": told["orphans"][:limit]} for at, told in found.items()}

    async def resubmit_orphans(self, shard: str | None, *, subject: str) -> dict[str, dict[str, Any]]:
        shards = self._shards(shard)
        self.resubmitted.append((shard, subject))
        return {at: {"outcomes": {"applied": 1}, "entries": []} for at in shards}

    async def sign_off_orphans(self, shard: str, epoch: int, why: str, *, subject: str) -> dict[str, Any]:
        self._shards(shard)
        self.signed_off.append((shard, epoch, why, subject))
        return {"epoch": epoch, "entries": 1, "events": 1, "why": why, "recorded": {"epoch": EPOCH, "offset": self.offset + 1}}

    def _shards(self, shard: str | None) -> list[str]:
        if shard not in (None, *self.orphaned):
            raise Unanswered(f"there is no shard {shard}", code="unknown_shard", field="shard", allowed=", ".join(self.orphaned))
        return list(self.orphaned) if shard is None else [shard]

    async def stall(self, for_ms: int, *, subject: str) -> dict[str, Any]:
        self.stalls.append((for_ms, subject))
        return {"region": self.region, "stalled_ms": for_ms}

    async def set_link(self, request: LinkRequest, *, subject: str) -> dict[str, Any]:
        self.links.append((request, subject))
        return {"links": []}


def _placed(view: View, player_id: str) -> Placed:
    found = view.place(player_id)
    if found is None:
        raise NotRanked(f"{player_id} has no active row")
    return found


def _entry(row: Placed, rules: BoardRules) -> dict[str, Any]:
    entry = {
        "position": row.position,
        "rank": row.rank,
        "player_id": row.player_id,
        "value": format_value(row.value, rules.decimals),
        "achieved_at": format_time(row.achieved_ms),
        "version": row.version,
    }
    return entry if rules.secondary is None else {**entry, "secondary": str(row.second)}


def _cursor(generation: int, offset: int) -> str:
    return base64.urlsafe_b64encode(f"{generation}:{offset}".encode()).decode()


def _read_cursor(cursor: str) -> tuple[int, int]:
    try:
        generation, _, offset = base64.urlsafe_b64decode(cursor.encode()).decode().partition(":")
        return int(generation), int(offset)
    except ValueError as exc:
        raise BadCursor("not one of ours") from exc
