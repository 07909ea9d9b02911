"""The text form of a trace: printed for people and for the cache's key, and parsed back.

    kernel scale workgroup=64,1,1 index=32 contract
    array data: f32[?] contiguous aligned same_shape=0 same_view=0
    scalar factor: f32
    {
      %0: index = id global 0
      %1: index = shape data 0
      %2: bool = lt %0, %1
      if %2 {
        %3: f32 = load data[%0] unchecked
        %4: f32 = mul %3, factor
        store data[%0] unchecked <- %4
        yield
      }
      yield
    }

* The head names the parameters and the memories that the kernel uses (``shared0: f32[8, 8]``).
* One value or effect a line, where ``schedule`` computes it; values are numbered as they come.
  Constants (``1:i32``, ``0.5:f32``, bits as ``0x7fc00000:f32`` where no decimal tells them),
  parameters and memories stand for themselves.
* Results stand left of their ``if`` or ``loop``, a loop's carried values right of it with what
  they start from: ``%5: f32 = loop (%6: f32 = 0.0:f32) {``. An ``else`` that yields nothing is
  left out.
* A lowered access is ``load data at %7 if %8``: the flat offset, and the guard if it has one.

Equal traces have equal texts. What is no part of a trace's meaning (source sites) is left out, by
`canonical` also the names. ``print_trace(parse(text))`` is the text again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from typing import Final, final

from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import (
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Region,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.schedule import schedule

__all__ = ["FLAGS", "MEMORY_OPS", "canonical", "describe", "print_trace"]

# Options by their names in the text, in order.
FLAGS: Final = ("contract", "fastmath", "unchecked", "debug")

MEMORY_OPS: Final = frozenset({Op.LOAD, Op.STORE, Op.ATOMIC})


def print_trace(trace: Trace) -> str:
    """The text of a trace, for people."""
    return _Printer(trace, named=True).text()


def canonical(trace: Trace) -> bytes:
    """What a trace means and nothing else, as bytes for the cache's key."""
    return _Printer(trace, named=False).text().encode()


_NAMES: Final = {op: op.value for op in Op}

# A parameter whose name is not like this is called array0, scalar1, ... in the text.
_PLAIN: Final = r"[^\W\d][\w.]*\Z"  # keys need no names, and do not compile this
_RESERVED: Final = r"(?:(?:array|scalar|shared|local|table)\d+|true|false|_)\Z"


@lru_cache(maxsize=4096)
def _constant(dtype: DType, bits: int) -> str:
    """A constant with its type, such that the very bits can be read back."""
    number = to_number(dtype, bits)
    if dtype.is_float and (not math.isfinite(number) or (number == 0 and bits)):
        return f"{bits:#x}:{dtype.name}"  # NaNs, infinities, -0
    if dtype is bool_ and bits <= 1:
        return "true" if number else "false"
    if not dtype.is_float:
        return f"{number}:{dtype.name}"
    for digits in (6, 9, 17):
        short = f"{number:.{digits}g}"
        if to_bits(dtype, float(short)) == bits:
            whole = short.lstrip("-").isdigit()
            return f"{short}{'.0' if whole else ''}:{dtype.name}"
    return f"{bits:#x}:{dtype.name}"


def _element(element: Element) -> str:
    dtype = element.leaves[0][1] if element.leaves else None
    if dtype is not None:
        count = len(element.leaves)
        if element == Element.vector(dtype, count):
            return dtype.name if count == 1 else f"{dtype.name}x{count}"
    leaves = "".join(f" {offset}:{dtype.name}" for offset, dtype in element.leaves)
    return f"struct(size={element.size} align={element.align}{leaves})"


def _shaped(memory: Memory) -> str:
    extents = ", ".join("?" if extent is None else str(extent) for extent in memory.shape)
    return f"{_element(memory.element)}[{extents}]"


def _usable_names(trace: Trace) -> set[str]:
    """The names of parameters that can stand in the text: plain and unique ones."""
    names = [param.name for param in trace.arrays] + [param.name for param in trace.scalars]
    return {
        name
        for name, count in Counter(names).items()
        if count == 1 and re.match(_PLAIN, name) and not re.match(_RESERVED, name)
    }


def _quoted(text: str) -> str:
    """A name or note that may hold anything."""
    import json  # few texts have any

    return json.dumps(text)


def describe(value: Value) -> str:
    """One value on its own, for messages about traces that may be broken; never fails."""
    kind = "" if value.dtype is None else f": {value.dtype.name}"
    operands = ", ".join(
        str(operand.attr) if operand.op is Op.CONST else f"<{_NAMES[operand.op]}>"
        for operand in value.args
    )
    attr = "" if value.attr is None else f" {value.attr}"
    where = "" if value.at is None else f" ({value.at})"
    return f"{_NAMES[value.op]}{kind}{attr} ({operands}){where}"


@final
class _Printer:
    """Prints one trace."""

    def __init__(self, trace: Trace, named: bool) -> None:
        self._trace: Final = trace
        self._named: Final = named
        self._items: Final = schedule(trace).items
        self._lines: Final[list[str]] = []
        self._names: Final[dict[Value, str]] = {}  # of values as operands
        self._results: Final[dict[tuple[Value, int], str]] = {}
        self._memories: Final[dict[Memory, str]] = {}  # those that are no parameters
        self._count = 0
        usable = _usable_names(trace) if named else ()
        self._arrays: Final = [
            p.name if p.name in usable else f"array{k}" for k, p in enumerate(trace.arrays)
        ]
        self._scalars: Final = [
            p.name if p.name in usable else f"scalar{k}" for k, p in enumerate(trace.scalars)
        ]

    def text(self) -> str:
        self._print_regions()
        return "\n".join((*self._head(), *self._lines, ""))

    # The head.

    def _head(self) -> list[str]:
        trace = self._trace
        words = ["kernel", self._name(trace.name)] if self._named else ["kernel _"]
        if trace.workgroup is not None:
            words.append("workgroup=" + ",".join(map(str, trace.workgroup)))
        words.append(f"index={trace.index_bits}")
        words.extend(flag for flag in FLAGS if getattr(trace.options, flag))
        lines = [" ".join(words)]
        lines.extend(map(self._array, trace.arrays, self._arrays))
        for number, scalar in enumerate(trace.scalars):
            called = self._called(self._scalars[number], scalar.name)
            lines.append(f"scalar {called}: {scalar.dtype.name}")
        for memory, token in self._memories.items():
            data = "" if memory.data is None else f" = {memory.data.hex()}"
            lines.append(f"{token}: {_shaped(memory)}{data}")
        return lines

    def _array(self, param: ArrayParam, token: str) -> str:
        facts = " contiguous" * param.contiguous + " aligned" * param.aligned
        views = f"same_shape={param.same_shape} same_view={param.same_view}"
        return f"array {self._called(token, param.name)}: {_shaped(param.memory)}{facts} {views}"

    def _called(self, token: str, name: str) -> str:
        return token if token == name or not self._named else f"{token} {_quoted(name)}"

    def _name(self, name: str) -> str:
        return name if re.match(_PLAIN, name) and name != "_" else _quoted(name)

    # The body.

    def _print_regions(self) -> None:
        """Print the top region and all in it; the stack holds what is to come, last first."""
        lines = self._lines
        stack: list[tuple[str, str | Value]] = []

        def enter(region: Region, indent: str) -> None:
            stack.append((indent, region.end))
            stack.extend(
                (indent, item) for item in reversed(self._items[region]) if item.op is not Op.SCALAR
            )

        lines.append("{")
        stack.append(("", "}"))
        enter(self._trace.body, "  ")
        while stack:
            indent, item = stack.pop()
            if isinstance(item, str):
                lines.append(indent + item)
                continue
            lines.append(indent + self._line(item))
            if item.op is Op.IF:
                then, orelse = item.regions
                stack.append((indent, "}"))
                if orelse.body or orelse.end.op is not Op.YIELD or orelse.end.args:
                    enter(orelse, indent + "  ")
                    stack.append((indent, "} else {"))
                enter(then, indent + "  ")
            elif item.op is Op.LOOP:
                stack.append((indent, "}"))
                enter(item.regions[0], indent + "  ")

    def _line(self, value: Value) -> str:
        op = value.op
        if op is Op.IF:
            return f"{self._left(value)}if {self._operand(value.args[0])} {{"
        if op is Op.LOOP:
            return self._loop_line(value)
        right = self._access(value) if op in MEMORY_OPS else self._plain(value)
        if value.dtype is None:
            return right
        name = self._names[value] = self._new()
        return f"{name}: {value.dtype.name} = {right}"

    def _plain(self, value: Value) -> str:
        """A name, what stands in the attribute, and operands."""
        words = _NAMES[value.op]
        operands = ", ".join([self._operand(operand) for operand in value.args])
        attr = value.attr
        if attr is None:
            return f"{words} {operands}" if operands else words
        if isinstance(attr, Note):
            text = _quoted(attr.text)
            return f"{words} {text} {operands}" if operands else f"{words} {text}"
        if isinstance(attr, tuple):  # an id
            return f"{words} {attr[0]} {attr[1]}"
        if value.op is Op.SHAPE or value.op is Op.STRIDE:
            return f"{words} {operands} {attr}"
        return f"{words} {attr} {operands}" if operands else f"{words} {attr}"

    def _access(self, value: Value) -> str:
        access = value.access
        words = _NAMES[value.op]
        if isinstance(access, AtomicAccess):
            words = f"{words} {access.kind} {access.order}"
        words = f"{words} {self._operand(value.args[0])}"
        indices = ", ".join([self._operand(operand) for operand in value.indices])
        words += f" at {indices}" if access.flat else f"[{indices}]"
        if value.guard is not None:
            words += f" if {self._operand(value.guard)}"
        if access.leaf:
            words += f" leaf={access.leaf}"
        if access.inner:
            numbers = ", ".join(str(number) for axis in access.inner for number in axis)
            words += f" inner=[{numbers}]"
        if not access.checked:
            words += " unchecked"
        if access.uniform:
            words += " uniform"
        operands = ", ".join([self._operand(operand) for operand in value.operands])
        return f"{words} <- {operands}" if operands else words

    def _loop_line(self, value: Value) -> str:
        initial = [self._operand(operand) for operand in value.args]
        left = self._left(value)
        carried = []
        for param, start in zip(value.regions[0].params, initial, strict=True):
            name = self._names[param] = self._new()
            carried.append(f"{name}: {param.type.name} = {start}")
        return f"{left}loop ({', '.join(carried)}) {{" if carried else f"{left}loop {{"

    def _left(self, node: Value) -> str:
        """Names for the results of an ``if`` or ``loop``."""
        assert isinstance(node.attr, tuple)
        results = []
        for position, dtype in enumerate(node.attr):
            name = self._results[node, position] = self._new()
            results.append(f"{name}: {dtype.name}")
        return f"{', '.join(results)} = " if results else ""

    def _new(self) -> str:
        name = f"%{self._count}"
        self._count += 1
        return name

    def _operand(self, value: Value) -> str:
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = self._leaf(value)
        return name

    def _leaf(self, value: Value) -> str:
        attr = value.attr
        if isinstance(attr, Memory):
            if attr.space is Space.ARRAY:
                return self._arrays[attr.number]
            return self._memories.setdefault(attr, f"{attr.space.value}{attr.number}")
        assert isinstance(attr, int), f"{describe(value)} is used before it is computed"
        if value.op is Op.CONST:
            return _constant(value.type, attr)
        if value.op is Op.SCALAR:
            return self._scalars[attr]
        return self._results[value.args[0], attr]
