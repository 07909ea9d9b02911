"""Measures the errors of the math functions as the CPU backend computes them.

    python -m benchmarks.math_accuracy                  # f32, every 61st input; some minutes
    python -m benchmarks.math_accuracy --step 1 sin     # all inputs of one function
    python -m benchmarks.math_accuracy --f64 --count 1000000

The f32 references are NumPy's and SciPy's functions of float64, those of f64 NumPy's of long
double where that is wider than 64 bits, else mpmath's; mpmath is slow, so it sees every hundredth
input only. Printed per function: the inputs, the largest error in ulps and where it was, the
bound, and in how many inputs NaN, an infinity or the sign of a zero was wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import mpmath
import numpy as np
import scipy.special

import khaljit as kj
from khaljit.codegen.math.bounds import bound
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import MATH, Op

Array = np.ndarray[Any, Any]

_CHUNK: Final = 1 << 22
_TWO: Final = frozenset({Op.POW, Op.HYPOT, Op.ATAN2})
_REACH: Final = 200.0  # mpmath sees no arguments beyond
_NUMPY_NAMES: Final = {
    "pow": "power",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
_SCIPY_NAMES: Final = {"erf": "erf", "erfc": "erfc", "tgamma": "gamma", "lgamma": "gammaln"}
_OWN_NAMES: Final = {"tgamma": "gamma"}
_MPMATH_NAMES: Final = {**_SCIPY_NAMES, "tgamma": "gamma", "lgamma": "loggamma"}


@dataclass
class Tally:
    """What was seen of one function."""

    inputs: int = 0
    worst: float = 0.0
    where: tuple[float, ...] = ()
    wrong: int = 0


def reference(op: Op, dtype: DType) -> Callable[..., Array]:
    """The function in a wider type."""
    name = op.value
    if name == "rsqrt":
        return lambda x: 1 / np.sqrt(x)
    if name == "exp10":
        return lambda x: np.power(x.dtype.type(10), x)
    if name not in _SCIPY_NAMES:
        function: Callable[..., Array] = getattr(np, _NUMPY_NAMES.get(name, name))
        return function
    if dtype is f32:
        special: Callable[..., Array] = getattr(scipy.special, _SCIPY_NAMES[name])
        return special
    return _by_mpmath(getattr(mpmath, _MPMATH_NAMES[name]))


def _by_mpmath(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    def one(x: Any) -> Any:
        if not abs(x) < _REACH:
            return np.longdouble("nan")
        try:
            value = function(mpmath.mpf(float(x))).real
        except (ValueError, ZeroDivisionError):  # poles and NaN: the special values have tests
            return np.longdouble("nan")
        with mpmath.workprec(64):
            return np.longdouble(mpmath.nstr(+value, 25))

    def apply(x: Array) -> Array:
        with mpmath.workprec(120):
            return np.array([one(value) for value in x.tolist()], np.longdouble)

    return apply


def kernel(op: Op) -> Any:
    """A kernel that applies the function to arrays of any one type."""
    function: Any = getattr(kj, _OWN_NAMES.get(op.value, op.value))

    if op in _TWO:

        @kj.jit
        def apply_two(x, y, out) -> None:  # type: ignore[no-untyped-def]  # of any dtype
            i = kj.global_id(0)
            out[i] = function(x[i], y[i])

        return apply_two

    @kj.jit
    def apply(x, out) -> None:  # type: ignore[no-untyped-def]  # of any dtype
        i = kj.global_id(0)
        out[i] = function(x[i])

    return apply


def inputs(op: Op, dtype: DType, step: int, count: int) -> Iterator[tuple[Array, ...]]:
    """Chunks of arguments: every ``step``-th f32, or ``count`` random ones."""
    if dtype is f32 and op not in _TWO:
        for start in range(0, 1 << 32, _CHUNK * step):
            bits = np.arange(start, min(start + _CHUNK * step, 1 << 32), step)
            yield (bits.astype(np.uint32).view(np.float32),)
        return
    rng = np.random.default_rng(1)
    unsigned = np.dtype(f"u{dtype.size}")
    for _ in range(0, count, _CHUNK):
        size = min(count, _CHUNK)
        random = rng.integers(0, 1 << dtype.bits, size, unsigned.type)
        x = np.concatenate([random.view(dtype.numpy), rng.normal(0, 3, size).astype(dtype.numpy)])
        if op not in _TWO:
            yield (x,)
        else:
            yield x, rng.permutation(x)


def compare(tally: Tally, op: Op, dtype: DType, args: tuple[Array, ...], out: Array) -> None:
    """Add a chunk to what was seen."""
    wide = np.float64 if dtype is f32 else np.longdouble
    function = reference(op, dtype)
    slow = dtype is f64 and op.value in _SCIPY_NAMES
    if slow:
        args, out = tuple(a[::100] for a in args), out[::100]
    with np.errstate(all="ignore"):
        exact = function(*(a.astype(wide) for a in args))
        rounded = exact.astype(dtype.numpy)
        special = ~np.isfinite(rounded) | (rounded == 0)
        alike = (out == rounded) & (np.signbit(out) == np.signbit(rounded))
        # Next to overflow and underflow either neighbour is right: those are errors in ulps.
        wrong = special & ~alike & ~(np.isnan(out) & np.isnan(rounded))
        wrong &= ~np.isfinite(exact) | (exact == 0)
        scale = np.maximum(abs(exact), abs(function(*(abs(a).astype(wide) for a in args))))
        scale = np.maximum(scale, 1) if op is Op.LGAMMA else abs(exact)
        if op is Op.LGAMMA:
            scale = np.where(args[0] < 0, scale, abs(exact))
        least = np.finfo(dtype.numpy).tiny
        _, exponent = np.frexp(np.maximum(scale, least))
        ulp = np.ldexp(wide(1), exponent - (24 if dtype is f32 else 53))
        error = np.where(np.isfinite(out) & np.isfinite(exact), abs(out.astype(wide) - exact), 0)
        error = error / ulp
    tally.inputs += len(out)
    tally.wrong += 0 if slow else int(wrong.sum())
    place = int(error.argmax())
    if error[place] > tally.worst:
        tally.worst = float(error[place])
        tally.where = tuple(float(a[place]) for a in args)


def measure(op: Op, dtype: DType, step: int, count: int) -> Tally:
    apply = kernel(op)
    tally = Tally()
    with kj.use("cpu"):
        for args in inputs(op, dtype, step, count):
            out = np.empty_like(args[0])
            apply[len(out)](*args, out)
            compare(tally, op, dtype, args, out)
    return tally


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="functions; all when none is named")
    parser.add_argument("--f64", action="store_true", help="f64 instead of f32")
    parser.add_argument("--step", type=int, default=61, help="of the bits of f32 inputs")
    parser.add_argument("--count", type=int, default=_CHUNK, help="random inputs otherwise")
    options = parser.parse_args()
    dtype = f64 if options.f64 else f32
    names = options.names or sorted(op.value for op in MATH)
    print(f"{'function':10}{'inputs':>12}{'worst ulp':>11}{'bound':>7}{'wrong':>7}  where")
    for name in names:
        tally = measure(Op(name), dtype, options.step, options.count)
        limit = bound(Op(name), dtype)
        row = f"{name:10}{tally.inputs:12}{tally.worst:11.4f}{limit:7.2f}{tally.wrong:7}"
        print(f"{row}  {', '.join(map(repr, tally.where))}", flush=True)


if __name__ == "__main__":
    main()
