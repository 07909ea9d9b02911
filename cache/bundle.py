"""Entries in one file, to carry a cache to other machines.

It is a ZIP file with the entries as they are in the cache, each with its checksum, and a list of
them in `LIST`, for people. Equal entries give equal files. Nothing of it is believed that does not
pass the checks of `artifact.read`, and nothing is put into a store unless all of it does.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from khaljit.cache.artifact import read
from khaljit.cache.catalog import Catalog, Entry
from khaljit.cache.errors import CorruptError
from khaljit.cache.files import identity
from khaljit.cache.keys import Key

__all__ = ["LIST", "read_bundle", "write_bundle"]

LIST: Final = "entries.json"
LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # a time of its own would make equal files differ


def write_bundle(path: str | os.PathLike[str], catalog: Catalog, entries: Iterable[Entry]) -> int:
    """Write entries to a file, whole or not at all; gives how many.

    Raises:
        OSError: the file cannot be written, or an entry not be read.
        CorruptError: an entry is damaged.
    """
    chosen = sorted(entries, key=lambda entry: (entry.key, entry.tool or ("", "")))
    unfinished = f"{os.fspath(path)}.{os.getpid()}"
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as bundle:
            listed = [{"key": entry.key, **entry.about} for entry in chosen]
            _add(bundle, LIST, json.dumps(listed, indent=1, sort_keys=True).encode())
            for entry in chosen:
                data = catalog.data(entry)
                _add(bundle, identity(entry.key, read(data)[1]), data)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.remove(unfinished)
        raise
    return len(chosen)


def _add(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, LONG_AGO), data, zipfile.ZIP_DEFLATED)


def read_bundle(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The entries in a file, for `Catalog.insert`, checked one by one.

    Raises:
        OSError: it cannot be read.
        CorruptError: it is damaged, or no such file.
        FormatError: another khaljit wrote it.
    """
    try:
        with zipfile.ZipFile(path) as bundle:
            names = bundle.namelist()
            if LIST not in names:
                raise CorruptError("it was not made by `khaljit cache export`")
            for name in names:
                if name != LIST:
                    data = bundle.read(name)
                    material, artifact = read(data)
                    if identity(Key.of(material), artifact) != name:
                        raise CorruptError(f"{name} is another key's entry")
                    yield data
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CorruptError(f"it is damaged ({error})") from error
