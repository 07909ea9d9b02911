"""Square matrices as transformations: rotations, scales, translations, views and projections.

As glam has them. Angles are in radians; depths of projections reach from 0 to 1.
"""

from __future__ import annotations

from typing import Any, Self

from khaljit.tracer.instances import field_values
from khaljit.tracer.intrinsics.either import cos, cross, dot, normalize, sin, tan
from khaljit.tracer.intrinsics.matrices import Square, listed, mat, register

__all__ = [
    "mat",
    "mat2",
    "mat2x2",
    "mat2x3",
    "mat2x4",
    "mat3",
    "mat3x2",
    "mat3x3",
    "mat3x4",
    "mat4",
    "mat4x2",
    "mat4x3",
    "mat4x4",
]


class mat2(Square):  # noqa: N801  # named as dtypes are
    """A matrix of 2 columns and 2 rows."""

    @classmethod
    def from_angle(cls, angle: Any) -> Self:
        """A turn counterclockwise."""
        c, s = cos(angle), sin(angle)
        return cls._of_items([(c, s), (-s, c)], 2)

    @classmethod
    def from_scale_angle(cls, scale: Any, angle: Any) -> Self:
        """A scale along each axis, then a turn."""
        made: Self = cls.from_angle(angle) * cls.from_diagonal(scale)
        return made


class mat3(Square):  # noqa: N801
    """A matrix of 3 columns and 3 rows: of space, or of the plane with translation."""

    @classmethod
    def from_axis_angle(cls, axis: Any, angle: Any) -> Self:
        """A turn about a unit axis."""
        c, s = cos(angle), sin(angle)
        x, y, z = axis * s
        t = axis * (1.0 - c)
        xx, yy, zz = axis * t
        xy, xz, yz = t.x * axis.y, t.x * axis.z, t.y * axis.z
        rows = ((xx + c, xy - z, xz + y), (xy + z, yy + c, yz - x), (xz - y, yz + x, zz + c))
        return cls.from_rows(*rows)

    @classmethod
    def from_rotation_x(cls, angle: Any) -> Self:
        """A turn about the x axis."""
        c, s = cos(angle), sin(angle)
        return cls._of_items([(1.0, 0.0, 0.0), (0.0, c, s), (0.0, -s, c)], 3)

    @classmethod
    def from_rotation_y(cls, angle: Any) -> Self:
        """A turn about the y axis."""
        c, s = cos(angle), sin(angle)
        return cls._of_items([(c, 0.0, -s), (0.0, 1.0, 0.0), (s, 0.0, c)], 3)

    @classmethod
    def from_rotation_z(cls, angle: Any) -> Self:
        """A turn about the z axis."""
        c, s = cos(angle), sin(angle)
        return cls._of_items([(c, s, 0.0), (-s, c, 0.0), (0.0, 0.0, 1.0)], 3)

    @classmethod
    def from_quat(cls, rotation: Any) -> Self:
        """The rotation of a unit quaternion."""
        x, y, z, w = rotation
        x2, y2, z2 = x + x, y + y, z + z
        xx, xy, xz = x * x2, x * y2, x * z2
        yy, yz, zz = y * y2, y * z2, z * z2
        wx, wy, wz = w * x2, w * y2, w * z2
        return cls._of_items(
            [
                (1.0 - (yy + zz), xy + wz, xz - wy),
                (xy - wz, 1.0 - (xx + zz), yz + wx),
                (xz + wy, yz - wx, 1.0 - (xx + yy)),
            ],
            3,
        )

    @classmethod
    def from_mat4(cls, m: Any) -> Self:
        """The upper left part of a matrix of 4 columns."""
        return cls._of_items([column.xyz for column in list(m)[:3]], 3)

    @classmethod
    def from_translation(cls, offset: Any) -> Self:
        """A translation of the plane."""
        x, y = listed(offset, 2, "a translation")
        return cls._of_items([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (x, y, 1.0)], 3)

    @classmethod
    def from_scale_angle_translation(cls, scale: Any, angle: Any, offset: Any) -> Self:
        """A scale of the plane along each axis, then a turn, then a translation."""
        (sx, sy), (x, y) = listed(scale, 2, "a scale"), listed(offset, 2, "a translation")
        c, s = cos(angle), sin(angle)
        return cls._of_items([(c * sx, s * sx, 0.0), (-s * sy, c * sy, 0.0), (x, y, 1.0)], 3)

    def transform_point2(self, point: Any) -> Any:
        """A point of the plane, moved by the third column."""
        x, y, z = field_values(self)
        return (x * point.x + y * point.y + z).xy

    def transform_vector2(self, v: Any) -> Any:
        """A direction of the plane."""
        x, y, _ = field_values(self)
        return (x * v.x + y * v.y).xy


class mat4(Square):  # noqa: N801
    """A matrix of 4 columns and 4 rows: of space with translation and projection."""

    @classmethod
    def from_mat3(cls, m: Any, translation: Any = (0.0, 0.0, 0.0)) -> Self:
        """A linear map of space, then a translation."""
        columns = [[*column, 0.0] for column in m]
        return cls._of_items([*columns, [*listed(translation, 3, "a translation"), 1.0]], 4)

    @classmethod
    def from_translation(cls, offset: Any) -> Self:
        """A translation."""
        return cls.from_mat3(mat3.identity(), offset)

    @classmethod
    def from_scale(cls, scale: Any) -> Self:
        """A scale along each axis."""
        return cls.from_mat3(mat3.from_diagonal(scale))

    @classmethod
    def from_quat(cls, rotation: Any) -> Self:
        """The rotation of a unit quaternion."""
        return cls.from_mat3(mat3.from_quat(rotation))

    @classmethod
    def from_axis_angle(cls, axis: Any, angle: Any) -> Self:
        """A turn about a unit axis."""
        return cls.from_mat3(mat3.from_axis_angle(axis, angle))

    @classmethod
    def from_rotation_x(cls, angle: Any) -> Self:
        """A turn about the x axis."""
        return cls.from_mat3(mat3.from_rotation_x(angle))

    @classmethod
    def from_rotation_y(cls, angle: Any) -> Self:
        """A turn about the y axis."""
        return cls.from_mat3(mat3.from_rotation_y(angle))

    @classmethod
    def from_rotation_z(cls, angle: Any) -> Self:
        """A turn about the z axis."""
        return cls.from_mat3(mat3.from_rotation_z(angle))

    @classmethod
    def from_rotation_translation(cls, rotation: Any, translation: Any) -> Self:
        """The rotation of a unit quaternion, then a translation."""
        return cls.from_mat3(mat3.from_quat(rotation), translation)

    @classmethod
    def from_scale_rotation_translation(cls, scale: Any, rotation: Any, translation: Any) -> Self:
        """A scale along each axis, then the rotation of a unit quaternion, then a translation."""
        turned = mat3.from_quat(rotation) * mat3.from_diagonal(scale)
        return cls.from_mat3(turned, translation)

    @classmethod
    def look_to_lh(cls, eye: Any, direction: Any, up: Any) -> Self:
        """The view from ``eye`` along a unit direction, in a left-handed space."""
        side = normalize(cross(up, direction))
        above = cross(direction, side)
        rows = ((*axis, -dot(eye, axis)) for axis in (side, above, direction))
        return cls.from_rows(*rows, (0.0, 0.0, 0.0, 1.0))

    @classmethod
    def look_to_rh(cls, eye: Any, direction: Any, up: Any) -> Self:
        """The view from ``eye`` along a unit direction, in a right-handed space."""
        return cls.look_to_lh(eye, -direction, up)

    @classmethod
    def look_at_lh(cls, eye: Any, center: Any, up: Any) -> Self:
        """The view from ``eye`` to ``center``, in a left-handed space."""
        return cls.look_to_lh(eye, normalize(center - eye), up)

    @classmethod
    def look_at_rh(cls, eye: Any, center: Any, up: Any) -> Self:
        """The view from ``eye`` to ``center``, in a right-handed space."""
        return cls.look_to_rh(eye, normalize(center - eye), up)

    @classmethod
    def perspective_lh(cls, fov_y: Any, aspect: Any, near: Any, far: Any) -> Self:
        """A perspective of a left-handed space.

        Args:
            fov_y: the angle of view from bottom to top.
            aspect: width by height.
            near: the distance whose depth is 0.
            far: the distance whose depth is 1.
        """
        return cls._perspective(fov_y, aspect, far / (far - near), near, 1.0)

    @classmethod
    def perspective_rh(cls, fov_y: Any, aspect: Any, near: Any, far: Any) -> Self:
        """A perspective of a right-handed space; see `perspective_lh`."""
        return cls._perspective(fov_y, aspect, far / (near - far), near, -1.0)

    @classmethod
    def _perspective(cls, fov_y: Any, aspect: Any, depth: Any, near: Any, sign: float) -> Self:
        height = 1.0 / tan(fov_y * 0.5)
        return cls._of_items(
            [
                (height / aspect, 0.0, 0.0, 0.0),
                (0.0, height, 0.0, 0.0),
                (0.0, 0.0, depth, sign),
                (0.0, 0.0, -near * depth * sign, 0.0),
            ],
            4,
        )

    @classmethod
    def perspective_infinite_reverse_rh(cls, fov_y: Any, aspect: Any, near: Any) -> Self:
        """A perspective of a right-handed space without end: depth 1 at ``near``, 0 far away."""
        height = 1.0 / tan(fov_y * 0.5)
        return cls._of_items(
            [
                (height / aspect, 0.0, 0.0, 0.0),
                (0.0, height, 0.0, 0.0),
                (0.0, 0.0, 0.0, -1.0),
                (0.0, 0.0, near, 0.0),
            ],
            4,
        )

    @classmethod
    def orthographic_lh(
        cls, left: Any, right: Any, bottom: Any, top: Any, near: Any, far: Any
    ) -> Self:
        """A parallel projection of a box of a left-handed space."""
        depth = 1.0 / (far - near)
        return cls._orthographic(left, right, bottom, top, depth, -near * depth)

    @classmethod
    def orthographic_rh(
        cls, left: Any, right: Any, bottom: Any, top: Any, near: Any, far: Any
    ) -> Self:
        """A parallel projection of a box of a right-handed space."""
        depth = 1.0 / (near - far)
        return cls._orthographic(left, right, bottom, top, depth, near * depth)

    @classmethod
    def _orthographic(
        cls, left: Any, right: Any, bottom: Any, top: Any, depth: Any, offset: Any
    ) -> Self:
        width, height = 1.0 / (right - left), 1.0 / (top - bottom)
        return cls._of_items(
            [
                (width + width, 0.0, 0.0, 0.0),
                (0.0, height + height, 0.0, 0.0),
                (0.0, 0.0, depth, 0.0),
                (-(left + right) * width, -(top + bottom) * height, offset, 1.0),
            ],
            4,
        )

    def transform_point3(self, point: Any) -> Any:
        """A point, moved by the fourth column; the last row is taken for 0, 0, 0, 1."""
        x, y, z, w = field_values(self)
        return (x * point.x + y * point.y + z * point.z + w).xyz

    def transform_vector3(self, v: Any) -> Any:
        """A direction."""
        x, y, z, _ = field_values(self)
        return (x * v.x + y * v.y + z * v.z).xyz

    def project_point3(self, point: Any) -> Any:
        """A point, divided by its fourth coordinate after the transformation."""
        x, y, z, w = field_values(self)
        found = x * point.x + y * point.y + z * point.z + w
        return found.xyz / found.w


for _size, _kind in ((2, mat2), (3, mat3), (4, mat4)):
    register(_kind, _size, _size)
mat2x2, mat3x3, mat4x4 = mat2, mat3, mat4
mat2x3, mat2x4, mat3x2 = mat(2, 3), mat(2, 4), mat(3, 2)
mat3x4, mat4x2, mat4x3 = mat(3, 4), mat(4, 2), mat(4, 3)
