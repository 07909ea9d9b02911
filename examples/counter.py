"""Picking elements with an atomic counter: the order varies, the set does not."""

import numpy as np

import khaljit as kj


@kj.jit
def pick(
    values: kj.Array1[kj.f32],
    threshold: kj.f32,
    picked: kj.Array1[kj.u32],
    count: kj.Array1[kj.u32],
) -> None:
    """Write the positions of all values above a threshold, one behind the other."""
    i = kj.global_id(0)
    if i < values.size and values[i] > threshold:
        picked[kj.atomic_add(count, 0, 1)] = i


def main() -> None:
    """Compare with NumPy."""
    values = np.random.default_rng().random(10_000, np.float32)
    picked, count = np.zeros(values.size, np.uint32), np.zeros(1, np.uint32)
    pick[values.size](values, 0.9, picked, count)
    expected = np.flatnonzero(values > np.float32(0.9))
    assert sorted(picked[: count[0]].tolist()) == expected.tolist()
    print(f"{count[0]} of {values.size} values picked")


if __name__ == "__main__":
    main()
