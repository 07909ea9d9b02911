"""Solving a Poisson equation by conjugate gradients: a host loop that is replayed as a graph.

``@kj.graph`` makes one graph of all the launches of `solve` when it is called again with the same
arrays, so that a step costs no Python.
"""

import numpy as np

import khaljit as kj

STEPS = 60
NORM, PRODUCT, OLD = range(3)  # places among the numbers that stay on the device


@kj.jit
def laplacian(x: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """Four times each element less its neighbours; outside is zero."""
    j, i = kj.index(2)
    if j < out.shape[0] and i < out.shape[1]:
        around = x[j - 1, i] + x[j + 1, i] + x[j, i - 1] + x[j, i + 1]
        out[j, i] = 4.0 * x[j, i] - around


@kj.jit(workgroup=128)
def dot(x: kj.Array2[kj.f32], y: kj.Array2[kj.f32], numbers: kj.Array1[kj.f32], at: kj.i32) -> None:
    """The inner product, by one workgroup, which always adds in the same order."""
    width, total = x.shape[1], kj.f32(0)
    for k in range(kj.local_id(0), x.size, 128):
        total += x[k // width, k % width] * y[k // width, k % width]
    total = kj.workgroup_add(total)
    if kj.local_id(0) == 0:
        numbers[at] = total


@kj.jit
def advance(
    x: kj.Array2[kj.f32],
    residual: kj.Array2[kj.f32],
    direction: kj.Array2[kj.f32],
    product: kj.Array2[kj.f32],
    numbers: kj.Array1[kj.f32],
) -> None:
    """A step along the direction, as long as the inner products say."""
    j, i = kj.index(2)
    if j < x.shape[0] and i < x.shape[1]:
        length = numbers[NORM] / kj.max(numbers[PRODUCT], 1e-30)
        x[j, i] += length * direction[j, i]
        residual[j, i] -= length * product[j, i]


@kj.jit
def turn(
    residual: kj.Array2[kj.f32], direction: kj.Array2[kj.f32], numbers: kj.Array1[kj.f32]
) -> None:
    """The next direction."""
    j, i = kj.index(2)
    if j < residual.shape[0] and i < residual.shape[1]:
        share = numbers[NORM] / kj.max(numbers[OLD], 1e-30)
        direction[j, i] = residual[j, i] + share * direction[j, i]


@kj.graph
def solve(
    b: kj.Array[kj.f32],
    x: kj.Array[kj.f32],
    residual: kj.Array[kj.f32],
    direction: kj.Array[kj.f32],
    product: kj.Array[kj.f32],
    numbers: kj.Array[kj.f32],
    steps: int,
) -> None:
    """Find x whose Laplacian is b; the other arrays are for what comes between."""
    grid = kj.over(b)
    x.fill(0)
    residual[:] = b
    direction[:] = b
    dot[128](residual, residual, numbers, NORM)
    for _ in range(steps):
        laplacian[grid](direction, product)
        dot[128](direction, product, numbers, PRODUCT)
        advance[grid](x, residual, direction, product, numbers)
        numbers[OLD:] = numbers[NORM:PRODUCT]
        dot[128](residual, residual, numbers, NORM)
        turn[grid](residual, direction, numbers)


def main() -> None:
    """Solve for several right-hand sides, and check the answers on the host."""
    device, shape = kj.current_device(), (20, 24)
    rng = np.random.default_rng()
    b, x, residual, direction, product = (device.zeros(shape) for _ in range(5))
    numbers = device.zeros(3)
    for _ in range(4):
        values = rng.random(shape, np.float32)
        b.write(values)
        solve(b, x, residual, direction, product, numbers, STEPS)
        padded = np.pad(x.numpy(), 1)
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        assert np.allclose(4 * x.numpy() - around, values, atol=1e-3)
    print(f"on {device}: {solve.graph_info()}")


if __name__ == "__main__":
    main()
