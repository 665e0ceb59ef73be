"""Questions over a socket: every asker its own answer, whatever the order and wherever frames are cut; and calls where there is none."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actors.remote
from actors.channel import FRAME_MAX, TOKEN_MAX, Address, Answering, Asking, Call
from actors.messages import Answer, Ask, Top
from actors.remote import RayReplica

TOKEN = "secret"


class Pipe(asyncio.Transport):
    """One end of a connection in memory: what is written arrives at the peer in pieces of `sizes`, over and over."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes, self.peer, self.closing = sizes, asyncio.Protocol(), False
        self.other: Pipe | None = None

    def write(self, data: Any) -> None:
        at = turn = 0
        while at < len(data) and not self.closing:
            size = self.sizes[turn % len(self.sizes)]
            asyncio.get_running_loop().call_soon(self._arrive, bytes(data[at : at + size]))
            at, turn = at + size, turn + 1

    def _arrive(self, data: bytes) -> None:
        if not self.closing:
            self.peer.data_received(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        assert self.other is not None
        for end in (self, self.other):
            if not end.closing:
                end.closing = True
                asyncio.get_running_loop().call_soon(end.peer.connection_lost, None)


def connected(call: Call, token: str = TOKEN, sizes: list[int] | None = None) -> tuple[Asking, Answering]:
    asking, answering = Asking(token), Answering(call, TOKEN)
    there, back = Pipe(sizes or [1 << 20]), Pipe(sizes or [1 << 20])
    there.peer, back.peer, there.other, back.other = answering, asking, back, there
    answering.connection_made(back)
    asking.connection_made(there)
    return asking, answering


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_each_call_gets_its_own_result_in_whatever_order_and_pieces(payloads: list[bytes], sizes: list[int], seed: int) -> None:
    async def story() -> None:
        held: list[tuple[bytes, asyncio.Future[bytes]]] = []
        full = asyncio.Event()

        async def call(payload: bytes) -> bytes:
            done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            held.append((payload, done))
            if len(held) == len(payloads):
                full.set()
            return await done

        asking, _ = connected(call, sizes=sizes)
        results = asyncio.gather(*(asking.call(payload) for payload in payloads))
        await full.wait()
        random.Random(seed).shuffle(held)
        for payload, done in held:
            done.set_result(b"to " + payload)
        assert await results == [b"to " + payload for payload in payloads]

    asyncio.run(story())


async def echo(payload: bytes) -> bytes:
    return payload


def test_without_the_token_nothing_is_answered() -> None:
    async def story() -> None:
        asked: list[bytes] = []

        async def call(payload: bytes) -> bytes:
            asked.append(payload)
            return payload

        asking, _ = connected(call, token="another")
        with pytest.raises(ConnectionError):
            await asking.call(b"x")
        assert not asking.is_open
        with pytest.raises(ConnectionError):
            await asking.call(b"x")
        assert asked == []

    asyncio.run(story())


def test_a_lost_connection_fails_the_calls_that_wait_and_a_failed_call_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    async def story() -> None:
        never = asyncio.Event()

        async def call(payload: bytes) -> bytes:
            if payload == b"never":
                await never.wait()
            if payload == b"fails":
                raise ValueError(payload)
            return payload

        asking, answering = connected(call)
        waiting = asyncio.ensure_future(asking.call(b"never"))
        gone = asyncio.ensure_future(asking.call(b"never"))
        with pytest.raises(ConnectionError, match="failed"):
            await asking.call(b"fails")
        gone.cancel()
        assert await asking.call(b"x") == b"x"
        answering.close()
        with pytest.raises(ConnectionError, match="lost"):
            await waiting
        never.set()  # the answer of who is asked too late goes nowhere

    asyncio.run(story())


def test_a_frame_of_an_impossible_length_ends_the_connection() -> None:
    async def story() -> None:
        asking, answering = connected(echo)
        assert await asking.call(b"x") == b"x"
        answering.data_received((FRAME_MAX + 1).to_bytes(4, "little") + b"x")
        assert not answering.is_open
        _, stranger = connected(echo)
        stranger.data_received((TOKEN_MAX + 1).to_bytes(4, "little"))
        assert not stranger.is_open

    asyncio.run(story())


ANSWER = Answer(board_id="b", incarnation="i", lineage="l", generation=1, published_ms=0, body=b"{}")


class Method:
    """Of an actor's handle."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self.calls, self._result = 0, result

    async def remote(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._result()


class Handle:
    def __init__(self, address: Address | None) -> None:
        self.ask = Method(lambda: msgspec.msgpack.encode([ANSWER]))
        self.channel = Method(lambda: address)


def test_questions_go_over_the_socket_as_soon_as_there_is_one_and_by_calls_while_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The first goes by a call. 2. The socket is found: the next goes over it. 3. The replica goes: whoever waits has no answer.
    4. By calls again, until the socket is there again."""
    monkeypatch.setattr(actors.remote, "RECONNECT_S", 0.0)

    async def story() -> None:
        over: list[bytes] = []
        ends: list[Answering] = []
        never = asyncio.Event()

        async def call(payload: bytes) -> bytes:
            over.append(payload)
            if len(over) == 2:
                await never.wait()
            return msgspec.msgpack.encode([ANSWER])

        async def connect(address: Address) -> Asking:
            if len(ends) == 1 and handle.channel.calls == 2:
                raise ConnectionRefusedError("not yet")
            asking, answering = connected(call)
            ends.append(answering)
            return asking

        monkeypatch.setattr(actors.remote, "connect", connect)
        handle = Handle(Address("name", TOKEN))
        replica = RayReplica(handle)
        ask = [Ask(board_id="b", question=Top())]

        async def until_connected() -> None:
            while replica._ask._connecting is not None:
                await asyncio.sleep(0)

        assert await replica.ask(ask, 5.0) == [ANSWER]
        await until_connected()
        assert await replica.ask(ask, 5.0) == [ANSWER]
        assert (handle.ask.calls, len(over)) == (1, 1)
        waiting = asyncio.ensure_future(replica.ask(ask, 5.0))
        while len(over) < 2:
            await asyncio.sleep(0)
        ends[0].close()
        with pytest.raises(TimeoutError):
            await waiting
        for calls in (2, 3):
            assert await replica.ask(ask, 5.0) == [ANSWER]
            await until_connected()
            assert (handle.ask.calls, len(over)) == (calls, 2)
        assert await replica.ask(ask, 5.0) == [ANSWER]
        assert (handle.ask.calls, handle.channel.calls, len(over)) == (3, 3, 3)

    asyncio.run(story())


def test_a_replica_without_a_socket_is_asked_by_calls() -> None:
    async def story() -> None:
        handle = Handle(None)
        replica = RayReplica(handle)
        for _ in range(3):
            assert await replica.ask([Ask(board_id="b", question=Top())], 5.0) == [ANSWER]
        assert handle.ask.calls == 3
        assert replica._ask._connecting is not None
        replica._ask._connecting.cancel()

    asyncio.run(story())
