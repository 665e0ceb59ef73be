"""What `laurel up` shows of its regions: a table on a terminal, a line for each change elsewhere, documents with `--json`."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from laurel import showing

#: Boards that the table names: those with the most generations.
BUSIEST = 6
_COLUMNS = (
    "region", "state", "shard", "role", "epoch", "owner", "committed", "lag", "heard_ms", "replica", "boards", "generations", "restarts"
)  # fmt: skip
#: What a terminal narrower than `WIDE` gets.
WIDE = 120
_NARROW = ("region", "state", "role", "epoch", "owner", "lag", "replica", "generations")


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """One region as its launcher and its gateway see it at one moment."""

    name: str
    url: str
    #: The launcher's word: starting, running, degraded, stopping, stopped, dead, held or refused.
    state: str
    ready: bool = False
    #: What `/readyz` misses.
    missing: Sequence[str] = ()
    #: Restarts of store and driver, and of the supervisor, since `laurel up` began.
    restarts: int = 0
    #: `/v1/status`, {} where there was no answer.
    status: Mapping[str, Any] = {}

    @property
    def word(self) -> str:
        """State in a word. The gateway may answer before the supervisor has looked; a running region that is not ready is not well."""
        if self.ready and self.state in ("starting", "running"):
            return "ready"
        return "not ready" if self.state == "running" else self.state


def rows(views: Sequence[RegionView]) -> list[dict[str, Any]]:
    """One row for each region and shard, and one for a region that says nothing."""
    told = showing.shard_rows({view.name: view.status for view in views})
    found = []
    for view in views:
        own = {"state": view.word, "restarts": view.restarts}
        found += [{**row, **own} for row in told if row["region"] == view.name] or [{"region": view.name, **own}]
    return found


def parts(views: Sequence[RegionView]) -> list[dict[str, Any]]:
    """One row for each node, gateway and replica of the regions that have more than one of any; `part` names it."""
    found = []
    for view in views:
        nodes, gateways, replicas = (view.status.get(kind) or () for kind in ("nodes", "gateways", "replicas"))
        if max(len(nodes), len(gateways), len(replicas)) < 2:
            continue
        for node in nodes:
            state = f"{len(node['actors'])} actors" if node["actors"] else "runs nothing"
            found.append({"region": view.name, "part": f"node {node['node']}", "node": node["node"], "state": state})
        for line in gateways:
            state = "serving" if line["answers"] else "silent"
            found.append({"region": view.name, "part": line["gateway"], "node": line["node"], "state": state, "url": line["url"]})
        for line in replicas:
            state = "serving" if line["serving"] else "reading" if line["answers"] else "silent"
            applied = sum(line["applied"].values())
            newest = ", ".join(f"{board} s{number}" for board, number in list(line["generations"].items())[:1])
            found.append(
                {"region": view.name, "part": line["replica"], "node": line["node"], "state": state, "applied": applied, "newest": newest}
            )
    return found


def busiest(views: Sequence[RegionView]) -> list[tuple[str, dict[str, int]]]:
    """(board, generation in each region) of the boards with the highest generations."""
    boards: dict[str, dict[str, int]] = {}
    for view in views:
        for facts in showing.shards_of(view.status).values():
            for board, state in ((facts.get("replica") or {}).get("boards") or {}).items():
                boards.setdefault(board, {})[view.name] = int(state["generation"])
    return sorted(boards.items(), key=lambda item: (-max(item[1].values()), item[0]))[:BUSIEST]


def render(views: Sequence[RegionView], note: str, width: int = WIDE) -> RenderableType:
    """The live table for a terminal of `width` columns: regions, their busiest boards, what is missing, and `note`."""
    columns = _COLUMNS if width >= WIDE else _NARROW
    regions = showing.table(*columns)
    for row in rows(views):
        showing.add_row(regions, *(row.get(column) for column in columns))
    shown: list[RenderableType] = [regions]
    if found_parts := parts(views):
        names = ("region", "part", "node", "state", "applied", "newest", "url")
        table = showing.table(*names)
        for row in found_parts:
            showing.add_row(table, *(row.get(name) for name in names))
        shown.append(table)
    if found := busiest(views):
        boards = showing.table("board", *(view.name for view in views))
        for board, generations in found:
            showing.add_row(boards, board, *(f"s{generations[view.name]}" if view.name in generations else "" for view in views))
        shown.append(boards)
    shown += [Text(f"{view.name}: {reason}") for view in views if not view.ready for reason in view.missing]
    return Group(*shown, Text(note))


def changes(before: Sequence[RegionView], after: Sequence[RegionView]) -> list[str]:
    """Sentences for what changed in state, role, epoch, owner or node; the steady growth of numbers is none."""
    old = {(row["region"], row.get("shard")): row for row in rows(before)}
    lines = []
    for row in rows(after):
        last = old.get((row["region"], row.get("shard"))) or old.get((row["region"], None)) or {}
        if row["state"] != last.get("state"):
            missing = next(view.missing for view in after if view.name == row["region"])
            why = f" ({'; '.join(missing)})" if missing and row["state"] != "ready" else ""
            line = f"{row['region']} is {row['state']}{why}"
            if line not in lines:
                lines.append(line)
        if row.get("role") and (row["role"], row["epoch"], row["owner"]) != tuple(last.get(key) for key in ("role", "epoch", "owner")):
            owner = row["owner"] or "no region yet"
            lines.append(f"{row['region']}: {row['shard']} is {row['role']}, epoch {row['epoch']} of {owner}")
        if row["restarts"] > last.get("restarts", 0):
            line = f"{row['region']} has restarted parts {row['restarts']} times"
            if line not in lines:
                lines.append(line)
    places = {(part["region"], part["part"]): (part["node"], part["state"]) for part in parts(before)}
    for part in parts(after):
        place = (part["node"], part["state"])
        if "actors" not in part["state"] and places.get((part["region"], part["part"])) != place:
            where = "" if part["node"] is None or part["part"].startswith("node ") else f" on node {part['node']}"
            lines.append(f"{part['region']}: {part['part']} {'' if part['state'] == 'runs nothing' else 'is '}{part['state']}{where}")
    return lines
