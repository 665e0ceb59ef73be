"""How commands show what they were told: tables on standard output, or one JSON document."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from laurel.models import Envelope


def print_json(document: Any) -> None:
    """One line of JSON on standard output."""
    from laurel.models import show_value

    print(json.dumps(document, ensure_ascii=False, default=show_value), flush=True)


def dump(model: Any) -> dict[str, Any]:
    """A model as the JSON that it came from, without what was left out."""
    dumped: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return dumped


def table(*columns: str) -> "Table":
    """An empty table; columns of numbers are aligned to the right."""
    from rich.box import SIMPLE
    from rich.table import Table

    made = Table(box=SIMPLE, padding=(0, 1), pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in _RIGHT else "left", overflow="fold")
    return made


_NUMBERS = "position rank value secondary version epoch committed tail lag heard_ms boards generations total ms restarts"
_RIGHT = frozenset(_NUMBERS.split())


def add_row(to: "Table", *cells: object) -> None:
    """Cells are shown as they are: an id that looks like markup is none."""
    from rich.text import Text

    to.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))


def show(shown: "Table") -> None:
    """Print it; what is no terminal gets lines as long as they need be."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200  # nothing is folded for a pipe
    console.print(shown)


def show_entries(answer: "Envelope", *, mark: str | None = None) -> None:
    """A page or a player's place; the row of `mark` is pointed at."""
    from laurel.models import show_value

    two_columns = any(entry.secondary is not None for entry in answer.entries)
    shown = table("position", "rank", "player", "value", *(["secondary"] if two_columns else []), "achieved at")
    for entry in answer.entries:
        at = "" if entry.achieved_at is None else entry.achieved_at.isoformat(timespec="milliseconds")
        name = f"{entry.player_id}  <" if entry.player_id == mark else entry.player_id
        second = [show_value(entry.secondary) if entry.secondary is not None else None] if two_columns else []
        add_row(shown, entry.position, entry.rank, name, show_value(entry.value), *second, at)
    show(shown)
    if not answer.exact:
        bound = getattr(answer, "error_bound", None)
        print("approximate: " + ("its error is not known" if bound is None else f"places may be off by {bound} either way"))
    age = "" if answer.age_ms is None else f", {answer.age_ms} ms old"
    print(
        f"{answer.board}: generation {answer.pin or answer.generation} of {answer.total} players, from {answer.region or 'a region'}{age}"
    )


def shards_of(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a status says of each shard; epoch and owner are the newest that the region knows of."""
    shards = status.get("shards")
    return {
        name: {**facts, "epoch": facts.get("known_epoch", facts.get("epoch")), "owner": facts.get("known_owner") or facts.get("owner")}
        for name, facts in (shards.items() if isinstance(shards, dict) else ())
        if isinstance(facts, dict)
    }


def shard_rows(answers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each region and shard out of what the regions say in `/v1/status`.

    `lag` (entries) and `heard_ms` are the owner's word on that region, None where the owner says nothing.
    """
    told = {region: shards_of(answer) for region, answer in answers.items()}
    lags: dict[str, dict[str, Any]] = {}
    for shards in told.values():
        for shard, facts in shards.items():
            if isinstance(facts.get("lag"), dict) and facts.get("serving"):
                lags[shard] = facts["lag"]
    rows = []
    for region, shards in told.items():
        for shard, facts in shards.items():
            replica = facts.get("replica") or {}
            generations = [int(board["generation"]) for board in (replica.get("boards") or {}).values()]
            lag = (lags.get(shard) or {}).get(region) or {}
            rows.append(
                {
                    "region": region,
                    "shard": shard,
                    **{name: facts.get(name) for name in ("role", "epoch", "owner", "committed", "tail")},
                    "lag": lag.get("entries"),
                    "heard_ms": lag.get("heard_ms"),
                    "replica": _replica_word(replica),
                    "boards": replica.get("boards_count"),
                    "generations": sum(generations) if generations else None,
                    "conflicts": len(facts.get("config_conflicts") or ()),
                    "why": facts.get("why"),
                }
            )
    return rows


def _replica_word(replica: Mapping[str, Any]) -> str | None:
    if not replica:
        return None
    if replica.get("alarm"):
        return f"alarm: {replica['alarm']}"
    return "serving" if replica.get("serving") else "reading"


def show_status(answers: Mapping[str, Mapping[str, Any]], failed: Mapping[str, Any]) -> None:
    """What `laurel status` prints; `failed` holds the error of each region that did not answer."""
    columns = ("region", "shard", "role", "epoch", "owner", "committed", "tail", "lag", "replica", "boards", "generations")
    shown = table(*columns)
    for row in shard_rows(answers):
        add_row(shown, *(row[name] for name in columns))
    for name, exc in failed.items():
        add_row(shown, name, "", exc.code)
    show(shown)
    for region, answer in answers.items():
        for shard, facts in shards_of(answer).items():
            if facts.get("role") not in ("authority", "follower", None) and facts.get("why"):
                print(f"{region} {shard}: {facts['why']}")
            for conflict in facts.get("config_conflicts") or ():
                kept = f"{conflict.get('rule')} {conflict.get('written')}"
                print(f"{region}: {conflict.get('board')} keeps {kept}, whatever its cluster.yaml says.")
