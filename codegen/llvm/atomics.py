"""Atomic operations: lane by lane, in a loop over the active ones.

What the lanes need stands in scratch memory by then, where a scalar finds it. An operation at one
address whose old value nobody reads is first combined over the lanes, then done once.

Shared and local memory belong to one thread, since it runs a whole workgroup: there an atomic is
a load, an operation and a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.llvm.address import Address, Guard, address, guard, narrowed
from khaljit.codegen.llvm.arithmetic import regular
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.collectives import combined, neutral
from khaljit.codegen.llvm.forms import TYPES, literal
from khaljit.codegen.llvm.values import SCALAR, Held, Mask
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import AtomicAccess, Space, Value
from khaljit.tracer.ops import COMBINE, Op

__all__ = ["atomic"]

_OPERATIONS: Final = {**COMBINE, "sub": Op.SUB}
_INSTRUCTIONS: Final = {
    "add": "add",
    "sub": "sub",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "exchange": "xchg",
}
_ORDERS: Final = {"relaxed": "monotonic"}  # the others are spelled the same
_LOAD_ORDERS: Final = {"relaxed": "monotonic", "release": "monotonic", "acq_rel": "acquire"}
_STORE_ORDERS: Final = {"relaxed": "monotonic", "acquire": "monotonic", "acq_rel": "release"}
_FAILURE_ORDERS: Final = {"release": "monotonic", "acq_rel": "acquire", "relaxed": "monotonic"}


def atomic(code: Code, value: Value) -> Held | None:
    """An atomic operation; the old value where something reads it."""
    where, when = address(code, value), guard(code, value)
    operands = [code.values.get(operand) for operand in value.operands]
    if value.memory.space is not Space.LOCAL:
        code.wrote()
    if code.scalar:
        return _single(code, value, where.pointer, when, operands)
    if where.pointer and value not in code.used and _combines(value):
        _once(code, value, where.pointer, when, operands[0])
        return None
    return _lane_by_lane(code, value, where, narrowed(code, when), operands)


def _attr(value: Value) -> AtomicAccess:
    assert isinstance(value.attr, AtomicAccess)
    return value.attr


def _dtype(value: Value) -> DType:
    """The type of what is in memory."""
    return dict(value.memory.element.leaves)[value.access.leaf]


def _combines(value: Value) -> bool:
    """Whether doing an operation for all lanes at once is the same."""
    return _attr(value).kind in _OPERATIONS and _dtype(value).is_integer


def _zero(dtype: DType) -> str:
    return "0.0" if TYPES[dtype] in ("float", "double") else literal(dtype, 0)


def _single(
    code: Code, value: Value, pointer: str, when: Guard, operands: list[Held]
) -> Held | None:
    """Where a subgroup is one invocation."""
    names = [operand.base for operand in operands]
    if not when.condition:
        return _old(value, _operate(code, value, pointer, names))
    inside, after = code.w.label(), code.w.label()
    before = code.w.block
    assert before is not None
    code.w.branch(when.condition, inside, after)
    code.w.open(inside)
    old = _operate(code, value, pointer, names)
    came = code.w.block
    assert came is not None
    code.w.open(after)
    if old:
        dtype = _dtype(value)
        old = code.w.phi(TYPES[dtype], [(old, came), (_zero(dtype), before)])
    return _old(value, old)


def _old(value: Value, name: str) -> Held | None:
    return Held(_dtype(value), name) if name else None


def _once(code: Code, value: Value, pointer: str, when: Guard, operand: Held) -> None:
    """All lanes' operands combined, then one operation, if any lane is active."""
    dtype, kind = operand.dtype, _attr(value).kind
    gathering = "add" if kind == "sub" else kind
    condition = when.condition
    if when.checked:
        assert when.mask is not None
        condition = code.lanes.any(when.mask)
    nothing = code.lanes.width.const(TYPES[dtype], neutral(gathering, dtype))
    with code.only_if(condition):
        vector = code.values.vector(operand)
        parts = code.lanes.blend(when.mask, dtype, vector, (nothing,) * code.lanes.parts)
        _operate(code, value, pointer, [combined(code, gathering, dtype, parts)])


def _lane_by_lane(
    code: Code, value: Value, where: Address, mask: Mask, operands: list[Held]
) -> Held | None:
    w, dtype = code.w, _dtype(value)
    pointer_of = _pointer_of(code, where, dtype)
    operand_of = [_operand_of(code, k, operand) for k, operand in enumerate(operands)]
    wanted = value in code.used
    olds = code.scratch("old") if wanted else ""
    if wanted and mask is not None:
        code.store_parts(olds, Held(dtype, parts=("zeroinitializer",) * code.lanes.parts))

    def body(lane: str) -> None:
        names = [find(lane) for find in operand_of]
        old = _operate(code, value, pointer_of(lane), names)
        if wanted:
            to = w.let(f"getelementptr [{dtype.size} x i8], ptr {olds}, i64 {lane}")
            code.store_scalar(to, dtype, old)

    _each_lane(code, mask, body)
    return code.load_parts(olds, dtype) if wanted else None


def _pointer_of(code: Code, where: Address, dtype: DType) -> Callable[[str], str]:
    """The pointer of a lane whose number is an i64."""
    if where.pointer:
        return lambda lane: where.pointer
    if where.starts and code.lanes.rows == 1:
        step, start = f"[{dtype.size} x i8]", where.starts[0]
        return lambda lane: code.w.let(f"getelementptr {step}, ptr {start}, i64 {lane}")
    scratch, t = code.scratch("pointers"), code.lanes.width.of("ptr")
    for part, name in enumerate(where.vectors or _spread(code, where.starts, dtype)):
        at = code.at(scratch, part * code.lanes.per_part * 8)
        code.w.do(f"store {t} {name}, ptr {at}, align 8")

    def find(lane: str) -> str:
        slot = code.w.let(f"getelementptr ptr, ptr {scratch}, i64 {lane}")
        return code.w.let(f"load ptr, ptr {slot}, align 8")

    return find


def _spread(code: Code, starts: tuple[str, ...], dtype: DType) -> tuple[str, ...]:
    """The pointers of all lanes, where those of a part follow its first."""
    lanes, step = code.lanes, f"[{dtype.size} x i8]"
    t, numbers = lanes.width.of("i64"), lanes.steps("i64", 0)
    return tuple(
        code.w.let(f"getelementptr {step}, ptr {start}, {t} {numbers}") for start in starts
    )


def _operand_of(code: Code, number: int, operand: Held) -> Callable[[str], str]:
    """The operand of a lane whose number is an i64."""
    if operand.uniform:
        return lambda lane: operand.base
    scratch = code.scratch(f"operand{number}")
    code.store_parts(scratch, operand)
    return lambda lane: code.lane_of(scratch, operand.dtype, lane)


def _each_lane(code: Code, mask: Mask, body: Callable[[str], None]) -> None:
    """Run scalar code for each active lane in order."""
    if mask is None:
        _each_number(code, body)
        return
    w, t = code.w, code.lanes.word
    slot, loop, after = w.slot(t), w.label(), w.label()
    bits = code.lanes.bits(mask)
    w.fork(w.let(f"icmp ne {t} {bits}, 0"), yes=False, to=after)  # there may be none
    w.do(f"store {t} {bits}, ptr {slot}")
    w.open(loop)
    waiting = w.let(f"load {t}, ptr {slot}")
    body(code.lanes.lowest(waiting))
    less = w.let(f"sub {t} {waiting}, 1")
    following = w.let(f"and {t} {waiting}, {less}")
    w.do(f"store {t} {following}, ptr {slot}")
    w.branch(w.let(f"icmp ne {t} {following}, 0"), loop, after)
    w.open(after)


def _each_number(code: Code, body: Callable[[str], None]) -> None:
    """Run scalar code for each lane."""
    w = code.w
    slot, loop, after = w.slot("i64"), w.label(), w.label()
    w.do(f"store i64 0, ptr {slot}")
    w.open(loop)
    lane = w.let(f"load i64, ptr {slot}")
    body(lane)
    following = w.let(f"add i64 {lane}, 1")
    w.do(f"store i64 {following}, ptr {slot}")
    w.branch(w.let(f"icmp ne i64 {following}, {code.lanes.count}"), loop, after)
    w.open(after)


# One operation.


def _operate(code: Code, value: Value, pointer: str, operands: list[str]) -> str:
    """One lane's operation; gives the name of the old value, empty where there is none."""
    if value.memory.space is Space.ARRAY:
        return _atomically(code, value, pointer, operands)
    return _alone(code, value, pointer, operands)


def _alone(code: Code, value: Value, pointer: str, operands: list[str]) -> str:
    """In memory that no other thread sees."""
    kind, dtype = _attr(value).kind, _dtype(value)
    old = code.load_slot(pointer, dtype)
    if kind == "load":
        return old
    if kind == "compare_exchange":
        new = _if_equal(code, dtype, old, operands)
    elif kind in _OPERATIONS:
        new = regular(code.w, SCALAR, _OPERATIONS[kind], dtype, (old, operands[0]))
    else:
        new = operands[0]
    code.store_scalar(pointer, dtype, new)
    return old


def _if_equal(code: Code, dtype: DType, old: str, operands: list[str]) -> str:
    """The desired value where the old one's bits are the expected ones."""
    seen, expected = (_bits(code, dtype, name) for name in (old, operands[0]))
    same = code.w.let(f"icmp eq {_bits_type(dtype)} {seen}, {expected}")
    return code.w.let(f"select i1 {same}, {TYPES[dtype]} {operands[1]}, {TYPES[dtype]} {old}")


def _bits_type(dtype: DType) -> str:
    return f"i{dtype.bits}"


def _bits(code: Code, dtype: DType, name: str) -> str:
    type_ = TYPES[dtype]
    if type_ == _bits_type(dtype):
        return name
    return code.w.let(f"bitcast {type_} {name} to {_bits_type(dtype)}")


def _from_bits(code: Code, dtype: DType, name: str) -> str:
    type_ = TYPES[dtype]
    if type_ == _bits_type(dtype):
        return name
    return code.w.let(f"bitcast {_bits_type(dtype)} {name} to {type_}")


def _atomically(code: Code, value: Value, pointer: str, operands: list[str]) -> str:
    attr, dtype, w = _attr(value), _dtype(value), code.w
    kind, type_, size = attr.kind, TYPES[dtype], dtype.size
    if kind == "load":
        order = _LOAD_ORDERS.get(attr.order, attr.order)
        return w.let(f"load atomic {type_}, ptr {pointer} {order}, align {size}")
    if kind == "store" and value in code.used:  # that asks for the old value too
        kind = "exchange"
    if kind == "store":
        order = _STORE_ORDERS.get(attr.order, attr.order)
        w.do(f"store atomic {type_} {operands[0]}, ptr {pointer} {order}, align {size}")
        return _zero(dtype)
    if kind == "compare_exchange":
        expected, desired = (_bits(code, dtype, name) for name in operands)
        old, _ = _exchanged(code, dtype, pointer, expected, desired, attr.order)
        return _from_bits(code, dtype, old)
    instruction = _instruction(kind, dtype)
    if instruction is None:
        return _retried(code, dtype, kind, pointer, operands[0], attr.order)
    order = _ORDERS.get(attr.order, attr.order)
    return w.let(
        f"atomicrmw {instruction} ptr {pointer}, {type_} {operands[0]} {order}, align {size}"
    )


def _instruction(kind: str, dtype: DType) -> str | None:
    """How LLVM calls the whole operation; None where it has none with the right meaning."""
    if kind in ("min", "max"):
        if dtype.is_float:
            return None
        return kind if dtype.is_signed else f"u{kind}"
    if dtype.is_float:
        return {"add": "fadd", "sub": "fsub", "exchange": "xchg"}.get(kind)
    return _INSTRUCTIONS[kind]


def _exchanged(
    code: Code, dtype: DType, pointer: str, expected: str, desired: str, order: str
) -> tuple[str, str]:
    """Compare-exchange of bits; the old ones and whether it succeeded."""
    t = _bits_type(dtype)
    orders = f"{_ORDERS.get(order, order)} {_FAILURE_ORDERS.get(order, order)}"
    pair = code.w.let(
        f"cmpxchg ptr {pointer}, {t} {expected}, {t} {desired} {orders}, align {dtype.size}"
    )
    both = f"{{ {t}, i1 }}"
    old = code.w.let(f"extractvalue {both} {pair}, 0")
    return old, code.w.let(f"extractvalue {both} {pair}, 1")


def _retried(code: Code, dtype: DType, kind: str, pointer: str, operand: str, order: str) -> str:
    """An operation by compare-exchange, again and again until nobody came between."""
    w, t = code.w, _bits_type(dtype)
    slot = w.slot(t)
    first = w.let(f"load atomic {t}, ptr {pointer} monotonic, align {dtype.size}")
    w.do(f"store {t} {first}, ptr {slot}")
    loop, after = w.label(), w.label()
    w.open(loop)
    expected = w.let(f"load {t}, ptr {slot}")
    old = _from_bits(code, dtype, expected)
    new = regular(w, SCALAR, _OPERATIONS[kind], dtype, (old, operand))
    found, done = _exchanged(code, dtype, pointer, expected, _bits(code, dtype, new), order)
    w.do(f"store {t} {found}, ptr {slot}")
    w.branch(done, after, loop)
    w.open(after)
    return old
