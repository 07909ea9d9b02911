"""Kernels of Triton's for ``cuda_launch_peers.py``; Triton reads their source."""

# mypy: disable-error-code="untyped-decorator,import-not-found,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def of_2(x, y, a, SIZE: tl.constexpr):  # noqa: N803  # constants are named so there
    """Two arrays and a number."""
    at = tl.arange(0, SIZE)
    tl.store(y + at, a * tl.load(x + at))


@triton.jit
def of_8(a, b, c, d, e, f, g, out, SIZE: tl.constexpr):  # noqa: N803
    """Eight arrays."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(a + at))
