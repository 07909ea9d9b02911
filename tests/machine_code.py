"""Object code for the tests of the CPU runtime, made by LLVM from a few lines of its language."""

from __future__ import annotations

from typing import Final

import llvmlite.binding as llvm

from khaljit.backends.cpu.executable import MACHINE

__all__ = ["AARCH64", "COUNTING", "HERE", "X86_64", "compile_object"]

X86_64: Final = "x86_64-unknown-linux-gnu"
AARCH64: Final = "aarch64-unknown-linux-gnu"
HERE: Final = AARCH64 if MACHINE == "aarch64" else X86_64
"""LLVM's triple of code that runs on this machine."""

COUNTING: Final = """
; params: data pointer, turns to spin per item. Adds 1 to data[i] for each item i, and leaves the
; arena's address and the item's first word of it where they can be seen.
define void @entry(ptr %params, ptr %next, i64 %total, i64 %chunk, ptr %arena) nounwind {
start:
  %data = load ptr, ptr %params
  %turns_at = getelementptr i64, ptr %params, i64 1
  %turns = load i64, ptr %turns_at
  br label %take
take:
  %first = atomicrmw add ptr %next, i64 %chunk monotonic
  %more = icmp slt i64 %first, %total
  br i1 %more, label %begin, label %out
begin:
  %beyond = add i64 %first, %chunk
  %inside = icmp slt i64 %beyond, %total
  %end = select i1 %inside, i64 %beyond, i64 %total
  br label %item
item:
  %i = phi i64 [%first, %begin], [%following, %done]
  br label %spin
spin:
  %turn = phi i64 [0, %item], [%turned, %spin]
  %turned = add i64 %turn, 1
  store volatile i64 %turned, ptr %arena, align 64
  %again = icmp slt i64 %turned, %turns
  br i1 %again, label %spin, label %done
done:
  %place = getelementptr i64, ptr %data, i64 %i
  %old = atomicrmw add ptr %place, i64 1 monotonic
  %following = add i64 %i, 1
  %left = icmp slt i64 %following, %end
  br i1 %left, label %item, label %take
out:
  ret void
}
"""


def compile_object(
    text: str,
    triple: str = HERE,
    *,
    reloc: str = "pic",
    model: str = "small",
    opt: int = 2,
) -> bytes:
    """The relocatable object of a module in LLVM's language."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(reloc=reloc, codemodel=model, opt=opt)
    made = machine.emit_object(module)
    assert isinstance(made, bytes)
    return made
