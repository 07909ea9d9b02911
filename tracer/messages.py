"""Texts with run-time values in them: what kernels print, and what failed assertions say.

While a kernel is recorded a text is a *template* as `str.format` takes it, with one field per
operand. An f-string asks each of its values for a text at once, so a run-time value gives a
*mark*, which stands for it until the text is printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from khaljit.tracer.dtypes import DType, bf16, index
from khaljit.tracer.proxy import Number, Scalar, Vector, fail
from khaljit.tracer.recorder import current

__all__ = ["MAX_SHOWN", "Template", "filled", "has_values", "joined", "template_of"]

MAX_SHOWN: Final = 32  # values in the message of an assertion
_MARK: Final = re.compile("\ue000([0-9]+)\ue001")

Template = tuple[str, tuple[Scalar, ...]]


def joined(parts: Sequence[Any], sep: str, end: str) -> Template:
    """The template of parts one behind the other."""
    texts: list[str] = []
    operands: list[Scalar] = []
    for part in parts:
        text, own = template_of(part)
        texts.append(text)
        operands += own
    return _escaped(sep).join(texts) + _escaped(end), tuple(operands)


def filled(text: str, parts: Sequence[Any], end: str) -> Template:
    """The template of a format string whose fields are filled with parts, in order or by number."""
    texts: list[str] = []
    operands: list[Scalar] = []
    count = 0
    import string  # for those who use one

    for literal, name, spec, conversion in string.Formatter().parse(text):
        texts.append(_escaped(literal))
        if name is None:
            continue
        if conversion or (name and not name.isdecimal()):
            fail(
                f"the field {{{name}{f'!{conversion}' if conversion else ''}}} of a format string "
                "is neither empty nor a number",
                "write {} or {0}, perhaps with a format behind a colon: {:8.3f}",
            )
        place = int(name) if name else count
        count += 1
        if place >= len(parts):
            fail(
                f"the format string {text!r} has more fields than the {len(parts)} values behind it"
            )
        own_text, own = template_of(parts[place], spec or "")
        texts.append(own_text)
        operands += own
    if count < len(parts):
        fail(f"the format string {text!r} has {count} fields for {len(parts)} values")
    return "".join(texts) + _escaped(end), tuple(operands)


def has_values(parts: Sequence[Any]) -> bool:
    """Whether some part is a run-time value, or a text made of one."""
    return any(
        isinstance(part, Number)
        or hasattr(type(part), "__kj_layout__")
        or (isinstance(part, str) and _MARK.search(part))
        for part in parts
    )


def template_of(part: Any, spec: str = "") -> Template:
    """The template of one thing: a run-time value, or whatever Python can format."""
    if isinstance(part, Scalar):
        return _field(part, spec), (part,)
    if isinstance(part, Vector):
        return "(" + ", ".join(_field(item, spec) for item in part.items) + ")", part.items
    texts: list[str] = []
    operands: list[Scalar] = []
    start = 0
    text = format(part, spec)
    for mark in _MARK.finditer(text):
        formatted = current("a text with run-time values").formatted
        own_text, own = template_of(*formatted[int(mark[1])])
        texts += [_escaped(text[start : mark.start()]), own_text]
        operands += own
        start = mark.end()
    texts.append(_escaped(text[start:]))
    return "".join(texts), tuple(operands)


def _field(value: Scalar, spec: str) -> str:
    """The field of a run-time value, whose format must fit its type."""
    try:
        format(_example(value.dtype), spec)
    except ValueError as error:
        fail(f"{value.dtype.name} cannot be formatted with {spec!r}: {error}")
    return f"{{:{spec}}}" if spec else "{}"


def _example(dtype: DType) -> Any:
    if dtype is index:
        return 0
    return 0.0 if dtype is bf16 else dtype.numpy.type(0).item()


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
