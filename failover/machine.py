"""The shard role machine: `step(state, event) -> actions`, one state per shard and region.

Follower -> probing -> sealing -> adopting -> starting -> catching up -> authority -> (draining -> drained)
-> follower. Safety rests on the fences beside the data; this machine decides only when to ask for what.
`step` changes `state` in place and returns what the shell must do, in order. It reads no clock and draws
no randomness: both arrive in the event. The way up is in `activating`, an authority's part in `serving`,
the ways down in `down`.
"""

from collections.abc import Callable
from typing import Any

from failover import events as e
from failover.activating import adopted, begin, look_at_answers, seal_answered
from failover.down import halt, heard_newer, outrun, step_down
from failover.events import Role
from failover.serving import (
    caught_up,
    confirm_asked,
    drain_appended,
    drain_asked,
    own_appended,
    peer_answered,
    renew,
    renew_answered,
    replicate,
)
from failover.state import ShardState

__all__ = ["halt", "heard_newer", "step"]


def step(state: ShardState, event: e.Event) -> list[e.Action]:
    """Hear `event`; return what to do."""
    if state.role is Role.HALTED:
        return []
    return _HANDLERS[type(event)](state, event)


def _ticked(state: ShardState, event: e.Ticked) -> list[e.Action]:
    now = event.now_ms
    match state.role:
        case Role.BOOTING | Role.FOLLOWER | Role.AMNESIAC | Role.ASIDE:
            if state.look_at_ms is None or now < state.look_at_ms:
                return _watch(state, now, event.token) if state.role is Role.FOLLOWER else []
            cause = "restart" if state.role is Role.BOOTING or not state.attempt else "unstarted_seal"
            return begin(state, now, cause, state.region, event.token, None, {})
        case Role.PROBING | Role.SEALING:
            return look_at_answers(state, now, event.jitter)
        case Role.DRAINED if now - state.drained_ms > state.timing.handover_timeout_ms:
            return [*step_down(state, "the handover did not come", look_at_ms=now)]
        case _:
            return [*renew(state, now), *replicate(state, now)]


def _watch(state: ShardState, now: int, token: str) -> list[e.Action]:
    """`promote` only: judge what the last look has brought, then look again or take over."""
    detector = state.detector
    if not detector.due(now):
        return []
    lost = detector.look(state.region, state.regions, now)
    if detector.turn(lost, now, state.timing.seal_grace_ms) and lost is not None and now >= state.retry_ms:
        detector.tried()
        return begin(state, now, "automatic", state.region, token, (lost.epoch, lost.owner), {})
    request = state.requests()
    detector.requests[request] = now
    return [e.Probe(request=request, regions=state.regions, silence=True)]


def _asked(state: ShardState, event: e.ActivationAsked) -> list[e.Action]:
    actions: list[e.Action] = []
    if state.trying is not None and state.role in (Role.PROBING, Role.SEALING, Role.ADOPTING):
        # These have an end of their own. An epoch that cannot be committed, or a ledger that does not catch up, has none.
        if state.trying.cause not in ("restart", "unstarted_seal"):
            return [e.ActivationEnded(ok=False, code="busy", detail=f"an activation ({state.trying.cause}) is under way")]
        state.trying = None
    if state.role in (Role.AUTHORITY, Role.DRAINING, Role.DRAINED, Role.STARTING, Role.CATCHING_UP):
        actions += step_down(state, f"activating again ({event.cause})", look_at_ms=None)
    return actions + begin(state, event.now_ms, event.cause, event.asked_by, event.token, event.expect, event.readmit or {})


def _probed(state: ShardState, event: e.Probed) -> list[e.Action]:
    trying = state.trying
    if state.detector.answered(event.region, event.request, event.status, event.now_ms):
        return []
    if state.role is Role.PROBING and trying is not None and event.request == trying.request:
        if event.status is None:
            trying.silent.add(event.region)
        else:
            trying.answers[event.region] = event.status
        return look_at_answers(state, event.now_ms, 0.5)
    if state.replication is not None and state.replication.probed(
        event.region, event.request, event.status, state.own_status(), event.now_ms
    ):
        status = event.status
        if status is not None and status.fence > state.epoch:
            return outrun(state, status, event.now_ms, 0.5)
        return replicate(state, event.now_ms)
    return []


_HANDLERS: dict[type[e.Event], Callable[[ShardState, Any], list[e.Action]]] = {
    e.Ticked: _ticked,
    e.ActivationAsked: _asked,
    e.Probed: _probed,
    e.SealAnswered: seal_answered,
    e.Adopted: adopted,
    e.OwnAppended: own_appended,
    e.PeerAnswered: peer_answered,
    e.RenewAnswered: renew_answered,
    e.LedgerCaughtUp: caught_up,
    e.ConfirmAsked: confirm_asked,
    e.DrainAsked: drain_asked,
    e.DrainAppended: drain_appended,
}
