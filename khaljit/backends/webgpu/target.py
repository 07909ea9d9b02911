"""SPIR-V for a WebGPU device: the way from a canonical trace to words and what to bind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from khaljit.backends.base import Target, idle
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import Caps, webgpu, webgpu_named
from khaljit.codegen.program import Program
from khaljit.codegen.webgpu.interface import Binding, Interface, Slot, Source
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Variant
from khaljit.tracer.dtypes import by_name
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import Trace

__all__ = ["WebGpu", "artifact_of", "interface_of", "parse", "plan_of"]


@final
class WebGpu(Target):
    """A device's capabilities.

    Args:
        caps: its row.
        variant: which buffers the arrays share, and whether workgroups are counted on one line.
    """

    def __init__(self, caps: Caps, variant: Variant = PLAIN_VARIANT) -> None:
        self.caps: Final = caps
        self.variant: Final = variant
        self.name = caps.name

    @property
    def text(self) -> str:
        """Features, then limits and the variant where they are not the least and the usual:
        ``webgpu:f16+int64,shared=49152/fold``."""
        return write(self.caps, self.variant)

    def varied(self, **changes: Any) -> WebGpu:
        """The same device with another variant of the program."""
        return WebGpu(self.caps, replace(self.variant, **changes))

    def key_parts(self) -> Mapping[str, object]:
        """Capabilities, limits and variant."""
        return {"kind": "webgpu", "caps": self.caps, "variant": self.variant}

    def compile(self, trace: Trace, emitted: Callable[[], None] = idle) -> Artifact:
        """A SPIR-V module, or WGSL where wgpu reads SPIR-V wrongly, and its interface."""
        from khaljit.backends import stages  # a warm process compiles nothing

        del emitted  # the driver compiles when the code is loaded
        return artifact_of(self, stages.legal(trace, self.caps))

    def show(self, trace: Trace, stage: str) -> str:
        """A stage of the compilation as text: the common ones, ``spirv`` and ``wgsl``."""
        from khaljit.backends import stages
        from khaljit.codegen.spirv.emit import SpirvEmitter
        from khaljit.codegen.wgsl.emit import WgslEmitter

        codes: dict[str, Callable[[Trace], str]] = {
            "spirv": lambda legal: SpirvEmitter(self.caps, self.variant).emit(legal).text,
            "wgsl": lambda legal: WgslEmitter(self.caps, self.variant).emit(legal).text,
        }
        return stages.show(trace, stage, self.name, self.caps, codes)


# The text of a target.

BASELINE: Final = webgpu()
USUAL: Final = Variant(at_origin=True)  # what devices begin with


_LIMITS: Final = {
    "workgroup": "max_workgroup",
    "size": "max_workgroup_size",
    "shared": "shared_bytes",
    "immediates": "immediates",
}


def write(caps: Caps, variant: Variant) -> str:
    """See `WebGpu.text`."""
    facts = [caps.name.partition(":")[2]]
    for name, attribute in _LIMITS.items():
        value = getattr(caps, attribute)
        if value != getattr(BASELINE, attribute):
            facts.append(f"{name}={_listed(value)}")
    words = ["fold"] * variant.fold + ["offset"] * (not variant.at_origin)
    if variant.bindings is not None:
        words.append(f"bindings={_listed(variant.bindings)}")
    if variant.group != USUAL.group:
        words.append(f"group={_listed(variant.group)}")
    detail = ",".join(filter(None, facts)) + (f"/{','.join(words)}" if words else "")
    return f"webgpu:{detail}" if detail else "webgpu"


def parse(text: str) -> WebGpu:
    """The target that what stands behind ``webgpu:`` in a text describes."""
    facts, _, words = text.partition("/")
    features: list[str] = []
    limits: dict[str, Any] = {}
    options: dict[str, Any] = {"at_origin": True}
    try:
        for fact in filter(None, facts.split(",")):
            name, has_value, value = fact.partition("=")
            if not has_value:
                features += fact.split("+")
            else:
                limits[_LIMITS[name]] = _numbers(value) if name == "size" else int(value)
        for word in filter(None, words.split(",")):
            name, _, value = word.partition("=")
            if name in ("bindings", "group"):
                options[name] = _numbers(value)
            else:
                options |= {"fold": {"fold": True}, "offset": {"at_origin": False}}[word]
        caps = webgpu_named(features, **limits)
    except (KeyError, ValueError) as error:
        raise ArgumentValueError(
            f"{text!r} describes no WebGPU device: {error}",
            mend="`khaljit devices` shows the text of a device; webgpu:native is the one here",
        ) from None
    return WebGpu(caps, Variant(**options))


def _listed(value: int | Sequence[int]) -> str:
    return str(value) if isinstance(value, int) else ".".join(map(str, value))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split("."))))


def artifact_of(target: WebGpu, legal: Trace) -> Artifact:
    """The artifact of a legal trace."""
    from khaljit.codegen.webgpu.emit import WebGpuEmitter

    program = WebGpuEmitter(target.caps, target.variant).emit(legal)
    payload = program.binary or program.text.encode()
    return Artifact(payload, plan_of(program), None, text=program.text)


def plan_of(program: Program) -> dict[str, Any]:
    """What a launch needs of a program, as JSON."""
    interface = program.interface
    assert interface is not None
    return {
        "entry": program.entry,
        "workgroup": list(program.workgroup),
        "bindings": [
            [list(one.arrays), one.writable, one.size, one.used] for one in interface.bindings
        ],
        "uniform": interface.uniform,
        "slots": [
            [
                [one.source.kind, one.source.number, one.source.axis, one.source.half],
                one.dtype.name,
                one.at,
                one.size,
            ]
            for one in interface.slots
        ],
        "size": interface.size,
        "folded": interface.folded,
        "whole": interface.whole,
    }


def interface_of(plan: Mapping[str, Any]) -> Interface:
    """The interface again."""
    return Interface(
        bindings=tuple(
            Binding(tuple(arrays), writable, size, used)
            for arrays, writable, size, used in plan["bindings"]
        ),
        uniform=plan["uniform"],
        slots=tuple(
            Slot(Source(*source), by_name(dtype), at, size)
            for source, dtype, at, size in plan["slots"]
        ),
        size=plan["size"],
        folded=plan["folded"],
        whole=plan["whole"],
    )
