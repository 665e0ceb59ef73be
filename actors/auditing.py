"""Audit records: what operators did, written by the authority as one record, read back from any region's own journal.

The gate `unless_open: "drill"` is decided where entries are decided, one after the other, so two drills cannot both
begin. Which drill is open is a matter of the journal: it is read once in an epoch, when the first gated record is asked
for, and kept in memory from then on.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from actors.messages import Busy, NoAuthority
from actors.waiting import CommitWaiters, Deposed
from journal.ports import Journal, JournalUnavailable, Position
from journal.records import Audited, open_entry

#: How every `Audited` begins in an entry's bytes: an array of five, tag 6. Found in other bytes by accident only.
MARK = b"\x95\x06"
#: Entries read at a time.
CHUNK = 256
#: Bytes of `detail` as JSON, at most.
DETAIL_BYTES = 16_384

BEGAN, ENDED = "drill.began", "drill.ended"


class Found(msgspec.Struct, frozen=True):
    """A committed audit record and its place."""

    epoch: int
    offset: int
    what: str
    asked_by: str
    at_ms: int
    detail: dict[str, Any]


class OpenDrill(NamedTuple):
    """A drill that began; `offset` is 0 when the record was committed before this epoch asked."""

    until_ms: int
    offset: int


@dataclass(slots=True)
class Drills:
    """Drills that began and have not ended, as one epoch's authority knows them."""

    #: By the drill's `id`.
    open: dict[str, OpenDrill] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    #: The journal was read: what is not open here is not open.
    known: bool = False
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def note(self, what: str, detail: Mapping[str, Any], offset: int = 0) -> None:
        """Take a record, in any order: an end counts also before its beginning is heard of. Others change nothing."""
        name, until_ms = detail.get("id"), detail.get("until_ms")
        if not isinstance(name, str):
            return
        if what == ENDED:
            self.ended.add(name)
            self.open.pop(name, None)
        elif what == BEGAN and name not in self.ended and isinstance(until_ms, int):
            self.open.setdefault(name, OpenDrill(until_ms, offset))

    def running(self, now_ms: int) -> tuple[str, OpenDrill] | None:
        """A drill that is still open and not past its time."""
        return next(((name, drill) for name, drill in self.open.items() if drill.until_ms > now_ms), None)

    async def learn(self, journal: Journal) -> None:
        """Read the journal, once. Raises NoAuthority (definite: nothing was written) when the store does not answer."""
        async with self.reading:
            if self.known:
                return
            try:
                async for found in read_back(journal, "drill"):
                    self.note(found.what, found.detail)
            except JournalUnavailable as error:
                raise NoAuthority(f"the journal could not be read: {error}", code="unavailable", definite=True) from error
            self.known = True


@dataclass(slots=True)
class AuditRequest:
    """A record on its way into an entry. `unless_open`: "drill" or ""."""

    what: str
    asked_by: str
    detail: dict[str, Any]
    unless_open: str
    done: asyncio.Future[Position]


class Decided(NamedTuple):
    """What became of a request: its record, or why there is none. Either may be told once `depends` is committed (I12)."""

    record: Audited | None
    depends: int
    refusal: Busy | None


def decide(request: AuditRequest, drills: Drills, *, offset: int, now_ms: int) -> Decided:
    """Decide one request as part of the entry at `offset`."""
    running = drills.running(now_ms) if request.unless_open == "drill" else None
    if running is not None:
        name, drill = running
        return Decided(None, drill.offset, Busy(f"drill {name} is running", drill=name, retry_after_ms=drill.until_ms - now_ms))
    drills.note(request.what, request.detail, offset)
    detail = msgspec.json.encode(request.detail).decode()
    return Decided(Audited(request.what, request.asked_by, now_ms, detail), offset, None)


async def answer(request: AuditRequest, decided: Decided, epoch: int, waiters: CommitWaiters, timeout_s: float) -> None:
    """Tell the asker where the record is, or why there is none, once what that rests on is committed."""
    try:
        await waiters.wait(decided.depends, timeout_s, committed=True)
    except (Deposed, TimeoutError):
        if not request.done.done():
            request.done.set_exception(NoAuthority("it is not known whether the record was written", code="unknown", definite=False))
        return
    if request.done.done():
        return
    if decided.refusal is not None:
        request.done.set_exception(decided.refusal)
    else:
        request.done.set_result(Position(epoch, decided.depends))


def fits(what: str, asked: str) -> bool:
    """Whether a record named `what` is asked for: by its whole name, by what stands before a dot in it, or all by ""."""
    return not asked or what == asked or what.startswith(f"{asked}.")


async def read_back(journal: Journal, what: str = "") -> AsyncGenerator[Found, None]:
    """Committed audit records that `what` asks for (see `fits`), the newest first.

    Cost: one round trip and all bytes of every 256 entries, back to where the caller stops or the journal begins, about 0.5 s
    for 100,000 entries of ten events; only entries whose bytes hold the mark are decoded. Raises JournalUnavailable.
    """
    status = await journal.status()
    last = status.committed
    while last > status.base:
        first = max(status.base + 1, last - CHUNK + 1)
        entries = await journal.read(first, limit=last - first + 1)
        while entries and entries[-1].offset < last:
            more = await journal.read(entries[-1].offset + 1, limit=last - entries[-1].offset)
            if not more:
                break
            entries += more
        if not entries or entries[-1].offset != last:
            raise JournalUnavailable("the journal was begun anew while it was read")
        for entry in reversed(entries):
            if MARK not in entry.data:
                continue
            for record in reversed(open_entry(entry)):
                if isinstance(record, Audited) and fits(record.what, what):
                    detail = msgspec.json.decode(record.detail, type=dict[str, Any])
                    yield Found(entry.epoch, entry.offset, record.what, record.asked_by, record.at_ms, detail)
        last = first - 1


async def newest(journal: Journal, what: str, limit: int) -> list[Found]:
    """At most `limit` records, the newest first. Cost as in `read_back`."""
    found: list[Found] = []
    async with aclosing(read_back(journal, what)) as records:
        async for record in records:
            found.append(record)
            if len(found) >= limit:
                break
    return found
