"""`tracer.records.dataclass` makes what the standard library's makes."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from dataclasses import field
from typing import Any, Final

import pytest

from khaljit.tracer import records


def both(**options: bool) -> list[Any]:
    """One class by either decorator."""
    made: list[Any] = []
    for decorator in (dataclasses.dataclass, records.dataclass):

        @decorator(slots=True, **options)
        class Point:
            """A point."""

            LIMIT = 5  # no field
            x: float
            y: object = None
            names: tuple[str, ...] = ()
            seen: list[int] = field(default_factory=list)
            at: int = field(compare=False, default=0)

            def norm(self) -> float:
                return self.x * self.LIMIT

            @property
            def twice(self) -> float:
                return 2 * self.x

            @classmethod
            def origin(cls) -> Any:
                made: Any = cls
                return made(0.0)

        made.append(Point)
    return made


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("eq", [True, False])
def test_instances_are_as_the_standard_librarys(frozen: bool, eq: bool) -> None:
    standard, own = both(frozen=frozen, eq=eq)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1.0,), {}),
        ((1.0, 2, ("a",), [3], 4), {}),
        ((1.0,), {"at": 7}),
        ((), {"names": ("b",), "x": math.nan}),
    ]
    for args, named in calls:
        one, other = standard(*args, **named), own(*args, **named)
        assert repr(one) == repr(other)
        assert dataclasses.asdict(one).keys() == dataclasses.asdict(other).keys()
        assert one.norm() == other.norm() or math.isnan(one.x)
        assert own.origin().twice == 0
    assert own.__match_args__ == standard.__match_args__
    assert own.__slots__ == standard.__slots__
    assert [one.name for one in dataclasses.fields(own)] == [
        one.name for one in dataclasses.fields(standard)
    ]
    assert own.__doc__ == "A point."
    assert own.__qualname__ == standard.__qualname__
    assert not hasattr(own(1.0), "__dict__")


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("eq", [True, False])
def test_equality_and_hashes_are_too(frozen: bool, eq: bool) -> None:
    for made in both(frozen=frozen, eq=eq):
        shared: list[int] = []
        assert (made(1.0, 2, (), shared) == made(1.0, 2, (), shared)) == eq
        assert (made(1.0, 2, (), shared, 3) == made(1.0, 2, (), shared, 4)) == eq
        assert made(1.0) != made(2.0)
        assert made(1.0) != (1.0, None, (), [], 0)
        assert (made.__hash__ is None) == (eq and not frozen)
        if eq and frozen:
            with pytest.raises(TypeError, match="unhashable"):
                hash(made(1.0))
        elif not eq:
            hash(made(1.0))


def test_records_are_equal_as_tuples_of_their_fields_are() -> None:
    """A NaN is itself there; it is not in the standard library's since Python 3.13."""
    made = both(eq=True)[1]
    assert made(1.0, math.nan) == made(1.0, math.nan)
    assert made(1.0, math.nan) != made(1.0, float("nan"))


@records.dataclass(frozen=True, slots=True)
class Pair:
    a: int
    b: str = "b"
    site: int = field(compare=False, default=0)


def test_hashes_ignore_what_is_not_compared() -> None:
    assert hash(Pair(1, site=3)) == hash(Pair(1, site=4)) != hash(Pair(2))
    assert {Pair(1): 5}[Pair(1, "b", 9)] == 5


def test_hashes_are_those_of_the_fields_as_a_tuple() -> None:

    @records.dataclass(slots=True, frozen=True)
    class Empty:
        pass

    @records.dataclass(slots=True, frozen=True)
    class One:
        a: int

    @records.dataclass(slots=True, frozen=True)
    class Two:
        a: int
        b: int

    for one in (Empty(), One(5), Two(5, 6)):
        assert hash(one) == hash(one) == hash(dataclasses.astuple(one))


def test_what_is_frozen_stays_as_it_is() -> None:
    pair: Any = Pair(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        pair.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del pair.a
    assert dataclasses.replace(pair, b="c") == Pair(1, "c")


def test_wrong_arguments_are_refused_at_every_call() -> None:
    made: Any = Pair
    for _ in range(2):
        with pytest.raises(TypeError, match=r"Pair.__init__\(\) missing 1 required .* 'a'"):
            made()
        with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
            made(1, c=3)


def test_copies_and_pickles_are_equal() -> None:
    pair = Pair(3, "x", 7)
    for other in (copy.copy(pair), copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert other == pair
        assert other.site == 7


def test_classes_of_equal_size_have_their_own_names_and_defaults() -> None:
    @records.dataclass(slots=True)
    class One:
        a: int
        b: int = 5

    @records.dataclass(slots=True)
    class Other:
        x: int = 1
        y: int = 2

    @records.dataclass(slots=True)
    class Nothing:
        """No fields."""

    for _ in range(2):
        assert (One(1).b, One(b=2, a=3).a) == (5, 3)
        assert (Other().x, Other(y=7).y, Other(9).x) == (1, 7, 9)
        assert Nothing() == Nothing()
        with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
            One(1, x=2)  # type: ignore[call-arg]  # the mistake


def test_own_methods_are_kept_and_what_comes_after_making_runs() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Own:
        a: int
        made: Final[list[int]] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.made.append(self.a)

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    assert Own(5).made == [5]
    assert (repr(Own(1)), hash(Own(1))) == ("own", 7)
    assert Own(1) == Own(1)


def test_fields_of_a_base_come_first() -> None:
    made: list[tuple[Any, Any]] = []
    for decorator in (dataclasses.dataclass, records.dataclass):

        @decorator(frozen=True, slots=True)
        class Base:
            a: int
            b: int = 2

        @decorator(frozen=True, slots=True)
        class Derived(Base):
            b: int = 3
            c: int = 4

        made.append((Base, Derived))
    for base, derived in made:
        one = derived(1)
        assert (one.a, one.b, one.c) == (1, 3, 4)
        assert derived(1, 2, 3) == derived(1, 2, 3) != base(1, 2)
        assert hash(derived(1, 2, 3)) == hash(derived(1, 2, 3)) != hash(derived(1, 2, 4))
        assert hash(base(1)) == hash(base(1, 2))
        assert [field.name for field in dataclasses.fields(derived)] == ["a", "b", "c"]
        assert isinstance(one, base)
        assert repr(one).endswith("Derived(a=1, b=3, c=4)")


@pytest.mark.parametrize("count", [*range(13), 20])
def test_methods_mean_the_same_before_and_after_they_are_made(count: int) -> None:
    names = [f"field{place}" for place in range(count)]
    body = {"__annotations__": dict.fromkeys(names, object), "__module__": __name__}
    made: Any = records.dataclass(frozen=True, slots=True)(type("Made", (), body))
    first = made(*range(count))
    known = {first: "found"}
    before = hash(first)
    for _ in range(2):
        other = made(**{name: place for place, name in enumerate(names)})
        assert other == first
        assert hash(other) == before
        assert [getattr(other, name) for name in names] == list(range(count))
    assert known[made(*range(count))] == "found"
    for method in ("__init__", "__eq__", "__hash__"):
        assert getattr(made, method).__qualname__ != "_later.<locals>.stub"


def test_a_thread_that_comes_late_to_the_first_call_gets_the_same() -> None:
    """It has looked the method up before another thread put the made one in its place."""

    @records.dataclass(frozen=True, slots=True)
    class New:
        a: int
        b: int = 2

    first: Any = {name: getattr(New, f"__{name}__") for name in ("init", "eq", "hash")}
    one = New(1)
    assert one == New(1)
    assert {one: 5}[New(1)] == 5
    late: Any = object.__new__(New)
    first["init"](late, 1)
    assert first["eq"](late, one)
    assert first["hash"](late) == hash(one)


def test_importing_khaljit_makes_no_class_the_slow_way() -> None:
    code = """
import dataclasses
import numpy
made = []
slow = dataclasses._process_class
def seen(cls, *args, **named):
    made.append(cls.__qualname__)
    return slow(cls, *args, **named)
dataclasses._process_class = seen
import khaljit
print(made)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
