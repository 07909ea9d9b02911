"""Rewritten functions outlive their process: what is kept, told apart, and not believed."""

from __future__ import annotations

import importlib.util
import linecache
import marshal
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit import compiler, keeping
from khaljit.backends.base import Device
from khaljit.cache.files import Files
from khaljit.cache.memos import Memos
from khaljit.generators import RUNNING, Sources
from khaljit.keeping import REWRITTEN
from khaljit.tracer import rewrite as rewriting
from khaljit.tracer.identity import Identity, codes, identify
from khaljit.tracer.rewrite import Rewritten, rewrite
from khaljit.tracer.syntax import functions, source

SOURCE = """\
import khaljit as kj

LIMIT = 3


def helper(x, names=("a", "b")):
    total = x
    for k in range(LIMIT):
        total = total + k if x > 0 and "a" in {"a", "b", "c"} else total - k
    return total


class Table:
    def __init__(self, size):
        self.size = size

    @kj.jit
    def fill(self, a):
        i = kj.global_id(0)
        if i < a.size:
            a[i] = self.bounded(i)

    def bounded(self, i):
        return i if i < self.size else -1


def scaled(factor):
    @kj.jit
    def kernel(a):
        def inner(x):
            if x < 0:
                return -x
            return x * factor

        i = kj.global_id(0)
        if i >= a.size:
            return
        a[i] = inner(a[i])
        assert a[i] >= 0, "inner"

    return kernel


@kj.jit
def kernel(a):
    i = kj.global_id(0)
    if i < a.size:
        a[i] = helper(a[i])


squared = kj.jit(lambda a: a.__setitem__(kj.global_id(0), a[0] if a[0] > 9 else 7))


@kj.jit
def wrong(a):
    if a[0] > 0:
        a[0] = a.length


@kj.jit
def refused(a):
    for k in range(2):
        with open("file"):
            a[0] = k
"""


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [one for one in os.environ if one.startswith("KHALJIT_CACHE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "cache"))
    begin()
    yield
    begin()


def begin() -> None:
    """Forget what is in memory, as a new process would know nothing of it."""
    compiler.store.cache_clear()
    rewriting._CACHE.clear()
    linecache.clearcache()


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that are rewritten, as it happens."""
    names: list[str] = []
    real = functions.rewritten

    def noted(original: FunctionType) -> Any:
        names.append(original.__name__)
        return real(original)

    monkeypatch.setattr(functions, "rewritten", noted)
    return names


def written(path: Path, text: str) -> Path:
    """A source file that is older than this process."""
    path.write_text(text)
    os.utime(path, (1000, 1000))
    return path


def loaded(path: Path) -> ModuleType:
    """A module as a new process has it."""
    begin()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    return module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "kernels_of_a_test.py", SOURCE)


def memos() -> Memos:
    found = compiler.store().memos
    assert found is not None
    return found


def files() -> list[Path]:
    return [Path(memos().files.root) / name for name, _ in memos().files.all()]


def results(module: ModuleType) -> list[list[float]]:
    """What the kernels of `SOURCE` compute."""
    found = []
    for kernel in (module.kernel, module.Table(2).fill, module.scaled(2.0), module.squared):
        a = np.array([4, -4, 0.5, 3], np.float32)
        kernel[1 if kernel is module.squared else 4](a)
        found.append(a.tolist())
    return found


EXPECTED = [[7, -7, 3.5, 6], [0, 1, -1, -1], [8, 4, 1, 6], [7, -4, 0.5, 3]]


def test_a_second_process_rewrites_nothing_on_any_device(
    device: Device, path: Path, rewrites: list[str]
) -> None:
    """Helpers, lambdas, closures, methods, and functions inside others."""
    assert results(loaded(path)) == EXPECTED
    assert {*rewrites} == {"kernel", "helper", "fill", "bounded", "<lambda>"}
    rewrites.clear()
    module = loaded(path)
    assert results(module) == EXPECTED
    assert rewrites == []
    vars(module)["LIMIT"] = 2  # its guard is the rewritten code's
    a = np.array([4], np.float32)
    module.kernel[1](a)
    assert a[0] == 5


SCRIPT = """
import ast, builtins, linecache, sys
import numpy as np
import khaljit as kj
sys.path.insert(0, {folder!r})
import kernels_of_a_test as module

def forbidden(*args, **kwargs):
    raise AssertionError("source is read")

if "warm" in sys.argv:
    ast.parse = ast.walk = linecache.getlines = forbidden
    builtins.compile = lambda text, file, *args, real=compile, **kwargs: (
        forbidden() if "kernels_of" in str(file) else real(text, file, *args, **kwargs)
    )
for kernel in (module.kernel, module.Table(2).fill, module.scaled(2.0)):
    a = np.array([4, -4, 0.5, 3], np.float32)
    kernel[4](a)
    print(a.tolist())
print(any(name.startswith("khaljit.tracer.syntax.") for name in sys.modules))
"""


def run(path: Path, *arguments: str, **environment: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT.format(folder=str(path.parent)), *arguments]
    environment = {**os.environ, "KHALJIT_DEVICE": "cpu", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_warm_process_parses_nothing_and_does_not_load_what_would(path: Path) -> None:
    expected = [str(one) for one in np.array(EXPECTED[:3]).tolist()]
    assert run(path, PYTHONHASHSEED="1") == [*expected, "True"]
    for seed in ("1", "2", "3"):  # of which the order in a set of names depends
        assert run(path, "warm", PYTHONHASHSEED=seed) == [*expected, "False"]


def test_two_processes_that_start_at_once_do_no_harm_to_each_other(path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT.format(folder=str(path.parent))]
    environment = {**os.environ, "KHALJIT_DEVICE": "cpu"}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    first, second = (one.communicate()[0].splitlines()[:-1] for one in both)
    assert first == second == run(path, "warm")[:-1]


def test_errors_are_the_same_cold_and_warm(path: Path, rewrites: list[str]) -> None:
    """NVIDIA/warp#1711."""

    def told() -> str:
        with pytest.raises(kj.TraceError) as caught:
            loaded(path).wrong.trace("f32[:]")
        assert caught.value.at is not None
        return f"{caught.value}\n{caught.value.at.excerpt()}"

    cold = told()
    assert rewrites == ["wrong"]
    assert told() == cold
    assert rewrites == ["wrong"]
    assert cold.endswith("    a[0] = a.length\n           ^^^^^^^^")
    assert f"{path}:{SOURCE[: SOURCE.index('a.length')].count(chr(10)) + 1}" in cold


def test_what_cannot_be_rewritten_is_not_kept(path: Path) -> None:
    def told() -> str:
        with pytest.raises(kj.TraceError, match="`with` cannot be recorded") as caught:
            loaded(path).refused.trace("f32[:]")
        return str(caught.value)

    assert told() == told()
    assert files() == []


# -- what tells functions apart --------------------------------------------------------------------


def example(a: Any, *, b: Any = 1) -> Any:
    return [a + k if k in {"x", "y"} else 1.5 for k in (b, -0.0)]


DERIVED = {
    "co_nlocals": "the number of the variables",
    "co_stacksize": "the compiler finds it in the code",
    "co_lnotab": "the line table, as it was of old",
}
PARTS = [
    name
    for name in dir(CodeType)
    if name.startswith("co_") and not callable(getattr(CodeType, name)) and name not in DERIVED
]


@pytest.mark.parametrize("name", PARTS)
def test_all_that_stands_in_a_code_object_is_in_its_identity(name: str) -> None:
    """AdaptiveCpp/AdaptiveCpp#2028, numba/numba#6093: two functions, one entry."""

    def identity(**changed: Any) -> Identity:
        parts = {part: getattr(example.__code__, part) for part in PARTS}
        found = identify(SimpleNamespace(**{**parts, **changed}))  # type: ignore[arg-type]
        assert found is not None
        return found

    value = getattr(example.__code__, name)
    match value:
        case int():
            changed: Any = value + 1
        case str() if name == "co_filename":
            changed = os.path.join(os.path.dirname(value), ".", os.path.basename(value))
        case str():
            changed = value + "2"
        case bytes():
            changed = value + b"2"
        case tuple():
            changed = (*value, "2")
    other = identity(**{name: changed})
    assert other.code != identity().code == identify(example.__code__).code  # type: ignore[union-attr]
    assert other.text == identity().text


def one_of(text: str) -> CodeType:
    return next(
        one for one in compile(text, __file__, "exec").co_consts if isinstance(one, CodeType)
    )


@pytest.mark.parametrize(
    "pair",
    [
        ("def f(): return 1", "def f(): return True"),
        ("def f(): return 1.", "def f(): return 10"),
        ("def f(): return 0.0", "def f(): return 0j "),
        ("def f(): return 'a'", "def f(): return  b''"),
        ("def f(x): return x in {'a', 1}", "def f(x): return x in {'a', '1'}"),
        ("def f(x): return x in {'a', 'b'}", "def f(x): return x in ['a', 'b']"),
        ("def f(): return lambda: 1", "def f(): return lambda: 2"),
        ("def f(): return lambda: 1", "def f(): return  lambda: 1"),
        ("def f(a): return lambda: a", "def f(b): return lambda: b"),
        ("def f(): return 1", "\ndef f(): return 1"),
        ("def f(): return 1", "def f():  return 1"),
    ],
)
def test_code_that_differs_has_another_identity(pair: tuple[str, str]) -> None:
    one, other = (identify(one_of(text)) for text in pair)
    assert one is not None
    assert other is not None
    assert one.code != other.code


def test_the_identity_is_the_same_for_every_copy_of_the_code() -> None:
    code = example.__code__
    for _ in range(100):
        example(1)  # Python specialises the code in place
    copies = [marshal.loads(marshal.dumps(code, version)) for version in (0, 2, 4)]
    assert {one.code for one in map(identify, [code, *copies]) if one} == {identify(code).code}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "edit",
    [
        ("total = total + k", "total = total * k"),
        ("total = x", "total = 9"),
        ("LIMIT = 3\n", "LIMIT = 3\n\n"),
        ("    total = x", "    total =  x"),
        ("factor", "faktor"),
        ("    total = x\n", "    total = x  # that\n"),
    ],
)
def test_an_edited_file_is_rewritten_again(
    edit: tuple[str, str], path: Path, rewrites: list[str]
) -> None:
    """numba/numba#9483, numba/numba#9316: not even a comment's edit is guessed at."""
    before = results(loaded(path))
    rewrites.clear()
    written(path, SOURCE.replace(*edit))
    after = results(loaded(path))
    assert {*rewrites} == {"kernel", "helper", "fill", "bounded", "<lambda>"}
    assert (after != before) == (edit[1] in ("total = total * k", "total = 9"))
    rewrites.clear()
    written(path, SOURCE)
    assert results(loaded(path)) == before
    assert rewrites == []


def test_equal_functions_of_two_files_have_their_own(tmp_path: Path, rewrites: list[str]) -> None:
    """Their errors are in different places."""
    for name in ("one.py", "other.py"):
        with pytest.raises(kj.TraceError) as caught:
            loaded(written(tmp_path / name, SOURCE)).wrong.trace("f32[:]")
        assert caught.value.at is not None
        assert caught.value.at.file == str(tmp_path / name)
    assert rewrites == ["wrong", "wrong"]


MODES: tuple[list[str], ...] = ([], ["-O"], ["-OO"], ["-X", "no_debug_ranges"])


def test_code_is_for_the_python_that_made_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: list[str]
) -> None:
    """Its version, whether it drops asserts, whether it knows columns."""
    script = "from khaljit import keeping; print(keeping._PYTHON)"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    told = {
        subprocess.check_output([sys.executable, *mode, "-c", script], env=environment)
        for mode in MODES
    }
    assert len(told) == len(MODES)
    assert sys.version.encode()[:6] in keeping._PYTHON
    loaded(path).kernel.trace("f32[:]")
    monkeypatch.setattr(keeping, "_PYTHON", b"another")
    rewrites.clear()
    loaded(path).kernel.trace("f32[:]")
    assert rewrites == ["kernel", "helper"]


# -- what is not believed --------------------------------------------------------------------------


def kept(path: Path) -> tuple[Identity, Path]:
    """A function that is kept, and the file which it is in."""
    module = loaded(path)
    assert rewrite(module.helper, REWRITTEN) is not None
    identity = identify(module.helper.__code__)
    assert identity is not None
    (file,) = files()
    return identity, file


def test_every_changed_byte_is_seen_before_anything_is_made_of_it(path: Path) -> None:
    """`marshal` believes what it reads."""
    identity, file = kept(path)
    data = file.read_bytes()
    assert REWRITTEN.get(identity) is not None
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        assert REWRITTEN.get(identity) is None, f"byte {place}"
    for length in range(0, len(data), 7):
        file.write_bytes(data[:length])
        assert REWRITTEN.get(identity) is None, f"cut at {length}"


def test_what_is_damaged_is_moved_away_and_made_again(path: Path, rewrites: list[str]) -> None:
    _, file = kept(path)
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    rewrites.clear()
    module = loaded(path)
    assert rewrite(module.helper, REWRITTEN) is not None
    assert rewrites == ["helper"]
    assert not file.exists()
    (again,) = files()
    assert again.read_bytes() == good


def test_bytes_of_others_are_never_taken_for_code(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, file = kept(path)
    data = file.read_bytes()
    file.write_bytes(b"\xe3" * 1000)  # a code object, says marshal
    assert REWRITTEN.get(identity) is None
    file.write_bytes(data)
    if hasattr(os, "geteuid"):
        file.chmod(0o620)
        assert REWRITTEN.get(identity) is None, "others can write to it"
        file.chmod(0o600)
        assert REWRITTEN.get(identity) is not None
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert (REWRITTEN.get(identity) is None) == (os.stat(file).st_uid not in (0, 12345))
        monkeypatch.undo()
    other = Identity(identity.code + b" ", identity.text)
    name = keeping._key(other)
    beside = Path(memos().files.root) / name[:2] / f"{name[2:]}.{file.name.split('.', 1)[1]}"
    beside.parent.mkdir(exist_ok=True)
    beside.write_bytes(data)
    assert REWRITTEN.get(other) is None, "another function's"


def test_a_file_that_was_edited_since_the_process_began_is_left_out(
    path: Path, rewrites: list[str]
) -> None:
    kept(path)
    os.utime(path)
    module = loaded(path)
    assert identify(module.helper.__code__) is None
    rewrites.clear()
    rewrite(module.helper, REWRITTEN)
    assert rewrites == ["helper"]
    assert len(files()) == 1


def test_lines_that_are_not_the_files_are_not_kept_under_it(path: Path) -> None:
    """It was replaced by one as old, after its lines were read."""
    module = loaded(path)
    linecache.getlines(str(path))
    written(path, SOURCE.replace("total = x", "total = 9"))
    rewrite(module.helper, REWRITTEN)
    assert files() == []


@pytest.mark.parametrize("text", ["x = 'é'", "# coding: latin-1\nx = 'é'", "\ufeffx = 1\r\n\r\n"])
def test_a_files_lines_are_its_bytes_in_its_encoding(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text.py"
    data = text.encode("latin-1" if "latin-1" in text else "utf-8")
    path.write_bytes(data)
    assert source.is_read_from(str(path), data)
    assert not source.is_read_from(str(path), data + b"\n\n")
    assert not source.is_read_from(str(path), b"# coding: nothing\n")
    assert not source.is_read_from(str(path), b"\xff")


def test_source_in_no_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    Path("<string>").write_text("def f(): pass")
    os.utime("<string>", (1000, 1000))
    for name in (
        "<string>",
        "<ipython-input-1>",
        str(tmp_path / "gone.py"),
        "a\0b",
        os.devnull,
        str(tmp_path),
    ):
        exec(compile("def f(): pass", "x", "exec"), scope)
        code = scope["f"].__code__.replace(co_filename=name)
        assert identify(code) is None, name


# -- where it cannot be kept -----------------------------------------------------------------------


def test_nothing_is_kept_where_the_cache_is_off(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    for _ in range(2):
        module = loaded(path)
        assert rewrite(module.helper, REWRITTEN) is not None
    assert not (tmp_path / "cache").exists()


def test_a_place_that_takes_nothing_is_silently_done_without(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only, full, over quota: warnings are errors here, and so is a second attempt."""
    attempts: list[str] = []

    def full(self: Files, identity: str, data: bytes) -> str:
        attempts.append(identity)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, "publish", full)
    monkeypatch.setenv("KHALJIT_CACHE_STRICT", "1")
    module = loaded(path)
    assert rewrite(module.helper, REWRITTEN) is not None
    assert rewrite(module.wrong.__wrapped__, REWRITTEN) is not None
    assert len(attempts) == 1


def test_what_an_edited_rewriter_makes_is_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sources, "have_changed", lambda self, folder="": folder == "tracer/syntax")
    rewrite(loaded(path).helper, REWRITTEN)
    assert files() == []


def test_another_rewriter_makes_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: list[str]
) -> None:
    """NVIDIA/warp#1260."""
    kept(path)
    monkeypatch.setattr(keeping, "generators", lambda: b"another")
    rewrites.clear()
    rewrite(loaded(path).helper, REWRITTEN)
    assert rewrites == ["helper"]
    assert len(files()) == 2


def test_the_sources_of_one_folder_are_told_to_have_changed(tmp_path: Path) -> None:
    for name in ("tracer/syntax", "codegen", "backends"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "module.py").write_text("1")
    seen = Sources(str(tmp_path))
    (tmp_path / "codegen" / "module.py").write_text("22")
    assert seen.have_changed()
    assert not seen.have_changed("tracer/syntax")
    (tmp_path / "tracer" / "syntax" / "module.py").write_text("22")
    assert seen.have_changed("tracer/syntax")
    assert not RUNNING.have_changed("tracer/syntax")
    frozen = Sources(str(tmp_path / "nowhere"))
    assert not frozen.have_changed("tracer/syntax")


def test_threads_that_rewrite_the_same_at_once_all_get_it(path: Path) -> None:
    module = loaded(path)
    every = (module.helper, module.Table.bounded)
    found: list[Rewritten | None] = []

    def work() -> None:
        for function in every:
            found.append(rewrite(function, REWRITTEN))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 16
    assert None not in found
    assert len({one.code for one in found if one}) == 2
    begin()
    for function in every:
        identity = identify(function.__code__)
        assert identity is not None
        assert REWRITTEN.get(identity) is not None


def test_code_that_was_kept_is_known_as_rewritten_with_all_that_is_in_it(path: Path) -> None:
    kept(path)
    found = rewrite(loaded(path).helper, REWRITTEN)
    assert found is not None
    assert len([*codes(found.code)]) > 1
    assert all(map(rewriting.is_rewritten, codes(found.code)))


FORK = """
import os, sys
sys.path.insert(0, {folder!r})
import khaljit as kj
import kernels_of_a_test as module
module.kernel.trace("f32[:]")
child = os.fork()
if child == 0:
    module.Table(2).fill.trace("f32[:]")
else:
    assert os.waitpid(child, 0)[1] == 0
    print(kj.cache_info().memos)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_keeps_too(path: Path) -> None:
    command = [sys.executable, "-c", FORK.format(folder=str(path.parent))]
    assert subprocess.check_output(command, text=True) == "4\n"
