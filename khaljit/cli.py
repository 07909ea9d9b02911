"""The command line: ``khaljit devices``, ``doctor``, ``show``, ``demo`` and ``cache``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from khaljit import compiler
from khaljit.devices import device, devices, target
from khaljit.jit import Kernel
from khaljit.tracer.errors import ArgumentValueError, KhaljitError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Compute kernels in Python, on any device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache = typer.Typer(help="The cache of compiled kernels.", no_args_is_help=True)
app.add_typer(cache, name="cache")
console = Console(highlight=False)


@app.command("devices")
def list_devices() -> None:
    """List the devices that are here with what each has and lacks, and why others are not."""
    from khaljit.doctor import adapter_facts

    table = Table("device", "state", "details", show_lines=True)
    for kind, found in devices().items():
        if isinstance(found, KhaljitError):
            table.add_row(kind, "missing", str(found))
        else:
            table.add_row(found.name, "ready", _facts(found.describe()))
    for name, facts in adapter_facts().items():
        table.add_row(name, "adapter", _facts(facts))
    console.print(table)
    console.print(f"auto takes {device('auto')}: {device('auto').reason}")


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


@app.command()
def doctor() -> None:
    """Try every device, and say what to install or mend; fails if a device that is here does."""
    from khaljit.doctor import examine

    broken = False
    for finding in examine():
        mark = {True: "[green]ok[/green]", False: "[red]--[/red]", None: "  "}[finding.good]
        console.print(f"{mark} [bold]{finding.subject}[/bold]: {escape(finding.text)}")
        for mend in finding.mends:
            console.print(f"     {escape(mend)}")
        broken = broken or finding.broken
    raise typer.Exit(1 if broken else 0)


@app.command()
def show(
    kernel: Annotated[str, typer.Argument(help="FILE.py:KERNEL or MODULE:KERNEL")],
    args: Annotated[str, typer.Option(help='the signature, such as "f32[:], f32[:], i32"')],
    stage: Annotated[
        str, typer.Option(help="trace, lowered, legal, and those of the device")
    ] = "trace",
    on: Annotated[str, typer.Option("--device", help="the device to compile for")] = "cpu",
) -> None:
    """Print a kernel's code at one stage of its compilation."""
    print(load_kernel(kernel).source(stage, args, target=target(on)))


@app.command()
def demo(
    image: Annotated[
        Path | None, typer.Argument(help="an image file; a photograph if left out")
    ] = None,
    on: Annotated[str | None, typer.Option("--device", help="run on this device only")] = None,
    output: Annotated[Path, typer.Option(help="where the pictures go")] = Path("demo-output"),
) -> None:
    """Run a pipeline of kernels on a photograph, on every device, checked against SciPy."""
    from khaljit.demo import run  # needs the packages of the `demo` extra

    raise typer.Exit(run(image, on, output, console))


@cache.command()
def info() -> None:
    """Say where the cache is and what it holds."""
    found = compiler.store().info()
    table = Table("cache", "", show_header=False)
    table.add_row("directory", found.directory or "none: in memory only")
    table.add_row("entries", str(found.entries))
    table.add_row("bytes", f"{found.bytes:,} of at most {found.limit:,}")
    console.print(table)


@cache.command()
def clear() -> None:
    """Delete every entry."""
    before = compiler.store().info().entries
    compiler.store().clear()
    console.print(f"deleted {before} entries")


def load_kernel(place: str) -> Kernel:
    """The kernel that ``FILE.py:KERNEL`` or ``MODULE:KERNEL`` names."""
    module_name, _, name = place.rpartition(":")
    if not module_name or not name:
        raise ArgumentValueError(
            f"{place!r} names no kernel", mend="write FILE.py:KERNEL or MODULE:KERNEL"
        )
    found: Any = _load_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Kernel):
        raise ArgumentValueError(
            f"{module_name} has no kernel {name!r}", mend="name a function decorated with @kj.jit"
        )
    return found


def _load_module(name: str) -> Any:
    if not name.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ArgumentValueError(
                f"there is no module {error.name}", mend="give a file: path/to/file.py:KERNEL"
            ) from None
    path = Path(name)
    if not path.is_file():
        raise ArgumentValueError(f"there is no file {name}", mend="check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the command line; khaljit's errors are printed without a traceback."""
    try:
        app()
    except KhaljitError as error:
        print(f"khaljit: {error}", file=sys.stderr)
        sys.exit(2)
