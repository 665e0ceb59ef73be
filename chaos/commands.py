"""Commands of this package, found by the entry point group `laurel.commands`."""

import typer

app = typer.Typer()
