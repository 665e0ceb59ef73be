"""The acceptor of a region: what other regions may ask of its stores and its shard actors (`/internal/v1`).

A bare ASGI application on the link address. Safety is in the store's scripts, and for leases in `regions.granting`; this
authenticates, obeys the fault switch, and puts pipelined Appends back into order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from journal.ports import Accepted, Append, Journal, JournalUnavailable, Refused, Renew, Seal
from regions.faults import Faults, LinkDropped
from regions.granting import Granting
from regions.tokens import TokenError, TokenVerifier

log = logging.getLogger("laurel.acceptor")

_encode = msgspec.msgpack.Encoder().encode
_appends = msgspec.msgpack.Decoder(list[Append])
_seal = msgspec.msgpack.Decoder(Seal)
_renew = msgspec.msgpack.Decoder(Renew)
_any = msgspec.msgpack.Decoder(dict[str, Any])

#: Longest wait for an Append that was sent earlier and came later.
REORDER_S = 0.05
MAX_BODY = 64 << 20

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LocalShards(Protocol):
    """This region's shard actors. All calls raise TimeoutError when no answer came in time."""

    async def submit(self, payload: bytes) -> bytes:
        """Joined requests for one shard or several (see `actors.remote.ShardWorker.submit`)."""
        ...

    async def drain(self, shard: str, epoch: int, to: str, asked_by: str) -> int | None:
        """See `actors.shard.ShardActor.drain`."""
        ...

    async def operate(self, shard: str, order: dict[str, Any]) -> dict[str, Any]:
        """`{"do": "activate"|"handover"|"readmit"|"create_board", ...}`."""
        ...


@dataclass(slots=True)
class _Lane:
    """One shard's incoming Appends: up to where this store holds entries, as far as this process knows."""

    epoch: int = 0
    tail: int | None = None
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)


class Acceptor:
    """See the module docstring. `on_authority(shard, epoch, region)` hears who sends Appends."""

    def __init__(
        self,
        *,
        region: str,
        journals: Mapping[str, Journal],
        shards: LocalShards,
        verifier: TokenVerifier,
        faults: Faults,
        granting: Granting,
        on_authority: Callable[[str, int, str], None],
    ) -> None:
        self._region, self._journals, self._shards = region, journals, shards
        self._verifier, self._faults, self._granting, self._on_authority = verifier, faults, granting, on_authority
        self._lanes = {shard: _Lane() for shard in journals}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry: http only."""
        if scope["type"] != "http":
            return
        status, body = await self._handle(scope, receive)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/msgpack"), (b"content-length", str(len(body)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive) -> tuple[int, bytes]:
        path = scope["path"]
        if scope["method"] != "POST" or not path.startswith("/internal/v1/"):
            return 404, b""
        authorization = next((v for k, v in scope["headers"] if k == b"authorization"), None)
        try:
            claims = self._verifier.verify_header(authorization.decode("latin-1") if authorization else None)
            claims.require(("region",), None)
        except TokenError as error:
            return 401, str(error).encode()
        body = await _read(receive)
        if body is None:
            return 413, b""
        peer = claims.sub
        try:
            await self._faults.inward(peer)
            reply = await self._dispatch(path.removeprefix("/internal/v1/"), body)
            await self._faults.outward(peer)
        except LinkDropped:
            await asyncio.sleep(0.2)
            return 503, b"cut"
        except (JournalUnavailable, TimeoutError) as error:
            return 503, str(error).encode()
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            return 400, str(error).encode()
        return 200, reply

    async def _dispatch(self, what: str, body: bytes) -> bytes:
        match what:
            case "append":
                return _encode(await asyncio.gather(*map(self._accept_or_not, _appends.decode(body))))
            case "seal":
                return _encode(await self._granting.seal(_seal.decode(body)))
            case "renew":
                return _encode(await self._granting.renew(_renew.decode(body)))
            case "submit":
                return await self._shards.submit(body)
        asked = _any.decode(body)
        shard = asked["shard"]
        match what:
            case "probe":
                return _encode(self._granting.with_silence(await self._journals[shard].status()))
            case "fetch":
                return _encode(await self._journals[shard].read(asked["first"], limit=min(asked["limit"], 256)))
            case "drain":
                return _encode(await self._shards.drain(shard, asked["epoch"], asked["to"], asked["asked_by"]))
            case "readmit":
                return _encode(await self._granting.readmit(shard, asked["incarnation"], asked["fence"], asked["replaces"]))
            case "operate":
                return _encode(await self._shards.operate(shard, asked["order"]))
        raise KeyError(f"unknown message {what}")

    async def _accept_or_not(self, message: Append) -> Accepted | Refused | None:
        """One of several: None where there is no answer, which is nothing to the others."""
        try:
            return await self._accept(message)
        except (JournalUnavailable, TimeoutError, KeyError) as error:
            log.warning("%s: no answer to an append: %r", message.shard, error)
            return None

    async def _accept(self, message: Append) -> Accepted | Refused:
        lane = self._lanes[message.shard]
        if lane.tail is not None and lane.epoch == message.epoch and message.prev.offset > lane.tail:
            try:
                async with lane.moved:
                    await asyncio.wait_for(
                        lane.moved.wait_for(lambda: lane.tail is not None and message.prev.offset <= lane.tail), REORDER_S
                    )
            except TimeoutError:
                pass
        answer = await self._journals[message.shard].accept(message)
        async with lane.moved:
            lane.epoch = message.epoch
            if isinstance(answer, Accepted):
                lane.tail = answer.tail.offset
                self._granting.heard(message)
                self._on_authority(message.shard, message.epoch, message.sender)
            else:
                lane.tail = answer.status.tail.offset
            lane.moved.notify_all()
        return answer


async def _read(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)
