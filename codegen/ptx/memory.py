"""Where memories are, addresses, loads and stores.

* Arrays are in ``global``; what no invocation writes is read through the read-only path (``nc``).
* Shared memory is one block of ``shared``, addressed by 32 bits; up to 48 KiB of it are part of
  the kernel, more is allotted by the launch.
* Local arrays are one block of ``local`` per invocation.
* Tables are ``const`` where all lanes of a warp read the same place, else ``global``.

A guarded access is predicated; a load's registers are cleared before it.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.ptx.code import WARP, Code
from khaljit.codegen.ptx.forms import TYPES
from khaljit.codegen.ptx.pointers import ACCESSES, Carried, Pointer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType, bool_, i32, u32
from khaljit.tracer.ir import Memory, Space, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import Scope, Uniformity, analyse

__all__ = [
    "STATIC_SHARED",
    "address",
    "address_register",
    "advance",
    "compute_pointer",
    "declare_memories",
    "leaf_type",
    "load",
    "predicate",
    "start_carried",
    "store",
]

STATIC_SHARED: Final = 48 << 10
_CONSTANT_BYTES: Final = 48 << 10  # of the 64 KiB that a module has
_ALIGN: Final = 16

# Kind of register that addresses of a space are in; other spaces take 64 bits.
_SHORT: Final = frozenset({Space.SHARED})


# Memories.


def declare_memories(code: Code) -> int:
    """Declare every memory that is used; gives the bytes of shared memory."""
    found: dict[tuple[Space, int], Memory] = {}
    for value in effects(code.trace.body):
        if value.op in ACCESSES:
            found.setdefault((value.memory.space, value.memory.number), value.memory)
    room, uniformity = _CONSTANT_BYTES, None
    for key, memory in found.items():
        if memory.space is Space.ARRAY:
            code.spaces[key] = "global"
            code.bases[key] = code.parameter(code.block.pointers[memory.number], "b64")
        elif memory.space is Space.TABLE:
            uniformity = uniformity or analyse(code.trace, rows=code.shape[0] % WARP == 0)
            room -= _declare_table(code, memory, room, uniformity)
    _declare_block(code, [m for m in found.values() if m.space is Space.LOCAL], "local")
    return _declare_block(code, [m for m in found.values() if m.space is Space.SHARED], "shared")


def _declare_table(code: Code, memory: Memory, room: int, uniformity: Uniformity) -> int:
    """A table as data of the module; gives the bytes of constant memory that it takes."""
    assert memory.data is not None
    size = max(len(memory.data), 1)
    uniform = size <= room and all(
        uniformity.scope[value.indices[0]] <= Scope.SUBGROUP
        for value in effects(code.trace.body)
        if value.op is Op.LOAD and value.memory == memory
    )
    key, name = (memory.space, memory.number), f"table{memory.number}"
    code.spaces[key] = "const" if uniform else "global"
    data = ",".join(map(str, memory.data)) or "0"
    code.globals.append(f".{code.spaces[key]} .align {_ALIGN} .b8 {name}[{size}] = {{{data}}};")
    code.bases[key] = code.w.let("b64", f"mov.u64 {{d}}, {name};")
    return size if uniform else 0


def _declare_block(code: Code, memories: list[Memory], space: str) -> int:
    """Memories of one space, one after the other; gives their bytes."""
    if not memories:
        return 0
    places, total = [], 0
    for memory in memories:
        places.append(total)
        total += max(1, -(-memory.count * memory.element.size // _ALIGN)) * _ALIGN
    name, kind = f"{space}_memory", "b32" if space == "shared" else "b64"
    if space == "shared" and total > STATIC_SHARED:
        code.globals.append(f".extern .shared .align {_ALIGN} .b8 {name}[];")
    else:
        code.w.do(f".{space} .align {_ALIGN} .b8 {name}[{total}];")
    block = code.w.let(kind, f"mov.{kind} {{d}}, {name};")
    for memory, at in zip(memories, places, strict=True):
        key = memory.space, memory.number
        code.spaces[key] = space
        code.bases[key] = (
            code.w.let(kind, f"add.u{kind[1:]} {{d}}, {block}, {at};") if at else block
        )
    return total


# Pointers.


def compute_pointer(code: Code, pointer: Pointer) -> None:
    """Compute a pointer, if that has not been done."""
    if not pointer.register:
        core = pointer.core
        pointer.register = (
            code.base(pointer.memory)
            if core is None
            else _from_offset(code, pointer.memory, core, code.operand(core))
        )


def _from_offset(code: Code, memory: Memory, core: Value, operand: str) -> str:
    """The pointer to an offset that is in some operand of the core's type."""
    w, base, unit = code.w, code.base(memory), memory.element.align
    if memory.space in _SHORT:
        if core.type.bits == 64:
            operand = w.let("b32", f"cvt.u32.u64 {{d}}, {w.held('b64', operand)};")
        return w.let("b32", f"mad.lo.u32 {{d}}, {operand}, {unit}, {base};")
    if core.type.bits == 64 and core.op is Op.CAST and core.args[0].type in (i32, u32):
        core = core.args[0]
        operand = code.operand(core)
    if core.type.bits == 32:
        # Not mad.wide: ptxas makes two shifts and two additions of that, and one operation of this.
        sign = "s" if core.type.is_signed else "u"
        offset = w.let("b64", f"mul.wide.{sign}32 {{d}}, {operand}, {unit};")
        return w.let("b64", f"add.s64 {{d}}, {offset}, {base};")
    if unit & (unit - 1):
        return w.let("b64", f"mad.lo.s64 {{d}}, {operand}, {unit}, {base};")
    if unit > 1:
        operand = w.let("b64", f"shl.b64 {{d}}, {operand}, {unit.bit_length() - 1};")
    return w.let("b64", f"add.s64 {{d}}, {operand}, {base};")


def start_carried(code: Code, loop: Value, carried: list[Carried]) -> list[str]:
    """Compute the pointers that a loop carries, as they are when it starts; gives their steps."""
    initial = dict(zip(loop.regions[0].params, loop.args, strict=True))
    steps = []
    for one in carried:
        pointer, core = one.pointer, one.pointer.core
        assert core is not None
        first = _Start(code, initial).operand(core)
        kind = "b32" if pointer.memory.space in _SHORT else "b64"
        computed = _from_offset(code, pointer.memory, core, first)
        pointer.register = code.w.let(kind, f"mov.{kind} {{d}}, {computed};")
        steps.append(_bytes_per_step(code, one, kind))
    return steps


def _bytes_per_step(code: Code, one: Carried, kind: str) -> str:
    """By how many bytes a pointer is advanced."""
    core = one.pointer.core
    assert core is not None
    unit, bits = one.pointer.memory.element.align, core.type.bits
    half = 1 << bits - 1
    known = (one.step.get(None, 0) + half) % (2 * half) - half
    if set(one.step) == {None}:
        return str(known * unit)
    w, type_ = code.w, f"b{bits}"
    total = ""
    for term, count in one.step.items():
        if term is None:
            continue
        part = code.operand(term)
        if count != 1:
            part = w.let(type_, f"mul.lo.s{bits} {{d}}, {part}, {count};")
        total = w.let(type_, f"add.s{bits} {{d}}, {total}, {part};") if total else part
    if known:
        total = w.let(type_, f"add.s{bits} {{d}}, {total}, {known};")
    if kind == "b32" and bits == 64:
        total, bits = w.let("b32", f"cvt.u32.u64 {{d}}, {w.held('b64', total)};"), 32
    if kind == "b64" and bits == 32:
        return w.let("b64", f"mul.wide.s32 {{d}}, {total}, {unit};")
    return w.let(kind, f"mul.lo.s{bits} {{d}}, {total}, {unit};")


def advance(code: Code, carried: list[Carried], steps: list[str]) -> None:
    """Advance the pointers of a loop by one iteration."""
    for one, step in zip(carried, steps, strict=True):
        register = one.pointer.register
        bits = 32 if one.pointer.memory.space in _SHORT else 64
        code.w.do(f"add.s{bits} {register}, {register}, {step};")


class _Start:
    """Computes an offset of a loop's body as it is in the first iteration."""

    def __init__(self, code: Code, initial: dict[Value, Value]) -> None:
        self._code: Final = code
        self._initial: Final = initial
        self._known: Final[dict[Value, str]] = {}

    def operand(self, value: Value) -> str:
        if value in self._initial:
            return self._code.operand(self._initial[value])
        if value.op is Op.CONST or value in self._code.operands:
            return self._code.operand(value)
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def _computed(self, value: Value) -> str:
        parts = [self.operand(arg) for arg in value.args]
        if value.op is Op.BITCAST:
            return parts[0]
        if value.op is Op.MUL and "0" in parts:
            return "0"
        if value.op is Op.ADD and "0" in parts:
            return parts[1] if parts[0] == "0" else parts[0]
        bits = value.type.bits
        if value.op is Op.SHL:
            amount = constant(value.args[1])
            text = f"shl.b{bits} {{d}}, {parts[0]}, {amount};"
        else:
            name = {Op.ADD: "add", Op.SUB: "sub", Op.MUL: "mul.lo"}[value.op]
            text = f"{name}.s{bits} {{d}}, {parts[0]}, {parts[1]};"
        return self._code.w.let(f"b{bits}", text)


# Accesses.


def leaf_type(value: Value) -> DType:
    """The type of the scalar in memory that an access is about."""
    return dict(value.memory.element.leaves)[value.access.leaf]


def address(code: Code, value: Value) -> str:
    """The address of an access, in brackets."""
    where = code.plan.where[value]
    compute_pointer(code, where.pointer)
    more = f"+{where.displacement}" if where.displacement else ""
    return f"[{where.pointer.register}{more}]"


def address_register(code: Code, value: Value) -> str:
    """The address of an access in a register."""
    where = code.plan.where[value]
    compute_pointer(code, where.pointer)
    register = where.pointer.register
    if not where.displacement:
        return register
    bits = 32 if where.pointer.memory.space in _SHORT else 64
    return code.w.let(f"b{bits}", f"add.s{bits} {{d}}, {register}, {where.displacement};")


def predicate(code: Code, value: Value) -> str:
    """What predicates an access; empty where it always happens."""
    return "" if value.guard is None else f"@{code.operand(value.guard)} "


def load(code: Code, value: Value) -> None:
    """A load, with the others of its group."""
    group = code.groups.get(value)
    if group is not None and group.leader is not value:
        return
    members = (value,) if group is None else group.members
    dtype = leaf_type(value)
    kind = "b32" if dtype is bool_ else TYPES[dtype].register
    when = predicate(code, value)
    at = address(code, members[0])
    names = [code.w.register(kind) for _ in members]
    if when:
        for name in names:
            code.w.do(f"mov.{kind} {name}, 0;")
    suffix = f"{_read_only(code, value.memory)}{_vector(members)}.{TYPES[dtype].memory}"
    code.w.do(f"{when}ld.{code.space(value.memory)}{suffix} {_listed(names)}, {at};")
    for member, name in zip(members, names, strict=True):
        if dtype is bool_:
            name = code.w.let("pred", f"setp.ne.u32 {{d}}, {name}, 0;")
        code.operands[member] = name


def _read_only(code: Code, memory: Memory) -> str:
    """Whether nobody writes a memory in global while the kernel runs."""
    if code.space(memory) != "global":
        return ""
    if memory.space is Space.TABLE:
        return ".nc"
    return "" if code.trace.arrays[memory.number].same_view in code.written else ".nc"


def _vector(members: tuple[Value, ...]) -> str:
    return f".v{len(members)}" if len(members) > 1 else ""


def _listed(names: list[str]) -> str:
    return f"{{{', '.join(names)}}}" if len(names) > 1 else names[0]


def store(code: Code, value: Value) -> None:
    """A store, with the others of its group."""
    group = code.groups.get(value)
    if group is not None and group.leader is not value:
        return
    members = (value,) if group is None else group.members
    dtype = leaf_type(value)
    names = [stored(code, dtype, member.operands[0]) for member in members]
    when = predicate(code, value)
    at = address(code, members[0])
    suffix = f"{_vector(members)}.{TYPES[dtype].memory}"
    code.w.do(f"{when}st.{code.space(value.memory)}{suffix} {at}, {_listed(names)};")


def stored(code: Code, dtype: DType, value: Value) -> str:
    """A value as it stands in memory, in a register."""
    name = code.register(value)
    return code.w.let("b32", f"selp.b32 {{d}}, 1, 0, {name};") if dtype is bool_ else name
