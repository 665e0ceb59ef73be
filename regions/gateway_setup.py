"""Composition of a gateway; runs inside the actor's process."""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from actors.remote import LocalHandles
from journal.ports import Journal
from journal.redis_journal import RedisJournal, open_client
from regions.app import create_app
from regions.backend import Limits
from regions.faults import Faults
from regions.gateway_backend import GatewayBackend
from regions.granting import Granting
from regions.link_server import Acceptor
from regions.links import HttpLinks
from regions.process_specs import GatewaySpec
from regions.routing import Directory
from regions.tokens import TokenVerifier, public_keys


def make_gateway(spec: GatewaySpec, handles: LocalHandles) -> Callable[[], Awaitable["ServedGateway"]]:
    """How to open the gateway, once its loop runs."""
    return functools.partial(open_gateway, spec, handles)


class ServedGateway:
    """The public server and the link server of one region, and what they stand on."""

    def __init__(self, servers: list[uvicorn.Server], sockets: list[socket.socket], background: list[Any]) -> None:
        self._servers = servers
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


async def open_gateway(spec: GatewaySpec, handles: LocalHandles) -> ServedGateway:
    """Bind both addresses and serve."""
    client = open_client(spec.store_url)
    faults = Faults(client)
    journals: dict[str, Journal] = {shard: RedisJournal(client, shard, region=spec.region) for shard in spec.shards}
    links = HttpLinks(spec.region, spec.peers | {spec.region: spec.own_link}, spec.region_token, faults)
    granting = Granting(journals)
    await granting.take_over()
    directory = Directory()
    verifier = TokenVerifier(public_keys(spec.public_keys))
    backend = GatewayBackend(spec, handles=handles, links=links, faults=faults, directory=directory, silent_ms=granting.silent_ms)
    acceptor = Acceptor(
        region=spec.region,
        journals=journals,
        shards=handles,
        verifier=verifier,
        faults=faults,
        granting=granting,
        on_authority=directory.learn,
    )
    app = create_app(backend, verifier=verifier, limits=Limits(max_body_bytes=spec.max_body_bytes, max_events=spec.max_events))
    sockets = [_listen(spec.host, spec.port), _listen(spec.link_host, spec.link_port)]
    servers = [_server(app), _server(acceptor)]
    return ServedGateway(servers, sockets, [faults.run(), backend.follow_replica(), backend.follow_status()])


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
        app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=75, server_header=False, date_header=True
    )
    return uvicorn.Server(config)
