"""Commands about orphans: `laurel orphans list|resubmit|sign-off`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laurel import showing
from laurel.commands import DATA_DIR, OPERATOR, CommandError, DataDir, InRegion, Json, Token, Url, client_for

if TYPE_CHECKING:
    from laurel.client import LaurelClient

Shard = Annotated[str | None, typer.Option("--shard", help="This shard only, such as eu-west/0.")]

_STATES = ("done", "held", "operator", "open")
_SHOWN = 1000


def orphans_list(
    region: InRegion = None,
    shard: Shard = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Orphans of a shard shown at most.")] = _SHOWN,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Show what deposed authorities had written and the lineage does not hold."""
    with client_for(url, token, data_dir, OPERATOR, total_timeout_s=40.0) as client:
        answers, failed = _each(client, region, lambda name: client.orphans(region=name, shard=shard, limit=limit))
    if as_json:
        showing.print_json({"regions": answers})
    else:
        table = showing.table("region", "shard", "epoch", "offset", "board", "player", "event", "amount", "state", "outcome")
        for name, at, item in ((name, at, i) for name, a in answers.items() for at, told in a["shards"].items() for i in told["orphans"]):
            cells = (item.get(key) for key in ("epoch", "offset", "board", "player_id", "event_id", "amount", "state"))
            showing.add_row(table, name, at, *cells, item["outcome"] or item["code"])
        showing.show(table)
        for name, answer in answers.items():
            for at, told in answer["shards"].items():
                later = "" if told["caught_up"] else "; still catching up, so some may only not be back yet"
                print(f"{name} {at}: {_summed(told['entries'])}{later}")
    _must_answer(failed)


def orphans_resubmit(
    region: InRegion = None,
    shard: Shard = None,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Send orphans through the normal write path again; what the lineage has already is recognised by its ids."""
    with client_for(url, token, data_dir, OPERATOR, total_timeout_s=120.0) as client:
        answers, failed = _each(client, region, lambda name: client.resubmit_orphans(region=name, shard=shard))
    told = [(name, at, found) for name, answer in answers.items() for at, found in answer["shards"].items()]
    if as_json:
        showing.print_json({"regions": answers})
    else:
        for name, at, found in told:
            sent = ", ".join(f"{number} {outcome}" for outcome, number in sorted(found["outcomes"].items())) or "nothing was sent"
            print(f"{name} {at}: {sent}; now {_summed(found['entries'])}")
    _must_answer(failed)
    if any(entry["open"] for _, _, found in told for entry in found["entries"]):
        raise CommandError("some orphans are still open: run the same command again, or see `laurel status` for who takes writes")


def orphans_sign_off(
    region: Annotated[str, typer.Option("--region", help="The region that keeps them.")],
    shard: Annotated[str, typer.Option("--shard", help="The shard, such as eu-west/0.")],
    epoch: Annotated[int, typer.Option("--epoch", min=1, help="The epoch in which they were written.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it is recorded with your name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Delete a region's orphans of one epoch for good, once it is recorded who did it and why."""
    if as_json and not yes:
        raise CommandError("--json cannot ask: add --yes", exit_code=2)
    with client_for(url, token, data_dir, OPERATOR, total_timeout_s=40.0) as client:
        _check(client, region)
        if not yes:
            found = client.orphans(region=region, shard=shard, limit=1)["shards"][shard]["entries"]
            of_it = [entry for entry in found if entry["epoch"] == epoch]
            typer.confirm(f"Delete {len(of_it)} orphaned entries of epoch {epoch} in {region}: {_summed(of_it)}?", abort=True, err=True)
        done = client.sign_off_orphans(region=region, shard=shard, epoch=epoch, why=why)
    if as_json:
        showing.print_json(done)
    elif not done["entries"]:
        print(f"{region} keeps no orphans of epoch {epoch} in {shard}")
    else:
        at = done["recorded"]
        print(f"{done['entries']} entries with {done['events']} events are gone from {region}; recorded at {at['epoch']}-{at['offset']}")


def add_orphan_commands(app: typer.Typer) -> None:
    """All of the above, as `orphans`."""
    orphans = typer.Typer(no_args_is_help=True, help="List, resubmit and sign off what deposed authorities left.")
    orphans.command("list")(orphans_list)
    orphans.command("resubmit")(orphans_resubmit)
    orphans.command("sign-off")(orphans_sign_off)
    app.add_typer(orphans, name="orphans")


def _check(client: "LaurelClient", region: str | None) -> None:
    if region is not None and region not in client.regions:
        raise CommandError(f"region {region!r} is none of {', '.join(client.regions)}", exit_code=2)


def _each(client: "LaurelClient", region: str | None, ask: Callable[[str], dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The answers of one region or all, and the names of those that gave none. A refusal is raised."""
    from laurel.errors import LaurelError, Refused

    _check(client, region)
    answers: dict[str, Any] = {}
    failed: list[str] = []
    for name in sorted(client.regions) if region is None else [region]:
        try:
            answers[name] = ask(name)
        except LaurelError as exc:
            if isinstance(exc, Refused) or region is not None:
                raise
            failed.append(name)
    return answers, failed


def _must_answer(failed: list[str]) -> None:
    if failed:
        raise CommandError(f"no answer from {', '.join(failed)}: their orphans are not in this; ask again when they are back")


def _summed(entries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{sum(entry[state] for entry in entries)} {state}" for state in _STATES)
