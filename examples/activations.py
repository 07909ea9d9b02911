"""Twenty-five functions of one number, each an argument that specialises one kernel."""

import math
from collections.abc import Callable

import numpy as np

import khaljit as kj

Function = Callable[[float], float]


@kj.jit
def apply(function: kj.Const[Function], x: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
    """``out = function(x)``, number by number."""
    i = kj.global_id(0)
    out[i] = function(x[i])


def gelu(x: float) -> float:
    """The Gaussian error linear unit, as it is defined."""
    return 0.5 * x * (1.0 + math.erf(x * math.sqrt(0.5)))


def gelu_quick(x: float) -> float:
    """An approximation of it."""
    return x * sigmoid(1.702 * x)


def sigmoid(x: float) -> float:
    """From 0 to 1, and 1/2 at 0."""
    return 1.0 / (1.0 + math.exp(-x))


def elu(x: float) -> float:
    """Linear above 0, exponential below."""
    return x if x > 0.0 else math.expm1(x)


def hard_sigmoid(x: float) -> float:
    """A sigmoid of straight lines."""
    return min(max(x / 6.0 + 0.5, 0.0), 1.0)


FUNCTIONS: dict[str, Function] = {
    "abs": abs,
    "sgn": lambda x: float(x > 0.0) - float(x < 0.0),
    "neg": lambda x: -x,
    "step": lambda x: 1.0 if x > 0.0 else 0.0,
    "elu": elu,
    "gelu": gelu,
    "gelu_quick": gelu_quick,
    "silu": lambda x: x * sigmoid(x),
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "sqr": lambda x: x * x,
    "sqrt": lambda x: math.sqrt(abs(x)),
    "sin": math.sin,
    "cos": math.cos,
    "log": lambda x: math.log(abs(x)),
    "exp": math.exp,
    "reciprocal": lambda x: 1.0 / x,
    "erf": math.erf,
    "leaky_relu": lambda x: x if x > 0.0 else 0.01 * x,
    "clamp": lambda x: min(max(x, -1.0), 1.5),
    "scale": lambda x: 2.5 * x,
    "add_scalar": lambda x: x + 0.75,
    "pow": lambda x: abs(x) ** 1.7,
}


def main() -> None:
    """Compare each function with itself: run by Python, on doubles."""
    x = np.random.default_rng().uniform(-4.0, 4.0, 1757).astype(np.float32)
    out = np.empty_like(x)
    for name, function in FUNCTIONS.items():
        apply[x.size](function, x, out)
        expected = np.array([function(float(number)) for number in x])
        error = np.abs((out - expected) / np.maximum(1.0, np.abs(expected))).max()
        print(f"{name:12} largest error {error:.1e}")
        assert error < 1e-6


if __name__ == "__main__":
    main()
