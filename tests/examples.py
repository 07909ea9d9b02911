"""The example programs as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["EXAMPLES", "load"]

EXAMPLES: Final = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def load(name: str) -> ModuleType:
    """An example by its file's name, imported anew."""
    path = next(path for path in EXAMPLES if path.stem == name)
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
