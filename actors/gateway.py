"""The gateway actor: a region's HTTP edge, and in the first one its link server, in one process.

Owns: the listening sockets, the directory of owners, and the newest generations' common answers, all in
memory. Can lose: all of it; requests under way when it dies have an unknown outcome, and clients send them
again with the same event ids. What is served and where comes from `regions.serving`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

log = logging.getLogger("laurel.gateway")


class RunningGateway(Protocol):
    """An open gateway."""

    async def wait(self) -> None:
        """Return (or raise) when it no longer serves."""
        ...

    async def close(self) -> None:
        """Stop serving: requests under way end first."""
        ...

    def silence(self) -> dict[str, int]:
        """Shard -> milliseconds since progress of its authority was heard by this region's acceptor."""
        ...


class GatewayActor:
    """See the module docstring."""

    def __init__(self, open_gateway: Callable[[], Awaitable[RunningGateway]], exit_process: Callable[[str], None]) -> None:
        self._open, self._exit = open_gateway, exit_process
        self._running: RunningGateway | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve on the running loop; a gateway that cannot serve ends its process, so that it is made anew."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            self._running = await self._open()
            await self._running.wait()
            why = "the servers ended"
        except Exception as error:
            log.exception("the gateway cannot serve")
            why = repr(error)
        self._exit(why)

    def health(self) -> dict[str, Any]:
        """Whether the servers are open."""
        return {"open": self._running is not None}

    def silence(self) -> dict[str, int]:
        """See `RunningGateway.silence`; {} while it is not open."""
        return self._running.silence() if self._running is not None else {}
