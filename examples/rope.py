"""Rotary position embedding: pairs of numbers turned by an angle that grows with the position."""

import numpy as np
from numpy.typing import NDArray

import khaljit as kj


@kj.jit
def rope(x: kj.Array2[kj.f32], position: kj.i32, base: kj.f32) -> None:
    """Turn each pair of each head (a row of ``x``) in place; a slower turn for each later pair."""
    pair, head = kj.global_id(0), kj.global_id(1)
    angle = position * base ** (-2 * pair / x.shape[1])
    sine, cosine = kj.sin(angle), kj.cos(angle)
    a, b = x[head, 2 * pair], x[head, 2 * pair + 1]
    x[head, 2 * pair] = a * cosine - b * sine
    x[head, 2 * pair + 1] = a * sine + b * cosine


def reference(x: NDArray[np.float32], position: int, base: float) -> NDArray[np.float64]:
    """The same by complex numbers, in double precision."""
    width = x.shape[1]
    angles = position * base ** (-2.0 * np.arange(width // 2) / width)
    turned: NDArray[np.complex128] = x.astype(np.float64).view(np.complex128) * np.exp(1j * angles)
    return turned.view(np.float64)


def main() -> None:
    """Queries and keys of heads of 128 numbers, at position 10."""
    rng = np.random.default_rng()
    for name, heads in (("queries", 13), ("keys", 9)):
        x = rng.normal(size=(heads, 128)).astype(np.float32)
        expected = reference(x, 10, 1e4)
        rope[64, heads](x, 10, 1e4)
        error = np.abs(x - expected).max()
        print(f"{heads} heads of {name}: largest error {error:.1e}")
        assert error < 1e-5


if __name__ == "__main__":
    main()
