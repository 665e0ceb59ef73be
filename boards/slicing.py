"""Which slice of a board holds a player: a stable hash of the id, the same in every region and for ever.

A player's complete total, identities and contributions live in one slice, which is what makes merged answers exact.
"""

import xxhash

#: Apart from the seeds of other hashes of the same ids, so that a slice's players spread well in them too. It may never change.
_SEED = 0x1A07E1


def slice_of(player_id: str, count: int) -> int:
    """0 <= slice < count, by the UTF-8 bytes of the id. Cost: about 0.3 µs."""
    return xxhash.xxh3_64_intdigest(player_id.encode(), _SEED) % count if count > 1 else 0
