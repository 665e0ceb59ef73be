"""A checksum of a whole board that costs O(1) for each changed row.

It is the sum, modulo 2**64, of a 64-bit hash of each row, so the order of changes leaves no trace: replace
a row by removing the hash of the old one and adding that of the new. It finds faults, not forgeries.
"""

from struct import Struct

import xxhash

from boards.model import Row

#: Checksum of a board without rows.
EMPTY = 0

_MASK = 2**64 - 1
#: value, tie moment, version, status; of fixed size and in front, so where the id begins is never in doubt.
_pack = Struct("<qqqq").pack
#: The same and the second column, where it is not zero; rows without one keep the hash that they always had.
_pack_second = Struct("<qqqqq").pack


def row_hash(player_id: str, row: Row) -> int:
    """0 <= hash < 2**64, over what a reader could see or an order depends on. Written to journals: it may never change."""
    if row.second:
        return xxhash.xxh3_64_intdigest(_pack_second(row.value, row.tie_ms, row.version, row.status, row.second) + player_id.encode())
    return xxhash.xxh3_64_intdigest(_pack(row.value, row.tie_ms, row.version, row.status) + player_id.encode())


def add(checksum: int, hashed: int) -> int:
    """The checksum with one more row."""
    return (checksum + hashed) & _MASK


def remove(checksum: int, hashed: int) -> int:
    """The checksum without a row that it holds; the caller knows that it does."""
    return (checksum - hashed) & _MASK
