"""Manifests: which kernels a program used, specialised how, for which targets.

``KHALJIT_RECORD=manifest.json program`` writes one, and adds to one that is there; so do several
processes at once. ``khaljit warm manifest.json`` compiles what it lists. It is JSON, a line for
each specialisation, in a fixed order:

    {
      "khaljit manifest": 1,
      "specialisations": [
        {"kernel": "app.blur:blur", "signature": "f32[n], f32[n]", "targets": ["cuda:sm_90"]},
        {"kernel": "app.py:sum", "signature": "f32[:]", "options": {"workgroup": [64, 1, 1]}, ...}
      ]
    }

* ``kernel``: where the kernel is, as ``khaljit.modules`` finds it; scripts from where they ran.
* ``signature``: in the grammar of ``khaljit/signatures.py``.
* ``options``: those of ``@kj.jit`` that are not the usual ones.
* ``targets``: in the words of ``khaljit.devices.target``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, final

from khaljit.tracer.errors import ArgumentValueError

__all__ = ["Manifest", "Recorder", "Specialisation", "recorder"]

FORMAT: Final = 1
HEAD: Final = "khaljit manifest"


@final
@dataclass(frozen=True, slots=True, order=True)
class Specialisation:
    """A kernel with what it is specialised for.

    Attributes:
        kernel: its path.
        options: as JSON, since that has an order and a hash.
    """

    kernel: str
    signature: str
    options: str = "{}"

    def __str__(self) -> str:
        options = "" if self.options == "{}" else f" {self.options}"
        return f"{self.kernel}({self.signature}){options}"

    @classmethod
    def of(cls, kernel: str, signature: str, options: Mapping[str, Any]) -> Specialisation:
        """One with options as values."""
        return cls(kernel, signature, json.dumps(options, sort_keys=True))


@final
@dataclass(slots=True)
class Manifest:
    """The targets of each specialisation."""

    targets: dict[Specialisation, set[str]] = field(default_factory=dict)

    def add(self, specialisation: Specialisation, target: str) -> None:
        """Enter a target."""
        self.targets.setdefault(specialisation, set()).add(target)

    def merge(self, other: Manifest) -> None:
        """Enter all that another one lists."""
        for specialisation, targets in other.targets.items():
            self.targets.setdefault(specialisation, set()).update(targets)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Manifest:
        """The manifest in a file.

        Raises:
            ArgumentValueError: it cannot be read, or is none.
        """
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentValueError(
                f"the manifest {path} cannot be read: {error}", mend="check the path"
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentValueError(
                f"{path} is no manifest of format {FORMAT}: {error}",
                mend="record one: KHALJIT_RECORD=manifest.json python program.py",
            ) from None

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """The manifest in a text; raises what reading JSON and using it wrongly raise."""
        data = json.loads(text)
        if data[HEAD] != FORMAT:
            raise ValueError(f"its format is {data[HEAD]!r}")
        manifest = cls()
        for row in data["specialisations"]:
            kernel, signature, targets = row["kernel"], row["signature"], row["targets"]
            if not all(type(one) is str for one in (kernel, signature, *targets)):
                raise TypeError(f"{row} has something else than text in it")
            options = dict(row.get("options", {}))
            manifest.targets[Specialisation.of(kernel, signature, options)] = set(targets)
        return manifest

    def __str__(self) -> str:
        rows = []
        for specialisation, targets in sorted(self.targets.items()):
            row: dict[str, Any] = {
                "kernel": specialisation.kernel,
                "signature": specialisation.signature,
            }
            if specialisation.options != "{}":
                row["options"] = json.loads(specialisation.options)
            row["targets"] = sorted(targets)
            rows.append(f"    {json.dumps(row, ensure_ascii=False)}")
        listed = ",\n".join(rows)
        return f'{{\n  "{HEAD}": {FORMAT},\n  "specialisations": [\n{listed}\n  ]\n}}\n'

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all; raises OSError."""
        unfinished = f"{os.fspath(path)}.{os.getpid()}.{threading.get_ident()}"
        try:
            Path(unfinished).write_text(str(self), encoding="utf-8")
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.remove(unfinished)
            raise


@final
class Recorder:
    """Adds to a manifest what this process uses, as soon as it does: however a process ends, what
    it used is written."""

    def __init__(self, path: str) -> None:
        self._path: Final = os.path.abspath(path)
        self._written: Final[set[tuple[Specialisation, str]]] = set()

    def add(self, specialisation: Specialisation, target: str) -> None:
        """Write a use of a kernel, unless it is written.

        Raises:
            ArgumentValueError: the file cannot be written, or is no manifest.
        """
        use = (specialisation, target)
        if use in self._written:
            return
        try:
            with _locked(f"{self._path}.lock"):
                manifest = Manifest.read(self._path) if os.path.exists(self._path) else Manifest()
                if target not in manifest.targets.get(specialisation, ()):
                    manifest.add(*use)
                    manifest.write(self._path)
        except OSError as error:
            raise ArgumentValueError(
                f"the manifest {self._path} cannot be written: {error}",
                mend="set KHALJIT_RECORD to a file in a directory of yours",
            ) from None
        self._written.add(use)


_RECORDERS: Final[dict[str, Recorder]] = {}


def recorder() -> Recorder:
    """Of the file that ``KHALJIT_RECORD`` names."""
    path = os.environ["KHALJIT_RECORD"]
    return _RECORDERS.setdefault(path, Recorder(path))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a lock among processes; the file stays behind, since deleting it would be a race."""
    with open(path, "ab") as file:
        _lock(file)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
