"""Generated programs: what they are, and the arguments they are called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from khaljit.tracer.dtypes import DType, bf16, bool_

__all__ = ["DEFECTS", "Parameter", "Program", "arguments", "edges", "numbers"]

# Statements that are refused, with what the message says.
DEFECTS: Final = {
    "mixed signs": "no type holds both",
    "float to integer": "is stored to",
    "literal too large": "does not fit",
    "changed type": "bad",
    "one path": "bad",
    "number of axes": "is indexed with",
    "barrier apart": "not uniform|barrier",
}


@dataclass(frozen=True)
class Parameter:
    """An array parameter: how its argument is made."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    view: str = "plain"  # or "reversed", "stepped", "turned", "shifted"
    fill: int | None = None  # the one value; random if None


@dataclass(frozen=True)
class Program:
    """A kernel's source with what it is called with."""

    seed: int
    source: str
    workgroup: tuple[int, ...] | None
    grid: tuple[int, ...]
    arrays: tuple[Parameter, ...]
    scalars: tuple[tuple[str, DType, Any], ...]
    defect: str | None
    plain: bool  # plain Python, one invocation after another, gives the same

    @property
    def floats(self) -> bool:
        """Whether it computes with floats."""
        return any(one.dtype.is_float for one in self.arrays)


def edges(dtype: DType) -> list[Any]:
    """Values that go wrong first; for bf16 its bits."""
    if dtype is bool_:
        return [False, True]
    if dtype is bf16:
        return [0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 1, 0x8001, 0x7F7F, 0x80]
    if dtype.is_float:
        info = np.finfo(dtype.numpy)
        tiny, least, most = info.tiny, info.smallest_subnormal, info.max
        special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5]
        whole = min(2.0**dtype.bits, float(most))
        return [*special, tiny, -tiny, least, -least, most, -most, whole, info.eps]
    low, high = dtype.limits
    return sorted({0, 1, 2, high, high - 1, low, low + 1, max(low, -1), dtype.bits, high >> 1})


def numbers(rng: np.random.Generator, dtype: DType, count: int) -> NDArray[Any]:
    """Small, large and special numbers of a type."""
    kind = dtype.numpy
    if dtype is bool_:
        return rng.integers(0, 2, count).astype(np.bool_)
    with np.errstate(over="ignore"):
        special = rng.choice(np.array(edges(dtype), kind), count)
        if dtype is bf16:
            small: NDArray[Any] = rng.integers(-20, 20, count) / 4
            small = small.astype(np.float32).view(np.uint32) >> 16
            wild = rng.integers(0, 1 << 16, count)
        elif dtype.is_float:
            small = rng.integers(-20, 20, count) / 4
            wild = rng.normal(size=count) * 10.0 ** rng.integers(-6, 7, count)
        else:
            low, high = dtype.limits
            small = rng.integers(max(low, -9), 10, count)
            wild = rng.integers(low, high, count, kind, endpoint=True)
        which = rng.integers(0, 5, count)
        return np.select(
            [which == 0, which < 3], [special, wild.astype(kind)], small.astype(kind)
        ).astype(kind)


def arguments(program: Program) -> dict[str, Any]:
    """Fresh arguments, the same at each call."""
    rng = np.random.default_rng(program.seed)
    made: dict[str, Any] = {}
    for one in program.arrays:
        made[one.name] = _array(rng, one)
    for name, dtype, value in program.scalars:
        made[name] = value if dtype is bf16 else dtype.numpy.type(value)
    return made


def _array(rng: np.random.Generator, one: Parameter) -> NDArray[Any]:
    count = int(np.prod(one.shape))
    if one.fill is not None:
        return np.full(one.shape, one.fill, one.dtype.numpy)
    values = numbers(rng, one.dtype, count).reshape(one.shape)
    if one.view == "reversed":
        return values[::-1]
    if one.view == "stepped":
        wide = np.zeros((*one.shape[:-1], 3 * one.shape[-1]), values.dtype)
        wide[..., ::3] = values
        return wide[..., ::3]
    if one.view == "turned":
        return np.asfortranarray(values)
    if one.view == "shifted":  # not aligned to more than an element
        backing = np.zeros(count + 1, values.dtype)
        backing[1:] = values.ravel()
        return backing[1:].reshape(one.shape)
    return values
