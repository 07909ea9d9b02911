"""The judges of the math functions: what they take for exact, and what they say about results."""

from __future__ import annotations

import math
import os
import shutil
from typing import Any, Final

import numpy as np
import pytest

import khaljit as kj
from benchmarks import math_accuracy as accuracy
from benchmarks import math_kernels as kernels
from benchmarks.math_judges import Verdict, exact, judge_f64
from benchmarks.math_search import searched
from khaljit.tracer.dtypes import DType, f64
from khaljit.tracer.ops import MATH, Op
from tests.exact import EXACT, MP

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None or np.finfo(np.longdouble).nmant < 63,
    reason="needs a C compiler with a long double that is wider than double",
)

Array = np.ndarray[Any, Any]

_TRUST: Final = 0.005  # ulp of f64
_COUNT: Final = 2048
_FAR: Final = 1e4  # mpmath takes long for lgamma beyond


@pytest.fixture(scope="module")
def arguments() -> tuple[Array, Array]:
    """What the functions are measured with."""
    cpu = kj.device("cpu")
    with kj.use(cpu):
        x, y = cpu.empty(_COUNT, f64), cpu.empty(_COUNT, f64)
        kernels.draw(f64)[_COUNT](x, y, 1 << 20)
        return x.numpy(), y.numpy()


def _mpf(value: np.longdouble) -> Any:
    mantissa, exponent = np.frexp(value)
    return MP.ldexp(MP.mpf(int(np.ldexp(mantissa, 113))), int(exponent) - 113)


@pytest.mark.parametrize("op", sorted(MATH, key=str), ids=str)
def test_long_double_is_as_good_as_exact(op: Op, arguments: tuple[Array, Array]) -> None:
    with np.errstate(over="ignore", under="ignore"):
        found = exact(op, *arguments)
        judged = np.isfinite(found.astype(np.float64)) & (found.astype(np.float64) != 0)
    judged &= abs(arguments[0]) < _FAR if op is Op.LGAMMA else True
    assert judged.sum() > _COUNT // 8
    used = arguments if op in kernels.TWO else arguments[:1]
    for *row, value in zip(*(a[judged].tolist() for a in used), found[judged], strict=True):
        right = EXACT[op](*(MP.mpf(x) for x in row))
        ulp = MP.ldexp(1, max(MP.frexp(right)[1] - 53, -1074))
        if op is Op.LGAMMA and row[0] < 0:
            ulp = max(ulp, MP.ldexp(1, -53))
        assert abs(_mpf(value) - right) < _TRUST * ulp, row


def _verdict(op: Op, x: float, result: float, y: float = 0.0) -> Verdict:
    return judge_f64(op, np.array([x]), np.array([y]), np.array([result]))


@pytest.mark.parametrize(
    ("op", "x", "right"),
    [
        (Op.EXP, 1.0, math.e),
        (Op.EXP, -745.0, 5e-324),
        (Op.EXP, -720.0, math.exp(-720.0)),
        (Op.CBRT, -8.0, -2.0),
        (Op.EXP, 709.78, math.exp(709.78)),
        (Op.LGAMMA, -0.5, 1.2655121234846454),
        (Op.SIN, 1e22, math.sin(1e22)),
    ],
)
def test_an_error_is_the_distance_in_ulps(op: Op, x: float, right: float) -> None:
    for steps in range(4):
        wrong = right
        for _ in range(steps):
            wrong = math.nextafter(wrong, math.inf * right)
        found = _verdict(op, x, wrong)
        assert abs(found.worst - steps) <= 0.75  # of which 1/2 is `right`'s
        assert found.wrong == 0
        assert found.x == (x if found.worst else 0.0)


def test_errors_below_a_power_of_two_count_in_the_smaller_ulps() -> None:
    assert _verdict(Op.CBRT, 8.0, math.nextafter(2.0, 0.0)).worst == 0.5
    assert abs(_verdict(Op.TANH, 20.0, 1 - 2**-53).worst - 0.923) < 0.001  # 1 - 8.5e-18


@pytest.mark.parametrize(
    ("op", "x", "y", "result"),
    [
        (Op.LOG, -1.0, 0.0, 0.0),  # NaN
        (Op.LOG, 1.0, 0.0, math.nan),
        (Op.LOG, 1.0, 0.0, 5e-324),  # +0
        (Op.LOG, 1.0, 0.0, -0.0),
        (Op.SIN, -0.0, 0.0, 0.0),
        (Op.POW, -1e-300, 3.0, 0.0),  # -1e-900
        (Op.TGAMMA, -0.0, 0.0, math.nan),  # -inf
    ],
)
def test_special_values_that_are_wrong_are_counted(
    op: Op, x: float, y: float, result: float
) -> None:
    found = _verdict(op, x, result, y)
    assert found.wrong == 1
    assert found.worst == math.inf
    assert (found.x, found.y) == (x, y)


@pytest.mark.parametrize(
    ("op", "x", "result"),
    [
        (Op.LOG, -1.0, math.nan),
        (Op.LOG, 0.0, -math.inf),
        (Op.SIN, -0.0, -0.0),
        (Op.EXP, 1000.0, math.inf),
        (Op.EXP, -1000.0, 0.0),
        (Op.LGAMMA, -3.0, math.inf),
        (Op.TGAMMA, -3.0, math.nan),
    ],
)
def test_special_values_that_are_right_have_no_error(op: Op, x: float, result: float) -> None:
    found = _verdict(op, x, result)
    assert found.worst < 1e-100  # of exp(-1000)
    assert found.wrong == 0


def test_an_infinity_counts_as_the_next_power_of_two() -> None:
    largest = np.finfo(np.float64).max
    assert _verdict(Op.EXP, 1000.0, largest).worst == 1.0
    assert 1.0 < _verdict(Op.EXP, 709.78, math.inf).worst < math.inf
    assert _verdict(Op.EXP, 1000.0, -math.inf).worst > 2**53


def test_lgamma_left_of_0_counts_in_ulps_of_what_cancels() -> None:
    zero = -2.4570247382208006
    assert _verdict(Op.LGAMMA, zero, 2**-53).worst <= 2.0
    assert _verdict(Op.LGAMMA, 2.0 + 1e-9, 4.3e-10).worst > 1000


@pytest.mark.parametrize("dtype", accuracy.DTYPES.values(), ids=str)
def test_threads_that_share_the_inputs_find_what_one_finds(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(accuracy.CHUNK, "cpu", 9)
    cpu = kj.device("cpu")
    one, more = (accuracy.measured(cpu, Op.ATAN2, dtype, 12, workers) for workers in (1, 3))
    assert more == one
    assert one.worst is not None
    assert 1.0 < one.worst < 2.0


def test_a_search_finds_larger_errors_around_those_that_were_seen() -> None:
    start = Verdict(0.9, 0.7, 0.0, 2)
    found = searched(kj.device("cpu"), Op.LOG, [start, Verdict(0.1, 1e300, 0.0, 0)])
    assert 0.9 < found[0].worst < 1.0
    assert 0.6 < found[0].x < 0.8
    assert start in found
    assert sorted((one.worst for one in found), reverse=True) == [one.worst for one in found]
