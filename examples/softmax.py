"""The softmax of each row of a matrix: a workgroup per row, by collectives of the workgroup."""

import math

import numpy as np

import khaljit as kj


@kj.jit(workgroup=128)
def softmax(x: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """``out = exp(x) / sum(exp(x))`` by row, with the greatest number of the row taken off."""
    row = kj.workgroup_id(1)
    columns = range(kj.local_id(0), x.shape[1], kj.workgroup_size(0))
    most, total = -math.inf, 0.0
    for k in columns:
        most = max(most, x[row, k])
    most = kj.workgroup_max(most)
    for k in columns:
        total += kj.exp(x[row, k] - most)
    total = kj.workgroup_add(total)
    for k in columns:
        out[row, k] = kj.exp(x[row, k] - most) / total


def main() -> None:
    """Rows of a length that no workgroup divides, compared with NumPy."""
    x = np.random.default_rng().normal(size=(5, 1757)).astype(np.float32)
    x[0] = np.arange(1757)
    out = np.empty_like(x)
    softmax[kj.Workgroups(1, len(x))](x, out)
    exponentials = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    error = np.abs(out - exponentials / exponentials.sum(1, keepdims=True)).max()
    print(f"{len(x)} rows of {x.shape[1]}: largest error {error:.1e}")
    assert error < 1e-7


if __name__ == "__main__":
    main()
