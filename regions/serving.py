"""Composition of a region's actors: what each is wired to. These functions run inside the actors' processes."""

import asyncio
import functools
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from actors.ports import ReplicaSpec, ShardSpec
from actors.remote import LocalHandles, exit_process
from actors.replica import ReplicaActor
from actors.shard import ShardActor
from journal.ports import Journal
from journal.redis_journal import RedisJournal, open_client
from ledger.lmdb_ledger import LmdbLedger
from ledger.ports import LedgerUnavailable
from regions.app import create_app
from regions.backend import Limits
from regions.faults import Faults
from regions.gateway_backend import GatewayBackend
from regions.link_server import Acceptor
from regions.links import HttpLinks
from regions.routing import Directory
from regions.specs import GatewaySpec, LinkSpec
from regions.tokens import TokenVerifier, public_keys

log = logging.getLogger("laurel.serving")

#: A second instance of an actor may still hold the ledger; it is derived data, so the newer one takes another place.
LEDGER_PLACES = 4


def make_shard(spec: ShardSpec, links: LinkSpec) -> ShardActor:
    """A shard actor on this region's store, links and ledger."""
    client = open_client(spec.store_url)
    faults = Faults(client)
    actor = ShardActor(
        spec,
        journal=RedisJournal(client, spec.shard, region=spec.region),
        links=HttpLinks(spec.region, links.peers, links.token, faults),
        ledger=open_ledger(spec.ledger_path),
        exit_process=exit_process,
    )
    actor.background(faults.run())
    return actor


def open_ledger(path: str) -> LmdbLedger:
    """Open the ledger at `path`, or beside it while a dying instance still holds that one."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for place in range(LEDGER_PLACES):
        try:
            return LmdbLedger(path if place == 0 else f"{path}.{place}")
        except LedgerUnavailable as error:
            log.warning("%s", error)
            if place == LEDGER_PLACES - 1:
                raise
    raise AssertionError("unreachable")


def make_replica(spec: ReplicaSpec) -> ReplicaActor:
    """The region's read replica."""
    client = open_client(spec.store_url)
    journals: dict[str, Journal] = {shard: RedisJournal(client, shard, region=spec.region) for shard in spec.shards}
    return ReplicaActor(spec, journals=journals)


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
    links = HttpLinks(spec.region, spec.peers, spec.region_token, faults)
    directory = Directory()
    verifier = TokenVerifier(public_keys(spec.public_keys))
    backend = GatewayBackend(spec, handles=handles, links=links, faults=faults, directory=directory)
    acceptor = Acceptor(
        region=spec.region, journals=journals, shards=handles, verifier=verifier, faults=faults, on_authority=directory.learn
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
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=75, server_header=False, date_header=True)
    return uvicorn.Server(config)
