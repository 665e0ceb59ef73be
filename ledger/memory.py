"""A ledger in two dicts, for tests and the simulator."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from boards.model import Row
from journal.ports import Position
from journal.records import Entry, Record
from ledger.fold import FromState, State, board_key, check_same_result, identity_key, row_key
from ledger.ports import Held, Saved


class MemoryReader:
    """A view over two dicts that nobody changes while it is open."""

    __slots__ = ("_rows", "_saved", "applied")

    def __init__(self, applied: Position, rows: dict[bytes, Row], saved: dict[bytes, Saved]) -> None:
        self.applied = applied
        self._rows = rows
        self._saved = saved

    def row(self, board: int, player_id: str) -> Row | None:
        """See `LedgerReader`."""
        return self._rows.get(row_key(board, player_id))

    def identity(self, board: int, player_id: str, event_id: str) -> Saved | None:
        """See `LedgerReader`."""
        return self._saved.get(identity_key(board, player_id, event_id))

    def rows(self, board: int) -> Iterator[tuple[str, Row]]:
        """See `LedgerReader`. Cost: a sort of all the shard's keys."""
        prefix = board_key(board)
        for key in sorted(self._rows):
            if key.startswith(prefix):
                yield key[4:-1].decode(), self._rows[key]

    def content(self, board: int, after: bytes, wanted: Callable[[str], bool]) -> Iterator[Held]:
        """See `LedgerReader`. Cost: a sort of all the shard's keys."""
        prefix, stored = board_key(board), dict[bytes, Row | Saved]([*self._rows.items(), *self._saved.items()])
        for key in sorted(stored):
            if key.startswith(prefix) and key[4:] > after:
                player, _, event = key[4:].partition(b"\0")
                player_id = player.decode()
                yield Held(key[4:], player_id, event.decode(), stored[key] if wanted(player_id) else None)


class MemoryLedger(FromState):
    """See `Ledger`. Loses everything with the process."""

    def __init__(self) -> None:
        self._state = State()
        self._rows: dict[bytes, Row] = {}
        self._saved: dict[bytes, Saved] = {}
        self._readers = 0

    def apply(self, entries: Sequence[Entry], decoded: Sequence[list[Record]] | None = None) -> None:
        """See `Ledger`."""
        changes = self._state.plan(entries, decoded, self._rows.get)
        if changes is None:
            return
        fresh: dict[bytes, Saved] = {}
        for key, saved in changes.saved.items():
            known = self._saved.get(key)
            if known is None:
                fresh[key] = saved
            else:
                check_same_result(known, saved, saved.offset)
        if self._readers:  # views keep the dicts they have
            self._rows, self._saved = dict(self._rows), dict(self._saved)
        for number in changes.removed:
            prefix = board_key(number)
            self._rows = {key: row for key, row in self._rows.items() if not key.startswith(prefix)}
            self._saved = {key: saved for key, saved in self._saved.items() if not key.startswith(prefix)}
        self._rows.update(changes.rows)
        self._saved.update(fresh)
        self._state.absorb(changes)

    @contextmanager
    def reader(self) -> Iterator[MemoryReader]:
        """See `Ledger`."""
        self._readers += 1
        try:
            yield MemoryReader(self._state.applied, self._rows, self._saved)
        finally:
            self._readers -= 1

    def clear(self) -> None:
        """See `Ledger`."""
        self._state = State()
        self._rows, self._saved = {}, {}

    def sync(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to give back."""
