"""Launch plans for the native path: the table of one kind of launch, from what Python made of it.

A plan says, per parameter, what an argument must be like; which arrays have equal shapes or are the
same view, as the signature has it; what the recording read from outside; and how the code is
called (`Loaded.native`). ``khaljit/native/table.c`` reads it. Launches with arguments that no plan
can describe are Python's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.arguments import INDEX_LIMIT, Call, Parameters
from khaljit.arrays import Array
from khaljit.backends.base import Device, Loaded
from khaljit.compiler import Compiled
from khaljit.devices import CURRENT
from khaljit.entries import ArrayEntry, ConstEntry, Signature
from khaljit.extension import NATIVE, NUMBER_TYPES
from khaljit.launching import KernelBase
from khaljit.operands import Operand
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import by_numpy
from khaljit.tracer.elements import element_of, tail
from khaljit.tracer.ir import Space, Trace, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.record import Recording, ScalarArgument
from khaljit.tracer.recorder import Attribute, Cell, Guard, Item
from khaljit.tracer.records import dataclass

__all__ = ["NativePlans", "Plan", "Sample"]

MOST_PLANS: Final = 8  # of a kernel
MOST_SEEN: Final = 64  # forms of launches of a kernel

if NATIVE is not None:
    NATIVE.know_arrays(Array)

_TYPES: Final = {by_numpy(np.dtype(kind)): place for place, kind in enumerate(NUMBER_TYPES)}


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What a launch of one signature needs; made once.

    Attributes:
        guards: what was read while recording; the plan holds while it is the same.
        written: per array parameter, whether the kernel writes it.
        strides: per array parameter, whether the kernel looks at its strides.
    """

    compiled: Compiled
    loaded: Loaded
    guards: tuple[Guard, ...]
    written: tuple[bool, ...]
    strides: tuple[bool, ...]

    @classmethod
    def of(cls, recording: Recording, compiled: Compiled, loaded: Loaded) -> Plan:
        """What launches of a recorded kernel need."""
        trace = recording.trace
        strides = tuple(number in recording.strides for number in range(len(trace.arrays)))
        return cls(compiled, loaded, recording.guards, _written(trace), strides)

    def holds(self) -> bool:
        return all(guard.holds() for guard in self.guards)

    def changes(self) -> list[str]:
        """What was read while recording and is not as it was."""
        return [guard.name for guard in self.guards if not guard.holds()]


def _written(trace: Trace) -> tuple[bool, ...]:
    """Which array parameters a kernel writes."""
    written = [False] * len(trace.arrays)
    for effect in effects(trace.body):
        if effect.op is Op.STORE or effect.op is Op.ATOMIC:
            memory = effect.memory
            if memory.space is Space.ARRAY:
                written[memory.number] = True
    return tuple(written)


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of a launch that Python made ready, for the next ones like it.

    Attributes:
        values: of all parameters, in their order.
        positional: how many of them the call gave by position.
        names: of those that it gave by name.
    """

    parameters: Parameters
    values: tuple[Any, ...]
    positional: int
    names: tuple[str, ...]
    call: Call
    signature: Signature

    @property
    def passed(self) -> int:
        """How many arguments the call gave."""
        return self.positional + len(self.names)

    @property
    def is_plain(self) -> bool:
        """Whether those given are the first, and any could be given by position or by name."""
        by_name = self.parameters.names[self.positional : self.passed]
        return self.parameters.are_plain and set(by_name) == set(self.names)

    @property
    def anywhere(self) -> bool:
        """Whether no array says where it runs, so that the context does."""
        return not any(isinstance(one.owner, Array) for one in self.call.operands)

    def rules(self, written: Sequence[bool]) -> tuple[object, ...] | None:
        """Per parameter its kind and what `parse_parameter` in table.c takes of one; None where
        there is none for an argument. ``written`` says which arrays the kernel writes."""
        found: list[object] = []
        operands = iter(zip(self.call.operands, written, strict=True))
        numbers = iter(self.call.numbers)
        for position, (value, entry) in enumerate(
            zip(self.values, self.call.arguments, strict=True)
        ):
            is_passed = position < self.passed
            rule: object = None
            if isinstance(entry, ArrayEntry) and is_passed:
                operand, writes = next(operands)
                rule = _array_rule(value, operand, entry, writes)
            elif isinstance(entry, ScalarArgument) and entry.dtype in _TYPES:
                number = next(numbers)
                if is_passed:
                    annotated = self.parameters.annotations[position] is not None
                    rule = "number", (_TYPES[entry.dtype], annotated)
                else:
                    rule = "fixed", (_signed(to_bits(entry.dtype, number)), number)
            elif isinstance(entry, ConstEntry):
                rule = "constant", (value,)
            if rule is None:
                return None
            found.append(rule)
        return tuple(found)


def _array_rule(value: Any, operand: Operand, entry: ArrayEntry, writes: bool) -> object:
    element, axes, lanes = element_of(operand.dtype), tail(operand.dtype), 0
    if element.align != element.alignment:  # strides are checked in larger units than they have
        return None
    if type(value) is np.ndarray:
        label = "array"
        if len(axes) > 1 or (axes and value.dtype.names is not None):
            return None
        lanes = axes[0] if axes else 0
    elif type(value) is Array:
        label = "device"
    else:
        return None
    argument, ndim = entry.argument, len(operand.shape)
    size, shift = element.size, element.align.bit_length() - 1
    return label, (
        value.dtype,
        ndim,
        lanes,
        size,
        shift,
        argument.contiguous,
        argument.aligned,
        writes,
    )


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


@final
class NativePlans:
    """Those of one kernel."""

    def __init__(self) -> None:
        self._known: Final[dict[object, tuple[Plan, Any]]] = {}
        self._seen: Final[dict[object, Plan]] = {}
        self._lock: Final = threading.Lock()

    def is_new(self, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether no launch of this plan has had arguments of such types. What is launched by
        Python again and again shall not be described each time."""
        types = map(type, (*args, *kwargs.values()))
        key = (id(plan), *kwargs, len(args), *types, CURRENT.get() is None)
        if self._seen.get(key) is plan:
            return False
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen[key] = plan
        return True

    def learn(self, kernel: KernelBase, sample: Sample, plan: Plan, device: Device) -> None:
        """Let the kernel's next launches like a sample go the native way, where there is one."""
        rules = sample.rules(plan.written) if sample.is_plain else None
        if rules is None:
            return
        is_default = sample.anywhere and CURRENT.get() is None
        key = (device, sample.signature, rules, sample.passed, is_default)
        known = self._known.get(key)
        if known is not None and known[0] is plan:
            return
        native = self._make(sample, rules, plan, device, is_default)
        if native is None:
            return
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = plan, native
            while len(self._known) > MOST_PLANS:
                del self._known[next(iter(self._known))]
            plans = tuple(native for _, native in reversed(self._known.values()))
            kernel.learn(plans, sample.parameters.names)

    def _make(
        self,
        sample: Sample,
        rules: tuple[object, ...],
        plan: Plan,
        device: Device,
        is_default: bool,
    ) -> Any:
        if device.has_own_memory and sample.anywhere:
            return None  # the arrays are staged
        target = plan.loaded.native()
        if target is None:
            return None
        guards = (*plan.guards, *target.guards)
        if is_default:
            guards = (*guards, _environment("KHALJIT_DEVICE"))
        try:
            return NATIVE.Plan(
                parameters=rules,
                passed=sample.passed,
                shapes=sample.signature.shapes,
                views=sample.signature.views,
                guards=tuple(map(_guard, guards)),
                device=device,
                anywhere=sample.anywhere,
                is_default=is_default,
                wide=sample.signature.index_bits == 64,
                limit=INDEX_LIMIT,
                kind=target.kind,
                target=target.values,
            )
        except OverflowError:  # more parameters than a plan has room for
            return None


def _guard(guard: Guard) -> tuple[object, ...]:
    read = guard.read
    if isinstance(read, Item):
        return "item", read.owner, read.name, guard.seen, guard
    if isinstance(read, Cell):
        return "cell", read.owner, None, guard.seen, guard
    if isinstance(read, Attribute):
        return "attribute", read.owner, read.name, guard.seen, guard
    return "other", None, None, None, guard


def _environment(name: str) -> Guard:
    """A guard for a variable of the environment, which Python keeps in a dict."""
    environ: Any = os.environ
    read = Item(environ._data, environ.encodekey(name))
    return Guard(name, read, read())
