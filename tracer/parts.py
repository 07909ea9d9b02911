"""Parts of values and of memory: ``a[i].vel.x`` read, stored to, and changed in a name's value.

A path is a root and steps: each is an attribute or a key, told apart by the letters of a form
(``a[i].vel.x`` is the root ``a`` and the steps i, "vel", "x" of the form ``kaa``). Where it goes
through an array it is an access to memory, and only the scalars that it names are touched.
Elsewhere it is about a value, and assigning makes a new one for the root's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from khaljit.tracer import arithmetic
from khaljit.tracer.arithmetic import compare
from khaljit.tracer.coerce import replaced, to_scalar
from khaljit.tracer.dtypes import FixedArray
from khaljit.tracer.elements import is_struct, name_of, struct_layout, tail
from khaljit.tracer.hostvectors import HostVector, is_vector
from khaljit.tracer.instances import is_instance
from khaljit.tracer.memory import Array
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, describe, fail, is_proxy, live, swizzle
from khaljit.tracer.recorder import Recorder, current
from khaljit.tracer.state import flatten, unflatten
from khaljit.tracer.values import converted, with_field
from khaljit.tracer.vectors import VectorType

__all__ = ["Step", "assign", "choose_item", "load", "select", "steps_of"]

# Whether a step is an attribute, and what it says.
Step = tuple[bool, Any]
# Assigns to a part of an object of the host: owner, steps, value.
Host = Callable[[Any, list[Step], Any], Any]


def steps_of(form: str, parts: tuple[Any, ...]) -> list[Step]:
    """The steps of a path, from its form and what they say."""
    return [(letter == "a", part) for letter, part in zip(form, parts, strict=True)]


# Memory.


def _follow(array: Array, steps: list[Step]) -> tuple[Array, tuple[Any, ...], list[Step]]:
    """The view and indices that a path through an array leads to, and the steps behind it."""
    view, (is_attribute, key) = array, steps[0]
    assert not is_attribute
    keys = key if isinstance(key, tuple) else tuple(key) if isinstance(key, Vector) else (key,)
    for place, (is_attribute, part) in enumerate(steps[1:], 1):
        if is_attribute:
            inner = view._component(part)
        elif isinstance(view._kind, FixedArray):
            inner, keys = view._opened(), (*keys, part)
        else:
            inner = _numbered(view, part)
        if inner is None:
            return view, keys, steps[place:]
        view = inner
    return view, keys, []


def _numbered(view: Array, key: Any) -> Array | None:
    """A component of vectors, or a column of matrices, by a key that is known."""
    kind = view._kind
    if isinstance(kind, VectorType):
        names: Sequence[str] = "xyzw"[: kind.count]
    elif is_struct(kind) and len(tail(kind)) > 1:
        names = [field.name for field in struct_layout(kind).fields]
    else:
        return None
    return view._component(names[key]) if type(key) is int and 0 <= key < len(names) else None


def load(array: Array, steps: list[Step], rest: Callable[[Any, list[Step]], Any]) -> Any:
    """The value of a path; ``rest`` goes on from a value."""
    view, keys, behind = _follow(array, steps)
    return rest(view[keys], behind)


def _store(array: Array, steps: list[Step], value: Any, host: Host) -> None:
    """Store to what a path leads to."""
    view, keys, behind = _follow(array, steps)
    if not behind:
        view[keys] = value
        return
    kind, (is_attribute, part) = view._kind, behind[0]
    if not is_attribute:  # a column of a matrix, say: the element is read, changed and stored
        view[keys] = assign(view[keys], behind, value, host)
        return
    places = swizzle(part, kind.count) if isinstance(kind, VectorType) else None
    if places is None or len(behind) > 1:
        fail(
            f"{name_of(kind)} has no attribute {part!r} to assign",
            "assign to a field, or to components of a vector",
        )
    _store_swizzle(view, keys, part, places, value)


def _store_swizzle(
    view: Array, keys: tuple[Any, ...], name: str, places: tuple[int, ...], value: Any
) -> None:
    """Store to several components of a vector in memory."""
    if len(set(places)) != len(places):
        fail("a swizzle that is assigned to names a component twice")
    items = value.items if is_vector(value) else ()
    if len(items) != len(places):
        fail(f"{describe(value)} is stored to {len(places)} components: .{name}")
    for place, item in zip(places, items, strict=True):
        component = view._component("xyzw"[place])
        assert component is not None
        component[keys] = item


# Values.


def assign(owner: Any, steps: list[Step], value: Any, host: Host) -> Any:
    """Assign to a part of what a name holds; gives what the name holds then.

    ``host`` does it for objects of the host.
    """
    if not steps:
        return value
    (is_attribute, part), behind = steps[0], steps[1:]
    if isinstance(owner, HostVector):  # a constant: the name gets a vector of the kernel
        recorder = live()
        items = (to_scalar(recorder, item, owner.dtype) for item in owner.items)
        owner = Vector(recorder, tuple(items))
    if isinstance(owner, Array):
        if not is_attribute:
            _store(owner, steps, value, host)
        elif behind:
            assign(getattr(owner, part), behind, value, host)
        else:
            fail(
                f"{describe(owner)} has no attribute {part!r} to assign",
                "assign to its elements, one by one",
            )
        return owner
    if isinstance(owner, Vector):
        return _assign_component(owner, is_attribute, part, behind, value)
    if is_instance(owner):
        return _assign_field(owner, is_attribute, part, behind, value, host)
    if isinstance(owner, Scalar):
        what = f"has no attribute {part!r}" if is_attribute else "cannot be indexed"
        fail(f"{describe(owner)} {what}", "only arrays, vectors and structs have parts")
    return host(owner, steps, value)


def _assign_component(
    owner: Vector, is_attribute: bool, part: Any, behind: list[Step], value: Any
) -> Vector:
    if behind:
        fail(f"{owner.dtype.name} has no parts to assign to")
    if is_attribute:
        return replaced(owner, owner.places(part), value)
    if not isinstance(part, Scalar):
        return replaced(owner, (owner.place(part),), value)
    new = [
        arithmetic.select(compare(Op.EQ, part, k), value, one) for k, one in enumerate(owner.items)
    ]
    return replaced(owner, tuple(range(len(new))), Vector(live(owner), tuple(new)))


def _assign_field(
    owner: Any,
    is_attribute: bool,
    part: Any,
    behind: list[Step],
    value: Any,
    host: Host,
) -> Any:
    recorder = live(value) if is_proxy(value) else live()
    recorder.mark()
    if not is_attribute:
        setter = getattr(type(owner), "__kj_with_item__", None)
        if setter is None:
            fail(f"{describe(owner)} cannot be indexed", "assign to a field of it")
        old = owner[part] if behind else None
        return setter(owner, part, assign(old, behind, value, host))
    field = struct_layout(type(owner)).field(part)
    if behind and field is not None:
        held = vars(owner)[part]  # not through the field, which would be to read it
        if isinstance(field.kind, FixedArray):
            value = _assign_item(recorder, field.kind, tuple(held), behind, value, host)
        else:
            value = assign(held, behind, value, host)
    return with_field(recorder, owner, part, value)


def _assign_item(
    recorder: Recorder,
    kind: FixedArray,
    items: tuple[Any, ...],
    steps: list[Step],
    value: Any,
    host: Host,
) -> tuple[Any, ...]:
    """The items of a fixed array with another value at a key or below it."""
    (is_attribute, key), behind = steps[0], steps[1:]
    if is_attribute:
        fail(f"a fixed array has no attribute {key!r}")

    def changed(item: Any) -> Any:
        if behind and isinstance(kind.item, FixedArray):
            return _assign_item(recorder, kind.item, tuple(item), behind, value, host)
        return converted(recorder, kind.item, assign(item, behind, value, host), "the item")

    if isinstance(key, Scalar):
        return tuple(
            choose(recorder, compare(Op.EQ, key, place), changed(item), item)
            for place, item in enumerate(items)
        )
    _check_key(key, len(items))
    return tuple(changed(item) if place == key else item for place, item in enumerate(items))


def _check_key(key: Any, count: int) -> None:
    if type(key) is not int or not 0 <= key < count:
        fail(
            f"index {key!r} is out of range for a fixed array of {count}",
            f"indices are 0 to {count - 1}",
        )


def choose(recorder: Recorder, condition: Any, yes: Any, no: Any) -> Any:
    """One of two values of one shape, scalar by scalar."""
    (left, shape), (right, other) = flatten(yes), flatten(no)
    if not shape.fits(other):
        fail(f"{describe(yes)} takes the place of {describe(no)}", "give it the same type")
    chosen = [arithmetic.select(condition, a, b) for a, b in zip(left, right, strict=True)]
    return unflatten(shape, chosen, recorder)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; both are computed.

    Of numbers, vectors (each component by itself where the condition is a vector) and structs.
    """
    if is_instance(yes) or is_instance(no):
        return choose(current("kj.select"), condition, yes, no)
    return arithmetic.select(condition, yes, no)


def choose_item(items: tuple[Any, ...], key: Scalar) -> Any:
    """An item of a tuple by a run-time index; out of range it is the last."""
    recorder = live(key)
    recorder.mark()
    picked = items[-1]
    for place in range(len(items) - 2, -1, -1):
        picked = choose(recorder, compare(Op.EQ, key, place), items[place], picked)
    return picked
