"""The shard machine's errands: each carries out one action against the stores and hears what came of it.

Every errand ends in exactly one event for the machine; a store or link that gave no answer is `None` in it.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping

from actors.clocks import monotonic_ms, wall_ms
from actors.ports import Links, ShardSpec
from actors.writing import Kept
from failover import events as e
from failover.messages import append_message, prev_of, renew_message, seal_message, start_record
from failover.state import ShardState
from journal.ports import Accepted, Journal, JournalUnavailable, Position, Refused
from journal.records import Entry, seal_entry


class Errands:
    """See the module docstring. `kept` gives the entries that the writer still holds, by offset."""

    def __init__(
        self,
        spec: ShardSpec,
        journal: Journal,
        links: Links,
        state: ShardState,
        *,
        kept: Callable[[], Mapping[int, Kept]],
        hear: Callable[[e.Event], None],
    ) -> None:
        self._spec, self._journal, self._links, self._state = spec, journal, links, state
        self._kept, self._hear = kept, hear

    async def probe(self, region: str, request: int, *, silence: bool = False) -> None:
        direct = region == self._spec.region and not silence
        try:
            status = await (self._journal.status() if direct else self._links.probe(region, self._spec.shard))
        except JournalUnavailable:
            status = None
        self._hear(e.Probed(now_ms=monotonic_ms(), request=request, region=region, status=status))

    async def seal(self, region: str, action: e.SendSeal) -> None:
        message = seal_message(self._state, action, region)
        direct = region == self._spec.region and not action.leased
        try:
            answer = await (self._journal.seal(message) if direct else self._links.seal(region, message))
        except JournalUnavailable:
            answer = None
        self._hear(e.SealAnswered(now_ms=monotonic_ms(), request=action.request, region=region, answer=answer))

    async def adopt(self, action: e.Adopt) -> None:
        """Copy the adopted log in chunks; each step checks fence, attempt and tail."""
        tail, keep = action.expected, action.keep
        adopted: Position | None = tail
        try:
            if keep == action.last and tail.offset > keep:
                answer = await self._journal.adopt(epoch=action.epoch, attempt=action.attempt, expected=tail, keep=keep, entries=[])
                adopted = answer.tail if isinstance(answer, Accepted) else None
            while keep < action.last and adopted is not None:
                entries = await self._links.fetch(action.source, self._spec.shard, keep + 1, action.last - keep)
                entries = [x for x in entries or [] if x.offset <= action.last]
                if not entries:
                    adopted = None
                    break
                answer = await self._journal.adopt(epoch=action.epoch, attempt=action.attempt, expected=tail, keep=keep, entries=entries)
                if not isinstance(answer, Accepted):
                    adopted = None
                    break
                tail = adopted = answer.tail
                keep = entries[-1].offset
        except JournalUnavailable:
            adopted = None
        self._hear(e.Adopted(now_ms=monotonic_ms(), request=action.request, tail=adopted))

    async def append_start(self, action: e.AppendStart) -> None:
        entry = seal_entry(action.epoch, action.expected.offset + 1, uuid.uuid4().hex, [start_record(self._state, action, wall_ms())])
        try:
            answer: Accepted | Refused | None = await self._journal.append(
                epoch=action.epoch,
                attempt=action.attempt,
                expected=action.expected,
                entries=[entry],
                committed=self._state.committed,
                peers={},
            )
        except JournalUnavailable:
            answer = None
        self._hear(e.OwnAppended(now_ms=monotonic_ms(), epoch=action.epoch, answer=answer))

    async def ship(self, action: e.SendAppend) -> None:
        entries: list[Entry] = []
        answer: Accepted | Refused | None = None
        prev = prev_of(self._state, action)
        try:
            if action.last >= action.first:
                entries = await self._entries(action.first, action.last)
            replication = self._state.replication
            since = max(0, monotonic_ms() - replication.last_majority_ms) if replication is not None else 0
            message = append_message(self._state, action, prev, entries, since)
            if message is not None:
                answer = await self._links.append(action.region, message)
        except JournalUnavailable:
            answer = None
        self._hear(e.PeerAnswered(now_ms=monotonic_ms(), request=action.request, region=action.region, epoch=action.epoch, answer=answer))

    async def renew(self, action: e.SendRenew) -> None:
        answer = await self._links.renew(action.region, renew_message(self._state, action))
        self._hear(e.RenewAnswered(now_ms=monotonic_ms(), request=action.request, region=action.region, epoch=action.epoch, answer=answer))

    async def give_up_lease(self, action: e.GiveUpLease) -> None:
        message = renew_message(self._state, action)
        await asyncio.gather(*(self._links.renew(region, message) for region in action.regions))

    async def _entries(self, first: int, last: int) -> list[Entry]:
        kept = self._kept()
        entries = [kept[o].entry for o in range(first, last + 1) if o in kept]
        if len(entries) == last - first + 1:
            return entries
        out: list[Entry] = []
        while first <= last:
            got = [x for x in await self._journal.read(first, limit=last - first + 1) if x.offset <= last]
            if not got:
                break
            out += got
            first = got[-1].offset + 1
        return out
