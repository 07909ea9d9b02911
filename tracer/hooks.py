"""The names that rewritten source calls: statements, operators, items and assignments to parts, and
what comes from ``choices.py`` and ``calls.py``.

Each acts when a run-time value is involved and is plain Python otherwise.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from khaljit.tracer.arithmetic import truth
from khaljit.tracer.calls import NUMBERS, has_proxy, here, refuse_mutation, traced
from khaljit.tracer.calls import attribute as attribute
from khaljit.tracer.calls import call as call
from khaljit.tracer.choices import and_ as and_
from khaljit.tracer.choices import choose as choose
from khaljit.tracer.choices import not_ as not_
from khaljit.tracer.choices import or_ as or_
from khaljit.tracer.flow import Chain, If
from khaljit.tracer.hostvectors import HostVector
from khaljit.tracer.instances import is_instance
from khaljit.tracer.intrinsics.storage import constant
from khaljit.tracer.ir import Note
from khaljit.tracer.loops import Block, ForEach, ForRange, While
from khaljit.tracer.memory import Array
from khaljit.tracer.messages import MAX_SHOWN, joined
from khaljit.tracer.operators import BINARY, UNARY, in_place, two
from khaljit.tracer.ops import Op
from khaljit.tracer.parts import Step, choose_item, load, steps_of
from khaljit.tracer.parts import assign as assign_part
from khaljit.tracer.proxy import Scalar, Vector, describe, fail, is_literal, is_proxy
from khaljit.tracer.ranges import Range
from khaljit.tracer.state import UNSET as UNSET

slice = builtins.slice


# Statements.


def if_(test: object, names: tuple[str, ...]) -> If:
    recorder = here()
    recorder.mark()
    return If(recorder, test, names)


def elif_(test: object, names: tuple[str, ...]) -> Chain:
    recorder = here()
    recorder.mark()
    return Chain(recorder, test, names)


def test(value: object) -> object:
    """The test of an ``elif``: gives what is built for the branch its place in the source."""
    here().mark()
    return value


def while_(names: tuple[str, ...]) -> While:
    return While(here(), names)


def for_(
    iterable: object, names: tuple[str, ...], continues: bool = False, counter: str | None = None
) -> ForEach | ForRange:
    recorder = here()
    recorder.mark()
    if isinstance(iterable, Range):
        return ForRange(recorder, iterable, names, counter)
    return ForEach(recorder, iterable, names, continues)


def block(names: tuple[str, ...]) -> Block:
    return Block(here(), names)


def dead() -> bool:
    """Whether nothing can follow here, since a jump left."""
    recorder = here()
    return recorder.jump is not None or recorder.builder.ended


def result(value: object) -> object:
    """The value of a ``return`` at the end of a function."""
    recorder = here()
    if len(recorder.calls) == 1 and value is not None:
        fail("a kernel returns a value", "kernels return None: store results to an array")
    return value


def assert_(condition: object, message: Callable[[], object] | None, text: str) -> None:
    """An assertion: checked now on host values, when the kernel runs on run-time values."""
    recorder = here()
    recorder.mark()
    said = None if message is None else message()
    if not isinstance(condition, Scalar):
        if not condition:
            raise AssertionError(said if said is not None else text)
        return
    words, operands = joined((f"assert {text} failed",), "", "")
    if said is not None:
        words, operands = joined((f"assert {text} failed", said), ": ", "")
    if len(operands) > MAX_SHOWN:
        fail(f"the message of an assertion shows {len(operands)} values; {MAX_SHOWN} are the most")
    note = Note(words, recorder.note_site())
    shown = [one.value for one in operands]
    recorder.builder.effect(Op.ASSERT, (truth(condition), *shown), note)


def check_raise() -> None:
    """An exception is raised here: fine on the host, impossible under a traced branch."""
    if here().in_traced_flow:
        fail(
            "an exception cannot be raised for some invocations only",
            "write `assert condition, message`, which is checked when the kernel runs",
        )


# Expressions.


def binary(name: str, a: Any, b: Any) -> Any:
    """An operator or a comparison of two operands."""
    row = BINARY[name]
    if type(a) in NUMBERS and type(b) in NUMBERS:
        return row.function(a, b)
    if name == "NotEq" and getattr(type(a), "__ne__", None) is object.__ne__:
        return not_(two(BINARY["Eq"], a, b, traced))
    return two(row, a, b, traced)


def augmented(name: str, a: Any, b: Any) -> Any:
    """What ``a += b`` and the like assign to a."""
    if type(a) in NUMBERS and type(b) in NUMBERS:
        return BINARY[name].function(a, b)
    return in_place(BINARY[name], a, b, traced)


def unary(name: str, a: Any) -> Any:
    """``-a``, ``+a`` and ``~a``"""
    function, method = UNARY[name]
    result = NotImplemented if type(a) in NUMBERS else traced(a, method)
    return function(a) if result is NotImplemented else result


_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **{name: functools.partial(binary, name) for name in BINARY},
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda a, b: _contains(b, a),
    "NotIn": lambda a, b: not_(_contains(b, a)),
}


def _contains(items: Any, value: Any) -> Any:
    """``value in items``"""
    if isinstance(items, Array):
        fail(f"{describe(items)} is searched as a whole", "loop over its elements")
    if not isinstance(items, tuple | list | set | frozenset | dict):
        found = traced(items, "__contains__", value)
        return value in items if found is NotImplemented else found
    if not has_proxy((value, *items)):
        return value in items
    found = False
    for one in items:
        found = or_(found, functools.partial(binary, "Eq", value, one))
    return found


def chain(names: tuple[str, ...], first: Any, *thunks: Callable[[], Any]) -> Any:
    """``a < b < c``: each operand evaluated once, and only while the chain holds."""
    right = thunks[0]()
    value = _COMPARISONS[names[0]](first, right)
    if len(names) == 1:
        return value
    return and_(value, lambda: chain(names[1:], right, *thunks[1:]))


def _is_value(one: Any) -> bool:
    return is_proxy(one) or is_instance(one) or isinstance(one, HostVector | tuple)


def item(owner: Any, key: Any) -> Any:
    """``owner[key]``"""
    if isinstance(owner, Array | Vector):
        return owner[key]
    if isinstance(owner, np.ndarray):
        fail(
            "a NumPy array is captured by the kernel",
            "pass it as an argument, or make small fixed data kj.constant(array)",
        )
    found = traced(owner, "__getitem__", key)
    if found is not NotImplemented:
        return found
    if isinstance(key, Scalar) and not is_instance(owner):
        if isinstance(owner, tuple | list) and all(
            is_literal(one) or isinstance(one, np.generic) for one in owner
        ):
            return constant(tuple(owner))[key]
        if isinstance(owner, tuple | list) and owner and all(map(_is_value, owner)):
            return choose_item(tuple(owner), key)
        fail(
            f"{describe(owner)} is indexed with a run-time value",
            "test it before: if x is not None"
            if owner is None
            else "only arrays, vectors and tuples of numbers can be: pass the data as an array",
        )
    return owner[key]  # a container from outside is guarded as a whole


def path(root: Any, form: str, *parts: Any) -> Any:
    """``root[i].vel.x``: attributes and keys, some attribute behind a key."""
    return _from(root, steps_of(form, parts))


def _from(owner: Any, steps: list[Step]) -> Any:
    for place, (is_attribute, part) in enumerate(steps):
        if isinstance(owner, Array) and not is_attribute:
            return load(owner, steps[place:], _from)
        owner = attribute(owner, part) if is_attribute else item(owner, part)
    return owner


def assign(root: Any, form: str, value: Any, *parts: Any) -> Any:
    """``root[i].vel.x = value``; gives what the root's name holds afterwards."""
    return assign_part(root, steps_of(form, parts), value, _assign_on_host)


def _assign_on_host(owner: Any, steps: list[Step], value: Any) -> Any:
    """Assign to a part of an object of the host: only what it leads to can change."""
    (is_attribute, part), behind = steps[0], steps[1:]
    if behind:
        inner = attribute(owner, part) if is_attribute else item(owner, part)
        changed = assign_part(inner, behind, value, _assign_on_host)
        if changed is inner:
            return owner
        value = changed
    if isinstance(owner, np.ndarray):
        fail(
            "a NumPy array is written that is no argument of the kernel",
            "pass it as an argument; memory of each invocation is kj.local(dtype, shape)",
        )
    if is_attribute or isinstance(owner, tuple):
        what = f"an attribute of {describe(owner)}" if is_attribute else "an item of a tuple"
        fail(
            f"{what} is assigned in a kernel",
            "kernels change no host objects: store results to an array",
        )
    if traced(owner, "__setitem__", part, value) is NotImplemented:
        refuse_mutation(owner)
        owner[part] = value
    return owner


def captured(owner: Any, changed: Any) -> None:
    """After a part of a variable of another function was assigned: it must be the same still."""
    if changed is not owner:
        fail(
            f"a part of a captured {describe(owner)} is assigned",
            "vectors are values: return the new one, or assign it to a name of this function first",
        )
