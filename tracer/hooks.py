"""What rewritten source calls. Each hook acts when a run-time value is involved and is plain
Python otherwise."""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from khaljit.tracer import host
from khaljit.tracer.arithmetic import select, truth
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import TraceError
from khaljit.tracer.flow import Chain, If
from khaljit.tracer.hostvectors import HostVector
from khaljit.tracer.instances import is_instance
from khaljit.tracer.intrinsics.storage import constant, guard_contents
from khaljit.tracer.ir import Note
from khaljit.tracer.loops import Block, ForEach, ForRange, While
from khaljit.tracer.memory import Array
from khaljit.tracer.messages import MAX_SHOWN, joined
from khaljit.tracer.operators import BINARY, UNARY, in_place, two
from khaljit.tracer.ops import Op
from khaljit.tracer.parts import Step, choose_item, load, steps_of
from khaljit.tracer.parts import assign as assign_part
from khaljit.tracer.proxy import (
    Scalar,
    Vector,
    describe,
    fail,
    is_literal,
    is_proxy,
    live,
)
from khaljit.tracer.ranges import Range
from khaljit.tracer.recorder import Attribute, Cell, Item, Recorder, current, user_site
from khaljit.tracer.rewrite import is_rewritten, rewrite
from khaljit.tracer.state import UNSET as UNSET

slice = builtins.slice


def _recorder() -> Recorder:
    return current("a rewritten function")


# Statements.


def if_(test: object, names: tuple[str, ...]) -> If:
    recorder = _recorder()
    recorder.mark()
    return If(recorder, test, names)


def elif_(test: object, names: tuple[str, ...]) -> Chain:
    recorder = _recorder()
    recorder.mark()
    return Chain(recorder, test, names)


def test(value: object) -> object:
    """The test of an ``elif``: gives what is built for the branch its place in the source."""
    _recorder().mark()
    return value


def while_(names: tuple[str, ...]) -> While:
    return While(_recorder(), names)


def for_(
    iterable: object, names: tuple[str, ...], continues: bool = False, counter: str | None = None
) -> ForEach | ForRange:
    recorder = _recorder()
    recorder.mark()
    if isinstance(iterable, Range):
        return ForRange(recorder, iterable, names, counter)
    return ForEach(recorder, iterable, names, continues)


def block(names: tuple[str, ...]) -> Block:
    return Block(_recorder(), names)


def dead() -> bool:
    """Whether nothing can follow here, since a jump left."""
    recorder = _recorder()
    return recorder.jump is not None or recorder.builder.ended


def result(value: object) -> object:
    """The value of a ``return`` at the end of a function."""
    recorder = _recorder()
    if len(recorder.calls) == 1 and value is not None:
        fail("a kernel returns a value", "kernels return None: store results to an array")
    return value


def assert_(condition: object, message: Callable[[], object] | None, text: str) -> None:
    """An assertion: checked now on host values, when the kernel runs on run-time values."""
    recorder = _recorder()
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
    if _recorder().in_traced_flow:
        fail(
            "an exception cannot be raised for some invocations only",
            "write `assert condition, message`, which is checked when the kernel runs",
        )


# Expressions.


def not_(value: Any) -> Any:
    if not isinstance(value, Scalar):
        return not value
    recorder = live(value)
    recorder.mark()
    return Scalar(recorder, recorder.builder.logical_not(truth(value)))


def and_(first: Any, *rest: Callable[[], Any]) -> Any:
    return _logical(first, rest, True)


def or_(first: Any, *rest: Callable[[], Any]) -> Any:
    return _logical(first, rest, False)


def _logical(first: Any, rest: tuple[Callable[[], Any], ...], conjunction: bool) -> Any:
    """``and`` and ``or``: what stands right is evaluated only where the left does not decide."""
    if not rest:
        return first
    if not isinstance(first, Scalar):
        if bool(first) is not conjunction:
            return first
        return _logical(rest[0](), rest[1:], conjunction)
    recorder = live(first)

    def right() -> Any:
        found = _logical(rest[0](), rest[1:], conjunction)
        if isinstance(found, bool | np.bool_):
            return bool(found)
        return Scalar(recorder, truth(found))

    left = Scalar(recorder, truth(first))
    if conjunction:
        return _choose(left, right, lambda: False, logical=Op.AND)
    return _choose(left, lambda: True, right, logical=Op.OR)


_NUMBERS: Final = frozenset({Scalar, Vector, bool, float, int})  # have no operators of the user's


def binary(name: str, a: Any, b: Any) -> Any:
    """An operator or a comparison of two operands."""
    row = BINARY[name]
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return row.function(a, b)
    if name == "NotEq" and getattr(type(a), "__ne__", None) is object.__ne__:
        return not_(two(BINARY["Eq"], a, b, _traced))
    return two(row, a, b, _traced)


def augmented(name: str, a: Any, b: Any) -> Any:
    """What ``a += b`` and the like assign to a."""
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return BINARY[name].function(a, b)
    return in_place(BINARY[name], a, b, _traced)


def unary(name: str, a: Any) -> Any:
    """``-a``, ``+a`` and ``~a``"""
    function, method = UNARY[name]
    result = NotImplemented if type(a) in _NUMBERS else _traced(a, method)
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
        found = _traced(items, "__contains__", value)
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


def choose(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """``yes if test else no``"""
    if not isinstance(test, Scalar):
        return yes() if test else no()
    return _choose(test, yes, no)


def _choose(
    test: Scalar, yes: Callable[[], Any], no: Callable[[], Any], logical: Op | None = None
) -> Any:
    """Evaluate both sides; a branch stays recorded only where one of them has effects."""
    recorder = live(test)
    builder = recorder.builder
    start = builder.snapshot()
    construct = If(recorder, test, ("the choice",))
    construct.start({})
    results, pure = [], True
    while construct.next():
        results.append(yes() if construct.arm else no())
        pure = pure and not builder.effects
        construct.leave({"the choice": results[-1]})
    if not pure or not all(isinstance(one, Scalar | Vector) or is_literal(one) for one in results):
        return construct.values[0]
    builder.rollback(start)
    if logical is None:
        return select(test, *results)
    right = to_scalar(recorder, results[0] if logical is Op.AND else results[1]).value
    return Scalar(recorder, builder.pure(logical, (truth(test), right)))


def attribute(owner: Any, name: str) -> Any:
    """``owner.name``; what is read from outside the kernel is guarded."""
    if not isinstance(owner, ModuleType) and not is_proxy(owner):
        getter = getattr(type(owner), name, None)
        if isinstance(getter, property) and isinstance(getter.fget, FunctionType):
            return _call_function(getter.fget, (owner,), {})
    try:
        value = getattr(owner, name)
    except AttributeError as error:
        if not isinstance(owner, ModuleType):
            raise
        import difflib  # for those who misspell

        close = difflib.get_close_matches(name, dir(owner), 1)
        mend = f"did you mean {owner.__name__}.{close[0]}?" if close else None
        raise TraceError(str(error), at=user_site(), mend=mend) from None
    if is_proxy(owner) or isinstance(owner, DType | np.generic | Enum):
        return value
    if isinstance(owner, ModuleType) and is_library(owner.__name__):
        return value
    recorder = _recorder()
    if id(owner) not in recorder.outside:
        return value
    if isinstance(owner, np.ndarray) and name not in _DESCRIPTIONS:
        guard_contents(recorder, owner)
    elif not isinstance(value, MethodType | BuiltinMethodType):
        key = ("attribute", id(owner), name)
        recorder.guard(key, f"attribute {name!r}", Attribute(owner, name))
    return value


# What is read of a captured array without looking at its elements.
_DESCRIPTIONS: Final = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size"})


def _getattr(owner: Any, name: str, *default: Any) -> Any:
    if default and not _hasattr(owner, name):
        return default[0]
    return attribute(owner, name)


def _hasattr(owner: Any, name: str) -> bool:
    recorder = _recorder()
    if id(owner) not in recorder.outside:
        return hasattr(owner, name)
    read = functools.partial(hasattr, owner, name)
    return bool(recorder.guard(("hasattr", id(owner), name), f"attribute {name!r}", read))


def _len(owner: Any) -> Any:
    length = _traced(owner, "__len__")
    return host.ALWAYS[len](owner) if length is NotImplemented else length


def _abs(x: Any) -> Any:
    found = NotImplemented if type(x) in _NUMBERS else _traced(x, "__abs__")
    if found is not NotImplemented:
        return found
    return host.TABLE[abs](x) if is_proxy(x) else abs(x)


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
    found = _traced(owner, "__getitem__", key)
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
            "only arrays, vectors and tuples of numbers can be: pass the data as an array",
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
        fail("a captured NumPy array is written", "pass it as an argument")
    if is_attribute or isinstance(owner, tuple):
        what = f"an attribute of {describe(owner)}" if is_attribute else "an item of a tuple"
        fail(
            f"{what} is assigned in a kernel",
            "kernels change no host objects: store results to an array",
        )
    if _traced(owner, "__setitem__", part, value) is NotImplemented:
        _refuse_mutation(owner)
        owner[part] = value
    return owner


def captured(owner: Any, changed: Any) -> None:
    """After a part of a variable of another function was assigned: it must be the same still."""
    if changed is not owner:
        fail(
            f"a part of a captured {describe(owner)} is assigned",
            "vectors are values: return the new one, or assign it to a name of this function first",
        )


_MUTATORS: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem"}
    | {"remove", "reverse", "setdefault", "sort", "update"}
)


def _refuse_mutation(owner: Any) -> None:
    if _recorder().in_traced_flow:
        fail(
            f"{describe(owner)} is changed under a traced branch or loop",
            "it would be changed once while recording; use kj.local or an array argument",
        )


# Calls.


def _traced(owner: Any, name: str, *args: Any) -> Any:
    """A method called on an object of the user's class; NotImplemented where that has none."""
    method = getattr(type(owner), name, None)
    if isinstance(method, FunctionType) and not is_library(method.__module__ or ""):
        return _call_function(method, (owner, *args), {})
    return NotImplemented


def is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in ("khaljit", "numpy") or root in sys.stdlib_module_names


# Functions that read from an object, which may be one from outside.
_READING: Final[dict[object, Callable[..., Any]]] = {
    getattr: _getattr,
    hasattr: _hasattr,
    len: _len,
    abs: _abs,
}


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``: traced through when it is the user's."""
    try:
        always = _READING.get(function) or host.ALWAYS.get(function)
        mapped = always or host.TABLE.get(function)
    except TypeError:  # not hashable
        always = mapped = None
    if always is not None:
        return always(*args, **kwargs)
    if mapped is not None and has_proxy(args):
        return mapped(*args, **kwargs)
    if isinstance(function, FunctionType):
        return _call_function(function, args, kwargs)
    if isinstance(function, MethodType):
        return call(function.__func__, function.__self__, *args, **kwargs)
    if isinstance(function, functools._lru_cache_wrapper):
        return call(function.__wrapped__, *args, **kwargs)  # what it remembers may be outdated
    if isinstance(function, functools.partial):
        return call(function.func, *function.args, *args, **{**function.keywords, **kwargs})
    if isinstance(function, BuiltinMethodType):
        if function.__name__ in _MUTATORS and isinstance(function.__self__, list | dict | set):
            _refuse_mutation(function.__self__)
        _refuse_foreign(function, args)
        return function(*args, **kwargs)
    inline = getattr(function, "__kj_inline__", None)
    if inline is not None:
        return call(inline(), *args, **kwargs)
    method = vars(type(function)).get("__call__")
    if isinstance(method, FunctionType) and not is_library(type(function).__module__):
        return _call_function(method, (function, *args), kwargs)
    _refuse_foreign(function, args)
    return function(*args, **kwargs)


def has_proxy(args: tuple[Any, ...]) -> bool:
    return any(
        is_proxy(arg) or (isinstance(arg, tuple | list) and any(map(is_proxy, arg))) for arg in args
    )


def _refuse_foreign(function: Any, args: tuple[Any, ...]) -> None:
    """A library function that knows nothing of run-time values; what it reads is guarded."""
    recorder = _recorder()
    for arg in args:
        if isinstance(arg, np.ndarray) and id(arg) in recorder.outside:
            guard_contents(recorder, arg)
    module = getattr(function, "__module__", None) or ""
    foreign = isinstance(function, np.ufunc) or module.partition(".")[0] in _FOREIGN
    if foreign and has_proxy(args):
        name = f"{module or 'numpy'}.{getattr(function, '__name__', function)}"
        fail(
            f"{name} has no meaning in a kernel",
            "see the documentation for the host functions that have; or use khaljit's own",
        )


_FOREIGN: Final = ("numpy", "math", "cmath")


def _call_function(function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if function.__module__ and is_library(function.__module__):
        _refuse_foreign(function, args)
        return function(*args, **kwargs)
    recorder = _recorder()
    if function in recorder.calls:  # not its code, which closures that call each other share
        chain = [*recorder.calls[recorder.calls.index(function) :], function]
        fail(
            f"{function.__qualname__} calls itself while it is recorded: "
            + " -> ".join(one.__code__.co_name for one in chain),
            "recursion cannot be recorded; write a loop",
        )
    bound = function if is_rewritten(function.__code__) else prepare(recorder, function)
    recorder.calls.append(function)
    try:
        return bound(*args, **kwargs)
    finally:
        recorder.calls.pop()


def prepare(recorder: Recorder, function: FunctionType) -> FunctionType:
    """The function to run in place of the user's, and guards for what it reads from outside."""
    rewritten = rewrite(function)
    names = function.__code__.co_names if rewritten is None else rewritten.globals
    scope = function.__globals__
    for name in names:
        if name in scope:
            key = ("global", id(scope), name)
            recorder.guard(key, f"global {name!r}", Item(scope, name))
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            recorder.guard(("cell", id(cell)), f"captured {name!r}", Cell(cell))
        except ValueError:
            raise TraceError(
                f"the captured variable {name!r} of {function.__qualname__} has no value yet",
                at=user_site(),
                mend=f"assign {name} before the kernel is launched",
            ) from None
    places: list[int | str] = [*range(len(function.__defaults__ or ()))]
    for place in (*places, *(function.__kwdefaults__ or ())):
        recorder.guard(
            ("default", id(function), place),
            f"a default of {function.__name__}",
            functools.partial(_default, function, place),
        )
    return function if rewritten is None else rewritten.bind(function, sys.modules[__name__])


def _default(function: FunctionType, place: int | str) -> object:
    if isinstance(place, str):
        return (function.__kwdefaults__ or {}).get(place, UNSET)
    defaults = function.__defaults__ or ()
    return defaults[place] if place < len(defaults) else UNSET
