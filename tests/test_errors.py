"""What khaljit says: every kind of TraceError by its whole message, and errors of a call."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import khaljit as kj
from tests import wrong_kernels

GOLDEN = Path(__file__).parent / "golden" / "errors"
NAMES = [
    name
    for name, value in vars(wrong_kernels).items()
    if inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["a", "n", "u"]
]


def _message(error: kj.KhaljitError) -> str:
    text = re.sub(r"[^\s]*wrong_kernels\.py:\d+", "wrong_kernels.py:LINE", str(error))
    return re.sub(r"at line \d+", "at line LINE", text) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_explained(name: str, request: pytest.FixtureRequest) -> None:
    kernel = kj.jit(workgroup=8)(getattr(wrong_kernels, name))
    arrays = [np.zeros(8, dtype) for dtype in (np.float32, np.int32, np.uint32)]
    with kj.use("interpreter"), pytest.raises(kj.TraceError) as caught:
        kernel[8](*arrays)
    assert caught.value.at is not None
    assert caught.value.mend is not None
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(_message(caught.value))
    assert _message(caught.value) == path.read_text()


def test_every_golden_message_has_its_kernel() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(NAMES)


def test_a_failed_recording_can_be_tried_again_and_fails_the_same() -> None:
    """NVIDIA/warp#1713."""
    kernel = kj.jit(wrong_kernels.signed_with_unsigned)
    arrays = [np.zeros(8, dtype) for dtype in (np.float32, np.int32, np.uint32)]
    messages = []
    for _ in range(2):
        with pytest.raises(kj.TraceError) as caught:
            kernel[8](*arrays)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_truth_of_a_value_without_source_is_explained() -> None:
    scope: dict[str, Any] = {"kj": kj}
    exec("def f(a):\n  if a[0] > 1:\n    a[0] = 2.0", scope)
    with pytest.raises(kj.TraceError, match="truth of a run-time value") as caught:
        kj.jit(scope["f"])[1](np.zeros(1, np.float32))
    assert caught.value.at is not None
    assert caught.value.at.line == 2
    assert "kj.select" in (caught.value.mend or "")


def test_values_are_dead_after_the_recording() -> None:
    leaked: list[Any] = []

    @kj.jit
    def leak(a: Any) -> None:
        leaked.append(a[0])

    leak[1](np.zeros(1, np.float32))
    with pytest.raises(kj.TraceError, match="used after the kernel was recorded"):
        leaked[0] + 1


def test_kernel_functions_outside_a_kernel_say_so() -> None:
    for call in (lambda: kj.global_id(0), kj.barrier, lambda: kj.sin(1.0)):
        with pytest.raises(kj.TraceError, match="only inside a kernel"):
            call()


def test_an_unfilled_closure_cell_is_named() -> None:
    """NVIDIA/warp#913."""

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = later

    with pytest.raises(kj.TraceError, match=r"'later' of .*kernel has no value yet"):
        kernel[1](np.zeros(1, np.float32))
    later = 1


def test_a_kernel_called_in_a_kernel_is_explained() -> None:
    @kj.jit
    def calls(x: Any, y: Any) -> None:
        saxpy(x, y, 1)

    @kj.jit
    def launches(x: Any, y: Any) -> None:
        saxpy[8](x, y, 1)

    for kernel in (calls, launches):
        with pytest.raises(kj.TraceError, match="kernel saxpy is called in a kernel") as caught:
            kernel[8](X, Y)
        assert caught.value.at is not None
        assert caught.value.at.file == __file__


def test_too_deep_nesting_is_explained(tmp_path: Path) -> None:
    lines = [f"{'    ' * (k + 1)}if a[{k}] > 0:" for k in range(30)]
    path = tmp_path / "deep.py"
    path.write_text("\n".join(["def f(a):", *lines, "    " * 31 + "a[0] = 1"]) + "\n")
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    with pytest.raises(kj.TraceError, match="nests too many branches") as caught:
        kj.jit(scope["f"])[1](X)
    assert caught.value.at is not None
    assert "helper function" in (caught.value.mend or "")


def test_mutual_recursion_shows_the_chain() -> None:
    """numba/numba#7697."""

    def ping(x: Any) -> Any:
        return pong(x)

    def pong(x: Any) -> Any:
        return ping(x)

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = ping(a[0])

    with pytest.raises(kj.TraceError, match="ping -> pong -> ping"):
        kernel[1](np.zeros(1, np.float32))


def test_a_function_that_makes_itself_anew_nests_too_deeply() -> None:
    def again(x: Any) -> Any:
        def step(x: Any) -> Any:
            return again(x)

        return step(x)

    def fresh(depth: int) -> Any:
        return lambda x: fresh(depth + 1)(x)

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = again(a[0])

    @kj.jit
    def endless(a: Any) -> None:
        a[0] = fresh(0)(a[0])

    with pytest.raises(kj.TraceError, match="again -> step -> again"):
        kernel[1](np.zeros(1, np.float32))
    with pytest.raises(kj.TraceError):
        endless[1](np.zeros(1, np.float32))


def test_closures_of_one_code_may_call_each_other() -> None:
    def compose(first: Any, second: Any) -> Any:
        return lambda x: second(first(x))

    def increment(x: Any) -> Any:
        return x + 1.0

    twice = compose(increment, increment)
    four_times = compose(twice, twice)

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = four_times(a[0])

    a = np.zeros(1, np.float32)
    kernel[1](a)
    assert a[0] == 4


@kj.jit
def saxpy(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = a * x[i] + y[i]


@kj.jit
def numbers(out: kj.Array1[kj.i32], small: kj.u8, flag: kj.bool) -> None:
    out[0] = small


@kj.jit
def free(a: Any, b: Any) -> None:
    a[0] = b


async def waits(a: Any) -> None:
    a[0] = 1


# The calls below are wrong on purpose, which type checkers would see.
jit: Any = kj.jit
saxpy_: Any = saxpy
numbers_: Any = numbers
free_: Any = free
X, Y = np.zeros(8, np.float32), np.ones(8, np.float32)
I = np.zeros(8, np.int32)  # noqa: E741
READ_ONLY = np.zeros(8, np.float32)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(33, np.uint8)[1:].view(np.float32)
PACKED = np.zeros(8, np.dtype([("x", np.float32), ("tag", np.uint8)]))["x"]

CPU = kj.device("cpu")
F32: Any = kj.f32
CALLS: dict[str, tuple[Any, type[Exception], str]] = {
    "too few": (lambda: saxpy_[8](X, Y), TypeError, "missing a required argument: 'a'"),
    "too many": (lambda: saxpy_[8](X, Y, 1, 2), TypeError, "too many positional"),
    "keyword": (lambda: saxpy_[8](X, Y, b=1), TypeError, "missing a required argument"),
    "twice": (lambda: saxpy_[8](X, Y, 1, x=X), TypeError, "multiple values"),
    "dtype": (
        lambda: saxpy_[8](X.astype("f8"), Y, 1),
        TypeError,
        "kj.Array1[f32] and got an array of f64",
    ),
    "ndim": (lambda: saxpy_[8](X.reshape(2, 4), Y, 1), TypeError, "got an array with 2 axes"),
    "0-d": (lambda: saxpy_[8](np.float32(1), Y, 1), TypeError, "parameter x expects"),
    "list": (lambda: saxpy_[8]([1.0], Y, 1), TypeError, "got a list"),
    "none": (lambda: saxpy_[8](object(), Y, 1), TypeError, "got a object"),
    "swapped": (lambda: saxpy_[8](X.astype(">f4"), Y, 1), TypeError, "got a NumPy array of >f4"),
    "object": (lambda: saxpy_[8](X.astype(object), Y, 1), TypeError, "got a NumPy array of object"),
    "masked": (lambda: saxpy_[8](np.ma.masked_array(X), Y, 1), TypeError, "a masked array"),
    "read-only": (
        lambda: saxpy_[8](X, READ_ONLY, 1),
        ValueError,
        "writes parameter y, and got a read-only",
    ),
    "unaligned": (lambda: saxpy_[8](UNALIGNED, Y, 1), ValueError, "not aligned to 4 bytes"),
    "packed": (lambda: saxpy_[8](PACKED, Y, 1), ValueError, "no multiples of 4 bytes"),
    "overlap": (
        lambda: saxpy_[8](Y[1:], Y[:-1], 1),
        ValueError,
        "parameters x and y overlap in part",
    ),
    "array for number": (lambda: saxpy_[8](X, Y, X), TypeError, "parameter a expects f32"),
    "number for array": (
        lambda: saxpy_[8](1.0, Y, 1),
        TypeError,
        "parameter x expects kj.Array1[f32] and got the float 1.0",
    ),
    "string for number": (lambda: saxpy_[8](X, Y, "1"), TypeError, "got a str"),
    "large float": (lambda: saxpy_[8](X, Y, 1e300), OverflowError, "expects f32 and got 1e+300"),
    "out of range": (
        lambda: numbers_[1](I, 300, True),
        OverflowError,
        "expects u8 and got 300, which is not between 0 and 255",
    ),
    "negative": (lambda: numbers_[1](I, -1, True), OverflowError, "not between 0 and 255"),
    "float for int": (
        lambda: numbers_[1](I, 1.5, True),
        TypeError,
        "expects u8 and got the float 1.5",
    ),
    "nan for int": (lambda: numbers_[1](I, float("nan"), True), TypeError, "got the float nan"),
    "int for bool": (lambda: numbers_[1](I, 1, 2), TypeError, "expects bool and got the int 2"),
    "wide int": (lambda: free_[1](I, 2**40), OverflowError, "annotate the parameter (b: kj.i64)"),
    "complex": (lambda: free_[1](I, 1j), TypeError, "got a complex"),
    "dict": (lambda: free_[1](I, {}), TypeError, "got a dict"),
    "no grid": (lambda: saxpy_(X, Y, 1), TypeError, "write saxpy[n](...)"),
    "negative grid": (lambda: saxpy_[-1], ValueError, "the grid -1 is negative"),
    "float grid": (lambda: saxpy_[8.0], TypeError, "the grid 8.0 holds a float"),
    "quotient as grid": (lambda: saxpy_[8 / 2], TypeError, "divide with //"),
    "array as grid": (lambda: saxpy_[X], TypeError, "kernel[kj.over(a)]"),
    "list as grid": (lambda: saxpy_[[8]], TypeError, "a tuple of ints"),
    "bool grid": (lambda: saxpy_[True], TypeError, "holds a bool"),
    "long grid": (lambda: saxpy_[1, 2, 3, 4], ValueError, "has 4 axes"),
    "empty grid": (lambda: saxpy_[()], ValueError, "has 0 axes"),
    "huge grid": (lambda: saxpy_[2**70], ValueError, "is too large"),
    "string grid": (lambda: saxpy_["8"], TypeError, "holds a str"),
    "groups without size": (
        lambda: saxpy_[kj.Workgroups(2)],
        ValueError,
        "counts workgroups, and the backend chooses",
    ),
    "workgroup": (lambda: jit(workgroup=0)(lambda a: None), ValueError, "workgroup=0"),
    "workgroup axes": (
        lambda: jit(workgroup=(1, 2, 3, 4))(lambda a: None),
        ValueError,
        "up to three",
    ),
    "not a function": (lambda: jit(len), TypeError, "applied to <built-in function len>"),
    "not a keyword": (lambda: jit(3), TypeError, "name the argument: @kj.jit(workgroup=3)"),
    "signature": (lambda: jit("f32[:]"), TypeError, "@kj.jit(signatures=[...])"),
    "kernel of a kernel": (
        lambda: jit(saxpy_),
        TypeError,
        "is a kernel already: leave out one @kj.jit",
    ),
    "partial": (lambda: jit(functools.partial(max, 1)), TypeError, "kernel.with_options("),
    "async": (lambda: jit(waits), TypeError, "waits is async, and kernels are not"),
    "star": (lambda: jit(lambda *a: None)[1](X), TypeError, "takes *a"),
    "two stars": (lambda: jit(lambda **a: None)[1](a=X), TypeError, "takes **a"),
    "NumPy annotation": (lambda: _annotated(np.ndarray), TypeError, "write kj.Array, or"),
    "NumPy elements": (
        lambda: _annotated(npt.NDArray[np.int8]),
        TypeError,
        "write kj.Array[kj.i8]",
    ),
    "NumPy scalar": (lambda: _annotated(np.float32), TypeError, "write kj.f32"),
    "NumPy in array": (lambda: kj.Array1[np.uint8], TypeError, "write kj.u8"),
    "Numba's array": (lambda: F32[:], TypeError, "a parameter of a kernel, kj.Array1["),
    "constant": (lambda: _annotated(kj.Const[int], 2.5), TypeError, "kj.Const[int] and got the f"),
    "wider": (lambda: numbers_[1](I, 2**40, True), OverflowError, "wider type: small: kj.i64"),
    "complex array": (lambda: free_[1](X.astype(complex), 1), TypeError, "array.real.dtype"),
    "text array": (lambda: free_[1](np.array(["a"]), 1), TypeError, "the codes"),
    "bf16": (lambda: _annotated(kj.Array[kj.bf16], X), TypeError, "device.array(x, kj.bf16)"),
    "dtype of NumPy": (lambda: CPU.zeros(3, np.int64), TypeError, "write kj.i64"),
    "dtype as text": (lambda: CPU.array([1], "float16"), TypeError, "write kj.f16"),
    "shape as arguments": (lambda: CPU.zeros(3, 4), TypeError, "zeros((3, 4))"),
    "array of a device": (
        lambda: _annotated(kj.Array[kj.f32], CPU.zeros(3, kj.i32)),
        TypeError,
        "device.array(x, kj.f32)",
    ),
    "device kind": (lambda: kj.device("gpu"), ValueError, "no kind of device called 'gpu'"),
    "device number": (lambda: kj.device("cpu:3"), ValueError, "there is one cpu device"),
    "threads": (lambda: kj.device("cpu", threads=0), ValueError, "threads=0"),
}


def _annotated(annotation: Any, value: Any = X) -> None:
    """Launch a kernel whose parameter is annotated so."""

    def kernel(x: Any) -> None: ...

    kernel.__annotations__["x"] = annotation
    kj.jit(kernel)[1](value)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_explained_by_an_error_of_the_right_kind(name: str) -> None:
    call, kind, message = CALLS[name]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        call()
    assert isinstance(caught.value, kj.KhaljitError)
    assert "\n  mend: " in str(caught.value)


def test_wrong_calls_change_nothing_and_the_kernel_still_works() -> None:
    before = Y.copy()
    for name in ("too few", "overlap", "read-only", "dtype"):
        with pytest.raises(kj.KhaljitError):
            CALLS[name][0]()
    assert (before == Y).all()
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)
    saxpy[8](x, y, 2)
    assert (y == 3).all()


def test_kernels_are_pickled_by_name() -> None:
    """jax-ml/jax#5043."""
    again = pickle.loads(pickle.dumps(saxpy))
    assert again is saxpy


def test_mixing_devices_is_an_error() -> None:
    here, there = kj.device("cpu"), kj.device("interpreter")
    x, y = here.array(X), there.array(Y)
    with pytest.raises(ValueError, match="live on cpu and interpreter"):
        saxpy[8](x, y, 1)
    with pytest.raises(TypeError, match="parameter y got a NumPy array beside arrays on cpu"):
        saxpy[8](x, Y, 1)
