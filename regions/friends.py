"""Whom a player's friends board is made of: the port to the service that owns friendships, and its two adapters.

The friends service owns the relations; here an eligible set is held for as long as it takes to rank it, and for a short time in
a cache. No list, no id of one and no length leaves this module but to be ranked: neither errors nor log lines hold them.

    FriendsNotConfigured   this cluster has no friends service
    FriendsUnavailable     the service does not answer, or is left alone for a while because it did not. Try again later
    FriendsInvalid         what it answers is no list of player ids: somebody has to mend it
"""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import msgspec

from actors.messages import Unanswered
from boards.errors import InvalidInput
from boards.ids import check_player_id
from regions.process_specs import FriendsSpec

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

#: Longest list that is taken: a longer one is refused whole, never cut.
FRIENDS_MAX = 10_000
#: A longer body is none of those, also where each id has 128 bytes and each byte is escaped.
BODY_MAX_BYTES = 8 << 20
#: Lists in the cache at most, and ids in all of them.
CACHE_LISTS, CACHE_IDS = 10_000, 500_000
#: Calls in a row without an answer that open the breaker, and for how long.
FAILURES, REST_MS = 5, 2000
#: Names to the service who asks (percent-encoded), since it may show one asker more than another.
ASKER_HEADER = "x-laurel-asker"

Clock = Callable[[], int]


class FriendsNotConfigured(Unanswered):
    """This cluster has no friends service."""

    code = "friends_not_configured"


class FriendsUnavailable(Unanswered):
    """No answer from the friends service; nothing is shown instead."""

    code = "friends_unavailable"
    retry_after_ms = 1000


class FriendsInvalid(Unanswered):
    """The friends service gave an answer that is no list of player ids."""

    code = "friends_invalid"


class FriendsSource(Protocol):
    """Port: eligible sets, by player."""

    async def friends_of(self, game: str, player: str, *, scope: str) -> tuple[str, ...]:
        """Ids whose rows `player` may see beside the own, each once, at most `FRIENDS_MAX`; empty for a player without friends.

        `scope` says who asks (`access_scope`): an answer for one asker is never given to another.

        Raises:
            FriendsUnavailable, FriendsInvalid: there is no list, not even a part of one.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def monotonic_ms() -> int:
    """Milliseconds of a clock that is never set."""
    return time.monotonic_ns() // 1_000_000


def open_friends(spec: FriendsSpec | None) -> FriendsSource | None:
    """The adapter that the configuration names, None for none. Call it where the event loop runs."""
    if spec is None:
        return None
    if spec.static:
        return StaticFriends(spec.static)
    import httpx

    client = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=64, max_keepalive_connections=16))
    return HttpFriends(client, spec.url, timeout_ms=spec.timeout_ms, cache_ms=spec.cache_ms)


class StaticFriends:
    """Friends from a JSON file `{"<game>": {"<player>": ["<friend>", ...]}}`, read again when it has changed.

    A file that is broken or gone is an error for all: the lists of before may be out of date by then.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._lists: dict[str, dict[str, tuple[str, ...]]] = {}
        self._reading = asyncio.Lock()

    async def friends_of(self, game: str, player: str, *, scope: str) -> tuple[str, ...]:
        """See the port; the file says the same to all who ask."""
        del scope
        try:
            if self._stamp() != self._seen:
                async with self._reading:
                    # Before reading: a change in between is read the next time.
                    stamp = self._stamp()
                    if stamp != self._seen:
                        self._lists = await asyncio.to_thread(self._read)
                        self._seen = stamp
        except OSError as error:
            log.warning("the friends file cannot be read: %s", error.strerror)
            raise FriendsUnavailable("The file with the friends of this cluster cannot be read") from error
        return self._lists.get(game, {}).get(player, ())

    async def close(self) -> None:
        """Nothing is held open."""

    def _stamp(self) -> tuple[int, int, int]:
        stat = os.stat(self._path)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> dict[str, dict[str, tuple[str, ...]]]:
        with open(self._path, "rb") as file:
            content = file.read()
        try:
            games = msgspec.json.decode(content, type=dict[str, dict[str, list[str]]])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise invalid("the friends file is not a JSON object of games, players and lists of ids") from None
        return {game: {player: checked(friends) for player, friends in players.items()} for game, players in games.items()}


def checked(friends: Iterable[str]) -> tuple[str, ...]:
    """The ids, each once. Raises FriendsInvalid."""
    ids = tuple(dict.fromkeys(friends))
    if len(ids) > FRIENDS_MAX:
        raise invalid("a list is too long")
    try:
        for player_id in ids:
            check_player_id(player_id)
    except InvalidInput:
        raise invalid("a list holds something else than player ids") from None
    return ids


def invalid(reason: str) -> FriendsInvalid:
    """The reason is for the log; whoever asked learns only what is right."""
    log.warning("friends service: %s", reason)
    return FriendsInvalid(f"The friends service did not answer with a JSON list of at most {FRIENDS_MAX} player ids")


class Breaker:
    """Leaves a service alone for `rest_ms` once `failures` calls in a row have failed, then lets one call try it.

    A call belongs to the term that it began in: how one of an older term ends says nothing about the service as it is now.
    """

    def __init__(self, *, failures: int, rest_ms: int, clock_ms: Clock) -> None:
        self._limit, self._rest_ms, self._clock_ms = failures, rest_ms, clock_ms
        self._failed = 0
        self._term = 0
        self._rests_until: int | None = None
        self._probing = False

    def admit(self) -> int:
        """The term of a call that may begin now; `ended` has to follow. Raises FriendsUnavailable while the service is left alone."""
        if self._rests_until is None:
            return self._term
        left = self._rests_until - self._clock_ms()
        if left > 0 or self._probing:
            raise FriendsUnavailable(
                "The friends service has not answered lately and is left alone for a while", retry_after_ms=max(left, 500)
            )
        self._probing = True
        self._term += 1
        return self._term

    def ended(self, term: int, *, answered: bool) -> None:
        """A call that `admit` let through is over."""
        if term != self._term:
            return
        if answered:
            if self._probing:
                log.warning("the friends service answers again")
            self._failed, self._rests_until, self._probing = 0, None, False
            return
        self._failed += 1
        if self._probing or self._failed >= self._limit:
            log.warning("the friends service does not answer (%d times): left alone for %d ms", self._failed, self._rest_ms)
            self._rests_until, self._probing = self._clock_ms() + self._rest_ms, False
            self._term += 1


#: Game, player, and who asks.
Key = tuple[str, str, str]


class IdsCache:
    """Lists for a short time, bounded in lists and in ids; the oldest go first."""

    def __init__(self, *, ttl_ms: int, clock_ms: Clock, lists: int = CACHE_LISTS, ids: int = CACHE_IDS) -> None:
        self._ttl_ms, self._clock_ms, self._most_lists, self._most_ids = ttl_ms, clock_ms, lists, ids
        self._kept: OrderedDict[Key, tuple[int, tuple[str, ...]]] = OrderedDict()
        self.ids = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> tuple[str, ...] | None:
        """The list, None if there is none that is young enough."""
        self._drop_old()
        kept = self._kept.get(key)
        return None if kept is None else kept[1]

    def put(self, key: Key, ids: tuple[str, ...]) -> None:
        """Keep a list from now on."""
        if key in self._kept:
            self.ids -= len(self._kept.pop(key)[1])
        if self._ttl_ms > 0:
            self._kept[key] = (self._clock_ms() + self._ttl_ms, ids)
            self.ids += len(ids)
        self._drop_old()

    def _drop_old(self) -> None:
        now = self._clock_ms()
        while self._kept:
            until, ids = next(iter(self._kept.values()))
            if until > now and len(self._kept) <= self._most_lists and self.ids <= self._most_ids:
                return
            self._kept.popitem(last=False)
            self.ids -= len(ids)


class HttpFriends:
    """Friends from a service that answers `GET url` with a JSON list of player ids, `[]` for a player without any.

    Only 200 is a list. Connection failures, timeouts, 429 and 5xx count as no answer and open the breaker; any other answer is
    invalid, and does not: one player's broken list must not keep the others from theirs. Equal questions share one request.
    """

    def __init__(self, client: "httpx.AsyncClient", url: str, *, timeout_ms: int, cache_ms: int, clock_ms: Clock = monotonic_ms) -> None:
        self._client = client
        self._url = url
        self._timeout_s = timeout_ms / 1000
        self._cache = IdsCache(ttl_ms=cache_ms, clock_ms=clock_ms)
        self._breaker = Breaker(failures=FAILURES, rest_ms=REST_MS, clock_ms=clock_ms)
        self._flights: dict[Key, asyncio.Task[tuple[str, ...]]] = {}

    async def friends_of(self, game: str, player: str, *, scope: str) -> tuple[str, ...]:
        """See the port. Takes `timeout_ms` at most."""
        key = (game, player, scope)
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.get_running_loop().create_task(self._call(key))
            flight.add_done_callback(lambda done: self._landed(key, done))
        # Whoever gives up does not take the answer away from the others.
        return await asyncio.shield(flight)

    async def close(self) -> None:
        """Calls under way fail."""
        await self._client.aclose()

    def _landed(self, key: Key, flight: "asyncio.Task[tuple[str, ...]]") -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # seen, also where nobody waits any more

    async def _call(self, key: Key) -> tuple[str, ...]:
        term, answered = self._breaker.admit(), False
        try:
            content = await self._fetch(*key)
            answered = True
        except FriendsInvalid:
            answered = True
            raise
        finally:
            self._breaker.ended(term, answered=answered)
        try:
            ids = checked(msgspec.json.decode(content, type=list[str]))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise invalid("the body is no JSON list of texts") from None
        self._cache.put(key, ids)
        return ids

    async def _fetch(self, game: str, player: str, scope: str) -> bytes:
        import httpx

        # The game first: it cannot hold a brace, and the player's are escaped.
        url = self._url.replace("{game}", quote(game, safe="")).replace("{player}", quote(player, safe=""))
        headers = {"accept": "application/json", "accept-encoding": "identity", ASKER_HEADER: quote(scope, safe=":")}
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("GET", url, headers=headers, timeout=None) as response:
                if response.status_code == 429 or response.status_code >= 500:
                    raise self._unanswered(f"status {response.status_code}")
                if response.status_code != 200:
                    raise invalid(f"status {response.status_code}; for a player without friends it has to be 200 with []")
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > BODY_MAX_BYTES:
                        raise invalid("the body is too long")
                return bytes(body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # TimeoutError is an OSError
            raise self._unanswered(type(error).__name__) from None

    def _unanswered(self, reason: str) -> FriendsUnavailable:
        log.info("friends service: %s", reason)
        return FriendsUnavailable("The friends service does not answer")
