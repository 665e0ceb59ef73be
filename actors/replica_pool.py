"""Several read replicas of a region as one: who is asked, who is left out, and what is never told twice in the wrong order.

Each replica holds everything and follows the same journals on its own, so one is a little ahead of another. What a
gateway has shown it never takes back: news of an older generation are dropped, and a question about the newest one is
put about the newest that was shown, or answered from a newer one. Generations of different lives of a board (its
incarnation) or of the cluster (its lineage) have no order by number: the life that a replica has left for another is over.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from actors.asking import JoinedAsks, answers_at_once
from actors.messages import (
    Answer,
    Ask,
    BoardInfo,
    GenerationGone,
    NotServing,
    NotVisibleYet,
    Unanswered,
    UnknownBoard,
    WireError,
    from_wire,
)
from actors.replica import News

log = logging.getLogger("laurel.gateway")

#: Seconds for an answer where another replica can be asked, and where none can; the question's own wait comes on top.
FIRST_S, LAST_S = 1.5, 3.0
#: Pause before a replica that failed is asked for a sign of life, or for its news, again.
AGAIN_S = 0.1
#: Lives of one board that are remembered as over, and boards that are remembered as removed: see `actors.replica.REMOVED`.
LIVES, REMOVED = 8, 4096

#: Incarnation and lineage: generation numbers have an order within one life.
Life = tuple[str, str]
#: When a life began: creation of the board, number of its layout, epoch of the shard that leads it. It decides between lives
#: that nobody was seen to change. Epochs have an order within one shard only, which is what one layout has as its lead.
Began = tuple[int, int, int]


class ReplicaCalls(Protocol):
    """One replica. Each call raises TimeoutError when there is no answer in time, or the actor is gone."""

    async def ask(self, asks: list[Ask], timeout_s: float) -> list[Answer | WireError]:
        """One answer, or error as a value, for each question, in order."""
        ...

    async def news(self, since: int) -> News:
        """See `actors.replica.ReplicaActor.news`."""
        ...

    async def status(self) -> dict[str, Any]:
        """`node` (its number) and `shards` (see `actors.replica.ReplicaActor.status`)."""
        ...


@dataclass(slots=True)
class _Newest:
    """The newest generation of a board that was told, or answered."""

    life: Life
    generation: int
    began: Began


@dataclass(slots=True)
class _Shown:
    """A board as the gateway is told of it. `seq` is when it changed, `by` which replica told it."""

    seq: int
    info: BoardInfo
    top: Answer
    by: str


@dataclass(slots=True)
class _Member:
    name: str
    calls: ReplicaCalls
    joined: JoinedAsks | None = None
    #: Questions under way.
    waiting: int = 0
    turn: int = 0
    #: It failed to answer, and has not given a sign of life since.
    out: bool = False
    #: By its own word, in its newest news.
    serving: bool = False
    #: It began anew, or nothing was heard of it yet: what it does not tell until it serves is not there.
    fresh: bool = True
    told: dict[str, tuple[Life, int]] = field(default_factory=dict)
    #: Told while it was not serving: what it says then may be of long ago.
    pending: dict[str, tuple[BoardInfo, Answer] | None] = field(default_factory=dict)

    def forget(self) -> None:
        """It begins anew: what it told is worth nothing."""
        self.serving, self.fresh = False, True
        self.told.clear()
        self.pending.clear()

    def has(self, board_id: str, wanted: int) -> bool:
        """Whether it is well and has told a generation of `wanted` or later."""
        return self.serving and not self.out and self.told.get(board_id, (("", ""), -1))[1] >= wanted


class ReplicaPool:
    """See the module docstring. It follows the replicas' news from the first call of `news` on."""

    def __init__(self, replicas: Mapping[str, ReplicaCalls], *, first_s: float = FIRST_S) -> None:
        """`replicas` by name, at least one. `first_s`: for an answer while another replica can be asked."""
        self._members = [_Member(name, calls) for name, calls in replicas.items()]
        for member in self._members:
            member.joined = JoinedAsks(functools.partial(self._call, member, first_s if self._several else LAST_S))
        self._turn = 0
        self._newest: dict[str, _Newest] = {}
        self._over: dict[str, deque[Life]] = {}
        #: In the order of `seq`.
        self._shown: dict[str, _Shown] = {}
        self._removed: dict[str, int] = {}
        #: Removals up to this number are not remembered.
        self._forgotten = 0
        self._owners: dict[str, tuple[int, str]] = {}
        self._seq = 0
        self._serving = False
        self._changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def _several(self) -> bool:
        return len(self._members) > 1

    async def close(self) -> None:
        """Follow no longer."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # -- questions ------------------------------------------------------------------------------------------------

    def is_newest(self, answer: Answer) -> bool:
        """Whether nothing newer about its board was told or answered. In memory, well below a microsecond."""
        newest = self._newest.get(answer.board_id)
        return newest is None or (newest.generation <= answer.generation and newest.life == (answer.incarnation, answer.lineage))

    async def ask(self, ask: Ask) -> Answer:
        """Answer from a replica that is well and the least busy; from another where that one cannot, as often as there are some.

        A question that does not wait is asked a second time when there is no answer; one that waits raises TimeoutError at once.
        """
        at_once = answers_at_once(ask)
        shown = self._newest.get(ask.board_id)
        #: As it is now: what is shown while this is under way binds later questions, not this one.
        floor = (shown.life, shown.generation) if shown and at_once and self._several else None
        refusal: Unanswered | None = None
        unheard = 0
        for member in self._in_order(ask.board_id, floor[1] if floor else ask.generation or 0):
            try:
                answer = await self._ask_one(member, ask if refusal is None else msgspec.structs.replace(ask, wait_ms=0), at_once, floor)
            except TimeoutError:
                self._leave_out(member)
                unheard += 1
                if not at_once or unheard > 1 or not self._several:
                    raise
            except (NotServing, UnknownBoard, GenerationGone, NotVisibleYet) as error:
                if refusal is None or isinstance(refusal, NotServing):
                    refusal = error
            else:
                if answer is not None:
                    return answer
        if refusal is None and unheard:
            raise TimeoutError("no replica of this region answers")
        if refusal is None or (floor is not None and isinstance(refusal, NotVisibleYet)):
            raise NotServing("the replica that has the newest generation does not answer")
        raise refusal

    def _in_order(self, board_id: str, wanted: int) -> list[_Member]:
        """Whom to ask, one after another: first those that have it; those that do not answer only where there are no others."""
        if not self._several:
            return self._members
        found = [member for member in self._members if not member.out] or self._members
        found = sorted(found, key=lambda m: (not m.has(board_id, wanted), not m.serving, m.waiting, m.turn))
        self._turn += 1
        found[0].turn = self._turn
        return found

    async def _ask_one(self, member: _Member, ask: Ask, at_once: bool, floor: tuple[Life, int] | None) -> Answer | None:
        """None: what it has is older than what was shown. Raises what it refuses with."""
        if floor is not None:
            pinned = msgspec.structs.replace(ask, generation=floor[1], wait_ms=0)
            try:
                answer = await self._put(member, pinned, joined=True)
            except GenerationGone:  # it began anew, and holds only later ones
                answer = await self._put(member, ask, joined=True)
        else:
            answer = await self._put(member, ask, joined=at_once)
        return answer if self._take_answer(member, answer, floor) else None

    async def _put(self, member: _Member, ask: Ask, *, joined: bool) -> Answer:
        member.waiting += 1
        try:
            if joined and member.joined is not None:
                return await member.joined.ask(ask)
            (reply,) = await self._call(member, LAST_S, [ask])
        finally:
            member.waiting -= 1
        if isinstance(reply, Answer):
            return reply
        raise from_wire(reply)

    async def _call(self, member: _Member, timeout_s: float, asks: list[Ask]) -> list[Answer | WireError]:
        if member.out and not all(other.out for other in self._members):
            raise TimeoutError(f"{member.name} was left out while these questions waited for it")
        return await member.calls.ask(asks, timeout_s + max(ask.wait_ms for ask in asks) / 1000)

    def _take_answer(self, member: _Member, answer: Answer, floor: tuple[Life, int] | None) -> bool:
        """Whether it may be shown; it is the newest that was shown from then on, if it is newer."""
        life = (answer.incarnation, answer.lineage)
        newest = self._newest.get(answer.board_id)
        if newest is None:
            if life not in self._over.get(answer.board_id, ()):  # nobody has told of it yet
                self._newest[answer.board_id] = _Newest(life, answer.generation, (0, answer.layout, 0))
            return True
        if life != newest.life:
            if life in self._over.get(answer.board_id, ()):
                return floor is None
            if member.told.get(answer.board_id, (life, 0))[0] != newest.life or _before_the_move(life, answer.layout, newest):
                return floor is None
            self._begin(answer.board_id, life, answer.generation, newest.began)
        elif answer.generation > newest.generation:
            newest.generation = answer.generation
        return floor is None or life != floor[0] or answer.generation >= floor[1]

    def _leave_out(self, member: _Member) -> None:
        """Ask it nothing until it gives a sign of life."""
        if not self._several or member.out:
            return
        member.out = True
        log.warning("%s does not answer and is left out", member.name)
        self._keep(f"probe {member.name}", self._probe(member))

    async def _probe(self, member: _Member) -> None:
        while member.out:
            try:
                await member.calls.status()
                member.out = False
                log.warning("%s answers again", member.name)
            except TimeoutError:
                await asyncio.sleep(AGAIN_S)

    def _keep(self, name: str, work: Any) -> None:
        self._tasks[name] = asyncio.get_running_loop().create_task(work, name=name)

    # -- news -----------------------------------------------------------------------------------------------------

    async def news(self, since: int, timeout_s: float = 5.0) -> News:
        """What changed after `since` (0: everything), of all replicas: for each board the newest generation that any of them serves.

        Boards move forward only. Waits until there is something, at most so long.
        """
        for member in self._members:
            if f"follow {member.name}" not in self._tasks:
                self._keep(f"follow {member.name}", self._follow(member))
        if since >= self._seq:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        self._changed.clear()
        if 0 < since < self._forgotten:  # as one that has begun anew
            return News(seq=0, boards=[], tops=[], owners=dict(self._owners), serving=self._serving)
        fresh = []
        for shown in reversed(self._shown.values()):
            if shown.seq <= since:
                break
            fresh.append(shown)
        return News(
            seq=self._seq,
            boards=[shown.info for shown in reversed(fresh)],
            tops=[shown.top for shown in reversed(fresh)],
            removed=[board_id for board_id, seq in self._removed.items() if seq > since],
            owners=dict(self._owners),
            serving=self._serving,
        )

    async def _follow(self, member: _Member) -> None:
        since = 0
        while True:
            try:
                news = await member.calls.news(since)
            except TimeoutError:
                since = 0
                member.forget()
                self._leave_out(member)
                self._tell(False)
                await asyncio.sleep(AGAIN_S)
                continue
            if news.seq < since:  # it began anew: what it told before that may be missing below
                since = 0
                member.forget()
                continue
            since = news.seq
            self._merge(member, news)

    def _merge(self, member: _Member, news: News) -> None:
        member.pending |= dict.fromkeys(news.removed)
        member.pending |= {info.board_id: (info, top) for info, top in zip(news.boards, news.tops, strict=True)}
        for shard, (epoch, owner) in news.owners.items():
            if epoch > self._owners.get(shard, (0, ""))[0]:
                self._owners[shard] = (epoch, owner)
        member.serving = news.serving
        if news.serving:
            pending, member.pending = member.pending, {}
            for board_id, told in pending.items():
                if told is None:
                    self._remove(member, board_id)
                else:
                    self._show(member, *told, epoch=news.owners.get(told[1].shard or told[0].shard, (0, ""))[0])
            if member.fresh:
                member.fresh = False
                for board_id in [b for b in self._shown if not any(b in other.told for other in self._members)]:
                    self._drop(board_id)
        self._tell(True)

    def _tell(self, changed: bool) -> None:
        serving = any(member.serving for member in self._members)
        if changed or serving != self._serving:
            self._seq, self._serving = self._seq + 1, serving
            self._changed.set()

    def _show(self, member: _Member, info: BoardInfo, top: Answer, *, epoch: int) -> None:
        board_id, life = info.board_id, (top.incarnation, top.lineage)
        if not self._is_news(member, board_id, life, top.generation, (info.created_ms, top.layout, epoch)):
            return
        before = self._shown.get(board_id)
        if before is not None and (before.top.incarnation, before.top.lineage, before.top.generation) == (*life, top.generation):
            if before.by != member.name and _layouts(info) < _layouts(before.info):
                return
            top = before.top
        self._shown.pop(board_id, None)
        self._removed.pop(board_id, None)
        self._shown[board_id] = _Shown(self._seq + 1, info, top, member.name)

    def _is_news(self, member: _Member, board_id: str, life: Life, generation: int, began: Began) -> bool:
        """Note what a replica told of a board; whether it is at least as new as what was shown."""
        before, member.told[board_id] = member.told.get(board_id), (life, generation)
        newest = self._newest.get(board_id)
        over = self._over.get(board_id, ())
        if newest is None:
            if life in over:
                return False
            self._newest[board_id] = _Newest(life, generation, began)
            return True
        if life == newest.life:
            shown = self._shown.get(board_id)
            newest.generation, newest.began = max(newest.generation, generation), max(newest.began, began)
            return shown is None or generation >= shown.top.generation or (shown.top.incarnation, shown.top.lineage) != life
        if before is not None and before[0] == newest.life:  # it has left the life that is shown for this one
            if life in over and _before_the_move(life, began[1], newest):
                return False  # it is being read again there
            self._begin(board_id, life, generation, began)
            return True
        if life in over:
            return False
        if began > newest.began:
            self._begin(board_id, life, generation, began)
            return True
        self._end(board_id, life)
        return False

    def _begin(self, board_id: str, life: Life, generation: int, began: Began) -> None:
        newest = self._newest.get(board_id)
        if newest is not None:
            self._end(board_id, newest.life)
        if life in (over := self._over.get(board_id, deque())):
            over.remove(life)
        self._newest[board_id] = _Newest(life, generation, began)

    def _end(self, board_id: str, life: Life) -> None:
        over = self._over.setdefault(board_id, deque(maxlen=LIVES))
        if life not in over:
            over.append(life)

    def _remove(self, member: _Member, board_id: str) -> None:
        told = member.told.pop(board_id, None)
        newest = self._newest.get(board_id)
        if newest is not None and told is not None and told[0] == newest.life:
            self._drop(board_id)
        if board_id not in self._newest and not any(board_id in other.told for other in self._members):
            self._over.pop(board_id, None)

    def _drop(self, board_id: str) -> None:
        newest = self._newest.pop(board_id, None)
        if newest is not None:
            self._end(board_id, newest.life)
        self._shown.pop(board_id, None)
        self._removed.pop(board_id, None)
        self._removed[board_id] = self._seq + 1
        if len(self._removed) > REMOVED:
            self._forgotten = self._removed.pop(next(iter(self._removed)))

    # -- status ---------------------------------------------------------------------------------------------------

    async def status(self) -> "PoolStatus":
        """What each replica says of itself; one that does not answer is there with nothing but its name."""
        said = await asyncio.gather(*(self._status_of(member) for member in self._members))
        shards: dict[str, dict[str, Any]] = {}
        for _, facts in sorted(zip(self._members, said, strict=True), key=lambda pair: pair[0].serving and not pair[0].out):
            for shard, told in facts.get("shards", {}).items():
                if shard not in shards or told.get("applied", 0) >= shards[shard].get("applied", 0):
                    shards[shard] = told
        return PoolStatus(shards=shards, replicas=[_facts(member, facts) for member, facts in zip(self._members, said, strict=True)])

    async def _status_of(self, member: _Member) -> dict[str, Any]:
        try:
            return await member.calls.status()
        except TimeoutError:
            return {}


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`shards`: of the most advanced replica, as before there were several. `replicas`: in a line each."""

    shards: dict[str, dict[str, Any]]
    replicas: list[dict[str, Any]]


def _before_the_move(life: Life, layout: int, newest: _Newest) -> bool:
    """Whether it is of an earlier layout of the board whose newest generation this is."""
    return life[0] == newest.life[0] and layout < newest.began[1]


def _layouts(info: BoardInfo) -> tuple[int, int]:
    return (info.layout_in_effect.number, info.moving.number if info.moving else 0)


#: Boards that a replica's line names: those with the most generations.
BUSIEST = 4


def _facts(member: _Member, said: dict[str, Any]) -> dict[str, Any]:
    shards = said.get("shards", {})
    boards = {name: facts["generation"] for told in shards.values() for name, facts in (told.get("boards") or {}).items()}
    busiest = sorted(boards.items(), key=lambda item: (-item[1], item[0]))[:BUSIEST]
    return {
        "replica": member.name,
        "node": said.get("node"),
        "answers": bool(said),
        "serving": bool(shards) and all(told.get("serving") for told in shards.values()),
        "left_out": member.out,
        "applied": {shard: told.get("applied") for shard, told in shards.items()},
        "generations": dict(busiest),
    }
