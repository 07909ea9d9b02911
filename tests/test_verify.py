"""Every law of the representation is checked: a trace that breaks it is caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from khaljit.tracer.dtypes import bool_, f32, i32, index
from khaljit.tracer.errors import InternalError, Site
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Element,
    Memory,
    Region,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import NORMAL, Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.verify import verify
from tests.random_traces import random_trace

_HEAD = """kernel k workgroup=4,1,1 index=32
array a: i32[?] contiguous aligned same_shape=0 same_view=0
array p: f32x2[?] contiguous aligned same_shape=0 same_view=1
scalar n: i32
shared0: i32[8]
shared1: index[8]
table0: i16[2] = 01000200
{
"""


def read(body: str) -> Trace:
    return parse(f"{_HEAD}{body}\n}}\n")


def broken(trace: Trace) -> str:
    """What the verifier says of a trace; empty if it finds nothing."""
    try:
        verify(trace)
    except InternalError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(60))
def test_whole_traces_keep_the_laws(seed: int) -> None:
    verify(random_trace(seed, watch=seed % 3 == 0, collectives=True).trace)


def test_lowered_accesses_keep_the_laws() -> None:
    verify(
        read(
            "%0: bool = lt n, 3:i32\n%1: i32 = load a at n if %0\n"
            "%2: f32 = load p at n leaf=4 unchecked\nstore p at 1:i32 leaf=4 <- %2\n"
            "%3: i32 = atomic add relaxed a at n if %0 <- %1\nyield"
        )
    )


_LAWS_AS_TEXT = [
    # Values.
    ("%0: i32 = add n\nstore a[n] <- %0\nyield", "takes 2 operands, not 1"),
    ("%0: i32 = add n, 1:i64\nstore a[n] <- %0\nyield", "its operands do not fit"),
    ('%0: bool = add n, n\nassert "" %0\nyield', "is of type i32"),
    ("%0: i32 = floor n\nstore a[n] <- %0\nyield", "its operands do not fit"),
    ("%0: index = id global 3\nstore a[%0] <- n\nyield", "there is no such id"),
    ("%0: index = id universe 0\nstore a[%0] <- n\nyield", "there is no such id"),
    ("%0: f32 = id global 0\n%1: i32 = cast %0\nstore a[%1] <- n\nyield", "is of type index"),
    ("%0: index = shape a 1\nstore a[%0] <- n\nyield", "there is no axis 1"),
    ("%0: u32 = stride a 0\nstore a[%0] <- n\nyield", "is of type index"),
    ("%0: index = shape n 0\nstore a[%0] <- n\nyield", "its first operand is a memory"),
    ("%0: i64 = bitcast n\nstore a[%0] <- n\nyield", "i32 has another width"),
    # Accesses.
    ("store a[n, n] <- n\nyield", "takes 3 operands"),
    ("store a[1.5:f32] <- n\nyield", "its indices are integers"),
    ("store a at 1:i64 <- n\nyield", "its offset is of type i32"),
    ("store a at 1:i32 if n <- n\nyield", "its guard is a bool"),
    ("store a[n] if true <- n\nyield", "takes 3 operands"),
    ("store p[n] leaf=2 <- n\nyield", "there is no leaf at byte 2"),
    ("store p[n] leaf=4 <- n\nyield", "the leaf is of type f32"),
    ("%0: f32 = load a[n]\nstore a[n] <- n\nyield", "the leaf is of type i32"),
    ("%0: i32 = store a[n] <- n\nyield", "has no value"),
    ("store table0[n] <- 1:i16\nyield", "nothing is written to a table"),
    ("store n[n] <- n\nyield", "is an access to a memory"),
    ("store p[n, n] inner=[3, 4] <- 1.5:f32\nyield", "its item at byte 8 is a leaf of its type"),
    ("store a[n, n] inner=[1, 2] <- n\nyield", "its steps are whole units of offsets"),
    ("store a at 1:i32 inner=[1, 4] <- n\nyield", "a flat access has one offset"),
    ("store a[n] inner=[1, 4] <- n\nyield", "takes 4 operands"),
    ("store shared1 at n <- 1:index\nyield", "a flat access has elements of a width"),
    ("%0: i32 = atomic swap relaxed a[n] <- n\nyield", "there is no such atomic"),
    ("%0: i32 = atomic compare_exchange relaxed a[n] <- n\nyield", "takes 4 operands"),
    ("%0: f32 = atomic add relaxed a[n] <- n\nyield", "the leaf is of type i32"),
    # Other effects.
    ("barrier world\nyield", "there is no such barrier"),
    ("%0: i32 = subgroup median n\nyield", "there is no such collective"),
    ("%0: i32 = subgroup shuffle n\nyield", "takes 2 operands"),
    ("subgroup add n\nyield", "has a value"),
    ('assert "" n\nyield', "its first operand is a bool"),
    ('%0: i32 = print "" n\nyield', "has no value"),
    # Regions.
    ("if n {\nyield\n}\nyield", "its condition is a bool"),
    ("break", "stands in no loop"),
    ("if true {\ncontinue\n}\nyield", "stands in no loop"),
    ("yield n", "the kernel yields nothing"),
    ("return n", "has no operands"),
    ("loop {\nyield\n}\nyield", "the body of a loop does not yield"),
    ("%0: i32 = if true {\nyield n\n} else {\nyield true\n}\nyield", "has the types of the if's"),
    ("%0: i32 = if true {\nyield n\n} else {\nyield\n}\nyield", "has the types of the if's"),
    ("%0: i32 = loop {\nbreak\n}\nyield", "has the types of the loop's results"),
    ("loop (%0: i32 = n) {\nif true {\nbreak\n}\ncontinue true\n}\nyield", "the loop's parameters"),
    ("loop (%0: i32 = true) {\nbreak\n}\nyield", "have the types of its initial values"),
    ("if true {\nreturn\n} else {\nreturn\n}\nstore a[n] <- n\nyield", "so nothing follows"),
]


@pytest.mark.parametrize(("body", "law"), _LAWS_AS_TEXT, ids=[law for _, law in _LAWS_AS_TEXT])
def test_a_text_that_breaks_a_law_is_caught(body: str, law: str) -> None:
    assert law in broken(read(body))


_N = Value(Op.SCALAR, i32, (), 0)
_TRUE = Value(Op.CONST, bool_, (), 1)
_A = Memory(Space.ARRAY, 0, Element.scalar(i32), (None,))


def kernel(*body: Value, end: Value | None = None, params: tuple[Value, ...] = ()) -> Trace:
    region = Region(params, body, end or Value(Op.YIELD, None))
    return dataclasses.replace(read("yield"), body=region)


def store(value: Value, index: Value = _N) -> Value:
    return Value(Op.STORE, None, (Value(Op.MEMORY, None, (), _A), index, value), Access())


def memory(space: Space, shape: tuple[int | None, ...], data: bytes | None = None) -> Trace:
    what = Memory(space, 0, Element.scalar(i32), shape, data)
    args = (Value(Op.MEMORY, None, (), what), *[_N] * len(shape))
    return kernel(Value(Op.LOAD, i32, args, Access()))


def node(op: Op, *regions: Region, types: object = (), args: tuple[Value, ...] = ()) -> Value:
    return Value(op, None, args or ((_TRUE,) if op is Op.IF else ()), types, regions)


def region(*body: Value, op: Op = Op.YIELD, params: tuple[Value, ...] = ()) -> Region:
    return Region(params, body, Value(op, None))


def test_a_value_from_an_arm_does_not_exist_after_it() -> None:
    load = Value(Op.LOAD, i32, (Value(Op.MEMORY, None, (), _A), _N), Access())
    double = Value(Op.ADD, i32, (load, load))
    inside = node(Op.IF, region(load, store(double)), region())
    assert not broken(kernel(inside))
    assert "does not exist here" in broken(kernel(inside, store(double)))
    assert "does not exist here" in broken(kernel(node(Op.IF, region(load), region(store(load)))))


def test_a_value_does_not_exist_before_its_effect() -> None:
    load = Value(Op.LOAD, i32, (Value(Op.MEMORY, None, (), _A), _N), Access())
    assert not broken(kernel(load, store(load)))
    assert "does not exist here" in broken(kernel(store(load), load))
    inside = node(Op.IF, region(store(load)), region())
    assert "does not exist here" in broken(kernel(inside, load))


def test_a_carried_value_does_not_exist_outside_its_loop() -> None:
    param = Value(Op.PARAM, i32, (), 0)
    loop = node(Op.LOOP, region(store(param), op=Op.BREAK, params=(param,)), args=(_N,))
    assert not broken(kernel(loop))
    assert "does not exist here" in broken(kernel(loop, store(param)))


def test_a_result_does_not_exist_inside_its_own_node() -> None:
    types = (i32,)
    inner = Region((), (), Value(Op.YIELD, None, (_N,)))
    choice = node(Op.IF, inner, inner, types=types)
    assert "stands in two places" in broken(kernel(choice))
    other = Region((), (), Value(Op.YIELD, None, (_N,)))
    choice = node(Op.IF, inner, other, types=types)
    result = Value(Op.RESULT, i32, (choice,), 0)
    assert not broken(kernel(choice, store(result)))
    assert "does not exist here" in broken(kernel(store(result), choice))


def test_operands_of_places_apart_exist_nowhere_together() -> None:
    loads = [Value(Op.LOAD, i32, (Value(Op.MEMORY, None, (), _A), _N), Access()) for _ in "12"]
    both = Value(Op.ADD, i32, (loads[0], loads[1]))
    arms = [region(loads[0]), region(loads[1])]
    law = "its operands exist nowhere together"
    assert law in broken(kernel(node(Op.IF, *arms), store(both)))
    late = kernel(node(Op.IF, region(loads[0]), region()), loads[1], store(both))
    assert law in broken(late)


_TWICE = store(_N)
_LOAD = Value(Op.LOAD, i32, (Value(Op.MEMORY, None, (), _A), _N), Access())
_YIELD = Value(Op.YIELD, None)
_PARAM = Value(Op.PARAM, None, (), 0)
_UNTYPED = Region((_PARAM,), (), Value(Op.CONTINUE, None, (_PARAM,)))


@pytest.mark.parametrize(
    ("trace", "law"),
    [
        (kernel(store(Value(Op.CONST, i32, (), 1 << 32))), "its bits fit its type"),
        (kernel(store(Value(Op.CONST, i32, (), -1))), "its bits fit its type"),
        (kernel(store(_N, Value(Op.CONST, index, (), 1 << 64))), "its bits fit its type"),
        (
            kernel(node(Op.IF, region(), region(), args=(Value(Op.CONST, bool_, (), 2),))),
            "bits fit",
        ),
        (kernel(store(Value(Op.CONST, i32, (), 1.0))), "its bits fit its type"),
        (kernel(store(Value(Op.CONST, None, (), 1))), "const 1 (): has a type"),
        (
            kernel(Value(Op.LOAD, i32, (Value(Op.MEMORY, None, (), 3),))),
            "its attribute is a memory",
        ),
        (kernel(store(Value(Op.SHAPE, index, _LOAD.args[:1], "x"))), "has an axis"),
        (kernel(node(Op.LOOP, _UNTYPED, args=(_N,))), "param 0 (): has a type"),
        (kernel(Value(Op.BARRIER, i32, (), "workgroup")), "has no value"),
        (kernel(store(Value(Op.SCALAR, i32, (), 1))), "is a scalar parameter"),
        (kernel(store(_N, Value(Op.SCALAR, f32, (), 0))), "is of type i32"),
        (kernel(store(Value(Op.ADD, i32, (_N, _N), 4))), "has no attribute"),
        (kernel(store(Value(Op.ADD, i32, (_N, _N), NORMAL))), "has no attribute"),
        (kernel(store(Value(Op.CAST, i32, (_YIELD,)))), "has two types"),
        (kernel(store(_TWICE)), "is no operand"),
        (kernel(store(_LOAD)), "is used and stands nowhere"),
        (kernel(store(Value(Op.PARAM, i32, (), 0))), "is used and stands nowhere"),
        (kernel(store(Value(Op.RESULT, i32, (_N,), 0))), "is of an if or loop"),
        (memory(Space.SHARED, (None,)), "has a fixed shape"),
        (memory(Space.LOCAL, (2,), b"12345678"), "only tables have data"),
        (memory(Space.TABLE, (2,), b"1234"), "has 8 bytes of data"),
        (memory(Space.ARRAY, (None, None)), "is the memory of an array parameter"),
        (kernel(_TWICE, _TWICE), "stands in two places"),
        (kernel(Value(Op.ADD, i32, (_N, _N))), "only effects that are no ends"),
        (kernel(Value(Op.RETURN, None)), "only effects that are no ends"),
        (kernel(end=store(_N)), "stands at the end of a region"),
        (kernel(params=(Value(Op.PARAM, i32, (), 0),)), "a kernel has no carried values"),
        (kernel(node(Op.IF, region())), "has two arms"),
        (kernel(node(Op.IF, region(params=(Value(Op.PARAM, i32, (), 0),)), region())), "two arms"),
        (kernel(node(Op.IF, region(), region(), types=[i32])), "the types of its results"),
        (kernel(node(Op.LOOP, region(op=Op.BREAK), types=None)), "the types of its results"),
        (kernel(node(Op.LOOP, region(op=Op.BREAK), region(op=Op.BREAK))), "has one body"),
        (kernel(node(Op.LOOP, region(op=Op.BREAK, params=(_N,)), args=(_N,))), "among the param"),
        (
            kernel(
                node(
                    Op.LOOP,
                    region(op=Op.BREAK, params=(Value(Op.PARAM, i32, (), 1),)),
                    args=(_N,),
                )
            ),
            "is parameter number 0",
        ),
        (kernel(Value(Op.PRINT, None, (_N,), "no note")), "has a note"),
        (kernel(Value(Op.ATOMIC, i32, _LOAD.args, Access())), "there is no such atomic"),
        (
            kernel(Value(Op.LOAD, i32, (*_LOAD.args, _TRUE), Access(guarded=True))),
            "takes 2 operands",
        ),
        (kernel(Value(Op.LOAD, i32, _LOAD.args, Access(guarded=True))), "only flat accesses"),
    ],
)
def test_a_trace_that_breaks_a_law_is_caught(trace: Trace, law: str) -> None:
    assert law in broken(trace)


def test_results_have_a_position_and_type_of_their_node() -> None:
    choice = node(Op.IF, region(), region())
    for attr in (0, -1, "x"):
        result = Value(Op.RESULT, i32, (choice,), attr)
        assert "there is such a result" in broken(kernel(choice, store(result)))


def _arrays(change: Callable[[ArrayParam], ArrayParam]) -> Trace:
    trace = read("yield")
    return dataclasses.replace(trace, arrays=(trace.arrays[0], change(trace.arrays[1])))


@pytest.mark.parametrize(
    ("trace", "law"),
    [
        (dataclasses.replace(read("yield"), index_bits=16), "index_bits is 32 or 64"),
        (dataclasses.replace(read("yield"), workgroup=(4, 0, 1)), "three positive sizes"),
        (_arrays(lambda p: dataclasses.replace(p, memory=_A)), "is memory number 1"),
        (
            _arrays(
                lambda p: dataclasses.replace(p, memory=dataclasses.replace(p.memory, shape=(3,)))
            ),
            "no fixed extent",
        ),
        (_arrays(lambda p: dataclasses.replace(p, same_shape=7)), "names its groups"),
        (_arrays(lambda p: dataclasses.replace(p, same_view=-1)), "names its groups"),
        (_arrays(lambda p: dataclasses.replace(p, same_view=0)), "names its groups"),
        (
            _arrays(
                lambda p: dataclasses.replace(
                    p, memory=dataclasses.replace(p.memory, shape=(None, None))
                )
            ),
            "names its groups",
        ),
    ],
)
def test_parameters_that_break_a_law_are_caught(trace: Trace, law: str) -> None:
    assert law in broken(trace)


def test_all_broken_laws_are_listed_with_their_values_and_the_first_place() -> None:
    at = Site("kernel.py", 5)
    one = Value(Op.BARRIER, None, (), "world", at=at)
    two = Value(Op.BARRIER, None, (), "moon")
    with pytest.raises(InternalError) as caught:
        verify(kernel(one, two))
    assert caught.value.message.split("\n") == [
        "the trace of k is broken:",
        "  barrier world () (kernel.py:5): there is no such barrier",
        "  barrier moon (): there is no such barrier",
    ]
    assert caught.value.at is at


def test_a_scalar_parameter_more_breaks_nothing() -> None:
    trace = read("yield")
    verify(dataclasses.replace(trace, scalars=(*trace.scalars, ScalarParam("m", f32))))
