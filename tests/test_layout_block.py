"""The parameter block: every slot has its place, in the order that the documentation gives."""

from __future__ import annotations

from khaljit.codegen.layout import SLOT, ParameterBlock
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import f32, i32, u8
from khaljit.tracer.ir import Trace
from tests.building import array_param, kernel


def example() -> Trace:
    def build(builder: Builder) -> None:
        del builder

    return kernel(build, [array_param(0, f32, 2), array_param(1, u8, 0)], [i32, f32])


def test_slots_follow_one_another_in_the_documented_order() -> None:
    block = ParameterBlock.of(example())
    assert block.pointers == (0, 5 * SLOT)
    assert block.shapes == ((SLOT, 2 * SLOT), ())
    assert block.strides == ((3 * SLOT, 4 * SLOT), ())
    assert block.scalars == (6 * SLOT, 7 * SLOT)
    assert block.groups == (8 * SLOT, 9 * SLOT, 10 * SLOT)
    assert block.size == 11 * SLOT


def test_targets_that_bind_buffers_apart_have_no_pointer_slots() -> None:
    block = ParameterBlock.of(example(), pointers=False)
    assert block.pointers == ()
    assert block.shapes == ((0, SLOT), ())
    assert block.groups == (6 * SLOT, 7 * SLOT, 8 * SLOT)
    assert block.size == 9 * SLOT


def test_no_two_slots_overlap() -> None:
    block = ParameterBlock.of(example())
    slots = [
        *block.pointers,
        *(slot for table in (block.shapes, block.strides) for axes in table for slot in axes),
        *block.scalars,
        *block.groups,
    ]
    assert sorted(slots) == list(range(0, block.size, SLOT))
