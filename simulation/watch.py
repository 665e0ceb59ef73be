"""Stores that compare themselves before and after each call, so that a broken rule fails in the call that breaks it.

A fence that falls, a committed entry that is cut, an epoch with two attempts, two entries at one place: I2, I3, I6, I13,
and I1 as far as stores alone show it. One `Watch` is shared by all stores of a shard.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from journal.memory import MemoryLog
from journal.ports import Accepted, Append, Granted, JournalStatus, Peer, Position, Refused, Seal
from journal.records import Entry

#: (epoch, offset, digest): what makes an entry this one.
Key = tuple[int, int, str]


class Violation(AssertionError):
    """A broken invariant: `invariant` is its number in the protocol, such as `I4`, or a word for a rule without one."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(invariant, detail)
        self.invariant = invariant
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail}"


def key(entry: Entry) -> Key:
    """The entry's identity over all stores."""
    return entry.epoch, entry.offset, entry.digest


@dataclass(slots=True)
class Watch:
    """What all stores of one shard were seen to do."""

    #: (lineage, epoch) -> the one attempt that appended in it (I2).
    appended_by: dict[tuple[str, int], str] = field(default_factory=dict)
    #: (lineage, epoch, offset) -> digest and batch first seen there, and the place before it (I3).
    seen: dict[tuple[str, int, int], tuple[str, str, int, int]] = field(default_factory=dict)
    #: (lineage, offset) -> the entry that some store held as committed (I1, I13).
    committed: dict[tuple[str, int], Key] = field(default_factory=dict)
    #: Region -> everything that was cut there.
    cut: dict[str, dict[Key, Entry]] = field(default_factory=dict)
    cuts: int = 0


class WatchedLog(MemoryLog):
    """See the module docstring."""

    def __init__(self, shard: str, region: str, watch: Watch) -> None:
        super().__init__(shard, region)
        self.watch = watch
        self._doing = ""
        self._writing: tuple[int, str] | None = None
        self._cut_here = False

    def copied(self) -> "WatchedLog":
        """This store as it is now, as a snapshot of its disk would keep it."""
        other = WatchedLog(self.shard, self.region, self.watch)
        for name, value in vars(self).items():
            if name != "watch":
                setattr(other, name, copy.deepcopy(value) if name == "_orphans" else copy.copy(value))
        return other

    @property
    def fence(self) -> int:
        """As in `status()`, at no cost."""
        return self._fence

    @property
    def incarnation(self) -> str:
        """As in `status()`, at no cost."""
        return self._incarnation

    @property
    def amnesiac(self) -> bool:
        """As in `status()`, at no cost."""
        return self._amnesiac

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries; the one at offset n is [n - 1]. Only to be looked at."""
        return self._entries

    def epoch_at(self, offset: int) -> int:
        """Epoch of the entry at `offset`, 0 when there is none."""
        return self._entries[offset - 1].epoch if 0 < offset <= len(self._entries) else 0

    def memory_of(self, region: str) -> Peer:
        """What this store remembers of another."""
        return self._peers.get(region, Peer())

    def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        before = self._begin("append", (epoch, attempt))
        answer = super().append(epoch=epoch, attempt=attempt, expected=expected, entries=entries, committed=committed, peers=peers)
        self._end(before, answer)
        return answer

    def accept(self, message: Append) -> Accepted | Refused:
        before = self._begin("accept", (message.epoch, message.attempt))
        answer = super().accept(message)
        self._end(before, answer)
        return answer

    def seal(self, message: Seal) -> Granted | Refused:
        before = self._begin("seal", None)
        answer = super().seal(message)
        self._end(before, answer)
        if isinstance(answer, Granted) and self._granted != (message.target, message.attempt):
            raise Violation("I6", f"{self.region} granted epoch {message.epoch} to {message.target} and to another attempt")
        return answer

    def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        before = self._begin("adopt", (epoch, attempt))
        answer = super().adopt(epoch=epoch, attempt=attempt, expected=expected, keep=keep, entries=entries)
        self._end(before, answer)
        return answer

    def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        before = self._begin("readmit", None)
        answer = super().readmit(incarnation=incarnation, fence=fence, replaces=replaces)
        if self._fence < before[0]:
            raise Violation("I6", f"the fence of {self.region} fell from {before[0]} to {self._fence}")
        return answer

    def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        count = super().forget_orphans(epoch, upto_offset, from_offset=from_offset)
        cut = self.watch.cut.get(self.region, {})
        self.watch.cut[self.region] = {k: e for k, e in cut.items() if k[0] != epoch or not from_offset <= k[1] <= upto_offset}
        return count

    def _begin(self, doing: str, writing: tuple[int, str] | None) -> tuple[int, tuple[str, str], int]:
        self._doing, self._writing, self._cut_here = doing, writing, False
        return self._fence, self._granted, self._committed

    def _end(self, before: tuple[int, tuple[str, str], int], answer: object) -> None:
        fence, granted, committed = before
        if self._fence < fence:
            raise Violation("I6", f"the fence of {self.region} fell from {fence} to {self._fence}")
        if self._fence == fence and self._granted != granted:
            raise Violation("I6", f"epoch {fence} was granted twice at {self.region}")
        if self._committed < committed:
            raise Violation("I13", f"committed fell from {committed} to {self._committed} at {self.region}")
        if self._cut_here and isinstance(answer, Refused):
            raise Violation("hearsay", f"{self.region} refused an {self._doing} and cut")

    def _cut(self, keep: int) -> None:
        gone = self._entries[keep:]
        if gone:
            if self._doing == "seal":
                raise Violation("hearsay", f"{self.region} cut its journal at {keep} because of a Seal")
            if keep < self._committed and self._doing != "readmit":
                raise Violation("I13", f"{self.region} cut at {keep}, below its committed {self._committed}")
            self._cut_here = True
            self.watch.cuts += 1
            self.watch.cut.setdefault(self.region, {}).update((key(entry), entry) for entry in gone)
        super()._cut(keep)

    def _extend(self, entries: Sequence[Entry]) -> None:
        super()._extend(entries)
        if not entries:
            return
        watch, lineage, writing = self.watch, self._terms[-1].lineage if self._terms else "", self._writing
        before_epoch, before_offset = 0, 0
        first = entries[0].offset
        if first > 1 and first - 2 < len(self._entries):
            before_epoch, before_offset = self._entries[first - 2].epoch, first - 1
        for entry in entries:
            epoch, offset = entry.epoch, entry.offset
            if offset != before_offset + 1 or epoch < before_epoch:
                raise Violation("I3", f"{key(entry)} follows {(before_epoch, before_offset)} at {self.region}")
            is_so = (entry.digest, entry.batch_id, before_epoch, before_offset)
            if watch.seen.setdefault((lineage, epoch, offset), is_so) != is_so:
                raise Violation("I3", f"two entries at {(epoch, offset)}; one of them at {self.region}")
            if writing is not None and epoch == writing[0] and watch.appended_by.setdefault((lineage, epoch), writing[1]) != writing[1]:
                raise Violation("I2", f"two attempts appended in epoch {epoch}, the second at {self.region}")
            before_epoch, before_offset = epoch, offset

    def _commit(self, committed: int) -> None:
        before = self._committed
        super()._commit(committed)
        after = self._committed
        if after == before:
            return
        if after > len(self._entries):
            raise Violation("I13", f"{self.region} calls {after} committed and holds {len(self._entries)} entries")
        lineage = self._terms[-1].lineage if self._terms else ""
        held_by_all = self.watch.committed
        for entry in self._entries[before:after]:
            own = key(entry)
            held = held_by_all.setdefault((lineage, entry.offset), own)
            if held != own:
                raise Violation("I1", f"two entries were committed at offset {entry.offset}: {held[:2]} and {own[:2]} at {self.region}")
