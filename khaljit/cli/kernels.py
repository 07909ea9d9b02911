"""``khaljit show`` and ``khaljit demo``: looking at kernels, and running some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khaljit.cli.console import console
from khaljit.warming import load_kernel

__all__ = ["demo", "show"]


def show(
    kernel: Annotated[str, typer.Argument(help="FILE.py:KERNEL or MODULE:KERNEL")],
    args: Annotated[str, typer.Option(help='the signature, such as "f32[:], f32[:], i32"')],
    stage: Annotated[
        str, typer.Option(help="trace, lowered, legal, and those of the device")
    ] = "trace",
    on: Annotated[
        str,
        typer.Option("--device", "--target", help="what to compile for: cpu, cuda:sm_90, webgpu"),
    ] = "cpu",
) -> None:
    """Print a kernel's code at one stage of its compilation."""
    print(load_kernel(kernel).source(stage, args, target=on))


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
