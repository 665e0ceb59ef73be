"""What must hold of a whole history, once the faults have stopped: I1, I3, I4, I7 to I11, I13, and the orphans.

`check_history` asks stores and clients only, so the tests of real actors use it too; `at_end` adds what replicas showed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from boards.model import Outcome
from simulation.client import Sent
from simulation.model import Applied, Identity, Told, tell
from simulation.watch import Violation, Watch, WatchedLog, key

if TYPE_CHECKING:
    from simulation.world import World

_ALL = 10**6


def check_history(logs: Mapping[str, WatchedLog], watch: Watch, clients: Sequence[Sent], authority: str) -> dict[Identity, Applied]:
    """Compare all stores and everything that was answered with the log of `authority`; its committed events."""
    return told_history(logs, watch, clients, authority).events


def told_history(logs: Mapping[str, WatchedLog], watch: Watch, clients: Sequence[Sent], authority: str) -> Told:
    """As `check_history`; everything that the naive fold says."""
    whole = logs[authority]
    committed = whole.read(1, limit=max(1, whole.committed), max_bytes=1 << 40)
    lineage = whole.status().lineage
    for (of, offset), held in watch.committed.items():
        if of == lineage and (offset > len(committed) or key(committed[offset - 1]) != held):
            raise Violation("I1", f"{held[:2]} was committed, and is not in the newest epoch")
    told = tell(committed)
    for sent in clients:
        if sent.result is not None:
            _check_answer(sent, told)
    check_order(clients)
    _check_orphans(logs, watch, clients)
    return told


def _check_answer(sent: Sent, told: Told) -> None:
    result = sent.result
    assert result is not None
    applied = told.events.get((sent.board, sent.player, sent.event_id))
    if applied is None:
        raise Violation("I7", f"{sent} was acknowledged and is not in the log")
    said = (result.epoch, result.offset, result.value, result.version)
    if said != (applied.epoch, applied.offset, applied.value, applied.version):
        raise Violation("I7", f"{sent}, but the log has {applied}")
    if result.outcome == Outcome.CONFLICT:
        if applied.amount == sent.amount:
            raise Violation("I4", f"{sent} is called a conflict with itself")
    elif applied.amount != sent.amount:
        raise Violation("I4", f"{sent} is answered with another content's result: {applied}")
    elif result.outcome not in (applied.outcome, Outcome.DUPLICATE):
        raise Violation("I7", f"{sent}, but the log has {applied}")
    if result.outcome in (Outcome.APPLIED, Outcome.APPLIED_FIRST) and result.visible_by:
        for generation, boundary in told.published.get(sent.board, ()):
            if generation == result.visible_by and boundary < result.offset:
                raise Violation("I11", f"{sent} was to be visible in s{generation}, whose boundary is {boundary}")


def check_order(clients: Sequence[Sent]) -> None:
    """I9: what was acknowledged before another was first sent has the lower offset. O(n log n)."""
    moments: list[tuple[int, int, int, Sent]] = []
    for number, sent in enumerate(clients):
        if sent.result is not None:
            moments.append((sent.sent, 0, number, sent))
            moments.append((sent.acked, 1, number, sent))
    moments.sort(key=lambda m: m[:3])
    highest = 0
    for _, acked, _, sent in moments:
        assert sent.result is not None
        if acked:
            highest = max(highest, sent.result.offset)
        elif sent.result.offset <= highest and not sent.again:
            raise Violation("I9", f"{sent} came after {highest} was acknowledged")


def _check_orphans(logs: Mapping[str, WatchedLog], watch: Watch, clients: Sequence[Sent]) -> None:
    """Orphans are exactly what was cut and is not held again; nothing that was acknowledged is among them."""
    answered = {(s.result.epoch, s.result.offset) for s in clients if s.result is not None}
    committed = set(watch.committed.values())
    for region, log in logs.items():
        orphans = {key(entry) for batch in log.orphans() for entry in batch.entries}
        cut = watch.cut.get(region)
        if not orphans and not cut:
            continue
        held = {key(entry) for entry in log.entries}
        if orphans != (cut or {}).keys() - held:
            raise Violation("orphans", f"{region} keeps other orphans than were cut there")
        if lost := {orphan[:2] for orphan in orphans - committed} & answered:
            raise Violation("I7", f"acknowledged entries are orphans of {region}: {sorted(lost)}")


def at_end(world: "World") -> Told:
    """Everything, once there is agreement (see `schedule`)."""
    logs = {name: region.store.log for name, region in world.regions.items()}
    owner = world.owner()
    told = told_history(logs, world.watch, world.sent, owner)
    log = logs[owner]
    lineage = log.status().lineage
    for (of, offset), epoch in world.called_committed.items():
        if of == lineage and log.epoch_at(offset) != epoch:
            raise Violation("I1", f"{(epoch, offset)} was called committed, and is not in the newest epoch")
    first = [key(entry) for entry in log.entries]
    for name, other in logs.items():
        if [key(entry) for entry in other.entries] != first:
            raise Violation("I3", f"{name} holds another log than {owner}")
    _check_generations(world, told, lineage)
    return told


def _check_generations(world: "World", told: Told, lineage: str) -> None:
    """Whatever any replica ever showed is what the naive fold has at that boundary (I8, I11)."""
    for (incarnation, of, number), shown in world.generations.items():
        if of != lineage:
            continue
        epoch, boundary, _, rows = shown
        if told.generations.get((incarnation, number)) != (epoch, boundary, rows):
            due = told.generations.get((incarnation, number))
            raise Violation("I8", f"generation {number} was shown as {(epoch, boundary, rows)}, the log makes it {due}")
    for name, region in world.regions.items():
        for board in region.replica.boards.values():
            newest = told.published.get(board.info.board_id, [(0, 0)])[-1][0]
            if board.newest.number != newest:
                raise Violation("I8", f"{name} shows s{board.newest.number} of {board.info.board_id}, s{newest} is published")
