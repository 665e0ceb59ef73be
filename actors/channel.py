"""What a gateway asks the actors of its machine all the time, questions and submissions, over sockets of their own.

A call between actors wakes several threads at both ends and costs them together about a millisecond of CPU; here it is one wake-up
each way. Calls between actors stay the way for everything rare, and for an actor that cannot be reached like this.

A frame is its length, then its content: the first from a gateway is the token, later ones a number and a call's payload; a
reply has the number and the call's result, or nothing where the call failed.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from typing import NamedTuple, cast

log = logging.getLogger("laurel.actors")

_LENGTH, _NUMBER = struct.Struct("<I"), struct.Struct("<Q")
#: A longer frame is none of ours, nor is a longer one before the token was told.
FRAME_MAX, TOKEN_MAX = 1 << 28, 64

Call = Callable[[bytes], Awaitable[bytes]]


class Address(NamedTuple):
    """Where an actor listens: a name in Linux's abstract namespace, which leaves no file behind, and who may ask there."""

    name: str
    token: str


class Frames(asyncio.Protocol):
    """Both ends: cuts what arrives into frames."""

    def __init__(self, frame_max: int) -> None:
        self._arrived, self._frame_max = bytearray(), frame_max
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether something can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        arrived, at = self._arrived, 0
        arrived += data
        while len(arrived) - at >= _LENGTH.size and self.is_open:
            (length,) = _LENGTH.unpack_from(arrived, at)
            if length > self._frame_max:
                self.close()
                return
            begin = at + _LENGTH.size
            if len(arrived) - begin < length:
                break
            at = begin + length
            self.took(bytes(arrived[begin:at]))
        del arrived[:at]

    def took(self, frame: bytes) -> None:
        """A frame has arrived."""
        raise NotImplementedError

    def send(self, *parts: bytes) -> None:
        """A frame, of these parts; nothing once the connection is lost."""
        if self._transport is not None:
            self._transport.write(b"".join((_LENGTH.pack(sum(map(len, parts))), *parts)))

    def close(self) -> None:
        """Send no more."""
        if self._transport is not None:
            self._transport.close()


class Answering(Frames):
    """The actor's end of one connection."""

    def __init__(self, call: Call, token: str) -> None:
        super().__init__(TOKEN_MAX)
        self._call, self._token = call, token.encode()
        self._known = False
        self._tasks: set[asyncio.Task[None]] = set()

    def took(self, frame: bytes) -> None:
        """See `Frames`."""
        if self._known:
            task = asyncio.get_running_loop().create_task(self._answer(frame[: _NUMBER.size], frame[_NUMBER.size :]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif hmac.compare_digest(frame, self._token):
            self._known, self._frame_max = True, FRAME_MAX
        else:
            self.close()

    async def _answer(self, number: bytes, payload: bytes) -> None:
        try:
            result = await self._call(payload)
        except Exception:
            log.exception("a call from a gateway failed")
            result = b""
        self.send(number, result)


class Asking(Frames):
    """The gateway's end. Each call raises ConnectionError when the connection is lost, or the call failed there."""

    def __init__(self, token: str) -> None:
        super().__init__(FRAME_MAX)
        self._token = token.encode()
        self._numbers = count()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.send(self._token)

    async def call(self, payload: bytes) -> bytes:
        """What the actor's call returns."""
        if not self.is_open:
            raise ConnectionError("the connection to the actor is closed")
        number = _NUMBER.pack(next(self._numbers))
        result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = result
        try:
            self.send(number, payload)
            return await result
        finally:
            del self._waiting[number]

    def took(self, frame: bytes) -> None:
        """See `Frames`."""
        result = self._waiting.get(frame[: _NUMBER.size])
        if result is None or result.done():  # nobody waits for it any more
            return
        if len(frame) > _NUMBER.size:
            result.set_result(frame[_NUMBER.size :])
        else:
            result.set_exception(ConnectionError("the call failed in the actor"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        for result in self._waiting.values():
            if not result.done():
                result.set_exception(ConnectionError("the connection to the actor is lost"))


class Listening(NamedTuple):
    """It ends when nobody holds it any more."""

    address: Address
    server: asyncio.Server


async def listen(call: Call) -> Listening | None:
    """Answer gateways of this machine with `call`, on the running loop; None where there are no such sockets."""
    address = Address(f"laurel-{secrets.token_hex(16)}", secrets.token_hex(16))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{address.name}")
        listener.listen(64)
        listener.setblocking(False)
        server = await asyncio.get_running_loop().create_unix_server(lambda: Answering(call, address.token), sock=listener)
    except OSError as error:
        listener.close()
        log.warning("gateways come by calls alone: %s", error)
        return None
    return Listening(address, server)


async def connect(address: Address) -> Asking:
    """Raises OSError when the actor is not on this machine, or gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(f"\0{address.name}")
        _, asking = await asyncio.get_running_loop().create_unix_connection(lambda: Asking(address.token), sock=connection)
    except OSError:
        connection.close()
        raise
    return asking
