"""Emits WGSL from a legal trace: for browsers, for reading, and for what SPIR-V cannot say to wgpu.

The trace is brought to the machine's own terms first (``codegen/webgpu``), the same as for SPIR-V,
so that both mean the same; what is left here is spelling. Laws:

* Every value has a name of its own, ``v0`` and on. What leaves an ``if`` or ``loop`` and what a
  loop carries is a variable.
* NaN and infinity are bitcasts of a variable, since WGSL refuses them as constants. ``!=`` of
  floats is the negation of ``==``.
* A compare-exchange of WGSL may fail for no reason; it is tried again then.
* Memory with atomics on it is declared atomic, and loads and stores of it are atomic ones.
"""

from __future__ import annotations

import struct
from typing import Final, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.program import Program
from khaljit.codegen.spirv.forms import kind_of
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Lowered, Variant, lower
from khaljit.codegen.wgsl.forms import ATOMICS, COLLECTIVES, FORMS, IDS, TYPES, literal
from khaljit.codegen.writing import UNSIGNED
from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.dtypes import DType, f16, f32, u32
from khaljit.tracer.ir import AtomicAccess, Memory, Region, Space, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Walk, drive
from khaljit.tracer.schedule import schedule

__all__ = ["WgslEmitter", "emit_wgsl"]

ENTRY: Final = "main"
_FORMATS: Final = {2: "H", 4: "I", 8: "Q"}
_SHIFTS: Final = frozenset({Op.SHL, Op.SHR})


@final
@dataclass(frozen=True, slots=True)
class WgslEmitter:
    """Makes WGSL programs for a device with the capabilities of ``caps``.

    Attributes:
        caps: the row that the trace is legal for.
        variant: what else the program depends on.
        browser: declare what browsers want declared and wgpu does not know: ``enable subgroups``.
    """

    caps: Caps
    variant: Variant = PLAIN_VARIANT
    browser: bool = False

    @property
    def name(self) -> str:
        return "wgsl"

    def emit(self, trace: Trace) -> Program:
        """The program that does what a legal trace says."""
        return emit_wgsl(lower(trace, self.caps, self.variant), browser=self.browser)


def emit_wgsl(lowered: Lowered, *, browser: bool = False) -> Program:
    """The program of a lowered trace."""
    assert lowered.trace.workgroup is not None
    return Program(
        target="wgsl",
        entry=ENTRY,
        text=_Text(lowered).whole(browser),
        workgroup=lowered.trace.workgroup,
        shared=lowered.shared,
        interface=lowered.interface,
    )


@final
class _Text:
    """Writes the text of one program."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered: Final = lowered
        self._names: Final[dict[Value, str]] = {}
        self._memories: Final[dict[Memory, str]] = {}
        self._globals: Final[list[str]] = []
        self._locals: Final[list[str]] = []
        self._lines: Final[list[str]] = []
        self._ids: Final[dict[str, str]] = {}
        self._patterns: Final[dict[tuple[DType, int], str]] = {}
        self._types: Final[set[DType]] = set()
        self._subgroups = False
        self._depth = 1
        self._count = 0
        self._items: Final = schedule(lowered.trace).items
        self._used: Final = {arg for value in values(lowered.trace.body) for arg in value.args}
        self._results: Final[dict[Value, dict[int, Value]]] = {}

    def whole(self, browser: bool) -> str:
        trace = self._lowered.trace
        for value in values(trace.body):
            if value.dtype is not None:
                self._types.add(value.dtype)
            if value.op is Op.MEMORY:
                assert isinstance(value.attr, Memory)
                self._memories[value.attr] = self._declare(value.attr)
            elif value.op is Op.RESULT:
                assert isinstance(value.attr, int)
                self._results.setdefault(value.args[0], {})[value.attr] = value
        self._declare_parameters()
        drive(self._region(trace.body, _Ways()))
        assert trace.workgroup is not None
        size = ", ".join(map(str, trace.workgroup))
        inputs = "".join(f"    {one},\n" for one in self._ids.values())
        return "".join(
            (
                *self._enabled(browser),
                *(f"{line}\n" for line in self._globals),
                f"\n@compute @workgroup_size({size})\n",
                f"fn {ENTRY}(\n{inputs}) {{\n" if inputs else f"fn {ENTRY}() {{\n",
                *(f"    {line}\n" for line in self._locals),
                *(f"{line}\n" for line in self._lines),
                "}\n",
            )
        )

    def _enabled(self, browser: bool) -> list[str]:
        lines = []
        if f16 in self._types:
            lines.append("enable f16;\n")
        if self._subgroups and browser:
            lines.append("enable subgroups;\n")
        return lines

    # Declarations.

    def _declare(self, memory: Memory) -> str:
        (_, dtype), *_ = memory.element.leaves
        cell = TYPES[dtype]
        if memory in self._lowered.atomic:
            cell = f"atomic<{cell}>"
        name = f"{memory.space.value}{memory.number}"
        if memory.space is Space.ARRAY:
            access = "read_write" if memory in self._lowered.written else "read"
            self._globals.append(
                f"@group(0) @binding({memory.number}) var<storage, {access}> {name}: array<{cell}>;"
            )
        elif memory.space is Space.SHARED:
            self._globals.append(f"var<workgroup> {name}: array<{cell}, {memory.count}>;")
        elif memory.space is Space.LOCAL:
            self._locals.append(f"var {name}: array<{cell}, {memory.count}>;")
        else:
            assert memory.data is not None
            items = struct.unpack(f"<{memory.count}{_FORMATS[dtype.size]}", memory.data)
            contents = ", ".join(str(literal(dtype, bits)) for bits in items)
            self._globals.append(
                f"var<private> {name}: array<{cell}, {memory.count}> = "
                f"array<{cell}, {memory.count}>({contents});"
            )
        return name

    def _declare_parameters(self) -> None:
        types = {
            value.attr: value.type
            for value in values(self._lowered.trace.body)
            if value.op is Op.SCALAR and isinstance(value.attr, int)
        }
        slots = sorted(self._lowered.slots.items(), key=lambda item: item[1].at)
        if not slots:
            return
        members = "".join(f"    p{number}: {TYPES[types[number]]},\n" for number, _ in slots)
        self._globals.append(f"struct Parameters {{\n{members}}}")
        binding = self._lowered.interface.uniform
        if binding is None:
            self._globals.append("var<immediate> parameters: Parameters;")
        else:
            self._globals.append(
                f"@group(0) @binding({binding}) var<uniform> parameters: Parameters;"
            )

    # Lines.

    def _do(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _let(self, text: str) -> str:
        name = self._new()
        self._do(f"let {name} = {text};")
        return name

    # Regions.

    def _region(self, region: Region, ways: _Ways) -> Walk[None]:
        for item in self._items[region]:
            if item.op is Op.IF:
                yield self._if(item, ways)
                if all(arm.end.op is not Op.YIELD for arm in item.regions):
                    return
            elif item.op is Op.LOOP:
                yield self._loop(item)
            elif item.is_effect:
                self._effect(item)
            else:
                self._names[item] = self._pure(item)
        self._end(region.end, ways)

    def _end(self, end: Value, ways: _Ways) -> None:
        names = {Op.YIELD: ways.yields, Op.BREAK: ways.breaks, Op.CONTINUE: ways.continues}
        for name, value in zip(names.get(end.op, ()), end.args, strict=True):
            if name is not None:
                self._do(f"{name} = {self._name(value)};")
        word = {Op.BREAK: "break;", Op.CONTINUE: "continue;", Op.RETURN: "return;"}.get(end.op)
        if word is not None:
            self._do(word)

    def _if(self, value: Value, ways: _Ways) -> Walk[None]:
        names = self._variables(value)
        inside = _Ways(names, ways.breaks, ways.continues)
        then, orelse = value.regions
        self._do(f"if {self._name(value.args[0])} {{")
        yield self._arm(then, inside)
        if orelse.body or orelse.end.op is not Op.YIELD or any(names):
            self._do("} else {")
            yield self._arm(orelse, inside)
        self._do("}")

    def _arm(self, arm: Region, ways: _Ways) -> Walk[None]:
        self._depth += 1
        yield self._region(arm, ways)
        self._depth -= 1

    def _loop(self, value: Value) -> Walk[None]:
        (body,) = value.regions
        carried = []
        for param, initial in zip(body.params, value.args, strict=True):
            name = self._new()
            self._do(f"var {name}: {TYPES[param.type]} = {self._name(initial)};")
            carried.append(name)
        results = self._variables(value)
        self._do("loop {")
        self._depth += 1
        for param, name in zip(body.params, carried, strict=True):
            self._names[param] = self._let(name)
        yield self._region(body, _Ways((), results, tuple(carried)))
        self._depth -= 1
        self._do("}")

    def _variables(self, node: Value) -> tuple[str | None, ...]:
        """A variable for each result of an ``if`` or ``loop`` that something reads."""
        assert isinstance(node.attr, tuple)
        read = self._results.get(node, {})
        names: list[str | None] = []
        for k, dtype in enumerate(node.attr):
            name = None
            if k in read:
                name = self._names[read[k]] = self._new()
                self._do(f"var {name}: {TYPES[dtype]};")
            names.append(name)
        return tuple(names)

    # Values.

    def _name(self, value: Value) -> str:
        if value.op is not Op.CONST:
            return self._names[value]
        assert isinstance(value.attr, int)
        return literal(value.type, value.attr) or self._pattern(value.type, value.attr)

    def _pattern(self, dtype: DType, bits: int) -> str:
        """A NaN or infinity."""
        key = dtype, bits
        if key not in self._patterns:
            name = self._patterns[key] = self._new()
            held = f32 if dtype is f16 else dtype  # wgpu refuses vec2<f16> of the bits
            whole = literal(UNSIGNED[held.bits], to_bits(held, to_number(dtype, bits)))
            self._locals.append(f"var {name}_bits = {whole};")
            text = f"bitcast<{TYPES[held]}>({name}_bits)"
            if held is not dtype:
                text = f"{TYPES[dtype]}({text})"
            self._locals.append(f"let {name} = {text};")
        return self._patterns[key]

    def _pure(self, value: Value) -> str:
        if value.op is Op.ID:
            return self._id(value)
        if value.op is Op.SCALAR:
            return self._let(f"parameters.p{value.attr}")
        args = [self._name(arg) for arg in value.args]
        if all(arg.op is Op.CONST for arg in value.args):  # wgpu's reader would compute, not all
            args = [self._let(arg) for arg in args]
        if value.op in _SHIFTS:
            args[1] = self._amount(value.args[1], args[1])
        form = FORMS[value.op, kind_of(value.args[-1].type)]
        return self._let(form.format(*args, t=TYPES[value.type]))

    def _amount(self, value: Value, name: str) -> str:
        if value.dtype is u32:
            return name
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return f"{value.attr}u"
        return f"u32({name})"

    def _id(self, value: Value) -> str:
        assert isinstance(value.attr, tuple)
        name, axis = value.attr
        parameter, builtin, axes = IDS[name]
        self._subgroups |= name in ("subgroup", "lane", "num_subgroups", "subgroup_size")
        type_ = "vec3<u32>" if axes == 3 else "u32"
        self._ids[name] = f"@builtin({builtin}) {parameter}: {type_}"
        member = f".{'xyz'[axis]}" if axes == 3 else ""
        return self._let(f"{TYPES[value.type]}({parameter}{member})")

    # Effects.

    def _effect(self, value: Value) -> None:
        if value.op is Op.BARRIER:
            self._barrier(value)
            return
        if value.op is Op.STORE:
            self._store(value)
            return
        if value.op is Op.LOAD:
            text = self._load(value)
        elif value.op is Op.SUBGROUP:
            self._subgroups = True
            args = [self._name(arg) for arg in value.args]
            text = COLLECTIVES[str(value.attr)].format(*args)
        else:
            text = self._atomic(value)
        if value in self._used:
            self._names[value] = self._let(text)
        elif text.endswith(")"):
            self._do(f"{'' if text.startswith('atomicStore') else '_ = '}{text};")

    def _cell(self, value: Value) -> str:
        return f"{self._memories[value.memory]}[{self._name(value.args[1])}]"

    def _load(self, value: Value) -> str:
        cell = self._cell(value)
        return f"atomicLoad(&{cell})" if value.memory in self._lowered.atomic else cell

    def _store(self, value: Value) -> None:
        cell, stored = self._cell(value), self._name(value.args[2])
        if value.memory in self._lowered.atomic:
            self._do(f"atomicStore(&{cell}, {stored});")
        else:
            self._do(f"{cell} = {stored};")

    def _atomic(self, value: Value) -> str:
        assert isinstance(value.attr, AtomicAccess)
        place = f"&{self._cell(value)}"
        operands = [self._name(operand) for operand in value.args[2:]]
        if value.attr.kind != "compare_exchange":
            return ATOMICS[value.attr.kind].format(place, *operands)
        found, result = self._new(), self._new()
        expected, desired = operands
        self._do(f"var {found}: {TYPES[value.type]};")
        self._do("loop {")
        self._do(f"    let {result} = atomicCompareExchangeWeak({place}, {expected}, {desired});")
        self._do(f"    {found} = {result}.old_value;")
        self._do(f"    if {result}.exchanged || {found} != {expected} {{ break; }}")
        self._do("}")
        return found

    def _barrier(self, value: Value) -> None:
        if value.attr == "subgroup":
            self._subgroups = True
            self._do("subgroupBarrier();")
            return
        if value.attr == "workgroup":
            self._do("workgroupBarrier();")
        if value.attr == "storage" or self._lowered.hands_over:
            self._do("storageBarrier();")


@final
@dataclass(frozen=True, slots=True)
class _Ways:
    """The variables that take what flows out of a region, by how it ends; None where unread."""

    yields: tuple[str | None, ...] = ()
    breaks: tuple[str | None, ...] = ()
    continues: tuple[str | None, ...] = ()
