"""The trace: what a kernel does, as typed values and structured control flow.

**Values.** A `Value` is one operation with its operands. Pure values (constants, arithmetic, ids,
shapes) float: they stand in no region, are interned by the builder, and are total, so a value may
be computed wherever its operands exist and it is never wrong to compute one too many. Where they
are computed is decided by ``schedule.py`` for the code generators.

**Effects** (loads, stores, atomics, barriers, subgroup operations, ``if``, ``loop``, prints,
asserts) stand in the ``body`` of a `Region`, in the order in which they were recorded. An effect
may have a value (a load has); that value may be used by later effects of the region, by regions
nested in them, and by what flows out through the region's ``end``.

**Regions** end in one of

* ``yield v...``: leave the arm of an ``if``; the values become the ``if``'s results. The top
  region ends in ``yield`` with no values or in ``return``;
* ``break v...``: leave the innermost loop; the values become the loop's results;
* ``continue v...``: start the next iteration of the innermost loop with these carried values;
* ``return``: the invocation is done.

An ``if`` whose arms both end in something other than ``yield`` has no successor: nothing follows
it in its region, whose own ``end`` is then a ``yield``, ``continue`` or ``break`` that is never
reached. A ``loop`` runs until a ``break`` or ``return``; its region's parameters are the carried
values. Results of ``if`` and ``loop`` are read through ``RESULT`` values.

**Memory.** A `Memory` is an array argument, shared memory, local memory or a constant table. As
recorded, an access names one index per axis (in order of the array's axes) and is bounds-checked:
out of bounds a load gives 0 and a store or atomic does nothing. The pass ``lower_access`` rewrites
accesses to one flat offset with an explicit guard; code generators see only those.

**Everything is scalar.** Vectors, matrices and structs exist in the proxies only: an element with
several scalars is accessed leaf by leaf (`Access.leaf`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field
from functools import wraps
from typing import Any, Final, TypeVar, final

from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import Site
from khaljit.tracer.ops import OPS, Op
from khaljit.tracer.records import dataclass

__all__ = [
    "ATOMICS",
    "IDS",
    "Access",
    "ArrayParam",
    "AtomicAccess",
    "Element",
    "Memory",
    "Note",
    "Options",
    "Pool",
    "Region",
    "ScalarParam",
    "Space",
    "Trace",
    "Value",
    "analysis",
    "effects",
    "regions",
    "values",
]

T = TypeVar("T")

# Names of ids with the number of axes each has; all are of type ``index``.
IDS: Final = {
    "global": 3,
    "local": 3,
    "workgroup": 3,
    "num_workgroups": 3,
    "workgroup_size": 3,
    "local_index": 1,
    "subgroup": 1,
    "lane": 1,
    "num_subgroups": 1,
    "subgroup_size": 1,
}

# Atomic operations with their number of operands; all give the old value.
ATOMICS: Final = {
    "load": 0,
    "store": 1,
    "add": 1,
    "sub": 1,
    "min": 1,
    "max": 1,
    "and": 1,
    "or": 1,
    "xor": 1,
    "exchange": 1,
    "compare_exchange": 2,  # expected, desired
}


@final
class Value:
    """One operation and the value it yields. Equality is identity.

    Attributes:
        op: the operation.
        dtype: type of the value; None for what has none (stores, ends, memories).
        args: operands.
        attr: what else defines the operation; hashable.
        regions: the arms of an ``if`` (true, false) or the body of a ``loop``.
        at: the first place in the user's source that asked for it; no part of its meaning.
    """

    __slots__ = ("args", "at", "attr", "dtype", "op", "regions")

    def __init__(
        self,
        op: Op,
        dtype: DType | None,
        args: tuple[Value, ...] = (),
        attr: object = None,
        regions: tuple[Region, ...] = (),
        at: Site | None = None,
    ) -> None:
        self.op: Final = op
        self.dtype: Final = dtype
        self.args: Final = args
        self.attr: Final = attr
        self.regions: Final = regions
        self.at: Final = at

    def __repr__(self) -> str:
        kind = "" if self.dtype is None else f": {self.dtype.name}"
        return f"<{self.op.value}{kind}>"

    @property
    def is_effect(self) -> bool:
        return OPS[self.op].effect

    @property
    def type(self) -> DType:
        """The dtype of a value that has one."""
        assert self.dtype is not None, f"{self.op.value} has no value"
        return self.dtype

    @property
    def memory(self) -> Memory:
        """The memory that a load, store, atomic, shape or stride is about."""
        memory = self.args[0].attr
        assert isinstance(memory, Memory)
        return memory

    @property
    def access(self) -> Access:
        """The attribute of a load, store or atomic."""
        assert isinstance(self.attr, Access)
        return self.attr

    @property
    def indices(self) -> tuple[Value, ...]:
        """The indices of a memory operation: one per axis (of the memory, then of the fixed arrays
        inside the element), or the one flat offset."""
        return self.args[1 : 1 + self._places]

    @property
    def guard(self) -> Value | None:
        """The condition under which a flat access happens; None when it always does."""
        return self.args[2] if self.access.guarded else None

    @property
    def operands(self) -> tuple[Value, ...]:
        """What a store or atomic writes; empty for a load."""
        return self.args[1 + self._places + self.access.guarded :]

    @property
    def _places(self) -> int:
        """How many operands say where a memory operation goes."""
        access = self.access
        return 1 if access.flat else self.memory.ndim + len(access.inner)


@final
class Region:
    """A sequence of effects with the values that flow in and out. Equality is identity.

    Attributes:
        params: ``PARAM`` values, the carried values of a loop; empty for arms and the top region.
        body: the effects, in order.
        end: a ``YIELD``, ``BREAK``, ``CONTINUE`` or ``RETURN`` value.
        analyses: what was found out about the region, by the function that did; see `analysis`.
    """

    __slots__ = ("analyses", "body", "end", "params")

    def __init__(self, params: tuple[Value, ...], body: tuple[Value, ...], end: Value) -> None:
        self.params: Final = params
        self.body: Final = body
        self.end: Final = end
        self.analyses: Final[dict[object, Any]] = {}


class Space(enum.Enum):
    """Where a memory lives and who sees it."""

    ARRAY = "array"  # an argument: all invocations, and the host
    SHARED = "shared"  # one per workgroup; undefined until written
    LOCAL = "local"  # one per invocation; undefined until written
    TABLE = "table"  # constant data, part of the code

    __hash__ = object.__hash__  # as that of `Op`


@final
@dataclass(frozen=True, slots=True)
class Element:
    """What one element of a memory is made of.

    Attributes:
        size: bytes from one element to the next of a contiguous array.
        align: bytes that offsets and strides count; the element's alignment, or less where fixed
            arrays inside have smaller steps.
        leaves: byte offset and type of each scalar inside, by rising offset. Each is aligned to
            its own size.
    """

    size: int
    align: int
    leaves: tuple[tuple[int, DType], ...]

    @property
    def alignment(self) -> int:
        """Bytes that the address of every element is a multiple of."""
        return max(dtype.size for _, dtype in self.leaves)

    @classmethod
    def scalar(cls, dtype: DType) -> Element:
        return cls(dtype.size, dtype.size, ((0, dtype),))

    @classmethod
    def vector(cls, dtype: DType, count: int) -> Element:
        """A tight vector: vec3 of f32 is 12 bytes aligned to 4, as in NumPy."""
        leaves = tuple((k * dtype.size, dtype) for k in range(count))
        return cls(count * dtype.size, dtype.size, leaves)


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """An array argument, shared memory, local memory, or a constant table.

    Attributes:
        space: where it lives.
        number: position among the array parameters, or among the memories of its space.
        element: what one element is.
        shape: the fixed shape; for an array argument None per axis.
        data: the bytes of a table.
    """

    space: Space
    number: int
    element: Element
    shape: tuple[int | None, ...]
    data: bytes | None = None

    def __hash__(self) -> int:
        return hash((self.space, self.number))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> int:
        """Number of elements of a memory with a fixed shape."""
        count = 1
        for extent in self.shape:
            assert extent is not None
            count *= extent
        return count


@final
@dataclass(frozen=True, slots=True)
class ArrayParam:
    """An array argument, with what the launch signature says of it.

    Attributes:
        name: of the user's parameter (``points``, ``grid.cells``).
        memory: how the kernel sees it.
        contiguous: the innermost stride is one element.
        aligned: the first element is aligned to 16 bytes.
        same_shape: number of the first array parameter with the same shape, itself if none is.
        same_view: number of the first array parameter that is the very same view, or itself.
    """

    name: str
    memory: Memory
    contiguous: bool
    aligned: bool
    same_shape: int
    same_view: int


@final
@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar argument, or one scalar of a struct or vector argument.

    Attributes:
        passed: the type that the host packs, where the trace has the bits in another one.
    """

    name: str
    dtype: DType
    passed: DType | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """How a memory operation addresses its memory.

    Attributes:
        leaf: byte offset of the scalar inside the element.
        checked: may be out of bounds; cleared where that is proven impossible or not asked for.
        flat: lowered: one offset, in units of the element's alignment, instead of indices.
        guarded: lowered: a bool follows the offset; where it is false nothing is touched.
        inside: axes whose index is known to be in bounds though not all are; a hint for lowering
            and no part of the meaning.
        uniform: of a load from shared memory: all invocations of a workgroup that read there
            together find the same, since barriers stand around it.
        inner: extent, and bytes from one item to the next, of each axis of the fixed arrays inside
            the element that the scalar is an item of; ``leaf`` is then the first item's.
    """

    leaf: int = 0
    checked: bool = True
    flat: bool = False
    guarded: bool = False
    inside: frozenset[int] = field(compare=False, default=frozenset())
    uniform: bool = False
    inner: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AtomicAccess(Access):
    """How an atomic addresses its memory, what it does (see `ATOMICS`), and its memory order."""

    kind: str = "add"
    order: str = "relaxed"


@final
@dataclass(frozen=True, slots=True)
class Note:
    """A text that travels with a print or assert, and the source site it came from.

    The site is an index into a table made anew by each recording, so it is no part of the key.
    """

    text: str
    site: int = field(compare=False, default=0)


@final
@dataclass(frozen=True, slots=True)
class Options:
    """What ``@kj.jit`` was told about how to compute; all of it is part of the key."""

    contract: bool = True
    fastmath: bool = False
    unchecked: bool = False
    debug: bool = False


@final
class Pool:
    """The pure values that some passes made one after the other, so that equal ones are one.

    Attributes:
        values: by what defines them; see `Builder.pure`.
        simplest: of each that ``simplify`` has looked at.
    """

    __slots__ = ("simplest", "values")

    def __init__(self) -> None:
        self.values: Final[dict[tuple[object, ...], Value]] = {}
        self.simplest: Final[dict[Value, Value]] = {}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A kernel, recorded for one launch signature.

    Attributes:
        name: the kernel's name, for people; no part of its meaning.
        arrays: array parameters; ``arrays[k].memory.number == k``.
        scalars: scalar parameters; a ``SCALAR`` value's attribute is the position here.
        workgroup: size in x, y, z; None when the backend chooses, since nothing can see it.
        index_bits: width of ``index``: 32 or 64.
        options: see `Options`.
        body: the top region.
        sites: places in the source that `Note.site` points into.
        pool: has all its pure values, where a pass made it; the next one shares it.
    """

    name: str
    arrays: tuple[ArrayParam, ...]
    scalars: tuple[ScalarParam, ...]
    workgroup: tuple[int, int, int] | None
    index_bits: int
    options: Options
    body: Region
    sites: tuple[Site, ...] = ()
    pool: Pool | None = None

    def having(self, body: Region, pool: Pool) -> Trace:
        """The trace with another body, whose pure values are in a pool."""
        return Trace(
            self.name,
            self.arrays,
            self.scalars,
            self.workgroup,
            self.index_bits,
            self.options,
            body,
            self.sites,
            pool,
        )


def analysis(analyse: Callable[[Region], T]) -> Callable[[Region], T]:
    """What is found out about a region is found out once, since no region changes."""

    @wraps(analyse)
    def found(top: Region) -> T:
        known = top.analyses
        if analyse not in known:
            known[analyse] = analyse(top)
        result: T = known[analyse]
        return result

    return found


@analysis
def regions(top: Region) -> tuple[Region, ...]:
    """A region and all regions nested in it, outer before inner, in order."""
    order: list[Region] = []
    stack = [top]
    while stack:
        region = stack.pop()
        order.append(region)
        stack.extend(
            inner for effect in reversed(region.body) for inner in reversed(effect.regions)
        )
    return tuple(order)


@analysis
def effects(top: Region) -> tuple[Value, ...]:
    """All effects of a region and the regions nested in it, ends included, in order."""
    order: list[Value] = []
    stack = [top.end, *reversed(top.body)]
    while stack:
        effect = stack.pop()
        order.append(effect)
        for inner in reversed(effect.regions):
            stack.append(inner.end)
            stack.extend(reversed(inner.body))
    return tuple(order)


@analysis
def values(top: Region) -> tuple[Value, ...]:
    """Every value that a region's effects reach, operands before users, without recursion.

    Effects appear in the order of `effects`; a pure value before the first that uses it.
    """
    order: dict[Value, None] = {}
    for effect in effects(top):
        stack = [effect]
        while stack:
            value = stack[-1]
            for arg in value.args:
                if arg not in order:
                    if arg.args:
                        stack.append(arg)
                        break
                    order[arg] = None
            else:
                order[stack.pop()] = None
    return tuple(order)
