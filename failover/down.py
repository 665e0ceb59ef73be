"""Ways down: stepping back, backing off, standing aside, ending. Nothing here cuts or undoes anything."""

from failover import events as e
from failover.events import Role
from failover.lease import promise_ms
from failover.state import ShardState
from journal.ports import JournalStatus


def learn(state: ShardState, epoch: int, owner: str) -> None:
    if epoch > state.newest_epoch:
        state.newest_epoch, state.newest_owner = epoch, owner


def outrun(state: ShardState, status: JournalStatus, now: int, jitter: float) -> list[e.Action]:
    """A higher epoch was promised somewhere. Step down; come back only if nobody starts it."""
    if status.newest is not None:
        learn(state, status.newest.epoch, status.newest.owner)
    wait = int(state.timing.seal_restart_ms * (1 + jitter))
    if state.mode == "local":
        # Whoever sealed may still have to wait until the others' promises to this region are over.
        wait += promise_ms(state.timing.lease_ms)
    why = f"epoch {status.fence} was promised to {status.granted_region or 'another attempt'}"
    if state.trying is not None and state.role is not Role.AUTHORITY:
        return failed(state, now, jitter, "fenced", why)
    return step_down(state, why, look_at_ms=now + wait)


def step_down(state: ShardState, why: str, look_at_ms: int | None) -> list[e.Action]:
    state.role, state.replication, state.trying, state.why = Role.FOLLOWER, None, None, why
    state.look_at_ms = look_at_ms
    return [e.StepDown(why=why), *let_go(state)]


def let_go(state: ShardState) -> list[e.Action]:
    """Give the lease up, if there is one; by then nothing that rests on it may leave any more."""
    lease, state.lease = state.lease, None
    if lease is None:
        return []
    lease.give_up()
    return [e.GiveUpLease(regions=lease.peers, epoch=state.epoch, attempt=state.attempt)]


def superseded(state: ShardState) -> list[e.Action]:
    """Another instance of this region's actor has the shard now: this one ends."""
    state.role, state.why = Role.HALTED, "superseded by a newer instance of this actor"
    state.replication, state.trying = None, None
    return [e.StepDown(why=state.why), *let_go(state), e.Exit(why=state.why)]


def failed(state: ShardState, now: int, jitter: float, code: str, detail: str) -> list[e.Action]:
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
        state.look_at_ms = state.retry_ms = now + int(state.backoff_ms * (0.75 + 0.5 * jitter))
    return [e.StepDown(why=detail), *let_go(state), e.ActivationEnded(ok=False, code=code, detail=detail)]


def halt(state: ShardState, why: str) -> list[e.Action]:
    """A broken invariant: stop the shard here and say so; the journal decides what is true."""
    asked = state.trying
    state.role, state.why, state.replication, state.trying = Role.HALTED, why, None, None
    actions = [e.StepDown(why=why), *let_go(state)]
    return [*actions, e.ActivationEnded(ok=False, code="halted", detail=why)] if asked is not None else actions


def heard_newer(state: ShardState, epoch: int, owner: str, *, automatic_ms: int | None = None) -> None:
    """Note a newer started epoch seen in the own journal, for status and refusals. It does not keep a region from looking:
    what is committed there may be older than what it, or its last life, has started since.

    `automatic_ms`: when (by this region's monotonic clock) the detector started that epoch; None where a person or a restart did.
    """
    learn(state, epoch, owner)
    if epoch >= state.newest_epoch:
        state.detector.automatic_ms = automatic_ms
