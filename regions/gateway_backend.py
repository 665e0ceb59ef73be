"""What the HTTP edge asks for, answered by this region's actors and, for writes and orders, by the owner's region."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from redis.exceptions import RedisError

from actors.clocks import wall_ms
from actors.messages import Answer, Ask, BoardInfo, NoAuthority, NotServing, SubmitResult, Unanswered, UnknownBoard, WireError, from_wire
from actors.remote import LocalHandles
from boards.errors import InvalidInput
from boards.model import BoardRules, Submission
from boards.times import format_time
from regions.backend import FailoverRequest, LinkRequest
from regions.board_orders import BoardOrders, UnknownRegion, Wish
from regions.bundling import Bundles
from regions.faults import Fault, Faults
from regions.links import HttpLinks, NotSent
from regions.process_specs import GatewaySpec
from regions.routing import HOLD_S, OF_THE_BOARD, Authorities, Directory, ShardRoute
from regions.spreading import BoardWrites

log = logging.getLogger("laurel.gateway")

TOP_READY = 100
STATUS_S = 0.3
#: An authority that was not heard for so long is away, for the word that a refused write gets.
AWAY_MS = 1000
#: How long a write waits for news of a board that is not known here, in seconds, and how many may.
NEW_BOARD_S = 1.0
EXPECTING = 256
#: Shards that one order moves at the same time.
MOVES = 4


class UnknownShard(Unanswered):
    """No shard of that name."""

    code = "unknown_shard"


class FailoverRefused(Unanswered):
    """The shard was not moved; `definite` tells whether that is certain."""

    code = "failover_refused"


class ReadmitRefused(Unanswered):
    """The region was not readmitted; unless `definite`, its store may have been emptied all the same."""

    code = "readmit_refused"


class GatewayBackend:
    """See the module docstring; the port is `regions.backend.Backend`."""

    def __init__(
        self,
        spec: GatewaySpec,
        *,
        handles: LocalHandles,
        links: HttpLinks,
        faults: Faults,
        directory: Directory,
        silent_ms: Callable[[str], int],
    ) -> None:
        self._spec, self._handles, self._links = spec, handles, links
        self._faults, self._directory, self._silent_ms = faults, directory, silent_ms
        self._boards: dict[str, BoardInfo] = {}
        self._tops: dict[str, Answer] = {}
        self._serving = self._knows_boards = False
        self._news_at = 0.0
        self._news = asyncio.Event()
        #: Requests that wait for a board which is not known here.
        self._expecting = 0
        self._shard_status: dict[str, dict[str, Any]] = {}
        self._replica_status: dict[str, Any] = {}
        authorities = Authorities(spec.region, directory, handles, links, call_timeout_s=spec.ack_timeout_ms / 1000 + 2)
        routes = {shard: ShardRoute(shard, authorities, on_hold=self._on_hold) for shard in spec.shards}
        self._writes = BoardWrites(routes, Bundles(routes, authorities), self._boards.get, self._hear_news)
        self._board_orders = BoardOrders(spec.places, self._boards, self._hear_news, self._order_owner)

    @property
    def region(self) -> str:
        """Name of this region."""
        return self._spec.region

    @property
    def now_ms(self) -> Callable[[], int]:
        """Wall clock."""
        return wall_ms

    # -- what it keeps up with ----------------------------------------------------------------------------------

    async def follow_replica(self) -> None:
        """Hold the replica's news: boards, newest first pages, owners."""
        since = 0
        #: Boards told since it was last asked for everything, and whether that is over.
        told: set[str] = set()
        complete = False
        while True:
            try:
                news = await self._handles.news(since)
            except TimeoutError:
                since, self._serving, told, complete = 0, False, set(), False
                await asyncio.sleep(0.1)
                continue
            if news.seq < since:  # of a replica that began anew: what it told before that may be missing below
                since, told, complete = 0, set(), False
                continue
            since = news.seq
            for board_id in news.removed:
                self._forget(board_id)
            for board in news.boards:
                self._boards[board.board_id] = board
            for top in news.tops:
                self._tops[top.board_id] = top
            if not complete:
                told.difference_update(news.removed)
                told.update(board.board_id for board in news.boards)
            if news.serving and not complete:  # all boards are told: what is not among them was removed while nobody listened
                for board_id in self._boards.keys() - told:
                    self._forget(board_id)
                complete = True
            for shard, (epoch, owner) in news.owners.items():
                self._directory.learn(shard, epoch, owner)
            self._serving, self._news_at = news.serving, time.monotonic()
            self._knows_boards = self._knows_boards or news.serving
            event, self._news = self._news, asyncio.Event()
            event.set()

    def _forget(self, board_id: str) -> None:
        self._boards.pop(board_id, None)
        self._tops.pop(board_id, None)

    async def _hear_news(self, timeout_s: float) -> None:
        """Wait for the replica's next news, or until the time is over."""
        news = self._news
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), timeout_s)

    async def follow_status(self) -> None:
        """Hold what the actors say of themselves."""
        while True:
            told = await self._handles.shard_status()
            self._shard_status = {shard: told.get(shard, {"role": "unreachable"}) for shard in self._spec.shards}
            try:
                self._replica_status = await self._handles.replica_status()
            except TimeoutError:
                self._replica_status = {}
            await asyncio.sleep(STATUS_S)

    # -- reading ------------------------------------------------------------------------------------------------

    def board(self, board_id: str) -> BoardInfo | None:
        """See the port."""
        return self._boards.get(board_id)

    async def board_soon(self, board_id: str) -> BoardInfo | None:
        """See the port."""
        board = self._boards.get(board_id)
        if board is not None or not self._knows_boards:
            return board
        if self._expecting >= EXPECTING:
            raise NotServing(f"{self.region} does not know {board_id}, and too many requests wait for boards that it does not know")
        self._expecting += 1
        try:
            deadline = time.monotonic() + NEW_BOARD_S
            while board is None and (left := deadline - time.monotonic()) > 0:
                await self._hear_news(left)
                board = self._boards.get(board_id)
        finally:
            self._expecting -= 1
        return board

    def boards(self) -> list[BoardInfo]:
        """See the port."""
        return list(self._boards.values())

    @property
    def knows_boards(self) -> bool:
        """See the port."""
        return self._knows_boards

    async def ask(self, ask: Ask) -> Answer:
        """See the port."""
        try:
            return await self._handles.ask(ask)
        except TimeoutError as error:
            raise NotServing(f"the replica of {self.region} does not answer: {error}") from error

    def ready_top(self, board: BoardInfo, limit: int) -> Answer | None:
        """See the port."""
        return self._tops.get(board.board_id) if limit == TOP_READY and self._serving else None

    def ready(self) -> tuple[bool, list[str]]:
        """See the port."""
        missing = []
        if not self._serving:
            missing.append("the read replica is still reading its journal")
        for shard, status in self._shard_status.items():
            if status.get("role") == "unreachable":
                missing.append(f"the actor of {shard} does not answer")
            owner = self._directory.owner(shard)[1]
            if not owner:
                missing.append(f"no region owns {shard} yet")
            elif owner == self.region and not status.get("serving"):
                missing.append(f"{shard} is owned here and does not serve yet: {status.get('why', 'no word')}")
        if not self._shard_status:
            missing.append("the shard actors have not answered yet")
        return not missing, missing

    def status(self) -> dict[str, Any]:
        """See the port."""
        shards = {}
        for shard in self._spec.shards:
            epoch, owner = self._directory.owner(shard)
            shards[shard] = {
                **self._shard_status.get(shard, {}),
                "known_epoch": epoch,
                "known_owner": owner,
                "on_region_loss": "hold" if shard in self._spec.holding else "promote",
                "authority_silent_ms": 0 if owner == self.region else self._silent_ms(shard),
                "replica": self._replica_status.get(shard, {}),
            }
        return {
            "region": self.region,
            "regions": {name: {"url": url} for name, url in self._spec.urls.items()},
            "shards": shards,
            "links": msgspec.to_builtins(self._faults.table),
            "at_ms": wall_ms(),
        }

    # -- writing ------------------------------------------------------------------------------------------------

    async def submit(self, board: BoardInfo, submissions: list[Submission], *, subject: str) -> list[SubmitResult]:
        """See the port."""
        return await self._writes.submit(board, submissions, subject)

    def _on_hold(self, shard: str) -> str:
        """Why writes to a shard wait for a person, or "" while its authority is heard, or where the others promote one of theirs."""
        owner, silent_ms = self._directory.owner(shard)[1], self._silent_ms(shard)
        if shard not in self._spec.holding or owner in ("", self.region) or silent_ms < AWAY_MS:
            return ""
        heard = format_time(wall_ms() - silent_ms)
        return (
            f"{owner} owns {shard} and was last heard at {heard}, {silent_ms / 1000:.1f} s ago; "
            "writes wait until it returns or an operator fails over, reads go on"
        )

    # -- operating ------------------------------------------------------------------------------------------------

    async def _order(self, region: str, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order to a region's shard actor. Raises NotSent, TimeoutError, or what the order raised."""
        if region == self.region:
            reply = await self._handles.operate(shard, order)
        else:
            raw = await self._links.call(region, "operate", msgspec.msgpack.encode({"shard": shard, "order": order}), timeout_s=30.0)
            reply = msgspec.msgpack.decode(raw)
        if "error" in reply:
            raise from_wire(msgspec.convert(reply["error"], WireError))
        return dict(reply)

    async def create_board(
        self, board_id: str, rules: BoardRules, home: str | None, shards: Wish | None, *, subject: str
    ) -> tuple[BoardInfo, bool]:
        """See the port."""
        if not self._knows_boards:
            raise NotServing(f"{self.region} has just started and does not know yet whether there is such a board")
        return await self._board_orders.create(board_id, rules, home, shards, subject=subject)

    async def remove_board(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """See the port."""
        return await self._board_orders.remove(board_id, subject=subject)

    async def relocate(self, board_id: str, shards: Wish, *, subject: str) -> dict[str, Any]:
        """See the port."""
        return await self._board_orders.relocate(board_id, shards, subject=subject)

    async def relocation(self, board_id: str) -> dict[str, Any]:
        """See the port."""
        return await self._board_orders.relocation(board_id)

    async def abort_relocation(self, board_id: str, *, subject: str) -> dict[str, Any]:
        """See the port."""
        return await self._board_orders.abort(board_id, subject=subject)

    async def _order_owner(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + HOLD_S
        while True:
            epoch, owner = self._directory.owner(shard)
            error: Unanswered
            try:
                return await self._order(owner or self.region, shard, order)
            except NotSent:
                error = NoAuthority(f"{owner} does not answer", code="no_authority", definite=True)
            except TimeoutError:
                error = NoAuthority(f"no answer from {owner or self.region} in time", code="unknown", definite=False)
            except NoAuthority as refusal:
                if refusal.code in OF_THE_BOARD:
                    raise
                error = refusal
                if refusal.owner:
                    self._directory.learn(shard, refusal.epoch, refusal.owner)
            if time.monotonic() > deadline:
                raise error
            if self._directory.owner(shard) == (epoch, owner):
                await self._directory.news(0.1)

    async def audit(self, what: str, detail: dict[str, Any], shard: str | None, unless_open: str | None, *, subject: str) -> dict[str, Any]:
        """See the port."""
        (at,) = self._named(shard or next(iter(self._spec.shards)))
        order = {"do": "audit", "what": what, "asked_by": subject, "detail": detail, "unless_open": unless_open}
        reply = await self._order_owner(at, order)
        return {"shard": at, "epoch": reply["epoch"], "offset": reply["offset"]}

    async def audits(self, what: str, limit: int, shard: str | None) -> list[dict[str, Any]]:
        """See the port."""
        found: list[dict[str, Any]] = []
        for at in self._named(shard):
            reply = await self._order_here(at, {"do": "audits", "what": what, "limit": limit})
            found += [{"shard": at, **record} for record in reply["records"]]
        return sorted(found, key=lambda record: -record["at_ms"])[:limit]  # stable: the places in one shard stay in order

    async def orphans(self, shard: str | None, limit: int) -> dict[str, dict[str, Any]]:
        """See the port."""
        return {at: _told(await self._order_here(at, {"do": "orphans", "limit": limit})) for at in self._named(shard)}

    async def resubmit_orphans(self, shard: str | None, *, subject: str) -> dict[str, dict[str, Any]]:
        """See the port."""
        log.warning("%s has the orphans of %s sent again", subject, shard or "all shards")
        return {at: _told(await self._order_here(at, {"do": "resubmit_orphans"})) for at in self._named(shard)}

    async def sign_off_orphans(self, shard: str, epoch: int, why: str, *, subject: str) -> dict[str, Any]:
        """See the port."""
        (at,) = self._named(shard)
        return _told(await self._order_here(at, {"do": "sign_off_orphans", "epoch": epoch, "why": why, "asked_by": subject}))

    def _named(self, shard: str | None) -> list[str]:
        """One shard, or all of them."""
        if shard is not None and shard not in self._spec.shards:
            raise UnknownShard(f"there is no shard {shard}", field="shard", allowed=", ".join(self._spec.shards))
        return [shard] if shard is not None else list(self._spec.shards)

    async def _order_here(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order about this region's store to this region's actor."""
        try:
            return await self._order(self.region, shard, order)
        except TimeoutError as error:
            raise Unanswered(f"the actor of {shard} does not answer: {error}", code="unavailable", definite=False) from error

    async def failover(self, request: FailoverRequest, *, subject: str) -> dict[str, Any]:
        """See the port."""
        if request.to not in self._spec.urls:
            raise UnknownRegion(f"there is no region {request.to}", field="to", allowed=", ".join(self._spec.urls))
        shards = self._shards_of(request)
        if request.expect_epoch is not None and len(shards) > 1:
            raise InvalidInput(code="invalid", field="expect_epoch", allowed="left out where several shards move")
        if not request.force and (elsewhere := [s for s in shards if self._directory.owner(s)[1] != request.to]):
            shards = elsewhere  # the others are where they shall go; if all are, the first says so
        turns = asyncio.Semaphore(MOVES)

        async def move(shard: str) -> dict[str, Any] | Unanswered:
            async with turns:
                try:
                    return await self._move(shard, request, subject)
                except Unanswered as error:
                    return error

        told = dict(zip(shards, await asyncio.gather(*map(move, shards)), strict=True))
        moved = [answer for answer in told.values() if isinstance(answer, dict)]
        failed = {shard: error for shard, error in told.items() if isinstance(error, Unanswered)}
        if failed and not moved:
            raise next(iter(failed.values()))
        return {
            "moved": moved,
            "failed": [{"shard": s, "code": e.code, "detail": e.detail, "definite": e.definite} for s, e in failed.items()],
        }

    def _shards_of(self, request: FailoverRequest) -> list[str]:
        if request.board is not None:
            board = self._boards.get(request.board)
            if board is None:
                raise UnknownBoard(f"there is no board {request.board}")
            return list(board.layout_in_effect.shards)
        if request.from_region is not None:
            if request.from_region not in self._spec.urls:
                raise UnknownRegion(f"there is no region {request.from_region}", field="from", allowed=", ".join(self._spec.urls))
            return [s for s in self._spec.shards if self._directory.owner(s)[1] == request.from_region]
        return self._named(request.shard)

    async def _move(self, shard: str, request: FailoverRequest, subject: str) -> dict[str, Any]:
        began = time.monotonic()
        epoch, owner = self._directory.owner(shard)
        if request.expect_epoch is not None and request.expect_epoch != epoch:
            raise FailoverRefused(f"{shard} is in epoch {epoch} of {owner}, not {request.expect_epoch}", code="epoch_moved")
        order: dict[str, Any] = {"do": "handover", "asked_by": subject}
        if request.force:
            expect = [epoch, owner] if epoch and request.expect_epoch is not None else None
            order = {"do": "activate", "cause": "forced", "asked_by": subject, "expect": expect}
        if owner == request.to and not request.force:
            raise FailoverRefused(f"{request.to} owns {shard} already", code="failover_refused")
        try:
            reply = await self._order(request.to, shard, order)
        except NotSent as error:
            raise FailoverRefused(f"{request.to} does not answer: {error}", definite=True) from error
        except TimeoutError as error:
            raise FailoverRefused(f"no answer from {request.to} in time; look at the status", definite=False) from error
        if not reply["ok"]:
            code = "epoch_moved" if reply["code"] == "moved" else "failover_refused"
            raise FailoverRefused(f"{shard}: {reply['detail']}", code=code, reason=reply["code"])
        self._directory.learn(shard, reply["epoch"], reply["owner"])
        return {
            "shard": shard,
            "boards": sorted(b.board_id for b in self._boards.values() if shard in b.layout_in_effect.shards),
            "from": {"epoch": epoch, "owner": owner},
            "epoch": reply["epoch"],
            "owner": reply["owner"],
            "cause": "forced" if request.force else "handover",
            "duration_ms": round((time.monotonic() - began) * 1000),
        }

    async def readmit(self, region: str, *, subject: str) -> dict[str, Any]:
        """See the port."""
        if region not in self._spec.urls:
            raise UnknownRegion(f"there is no region {region}", field="name", allowed=", ".join(self._spec.urls))
        for shard in self._spec.shards:
            if self._directory.owner(shard)[1] == region:
                raise ReadmitRefused(f"{region} owns {shard}: move it to another region first", definite=True)
        done = {}
        for shard in self._spec.shards:
            reply = await self._order_owner(shard, {"do": "readmit", "region": region, "asked_by": subject})
            if not reply["ok"]:
                raise ReadmitRefused(f"{shard}: {reply['detail']}", definite=False, reason=reply["code"])
            done[shard] = {"epoch": reply["epoch"], "owner": reply["owner"]}
        return {"readmitted": region, "shards": done}

    async def stall(self, for_ms: int, *, subject: str) -> dict[str, Any]:
        """See the port."""
        log.warning("%s stalls the store of %s for %s ms", subject, self.region, for_ms)
        try:
            await self._faults.stall(for_ms)
        except (RedisError, OSError, TimeoutError) as error:
            detail = f"the store of {self.region} does not take the order: {error}"
            raise Unanswered(detail, code="unavailable", definite=not isinstance(error, TimeoutError)) from error
        return {"region": self.region, "stalled_ms": for_ms}

    async def set_link(self, request: LinkRequest, *, subject: str) -> dict[str, Any]:
        """See the port."""
        if request.peer not in self._spec.peers:
            raise UnknownRegion(f"{request.peer} is not another region", field="peer", allowed=", ".join(self._spec.peers))
        until = wall_ms() + request.for_ms if request.for_ms else 0
        fault = None if request.mode == "clear" else Fault(mode=request.mode, delay_ms=request.delay_ms, until_ms=until)
        log.warning("%s sets the link to %s %s: %s", subject, request.peer, request.direction, request.mode)
        try:
            table = await self._faults.set(request.peer, request.direction, fault)
        except (RedisError, OSError) as error:
            detail = f"the store of {self.region}, which keeps the switch, does not answer: {error}"
            raise Unanswered(detail, code="unavailable", definite=False) from error
        return {"region": self.region, "links": msgspec.to_builtins(table)}


def _told(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name != "ok"}
