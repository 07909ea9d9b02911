"""Quaternions: rotations of space, as glam has them.

``x, y, z`` are the vector part and ``w`` the scalar; a rotation has length 1. ``a * b`` turns by
``b`` first, ``q * v`` turns a vector. Angles are in radians.
"""

from __future__ import annotations

from typing import Any, Final, Self

from khaljit.tracer.dtypes import f32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.instances import field_values, make
from khaljit.tracer.intrinsics.either import (
    acos,
    atan2,
    cos,
    cross,
    dot,
    maximum,
    minimum,
    refuse,
    select,
    sin,
    sqrt,
    vector,
)
from khaljit.tracer.intrinsics.transforms import mat3
from khaljit.tracer.proxy import describe
from khaljit.tracer.structs import make_struct

__all__ = ["quat"]

NEAR: Final = 0.9995  # cosine of the angle below which `slerp` interpolates along the line


class quat:  # noqa: N801  # named as dtypes are
    """A quaternion, ``kj.quat(x, y, z, w)``; on the host four f32 as the last axis."""

    x: Any
    y: Any
    z: Any
    w: Any

    # Making.

    @classmethod
    def identity(cls) -> Self:
        """The rotation that turns nothing."""
        return cls._of(0.0, 0.0, 0.0, 1.0)

    @classmethod
    def _of(cls, *items: Any) -> Self:
        made: Self = make(cls, list(vector(f32, *items)))
        return made

    @classmethod
    def from_xyzw(cls, v: Any) -> Self:
        """From a vector of four components."""
        return cls._of(*v)

    @classmethod
    def from_axis_angle(cls, axis: Any, angle: Any) -> Self:
        """A turn about a unit axis."""
        half = angle * 0.5
        return cls._of(*(axis * sin(half)), cos(half))

    @classmethod
    def from_scaled_axis(cls, v: Any) -> Self:
        """A turn about the axis that a vector points along, by its length."""
        squared = dot(v, v)
        angle = sqrt(squared)
        turns = squared > 0.0
        scale = sin(angle * 0.5) / select(turns, angle, angle + 1.0)
        return cls._of(*(v * select(turns, scale, scale * 0.0)), cos(angle * 0.5))

    @classmethod
    def from_rotation_x(cls, angle: Any) -> Self:
        """A turn about the x axis."""
        return cls._of(sin(angle * 0.5), 0.0, 0.0, cos(angle * 0.5))

    @classmethod
    def from_rotation_y(cls, angle: Any) -> Self:
        """A turn about the y axis."""
        return cls._of(0.0, sin(angle * 0.5), 0.0, cos(angle * 0.5))

    @classmethod
    def from_rotation_z(cls, angle: Any) -> Self:
        """A turn about the z axis."""
        return cls._of(0.0, 0.0, sin(angle * 0.5), cos(angle * 0.5))

    @classmethod
    def from_euler(cls, order: str, first: Any, second: Any, third: Any) -> Self:
        """Three turns, each about an axis of the turned frame: ``"zyx"`` is yaw, pitch, roll."""
        if type(order) is not str or sorted(order) != ["x", "y", "z"]:
            refuse(f"the order of axes {order!r}", 'write the three axes, as "xyz" or "zyx"')
        turns = {"x": cls.from_rotation_x, "y": cls.from_rotation_y, "z": cls.from_rotation_z}
        a, b, c = (turns[axis] for axis in order)
        made: Self = a(first) * b(second) * c(third)
        return made

    @classmethod
    def from_rotation_arc(cls, start: Any, end: Any) -> Self:
        """The shortest turn from one unit vector to another, which is not its opposite."""
        return cls._of(*cross(start, end), 1.0 + dot(start, end)).normalize()

    @classmethod
    def from_mat3(cls, m: Any) -> Self:
        """Of a rotation matrix."""
        (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = m
        # From the largest of the four: 4x, 4y, 4z and 4w squared.
        by_x = cls._of(1.0 + m00 - m11 - m22, m01 + m10, m02 + m20, m12 - m21)
        by_y = cls._of(m01 + m10, 1.0 - m00 + m11 - m22, m12 + m21, m20 - m02)
        by_z = cls._of(m02 + m20, m12 + m21, 1.0 - m00 - m11 + m22, m01 - m10)
        by_w = cls._of(m12 - m21, m20 - m02, m01 - m10, 1.0 + m00 + m11 + m22)
        xyz = _chosen(m00 > m11, _chosen(m00 > m22, by_x, by_z), _chosen(m11 > m22, by_y, by_z))
        made: Self = _chosen(m00 + m11 + m22 > 0.0, by_w, xyz).normalize()
        return made

    # Looking.

    @property
    def xyz(self) -> Any:
        """The vector part."""
        x, y, z, _ = field_values(self)
        return vector(f32, x, y, z)

    @property
    def xyzw(self) -> Any:
        """All components, as a vector."""
        return vector(f32, *field_values(self))

    def __iter__(self) -> Any:
        return iter(field_values(self))

    def dot(self, other: Any) -> Any:
        """The sum of the products of the components."""
        return dot(self.xyzw, other.xyzw)

    def length_squared(self) -> Any:
        """The square of the length."""
        return self.dot(self)

    def length(self) -> Any:
        """The length: 1 for a rotation."""
        return sqrt(self.dot(self))

    def to_axis_angle(self) -> tuple[Any, Any]:
        """The unit axis and the angle of a rotation; the x axis where it turns nothing."""
        v = self.xyz
        size = sqrt(dot(v, v))
        turns = size > 0.0
        along = v / select(turns, size, size + 1.0)
        axis = vector(f32, select(turns, along.x, along.x + 1.0), along.y, along.z)
        return axis, atan2(size, self.w) * 2.0

    def angle_between(self, other: Any) -> Any:
        """The angle of the turn from one rotation to another."""
        return acos(minimum(abs(self.dot(other)), 1.0)) * 2.0

    # Arithmetic.

    def conjugate(self) -> Self:
        """The opposite turn of a rotation."""
        x, y, z, w = field_values(self)
        return self._of(-x, -y, -z, w)

    def inverse(self) -> Self:
        """The opposite turn of a rotation."""
        return self.conjugate()

    def normalize(self) -> Self:
        """Divided by its length."""
        return self._of(*(self.xyzw / self.length()))

    def lerp(self, end: Any, t: Any) -> Self:
        """Between two rotations along the line, then normalized: ``t`` from 0 to 1."""
        a, b = self.xyzw, end.xyzw
        near = b * select(dot(a, b) < 0.0, -1.0, 1.0)
        return self._of(*(a + (near - a) * t)).normalize()

    def slerp(self, end: Any, t: Any) -> Self:
        """Between two rotations at constant speed, the shorter way: ``t`` from 0 to 1."""
        a, b = self.xyzw, end.xyzw
        cosine = dot(a, b)
        near = b * select(cosine < 0.0, -1.0, 1.0)
        angle = acos(maximum(minimum(abs(cosine), NEAR), 0.0))
        turned = (a * sin(angle * (1.0 - t)) + near * sin(angle * t)) / sin(angle)
        made: Self = _chosen(abs(cosine) > NEAR, self.lerp(end, t), self._of(*turned))
        return made

    def __neg__(self) -> Self:
        return self._of(*(-self.xyzw))

    def __add__(self, other: Any) -> Self:
        self._meets(other)
        return self._of(*(self.xyzw + other.xyzw))

    def __sub__(self, other: Any) -> Self:
        self._meets(other)
        return self._of(*(self.xyzw - other.xyzw))

    def _meets(self, other: Any) -> None:
        if not isinstance(other, quat):
            refuse(f"a quat meets {describe(other)}", "both are quaternions")

    def __mul__(self, other: Any) -> Any:
        if is_vector(other):
            return self._turned(other)
        if not isinstance(other, quat):
            return self._of(*(self.xyzw * other))
        x, y, z, w = field_values(self)
        a, b, c, d = field_values(other)
        return self._of(
            w * a + x * d + y * c - z * b,
            w * b - x * c + y * d + z * a,
            w * c + x * b - y * a + z * d,
            w * d - x * a - y * b - z * c,
        )

    def _turned(self, v: Any) -> Any:
        if len(v) != 3:
            refuse(f"a quat times {describe(v)}", "rotations turn vectors of three components")
        axis, w = self.xyz, self.w
        along = axis * (dot(v, axis) * 2.0)
        return v * (w * w - dot(axis, axis)) + along + cross(axis, v) * (w * 2.0)

    def __rmul__(self, other: Any) -> Self:
        if is_vector(other):
            refuse(f"{describe(other)} times a quat", "write the quaternion first: q * v")
        return self._of(*(self.xyzw * other))

    def __truediv__(self, other: Any) -> Self:
        return self._of(*(self.xyzw / other))

    def to_mat3(self) -> Any:
        """The rotation as a matrix."""
        return mat3.from_quat(self)


def _chosen(condition: Any, yes: Any, no: Any) -> Any:
    """One of two quaternions."""
    pairs = zip(field_values(yes), field_values(no), strict=True)
    return make(quat, [select(condition, a, b) for a, b in pairs])


make_struct(quat, dict.fromkeys("xyzw", f32), (4,))
