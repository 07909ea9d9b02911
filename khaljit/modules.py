"""What modules and scripts hold, by path: ``package.module:Class.name`` or ``file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from khaljit.tracer.errors import ArgumentValueError

__all__ = ["find", "load_module", "path_of"]


_SCRIPTS: Final[set[str]] = set()  # modules that were loaded from files


def load_module(name: str) -> ModuleType:
    """The module of a name, or of a Python file; imported if it was not.

    Raises:
        ArgumentValueError: there is none.
    """
    if name.endswith(".py"):
        return _load_file(Path(name))
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == name:  # python -m
        return sys.modules["__main__"]
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ArgumentValueError(
            f"there is no module {error.name}", mend="give a file: path/to/file.py"
        ) from None


def _load_file(path: Path) -> ModuleType:
    """A script as a module called like its file; what is under ``__main__`` does not run."""
    if not path.is_file():
        raise ArgumentValueError(f"there is no file {path}", mend="check the path")
    for name in ("__main__", path.stem):  # a program that runs is not to be run again
        loaded = sys.modules.get(name)
        if loaded is not None and _is_file_of(loaded, path):
            return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    _SCRIPTS.add(path.stem)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _is_file_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.exists(file) and os.path.samefile(file, path)


def find(path: str) -> Any:
    """What a path such as ``package.module:Class.name`` leads to.

    Raises:
        ArgumentValueError: nothing.
    """
    module_name, _, name = path.rpartition(":")
    if not module_name or not name:
        raise ArgumentValueError(
            f"{path!r} names nothing in a module", mend="write FILE.py:NAME or MODULE:NAME"
        )
    found: Any = load_module(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ArgumentValueError(
                f"{module_name} has no {name!r}", mend="check the name, which is case-sensitive"
            ) from None
    return found


def path_of(value: Any, same: Callable[[Any, Any], bool] = is_) -> str | None:
    """The path of a function, class or kernel; None where none leads to it.

    Args:
        same: whether what a path leads to is the value.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None:
        return None
    name = getattr(value, "__qualname__", None) or ""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None or not same(found, value):
        named = (name for name, one in vars(module).items() if same(one, value))
        name = next(named, "")
    return f"{_name_of(module)}:{name}" if name else None


def _name_of(module: ModuleType) -> str:
    """The name that other processes know a module by; of a script its path from here."""
    name = module.__name__
    spec = getattr(module, "__spec__", None)  # pdb gives its module none
    if name == "__main__" and spec is not None:  # python -m
        return str(spec.name)
    if name != "__main__" and name not in _SCRIPTS:
        return name
    file = Path(getattr(module, "__file__", None) or "__main__").resolve()
    here = Path.cwd()
    return (file.relative_to(here) if file.is_relative_to(here) else file).as_posix()
