"""Emits SPIR-V from a legal trace.

The trace is brought to the machine's own terms first (``codegen/webgpu``); what is left here is
spelling. Laws, which keep to what wgpu's reader of SPIR-V takes and gets right:

* Every value that leaves an ``if`` or ``loop`` goes through a variable of the function, as do the
  values that a loop carries. So no id made inside a loop is used after it.
* Pointers are made anew for each access.
* An ``if`` is a selection with a merge block, also where its arms leave it otherwise; a loop is
  ``header -> body``, left by branches to its merge block; its continue block only goes back.
* NaN and infinity are bitcasts of integers. ``!=`` of floats is the negation of ``==``, since an
  unordered comparison would be read as an ordered one.
* Negation of integers is subtraction from zero, which wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.program import Program
from khaljit.codegen.spirv.forms import (
    ATOMICS,
    BUILTINS,
    CASTS,
    COLLECTIVES,
    EXTENDED,
    PLAIN,
    kind_of,
)
from khaljit.codegen.spirv.module import Id, Instruction, Module
from khaljit.codegen.spirv.types import Array, Types
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Lowered, Variant, lower
from khaljit.tracer.dtypes import DType, bool_, i32, u32
from khaljit.tracer.ir import AtomicAccess, Memory, Region, Space, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Walk, drive
from khaljit.tracer.schedule import schedule

__all__ = ["SpirvEmitter", "emit_spirv"]

ENTRY: Final = "main"
_DEVICE: Final = 1
_WORKGROUP: Final = 2
_SUBGROUP: Final = 3
_RELAXED: Final = 0
# Acquire and release, of which memory: storage buffers 0x40, the subgroup's 0x80, workgroup 0x100.
_ACQUIRE_RELEASE: Final = 0x8
_BARRIERS: Final = {"workgroup": 0x100, "storage": 0x40, "subgroup": 0x80}


@final
@dataclass(frozen=True, slots=True)
class SpirvEmitter:
    """Makes SPIR-V programs for a device with the capabilities of ``caps``.

    Attributes:
        caps: the row that the trace is legal for.
        variant: what else the program depends on.
    """

    caps: Caps
    variant: Variant = PLAIN_VARIANT

    @property
    def name(self) -> str:
        return "spirv"

    def emit(self, trace: Trace) -> Program:
        """The program that does what a legal trace says."""
        return emit_spirv(lower(trace, self.caps, self.variant))


def emit_spirv(lowered: Lowered) -> Program:
    """The program of a lowered trace."""
    module = _Function(lowered).module()
    instructions = module.instructions(ENTRY)
    assert lowered.trace.workgroup is not None
    return Program(
        target="spirv",
        entry=ENTRY,
        text=module.text(instructions),
        binary=module.words(instructions),
        workgroup=lowered.trace.workgroup,
        shared=lowered.shared,
        interface=lowered.interface,
    )


@final
@dataclass(frozen=True, slots=True)
class _Exit:
    """Where control goes from inside a construct, and the variables that take what flows there."""

    label: Id
    variables: tuple[Id | None, ...]


@final
@dataclass(frozen=True, slots=True)
class _Around:
    """The ways out of a region, by how it ends; None where there is no such construct."""

    yields: _Exit | None = None
    breaks: _Exit | None = None
    continues: _Exit | None = None


@final
class _Function:
    """Writes the one function of a module."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered: Final = lowered
        self._module: Final = Module()
        self._types: Final = Types(self._module)
        self._ids: Final[dict[Value, Id]] = {}
        self._arrays: Final[dict[Memory, Array]] = {}
        self._builtins: Final[dict[str, Id]] = {}
        self._parameters: Id | None = None
        self._members: Final[dict[int, int]] = {}  # of the parameters' block, by number of scalar
        self._items: Final = schedule(lowered.trace).items
        self._used: Final = {arg for value in values(lowered.trace.body) for arg in value.args}
        self._results: Final[dict[Value, dict[int, Value]]] = {}

    def module(self) -> Module:
        module, trace = self._module, self._lowered.trace
        module.needs("Shader")
        assert trace.workgroup is not None
        module.modes.append(Instruction("OpExecutionMode", ("LocalSize", *trace.workgroup)))
        for value in values(trace.body):
            if value.op is Op.MEMORY:
                assert isinstance(value.attr, Memory)
                self._arrays[value.attr] = self._types.array(value.attr, self._lowered)
            elif value.op is Op.RESULT:
                assert isinstance(value.attr, int)
                self._results.setdefault(value.args[0], {})[value.attr] = value
        self._declare_parameters()
        drive(self._region(trace.body, _Around()))
        return module

    def _declare_parameters(self) -> None:
        types = {
            value.attr: value.type
            for value in values(self._lowered.trace.body)
            if value.op is Op.SCALAR and isinstance(value.attr, int)
        }
        slots = sorted(self._lowered.slots.items(), key=lambda item: item[1].at)
        if slots:
            self._members.update({number: k for k, (number, _) in enumerate(slots)})
            members = [(types[number], slot.at) for number, slot in slots]
            self._parameters = self._types.parameters(members, self._lowered.interface.uniform)

    # Regions.

    def _region(self, region: Region, around: _Around) -> Walk[None]:
        """All of a region with its end."""
        for item in self._items[region]:
            if item.op is Op.IF:
                ended = yield self._if(item, around)
                if ended:
                    return
            elif item.op is Op.LOOP:
                yield self._loop(item)
            elif item.is_effect:
                self._effect(item)
            else:
                self._ids[item] = self._pure(item)
        self._end(region.end, around)

    def _end(self, end: Value, around: _Around) -> None:
        ways = {Op.YIELD: around.yields, Op.BREAK: around.breaks, Op.CONTINUE: around.continues}
        way = ways.get(end.op)
        if way is None:  # the end of the kernel
            self._module.do("OpReturn")
            return
        for variable, value in zip(way.variables, end.args, strict=True):
            if variable is not None:
                self._module.do("OpStore", variable, self._id(value))
        self._module.do("OpBranch", way.label)

    def _if(self, value: Value, around: _Around) -> Walk[bool]:
        """An ``if``; whether nothing can follow it."""
        module = self._module
        condition = self._id(value.args[0])
        merge = module.id()
        variables = self._variables(value)
        labels = [merge if _is_empty(arm, variables) else module.id() for arm in value.regions]
        inside = _Around(_Exit(merge, variables), around.breaks, around.continues)
        module.do("OpSelectionMerge", merge, "None")
        module.do("OpBranchConditional", condition, *labels)
        for label, arm in zip(labels, value.regions, strict=True):
            if label is not merge:
                module.label(label)
                yield self._region(arm, inside)
        module.label(merge)
        if all(arm.end.op is not Op.YIELD for arm in value.regions):
            module.do("OpUnreachable")
            return True
        self._read_results(value, variables)
        return False

    def _loop(self, value: Value) -> Walk[None]:
        module = self._module
        (body,) = value.regions
        carried = tuple(self._variable(param.type) for param in body.params)
        for variable, initial in zip(carried, value.args, strict=True):
            module.do("OpStore", variable, self._id(initial))
        results = self._variables(value)
        header, inside, again, merge = (module.id() for _ in range(4))
        module.do("OpBranch", header)
        module.label(header)
        module.do("OpLoopMerge", merge, again, "None")
        module.do("OpBranch", inside)
        module.label(inside)
        for param, variable in zip(body.params, carried, strict=True):
            self._ids[param] = module.let("OpLoad", self._types.of(param.type), variable)
        ways = _Around(None, _Exit(merge, results), _Exit(again, carried))
        yield self._region(body, ways)
        module.label(again)
        module.do("OpBranch", header)
        module.label(merge)
        self._read_results(value, results)

    def _variables(self, node: Value) -> tuple[Id | None, ...]:
        """A variable for each result of an ``if`` or ``loop`` that something reads."""
        assert isinstance(node.attr, tuple)
        read = self._results.get(node, {})
        return tuple(
            self._variable(dtype) if k in read else None for k, dtype in enumerate(node.attr)
        )

    def _variable(self, dtype: DType) -> Id:
        return self._module.own_variable(self._types.pointer("Function", self._types.of(dtype)))

    def _read_results(self, node: Value, variables: tuple[Id | None, ...]) -> None:
        for k, result in self._results.get(node, {}).items():
            variable = variables[k]
            assert variable is not None
            self._ids[result] = self._module.let("OpLoad", self._types.of(result.type), variable)

    # Values.

    def _id(self, value: Value) -> Id:
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return self._types.constant(value.type, value.attr)
        return self._ids[value]

    def _pure(self, value: Value) -> Id:
        if value.op is Op.ID:
            return self._builtin(value)
        if value.op is Op.SCALAR:
            return self._parameter(value)
        args = tuple(self._id(arg) for arg in value.args)
        operand = value.args[-1].type
        special = _SPECIAL.get(value.op)
        if special is not None:
            built = special(self, value, args)
            if built is not None:
                return built
        type_, key = self._types.of(value.type), (value.op, kind_of(operand))
        if key in EXTENDED:
            return self._module.extended(EXTENDED[key], type_, *args)
        return self._module.let(PLAIN[key], type_, *args)

    def _builtin(self, value: Value) -> Id:
        """An id, as i32."""
        assert isinstance(value.attr, tuple)
        name, axis = value.attr
        builtin, vector = BUILTINS[name]
        module, word = self._module, self._types.of(u32)
        type_ = module.type("OpTypeVector", word, 3) if vector else word
        if builtin not in self._builtins:
            if name in ("subgroup", "lane", "num_subgroups", "subgroup_size"):
                module.needs("GroupNonUniform")
            variable = module.variable(self._types.pointer("Input", type_), "Input")
            module.decorate(variable, "BuiltIn", builtin)
            module.interface.append(variable)
            self._builtins[builtin] = variable
        found = module.let("OpLoad", type_, self._builtins[builtin])
        if vector:
            found = module.let("OpCompositeExtract", word, found, axis)
        return module.let("OpBitcast", self._types.of(value.type), found)

    def _parameter(self, value: Value) -> Id:
        assert isinstance(value.attr, int)
        assert self._parameters is not None, "what is read has a slot"
        type_ = self._types.of(value.type)
        storage = "PushConstant" if self._lowered.interface.uniform is None else "Uniform"
        member = self._types.word(self._members[value.attr])
        pointer = self._types.pointer(storage, type_)
        chain = self._module.let("OpAccessChain", pointer, self._parameters, member)
        return self._module.let("OpLoad", type_, chain)

    def _not_equal(self, value: Value, args: tuple[Id, ...]) -> Id | None:
        if not value.args[0].type.is_float:
            return None
        type_ = self._types.of(bool_)
        equal = self._module.let("OpFOrdEqual", type_, *args)
        return self._module.let("OpLogicalNot", type_, equal)

    def _negated(self, value: Value, args: tuple[Id, ...]) -> Id | None:
        if value.type.is_float:
            return None
        zero = self._types.constant(value.type, 0)
        return self._module.let("OpISub", self._types.of(value.type), zero, *args)

    def _absolute(self, value: Value, args: tuple[Id, ...]) -> Id | None:
        if value.type.is_float:
            return None
        if not value.type.is_signed:
            return args[0]
        negated = self._negated(value, args)
        assert negated is not None
        return self._module.extended("SMax", self._types.of(value.type), args[0], negated)

    def _shift(self, value: Value, args: tuple[Id, ...]) -> Id:
        op = "OpShiftLeftLogical"
        if value.op is Op.SHR:
            op = f"OpShiftRight{'Arithmetic' if value.type.is_signed else 'Logical'}"
        amount = self._as_word(value.args[1], args[1])
        return self._module.let(op, self._types.of(value.type), args[0], amount)

    def _as_word(self, value: Value, id_: Id) -> Id:
        """A small non-negative integer as u32."""
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return self._types.word(value.attr)
        if value.dtype is u32:
            return id_
        if value.type.bits == 32:
            return self._module.let("OpBitcast", self._types.of(u32), id_)
        if not value.type.is_signed:
            return self._module.let("OpUConvert", self._types.of(u32), id_)
        narrow = self._module.let("OpSConvert", self._types.of(i32), id_)
        return self._module.let("OpBitcast", self._types.of(u32), narrow)

    def _count(self, value: Value, args: tuple[Id, ...]) -> Id:
        """A bit count, in u32 and then as i32."""
        module, word = self._module, self._types.of(u32)
        operand = self._as_word(value.args[0], args[0])
        if value.op is Op.POPCOUNT:
            found = module.let("OpBitCount", word, operand)
        elif value.op is Op.CLZ:  # of 0 the highest bit is -1
            highest = module.extended("FindUMsb", word, operand)
            found = module.let("OpISub", word, self._types.word(31), highest)
        else:
            lowest = module.extended("FindILsb", word, operand)
            found = module.extended("UMin", word, lowest, self._types.word(32))
        return module.let("OpBitcast", self._types.of(value.type), found)

    def _cast(self, value: Value, args: tuple[Id, ...]) -> Id:
        kinds = kind_of(value.args[0].type), kind_of(value.type)
        return self._module.let(CASTS[kinds], self._types.of(value.type), *args)

    # Effects.

    def _effect(self, value: Value) -> None:
        built = _EFFECTS[value.op](self, value)
        if built is not None:
            self._ids[value] = built

    def _cell(self, value: Value) -> Id:
        """A pointer to the cell that an access is about."""
        array = self._arrays[value.memory]
        index = self._id(value.args[1])
        first = (self._types.word(0),) if array.member else ()
        return self._module.let("OpAccessChain", array.cell, array.variable, *first, index)

    def _load(self, value: Value) -> Id:
        return self._module.let("OpLoad", self._types.of(value.type), self._cell(value))

    def _store(self, value: Value) -> None:
        self._module.do("OpStore", self._cell(value), self._id(value.args[2]))

    def _atomic(self, value: Value) -> Id | None:
        assert isinstance(value.attr, AtomicAccess)
        module, kind, letter = self._module, value.attr.kind, kind_of(value.type)
        scope = _WORKGROUP if value.memory.space is Space.SHARED else _DEVICE
        place = (self._cell(value), self._types.word(scope), self._types.word(_RELAXED))
        operands = tuple(self._id(operand) for operand in value.args[2:])
        type_ = self._types.of(value.type)
        if value.type.bits == 64:
            module.needs("Int64Atomics")
        if kind == "store":
            module.do("OpAtomicStore", *place, *operands)
            return None
        if kind == "load":
            return module.let("OpAtomicLoad", type_, *place)
        if kind == "compare_exchange":
            expected, desired = operands
            relaxed = self._types.word(_RELAXED)
            operands = (relaxed, desired, expected)
            return module.let("OpAtomicCompareExchange", type_, *place, *operands)
        op = ATOMICS[kind, letter]
        if op == "OpAtomicFAddEXT":
            module.needs("AtomicFloat32AddEXT")
            module.extensions["SPV_EXT_shader_atomic_float_add"] = None
        return module.let(op, type_, *place, *operands)

    def _barrier(self, value: Value) -> None:
        scope = _SUBGROUP if value.attr == "subgroup" else _WORKGROUP
        memory = _ACQUIRE_RELEASE | _BARRIERS[str(value.attr)]
        if value.attr == "workgroup" and self._lowered.hands_over:
            memory |= _BARRIERS["storage"]
        words = (self._types.word(number) for number in (scope, _WORKGROUP, memory))
        self._module.do("OpControlBarrier", *words)

    def _collective(self, value: Value) -> Id:
        module, name = self._module, str(value.attr)
        scope, type_ = self._types.word(_SUBGROUP), self._types.of(value.type)
        args = tuple(self._id(arg) for arg in value.args)
        module.needs("GroupNonUniform")
        if name in ("any", "all"):
            module.needs("GroupNonUniformVote")
            return module.let(f"OpGroupNonUniform{name.capitalize()}", type_, scope, *args)
        if name == "ballot":
            module.needs("GroupNonUniformBallot")
            vector = module.type("OpTypeVector", self._types.of(u32), 4)
            mask = module.let("OpGroupNonUniformBallot", vector, scope, *args)
            return module.let("OpCompositeExtract", type_, mask, 0)
        if name == "broadcast_first":
            module.needs("GroupNonUniformBallot")
            return module.let("OpGroupNonUniformBroadcastFirst", type_, scope, *args)
        if name == "shuffle":
            module.needs("GroupNonUniformShuffle")
            return module.let("OpGroupNonUniformShuffle", type_, scope, *args)
        module.needs("GroupNonUniformArithmetic")
        prefix, _, suffix = name.rpartition("_")
        group = f"{prefix.capitalize()}Scan" if prefix else "Reduce"
        return module.let(COLLECTIVES[suffix, kind_of(value.type)], type_, scope, group, *args)


def _is_empty(arm: Region, variables: tuple[Id | None, ...]) -> bool:
    """Whether an arm does nothing and gives nothing that is read."""
    if arm.end.op is not Op.YIELD or arm.body:
        return False
    return all(variable is None for variable in variables)


_SPECIAL: Final[dict[Op, Callable[[_Function, Value, tuple[Id, ...]], Id | None]]] = {
    Op.NE: _Function._not_equal,
    Op.NEG: _Function._negated,
    Op.ABS: _Function._absolute,
    Op.SHL: _Function._shift,
    Op.SHR: _Function._shift,
    Op.POPCOUNT: _Function._count,
    Op.CLZ: _Function._count,
    Op.CTZ: _Function._count,
    Op.CAST: _Function._cast,
}

_EFFECTS: Final[dict[Op, Callable[[_Function, Value], Id | None]]] = {
    Op.LOAD: _Function._load,
    Op.STORE: _Function._store,
    Op.ATOMIC: _Function._atomic,
    Op.BARRIER: _Function._barrier,
    Op.SUBGROUP: _Function._collective,
}
