"""One activation, from Probe to Seal: who is eligible, whom it deposes, what it seals and whose log it adopts.

Pure functions over the answers so far; `failover.machine` drives them. An activation that stops here has
locked nothing: anyone may go on with a higher epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from failover.logs import has_lost_data, majority, newest_started, remembered
from journal.ports import JournalStatus, Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a successful Probe allows: seal `epoch` at everyone, counting the grants of `voters` only."""

    epoch: int
    from_epoch: int
    from_owner: str
    lineage: str
    config_version: int
    #: Members before this activation (region -> incarnation); empty at genesis.
    members: Mapping[str, str]
    voters: frozenset[str]
    need: int
    genesis: bool
    memories: Mapping[str, Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNow:
    """Probe does not allow an activation. `code`: no_majority, moved, follow, amnesiac, genesis_waits, not_home."""

    code: str
    detail: str
    newest_epoch: int = 0
    newest_owner: str = ""


def evaluate(
    *,
    region: str,
    regions: tuple[str, ...],
    home: str,
    answers: Mapping[str, JournalStatus],
    cause: str,
    expect: tuple[int, str] | None,
    leaving_out: frozenset[str] = frozenset(),
) -> Plan | NotNow:
    """Decide from all probe answers whether `region` may seal now, and what.

    `answers` holds the regions that answered. `leaving_out` are members whose vote does not count (a
    readmission). A restart (`cause` restart or unstarted_seal) goes on only if the newest started epoch is
    its own region's, or at genesis if it is the shard's home.
    """
    own = answers.get(region)
    if own is None:
        return NotNow(code="no_majority", detail=f"the store of {region} does not answer")
    newest = newest_started(answers.values())
    if newest is None:
        return _genesis(region, regions, home, answers)
    memories = remembered(answers.values())
    lost = {r for r, s in answers.items() if has_lost_data(s, memories.get(r), newest.members.get(r))}
    if region in lost:
        return NotNow(code="amnesiac", detail=f"the store of {region} has lost data; readmit it", newest_epoch=newest.epoch, newest_owner=newest.owner)
    if expect is not None and (newest.epoch, newest.owner) != expect:
        return NotNow(
            code="moved",
            detail=f"epoch {newest.epoch} of {newest.owner} has started, not epoch {expect[0]} of {expect[1]}",
            newest_epoch=newest.epoch,
            newest_owner=newest.owner,
        )
    if cause in ("restart", "unstarted_seal") and newest.owner != region:
        return NotNow(code="follow", detail=f"{newest.owner} owns epoch {newest.epoch}", newest_epoch=newest.epoch, newest_owner=newest.owner)
    voters = frozenset(r for r in newest.members if r in answers and r not in lost and r not in leaving_out)
    need = majority(len(newest.members))
    if len(voters) < need or region not in voters:
        missing = ", ".join(r for r in newest.members if r not in voters)
        return NotNow(code="no_majority", detail=f"{len(voters)} of {len(newest.members)} stores can vote, {need} must; missing: {missing}", newest_epoch=newest.epoch, newest_owner=newest.owner)
    return Plan(
        epoch=1 + max(s.fence for s in answers.values()),
        from_epoch=newest.epoch,
        from_owner=newest.owner,
        lineage=newest.lineage,
        config_version=newest.config_version,
        members=newest.members,
        voters=voters,
        need=need,
        genesis=False,
        memories=memories,
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
        need=len(regions),
        genesis=True,
        memories={},
    )
