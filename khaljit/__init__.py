"""Write a compute kernel once, in Python; run it on any GPU, on NVIDIA and on the CPU."""

from khaljit.annotations import Array1, Array2, Array3, Const
from khaljit.arrays import Array
from khaljit.devices import current_device, device, devices, use
from khaljit.grids import Workgroups, over
from khaljit.jit import jit
from khaljit.tracer.dtypes import (
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.dtypes import (
    bool_ as bool,
)
from khaljit.tracer.errors import *
from khaljit.tracer.intrinsics import *
