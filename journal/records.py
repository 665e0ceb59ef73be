"""What entries of a journal say, and their bytes.

An entry is an atomic batch of records at one (epoch, offset). It is encoded as one msgpack array, each
record a tagged array; the number in front is written to disk for ever, so never reuse one. Records
carry decisions with their complete resulting row, never increments, so applying one twice is harmless.
"""

from collections.abc import Sequence

import msgspec
import xxhash

from boards.model import BoardRules, Row


class Scored(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """One event, decided. `row` is the complete new row of the player, or None when it stays as it was."""

    #: Number of the board within the shard (see `BoardCreated`).
    board: int
    player_id: str
    event_id: str
    fingerprint: bytes
    outcome: int
    #: Value and version to replay to a duplicate.
    value: int
    version: int
    row: Row | None
    amount: int
    achieved_ms: int
    submitted_ms: int
    processed_ms: int
    #: Subject of the credential that sent the event.
    subject: str


class Published(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Generation `generation` of a board: everything before and including this entry (its boundary)."""

    board: int
    generation: int
    published_ms: int
    #: `boards.checksum` over all rows of the board, 0 <= checksum < 2**64.
    checksum: int
    #: Active rows.
    count: int


class EpochStarted(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """First record of the first entry of each epoch; committed before the epoch's owner answers anything."""

    epoch: int
    owner: str
    attempt: str
    from_epoch: int
    from_owner: str
    #: `genesis`, `restart`, `handover`, `forced`, `readmit`, `unstarted_seal`.
    cause: str
    asked_by: str
    mode: str
    #: Admitted regions, each with the incarnation token of its store.
    members: dict[str, str]
    config_version: int
    lineage: str
    at_ms: int


class HandedOver(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Last record of a drained epoch: its owner accepts nothing after it."""

    to: str
    asked_by: str
    at_ms: int


class BoardCreated(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A board joins the shard. `number` is never used again in this journal; `incarnation` names this life of the id."""

    number: int
    board_id: str
    rules: BoardRules
    incarnation: str
    created_by: str
    at_ms: int


class Audited(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What an operator did or decided, kept for ever; it changes no row. `detail` is a JSON object."""

    #: `drill.began`, `drill.ended`, `orphans.signed_off`.
    what: str
    asked_by: str
    at_ms: int
    detail: str


Record = Scored | Published | EpochStarted | HandedOver | BoardCreated | Audited

_records_encoder = msgspec.msgpack.Encoder()
_records_decoder = msgspec.msgpack.Decoder(list[Record])


class Term(msgspec.Struct, frozen=True, array_like=True):
    """One started epoch as a store knows it: where it begins, whose it is, and who were members then."""

    epoch: int
    first_offset: int
    owner: str
    members: dict[str, str]
    config_version: int
    lineage: str


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry as stores and links carry it; `data` stays opaque to them.

    `digest` (16 hex digits, xxh3-64 of `data`) tells two entries at the same (epoch, offset) apart.
    `batch_id` makes an own append that is tried again recognisable. `term` is set exactly on the first
    entry of an epoch, the one that holds `EpochStarted`.
    """

    epoch: int
    offset: int
    batch_id: str
    digest: str
    data: bytes
    term: Term | None = None


def seal_entry(epoch: int, offset: int, batch_id: str, records: Sequence[Record]) -> Entry:
    """Encode `records` as the entry at (epoch, offset). Cost: about 0.5 µs a record."""
    data = _records_encoder.encode(records)
    term = None
    first = records[0] if records else None
    if isinstance(first, EpochStarted):
        term = Term(epoch, offset, first.owner, first.members, first.config_version, first.lineage)
    return Entry(epoch, offset, batch_id, xxhash.xxh3_64_hexdigest(data), data, term)


def open_entry(entry: Entry) -> list[Record]:
    """Decode an entry's records. Raises `msgspec.DecodeError` when its bytes are not such a list."""
    return _records_decoder.decode(entry.data)
