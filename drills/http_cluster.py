"""The cluster behind a drill, over the public HTTP interface of its regions; nothing else of it is touched.

On aiohttp, though the SDK is on httpx: with 20 requests under way, httpx spent 3.0 ms of CPU on each here, aiohttp 0.2 ms, and
a drill that keeps a core busy would measure itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec

from drills.ports import Direction, Event, NoAnswer, Outcome, Reading, Refusal

#: Longest wait for an answer, by what is asked: a gateway holds writes for 2 s and more while authority moves.
WRITE_S, READ_S, STATUS_S, ORDER_S = 6.0, 3.0, 2.0, 14.0
CONNECT_S = 1.0
#: Connections to one region at most.
PER_REGION = 100
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class HttpCluster:
    """Regions by name and base URL, one bearer token for all; use as an async context manager, on one event loop."""

    def __init__(self, urls: Mapping[str, str], token: str) -> None:
        self._urls = {name: url.rstrip("/") for name, url in urls.items()}
        self._headers = {"authorization": f"Bearer {token}"}
        # A proxy of the environment is for other machines.
        self._trust_env = any(urlsplit(url).hostname not in _LOOPBACK for url in self._urls.values())
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        """Made on first use, since it belongs to the loop that runs it."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=PER_REGION)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=self._trust_env)
        return self._session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    @property
    def regions(self) -> tuple[str, ...]:
        """See the port."""
        return tuple(self._urls)

    async def _call(self, region: str, method: str, path: str, *, timeout_s: float, json: Any = None) -> tuple[int, Any]:
        """(status, body) of any answer. Raises `NoAnswer`, or `Refusal` with the code `unreachable`: nothing was sent."""
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        try:
            async with self._open().request(method, self._urls[region] + path, json=json, timeout=limits) as reply:
                return reply.status, msgspec.json.decode(await reply.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Refusal("unreachable", f"{region} cannot be reached: {error}") from error
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise NoAnswer(f"no answer from {region}: {type(error).__name__}") from error

    async def _ask(self, region: str, method: str, path: str, *, timeout_s: float, json: Any = None) -> Any:
        """The body of a good answer. Raises as `_call`, and what the answer refuses."""
        status, body = await self._call(region, method, path, timeout_s=timeout_s, json=json)
        if status < 400:
            return body
        raise _refused(region, status, body)

    async def status(self, region: str) -> dict[str, Any]:
        """See the port."""
        return dict(await self._ask(region, "GET", "/v1/status", timeout_s=STATUS_S))

    async def ready(self, region: str) -> list[str]:
        """See the port."""
        status, body = await self._call(region, "GET", "/readyz", timeout_s=STATUS_S)
        if status == 200:
            return []
        return [str(line) for line in body.get("missing") or ["it does not say why"]]

    async def create_board(self, region: str, board: str, policy: str, home: str, shard: str) -> None:
        """See the port."""
        wanted = {"board": board, "policy": policy, "home": home, "shards": [shard]}
        await self._ask(region, "POST", "/v1/admin/boards", timeout_s=WRITE_S, json=wanted)

    async def submit(self, region: str, board: str, events: Sequence[Event]) -> list[Outcome]:
        """See the port."""
        amount = "value" if board.startswith("laurel:drill-scores:") else "delta"
        sent = [{"event_id": event.event_id, "player_id": event.player_id, amount: event.amount} for event in events]
        status, body = await self._call(region, "POST", f"/v1/boards/{board}/events", timeout_s=WRITE_S, json={"events": sent})
        results = body.get("results") if isinstance(body, dict) else None
        if not results:
            raise _refused(region, status, body)
        return [Outcome(one["event_id"], one["outcome"], one.get("epoch") or 0, one.get("offset") or 0) for one in results]

    async def read(self, region: str, board: str) -> Reading:
        """See the port."""
        body = await self._ask(region, "GET", f"/v1/boards/{board}/top?limit=10", timeout_s=READ_S)
        boundaries = [int(text.partition("-")[2]) for text in body["boundaries"].values()]
        return Reading(int(body["generation"][1:]), max(boundaries, default=0))

    async def totals(self, region: str, board: str, players: Sequence[str], at_least: tuple[int, int]) -> dict[str, int]:
        """See the port."""
        path = f"/v1/boards/{board}/ranks?at_least={at_least[0]}-{at_least[1]}"
        body = await self._ask(region, "POST", path, timeout_s=READ_S, json={"players": list(players), "among": "listed"})
        return {entry["player_id"]: int(entry["value"]) for entry in body["entries"]}

    async def failover(self, to: str, shard: str, *, force: bool) -> dict[str, Any]:
        """See the port."""
        wanted = {"shard": shard, "to": to, "force": force}
        body = await self._ask(to, "POST", "/v1/admin/failover", timeout_s=ORDER_S, json=wanted)
        return dict(body["moved"][0])

    async def set_link(self, region: str, peer: str, direction: Direction, *, mode: str, delay_ms: int = 0, for_ms: int = 0) -> None:
        """See the port."""
        wanted: dict[str, Any] = {"peer": peer, "direction": direction, "mode": mode}
        wanted |= {name: number for name, number in (("delay_ms", delay_ms), ("for_ms", for_ms)) if number}
        await self._ask(region, "POST", "/v1/admin/links", timeout_s=READ_S, json=wanted)

    async def stall(self, region: str, for_ms: int) -> None:
        """See the port."""
        await self._ask(region, "POST", "/v1/admin/stall", timeout_s=READ_S, json={"for_ms": for_ms})

    async def orphans(self, region: str, shard: str) -> int:
        """See the port."""
        body = await self._ask(region, "GET", f"/v1/admin/orphans?{urlencode({'shard': shard, 'limit': 1})}", timeout_s=WRITE_S)
        return sum(int(entry.get("open") or 0) for entry in body["shards"][shard]["entries"])

    async def audit(self, region: str, shard: str, what: str, detail: dict[str, Any], *, unless_open: str = "") -> str:
        """See the port."""
        record: dict[str, Any] = {"shard": shard, "what": what, "detail": detail}
        record |= {"unless_open": unless_open} if unless_open else {}
        return str((await self._ask(region, "POST", "/v1/admin/audit", timeout_s=WRITE_S, json=record))["asked_by"])

    async def drill(self, region: str, name: str) -> dict[str, Any]:
        """A drill that the region's gateway has run. Refused as `unknown_drill` where it has not."""
        return dict(await self._ask(region, "GET", f"/v1/admin/drills/{quote(name, safe='')}", timeout_s=WRITE_S))

    async def audits(self, region: str, shard: str, what: str) -> list[dict[str, Any]]:
        """See the port."""
        query = {"what": what} | ({"shard": shard} if shard else {})
        body = await self._ask(region, "GET", f"/v1/admin/audit?{urlencode(query)}", timeout_s=WRITE_S)
        return [dict(record) for record in reversed(body["records"])]


def _refused(region: str, status: int, body: Any) -> NoAnswer | Refusal:
    """The error that an answer is; an indefinite one is as good as none."""
    problem = body if isinstance(body, dict) else {}
    detail = f"{region}: {problem.get('detail') or f'status {status}'}"
    if problem.get("definite") is False or (status >= 500 and "definite" not in problem):
        return NoAnswer(detail)
    return Refusal(str(problem.get("code") or status), detail)


async def discover(urls: Sequence[str], token: str) -> dict[str, str]:
    """Name and base URL of every region, in the order of the cluster file, from the first of `urls` that answers.

    A region that was given by URL is asked there, whatever address it tells. Raises `NoAnswer` or `Refusal` when nobody answers.
    """
    told: dict[str, str] = {}
    given: dict[str, str] = {}
    last: Exception = NoAnswer("no region was named")
    async with HttpCluster({url: url for url in urls}, token) as cluster:
        for url in urls:
            try:
                status = await cluster.status(url)
            except (NoAnswer, Refusal) as error:
                last = error
                continue
            given[str(status["region"])] = url
            told = told or {name: facts["url"] for name, facts in status.get("regions", {}).items()}
    if not given:
        raise last
    return {**told, **given} if told else given
