"""A solver that ends when the device finds its answer good enough: a loop in a graph.

The host launches the graph once. How many sweeps there are is decided where the data is.
"""

import numpy as np

import khaljit as kj

TOLERANCE = 1e-5
MOST = 10_000  # sweeps, should the tolerance never be met


@kj.jit
def sweep(
    b: kj.Array1[kj.f32], x: kj.Array1[kj.f32], out: kj.Array1[kj.f32], going: kj.Array1[kj.bool]
) -> None:
    """A step of Jacobi's method for 4 x[i] - x[i-1] - x[i+1] = b[i]; outside is zero."""
    i = kj.global_id(0)
    if i < x.size:
        out[i] = (b[i] + x[i - 1] + x[i + 1]) / 4.0
        if abs(out[i] - x[i]) > TOLERANCE:
            going[0] = True


def main() -> None:
    """Solve, and check the answer on the host."""
    device, values = kj.current_device(), np.random.default_rng().random(500, np.float32)
    b, x, y = device.array(values), device.zeros(500), device.zeros(500)
    going = device.zeros(1, kj.bool)
    with device.capture() as graph:
        x.fill(0)
        going.fill(True)
        with graph.while_(going, limit=MOST):
            going.fill(False)
            sweep[x.size](b, x, y, going)
            sweep[x.size](b, y, x, going)
    graph.launch()
    found = np.pad(x.numpy(), 1)
    assert not going.numpy()[0], "the tolerance was not met"
    assert np.allclose(4 * found[1:-1] - found[:-2] - found[2:], values, atol=1e-3)
    print(f"on {device}: solved to {TOLERANCE}")


if __name__ == "__main__":
    main()
