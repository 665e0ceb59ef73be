"""Whether a cluster would survive a drill, and whether it is well again after one. Pure: statuses in, sentences out."""

from collections.abc import Mapping, Sequence
from typing import Any

from drills.plan import CutStep, FailoverStep, FollowStep, HealStep, Plan, SettleStep, SlowStep, StallStep

Statuses = Mapping[str, Mapping[str, Any] | None]

#: Entries that a region may be behind and count as level: the canary itself keeps some on their way.
LEVEL = 200
#: A region that its owner has not heard for longer is away.
HEARD_MS = 2000


def facts_of(status: Mapping[str, Any] | None, shard: str) -> dict[str, Any]:
    """What a region says of the shard; {} where it says nothing."""
    shards = (status or {}).get("shards")
    found = shards.get(shard) if isinstance(shards, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def authority(statuses: Statuses, shard: str) -> tuple[int, str]:
    """(epoch, region) of the serving authority of the highest epoch, or (0, "")."""
    serving = [
        (int(facts.get("epoch") or 0), region)
        for region, status in statuses.items()
        if (facts := facts_of(status, shard)).get("serving")
    ]  # fmt: skip
    return max(serving, default=(0, ""))


def pick_shard(statuses: Statuses, wanted: str | None) -> tuple[str, list[str]]:
    """The shard to rehearse on, and why there is none."""
    names = sorted({name for status in statuses.values() for name in (status or {}).get("shards") or {}})
    if wanted is not None:
        return wanted, [] if wanted in names else [f"there is no shard {wanted}; there are {', '.join(names) or 'none'}"]
    if len(names) == 1:
        return names[0], []
    return "", [f"name one of the shards with --shard: {', '.join(names)}" if names else "no region names a shard"]


def ailments(statuses: Statuses, missing: Mapping[str, Sequence[str]], shard: str) -> list[str]:
    """What keeps the cluster from being well: one sentence each, [] when all is well. `missing` is each region's readiness."""
    found = []
    for region, status in statuses.items():
        if status is None:
            found.append(f"{region} does not answer")
            continue
        if missing.get(region):
            found.append(f"{region} is not ready: {'; '.join(missing[region])}")
        found += _links(region, status)
        found += _standing(region, facts_of(status, shard), shard)
    owner = authority(statuses, shard)[1]
    if not owner:
        return [*found, f"no region serves {shard}"]
    for region, status in statuses.items():
        facts = facts_of(status, shard)
        known = facts.get("known_owner") or facts.get("owner")
        if facts and known != owner:
            found.append(f"{region} takes {known or 'nobody'} for the owner of {shard}, which is {owner}")
        if facts.get("serving") and region != owner:
            found.append(f"{region} and {owner} both serve {shard}")
    return [*found, *_level(statuses, shard, owner)]


def _links(region: str, status: Mapping[str, Any]) -> list[str]:
    now, links = status.get("at_ms") or 0, status.get("links") or {}
    return [
        f"a link fault is on in {region}: {fault.get('mode')} {way} {peer}"
        for way, side in (("towards", "outward"), ("from", "inward"))
        for peer, fault in (links.get(side) or {}).items()
        if not fault.get("until_ms") or fault["until_ms"] >= now
    ]


def _standing(region: str, facts: Mapping[str, Any], shard: str) -> list[str]:
    if not facts:
        return [f"{region} says nothing of {shard}"]
    found = []
    if facts.get("halted"):
        found.append(f"{shard} is halted in {region}: {facts['halted']}")
    if facts.get("role") not in ("authority", "follower"):
        found.append(f"{region} is {facts.get('role') or 'nothing'} of {shard}: {facts.get('why') or 'no word'}")
    replica = facts.get("replica") or {}
    if replica.get("alarm"):
        found.append(f"the replica of {region} has an alarm: {replica['alarm']}")
    elif not replica.get("serving"):
        found.append(f"the replica of {region} does not serve {shard}")
    return found


def _level(statuses: Statuses, shard: str, owner: str) -> list[str]:
    """Who lags behind the owner, by the owner's word on stores and by each region's word on its own folds."""
    facts, found = facts_of(statuses[owner], shard), []
    committed = int(facts.get("committed") or 0)
    for region, lag in (facts.get("lag") or {}).items():
        if lag.get("amnesiac"):
            found.append(f"the store of {region} has lost data: readmit it")
        elif int(lag.get("entries") or 0) > LEVEL:
            found.append(f"the store of {region} lags by {lag['entries']} entries")
        elif lag.get("heard_ms") is None or lag["heard_ms"] > HEARD_MS:
            since = "in this epoch" if lag.get("heard_ms") is None else f"for {lag['heard_ms']} ms"
            found.append(f"{owner} has not heard the store of {region} {since}")
    for region, status in statuses.items():
        theirs = facts_of(status, shard)
        for what, at in (("ledger", theirs.get("applied")), ("replica", (theirs.get("replica") or {}).get("applied"))):
            if at is not None and committed - int(at) > LEVEL:
                found.append(f"the {what} of {region} lags by {committed - int(at)} entries")
    return found


def parts(regions: Sequence[str], owner: str) -> dict[str, str]:
    """Which region plays which part: owner, successor, third (as far as there are so many)."""
    others = [region for region in regions if region != owner]
    return dict(zip(("owner", "successor", "third"), (owner, *others), strict=False))


def lost_majority(plan: Plan, roles: Mapping[str, str], regions: Sequence[str]) -> list[str]:
    """Steps after which no majority could speak to each other, or authority would be sent to the lesser side. Delays count as cuts
    of nothing; a stalled store counts as away until the next step that waits for health."""
    if len(regions) < plan.fewest_regions:
        return [f"{plan.name} needs {plan.fewest_regions} regions; here are {len(regions)}"]
    quorum, cut, away, found = len(regions) // 2 + 1, set[frozenset[str]](), set[str](), []
    for number, step in enumerate(plan.steps, 1):
        match step:
            case CutStep():
                cut |= {frozenset((roles[step.region], peer)) for peer in peers_of(step, roles, regions)}
            case StallStep():
                away.add(roles[step.region])
            case HealStep():
                cut.clear()
            case SettleStep() | FollowStep():
                away.clear()
            case _:
                pass
        group = _largest_group(regions, cut, away)
        if len(group) < quorum:
            found.append(f"after step {number} no majority of {len(regions)} regions could speak to each other")
        elif isinstance(step, FailoverStep) and roles[step.to] not in group:
            found.append(f"step {number} sends authority to {roles[step.to]}, which is cut off from the majority by then")
    return found


def peers_of(step: CutStep | SlowStep, roles: Mapping[str, str], regions: Sequence[str]) -> list[str]:
    """The regions at the other end of the links that the step touches."""
    here = roles[step.region]
    peers = list(regions) if step.peer == "others" else [roles[step.peer]]
    return [peer for peer in peers if peer != here]


def _largest_group(regions: Sequence[str], cut: set[frozenset[str]], away: set[str]) -> set[str]:
    """The largest set of regions around one that speaks with each of them directly: links carry nothing for others."""
    groups = [{hub, *(peer for peer in regions if peer != hub and peer not in away and frozenset((hub, peer)) not in cut)}
              for hub in regions if hub not in away]  # fmt: skip
    return max(groups, key=len, default=set())


def open_drill(records: Sequence[Mapping[str, Any]], now_ms: int) -> Mapping[str, Any] | None:
    """The detail of the drill that has begun, has not ended and is not past the time it stated; None if there is none."""
    ended = {_detail(record).get("id") for record in records if record.get("what") == "drill.ended"}
    for record in records:
        detail = _detail(record)
        if record.get("what") == "drill.began" and detail.get("id") not in ended and int(detail.get("until_ms") or 0) > now_ms:
            return detail
    return None


def _detail(record: Mapping[str, Any]) -> Mapping[str, Any]:
    detail = record.get("detail")
    return detail if isinstance(detail, Mapping) else {}
