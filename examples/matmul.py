"""A product of matrices, the plain way: one invocation per element of the result."""

import numpy as np

import khaljit as kj


@kj.jit
def matmul(
    a: kj.Array1[kj.f32],
    b: kj.Array1[kj.f32],
    c: kj.Array1[kj.f32],
    m: kj.i32,
    k: kj.i32,
    n: kj.i32,
) -> None:
    """``c = a @ b`` for row-major matrices of m x k and k x n numbers."""
    column, row = kj.global_id(0), kj.global_id(1)
    if row < m and column < n:
        total = 0.0
        for i in range(k):
            total += a[row * k + i] * b[i * n + column]
        c[row * n + column] = total


def main() -> None:
    """Multiply, and compare with NumPy."""
    m, k, n = 256, 192, 320
    rng = np.random.default_rng()
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    c = np.empty((m, n), np.float32)
    matmul[n, m](a.ravel(), b.ravel(), c.reshape(-1), m, k, n)
    error = np.abs(c - a.astype(np.float64) @ b).max()
    print(f"{m} x {k} by {k} x {n}: largest error {error:.1e}")
    assert error < 1e-4


if __name__ == "__main__":
    main()
