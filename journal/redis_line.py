"""One connection of a redis-py client on which commands follow each other without waiting for answers.

What one turn of the event loop asks leaves in one write, and answers come back in the order of the commands. A client's own way takes
a connection from its pool for each command, which costs several times as much CPU (docs/benchmarks.md).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import RedisError, ResponseError

_lines: "WeakKeyDictionary[Redis, Line]" = WeakKeyDictionary()


def line_of(client: Redis) -> "Line":
    """The line that all journals on this client share."""
    line = _lines.get(client)
    if line is None:
        line = _lines[client] = Line(client)
    return line


@dataclass(slots=True)
class _Command:
    packed: bytes
    done: asyncio.Future[Any]
    #: On which it was sent.
    connection: AbstractConnection | None = None


class Line:
    """See the module docstring. For one event loop."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        #: Commands that are not sent yet, and the answers that those which are wait for, oldest first.
        self._outgoing: list[_Command] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._connection: AbstractConnection | None = None
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, *arguments: bytes | str | int, timeout_s: float) -> Any:
        """The answer of one command. A caller that stops waiting leaves no trace.

        Raises:
            ResponseError: what the store answered.
            ConnectionError: the connection broke; the command may have been carried out.
            TimeoutError: no answer in time; likewise. The connection is given up with all that waits on it.
        """
        command = _Command(hiredis.pack_command(arguments), asyncio.get_running_loop().create_future())  # type: ignore[arg-type]
        self._outgoing.append(command)
        self._go_on()
        try:
            async with asyncio.timeout(timeout_s):
                return await command.done
        except TimeoutError:
            if command.connection is not None:
                self._broken(command.connection, f"no answer from the store within {timeout_s:g} s")
            elif self._connection is None and self._sending is not None:  # a connection does not come about
                self._sending.cancel()
            raise

    def _go_on(self) -> None:
        if self._sending is None and self._outgoing:
            self._sending = asyncio.get_running_loop().create_task(self._send())
            self._sending.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending = None
        self._outgoing = [each for each in self._outgoing if not each.done.done()]
        self._go_on()

    async def _send(self) -> None:
        while self._outgoing:
            connection = self._connection
            if connection is None:
                try:
                    connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                except (RedisError, OSError) as error:
                    outgoing, self._outgoing = self._outgoing, []
                    _fail((command.done for command in outgoing), str(error))
                    continue
                self._connection = connection
                self._reading = asyncio.get_running_loop().create_task(self._read(connection))
            outgoing, self._outgoing = self._outgoing, []
            live = [command for command in outgoing if not command.done.done()]
            for command in live:
                command.connection = connection
                self._waiting.append(command.done)
            try:
                await connection.send_packed_command([command.packed for command in live], check_health=False)
            except (RedisError, OSError) as error:
                self._broken(connection, str(error))

    async def _read(self, connection: AbstractConnection) -> None:
        try:
            while True:
                try:
                    reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
                except ResponseError as error:
                    reply = error
                if not self._waiting:
                    raise Broken("an answer that nobody has asked for")
                done = self._waiting.popleft()
                if done.done():
                    continue
                if isinstance(reply, Exception):
                    done.set_exception(reply)
                else:
                    done.set_result(reply)
        except (RedisError, OSError) as error:
            self._broken(connection, str(error))

    def _broken(self, connection: AbstractConnection, why: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if connection._writer is not None:
            connection._writer.transport.abort()  # what it has not sent is neither kept nor delivered late
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        if self._sending is not None and self._sending is not asyncio.current_task():
            self._sending.cancel()  # it may be waiting for room in what is given up
        waiting, self._waiting = self._waiting, deque()
        _fail(waiting, why)
        task = asyncio.get_running_loop().create_task(self._give_back(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _give_back(self, connection: AbstractConnection) -> None:
        try:
            await connection.disconnect(nowait=True)
        finally:
            await self._pool.release(connection)


def _fail(waiting: Iterable[asyncio.Future[Any]], why: str) -> None:
    for done in waiting:
        if not done.done():
            done.set_exception(Broken(why))
