"""What entries of a journal say, and their bytes.

An entry is an atomic batch of records at one (epoch, offset). It is encoded as one msgpack array, each
record a tagged array; the number in front is written to disk for ever, so never reuse one. Records
carry decisions with their complete resulting row, never increments, so applying one twice is harmless.
"""

from collections.abc import Sequence

import msgspec
import xxhash

from boards.model import BoardRules, Layout, Row


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
    #: Second column of the event; 0 on boards without one.
    second: int = 0


class Published(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Generation `generation` of a board of one slice: everything before and including this entry (its boundary)."""

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
    #: Where the board's slices live and which one this is; None: all of it is here.
    layout: Layout | None = None
    slice: int = 0
    #: Filled by `Imported` records, and closed for events, until `SliceOpened`.
    importing: bool = False


class Audited(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What an operator did or decided, kept for ever; it changes no row. `detail` is a JSON object."""

    #: `drill.began`, `drill.ended`, `orphans.signed_off`.
    what: str
    asked_by: str
    at_ms: int
    detail: str


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Where a slice was marked, and what it held: a part of a manifest."""

    epoch: int
    offset: int
    checksum: int
    count: int


class Marked(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A slice up to and including this entry belongs to the generation whose manifest names this entry.

    `generation` is the round that asked; `lead_epoch` the epoch of the lead's authority that did. `keeps` is the offset of
    this slice's mark that the newest committed manifest named then, 0 for none: views from there on may still be asked for.
    """

    board: int
    generation: int
    lead_epoch: int
    keeps: int
    marked_ms: int
    #: Of this slice alone.
    checksum: int
    count: int


class Manifest(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Generation `generation` of a board of several slices: one committed mark a slice, in the order of the layout.

    Everything that any of the shards had acknowledged before `published_ms` (the lead's clock) is in it. `checksum` and
    `count` are the sums over the slices, the former modulo 2**64.
    """

    board: int
    generation: int
    published_ms: int
    layout: int
    marks: tuple[Mark, ...]
    checksum: int
    count: int


class BoardRemoved(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A board, or a slice of one, leaves the shard. Unless `done`, its lead only stops serving it, until the other slices are gone."""

    board: int
    removed_by: str
    at_ms: int
    done: bool = True


class Relocating(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """In the lead's journal: the board is on its way to another layout, or (`aborting`) on its way back from there; None: it stays."""

    board: int
    layout: Layout | None
    asked_by: str
    at_ms: int
    aborting: bool = False


class ImportedEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event identity that came along with its player."""

    player_id: str
    event_id: str
    fingerprint: bytes
    outcome: int
    value: int
    version: int


class Imported(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Players of another slice, complete: their rows, and the identities that were recorded for them.

    `source` is the slice (of the old layout) that they come from. `cursor` is the key up to which its ledger has been copied,
    None once all of it has; `replayed` the offset of its journal up to which its entries are in here too.
    """

    board: int
    source: int
    rows: list[tuple[str, Row]]
    events: list[ImportedEvent]
    cursor: bytes | None
    replayed: int


class SliceClosed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The declared boundary of a move: after this entry the slice takes no event. `layout` is the number of the one to come.

    `lead_epoch` is the epoch of the lead's authority that ordered it; lower ones are refused from then on.
    """

    board: int
    layout: int
    lead_epoch: int
    at_ms: int


class Switched(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """In the old lead's journal: from here on the board lives in `layout`; `generation` is the last one of the old layout."""

    board: int
    layout: Layout
    generation: int
    at_ms: int


class SliceOpened(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The slice takes events (again). `generation` is the newest of the board until then; its lead goes on from there."""

    board: int
    generation: int
    lead_epoch: int
    at_ms: int


Record = (
    Scored
    | Published
    | EpochStarted
    | HandedOver
    | BoardCreated
    | Audited
    | Marked
    | Manifest
    | BoardRemoved
    | Relocating
    | Imported
    | SliceClosed
    | Switched
    | SliceOpened
)

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
