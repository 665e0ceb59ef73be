"""One activation, step by step: Probe, Seal, Adopt, Start. `failover.activation` judges the answers; this asks for what comes next."""

from collections.abc import Mapping

from failover import events as e
from failover.activation import NotNow, evaluate, in_doubt
from failover.down import failed, learn, superseded
from failover.events import Role
from failover.lease import Lease, needed, promise_ms
from failover.logs import last_common, later, majority, most_advanced, newest_started, of_members, remembered
from failover.replication import PeerProgress, Replication
from failover.state import Attempt, ShardState
from journal.ports import Granted, JournalStatus, Peer, Refused
from journal.records import Term

#: A region that has promised the owner not to seal is asked again this often.
AGAIN_MS = 100


def begin(
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
    state.trying = Attempt(cause, asked_by, token, expect, dict(readmit), now, request, phases={"probe": now})
    state.why = f"probing ({cause})"
    return [e.Probe(request=request, regions=state.regions)]


def look_at_answers(state: ShardState, now: int, jitter: float) -> list[e.Action]:
    """Go on from Probe or Seal when all have answered, or a majority has and the grace is over, or time is up."""
    trying = state.trying
    if trying is None:
        return []
    if again := [r for r, at in trying.again_ms.items() if now >= at]:
        trying.again_ms = {r: at for r, at in trying.again_ms.items() if r not in again}
        # Whoever did not answer may by now; the old owner's store above all.
        silent, trying.silent = tuple(r for r in state.regions if r in trying.silent and r not in again), set()
        return [_send_seal(state, (*again, *silent))]
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
    graced = trying.majority_since_ms is not None and now - trying.majority_since_ms >= _grace_ms(state, got)
    late = now - trying.began_ms >= state.timing.probe_timeout_ms
    if not (everyone or graced or late):
        return []
    return _seal_is_over(state, now, jitter, enough) if sealing else _probe_is_over(state, now, jitter)


def _grace_ms(state: ShardState, got: Mapping[str, JournalStatus]) -> int:
    """How long the others are waited for once a majority has answered: under a lease longer for the old owner's store, which
    may hold what was acknowledged there alone."""
    trying, timing = state.trying, state.timing
    assert trying is not None
    leased = state.mode == "local" or any(status.lease_ms for status in got.values())
    newest = newest_started(trying.answers.values())
    if leased and newest is not None and newest.owner not in got and newest.owner not in trying.silent:
        return max(timing.grace_ms, timing.seal_grace_ms)
    return timing.grace_ms


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
        return [*superseded(state), e.ActivationEnded(ok=False, code="superseded", detail=state.why)]
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
    learn(state, plan.from_epoch, plan.from_owner)
    trying.plan, trying.request = plan, state.requests()
    trying.began_ms, trying.majority_since_ms, trying.silent = now, None, set()
    state.role, state.epoch, state.attempt = Role.SEALING, plan.epoch, trying.token
    state.why = f"sealing epoch {plan.epoch} ({trying.cause})"
    trying.phases["seal"] = now
    if (plan.leased or state.mode == "local") and plan.from_owner == state.region:
        # The others seal at once for the holder's own region: its last life must have been stopped by its own store before.
        trying.held_back = tuple(r for r in plan.asked if r != state.region)
        return [_send_seal(state, (state.region,))]
    return [_send_seal(state, plan.asked)]


def _send_seal(state: ShardState, regions: tuple[str, ...]) -> e.SendSeal:
    trying = state.trying
    assert trying is not None and trying.plan is not None
    plan = trying.plan
    return e.SendSeal(
        request=trying.request,
        regions=regions,
        epoch=plan.epoch,
        attempt=trying.token,
        from_epoch=plan.from_epoch,
        from_owner=plan.from_owner,
        lineage=plan.lineage,
        config_version=plan.config_version,
        admit_as={r: f"{r}.{trying.token}" for r in regions} if plan.genesis else {},
        remembered={r: plan.memories[r] for r in regions if r in plan.memories and r not in trying.readmit},
        leased=plan.leased or state.mode == "local",
    )


def _not_now(state: ShardState, no: NotNow, now: int, jitter: float) -> list[e.Action]:
    """Nothing was sealed. Look again later if the shard may be ours; a follower waits to be asked."""
    asked = state.trying is not None and state.trying.cause not in ("restart", "unstarted_seal")
    state.trying = None
    if no.newest_epoch:
        learn(state, no.newest_epoch, no.newest_owner)
    state.role = Role.AMNESIAC if no.code == "amnesiac" else Role.FOLLOWER
    state.why = no.detail
    # Only what this very probe showed, the own store among it, lets a region rest: what it knew before may be outdated.
    elsewhere = no.newest_epoch > 0 and no.newest_owner != state.region
    # An amnesiac region goes on looking, so that it notices its readmission.
    if no.code == "follow" or (asked and elsewhere and no.code != "amnesiac"):
        state.look_at_ms, state.backoff_ms = now + state.timing.rest_ms, 0
    else:
        state.look_at_ms = now + _next_backoff(state, jitter)
    actions: list[e.Action] = [e.MarkAmnesiac(incarnation=no.mark)] if no.mark else []
    return [*actions, e.ActivationEnded(ok=False, code=no.code, detail=no.detail)]


def _next_backoff(state: ShardState, jitter: float) -> int:
    timing = state.timing
    state.backoff_ms = min(timing.backoff_max_ms, max(timing.backoff_min_ms, state.backoff_ms * 2))
    # Waiting for others to come back must not become slow: nothing is sealed by it.
    return int(min(state.backoff_ms, 1000) * (0.75 + 0.5 * jitter))


def seal_answered(state: ShardState, event: e.SealAnswered) -> list[e.Action]:
    trying = state.trying
    if state.role is not Role.SEALING or trying is None or event.request != trying.request:
        return []
    match event.answer:
        case Granted(status=status):
            trying.grants[event.region] = status
            if event.region == state.region and trying.held_back:
                others, trying.held_back = trying.held_back, ()
                return [_send_seal(state, others)]
        case Refused(reason="leased", status=status, wait_ms=wait_ms):
            longest = max(state.timing.lease_ms, status.lease_ms)
            if event.now_ms + wait_ms > trying.phases["seal"] + 2 * promise_ms(longest):
                return failed(state, event.now_ms, 0.5, "leased", f"{event.region} has promised the owner not to seal, again and again")
            state.why = f"waiting {wait_ms} ms until {event.region} may seal: the owner's lease"
            # Before it is over the owner may have given its lease up.
            trying.again_ms[event.region] = event.now_ms + min(wait_ms + 1, AGAIN_MS)
            trying.began_ms = max(trying.began_ms, event.now_ms + wait_ms)
            return []
        case Refused(reason="moved" | "fenced", status=status):
            newest = status.newest
            if newest is not None:
                learn(state, newest.epoch, newest.owner)
            if event.region in (trying.plan.voters if trying.plan else ()):
                return failed(
                    state, event.now_ms, 0.5, event.answer.reason, f"{event.region} refused epoch {state.epoch}: fence {status.fence}"
                )
            trying.silent.add(event.region)
        case _:
            trying.silent.add(event.region)
    return look_at_answers(state, event.now_ms, 0.5)


def _seal_is_over(state: ShardState, now: int, jitter: float, enough: bool) -> list[e.Action]:
    trying = state.trying
    assert trying is not None and trying.plan is not None
    if not enough:
        return failed(
            state, now, jitter, "no_majority", f"only {', '.join(sorted(trying.grants)) or 'no region'} granted epoch {state.epoch}"
        )
    voters = {r: s for r, s in trying.grants.items() if r in trying.plan.voters}
    own = voters[state.region]
    state.terms, state.tail, state.committed = list(own.terms), own.tail, own.committed
    best = most_advanced(voters, state.region)
    if voters[best].tail == own.tail:
        return _start(state, now)
    state.role = Role.ADOPTING
    trying.phases["adopt"] = now
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


def adopted(state: ShardState, event: e.Adopted) -> list[e.Action]:
    trying = state.trying
    if state.role is not Role.ADOPTING or trying is None or event.request != trying.request or trying.plan is None:
        return []
    if event.tail is None:
        return failed(state, event.now_ms, 0.5, "adopt_failed", "the log could not be copied in time")
    voters = {r: s for r, s in trying.grants.items() if r in trying.plan.voters}
    source = voters[most_advanced(voters, state.region)]
    state.terms, state.tail = list(source.terms), event.tail
    return _start(state, event.now_ms)


def _start(state: ShardState, now: int) -> list[e.Action]:
    trying = state.trying
    assert trying is not None and trying.plan is not None
    plan = trying.plan
    trying.phases["start"] = now
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
    if state.mode == "local":
        others = tuple(r for r in members if r != state.region)
        state.lease = Lease(state.timing.lease_ms, others, needed(members, state.region, majority(len(members))), now)
    state.role, state.why = Role.STARTING, f"starting epoch {state.epoch} ({trying.cause})"
    state.terms.append(Term(state.epoch, offset, state.region, members, version, lineage))
    return [
        e.AppendStart(
            mode=state.mode,
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
