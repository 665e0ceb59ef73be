"""The shard role machine: `step(state, event) -> actions`, one state per shard and region.

Follower -> probing -> sealing -> adopting -> starting -> catching up -> authority -> (draining -> drained)
-> follower. Safety rests on the fences beside the data; this machine decides only when to ask for what.
`step` changes `state` in place and returns what the shell must do, in order. It reads no clock and draws
no randomness: both arrive in the event.
"""

from collections.abc import Callable, Mapping
from typing import Any

from failover import events as e
from failover.activation import NotNow, evaluate, in_doubt
from failover.events import Role
from failover.logs import last_common, later, most_advanced, newest_started, of_members, remembered
from failover.replication import PeerProgress, ProbePeer, Replication
from failover.state import Attempt, ShardState
from journal.ports import Granted, JournalStatus, Peer, Refused
from journal.records import Term


def step(state: ShardState, event: e.Event) -> list[e.Action]:
    """Hear `event`; return what to do."""
    if state.role is Role.HALTED:
        return []
    return _HANDLERS[type(event)](state, event)


# -- time ---------------------------------------------------------------------------------------------------


def _ticked(state: ShardState, event: e.Ticked) -> list[e.Action]:
    now = event.now_ms
    match state.role:
        case Role.BOOTING | Role.FOLLOWER | Role.AMNESIAC | Role.ASIDE:
            if state.look_at_ms is None or now < state.look_at_ms:
                return []
            cause = "restart" if state.role is Role.BOOTING or not state.attempt else "unstarted_seal"
            return _begin(state, now, cause, state.region, event.token, None, {})
        case Role.PROBING | Role.SEALING:
            return _look_at_answers(state, now, event.jitter)
        case Role.DRAINED if now - state.drained_ms > state.timing.handover_timeout_ms:
            return [*_step_down(state, "the handover did not come", look_at_ms=now)]
        case _:
            return _replicate(state, now)


def _begin(
    state: ShardState,
    now: int,
    cause: str,
    asked_by: str,
    token: str,
    expect: tuple[int, str] | None,
    readmit: Mapping[str, str],
) -> list[e.Action]:
    request = state.requests()
    state.role, state.look_at_ms = Role.PROBING, None
    state.trying = Attempt(cause, asked_by, token, expect, dict(readmit), now, request)
    state.why = f"probing ({cause})"
    return [e.Probe(request=request, regions=state.regions)]


def _asked(state: ShardState, event: e.ActivationAsked) -> list[e.Action]:
    actions: list[e.Action] = []
    if state.role in (Role.PROBING, Role.SEALING, Role.ADOPTING, Role.STARTING, Role.CATCHING_UP) and state.trying is not None:
        if state.trying.cause not in ("restart", "unstarted_seal"):
            return [e.ActivationEnded(ok=False, code="busy", detail=f"an activation ({state.trying.cause}) is under way")]
        state.trying = None
    if state.role in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED, Role.STARTING, Role.CATCHING_UP):
        actions += _step_down(state, f"activating again ({event.cause})", look_at_ms=None)
    return actions + _begin(state, event.now_ms, event.cause, event.asked_by, event.token, event.expect, event.readmit or {})


# -- probe and seal -----------------------------------------------------------------------------------------


def _probed(state: ShardState, event: e.Probed) -> list[e.Action]:
    trying = state.trying
    if state.role is Role.PROBING and trying is not None and event.request == trying.request:
        if event.status is None:
            trying.silent.add(event.region)
        else:
            trying.answers[event.region] = event.status
        return _look_at_answers(state, event.now_ms, 0.5)
    if state.replication is not None and state.replication.probed(
        event.region, event.request, event.status, state.own_status(), event.now_ms
    ):
        status = event.status
        if status is not None and status.fence > state.epoch:
            return _outrun(state, status, event.now_ms, 0.5)
        return _replicate(state, event.now_ms)
    return []


def _look_at_answers(state: ShardState, now: int, jitter: float) -> list[e.Action]:
    """Go on from Probe or Seal when all have answered, or a majority has and the grace is over, or time is up."""
    trying = state.trying
    if trying is None:
        return []
    sealing = state.role is Role.SEALING
    got = trying.grants if sealing else trying.answers
    asked = trying.plan.asked if sealing and trying.plan is not None else state.regions
    everyone = len(got) + len(trying.silent) >= len(asked)
    if sealing and trying.plan is not None:
        enough = len(trying.plan.voters & got.keys()) >= trying.plan.need and state.region in got
    else:
        enough = len(got) * 2 > len(state.regions) and state.region in got and _known(trying.answers)
    if enough and trying.majority_since_ms is None:
        trying.majority_since_ms = now
    graced = trying.majority_since_ms is not None and now - trying.majority_since_ms >= state.timing.grace_ms
    late = now - trying.began_ms >= state.timing.probe_timeout_ms
    if not (everyone or graced or late):
        return []
    return _seal_is_over(state, now, jitter, enough) if sealing else _probe_is_over(state, now, jitter)


def _known(answers: Mapping[str, JournalStatus]) -> bool:
    """Whether any answer knows a started epoch: genesis gets no grace, since it needs all regions."""
    return any(status.terms for status in answers.values())


def _probe_is_over(state: ShardState, now: int, jitter: float) -> list[e.Action]:
    trying = state.trying
    assert trying is not None
    own = trying.answers.get(state.region)
    if own is not None:
        state.terms, state.tail, state.committed = list(own.terms), own.tail, own.committed
    if trying.remembered is None and in_doubt(trying.answers):
        trying.remembered = remembered(trying.answers.values())
        trying.request, trying.began_ms, trying.majority_since_ms = state.requests(), now, None
        trying.answers, trying.silent = {}, set()
        return [e.Probe(request=trying.request, regions=state.regions)]
    newest = newest_started(trying.answers.values())
    if state.attempt and newest is not None and newest.owner == state.region and newest.epoch > state.epoch:
        # Each epoch that this process starts is above those it knows, so this one is another instance's: give way for good,
        # else two instances of one region depose each other for ever.
        return [*_superseded(state), e.ActivationEnded(ok=False, code="superseded", detail=state.why)]
    plan = evaluate(
        region=state.region,
        regions=state.regions,
        home=state.home,
        answers=trying.answers,
        cause=trying.cause,
        expect=trying.expect,
        leaving_out=frozenset(trying.readmit),
        remembered_before=trying.remembered,
    )
    if isinstance(plan, NotNow):
        return _not_now(state, plan, now, jitter)
    _learn(state, plan.from_epoch, plan.from_owner)
    trying.plan, trying.request = plan, state.requests()
    trying.began_ms, trying.majority_since_ms, trying.silent = now, None, set()
    state.role, state.epoch, state.attempt = Role.SEALING, plan.epoch, trying.token
    state.why = f"sealing epoch {plan.epoch} ({trying.cause})"
    admit = {r: f"{r}.{trying.token}" for r in state.regions} if plan.genesis else {}
    return [
        e.SendSeal(
            request=trying.request,
            regions=plan.asked,
            epoch=plan.epoch,
            attempt=trying.token,
            from_epoch=plan.from_epoch,
            from_owner=plan.from_owner,
            lineage=plan.lineage,
            config_version=plan.config_version,
            admit_as=admit,
        )
    ]


def _not_now(state: ShardState, no: NotNow, now: int, jitter: float) -> list[e.Action]:
    """Nothing was sealed. Look again later if the shard may be ours; a follower waits to be asked."""
    asked = state.trying is not None and state.trying.cause not in ("restart", "unstarted_seal")
    state.trying = None
    if no.newest_epoch:
        _learn(state, no.newest_epoch, no.newest_owner)
    state.role = Role.AMNESIAC if no.code == "amnesiac" else Role.FOLLOWER
    state.why = no.detail
    # Only what this very probe showed, the own store among it, lets a region rest: what it knew before may be outdated.
    elsewhere = no.newest_epoch > 0 and no.newest_owner != state.region
    # An amnesiac region goes on looking, so that it notices its readmission.
    if no.code == "follow" or (asked and elsewhere and no.code != "amnesiac"):
        state.look_at_ms, state.backoff_ms = now + state.timing.rest_ms, 0
    else:
        state.look_at_ms = now + _next_backoff(state, jitter)
    actions: list[e.Action] = [e.MarkAmnesiac()] if no.mark else []
    return [*actions, e.ActivationEnded(ok=False, code=no.code, detail=no.detail)]


def _next_backoff(state: ShardState, jitter: float) -> int:
    timing = state.timing
    state.backoff_ms = min(timing.backoff_max_ms, max(timing.backoff_min_ms, state.backoff_ms * 2))
    # Waiting for others to come back must not become slow: nothing is sealed by it.
    return int(min(state.backoff_ms, 1000) * (0.75 + 0.5 * jitter))


def _seal_answered(state: ShardState, event: e.SealAnswered) -> list[e.Action]:
    trying = state.trying
    if state.role is not Role.SEALING or trying is None or event.request != trying.request:
        return []
    match event.answer:
        case Granted(status=status):
            trying.grants[event.region] = status
        case Refused(reason="moved" | "fenced", status=status):
            newest = status.newest
            if newest is not None:
                _learn(state, newest.epoch, newest.owner)
            if event.region in (trying.plan.voters if trying.plan else ()):
                return _failed(
                    state, event.now_ms, 0.5, event.answer.reason, f"{event.region} refused epoch {state.epoch}: fence {status.fence}"
                )
            trying.silent.add(event.region)
        case _:
            trying.silent.add(event.region)
    return _look_at_answers(state, event.now_ms, 0.5)


def _seal_is_over(state: ShardState, now: int, jitter: float, enough: bool) -> list[e.Action]:
    trying = state.trying
    assert trying is not None and trying.plan is not None
    if not enough:
        return _failed(
            state, now, jitter, "no_majority", f"only {', '.join(sorted(trying.grants)) or 'no region'} granted epoch {state.epoch}"
        )
    voters = {r: s for r, s in trying.grants.items() if r in trying.plan.voters}
    own = voters[state.region]
    state.terms, state.tail, state.committed = list(own.terms), own.tail, own.committed
    best = most_advanced(voters, state.region)
    if voters[best].tail == own.tail:
        return _start(state)
    state.role = Role.ADOPTING
    state.why = f"adopting the log of {best}"
    trying.request = state.requests()
    return [
        e.Adopt(
            request=trying.request,
            source=best,
            epoch=state.epoch,
            attempt=state.attempt,
            expected=own.tail,
            keep=last_common(own, voters[best]),
            last=voters[best].tail.offset,
        )
    ]


def _adopted(state: ShardState, event: e.Adopted) -> list[e.Action]:
    trying = state.trying
    if state.role is not Role.ADOPTING or trying is None or event.request != trying.request or trying.plan is None:
        return []
    if event.tail is None:
        return _failed(state, event.now_ms, 0.5, "adopt_failed", "the log could not be copied in time")
    voters = {r: s for r, s in trying.grants.items() if r in trying.plan.voters}
    source = voters[most_advanced(voters, state.region)]
    state.terms, state.tail = list(source.terms), event.tail
    return _start(state)


# -- start, serve, replicate ----------------------------------------------------------------------------------


def _start(state: ShardState) -> list[e.Action]:
    trying = state.trying
    assert trying is not None and trying.plan is not None
    plan = trying.plan
    members = {r: s.incarnation for r, s in trying.grants.items()} if plan.genesis else {**plan.members, **trying.readmit}
    lineage = plan.lineage or trying.token
    version = plan.config_version + (1 if plan.genesis or trying.readmit else 0)
    memories = dict(plan.memories)
    for status in trying.grants.values():
        for region, peer in of_members(status.peers, plan.since).items():
            memories[region] = later(memories.get(region), peer)
    offset = state.tail.offset + 1
    peers = {
        r: PeerProgress(r, members.get(r), Peer() if r in trying.readmit else memories.get(r, Peer()))
        for r in state.regions
        if r != state.region
    }
    state.replication = Replication(
        epoch=state.epoch,
        region=state.region,
        members=members,
        start_offset=offset,
        tail=state.tail.offset,
        committed=state.committed,
        peers=peers,
        heartbeat_ms=state.timing.heartbeat_ms,
        not_voting=frozenset(trying.readmit),
    )
    state.role, state.why = Role.STARTING, f"starting epoch {state.epoch} ({trying.cause})"
    state.terms.append(Term(state.epoch, offset, state.region, members, version, lineage))
    return [
        e.AppendStart(
            epoch=state.epoch,
            attempt=state.attempt,
            expected=state.tail,
            from_epoch=plan.from_epoch,
            from_owner=plan.from_owner,
            cause="genesis" if plan.genesis else trying.cause,
            asked_by=trying.asked_by,
            members=members,
            config_version=version,
            lineage=lineage,
        )
    ]


def _own_appended(state: ShardState, event: e.OwnAppended) -> list[e.Action]:
    """The own store answered an append of this epoch."""
    replication = state.replication
    if replication is None or event.epoch != state.epoch:
        return []
    if isinstance(event.answer, Refused):
        return _own_refused(state, event.answer, event.now_ms)
    if event.answer is None:
        if state.role is Role.STARTING:
            return _failed(state, event.now_ms, 0.5, "store_unavailable", "the own store did not answer the start of the epoch")
        return _step_down(state, "the own store did not answer", look_at_ms=event.now_ms)
    state.tail = max(state.tail, event.answer.tail)
    replication.appended(state.tail.offset)
    return _replicate(state, event.now_ms)


def _own_refused(state: ShardState, refused: Refused, now: int) -> list[e.Action]:
    status = refused.status
    if status.granted_region == state.region and status.granted_attempt != state.attempt and status.fence >= state.epoch:
        return _superseded(state)
    if refused.reason == "diverged":
        return halt(state, "the own store holds another entry at this place")
    if status.fence > state.epoch:
        return _outrun(state, status, now, 0.5)
    return _step_down(state, f"the own store refused: {refused.reason}", look_at_ms=now)


def _superseded(state: ShardState) -> list[e.Action]:
    """Another instance of this region's actor has the shard now: this one ends."""
    state.role, state.why = Role.HALTED, "superseded by a newer instance of this actor"
    state.replication, state.trying = None, None
    return [e.StepDown(why=state.why), e.Exit(why=state.why)]


def _peer_answered(state: ShardState, event: e.PeerAnswered) -> list[e.Action]:
    replication = state.replication
    if replication is None or event.epoch != state.epoch:
        return []
    if isinstance(event.answer, Refused):
        status = event.answer.status
        if status.fence > state.epoch or (
            event.answer.reason == "fenced" and (status.granted_region, status.granted_attempt) != (state.region, state.attempt)
        ):
            return _outrun(state, status, event.now_ms, 0.5)
        if event.answer.reason == "diverged":
            return halt(state, f"{event.region} holds another entry at a committed place")
    replication.answered(event.region, event.request, event.answer, state.own_status(), event.now_ms)
    return _replicate(state, event.now_ms)


def _replicate(state: ShardState, now: int) -> list[e.Action]:
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
            _learn(state, state.epoch, state.region)
            actions.append(e.CatchUp(offset=moved))
        if state.role is Role.DRAINING and state.drain_offset and moved >= state.drain_offset:
            state.role, state.drained_ms, state.why = Role.DRAINED, now, "drained, waiting for the handover"
            actions.append(e.DrainDone(epoch=state.epoch, offset=state.drain_offset))
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


def _caught_up(state: ShardState, event: e.LedgerCaughtUp) -> list[e.Action]:
    replication = state.replication
    if state.role is not Role.CATCHING_UP or replication is None or event.offset < replication.start_offset:
        return []
    cause = state.trying.cause if state.trying else ""
    state.role, state.trying, state.backoff_ms = Role.AUTHORITY, None, 0
    state.why = f"serving epoch {state.epoch}"
    ended = e.ActivationEnded(ok=True, code="started", detail=f"epoch {state.epoch} of {state.region} has started ({cause})")
    return [e.Serve(epoch=state.epoch), ended]


# -- drain --------------------------------------------------------------------------------------------------


def _drain_asked(state: ShardState, event: e.DrainAsked) -> list[e.Action]:
    if state.role is not Role.AUTHORITY or event.epoch != state.epoch:
        return []
    state.role, state.drain_offset, state.why = Role.DRAINING, 0, "draining"
    return [e.StopAccepting(epoch=state.epoch)]


def _drain_appended(state: ShardState, event: e.DrainAppended) -> list[e.Action]:
    if state.role is not Role.DRAINING:
        return []
    state.drain_offset = event.offset
    return _replicate(state, event.now_ms)


# -- down ---------------------------------------------------------------------------------------------------


def _learn(state: ShardState, epoch: int, owner: str) -> None:
    if epoch > state.newest_epoch:
        state.newest_epoch, state.newest_owner = epoch, owner


def _outrun(state: ShardState, status: JournalStatus, now: int, jitter: float) -> list[e.Action]:
    """A higher epoch was promised somewhere. Step down; come back only if nobody starts it."""
    if status.newest is not None:
        _learn(state, status.newest.epoch, status.newest.owner)
    wait = int(state.timing.seal_restart_ms * (1 + jitter))
    why = f"epoch {status.fence} was promised to {status.granted_region or 'another attempt'}"
    if state.trying is not None and state.role is not Role.AUTHORITY:
        return _failed(state, now, jitter, "fenced", why)
    return _step_down(state, why, look_at_ms=now + wait)


def _step_down(state: ShardState, why: str, look_at_ms: int | None) -> list[e.Action]:
    state.role, state.replication, state.trying, state.why = Role.FOLLOWER, None, None, why
    state.look_at_ms = look_at_ms
    return [e.StepDown(why=why)]


def _failed(state: ShardState, now: int, jitter: float, code: str, detail: str) -> list[e.Action]:
    """An activation that had begun to seal did not end. Back off; after too many, stand aside."""
    timing = state.timing
    state.failed_ms = [at for at in state.failed_ms if now - at < timing.aside_window_ms] + [now]
    state.trying, state.replication = None, None
    state.backoff_ms = min(timing.backoff_max_ms, max(timing.backoff_min_ms, state.backoff_ms * 2))
    if len(state.failed_ms) >= timing.aside_failures:
        state.role, state.look_at_ms = Role.ASIDE, state.failed_ms[0] + timing.aside_window_ms
        state.why = f"standing aside after {len(state.failed_ms)} failed activations: {detail}"
    else:
        state.role, state.why = Role.FOLLOWER, detail
        state.look_at_ms = now + int(state.backoff_ms * (0.75 + 0.5 * jitter))
    return [e.StepDown(why=detail), e.ActivationEnded(ok=False, code=code, detail=detail)]


def halt(state: ShardState, why: str) -> list[e.Action]:
    """A broken invariant: stop the shard here and say so; the journal decides what is true."""
    state.role, state.why, state.replication, state.trying = Role.HALTED, why, None, None
    return [e.StepDown(why=why)]


def heard_newer(state: ShardState, epoch: int, owner: str) -> None:
    """Note a newer started epoch seen in the own journal, for status and refusals. It does not keep a region from looking:
    what is committed there may be older than what it, or its last life, has started since."""
    _learn(state, epoch, owner)


_HANDLERS: dict[type[e.Event], Callable[[ShardState, Any], list[e.Action]]] = {
    e.Ticked: _ticked,
    e.ActivationAsked: _asked,
    e.Probed: _probed,
    e.SealAnswered: _seal_answered,
    e.Adopted: _adopted,
    e.OwnAppended: _own_appended,
    e.PeerAnswered: _peer_answered,
    e.LedgerCaughtUp: _caught_up,
    e.DrainAsked: _drain_asked,
    e.DrainAppended: _drain_appended,
}
