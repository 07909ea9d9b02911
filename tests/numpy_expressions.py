"""Random expressions that NumPy evaluates as well as kernels do.

``python -m tests.numpy_expressions --expressions 20000 --columns interpreter,cpu`` runs a great
number of them; ``tests/test_numpy_expressions.py`` a few in every run of the tests. A program is a
kernel with many expressions over a few types, and rows of numbers among which are the ends of each
type, NaN, infinities, zeros of both signs and subnormals. Results are the same bits, NaN aside.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import (
    ALL,
    DType,
    Kind,
    MixError,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    promote,
)
from tests.numpy_numbers import NAMESPACE, Numbers, held

Array = np.ndarray[Any, np.dtype[Any]]

TYPES: Final = tuple(one for one in ALL if one.kind is not Kind.INDEX and one is not bool_)
COLUMNS: Final = 2  # variables of each type
DEPTH: Final = 4

_ARITHMETIC: Final = ("{0} + {1}", "{0} - {1}", "{0} * {1}")
_INTEGER: Final = (
    *("{0} // {1}", "{0} % {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}"),
    *("{0} << {1}", "{0} >> {1}", "{0} ** {1}"),
)
_FLOAT: Final = ("{0} / {1}", "{0} // {1}", "{0} % {1}", "kj.copysign({0}, {1})")
_EXTREMES: Final = tuple(f"kj.{n}({{0}}, {{1}})" for n in ("min", "max", "minimum", "maximum"))
_FLOAT_ONE: Final = tuple(f"kj.{n}({{0}})" for n in ("floor", "ceil", "trunc", "round", "sqrt"))
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_FLOAT_TESTS: Final = ("kj.isnan({0})", "kj.isinf({0})", "kj.isfinite({0})")
_COUNTS: Final = ("kj.popcount({0})", "kj.clz({0})", "kj.ctz({0})")


class Program:
    """A kernel as text, with its numbers.

    Attributes:
        expressions: each with the type of its result.
        rows: the numbers of each type, a column per variable.
    """

    def __init__(
        self, seed: int, expressions: int, rows: int, types: Sequence[DType] = TYPES
    ) -> None:
        self._random = random.Random(seed)
        numbers = np.random.default_rng(seed)
        self.types: Final = self._random.sample(types, min(3, len(types)))
        results = [bool_, *self.types]
        chosen = [self._random.choice(results) for _ in range(expressions)]
        self.expressions: Final = [(one, self._make(one, DEPTH)) for one in chosen]
        self.rows: Final = {one: edges(one, rows, numbers) for one in self.types}

    @property
    def source(self) -> str:
        names = [one.name for one in (*self.types, bool_)]
        takes = [f"{one.name}s" for one in self.types] + [f"{name}_out" for name in names]
        lines = ["import khaljit as kj", "", "", "@kj.jit(contract=False)"]
        lines += [f"def kernel({', '.join(takes)}):", "    row = kj.global_id(0)"]
        for one in self.types:
            lines += [f"    {one.name}_{k} = {one.name}s[row, {k}]" for k in range(COLUMNS)]
        for number, (one, text) in enumerate(self.expressions):
            lines.append(f"    {one.name}_out[row, {number}] = {text}")
        return "\n".join(lines) + "\n"

    # Making expressions of a type.

    def _make(self, dtype: DType, depth: int) -> str:
        choices = self._random
        if depth == 0 or choices.random() < 0.1:
            return self._leaf(dtype)
        if dtype is bool_:
            return self._condition(depth - 1)
        form = choices.choice(self._forms(dtype))
        if form == "select":
            yes, no = self._operands(dtype, depth - 1)
            return f"kj.select({self._condition(depth - 1)}, {yes}, {no})"
        if form == "cast":
            return self._cast(dtype, depth - 1)
        if form == "quotient":
            pair = self._operands(choices.choice(self._dividends(dtype)), depth - 1)
            return f"({pair[0]} / {pair[1]})"
        if form in _COUNTS:
            return f"{form.format(self._make(self._integer(), depth - 1))}"
        if form.startswith("kj.copysign"):  # which takes an i64 as an f64
            return form.format(self._make(dtype, depth - 1), self._visible(dtype))
        if "{1}" in form:
            return f"({form.format(*self._operands(dtype, depth - 1))})"
        return f"({form.format(self._make(dtype, depth - 1))})"

    def _forms(self, dtype: DType) -> list[str]:
        forms = [*_ARITHMETIC, *_EXTREMES, "select", "cast", "cast", "-{0}", "abs({0})"]
        if dtype.is_float:
            forms += [*_FLOAT, *_FLOAT_ONE]
            forms += ["quotient"] if self._dividends(dtype) else []
        else:
            forms += [*_INTEGER, "~{0}"]
        if dtype is i32 and any(one.is_integer for one in self.types):
            forms += _COUNTS
        return forms

    def _dividends(self, dtype: DType) -> list[DType]:
        """Integers whose quotient is of a float type."""
        wide = {f32: (8, 16, 32), f64: (64,)}.get(dtype, ())
        return [one for one in self.types if one.is_integer and one.bits in wide]

    def _integer(self) -> DType:
        return self._random.choice([one for one in self.types if one.is_integer])

    def _operands(self, dtype: DType, depth: int) -> tuple[str, str]:
        """Two operands whose common type is this one."""
        first = self._make(dtype, depth)
        if self._random.random() < 0.15:
            pair = [first, self._literal(dtype)]
        else:
            pair = [first, self._make(self._random.choice(self._below(dtype)), depth)]
        self._random.shuffle(pair)
        return pair[0], pair[1]

    def _below(self, dtype: DType) -> list[DType]:
        """Types that mix with one into it; itself often."""
        found = [dtype, dtype, dtype]
        for one in self.types:
            try:
                if promote(dtype, one) is dtype:
                    found.append(one)
            except MixError:
                pass
        return found

    def _condition(self, depth: int) -> str:
        choices = self._random
        kind = choices.random()
        if kind < 0.2:
            pair = self._make(bool_, depth), self._make(bool_, depth)
            return f"({pair[0]} {choices.choice('&|^')} {pair[1]})"
        if kind < 0.3:
            return f"(~{self._make(bool_, depth)})"
        dtype = choices.choice(self.types)
        if dtype.is_float and kind < 0.45:
            return choices.choice(_FLOAT_TESTS).format(self._make(dtype, depth))
        a, b = self._operands(dtype, depth)
        return f"({a} {choices.choice(_COMPARISONS)} {b})"

    def _cast(self, dtype: DType, depth: int) -> str:
        other = self._random.choice([*self.types, bool_])
        if other.bits == dtype.bits and other is not bool_ and self._random.random() < 0.3:
            shown = self._visible(other) if other.is_float else self._make(other, depth)
            return f"kj.bitcast({shown}, kj.{dtype.name})"
        return f"kj.{dtype.name}({self._make(other, depth)})"

    def _visible(self, dtype: DType) -> str:
        """A float that is no NaN, whose sign and payload nobody promises."""
        leaf = self._leaf(dtype)
        return f"kj.select(kj.isnan({leaf}), 1.0, {leaf})"

    def _leaf(self, dtype: DType) -> str:
        if dtype is bool_:
            one = self._random.choice(self.types)
            return f"({one.name}_{self._random.randrange(COLUMNS)} > {self._literal(one)})"
        return f"{dtype.name}_{self._random.randrange(COLUMNS)}"

    def _literal(self, dtype: DType) -> str:
        if dtype.is_float:
            return self._random.choice(("0.0", "1.0", "0.5", "2.0", "3.25", "7", "-0.0"))
        low = 0 if dtype.kind is Kind.UNSIGNED else -9
        return str(self._random.choice((low, 0, 1, 2, 3, 7, 31, 64, 100)))


def edges(dtype: DType, rows: int, rng: np.random.Generator) -> Array:
    """Numbers of a type in columns: its edges in any order, and others."""
    kind = held(dtype)
    if dtype.is_float:
        limits = np.finfo(np.float16 if dtype is f16 else kind)
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.nan, np.inf, -np.inf]
        special += [limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, 1e3, 7.0]
        special += [2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, 255.5, -128.5, 65535.5]
        others = rng.normal(size=COLUMNS * rows) * rng.choice([1, 100, 1e6], COLUMNS * rows)
    else:
        ends = np.iinfo(kind)
        special = [0, 1, 2, 3, 7, ends.max, ends.max - 1, ends.min, ends.min + 1, ends.max // 2]
        special += [-1, -2, -7] if dtype.is_signed else [8, 15]
        others = rng.integers(ends.min, ends.max, COLUMNS * rows, kind, endpoint=True)
    columns = []
    with np.errstate(over="ignore", invalid="ignore"):
        pool = np.concatenate([np.array(special).astype(kind), others.astype(kind)])
        for column in range(COLUMNS):
            half = rng.choice(pool[: len(special)], rows)
            rest = pool[len(special) + column * rows :][:rows]
            columns.append(np.where(rng.random(rows) < 0.7, half, rest))
    return Numbers(dtype, np.stack(columns, 1)).values


def disagreements(program: Program, device: Device, folder: Path) -> list[str]:
    """What a device computes otherwise than NumPy."""
    path = folder / f"expressions_{os.getpid()}_{random.getrandbits(60)}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = len(program.rows[program.types[0]])
    ins = [in_memory(one, program.rows[one]) for one in program.types]
    outs = {
        one: device.zeros((rows, len(program.expressions)), one) for one in (*program.types, bool_)
    }
    taken = [device.array(a, one) for a, one in zip(ins, program.types, strict=True)]
    module.kernel[rows](*taken, *outs.values())
    found = {one: out.numpy() for one, out in outs.items()}
    names: dict[str, Any] = {"kj": NAMESPACE}
    for one in program.types:
        for k in range(COLUMNS):
            names[f"{one.name}_{k}"] = Numbers(one, program.rows[one][:, k])
    wrong = []
    with np.errstate(all="ignore"):
        for number, (one, text) in enumerate(program.expressions):
            want = eval(text, {"__builtins__": {"abs": abs}}, names)
            assert want.dtype is one, (text, want.dtype)
            got = from_memory(one, found[one][:, number])
            for row in np.flatnonzero(~same(got, want.values)):
                values = {
                    name: value.values[row]
                    for name, value in names.items()
                    if isinstance(value, Numbers) and name in text
                }
                wrong.append(
                    f"{device}: {text}\n  is {got[row]!r}, not {want.values[row]!r}, with {values}"
                )
                break
    return wrong


def in_memory(dtype: DType, values: Array) -> Array:
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is bf16 else values


def from_memory(dtype: DType, raw: Array) -> Array:
    return (raw.astype(np.uint32) << 16).view(np.float32) if dtype is bf16 else raw


def same(a: Array, b: Array) -> Array:
    """Which elements have the same bits; all NaN are one."""
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    kind = f"u{a.dtype.itemsize}"
    bits = np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)
    return np.asarray(bits | (np.isnan(a) & np.isnan(b)))


def types_of(device: Device) -> Sequence[DType]:
    """What a device is compared on: WebGPU's floats are the driver's where they are not finite, and
    its division is not rounded correctly everywhere."""
    return [one for one in TYPES if one.is_integer] if device.kind == "webgpu" else TYPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--expressions", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--columns", default="interpreter,cpu", help="devices")
    parser.add_argument("--each", type=int, default=50, help="expressions of a program")
    chosen = parser.parse_args(arguments)
    devices = [kj.device(name) for name in chosen.columns.split(",")]
    count, wrong, began = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KHALJIT_CACHE_DIR"] = folder
        for seed in range(chosen.first, chosen.first - (-chosen.expressions // chosen.each)):
            for device in devices:
                program = Program(seed, chosen.each, 48, types_of(device))
                for message in disagreements(program, device, Path(folder)):
                    wrong += 1
                    print(f"program {seed}: {message}", flush=True)
            count += chosen.each
            if count % (10 * chosen.each) == 0 or count >= chosen.expressions:
                seconds = time.monotonic() - began
                print(f"{count} expressions in {seconds:.0f} s: {wrong} disagree", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
