"""Gravity between all pairs of particles, from one array of positions to another."""

import numpy as np

import khaljit as kj


@kj.jit
def step(
    pos_in: kj.Array1[kj.vec3],
    velocity: kj.Array1[kj.vec3],
    pos_out: kj.Array1[kj.vec3],
    dt: kj.f32,
) -> None:
    """Every particle is pulled by all others; softened, so that none is infinitely strong."""
    i = kj.global_id(0)
    if i < pos_in.size:
        me = pos_in[i]
        pull = kj.vec3(0.0)
        for j in range(pos_in.size):
            away = pos_in[j] - me
            near = kj.rsqrt(kj.dot(away, away) + 0.01)
            pull += away * (near * near * near)
        moved = velocity[i] + pull * dt
        velocity[i] = moved
        pos_out[i] = me + moved * dt


def reference(
    position: np.ndarray, velocity: np.ndarray, dt: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same in NumPy, in double precision."""
    away = position[None, :, :] - position[:, None, :]
    near = 1.0 / np.sqrt((away * away).sum(-1) + 0.01)
    velocity = velocity + (away * near[:, :, None] ** 3).sum(1) * dt
    return position + velocity * dt, velocity


def main() -> None:
    """Three steps of 300 particles."""
    rng = np.random.default_rng()
    position = rng.random((300, 3), np.float32)
    velocity = np.zeros_like(position)
    expected, speed = position.astype(np.float64), velocity.astype(np.float64)
    for _ in range(3):
        moved = np.empty_like(position)
        step[len(position)](position, velocity, moved, 0.001)
        position = moved
        expected, speed = reference(expected, speed, 0.001)
    error = np.abs(position - expected).max()
    print(f"after three steps: largest error {error:.1e}")
    assert error < 1e-4


if __name__ == "__main__":
    main()
