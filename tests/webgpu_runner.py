"""Runs WebGPU programs for tests: a device, buffers, one dispatch, read back.

The adapter is whatever wgpu finds, which in CI is lavapipe. A crash in wgpu's reader of shaders
takes the process with it, so what is tried out for the first time belongs in a child process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from khaljit.codegen.caps import Caps, webgpu
from khaljit.codegen.legalise import legalise
from khaljit.codegen.program import Program
from khaljit.codegen.webgpu.emit import WebGpuEmitter
from khaljit.codegen.webgpu.interface import Interface, Source
from khaljit.codegen.webgpu.probe import COUNT, judge, probe, questions
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import i32
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Access, ArrayParam, Element, Memory, Options, Space, Trace
from khaljit.tracer.ops import Op

__all__ = [
    "BARE",
    "FEATURES",
    "adapter_reason",
    "device_caps",
    "keeps_subnormals",
    "run",
    "subgroup_size",
]

FEATURES = (
    "shader-int64",
    "shader-f16",
    "shader-f64",
    "shader-float32-atomic",
    "shader-int64-atomic-all-ops",
    "subgroup",
    "subgroup-barrier",
)

BARE = (*FEATURES, "immediates")  # what a device is without that has none of the features


@functools.cache
def _adapter() -> Any:
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    import wgpu

    return wgpu.gpu.request_adapter_sync(power_preference="high-performance")


@functools.cache
def adapter_reason() -> str | None:
    """Why nothing can run here; None if it can."""
    try:
        _adapter()
    except Exception as error:  # whatever wgpu raises: the test is skipped with its words
        return f"no WebGPU adapter: {error}"
    return None


def keeps_subnormals() -> bool:
    """Whether the adapter computes with subnormal numbers of f32: a processor does."""
    return bool(_adapter().info["adapter_type"] == "CPU")


@functools.cache
def _device() -> Any:
    adapter = _adapter()
    wanted = [name for name in (*FEATURES, "immediates") if name in adapter.features]
    return adapter.request_device_sync(
        required_features=wanted,
        required_limits={"max-immediate-size": 128} if "immediates" in wanted else {},
    )


def device_caps(*leave_out: str, immediates: int | None = None, shared_bytes: int = 16384) -> Caps:
    """The row of the device here, as if it had not some of its features."""
    features = frozenset(_device().features) - frozenset(leave_out)
    if immediates is None:
        immediates = 128 if "immediates" in features else 0
    return webgpu(
        features,
        immediates=immediates,
        shared_bytes=shared_bytes,
        fused=_rounding()["fused"],
        rounded=_rounding()["rounded"],
    )


@functools.cache
def _rounding() -> dict[str, bool]:
    """How the driver rounds."""
    arrays, trace = questions(), probe()
    program = WebGpuEmitter(webgpu()).emit(trace)
    run(trace, program, arrays, [], (COUNT, 1, 1))
    return judge(arrays)


def subgroup_size(caps: Caps) -> int:
    """Lanes of a subgroup, which a device that has them tells; emulated ones have up to 32."""
    if not caps.collectives:
        return 32
    trace, out = _size_probe()
    run(trace, WebGpuEmitter(caps).emit(legalise(trace, caps)), [out], [], (1, 1, 1))
    return int(out[0])


def _size_probe() -> tuple[Trace, Array]:
    """A kernel that stores the size of a subgroup."""
    builder = Builder()
    builder.open()
    memory = Memory(Space.ARRAY, 0, Element.scalar(i32), (None,))
    size = builder.pure(Op.ID, attr=("subgroup_size", 0), dtype=i32)
    place = (builder.const(i32, 0),)
    builder.store(builder.memory(memory), place, size, Access(checked=False, flat=True))
    builder.end(Op.YIELD)
    param = ArrayParam("out", memory, True, True, 0, 0)
    trace = Trace("probe", (param,), (), (32, 1, 1), 32, Options(), builder.close())
    return trace, np.zeros(1, np.int32)


def _number(
    source: Source,
    trace: Trace,
    arrays: Sequence[Array],
    scalars: Sequence[int | float | bool],
    offsets: Sequence[int],
    grid: tuple[int, int, int],
) -> int | float | bool:
    if source.kind == "scalar":
        return scalars[source.number]
    if source.kind == "offset":
        return offsets[source.number]
    if source.kind in ("groups", "extent"):
        return grid[source.axis]
    if source.kind == "shape":
        return int(arrays[source.number].shape[source.axis])
    align = trace.arrays[source.number].memory.element.align
    return int(arrays[source.number].strides[source.axis]) // align


def run(
    trace: Trace,
    program: Program,
    arrays: Sequence[Array],
    scalars: Sequence[int | float | bool],
    grid: tuple[int, int, int],
    *,
    dispatch: tuple[int, int, int] | None = None,
    buffers: Sequence[Array] | None = None,
    offsets: Sequence[int] | None = None,
) -> None:
    """Run a program, changing ``arrays`` in place.

    ``grid`` counts workgroups, invocations if the trace leaves the workgroup open. ``buffers`` are
    whole allocations by binding, where arrays share some; each array is then only looked at for
    its shape and strides, and stands ``offsets`` units into its buffer.
    """
    interface = program.interface
    assert interface is not None
    offsets = offsets or [0] * len(arrays)
    block = interface.pack(lambda source: _number(source, trace, arrays, scalars, offsets, grid))
    if dispatch is None:
        dispatch = grid
        if interface.whole:
            sizes = zip(grid, program.workgroup, strict=True)
            x, y, z = (-(-count // size) for count, size in sizes)
            dispatch = x, y, z
    contents = list(arrays if buffers is None else buffers)
    outcome = _dispatch(program, interface, contents, block, dispatch)
    for array, result in zip(contents, outcome, strict=True):
        if result is not None:
            array.reshape(-1).view(np.uint8)[:] = result[: array.nbytes]


def _dispatch(
    program: Program,
    interface: Interface,
    contents: Sequence[Array],
    block: bytes,
    dispatch: tuple[int, int, int],
) -> list[Array | None]:
    import wgpu

    device = _device()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffers: dict[int, Any] = {}
    layout: list[dict[str, Any]] = []

    def bind(binding: int, data: bytes, kind: str, more: int = usage) -> None:
        data = data.ljust(-(-max(len(data), 4) // 4) * 4, b"\0")
        buffers[binding] = device.create_buffer_with_data(data=data, usage=more)
        entry = {"binding": binding, "visibility": wgpu.ShaderStage.COMPUTE}
        layout.append({**entry, "buffer": {"type": kind}})

    for binding, (one, content) in enumerate(zip(interface.bindings, contents, strict=True)):
        if one.used:
            kind = "storage" if one.writable else "read-only-storage"
            bind(binding, content.tobytes().ljust(one.size, b"\0"), kind)
    if interface.uniform is not None:
        bind(interface.uniform, block, "uniform", wgpu.BufferUsage.UNIFORM)
    immediates = interface.size if interface.uniform is None else 0
    groups = device.create_bind_group_layout(entries=layout)
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(
            bind_group_layouts=[groups], immediate_size=immediates
        ),
        compute={
            "module": device.create_shader_module(code=program.binary or program.text),
            "entry_point": program.entry,
        },
    )
    entries = [{"binding": k, "resource": {"buffer": b}} for k, b in buffers.items()]
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, device.create_bind_group(layout=groups, entries=entries))
    if immediates:
        compute.set_immediates(0, block, 0, len(block))
    compute.dispatch_workgroups(*dispatch)
    compute.end()
    device.queue.submit([encoder.finish()])

    def read(binding: int) -> Array | None:
        if binding not in buffers:
            return None
        return np.frombuffer(device.queue.read_buffer(buffers[binding]), np.uint8)

    return [
        read(k) if one.writable and one.used else None for k, one in enumerate(interface.bindings)
    ]
