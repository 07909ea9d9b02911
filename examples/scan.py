"""Prefix sums of an array of any length: a scan in each workgroup, then one over their sums."""

import numpy as np
from numpy.typing import NDArray

import khaljit as kj

BLOCK = 256


@kj.jit(workgroup=BLOCK)
def scan_blocks(x: kj.Array1[kj.i32], out: kj.Array1[kj.i32], sums: kj.Array1[kj.i32]) -> None:
    """The prefix sums of each block, and the sum of each; what lies past the end reads as 0."""
    i = kj.global_id(0)
    upto = kj.workgroup_inclusive_add(x[i])
    out[i] = upto
    if kj.local_id(0) == BLOCK - 1:
        sums[kj.workgroup_id(0)] = upto


@kj.jit
def add_before(out: kj.Array1[kj.i32], sums: kj.Array1[kj.i32]) -> None:
    """Add to each block the sum of all blocks before it."""
    i = kj.global_id(0)
    if i >= BLOCK:
        out[i] += sums[i // BLOCK - 1]


def scan(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """``np.cumsum``"""
    out = np.empty_like(x)
    sums = np.zeros(-(-x.size // BLOCK), np.int32)
    scan_blocks[x.size](x, out, sums)
    if sums.size > 1:
        add_before[x.size](out, scan(sums))
    return out


def main() -> None:
    """Three levels of blocks, compared with NumPy."""
    x = np.random.default_rng().integers(-100, 100, 70_001).astype(np.int32)
    assert (scan(x) == np.cumsum(x)).all()
    print(f"the prefix sums of {x.size} numbers agree with NumPy's")


if __name__ == "__main__":
    main()
