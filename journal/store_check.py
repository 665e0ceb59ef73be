"""Whether a store keeps what it acknowledges: asked on connect, before a region uses it."""

import asyncio

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from journal.ports import JournalMisconfigured, JournalUnavailable

#: Setting -> the only value under which an acknowledged append survives the store's process.
REQUIRED = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of itself. `run_id` changes with every start of its process."""

    run_id: str
    version: str
    #: `valkey` or `redis`.
    server: str


async def check_store(client: Redis, *, timeout_ms: int = 2000) -> StoreFacts:
    """Read the settings that durability rests on, and who the store is. Cost: three round trips.

    Raises:
        JournalMisconfigured: one of them is not as it must be; one sentence says which, its value and the command to mend it.
        JournalUnavailable: no answer in time, or the store is still loading.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            info = await client.info("server")
            role = (await client.info("replication")).get("role", "")
            settings = {_text(name): _text(value) for name, value in (await client.config_get(*REQUIRED)).items()}
    except TimeoutError:
        raise JournalUnavailable(f"the store did not answer within {timeout_ms} ms") from None
    except ResponseError as error:
        raise JournalMisconfigured(
            f"the store does not answer INFO or CONFIG GET ({error}): permit both with ACL SETUSER <user> +info +config|get"
        ) from error
    except (RedisError, OSError) as error:
        raise JournalUnavailable(f"the store cannot be asked for its settings: {error}") from error
    if role != "master":
        raise JournalMisconfigured(f"role is {role or 'unknown'!r} and must be 'master': use the master's address, or run REPLICAOF NO ONE")
    for name, wanted in REQUIRED.items():
        value = settings.get(name, "")
        if value != wanted:
            raise JournalMisconfigured(
                f"{name} is {value or 'unknown'!r} and must be {wanted!r}: run CONFIG SET {name} {wanted}, then CONFIG REWRITE"
            )
    version = info.get("valkey_version") or info.get("redis_version", "")
    return StoreFacts(run_id=str(info.get("run_id", "")), version=str(version), server=str(info.get("server_name", "redis")))


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
