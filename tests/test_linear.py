"""Matrices, quaternions and poses, on every device and on the host, against NumPy in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
N = 21


def close(found: Any, wanted: Any, what: str = "", within: float = 2e-5) -> None:
    """Equal up to rounding of f32."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, what
    error = np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))
    assert error.max() < within, (what, error.max())


def skew(v: Array) -> Array:
    x, y, z = v
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def turn(axis: Array, angle: float) -> Array:
    """Rodrigues' rotation, as a matrix whose first axis is the row."""
    k = skew(axis)
    found: Array = np.array(np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * (k @ k))
    return found


def units(rng: Rng, n: int, count: int) -> Array:
    found = rng.normal(size=(n, count))
    unit: Array = (found / np.linalg.norm(found, axis=1)[:, None]).astype(np.float32)
    return unit


def of_quat(q: Array) -> Array:
    """A unit quaternion as a rotation matrix."""
    angle = 2 * np.arctan2(np.linalg.norm(q[:3]), q[3])
    return turn(q[:3] / np.linalg.norm(q[:3]), angle)


def affine(linear: Array, offset: Array) -> Array:
    found = np.eye(len(offset) + 1)
    found[:-1, :-1], found[:-1, -1] = linear, offset
    return found


def columns(m: Array) -> Array:
    """A matrix as khaljit has it on the host: columns first."""
    return np.swapaxes(m, -1, -2)


# Matrices.

SHAPES = [(c, r) for c in (2, 3, 4) for r in (2, 3, 4)]


@pytest.mark.parametrize(("c", "r"), SHAPES)
def test_arithmetic_of_matrices(device: Device, rng: Rng, c: int, r: int) -> None:
    kind, turned = getattr(kj, f"mat{c}x{r}"), getattr(kj, f"mat{r}x{c}")
    column, row = kj.vec(r, kj.f32), kj.vec(c, kj.f32)

    @kj.jit
    def kernel(
        a: Any, b: Any, v: Any, w: Any, sums: Any, product: Any, vectors: Any, rows: Any
    ) -> None:
        i = kj.global_id(0)
        if i < a.size:
            sums[i, 0] = a[i] + b[i] * 2.0
            sums[i, 1] = 0.5 * a[i] - b[i] / 4.0
            sums[i, 2] = -a[i]
            product[i] = a[i] * b[i].transpose()
            vectors[i] = a[i] * v[i]
            rows[i] = w[i] @ a[i]

    a, b = rng.random((N, c, r), np.float32), rng.random((N, c, r), np.float32)
    v, w = rng.random((N, c), np.float32), rng.random((N, r), np.float32)
    sums, vectors = np.zeros((N, 3, c, r), np.float32), np.zeros((N, r), np.float32)
    rows, product = np.zeros((N, c), np.float32), device.zeros(N, kj.mat(r, r))
    arrays = (a, b, v, w, sums, vectors, rows)
    there = {
        id(x): device.array(x, k)
        for x, k in zip(arrays, (kind, kind, row, column, kind, column, row), strict=True)
    }
    x, y, p, q, s, z, o = (there[id(one)] for one in arrays)
    kernel[N](x, y, p, q, s, product, z, o)
    close(s.numpy(), np.stack([a + 2 * b, a / 2 - b / 4, -a], 1))
    close(product.numpy(), columns(columns(a) @ b))
    close(z.numpy(), np.einsum("nji,nj->ni", a, v))
    close(o.numpy(), np.einsum("nji,ni->nj", a, w))
    host = kind.from_cols(*a[0])
    close(host * kj.vec(c, kj.f32)(*v[0]), a[0].T @ v[0])
    close(host.transpose(), a[0].T)
    assert type(host.transpose()) is turned


@kj.struct
class Linear:
    """What is asked of square matrices."""

    determinants: kj.vec3
    two: kj.mat2
    three: kj.mat3
    four: kj.mat4


def linear(a: Any, b: Any, c: Any) -> Linear:
    """Of matrices of 2, 3 and 4 columns."""
    return Linear(
        kj.vec3(a.determinant(), b.determinant(), c.determinant()),
        a.inverse(),
        b.inverse(),
        c.inverse(),
    )


def test_determinants_and_inverses(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(
        a: kj.Array1[kj.mat2], b: kj.Array1[kj.mat3], c: kj.Array1[kj.mat4], out: kj.Array1[Linear]
    ) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = linear(a[i], b[i], c[i])

    made = [
        (rng.random((N, n, n)) + 2 * np.eye(n)).astype(np.float32) * rng.choice([-1, 1], (N, 1, 1))
        for n in (2, 3, 4)
    ]
    given = [m.astype(np.float32) for m in made]
    out = np.zeros(N, Linear)
    kernel[N](given[0], given[1], given[2], out)
    wide = [m.astype(np.float64) for m in given]
    close(out["determinants"], np.stack([np.linalg.det(m) for m in wide], 1), "determinants", 1e-4)
    for name, m in zip(("two", "three", "four"), wide, strict=True):
        close(out[name], np.linalg.inv(m), name, 1e-4)
    kinds: list[Any] = [kj.mat2, kj.mat3, kj.mat4]
    made_here = [kind.from_cols(*m[0]) for kind, m in zip(kinds, given, strict=True)]
    host = np.asarray(linear(*made_here))
    for name in ("determinants", "two", "three", "four"):
        close(host[name], out[0][name], name)


def test_parts_of_matrices_are_read_and_assigned(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.mat3], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        k = i % 3
        m = a[i]
        out[i, 0] = m[1].y + m.x_axis.z + a[i][2][0] + a[i].y_axis.x
        out[i, 1] = m[k].z + m.col(k)[k] + m.row(2).x + a[i][k].y
        m[0] = kj.vec3(1.0, 2.0, 3.0)
        m[k].y = 7.0
        m.z_axis.x += 1.0
        out[i, 2] = m.determinant()
        a[i][1] = m[2]
        a[i].x_axis.zy = a[i][2].xy
        a[i][k][2] = 5.0

    a, out = rng.random((9, 3, 3), np.float32), np.zeros((9, 3), np.float32)
    expected, want = a.astype(np.float64), np.zeros((9, 3))
    for i in range(9):
        k, m = i % 3, expected[i].copy()
        want[i, 0] = m[1, 1] + m[0, 2] + m[2, 0] + m[1, 0]
        want[i, 1] = m[k, 2] + m[k, k] + m[0, 2] + m[k, 1]
        m[0] = 1, 2, 3
        m[k, 1] = 7
        m[2, 0] += 1
        want[i, 2] = np.linalg.det(m)
        expected[i, 1] = m[2]
        expected[i, 0, [2, 1]] = expected[i, 2, :2]
        expected[i, k, 2] = 5
    kernel[9](a, out)
    close(out, want, "read", 1e-4)
    close(a, expected, "assigned")


@kj.struct
class Views:
    """What is made of angles, vectors and numbers."""

    plane: kj.mat2
    scaled: kj.mat2
    flat: kj.mat3
    moved: kj.vec2
    directed: kj.vec2
    axes: Annotated[kj.Array1[kj.mat3], 4]
    solid: kj.mat4
    look: Annotated[kj.Array1[kj.mat4], 2]
    perspective: Annotated[kj.Array1[kj.mat4], 3]
    parallel: Annotated[kj.Array1[kj.mat4], 2]
    seen: kj.vec3
    point: kj.vec3
    direction: kj.vec3


def views(angle: Any, axis: Any, eye: Any, scale: Any, q: Any) -> Any:
    """Everything at once."""
    make: Any = Views
    flat = kj.mat3.from_scale_angle_translation(scale.xy, angle, eye.xy)
    solid = kj.mat4.from_scale_rotation_translation(scale, q, eye)
    up, center = kj.vec3(0.0, 1.0, 0.0), axis * 0.5
    seen = kj.mat4.perspective_rh(1.0, 1.5, 0.5, 20.0) * kj.mat4.look_at_rh(eye, center, up)
    return make(
        kj.mat2.from_angle(angle),
        kj.mat2.from_scale_angle(scale.xy, angle),
        flat,
        flat.transform_point2(eye.yz),
        flat.transform_vector2(eye.yz),
        (
            kj.mat3.from_axis_angle(axis, angle),
            kj.mat3.from_rotation_x(angle),
            kj.mat3.from_rotation_y(angle),
            kj.mat3.from_rotation_z(angle),
        ),
        solid,
        (kj.mat4.look_at_lh(eye, center, up), kj.mat4.look_at_rh(eye, center, up)),
        (
            kj.mat4.perspective_lh(1.0, 1.5, 0.5, 20.0),
            kj.mat4.perspective_rh(1.0, 1.5, 0.5, 20.0),
            kj.mat4.perspective_infinite_reverse_rh(1.0, 1.5, 0.5),
        ),
        (
            kj.mat4.orthographic_lh(-1.0, 2.0, -3.0, 4.0, 0.5, 9.0),
            kj.mat4.orthographic_rh(-1.0, 2.0, -3.0, 4.0, 0.5, 9.0),
        ),
        seen.project_point3(center + axis),
        solid.transform_point3(axis),
        solid.transform_vector3(axis),
    )


def expected_views(angle: float, axis: Array, eye: Array, scale: Array, q: Array) -> dict[str, Any]:
    """The same in NumPy."""
    plane = turn(np.array([0, 0, 1]), angle)[:2, :2]
    flat = affine(plane @ np.diag(scale[:2]), eye[:2])
    solid = affine(of_quat(q) @ np.diag(scale), eye)
    up, center = np.array([0, 1, 0]), axis * 0.5
    looks = []
    for sign in (1, -1):
        forward = sign * (center - eye) / np.linalg.norm(center - eye)
        side = np.cross(up, forward)
        side /= np.linalg.norm(side)
        rows = np.stack([side, np.cross(forward, side), forward])
        looks.append(affine(rows, -rows @ eye))
    height, near, far = 1 / np.tan(0.5), 0.5, 20.0
    projections = []
    for sign in (1, -1):
        p = np.diag([height / 1.5, height, sign * far / (far - near), 0])
        p[2, 3], p[3, 2] = -near * far / (far - near), sign
        projections.append(p)
    endless = np.diag([height / 1.5, height, 0, 0])
    endless[2, 3], endless[3, 2] = near, -1
    low, high = np.array([-1, -3, 0.5]), np.array([2, 4, 9.0])
    parallel = []
    for sign in (1, -1):
        span = np.array([2, 2, sign]) / (high - low)
        offset = np.array([-(1.0) / 3, -1.0 / 7, -0.5 / 8.5])
        parallel.append(affine(np.diag(span), offset))
    seen = projections[1] @ looks[1] @ np.append(center + axis, 1)
    return {
        "plane": columns(plane),
        "scaled": columns(plane @ np.diag(scale[:2])),
        "flat": columns(flat),
        "moved": (flat @ np.append(eye[1:], 1))[:2],
        "directed": flat[:2, :2] @ eye[1:],
        "axes": columns(np.stack([turn(a, angle) for a in (axis, *np.eye(3))])),
        "solid": columns(solid),
        "look": columns(np.stack(looks)),
        "perspective": columns(np.stack([*projections, endless])),
        "parallel": columns(np.stack(parallel)),
        "seen": seen[:3] / seen[3],
        "point": (solid @ np.append(axis, 1))[:3],
        "direction": solid[:3, :3] @ axis,
    }


def test_rotations_views_and_projections(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(
        angle: kj.Array1[kj.f32],
        axis: kj.Array1[kj.vec3],
        eye: kj.Array1[kj.vec3],
        scale: kj.Array1[kj.vec3],
        q: kj.Array1[kj.quat],
        out: kj.Array1[Views],
    ) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = views(angle[i], axis[i], eye[i], scale[i], q[i])

    angle = rng.uniform(-3, 3, N).astype(np.float32)
    axis, q = units(rng, N, 3), units(rng, N, 4)
    eye = (units(rng, N, 3) * 3 + [0.1, 0.0, 4.0]).astype(np.float32)
    scale = rng.uniform(0.5, 2, (N, 3)).astype(np.float32)
    out = np.zeros(N, Views)
    kernel[N](angle, axis, eye, scale, q, out)
    for i in range(N):
        wide = [one[i].astype(np.float64) for one in (angle, axis, eye, scale, q)]
        for name, wanted in expected_views(*wide).items():
            close(out[i][name], wanted, name, 1e-4)
    host = views(
        float(angle[0]),
        kj.vec3(*axis[0]),
        kj.vec3(*eye[0]),
        kj.vec3(*scale[0]),
        kj.quat(*q[0]),
    )
    for name in np.dtype(Views).names or ():
        close(np.asarray(host)[name], out[0][name], name)


# Quaternions and poses.


@kj.struct
class Turns:
    """What is asked of rotations."""

    vectors: Annotated[kj.Array1[kj.vec3], 8]
    numbers: kj.vec4
    back: kj.quat
    again: kj.quat
    lerp: kj.quat
    ends: Annotated[kj.Array1[kj.quat], 2]


def turns(a: Any, b: Any, v: Any, angle: Any, t: Any) -> Any:
    """Everything at once."""
    make: Any = Turns
    axis, found = a.to_axis_angle()
    unit = kj.vec3(0.0, 0.6, 0.8)
    return make(
        (
            (a * b) * v,
            a.inverse() * v,
            a.slerp(b, t) * v,
            kj.quat.from_euler("zyx", angle, 0.5, t) * v,
            kj.quat.from_scaled_axis(v) * v.yzx,
            kj.quat.from_rotation_arc(unit, v) * unit,
            kj.quat.from_mat3(a.to_mat3()) * v,
            axis * found,
        ),
        kj.vec4(a.dot(b), (a * 3.0).length(), a.angle_between(b), (a - b).length_squared()),
        a * a.conjugate(),
        kj.quat.from_axis_angle(axis, found),
        a.lerp(b, t),
        (a.slerp(b, 0.0), -(a.slerp(b, 1.0) + b) / 2.0),
    )


def expected_turns(a: Array, b: Array, v: Array, angle: float, t: float) -> dict[str, Any]:
    """The same in NumPy."""
    first, second = of_quat(a), of_quat(b)
    x, y, z = np.eye(3)
    euler = turn(z, angle) @ turn(y, 0.5) @ turn(x, t)
    near = b if a @ b >= 0 else -b
    half = np.arccos(min(1.0, float(abs(a @ b))))
    slerp = (np.sin(half * (1 - t)) * a + np.sin(half * t) * near) / np.sin(half)
    line = a + (near - a) * t
    whole = 2 * np.arctan2(np.linalg.norm(a[:3]), a[3])
    axis = a[:3] / np.linalg.norm(a[:3])
    return {
        "vectors": [
            first @ second @ v,
            first.T @ v,
            of_quat(slerp) @ v,
            euler @ v,
            turn(v, 1.0) @ v[[1, 2, 0]],
            v,
            first @ v,
            axis * whole,
        ],
        "numbers": [a @ b, 3, 2 * half, (a - b) @ (a - b)],
        "back": [0, 0, 0, 1],
        "again": a,
        "lerp": line / np.linalg.norm(line),
        "ends": [a, -(near + b) / 2],
    }


def test_quaternions(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(
        a: kj.Array1[kj.quat],
        b: kj.Array1[kj.quat],
        v: kj.Array1[kj.vec3],
        angle: kj.Array1[kj.f32],
        t: kj.Array1[kj.f32],
        out: kj.Array1[Turns],
    ) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = turns(a[i], b[i], v[i], angle[i], t[i])

    a, b, v = units(rng, N, 4), units(rng, N, 4), units(rng, N, 3)
    angle, t = rng.uniform(-3, 3, N).astype(np.float32), rng.random(N, np.float32)
    b[0] = -a[0] * np.float32(0.9999999)  # the same turn
    out = np.zeros(N, Turns)
    kernel[N](a, b, v, angle, t, out)
    for i in range(1, N):
        wide = [one[i].astype(np.float64) for one in (a, b, v, angle, t)]
        for name, wanted in expected_turns(*wide).items():
            close(out[i][name], wanted, name, 2e-3 if name in ("numbers", "ends") else 2e-4)
    close(out[0]["vectors"][2], of_quat(a[0].astype(np.float64)) @ v[0], "slerp of equal turns")
    host = turns(
        kj.quat(*a[1]), kj.quat(*b[1]), kj.vec3(*v[1]), np.float32(angle[1]), np.float32(t[1])
    )
    for name in np.dtype(Turns).names or ():
        close(np.asarray(host)[name], out[1][name], name, 1e-3)


@kj.struct
class Moves:
    """What is asked of poses."""

    points: Annotated[kj.Array1[kj.vec3], 7]
    flat: Annotated[kj.Array1[kj.vec2], 6]
    angle: kj.f32
    solid: kj.mat4
    plane: kj.mat3
    back: kj.pose3


def moves(a: Any, b: Any, c: Any, d: Any, p: Any, t: Any) -> Any:
    """Everything at once: two poses of space, two of the plane."""
    make: Any = Moves
    camera = kj.pose3.look_at(p, kj.vec3(0.25), kj.vec3(0.0, 1.0, 0.0))
    return make(
        (
            (a * b) * p,
            a.inverse() * p,
            a.inverse_transform_point(p),
            a.transform_vector(p),
            a.inverse_transform_vector(p),
            a.inv_mul(b) * p,
            camera.inverse_transform_point(kj.vec3(0.25)),
        ),
        (
            (c * d) * p.xy,
            c.inverse() * p.xy,
            c.inverse_transform_point(p.xy),
            c.transform_vector(p.xy),
            c.inverse_transform_vector(p.xy),
            c.inv_mul(d) * p.xy,
        ),
        c.angle,
        a.to_mat4(),
        c.to_mat3(),
        kj.pose3.from_mat4(a.lerp(b, t).to_mat4()),
    )


def test_poses(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(
        a: kj.Array1[kj.pose3],
        b: kj.Array1[kj.pose3],
        c: kj.Array1[kj.pose2],
        d: kj.pose2,
        p: kj.Array1[kj.vec3],
        t: kj.f32,
        out: kj.Array1[Moves],
    ) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = moves(a[i], b[i], c[i], d, p[i], t)

    a, b, c = np.zeros(N, kj.pose3), np.zeros(N, kj.pose3), np.zeros(N, kj.pose2)
    for one in (a, b):
        one["rotation"], one["translation"] = units(rng, N, 4), rng.normal(size=(N, 3))
    angle = rng.uniform(-3, 3, N)
    c["rotation"] = np.stack([np.cos(angle), np.sin(angle)], 1)
    c["translation"] = rng.normal(size=(N, 2))
    d = kj.pose2.from_angle(0.75, (1.0, -2.0))
    p = (units(rng, N, 3) + np.array([2, 0, 0])).astype(np.float32)
    out = np.zeros(N, Moves)
    kernel[N](a, b, c, d, p, 0.5, out)
    plane = turn(np.array([0, 0, 1]), 0.75)[:2, :2]
    for i in range(N):
        one, other = (
            affine(of_quat(pose[i]["rotation"].astype(np.float64)), pose[i]["translation"])
            for pose in (a, b)
        )
        x, y = c[i]["rotation"].astype(np.float64)
        third = affine(np.array([[x, -y], [y, x]]), c[i]["translation"])
        fourth = affine(plane, np.array([1, -2]))
        for name, m, n, point in (
            ("points", one, other, p[i].astype(np.float64)),
            ("flat", third, fourth, p[i, :2].astype(np.float64)),
        ):
            k, whole = len(point), np.append(point, 1)
            back = np.linalg.inv(m)
            wanted = [
                m @ n @ whole,
                back @ whole,
                back @ whole,
                m @ np.append(point, 0),
                back @ np.append(point, 0),
                back @ n @ whole,
            ]
            close(out[i][name][:6], np.stack(wanted)[:, :k], name, 1e-4)
        distance = np.linalg.norm(p[i] - 0.25)
        close(out[i]["points"][6], [0, 0, -distance], "camera", 1e-4)
        close(out[i]["angle"], np.arctan2(y, x), "angle", 1e-4)
        close(out[i]["solid"], columns(one), "solid", 1e-4)
        close(out[i]["plane"], columns(third), "plane", 1e-4)
        close(out[i]["back"]["translation"], (one[:3, 3] + other[:3, 3]) / 2, "lerp", 1e-4)
    first, second = (kj.pose3(*one[0]) for one in (a, b))
    host = moves(first, second, kj.pose2(*c[0]), d, kj.vec3(*p[0]), np.float32(0.5))
    for name in ("points", "flat", "angle", "solid", "plane"):
        close(np.asarray(host)[name], out[0][name], name, 1e-4)


def test_matrices_are_fields_arguments_and_live_everywhere(device: Device, rng: Rng) -> None:
    @kj.struct
    class Body:
        pose: kj.pose3
        inertia: kj.mat3
        history: Annotated[kj.Array1[kj.mat2], 2]

    @kj.jit(workgroup=8)
    def kernel(a: kj.Array1[Body], m: kj.mat3, n: Any) -> None:
        tile = kj.shared(Body, 8)
        own = kj.local(kj.mat2, 2)
        i, k = kj.global_id(0), kj.local_id(0)
        tile[k] = a[i]
        kj.barrier()
        me = tile[7 - k]
        me.inertia = m * me.inertia
        own[k % 2] = me.history[k % 2] * n
        me.history[k % 2] = own[k % 2].transpose()
        if k > 3:
            me.pose = me.pose.inverse()
        a[i] = me

    a = np.zeros(16, Body)
    a["pose"]["rotation"], a["pose"]["translation"] = units(rng, 16, 4), rng.normal(size=(16, 3))
    a["inertia"], a["history"] = rng.random((16, 3, 3)), rng.random((16, 2, 2, 2))
    m = rng.random((3, 3), np.float32)  # columns first, as in memory
    n = kj.mat2.from_rows((1.0, 2.0), (3.0, 4.0))
    expected = a.reshape(2, 8)[:, ::-1].reshape(16).copy()
    kernel[16](a, m, n)  # type: ignore[arg-type]
    for i in range(16):
        k, wide = i % 8, expected[i]
        close(a[i]["inertia"], columns(m.T @ columns(wide["inertia"])), "inertia")
        history = wide["history"].astype(np.float64).copy()
        history[k % 2] = columns(history[k % 2]) @ [[1, 2], [3, 4]]
        close(a[i]["history"], history, "history")
        rotation = wide["pose"]["rotation"] * ([-1, -1, -1, 1] if k > 3 else 1)
        close(a[i]["pose"]["rotation"], rotation, "rotation")


def wrong(case: int) -> Any:
    """Operands that do not fit."""
    m: Any = kj.mat3.identity()
    v: Any = kj.vec2(1.0, 2.0)
    q: Any = kj.quat.identity()
    pose: Any = kj.pose3.identity()
    cases: dict[int, Callable[[], Any]] = {
        0: lambda: m * v,
        1: lambda: m * kj.mat2.identity(),
        2: lambda: m + kj.mat4.identity(),
        3: lambda: kj.mat2.from_rows((1.0, 2.0)),
        4: lambda: kj.mat2.from_diagonal((1.0, 2.0, 3.0)),
        5: lambda: m[3],
        6: lambda: q * v,
        7: lambda: v * q,
        8: lambda: pose * kj.pose2.identity(),
        9: lambda: kj.quat.from_euler("xyx", 0.0, 0.0, 0.0),
    }
    return cases[case]()


MESSAGES = [
    "mat3 times",
    "mat3 times a mat2",
    "mat3 meets a mat4",
    "mat2 got 1 rows",
    "as a diagonal",
    "mat3 has no columns 3",
    "a quat times",
    "times a quat",
    "a pose3 times a pose2",
    "the order of axes 'xyx'",
]


@pytest.mark.parametrize("case", range(len(MESSAGES)), ids=MESSAGES)
def test_operands_that_do_not_fit_are_explained(case: int) -> None:
    with pytest.raises(kj.ArgumentTypeError, match=MESSAGES[case]):
        wrong(case)

    @kj.jit
    def kernel(out: kj.Array1[kj.f32], case: kj.Const[int]) -> None:
        wrong(case)

    with kj.use("interpreter"), pytest.raises(kj.TraceError, match=MESSAGES[case]) as caught:
        kernel[1](np.zeros(1, np.float32), case)
    assert caught.value.mend
    assert caught.value.at is not None
