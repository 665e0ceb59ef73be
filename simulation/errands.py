"""What a simulated process carries to stores: probes, seals, adoptions, start records, Appends. As `actors.errands` does it.

Each errand ends in exactly one event for the machine; an answer that did not come is None in it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from failover import events as e
from failover.messages import append_message, renew_message, seal_message, start_record
from journal.ports import Accepted, Peer, Position, Refused
from journal.records import Entry, seal_entry

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.region import Region

#: Patience with the stores of others.
LINK_MS = 60
#: Patience with a Seal: longer than the old owner's store is waited for.
SEAL_MS = 90
#: Entries of a Fetch.
FETCH = 3


class Errands:
    """Those of one process."""

    def __init__(self, process: "Process") -> None:
        self.process, self.world = process, process.world

    def probe(self, region: str, request: int, silence: bool = False) -> None:
        def heard(status: Any) -> None:
            self.process.hear(e.Probed(now_ms=self.process.now(), request=request, region=region, status=status))

        if region == self.process.name and not silence:
            self.process.own("probe", lambda r: r.store.log.status(), heard)
        else:
            self.world.network.call("probe", self.process, self.process.name, region, lambda r: r.acceptor.probe(), heard, patience=LINK_MS)

    def seal(self, region: str, action: e.SendSeal) -> None:
        message = seal_message(self.process.state, action, region)

        def heard(answer: Any) -> None:
            self.process.hear(e.SealAnswered(now_ms=self.process.now(), request=action.request, region=region, answer=answer))

        if region == self.process.name and not action.leased:
            self.process.own("seal", lambda r: r.store.log.seal(message), heard, message)
        else:
            self.world.network.call(
                "seal",
                self.process,
                self.process.name,
                region,
                _received,
                heard,
                patience=SEAL_MS if action.leased else LINK_MS,
                message=message,
                granting=True,
            )

    def renew(self, action: e.SendRenew) -> None:
        def heard(answer: Any) -> None:
            self.process.hear(
                e.RenewAnswered(now_ms=self.process.now(), request=action.request, region=action.region, epoch=action.epoch, answer=answer)
            )

        self._renewal(action, action.region, heard)

    def give_up_lease(self, action: e.GiveUpLease) -> None:
        for region in action.regions:
            self._renewal(action, region, _nobody_waits)

    def _renewal(self, action: e.SendRenew | e.GiveUpLease, region: str, heard: Callable[[Any], None]) -> None:
        name, message = self.process.name, renew_message(self.process.state, action)
        self.world.network.call(
            "renew",
            self.process,
            name,
            region,
            _received,
            heard,
            patience=2 * self.world.timing.lease_ms // 3,
            message=message,
            granting=True,
        )

    def adopt(self, action: e.Adopt) -> None:
        """Fetch in chunks, each adopted at once; a lost Fetch ends it half-way."""

        def ended(tail: Position | None) -> None:
            self.process.hear(e.Adopted(now_ms=self.process.now(), request=action.request, tail=tail))

        def adopt(keep: int, expected: Position, entries: list[Entry], then: Callable[[Any], None]) -> None:
            self.process.own(
                "adopt",
                lambda r: r.store.log.adopt(epoch=action.epoch, attempt=action.attempt, expected=expected, keep=keep, entries=entries),
                then,
            )

        def more(keep: int, expected: Position) -> None:
            if keep >= action.last:
                ended(expected)
                return
            limit = min(FETCH, action.last - keep)

            def fetched(entries: Any) -> None:
                if not entries:
                    ended(None)
                    return

                def adopted(answer: Any) -> None:
                    if isinstance(answer, Accepted):
                        more(entries[-1].offset, answer.tail)
                    else:
                        ended(None)

                adopt(keep, expected, entries, adopted)

            self.world.network.call(
                "fetch",
                self.process,
                self.process.name,
                action.source,
                lambda r: r.acceptor.fetch(keep + 1, limit),
                fetched,
                patience=LINK_MS,
            )

        if action.keep == action.last and action.expected.offset > action.keep:
            adopt(action.keep, action.expected, [], lambda answer: ended(answer.tail if isinstance(answer, Accepted) else None))
        else:
            more(action.keep, action.expected)

    def append_start(self, action: e.AppendStart) -> None:
        record = start_record(self.process.state, action, self.process.wall_ms())
        entry = seal_entry(action.epoch, action.expected.offset + 1, self.world.token(), [record])
        committed = self.process.state.committed
        self.process.own(
            "own append",
            lambda r: append(r, action.epoch, action.attempt, action.expected, [entry], committed, {}),
            lambda answer: self.process.own_appended(action.epoch, answer),
            entry,
        )

    def ship(self, action: e.SendAppend) -> None:
        state, replication = self.process.state, self.process.state.replication
        if replication is None:
            return
        first, last = action.first, action.last
        prev_epoch = 0
        for term in reversed(state.terms):
            if term.first_offset < first:
                prev_epoch = term.epoch
                break
        entries: list[Entry] = []
        if last >= first:
            kept = self.process.writer.kept if self.process.writer is not None else {}
            entries = [kept[at].entry for at in range(first, last + 1) if at in kept]
            if len(entries) != last - first + 1:
                store = self.process.region.store
                entries = list(store.log.entries[first - 1 : last]) if store.up and not store.stalled else []
        since_majority_ms = max(0, self.process.now() - replication.last_majority_ms)
        message = append_message(state, action, Position(prev_epoch, first - 1), entries, since_majority_ms)
        if message is None:
            self.world.at(self.world.now + 1, self.process.deliver, self._not_shipped, action)
            return

        def heard(answer: Any) -> None:
            self.process.hear(
                e.PeerAnswered(now_ms=self.process.now(), request=action.request, region=action.region, epoch=action.epoch, answer=answer)
            )

        self.world.network.call(
            "append",
            self.process,
            self.process.name,
            action.region,
            lambda r: r.acceptor.append(message),
            heard,
            patience=LINK_MS,
            message=message,
        )

    def _not_shipped(self, action: e.SendAppend) -> None:
        self.process.hear(
            e.PeerAnswered(now_ms=self.process.now(), request=action.request, region=action.region, epoch=action.epoch, answer=None)
        )


def _received(_: Any) -> Any:
    raise NotImplementedError("the acceptor that receives it says what is done")


def _nobody_waits(_: Any) -> None:
    """For the answer."""


def append(
    region: "Region", epoch: int, attempt: str, expected: Position, entries: list[Entry], committed: int, peers: dict[str, Peer]
) -> Accepted | Refused:
    return region.store.log.append(epoch=epoch, attempt=attempt, expected=expected, entries=entries, committed=committed, peers=peers)
