"""The `laurel` command: finds the commands, and turns every failure into one sentence and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 130 interrupted. Server commands come from
the entry point group `laurel.commands` and are loaded only when one of them is called.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

SERVER_HINT = "pip install 'laurel-leaderboards[server]'"

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
except ImportError:
    print(f"The `laurel` command needs typer and rich: {SERVER_HINT}.", file=sys.stderr)
    raise SystemExit(2) from None

from laurel.board_commands import add_board_commands  # noqa: E402  # it needs typer too
from laurel.commands import CommandError, add_client_commands  # noqa: E402
from laurel.friends_command import add_friends_command  # noqa: E402
from laurel.orphan_commands import add_orphan_commands  # noqa: E402
from laurel.ranks_command import add_ranks_command  # noqa: E402

ENTRY_POINT_GROUP = "laurel.commands"

#: Shown in `--help` without loading the server.
SERVER_COMMANDS = {
    "up": "Start the regions of a cluster file on this machine, and show them live.",
    "region": "Start one region, or readmit one that lost its data.",
    "token": "Make keys, issue tokens.",
    "simulate": "Run the whole cluster in one thread from seeds, and check the invariants.",
    "drill": "Rehearse on a running cluster, or set chaos on a cluster of its own.",
}


class LaurelGroup(TyperGroup):
    """Client commands of its own, server commands by entry point."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Client commands first."""
        return [*super().list_commands(ctx), *SERVER_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For help only, a server command is a line of text."""
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name in SERVER_COMMANDS:
            return TyperCommand(cmd_name, help=SERVER_COMMANDS[cmd_name])
        return own

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """For a call, it is loaded."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and super().get_command(ctx, name) is None:
            found = _server_command(ctx, name)
            if found is not None:
                return name, found, args[1:]
        return super().resolve_command(ctx, args)

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """As the base, but for how failures are told."""
        standalone = extra.pop("standalone_mode", True)
        try:
            code = super().main(args, prog_name, *rest, **{**extra, "standalone_mode": False})
        except Exception as exc:
            if not standalone:
                raise
            sentence, code = _told(exc)
            if sentence:
                print(sentence, file=sys.stderr)
        if not standalone:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _told(exc: Exception) -> tuple[str, int]:
    """One sentence for a failure, and the exit code; what is no expected failure goes on as it is."""
    from laurel.errors import LaurelError, Misconfigured

    if isinstance(exc, CommandError):
        return _sentence(exc.sentence), exc.exit_code
    if isinstance(exc, Misconfigured):
        return _sentence(exc.detail), 2
    if isinstance(exc, LaurelError):
        return _sentence(f"{exc.detail.rstrip('.')}{_advice(exc)}"), 1
    if isinstance(exc, typer.Abort):
        return "Nothing was done.", 1
    format_message = getattr(exc, "format_message", None)
    if format_message is not None:  # click's own errors, whichever click typer brings
        said = str(format_message()).rstrip(".")  # empty where the help was shown instead
        return _sentence(f"{said}; see `laurel --help`") if said else "", int(getattr(exc, "exit_code", 2))
    raise exc


def _advice(exc: Any) -> str:
    from laurel import errors

    if isinstance(exc, errors.GenerationGone) and exc.newest:
        return f"; start again with --generation {exc.newest}"
    if mend := _mend(exc):
        return mend
    if isinstance(exc, errors.Unauthorized):
        return "; give a good token with --token or LAUREL_TOKEN, such as one of `laurel token issue`"
    if isinstance(exc, errors.Forbidden):
        return "; use a token whose scope and games cover this"
    if isinstance(exc, errors.UnknownBoard):
        return "; see `laurel board list`"
    if isinstance(exc, errors.GenerationGone):
        return "; start again without --generation"
    if isinstance(exc, errors.Unavailable):
        return "; try again, or see `laurel status`"
    return ""


def _mend(exc: Any) -> str:
    """Field and what is allowed, as far as the detail does not say them itself."""
    from laurel.errors import Refused

    said = exc.detail.casefold()
    field = "" if exc.field is None or re.search(rf"(?<!\w){re.escape(exc.field.casefold())}(?!\w)", said) else exc.field
    if exc.allowed and exc.allowed.casefold() not in said:
        return f"; allowed for {field} is {exc.allowed}" if field else f"; allowed is {exc.allowed}"
    return f"; mend {field}" if field and isinstance(exc, Refused) else ""


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    if line.partition(" ")[0].isalpha():  # eu-west stays eu-west
        line = line[:1].upper() + line[1:]
    return line if line.endswith((".", "!", "?")) else line + "."


def _server_command(ctx: Any, name: str) -> Any:
    """The command of that name from the first entry point that has it; None if no one has and it is not one of ours."""
    points = list(entry_points(group=ENTRY_POINT_GROUP))
    for point in points:
        try:
            group = typer.main.get_command(_as_app(point.load()))
        except ImportError as exc:
            raise CommandError(f"`laurel {name}` needs the server, and {exc.name or exc} is missing: {SERVER_HINT}", exit_code=2) from exc
        found = group.get_command(ctx, name) if isinstance(group, TyperGroup) else group if group.name == name else None
        if found is not None:
            return found
    if name in SERVER_COMMANDS:
        raise CommandError(f"`laurel {name}` needs the server, which is not installed: {SERVER_HINT}", exit_code=2)
    return None


def _as_app(loaded: Any) -> typer.Typer:
    """An entry point is a typer app, or a function that adds its commands to one."""
    if isinstance(loaded, typer.Typer):
        return loaded
    fresh = typer.Typer()

    @fresh.callback()
    def _group() -> None:
        """Keeps a lone command a command of a group."""

    loaded(fresh)
    return fresh


app = typer.Typer(cls=LaurelGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            print(version("laurel-leaderboards"))
        except PackageNotFoundError:
            print("unknown (not installed)")
        raise typer.Exit


@app.callback()
def _laurel(
    _version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Laurel, a multi-region leaderboard service."""


add_client_commands(app)
add_board_commands(app)
add_orphan_commands(app)
add_friends_command(app)
add_ranks_command(app)


def main() -> None:
    """Entry point of the `laurel` script."""
    app(prog_name="laurel")


if __name__ == "__main__":
    main()
