"""A CUDA driver without a GPU: what khaljit calls of ``cuda.bindings.driver``, on host memory.

Work is put off as long as a stream may: nothing on a stream runs before somebody waits for it, so
what should be ordered by an event and is not gives wrong results. Kernels are PTX, run by
``ptx_machine.py``. Freed memory is gone for whoever comes later, and pinned memory is read when
its copy runs. A stream that is captured keeps its work as nodes of a graph, and what is unsafe
then invalidates it, as the real driver has it for a thread in its thread-local mode.
"""

# ruff: noqa: N802, N815  # the driver's names

from __future__ import annotations

import ctypes
import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tests.ptx_machine import Machine

__all__ = ["FakeDriver"]

NAMES: Final = {
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    218: "CUDA_ERROR_INVALID_PTX",
    500: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    905: "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
    910: "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
}
# What no thread may call while it captures, unless it is relaxed.
UNSAFE: Final = {"cuModuleLoadData", "cuModuleUnload", "cuMemAllocHost", "cuMemFreeHost"}
ATTRIBUTES: Final = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 2,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "MAX_REGISTERS_PER_BLOCK": 65536,
}


# What cuLaunchKernel takes behind the function: grid, block, shared memory, stream, parameters.
LAUNCH: Final = (*[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


class _Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class KernelParams:
    """The driver's ``CUDA_KERNEL_NODE_PARAMS``."""

    func = 0
    gridDimX = gridDimY = gridDimZ = blockDimX = blockDimY = blockDimZ = 1
    sharedMemBytes = kernelParams = 0


class CUgraphEdgeData:
    """An edge as all are."""


def _expect_edges(edges: list[Any], count: int) -> None:
    """The binding has no default for a part of them."""
    if len(edges) < count:
        raise RuntimeError(f"List is too small: {len(edges)} < {count}")


class ConditionalParams:
    """The driver's ``CUDA_CONDITIONAL_NODE_PARAMS``."""

    handle = size = ctx = 0
    type = ""

    def __init__(self) -> None:
        self.phGraph_out: list[list[_Node]] = []


class NodeParams:
    """The driver's ``CUgraphNodeParams``."""

    type = ""

    def __init__(self) -> None:
        self.conditional = ConditionalParams()


class _Node:
    """A node of a graph.

    Attributes:
        body: of a loop or branch.
        loops: whether it is a loop.
    """

    def __init__(self, work: Callable[[], None], body: list[_Node] | None = None) -> None:
        self.work = work
        self.body = body
        self.handle = 0
        self.loops = False


class _Stream:
    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.graph: list[_Node] | None = None  # while it is captured
        self.valid = True


def _without_calls(text: str) -> str:
    """A program with a store in place of the driver's function that sets the value of a handle."""
    passed = dict(re.findall(r"st\.param\.b\d\d \[(\w+)\], (%\w+);", text))
    text = re.sub(r"(\.param \.b\d\d \w+|st\.param\.\S+ [^;]+);", "", text)

    def store(call: re.Match[str]) -> str:
        assert call[1] == "cudaGraphSetConditional"
        return f"st.global.b32 [{passed[call[2]]}], {passed[call[3]]};"

    return re.sub(r"call\.uni (\w+), \((\w+), (\w+)\);", store, text)


class FakeDriver:
    """The functions of the driver, each giving (status, results...).

    Attributes:
        calls: how often each was called.
        capacity: bytes that a GPU has.
        failing: statuses that the next calls of a function give, by its name.
        is_called_natively: whether it gives addresses of its functions.
        version: of CUDA.
        updates: whether it brings executable graphs up to date with bodies that changed.
    """

    CUstream_flags = CUmemPool_attribute = CUfunction_attribute = CUdevice_attribute = _Names()
    CUjit_option = CUpointer_attribute = CUstreamCaptureMode = _Names()
    CUgraphNodeType = CUgraphConditionalNodeType = _Names()
    CUDA_KERNEL_NODE_PARAMS = KernelParams
    CUgraphNodeParams = NodeParams
    CUgraphEdgeData = CUgraphEdgeData
    cuuint64_t = CUresult = int

    def __init__(self, gpus: int = 1) -> None:
        self.calls: Counter[str] = Counter()
        self.is_called_natively = True
        self.version, self.updates = 13000, True
        self.capacity = 1 << 30
        self.failing: dict[str, list[int]] = {}
        self.executed: list[str] = []
        self._gpus = gpus
        self._pieces: dict[int, bytearray] = {}
        self._pinned: dict[int, Any] = {}
        self._next = 1 << 36
        self._streams: dict[int, _Stream] = {0: _Stream()}
        self._events: dict[int, tuple[_Stream, int]] = {}
        self._modules: dict[int, str] = {}
        self._functions: list[str] = []  # their text, by handle
        self._made: list[object] = []
        self._executables: dict[int, dict[_Node, Callable[[], None]]] = {}
        self._bodies: list[list[_Node]] = []  # of loops and branches
        self._sources: dict[int, list[_Node]] = {}  # that executable graphs were made of

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name[2].isupper():
            function = object.__getattribute__(self, name)
            return functools.partial(object.__getattribute__(self, "_call"), name, function)
        return object.__getattribute__(self, name)

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        self.calls[name] += 1
        if self.failing.get(name):
            return (self.failing[name].pop(),)
        if name in UNSAFE and self._captures():
            return self._invalid(*self._captures())
        return function(*args)

    def _captures(self) -> list[_Stream]:
        return [one for one in self._streams.values() if one.graph is not None]

    @staticmethod
    def _invalid(*streams: _Stream) -> Any:
        for stream in streams:
            stream.valid = False
        return 900, None

    def new_stream(self) -> int:
        """A stream as another library makes them."""
        handle = len(self._streams) * 16
        self._streams[handle] = _Stream()
        return handle

    def later(self, stream: int, work: Callable[[], None]) -> None:
        """Enqueue work."""
        to = self._streams[stream]
        if to.graph is None:
            to.work.append(work)
        else:
            to.graph.append(_Node(work))

    def piece(self, address: int, size: int) -> memoryview:
        """Live memory of a GPU."""
        for base, data in self._pieces.items():
            if base <= address and address + size <= base + len(data):
                return memoryview(data)[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address:#x} are not allocated")

    def _run(self, stream: _Stream, until: int) -> None:
        while stream.done < until:
            stream.done += 1
            stream.work[stream.done - 1]()

    # Setting up.

    def cuGetErrorName(self, status: int) -> Any:
        return 0, NAMES[status].encode()

    def cuGetErrorString(self, status: int) -> Any:
        return 0, b"as it is said"

    def cuDeviceGetCount(self) -> Any:
        return 0, self._gpus

    def cuDeviceGet(self, number: int) -> Any:
        return 0, number

    def cuDriverGetVersion(self) -> Any:
        return 0, self.version

    def cuDeviceGetName(self, _size: int, _device: int) -> Any:
        return 0, b"Fake GPU\0"

    def cuDeviceTotalMem(self, _device: int) -> Any:
        return 0, self.capacity

    def cuDevicePrimaryCtxRetain(self, number: int) -> Any:
        return 0, 1 + number

    def cuCtxSetCurrent(self, _context: int) -> Any:
        return (0,)

    cuCtxPushCurrent = cuCtxSetCurrent

    def cuCtxPopCurrent(self) -> Any:
        return 0, "context"

    def cuDeviceGetAttribute(self, kind: str, _device: int) -> Any:
        return 0, ATTRIBUTES[kind.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    # Streams and events.

    def cuStreamCreate(self, _flags: str) -> Any:
        return 0, self.new_stream()

    def cuStreamSynchronize(self, handle: int) -> Any:
        stream = self._streams[handle]
        if stream.graph is not None:
            return self._invalid(stream)
        self._run(stream, len(stream.work))
        return (0,)

    def cuEventCreate(self, _flags: int) -> Any:
        event = len(self._events) + 1
        self._events[event] = (self._streams[0], 0)
        return 0, event

    def cuEventDestroy(self, _event: int) -> Any:
        return (0,)

    def cuEventRecord(self, event: int, handle: int) -> Any:
        stream = self._streams[handle]
        self._events[event] = (stream, len(stream.work))
        return (0,)

    def cuStreamWaitEvent(self, handle: int, event: int, _flags: int) -> Any:
        before, position = self._events[event]
        if self._streams[handle].graph is not None:
            self._streams[handle].valid = False
            return (905,)
        self.later(handle, lambda: self._run(before, position))
        return (0,)

    def cuEventSynchronize(self, event: int) -> Any:
        self._run(*self._events[event])
        return (0,)

    def cuEventQuery(self, event: int) -> Any:
        stream, position = self._events[event]
        if stream.done >= position:
            return (0,)
        self._run(stream, stream.done + 1)
        return (600,)

    def cuEventElapsedTime(self, start: int, stop: int) -> Any:
        del start
        return 0, float(self._events[stop][1])

    # Memory.

    def cuDeviceGetDefaultMemPool(self, _device: int) -> Any:
        return 0, "pool"

    def cuMemPoolSetAttribute(self, *_: Any) -> Any:
        return (0,)

    def cuMemPoolGetAttribute(self, _pool: str, _kind: str) -> Any:
        return 0, self._used()

    def cuMemPoolTrimTo(self, _pool: str, _size: int) -> Any:
        return (0,)

    def cuMemGetInfo(self) -> Any:
        return 0, self.capacity - self._used(), self.capacity

    def _used(self) -> int:
        return sum(map(len, self._pieces.values()))

    def cuMemAllocAsync(self, size: int, handle: int) -> Any:
        if self._streams[handle].graph is not None:
            return self._invalid(self._streams[handle])
        if self._used() + size > self.capacity:
            return 2, None
        address, self._next = self._next, self._next + (size + 1023) // 512 * 512
        self.later(handle, lambda: None)
        self._pieces[address] = bytearray(b"\xcd" * size)
        return 0, address

    def cuMemsetD32Async(self, address: int, value: int, count: int, handle: int) -> Any:
        def fill() -> None:
            self.piece(address, 4 * count)[:] = value.to_bytes(4, "little") * count

        self.later(handle, fill)
        return (0,)

    def cuMemFreeAsync(self, address: int, handle: int) -> Any:
        def free() -> None:
            del self._pieces[address]

        self.later(handle, free)
        return (0,)

    def cuPointerGetAttribute(self, _kind: str, _address: int) -> Any:
        return 0, 0

    def cuMemAllocHost(self, size: int) -> Any:
        memory = ctypes.create_string_buffer(size)
        self._pinned[ctypes.addressof(memory)] = memory
        return 0, ctypes.addressof(memory)

    def cuMemFreeHost(self, address: int) -> Any:
        del self._pinned[address]
        return (0,)

    def _is_pinned(self, address: int) -> bool:
        return any(base <= address < base + len(data) for base, data in self._pinned.items())

    def cuMemcpyHtoDAsync(self, to: int, host: int, size: int, handle: int) -> Any:
        def copy() -> None:
            self.executed.append("upload")
            self.piece(to, size)[:] = ctypes.string_at(host, size)

        self.later(handle, copy)
        if not self._is_pinned(host):
            self.cuStreamSynchronize(handle)
        return (0,)

    def cuMemcpyDtoHAsync(self, host: int, source: int, size: int, handle: int) -> Any:
        def copy() -> None:
            self.executed.append("download")
            ctypes.memmove(host, bytes(self.piece(source, size)), size)

        self.later(handle, copy)
        if not self._is_pinned(host):
            self.cuStreamSynchronize(handle)
        return (0,)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, handle: int) -> Any:
        def copy() -> None:
            self.executed.append("copy")
            self.piece(to, size)[:] = bytes(self.piece(source, size))

        self.later(handle, copy)
        return (0,)

    def cuMemcpyPeerAsync(
        self, to: int, _to: str, source: int, _source: str, size: int, handle: int
    ) -> Any:
        return self.cuMemcpyDtoDAsync(to, source, size, handle)

    # Kernels.

    def cuModuleLoadData(self, image: bytes) -> Any:
        if b".entry" not in image:
            return 218, None
        module = len(self._modules) + 1
        self._modules[module] = image.rstrip(b"\0").decode()
        return 0, module

    def cuModuleLoadDataEx(self, _image: bytes, _n: int, _names: Any, values: Any) -> Any:
        values[0][:20] = b"line 1; what is this"
        return 218, None

    def cuModuleUnload(self, module: int) -> Any:
        del self._modules[module]
        return (0,)

    def cuModuleGetFunction(self, module: int, entry: bytes) -> Any:
        text = self._modules[module]
        if f".entry {entry.decode()}(" not in text:
            return 500, None
        self._functions.append(text)
        return 0, len(self._functions) - 1

    def cuFuncLoad(self, function: int) -> Any:
        return (0 if function < len(self._functions) else 400,)

    def cuGetProcAddress(self, name: bytes, _version: int, _flags: int) -> Any:
        """A function of C for those that native code calls."""
        if not self.is_called_natively:
            return 801, 0, 0
        arguments = {"cuCtxSetCurrent": (), "cuLaunchKernel": LAUNCH}[name.decode()]
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *arguments)
        made = kind(lambda *args: getattr(self, name.decode())(*args)[0])
        self._made.append(made)
        return 0, ctypes.cast(made, ctypes.c_void_p).value, 0

    def cuFuncSetAttribute(self, *_: Any) -> Any:
        return (0,)

    def cuFuncGetAttribute(self, kind: str, _function: int) -> Any:
        return 0, {"NUM_REGS": 96, "SHARED_SIZE_BYTES": 1024}.get(
            kind.removeprefix("CU_FUNC_ATTRIBUTE_"), 512
        )

    def cuLaunchKernel(self, function: int | None, *rest: Any) -> Any:
        *shape, shared, handle, parameters, _ = rest
        self.later(handle or 0, self._launch(function or 0, shape, shared, parameters))
        return (0,)

    def _launch(self, function: int, shape: list[int], shared: int, parameters: int) -> Any:
        """A launch with the parameters as they are now."""
        text = self._functions[function]
        x, y, z, *block = shape
        found = re.search(r"\.b8 params\[(\d+)\]", text)
        assert found is not None
        where = ctypes.c_void_p.from_address(parameters).value
        assert where is not None
        raw = ctypes.string_at(where, int(found[1]))

        def run() -> None:
            self.executed.append("kernel")
            machine = Machine(_without_calls(text))
            for address, data in self._pieces.items():
                machine.buffers.add(memoryview(data), address)
            machine.launch((x, y, z), (block[0], block[1], block[2]), raw, shared)

        return run

    # Graphs.

    def cuStreamBeginCapture(self, handle: int, mode: str) -> Any:
        assert mode == "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
        stream = self._streams[handle]
        assert stream.graph is None
        stream.graph, stream.valid = [], True
        return (0,)

    def cuStreamBeginCaptureToGraph(
        self,
        handle: int,
        graph: list[_Node],
        before: list[_Node],
        edges: list[Any],
        count: int,
        mode: str,
    ) -> Any:
        _expect_edges(edges, count)
        assert (before, count) == (graph[-1:], len(graph[-1:]))
        found = self.cuStreamBeginCapture(handle, mode)
        self._streams[handle].graph = graph
        return found

    def cuStreamEndCapture(self, handle: int) -> Any:
        stream = self._streams[handle]
        graph, stream.graph = stream.graph, None
        return (0, graph) if stream.valid else (901, None)

    def cuStreamGetCaptureInfo(self, handle: int) -> Any:
        graph = self._streams[handle].graph
        assert graph is not None
        return 0, "active", 1, graph, graph[-1:], None, len(graph[-1:])

    def cuStreamDestroy(self, handle: int) -> Any:
        assert self._streams[handle].graph is None
        return (0,)

    def cuGraphGetNodes(self, graph: list[_Node]) -> Any:
        return 0, [], len(graph)

    def cuGraphConditionalHandleCreate(
        self, graph: list[_Node], context: int, default: int, flags: int
    ) -> Any:
        """A handle is the address of its value, which the setting kernel's call stores there."""
        assert any(one.graph is graph for one in self._streams.values())
        assert (context, default, flags) == (1, 0, 0)
        handle, self._next = self._next, self._next + 512
        self._pieces[handle] = bytearray(4)
        return 0, handle

    def cuGraphAddNode(
        self, graph: list[_Node], before: list[_Node], edges: list[Any], count: int, p: NodeParams
    ) -> Any:
        _expect_edges(edges, count)
        assert p.type == "CU_GRAPH_NODE_TYPE_CONDITIONAL"
        assert (before, count) == (graph[-1:], len(graph[-1:]))
        conditional = p.conditional
        assert (conditional.size, conditional.ctx) == (1, 1)
        node = _Node(lambda: None, [])
        node.handle = conditional.handle
        node.loops = conditional.type == "CU_GRAPH_COND_TYPE_WHILE"
        assert node.body is not None
        conditional.phGraph_out = [node.body]
        self._bodies.append(node.body)
        graph.append(node)
        return 0, node

    def _instantiated(self, graph: list[_Node]) -> dict[_Node, Callable[[], None]]:
        """What an executable graph runs, as the nodes are now."""
        return {node: node.work if node.body is None else self._conditional(node) for node in graph}

    def _conditional(self, node: _Node) -> Callable[[], None]:
        body = self._instantiated(node.body or [])

        def run() -> None:
            value = self.piece(node.handle, 4)
            while any(value):
                for work in body.values():
                    work()
                if not node.loops:
                    return

        return run

    def cuGraphInstantiate(self, graph: list[_Node], _flags: int) -> Any:
        executable = len(self._executables) + 1
        self._executables[executable] = self._instantiated(graph)
        self._sources[executable] = graph
        return 0, executable

    def cuGraphKernelNodeSetParams(self, node: _Node, p: KernelParams) -> Any:
        node.work = self._work(p)
        return (0,)

    def cuGraphExecUpdate(self, executable: int, graph: list[_Node]) -> Any:
        assert self._sources[executable] is graph
        if not self.updates:
            return 910, None
        self._executables[executable] = self._instantiated(graph)
        return 0, "result"

    def cuGraphUpload(self, executable: int, handle: int) -> Any:
        assert executable in self._executables
        self.later(handle, lambda: None)
        return (0,)

    def cuGraphLaunch(self, executable: int, handle: int) -> Any:
        for work in self._executables[executable].values():
            self.later(handle, work)
        return (0,)

    def cuGraphExecKernelNodeSetParams(self, executable: int, node: _Node, p: KernelParams) -> Any:
        assert node in self._executables[executable]  # not in a body
        self._executables[executable][node] = self._work(p)
        return (0,)

    def _work(self, p: KernelParams) -> Callable[[], None]:
        shape = [p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ]
        found: Callable[[], None] = self._launch(p.func, shape, p.sharedMemBytes, p.kernelParams)
        return found

    def cuGraphExecDestroy(self, executable: int) -> Any:
        self._executables[executable] = {}
        return (0,)

    def cuGraphDestroy(self, graph: list[_Node]) -> Any:
        assert not any(graph is body for body in self._bodies)  # they go with their nodes
        graph.clear()
        return (0,)
