"""An authority's part: its own appends, what the other regions answer, the commit, the drain."""

from failover import events as e
from failover.down import failed, halt, learn, let_go, outrun, step_down, superseded
from failover.events import Role
from failover.replication import ProbePeer
from failover.state import ShardState
from journal.ports import Granted, Refused


def own_appended(state: ShardState, event: e.OwnAppended) -> list[e.Action]:
    """The own store answered an append of this epoch."""
    replication = state.replication
    if replication is None or event.epoch != state.epoch:
        return []
    if isinstance(event.answer, Refused):
        return _own_refused(state, event.answer, event.now_ms)
    if event.answer is None:
        if state.trying is not None:
            return failed(state, event.now_ms, 0.5, "store_unavailable", "the own store did not answer while the epoch was started")
        return step_down(state, "the own store did not answer", look_at_ms=event.now_ms)
    state.tail = max(state.tail, event.answer.tail)
    replication.appended(state.tail.offset, event.request)
    return replicate(state, event.now_ms)


def _own_refused(state: ShardState, refused: Refused, now: int) -> list[e.Action]:
    status = refused.status
    if status.granted_region == state.region and status.granted_attempt != state.attempt and status.fence >= state.epoch:
        return superseded(state)
    if refused.reason == "diverged":
        return halt(state, "the own store holds another entry at this place")
    if status.fence > state.epoch:
        return outrun(state, status, now, 0.5)
    if state.trying is not None:
        return failed(state, now, 0.5, "store_refused", f"the own store refused: {refused.reason}")
    return step_down(state, f"the own store refused: {refused.reason}", look_at_ms=now)


def peer_answered(state: ShardState, event: e.PeerAnswered) -> list[e.Action]:
    replication = state.replication
    if replication is None or event.epoch != state.epoch:
        return []
    if isinstance(event.answer, Refused) and event.answer.status.incarnation == replication.members.get(event.region):
        status = event.answer.status
        if status.fence > state.epoch or (
            event.answer.reason == "fenced" and (status.granted_region, status.granted_attempt) != (state.region, state.attempt)
        ):
            return outrun(state, status, event.now_ms, 0.5)
        if event.answer.reason == "diverged":
            return halt(state, f"{event.region} holds another entry at a committed place")
    replication.answered(event.region, event.request, event.answer, state.own_status(), event.now_ms)
    return replicate(state, event.now_ms)


def replicate(state: ShardState, now: int) -> list[e.Action]:
    """Move the commit as far as it goes, then send what there is to send."""
    replication = state.replication
    if replication is None:
        return []
    actions: list[e.Action] = []
    moved = replication.advance(now)
    if moved is not None:
        state.committed = moved
        replication.not_voting = frozenset()
        actions.append(e.CommitMoved(offset=moved))
        if state.role is Role.STARTING:
            state.role, state.why = Role.CATCHING_UP, "folding the ledger"
            learn(state, state.epoch, state.region)
            if state.trying is not None:
                state.trying.phases["catch_up"] = now
            actions.append(e.CatchUp(offset=moved))
        if state.role is Role.DRAINING and state.drain_offset and moved >= state.drain_offset:
            state.role, state.drained_ms, state.why = Role.DRAINED, now, "drained, waiting for the handover"
            actions += [*let_go(state), e.DrainDone(epoch=state.epoch, offset=state.drain_offset)]
    confirmed = replication.confirmed()
    if confirmed is not None:
        actions.append(e.Confirmed(number=confirmed))
    for send in replication.sends(now, state.requests):
        if isinstance(send, ProbePeer):
            actions.append(e.Probe(request=send.request, regions=(send.region,)))
        else:
            actions.append(
                e.SendAppend(
                    request=send.request,
                    region=send.region,
                    epoch=state.epoch,
                    attempt=state.attempt,
                    first=send.first,
                    last=send.last,
                    committed=replication.committed,
                )
            )
    return actions


def confirm_asked(state: ShardState, event: e.ConfirmAsked) -> list[e.Action]:
    replication = state.replication
    if replication is None or event.epoch != state.epoch:
        return []
    replication.asked = max(event.above, replication.asked or 0)
    return replicate(state, event.now_ms)


def renew(state: ShardState, now: int) -> list[e.Action]:
    """Ask for promises while the epoch is served. Called at each tick, which is also how a stall of this process is noticed."""
    lease = state.lease
    if lease is None or state.role not in (Role.CATCHING_UP, Role.AUTHORITY, Role.DRAINING):
        return []
    return [
        e.SendRenew(request=request, region=region, epoch=state.epoch, attempt=state.attempt, lease_ms=lease.lease_ms)
        for request, region in lease.renewals(now, state.requests)
    ]


def renew_answered(state: ShardState, event: e.RenewAnswered) -> list[e.Action]:
    if state.lease is None or event.epoch != state.epoch:
        return []
    match event.answer:
        case Granted():
            state.lease.granted(event.request)
        case Refused(status=status) if status.fence > state.epoch:
            return outrun(state, status, event.now_ms, 0.5)
    return []


def caught_up(state: ShardState, event: e.LedgerCaughtUp) -> list[e.Action]:
    replication = state.replication
    if state.role is not Role.CATCHING_UP or replication is None or event.offset < replication.start_offset:
        return []
    cause, asked_by, phases = "", "", dict[str, int]()
    if state.trying is not None:
        cause, asked_by, phases = state.trying.cause, state.trying.asked_by, state.trying.lasted(event.now_ms)
    state.role, state.trying, state.backoff_ms = Role.AUTHORITY, None, 0
    state.why = f"serving epoch {state.epoch}"
    detail = f"epoch {state.epoch} of {state.region} has started ({cause})"
    ended = e.ActivationEnded(ok=True, code="started", detail=detail, cause=cause, asked_by=asked_by, phases_ms=phases)
    return [e.Serve(epoch=state.epoch), ended]


def drain_asked(state: ShardState, event: e.DrainAsked) -> list[e.Action]:
    if state.role is not Role.AUTHORITY or event.epoch != state.epoch:
        return []
    state.role, state.drain_offset, state.why = Role.DRAINING, 0, "draining"
    return [e.StopAccepting(epoch=state.epoch)]


def drain_appended(state: ShardState, event: e.DrainAppended) -> list[e.Action]:
    if state.role is not Role.DRAINING:
        return []
    state.drain_offset = event.offset
    return replicate(state, event.now_ms)
