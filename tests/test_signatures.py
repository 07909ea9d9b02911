"""Signatures as text: what is written of a call is read as the very same signature."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import khaljit as kj
from khaljit.arguments import Parameters
from khaljit.entries import Group, Signature, array_entry, const_entry, scalar_entry
from khaljit.jit import Kernel
from khaljit.signature_text import write_signature
from khaljit.signatures import parse_signature, split_signature
from khaljit.tracer.errors import ArgumentTypeError


class Mode(Enum):
    FAST = 1
    EXACT = 2


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Body:
    place: kj.Array1[kj.f32]
    mass: kj.f32


def double(x: Any) -> Any:
    return x + x


def no_annotations(a: Any, b: Any, c: Any) -> None: ...


def annotated(a: Body, b: kj.Const[tuple], c: kj.Const[kj.i32]) -> None: ...  # type: ignore[type-arg]


def vectors(a: kj.Array1[kj.vec3], b: kj.vec2, c: kj.Array2[kj.f64]) -> None: ...


ONES = np.ones(4, np.float32)
SQUARE = np.ones((4, 4), np.float64)
BYTES = np.zeros(33, np.uint8)


def parameters_of(function: Callable[..., None]) -> Parameters:
    assert isinstance(function, FunctionType)
    return Parameters.of(function, "kernel")


def signature_of(function: Callable[..., None], args: tuple[Any, ...], grid: int = 1) -> Signature:
    parameters = parameters_of(function)
    return parameters.read(parameters.bind(args, {})).signature(grid)


def test_parameters_are_those_that_a_call_is_bound_to() -> None:
    def plain(a: object, b: object = 2) -> None: ...

    def apart(a: object, /, *, b: object = 2) -> None: ...

    @functools.wraps(plain)
    def other(*args: object) -> None: ...

    for function in (plain, apart, other):
        found = parameters_of(function)
        assert found.names == ("a", "b")
        assert found.bind((1,), {}) == (1, 2)
        assert found.bind((1,), {"b": 3}) == (1, 3)
        assert found.signature.parameters == inspect.signature(function).parameters
        assert found.are_plain == (function is not apart)
    with pytest.raises(ArgumentTypeError, match=r"kernel kernel takes \*rest"):
        parameters_of(lambda *rest: None)


HERE = __name__
CALLS: list[tuple[Callable[..., None], tuple[Any, ...], str]] = [
    (no_annotations, (ONES, 2, 3.0), "f32[:], i32, f32"),
    (no_annotations, (ONES, ONES.copy(), True), "f32[n], f32[n], bool"),
    (no_annotations, (ONES, ONES, np.int8(3)), "f32[n] as v0, f32[n] as v0, i8"),
    (no_annotations, (ONES, SQUARE, SQUARE.T.copy()), "f32[:], f64[n, m], f64[n, m]"),
    (no_annotations, (SQUARE[:, ::2], SQUARE[:, 1::2], 1), "f64[n, m::], f64[n, m::], i32"),
    (no_annotations, (SQUARE[:, ::2], None, 1), "f64[:, ::], None, i32"),
    (no_annotations, (np.array(1.0), np.array(2.0), np.array(3)), "f64[], f64[], i64[]"),
    (no_annotations, ((ONES, 1), (2.0,), ()), "(f32[:], i32), (f32,), ()"),
    (
        no_annotations,
        (Pair(ONES, ONES.copy()), "te,xt; (", kj.f16),
        f"{HERE}:Pair(f32[n], f32[n]), 'te,xt; (', =f16",
    ),
    (
        no_annotations,
        (Mode.FAST, double, np.sqrt),
        f"={HERE}:Mode.FAST, ={HERE}:double, =numpy:sqrt",
    ),
    (
        annotated,
        (Body(ONES, 2.0), (1, "two", None), 3),
        f"{HERE}:Body(f32[:], f32), =(1, 'two', None), =i32(3)",
    ),
    (
        annotated,
        (Body(ONES, 2.0), (0.5, (kj.f32,)), -3),
        f"{HERE}:Body(f32[:], f32), =(0.5, (f32,)), =i32(-3)",
    ),
    (
        annotated,
        (Body(ONES, 2.0), (math.inf, -math.inf), 3),
        f"{HERE}:Body(f32[:], f32), =(inf, -inf), =i32(3)",
    ),
    (vectors, (np.ones((5, 3), np.float32), (1.0, 2.0), SQUARE), "vec3[:], vec2, f64[:, :]"),
    (
        no_annotations,
        (
            kj.vec(4, kj.i8)(1, 2, 3, 4),
            kj.mat3.from_diagonal(kj.vec3(1, 2, 3)),
            kj.quat(0, 0, 0, 1),
        ),
        "vec(4, i8), mat3, quat",
    ),
    (
        no_annotations,
        (kj.device("cpu").zeros(3, kj.mat(2, 3, kj.f64)), kj.device("cpu").zeros(2, kj.pose3), 1),
        "mat(2, 3, f64)[:], pose3[:], i32",
    ),
]


@pytest.mark.parametrize(("function", "args", "text"), CALLS)
def test_what_is_written_of_a_call_is_read_again(
    function: Callable[..., None], args: tuple[Any, ...], text: str
) -> None:
    signature = signature_of(function, args)
    # where NumPy puts arrays is its own business
    written = write_signature(signature)
    assert written.replace(" unaligned", "") == text.replace(" unaligned", "")
    parameters = parameters_of(function)
    assert parse_signature(written, parameters) == signature


KINDS = [kj.f32, kj.u8, kj.bf16, kj.bool, kj.vec3, kj.ivec2, kj.vec(3, kj.i8), kj.mat4, kj.quat]
CONSTANTS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.sampled_from([kj.f16, kj.vec2, Mode.EXACT, double, np.int8(-3), np.float32(0.1)]),
    ),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=6,
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[object, ...]:
    """An array's entry, and which shape and view it shares with others that share them."""
    kind, ndim = draw(st.sampled_from(KINDS)), draw(st.integers(0, 4))
    contiguous, aligned = draw(st.booleans()) or not ndim, draw(st.booleans())
    entry = array_entry(kind, ndim, contiguous, aligned)
    shape = (ndim, draw(st.integers(0, 2)) if ndim else 0)
    return entry, shape, (entry, shape, draw(st.integers(0, 1)))


ITEMS = st.recursive(
    st.one_of(
        arrays(),
        st.sampled_from(KINDS).map(scalar_entry),
        CONSTANTS.map(lambda value: const_entry((value,) if type(value) is tuple else value)),
    ),
    lambda parts: st.lists(parts, max_size=3),
    max_leaves=6,
)


def _completed(item: Any, places: list[tuple[object, ...]]) -> object:
    """The entry of a drawn item; its arrays are entered."""
    if isinstance(item, list):
        parts = tuple(_completed(part, places) for part in item)
        return Group(tuple, tuple(map(str, range(len(parts)))), parts)
    if isinstance(item, tuple):
        places.append(item)
        return item[0]
    return item


@settings(deadline=None)
@given(st.tuples(ITEMS, ITEMS, ITEMS), st.sampled_from([32, 64]))
def test_any_signature_reads_as_it_was_written(items: tuple[Any, ...], bits: int) -> None:
    places: list[tuple[object, ...]] = []
    entries = tuple(_completed(item, places) for item in items)
    shapes, views = [one[1] for one in places], [one[2] for one in places]
    signature = Signature(
        entries, bits, tuple(map(shapes.index, shapes)), tuple(map(views.index, views))
    )
    text = write_signature(signature)
    assert parse_signature(text, parameters_of(no_annotations)) == signature, text


def test_the_width_of_indices_is_written() -> None:
    signature = signature_of(no_annotations, (ONES, 1, 2), grid=1 << 40)
    assert write_signature(signature) == "f32[:], i32, i32; index 64"
    parameters = parameters_of(no_annotations)
    assert parse_signature(write_signature(signature), parameters) == signature


def test_an_unaligned_array_is_told_apart() -> None:
    floats = BYTES[: 32 if BYTES.ctypes.data % 4 == 0 else 28][4:].view(np.float32)
    for start in range(4):
        signature = signature_of(no_annotations, (floats[start:], 1, 2))
        aligned = floats[start:].ctypes.data % 16 == 0
        assert ("unaligned" in write_signature(signature)) == (not aligned)
        parameters = parameters_of(no_annotations)
        assert parse_signature(write_signature(signature), parameters) == signature


def test_what_no_text_stands_for_does_not_parse() -> None:
    signature = signature_of(no_annotations, (ONES, lambda x: x, 1))
    written = write_signature(signature)
    assert written == "f32[:], <<lambda>>, i32"
    with pytest.raises(kj.ArgumentError, match="neither a type nor a constant"):
        parse_signature(written, parameters_of(no_annotations))


def test_the_name_of_an_annotated_dataclass_may_be_left_out() -> None:
    parameters = parameters_of(annotated)
    short = parse_signature("(f32[:], f32), (1, 2), 3", parameters)
    assert short == signature_of(annotated, (Body(ONES, 1.0), (1, 2), 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32[:], i32", "has 2 items"),
        ("f32[:, i32, i32", "has 1 items"),
        ("f33[:], i32, i32", "is no type"),
        ("f32[a b], i32, i32", "is no axis"),
        ("f32[:], i32, i32; index 16", "means nothing"),
        ("f32[:], i32, i32; wide", "means nothing"),
        ("f32[n] as v, f32[m] as v, i32", "the same view"),
        ("f32[n] as v, i32[n] as v, i32", "the same view"),
        ("nowhere.at.all:Body(f32), 1, 2", "no module nowhere"),
        (f"{__name__}:Body(f32), 1, 2", "has 1 parts"),
        (f"={__name__}:nothing, 1, 2", "has no 'nothing'"),
        ("vec(9, i8), i32, i32", "is no type"),
        ("mat(2, i8), i32, i32", "is no type"),
        ("vec(3, quat), i32, i32", "is no type"),
        ("f32[:], open('x'), i32", "neither a type nor a constant"),
        ("f32[:], =__import__('os'), i32", "neither a type nor a constant"),
    ],
)
def test_wrong_texts_are_explained(text: str, message: str) -> None:
    with pytest.raises(kj.ArgumentError, match=message):
        parse_signature(text, parameters_of(no_annotations))


def test_splitting_minds_brackets_and_quotes() -> None:
    text = "f32[:, :], (f32, 'a,)'), 'it\\'s, so', \"x,[\""
    assert list(split_signature(text)) == [
        "f32[:, :]", "(f32, 'a,)')", "'it\\'s, so'", '"x,["'
    ]  # fmt: skip


def test_a_text_and_a_call_give_the_same_key() -> None:
    @kj.jit
    def add(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            a[i] += b[i]

    assert isinstance(add, Kernel)
    a = np.zeros(1000, np.float32)
    written = write_signature(signature_of(add._function, (a, a.copy())))
    assert add.compile(a, a.copy()).key == add.compile(written).key
    assert add.compile(written).key != add.compile("f32[:], f32[:]").key


@pytest.mark.skipif(sys.version_info < (3, 12), reason="``type`` statements came with Python 3.12")
def test_aliases_of_types_annotate_as_what_they_stand_for() -> None:
    scope: dict[str, Any] = {"kj": kj}
    exec("type Row = kj.Array1[kj.f32]", scope)

    def kernel(a: Any, b: Any) -> None: ...

    kernel.__annotations__ = {"a": scope["Row"]}
    assert write_signature(signature_of(kernel, (ONES, 1))) == "f32[:], i32"
    with pytest.raises(kj.ArgumentError, match=r"expects kj\.Array1"):
        signature_of(kernel, (SQUARE, 1))
