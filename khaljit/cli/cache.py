"""``khaljit cache``: what the cache holds, why it missed, and carrying it to other machines."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from khaljit import compiler
from khaljit.cache.bundle import read_bundle, write_bundle
from khaljit.cache.catalog import Catalog, Entry
from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.keys import parts_of
from khaljit.cli.console import AsJson, age, console, print_json, size
from khaljit.explaining import Explanation, explain
from khaljit.generators import generators
from khaljit.tracer.errors import ArgumentValueError, CacheError
from khaljit.warming import load_kernel

__all__ = ["commands"]

commands: Final = typer.Typer(help="The cache of compiled kernels.", no_args_is_help=True)

DAY: Final = 86400.0
FEW: Final = 12  # digits of a key in tables, which `show` takes

Kernels = Annotated[
    list[str] | None, typer.Option("--kernel", help="only of these: a pattern as app.*:blur")
]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help="only for these: a pattern as cuda:*")
]


def _catalog() -> Catalog:
    return Catalog(compiler.store())


def _chosen(
    catalog: Catalog, kernels: Sequence[str] | None, targets: Sequence[str] | None
) -> Iterator[Entry]:
    for entry in catalog.entries():
        if _fits(entry.about.get("kernel"), kernels) and _fits(entry.about.get("target"), targets):
            yield entry


def _fits(name: object, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(str(name or ""), one) for one in patterns)


def _is_current(entry: Entry) -> bool:
    """Whether this very khaljit would look for it."""
    return parts_of(entry.key.material).get("generators") == generators()


def _as_data(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        **entry.about,
        "tool": entry.tool,
        "pinned": entry.pinned,
        "current": _is_current(entry),
        "size": entry.size,
        "used": entry.used,
        "hits": entry.hits,
    }


@commands.command()
def info(json: AsJson = False) -> None:
    """Say where the cache is and what it holds."""
    found = compiler.store().info()
    kinds = Counter(
        str(entry.about.get("target", "none")).partition(":")[0] for entry in _catalog().entries()
    )
    if json:
        print_json({**dataclasses.asdict(found), "targets": kinds})
        return
    table = Table(show_header=False)
    table.add_row("directory", found.directory or "none: in memory only")
    table.add_row("entries", f"{found.entries:,} of at most {found.entries_limit:,}")
    table.add_row("size", f"{size(found.bytes)} of at most {size(found.limit)}")
    table.add_row("rewritten", f"{found.memos:,} functions, {size(found.memo_bytes)}")
    table.add_row("targets", ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())))
    if found.remote:
        table.add_row("remote", found.remote)
    console.print(table)


@commands.command()
def ls(kernel: Kernels = None, target: Targets = None, json: AsJson = False) -> None:
    """List the entries, those used last first."""
    entries = sorted(_chosen(_catalog(), kernel, target), key=lambda entry: -entry.used)
    if json:
        print_json([_as_data(entry) for entry in entries])
        return
    table = Table("key", "kernel", "signature", "target", "size", "age", "used", "hits")
    for column in (table.columns[0], *table.columns[4:]):
        column.no_wrap = True
    for column in table.columns[4:]:
        column.justify = "right"
    for entry in entries:
        about = entry.about
        created = about.get("created")
        table.add_row(
            entry.key[:FEW],
            escape(str(about.get("kernel", ""))),
            escape(str(about.get("signature", ""))),
            escape(str(about.get("target", ""))),
            size(entry.size),
            age(created) if created else "",
            age(entry.used),
            str(entry.hits),
            style=None if _is_current(entry) else "dim",
        )
    console.print(table)
    if not all(map(_is_current, entries)):
        console.print("dim: of other versions of khaljit; `khaljit cache prune --stale` deletes it")


@commands.command()
def show(
    key: Annotated[str, typer.Argument(help="the first digits of an entry's key")],
    text: Annotated[bool, typer.Option("--text", help="the code itself, as text")] = False,
    json: AsJson = False,
) -> None:
    """Show one entry: what it is the code of, and what its key is made of."""
    catalog = _catalog()
    found = catalog.find(key.lower())
    if len({entry.key for entry in found}) != 1:
        raise ArgumentValueError(
            f"{len(found) or 'no'} entries have keys that begin with {key!r}",
            mend="`khaljit cache ls` lists the keys",
        )
    entry = found[0]
    try:
        artifact = catalog.artifact(entry)
    except CorruptError as error:
        raise CacheError(f"entry {entry.key}: {error}", mend="khaljit cache verify") from None
    parts = {name: part.decode() for name, part in parts_of(entry.key.material).items()}
    data = {**_as_data(entry), "plan": dict(artifact.plan), "key parts": parts}
    if text:
        data["text"] = artifact.text
    if json:
        print_json(data)
    elif text:
        print(artifact.text)
    else:
        trace = parts.pop("trace", "")
        for name, value in (data | {"key parts": parts}).items():
            print(f"{name}: {value}")
        print(f"trace:\n{trace}")


@commands.command()
def why(
    kernel: Annotated[str, typer.Argument(help="FILE.py:KERNEL or MODULE:KERNEL")],
    args: Annotated[
        str | None, typer.Option(help="the signature; if left out, those that the kernel declares")
    ] = None,
    target: Annotated[str, typer.Option(help="what the code is for")] = "cpu:native",
    json: AsJson = False,
) -> None:
    """Say whether a kernel is in the cache; and if not, how it differs from what is nearest."""
    found = load_kernel(kernel)
    signatures = [args] if args is not None else [one for one, _ in found.specialisations]
    if not signatures:
        raise ArgumentValueError(
            f"{kernel} declares no signatures", mend='name one: --args "f32[:], i32"'
        )
    told = [explain(found.request(one, target=target)) for one in signatures]
    if json:
        print_json([dataclasses.asdict(one) for one in told])
    else:
        for signature, one in zip(signatures, told, strict=True):
            print(f"{kernel}({signature}) for {target}: {_in_words(one)}")


def _in_words(one: Explanation) -> str:
    if one.hit:
        return f"hit, key {one.key}"
    text = f"miss, {one.reason}; key {one.key}"
    if one.nearest is None:
        return f"{text}\n  the cache holds nothing to compare it with"
    text += f"\n  the nearest entry is {one.nearest}, of {one.about or 'no kernel'}"
    for name, difference in one.differences.items():
        text += f"\n  its {name} differs:\n{difference}"
    return text


@commands.command()
def verify(json: AsJson = False) -> None:
    """Check every entry, and move what is damaged away; fails if something is."""
    good, damaged = 0, []
    for one in _catalog().check():
        if isinstance(one, Entry):
            good += 1
        else:
            damaged.append(one)
    if json:
        print_json({"good": good, "damaged": [dataclasses.asdict(one) for one in damaged]})
    else:
        for one in damaged:
            print(f"{one.name}: {one.reason}")
        print(f"{good} entries are as they were written, {len(damaged)} are not")
    raise typer.Exit(1 if damaged else 0)


@commands.command()
def prune(
    older: Annotated[
        float | None, typer.Option(help="delete also what was of no use for so many days")
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="delete also what other versions of khaljit made")
    ] = False,
    json: AsJson = False,
) -> None:
    """Delete what is beyond the bound, damaged, or left behind."""
    now = time.time()

    def unwanted(entry: Entry) -> bool:
        return (stale and not _is_current(entry)) or (
            older is not None and now - entry.used > older * DAY
        )

    freed = _catalog().prune(unwanted)
    if json:
        print_json({"freed": freed})
    else:
        print(f"freed {size(freed)}")


@commands.command()
def clear(json: AsJson = False) -> None:
    """Delete every entry."""
    before = compiler.store().info().entries
    compiler.store().clear()
    if json:
        print_json({"deleted": before})
    else:
        print(f"deleted {before} entries")


@commands.command("export")
def export_entries(
    file: Annotated[Path, typer.Argument(help="the file to write")],
    kernel: Kernels = None,
    target: Targets = None,
    json: AsJson = False,
) -> None:
    """Write entries to one file, for machines that cannot or need not compile."""
    catalog = _catalog()
    chosen = [entry for entry in _chosen(catalog, kernel, target) if _is_current(entry)]
    try:
        count = write_bundle(file, catalog, chosen)
    except (OSError, CorruptError) as error:
        raise CacheError(f"{file} was not written: {error}", mend="khaljit cache verify") from None
    if json:
        print_json({"exported": count, "size": os.path.getsize(file)})
    else:
        print(f"exported {count} entries to {file}, {size(os.path.getsize(file))}")


@commands.command("import")
def import_entries(
    file: Annotated[Path, typer.Argument(help="what `khaljit cache export` wrote")],
    pin: Annotated[
        bool, typer.Option(help="use the code whatever version of its compiler is installed here")
    ] = True,
    json: AsJson = False,
) -> None:
    """Put the entries of a file into the cache, if all of them pass their checks."""
    catalog = _catalog()
    try:
        entries = list(read_bundle(file))
        there = sum(map(catalog.has, entries))
        keys = [catalog.insert(data, pin=pin) for data in entries]
    except (OSError, CorruptError, FormatError) as error:
        raise CacheError(
            f"{file} cannot be imported, and nothing was: {error}",
            mend="export it again, with this version of khaljit",
        ) from None
    lost = len(entries) - sum(map(catalog.has, entries))
    if lost:
        raise CacheError(
            f"{lost} of {len(entries)} entries of {file} are not in the cache now",
            mend="set KHALJIT_CACHE_DIR to a directory that can be written to, or a higher "
            "KHALJIT_CACHE_LIMIT",
        )
    stale = sum(parts_of(key.material).get("generators") != generators() for key in keys)
    if json:
        print_json({"imported": len(keys), "there": there, "stale": stale})
        return
    print(f"imported {len(keys)} entries, {there} of which were here")
    if stale:
        print(f"{stale} were made by another version of khaljit, and this one will not use them")
