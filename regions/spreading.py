"""Writes to a board, wherever its slices live: events go to the shards of their players, results come back in the order of the request.

A board of one slice takes the direct way. What moves or is removed under a request is looked up again, for as long as a
request may be held; event identities go along with their players, so that sending again counts nothing twice.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from actors.messages import Batch, BoardInfo, NoAuthority, SubmitResult, Unanswered, UnknownBoard
from boards.model import Layout, Outcome, Submission
from boards.slicing import slice_of
from regions.bundling import Bundles
from regions.routing import HOLD_S, ShardRoute

_UNKNOWN = int(Outcome.UNKNOWN)
#: How long to wait for news of a move before the shards are asked again.
_LOOK_S = 0.05


class BoardWrites:
    """The ways of one gateway to all boards. `current` is a board as known here now; `news` waits until that may have changed."""

    def __init__(
        self,
        routes: Mapping[str, ShardRoute],
        bundles: Bundles,
        current: Callable[[str], BoardInfo | None],
        news: Callable[[float], Awaitable[None]],
    ) -> None:
        self._routes, self._bundles, self._current, self._news = routes, bundles, current, news

    async def submit(self, board: BoardInfo, submissions: list[Submission], subject: str) -> list[SubmitResult]:
        """One result each, in order; `shard` is filled in unless the board has one slice and stayed where it was.

        An event that found no authority, while others did, is `UNKNOWN`, with the `code` of the refusal if that was definite:
        `moving` also where a shard has no such slice for as long as the request may be held, and the board is still shown here.

        Raises:
            NoAuthority: all of them found none. Definite: nothing was appended anywhere.
            UnknownBoard: the board is shown here no more, or was made again; what was decided before that is gone with it.
        """
        layout = board.layout_in_effect
        if len(layout.shards) == 1:
            try:
                return await self._routes[layout.lead].submit(Batch(board.board_id, subject, submissions, board.incarnation))
            except (NoAuthority, UnknownBoard) as error:
                if not _elsewhere(error):
                    raise
                return await self._spread(_Request(board, submissions, subject, layout, error))
        return await self._spread(_Request(board, submissions, subject, layout))

    async def _spread(self, request: "_Request") -> list[SubmitResult]:
        deadline = time.monotonic() + HOLD_S
        if request.refused:  # by the direct way
            await self._look(request, request.refused[0])
        while True:
            await self._send(request, request.parts())
            away = next((error for error in request.refused.values() if _elsewhere(error)), None)
            if away is None:
                return request.outcome()
            if time.monotonic() >= deadline:
                self._known_anew(request)
                return request.outcome()
            await self._look(request, away)

    async def _send(self, request: "_Request", parts: dict[str, list[int]]) -> None:
        """Have each shard decide its part of a request."""
        board = request.board
        batches = {
            shard: Batch(board.board_id, request.subject, [request.submissions[index] for index in indexes], board.incarnation)
            for shard, indexes in parts.items()
            if shard in self._routes
        }
        told = await self._bundles.submit(batches, together=len(parts) == len(request.layout.shards))
        for shard, indexes in parts.items():
            detail = f"{shard} is no shard of this region's configuration"
            replies = told.get(shard) or NoAuthority(detail, code="no_authority", definite=True)
            if isinstance(replies, Unanswered):
                for index in indexes:
                    request.refuse(index, replies)
                continue
            for index, reply in zip(indexes, replies, strict=True):
                request.refused.pop(index, None)
                request.results[index] = reply if reply.shard == shard else msgspec.structs.replace(reply, shard=shard)

    async def _look(self, request: "_Request", error: Unanswered) -> None:
        """Find out where the board lives now: from the refusal itself, or from this region's replica."""
        told = error.fields.get("layout")
        if told is not None:
            layout = msgspec.convert(told, Layout)
            if layout.number > request.layout.number:
                request.layout = layout
                return
        if self._known_anew(request):
            return
        await self._news(_LOOK_S)
        self._known_anew(request)

    def _known_anew(self, request: "_Request") -> bool:
        """Take a newer layout. Raises `UnknownBoard` when this region no longer shows that life of the board."""
        info = self._current(request.board.board_id)
        if info is None or info.incarnation != request.board.incarnation:
            raise UnknownBoard(f"{request.board.board_id} was removed")
        layout = info.layout_in_effect
        newer = layout.number > request.layout.number
        if newer:
            request.layout = layout
        return newer


class _Request:
    """One caller's events on their way."""

    def __init__(
        self,
        board: BoardInfo,
        submissions: list[Submission],
        subject: str,
        layout: Layout,
        refusal: Unanswered | None = None,
    ) -> None:
        """`refusal`: what all of it has met already."""
        self.board, self.submissions, self.subject, self.layout = board, submissions, subject, layout
        self.results: list[SubmitResult | None] = [None] * len(submissions)
        self.refused: dict[int, Unanswered] = {}
        #: Events that some call left unanswered: no later refusal makes it certain that nothing was appended.
        self.doubted: set[int] = set()
        if refusal is not None:
            for index in range(len(submissions)):
                self.refuse(index, refusal)

    def parts(self) -> dict[str, list[int]]:
        """Places of the events to be sent now, by shard: all at first, later those whose slice was elsewhere."""
        shards = self.layout.shards
        parts: dict[str, list[int]] = {}
        again = [index for index, error in self.refused.items() if _elsewhere(error)]
        for index in again or range(len(self.submissions)):
            parts.setdefault(shards[slice_of(self.submissions[index].player_id, len(shards))], []).append(index)
        return parts

    def refuse(self, index: int, error: Unanswered) -> None:
        """An event found no authority. A slice that is not where it should be is not there yet, or not known elsewhere yet."""
        if isinstance(error, UnknownBoard):
            detail = f"{self.board.board_id} is not where this region knows it to be: it is on its way to other shards, or being removed"
            error = NoAuthority(detail, code="moving", definite=error.definite)
        self.refused[index] = error
        if not error.definite:
            self.doubted.add(index)

    def outcome(self) -> list[SubmitResult]:
        """The results; raises where there is none at all."""
        if self.refused and len(self.refused) == len(self.submissions):
            if not self.doubted:
                raise next(iter(self.refused.values()))
            if len(self.doubted) == len(self.submissions):
                detail = next(iter(self.refused.values())).detail
                raise NoAuthority(detail, code="unknown", definite=False, retry_after_ms=500)
        return [self._one(index, result) for index, result in enumerate(self.results)]

    def _one(self, index: int, result: SubmitResult | None) -> SubmitResult:
        if result is not None:
            return result
        return SubmitResult(_UNKNOWN, code="" if index in self.doubted else self.refused[index].code)


def _elsewhere(error: Unanswered) -> bool:
    """Whether the slice may be found at another place, or there again, soon: a move under way, or a slice that is gone."""
    return isinstance(error, UnknownBoard) or (isinstance(error, NoAuthority) and error.code in ("moving", "moved"))
