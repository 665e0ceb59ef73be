"""Which shards a board lives on: by name, by count, or, where nobody says, by a hash of its id.

All shards of a board are at home in one region and agree in `ack` and `on_region_loss`, since they are lost and moved
together. Dedicated shards are for the boards that name them.

Errors:
    InvalidInput   `bad_rule`; `field` is `shards`, `ranking` or `home`. Definite: choose what `allowed` says.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from boards.errors import InvalidInput
from boards.model import BoardRules

#: Of the hash that spreads boards over a pool; apart from that of players. It may change: it places new boards only.
_SEED = 0xB0A2D


class Place(msgspec.Struct, frozen=True):
    """What decides whether a board may live on a shard."""

    home: str
    ack: str
    on_region_loss: str
    #: Takes boards that do not name it.
    pooled: bool = True

    @property
    def promises(self) -> tuple[str, str]:
        """What the shards of one board must agree in."""
        return self.ack, self.on_region_loss


def by_count(places: Mapping[str, Place], home: str, count: int) -> tuple[str, ...]:
    """The first `count` pooled shards at `home`, in the order of `places`, that promise what the first of them does."""
    found = _alike(places, home)
    if not 1 <= count <= len(found):
        raise _bad("shards", f"{_upto(len(found))}: {_pool(home, found)}")
    return tuple(found[:count])


def by_name(places: Mapping[str, Place], names: Sequence[str]) -> tuple[str, ...]:
    """These shards, in this order; the first one leads."""
    if not names or len(set(names)) != len(names):
        raise _bad("shards", "a list of one shard or more, none of them twice")
    for name in names:
        if name not in places:
            raise _bad("shards", f"shards of this cluster, {_told(places)}; {name} is none")
    first = places[names[0]]
    for name in names[1:]:
        if places[name].home != first.home:
            raise _bad("shards", f"shards of one home; {names[0]} is at home in {first.home}, {name} in {places[name].home}")
        if places[name].promises != first.promises:
            raise _bad("shards", f"shards that agree in ack and on_region_loss; {names[0]} and {name} do not")
    return tuple(names)


def by_hash(places: Mapping[str, Place], home: str, board_id: str, count: int = 1) -> tuple[str, ...]:
    """The `count` pooled shards at `home` that suit the id best. A shard more in the pool draws only its part of the boards."""
    pool = _alike(places, home)
    if not 1 <= count <= len(pool):
        raise _bad("shards", f"{_upto(len(pool))}: {_pool(home, pool)}")
    return tuple(rendezvous(board_id, pool)[:count])


def for_reshard(places: Mapping[str, Place], board_id: str, now: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` pooled shards for a board that lives on `now`: of those it has, as many as it keeps, then the best by hash."""
    lead = places[now[0]]
    pool = [name for name, place in places.items() if place.pooled and (place.home, place.promises) == (lead.home, lead.promises)]
    kept = [name for name in now if name in pool]
    order = kept + [name for name in rendezvous(board_id, pool) if name not in kept]
    if not 1 <= count <= len(order):
        raise _bad("shards", f"{_upto(len(order))}: {_pool(lead.home, order)}")
    return tuple(order[:count])


def rendezvous(board_id: str, shards: Iterable[str]) -> list[str]:
    """All shards, the best for this id in front: each pair is hashed, so that one shard's coming or going moves no other choice."""
    return sorted(shards, key=lambda shard: (-xxhash.xxh3_64_intdigest(f"{shard} {board_id}".encode(), _SEED), shard))


def check_spread(rules: BoardRules, count: int) -> None:
    """Dense ranks count distinct values of the whole board, which no sum over shards gives."""
    if count > 1 and rules.ranking == "dense":
        raise _bad("ranking", f"unique or competition on a board of {count} shards")


def homes(places: Mapping[str, Place]) -> list[str]:
    """Regions that are the home of a shard, each once, in order."""
    return list(dict.fromkeys(place.home for place in places.values()))


def read_wish(raw: Any) -> int | tuple[str, ...]:
    """A count, or names, out of decoded JSON or YAML."""
    if type(raw) is int and 1 <= raw <= 1000:
        return raw
    if isinstance(raw, list | tuple) and raw and all(type(name) is str for name in raw):
        return tuple(raw)
    raise _bad("shards", "a whole number of at least 1, or a list of names of shards")


def _alike(places: Mapping[str, Place], home: str) -> list[str]:
    pool = {name: place for name, place in places.items() if place.home == home and place.pooled}
    if not pool:
        raise _bad("shards", f"a list of names: no pooled shard is at home in {home}")
    promises = next(iter(pool.values())).promises
    return [name for name, place in pool.items() if place.promises == promises]


def _pool(home: str, found: Sequence[str]) -> str:
    return f"pooled and at home in {home}, with equal ack and on_region_loss, {'is only' if len(found) == 1 else 'are'} {_told(found)}"


def _told(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _upto(most: int) -> str:
    return "1, or a list of names" if most == 1 else f"a whole number from 1 to {most}, or a list of names"


def _bad(field: str, allowed: str) -> InvalidInput:
    return InvalidInput(code="bad_rule", field=field, allowed=allowed)
