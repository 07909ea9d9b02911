"""Kernels with one mistake each, for the golden messages of ``test_errors.py``.

Each function takes arrays ``a`` (f32), ``n`` (i32), ``u`` (u32), all of 8 elements. Lines may move:
the golden files hold the source line, and ``LINE`` for its number.
"""

# ruff: noqa: B018, SIM105
from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

import khaljit as kj

TABLE = np.arange(4)
NAMES = ["x"]
LEAKED: list[Any] = []
GENERATOR = np.random.default_rng()


def raises(a: Any, n: Any, u: Any) -> None:
    if a[0] > 0:
        raise ValueError("negative")


def captures_array(a: Any, n: Any, u: Any) -> None:
    a[0] = TABLE[n[0]]


def adds_captured_array(a: Any, n: Any, u: Any) -> None:
    a[0] = a[0] + TABLE


def undefined_on_one_path(a: Any, n: Any, u: Any) -> None:
    if n[0] > 2:
        t = 1.0
    a[0] = t


def undefined_after_loop(a: Any, n: Any, u: Any) -> None:
    for k in range(n[0]):
        last = k
    a[0] = last


def strong_type_changes_in_loop(a: Any, n: Any, u: Any) -> None:
    x = a[0]
    for _ in range(3):
        x = kj.i32(x)
    a[0] = x


def strong_type_changes_at_branch(a: Any, n: Any, u: Any) -> None:
    x = n[1]
    if n[0] > 0:
        x = a[0]
    a[0] = x


def signed_with_unsigned(a: Any, n: Any, u: Any) -> None:
    n[0] = n[0] + u[0]


def literal_does_not_fit(a: Any, n: Any, u: Any) -> None:
    n[0] = n[0] * 0x9E3779B9


def negative_literal_with_unsigned(a: Any, n: Any, u: Any) -> None:
    u[0] = u[0] & ~1


def float_stored_to_integer(a: Any, n: Any, u: Any) -> None:
    n[0] = a[0]


def float_literal_stored_to_integer(a: Any, n: Any, u: Any) -> None:
    n[0] = 0.5


def barrier_in_divergent_flow(a: Any, n: Any, u: Any) -> None:
    if kj.local_id(0) < 3:
        kj.barrier()


def barrier_after_divergent_return(a: Any, n: Any, u: Any) -> None:
    if kj.global_id(0) >= a.size:
        return
    kj.barrier()


def barrier_after_divergent_break(a: Any, n: Any, u: Any) -> None:
    for k in range(4):
        if n[kj.local_id(0)] == k:
            break
        kj.barrier()


def try_statement(a: Any, n: Any, u: Any) -> None:
    try:
        a[0] = 1.0
    except ValueError:
        pass


def with_statement(a: Any, n: Any, u: Any) -> None:
    with open("file"):
        a[0] = 1.0


def del_statement(a: Any, n: Any, u: Any) -> None:
    x = a[0]
    del x


def global_statement(a: Any, n: Any, u: Any) -> None:
    global LEAKED
    LEAKED = [a[0]]


def generator(a: Any, n: Any, u: Any) -> Any:
    yield a[0]


def match_statement(a: Any, n: Any, u: Any) -> None:
    match n[0]:
        case 1:
            a[0] = 1.0


def unknown_attribute(a: Any, n: Any, u: Any) -> None:
    a[0] = a.length


def unknown_function(a: Any, n: Any, u: Any) -> None:
    a[0] = kj.sqroot(a[0])  # type: ignore[attr-defined]  # the mistake


def foreign_function(a: Any, n: Any, u: Any) -> None:
    a[0] = np.linalg.norm(a[0])


def returns_a_value(a: Any, n: Any, u: Any) -> Any:
    return a[0]


def negative_index(a: Any, n: Any, u: Any) -> None:
    a[-1] = 0.0


def float_index(a: Any, n: Any, u: Any) -> None:
    a[a[0]] = 0.0


def wrong_number_of_axes(a: Any, n: Any, u: Any) -> None:
    a[0, 1] = 0.0


def iterates_an_array(a: Any, n: Any, u: Any) -> None:
    for x in a:
        x


def slices_an_array(a: Any, n: Any, u: Any) -> None:
    a[1:3]


def list_by_run_time_index(a: Any, n: Any, u: Any) -> None:
    NAMES[n[0]]


def mutates_a_list_in_a_branch(a: Any, n: Any, u: Any) -> None:
    if n[0] > 0:
        NAMES.append("y")


def attribute_of_host_object(a: Any, n: Any, u: Any) -> None:
    kj.workgroup = n[0]  # type: ignore[attr-defined]  # the mistake


def vector_into_scalar(a: Any, n: Any, u: Any) -> None:
    a[0] = kj.vec3(1.0)


def missing_component(a: Any, n: Any, u: Any) -> None:
    a[0] = kj.vec2(1.0).z


def bitwise_on_floats(a: Any, n: Any, u: Any) -> None:
    a[0] = a[0] & 1


def arithmetic_on_bools(a: Any, n: Any, u: Any) -> None:
    n[0] = (n[0] > 1) + (n[1] > 1)


def bitwise_atomic_on_floats(a: Any, n: Any, u: Any) -> None:
    kj.atomic_or(a, 0, 1.0)


def shape_known_only_at_run_time(a: Any, n: Any, u: Any) -> None:
    kj.shared(kj.f32, n[0])


def range_of_floats(a: Any, n: Any, u: Any) -> None:
    for _ in range(a[0]):
        pass


def python_int_needed(a: Any, n: Any, u: Any) -> None:
    "abc"[n[0]]


def recursive(x: Any) -> Any:
    return recursive(x - 1)


def recursion(a: Any, n: Any, u: Any) -> None:
    a[0] = recursive(a[0])


def walrus_in_condition(a: Any, n: Any, u: Any) -> None:
    if n[0] > 0 and (y := n[1]) > 0:
        n[0] = y


def function_chosen_at_run_time(a: Any, n: Any, u: Any) -> None:
    double: Any = (lambda x: x + 1) if n[0] > 0 else (lambda x: x * 2)
    a[0] = double(a[0])


def operates_on_a_whole_array(a: Any, n: Any, u: Any) -> None:
    a += 1


def compares_whole_arrays(a: Any, n: Any, u: Any) -> None:
    if a == n:
        a[0] = 1.0


def calls_an_array(a: Any, n: Any, u: Any) -> None:
    a[0] = a(1)


def sums_an_array(a: Any, n: Any, u: Any) -> None:
    a[0] = np.sum(a)


def makes_an_array(a: Any, n: Any, u: Any) -> None:
    a[0] = np.array([a[0], a[1]])[0]


def writes_an_array_of_its_own(a: Any, n: Any, u: Any) -> None:
    own = np.zeros(4)
    own[0] = a[0]


def sorts_values(a: Any, n: Any, u: Any) -> None:
    a[0] = sorted((a[0], a[1]))[0]


def formats_by_percent(a: Any, n: Any, u: Any) -> None:
    print("%s" % n[0])  # noqa: UP031  # the mistake


def draws_on_the_host(a: Any, n: Any, u: Any) -> None:
    a[0] = random.random()


def draws_with_numpy(a: Any, n: Any, u: Any) -> None:
    a[0] = GENERATOR.normal()


def reads_the_clock(a: Any, n: Any, u: Any) -> None:
    a[0] = time.perf_counter()


def a_name_of_cuda(a: Any, n: Any, u: Any) -> None:
    a[kj.threadIdx.x] = 0.0  # type: ignore[attr-defined]  # the mistake


def enumerates_a_range(a: Any, n: Any, u: Any) -> None:
    for k, i in enumerate(range(n[0])):
        a[i] = k


def takes_a_number_apart(a: Any, n: Any, u: Any) -> None:
    x, _ = a[0]
    a[1] = x


def casts_by_method(a: Any, n: Any, u: Any) -> None:
    a[0] = n[0].astype(np.float32)


def negative_extent(a: Any, n: Any, u: Any) -> None:
    kj.shared(kj.f32, (8, -1))


def shared_of_a_numpy_type(a: Any, n: Any, u: Any) -> None:
    kj.shared(np.float32, 8)


def _positive(x: Any) -> Any:
    if x > 0:
        return x


def returns_nothing_at_one_end(a: Any, n: Any, u: Any) -> None:
    a[0] = _positive(a[1])


def a_vector_where_a_number_was(a: Any, n: Any, u: Any) -> None:
    total: Any = 0
    for k in range(n[0]):
        total += kj.vec2(a[k], 1.0)
    a[0] = total.x


def types_at_a_choice(a: Any, n: Any, u: Any) -> None:
    a[0] = n[0] if a[0] > 1 else u[0]


def none_is_indexed(a: Any, n: Any, u: Any) -> None:
    nothing: Any = None
    a[0] = nothing[n[0]]


def a_call_over_several_lines(a: Any, n: Any, u: Any) -> None:
    a[0] = np.linalg.norm(
        a[0],
    )


UNTYPED: Any = kj  # whose types would tell the mistakes


def leaves_an_argument_out(a: Any, n: Any, u: Any) -> None:
    a[0] = UNTYPED.clamp(a[1], 0.0)


def misnames_an_argument(a: Any, n: Any, u: Any) -> None:
    a[0] = UNTYPED.mix(a[1], a[2], weight=0.5)


def casts_two_numbers(a: Any, n: Any, u: Any) -> None:
    a[0] = UNTYPED.f32(a[1], a[2])


def passes_too_many_to_a_helper(a: Any, n: Any, u: Any) -> None:
    helper: Any = _positive
    a[0] = helper(a[1], a[2])
