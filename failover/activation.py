"""One activation, from Probe to Seal: who is eligible, whom it deposes, what it seals and whose log it adopts.

Pure functions over the answers so far; `failover.machine` drives them. An activation that stops here has
locked nothing: anyone may go on with a higher epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from failover.logs import admitted, has_lost_data, later, majority, newest_started, of_members, remembered
from journal.ports import JournalStatus, Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a successful Probe allows: seal `epoch` at `asked`, counting the grants of `voters` only."""

    epoch: int
    from_epoch: int
    from_owner: str
    lineage: str
    config_version: int
    #: Members before this activation (region -> incarnation); empty at genesis.
    members: Mapping[str, str]
    voters: frozenset[str]
    #: Regions to seal: the voters, and those being readmitted. Never a store that lost data or may have: a raised fence
    #: would lift it above what its peers remember of it, and hide from the next coordinator that it must not vote.
    asked: tuple[str, ...]
    need: int
    genesis: bool
    memories: Mapping[str, Peer]
    #: See `failover.logs.admitted`; older memories of a region are of another store.
    since: Mapping[str, int]
    #: Some store has seen a lease: regions may have promised not to seal yet.
    leased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNow:
    """Probe does not allow an activation. `code`: no_majority, moved, follow, amnesiac, genesis_waits, not_home."""

    code: str
    detail: str
    newest_epoch: int = 0
    newest_owner: str = ""
    #: `amnesiac` only: token of the own store if it does not carry the mark yet. A store that is no member by its token needs
    #: none, and must not get it: it may have been begun anew for its readmission a moment ago.
    mark: str = ""


def in_doubt(answers: Mapping[str, JournalStatus]) -> bool:
    """Whether a store looks as if it had lost data, by answers of one round.

    That alone proves nothing: while an authority writes, what another store remembers may be newer than the status that
    it is held against. A second round, asked for after the first has answered, decides (`evaluate`'s `remembered_before`).
    """
    newest, memories = newest_started(answers.values()), of_members(remembered(answers.values()), admitted(answers.values()))
    return newest is not None and any(has_lost_data(s, memories.get(r), newest.members.get(r)) for r, s in answers.items())


def evaluate(
    *,
    region: str,
    regions: tuple[str, ...],
    home: str,
    answers: Mapping[str, JournalStatus],
    cause: str,
    expect: tuple[int, str] | None,
    leaving_out: frozenset[str] = frozenset(),
    remembered_before: Mapping[str, Peer] | None = None,
) -> Plan | NotNow:
    """Decide from all probe answers whether `region` may seal now, and what.

    `answers` holds the regions that answered. `leaving_out` are members whose vote does not count (a
    readmission). A restart (`cause` restart or unstarted_seal) goes on only if the newest started epoch is
    its own region's, or at genesis if it is the shard's home. `remembered_before` is what stores remembered
    before these answers were asked for: a store below it has lost data.
    """
    own = answers.get(region)
    if own is None:
        return NotNow(code="no_majority", detail=f"the store of {region} does not answer")
    newest = newest_started(answers.values())
    if newest is None:
        return _genesis(region, regions, home, answers)
    since = admitted(answers.values())
    memories, before = of_members(remembered(answers.values()), since), of_members(remembered_before or {}, since)
    lost = {r for r, s in answers.items() if has_lost_data(s, before.get(r), newest.members.get(r))}
    for name, peer in before.items():
        memories[name] = later(memories.get(name), peer)
    if region in lost:
        return NotNow(
            code="amnesiac",
            detail=f"the store of {region} has lost data; readmit it",
            newest_epoch=newest.epoch,
            newest_owner=newest.owner,
            mark=own.incarnation if not own.amnesiac and own.incarnation == newest.members.get(region) else "",
        )
    if expect is not None and (newest.epoch, newest.owner) != expect:
        return NotNow(
            code="moved",
            detail=f"epoch {newest.epoch} of {newest.owner} has started, not epoch {expect[0]} of {expect[1]}",
            newest_epoch=newest.epoch,
            newest_owner=newest.owner,
        )
    if cause in ("restart", "unstarted_seal") and newest.owner != region:
        return NotNow(
            code="follow", detail=f"{newest.owner} owns epoch {newest.epoch}", newest_epoch=newest.epoch, newest_owner=newest.owner
        )
    voters = frozenset(r for r in newest.members if r in answers and r not in lost and r not in leaving_out)
    need = majority(len(newest.members))
    if len(voters) < need or region not in voters:
        missing = ", ".join(r for r in newest.members if r not in voters)
        return NotNow(
            code="no_majority",
            detail=f"{len(voters)} of {len(newest.members)} stores can vote, {need} must; missing: {missing}",
            newest_epoch=newest.epoch,
            newest_owner=newest.owner,
        )
    return Plan(
        epoch=1 + max(s.fence for s in answers.values()),
        from_epoch=newest.epoch,
        from_owner=newest.owner,
        lineage=newest.lineage,
        config_version=newest.config_version,
        members=newest.members,
        voters=voters,
        asked=tuple(r for r in regions if r in voters or r in leaving_out),
        need=need,
        genesis=False,
        memories=memories,
        since=since,
        leased=any(s.lease_ms for s in answers.values()),
    )


def _genesis(region: str, regions: tuple[str, ...], home: str, answers: Mapping[str, JournalStatus]) -> Plan | NotNow:
    """No store knows a started epoch: only the home begins, and only when every region of the file answers so."""
    missing = [r for r in regions if r not in answers]
    if missing:
        return NotNow(code="genesis_waits", detail=f"the first start needs every region; missing: {', '.join(missing)}")
    if region != home:
        return NotNow(code="not_home", detail=f"{home} starts this shard")
    return Plan(
        epoch=1 + max(s.fence for s in answers.values()),
        from_epoch=0,
        from_owner="",
        lineage="",
        config_version=0,
        members={},
        voters=frozenset(regions),
        asked=regions,
        need=len(regions),
        genesis=True,
        memories={},
        since={},
    )
