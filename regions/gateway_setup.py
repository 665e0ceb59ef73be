"""Composition of a gateway; runs inside the actor's process.

The first gateway of a region is its acceptor too: leases and what was heard of the authorities are in the memory of one
process. The others serve the public address alone, and ask the first what it heard.
"""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvicorn

from actors.remote import LocalHandles
from journal.ports import Journal
from journal.redis_journal import RedisJournal, open_client
from regions.app import create_app
from regions.backend import Limits
from regions.edge_protocol import EdgeProtocol
from regions.faults import Faults
from regions.friends import open_friends
from regions.granting import Granting
from regions.link_server import Acceptor
from regions.links import HttpLinks
from regions.pooled_backend import HeardElsewhere, PooledBackend
from regions.process_specs import GatewaySpec
from regions.routing import Directory
from regions.tokens import TokenVerifier, public_keys


def make_gateway(spec: GatewaySpec, handles: LocalHandles) -> Callable[[], Awaitable["ServedGateway"]]:
    """How to open the gateway, once its loop runs."""
    return functools.partial(open_gateway, spec, handles)


class ServedGateway:
    """The servers of one gateway, and what they stand on."""

    def __init__(
        self,
        servers: list[uvicorn.Server],
        sockets: list[socket.socket],
        background: list[Any],
        closers: Sequence[Callable[[], Awaitable[None]]] = (),
        silence: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._servers = servers
        self._silence = silence
        self._closers = closers
        loop = asyncio.get_running_loop()
        self._serving = [loop.create_task(s.serve(sockets=[k])) for s, k in zip(servers, sockets, strict=True)]
        self._background = [loop.create_task(b) for b in background]

    async def wait(self) -> None:
        """Return when one of the servers ends; raise what a background task raised."""
        done, _ = await asyncio.wait([*self._serving, *self._background], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def close(self) -> None:
        """Let requests under way end, then stop."""
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving, return_exceptions=True)
        for task in self._background:
            task.cancel()
        for close in self._closers:
            await close()

    def silence(self) -> dict[str, int]:
        """See `actors.gateway.RunningGateway`."""
        return self._silence()


async def open_gateway(spec: GatewaySpec, handles: LocalHandles) -> ServedGateway:
    """Bind the gateway's addresses and serve."""
    client = open_client(spec.store_url)
    faults = Faults(client)
    links = HttpLinks(spec.region, spec.peers | {spec.region: spec.own_link}, spec.region_token, faults)
    directory = Directory()
    verifier = TokenVerifier(public_keys(spec.public_keys))
    background: list[Any] = [faults.run()]
    servers: list[tuple[Any, socket.socket]] = []
    if spec.first:
        journals: dict[str, Journal] = {shard: RedisJournal(client, shard, region=spec.region) for shard in spec.shards}
        granting = Granting(journals)
        await granting.take_over()
        silent_ms = granting.silent_ms
        acceptor = Acceptor(
            region=spec.region,
            journals=journals,
            shards=handles,
            verifier=verifier,
            faults=faults,
            granting=granting,
            on_authority=directory.learn,
        )
        servers.append((acceptor, _listen(spec.link_host, spec.link_port)))
    else:
        heard = HeardElsewhere(handles, spec.shards)
        silent_ms = heard.silent_ms
        background.append(heard.follow())
    backend = PooledBackend(spec, handles=handles, links=links, faults=faults, directory=directory, silent_ms=silent_ms)
    background += [backend.follow_replica(), backend.follow_status(), backend.follow_gateways()]
    limits = Limits(max_body_bytes=spec.max_body_bytes, max_events=spec.max_events)
    friends = open_friends(spec.friends)
    app = create_app(backend, verifier=verifier, limits=limits, friends=friends)
    servers.append((app, _listen(spec.host, spec.port)))
    return ServedGateway(
        [_server(served) for served, _ in servers],
        [listener for _, listener in servers],
        background,
        [friends.close] if friends else [],
        lambda: {shard: silent_ms(shard) for shard in spec.shards},
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _server(app: Any) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=EdgeProtocol,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        server_header=False,
        date_header=True,
        # Nobody asks for a client's address: no middleware that finds it out.
        proxy_headers=False,
    )
    return uvicorn.Server(config)
