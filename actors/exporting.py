"""What a slice gives to the slices of another layout, in any region: its players out of the ledger, then what its journal adds.

Only committed entries are told, so any region may be asked, authority or not. The ledger moves on while it is read: a chunk shows some
players later than the first one did. Rows have versions and event results never change, so replaying the journal from
where the ledger stood at the first chunk makes up for that.
"""

from collections.abc import Callable

import msgspec

from actors.messages import NotServing
from boards.model import Row
from boards.slicing import slice_of
from journal.ports import Journal
from journal.records import Entry, ImportedEvent, Scored, open_entry
from ledger.ports import BoardState, Ledger

#: Bounds of a chunk: rows and events, their bytes (about), and how much of the ledger is looked at for it.
THINGS, BYTES, LOOKED_AT = 1000, 256 << 10, 5000
#: Bytes that a row or an event takes beside its ids, about.
_BESIDE = 64


class Wanted(msgspec.Struct, frozen=True):
    """Whose players, and which of them: those of slice `part` of `parts`."""

    board_id: str
    incarnation: str
    #: Number of the layout that the slice which gives belongs to.
    layout: int
    part: int
    parts: int

    def here(self, player_id: str) -> bool:
        """Whether a player is wanted."""
        return self.parts == 1 or slice_of(player_id, self.parts) == self.part


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Players, and event results. `upto`: the ledger's offset while it was read, or the journal's up to which all is told."""

    rows: list[tuple[str, Row]]
    events: list[ImportedEvent]
    #: Where the next chunk begins; None after the last.
    cursor: bytes | None
    upto: int
    #: Entries that are committed beyond `upto`.
    behind: int = 0


_encode = msgspec.msgpack.Encoder().encode
decode_chunk: Callable[[bytes], Chunk] = msgspec.msgpack.Decoder(Chunk).decode


def copy(ledger: Ledger, wanted: Wanted, after: bytes, at_least: int) -> bytes:
    """A `Chunk` of what the ledger holds behind `after`, encoded. Cost: up to about 10 ms.

    Raises:
        NotServing: the slice is not here (yet), or the ledger stands before `at_least`: what it tells is too old.
    """
    state = _slice(ledger, wanted)
    rows: list[tuple[str, Row]] = []
    events: list[ImportedEvent] = []
    looked_at = size = 0
    cursor: bytes | None = None
    with ledger.reader() as reader:
        upto = reader.applied.offset
        if upto < at_least:
            raise NotServing(f"the ledger of this region stands at {upto}, and has to be at {at_least}")
        for held in reader.content(state.number, after, wanted.here):
            looked_at += 1
            stored = held.stored
            if isinstance(stored, Row):
                rows.append((held.player_id, stored))
            elif stored is not None:
                events.append(
                    ImportedEvent(held.player_id, held.event_id, stored.fingerprint, stored.outcome, stored.value, stored.version)
                )
            if stored is not None:
                size += _BESIDE + len(held.place)
            if looked_at >= LOOKED_AT or len(rows) + len(events) >= THINGS or size >= BYTES:
                cursor = held.place
                break
    return _encode(Chunk(rows, events, cursor, upto))


async def replay(journal: Journal, ledger: Ledger, wanted: Wanted, after: int, wait_ms: int) -> bytes:
    """A `Chunk` of what committed entries behind `after` say of the wanted players; waits so long for one, and may be empty.

    Raises:
        NotServing: the slice is not known here (yet), or the journal no longer holds the next entry.
        JournalUnavailable: no answer of the own store.
    """
    number = _slice(ledger, wanted).number
    committed = await journal.wait_for(committed_above=after, timeout_ms=wait_ms)
    if committed <= after:
        return _encode(Chunk([], [], None, after))
    entries = await journal.read(after + 1, limit=min(256, committed - after), max_bytes=BYTES * 4)
    rows: dict[str, Row] = {}
    events: list[ImportedEvent] = []
    upto = after
    for entry in entries:
        if entry.offset != upto + 1 or entry.offset > committed or len(events) >= THINGS:
            break
        _take(entry, number, wanted, rows, events)
        upto = entry.offset
    if upto == after:
        raise NotServing(f"the journal of this region does not hold entry {after + 1}")
    return _encode(Chunk(list(rows.items()), events, None, upto, committed - upto))


def _take(entry: Entry, number: int, wanted: Wanted, rows: dict[str, Row], events: list[ImportedEvent]) -> None:
    for record in open_entry(entry):
        if type(record) is Scored and record.board == number and wanted.here(record.player_id):
            if record.row is not None:
                rows[record.player_id] = record.row
            events.append(
                ImportedEvent(record.player_id, record.event_id, record.fingerprint, record.outcome, record.value, record.version)
            )


def _slice(ledger: Ledger, wanted: Wanted) -> BoardState:
    """The slice that gives, once this region has it as a whole."""
    for number in ledger.numbers(wanted.board_id):
        state = ledger.numbered(number)
        if state is None or state.phase == "importing":
            continue
        if (state.incarnation, state.layout_number) == (wanted.incarnation, wanted.layout):
            return state
    raise NotServing(f"layout {wanted.layout} of {wanted.board_id} is not here")
