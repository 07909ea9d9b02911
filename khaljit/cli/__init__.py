"""The command line: ``khaljit devices``, ``doctor``, ``show``, ``demo``, ``warm`` and ``cache``."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from khaljit.cli import cache, devices, kernels, warm
from khaljit.tracer.errors import KhaljitError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Compute kernels in Python, on any device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"khaljit {metadata.version('khaljit')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


app.command("devices")(devices.list_devices)
app.command()(devices.doctor)
app.command()(kernels.show)
app.command()(kernels.demo)
app.command()(warm.warm)
app.add_typer(cache.commands, name="cache")


def main() -> None:
    """Run the command line; khaljit's errors are printed without a traceback."""
    try:
        app()
    except KhaljitError as error:
        print(f"khaljit: {error}", file=sys.stderr)
        sys.exit(2)
