"""The journal in memory: the port's rules as plain Python, which the store's scripts must equal.

`MemoryLog` is one shard's journal at one region, synchronous and deterministic, for the simulator and as the
model in tests; `MemoryJournal` is the async port around it. Nothing here survives its process.

Errors:
    JournalError
    └── NumberOutOfRange   an epoch below 1, a negative number, or one from 2**53 on. Definite: nothing was done.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from journal.ports import Accepted, Append, Granted, JournalError, JournalStatus, OrphanBatch, Peer, Position, Reason, Refused, Seal
from journal.records import Entry, Term

#: Scripts at the store compute in doubles: from here on neighbouring integers are no longer told apart.
NUMBER_LIMIT = 2**53

DIGEST_LENGTH = 16


class NumberOutOfRange(JournalError):
    """A number that a store could not compare exactly. Definite: nothing was done."""

    code = "number_out_of_range"
    definite = True


def check_numbers(epoch: int, *numbers: int, peers: dict[str, Peer] | None = None) -> None:
    """Raise `NumberOutOfRange` unless 1 <= epoch < 2**53 and all others are within 0 <= n < 2**53."""
    if not 1 <= epoch < NUMBER_LIMIT:
        raise NumberOutOfRange(f"epoch {epoch} is not within 1 and 2**53 - 1")
    for number in numbers:
        if not 0 <= number < NUMBER_LIMIT:
            raise NumberOutOfRange(f"{number} is not within 0 and 2**53 - 1")
    for peer in (peers or {}).values():
        if not (0 <= peer.fence < NUMBER_LIMIT and 0 <= peer.verified < NUMBER_LIMIT):
            raise NumberOutOfRange(f"peer ({peer.fence}, {peer.verified}) is not within 0 and 2**53 - 1")


def check_shard(own: str, given: str) -> None:
    """Raise ValueError when a message for another shard was brought here: a routing mistake, never an expected outcome."""
    if own != given:
        raise ValueError(f"a message for shard {given!r} was brought to the journal of {own!r}")


def continues(prev: Position, entries: Sequence[Entry], newest: int) -> bool:
    """Whether `entries` may follow `prev` in a journal (I3): contiguous, epochs neither falling nor above `newest`,
    and a `term` on exactly the first entry of each epoch (a journal finds the epoch of an offset by its terms)."""
    epoch, offset = prev
    for entry in entries:
        if entry.offset != offset + 1 or not max(epoch, 1) <= entry.epoch <= newest or len(entry.digest) != DIGEST_LENGTH:
            return False
        term = entry.term
        if (term is None) != (entry.epoch == epoch):
            return False
        if term is not None and (term.epoch, term.first_offset) != (entry.epoch, entry.offset):
            return False
        epoch, offset = entry.epoch, entry.offset
    return True


def _same(one: Entry, other: Entry) -> bool:
    return (one.epoch, one.offset, one.batch_id, one.digest) == (other.epoch, other.offset, other.batch_id, other.digest)


class MemoryLog:
    """One shard's journal at one region, by the rules of `journal.ports.Journal`; each call is one atomic step.

    `region` is whose store this is: its own line in `peers` is not kept, but an `amnesiac` mark in it is obeyed.
    Raises `NumberOutOfRange` before anything else.
    """

    def __init__(self, shard: str, region: str = "") -> None:
        self.shard = shard
        self.region = region
        self._incarnation = ""
        self._amnesiac = False
        self._fence = 0
        self._granted = ("", "")
        self._committed = 0
        #: The entry at offset n is [n - 1]: nothing is trimmed here, base is 0.
        self._entries: list[Entry] = []
        self._terms: list[Term] = []
        self._peers: dict[str, Peer] = {}
        self._orphans: dict[int, list[Entry]] = {}
        self._acceptor = ""
        #: (epoch, longest lease promised under it)
        self._lease = (0, 0)

    @property
    def committed(self) -> int:
        """As in `status()`, at no cost."""
        return self._committed

    @property
    def tail(self) -> Position:
        """As in `status()`, at no cost."""
        return Position(self._entries[-1].epoch, self._entries[-1].offset) if self._entries else Position(0, 0)

    def status(self) -> JournalStatus:
        """Everything but the entries, as a copy."""
        return JournalStatus(
            shard=self.shard,
            incarnation=self._incarnation,
            fence=self._fence,
            granted_region=self._granted[0],
            granted_attempt=self._granted[1],
            tail=self.tail,
            committed=self._committed,
            terms=list(self._terms),
            peers=dict(self._peers),
            amnesiac=self._amnesiac,
            lease_ms=self._leased_ms(),
        )

    def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        """The authority's own append. Refused `diverged` when entries of another epoch, or out of order, are given."""
        check_numbers(epoch, *expected, expected.offset + len(entries), committed, peers=peers)
        if (reason := self._unfit() or self._not_granted(epoch, attempt)) is not None:
            return self._refuse(reason)
        if self.tail == expected:
            if not continues(expected, entries, epoch) or any(entry.epoch != epoch for entry in entries):
                return self._refuse("diverged")
            self._extend(entries)
        elif not self._repeats(expected, entries):
            return self._refuse("mismatch")
        self._remember(peers)
        self._commit(min(committed, len(self._entries)))
        return self._accepted(len(self._entries))

    def accept(self, message: Append) -> Accepted | Refused:
        """The receiver's side of `Append`. Only `mismatch` leaves a trace: the fence is raised."""
        check_shard(self.shard, message.shard)
        prev, entries = message.prev, message.entries
        verified = prev.offset + len(entries)
        check_numbers(message.epoch, *prev, verified, message.committed, message.config_version, peers=message.peers)
        newest = self._terms[-1] if self._terms else None
        reason: Reason | None = self._unfit()
        if reason is None and newest is not None and message.lineage != newest.lineage:
            reason = "lineage"
        if reason is None and not self._may_have(message.epoch, message.attempt):
            reason = "fenced"
        if reason is None and newest is not None and message.config_version < newest.config_version:
            reason = "stale_config"
        if reason is None and self._below(message.peers.get(self.region, Peer())):
            self._amnesiac, reason = True, "amnesiac"
        if reason is not None:
            return self._refuse(reason)
        if prev.offset > len(self._entries) or self._epoch_at(prev.offset) != prev.epoch:
            self._promise(message.epoch, message.sender, message.attempt)
            return self._refuse("mismatch")
        if not continues(prev, entries, message.epoch):
            return self._refuse("diverged")
        skip = 0
        for entry in entries[: len(self._entries) - prev.offset]:
            own = self._entries[entry.offset - 1]
            if own.epoch != entry.epoch:
                break
            if own.digest != entry.digest:
                return self._refuse("diverged")
            skip += 1
        keep = prev.offset + skip
        if skip < len(entries):
            if keep < self._committed:
                return self._refuse("diverged")
            self._cut(keep)
            self._extend(entries[skip:])
        self._promise(message.epoch, message.sender, message.attempt)
        self._remember(message.peers)
        if self.region in message.peers and message.peers[self.region].amnesiac:
            self._amnesiac = True
        self._commit(min(message.committed, verified))
        return self._accepted(verified)

    def seal(self, message: Seal) -> Granted | Refused:
        """Promise the epoch; at genesis also take `admit_as`, in the same step."""
        check_shard(self.shard, message.shard)
        check_numbers(message.epoch, message.from_epoch, message.config_version, *message.remembered.pair)
        newest = self._terms[-1] if self._terms else None
        admits = bool(message.admit_as) and not self._entries and not self._terms
        if not self._incarnation and not admits:
            return self._refuse("not_admitted")
        if self._amnesiac:
            return self._refuse("amnesiac")
        if newest is not None and message.lineage not in ("", newest.lineage):
            return self._refuse("lineage")
        again = message.epoch == self._fence and (message.target, message.attempt) == self._granted
        if message.epoch <= self._fence and not again:
            return self._refuse("fenced")
        if newest is not None and (
            newest.epoch > message.from_epoch or (newest.epoch == message.from_epoch and newest.owner != message.from_owner)
        ):
            return self._refuse("moved")
        if self._leased_ms() and message.acceptor != self._acceptor:
            return self._refuse("superseded")
        if self._below(message.remembered):
            self._amnesiac = True
            return self._refuse("amnesiac")
        self._incarnation = self._incarnation or message.admit_as
        self._promise(message.epoch, message.target, message.attempt)
        return Granted(self.status())

    def take_acceptor(self, token: str) -> JournalStatus:
        """See the port."""
        self._acceptor = token
        return self.status()

    def renew(self, *, epoch: int, attempt: str, acceptor: str, lease_ms: int) -> Granted | Refused:
        """See the port."""
        check_numbers(epoch, lease_ms)
        if (reason := self._unfit() or self._not_granted(epoch, attempt)) is not None:
            return self._refuse(reason)
        if acceptor != self._acceptor:
            return self._refuse("superseded")
        self._lease = (epoch, max(self._leased_ms(), lease_ms))
        return Granted(self.status())

    def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        """The target's own step. Refused `diverged` also when keep is above the tail or `entries` cannot follow it."""
        check_numbers(epoch, *expected, keep, keep + len(entries))
        if (reason := self._unfit() or self._not_granted(epoch, attempt)) is not None:
            return self._refuse(reason)
        if self.tail != expected:
            return self._refuse("mismatch")
        if not self._committed <= keep <= len(self._entries):
            return self._refuse("diverged")
        if not continues(Position(self._epoch_at(keep), keep), entries, epoch):
            return self._refuse("diverged")
        self._cut(keep)
        self._extend(entries)
        return self._accepted(len(self._entries))

    def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        """Entries from `first` on; `max_bytes` bounds the sum of their `data`."""
        if first < 1:
            return []
        found: list[Entry] = []
        size = 0
        for entry in self._entries[first - 1 : first - 1 + max(limit, 1)]:
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def orphans(self) -> list[OrphanBatch]:
        """Orphans by epoch, without those that the log holds (again)."""
        held = {(entry.epoch, entry.offset, entry.digest) for entry in self._entries}
        return orphan_batches(self._orphans, held)

    def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        """Delete a stretch of one epoch's orphans; what was orphaned twice counts twice."""
        check_numbers(epoch, upto_offset, from_offset)
        found = self._orphans.get(epoch, [])
        kept = [entry for entry in found if not from_offset <= entry.offset <= upto_offset]
        if kept:
            self._orphans[epoch] = kept
        else:
            self._orphans.pop(epoch, None)
        return len(found) - len(kept)

    def mark_amnesiac(self, incarnation: str) -> None:
        """Set the mark; only `readmit` takes it away."""
        if incarnation == self._incarnation:
            self._amnesiac = True

    def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        """Begin anew. With the token that is already this store's (a repeated call) only the fence is raised."""
        check_numbers(1, fence)
        late = self._incarnation != replaces or self._fence > fence
        if replaces is not None and late and incarnation != self._incarnation:
            return self.status()
        if incarnation != self._incarnation:
            # What was sent to the store as it was must not be taken by the new one.
            self._granted = ("", "")
            self._cut(0)
            self._committed = 0
            self._amnesiac = False
            self._incarnation = incarnation
        self._promise(fence, "", "")
        return self.status()

    def _unfit(self) -> Reason | None:
        if not self._incarnation:
            return "not_admitted"
        return "amnesiac" if self._amnesiac else None

    def _leased_ms(self) -> int:
        """Longest lease promised under the present fence, and those right below it that were granted to the same region: an epoch
        of another region has waited for all before it."""
        return self._lease[1] if self._lease[0] == self._fence else 0

    def _below(self, remembered: Peer) -> bool:
        """Whether more was heard of this store than it holds: then it has lost data."""
        return (self._fence, len(self._entries)) < (remembered.fence, remembered.verified)

    def _not_granted(self, epoch: int, attempt: str) -> Reason | None:
        return None if epoch == self._fence and attempt == self._granted[1] else "fenced"

    def _may_have(self, epoch: int, attempt: str) -> bool:
        return epoch > self._fence or (epoch == self._fence and attempt == self._granted[1])

    def _promise(self, epoch: int, region: str, attempt: str) -> None:
        if epoch > self._fence:
            # Nobody waits before a Seal for the holder's own region, so its last life may still count what it was promised.
            self._lease = (epoch, self._leased_ms()) if region and region == self._granted[0] else self._lease
            self._fence, self._granted = epoch, (region, attempt)

    def _epoch_at(self, offset: int) -> int:
        return self._entries[offset - 1].epoch if offset else 0

    def _repeats(self, expected: Position, entries: Sequence[Entry]) -> bool:
        if not entries or expected.offset + len(entries) != len(self._entries):
            return False
        if self._epoch_at(expected.offset) != expected.epoch:
            return False
        return all(map(_same, self._entries[expected.offset :], entries))

    def _extend(self, entries: Sequence[Entry]) -> None:
        self._entries.extend(entries)
        self._terms.extend(entry.term for entry in entries if entry.term is not None)

    def _cut(self, keep: int) -> None:
        for entry in self._entries[keep:]:
            self._orphans.setdefault(entry.epoch, []).append(entry)
        del self._entries[keep:]
        while self._terms and self._terms[-1].first_offset > keep:
            self._terms.pop()

    def _remember(self, peers: dict[str, Peer]) -> None:
        for region, peer in peers.items():
            if region and region == self.region:
                continue
            old = self._peers.get(region)
            if old is None or (peer.fence, peer.verified) > (old.fence, old.verified):
                self._peers[region] = peer
            elif peer.amnesiac and (peer.fence, peer.verified) == (old.fence, old.verified):
                # A mark at the same point stays: a message sent before it was set must not take it away.
                self._peers[region] = peer

    def _commit(self, committed: int) -> None:
        self._committed = max(self._committed, committed)

    def _accepted(self, verified: int) -> Accepted:
        return Accepted(verified, self._committed, self._fence, self.tail, self._incarnation)

    def _refuse(self, reason: Reason) -> Refused:
        return Refused(reason, self.status())


def orphan_batches(by_epoch: dict[int, list[Entry]], held: set[tuple[int, int, str]]) -> list[OrphanBatch]:
    """Batches by ascending epoch, each by offset, once each, without what is `held` by (epoch, offset, digest)."""
    batches = []
    for epoch in sorted(by_epoch):
        unique = {(entry.offset, entry.digest): entry for entry in by_epoch[epoch] if (epoch, entry.offset, entry.digest) not in held}
        if unique:
            batches.append(OrphanBatch(epoch, [unique[key] for key in sorted(unique)]))
    return batches


class MemoryJournal:
    """The async port around one `MemoryLog`. One port a log: a waiter is woken by calls made through its own port only."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self._moved = asyncio.Condition()

    async def status(self) -> JournalStatus:
        """See the port."""
        return self.log.status()

    async def append(
        self, *, epoch: int, attempt: str, expected: Position, entries: Sequence[Entry], committed: int, peers: dict[str, Peer]
    ) -> Accepted | Refused:
        """See the port."""
        answer = self.log.append(epoch=epoch, attempt=attempt, expected=expected, entries=entries, committed=committed, peers=peers)
        await self._wake()
        return answer

    async def accept(self, message: Append) -> Accepted | Refused:
        """See the port."""
        answer = self.log.accept(message)
        await self._wake()
        return answer

    async def seal(self, message: Seal) -> Granted | Refused:
        """See the port."""
        return self.log.seal(message)

    async def take_acceptor(self, token: str) -> JournalStatus:
        """See the port."""
        return self.log.take_acceptor(token)

    async def renew(self, *, epoch: int, attempt: str, acceptor: str, lease_ms: int) -> Granted | Refused:
        """See the port."""
        return self.log.renew(epoch=epoch, attempt=attempt, acceptor=acceptor, lease_ms=lease_ms)

    async def adopt(self, *, epoch: int, attempt: str, expected: Position, keep: int, entries: Sequence[Entry]) -> Accepted | Refused:
        """See the port."""
        return self.log.adopt(epoch=epoch, attempt=attempt, expected=expected, keep=keep, entries=entries)

    async def read(self, first: int, *, limit: int = 256, max_bytes: int = 4_000_000) -> list[Entry]:
        """See the port."""
        return self.log.read(first, limit=limit, max_bytes=max_bytes)

    async def orphans(self) -> list[OrphanBatch]:
        """See the port."""
        return self.log.orphans()

    async def forget_orphans(self, epoch: int, upto_offset: int, *, from_offset: int = 1) -> int:
        """See the port."""
        return self.log.forget_orphans(epoch, upto_offset, from_offset=from_offset)

    async def mark_amnesiac(self, incarnation: str) -> None:
        """See the port."""
        self.log.mark_amnesiac(incarnation)

    async def readmit(self, *, incarnation: str, fence: int, replaces: str | None = None) -> JournalStatus:
        """See the port."""
        return self.log.readmit(incarnation=incarnation, fence=fence, replaces=replaces)

    async def wait_for(self, *, committed_above: int, timeout_ms: int) -> int:
        """See the port."""
        async with self._moved:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._moved.wait_for(lambda: self.log.committed > committed_above)
            return self.log.committed

    async def close(self) -> None:
        """Nothing to give back."""

    async def _wake(self) -> None:
        async with self._moved:
            self._moved.notify_all()
