"""Signatures as text, for compiling without arrays: ``"f32[:], f32[:, :], i32"``.

One item per parameter, separated by commas:

* ``f32``, ``u8``, ``vec3``: a run-time number or vector;
* ``f32[:]``, ``f32[:, :]``: an array; each ``:`` is an axis. A name in its place (``f32[n]``,
  ``f32[h, w]``) makes arrays with equal names equal in shape. ``::`` on the last axis is one whose
  elements are not next to each other;
* ``None``, ``True``, ``3``, ``0.5``, ``'text'``: a constant (a ``kj.Const`` parameter).

Arrays are taken to be aligned to 16 bytes, as NumPy's are, and to need no 64-bit indices.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from khaljit.annotations import ArrayOf
from khaljit.arguments import Parameters, Signature, array_entry, const_entry, scalar_entry
from khaljit.tracer.dtypes import ALL, DType
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VECTORS, VectorType

__all__ = ["parse_annotation", "parse_signature", "split_signature"]

_TYPES: Final[dict[str, DType | VectorType]] = {
    **{dtype.name: dtype for dtype in ALL},
    **{vector.name: vector for vector in VECTORS},
}
_ARRAY: Final = re.compile(r"(\w+)\s*\[(.*)\]\Z", re.DOTALL)


def parse_signature(text: str, parameters: Parameters) -> Signature:
    """The launch signature that a text stands for; ArgumentValueError when it is malformed."""
    items = list(split_signature(text))
    if len(items) != len(parameters.names):
        raise ArgumentValueError(
            f"the signature {text!r} has {len(items)} items, and kernel {parameters.kernel} has "
            f"{len(parameters.names)} parameters",
            mend=f"give one item for each of {', '.join(parameters.names)}",
        )
    entries: list[object] = []
    shapes: list[object] = []
    for item in items:
        match = _ARRAY.match(item)
        if match:
            entry, shape = _array(match[1], match[2], item)
            shapes.append(shape)
        else:
            entry = _single(item)
        entries.append(entry)
    first = tuple(shapes.index(shape) for shape in shapes)
    return Signature(tuple(entries), 32, first, tuple(range(len(shapes))))


def split_signature(text: str) -> Iterator[str]:
    """Items between commas that stand outside brackets and quotes."""
    depth, start, quote = 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    rest = text[start:].strip()
    if rest:
        yield rest


def parse_annotation(item: str) -> ArrayOf | DType | VectorType:
    """What an item says of the argument that it stands for; of an array type and axes."""
    match = _ARRAY.match(item)
    if match is None:
        return _type(item, item)
    _array(match[1], match[2], item)  # the checks
    axes = match[2].count(",") + 1 if match[2].strip() else 0
    return ArrayOf(_type(match[1], item), axes)


def _type(name: str, item: str) -> DType | VectorType:
    found = _TYPES.get(name)
    if found is None:
        raise ArgumentValueError(
            f"{name!r} in {item!r} is no type", mend=f"types are {', '.join(_TYPES)}"
        )
    return found


def _array(name: str, axes: str, item: str) -> tuple[object, object]:
    """The entry of an array, and what tells its shape from others'."""
    kind = _type(name, item)
    parts: Sequence[str] = [part.strip() for part in axes.split(",")] if axes.strip() else []
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if not (part == ":" or part.isidentifier() or (last and part == "::")):
            raise ArgumentValueError(
                f"{part!r} in {item!r} is no axis",
                mend="an axis is `:`, a name that equal shapes share, or a last `::` for a stride",
            )
    named = bool(parts) and all(part.isidentifier() for part in parts)
    shape: object = tuple(parts) if named else object()
    return array_entry(kind, len(parts), "::" not in parts, True), shape


def _single(item: str) -> object:
    if item in _TYPES:
        return scalar_entry(_TYPES[item])
    try:
        value: Any = ast.literal_eval(item)
    except (ValueError, SyntaxError):
        raise ArgumentValueError(
            f"{item!r} is neither a type nor a constant",
            mend="write f32, f32[:], vec3[:], None, 3 or 'text'",
        ) from None
    return const_entry(value)
