"""Matrices: structs of columns, as WGSL and glam have them.

``matCxR`` has C columns of R rows, ``mat3`` is ``mat3x3``. In memory the columns lie one behind
the other, so on the host an array of matrices has the axes (..., C, R): ``a[i, column, row]``.
``m[k]`` is a column.

A product of matrices is ``a * b`` or ``a @ b``; ``m * v`` transforms a column, ``v * m`` a row.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar, Final, Self

from khaljit.tracer.dtypes import DType, f32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.instances import field_values, make
from khaljit.tracer.intrinsics.either import dot, refuse, select, vector
from khaljit.tracer.parts import choose_item
from khaljit.tracer.proxy import Scalar, describe
from khaljit.tracer.recorder import recording
from khaljit.tracer.structs import make_struct
from khaljit.tracer.vectors import vec

__all__ = ["Matrix", "Square", "listed", "mat", "register"]

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
        return cls._of_items([listed(one, cls.rows, "a column") for one in columns], cls.columns)

    @classmethod
    def from_rows(cls, *rows: Any) -> Self:
        """From as many vectors as it has rows."""
        items = [listed(one, cls.columns, "a row") for one in rows]
        if len(items) != cls.rows:
            refuse(f"{cls.__name__} got {len(items)} rows", f"pass {cls.rows} vectors")
        return cls._of_items(list(zip(*items, strict=True)), cls.columns)

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

    def __setitem__(self, place: Any, column: Any) -> None:
        recorder = recording()
        if recorder is not None:  # where the code is not rewritten
            recorder.assign(column)
            return
        self._check(place, self.columns, "columns")
        setattr(self, _AXES[place], column)

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


class Square(Matrix):
    """What matrices with as many rows as columns have."""

    @classmethod
    def identity(cls) -> Self:
        """Ones on the diagonal."""
        return cls.from_diagonal((1.0,) * cls.rows)

    @classmethod
    def from_diagonal(cls, diagonal: Any) -> Self:
        """From the vector on the diagonal."""
        items = listed(diagonal, cls.rows, "a diagonal")
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


def listed(value: Any, count: int, what: str) -> list[Any]:
    """The numbers of a vector or sequence."""
    items = list(value) if hasattr(value, "__len__") else []
    if len(items) != count:
        refuse(f"{describe(value)} as {what}", f"pass {count} numbers")
    return items


_FOUND: Final[dict[tuple[int, int, DType], Any]] = {}


def register(cls: Any, columns: int, rows: int, dtype: DType = f32) -> Any:
    """Make a matrix type of a class, the one that `mat` gives."""
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
    base = Square if columns == rows else Matrix
    body = {"__module__": __name__, "__doc__": f"A matrix of {columns} columns and {rows} rows."}
    return register(type(name, (base,), body), columns, rows, dtype)
