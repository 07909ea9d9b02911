"""``khaljit devices`` and ``khaljit doctor``: what is here, and what to mend."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.markup import escape
from rich.table import Table

from khaljit.cli.console import AsJson, console, print_json
from khaljit.devices import device, devices
from khaljit.tracer.errors import KhaljitError

__all__ = ["doctor", "list_devices"]


def list_devices(json: AsJson = False) -> None:
    """List the devices that are here with what each has and lacks, and why others are not."""
    from khaljit.doctor import adapter_facts

    chosen = device("auto")
    found = devices()
    if json:
        print_json(
            {
                "auto": chosen.name,
                "devices": {
                    kind: {"missing": str(one)}
                    if isinstance(one, KhaljitError)
                    else {"name": one.name, "target": one.target.text, **one.describe()}
                    for kind, one in found.items()
                },
                "adapters": {name: dict(facts) for name, facts in adapter_facts().items()},
            }
        )
        return
    table = Table("device", "state", "details", show_lines=True)
    for kind, one in found.items():
        if isinstance(one, KhaljitError):
            table.add_row(kind, "missing", escape(str(one)))
        else:
            table.add_row(one.name, "ready", _facts({**one.describe(), "target": one.target.text}))
    for name, facts in adapter_facts().items():
        table.add_row(name, "adapter", _facts(facts))
    console.print(table)
    console.print(f"auto takes {chosen}: {escape(chosen.reason)}")


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {escape(value)}" for name, value in facts.items())


def doctor(json: AsJson = False) -> None:
    """Try every device, and say what to install or mend; fails if a device that is here does."""
    from khaljit.doctor import examine

    findings = list(examine())
    if json:
        print_json(
            [
                {"subject": one.subject, "good": one.good, "text": one.text, "mends": one.mends}
                for one in findings
            ]
        )
    else:
        for finding in findings:
            mark = {True: "[green]ok[/green]", False: "[red]--[/red]", None: "  "}[finding.good]
            console.print(f"{mark} [bold]{finding.subject}[/bold]: {escape(finding.text)}")
            for mend in finding.mends:
                console.print(f"     {escape(mend)}")
    raise typer.Exit(1 if any(one.broken for one in findings) else 0)
