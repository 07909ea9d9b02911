"""The package's layout: what is installed, who imports whom, and what importing loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import khaljit as kj

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"khaljit": "khaljit", "tracer": "khaljit.tracer", "codegen": "khaljit.codegen", "cache": "khaljit.cache"}  # fmt: skip  # noqa: E501


def _modules() -> dict[str, Path]:
    """Every module of the product by its installed name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if folder == "khaljit" and path.relative_to(ROOT).parts[1] in FOLDERS:
                continue  # the links
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def test_the_package_list_is_the_tree() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(settings["packages"]) == packages
    assert settings["package-dir"] == {package: folder for folder, package in FOLDERS.items()}


def test_the_links_lead_to_the_folders() -> None:
    for folder in ("tracer", "codegen", "cache"):
        assert (ROOT / "khaljit" / folder).resolve() == ROOT / folder


def test_nothing_else_stands_at_the_top_level() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("no git checkout here")
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    folders = {*FOLDERS, "tests", "benchmarks", "docs", "examples", ".ci"}
    files = {"pyproject.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE", ".gitignore"}
    assert top <= folders | files | {".pre-commit-config.yaml"}


def _imports(path: Path, *, types: bool = True) -> set[str]:
    """What a module imports; ``types`` says whether what only type checkers see counts."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    if not types:
        tree.body = [
            node
            for node in tree.body
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _package(name: str) -> str:
    """The part of khaljit that a module belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else parts[0]


ALLOWED = {
    "khaljit": {"khaljit", "tracer", "codegen", "cache"},
    "codegen": {"codegen", "tracer"},
    "tracer": {"tracer"},
    "cache": {"cache"},
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name: str) -> None:
    for imported in _imports(MODULES[name]):
        if imported.startswith("khaljit"):
            assert _package(imported) in ALLOWED[_package(name)], f"{name} imports {imported}"


def _order() -> dict[str, int]:
    """The place of each module and folder of the tracer in the order that the map gives."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(r"Inside the tracer, left before right:\n\n(.*?)\n\n", page, re.DOTALL)
    assert found is not None
    steps = " ".join(found[1].split()).split(" - ")
    return {name: place for place, step in enumerate(steps) for name in step.split(", ")}


def _inside_tracer(name: str) -> str:
    return (*name.split("."), "", "")[2]


def test_the_map_lists_the_tracer() -> None:
    present = {_inside_tracer(name) for name in MODULES if _package(name) == "tracer"}
    assert set(_order()) == present - {""}


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("khaljit.tracer.")))
def test_the_tracer_imports_in_the_order_of_the_map(name: str) -> None:
    order, own = _order(), _inside_tracer(name)
    for imported in _imports(MODULES[name], types=False):
        other = _inside_tracer(imported)
        if imported.startswith("khaljit.tracer.") and other != own:
            assert order[other] < order[own], f"{name} imports {imported}"


# Only these modules may import these packages.
HEAVY = {
    "llvmlite": {"khaljit.codegen.llvm.assemble"},
    "diskcache": {"khaljit.cache.index"},
    "fsspec": {"khaljit.cache.remote"},
    "scipy": {"khaljit.demo"},
    "skimage": {"khaljit.demo"},
    "PIL": {"khaljit.demo"},
    "typer": {"khaljit.cli"},  # and what is in it
    "wgpu": {"khaljit.backends.webgpu"},
    "cuda": {"khaljit.backends.cuda"},
    "rich": {"khaljit.cli", "khaljit.demo"},
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_heavy_packages_have_one_door(name: str) -> None:
    roots = {imported.split(".")[0] for imported in _imports(MODULES[name])}
    for package, doors in HEAVY.items():
        assert package not in roots or {name, name.rpartition(".")[0]} & doors
    if _package(name) == "tracer":
        others = roots - {"khaljit", "numpy", "__future__"}
        assert others <= set(sys.stdlib_module_names)
    if _package(name) == "cache":
        others = roots - {"khaljit", "diskcache", "fsspec", "xxhash", "__future__"}
        assert others <= set(sys.stdlib_module_names)


def test_importing_khaljit_loads_no_heavy_package() -> None:
    code = "import khaljit, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "numpy" in loaded
    assert not loaded & {
        "llvmlite",
        "wgpu",
        "cuda",
        "typer",
        "rich",
        "diskcache",
        "fsspec",
        "scipy",
    }


def test_the_types_for_users_name_what_the_package_has() -> None:
    tree = ast.parse((ROOT / "khaljit" / "__init__.pyi").read_text())
    typed = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            typed.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            typed.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            typed.update(alias.name for alias in node.names if alias.asname == alias.name)
    public = {name for name in typed if not name.startswith("_")}
    assert public - {"Kernel"} == set(kj.__all__)
    assert all(hasattr(kj, name) for name in kj.__all__)


def test_no_name_that_comes_late_is_a_modules() -> None:
    """Importing a module puts it in its package under its name, where a name would be found."""
    modules = {name.removeprefix("khaljit.").split(".")[0] for name in MODULES}
    assert not {*kj.__all__} & modules - {"devices", "jit"}


def test_public_functions_have_docstrings() -> None:
    for name in kj.__all__:
        found = getattr(kj, name)
        if callable(found):
            assert found.__doc__, name
