"""The synchronous client, and where a cluster of this machine is found.

A client may be shared by threads; close it, or use it as a context manager.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from tenacity import Retrying, retry_if_exception_type

from laurel import board_calls, friends, models, operator_calls, orphan_calls
from laurel.board_calls import BoardPage, Relocation, Shards
from laurel.errors import Misconfigured
from laurel.friends import FriendsBoard
from laurel.models import Among, AtLeast, Board, Call, Event, EventLike, EventResult, Number, Page, Places, PlayerPlace, SubmitReply
from laurel.transport import PROBE_TIMEOUT_S, PROBES, Again, Attempts, Directory, Policy, Region, direct_mounts, headers_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCluster:
    """Regions that `laurel up` started from a data directory, and where the token of each role is."""

    regions: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Path] = field(default_factory=dict)

    def token(self, *roles: str) -> str:
        """The token of the first of `roles` that there is; empty if there is none. Misconfigured if its file cannot be read."""
        path = next((self.tokens[role] for role in roles if role in self.tokens), None)
        return "" if path is None else read_token(path)


def read_token(path: Path) -> str:
    """A token from its file."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as exc:
        said = f"the token file {path} cannot be read: run `laurel up` again, or give another token"
        raise Misconfigured(said) from exc


def find_cluster(data_dir: Path) -> LocalCluster:
    """What `client.json` of the data directory says; no regions where there is no such file. Relative token paths may start there."""
    path = data_dir / "client.json"
    try:
        document = json.loads(path.read_text())
        regions = {str(name): str(url) for name, url in document["regions"].items()}
        tokens = {str(role): Path(text) for role, text in document.get("tokens", {}).items()}
    except (FileNotFoundError, NotADirectoryError):
        return LocalCluster()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        said = f"{path} is not what `laurel up` writes: run `laurel up` again, or give the URL and the token"
        raise Misconfigured(said) from exc
    return LocalCluster(regions=regions, tokens={role: text if text.exists() else data_dir / text for role, text in tokens.items()})


def _in_background(work: Callable[[], None]) -> None:
    Thread(target=work, name="laurel-probe", daemon=True).start()


class LaurelClient:
    """Talks to the nearest region and falls over to the next.

    `regions` maps names to base URLs, or lists base URLs; `prefer` asks that region first while it works. Without
    it, the first call measures all regions; they are measured again every minute, and after a failure, in the background.
    Each call ends within `total_timeout_s`, or after `max_attempts` requests of at most `timeout_s` a phase each.
    `region=` on a call asks that region alone, however far it is.

    Calls raise what `laurel.errors` draws; wrong arguments raise ValueError or TypeError before anything is sent.
    """

    def __init__(
        self,
        regions: Mapping[str, str] | Sequence[str],
        token: str,
        *,
        timeout_s: float = 5.0,
        max_attempts: int = 8,
        total_timeout_s: float = 30.0,
        prefer: str | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        spawn: Callable[[Callable[[], None]], object] = _in_background,
    ) -> None:
        self._policy = Policy(
            timeout_s=timeout_s, max_attempts=max_attempts, total_timeout_s=total_timeout_s, clock=clock, wall=wall, jitter=jitter
        )
        self._directory = Directory(regions, prefer)
        self._sleep = sleep
        self._spawn = spawn
        self._http = httpx.Client(transport=transport, mounts=None if transport else direct_mounts(), headers=headers_of(token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls under way in other threads fail."""
        self._http.close()

    @property
    def regions(self) -> list[str]:
        """Names of the regions, the one that would be asked next in front."""
        return [region.name for region in self._directory.order()]

    def submit(self, board: str, events: EventLike | Sequence[EventLike], *, region: str | None = None) -> SubmitReply:
        """Submit one event or 1 to 1000, and return one result for each in order.

        Events without an id get one, kept over all repetitions. A refused event is a result (`conflict`, `invalid`), not an error,
        but for a conflicting event submitted alone.

        Raises:
            Refused: nothing of it was applied. Mend the call.
            Unavailable: nothing of it was applied. Submit it again later.
            OutcomeUnknown: `results` are those known; submit `events` again, they hold their ids.
        """
        return self._run(models.submit(board, events, region=region))

    def submit_one(
        self,
        board: str,
        player_id: str,
        value: Number | None = None,
        *,
        delta: Number | None = None,
        event_id: str | None = None,
        achieved_at: datetime | str | None = None,
        submitted_at: datetime | str | None = None,
        secondary: int | str | None = None,
        region: str | None = None,
    ) -> EventResult:
        """As `submit`, for one event."""
        event = Event(
            player_id=player_id,
            value=value,
            delta=delta,
            event_id=event_id,
            achieved_at=achieved_at,
            submitted_at=submitted_at,
            secondary=secondary,
        )
        return self.submit(board, event, region=region).results[0]

    def boards(self, *, region: str | None = None) -> tuple[Board, ...]:
        """All boards that the region knows and the token may read, in the order of their ids."""
        page = self.list_boards(region=region)
        found = list(page.boards)
        while page.next is not None:
            page = self.list_boards(cursor=page.next, region=region)
            found += page.boards
        return tuple(found)

    def list_boards(self, limit: int | None = None, cursor: str | None = None, *, region: str | None = None) -> BoardPage:
        """One page of that list, of at most 1000; `cursor` is `next` of the page before."""
        return self._run(board_calls.page(limit, cursor, region=region))

    def board(self, board: str, *, region: str | None = None) -> Board:
        """One board; UnknownBoard if there is none."""
        return self._run(board_calls.board(board, region=region))

    def top(
        self,
        board: str,
        limit: int = 100,
        cursor: str | None = None,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        *,
        region: str | None = None,
    ) -> Page:
        """A page of 1 to 1000 entries of the newest generation, of a pinned one, or of one that includes `at_least`.

        Raises:
            GenerationGone: the pinned generation, or that of the cursor, is not retained any more.
            Unavailable: with code `not_visible_yet`, no region published `at_least` in time.
        """
        return self._run(models.top(board, limit, cursor, generation, at_least, region=region))

    def pages(
        self,
        board: str,
        limit: int = 1000,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        *,
        region: str | None = None,
    ) -> Iterator[Page]:
        """All pages of one generation: that of the first page. GenerationGone if it expires on the way; nothing is mixed."""
        page = self.top(board, limit, None, generation, at_least, region=region)
        yield page
        while page.next is not None:
            page = self.top(board, limit, page.next, page.generation, region=region)
            yield page

    def rank(
        self,
        board: str,
        player_id: str,
        *,
        approximate: bool = False,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        region: str | None = None,
    ) -> PlayerPlace:
        """The player's place; NotRanked without an active row.

        `approximate`: an estimate, labelled as such: `exact` is False, and `error_bound` says by how many positions it may be off.
        """
        mode = "approximate" if approximate else None
        return self._run(models.place(board, player_id, "rank", None, generation, at_least, mode=mode, region=region))

    def percentile(
        self,
        board: str,
        player_id: str,
        *,
        approximate: bool = False,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        region: str | None = None,
    ) -> PlayerPlace:
        """What share of the players the player's rank is at or better than, in `percentile` of the answer; otherwise as `rank`."""
        mode = "approximate" if approximate else None
        return self._run(models.place(board, player_id, "percentile", None, generation, at_least, mode=mode, region=region))

    def nearby(
        self,
        board: str,
        player_id: str,
        window: int = 5,
        *,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        region: str | None = None,
    ) -> PlayerPlace:
        """The player with up to `window` neighbours on each side; NotRanked without an active row."""
        return self._run(models.place(board, player_id, "nearby", window, generation, at_least, region=region))

    def ranks(
        self,
        board: str,
        players: Sequence[str],
        among: Among = "board",
        *,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        region: str | None = None,
    ) -> Places:
        """Places of up to 1000 players, on the board or among the listed only."""
        return self._run(models.ranks(board, players, among, generation, at_least, region=region))

    def friends(
        self,
        board: str,
        player_id: str,
        limit: int = 100,
        *,
        generation: str | None = None,
        at_least: AtLeast | None = None,
        region: str | None = None,
    ) -> FriendsBoard:
        """The first 1 to 1000 of the player and the player's friends, ranked among themselves; empty if none of them is on the board.

        Raises:
            Forbidden: the token is bound to another player.
            NotFound: with code `friends_not_configured`, the cluster has no friends service.
            Unavailable: with code `friends_unavailable` or `friends_invalid`, the friends service fails; there is no part of a board.
        """
        return self._run(friends.board(board, player_id, limit, generation, at_least, region=region))

    def status(self, *, region: str | None = None) -> dict[str, Any]:
        """What a region knows of itself, its shards and the others. Scope operator."""
        return self._run(operator_calls.status(region=region))

    def health(self, *, region: str | None = None) -> dict[str, Any]:
        """Whether a region is alive; needs no token."""
        return self._run(operator_calls.health(region=region))

    def create_board(self, board: str, *, policy: str, **rules: Any) -> Board:
        """Create a board, or find it there with the same rules; Conflict if it is there with others, or elsewhere. Scope operator.

        `rules`: direction, ties, ranking, decimals, home, visibility, publish_interval_ms, retention_ms, max_value,
        max_age_ms; the server has defaults.
        `shards`: over how many it is spread, or their names. `secondary`: the direction of its second column.
        """
        return self._run(board_calls.create(board, {"policy": policy, **rules}))

    def remove_board(self, board: str) -> dict[str, Any]:
        """Remove a board for good, in all regions: rows, event identities, generations. Scope operator.

        Raises:
            OutcomeUnknown: it may be gone, and is not tried again by itself. Look at `boards()`.
        """
        return self._run(board_calls.remove(board))

    def relocate(self, board: str, shards: Shards) -> Relocation:
        """Begin to move a board to so many shards, or to those named, or go on with that move; see `relocation`. Scope operator."""
        return self._run(board_calls.relocate(board, shards))

    def relocation(self, board: str, *, region: str | None = None) -> Relocation:
        """How far a board's move is. Scope operator."""
        return self._run(board_calls.relocation(board, region=region))

    def abort_relocation(self, board: str) -> Relocation:
        """Give a board's move up: it stays where it is. Scope operator."""
        return self._run(board_calls.abort_relocation(board))

    def failover(
        self,
        shard_or_board: str | None = None,
        *,
        to: str,
        force: bool = False,
        from_region: str | None = None,
        expect_epoch: int | None = None,
        timeout_s: float = 30.0,
    ) -> dict[str, Any]:
        """Move a shard (`eu-west/0`), all shards of a board, or all of `from_region` to another region. Scope operator.

        Returns `{"moved": [{shard, boards, epoch, owner, cause, duration_ms}], "failed": [{shard, code, detail}]}`: of several shards,
        some may move while others stay. `force` is for an owner that does not answer.

        Raises:
            OutcomeUnknown: it may have begun, and is not repeated. Look at `status()`.
        """
        return self._run(
            operator_calls.failover(
                shard_or_board, to=to, force=force, from_region=from_region, expect_epoch=expect_epoch, timeout_s=timeout_s
            )
        )

    def readmit(self, region: str, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Take back a region whose store has lost data: its store is emptied and fills again from the others. Scope operator.

        Raises:
            OutcomeUnknown: it may have begun, and is not repeated. Look at `status()`.
        """
        return self._run(operator_calls.readmit(region, timeout_s))

    def set_link(
        self,
        region: str,
        peer: str,
        *,
        mode: str,
        direction: str = "both",
        delay_ms: int | None = None,
        for_ms: int | None = None,
    ) -> dict[str, Any]:
        """Fault switch for drills: `drop`, `delay` or `clear` what `region` sends to `peer` (`out`), takes from it (`in`), or both."""
        return self._run(operator_calls.set_link(region, peer, direction, mode, delay_ms, for_ms))

    def orphans(self, *, region: str, shard: str | None = None, limit: int = 1000) -> dict[str, Any]:
        """What a region keeps of deposed authorities' entries, by shard: counts, and the first `limit` orphans. Scope operator."""
        return self._run(orphan_calls.listed(region, shard, limit))

    def resubmit_orphans(self, *, region: str, shard: str | None = None) -> dict[str, Any]:
        """Have a region send its open orphans through the write path again, with their own event ids. Scope operator."""
        return self._run(orphan_calls.resubmit(region, shard))

    def sign_off_orphans(self, *, region: str, shard: str, epoch: int, why: str) -> dict[str, Any]:
        """Delete a region's orphans of one epoch, once it is recorded who did it and why. Scope operator.

        Raises:
            OutcomeUnknown: they may be gone. Look at `orphans()` before you ask again.
        """
        return self._run(orphan_calls.sign_off(region, shard, epoch, why))

    def _run(self, call: Call[T]) -> T:
        attempts = Attempts(call=call, policy=self._policy, directory=self._directory)
        if call.only is None:
            self._measure()

        def once() -> T:
            target = attempts.target()
            try:
                response = self._http.request(
                    target.method,
                    target.url,
                    params=target.params,
                    content=target.content,
                    headers=target.headers,
                    timeout=target.timeout_s,
                )
            except httpx.HTTPError as exc:
                attempts.broke(target.region, exc)
            return attempts.answered(target.region, response.status_code, response.headers, response.content)

        return Retrying(
            retry=retry_if_exception_type(Again),
            wait=attempts.wait,
            stop=attempts.stop,
            sleep=self._sleep,
            retry_error_callback=attempts.give_up,
        )(once)

    def _measure(self) -> None:
        due, at_once = self._directory.claim_due(self._policy.clock())
        for region in due:
            if at_once:
                self._probe(region)
            else:
                self._spawn(partial(self._probe, region))

    def _probe(self, region: Region) -> None:
        clock = self._policy.clock
        best = float("inf")
        try:
            for _ in range(PROBES):
                began = clock()
                self._http.get(region.url + "/healthz", timeout=PROBE_TIMEOUT_S).raise_for_status()
                best = min(best, clock() - began)
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: the client was closed meanwhile
            self._directory.measured(region, None, clock())
        except BaseException:
            self._directory.release(region)
            raise
        else:
            self._directory.measured(region, best, clock())
