"""What the tests of the HTTP edge share: an app on the in-memory region, tokens, and calls through ASGI."""

import asyncio
from typing import Any

import httpx
from fake_backend import START_MS, FakeBackend

from regions.app import EdgeApp, create_app
from regions.backend import Limits
from regions.tokens import KeyPair, Scope, TokenVerifier, public_keys

KEYS = KeyPair.generate()
VERIFIER = TokenVerifier(public_keys([KEYS.public_pem()]), clock=lambda: START_MS / 1000)

SOLO = "arena-clash:solo:S7:global"
COINS = "arena-clash:coins:S7:global"
LAPS = "kart:laps:S1:global"
PRIVATE = "arena-clash:duel:S7:global"


def token(scope: Scope = "game-server", games: tuple[str, ...] = ("arena-clash",), ttl_s: int = 3600, age_s: int = 0) -> str:
    return KEYS.issue(f"{scope}-1", scope, games, ttl_s, now_s=START_MS / 1000 - age_s)


SERVER = {"authorization": f"Bearer {token()}"}
OPERATOR = {"authorization": f"Bearer {token('operator', ('*',))}"}


class World:
    """One region's edge: public boards `SOLO` (best score), `COINS` (cumulative, 2 decimals), `LAPS`; `PRIVATE` is not."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.backend = FakeBackend()
        self.backend.add(SOLO, visibility="public")
        self.backend.add(COINS, "cumulative", visibility="public", decimals=2, ranking="competition")
        self.backend.add(LAPS, "fastest_time", visibility="public", max_value=600_000)
        self.backend.add(PRIVATE)
        self.app: EdgeApp = create_app(self.backend, verifier=VERIFIER, limits=limits)

    def call(self, method: str, url: str, *, app: Any = None, **options: Any) -> httpx.Response:
        """One request; the server's own errors do not reach the caller."""

        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app or self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://region") as client:
                return await client.request(method, url, **options)

        return asyncio.run(run())

    def get(self, url: str, **options: Any) -> httpx.Response:
        return self.call("GET", url, **options)

    def post(self, url: str, **options: Any) -> httpx.Response:
        return self.call("POST", url, headers={**SERVER, **options.pop("headers", {})}, **options)

    def submit(self, *events: Any, board: str = SOLO, query: str = "") -> httpx.Response:
        return self.post(f"/v1/boards/{board}/events{query}", json={"events": list(events)})

    def send(self, url: str, content: bytes, board: str = SOLO) -> httpx.Response:
        return self.post(f"/v1/boards/{board}/{url}", content=content, headers={"content-type": "application/json"})

    def fill(self, players: int = 5, board: str = SOLO) -> None:
        """Scores 9800, 9700, ... for p-0, p-1, ..., published."""
        assert self.submit(*(event(f"e-{number}", f"p-{number}", 9800 - 100 * number) for number in range(players)), board=board).is_success
        self.backend.publish(board)


def event(event_id: str = "evt-1", player_id: str = "p-dev", value: Any = 9700, **fields: Any) -> dict[str, Any]:
    return {"event_id": event_id, "player_id": player_id, "value": value, **fields}


def problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """Check that this is exactly that problem, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), response.text
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"], body["field"]) == (status, code, field), body
    assert body["type"] == f"/docs/problems#{code}"
    assert set(body) >= {"type", "title", "status", "code", "detail", "field", "allowed", "definite", "retry_after_ms"}
    assert body["title"] and body["detail"]
    return body
