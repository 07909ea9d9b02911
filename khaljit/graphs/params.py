"""Numbers of a graph that each of its launches sets.

While the graph is captured, a parameter stands where a number would: it is passed to kernels and
has no value. (A parameter that is an array is an `Array` which knows what it stands for.)
"""

from __future__ import annotations

from typing import Final, NoReturn, final

from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import GraphError
from khaljit.tracer.intrinsics.vectors import VectorType
from khaljit.tracer.recorder import user_site
from khaljit.tracer.records import dataclass

__all__ = ["ArrayParam", "ScalarParam", "Slot"]


class _Valueless:
    """What a number can do and a parameter cannot."""

    _name: str

    def _refuse(self, *_: object) -> NoReturn:
        raise GraphError(
            f"the graph parameter {self._name} is used as a number, and has none while its graph "
            "is captured, nor outside of its graph",
            at=user_site(),
            mend="pass it to kernels as it is, and compute with it there",
        )

    __bool__ = __int__ = __float__ = __index__ = __complex__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __array__ = _refuse


@final
class Slot(_Valueless):
    """One number of a parameter, among the numbers of a launch."""

    __slots__ = ("_name", "component", "param")

    def __init__(self, param: ScalarParam, component: int) -> None:
        self.param: Final = param
        self.component: Final = component
        self._name = param.name


@final
class ScalarParam(_Valueless):
    """A number, or a vector, that the launches of a graph set; made by ``graph.param``.

    Attributes:
        owner: tells graphs apart.
        name: by which ``graph.launch`` sets it.
        dtype: a dtype or a vector type.
    """

    def __init__(self, owner: object, name: str, dtype: DType | VectorType) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self._name = name
        self.dtype: Final = dtype
        count = dtype.count if isinstance(dtype, VectorType) else 1
        self.slots: Final = tuple(Slot(self, component) for component in range(count))

    def __repr__(self) -> str:
        return f"<graph parameter {self.name}: {self.dtype!r}>"


@final
@dataclass(frozen=True, slots=True, eq=False)
class ArrayParam:
    """What an array stands for that the launches of a graph set.

    Attributes:
        owner: tells graphs apart.
        offset: bytes from the start of the default's buffer to its first element.
    """

    owner: object
    name: str
    offset: int
