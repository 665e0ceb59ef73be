"""The ledger on disk: one LMDB environment a shard.

What it is: rows and identities in one tree (a player's row beside that player's identities, so that a
scored event mostly dirties one page), board states and the position in two small ones. Every `apply` is one
LMDB transaction, so a killed process finds the last one applied, whole.

What it can lose: everything, if the machine stops. It never waits for the disk; the page cache outlives a
process but not a boot. So a marker beside the environment says in which boot it was opened and whether it
was closed in order, and what is found in doubt is deleted before LMDB maps it (a half-written tree can
crash its reader). The journal makes it again.

It writes through the map, which is three times as fast here as writing pages at commit. The price: the data
file is sparse and as long as the map, and a write to a full disk would end the process; so `apply` refuses
when less than `reserve_bytes` is free.

Two processes may have it open at once (a shard actor and its zombie): LMDB serialises their transactions,
and each notices what the other has applied.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from boards.model import BoardRules, Row
from journal.ports import Position
from journal.records import Entry, Record
from ledger.fold import FORMAT, Changes, FromState, State, board_key, check_same_result, identity_key, row_key
from ledger.ports import BoardState, Gone, Held, LedgerCorrupt, LedgerUnavailable, Saved

_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(Row).decode
_decode_saved = msgspec.msgpack.Decoder(Saved).decode
_decode_board = msgspec.msgpack.Decoder(BoardState).decode
_decode_position = msgspec.msgpack.Decoder(Position).decode
_decode_gone = msgspec.msgpack.Decoder(Gone).decode
_decode_highest = msgspec.msgpack.Decoder(int).decode
_decode_starts = msgspec.msgpack.Decoder(list[Position]).decode

_APPLIED = b"applied"
_STARTS = b"starts"
_HIGHEST = b"highest"
#: Before the id of a board that was here.
_GONE = b"gone:"
#: Before the number of a board that is removed and has keys left.
_LEFT = b"left:"
#: Keys of removed boards that one `apply` deletes at most: the loop that it runs on is not held for a big board.
_DELETES = 5000
#: Identities stepped over one by one before `rows` seeks to the next player instead.
_STEPS = 4


def current_boot() -> str:
    """Token of this boot of the machine; "" where the system tells none, which never equals a marked one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class LmdbReader:
    """A view of one LMDB snapshot."""

    __slots__ = ("_data", "_get", "_txn", "applied")

    def __init__(self, txn: Any, data: Any, applied: Position) -> None:
        self._txn = txn
        self._get = txn.get
        self._data = data
        self.applied = applied

    def row(self, board: int, player_id: str) -> Row | None:
        """See `LedgerReader`."""
        found = self._get(row_key(board, player_id))
        return None if found is None else _decode_row(found)

    def identity(self, board: int, player_id: str, event_id: str) -> Saved | None:
        """See `LedgerReader`."""
        found = self._get(identity_key(board, player_id, event_id))
        return None if found is None else _decode_saved(found)

    def rows(self, board: int) -> Iterator[tuple[str, Row]]:
        """See `LedgerReader`. Cost: about 1 µs a row, and a seek for players with many events."""
        prefix = board_key(board)
        with self._txn.cursor(self._data) as cursor:
            found, passed = cursor.set_range(prefix), 0
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    return
                if key[-1] == 0:
                    yield key[4:-1].decode(), _decode_row(cursor.value())
                    found, passed = cursor.next(), 0
                elif passed < _STEPS:
                    found, passed = cursor.next(), passed + 1
                else:
                    found, passed = cursor.set_range(key[: key.index(0, 4)] + b"\x01"), 0

    def content(self, board: int, after: bytes, wanted: Callable[[str], bool]) -> Iterator[Held]:
        """See `LedgerReader`. Cost: about 2 µs each, less for players that are not wanted."""
        prefix = board_key(board)
        with self._txn.cursor(self._data) as cursor:
            found = cursor.set_range(prefix + after + b"\0" if after else prefix)
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    return
                end = key.index(0, 4)
                player_id = key[4:end].decode()
                if not wanted(player_id):
                    yield Held(key[4:], player_id, "", None)
                    found = cursor.set_range(key[:end] + b"\x01")
                    continue
                event_id, value = key[end + 1 :].decode(), cursor.value()
                yield Held(key[4:], player_id, event_id, _decode_saved(value) if event_id else _decode_row(value))
                found = cursor.next()


class LmdbLedger(FromState):
    """See `Ledger`. Owns the directory `path`; loses nothing with the process, everything unsynced with the machine."""

    def __init__(
        self, path: str | os.PathLike[str], *, map_size: int = 64 << 30, reserve_bytes: int = 64 << 20, boot: str | None = None
    ) -> None:
        """Open or create; empty it first when its machine has stopped without `close`, or its format is another.

        `map_size` is address space and the upper bound of the data, not memory. `boot` is the token of this
        boot (default: the kernel's).

        Raises:
            LedgerUnavailable: the files cannot be opened or locked, or this process has them open already.
            OSError: `path` is no directory, or may not be written.
        """
        self._path = Path(path)
        self._reserve = reserve_bytes
        self._boot = current_boot() if boot is None else boot
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path / "open.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._closed = False
        try:
            self._settle_doubt()
            self._env = lmdb.open(
                str(self._path), map_size=map_size, max_dbs=3, sync=False, metasync=False, writemap=True, meminit=False, readahead=False
            )
            self._env.reader_check()
            self._data = self._env.open_db(b"data")
            self._boards = self._env.open_db(b"boards")
            self._meta = self._env.open_db(b"meta")
            with self._env.begin() as txn:
                self._state = self._load(txn)
        except lmdb.Error as error:
            os.close(self._lock)
            raise LedgerUnavailable(f"the ledger in {self._path} cannot be opened: {error}") from error
        except BaseException:
            os.close(self._lock)
            raise

    def apply(self, entries: Sequence[Entry], decoded: Sequence[list[Record]] | None = None) -> None:
        """See `Ledger`. Cost: 4 to 8 µs a scored record in batches of 500; nothing waits for the disk."""
        if not entries:
            return
        space = os.statvfs(self._path)
        if space.f_bavail * space.f_frsize < self._reserve:
            raise LedgerUnavailable(f"less than {self._reserve} bytes are free for the ledger in {self._path}")
        try:
            with self._env.begin(write=True, db=self._data) as txn:
                state = self._current(txn)
                get = txn.get

                def lookup(key: bytes) -> Row | None:
                    found = get(key)
                    return None if found is None else _decode_row(found)

                changes = state.plan(entries, decoded, lookup)
                if changes is not None:
                    self._store(txn, state, changes)
        except lmdb.Error as error:
            raise LedgerUnavailable(f"the ledger in {self._path} cannot be written: {error}") from error
        if changes is not None:
            state.absorb(changes)
        self._state = state

    @contextmanager
    def reader(self) -> Iterator[LmdbReader]:
        """See `Ledger`."""
        with self._env.begin(db=self._data, buffers=False) as txn:
            yield LmdbReader(txn, self._data, self._position(txn))

    def clear(self) -> None:
        """See `Ledger`."""
        try:
            with self._env.begin(write=True) as txn:
                for tree in (self._data, self._boards, self._meta):
                    txn.drop(tree, delete=False)
        except lmdb.Error as error:
            raise LedgerUnavailable(f"the ledger in {self._path} cannot be emptied: {error}") from error
        self._state = State()

    def sync(self) -> None:
        """See `Ledger`."""
        self._env.sync(True)

    def close(self) -> None:
        """See `Ledger`. The close of the last process that has it open is the one that counts as in order."""
        if self._closed:
            return
        self._closed = True
        try:
            self._env.sync(True)
            with self._gate():
                self._env.close()
                if self._alone():
                    self._mark(clean=True)
                os.close(self._lock)
        except BaseException:
            with suppress(OSError):
                os.close(self._lock)
            raise

    def _store(self, txn: Any, state: State, changes: Changes) -> None:
        """Put the changes into a transaction."""
        for number in changes.removed:
            txn.delete(board_key(number), db=self._boards)
            txn.put(_LEFT + board_key(number), b"", db=self._meta)
        self._delete_some(txn)
        with txn.cursor(self._data) as cursor:
            cursor.putmulti([(key, _encode(row)) for key, row in sorted(changes.rows.items())])
            saved = [(key, _encode(result)) for key, result in sorted(changes.saved.items())]
            given, stored = cursor.putmulti(saved, overwrite=False)
        if given != stored:
            for key, result in changes.saved.items():
                check_same_result(_decode_saved(txn.get(key)), result, result.offset)
        for number, board in changes.boards.items():
            txn.put(board_key(number), _encode(board), db=self._boards)
        if changes.starts:
            txn.put(_STARTS, _encode([*state.starts, *changes.starts]), db=self._meta)
        if changes.highest != state.highest:
            txn.put(_HIGHEST, _encode(changes.highest), db=self._meta)
        for board_id, gone in changes.gone.items():
            txn.put(_GONE + board_id.encode(), _encode(gone), db=self._meta)
        txn.put(_APPLIED, _encode(changes.applied), db=self._meta)

    def _delete_some(self, txn: Any) -> None:
        """Delete keys of removed boards, whose numbers are never given again in this journal. Cost: 0.5 µs a key, about 3 ms.

        Which those are is read in the same transaction: another process may have cleared the ledger and be building it
        anew, and then what was removed when this one looked last may be there again.
        """
        budget = _DELETES
        for prefix in self._left(txn):
            with txn.cursor(self._data) as cursor:
                found = cursor.set_range(prefix)
                while found and budget and cursor.key().startswith(prefix):
                    found, budget = cursor.delete(), budget - 1
                if found and cursor.key().startswith(prefix):
                    return
            txn.delete(_LEFT + prefix, db=self._meta)

    def _left(self, txn: Any) -> list[bytes]:
        """Prefixes of removed boards that have keys left."""
        with txn.cursor(self._meta) as cursor:
            found, left = cursor.set_range(_LEFT), list[bytes]()
            while found and cursor.key().startswith(_LEFT):
                left.append(cursor.key()[len(_LEFT) :])
                found = cursor.next()
            return left

    def _position(self, txn: Any) -> Position:
        found = txn.get(_APPLIED, db=self._meta)
        return Position(0, 0) if found is None else _decode_position(found)

    def _current(self, txn: Any) -> State:
        """The state as this transaction sees it: another process may have applied, or cleared, in between."""
        return self._state if self._position(txn) == self._state.applied else self._load(txn)

    def _load(self, txn: Any) -> State:
        applied = self._position(txn)
        try:
            starts = _decode_starts(txn.get(_STARTS, default=b"\x90", db=self._meta))
            highest = _decode_highest(txn.get(_HIGHEST, default=b"\x00", db=self._meta))
            with txn.cursor(self._boards) as cursor:
                boards = [_decode_board(value) for value in cursor.iternext(keys=False, values=True)]
            with txn.cursor(self._meta) as cursor:
                gone = {key[len(_GONE) :].decode(): _decode_gone(value) for key, value in cursor.iternext() if key.startswith(_GONE)}
            return State(applied, starts, boards, gone, highest)
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(f"what is stored cannot be read ({error})", applied.offset) from error

    def _settle_doubt(self) -> None:
        """Take a share of the open lock, with the marker saying that this boot has it open; delete first what may be half-written."""
        with self._gate():
            alone, marker = self._alone(), self._marker()
            if not alone and marker != {"format": FORMAT, "boot": self._boot, "clean": False}:
                raise LedgerUnavailable(f"the ledger in {self._path} is held open by a process of another version")
            if alone:
                in_order = marker.get("clean") is True or marker.get("boot") == self._boot != ""
                if not in_order or marker.get("format") != FORMAT:
                    for name in ("data.mdb", "lock.mdb"):
                        (self._path / name).unlink(missing_ok=True)
                self._mark(clean=False)
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """Opening and closing go one at a time, so that being alone stays true while it is acted upon."""
        gate = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)

    def _alone(self) -> bool:
        """Try to make the open lock exclusive; may lose the share in it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _marker(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode((self._path / "marker.json").read_bytes(), type=dict[str, Any])
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}

    def _mark(self, *, clean: bool) -> None:
        """Replace the marker, durably before anything later is written."""
        draft = self._path / "marker.json.new"
        with draft.open("wb") as file:
            file.write(msgspec.json.encode({"format": FORMAT, "boot": self._boot, "clean": clean}))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path / "marker.json")
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def stored_boards(path: Path) -> dict[str, BoardRules]:
    """Boards in the ledger at `path`, with the rules that their data was written with; {} where there is none or it is in doubt.

    Changes nothing on disk. For use while no process has that ledger open for writing.
    """
    try:
        marker = msgspec.json.decode((path / "marker.json").read_bytes(), type=dict[str, Any])
        in_order = marker.get("clean") is True or marker.get("boot") == current_boot() != ""
        if not in_order or marker.get("format") != FORMAT or not (path / "data.mdb").exists():
            return {}
        with lmdb.open(str(path), max_dbs=3, readonly=True, lock=False, create=False) as env:
            boards = env.open_db(b"boards", create=False)
            with env.begin(db=boards) as txn, txn.cursor() as cursor:
                found = [_decode_board(value) for value in cursor.iternext(keys=False, values=True)]
    except (OSError, lmdb.Error, msgspec.MsgspecError):
        return {}
    return {board.board_id: board.rules for board in found}
