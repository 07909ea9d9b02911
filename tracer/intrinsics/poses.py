"""Poses: a rotation, then a translation; how rigid bodies stand in the plane and in space.

``a * b`` applies ``b`` first, ``pose * p`` moves a point. Angles are in radians.
"""

from __future__ import annotations

from typing import Any, Self

from khaljit.tracer.dtypes import f32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.instances import make
from khaljit.tracer.intrinsics.either import atan2, cos, refuse, sin, vector
from khaljit.tracer.intrinsics.quaternions import quat
from khaljit.tracer.intrinsics.transforms import mat3, mat4
from khaljit.tracer.intrinsics.vectors import vec2, vec3
from khaljit.tracer.proxy import describe
from khaljit.tracer.structs import make_struct

__all__ = ["pose2", "pose3"]


class _Pose:
    """What poses of the plane and of space have in common."""

    translation: Any

    @classmethod
    def _of(cls, rotation: Any, translation: Any) -> Self:
        made: Self = make(cls, [rotation, translation])
        return made

    def inverse(self) -> Self:
        """The pose that undoes this one."""
        raise NotImplementedError

    def _after(self, other: Any) -> Self:
        raise NotImplementedError

    def transform_point(self, point: Any) -> Any:
        """A point of the body's frame in the world's."""
        return self.transform_vector(point) + self.translation

    def inverse_transform_point(self, point: Any) -> Any:
        """A point of the world's frame in the body's."""
        return self.inverse_transform_vector(point - self.translation)

    def transform_vector(self, v: Any) -> Any:
        """A direction of the body's frame in the world's."""
        raise NotImplementedError

    def inverse_transform_vector(self, v: Any) -> Any:
        """A direction of the world's frame in the body's."""
        raise NotImplementedError

    def inv_mul(self, other: Any) -> Any:
        """``self.inverse() * other``: the other pose as this one sees it."""
        return self.inverse() * other

    def __mul__(self, other: Any) -> Any:
        if is_vector(other):
            return self.transform_point(other)
        if not isinstance(other, type(self)):
            refuse(
                f"a {type(self).__name__} times {describe(other)}",
                "poses move points (vectors) and poses of their own kind",
            )
        return self._after(other)


class pose2(_Pose):  # noqa: N801  # named as dtypes are
    """A pose of the plane, ``kj.pose2(rotation, translation)``.

    Attributes:
        rotation: cosine and sine of the angle.
        translation: where the body's origin is.
    """

    rotation: Any

    @classmethod
    def identity(cls) -> Self:
        """The pose that moves nothing."""
        return cls._of(vec2(1.0, 0.0), vec2(0.0))

    @classmethod
    def from_angle(cls, angle: Any, translation: Any = (0.0, 0.0)) -> Self:
        """A turn counterclockwise, then a translation."""
        return cls._of(vector(f32, cos(angle), sin(angle)), vec2(*translation))

    @classmethod
    def from_translation(cls, translation: Any) -> Self:
        """A translation."""
        return cls._of(vec2(1.0, 0.0), vec2(*translation))

    @property
    def angle(self) -> Any:
        """The angle of the rotation, from -pi to pi."""
        return atan2(self.rotation.y, self.rotation.x)

    def transform_vector(self, v: Any) -> Any:
        """A direction of the body's frame in the world's."""
        c, s = self.rotation
        return vector(f32, c * v.x - s * v.y, s * v.x + c * v.y)

    def inverse_transform_vector(self, v: Any) -> Any:
        """A direction of the world's frame in the body's."""
        c, s = self.rotation
        return vector(f32, c * v.x + s * v.y, c * v.y - s * v.x)

    def inverse(self) -> Self:
        """The pose that undoes this one."""
        c, s = self.rotation
        return self._of(vector(f32, c, -s), self.inverse_transform_vector(-self.translation))

    def _after(self, other: Any) -> Self:
        turned = self.transform_vector(other.rotation)
        return self._of(turned, self.transform_point(other.translation))

    def to_mat3(self) -> Any:
        """The pose as a matrix of the plane."""
        c, s = self.rotation
        return mat3._of_items([(c, s, 0.0), (-s, c, 0.0), (*self.translation, 1.0)], 3)


class pose3(_Pose):  # noqa: N801
    """A pose of space, ``kj.pose3(rotation, translation)``.

    Attributes:
        rotation: a unit quaternion.
        translation: where the body's origin is.
    """

    rotation: quat

    @classmethod
    def identity(cls) -> Self:
        """The pose that moves nothing."""
        return cls._of(quat.identity(), vec3(0.0))

    @classmethod
    def from_axis_angle(cls, axis: Any, angle: Any, translation: Any = (0.0, 0.0, 0.0)) -> Self:
        """A turn about a unit axis, then a translation."""
        return cls._of(quat.from_axis_angle(axis, angle), vec3(*translation))

    @classmethod
    def from_rotation(cls, rotation: Any) -> Self:
        """The rotation of a unit quaternion."""
        return cls._of(rotation, vec3(0.0))

    @classmethod
    def from_translation(cls, translation: Any) -> Self:
        """A translation."""
        return cls._of(quat.identity(), vec3(*translation))

    @classmethod
    def look_at(cls, eye: Any, center: Any, up: Any) -> Self:
        """The pose of a camera at ``eye`` whose -z axis points to ``center``."""
        view = mat4.look_at_rh(eye, center, up)
        return cls._of(quat.from_mat3(mat3.from_mat4(view).transpose()), eye)

    @classmethod
    def from_mat4(cls, m: Any) -> Self:
        """Of a matrix of a rotation and a translation."""
        return cls._of(quat.from_mat3(mat3.from_mat4(m)), m.w_axis.xyz)

    def transform_vector(self, v: Any) -> Any:
        """A direction of the body's frame in the world's."""
        return self.rotation * v

    def inverse_transform_vector(self, v: Any) -> Any:
        """A direction of the world's frame in the body's."""
        return self.rotation.conjugate() * v

    def inverse(self) -> Self:
        """The pose that undoes this one."""
        back = self.rotation.conjugate()
        return self._of(back, back * -self.translation)

    def _after(self, other: Any) -> Self:
        turned = self.rotation * other.rotation
        return self._of(turned, self.transform_point(other.translation))

    def lerp(self, end: Any, t: Any) -> Self:
        """Between two poses, the rotation at constant speed: ``t`` from 0 to 1."""
        start = self.translation
        moved = start + (end.translation - start) * t
        return self._of(self.rotation.slerp(end.rotation, t), moved)

    def to_mat4(self) -> Any:
        """The pose as a matrix."""
        return mat4.from_rotation_translation(self.rotation, self.translation)


make_struct(pose2, {"rotation": vec2, "translation": vec2})
make_struct(pose3, {"rotation": quat, "translation": vec3})
