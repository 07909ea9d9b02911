"""Structs: in memory, as arguments, as values, on every device against NumPy."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Rng = np.random.Generator


@kj.struct
class Cell:
    """A byte, a padded half, and a fixed array."""

    kind: kj.u8
    level: kj.i16
    bins: Annotated[kj.Array1[kj.u8], 5]


@kj.struct
class Particle:
    """Every way a field can be."""

    pos: kj.vec3
    alive: kj.bool
    vel: kj.vec3
    mass: kj.f32 = 1.0
    cell: Cell = Cell(1, 2, np.arange(5))
    count: kj.u32 = 0
    trail: Annotated[kj.Array1[kj.vec2], 3] = ((0, 0), (1, 1), (2, 2))  # type: ignore[assignment]

    def energy(self) -> Any:
        """Half the mass times the square of the velocity."""
        return 0.5 * self.mass * kj.dot(self.vel, self.vel)

    def moved(self, dt: Any) -> Particle:
        """Where it is a little later."""
        self.pos = self.pos + self.vel * dt
        return self

    @staticmethod
    def resting(pos: Any) -> Particle:
        """One that does not move."""
        return Particle(pos, True, kj.vec3(0.0))

    @property
    def speed(self) -> Any:
        """The length of its velocity."""
        if self.alive:
            return kj.length(self.vel)
        return 0.0


make: Any = Particle  # type checkers want vectors where tuples do
make_cell: Any = Cell


def fields(array: Any) -> Any:
    """An array whose fields type checkers do not ask about."""
    return array


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal in every field; what lies between the fields is nobody's."""
    if a.dtype.names is None:
        return bool((a == b).all())
    return all(same(a[name], b[name]) for name in a.dtype.names)


def particles(rng: Rng, n: int) -> np.ndarray[Any, Any]:
    """Particles with something in every field, padding included."""
    found = np.frombuffer(rng.bytes(n * np.dtype(Particle).itemsize), np.dtype(Particle)).copy()
    found["alive"] = rng.random(n) < 0.5
    for name, shape in (("pos", (n, 3)), ("vel", (n, 3)), ("mass", (n,)), ("trail", (n, 3, 2))):
        found[name] = rng.random(shape)
    return found


# Layout and the host.


def test_a_struct_is_a_numpy_dtype_in_the_layout_of_c() -> None:
    dtype = np.dtype(
        [
            ("pos", np.float32, 3),
            ("alive", np.bool_),
            ("vel", np.float32, 3),
            ("mass", np.float32),
            ("cell", np.dtype([("kind", "u1"), ("level", "i2"), ("bins", "u1", 5)], align=True)),
            ("count", np.uint32),
            ("trail", np.float32, (3, 2)),
        ],
        align=True,
    )
    assert np.dtype(Particle) == dtype
    assert np.zeros(3, Particle).dtype == dtype


def test_a_struct_is_made_and_changed_on_the_host() -> None:
    one = make((1, 2, 3), True, kj.vec3(0, 1, 0), count=7)
    assert isinstance(one.mass, np.float32)
    assert one.pos.zyx[0] == 3
    one.vel.x = 5
    one.cell.bins[2] = 9
    one.mass = 2
    row = np.asarray(one)
    assert row["vel"].tolist() == [5, 1, 0]
    assert row["cell"]["bins"].tolist() == [0, 1, 9, 3, 4]
    assert row["mass"] == 2
    assert row["trail"].tolist() == [[0, 0], [1, 1], [2, 2]]
    array = np.zeros(2, Particle)
    array[1] = np.asarray(one)
    assert make(*array[1]) == one
    assert make(*array[0]) != one
    assert copy.copy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert "mass=2.0" in repr(one)


def test_what_a_struct_cannot_be_made_of_is_explained() -> None:
    with pytest.raises(kj.ArgumentTypeError, match=r"missing a required argument: 'vel'"):
        make((1, 2, 3), True)
    with pytest.raises(kj.ArgumentTypeError, match=r"Particle.pos is a vec3 and got \(1, 2\)"):
        make((1, 2), True, (0, 0, 0))
    with pytest.raises(kj.ArgumentTypeError, match=r"Particle.count is a u32 and got 1.5"):
        make((1, 2, 3), True, (0, 0, 0), count=1.5)
    with pytest.raises(kj.ArgumentValueError, match="it holds 0 to 4294967295"):
        make((1, 2, 3), True, (0, 0, 0), count=-1)
    with pytest.raises(kj.ArgumentTypeError, match="an array of shape"):
        make_cell(1, 2, [1, 2])


def test_classes_that_are_no_structs_are_refused() -> None:
    class Odd:
        size: kj.f32

    class Unknown:
        text: str

    class Late:
        first: kj.f32 = 1.0
        second: kj.f32

    for cls, message in (
        (Odd, "a field 'size', which arrays have"),
        (Unknown, "Unknown.text is annotated with"),
        (Late, "non-default argument follows default"),
        (type("Empty", (), {}), "has no fields"),
    ):
        with pytest.raises(kj.ArgumentTypeError, match=message):
            kj.struct(cls)
    with pytest.raises(TypeError, match="no shape of a fixed array"):
        getattr(kj, "i8")[0]  # noqa: B009


def test_a_struct_may_extend_another() -> None:
    @kj.struct
    class Heavy(Particle):
        weight: kj.f64 = 3.0

    typed: Any = Heavy
    one = typed((1, 2, 3), False, (0, 0, 0))
    assert one.weight == 3
    assert one.cell.level == 2
    assert np.dtype(Heavy).names == (*(np.dtype(Particle).names or ()), "weight")


# Memory.


def test_fields_are_read_and_stored_in_place(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            out[i, 0] = a[i].mass + a[i].vel.y
            out[i, 1] = a[i].cell.level
            out[i, 2] = a[i].cell.bins[i % 5]
            out[i, 3] = a[i].trail[i % 3].x + a[i].trail[2].y
            a[i].vel.x = a[i].pos.z
            a[i].pos.yz = a[i].vel.xy
            a[i].cell.bins[(i + 1) % 5] += 3
            a[i].cell.level -= 7
            a[i].trail[(i + 1) % 3].y = 0.5
            a[i].alive = not a[i].alive

    a = particles(rng, 37)
    memory = a.view(np.uint8).copy()
    expected, i = memory.view(Particle), np.arange(37)
    want = np.stack(
        [
            a["mass"] + a["vel"][:, 1],
            a["cell"]["level"].astype(np.float32),
            a["cell"]["bins"][i, i % 5].astype(np.float32),
            a["trail"][i, i % 3, 0] + a["trail"][:, 2, 1],
        ],
        1,
    )
    expected["vel"][:, 0] = a["pos"][:, 2]
    expected["pos"][:, 1:] = expected["vel"][:, :2]
    expected["cell"]["bins"][i, (i + 1) % 5] += 3
    expected["cell"]["level"] -= 7
    expected["trail"][i, (i + 1) % 3, 1] = 0.5
    expected["alive"] = ~a["alive"]
    out = np.full((37, 4), 77, np.float32)
    kernel[37](a, out)
    assert (out == want).all()
    assert (a.view(np.uint8) == memory).all()  # padding too


def test_a_name_holds_a_copy(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        me = a[i]
        other = me
        me.vel.x = 100.0
        me.cell.bins[1] = 9
        me.trail[i % 3].x = 5.0
        out[i] = me.vel.x + other.vel.x + a[i].vel.x + me.cell.bins[1] + me.trail[i % 3].x

    a = particles(rng, 6)
    before, out = a.copy(), np.zeros(6, np.float32)
    kernel[6](a, out)
    assert same(a, before)
    wanted = np.float32(100) + a["vel"][:, 0] + a["vel"][:, 0] + np.float32(9) + np.float32(5)
    assert np.allclose(out, wanted, rtol=1e-6)


def test_whole_structs_are_copied_made_and_passed_on(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], b: kj.Array1[Particle], dt: kj.f32) -> None:
        i = kj.global_id(0)
        if i < a.size:
            if i % 3 == 0:
                b[i] = Particle.resting(a[i].pos)
            elif i % 3 == 1:
                b[i] = a[i].moved(dt)
            else:
                b[i] = make(
                    a[i].vel, a[i].mass > 0.5, a[i].pos, mass=2, cell=a[i].cell, trail=a[i].trail
                )

    a, b = particles(rng, 20), np.zeros(20, Particle)
    kernel[20](a, b, 0.5)
    for i in range(20):
        if i % 3 == 0:
            want = make(a[i]["pos"], True, (0, 0, 0))
        elif i % 3 == 1:
            want = make(*a[i])
            want.pos = a[i]["pos"] + a[i]["vel"] * np.float32(0.5)
        else:
            row = a[i]
            want = make(
                row["vel"], row["mass"] > 0.5, row["pos"], 2, row["cell"], trail=row["trail"]
            )
        assert np.allclose(b[i]["pos"], np.asarray(want)["pos"], rtol=1e-6)
        for name in ("alive", "vel", "mass", "cell", "count", "trail"):
            assert (b[i][name] == np.asarray(want)[name]).all(), (i, name)


def test_structs_go_through_branches_and_loops(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], n: kj.i32) -> None:
        i = kj.global_id(0)
        me = a[i]
        best = me
        for k in range(n):
            if me.mass > 0.25:
                me.mass *= 0.5
                me.count += 1
            else:
                me.pos.x += 1.0
                best = me
                if k > 5:
                    break
            me.cell.bins[k % 5] = k
        a[i] = best if best.alive else me

    def reference(row: Any, n: int) -> Any:
        me = row.copy()
        best = me.copy()
        for k in range(n):
            if me["mass"] > 0.25:
                me["mass"] *= np.float32(0.5)
                me["count"] += np.uint32(1)
            else:
                me["pos"][0] += np.float32(1)
                best = me.copy()
                if k > 5:
                    break
            me["cell"]["bins"][k % 5] = k
        return best if best["alive"] else me

    a = particles(rng, 15)
    a["count"] = 5
    expected = [reference(a[i : i + 1].copy()[0], 9) for i in range(15)]
    kernel[15](a, 9)
    for got, want in zip(a, expected, strict=True):
        for name in np.dtype(Particle).names or ():
            assert (got[name] == want[name]).all(), name


def test_arrays_of_structs_live_on_devices(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array2[Particle]) -> None:
        y, x = kj.index(2)
        a[y, x].count = y * 100 + x

    host = particles(rng, 12).reshape(3, 4)
    a = device.array(host)
    assert (a.shape, a.itemsize) == ((3, 4), host.itemsize)
    b = device.empty((3, 4), Particle)
    device.copy(a, b)
    kernel[kj.over(b)](b)
    expected = host.copy()
    expected["count"] = np.arange(3)[:, None] * 100 + np.arange(4)
    assert same(b.numpy(), expected)
    assert same(a.numpy(), host)
    part = b[1:, ::2]
    kernel[2, 2](part)
    expected[1:, ::2]["count"] = np.arange(2)[:, None] * 100 + np.arange(2)
    assert (b.numpy()["count"] == expected["count"]).all()
    c = device.full(3, make((1, 2, 3), True, (4, 5, 6)), Particle)
    assert c.numpy()["vel"].tolist() == [[4, 5, 6]] * 3
    assert same(device.zeros(2, Particle).numpy(), np.zeros(2, Particle))
    c[1:2] = make((0, 0, 0), False, (0, 0, 0))
    assert c.numpy()["alive"].tolist() == [True, False, True]


def test_strided_arrays_of_structs(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle]) -> None:
        i = kj.global_id(0)
        if i < a.shape[0]:
            a[i].count = i

    a = particles(rng, 21)
    expected = a.copy()
    expected[::-2]["count"] = np.arange(11)
    kernel[11](a[::-2])
    assert (a["count"] == expected["count"]).all()
    assert (a["vel"] == expected["vel"]).all()


def test_shared_and_local_memory_hold_structs(device: Device, rng: Rng) -> None:
    @kj.jit(workgroup=16)
    def kernel(a: kj.Array1[Particle]) -> None:
        tile = kj.shared(Particle, 16)
        own = kj.local(Cell, (2, 3))
        i, k = kj.global_id(0), kj.local_id(0)
        tile[k] = a[i]
        tile[k].cell.bins[k % 5] += 1
        kj.barrier()
        kj.atomic_add(fields(tile).count, 15 - k, 3)
        kj.barrier()
        me = tile[15 - k]
        own[k % 2, k % 3] = me.cell
        own[k % 2, k % 3].bins[2] = 200
        me.cell = own[k % 2, k % 3]
        a[i] = me

    a = particles(rng, 48)
    groups, k = a.reshape(3, 16).copy(), np.arange(16)
    groups["cell"]["bins"][:, k, k % 5] += 1
    groups["count"] += 3
    expected = groups[:, ::-1].copy()
    expected["cell"]["bins"][..., 2] = 200
    kernel[48](a)
    for name in np.dtype(Particle).names or ():
        assert (a.reshape(3, 16)[name] == expected[name]).all(), name


def test_tables_hold_structs(device: Device, rng: Rng) -> None:
    table = particles(rng, 5)

    @kj.jit
    def kernel(out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        rows = kj.constant(table)
        out[i, 0] = rows[i].vel.y
        out[i, 1] = rows[i].cell.bins[i % 5]
        out[i, 2] = rows[4 - i].trail[1].x

    out = np.zeros((5, 3), np.float32)
    kernel[5](out)
    i = np.arange(5)
    assert (out[:, 0] == table["vel"][:, 1]).all()
    assert (out[:, 1] == table["cell"]["bins"][i, i]).all()
    assert (out[:, 2] == table["trail"][4 - i, 1, 0]).all()


def test_fields_out_of_bounds_read_0_and_are_not_written(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], out: kj.Array1[kj.i32], shift: kj.i32) -> None:
        i = kj.global_id(0)
        out[i] = a[0].cell.bins[i + shift] + a[i + 100].cell.kind
        a[0].cell.bins[i + shift] = 1
        a[i + 100].count = 3

    if device.kind == "python":
        pytest.skip("fixed arrays of structs are tuples there, which raise IndexError")
    a, out = particles(rng, 2), np.full(12, 77, np.int32)
    expected = a.copy()
    inside = [max(0, i - 4) if 0 <= i - 4 < 5 else None for i in range(12)]
    want = [0 if k is None else a["cell"]["bins"][0, k] for k in inside]
    expected["cell"]["bins"][0] = 1
    kernel[12](a, out, -4)
    assert out.tolist() == want
    assert same(a, expected)


def test_atomics_on_fields(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], b: kj.Array1[kj.ivec2], n: kj.i32) -> None:
        i = kj.global_id(0)
        kj.atomic_add(fields(a).count, i % 3, 2)
        kj.atomic_max(fields(a).cell.bins, (i % 3, i % 5), 200)
        kj.atomic_add(fields(a).mass, 0, 1.0)
        kj.atomic_add(fields(b).y, (i % 2,), i)

    a, b = particles(rng, 3), np.zeros((2, 2), np.int32)
    a["count"], a["mass"] = 7, 1.5
    a["cell"]["bins"] = np.arange(15).reshape(3, 5)
    a["cell"]["bins"][1, 1] = 240
    kernel[60](a, b, 1)
    bins = np.full((3, 5), 200)
    bins[1, 1] = 240
    assert (a["count"] == 47).all()
    assert a["mass"].tolist() == [61.5, 1.5, 1.5]
    assert (a["cell"]["bins"] == bins).all()
    assert b.tolist() == [[0, sum(range(0, 60, 2))], [0, sum(range(1, 60, 2))]]


def test_views_of_fields(device: Device, rng: Rng) -> None:
    def total(values: Any, i: Any) -> Any:
        return values[i, 0] + values[i, 4]

    @kj.jit
    def kernel(a: kj.Array1[Particle], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        n, m = fields(a).cell.bins.shape
        out[i] = kj.i32(total(fields(a).cell.bins, i)) + m + fields(a).count.ndim + n

    a, out = particles(rng, 4), np.zeros(4, np.int32)
    kernel[4](a, out)
    bins = a["cell"]["bins"]
    assert (out == (bins[:, 0] + bins[:, 4]).astype(np.int32) + 5 + 1 + 4).all()


# Arguments.


def test_structs_are_arguments(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(out: kj.Array1[kj.f32], one: Particle, other: Any, extra: Any) -> None:
        i = kj.global_id(0)
        out[i] = one.vel[i] + one.energy() + other.cell.bins[i] + extra.level + one.trail[i].y

    row = particles(rng, 1)[0]
    one = make(*row)
    out = np.zeros(3, np.float32)
    cell = make_cell(1, 300, [1, 2, 3, 4, 5])
    kernel[3](out, one, one, cell)
    energy = np.float32(0.5) * row["mass"] * (row["vel"] ** 2).sum()
    wanted = row["vel"] + energy + row["cell"]["bins"][:3] + 300 + row["trail"][:, 1]
    assert np.allclose(out, wanted, rtol=1e-5)
    kernel[3](out, row, one, cell)  # an element of a NumPy array
    assert np.allclose(out, wanted, rtol=1e-5)
    one.vel.x = 50  # a run-time value: nothing is recorded again
    kernel[3](out, one, one, cell)
    assert out[0] > 50
    assert kernel.cache_info()["recorded"] == 1


def test_structured_arrays_need_no_annotation(device: Device, rng: Rng) -> None:
    dtype = np.dtype([("a", np.int32), ("b", np.float64, (2, 3)), ("c", np.uint8, 4)], align=True)
    if device.kind == "webgpu":
        dtype = np.dtype([("a", "i4"), ("b", "f4", (2, 3)), ("c", "u1", 4)], align=True)

    @kj.jit
    def kernel(x: Any) -> None:
        i = kj.global_id(0)
        x[i].b[1].z = x[i].a
        x[i].c.w = 7

    x = np.zeros(4, dtype)
    x["a"] = rng.integers(0, 100, 4)
    kernel[4](x)
    assert (x["b"][:, 1, 2] == x["a"]).all()
    assert (x["c"][:, 3] == 7).all()


def test_vectors_may_be_structured_on_the_host(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(p: kj.Array1[kj.vec3]) -> None:
        i = kj.global_id(0)
        p[i] = p[i].zyx

    values = rng.random((7, 3), np.float32)
    xyz = values.copy().view([("x", "f4"), ("y", "f4"), ("z", "f4")]).reshape(7)
    kernel[7](xyz)
    assert (xyz.view("f4").reshape(7, 3) == values[:, ::-1]).all()


def test_structs_are_chosen_printed_and_stored_from_lists(
    device: Device, rng: Rng, capsys: pytest.CaptureFixture[str]
) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Cell], out: kj.Array1[Cell]) -> None:
        i = kj.global_id(0)
        both = (a[0], a[1])
        out[i] = kj.select(i == 1, both[i % 2], a[0] if a[2].kind > 5 else a[2])
        if i == 2:
            print(a[2])

    cells = [make_cell(k, -k, (k,) * 5) for k in range(3)]
    a, out = device.array(cells, Cell), device.zeros(3, Cell)
    kernel[3](a, out)
    assert out.numpy()["kind"].tolist() == [2, 1, 2]
    assert (out.numpy()["bins"] == np.array([2, 1, 2])[:, None]).all()
    device.synchronize()
    assert capsys.readouterr().out == "Cell(kind=2, level=-2, bins=(2, 2, 2, 2, 2))\n"


def test_captured_structs_are_constants_and_changing_them_is_seen(device: Device) -> None:
    origin = make((1, 2, 3), True, (0, 0, 0))
    axis = kj.vec3(1, 0, 0)

    @kj.jit
    def kernel(out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        shifted = origin
        shifted.pos.x += 1.0
        other = axis
        other.x = 7.0
        other[1] = other.x
        assert other.y == 7.0
        out[i] = kj.dot(shifted.pos + axis * 2.0, kj.vec3(1.0)) + origin.cell.bins[i]

    out = np.zeros(2, np.float32)
    kernel[2](out)
    assert out.tolist() == [9, 10]
    assert origin.pos.x == 1
    assert list(axis) == [1, 0, 0]
    origin.pos.x = 5
    kernel[2](out)
    assert out.tolist() == [13, 14]
    axis.x = 2
    kernel[2](out)
    assert out.tolist() == [15, 16]


def test_mistakes_with_structs_are_explained(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], case: kj.Const[int]) -> None:
        i = kj.global_id(0)
        me = fields(a)[i]
        if case == 0:
            me.speeds = 1.0
        elif case == 1:
            a[i].vel.q = 1.0
        elif case == 2:
            a[i] = me.cell
        elif case == 3:
            a[i].count = 1.5  # type: ignore[assignment]
        elif case == 4:
            a[i].cell.bins[7] = 1
            me.cell.bins[7] = 1
        elif case == 5:
            kj.atomic_add(a, 0, 1)
        elif case == 6:
            me.count = me == a[0]
        elif case == 7:
            a[i] = make(1.0)
        elif case == 8:
            fields(a).count = 3

    expected = {
        0: "Particle has no field 'speeds'",
        1: "vec3 has no attribute 'q' to assign",
        2: r"a Cell is stored to a\[...\], whose type is Particle",
        3: r"the literal 1.5 is stored to a.count\[...\], whose type is u32",
        4: "index 7 is out of range for a fixed array of 5",
        5: "works on scalars, and a holds Particle",
        6: "two Particle are compared as a whole",
        7: "Particle: missing a required argument",
        8: "an array of Particle has no attribute 'count' to assign",
    }
    with kj.use("interpreter"):
        for case, message in expected.items():
            with pytest.raises(kj.TraceError, match=message) as caught:
                kernel[1](particles(rng, 2), case)
            assert caught.value.at is not None
            assert caught.value.mend


def test_arrays_that_do_not_fit_are_refused(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle]) -> None:
        a[0].count = 1

    packed = np.dtype([("a", "u1"), ("b", "f4")])
    with kj.use("interpreter"):
        with pytest.raises(kj.ArgumentTypeError, match=r"np.dtype\(Struct\)"):
            kernel[1](np.zeros(3, packed))
        with pytest.raises(kj.ArgumentTypeError, match=r"expects kj.Array1\[Particle\]"):
            kernel[1](np.zeros(3, Cell))
        with pytest.raises(kj.ArgumentTypeError, match="no type of elements"):
            kj.device("interpreter").empty(3, str)


def test_a_changed_copy_that_nothing_reads_is_warned_of(rng: Rng) -> None:
    @kj.jit
    def changes(a: kj.Array1[Particle]) -> None:
        me = a[kj.global_id(0)]
        me.vel.x = 1.0

    @kj.jit
    def counts(v: kj.Array1[kj.vec3]) -> None:
        me = v[kj.global_id(0)]
        me.x += 1.0

    @kj.jit
    def stores(a: kj.Array1[Particle]) -> None:
        me = a[kj.global_id(0)]
        me.vel.x = 1.0
        me.vel.y = 2.0
        a[0] = me

    with kj.use("interpreter"):
        with pytest.warns(kj.TraceWarning, match="a part of a Particle is changed that nothing"):
            changes[1](particles(rng, 1))
        with pytest.warns(kj.TraceWarning, match="a part of a vec3"):
            counts[1](np.zeros((1, 3), np.float32))
        stores[1](particles(rng, 1))


def test_signatures_name_structs(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[Particle], one: Particle, out: kj.Array1[kj.f32]) -> None:
        out[0] = a[0].mass + one.mass

    trace = kernel.trace("Particle[:], Particle, f32[:]")
    a, one = particles(rng, 2), make((0, 0, 0), True, (0, 0, 0))
    with kj.use("interpreter"):
        same = kernel.trace(a, one, np.zeros(1, np.float32))
    assert trace.arrays[0].memory.element == same.arrays[0].memory.element
    assert [s.name for s in trace.scalars] == [s.name for s in same.scalars]
    text = "{mass: f32, qs: i8[32], p: vec3, inner: {a: u8, b: f32[2, 3]}}[:], {mass: f64}, f32[n]"

    @kj.jit
    def loose(a: Any, one: Any, out: kj.Array1[kj.f32]) -> None:
        out[0] = a[0].mass + a[0].qs[0] + one.mass

    element = loose.trace(text).arrays[0].memory.element
    assert element.size == 4 + 32 + 12 + 28
    for wrong in ("Particles[:], Particle, f32[:]", "{mass f32}[:], {mass: f32}, f32[:]"):
        with pytest.raises(kj.ArgumentValueError):
            kernel.trace(wrong)
