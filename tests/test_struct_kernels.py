"""Real kernels with structs, from the examples: quantised products and rigid bodies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import f32
from khaljit.tracer.interpret import interpret
from khaljit.tracer.record import ArrayArgument, ConstArgument
from tests.ptx_tools import recorded, run
from tests.test_structs import Particle, particles, same


def example(name: str) -> Any:
    """The module of an example."""
    path = Path(__file__).resolve().parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


quantised, rigid = example("quantised_gemv"), example("rigid_bodies")

Rng = np.random.Generator
FORMATS = sorted(quantised.FORMATS)


def test_blocks_lie_as_in_files() -> None:
    sizes = {name: np.dtype(kind).itemsize for name, (kind, _) in quantised.FORMATS.items()}
    assert sizes == {
        **{"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24},
        **{"Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292},
    }


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (37, 768)])
@pytest.mark.usefixtures("device")
def test_products_of_quantised_matrices(name: str, rows: int, columns: int, rng: Rng) -> None:
    assert quantised.check(name, rows, columns, rng) < 1e-4


@pytest.mark.parametrize("name", FORMATS)
def test_products_of_quantised_matrices_in_ptx(name: str, rng: Rng) -> None:
    def row(blocks: Any, x: Any, y: Any, kind: Any, length: Any) -> None:
        i = kj.global_id(0)
        total = kj.f32(0)
        for k in range(x.size):
            total += kind.weight(blocks, (i, k // length), k % length) * x[k]
        y[i] = total

    kind, length = quantised.FORMATS[name]
    trace = recorded(
        row,
        [
            ("blocks", ArrayArgument(kind, 2)),
            *(("x", ArrayArgument(f32, 1)), ("y", ArrayArgument(f32, 1))),
            *(("kind", ConstArgument(kind)), ("length", ConstArgument(length))),  # type: ignore[list-item]
        ],
    )
    blocks = quantised.random_blocks(rng, name, 2, 256)
    x, y = rng.normal(size=256).astype(np.float32), np.zeros(2, np.float32)
    run(trace, [blocks, x, y], [], (2, 1, 1))
    expected = quantised.dequantised(name, blocks).reshape(2, 256) @ x.astype(float)
    assert np.abs(y - expected).max() < 1e-3


def test_fields_in_ptx(rng: Rng) -> None:
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < a.size:
            out[i] = a[i].mass + a[i].cell.bins[i % 5] + a[i].trail[i % 3].x
            a[i].pos.yz = a[i].vel.xy
            a[i].cell.bins[(i + 1) % 7] += 3
            a[i].cell.level -= 7
            a[i].alive = not a[i].alive
            kj.atomic_add(a.count, i % 3, 2)
            kj.atomic_max(a.cell.bins, (i, i % 5), 200)
            me = a[i]
            me.trail[i % 3].y = 9
            a[i] = me

    arguments = [("a", ArrayArgument(Particle, 1)), ("out", ArrayArgument(f32, 1))]
    trace = recorded(kernel, arguments)
    got = particles(rng, 9)
    want = np.frombuffer(got.tobytes(), got.dtype).copy()
    outs = np.zeros((2, 9), np.float32)
    run(trace, [got, outs[0]], [], (9, 1, 1))
    interpret(trace, [want, outs[1]], [], (9, 1, 1))
    assert same(got, want)
    assert (outs[0] == outs[1]).all()


@pytest.mark.usefixtures("device")
def test_rigid_bodies_fall_and_tumble(rng: Rng) -> None:
    bodies = rigid.scene(rng, 33)
    assert rigid.check(bodies, 0.0025, 60) < 2e-3


def test_a_body_on_its_own_keeps_its_momentum(device: Device, rng: Rng) -> None:
    @kj.jit
    def fly(bodies: kj.Array1[Any], dt: kj.f32, steps: kj.i32) -> None:
        i = kj.global_id(0)
        if i < bodies.size:
            body = bodies[i]
            for _ in range(steps):
                body = body.moved(kj.vec3(0.0), kj.vec3(0.0), dt)
            bodies[i] = body

    def momentum(bodies: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        turn = rigid.matrices(bodies["pose"]["rotation"].astype(float))
        half = bodies["half"].astype(float)
        moments = (half[:, [1, 2, 0]] ** 2 + half[:, [2, 0, 1]] ** 2) * bodies["mass"][:, None] / 3
        own = np.einsum("nji,nj->ni", turn, bodies["spin"])
        return np.asarray(np.einsum("nij,nj->ni", turn, moments * own))

    bodies = rigid.scene(rng, 17)
    start, before = bodies["pose"]["translation"].astype(float), momentum(bodies)
    there = device.array(bodies, rigid.Body)
    fly[17](there, 0.001, 300)
    after = there.numpy()
    assert np.allclose(np.linalg.norm(after["pose"]["rotation"], axis=1), 1, atol=1e-5)
    assert np.allclose(after["pose"]["translation"], start + 0.3 * bodies["velocity"], atol=1e-4)
    scale = np.abs(before).max()
    assert np.abs(momentum(after) - before).max() < 0.02 * scale
