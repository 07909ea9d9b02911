"""A kernel that asks a driver how it rounds, and what the answers mean.

A runtime runs it once for each driver: `probe` is a legal kernel of `COUNT` invocations over the
arrays of `questions`, and `judge` turns what it wrote into arguments of ``codegen.caps.webgpu``.
What a driver does not do is then computed by other operations.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import f32, i32
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Access, ArrayParam, Element, Memory, Options, Space, Trace
from khaljit.tracer.ops import Op

__all__ = ["COUNT", "judge", "probe", "questions"]

COUNT: Final = 256
_SMALL: Final = 2.0**-12
_PLAIN: Final = Access(checked=False, flat=True)
_TINY: Final = 2.0**-65  # its square is a subnormal
_NAMES: Final = ("x", "y", "products", "quotients", "roots", "squares")


def probe() -> Trace:
    """fma(x, x, -y), x / y, sqrt(x) and x * x, for each invocation."""
    builder = Builder()
    builder.open()
    arrays = [Memory(Space.ARRAY, k, Element.scalar(f32), (None,)) for k in range(len(_NAMES))]
    place = (builder.pure(Op.ID, attr=("global", 0), dtype=i32),)
    x, y = (builder.load(builder.memory(arrays[k]), place, f32, _PLAIN) for k in range(2))
    results = (
        builder.pure(Op.FMA, (x, x, builder.pure(Op.NEG, (y,)))),
        builder.pure(Op.DIV, (x, y)),
        builder.pure(Op.SQRT, (x,)),
        builder.pure(Op.MUL, (x, x)),
    )
    for memory, result in zip(arrays[2:], results, strict=True):
        builder.store(builder.memory(memory), place, result, _PLAIN)
    builder.end(Op.YIELD)
    params = tuple(
        ArrayParam(name, memory, True, True, memory.number, memory.number)
        for name, memory in zip(_NAMES, arrays, strict=True)
    )
    return Trace("probe", params, (), None, 32, Options(), builder.close())


def questions() -> list[Array]:
    """The arrays that the kernel runs on; what follows the first two is written."""
    rng = np.random.default_rng(2)
    x = (1.0 + rng.random(COUNT)).astype(np.float32)
    y = (1.0 + rng.random(COUNT)).astype(np.float32)
    # Where the last bit of a product is lost if it is rounded before the sum.
    x[0], y[0] = 1.0 + _SMALL, 1.0 + 2 * _SMALL
    x[1] = y[1] = _TINY
    return [x, y, *(np.zeros(COUNT, np.float32) for _ in _NAMES[2:])]


def judge(arrays: list[Array]) -> dict[str, Any]:
    """What a driver is like, from the arrays after it has run the kernel.

    >>> arrays = questions()
    >>> x, y = arrays[:2]
    >>> arrays[2][0], arrays[3][:], arrays[4][:], arrays[5][:] = 2.0**-24, x / y, np.sqrt(x), x * x
    >>> judge(arrays)
    {'fused': True, 'rounded': True, 'subnormals': True}
    """
    x, y, products, quotients, roots, squares = arrays
    return {
        "fused": bool(products[0] == _SMALL * _SMALL),
        "rounded": bool((quotients == x / y).all() and (roots == np.sqrt(x)).all()),
        "subnormals": bool(squares[1] == _TINY * _TINY),
    }
