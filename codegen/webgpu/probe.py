"""A kernel that asks a driver what it makes of ``fma``, which it may round twice.

A runtime runs it once for each driver, over an array that holds `FACTORS`, and gives the answer to
``codegen.caps.webgpu``; with a driver that rounds twice ``fma`` is computed by other operations.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import f32, i32
from khaljit.tracer.ir import Access, ArrayParam, Element, Memory, Options, Space, Trace
from khaljit.tracer.ops import Op

__all__ = ["FACTORS", "fma_probe", "is_fused"]

_SMALL: Final = 2.0**-12
# Of a * b + c; the last bit of the product is lost where it is rounded before the sum.
FACTORS: Final = (1.0 + _SMALL, 1.0 + _SMALL, -(1.0 + 2 * _SMALL))
_PLAIN: Final = Access(checked=False, flat=True)


def fma_probe() -> Trace:
    """A legal kernel of one invocation: ``out[0] = fma(a[0], a[1], a[2])``."""
    builder = Builder()
    builder.open()
    arrays = [Memory(Space.ARRAY, k, Element.scalar(f32), (None,)) for k in range(2)]
    source, out = (builder.memory(memory) for memory in arrays)
    places = [(builder.const(i32, k),) for k in range(3)]
    operands = tuple(builder.load(source, place, f32, _PLAIN) for place in places)
    builder.store(out, places[0], builder.pure(Op.FMA, operands), _PLAIN)
    builder.end(Op.YIELD)
    params = tuple(
        ArrayParam(name, memory, True, True, memory.number, memory.number)
        for name, memory in zip(("a", "out"), arrays, strict=True)
    )
    return Trace("fma_probe", params, (), (1, 1, 1), 32, Options(), builder.close())


def is_fused(result: float) -> bool:
    """Whether what the kernel stored was rounded once."""
    return result == _SMALL * _SMALL
