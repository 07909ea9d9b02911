"""Emits SPIR-V from a legal trace.

The trace is brought to the machine's own terms first (``codegen/webgpu``); what is left here is
spelling. Laws, which keep to what wgpu's reader of SPIR-V takes and gets right:

* Every value that leaves an ``if`` or ``loop`` goes through a variable of the function, as do the
  values that a loop carries. So no id made inside a loop is used after it.
* Pointers are made anew for each access.
* An ``if`` is a selection with a merge block, also where its arms leave it otherwise; a loop is
  ``header -> body``, left by branches to its merge block; its continue block only goes back.
* NaN and infinity are bitcasts of integers. ``!=`` of floats is the negation of ``==``, since an
  unordered comparison would be read as an ordered one.
* Negation of integers is subtraction from zero, which wraps.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.program import Program
from khaljit.codegen.spirv.code import Code
from khaljit.codegen.spirv.effects import effect
from khaljit.codegen.spirv.module import Id, Module
from khaljit.codegen.spirv.pure import pure
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Lowered, Variant, lower
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Region, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Walk, drive
from khaljit.tracer.schedule import schedule

__all__ = ["SpirvEmitter", "emit_spirv"]

ENTRY: Final = "main"


@final
@dataclass(frozen=True, slots=True)
class SpirvEmitter:
    """Makes SPIR-V programs for a device with the capabilities of ``caps``.

    Attributes:
        caps: the row that the trace is legal for.
        variant: what else the program depends on.
    """

    caps: Caps
    variant: Variant = PLAIN_VARIANT

    @property
    def name(self) -> str:
        return "spirv"

    def emit(self, trace: Trace) -> Program:
        """The program that does what a legal trace says."""
        return emit_spirv(lower(trace, self.caps, self.variant))


def emit_spirv(lowered: Lowered) -> Program:
    """The program of a lowered trace."""
    module = _Function(lowered).module()
    instructions = module.instructions(ENTRY)
    assert lowered.trace.workgroup is not None
    return Program(
        target="spirv",
        entry=ENTRY,
        text=module.text(instructions),
        binary=module.words(instructions),
        workgroup=lowered.trace.workgroup,
        shared=lowered.shared,
        interface=lowered.interface,
    )


@final
@dataclass(frozen=True, slots=True)
class _Exit:
    """Where control goes from inside a construct, and the variables that take what flows there."""

    label: Id
    variables: tuple[Id | None, ...]


@final
@dataclass(frozen=True, slots=True)
class _Around:
    """The ways out of a region, by how it ends; None where there is no such construct."""

    yields: _Exit | None = None
    breaks: _Exit | None = None
    continues: _Exit | None = None


@final
class _Function:
    """Writes the regions of a module's function."""

    def __init__(self, lowered: Lowered) -> None:
        self._code: Final = Code(lowered)
        self._module: Final = self._code.module
        self._types: Final = self._code.types
        self._ids: Final = self._code.ids
        self._trace: Final = lowered.trace
        self._items: Final = schedule(lowered.trace).items
        self._results: Final[dict[Value, dict[int, Value]]] = {}  # that something reads, by node

    def module(self) -> Module:
        for value in values(self._trace.body):
            if value.op is Op.RESULT:
                assert isinstance(value.attr, int)
                self._results.setdefault(value.args[0], {})[value.attr] = value
        drive(self._region(self._trace.body, _Around()))
        return self._module

    # Regions.

    def _region(self, region: Region, around: _Around) -> Walk[None]:
        """All of a region with its end."""
        for item in self._items[region]:
            if item.op is Op.IF:
                ended = yield self._if(item, around)
                if ended:
                    return
            elif item.op is Op.LOOP:
                yield self._loop(item)
            elif item.is_effect:
                effect(self._code, item)
            else:
                self._ids[item] = pure(self._code, item)
        self._end(region.end, around)

    def _end(self, end: Value, around: _Around) -> None:
        ways = {Op.YIELD: around.yields, Op.BREAK: around.breaks, Op.CONTINUE: around.continues}
        way = ways.get(end.op)
        if way is None:  # the end of the kernel
            self._module.do("OpReturn")
            return
        for variable, value in zip(way.variables, end.args, strict=True):
            if variable is not None:
                self._module.do("OpStore", variable, self._code.id(value))
        self._module.do("OpBranch", way.label)

    def _if(self, value: Value, around: _Around) -> Walk[bool]:
        """An ``if``; whether nothing can follow it."""
        module = self._module
        condition = self._code.id(value.args[0])
        merge = module.id()
        variables = self._variables(value)
        labels = [merge if _is_empty(arm, variables) else module.id() for arm in value.regions]
        inside = _Around(_Exit(merge, variables), around.breaks, around.continues)
        module.do("OpSelectionMerge", merge, "None")
        module.do("OpBranchConditional", condition, *labels)
        for label, arm in zip(labels, value.regions, strict=True):
            if label is not merge:
                module.label(label)
                yield self._region(arm, inside)
        module.label(merge)
        if all(arm.end.op is not Op.YIELD for arm in value.regions):
            module.do("OpUnreachable")
            return True
        self._read_results(value, variables)
        return False

    def _loop(self, value: Value) -> Walk[None]:
        module = self._module
        (body,) = value.regions
        carried = tuple(self._variable(param.type) for param in body.params)
        for variable, initial in zip(carried, value.args, strict=True):
            module.do("OpStore", variable, self._code.id(initial))
        results = self._variables(value)
        header, inside, again, merge = (module.id() for _ in range(4))
        module.do("OpBranch", header)
        module.label(header)
        module.do("OpLoopMerge", merge, again, "None")
        module.do("OpBranch", inside)
        module.label(inside)
        for param, variable in zip(body.params, carried, strict=True):
            self._ids[param] = module.let("OpLoad", self._types.of(param.type), variable)
        ways = _Around(None, _Exit(merge, results), _Exit(again, carried))
        yield self._region(body, ways)
        module.label(again)
        module.do("OpBranch", header)
        module.label(merge)
        self._read_results(value, results)

    def _variables(self, node: Value) -> tuple[Id | None, ...]:
        """A variable for each result of an ``if`` or ``loop`` that something reads."""
        assert isinstance(node.attr, tuple)
        read = self._results.get(node, {})
        return tuple(
            self._variable(dtype) if k in read else None for k, dtype in enumerate(node.attr)
        )

    def _variable(self, dtype: DType) -> Id:
        return self._module.own_variable(self._types.pointer("Function", self._types.of(dtype)))

    def _read_results(self, node: Value, variables: tuple[Id | None, ...]) -> None:
        for k, result in self._results.get(node, {}).items():
            variable = variables[k]
            assert variable is not None
            self._ids[result] = self._module.let("OpLoad", self._types.of(result.type), variable)


def _is_empty(arm: Region, variables: tuple[Id | None, ...]) -> bool:
    """Whether an arm does nothing and gives nothing that is read."""
    if arm.end.op is not Op.YIELD or arm.body:
        return False
    return all(variable is None for variable in variables)
