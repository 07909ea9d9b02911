"""The function that runs a list of launches: a graph on the CPU costs one call from Python.

``i64 replay(ptr rows, i64 count, i64 repeat, ptr arena)`` enters the kernel of each row in turn,
with all its items in this thread, and does so `repeat` times. A row is four words: the kernel's
entry, its parameter block, the number of its items, and where a u32 says whether it failed, or
null. A kernel that failed ends the run: the result is its row's number, else `count`. There is at
least one row.

``i64 turns(ptr rows, i64 count, i64 most, ptr arena, ptr flag, i64 bytes)`` does that again and
again, as long as a flag of so many bytes, 1 or 4, is not zero, which it looks at before each turn.
The result is the row's number that failed, `count` after the most turns, and -1 when the flag was
zero.

``void chains(ptr params, ptr next, i64 total, i64 chunk, ptr arena)`` is called as kernels are, by
several threads: its items are chains of rows that do not depend on each other. `params` are two
words: the rows, and where the numbers of the rows stand at which chains begin, and the last one
ends.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.llvm.target import CpuTarget

__all__ = ["CHAINS", "NAME", "ROW", "TURNS", "text"]

NAME: Final = "replay"
CHAINS: Final = "chains"
TURNS: Final = "turns"
ROW: Final = 4  # words

_TEXT: Final = """\
target triple = "{triple}"

define dso_local {convention}i64 @replay(ptr %rows, i64 %count, i64 %repeat,
                                         ptr %arena) {attributes} {{
entry:
  %next = alloca i64, align 64
  br label %turn

turn:
  %turns = phi i64 [ 0, %entry ], [ %turns.more, %turned ]
  %over = icmp sge i64 %turns, %repeat
  br i1 %over, label %done, label %row

row:
  %number = phi i64 [ 0, %turn ], [ %number.more, %quiet ]
  %word = mul i64 %number, {row}
  %at = getelementptr i64, ptr %rows, i64 %word
  %kernel = load ptr, ptr %at
  %at.params = getelementptr i64, ptr %at, i64 1
  %params = load ptr, ptr %at.params
  %at.total = getelementptr i64, ptr %at, i64 2
  %total = load i64, ptr %at.total
  %at.verdict = getelementptr i64, ptr %at, i64 3
  %verdict = load ptr, ptr %at.verdict
  store i64 0, ptr %next
  call {convention}void %kernel(ptr %params, ptr %next, i64 %total, i64 %total, ptr %arena)
  %verdicts = icmp ne ptr %verdict, null
  br i1 %verdicts, label %look, label %quiet

look:
  %flag = load i32, ptr %verdict
  %failed = icmp ne i32 %flag, 0
  br i1 %failed, label %stop, label %quiet

quiet:
  %number.more = add i64 %number, 1
  %more = icmp slt i64 %number.more, %count
  br i1 %more, label %row, label %turned

turned:
  %turns.more = add i64 %turns, 1
  br label %turn

stop:
  ret i64 %number

done:
  ret i64 %count
}}

define dso_local {convention}i64 @turns(ptr %rows, i64 %count, i64 %most, ptr %arena,
                                        ptr %flag, i64 %bytes) {attributes} {{
entry:
  %is.byte = icmp eq i64 %bytes, 1
  br label %turn

turn:
  %made = phi i64 [ 0, %entry ], [ %made.more, %ran ]
  %over = icmp sge i64 %made, %most
  br i1 %over, label %done, label %look

look:
  br i1 %is.byte, label %byte, label %word

byte:
  %flag.byte = load i8, ptr %flag
  %set.byte = icmp ne i8 %flag.byte, 0
  br i1 %set.byte, label %run, label %fell

word:
  %flag.word = load i32, ptr %flag
  %set.word = icmp ne i32 %flag.word, 0
  br i1 %set.word, label %run, label %fell

run:
  %stopped = call {convention}i64 @replay(ptr %rows, i64 %count, i64 1, ptr %arena)
  %failed = icmp ne i64 %stopped, %count
  br i1 %failed, label %stop, label %ran

ran:
  %made.more = add i64 %made, 1
  br label %turn

stop:
  ret i64 %stopped

fell:
  ret i64 -1

done:
  ret i64 %count
}}

define {convention}void @chains(ptr %params, ptr %next, i64 %total, i64 %chunk,
                                ptr %arena) {attributes} {{
entry:
  %rows = load ptr, ptr %params
  %at.starts = getelementptr i64, ptr %params, i64 1
  %starts = load ptr, ptr %at.starts
  br label %take

take:
  %chain = atomicrmw add ptr %next, i64 %chunk monotonic
  %left = icmp slt i64 %chain, %total
  br i1 %left, label %some, label %done

some:
  %behind = add i64 %chain, %chunk
  %short = icmp slt i64 %behind, %total
  %last = select i1 %short, i64 %behind, i64 %total
  %at.first = getelementptr i64, ptr %starts, i64 %chain
  %first = load i64, ptr %at.first
  %at.end = getelementptr i64, ptr %starts, i64 %last
  %end = load i64, ptr %at.end
  %count = sub i64 %end, %first
  %word = mul i64 %first, {row}
  %at = getelementptr i64, ptr %rows, i64 %word
  %ran = call {convention}i64 @replay(ptr %at, i64 %count, i64 1, ptr %arena)
  br label %take

done:
  ret void
}}
"""


def text(target: CpuTarget) -> str:
    """The module for a processor."""
    convention = f"{target.convention} " if target.convention else ""
    attributes = 'nounwind "no-builtins" "no-stack-arg-probe"'
    return _TEXT.format(triple=target.triple, convention=convention, attributes=attributes, row=ROW)
