"""Signatures as text: ``"f32[:], f32[:, :], i32"``.

One grammar serves `Kernel.compile`, the command line, ``@kj.jit(signatures=[...])``, manifests and
hand-written code. One item per parameter, separated by commas:

* ``f32``, ``u8``, ``vec3``, ``mat4``, ``quat``, ``vec(3, i8)``: a run-time number, vector or
  matrix. ``package.module:Body``: a struct; the name alone will do where the parameter is annotated
  with it, and anywhere its fields: ``{mass: f32, pos: vec3, bins: u8[16]}``.
* ``f32[:]``, ``f32[:, :]``, ``f32[]``: an array; each ``:`` is an axis. A name in its place
  (``f32[n]``, ``f32[h, w]``) makes arrays with equal names equal in shape. ``::`` or ``n::`` on the
  last axis says that its elements are not next to each other; ``unaligned`` after the bracket, that
  the memory is not aligned to 16 bytes, as NumPy's is; ``as v``, that all arrays with that name are
  the very same view: ``f32[n] as v, f32[n] as v``.
* ``(f32[:], i32)``: a tuple. ``package.module:Body(f32[:], i32)``: a dataclass or named tuple; the
  name may be left out where the parameter is annotated with it.
* ``None``, ``True``, ``3``, ``0.5``, ``'text'``: a constant (a ``kj.Const`` parameter). With ``=``
  before it, also ``=inf``, ``=i64(3)``, a dtype ``=f32``, a tuple ``=(1, 'two')``, and a function
  or member of an enum ``=package.module:name``.

``; index 64`` at the end says that indices need 64 bits, as arrays past 2^30 elements do.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Final, final

from khaljit import modules
from khaljit.annotations import Annotation, ArrayOf, ConstOf, GroupOf
from khaljit.arguments import Parameters
from khaljit.entries import Group, Signature, array_entry, const_entry, fields_of, scalar_entry
from khaljit.tracer.dtypes import ALL, DType, fixed_array
from khaljit.tracer.elements import ElementType, is_kind
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.intrinsics import matrices, poses, quaternions, transforms
from khaljit.tracer.records import dataclass
from khaljit.tracer.structs import is_field_name, unnamed_struct
from khaljit.tracer.vectors import VECTORS, VectorType, vec

__all__ = ["TYPES", "parse_annotation", "parse_signature", "split_signature"]

TYPES: Final[dict[str, ElementType]] = {
    **{dtype.name: dtype for dtype in ALL},
    **{vector.name: vector for vector in VECTORS},
    **{
        name: getattr(module, name)
        for module in (matrices, transforms, quaternions, poses)
        for name in module.__all__
        if is_kind(getattr(module, name))
    },
}
_PLACE: Final = r"[^\s=,'\"()\[\]{}][^,'\"()\[\]{}]*:[\w.]+"  # as `modules.find` takes it
_MADE: Final = r"(?:vec|mat)\([\w\s,]+\)"
_ARRAY: Final = re.compile(
    rf"({_PLACE}|{_MADE}|\w+|\{{.*\}})\s*\[(.*)\]"
    r"(?:\s+(unaligned))?(?:\s+as\s+([^\W\d]\w*))?\Z",
    re.DOTALL,
)
_GROUP: Final = re.compile(rf"({_PLACE})?\s*\((.*)\)\Z", re.DOTALL)
_PATH: Final = re.compile(rf"{_PLACE}\Z")
_MADE_TYPE: Final = re.compile(r"(vec|mat)\(([\d\s,]+),\s*(\w+)\s*\)\Z")
_NUMBER: Final = re.compile(r"(\w+)\((.*)\)\Z", re.DOTALL)
_TAIL: Final = re.compile(r";([^\])]*)\Z")
_SPECIAL: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@final
@dataclass(slots=True)
class _Arrays:
    """What was read of the arrays so far: of each its entry, and what tells its shape and view from
    others'."""

    entries: list[object] = field(default_factory=list)
    shapes: list[object] = field(default_factory=list)
    views: list[object] = field(default_factory=list)


def parse_signature(text: str, parameters: Parameters) -> Signature:
    """The launch signature that a text stands for; ArgumentValueError when it is malformed."""
    tail = _TAIL.search(_without_quotes(text))
    items = list(split_signature(text[: tail.start()] if tail else text))
    if len(items) != len(parameters.names):
        raise ArgumentValueError(
            f"the signature {text!r} has {len(items)} items, and kernel {parameters.kernel} has "
            f"{len(parameters.names)} parameters",
            mend=f"give one item for each of {', '.join(parameters.names)}",
        )
    arrays = _Arrays()
    entries = tuple(
        _entry(item, annotation, arrays)
        for item, annotation in zip(items, parameters.annotations, strict=True)
    )
    shapes = tuple(arrays.shapes.index(shape) for shape in arrays.shapes)
    views = tuple(arrays.views.index(view) for view in arrays.views)
    for number, view in enumerate(views):
        if (shapes[number], arrays.entries[number]) != (shapes[view], arrays.entries[view]):
            raise ArgumentValueError(
                f"the signature {text!r} calls arrays of other types or shapes the same view",
                mend="give them equal types and names for axes: f32[n] as v, f32[n] as v",
            )
    bits = _index_bits(tail[1].split(), text) if tail else 32
    return Signature(entries, bits, shapes, views)


def _index_bits(words: Sequence[str], text: str) -> int:
    if len(words) != 2 or words[0] != "index" or words[1] not in ("32", "64"):
        raise ArgumentValueError(
            f"what follows `;` in the signature {text!r} means nothing", mend="write `; index 64`"
        )
    return int(words[1])


def split_signature(text: str) -> Iterator[str]:
    """Items between commas that stand outside brackets and quotes."""
    depth, start = 0, 0
    for place, letter in enumerate(_without_quotes(text)):
        if letter in "[({":
            depth += 1
        elif letter in "])}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    rest = text[start:].strip()
    if rest:
        yield rest


def _without_quotes(text: str) -> str:
    """The text with what stands in quotes blanked out."""
    return re.sub(
        r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", lambda found: "_" * len(found[0]), text
    )


def parse_annotation(item: str) -> ArrayOf | DType | VectorType:
    """What an item of hand-written code says of its argument; of an array type and axes."""
    match = _ARRAY.match(item)
    if match is None:
        number = _type(item, item)
        if not isinstance(number, DType | VectorType):
            raise ArgumentValueError(
                f"{item!r} is a struct, and hand-written code takes numbers and vectors",
                mend="pass its fields, or an array of it",
            )
        return number
    _array(match, None, _Arrays())  # the checks
    axes = match[2].count(",") + 1 if match[2].strip() else 0
    return ArrayOf(_type(match[1], item), axes)


def _type(name: str, item: str, annotation: Annotation | None = None) -> ElementType:
    """The type of a name; of a struct's path, of its name as the annotation has it, or of its
    fields in braces."""
    found: object = TYPES.get(name)
    made = _MADE_TYPE.match(name)
    annotated = annotation.element if isinstance(annotation, ArrayOf) else annotation
    if isinstance(annotated, type) and annotated.__name__ == name:
        found = annotated
    elif name.startswith("{") and name.endswith("}"):
        fields = split_signature(name[1:-1])
        found = unnamed_struct(tuple(_field(one, item) for one in fields))
    elif made is not None:
        found = _made(made, item)
    elif ":" in name:
        found = modules.find(name)
    if not is_kind(found):
        raise ArgumentValueError(
            f"{name!r} in {item!r} is no type",
            mend=f"types are {', '.join(TYPES)}, and structs: package.module:Body, or their "
            "fields, as {mass: f32, pos: vec3}",
        )
    assert isinstance(found, DType | VectorType | type)
    return found


def _made(match: re.Match[str], item: str) -> ElementType:
    """A vector or matrix type without a name: ``vec(3, i8)``, ``mat(2, 3, f64)``."""
    make: Any = vec if match[1] == "vec" else matrices.mat
    dtype = TYPES.get(match[3])
    try:
        if not isinstance(dtype, DType):
            raise ValueError(f"{match[3]} is no dtype")
        made: ElementType = make(*map(int, match[2].split(",")), dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            f"{match[0]!r} in {item!r} is no type: {error}", mend="write vec(3, i8), mat(2, 3, f64)"
        ) from None
    return made


def _field(text: str, item: str) -> tuple[str, ElementType]:
    """A field of a struct: ``bins: u8[16]``."""
    name, colon, kind = (part.strip() for part in text.partition(":"))
    if not (colon and is_field_name(name)):
        raise ArgumentValueError(
            f"{text!r} in {item!r} is no field", mend="a field is written as mass: f32"
        )
    match = _ARRAY.match(kind)
    if match is None:
        return name, _type(kind, item)
    try:
        shape = tuple(int(extent) for extent in match[2].split(","))
        return name, fixed_array(_type(match[1], item), shape)
    except (TypeError, ValueError):
        raise ArgumentValueError(
            f"{text!r} in {item!r} has no fixed shape", mend="a fixed array is written as u8[16]"
        ) from None


def _entry(item: str, annotation: Annotation | None, arrays: _Arrays) -> object:
    if not isinstance(annotation, ConstOf) and _is_type(item, annotation):
        return scalar_entry(_type(item, item, annotation))
    match = _ARRAY.match(item)
    if match is not None:
        return _array(match, annotation, arrays)
    match = _GROUP.match(item)
    if match is not None and not isinstance(annotation, ConstOf):
        return _group(match, item, annotation, arrays)
    value = _constant(item.removeprefix("=").strip(), item)
    if isinstance(annotation, ConstOf) and isinstance(annotation.kind, DType):
        value = annotation.kind(value)
    return const_entry(value)


def _is_type(item: str, annotation: Annotation | None) -> bool:
    """Whether an item is a type with nothing behind it."""
    if item in TYPES or _MADE_TYPE.match(item) or (item.startswith("{") and item.endswith("}")):
        return True
    named = isinstance(annotation, type) and annotation.__name__ == item
    return named or bool(_PATH.match(item) and is_kind(modules.find(item)))


def _array(match: re.Match[str], annotation: Annotation | None, arrays: _Arrays) -> object:
    """The entry of an array; its shape and view are entered."""
    item, kind = match[0], _type(match[1], match[0], annotation)
    parts = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
    strided = bool(parts) and parts[-1].endswith("::")
    if strided:
        parts[-1] = parts[-1].removesuffix("::").strip() or ":"
    for part in parts:
        if not (part == ":" or part.isidentifier()):
            raise ArgumentValueError(
                f"{part!r} in {item!r} is no axis",
                mend="an axis is `:`, a name that equal shapes share, or a last `::` for a stride",
            )
    named = all(part.isidentifier() for part in parts)
    arrays.shapes.append(tuple(parts) if named else object())
    entry = array_entry(kind, len(parts), not strided, match[3] is None)
    arrays.entries.append(entry)
    arrays.views.append(match[4] or object())
    return entry


def _group(
    match: re.Match[str], item: str, annotation: Annotation | None, arrays: _Arrays
) -> object:
    """The entry of a tuple or dataclass."""
    parts = list(split_signature(match[2]))
    make: Any = tuple
    if match[1]:
        make = modules.find(match[1])
    elif isinstance(annotation, GroupOf):
        make = annotation.make
    names = fields_of(make, len(parts))
    if len(names) != len(parts):
        raise ArgumentValueError(
            f"{item!r} has {len(parts)} parts, and {make!r} does not",
            mend="name a dataclass or named tuple, and give one item for each of its fields",
        )
    kinds: Sequence[Annotation | None] = (None,) * len(parts)
    if isinstance(annotation, GroupOf) and len(annotation.parts) == len(parts):
        kinds = annotation.parts
    entries = (_entry(part, kind, arrays) for part, kind in zip(parts, kinds, strict=True))
    return Group(make, names, tuple(entries))


def _constant(text: str, item: str) -> Any:
    if text in _SPECIAL:
        return _SPECIAL[text]
    if text in TYPES:
        return TYPES[text]
    if text.startswith("(") and text.endswith(")"):
        return tuple(_constant(part, item) for part in split_signature(text[1:-1]))
    number = _NUMBER.match(text)
    try:
        if number is not None and number[1] in TYPES:
            make: Any = TYPES[number[1]]
            return make(_constant(number[2], item))
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if ":" in text:
        return modules.find(text)
    raise ArgumentValueError(
        f"{item!r} is neither a type nor a constant",
        mend="write f32, f32[:], vec3[:], None, 3 or 'text'",
    )
