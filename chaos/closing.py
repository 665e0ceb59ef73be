"""After the faults: wait until the regions agree, read everything, ask for every event once more, read again.

Asking again is how the content of the journal is learned from outside: an event id that is in answers `duplicate` with the
result and the place it was given at first; one that is out is applied now, once. So the sums before it tell which of the
unknown events had counted, and the sums after it that none counted twice.
"""

import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from chaos.checker import sent_events
from chaos.history import Asked, Authorities, Closed, Final, History, Policy, Result, read_history
from chaos.load import result_of
from chaos.rig import Rig
from laurel import LaurelClient, OutcomeUnknown, Unavailable
from laurel.errors import LaurelError

#: The regions must say the same for so long: a request that was stopped on its way may still arrive.
_QUIET_S = 4.0
_LOOK_S = 0.25
_CHUNK = 500
_TRIES = 20


def wait_agreed(rig: Rig, timeout_s: float, stop: threading.Event) -> tuple[str, int]:
    """Wait until one region serves, all know it, and all have folded and published the same.

    Returns why not ("" if they agreed in time), and the last offset that they agreed on, 0 if there is none.
    """
    deadline = time.monotonic() + timeout_s
    before: Any = None
    since = time.monotonic()
    while True:
        why, picture = _disagreement(rig)
        now = time.monotonic()
        if why or picture != before:
            before, since = picture, now
        elif now - since > _QUIET_S:
            return "", picture[1]
        if now > deadline:
            return why or f"entries go on to appear although nobody writes: {picture}", 0
        if stop.wait(_LOOK_S):
            return "interrupted", 0


def _disagreement(rig: Rig) -> tuple[str, Any]:
    """Why the regions do not agree now ("" if they do), and what they agree on."""
    said = {region: rig.shard(region) for region in rig.regions}
    if silent := [region for region, facts in said.items() if not facts or not facts.get("replica")]:
        return f"{', '.join(silent)} gave no status", None
    if halted := [f"{region}: {facts['halted']}" for region, facts in said.items() if facts.get("halted")]:
        return f"halted: {'; '.join(halted)}", None
    if alarms := [f"{region}: {facts['replica']['alarm']}" for region, facts in said.items() if facts["replica"].get("alarm")]:
        return f"replica alarms: {'; '.join(alarms)}", None
    serving = [region for region, facts in said.items() if facts.get("serving")]
    if len(serving) != 1:
        reasons = "; ".join(f"{region} is {facts.get('role')} ({facts.get('why')})" for region, facts in said.items())
        return f"{' and '.join(serving) or 'no region'} serves: {reasons}", None
    owner = said[serving[0]]
    for region, facts in said.items():
        if (facts["known_epoch"], facts["known_owner"]) != (owner["epoch"], serving[0]):
            return f"{region} takes {facts['known_owner']} for the owner, in epoch {facts['known_epoch']}", None
    behind = [f"{r} at {f['replica']['applied']}" for r, f in said.items() if f["replica"]["applied"] != owner["committed"]]
    if behind or owner["tail"] != owner["committed"]:
        return f"not all have {owner['tail']}: committed {owner['committed']}, {', '.join(behind)}", None
    boards = {region: facts["replica"]["boards"] for region, facts in said.items()}
    shown = [
        {board: (facts["generation"], facts["checksum"]) for board, facts in sorted(their.items())} for their in boards.values()
    ]  # what is retained differs with each restart
    if any(theirs != shown[0] for theirs in shown):
        return f"their newest generations differ: {shown}", None
    return "", (owner["epoch"], owner["tail"], shown[0])


def close(rig: Rig, history: History, boards: dict[str, Policy], *, timeout_s: float, stop: threading.Event) -> str:
    """Write all that a judge needs, from `Closed` on; why the run could not be closed, "" if all is written."""
    why, tail = wait_agreed(rig, timeout_s, stop)
    history.write(Closed(t=history.now(), agreed=not why, tail=tail, why=why))
    said = {region: rig.shard(region) for region in rig.regions}
    facts = {r: (bool(s.get("serving")), int(s.get("known_epoch", 0)), str(s.get("known_owner", ""))) for r, s in said.items()}
    history.write(Authorities(t=history.now(), said=facts))
    with rig.client("game-server", timeout_s=20.0, max_attempts=30, total_timeout_s=60.0) as client:
        try:
            _read_all(rig, client, history, boards, 1)
            for board, policy in boards.items():
                _ask_all(client, history, board, policy)
            why, _ = wait_agreed(rig, timeout_s, stop)
            _read_all(rig, client, history, boards, 2)
        except (LaurelError, TimeoutError) as error:
            return f"the regions could not be read in the end: {error}"
    return why


def _read_all(rig: Rig, client: LaurelClient, history: History, boards: dict[str, Policy], number: Literal[1, 2]) -> None:
    for board in boards:
        for region in rig.regions:
            pages = list(client.pages(board, 1000, region=region))
            rows = {entry.player_id: (int(entry.value), entry.version or 0) for page in pages for entry in page.entries}
            first = pages[0]
            final = Final(
                t=history.now(),
                round=number,
                region=region,
                board=board,
                generation=int(first.generation[1:]),
                checksum=first.checksum or "",
                total=first.total or 0,
                rows=rows,
            )
            history.write(final)


def _ask_all(client: LaurelClient, history: History, board: str, policy: Policy) -> None:
    field = "delta" if policy == "cumulative" else "value"
    events = _events_of(history.path, board)
    while chunk := list(islice(events, _CHUNK)):
        left = [{"event_id": event_id, "player_id": player, field: amount} for event_id, player, amount in chunk]
        for _ in range(_TRIES):
            found, left = _ask(client, board, left)
            history.write(Asked(t=history.now(), board=board, results=found))
            if not left:
                break
        else:
            raise TimeoutError(f"{len(left)} events of {board} got no answer in {_TRIES} tries")


def _ask(client: LaurelClient, board: str, bodies: list[dict[str, Any]]) -> tuple[list[Result], list[dict[str, Any]]]:
    """(results, events without one). One that is applied here and loses its answer is its own duplicate later; its offset tells."""
    try:
        reply = client.submit(board, bodies)
        return [result_of(found) for found in reply.results], []
    except OutcomeUnknown as error:
        known = {found.event_id: found for found in error.results if found.outcome != "unknown"}
        return [result_of(found) for found in known.values()], [body for body in bodies if body["event_id"] not in known]
    except Unavailable:
        time.sleep(1.0)
        return [], bodies


def _events_of(path: Path, board: str) -> Iterator[tuple[str, str, int]]:
    for where, event_id, player, amount in sent_events(read_history(path)):
        if where == board:
            yield event_id, player, amount
