"""What must hold of a whole history, once the faults have stopped: I1, I3, I4, I7 to I11, I13, and the orphans.

`check_history` asks stores and clients only, so the tests of real actors use it too; `at_end` adds what replicas showed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from boards.model import Outcome
from journal.records import Scored, open_entry
from simulation.client import Sent, content_of
from simulation.model import Applied, Identity, Told, tell
from simulation.watch import Violation, Watch, WatchedLog, key

if TYPE_CHECKING:
    from simulation.world import World

_ALL = 10**6


Place = tuple[int, int]


def check_history(logs: Mapping[str, WatchedLog], watch: Watch, clients: Sequence[Sent], authority: str) -> dict[Identity, Applied]:
    """Compare all stores and everything that was answered with the log of `authority`; its committed events."""
    return told_history(logs, watch, clients, authority).events


def told_history(
    logs: Mapping[str, WatchedLog],
    watch: Watch,
    clients: Sequence[Sent],
    authority: str,
    *,
    local: bool = False,
    taken: frozenset[Place] = frozenset(),
) -> Told:
    """As `check_history`; everything that the naive fold says. `taken`: what `local` stores lost for good."""
    whole = logs[authority]
    committed = whole.read(1, limit=max(1, whole.committed), max_bytes=1 << 40)
    lineage = whole.status().lineage
    for (of, offset), held in watch.committed.items():
        if of == lineage and (offset > len(committed) or key(committed[offset - 1]) != held):
            raise Violation("I1", f"{held[:2]} was committed, and is not in the newest epoch")
    told = tell(committed)
    orphans = _orphaned_events(logs) if local else {}
    for sent in clients:
        if sent.result is None:
            continue
        if sent.result.alone and _is_elsewhere(sent, told):
            _check_cut(sent, told, orphans, taken)
        else:
            _check_answer(sent, told)
    check_order(clients)
    _check_orphans(logs, watch, clients)
    return told


def _check_answer(sent: Sent, told: Told) -> None:
    result = sent.result
    assert result is not None
    identity = (sent.board, sent.player, sent.event_id)
    places = [*told.came.get(identity, ())]
    if identity in told.events:
        places.insert(0, told.events[identity])
    if not places:
        raise Violation("I7", f"{sent} was acknowledged and is not in the log")
    said = (result.epoch, result.offset, result.value, result.version)
    applied = next((a for a in places if said == (a.epoch, a.offset, a.value, a.version)), None)
    if applied is None:
        raise Violation("I7", f"{sent}, but the log has {places}")
    own = applied.fingerprint == content_of(sent) if applied.amount is None else applied.amount == sent.amount
    if result.outcome == Outcome.CONFLICT:
        if own:
            raise Violation("I4", f"{sent} is called a conflict with itself")
    elif not own:
        raise Violation("I4", f"{sent} is answered with another content's result: {applied}")
    elif result.outcome not in (applied.outcome, Outcome.DUPLICATE):
        raise Violation("I7", f"{sent}, but the log has {applied}")
    if result.outcome in (Outcome.APPLIED, Outcome.APPLIED_FIRST) and result.visible_by:
        for generation, boundary in told.published.get(sent.board, ()):
            if generation == result.visible_by and boundary < result.offset:
                raise Violation("I11", f"{sent} was to be visible in s{generation}, whose boundary is {boundary}")


def _orphaned_events(logs: Mapping[str, WatchedLog]) -> dict[tuple[Place, str, str], int]:
    """(Place, player, event) -> amount of all events among the orphans of all stores."""
    found: dict[tuple[Place, str, str], int] = {}
    for log in logs.values():
        for batch in log.orphans():
            for entry in batch.entries:
                for record in open_entry(entry):
                    if type(record) is Scored:
                        found[(entry.epoch, entry.offset), record.player_id, record.event_id] = record.amount
    return found


def _is_elsewhere(sent: Sent, told: Told) -> bool:
    """Whether the lineage does not hold what an answer spoke of where it said."""
    assert sent.result is not None
    applied = told.events.get((sent.board, sent.player, sent.event_id))
    return applied is None or (applied.epoch, applied.offset) != (sent.result.epoch, sent.result.offset)


def _check_cut(sent: Sent, told: Told, orphans: Mapping[tuple[Place, str, str], int], taken: frozenset[Place]) -> None:
    """I5: what one store alone had acknowledged and was cut is among the orphans, and, once salvaged, in the lineage once."""
    assert sent.result is not None
    at = (sent.result.epoch, sent.result.offset)
    if at in taken:
        return
    if (at, sent.player, sent.event_id) not in orphans:
        raise Violation("I5", f"{sent} was acknowledged, and is neither in the lineage nor among the orphans")
    if (sent.board, sent.player, sent.event_id) not in told.events:
        raise Violation("I5", f"{sent} was acknowledged and cut, and was not salvaged")


def kept(world: "World") -> None:
    """I5 before anything is salvaged: each acknowledged event is in the lineage or among the orphans of some store."""
    logs = {name: region.store.log for name, region in world.regions.items()}
    log = logs[world.owner()]
    orphans = _orphaned_events(logs)
    for sent in world.sent:
        result = sent.result
        if result is None or not result.alone or log.epoch_at(result.offset) == result.epoch:
            continue
        at = (result.epoch, result.offset)
        if at not in world.taken and (at, sent.player, sent.event_id) not in orphans:
            raise Violation("I5", f"{sent} was acknowledged, and is neither in the lineage nor among the orphans")


def check_order(clients: Sequence[Sent]) -> None:
    """I9: what was acknowledged before another was first sent has the lower offset. O(n log n).

    What one store alone has acknowledged is held against its own epoch only: the next may not have it.
    """
    moments: list[tuple[int, int, int, Sent]] = []
    for number, sent in enumerate(clients):
        if sent.result is not None:
            moments.append((sent.sent, 0, number, sent))
            moments.append((sent.acked, 1, number, sent))
    moments.sort(key=lambda m: m[:3])
    highest, alone = 0, dict[int, int]()
    for _, acked, _, sent in moments:
        assert sent.result is not None
        if acked:
            if sent.result.alone:
                alone[sent.result.epoch] = max(sent.result.offset, alone.get(sent.result.epoch, 0))
            else:
                highest = max(highest, sent.result.offset)
        elif not sent.again and sent.result.offset <= (before := max(highest, alone.get(sent.result.epoch, 0))):
            raise Violation("I9", f"{sent} came after {before} was acknowledged")


def _check_orphans(logs: Mapping[str, WatchedLog], watch: Watch, clients: Sequence[Sent]) -> None:
    """Orphans are exactly what was cut and is not held again; nothing that was acknowledged is among them."""
    answered = {(s.result.epoch, s.result.offset) for s in clients if s.result is not None and not s.result.alone}
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
    told = told_history(logs, world.watch, world.sent, owner, local=world.mode == "local", taken=frozenset(world.taken))
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
    """Whatever any replica ever showed of boards that are here alone is what the naive fold has at that boundary (I8, I11)."""
    for (incarnation, of, number), shown in world.timeline.generations.items():
        if of != lineage or shown.shard != world.shard or len(shown.boundaries) > 1:
            continue
        due = told.generations.get((incarnation, number))
        if due != (shown.epoch, shown.offset, shown.rows):
            raise Violation("I8", f"generation {number} was shown as {shown}, the log makes it {due}")
    for name, region in world.regions.items():
        for board in region.replica.fold.boards.values():
            if board.layout.shards != (world.shard,):
                continue
            newest = told.published.get(board.board_id, [(0, 0)])[-1][0]
            here = board.newest
            if here is None or here.number != newest:
                raise Violation("I8", f"{name} shows {here and here.number} of {board.board_id}, s{newest} is published")
