"""Vector types and functions of vectors."""

from __future__ import annotations

from typing import Any

from khaljit.tracer.arithmetic import compare, select
from khaljit.tracer.coerce import like
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.intrinsics.numbers import max, min, sqrt
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Vector, fail, live
from khaljit.tracer.vectors import VECTORS, VectorType, vec

__all__ = [
    "VECTORS",
    "VectorType",
    "bvec2",
    "bvec3",
    "bvec4",
    "clamp",
    "cross",
    "distance",
    "dot",
    "dvec2",
    "dvec3",
    "dvec4",
    "hvec2",
    "hvec3",
    "hvec4",
    "ivec2",
    "ivec3",
    "ivec4",
    "length",
    "mix",
    "normalize",
    "reflect",
    "refract",
    "smoothstep",
    "step",
    "uvec2",
    "uvec3",
    "uvec4",
    "vec",
    "vec2",
    "vec3",
    "vec4",
]


(vec2, vec3, vec4, ivec2, ivec3, ivec4, uvec2, uvec3, uvec4) = VECTORS[:9]
(dvec2, dvec3, dvec4, hvec2, hvec3, hvec4, bvec2, bvec3, bvec4) = VECTORS[9:]


def dot(a: Any, b: Any) -> Any:
    """The scalar product: a.x*b.x + a.y*b.y + ..., summed in that order."""
    products = a * b
    result = products[0]
    for item in products.items[1:]:
        result = result + item
    return result


def cross(a: Any, b: Any) -> Any:
    """The vector product of two vectors of three components."""
    if len(a) != 3 or len(b) != 3:
        fail("kj.cross takes vectors of three components")
    return Vector(
        live(a),
        (
            a[1] * b[2] - a[2] * b[1],
            a[2] * b[0] - a[0] * b[2],
            a[0] * b[1] - a[1] * b[0],
        ),
    )


def length(v: Any) -> Any:
    """The Euclidean length."""
    return sqrt(dot(v, v))


def distance(a: Any, b: Any) -> Any:
    """The Euclidean distance of two points."""
    return length(a - b)


def normalize(v: Any) -> Any:
    """The vector divided by its length."""
    return v / length(v)


def mix(a: Any, b: Any, t: Any) -> Any:
    """a + (b - a) * t."""
    return a + (b - a) * t


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x, but at least ``low`` and at most ``high``."""
    return min(max(x, low), high)


def step(edge: Any, x: Any) -> Any:
    """0 below the edge, else 1, in the type of x."""
    if is_vector(x):
        return x.mapped(lambda item: step(edge, item))
    return select(compare(Op.LT, x, edge), like(x, 0), like(x, 1))


def smoothstep(low: Any, high: Any, x: Any) -> Any:
    """0 below ``low``, 1 above ``high``, a smooth cubic between."""
    t = clamp((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def reflect(v: Any, normal: Any) -> Any:
    """``v`` mirrored at the plane with a unit normal."""
    return v - normal * (2.0 * dot(normal, v))


def refract(v: Any, normal: Any, ratio: Any) -> Any:
    """The refraction of a unit vector; zero on total internal reflection."""
    cosine = dot(normal, v)
    inside = 1.0 - ratio * ratio * (1.0 - cosine * cosine)
    bent = v * ratio - normal * (ratio * cosine + sqrt(max(inside, 0.0)))
    return select(compare(Op.LT, inside, 0.0), bent * 0.0, bent)
