"""log, log2, log10, log1p.

Method: x = 2**e * m with m in [sqrt(1/2), sqrt(2)), split off by integer arithmetic; f = m - 1 is
exact; log(1 + f) = f + f**2 q(f) with a minimax polynomial q (Muller, Elementary Functions,
chapter 11). Nothing divides.
"""

from __future__ import annotations

import math
from typing import Final, final

from khaljit.codegen.math.kit import (
    FORMATS,
    Format,
    Num,
    Rare,
    add_ordered,
    either,
    fma,
    horner,
    is_unusual,
    multiply_exactly,
    select,
    with_sign,
)
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.records import dataclass

__all__ = [
    "log",
    "log1p",
    "log1p_of_any",
    "log1p_of_sum",
    "log2",
    "log10",
    "log_of_positive",
    "split_exponent",
    "split_normal",
]


_ROOT: Final = math.sqrt(0.5)


@final
@dataclass(frozen=True, slots=True)
class _Base:
    """Logarithms to one base in one format; pairs are high and low parts of a constant.

    Attributes:
        two: the logarithm of 2.
        unit: log(1 + f) / f at 0.
        tail: (log(1 + f) - unit f) / f**2 on [-0.293, 0.4143].
    """

    two: tuple[float, float]
    unit: tuple[float, float]
    tail: tuple[float, ...]


# Relative errors 2**-27.4 and 2**-55.9.
_LOG: Final[dict[DType, _Base]] = {
    f32: _Base(
        (0.6931471824645996, -1.9046542121259336e-09),
        (1.0, 0.0),
        (
            -4.9999988e-01,
            3.3333325e-01,
            -2.5001585e-01,
            2.0001984e-01,
            -1.6608997e-01,
            1.4181575e-01,
            -1.3243489e-01,
            1.2906364e-01,
            -7.622945e-02,
        ),
    ),
    f64: _Base(
        (0.6931471805599453, 2.3190468138462996e-17),
        (1.0, 0.0),
        (
            -0.5000000000000003,
            0.33333333333331977,
            -0.24999999999976116,
            0.2000000000043826,
            -0.1666666667141776,
            0.14285714238966649,
            -0.12499999570321081,
            0.11111113367857268,
            -0.10000021067125063,
            0.09090857525442297,
            -0.08332732401637753,
            0.0769267228957724,
            -0.0715292789260152,
            0.06673738503906157,
            -0.061565823125025815,
            0.057138947297310734,
            -0.059283303094342,
            0.06529364697206537,
            -0.05328353104472362,
            0.020236249783621943,
        ),
    ),
}
# Relative errors 2**-27.4 and 2**-56.2.
_LOG2: Final[dict[DType, _Base]] = {
    f32: _Base(
        (1.0, 0.0),
        (1.4426950216293335, 1.925963033500011e-08),
        (
            -7.2134733e-01,
            4.8089883e-01,
            -3.606999e-01,
            2.8852996e-01,
            -2.3949306e-01,
            2.0527144e-01,
            -1.928706e-01,
            1.825653e-01,
            -1.009185e-01,
        ),
    ),
    f64: _Base(
        (1.0, 0.0),
        (1.4426950408889634, 2.0355273740931033e-17),
        (
            -0.7213475204444822,
            0.4808983469629773,
            -0.36067376022186654,
            0.2885390081810804,
            -0.2404491735529987,
            0.2060992912302747,
            -0.1803368739404382,
            0.16029946203061934,
            -0.14426979176749877,
            0.13115395472083918,
            -0.12021680194465688,
            0.11097101090689,
            -0.10317267397473176,
            0.09638945289035011,
            -0.08911724811130413,
            0.08193035343646941,
            -0.08350155103088383,
            0.09436976496045726,
            -0.0824722428149784,
            0.033947522069346266,
        ),
    ),
}
# Relative errors 2**-26.6 and 2**-56.2.
_LOG10: Final[dict[DType, _Base]] = {
    f32: _Base(
        (0.3010300099849701, -1.432098883924482e-08),
        (0.4342944920063019, -1.0103049952192578e-08),
        (
            -2.1714719e-01,
            1.447648e-01,
            -1.0858051e-01,
            8.686751e-02,
            -7.2131954e-02,
            6.15898e-02,
            -5.7515744e-02,
            5.6051627e-02,
            -3.3106033e-02,
        ),
    ),
    f64: _Base(
        (0.3010299956639812, -2.8037281277851704e-18),
        (0.4342944819032518, 1.098319650216765e-17),
        (
            -0.21714724095162607,
            0.14476482730108017,
            -0.10857362047570118,
            0.08685889638184312,
            -0.07238241367205958,
            0.06204206872201325,
            -0.05428680836434892,
            0.048254947665555846,
            -0.04342953642626048,
            0.03948123415531158,
            -0.03618879182897723,
            0.033406317907264636,
            -0.031059724985815475,
            0.029009050404965486,
            -0.026805817377995162,
            0.024695703778273573,
            -0.025277535010510437,
            0.028404291255061758,
            -0.024442576848775797,
            0.009886548909316078,
        ),
    ),
}


def split_exponent(x: Num, least: float = _ROOT) -> tuple[Num, Num]:
    """x = 2**e * m with m in [least, 2 least); gives e in units of `Format.step`, and m.

    x is a positive number, subnormals included; anything else gives garbage.
    """
    form = x.format
    small = x < form.tiny
    e, m = split_normal(select(small, x * 2.0**form.precision, x), least)
    return e - select(small, x.of(form.precision / form.step), 0.0), m


def split_normal(x: Num, least: float = _ROOT) -> tuple[Num, Num]:
    """`split_exponent` of a positive normal number."""
    top = _top(x, least)
    return _exponent(top, x.dtype), (x.signed_bits() - top).reinterpret(x.dtype)


def _top(x: Num, least: float) -> Num:
    """e at the place of the exponent, as an integer whose other bits are 0."""
    return (x.signed_bits() - to_bits(x.dtype, least)) & x.format.exponent_bits


def _exponent(top: Num, dtype: DType) -> Num:
    """e as a float, in units of `Format.step`."""
    if dtype is f32:
        return top.cast(dtype)
    form = FORMATS[dtype]
    shifted = (top >> form.fraction) + to_bits(dtype, form.shifter)
    return shifted.reinterpret(dtype) - form.shifter


def _combine(f: Num, e: Num, base: _Base, rest: Num | None = None) -> Num:
    """The logarithm of 2**e * (1 + f); ``rest`` is a small correction to the natural one."""
    form = f.format
    two, two_rest = (part * form.step for part in base.two)
    unit, unit_rest = base.unit
    for number, high, low in ((e, two, two_rest), (f, unit, unit_rest)):
        if abs(low) > high * 2.0 ** -(form.precision + 4):  # else it is lost in the rounding
            rest = number * low if rest is None else fma(number, low, rest)
    square, tail = f * f, horner(f, base.tail)
    near = fma(square, tail, f) if rest is None else fma(f, unit, fma(square, tail, rest))
    return fma(e, two, near)


def _finish(x: Num, y: Num) -> Num:
    """The logarithm of what has none, or an infinite one."""
    y = select(x < float("inf"), y, x)
    y = select(x.eq(0.0), x.of(float("-inf")), y)
    return select(x < 0.0, x.of(float("nan")), y)


def _logarithm(x: Num, base: _Base) -> Num:
    e, m = split_exponent(x)
    return _combine(m - 1.0, e, base)


def _complete(x: Num, base: _Base, rare: Rare) -> Num:
    e, m = split_normal(x)
    plain = _combine(m - 1.0, e, base)
    (y,) = either(is_unusual(x), rare, lambda: (_finish(x, _logarithm(x, base)),), (plain,))
    return y


def log(x: Num, rare: Rare) -> Num:
    return _complete(x, _LOG[x.dtype], rare)


def log_of_positive(x: Num) -> tuple[Num, Num]:
    """`log` of a positive finite number as a sum; garbage for any other."""
    e, m = split_exponent(x)
    f = m - 1.0
    base = _LOG[x.dtype]
    two, two_rest = (part * x.format.step for part in base.two)
    near, near_rest = add_ordered(f, fma(f * f, horner(f, base.tail), e * two_rest))
    power, power_rest = multiply_exactly(e, two)
    high, rest = add_ordered(power, near)
    return high, rest + (power_rest + near_rest)


def log2(x: Num, rare: Rare) -> Num:
    return _complete(x, _LOG2[x.dtype], rare)


def log10(x: Num, rare: Rare) -> Num:
    return _complete(x, _LOG10[x.dtype], rare)


def log1p(x: Num, rare: Rare) -> Num:
    u = x + 1.0
    most = to_bits(x.dtype, _most(x.format))
    (y,) = either(
        u.bits() - 1 >= most - 1, rare, lambda: (_log1p_of_rare(x),), (log1p_of_sum(x, None),)
    )
    return with_sign(y, x)


def _log1p_of_rare(x: Num) -> Num:
    y = select(x < float("inf"), log1p_of_any(x), x)
    y = select(x.eq(-1.0), x.of(float("-inf")), y)
    return select(x < -1.0, x.of(float("nan")), y)


def _most(form: Format) -> float:
    """What `log1p_of_sum` takes."""
    return 2.0 ** (2 * form.precision)


def log1p_of_sum(w: Num, w_rest: Num | None) -> Num:
    """log(1 + w + w_rest) for w above -1 and below the square of 2**precision."""
    top, f, lost = _shifted(w, w_rest)
    return _combine(f, _exponent(top, w.dtype), _LOG[w.dtype], lost)


def log1p_of_any(w: Num, doublings: int = 0) -> Num:
    """log(1 + w) + doublings * log 2, for finite w above -1, however large."""
    top, near, lost = _shifted(w, None)
    large = w >= _most(w.format)
    far = (w.signed_bits() - top).reinterpret(w.dtype) - 1.0
    f, lost = select(large, far, near), select(large, w.of(0.0), lost)
    e = _exponent(top, w.dtype)
    if doublings:
        e = e + doublings / w.format.step
    return _combine(f, e, _LOG[w.dtype], lost)


def _shifted(w: Num, w_rest: Num | None) -> tuple[Num, Num, Num]:
    """`_top` e of 1 + w, f with 1 + w = 2**e (1 + f), and what log(1 + f) lacks to the whole.

    1 + w is split as in `log`, but f = w 2**-e + (2**-e - 1), so nothing of w is lost; what
    rounding takes from f comes back as a correction.
    """
    top = _top(w + 1.0, _ROOT)
    power = (top.of(w.format.one_bits) - top).reinterpret(w.dtype)
    offset = power - 1.0
    f = fma(w, power, offset)
    lost = fma(w, power, offset - f)
    if w_rest is not None:
        lost = fma(w_rest, power, lost)
    return top, f, fma(lost, -f, lost)
