"""The instructions of PTX that the code generator uses, by what the PTX manual says of them.

All others are refused, and so is what the manual leaves undefined: a register that is read before
it is written, an operand too narrow for its type, an address that is not aligned.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from khaljit.tracer.dtypes import bf16, f16, f32, f64
from khaljit.tracer.numerics import meaning
from khaljit.tracer.ops import Op

__all__ = [
    "HANDLERS",
    "WAITS",
    "WARP",
    "Buffers",
    "Instruction",
    "MachineError",
    "State",
    "Thread",
    "split",
]

WARP: Final = 32
Thread = Generator[tuple[str, Any], Any, None]


class MachineError(Exception):
    """The program does what it must not do."""


class Buffers:
    """Memory by address: pieces with gaps between them."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._pieces: list[bytearray | memoryview] = []
        self._next = 1 << 20

    def add(self, piece: bytearray | memoryview, base: int | None = None) -> int:
        """Map a piece; gives its address, aligned to 256."""
        at = self._next if base is None else base
        place = bisect_right(self._bases, at)
        self._bases.insert(place, at)
        self._pieces.insert(place, piece)
        self._next = max(self._next, (at + len(piece) + 511) // 256 * 256 + 256)
        return at

    def find(self, address: int, size: int) -> tuple[bytearray | memoryview, int]:
        place = bisect_right(self._bases, address) - 1
        if place >= 0:
            at = address - self._bases[place]
            if at + size <= len(self._pieces[place]):
                return self._pieces[place], at
        raise MachineError(f"{size} bytes at {address:#x} are in no buffer")


@dataclass
class Instruction:
    """One instruction: a guard as (register, wanted), the parts of its name, its operands."""

    guard: tuple[str, bool] | None
    name: list[str]
    operands: list[str]
    text: str


@dataclass
class State:
    """What a thread sees."""

    registers: dict[str, int]
    special: dict[str, int]
    buffers: Buffers
    params: bytes
    shared: Buffers
    local: Buffers
    symbols: dict[str, int]
    lane: int = 0


_NUMBER: Final = re.compile(r"-?\d+$|-?0x[0-9a-fA-F]+$")


def split(text: str) -> list[str]:
    """Operands: commas inside braces and brackets do not part."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def _bits(type_: str) -> int:
    return 1 if type_ == "pred" else int(re.sub(r"\D", "", type_))


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


_TYPES: Final = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}
_FLOATS: Final[dict[int, tuple[Any, Any]]] = {
    16: (np.float16, np.uint16),
    32: (np.float32, np.uint32),
    64: (np.float64, np.uint64),
}


def _to_float(type_: str, bits: int) -> Any:
    if type_ == "bf16":
        return np.uint32(bits << 16).view(np.float32)
    number, raw = _FLOATS[_bits(type_)]
    return raw(bits).view(number)


def _from_float(type_: str, number: Any) -> int:
    if type_ == "bf16":
        wide = int(np.float32(number).view(np.uint32))
        if wide & 0x7FFFFFFF > 0x7F800000:
            return 0x7FFF
        return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    kind, raw = _FLOATS[_bits(type_)]
    return int(kind(number).view(raw))


# Operands.


def _read(s: State, operand: str, type_: str) -> int:
    """The bits of an operand as wide as a type."""
    bits = _bits(type_)
    if operand.startswith("!"):
        return 1 - _read(s, operand[1:], type_)
    if operand in s.special:
        return s.special[operand]
    if operand.startswith("%"):
        if operand not in s.registers:
            raise MachineError(f"{operand} is read before it is written")
        value = s.registers[operand]
        if _width(operand) < bits:
            raise MachineError(f"{operand} is narrower than {type_}")
    elif operand[:2] in ("0f", "0d") and not _NUMBER.match(operand):
        value = int(operand[2:], 16)
    elif _NUMBER.match(operand):
        value = int(operand, 0)
        if not -(1 << max(bits, 2) - 1) <= value < 1 << bits:
            raise MachineError(f"{operand} is no {type_}")
    else:
        value = s.symbols[operand]
    return value & ((1 << bits) - 1)


_WIDTHS: Final = {"p": 1, "h": 16, "r": 32, "d": 64}


def _width(register: str) -> int:
    return _WIDTHS[register[1]]


def _write(s: State, register: str, value: int, type_: str) -> None:
    """Write a result; one that is narrower than its register is extended by its sign."""
    bits, width = _bits(type_), _width(register)
    if bits > width:
        raise MachineError(f"{type_} does not fit {register}")
    if type_[0] == "s":
        value = _signed(value & ((1 << bits) - 1), bits)
    s.registers[register] = value & ((1 << width) - 1)


def _number(s: State, operand: str, type_: str) -> Any:
    """An operand as a number of its type."""
    raw = _read(s, operand, type_)
    if type_[0] == "s":
        return _signed(raw, _bits(type_))
    return _to_float(type_, raw) if "f" in type_ else raw


# Arithmetic.


def _integer_binary(function: Callable[[int, int], int]) -> Callable[[State, Instruction], None]:
    def run(s: State, one: Instruction) -> None:
        type_ = one.name[-1]
        a, b = (_number(s, operand, type_) for operand in one.operands[1:3])
        _write(s, one.operands[0], function(a, b) & ((1 << _bits(type_)) - 1), type_)

    return run


def _float_op(s: State, one: Instruction, op: Op) -> None:
    """One rounded operation; the name must say that it is rounded to nearest even."""
    type_ = one.name[-1]
    if op not in (Op.MIN, Op.MAX) and "rn" not in one.name:
        raise MachineError(f"{one.text!r} may be fused")
    numbers = [_number(s, operand, type_) for operand in one.operands[1:]]
    dtype = _TYPES[type_]
    found = meaning(op, dtype, (dtype,) * len(numbers), 32)(*(np.array([n]) for n in numbers))
    _write(s, one.operands[0], _from_float(type_, found[0]), type_)


def _arithmetic(op: Op, integer: Callable[[int, int], int]) -> Callable[[State, Instruction], None]:
    whole = _integer_binary(integer)

    def run(s: State, one: Instruction) -> None:
        if "f" in one.name[-1]:
            _float_op(s, one, op)
        else:
            whole(s, one)

    return run


def _extreme(op: Op, integer: Callable[[int, int], int]) -> Callable[[State, Instruction], None]:
    whole = _integer_binary(integer)

    def run(s: State, one: Instruction) -> None:
        if "f" not in one.name[-1]:
            whole(s, one)
            return
        propagating = {Op.MIN: Op.MINIMUM, Op.MAX: Op.MAXIMUM}[op]
        type_ = one.name[-1]
        dtype = _TYPES[type_]
        numbers = [np.array([_number(s, operand, type_)]) for operand in one.operands[1:]]
        chosen = propagating if "NaN" in one.name else op
        found = meaning(chosen, dtype, (dtype, dtype), 32)(*numbers)
        _write(s, one.operands[0], _from_float(type_, found[0]), type_)

    return run


def _mul(s: State, one: Instruction) -> None:
    type_ = one.name[-1]
    if "f" in type_:
        _float_op(s, one, Op.MUL)
        return
    bits = _bits(type_)
    a, b = (_number(s, operand, type_) for operand in one.operands[1:3])
    product, mode = a * b, one.name[1]
    if mode == "wide":
        _write(s, one.operands[0], product & ((1 << 2 * bits) - 1), f"{type_[0]}{2 * bits}")
    else:
        product = product >> bits if mode == "hi" else product
        _write(s, one.operands[0], product & ((1 << bits) - 1), type_)


def _mad(s: State, one: Instruction) -> None:
    mode, type_ = one.name[1], one.name[-1]
    bits = _bits(type_)
    a, b = (_number(s, operand, type_) for operand in one.operands[1:3])
    wide = f"{type_[0]}{2 * bits}" if mode == "wide" else type_
    total = a * b + _number(s, one.operands[3], wide)
    _write(s, one.operands[0], total & ((1 << _bits(wide)) - 1), wide)


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise MachineError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - _divide(a, b) * b


def _div(s: State, one: Instruction) -> None:
    if "f" in one.name[-1]:
        _float_op(s, one, Op.DIV)
    else:
        _integer_binary(_divide)(s, one)


def _unary(s: State, one: Instruction) -> None:
    head, type_ = one.name[0], one.name[-1]
    bits, raw = _bits(type_), _read(s, one.operands[1], type_)
    mask, top = (1 << bits) - 1, 1 << bits - 1
    if head == "not":
        result = ~raw
    elif head == "neg":
        result = raw ^ top if "f" in type_ else -raw
    elif head == "abs":
        result = raw & ~top if "f" in type_ else abs(_signed(raw, bits))
    elif head == "brev":
        result = int(f"{raw:0{bits}b}"[::-1], 2)
    else:
        result, type_ = raw.bit_count() if head == "popc" else bits - raw.bit_length(), "u32"
    _write(s, one.operands[0], result & (mask if type_ != "u32" else 0xFFFFFFFF), type_)


def _shift(s: State, one: Instruction) -> None:
    type_ = one.name[-1]
    bits, amount = _bits(type_), min(_read(s, one.operands[2], "u32"), _bits(type_))
    value = _number(s, one.operands[1], type_)
    value = value << amount if one.name[0] == "shl" else value >> amount
    _write(s, one.operands[0], value & ((1 << bits) - 1), type_)


def _setp(s: State, one: Instruction) -> None:
    how, type_ = one.name[1], one.name[-1]
    a, b = (_number(s, operand, type_) for operand in one.operands[1:])
    unordered = bool(a != a or b != b)
    if how in ("num", "nan"):
        result = unordered is (how == "nan")
    elif how.endswith("u"):
        result = unordered or _COMPARE[how[:-1]](a, b)
    else:
        result = not unordered and _COMPARE[how](a, b)
    _write(s, one.operands[0], int(result), "pred")


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": lambda a, b: bool(a == b),
    "ne": lambda a, b: bool(a != b),
    "lt": lambda a, b: bool(a < b),
    "le": lambda a, b: bool(a <= b),
    "gt": lambda a, b: bool(a > b),
    "ge": lambda a, b: bool(a >= b),
}


def _selp(s: State, one: Instruction) -> None:
    type_ = one.name[-1]
    source = one.operands[1 if s.registers[one.operands[3]] else 2]
    _write(s, one.operands[0], _read(s, source, type_), type_)


def _mov(s: State, one: Instruction) -> None:
    to, source = one.operands
    type_ = one.name[-1]
    if source.startswith("{"):
        parts = split(source[1:-1])
        size = _bits(type_) // len(parts)
        total = sum(_read(s, part, f"b{size}") << k * size for k, part in enumerate(parts))
        _write(s, to, total, type_)
    elif to.startswith("{"):
        parts = split(to[1:-1])
        size, value = _bits(type_) // len(parts), _read(s, source, type_)
        for k, part in enumerate(parts):
            _write(s, part, value >> k * size & ((1 << size) - 1), f"b{size}")
    else:
        _write(s, to, _read(s, source, type_), type_)


_ROUND: Final = {"rni": Op.ROUND, "rmi": Op.FLOOR, "rpi": Op.CEIL, "rzi": Op.TRUNC}


def _cvt(s: State, one: Instruction) -> None:
    to, source = one.name[-2:]
    value = _number(s, one.operands[1], source)
    modes = one.name[1:-2]
    if "f" in source and "f" in to:
        if modes and modes[0] in _ROUND:
            dtype = _TYPES[source]
            value = meaning(_ROUND[modes[0]], dtype, (dtype,), 32)(np.array([value]))[0]
        elif _bits(to) < _bits(source) and modes != ["rn"]:
            raise MachineError(f"{one.text!r} does not say how it rounds")
        if to == "bf16" and source == "f64":
            raise MachineError("rounded twice")
        _write(s, one.operands[0], _from_float(to, value), to)
    elif "f" in source:
        _write(s, one.operands[0], _to_integer(value, source, to), to)
    elif "f" in to:
        _write(s, one.operands[0], _integer_to_float(value, to), to)
    else:
        _write(s, one.operands[0], value & ((1 << _bits(to)) - 1), to)


def _to_integer(value: Any, source: str, to: str) -> int:
    """Saturated; what the manual says of NaN."""
    bits, signed = _bits(to), to[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if value != value:
        return 0 if source != "f64" and bits < 64 else 1 << bits - 1
    number = float(value)
    whole = (high if number > 0 else low) if number in (np.inf, -np.inf) else int(number)
    return min(max(whole, low), high) & ((1 << bits) - 1)


def _integer_to_float(value: int, to: str) -> int:
    """Rounded once."""
    if to == "f16":  # integers that f32 rounds are infinite in f16
        return _from_float(to, np.float32(max(min(value, 1 << 20), -(1 << 20))))
    kind = np.uint64 if value >= 1 << 63 else np.int64
    return _from_float(to, _TYPES[to].numpy.type(kind(value)))


def _logic(function: Callable[[int, int], int]) -> Callable[[State, Instruction], None]:
    def run(s: State, one: Instruction) -> None:
        type_ = one.name[-1]
        a, b = (_read(s, operand, type_) for operand in one.operands[1:])
        _write(s, one.operands[0], function(a, b), type_)

    return run


# Memory.


def _place(s: State, operand: str, space: str, size: int) -> tuple[bytearray | memoryview, int]:
    found = re.match(r"\[(%\w+|\w+)(?:\+(-?\d+))?\]$", operand)
    if not found:
        raise MachineError(f"what address is {operand}?")
    kind = "b32" if space == "shared" else "b64"
    address = _read(s, found[1], kind) + int(found[2] or 0)
    address &= (1 << _bits(kind)) - 1
    if address % size:
        raise MachineError(f"{operand} is not aligned to {size}")
    buffers = {"shared": s.shared, "local": s.local}.get(space, s.buffers)
    return buffers.find(address, size)


def _parts(operand: str) -> list[str]:
    return split(operand[1:-1]) if operand.startswith("{") else [operand]


def _space(one: Instruction) -> str:
    return next(part for part in one.name if part in _SPACES)


_SPACES: Final = {"global", "shared", "local", "const", "param"}


def _ld(s: State, one: Instruction) -> None:
    type_, registers = one.name[-1], _parts(one.operands[0])
    size, space = _bits(type_) // 8, _space(one)
    if space == "param":
        found = re.match(r"\[params\+(\d+)\]$", one.operands[1])
        assert found
        data, at = memoryview(s.params), int(found[1])
    else:
        piece, at = _place(s, one.operands[1], space, size * len(registers))
        data = memoryview(piece)
    for k, register in enumerate(registers):
        raw = int.from_bytes(data[at + k * size : at + (k + 1) * size], "little")
        _write(s, register, raw, type_)


def _st(s: State, one: Instruction) -> None:
    type_, sources = one.name[-1], _parts(one.operands[1])
    size = _bits(type_) // 8
    piece, at = _place(s, one.operands[0], _space(one), size * len(sources))
    for k, source in enumerate(sources):
        raw = _read(s, source, type_)
        piece[at + k * size : at + (k + 1) * size] = raw.to_bytes(size, "little")


def _atom(s: State, one: Instruction) -> None:
    operands = list(one.operands)
    to = operands.pop(0) if one.name[0] == "atom" else "_"
    type_ = one.name[-1]
    operation = next(part for part in one.name if part in _ATOMICS)
    size = _bits(type_) // 8
    piece, at = _place(s, operands[0], _space(one), size)
    old = int.from_bytes(piece[at : at + size], "little")
    given = [_read(s, operand, type_) for operand in operands[1:]]
    new = _ATOMICS[operation](type_, old, given) & ((1 << 8 * size) - 1)
    piece[at : at + size] = new.to_bytes(size, "little")
    if to != "_":
        _write(s, to, old, type_)


def _atomic_add(type_: str, old: int, given: list[int]) -> int:
    if "f" not in type_:
        return old + given[0]
    return _from_float(type_, _to_float(type_, old) + _to_float(type_, given[0]))


def _atomic_pick(pick: Callable[..., int]) -> Callable[[str, int, list[int]], int]:
    def run(type_: str, old: int, given: list[int]) -> int:
        if type_[0] == "u":
            return pick(old, given[0])
        bits = _bits(type_)
        return pick(_signed(old, bits), _signed(given[0], bits))

    return run


_ATOMICS: Final[dict[str, Callable[[str, int, list[int]], int]]] = {
    "add": _atomic_add,
    "min": _atomic_pick(min),
    "max": _atomic_pick(max),
    "and": lambda type_, old, given: old & given[0],
    "or": lambda type_, old, given: old | given[0],
    "xor": lambda type_, old, given: old ^ given[0],
    "exch": lambda type_, old, given: given[0],
    "cas": lambda type_, old, given: given[1] if old == given[0] else old,
}


# What waits for others.


def _bar(s: State, one: Instruction) -> Thread:
    if one.name[1] == "warp":
        yield "warp", (one.text, None)
    else:
        yield "bar", None


def _shfl(s: State, one: Instruction) -> Thread:
    to, source, by, clamp, _ = one.operands
    to, _, flag = to.partition("|")
    values = yield "warp", (one.text, _read(s, source, "b32"))
    distance, last = _read(s, by, "b32") & 31, _read(s, clamp, "b32") & 31
    mode = one.name[2]
    lane = {
        "up": s.lane - distance,
        "down": s.lane + distance,
        "bfly": s.lane ^ distance,
        "idx": distance,
    }[mode]
    inside = lane >= last if mode == "up" else lane <= last
    lane = lane if inside else s.lane
    _write(s, to, values.get(lane, 0xDEADBEEF), "b32")
    if flag:
        _write(s, flag, int(inside), "pred")


def _vote(s: State, one: Instruction) -> Thread:
    to, source, mask = one.operands
    values = yield "warp", (one.text, _read(s, source, "pred"))
    _named(s, mask, values)
    if one.name[2] == "ballot":
        _write(s, to, sum(value << lane for lane, value in values.items()), "b32")
    else:
        whole = all if one.name[2] == "all" else any
        _write(s, to, int(whole(values.values())), "pred")


def _redux(s: State, one: Instruction) -> Thread:
    to, source, mask = one.operands
    type_ = one.name[-1]
    values = yield "warp", (one.text, _number(s, source, type_))
    _named(s, mask, values)
    total: int | None = None
    for value in values.values():
        total = value if total is None else _REDUX[one.name[2]](total, value)
    assert total is not None
    _write(s, to, total & 0xFFFFFFFF, type_)


_REDUX: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def _named(s: State, mask: str, values: dict[int, Any]) -> None:
    """A mask names exactly the lanes that are there."""
    named = _read(s, mask, "b32")
    if named != sum(1 << lane for lane in values):
        raise MachineError(f"the mask {named:#x} does not name the lanes {sorted(values)}")


WAITS: Final[dict[str, Callable[[State, Instruction], Thread]]] = {
    "bar": _bar,
    "shfl": _shfl,
    "vote": _vote,
    "redux": _redux,
}


def _approximate(s: State, one: Instruction, exact: Callable[[Any], Any]) -> None:
    """Rounded away from 0 in f32, and in f64 without the lower half: the manual allows that.

    It allows an ulp less as well, from which 1 / x of the number below 2 would not come out right;
    but the assembler takes the same steps for ``rcp.rn``.
    """
    type_ = one.name[-1]
    with np.errstate(all="ignore"):
        wanted = exact(np.float64(_number(s, one.operands[1], type_)))
        bits = _from_float(type_, wanted)
        if type_ == "f64":
            bits &= ~0xFFFFFFFF
        elif abs(_to_float(type_, bits)) < abs(wanted):
            bits += 1
    _write(s, one.operands[0], bits, type_)


def _rcp(s: State, one: Instruction) -> None:
    if "approx" in one.name:
        _approximate(s, one, lambda x: 1 / x)
        return
    one_ = {"f32": "0f3F800000", "f64": "0d3FF0000000000000"}[one.name[-1]]
    operands = [one.operands[0], one_, one.operands[1]]
    _float_op(s, Instruction(one.guard, one.name, operands, one.text), Op.DIV)


HANDLERS: Final[dict[str, Callable[[State, Instruction], None]]] = {
    "rcp": _rcp,
    "rsqrt": lambda s, one: _approximate(s, one, lambda x: 1 / np.sqrt(x)),
    "add": _arithmetic(Op.ADD, lambda a, b: a + b),
    "sub": _arithmetic(Op.SUB, lambda a, b: a - b),
    "mul": _mul,
    "mad": _mad,
    "div": _div,
    "rem": _integer_binary(_remainder),
    "fma": lambda s, one: _float_op(s, one, Op.FMA),
    "sqrt": lambda s, one: _float_op(s, one, Op.SQRT),
    "min": _extreme(Op.MIN, min),
    "max": _extreme(Op.MAX, max),
    "and": _logic(lambda a, b: a & b),
    "or": _logic(lambda a, b: a | b),
    "xor": _logic(lambda a, b: a ^ b),
    "not": _unary,
    "neg": _unary,
    "abs": _unary,
    "brev": _unary,
    "popc": _unary,
    "clz": _unary,
    "shl": _shift,
    "shr": _shift,
    "setp": _setp,
    "selp": _selp,
    "mov": _mov,
    "cvt": _cvt,
    "ld": _ld,
    "st": _st,
    "atom": _atom,
    "red": _atom,
}
