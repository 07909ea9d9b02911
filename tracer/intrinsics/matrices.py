"""Matrices: structs of columns, as WGSL and glam have them.

``matCxR`` has C columns of R rows, ``mat3`` is ``mat3x3``. In memory the columns lie one behind
the other, so on the host an array of matrices has the axes (..., C, R): ``a[i, column, row]``.
``m[k]`` is a column. Angles are in radians; depths of projections reach from 0 to 1.

A product of matrices is ``a * b`` or ``a @ b``; ``m * v`` transforms a column, ``v * m`` a row.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar, Final, Self

from khaljit.tracer.dtypes import DType, f32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.intrinsics.either import (
    cos,
    cross,
    dot,
    normalize,
    refuse,
    select,
    sin,
    tan,
    vector,
)
from khaljit.tracer.parts import choose_item
from khaljit.tracer.proxy import Scalar, describe
from khaljit.tracer.structs import field_values, make, make_struct
from khaljit.tracer.vectors import vec

__all__ = [
    "Matrix",
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

_AXES: Final = ("x_axis", "y_axis", "z_axis", "w_axis")


class Matrix:
    """What all matrices have.

    Attributes:
        x_axis y_axis z_axis w_axis: the columns.
    """

    columns: ClassVar[int]
    rows: ClassVar[int]
    scalar: ClassVar[DType]

    # Making.

    @classmethod
    def from_cols(cls, *columns: Any) -> Self:
        """From as many vectors as it has columns."""
        return cls._of_items([_listed(one, cls.rows, "a column") for one in columns], cls.columns)

    @classmethod
    def from_rows(cls, *rows: Any) -> Self:
        """From as many vectors as it has rows."""
        listed = [_listed(one, cls.columns, "a row") for one in rows]
        if len(listed) != cls.rows:
            refuse(f"{cls.__name__} got {len(listed)} rows", f"pass {cls.rows} vectors")
        return cls._of_items(list(zip(*listed, strict=True)), cls.columns)

    @classmethod
    def zero(cls) -> Self:
        """The matrix of zeros."""
        return cls._of_items([(0.0,) * cls.rows] * cls.columns, cls.columns)

    @classmethod
    def _of_items(cls, columns: Any, count: int) -> Self:
        if len(columns) != count:
            refuse(f"{cls.__name__} got {len(columns)} columns", f"pass {count} vectors")
        kind = vec(cls.rows, cls.scalar)
        made: Self = make(cls, [kind(*one) for one in columns])
        return made

    @staticmethod
    def _of(columns: list[Any]) -> Any:
        """A matrix of the type that some vectors are the columns of."""
        return make(mat(len(columns), len(columns[0]), columns[0].dtype), columns)

    # Parts.

    def col(self, place: Any) -> Any:
        """A column by its number, which may be known at run time only."""
        columns = field_values(self)
        if isinstance(place, Scalar):
            return choose_item(tuple(columns), place)
        self._check(place, self.columns, "columns")
        return columns[place]

    def row(self, place: Any) -> Any:
        """A row by its number."""
        if not isinstance(place, Scalar):
            self._check(place, self.rows, "rows")
        return vector(self.scalar, *(column[place] for column in field_values(self)))

    def _check(self, place: Any, count: int, what: str) -> None:
        if type(place) is not int or not 0 <= place < count:
            refuse(f"{type(self).__name__} has no {what} {place!r}", f"it has {count} {what}")

    __getitem__ = col

    def __kj_with_item__(self, place: Any, column: Any) -> Self:
        """The matrix with another column."""
        kind = vec(self.rows, self.scalar)
        if not is_vector(column) or len(column) != self.rows:
            refuse(f"{describe(column)} is assigned to a column", f"assign a {kind}")
        columns = field_values(self)
        new = kind(column)
        if isinstance(place, Scalar):
            place_is: Any = place.__eq__  # recorded
            columns = [select(place_is(k), new, old) for k, old in enumerate(columns)]
        else:
            self._check(place, self.columns, "columns")
            columns[place] = new
        made: Self = make(type(self), columns)
        return made

    def __iter__(self) -> Any:
        return iter(field_values(self))

    def __len__(self) -> int:
        return self.columns

    # Arithmetic.

    def transpose(self) -> Any:
        """Rows as columns."""
        return self._of([self.row(place) for place in range(self.rows)])

    def __neg__(self) -> Self:
        made: Self = self._of([-one for one in field_values(self)])
        return made

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, other)

    def _with(self, function: Any, other: Any) -> Any:
        if not isinstance(other, Matrix) or (other.columns, other.rows) != (
            self.columns,
            self.rows,
        ):
            refuse(
                f"{type(self).__name__} meets {describe(other)}",
                "both are matrices with equal numbers of columns and rows",
            )
        pairs = zip(field_values(self), field_values(other), strict=True)
        return self._of([function(a, b) for a, b in pairs])

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Matrix):
            self._meets(other.rows, describe(other))
            return self._of([self._transform(column) for column in field_values(other)])
        if is_vector(other):
            self._meets(len(other), describe(other))
            return self._transform(other)
        return self._of([column * other for column in field_values(self)])

    __matmul__ = __mul__

    def _meets(self, rows: int, what: str) -> None:
        if rows != self.columns:
            refuse(
                f"{type(self).__name__} times {what}",
                f"what stands right has {self.columns} rows, one for each column",
            )

    def _transform(self, v: Any) -> Any:
        products = [column * item for column, item in zip(field_values(self), v, strict=True)]
        return functools.reduce(operator.add, products)

    def __rmul__(self, other: Any) -> Any:
        if is_vector(other):
            if len(other) != self.rows:
                refuse(f"{describe(other)} times {type(self).__name__}", "a row is as long as rows")
            return vector(self.scalar, *(dot(other, column) for column in field_values(self)))
        return self._of([column * other for column in field_values(self)])

    __rmatmul__ = __rmul__

    def __truediv__(self, other: Any) -> Any:
        return self._of([column / other for column in field_values(self)])


class _Square(Matrix):
    """What matrices with as many rows as columns have."""

    @classmethod
    def identity(cls) -> Self:
        """Ones on the diagonal."""
        return cls.from_diagonal((1.0,) * cls.rows)

    @classmethod
    def from_diagonal(cls, diagonal: Any) -> Self:
        """From the vector on the diagonal."""
        items = _listed(diagonal, cls.rows, "a diagonal")
        n = range(cls.rows)
        return cls._of_items([[items[k] if j == k else 0.0 for j in n] for k in n], cls.columns)

    def determinant(self) -> Any:
        """The determinant."""
        return _determinant([list(column) for column in field_values(self)])

    def inverse(self) -> Self:
        """The inverse; of a matrix without one, infinities and NaNs."""
        columns = [list(column) for column in field_values(self)]
        n = range(self.rows)
        cofactors = [[_cofactor(columns, k, j) for j in n] for k in n]
        first, *rest = (a * b for a, b in zip(columns[0], cofactors[0], strict=True))
        scale = 1.0 / sum(rest, start=first)
        return self._of_items([[cofactors[k][j] * scale for k in n] for j in n], self.columns)


# Equal minors are one value in a trace, so that expanding each by itself costs nothing.


def _cofactor(columns: list[list[Any]], column: int, row: int) -> Any:
    """The determinant without a column and a row, with the sign of its place."""
    inner = [
        [item for j, item in enumerate(one) if j != row]
        for k, one in enumerate(columns)
        if k != column
    ]
    minor = _determinant(inner)
    return -minor if (column + row) % 2 else minor


def _determinant(columns: list[list[Any]]) -> Any:
    if len(columns) == 1:
        return columns[0][0]
    if len(columns) == 2:
        (a, b), (c, d) = columns
        return a * d - c * b
    terms = [item * _cofactor(columns, 0, row) for row, item in enumerate(columns[0])]
    return sum(terms[1:], start=terms[0])


def _listed(value: Any, count: int, what: str) -> list[Any]:
    """The numbers of a vector or sequence."""
    items = list(value) if hasattr(value, "__len__") else []
    if len(items) != count:
        refuse(f"{describe(value)} as {what}", f"pass {count} numbers")
    return items


_FOUND: Final[dict[tuple[int, int, DType], Any]] = {}


def _matrix(cls: Any, columns: int, rows: int, dtype: DType = f32) -> Any:
    """Make a matrix type of a class."""
    cls.columns, cls.rows, cls.scalar = columns, rows, dtype
    kinds = dict.fromkeys(_AXES[:columns], vec(rows, dtype))
    found = make_struct(cls, kinds, (columns, rows))
    return _FOUND.setdefault((columns, rows, dtype), found)


def mat(columns: int, rows: int, dtype: DType = f32) -> Any:
    """The matrix type with so many columns and rows of a dtype, 2 to 4 each.

    >>> mat(2, 3)
    <class 'khaljit.tracer.intrinsics.matrices.mat2x3'>
    """
    found = _FOUND.get((columns, rows, dtype))
    if found is not None:
        return found
    if columns not in (2, 3, 4) or rows not in (2, 3, 4) or not dtype.is_float:
        raise ValueError(f"no matrix has {columns} columns and {rows} rows of {dtype}")
    name = f"mat({columns}, {rows}, {dtype})" if dtype is not f32 else f"mat{columns}x{rows}"
    base = _Square if columns == rows else Matrix
    body = {"__module__": __name__, "__doc__": f"A matrix of {columns} columns and {rows} rows."}
    return _matrix(type(name, (base,), body), columns, rows, dtype)


class mat2(_Square):  # noqa: N801  # named as dtypes are
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


class mat3(_Square):  # noqa: N801
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
        x, y = _listed(offset, 2, "a translation")
        return cls._of_items([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (x, y, 1.0)], 3)

    @classmethod
    def from_scale_angle_translation(cls, scale: Any, angle: Any, offset: Any) -> Self:
        """A scale of the plane along each axis, then a turn, then a translation."""
        (sx, sy), (x, y) = _listed(scale, 2, "a scale"), _listed(offset, 2, "a translation")
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


class mat4(_Square):  # noqa: N801
    """A matrix of 4 columns and 4 rows: of space with translation and projection."""

    @classmethod
    def from_mat3(cls, m: Any, translation: Any = (0.0, 0.0, 0.0)) -> Self:
        """A linear map of space, then a translation."""
        columns = [[*column, 0.0] for column in m]
        return cls._of_items([*columns, [*_listed(translation, 3, "a translation"), 1.0]], 4)

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
    _matrix(_kind, _size, _size)
mat2x2, mat3x3, mat4x4 = mat2, mat3, mat4
mat2x3, mat2x4, mat3x2 = mat(2, 3), mat(2, 4), mat(3, 2)
mat3x4, mat4x2, mat4x3 = mat(3, 4), mat(4, 2), mat(4, 3)
