"""Write a compute kernel once, in Python; run it on any GPU, on NVIDIA and on the CPU."""

from importlib import import_module

from khaljit.devices import devices  # these two have their modules' names, so they come at once
from khaljit.jit import jit
from khaljit.tracer.intrinsics.ids import global_id  # every kernel's first question

# What else there is, by the module that it is loaded from when it is first asked for: a process
# pays for what it uses. To add a name: here, and in `__init__.pyi`.
_NAMES = {
    "khaljit.annotations": "Array1 Array2 Array3 Const",
    "khaljit.arrays": "Array",
    "khaljit.backends.base": "Device",
    "khaljit.backends.cuda.streams": "stream",
    "khaljit.cache.errors": "CacheWarning",
    "khaljit.compiler": "cache_info",
    "khaljit.devices": "current_device device use",
    "khaljit.graphs.function": "graph",
    "khaljit.grids": "Indirect Workgroups over",
    "khaljit.readback": "Readback",
    "khaljit.tracer.dtypes": "bf16 f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool",
    "khaljit.tracer.errors": (
        "ArgumentError ArgumentOverflowError ArgumentTypeError ArgumentValueError CacheError "
        "CapabilityError DeviceError GraphError InternalError KernelError KhaljitError "
        "PerformanceWarning TraceError TraceWarning"
    ),
    "khaljit.tracer.intrinsics.bits": (
        "bitcast clz ctz extract_bits insert_bits mulhi popcount reverse_bits rotate"
    ),
    "khaljit.tracer.intrinsics.ids": (
        "grid_stride index lane_id local_id local_index max_subgroups num_subgroups "
        "num_workgroups subgroup_id subgroup_size unroll workgroup_id workgroup_size"
    ),
    "khaljit.tracer.intrinsics.numbers": (
        "abs acos acosh all any asin asinh atan atan2 atanh cbrt ceil cos cosh erf erfc exp exp2 "
        "exp10 expm1 floor fma gamma hypot isfinite isinf isnan lgamma log log1p log2 log10 max "
        "maximum min minimum pow round rsqrt sign sin sincos sinh sqrt tan tanh trunc"
    ),
    "khaljit.tracer.intrinsics.packing": (
        "pack_half2x16 pack_snorm2x16 pack_snorm4x8 pack_unorm2x16 pack_unorm4x8 unpack_half2x16 "
        "unpack_snorm2x16 unpack_snorm4x8 unpack_unorm2x16 unpack_unorm4x8"
    ),
    "khaljit.tracer.intrinsics.parts": (
        "copysign fmod fract frexp ldexp modf nextafter remainder signbit"
    ),
    "khaljit.tracer.intrinsics.poses": "pose2 pose3",
    "khaljit.tracer.intrinsics.printing": "print",
    "khaljit.tracer.intrinsics.quaternions": "quat",
    "khaljit.tracer.intrinsics.random": "philox random_normal random_uniform",
    "khaljit.tracer.intrinsics.storage": (
        "atomic_add atomic_and atomic_compare_exchange atomic_exchange atomic_load atomic_max "
        "atomic_min atomic_or atomic_store atomic_sub atomic_xor barrier constant local shared "
        "storage_barrier subgroup_barrier"
    ),
    "khaljit.tracer.intrinsics.subgroup": (
        "subgroup_add subgroup_all subgroup_and subgroup_any subgroup_ballot subgroup_broadcast "
        "subgroup_broadcast_first subgroup_elect subgroup_exclusive_add subgroup_exclusive_max "
        "subgroup_exclusive_min subgroup_exclusive_mul subgroup_inclusive_add "
        "subgroup_inclusive_max subgroup_inclusive_min subgroup_inclusive_mul subgroup_max "
        "subgroup_min subgroup_mul subgroup_or subgroup_shuffle subgroup_shuffle_down "
        "subgroup_shuffle_up subgroup_shuffle_xor subgroup_xor"
    ),
    "khaljit.tracer.intrinsics.transforms": (
        "mat mat2 mat2x2 mat2x3 mat2x4 mat3 mat3x2 mat3x3 mat3x4 mat4 mat4x2 mat4x3 mat4x4"
    ),
    "khaljit.tracer.intrinsics.vectors": (
        "bvec2 bvec3 bvec4 clamp cross distance dot dvec2 dvec3 dvec4 hvec2 hvec3 hvec4 ivec2 "
        "ivec3 ivec4 length mix normalize reflect refract smoothstep step uvec2 uvec3 uvec4 vec "
        "vec2 vec3 vec4"
    ),
    "khaljit.tracer.intrinsics.workgroup": (
        "uniform workgroup_add workgroup_all workgroup_any workgroup_broadcast "
        "workgroup_exclusive_add workgroup_inclusive_add workgroup_max workgroup_min"
    ),
    "khaljit.tracer.parts": "select",
    "khaljit.tracer.structs": "struct",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}
_RENAMED = {"bool": "bool_"}

__all__ = ["devices", "global_id", "jit", *_PLACES]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # for those who ask

        return version("khaljit")
    module = _PLACES.get(name)
    if module is None:
        from khaljit.tracer.advice import of_name  # for those who misspell

        other = of_name(name)
        raise AttributeError(
            f"module 'khaljit' has no attribute {name!r}" + (f": write {other}" if other else "")
        )
    found = getattr(import_module(module), _RENAMED.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
