"""The kernels of the WebGPU benchmarks: each in khaljit's language and as WGSL written by hand.

The WGSL is what one would write at the first try: bounds checked where the grid may stick out,
sizes passed as numbers, row by row. Both sides have the same workgroups, so they do the same work.

WGSL's rules are those of khaljit's `fastmath`: a driver may fuse a product and a sum or not, and
its fma need not fuse. So the like of the WGSL is `FAST`; the plain kernels promise more, at no cost
where fma fuses (on GPUs), and at some where it has to be computed (on lavapipe).
"""

from __future__ import annotations

from typing import Any, Final

import khaljit as kj

__all__ = ["FAST", "NUMBERS", "PLAIN", "SOURCES", "TILE"]

TILE: Final = 16


@kj.jit(workgroup=256)
def saxpy(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], factor: kj.f32) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] += factor * x[i]


@kj.jit(workgroup=(TILE, TILE))
def matmul(a: kj.Array2[kj.f32], b: kj.Array2[kj.f32], c: kj.Array2[kj.f32]) -> None:
    column, row = kj.global_id(0), kj.global_id(1)
    if row < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@kj.jit(workgroup=(TILE, TILE))
def tiled(a: kj.Array2[kj.f32], b: kj.Array2[kj.f32], c: kj.Array2[kj.f32]) -> None:
    left, right = kj.shared(kj.f32, (TILE, TILE)), kj.shared(kj.f32, (TILE, TILE))
    x, y = kj.local_id(0), kj.local_id(1)
    column, row = kj.global_id(0), kj.global_id(1)
    total = 0.0
    for start in range(0, a.shape[1], TILE):
        left[y, x] = a[row, start + x]
        right[y, x] = b[start + y, column]
        kj.barrier()
        for k in kj.unroll(range(TILE)):
            total += left[y, k] * right[k, x]
        kj.barrier()
    c[row, column] = total


PLAIN: Final[dict[str, Any]] = {"saxpy": saxpy, "matmul": matmul, "tiled": tiled}
_SIZES_OF: Final[dict[str, Any]] = {"saxpy": 256, "matmul": (TILE, TILE), "tiled": (TILE, TILE)}
FAST: Final[dict[str, Any]] = {
    name: kj.jit(workgroup=_SIZES_OF[name], fastmath=True)(kernel.__wrapped__)
    for name, kernel in PLAIN.items()
}

# Hand-written; NUMBERS is where the numbers come from on the device at hand.

NUMBERS: Final = {
    "immediates": "var<immediate> numbers: Numbers;",
    "uniform": "@group(0) @binding(3) var<uniform> numbers: Numbers;",
}

_SAXPY: Final = """
struct Numbers { factor: f32, size: u32 }
NUMBERS
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let i = id.x;
    if (i < numbers.size) { y[i] = fma(numbers.factor, x[i], y[i]); }
}
"""

_SIZES: Final = """
struct Numbers { rows: u32, inner: u32, columns: u32 }
NUMBERS
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
"""

_MATMUL: Final = (
    _SIZES
    + """
@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let n = numbers;
    if (id.y < n.rows && id.x < n.columns) {
        var total = 0.0;
        for (var k = 0u; k < n.inner; k++) {
            total = fma(a[id.y * n.inner + k], b[k * n.columns + id.x], total);
        }
        c[id.y * n.columns + id.x] = total;
    }
}
"""
)


def _unrolled() -> str:
    steps = (f"total = fma(left[y * 16u + {k}u], right[{k * 16}u + x], total);" for k in range(16))
    return "\n            ".join(steps)


_TILED: Final = (
    _SIZES
    + f"""
var<workgroup> left: array<f32, 256>;
var<workgroup> right: array<f32, 256>;
@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(local_invocation_id) local: vec3u) {{
    let n = numbers;
    let x = local.x;
    let y = local.y;
    var total = 0.0;
    for (var start = 0u; start < n.inner; start += 16u) {{
        if (id.y < n.rows && start + x < n.inner) {{
            left[y * 16u + x] = a[id.y * n.inner + start + x];
        }} else {{ left[y * 16u + x] = 0.0; }}
        if (start + y < n.inner && id.x < n.columns) {{
            right[y * 16u + x] = b[(start + y) * n.columns + id.x];
        }} else {{ right[y * 16u + x] = 0.0; }}
        workgroupBarrier();
            {_unrolled()}
        workgroupBarrier();
    }}
    if (id.y < n.rows && id.x < n.columns) {{ c[id.y * n.columns + id.x] = total; }}
}}
"""
)

SOURCES: Final = {"saxpy": _SAXPY, "matmul": _MATMUL, "tiled": _TILED}
