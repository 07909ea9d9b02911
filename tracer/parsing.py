"""Reads the text form of a trace, whose grammar ``khaljit.tracer.text`` describes.

Values are made as the text says them, types included, and not checked: that is the verifier's
work, whose tests are written as texts of broken traces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import field
from typing import Final, NoReturn, final

from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, bool_, by_name
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Options,
    Region,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import ENDS, NORMAL, Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.text import FLAGS, MEMORY_OPS

__all__ = ["parse"]

# What stands for itself, or left or right of an ``if`` or ``loop``.
_LEAVES: Final = frozenset({Op.CONST, Op.SCALAR, Op.MEMORY, Op.PARAM, Op.RESULT})
_OPS: Final = {op.value: op for op in Op}


def parse(text: str) -> Trace:
    """The trace of a text; ArgumentValueError naming the line where it is malformed."""
    return _Parser(text).trace()


_TOKEN: Final = re.compile(
    r"\s*(?:(%\d+"  # a value
    r"|(?:0x[0-9a-f]+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?):[a-z]\w*"  # a constant
    r"|-?\d+"
    r'|"(?:[^"\\]|\\.)*"'
    r"|[^\W\d][\w.]*"
    r"|<-|[\[\](){},:=?])|$)"
)
_VECTOR: Final = re.compile(r"([a-z]+\d*)x(\d+)\Z")
_MEMORY_NAME: Final = re.compile(r"(shared|local|table)(\d+)\Z")


@dataclass(slots=True)
class _Open:
    """A region being read.

    Attributes:
        node: ``if``, ``loop``, or nothing for the top region.
        args: the operands of the node.
        results: names and types of the node's results.
        params: the carried values.
        then: the arm that came before this one.
    """

    node: Op | None
    args: tuple[Value, ...] = ()
    results: tuple[tuple[str, DType], ...] = ()
    params: tuple[Value, ...] = ()
    then: Region | None = None
    body: list[Value] = field(default_factory=list)
    end: Value | None = None


@final
class _Parser:
    """Reads one text, line by line."""

    def __init__(self, text: str) -> None:
        self._lines: Final = text.split("\n")
        self._number = 0  # of the line being read, from 1
        self._words: list[str] = []  # tokens of the line being read
        self._next = 0
        self._defined: Final[dict[str, Value]] = {}
        self._arrays: Final[list[ArrayParam]] = []
        self._scalars: Final[list[ScalarParam]] = []
        self._open: Final[list[_Open]] = []
        self._body: Region | None = None

    def trace(self) -> Trace:
        name, workgroup, index_bits, options = self._kernel_line()
        while self._line() and self._peek() != "{":
            self._declaration()
        self._expect("{")
        self._open.append(_Open(None))
        while self._body is None:
            if not self._line():
                self._fail("the text ends inside a region")
            self._statement()
            self._finish()
        if self._line():
            self._fail("nothing follows the kernel's region")
        return Trace(
            name,
            tuple(self._arrays),
            tuple(self._scalars),
            workgroup,
            index_bits,
            options,
            self._body,
        )

    # Tokens.

    def _fail(self, message: str) -> NoReturn:
        line = self._lines[self._number - 1].strip() if self._number else ""
        raise ArgumentValueError(f"line {self._number} of a trace's text: {message}: {line!r}")

    def _line(self) -> bool:
        """Go to the next line that is not empty; whether there is one."""
        while self._number < len(self._lines):
            self._number += 1
            if self._lines[self._number - 1].strip():
                self._split(self._lines[self._number - 1])
                return True
        return False

    def _split(self, line: str) -> None:
        self._words = []
        self._next = 0
        position = 0
        while position < len(line):
            match = _TOKEN.match(line, position)
            if match is None:
                column = len(line) - len(line[position:].lstrip()) + 1
                self._fail(f"column {column} is not understood")
            position = match.end()
            if match.group(1) is not None:
                self._words.append(match.group(1))

    def _peek(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _word(self) -> str:
        word = self._peek()
        if not word:
            self._fail("something is missing at the end")
        self._next += 1
        return word

    def _accept(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._next += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._fail(f"{word!r} expected, not {self._peek()!r}")

    def _finish(self) -> None:
        if self._next < len(self._words):
            self._fail(f"{self._peek()!r} is one too many")

    def _integer(self) -> int:
        word = self._word()
        if not re.match(r"-?\d+\Z", word):
            self._fail(f"a number expected, not {word!r}")
        return int(word)

    def _setting(self, name: str) -> int:
        self._expect(name)
        self._expect("=")
        return self._integer()

    def _string(self) -> str:
        word = self._word()
        if not word.startswith('"'):
            self._fail(f"a string expected, not {word!r}")
        try:
            return str(json.loads(word))
        except ValueError:
            self._fail(f"{word} is not a string")

    def _dtype(self) -> DType:
        return self._dtype_named(self._word())

    def _dtype_named(self, name: str) -> DType:
        try:
            return by_name(name)
        except KeyError:
            self._fail(f"there is no type {name!r}")

    def _list(self, read: Callable[[], Value], close: str = "") -> tuple[Value, ...]:
        """Things between commas, up to ``close`` or the end of the line."""
        found: list[Value] = []
        if self._peek() != close:
            found.append(read())
            while self._accept(","):
                found.append(read())
        if close:
            self._expect(close)
        return tuple(found)

    # The head.

    def _kernel_line(self) -> tuple[str, tuple[int, int, int] | None, int, Options]:
        if not self._line():
            self._fail("there is no text")
        self._expect("kernel")
        name = self._string() if self._peek().startswith('"') else self._word()
        workgroup = None
        if self._peek() == "workgroup":
            x = self._setting("workgroup")
            self._expect(",")
            y = self._integer()
            self._expect(",")
            workgroup = (x, y, self._integer())
        index_bits = self._setting("index")
        options = Options(*[self._accept(flag) for flag in FLAGS])
        self._finish()
        return name, workgroup, index_bits, options

    def _declaration(self) -> None:
        kind = self._word()
        if kind == "array":
            self._array()
        elif kind == "scalar":
            token, name = self._called()
            dtype = self._dtype()
            value = Value(Op.SCALAR, dtype, (), len(self._scalars))
            self._scalars.append(ScalarParam(name, dtype))
            self._define(token, value)
        else:
            self._memory(kind)
        self._finish()

    def _called(self) -> tuple[str, str]:
        token = self._word()
        name = self._string() if self._peek().startswith('"') else token
        self._expect(":")
        return token, name

    def _array(self) -> None:
        token, name = self._called()
        element, shape = self._shaped()
        memory = Memory(Space.ARRAY, len(self._arrays), element, shape)
        contiguous = self._accept("contiguous")
        aligned = self._accept("aligned")
        same_shape = self._setting("same_shape")
        same_view = self._setting("same_view")
        self._arrays.append(ArrayParam(name, memory, contiguous, aligned, same_shape, same_view))
        self._define(token, Value(Op.MEMORY, None, (), memory))

    def _memory(self, token: str) -> None:
        match = _MEMORY_NAME.match(token)
        if match is None:
            self._fail(f"{token!r} declares nothing")
        self._expect(":")
        element, shape = self._shaped()
        data = None
        if self._accept("="):
            # Hexadecimal digits are no token: they are what is left of the line.
            digits = self._lines[self._number - 1].partition("=")[2].strip()
            self._next = len(self._words)
            try:
                data = bytes.fromhex(digits)
            except ValueError:
                self._fail("the data of a table is hexadecimal")
        memory = Memory(Space(match.group(1)), int(match.group(2)), element, shape, data)
        self._define(token, Value(Op.MEMORY, None, (), memory))

    def _shaped(self) -> tuple[Element, tuple[int | None, ...]]:
        element = self._element()
        self._expect("[")
        shape: list[int | None] = []
        while not self._accept("]"):
            if shape:
                self._expect(",")
            shape.append(None if self._accept("?") else self._integer())
        return element, tuple(shape)

    def _element(self) -> Element:
        word = self._word()
        if word != "struct":
            match = _VECTOR.match(word)
            if match is None:
                return Element.scalar(self._dtype_named(word))
            return Element.vector(self._dtype_named(match.group(1)), int(match.group(2)))
        self._expect("(")
        size = self._setting("size")
        align = self._setting("align")
        leaves: list[tuple[int, DType]] = []
        while not self._accept(")"):
            offset, _, name = self._word().partition(":")
            if not offset.isdecimal():
                self._fail("a leaf is a byte offset and a type, as 4:f32")
            leaves.append((int(offset), self._dtype_named(name)))
        return Element(size, align, tuple(leaves))

    # The body.

    def _define(self, name: str, value: Value) -> None:
        if name in self._defined:
            self._fail(f"{name} is defined twice")
        self._defined[name] = value

    def _operand(self) -> Value:
        word = self._word()
        value = self._defined.get(word)
        if value is None:
            value = self._defined[word] = self._constant(word)
        return value

    def _constant(self, word: str) -> Value:
        if word in ("true", "false"):
            return Value(Op.CONST, bool_, (), int(word == "true"))
        number, colon, name = word.partition(":")
        if not colon:
            self._fail(f"{word!r} is not defined")
        dtype = self._dtype_named(name)
        if number.startswith("0x"):
            return Value(Op.CONST, dtype, (), int(number, 16))
        try:
            bits = to_bits(dtype, float(number) if dtype.is_float else int(number))
        except ValueError:
            self._fail(f"{word!r} is not a constant")
        return Value(Op.CONST, dtype, (), bits)

    def _statement(self) -> None:
        if self._accept("}"):
            self._close()
            return
        region = self._open[-1]
        if region.end is not None:
            self._fail("nothing follows the end of a region")
        left = self._left()
        op = _OPS.get(self._word())
        if op is None:
            self._fail("there is no such operation")
        if op is Op.IF:
            self._open.append(_Open(op, (self._operand(),), left))
            self._expect("{")
        elif op is Op.LOOP:
            self._loop(left)
        elif op in ENDS:
            region.end = Value(op, None, self._list(self._operand))
        else:
            self._value(op, left, region)

    def _left(self) -> tuple[tuple[str, DType], ...]:
        """Names and types of what a line defines."""
        left: list[tuple[str, DType]] = []
        while self._peek().startswith("%"):
            name = self._word()
            self._expect(":")
            left.append((name, self._dtype()))
            if not self._accept(","):
                self._expect("=")
                break
        return tuple(left)

    def _value(self, op: Op, left: tuple[tuple[str, DType], ...], region: _Open) -> None:
        if len(left) > 1:
            self._fail(f"{op.value} has one value at most")
        if op in MEMORY_OPS:
            args, attr = self._access(op)
        else:
            args, attr = self._plain(op)
        value = Value(op, left[0][1] if left else None, args, attr)
        if left:
            self._define(left[0][0], value)
        if value.is_effect:
            region.body.append(value)

    def _plain(self, op: Op) -> tuple[tuple[Value, ...], object]:
        attr: object = None
        if op in _LEAVES:
            self._fail(f"{op.value} has no line of its own")
        if op is Op.ID:
            return (), (self._word(), self._integer())
        if op is Op.SHAPE or op is Op.STRIDE:
            memory = self._operand()
            return (memory,), self._integer()
        if op is Op.BARRIER or op is Op.SUBGROUP:
            attr = self._word()
        elif op in (Op.DIV, Op.SQRT) and self._accept(NORMAL):
            attr = NORMAL
        elif op is Op.PRINT or op is Op.ASSERT:
            attr = Note(self._string())
        return self._list(self._operand), attr

    def _access(self, op: Op) -> tuple[tuple[Value, ...], object]:
        kind, order = (self._word(), self._word()) if op is Op.ATOMIC else ("", "")
        args = [self._operand()]
        flat = self._accept("at")
        if flat:
            args.append(self._operand())
        else:
            self._expect("[")
            args.extend(self._list(self._operand, "]"))
        guarded = self._accept("if")
        if guarded:
            args.append(self._operand())
        leaf = self._setting("leaf") if self._peek() == "leaf" else 0
        inner = self._inner() if self._peek() == "inner" else ()
        checked = not self._accept("unchecked")
        uniform = self._accept("uniform")
        if self._accept("<-"):
            args.append(self._operand())
            while self._accept(","):
                args.append(self._operand())
        if op is Op.ATOMIC:
            return tuple(args), AtomicAccess(
                leaf, checked, flat, guarded, inner=inner, kind=kind, order=order
            )
        return tuple(args), Access(leaf, checked, flat, guarded, uniform=uniform, inner=inner)

    def _inner(self) -> tuple[tuple[int, int], ...]:
        """Extent and step of each fixed array inside an element."""
        self._expect("inner")
        self._expect("=")
        self._expect("[")
        axes: list[tuple[int, int]] = []
        while not axes or self._accept(","):
            extent = self._integer()
            self._expect(",")
            axes.append((extent, self._integer()))
        self._expect("]")
        return tuple(axes)

    def _loop(self, results: tuple[tuple[str, DType], ...]) -> None:
        params: list[Value] = []
        if self._accept("("):
            names: list[str] = []

            def carried() -> Value:
                names.append(self._word())
                self._expect(":")
                params.append(Value(Op.PARAM, self._dtype(), (), len(params)))
                self._expect("=")
                return self._operand()

            initial = self._list(carried, ")")
            for name, param in zip(names, params, strict=True):
                self._define(name, param)
        else:
            initial = ()
        self._open.append(_Open(Op.LOOP, initial, results, tuple(params)))
        self._expect("{")

    def _close(self) -> None:
        """The end of a region: of the kernel, a loop, or an arm."""
        closed = self._open.pop()
        if closed.end is None:
            self._fail("a region ends in yield, break, continue or return")
        region = Region(closed.params, tuple(closed.body), closed.end)
        if closed.node is None:
            self._body = region
            return
        if closed.node is Op.IF and closed.then is None and self._accept("else"):
            self._open.append(_Open(Op.IF, closed.args, closed.results, (), region))
            self._expect("{")
            return
        if closed.node is Op.LOOP:
            inner: tuple[Region, ...] = (region,)
        elif closed.then is None:
            inner = (region, Region((), (), Value(Op.YIELD, None)))
        else:
            inner = (closed.then, region)
        types = tuple(dtype for _, dtype in closed.results)
        node = Value(closed.node, None, closed.args, types, inner)
        self._open[-1].body.append(node)
        for position, (name, dtype) in enumerate(closed.results):
            self._define(name, Value(Op.RESULT, dtype, (node,), position))
