"""Loops with ``else`` and loop variables behind their loops, on every device, against Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import khaljit as kj

pytestmark = pytest.mark.usefixtures("device")

Rng = np.random.Generator


def agree(body: Callable[..., Any], rng: Rng, size: int = 65) -> None:
    """A function of an array of 12 numbers and another number gives the same as in Python."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32], x: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i] = body(a, x[i])

    a = rng.integers(0, 20, 12).astype(np.int32)
    x = rng.integers(-2, 22, size).astype(np.int32)
    out = np.full(size, 77, np.int32)
    kernel[size](a, x, out)
    expected = [int(body(a, int(one))) for one in x]
    assert out.tolist() == expected


def search(a: Any, x: Any) -> Any:
    for k in range(a.size):
        if a[k] == x:
            found = k
            break
    else:
        found = -1
    return kj.i32(found) if isinstance(a, kj.Array) else found


def search_by_while(a: Any, x: Any) -> Any:
    k = 0
    while k < len(a):
        if a[k] == x:
            found, twice = k, 2 * k
            break
        k += 1
    else:
        found, twice = -1, 0
    return found + twice


def search_in_pairs(a: Any, x: Any) -> Any:
    """A loop with an else inside another; continue and break of either."""
    total = 0
    for j in range(4):
        if (x + j) % 3 == 0:
            continue
        for k in range(j, 12, 2):
            if a[k] > x:
                first = a[k]
                break
            if a[k] == 7:
                continue
            total += 1
        else:
            if total > 9:
                break
            first = 100
            continue
        total += first
    else:
        total += 1000
    return total


def search_among_items(a: Any, x: Any) -> Any:
    """Over items that are known while recording, left by a run-time condition."""
    for item in (3, 5, 8):
        if a[item] > x:
            found = item
            break
    else:
        found = -1
    return found


def search_with_return(a: Any, x: Any) -> Any:
    for k in range(12):
        if a[k] == x:
            return k
        if a[k] > 2 * x:
            result = -k
            break
    else:
        return 500
    return result


def search_on_host(a: Any, x: Any) -> Any:
    """The jump is decided while recording."""
    for item in (3, 5, 8):
        if item == 5:
            break
    else:
        x = 1000
    for item in (3, 5, 8):
        if item == 6:
            break
    else:
        x = x + a[item]
    return x


@pytest.mark.parametrize(
    "body",
    [
        search,
        search_by_while,
        search_in_pairs,
        search_among_items,
        search_with_return,
        search_on_host,
    ],
    ids=lambda body: body.__name__,
)
def test_a_loop_with_else(body: Callable[..., Any], rng: Rng) -> None:
    for _ in range(3):
        agree(body, rng)


def test_a_loop_with_else_keeps_the_workgroup_together(rng: Rng) -> None:
    """The loop is left by all at once, so barriers may follow in it, in its else and behind it."""

    @kj.jit(workgroup=32)
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)
        for k in range(n):
            total = kj.workgroup_add(a[i] + k)
            if total > 40:
                found = total
                break
        else:
            found = -kj.workgroup_max(a[i])
        out[i] = found + kj.workgroup_min(a[i])

    a = rng.integers(-5, 5, 96).astype(np.int32)
    for n in (0, 2, 9):
        out = np.full(96, 77, np.int32)
        kernel[96](a, out, n)
        for group, results in zip(a.reshape(3, 32), out.reshape(3, 32), strict=True):
            totals = [int(group.sum()) + 32 * k for k in range(n)]
            late = [total for total in totals if total > 40]
            found = late[0] if late else -int(group.max())
            assert results.tolist() == [found + int(group.min())] * 32


def last(a: Any, x: Any) -> Any:
    for k in range(12):
        if a[k] > x:
            break
    return k


def last_of_steps(a: Any, x: Any) -> Any:
    for k in range(11, 0, -3):
        if a[k] == x:
            break
        if a[k] < 4:
            continue
        x = x + 1
    return 100 * k + x


def last_of_nested(a: Any, x: Any) -> Any:
    total = 0
    for j in range(3):
        for k in range(2, 9):
            if a[k] > x:
                break
        total += (j + 1) * k
    return total


def last_of_one(a: Any, x: Any) -> Any:
    for k in range(5, 6):
        x = x + a[k]
    return x + k


@pytest.mark.parametrize(
    "body", [last, last_of_steps, last_of_nested, last_of_one], ids=lambda body: body.__name__
)
def test_a_loop_variable_is_known_behind_a_loop_that_runs(
    body: Callable[..., Any], rng: Rng
) -> None:
    agree(body, rng)


@pytest.mark.parametrize("bounds", [(0,), (3, 3), (3, 5, -1)])
def test_a_loop_variable_has_no_value_behind_a_loop_that_does_not_run(
    bounds: tuple[int, ...],
) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        for k in range(*bounds):
            a[k] = k
        a[0] = k

    with pytest.raises(kj.TraceError, match="k may have no value here"):
        kernel[1](np.zeros(1, np.int32))


def test_a_loop_variable_that_had_a_value_keeps_it_where_the_loop_does_not_run() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        k = -5
        for k in range(n):
            a[1] = k
        a[0] = k

    for n, expected in ((0, -5), (1, 0), (7, 6)):
        a = np.zeros(2, np.int32)
        kernel[1](a, n)
        assert a[0] == expected
