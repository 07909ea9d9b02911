"""What other systems, Python and NumPy call something that kernels have under another name, or that
cannot be in a kernel: for the mends of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from khaljit.tracer.dtypes import meant

__all__ = ["instead_of", "of_name", "once"]

# Names of CUDA, Numba, Triton, Taichi and Warp.
_NAMES: Final = {
    "threadIdx": "kj.local_id(axis)",
    "blockIdx program_id": "kj.workgroup_id(axis)",
    "blockDim": "kj.workgroup_size(axis)",
    "gridDim num_programs": "kj.num_workgroups(axis)",
    "grid tid": "kj.global_id(axis), or kj.index(n) in the order of an array's axes",
    "gridsize prange": "for i in kj.grid_stride(n)",
    "ndrange grouped": "kernel[kj.over(a)] and kj.index(n)",
    "syncthreads debug_barrier": "kj.barrier()",
    "syncwarp": "kj.subgroup_barrier()",
    "threadfence mem_fence": "kj.storage_barrier()",
    "warpsize": "kj.subgroup_size()",
    "laneid": "kj.lane_id()",
    "shfl_sync shfl": "kj.subgroup_shuffle(x, lane)",
    "shfl_down_sync shfl_up_sync shfl_xor_sync": "kj.subgroup_shuffle_down(x, n), ..._up, ..._xor",
    "ballot_sync ballot": "kj.subgroup_ballot(condition)",
    "shared_array tile_zeros": "kj.shared(dtype, shape)",
    "zeros empty local_array": "kj.local(dtype, shape)",
    "load store": "a[i]",
    "static_range static": "kj.unroll(range(n))",
    "constexpr": "kj.Const",
    "kernel": "@kj.jit",
    "func function": "a plain function: what a kernel calls is recorded with it",
    "where": "kj.select(condition, a, b)",
    "atomic_cas": "kj.atomic_compare_exchange(a, i, expected, desired)",
    "rand randn random": "kj.random_uniform(seed, i) or kj.random_normal(seed, i)",
    "ndarray array Array4": "kj.Array[kj.f32], of any number of axes",
}
_BY_NAME: Final = {name: text for names, text in _NAMES.items() for name in names.split()}

# Functions of Python and NumPy, by their names with the module's.
_FUNCTIONS: Final = {
    "numpy.zeros numpy.empty numpy.ones numpy.full": "kj.local(dtype, shape)",
    "numpy.array numpy.asarray numpy.stack": "a tuple, kj.vec3(x, y, z) or kj.local(dtype, shape)",
    "numpy.dot numpy.inner numpy.vdot": "kj.dot(a, b) of vectors, or a loop",
    "numpy.cross": "kj.cross(a, b) of vectors",
    "numpy.matmul": "a @ b of kj's matrices, or a loop",
    "numpy.linalg.norm math.dist": "kj.length(v) of a vector",
    "math.factorial math.comb math.perm": "kj.gamma(n + 1)",
    "math.isclose numpy.isclose": "abs(a - b) <= tolerance",
    "builtins.sorted": "min and max of pairs, or a loop",
    "builtins.hash": "kj.bitcast(x, kj.u32), or kj.philox(seed, ...) for random bits",
}
_BY_FUNCTION: Final = {name: text for names, text in _FUNCTIONS.items() for name in names.split()}


def of_name(name: str) -> str | None:
    """What khaljit has for a name of another system's."""
    return _BY_NAME.get(name) or meant(name)


def instead_of(name: str, array: bool) -> str:
    """The mend for a function of the host that has no meaning, called with an array or not."""
    found = _BY_FUNCTION.get(name)
    if found:
        return f"write {found}"
    if array:
        return "an array is read element by element: loop over its indices"
    return "docs/math.md lists the functions of the host that have one; or use khaljit's own"


def once(function: Callable[..., Any]) -> str | None:
    """What to write for a function of which each call gives something else; None for others."""
    owner = type(getattr(function, "__self__", None)).__module__
    for module in (getattr(function, "__module__", None) or "", owner):
        if module in ("random", "secrets") or module.startswith("numpy.random"):
            return "kj.random_uniform(seed, i) draws for each invocation; or draw outside"
        if module == "time":
            return "take the time outside; device.profile() times launches"
    return None
