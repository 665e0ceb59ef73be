"""Server commands of `laurel`, found by the entry point group `laurel.commands`: up, region, token.

Exit code 2 where nothing was started because of what was asked or configured, 1 for what failed.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from config.loading import load_cluster
from config.models import ClusterConfig, ConfigError
from laurel import showing
from laurel.commands import DATA_DIR, OPERATOR, CommandError, DataDir, Json, Token, Url, client_for
from regions import node_command, up_command
from regions.launcher import StartError
from regions.specs import make_keys
from regions.tokens import SCOPES, KeyFileError, KeyPair, Scope

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="The cluster file.")]
CONFIG = Path("cluster.yaml")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: A token's life at most, and at least, in seconds.
_TTL_MAX_S, _TTL_MIN_S = 10 * 365 * 86_400, 1

app = typer.Typer()
region_app = typer.Typer(no_args_is_help=True, help="Start one region, or readmit one that lost its data.")
token_app = typer.Typer(no_args_is_help=True, help="Make keys, issue tokens.")
app.add_typer(region_app, name="region")
app.add_typer(token_app, name="token")


@contextmanager
def _told() -> Iterator[None]:
    """Errors of configuration, start and key files as one sentence with exit code 2."""
    try:
        yield
    except (ConfigError, StartError, KeyFileError) as error:
        raise CommandError(str(error), exit_code=2) from error
    except OSError as error:
        place = error.filename or "a file"
        raise CommandError(f"{place} cannot be used: {error.strerror or error}", exit_code=2) from error


@app.command()
def up(
    config: ConfigFile = CONFIG,
    regions: Annotated[int | None, typer.Option("--regions", help="Only the first N regions of the file; 1 is enough on a laptop.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Start the regions of a cluster file on this machine, and show them live."""
    with _told():
        cluster = load_cluster(config)
        if regions is not None:
            cluster = _restricted(cluster, regions, config)
        up_command.up(config=cluster, config_file=config, data_dir=data_dir, restricted=regions is not None, as_json=as_json)


def _restricted(cluster: ClusterConfig, count: int, config: Path) -> ClusterConfig:
    try:
        return cluster.restrict(count)
    except ConfigError as error:
        raise error.in_file(str(config)) from error


@region_app.command("start")
def region_start(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A region of the cluster file.")],
    config: ConfigFile = CONFIG,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Start one region on this machine, in the foreground; the others run elsewhere with a copy of the same keys."""
    with _told():
        cluster = load_cluster(config)
        up_command.start_region(config=cluster, config_file=config, data_dir=data_dir, region=name, as_json=as_json)


@region_app.command("node")
def region_node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A region of the cluster file that has a `head`.")],
    head: Annotated[str, typer.Option("--head", metavar="HOST:PORT", help="Its head; else what the file says.")] = "",
    number: Annotated[int, typer.Option("--number", help="Number of this node, from 2 on.")] = 2,
    host: Annotated[str, typer.Option("--host", help="Address of this machine; else the one that reaches the head.")] = "",
    config: ConfigFile = CONFIG,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Join this machine to a region as a further node, in the foreground; it needs a copy of the cluster's keys and file."""
    stop = threading.Event()
    for heeded in up_command.SIGNALS:
        signal.signal(heeded, lambda *_: stop.set())
    with _told():
        cluster = load_cluster(config)
        try:
            node_command.join(cluster, name, number=number, data_dir=data_dir, head=head, host=host, stop=stop)
        except ConfigError as error:
            raise error.in_file(str(config)) from error


@region_app.command("readmit")
def region_readmit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The region to take back.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Take back a region that lost its data: empty its store, let it catch up, count it again."""
    if as_json and not yes:
        raise CommandError("--json cannot ask: add --yes", exit_code=2)
    if not yes:
        typer.confirm(f"Empty the store of {name} and fill it from the other regions?", abort=True, err=True)
    with client_for(url, token, data_dir, OPERATOR) as client:
        answer = client.readmit(name)
    if as_json:
        showing.print_json(answer)
        return
    for shard, facts in answer.get("shards", {}).items():
        print(f"{name} is a member of {shard} again, from epoch {facts.get('epoch')} of {facts.get('owner')} on; it is catching up.")


@token_app.command("init")
def token_init(config: ConfigFile = CONFIG, data_dir: DataDir = DATA_DIR, as_json: Json = False) -> None:
    """Make the keys of a cluster whose regions run on several machines; copy `DIR/keys` to each of them."""
    with _told():
        cluster = load_cluster(config)
        make_keys(data_dir, list(cluster.regions))
        up_command.write_client_file(data_dir, {name: up_command.url_of(region) for name, region in cluster.regions.items()})
    tokens = up_command.known_tokens(data_dir)
    if as_json:
        showing.print_json({"keys": str(data_dir / "keys"), "tokens": tokens})
        return
    print(f"Keys are in {data_dir / 'keys'}: copy cluster.pub, secret and a region's own token to that region's machine.")
    print(f"{data_dir / 'keys' / 'cluster.pem'} signs tokens: keep it to yourself.")
    for role, path in tokens.items():
        print(f"  {role:12} token: {path}")


@token_app.command("issue")
def token_issue(
    scope: Annotated[str, typer.Option("--scope", help=f"{', '.join(SCOPES[:-1])} or {SCOPES[-1]}.")],
    game: Annotated[list[str] | None, typer.Option("--game", help="A game it is for, or *; may be given again.")] = None,
    ttl: Annotated[str, typer.Option("--ttl", help="Its life: 90s, 15m, 12h or 30d.")] = "1d",
    sub: Annotated[str | None, typer.Option("--sub", help="Who it is for; written into each record that it causes.")] = None,
    player: Annotated[str | None, typer.Option("--player", help="Of friends boards, this player's alone; for --scope reader.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Sign a token with the key of the data directory."""
    if scope not in get_args(Scope):
        raise CommandError(f"--scope must be one of {', '.join(SCOPES)}, not {scope!r}", exit_code=2)
    games = game or []
    if not games or any(not _is_game(name) for name in games):
        raise CommandError("--game must be * or the first part of a board id, of a-z, 0-9, '.', '_' and '-'", exit_code=2)
    seconds = _seconds(ttl)
    with _told():
        path = data_dir / "keys" / "cluster.pem"
        if not path.is_file():
            raise CommandError(f"{path} is not there: `laurel up` or `laurel token init` makes it, or name its --data-dir", exit_code=2)
        pair = KeyPair.load(path)
    subject = sub or f"{scope}-cli"
    if not subject.isprintable() or len(subject) > 128:
        raise CommandError("--sub must be printable text of at most 128 characters", exit_code=2)
    try:
        issued = pair.issue(subject, cast(Scope, scope), games, seconds, player=player)
    except ValueError as error:
        raise CommandError("--player must be a player's id, and --scope reader with it", exit_code=2) from error
    if as_json:
        told = {"token": issued, "sub": subject, "scope": scope, "games": sorted(set(games)), "expires_in_s": seconds}
        showing.print_json(told if player is None else {**told, "player": player})
    else:
        print(issued)


def _is_game(name: str) -> bool:
    return name == "*" or (bool(name) and all(char in "abcdefghijklmnopqrstuvwxyz0123456789._-" for char in name))


def _seconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    seconds = int(number) * _UNITS[unit] if number.isascii() and number.isdigit() and len(number) < 10 and unit in _UNITS else 0
    if not _TTL_MIN_S <= seconds <= _TTL_MAX_S:
        raise CommandError(f"--ttl must be a whole number and s, m, h or d, up to 3650d, not {text!r}", exit_code=2)
    return seconds
