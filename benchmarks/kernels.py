"""The workloads as khaljit kernels, written as a user would at the first try.

Each is a plain function; `variant` makes a kernel of it in one of the modes that the suites
compare. Where several invocations of a workgroup work together the workgroup is explicit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import khaljit as kj
from benchmarks.constants import (
    A1,
    A2,
    A3,
    A4,
    A5,
    BINS,
    GAMMA,
    HALF_ROOT,
    RATE,
    ROOT_TAU_INVERSE,
    SOFTENING,
    TILE,
    VOLATILITY,
)

__all__ = [
    "BLOCK",
    "MODES",
    "WORKGROUPS",
    "black_scholes_erf",
    "black_scholes_polynomial",
    "blur",
    "histogram",
    "launch_2",
    "launch_8",
    "mandelbrot",
    "matmul",
    "matmul_tiled",
    "nbody_arrays",
    "nbody_vec3",
    "saxpy",
    "stencil",
    "total",
    "variant",
]

BLOCK: Final = 16384  # elements that a workgroup adds up


def saxpy(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    """y = a x + y"""
    i = kj.global_id(0)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def matmul(a: kj.Array2[kj.f32], b: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """One element of the product an invocation."""
    row, column = kj.index(2)
    total = 0.0
    for k in range(a.shape[1]):
        total += a[row, k] * b[k, column]
    out[row, column] = total


def matmul_tiled(a: kj.Array2[kj.f32], b: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """The same, a tile of both factors at a time in shared memory."""
    tile_a = kj.shared(kj.f32, (TILE, TILE))
    tile_b = kj.shared(kj.f32, (TILE, TILE))
    x, y = kj.local_id(0), kj.local_id(1)
    column, row = kj.global_id(0), kj.global_id(1)
    total = 0.0
    for start in range(0, a.shape[1], TILE):
        tile_a[y, x] = a[row, start + x]
        tile_b[y, x] = b[start + y, column]
        kj.barrier()
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        kj.barrier()
    out[row, column] = total


def nbody_vec3(positions: kj.Array1[kj.vec3], out: kj.Array1[kj.vec3]) -> None:
    """The acceleration of each body of unit mass by all, positions as vectors."""
    i = kj.global_id(0)
    if i < positions.size:
        me = positions[i]
        pull = kj.vec3(0.0, 0.0, 0.0)
        for j in range(positions.size):
            apart = positions[j] - me
            inverse = kj.rsqrt(kj.dot(apart, apart) + SOFTENING)
            pull += apart * (inverse * inverse * inverse)
        out[i] = pull


def nbody_arrays(
    x: kj.Array1[kj.f32],
    y: kj.Array1[kj.f32],
    z: kj.Array1[kj.f32],
    out_x: kj.Array1[kj.f32],
    out_y: kj.Array1[kj.f32],
    out_z: kj.Array1[kj.f32],
) -> None:
    """The same, an array for each coordinate."""
    i = kj.global_id(0)
    if i < x.size:
        pull_x, pull_y, pull_z = 0.0, 0.0, 0.0
        for j in range(x.size):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            inverse = 1.0 / kj.sqrt(dx * dx + dy * dy + dz * dz + SOFTENING)
            cubed = inverse * inverse * inverse
            pull_x += dx * cubed
            pull_y += dy * cubed
            pull_z += dz * cubed
        out_x[i] = pull_x
        out_y[i] = pull_y
        out_z[i] = pull_z


def mandelbrot(out: kj.Array2[kj.i32], limit: kj.i32) -> None:
    """Iterations until the point escapes, over [-2, 1] x [-1.5, 1.5]."""
    x, y = kj.global_id(0), kj.global_id(1)
    height, width = out.shape
    if x < width and y < height:
        cr = -2.0 + 3.0 * x / width
        ci = -1.5 + 3.0 * y / height
        zr, zi, count = 0.0, 0.0, 0
        while count < limit and zr * zr + zi * zi <= 4.0:
            zi, zr = 2.0 * zr * zi + ci, zr * zr - zi * zi + cr
            count += 1
        out[y, x] = count


def stencil(x: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """A step of diffusion on five points, those of the border repeated outwards."""
    row, column = kj.index(2)
    height, width = x.shape
    up, down = x[max(row - 1, 0), column], x[min(row + 1, height - 1), column]
    left, right = x[row, max(column - 1, 0)], x[row, min(column + 1, width - 1)]
    out[row, column] = 0.5 * x[row, column] + 0.125 * (up + down + left + right)


def blur(x: kj.Array2[kj.f32], weights: kj.Array1[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """Weighted means along rows, the border repeated outwards."""
    row, column = kj.index(2)
    total, first = 0.0, column - weights.size // 2
    for k in range(weights.size):
        total += weights[k] * x[row, kj.clamp(first + k, 0, x.shape[1] - 1)]
    out[row, column] = total


def total(values: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
    """The sum: each workgroup adds up a block, and its sum to the whole by an atomic."""
    mine, first = 0.0, kj.workgroup_id(0) * BLOCK
    for i in range(first + kj.local_id(0), min(first + BLOCK, values.size), kj.workgroup_size(0)):
        mine += values[i]
    together = kj.workgroup_add(mine)
    if kj.local_index() == 0:
        kj.atomic_add(out, 0, together)


def histogram(levels: kj.Array1[kj.u8], bins: kj.Array1[kj.u32]) -> None:
    """Each workgroup counts in shared memory, and adds its counts to the whole at the end."""
    own = kj.shared(kj.u32, BINS)
    me = kj.local_index()
    own[me] = 0
    kj.barrier()
    for i in kj.grid_stride(levels.size):
        kj.atomic_add(own, levels[i], 1)
    kj.barrier()
    kj.atomic_add(bins, me, own[me])


def black_scholes_erf(
    price: kj.Array1[kj.f32],
    strike: kj.Array1[kj.f32],
    years: kj.Array1[kj.f32],
    call: kj.Array1[kj.f32],
    put: kj.Array1[kj.f32],
) -> None:
    """European options, the normal distribution by the error function."""
    i = kj.global_id(0)
    if i < price.size:
        s, k, t = price[i], strike[i], years[i]
        spread = VOLATILITY * kj.sqrt(t)
        d1 = (kj.log(s / k) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * t) / spread
        d2 = d1 - spread
        n1 = 0.5 + 0.5 * kj.erf(d1 * HALF_ROOT)
        n2 = 0.5 + 0.5 * kj.erf(d2 * HALF_ROOT)
        later = k * kj.exp(-RATE * t)
        call[i] = s * n1 - later * n2
        put[i] = later * (1.0 - n2) - s * (1.0 - n1)


def _normal(d: Any) -> Any:
    """The normal distribution by a polynomial in 1 / (1 + gamma |d|)."""
    t = 1.0 / (1.0 + GAMMA * abs(d))
    tail = t * (A1 + t * (A2 + t * (A3 + t * (A4 + t * A5))))
    upper = ROOT_TAU_INVERSE * kj.exp(-0.5 * d * d) * tail
    return 1.0 - upper if d > 0.0 else upper


def black_scholes_polynomial(
    price: kj.Array1[kj.f32],
    strike: kj.Array1[kj.f32],
    years: kj.Array1[kj.f32],
    call: kj.Array1[kj.f32],
    put: kj.Array1[kj.f32],
) -> None:
    """The same, the normal distribution by a polynomial."""
    i = kj.global_id(0)
    if i < price.size:
        s, k, t = price[i], strike[i], years[i]
        spread = VOLATILITY * kj.sqrt(t)
        d1 = (kj.log(s / k) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * t) / spread
        d2 = d1 - spread
        n1, n2 = _normal(d1), _normal(d2)
        later = k * kj.exp(-RATE * t)
        call[i] = s * n1 - later * n2
        put[i] = later * (1.0 - n2) - s * (1.0 - n1)


# Kernels of no work, for the cost of a launch.


def launch_2(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    """Two arrays and a scalar."""
    i = kj.global_id(0)
    if i < y.size:
        y[i] = a * x[i]


def launch_8(
    a: kj.Array1[kj.f32],
    b: kj.Array1[kj.f32],
    c: kj.Array1[kj.f32],
    d: kj.Array1[kj.f32],
    e: kj.Array1[kj.f32],
    f: kj.Array1[kj.f32],
    g: kj.Array1[kj.f32],
    out: kj.Array1[kj.f32],
) -> None:
    """Eight arrays."""
    i = kj.global_id(0)
    if i < out.size:
        out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]


# What stands in the decorator of each, and the modes that the suites compare.

WORKGROUPS: Final[dict[Callable[..., None], int | tuple[int, ...]]] = {
    matmul_tiled: (TILE, TILE),
    total: 64,
    histogram: BINS,
}

MODES: Final[dict[str, dict[str, bool]]] = {
    "khaljit": {},
    "khaljit unchecked": {"unchecked": True},
    "khaljit fastmath": {"fastmath": True},
}


@cache
def variant(function: Callable[..., None], mode: str) -> Any:
    """The kernel of a function in a mode."""
    make: Any = kj.jit
    return make(workgroup=WORKGROUPS.get(function), **MODES[mode])(function)
