"""What the machine's actions say on the way: the messages to stores and the start record. Pure; used by every shell of the machine."""

from collections.abc import Sequence

from failover import events as e
from failover.state import ShardState
from journal.ports import Append, Peer, Position, Renew, Seal
from journal.records import Entry, EpochStarted


def seal_message(state: ShardState, action: e.SendSeal, region: str) -> Seal:
    """The Seal for `region`'s store."""
    return Seal(
        shard=state.shard,
        lineage=action.lineage,
        config_version=action.config_version,
        sender=state.region,
        incarnation="",
        request_id=f"{action.attempt}.{action.request}",
        epoch=action.epoch,
        target=state.region,
        attempt=action.attempt,
        from_epoch=action.from_epoch,
        from_owner=action.from_owner,
        admit_as=action.admit_as.get(region, ""),
        remembered=action.remembered.get(region, Peer()),
    )


def start_record(state: ShardState, action: e.AppendStart, at_ms: int) -> EpochStarted:
    """The first record of the epoch; `at_ms` is wall time."""
    return EpochStarted(
        epoch=action.epoch,
        owner=state.region,
        attempt=action.attempt,
        from_epoch=action.from_epoch,
        from_owner=action.from_owner,
        cause=action.cause,
        asked_by=action.asked_by,
        mode=action.mode,
        members=dict(action.members),
        config_version=action.config_version,
        lineage=action.lineage,
        at_ms=at_ms,
    )


def prev_of(state: ShardState, action: e.SendAppend) -> Position:
    """Position of the entry before the first that is shipped; read it when the action is heard, not later."""
    return Position(state.own_status().epoch_at(action.first - 1), action.first - 1)


def append_message(
    state: ShardState, action: e.SendAppend, prev: Position, entries: Sequence[Entry], since_majority_ms: int
) -> Append | None:
    """The Append with `entries`; None when they are not all there, or the epoch is over by now."""
    replication = state.replication
    if replication is None or state.epoch != action.epoch or len(entries) != max(0, action.last - action.first + 1):
        return None
    term = state.terms[-1]
    return Append(
        shard=state.shard,
        lineage=term.lineage,
        config_version=term.config_version,
        sender=state.region,
        incarnation=term.members.get(state.region, ""),
        request_id=f"{action.attempt}.{action.request}",
        epoch=action.epoch,
        attempt=action.attempt,
        prev=prev,
        entries=list(entries),
        committed=replication.committed,
        peers=replication.memories(),
        since_majority_ms=since_majority_ms,
    )


def renew_message(state: ShardState, action: e.SendRenew | e.GiveUpLease) -> Renew:
    """A renewal, or the end of a lease."""
    request, lease_ms = (str(action.request), action.lease_ms) if isinstance(action, e.SendRenew) else ("end", 0)
    return Renew(
        shard=state.shard,
        sender=state.region,
        request_id=f"{action.attempt}.{request}",
        epoch=action.epoch,
        attempt=action.attempt,
        lease_ms=lease_ms,
    )
