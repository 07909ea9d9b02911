"""Layer norm and RMS norm of the rows of a matrix: a workgroup per row."""

import numpy as np

import khaljit as kj

EPSILON = 1e-5


@kj.jit(workgroup=256)
def layer_norm(
    x: kj.Array2[kj.f32],
    weight: kj.Array1[kj.f32],
    bias: kj.Array1[kj.f32],
    out: kj.Array2[kj.f32],
) -> None:
    """Each row with mean 0 and variance 1, then scaled and shifted by column."""
    row, width = kj.workgroup_id(1), x.shape[1]
    columns = range(kj.local_id(0), width, kj.workgroup_size(0))
    total, squares = 0.0, 0.0
    for k in columns:
        total += x[row, k]
    mean = kj.workgroup_add(total) / width
    for k in columns:
        squares += (x[row, k] - mean) ** 2
    scale = kj.rsqrt(kj.workgroup_add(squares) / width + EPSILON)
    for k in columns:
        out[row, k] = (x[row, k] - mean) * scale * weight[k] + bias[k]


@kj.jit(workgroup=256)
def rms_norm(x: kj.Array2[kj.f32], weight: kj.Array1[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """Each row divided by its root mean square, then scaled by column."""
    row, width = kj.workgroup_id(1), x.shape[1]
    columns = range(kj.local_id(0), width, kj.workgroup_size(0))
    squares = 0.0
    for k in columns:
        squares += x[row, k] * x[row, k]
    scale = kj.rsqrt(kj.workgroup_add(squares) / width + EPSILON)
    for k in columns:
        out[row, k] = x[row, k] * scale * weight[k]


def main() -> None:
    """Compare with NumPy in double precision."""
    rng = np.random.default_rng()
    rows, width = 3, 1757
    x = rng.normal(2.0, 3.0, (rows, width)).astype(np.float32)
    weight, bias = rng.random((2, width), np.float32)
    out = np.empty_like(x)

    layer_norm[kj.Workgroups(1, rows)](x, weight, bias, out)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    deviation = np.sqrt(wide.var(1, keepdims=True) + EPSILON)
    error = np.abs(out - (centred / deviation * weight + bias)).max()
    print(f"layer norm: largest error {error:.1e}")
    assert error < 1e-5

    rms_norm[kj.Workgroups(1, rows)](x, weight, out)
    root = np.sqrt((wide * wide).mean(1, keepdims=True) + EPSILON)
    error = np.abs(out - wide / root * weight).max()
    print(f"RMS norm: largest error {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
