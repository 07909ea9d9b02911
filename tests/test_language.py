"""What kernels mean, one behaviour a test, on every device against NumPy or Python."""

from __future__ import annotations

import dataclasses
import functools
import linecache
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

pytestmark = pytest.mark.usefixtures("device")

Rng = np.random.Generator


def poisoned(shape: int | tuple[int, ...], dtype: type = np.float32) -> np.ndarray[Any, Any]:
    """An output nobody could mistake for a result."""
    return np.full(shape, 77, dtype)


# Control flow.


def test_a_guarded_grid_larger_than_the_array(rng: Rng) -> None:
    @kj.jit(workgroup=64)
    def add_assign(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            a[i] += b[i]

    a, b = rng.random(1757, np.float32), rng.random(1757, np.float32)
    expected = a + b
    add_assign[a.size](a, b)
    assert (a == expected).all()


def test_elif_chains_and_else(rng: Rng) -> None:
    @kj.jit
    def sign(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if a[i] > 10:
            s = 2
        elif a[i] > 0:
            s = 1
        elif a[i] == 0:
            s = 0
        else:
            s = -1
        out[i] = s

    a = rng.integers(-5, 20, 101, np.int32)
    out = poisoned(101, np.int32)
    sign[101](a, out)
    assert (out == np.where(a > 10, 2, np.sign(a))).all()


def test_while_with_break_continue_and_carried_values(rng: Rng) -> None:
    @kj.jit
    def walk(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        n, steps = a[i], 0
        while n != 1:
            steps += 1
            if n % 2 == 0:
                n //= 2
                continue
            if steps > 40:
                break
            n = 3 * n + 1
        out[i] = steps

    def python(n: int) -> int:
        steps = 0
        while n != 1:
            steps += 1
            if n % 2 == 0:
                n //= 2
                continue
            if steps > 40:
                break
            n = 3 * n + 1
        return steps

    a = rng.integers(1, 1000, 77, np.int32)
    out = poisoned(77, np.int32)
    walk[77](a, out)
    assert out.tolist() == [python(int(n)) for n in a]


def test_return_inside_nested_loops(rng: Rng) -> None:
    @kj.jit
    def find(a: kj.Array2[kj.i32], wanted: kj.i32, out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i] = -1
        for y in range(a.shape[0]):
            for x in range(a.shape[1]):
                if a[y, x] == wanted + i:
                    out[i] = y * a.shape[1] + x
                    return
        out[i] = -2

    a = rng.permutation(35).astype(np.int32).reshape(5, 7)
    out = poisoned(40, np.int32)
    find[40](a, 0, out)
    flat = a.ravel().tolist()
    assert out.tolist() == [flat.index(i) if i < 35 else -2 for i in range(40)]


def helper_with_early_returns(x: Any, limit: Any) -> Any:
    for k in range(limit):
        if x > 3 * k:
            return x - k
        if x < 0:
            x = x + 1
            continue
        x = x + 2
    return -x


def test_helpers_that_return_early_from_loops(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)
        a[i] = helper_with_early_returns(a[i], n)

    a = rng.integers(-30, 30, 64, np.int32)
    expected = [helper_with_early_returns(int(x), 9) for x in a]
    kernel[64](a, 9)
    assert a.tolist() == expected


def test_loop_else_runs_without_break(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        for k in range(2, a[i]):
            if a[i] % k == 0:
                out[i] = k
                break
        else:
            out[i] = 0
        n = a[i]
        while n > 10:
            n -= 7
            if n == 20:
                break
        else:
            out[i] += 1000

    def python(a: int) -> int:
        out = 0
        for k in range(2, a):
            if a % k == 0:
                out = k
                break
        n = a
        while n > 10:
            n -= 7
            if n == 20:
                break
        else:
            out += 1000
        return out

    a = rng.integers(0, 60, 50, np.int32)
    out = poisoned(50, np.int32)
    kernel[50](a, out)
    assert out.tolist() == [python(int(x)) for x in a]


def test_traced_break_and_continue_in_a_loop_over_a_tuple(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        total = 0
        for c in (5, 3, 8, 1):
            if a[i] == c:
                continue
            if a[i] * c > 30:
                break
            total += c
        a[i] = total

    def python(a: int) -> int:
        total = 0
        for c in (5, 3, 8, 1):
            if a == c:
                continue
            if a * c > 30:
                break
            total += c
        return total

    a = rng.integers(0, 12, 60, np.int32)
    expected = [python(int(x)) for x in a]
    kernel[60](a)
    assert a.tolist() == expected


def test_ranges_with_any_step_and_limits_near_the_end_of_the_type(rng: Rng) -> None:
    @kj.jit
    def kernel(ends: kj.Array2[kj.i32], out: kj.Array2[kj.i32]) -> None:
        i = kj.global_id(0)
        count, last = 0, 0
        for k in range(ends[i, 0], ends[i, 1], ends[i, 2]):
            count += 1
            last = k
        out[i, 0], out[i, 1] = count, last

    top = 2**31 - 1
    rows = [[0, 10, 3], [10, 0, -3], [5, 5, 1], [0, 5, 0], [top - 5, top, 4], [-top, -top - 1, -2]]
    rows += [[*rng.integers(-50, 50, 2), *rng.choice([-7, -2, -1, 1, 2, 9], 1)] for _ in range(20)]
    ends = np.array(rows, np.int32)
    out = poisoned((len(rows), 2), np.int32)
    kernel[len(rows)](ends, out)
    for (start, stop, step), (count, last) in zip(ends.tolist(), out.tolist(), strict=True):
        expected = list(range(start, stop, step)) if step else []
        assert [count, last] == [len(expected), expected[-1] if expected else 0]


def test_and_or_evaluate_the_right_side_only_where_the_left_does_not_decide(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], hits: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if a[i] > 0 and kj.atomic_add(hits, 0, 1) >= 0:
            a[i] = 1
        if a[i] < 0 or kj.atomic_add(hits, 1, 1) < 0:
            a[i] = -1

    a = rng.integers(-3, 4, 90, np.int32)
    positive, negative = int((a > 0).sum()), int((a < 0).sum())
    hits = np.zeros(2, np.int32)
    kernel[90](a, hits)
    assert hits.tolist() == [positive, 90 - negative]


def test_chained_comparisons_evaluate_each_operand_once(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], hits: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if 0 < kj.atomic_add(hits, 0, 1) * 0 + a[i] <= 5 < 6:
            a[i] = 100

    a = rng.integers(-3, 10, 40, np.int32)
    expected = np.where((a > 0) & (a <= 5), 100, a)
    hits = np.zeros(1, np.int32)
    kernel[40](a, hits)
    assert hits[0] == 40
    assert (a == expected).all()


def test_conditional_expressions_evaluate_one_side(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], hits: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        a[i] = kj.atomic_add(hits, 0, 1) * 0 + 1 if a[i] > 0 else a[i] * 2

    a = rng.integers(-9, 10, 50, np.int32)
    expected = np.where(a > 0, 1, a * 2)
    positive = int((a > 0).sum())
    hits = np.zeros(1, np.int32)
    kernel[50](a, hits)
    assert hits[0] == positive
    assert (a == expected).all()


def test_augmented_assignment_evaluates_its_target_once() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], cursor: kj.Array1[kj.i32]) -> None:
        a[kj.atomic_add(cursor, 0, 1)] += 10

    a, cursor = np.arange(6, dtype=np.int32), np.zeros(1, np.int32)
    kernel[4](a, cursor)
    assert cursor[0] == 4
    assert a.tolist() == [10, 11, 12, 13, 4, 5]


def test_comprehension_names_do_not_leak_and_tuples_unpack() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        k = 5
        squares = [k * k for k in range(4)]
        (p, q), *rest = (a[i], k), 1, 2
        if a[i] > 1:
            k = k + sum(squares)
        a[i] = k + p + q + len(rest)

    a = np.arange(4, dtype=np.int32)
    kernel[4](a)
    assert a.tolist() == [5 + 0 + 5 + 2, 5 + 1 + 5 + 2, 19 + 2 + 5 + 2, 19 + 3 + 5 + 2]


def test_two_carried_variables_may_hold_one_value_and_swap() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)
        x = a[i]
        p = q = x
        for _ in range(n):
            p, q = q, p + 1
        a[i] = p * 100 + q

    a = np.arange(5, dtype=np.int32)
    kernel[5](a, 3)
    expected = []
    for x in range(5):
        p = q = x
        for _ in range(3):
            p, q = q, p + 1
        expected.append(p * 100 + q)
    assert a.tolist() == expected


def test_variables_assigned_in_nested_branches() -> None:
    """NVIDIA/warp#1574."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        x, y = 1, 2
        if a[i] > 0:
            if a[i] > 5:
                x = 10
            else:
                y = x
                x = y + 5
            if a[i] == 7:
                y = 100
        out[i] = x * 1000 + y

    def python(a: int) -> int:
        x, y = 1, 2
        if a > 0:
            if a > 5:
                x = 10
            else:
                y = x
                x = y + 5
            if a == 7:
                y = 100
        return x * 1000 + y

    a = np.arange(-3, 10, dtype=np.int32)
    out = poisoned(13, np.int32)
    kernel[13](a, out)
    assert out.tolist() == [python(int(x)) for x in a]


def test_the_loop_variable_and_a_name_set_on_every_break_live_on() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        n = a[i]
        while True:
            n += 3
            found = n * 2
            if found > 20:
                break
        a[i] = found

    a = np.arange(9, dtype=np.int32)
    kernel[9](a)
    expected = []
    for x in range(9):
        while True:
            x += 3
            if x * 2 > 20:
                break
        expected.append(x * 2)
    assert a.tolist() == expected


def test_walrus_and_nested_functions_and_lambdas(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)

        def twice(x: Any) -> Any:
            if x > 10:
                return x
            return 2 * x

        bump: Any = lambda x: x + 1 if x > 0 else x - 1  # noqa: E731
        if (y := twice(a[i])) > 4:
            a[i] = bump(y)
        else:
            a[i] = bump(-y)

    def python(x: int) -> int:
        y = x if x > 10 else 2 * x
        z = y if y > 4 else -y
        return z + 1 if z > 0 else z - 1

    a = rng.integers(-20, 20, 50, np.int32)
    expected = [python(int(x)) for x in a]
    kernel[50](a)
    assert a.tolist() == expected


def test_an_elif_chain_may_be_longer_than_python_nests_blocks(rng: Rng) -> None:
    lines = [f"    {'elif' if k else 'if'} a[i] == {k}: s = {7 * k}" for k in range(40)]
    text = "\n".join(["def f(a):", "    i = kj.global_id(0)", *lines, "    else: s = -1"])
    text += "\n    a[i] = s\n"
    name = "<a long chain>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"kj": kj}
    exec(compile(text, name, "exec"), scope)
    a = rng.integers(-5, 50, 200, np.int32)
    expected = [7 * x if 0 <= x < 40 else -1 for x in a.tolist()]
    kj.jit(scope["f"])[200](a)
    assert a.tolist() == expected


def classified(x: Any, switch: Any, low: Any) -> Any:
    kind = 0
    for k in range(4):
        if x == k:
            return 100 + kind
        elif switch:
            kind += 1
        elif x < low:
            low = x - 1
            kind += 2
        elif x > 50:
            break
        elif (half := x // 2) == k:
            kind += half
            continue
        else:
            if kind == 3:
                kind = 40
            elif kind > 3:
                kind += 5
        kind += 10
    return kind


@pytest.mark.parametrize("switch", [False, True])
def test_elif_chains_of_run_time_and_constant_tests_with_jumps(switch: bool) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], switch: kj.Const[bool], low: kj.i32) -> None:
        i = kj.global_id(0)
        a[i] = classified(a[i], switch, low)

    a = np.arange(-9, 70, dtype=np.int32)
    expected = [classified(x, switch, -3) for x in a.tolist()]
    kernel[a.size](a, switch, -3)
    assert a.tolist() == expected


def test_membership_in_tuples_lists_and_sets(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array2[kj.bool]) -> None:
        i = kj.global_id(0)
        out[i, 0] = a[i] in (1, 5, 7)
        out[i, 1] = a[i] not in [2, a[0]]
        out[i, 2] = 3 in {a[i], 4} or 2 in (1, 2)

    a = rng.integers(0, 9, 60, np.int32)
    out = np.zeros((60, 3), np.bool_)
    kernel[60](a, out)
    assert (out[:, 0] == np.isin(a, [1, 5, 7])).all()
    assert (out[:, 1] == ~np.isin(a, [2, a[0]])).all()
    assert out[:, 2].all()


def test_nested_functions_store_to_the_arrays_of_the_kernel() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)

        def put(value: Any) -> None:
            if value > 1:
                a[i] = value
            else:
                for k in range(n):
                    a[i] += k + 1

        put(i)

    a = np.zeros(4, np.int32)
    kernel[4](a, 3)
    assert a.tolist() == [6, 6, 2, 3]


def test_a_captured_vector_is_not_changed_in_part() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        v = kj.vec2(1.0)

        def change() -> None:
            v.x = 5.0

        change()
        a[0] = v.x

    with pytest.raises(kj.TraceError, match="a part of a captured vec2 is assigned"):
        kernel[1](np.zeros(1, np.float32))


# Where kernels may live.


class Scene:
    """Kernels as methods."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @kj.jit
    def scale(self, a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] *= self.factor

    @staticmethod
    @kj.jit
    def negate(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = -a[kj.global_id(0)]

    def offset(self, x: Any) -> Any:
        return x + self.factor


def test_methods_static_methods_and_changed_attributes() -> None:
    a = np.arange(4, dtype=np.int32)
    scene, other = Scene(3), Scene(5)
    scene.scale[4](a)
    assert a.tolist() == [0, 3, 6, 9]
    other.scale[4](a)
    assert a.tolist() == [0, 15, 30, 45]
    scene.factor = -1
    scene.scale[4](a)
    assert a.tolist() == [0, -15, -30, -45]
    Scene.negate[4](a)
    assert a.tolist() == [0, 15, 30, 45]


def test_methods_of_captured_objects_are_traced_through() -> None:
    scene = Scene(7)

    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        a[i] = scene.offset(a[i])

    a = np.arange(3, dtype=np.int32)
    kernel[3](a)
    assert a.tolist() == [7, 8, 9]


class Shape:
    """With what descriptors and inheritance bring."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @property
    def double(self) -> Any:
        return self.factor * 2.5

    def area(self, x: Any) -> Any:
        if x > 2:
            return x * self.factor
        return 0

    def __getitem__(self, k: int) -> float:
        return self.factor + k

    def __len__(self) -> int:
        return int(self.factor)


class Square(Shape):
    """With a method that calls its base's."""

    def area(self, x: Any) -> Any:
        return super().area(x) + 1

    @property
    def smaller(self) -> Any:
        return 1 if self.factor < 10 else 2


def test_super_properties_and_special_methods_are_traced_through() -> None:
    shape = Square(3.0)

    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        a[i] = shape.area(a[i]) + shape.double + shape[2] + len(shape) + shape.smaller

    for factor in (3.0, 12.0):
        shape.factor = factor
        a = np.arange(5, dtype=np.float32)
        expected = [shape.area(x) + shape.double + shape[2] + len(shape) for x in range(5)]
        for _ in range(2):
            b = a.copy()
            kernel[5](b)
            assert b.tolist() == [x + shape.smaller for x in expected]
    assert kernel.cache_info()["recorded"] == 2


def test_functions_made_in_loops_keep_their_own_captured_values() -> None:
    """numba/numba#6093, NVIDIA/numba-cuda#590."""
    kernels = []
    for factor in (2, 3, 5):

        @kj.jit
        def kernel(a: kj.Array1[kj.i32], factor: kj.Const[int] = factor) -> None:
            a[kj.global_id(0)] *= factor

        kernels.append(kernel)
    for kernel, factor in zip(kernels, (2, 3, 5), strict=True):
        a = np.arange(4, dtype=np.int32)
        kernel[4](a)
        assert a.tolist() == [0, factor, 2 * factor, 3 * factor]


LIMIT = 3


def test_a_changed_global_and_closure_value_is_seen() -> None:
    """triton-lang/triton#3770."""
    global LIMIT
    step = 1

    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = LIMIT + step

    a = np.zeros(1, np.int32)
    kernel[1](a)
    assert a[0] == 4
    LIMIT = 10
    kernel[1](a)
    assert a[0] == 11
    step = 5
    kernel[1](a)
    assert a[0] == 15
    LIMIT = 3


COEFFICIENTS = [1, 2, 3]


def test_a_changed_item_of_a_captured_list_is_seen() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = COEFFICIENTS[0] + COEFFICIENTS[2]

    a = np.zeros(1, np.int32)
    kernel[1](a)
    assert a[0] == 4
    COEFFICIENTS[2] = 30
    try:
        kernel[1](a)
        assert a[0] == 31
    finally:
        COEFFICIENTS[2] = 3


TOTAL = [1, 2, 3]


def test_a_captured_list_that_is_iterated_is_guarded_as_a_whole() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        total = 0
        for c in TOTAL:
            total += c
        a[kj.global_id(0)] = total

    a = np.zeros(1, np.int32)
    kernel[1](a)
    assert a[0] == 6
    TOTAL.append(10)
    try:
        kernel[1](a)
        assert a[0] == 16
    finally:
        TOTAL.pop()


NUMBERS = [4, 5, 6]
NAMED = {"x": 4, "y": 5}
GROWING = {4, 5}
TABLE = np.array([4, 5], np.float32)
PART = functools.partial(lambda settings, x: settings["x"] + x, NAMED)
BOX = Scene(4)


def configured(x: Any, *, box: Any = BOX) -> Any:
    return x + box.factor


@functools.lru_cache
def remembered(x: int) -> int:
    return x + NUMBERS[0]


class Money:
    """With operators, which run as they are."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __mul__(self, other: Any) -> Any:
        return self.amount * other

    def __iter__(self) -> Any:
        return iter((self.amount, 1))


MONEY = Money(4)


READERS: dict[str, Callable[[], Any]] = {
    "get": lambda: NAMED.get("x"),
    "items": lambda: sum(value for _, value in NAMED.items()),
    "values": lambda: max(NAMED.values()),
    "sum": lambda: sum(NUMBERS),
    "len": lambda: len(NUMBERS),
    "comprehension": lambda: [2 * x for x in NUMBERS][1],
    "star": lambda: max(*NUMBERS),
    "slice": lambda: NUMBERS[:1][0],
    "truth": lambda: 1 if 50 in GROWING else 0,
    "partial": lambda: PART(1),
    "default of a keyword": lambda: configured(1),
    "getattr": lambda: getattr(BOX, "factor"),  # noqa: B009  # as users write it
    "hasattr": lambda: 1 if hasattr(BOX, "more") else 0,
    "operator": lambda: MONEY * 2,
    "iteration": lambda: max(one for one in MONEY),
    "lru_cache": lambda: remembered(1),
    "method of an array": lambda: float(TABLE.max()),
    "function of an array": lambda: float(np.sum(TABLE)),
}


@pytest.mark.parametrize("way", READERS)
def test_a_change_of_what_is_captured_is_seen_however_it_is_read(way: str) -> None:
    reader = READERS[way]

    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        a[kj.global_id(0)] = reader()

    before = list(NUMBERS), dict(NAMED), set(GROWING), TABLE.copy(), BOX.factor
    try:
        a = np.zeros(1, np.float32)
        for _ in range(2):
            remembered.cache_clear()
            kernel[1](a)
            assert a[0] == reader()
        assert kernel.cache_info()["recorded"] == 1
        NUMBERS[:] = [50, 60, 70, 80]
        NAMED["x"] = TABLE[0] = BOX.factor = MONEY.amount = 50
        GROWING.add(50)
        vars(BOX)["more"] = 1
        kernel[1](a)
        remembered.cache_clear()
        assert a[0] == reader()
        assert kernel.cache_info()["recorded"] == 2
    finally:
        NUMBERS[:] = before[0]
        NAMED.update(before[1])
        GROWING.intersection_update(before[2])
        TABLE[:] = before[3]
        BOX.factor = MONEY.amount = before[4]
        vars(BOX).pop("more", None)


def test_an_unchanged_world_is_recorded_once() -> None:
    settings: dict[str, Any] = {"factor": 3, "steps": [1, 2]}
    scene = Scene(2)

    @kj.jit
    def kernel(a: Any) -> None:
        i = kj.global_id(0)
        parts = [0, 0]
        for k in kj.unroll(range(3)):
            parts[k % 2] += a[i] + k
        for step in settings["steps"]:
            parts[0] += step * settings["factor"]
        extra = 0
        for k in range(2):
            extra += k
        a[i] = parts[0] + parts[1] + extra + scene.factor + scene.offset(LIMIT) + COEFFICIENTS[1]

    a = np.zeros(4, np.int32)
    for _ in range(3):
        kernel[4](a)
    assert kernel.cache_info()["recorded"] == 1


def test_straight_line_kernels_need_no_source() -> None:
    scope: dict[str, Any] = {"kj": kj}
    exec("def f(a, b):\n  i = kj.global_id(0)\n  a[i] = kj.select(b[i] > 2, a[i], b[i])", scope)
    kernel = kj.jit(scope["f"])
    a, b = np.arange(10, 15, dtype=np.int32), np.arange(5, dtype=np.int32)
    kernel[5](a, b)
    assert a.tolist() == [0, 1, 2, 13, 14]


def test_lambdas_are_kernels_too() -> None:
    kernels = [kj.jit(lambda a: a.__setitem__(kj.global_id(0), 1)), kj.jit(lambda a: a.__setitem__(kj.global_id(0), 2))]  # fmt: skip  # noqa: E501
    a = np.zeros(2, np.int32)
    kernels[0][2](a)
    assert a.tolist() == [1, 1]
    kernels[1][2](a)
    assert a.tolist() == [2, 2]


# Arguments.


def test_const_specialises_and_none_is_a_constant(rng: Rng) -> None:
    @kj.jit
    def affine(a: Any, factor: kj.Const[int], bias: Any = None) -> None:
        i = kj.global_id(0)
        x = a[i] * factor
        if bias is not None:
            x = x + bias[i]
        a[i] = x

    a = rng.integers(-9, 9, 8, np.int32)
    bias = rng.integers(-9, 9, 8, np.int32)
    expected = a * 3
    affine[8](a, 3)
    assert (a == expected).all()
    expected = a * 2 + bias
    affine[8](a, 2, bias)
    assert (a == expected).all()


def test_functions_strings_and_dtypes_are_constants() -> None:
    @kj.jit
    def apply(a: Any, function: Any, mode: Any, dtype: Any) -> None:
        i = kj.global_id(0)
        if mode == "twice":
            a[i] = kj.i32(dtype(function(function(a[i]))))
        else:
            a[i] = kj.i32(dtype(function(a[i])))

    a = np.arange(4, dtype=np.int32)
    apply[4](a, lambda x: x * 100, "twice", kj.u8)
    assert a.tolist() == [(x * 10000) % 256 for x in range(4)]


class Pair(NamedTuple):
    """A tuple argument with names."""

    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Params:
    """A dataclass argument."""

    dt: kj.f32
    data: kj.Array1[kj.f32]


def test_tuples_and_dataclasses_of_arguments() -> None:
    @kj.jit
    def kernel(pair: Any, params: Params, out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        out[i] = pair.left[i] + pair.right * params.dt + params.data[i]

    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    out = poisoned(4)
    kernel[4](Pair(a, 10), Params(0.5, b), out)
    assert out.tolist() == [6.0, 7.0, 8.0, 9.0]


class Scaled(NamedTuple):
    """A named tuple with types."""

    a: kj.Array1[kj.f32]
    factor: kj.f32


def test_named_tuples_are_annotations() -> None:
    @kj.jit
    def kernel(pair: Scaled) -> None:
        i = kj.global_id(0)
        pair.a[i] *= pair.factor

    a = np.arange(4, dtype=np.float32)
    kernel[4](Scaled(a, 3))
    assert a.tolist() == [0, 3, 6, 9]
    with pytest.raises(TypeError, match=r"parameter pair\.a expects kj\.Array1\[f32\]"):
        kernel[4](Scaled(a.astype(np.float64), 3))


def test_defaults_and_parameters_that_are_keywords_only() -> None:
    @kj.jit
    def kernel(a: Any, scale: Any = 2, *, shift: Any = 3.0, more: Any = None) -> None:
        i = kj.global_id(0)
        value = a[i] * scale + shift
        if more is not None:
            value += more[i]
        a[i] = value

    a = np.ones(3, np.float32)
    kernel[3](a)
    assert a.tolist() == [5] * 3
    kernel[3](shift=1, scale=5, a=a)
    assert a.tolist() == [26] * 3
    kernel[3](a, 1, more=np.ones(3, np.float32))
    assert a.tolist() == [30] * 3


def test_run_time_scalars_do_not_recompile() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32], s: kj.f32, n: kj.i64) -> None:
        a[0] = s + kj.f32(n)

    a = np.zeros(1, np.float32)
    for value in range(10):
        kernel[1](a, value / 2, 2**40 * value)
        assert a[0] == np.float32(value / 2) + np.float32(2**40 * value)
    assert kernel.cache_info()["recorded"] == 1


def test_with_options_fixes_constants_and_the_workgroup() -> None:
    @kj.jit(workgroup=32)
    def kernel(a: kj.Array1[kj.i32], tile: kj.Const[int]) -> None:
        a[kj.global_id(0)] = tile * 1000 + kj.workgroup_size(0)

    variant = kernel.with_options(workgroup=8, tile=4)
    a = np.zeros(8, np.int32)
    variant[8](a)
    assert (a == 4008).all()
    with pytest.raises(kj.ArgumentTypeError, match="no parameter tiles"):
        kernel.with_options(tiles=4)


def test_numpy_scalars_keep_their_type_and_python_numbers_are_32_bits_wide() -> None:
    @kj.jit
    def kernel(out: kj.Array1[kj.i32], x: Any) -> None:
        if x.dtype is kj.f64:
            out[0] = 64
        elif x.dtype is kj.f32:
            out[0] = 32
        elif x.dtype is kj.i32:
            out[0] = 1
        else:
            out[0] = 2

    out = poisoned(1, np.int32)
    for value, expected in ((np.float64(1), 64), (1.0, 32), (7, 1), (True, 2), (np.int8(3), 2)):
        kernel[1](out, value)
        assert out[0] == expected


# Ids and grids.


def test_all_ids_agree_with_their_definitions() -> None:
    @kj.jit(workgroup=(4, 3, 2))
    def kernel(out: Any) -> None:
        x, y, z = kj.global_id()
        gx = kj.num_workgroups(0) * kj.workgroup_size(0)
        gy = kj.num_workgroups(1) * kj.workgroup_size(1)
        at = (z * gy + y) * gx + x
        lx, ly, lz = kj.local_id()
        wx, wy, wz = kj.workgroup_id()
        out[at, 0] = kj.local_index() - ((lz * 3 + ly) * 4 + lx)
        out[at, 1] = x - (wx * 4 + lx)
        out[at, 2] = y - (wy * 3 + ly)
        out[at, 3] = z - (wz * 2 + lz)
        out[at, 4] = 1

    out = np.zeros((8 * 6 * 4, 5), np.int32)
    kernel[5, 6, 3](out)
    assert (out[:, :4] == 0).all()
    assert (out[:, 4] == 1).all()


def test_subgroups_are_consecutive_where_they_divide_the_rows() -> None:
    @kj.jit(workgroup=(64, 2))
    def kernel(out: Any) -> None:
        me = kj.local_index()
        out[me, 0] = kj.subgroup_id() * kj.subgroup_size() + kj.lane_id() - me
        out[me, 1] = kj.subgroup_size() * kj.num_subgroups()

    out = poisoned((128, 2), np.int32)
    kernel[64, 2](out)
    assert (out[:, 0] == 0).all()
    assert (out[:, 1] == 128).all()


def test_grids_without_a_workgroup_run_exactly_their_invocations() -> None:
    @kj.jit
    def kernel(hits: Any) -> None:
        kj.atomic_add(hits, (kj.global_id(2), kj.global_id(1), kj.global_id(0)), 1)

    hits = np.zeros((6, 9, 40), np.int32)
    kernel[37, 7, 5](hits)
    assert (hits[:5, :7, :37] == 1).all()
    assert hits.sum() == 37 * 7 * 5


def test_workgroups_grids_and_empty_grids() -> None:
    @kj.jit(workgroup=8)
    def kernel(hits: Any) -> None:
        kj.atomic_add(hits, kj.global_id(0), 1)

    hits = np.zeros(40, np.int32)
    kernel[kj.Workgroups(3)](hits)
    assert hits.tolist() == [1] * 24 + [0] * 16
    kernel[0](hits)
    kernel[5, 0](hits)
    assert hits.sum() == 24


def test_over_and_index_cover_an_array_in_its_own_order(rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        z, y, x = kj.index(3)
        out[z, y, x] = a[z, y, x] + z * 100 + y * 10 + x

    a = rng.integers(0, 5, (2, 3, 4), np.int32)
    out = poisoned((2, 3, 4), np.int32)
    kernel[kj.over(a)](a, out)
    z, y, x = np.indices(a.shape)
    assert (out == a + z * 100 + y * 10 + x).all()


def test_grid_stride_shares_any_length_over_any_grid() -> None:
    @kj.jit(workgroup=16)
    def kernel(hits: Any) -> None:
        for i in kj.grid_stride(hits.size):
            hits[i] += 1

    hits = np.zeros(1000, np.int32)
    kernel[48](hits)
    assert (hits == 1).all()


# Arrays.


def test_non_contiguous_negative_and_broadcast_strides(rng: Rng) -> None:
    @kj.jit
    def copy(a: Any, out: Any) -> None:
        y, x = kj.index(2)
        out[y, x] = a[y, x]

    base = rng.random((12, 15), np.float32)
    views = [
        base.T,
        base[::2, 1::3],
        base[::-1, ::-1],
        base[3:7],
        np.broadcast_to(base[0], (4, 15)),
    ]
    for view in views:
        out = poisoned(view.shape)
        copy[kj.over(view)](view, out)
        assert (out == view).all()
        backing = poisoned((view.shape[1], view.shape[0] * 2))
        target = backing.T[::2]
        copy[kj.over(view)](view, target)
        assert (target == view).all()
        assert (backing.T[1::2] == 77).all()


def test_zero_size_arrays_are_legal(rng: Rng) -> None:
    """numba/numba#4140."""

    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        i = kj.global_id(0)
        b[i] = a[i, i] + a.size + a.shape[0]

    b = poisoned(3)
    for shape in ((0, 4), (4, 0), (0, 0)):
        kernel[3](np.zeros(shape, np.float32), b)
        assert (b == shape[0]).all()
    kernel[3](np.zeros((0, 1), np.float32), np.zeros(0, np.float32))


def test_out_of_bounds_reads_give_zero_and_writes_do_nothing(rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, where: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = a[where[i]]
        a[where[i]] = 5
        kj.atomic_add(a, where[i], 1)

    a = np.arange(1, 11, dtype=np.int32)
    where = np.array([3, -1, 10, 2**31 - 1, -(2**31), 9], np.int32)
    out = poisoned(6, np.int32)
    kernel[6](a, where, out)
    assert out.tolist() == [4, 0, 0, 0, 0, 10]
    assert a.tolist() == [1, 2, 3, 6, 5, 6, 7, 8, 9, 6]


def test_the_same_view_twice_is_legal(rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        i = kj.global_id(0)
        a[i] = b[i] * 2

    a = rng.integers(0, 9, 33, np.int32)
    expected = a * 2
    kernel[33](a, a)
    assert (a == expected).all()


def test_shape_strides_ndim_dtype_and_len() -> None:
    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        out[0] = a.shape[0]
        out[1] = a.shape[1]
        out[2] = a.size
        out[3] = a.strides[0]
        out[4] = a.strides[1]
        out[5] = a.ndim
        out[6] = len(a)
        out[7] = 1 if a.dtype is kj.f64 else 0

    out = poisoned(8, np.int32)
    kernel[1](np.zeros((6, 8))[::2, ::4], out)
    assert out.tolist() == [3, 2, 6, 16, 4, 2, 3, 1]


# Memory.


def test_shared_memory_and_barriers_in_a_uniform_loop(rng: Rng) -> None:
    @kj.jit(workgroup=32)
    def reverse_sum(a: Any, out: Any, n: kj.i32) -> None:
        tile = kj.shared(kj.i32, 32)
        lane, total = kj.local_id(0), 0
        for step in range(n):
            tile[lane] = a[step * 32 + lane]
            kj.barrier()
            total += tile[31 - lane] * (step + 1)
            kj.barrier()
        out[kj.global_id(0)] = total

    a = rng.integers(0, 100, 5 * 32, np.int32)
    out = poisoned(64, np.int32)
    reverse_sum[64](a, out, 5)
    expected = (a.reshape(5, 32)[:, ::-1] * np.arange(1, 6)[:, None]).sum(0)
    assert (out.reshape(2, 32) == expected).all()


def test_values_live_across_barriers_in_several_subgroups(rng: Rng) -> None:
    @kj.jit(workgroup=(8, 24))
    def kernel(a: Any, out: Any) -> None:
        tile = kj.shared(kj.f32, (24, 8))
        x, y = kj.local_id(0), kj.local_id(1)
        mine = a[y, x] * 2.0
        tile[y, x] = mine
        kj.barrier()
        above = tile[(y + 1) % 24, x]
        kj.barrier()
        tile[y, x] = above + mine
        kj.barrier()
        out[y, x] = tile[23 - y, 7 - x] + mine

    a = rng.random((24, 8), np.float32)
    out = poisoned((24, 8))
    kernel[8, 24](a, out)
    mine = a * np.float32(2)
    tile = np.roll(mine, -1, 0) + mine
    assert (out == tile[::-1, ::-1] + mine).all()


def test_local_arrays_with_run_time_indices(rng: Rng) -> None:
    @kj.jit
    def sort(a: Any) -> None:
        i = kj.global_id(0)
        own = kj.local(kj.i32, 6)
        for k in range(6):
            own[k] = a[i, k]
        for k in range(1, 6):
            j = k
            while j > 0 and own[j - 1] > own[j]:
                own[j - 1], own[j] = own[j], own[j - 1]
                j -= 1
        for k in range(6):
            a[i, k] = own[k]

    a = rng.integers(-50, 50, (41, 6), np.int32)
    expected = np.sort(a, 1)
    sort[41](a)
    assert (a == expected).all()


def test_constant_tables_and_tuples_indexed_at_run_time(rng: Rng) -> None:
    weights = np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)
    primes = (2, 3, 5, 7)

    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        table = kj.constant(weights)
        out[i] = table[a[i] % 2, a[i] // 2] * primes[a[i]]

    a = rng.integers(0, 4, 30, np.int32)
    out = poisoned(30)
    kernel[30](a, out)
    assert (out == weights[a % 2, a // 2] * np.array(primes, np.float32)[a]).all()


def test_vectors_of_arrays_with_a_trailing_axis(rng: Rng) -> None:
    @kj.jit
    def kernel(p: kj.Array1[kj.vec3], v: kj.Array1[kj.vec3], dt: kj.f32) -> None:
        i = kj.global_id(0)
        me = p[i]
        me.x = me.x + 1.0
        speed = v[i]
        p[i] = me + speed * dt
        v[i].zy = speed.xy
        v[i].x += 10.0

    p, v = rng.random((19, 3), np.float32), rng.random((19, 3), np.float32)
    expected_p = p + np.array([1, 0, 0], np.float32)
    expected_p = (expected_p.astype(np.float64) + v * np.float64(0.5)).astype(np.float32)
    expected_v = np.stack([v[:, 0] + np.float32(10), v[:, 1], v[:, 0]], 1)
    kernel[19](p, v, 0.5)
    assert (p == expected_p).all()
    assert (v == expected_v).all()


def test_names_never_alias_memory(rng: Rng) -> None:
    @kj.jit
    def kernel(p: kj.Array1[kj.vec2]) -> None:
        i = kj.global_id(0)
        me = p[i]
        other = me
        other.x = 100.0
        p[i] = kj.vec2(me.x, other.x)

    p = rng.random((5, 2), np.float32)
    expected = np.stack([p[:, 0], np.full(5, 100, np.float32)], 1)
    kernel[5](p)
    assert (p == expected).all()


# Atomics and collectives.


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64", "f32", "f64"])
def test_atomics_of_each_kind(dtype: str, rng: Rng) -> None:
    kind = getattr(kj, dtype)

    @kj.jit
    def kernel(a: Any, values: Any, old: Any) -> None:
        i = kj.global_id(0)
        old[i] = kj.atomic_add(a, 0, values[i])
        kj.atomic_sub(a, 1, values[i])
        kj.atomic_min(a, 2, values[i])
        kj.atomic_max(a, 3, values[i])
        kj.atomic_exchange(a, 4, values[i])
        kj.atomic_compare_exchange(a, 5, kind(7), values[i])
        kj.atomic_store(a, 6, kj.atomic_load(a, 7))

    values = rng.integers(1, 50, 100).astype(kind.numpy)
    a = np.array([3, 9000, 30, 20, 0, 7, 0, 44], kind.numpy)
    old = np.zeros(100, kind.numpy)
    kernel[100](a, values, old)
    assert a[0] == 3 + values.sum()
    assert a[1] == 9000 - values.sum()
    assert a[2] == min(30, values.min())
    assert a[3] == max(20, values.max())
    assert a[4] in values
    assert a[5] in values
    assert a[6] == 44
    assert len(np.unique(old)) == 100  # every invocation saw another sum
    assert old.min() == 3


def test_bitwise_atomics(rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, values: Any) -> None:
        i = kj.global_id(0)
        kj.atomic_and(a, 0, values[i])
        kj.atomic_or(a, 1, values[i])
        kj.atomic_xor(a, 2, values[i])

    values = rng.integers(0, 2**32, 50, np.uint32)
    a = np.array([2**32 - 1, 0, 0], np.uint32)
    kernel[50](a, values)
    assert a[0] == np.bitwise_and.reduce(values)
    assert a[1] == np.bitwise_or.reduce(values)
    assert a[2] == np.bitwise_xor.reduce(values)


@pytest.mark.parametrize("size", [1, 7, 32, 96])
def test_workgroup_collectives_of_any_size(size: int, rng: Rng) -> None:
    @kj.jit(workgroup=size)
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i, 0] = kj.workgroup_add(a[i])
        out[i, 1] = kj.workgroup_min(a[i])
        out[i, 2] = kj.workgroup_max(a[i])
        out[i, 3] = kj.i32(kj.workgroup_any(a[i] > 90))
        out[i, 4] = kj.i32(kj.workgroup_all(a[i] > 5))
        out[i, 5] = kj.workgroup_inclusive_add(a[i])
        out[i, 6] = kj.workgroup_exclusive_add(a[i])
        out[i, 7] = kj.workgroup_broadcast(a[i], size - 1)

    a = rng.integers(0, 100, 2 * size, np.int32)
    out = poisoned((2 * size, 8), np.int32)
    kernel[2 * size](a, out)
    for group in range(2):
        mine = a[group * size : (group + 1) * size]
        rows = out[group * size : (group + 1) * size]
        assert (rows[:, 0] == mine.sum()).all()
        assert (rows[:, 1] == mine.min()).all()
        assert (rows[:, 2] == mine.max()).all()
        assert (rows[:, 3] == (mine > 90).any()).all()
        assert (rows[:, 4] == (mine > 5).all()).all()
        assert (rows[:, 5] == np.cumsum(mine)).all()
        assert (rows[:, 6] == np.cumsum(mine) - mine).all()
        assert (rows[:, 7] == mine[-1]).all()


def test_subgroup_collectives_agree_with_the_lanes(rng: Rng) -> None:
    @kj.jit(workgroup=32)
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        x = a[i]
        out[i, 0] = kj.subgroup_add(x)
        out[i, 1] = kj.subgroup_max(x)
        out[i, 2] = kj.subgroup_inclusive_add(x)
        out[i, 3] = kj.subgroup_exclusive_add(x)
        out[i, 4] = kj.subgroup_broadcast(x, 1)
        out[i, 5] = kj.subgroup_shuffle_xor(x, 1)
        out[i, 6] = kj.i32(kj.subgroup_any(x > 95))
        out[i, 7] = kj.i32(kj.subgroup_elect())
        out[i, 8] = kj.subgroup_size()

    a = rng.integers(0, 100, 64, np.int32)
    out = poisoned((64, 9), np.int32)
    kernel[64](a, out)
    size = int(out[0, 8])
    assert 32 % size == 0
    lanes = a.reshape(-1, size)
    rows = out.reshape(-1, size, 9)
    assert (rows[:, :, 0] == lanes.sum(1, keepdims=True)).all()
    assert (rows[:, :, 1] == lanes.max(1, keepdims=True)).all()
    assert (rows[:, :, 2] == lanes.cumsum(1)).all()
    assert (rows[:, :, 3] == lanes.cumsum(1) - lanes).all()
    if size > 1:
        assert (rows[:, :, 4] == lanes[:, 1:2]).all()
        assert (rows[:, :, 5] == lanes[:, np.arange(size) ^ 1]).all()
    assert (rows[:, :, 6] == (lanes > 95).any(1, keepdims=True)).all()
    assert (rows[:, 0, 7] == 1).all()
    assert (rows[:, 1:, 7] == 0).all()


# Assertions.


def test_a_failed_assertion_names_line_and_invocation(device: Device) -> None:
    @kj.jit
    def kernel(a: Any) -> None:
        i = kj.global_id(0)
        assert a[i] < 40, "too large"
        a[i] = 0

    a = np.arange(50, dtype=np.int32)[::-1].copy()
    with pytest.raises(kj.KernelError, match=r"assert a\[i\] < 40 failed: too large") as caught:
        kernel[50](a)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    good = np.zeros(5, np.int32)
    kernel[5](good)


# Host functions.


def test_python_math_and_numpy_functions_mean_what_they_say(rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        x = a[i]
        out[i, 0] = math.sqrt(x) + np.float32(1)
        out[i, 1] = min(x, 0.5, 0.25) + max(x, 0.5)
        out[i, 2] = abs(-x) + round(x) + int(x * 10)
        out[i, 3] = np.floor(x * 10) + math.floor(x * 10)
        out[i, 4] = sum((x, x, x)) + float(divmod(int(x * 100), 7)[1])
        out[i, 5] = np.where(x > 0.5, x, -x) + len((1, 2))

    a = rng.random(40, np.float32)
    out = poisoned((40, 6))
    kernel[40](a, out)
    tens = np.float32(10) * a
    hundreds = (np.float32(100) * a).astype(np.int32)
    close: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(out[:, 0], np.sqrt(a) + 1, **close)
    np.testing.assert_allclose(out[:, 1], np.minimum(a, 0.25) + np.maximum(a, 0.5), **close)
    np.testing.assert_allclose(out[:, 2], a + np.rint(a) + tens.astype(np.int32), **close)
    np.testing.assert_allclose(out[:, 3], 2 * np.floor(tens), **close)
    np.testing.assert_allclose(out[:, 4], 3 * a + hundreds % 7, **close)
    np.testing.assert_allclose(out[:, 5], np.where(a > 0.5, a, -a) + 2, **close)


def test_fmod_is_exact_and_has_the_sign_of_its_first_operand() -> None:
    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        i = kj.global_id(0)
        a[i] = math.fmod(a[i], b[i])

    a = np.array([1, -4, 1e8, -7.5, 2.5, -0.0, np.inf, 1, np.nan], np.float32)
    b = np.array([np.inf, 2, 3, -2, 7, 1, 1, 0, 1], np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.fmod(a, b)
    kernel[a.size](a, b)
    assert np.array_equal(a, expected, equal_nan=True)
    numbers = ~np.isnan(a)
    assert (np.signbit(a) == np.signbit(expected))[numbers].all()


def test_the_lesser_of_an_integers_value_and_nan_is_the_value(device: Device) -> None:
    """In scalar instructions too: 7 invocations that meet at a barrier fill no vector."""

    @kj.jit(workgroup=7)
    def kernel(x: kj.Array1[kj.i32], out: kj.Array2[kj.f32]) -> None:
        met = kj.shared(kj.i32, 7)
        i = kj.global_id(0)
        met[kj.local_index()] = x[i]
        kj.barrier()
        out[i, 0] = kj.min(kj.f32(x[i]), kj.bitcast(x[i], kj.f32))
        out[i, 1] = kj.max(kj.bitcast(x[i], kj.f32), kj.f32(x[i]))

    x = np.full(21, -6, np.int32)  # the bits of a NaN
    out = np.full((21, 2), 99, np.float32)
    kernel[21](x, out)
    assert np.all(out == -6)


@pytest.mark.parametrize("factor", [-1101636156, -1, 0, 5])
def test_the_upper_half_of_a_product_of_widened_integers(rng: Rng, factor: int) -> None:
    @kj.jit
    def upper(a: kj.Array1[kj.i32], out: kj.Array2[kj.i64], s: kj.i32) -> None:
        i = kj.global_id(0)
        if i < a.size:
            x, y = kj.i64(a[i]), kj.i64(s)
            out[0, i], out[1, i], out[2, i] = kj.mulhi(x, x), kj.mulhi(x, y), kj.mulhi(y, y) % 7

    a = rng.integers(-(2**31), 2**31, 61, np.int64).astype(np.int32)
    a[:6] = [0, 1, -1, 2**31 - 1, -(2**31), -3]
    out = poisoned((3, 61), np.int64)
    upper[61](a, out, factor)
    for row, pairs in enumerate(zip([(x, x) for x in a], [(x, factor) for x in a], strict=True)):
        expected = [(int(x) * int(y)) >> 64 for x, y in pairs]
        assert list(out[:2, row]) == expected
    assert (out[2] == (factor * factor >> 64) % 7).all()


def test_local_memory_from_before_a_barrier_is_read_before_it_is_replaced(rng: Rng) -> None:
    @kj.jit(workgroup=5)
    def replace(x: kj.Array1[kj.f64], out: kj.Array2[kj.f64]) -> None:
        i = kj.global_id(0)
        own = kj.local(kj.f64, 6)
        for k in range(6):
            own[k] = kj.f64(k)
        new = x[i]
        kj.barrier()
        old = own[i]
        own[(i * 7) % 6] = new
        out[0, i] = old + own[i + 2147483640]  # a check that no lane meets
        out[1, i] = own[i]

    x, out = rng.random(10), poisoned((2, 10), np.float64)
    replace[10](x, out)
    assert (out[0] == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]).all()
    assert (out[1] == [*x[:6], 0, 0, 0, 0]).all()


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_extremes_of_negated_integers_and_magnitudes(dtype: str, rng: Rng) -> None:
    @kj.jit
    def extremes(x, out):  # type: ignore[no-untyped-def]
        i = kj.global_id(0)
        if i < out.shape[1]:
            a, b, c = x[0, i], x[1, i], x[2, i]
            out[0, i] = kj.min(kj.min(a, -b), c)
            out[1, i] = kj.max(c, kj.max(-b, a))
            out[2, i] = kj.min(kj.min(a, abs(b)), c)
            out[3, i] = kj.max(kj.max(abs(a), 0 - b), c)

    kind = np.dtype(dtype.replace("i", "int")).type
    limits = np.iinfo(kind)
    x = rng.integers(limits.min, limits.max, (3, 301), kind, endpoint=True)
    x[1, :3] = limits.min
    out = poisoned((4, 301), kind)
    extremes[301](x, out)
    a, b, c = x
    low, high = np.minimum, np.maximum
    expected = [low(low(a, -b), c), high(c, high(-b, a)), low(low(a, np.abs(b)), c)]
    assert (out == [*expected, high(high(np.abs(a), -b), c)]).all()


@pytest.mark.usefixtures("device")
def test_any_all_and_extremes_look_through_every_item(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        row = [a[i, k] for k in range(4)]
        out[i, 0] = any(x > 0 for x in row)
        out[i, 1] = all(x > 0 for x in row)
        out[i, 2] = min(x * x for x in row)
        out[i, 3] = max(map(abs, row))
        out[i, 4] = any((row[0] > 1, False)) and all([True, row[1] > 0])
        out[i, 5] = any(n < 0 for n in (1, 2)) + 2 * all(n > 0 for n in (1, 2))

    a = rng.normal(size=(33, 4)).astype(np.float32)
    out = np.zeros((33, 6), np.float32)
    kernel[33](a, out)
    both = (a[:, 0] > 1) & (a[:, 1] > 0)
    expected = [(a > 0).any(1), (a > 0).all(1), (a * a).min(1), abs(a).max(1), both]
    assert (out[:, :5] == np.stack(expected, 1)).all()
    assert (out[:, 5] == 2).all()


def test_names_of_other_systems_are_answered_with_khaljits() -> None:
    for name, found in (
        ("threadIdx", "kj.local_id"),
        ("int32", "kj.i32"),
        ("prange", "grid_stride"),
    ):
        with pytest.raises(AttributeError, match=re.escape(found)):
            getattr(kj, name)
    assert not hasattr(kj, "global_idx")
