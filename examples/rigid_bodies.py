"""Boxes that tumble and fall on the ground: a rigid-body step with poses and quaternions."""

from typing import Any

import numpy as np

import khaljit as kj

Array = np.ndarray[Any, Any]

GRAVITY, STIFFNESS, DAMPING, FRICTION = -9.81, 4000.0, 20.0, 0.4


@kj.struct
class Body:
    """A box. Velocities are the world's, in m/s and rad/s; inertia is about the box's axes."""

    pose: kj.pose3
    velocity: kj.vec3
    spin: kj.vec3
    half: kj.vec3
    mass: kj.f32

    def inertia(self) -> kj.vec3:
        """Moments of inertia of a box."""
        square = self.half * self.half
        moments: kj.vec3 = (square.yzx + square.zxy) * (self.mass / 3.0)
        return moments

    def velocity_at(self, arm: kj.vec3) -> kj.vec3:
        """The velocity of what is ``arm`` away from the centre."""
        return self.velocity + kj.cross(self.spin, arm)

    def moved(self, force: kj.vec3, torque: kj.vec3, dt: kj.f32) -> "Body":
        """The body a little later: velocities first, then the pose."""
        self.velocity += force * (dt / self.mass)
        moments = self.inertia()
        spin = self.pose.inverse_transform_vector(self.spin)
        push = self.pose.inverse_transform_vector(torque) - kj.cross(spin, moments * spin)
        self.spin = self.pose.transform_vector(spin + push / moments * dt)
        turn = kj.quat.from_scaled_axis(self.spin * dt)
        self.pose.translation += self.velocity * dt
        self.pose.rotation = (turn * self.pose.rotation).normalize()
        return self


@kj.jit
def simulate(bodies: kj.Array1[Body], dt: kj.f32, steps: kj.i32) -> None:
    """Springs hold the corners above the ground; friction slows them."""
    i = kj.global_id(0)
    if i < bodies.size:
        body = bodies[i]
        for _ in range(steps):
            force = kj.vec3(0.0, GRAVITY * body.mass, 0.0)
            torque = kj.vec3(0.0)
            for k in range(8):
                sign = kj.vec3(k & 1, k >> 1 & 1, k >> 2 & 1) * 2.0 - 1.0
                arm = body.pose.transform_vector(body.half * sign)
                depth = -(body.pose.translation.y + arm.y)
                if depth > 0.0:
                    velocity = body.velocity_at(arm)
                    push = kj.max(STIFFNESS * depth - DAMPING * velocity.y, 0.0)
                    slide = kj.vec3(velocity.x, 0.0, velocity.z)
                    grip = slide * (-FRICTION * push / (kj.length(slide) + 0.01))
                    contact = grip + kj.vec3(0.0, push, 0.0)
                    force += contact
                    torque += kj.cross(arm, contact)
            body = body.moved(force, torque, dt)
        bodies[i] = body


# The same in NumPy and double precision, with matrices instead of quaternions.


def turns(axis: Array, angle: Array) -> Array:
    """Rotation matrices about unit axes (Rodrigues)."""
    x, y, z = axis.T
    zero = np.zeros_like(x)
    cross = np.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]]).transpose(2, 0, 1)
    sine, cosine = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    return np.asarray(np.eye(3) + sine * cross + (1 - cosine) * cross @ cross)


def matrices(rotation: Array) -> Array:
    """Rotation matrices of unit quaternions."""
    size = np.linalg.norm(rotation[:, :3], axis=1)
    axis = rotation[:, :3] / np.where(size > 0, size, 1)[:, None]
    return turns(axis, 2 * np.arctan2(size, rotation[:, 3]))


def reference(bodies: Array, dt: float, steps: int) -> tuple[Array, Array]:
    """Rotation matrices and positions after some steps."""
    turn = matrices(bodies["pose"]["rotation"].astype(float))
    position = bodies["pose"]["translation"].astype(float)
    velocity, spin, half = (bodies[name].astype(float) for name in ("velocity", "spin", "half"))
    mass = bodies["mass"].astype(float)[:, None]
    moments = (half[:, [1, 2, 0]] ** 2 + half[:, [2, 0, 1]] ** 2) * mass / 3
    corners = np.array([[k & 1, k >> 1 & 1, k >> 2 & 1] for k in range(8)]) * 2 - 1
    for _ in range(steps):
        arm = np.einsum("nij,nkj->nki", turn, half[:, None] * corners)
        depth = -(position[:, None, 1] + arm[..., 1])
        speed = velocity[:, None] + np.cross(spin[:, None], arm)
        push = np.maximum(STIFFNESS * depth - DAMPING * speed[..., 1], 0) * (depth > 0)
        slide = speed * [1, 0, 1]
        grip = -FRICTION * push / (np.linalg.norm(slide, axis=-1) + 0.01)
        contact = slide * grip[..., None] + push[..., None] * np.array([0, 1, 0])
        force = contact.sum(1) + mass * [0, GRAVITY, 0]
        torque = np.cross(arm, contact).sum(1)
        velocity = velocity + force / mass * dt
        own = np.einsum("nji,nj->ni", turn, spin)
        push_own = np.einsum("nji,nj->ni", turn, torque) - np.cross(own, moments * own)
        spin = np.einsum("nij,nj->ni", turn, own + push_own / moments * dt)
        angle = np.linalg.norm(spin, axis=1)
        turn = turns(spin / np.where(angle > 0, angle, 1)[:, None], angle * dt) @ turn
        position = position + velocity * dt
    return turn, position


def scene(rng: np.random.Generator, count: int) -> Array:
    """Boxes above the ground, turning."""
    bodies = np.zeros(count, Body)
    rotation = rng.normal(size=(count, 4))
    bodies["pose"]["rotation"] = rotation / np.linalg.norm(rotation, axis=1)[:, None]
    bodies["pose"]["translation"] = rng.uniform([-5, 0.6, -5], [5, 1.5, 5], (count, 3))
    bodies["velocity"] = rng.normal(size=(count, 3))
    bodies["spin"] = rng.normal(size=(count, 3)) * 3
    bodies["half"] = rng.uniform(0.2, 0.5, (count, 3))
    bodies["mass"] = rng.uniform(0.5, 2, count)
    return bodies


def check(bodies: Array, dt: float, steps: int) -> float:
    """Simulate boxes in place; the largest error of a corner, in metres."""
    turn, position = reference(bodies, dt, steps)
    half = bodies["half"].astype(float)
    simulate[len(bodies)](bodies, dt, steps)
    found = matrices(bodies["pose"]["rotation"].astype(float)) @ half[..., None]
    expected = turn @ half[..., None]
    moved = found[..., 0] - expected[..., 0] + bodies["pose"]["translation"] - position
    return float(np.abs(moved).max())


def main() -> None:
    """A quarter of a second of 100 boxes."""
    bodies = scene(np.random.default_rng(), 100)
    error = check(bodies, 0.0025, 100)
    lowest = bodies["pose"]["translation"][:, 1].min()
    print(f"after a quarter of a second: lowest centre at {lowest:.2f} m, error {error:.1e} m")
    assert lowest > 0
    assert error < 5e-3


if __name__ == "__main__":
    main()
