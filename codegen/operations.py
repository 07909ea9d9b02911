"""Which target takes which operation in which type, as docs/operations.md shows it.

``python -m khaljit.codegen.operations`` prints the page. Every cell comes from the target's row in
``caps.py`` and from the legaliser, which is asked to rewrite a kernel of that one operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from khaljit.codegen.caps import ROWS, Caps
from khaljit.codegen.legalise import legalise
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import ALL, DType, bool_, i32, u32
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.ir import (
    ATOMICS,
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Options,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import OPS, Op, accepts
from khaljit.tracer.verify import COLLECTIVES

__all__ = ["OPERATIONS", "cells", "operand_types", "page"]

NATIVE, MADE, REFUSED, NONE = "■", "□", "✗", "\N{NO-BREAK SPACE}"

# Recorded operations of the table; the lowered forms of division are not for users.
OPERATIONS: Final = tuple(
    op
    for op, info in OPS.items()
    if info.result is not None and op not in (Op.TRUNCDIV, Op.TRUNCMOD)
)
_VOTES: Final = ("any", "all", "ballot")
_BITS: Final = ("and", "or", "xor")
_ARITHMETIC: Final = ("add", "sub", "min", "max")
_MOVES: Final = ("broadcast", "broadcast_first", "shuffle")

Cells = Mapping[str, str]  # by what is done, a sign per dtype of `ALL`


def operand_types(op: Op, dtype: DType) -> tuple[DType, ...] | None:
    """The operand types of an operation that works in a type; None where there is no such."""
    arity = OPS[op].arity
    assert arity is not None
    for types in ((dtype,) * arity, (bool_, dtype, dtype), (dtype, i32)):
        if len(types) == arity and accepts(op, *types):
            return types
    return None


def cells(caps: Caps) -> dict[str, Cells]:
    """The table of one target, by the heading of its parts."""
    return {
        "Operations": {op.value: _line(partial(_operation, caps, op)) for op in OPERATIONS},
        "Casts, by the type that is cast": {
            source.name: _line(partial(_cast, caps, source)) for source in ALL
        },
        "Atomics": {kind: _line(partial(_atomic, caps, kind)) for kind in ATOMICS},
        "Subgroup operations": {
            name: _line(partial(_collective, caps, name)) for name in COLLECTIVES if name != "elect"
        },
    }


def _line(sign: Callable[[DType], str]) -> str:
    return "".join(sign(dtype) for dtype in ALL)


def _own(caps: Caps, *types: DType) -> bool:
    """Whether values of some types are the machine's own."""
    return all(dtype in (caps.machine or caps.dtypes) for dtype in types)


def _operation(caps: Caps, op: Op, dtype: DType) -> str:
    types = operand_types(op, dtype)
    if types is None:
        return NONE
    if caps.takes(op, dtype) and _own(caps, *types):
        return NATIVE
    return _tried(caps, types, lambda builder, *args: builder.pure(op, args))


def _cast(caps: Caps, source: DType, dtype: DType) -> str:
    if (source is dtype or (source, dtype) in caps.casts) and _own(caps, source, dtype):
        return NATIVE
    return _tried(caps, (source,), lambda builder, x: builder.cast(x, dtype))


def _atomic(caps: Caps, kind: str, dtype: DType) -> str:
    if (dtype.is_float and kind in _BITS) or (
        dtype is bool_ and kind in ("add", "sub", "min", "max")
    ):
        return NONE
    if (kind, dtype) in caps.atomics and _own(caps, dtype):
        return NATIVE
    memory = _array(0, dtype).memory

    def swap(builder: Builder, *values: Value) -> Value:
        access = AtomicAccess(flat=True, checked=False, kind=kind)
        place = builder.memory(memory), builder.const(i32, 0)
        return builder.effect(Op.ATOMIC, (*place, *values), access, dtype)

    return _tried(caps, (dtype,) * ATOMICS[kind], swap)


def _collective(caps: Caps, name: str, dtype: DType) -> str:
    if name in _VOTES:
        fits = dtype is bool_
    elif name in _BITS:
        fits = not dtype.is_float
    else:
        fits = dtype is not bool_ or name.startswith(_MOVES)
    if not fits:
        return NONE
    # WebGPU's rows say which there are; the others have all.
    if (not caps.machine or name in caps.collectives) and _own(caps, dtype):
        return NATIVE
    result = u32 if name == "ballot" else dtype
    types = (dtype, i32)[: COLLECTIVES[name]]
    return _tried(
        caps, types, lambda builder, *args: builder.effect(Op.SUBGROUP, args, name, result)
    )


def _array(number: int, dtype: DType) -> ArrayParam:
    memory = Memory(Space.ARRAY, number, Element.scalar(dtype), (None,))
    return ArrayParam(f"a{number}", memory, True, True, number, number)


def _tried(caps: Caps, types: Iterable[DType], make: Callable[..., Value]) -> str:
    """What the legaliser says of a kernel that loads operands, makes a value and stores it."""
    builder, access = Builder(), Access(checked=False, flat=True)
    builder.open()
    zero = builder.const(i32, 0)
    arrays = [_array(number, dtype) for number, dtype in enumerate(types)]
    operands = [
        builder.load(builder.memory(one.memory), (zero,), one.memory.element.leaves[0][1], access)
        for one in arrays
    ]
    result = make(builder, *operands)
    arrays.append(_array(len(arrays), result.type))
    if result.dtype is not None:
        builder.store(builder.memory(arrays[-1].memory), (zero,), result, access)
    builder.end(Op.YIELD)
    trace = Trace("cell", tuple(arrays), (), (32, 1, 1), 32, Options(), builder.close())
    try:
        legalise(trace, caps)
    except CapabilityError:
        return REFUSED
    return MADE


# The page.

_HEAD: Final = f"""# Operations

Which target takes which operation in which type. Made by `python -m khaljit.codegen.operations`
from the rows of `codegen/caps.py` and the legaliser; a test holds the page to them, and every cell
of the first three tables is run by the behaviour matrix (`tests/test_matrix*.py`) on every device.

| sign | |
|---|---|
| {NATIVE} | the target has it in that type |
| {MADE} | made of others, with the same result; 16-bit floats may be carried as bits |
| {REFUSED} | a `CapabilityError` names the line, the type and the mend |
| | there is no such operation, such as bits of floats or arithmetic of bools |

The elementary functions (`exp` to `lgamma`) are khaljit's own on all targets, so that they round
alike; a kernel with `fastmath=True` takes the hardware's in f32 where there are any.
"""


def page() -> str:
    """docs/operations.md"""
    tables: dict[str, dict[str, Cells]] = {}
    names: dict[str, list[str]] = {}
    for name, caps in ROWS.items():
        table = cells(caps)
        key = next((one for one, known in tables.items() if known == table), name)
        tables.setdefault(key, table)
        names.setdefault(key, []).append(_spoken(name))
    parts = [_HEAD]
    for key, table in tables.items():
        parts.append(f"\n## {', '.join(names[key])}\n")
        for heading, lines in table.items():
            parts.append(f"\n{heading}:\n\n{_rows(lines)}")
    return "".join(parts)


def _spoken(name: str) -> str:
    """A target as people call it."""
    kind, _, detail = name.partition(":")
    if kind == "webgpu":
        return "WebGPU with all optional features" if detail else "WebGPU without optional features"
    return f"{'CUDA' if kind == 'ptx' else 'CPU'} {detail}"


def _rows(lines: Cells) -> str:
    """A table in which what has the same signs shares a line."""
    together: dict[str, list[str]] = {}
    for what, signs in lines.items():
        together.setdefault(signs, []).append(f"`{what}`")
    head = "| | " + " | ".join(dtype.name for dtype in ALL) + " |\n"
    rule = "|---" * (len(ALL) + 1) + "|\n"
    body = "".join(
        f"| {' '.join(whats)} | {' | '.join(signs)} |\n" for signs, whats in together.items()
    )
    return head + rule + body


if __name__ == "__main__":
    sys.stdout.write(page())
