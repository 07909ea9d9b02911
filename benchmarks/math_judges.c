/* What f64 functions should give, in long double, and how far off results are.
 *
 * The C library's functions of long double stand for the exact ones: on x86-64 they are within a
 * few units of the last of 64 bits, 0.003 ulp of f64 (tests/test_math_judges.py).
 */

#define _GNU_SOURCE /* exp10l */

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if LDBL_MANT_DIG < 64
#error "long double is no wider than double here"
#endif

#define BLOCK 256

typedef void Exact(const double *xs, const double *ys, long double *exact, int64_t count);

static _Thread_local int sign; /* of gamma; nobody reads it */

#define EXACT(name, value)                                                                        \
    void exact_##name(const double *xs, const double *ys, long double *exact, int64_t count) {    \
        for (int64_t i = 0; i < count; i++) {                                                     \
            long double x = xs[i], y = ys[i];                                                     \
            (void)y;                                                                              \
            exact[i] = value;                                                                     \
        }                                                                                         \
    }

EXACT(acos, acosl(x))
EXACT(acosh, acoshl(x))
EXACT(asin, asinl(x))
EXACT(asinh, asinhl(x))
EXACT(atan, atanl(x))
EXACT(atan2, atan2l(x, y))
EXACT(atanh, atanhl(x))
EXACT(cbrt, cbrtl(x))
EXACT(cos, cosl(x))
EXACT(cosh, coshl(x))
EXACT(erf, erfl(x))
EXACT(erfc, erfcl(x))
EXACT(exp, expl(x))
EXACT(exp10, exp10l(x))
EXACT(exp2, exp2l(x))
EXACT(expm1, expm1l(x))
EXACT(hypot, hypotl(x, y))
EXACT(lgamma, lgammal_r(x, &sign))
EXACT(log, logl(x))
EXACT(log10, log10l(x))
EXACT(log1p, log1pl(x))
EXACT(log2, log2l(x))
EXACT(pow, powl(x, y))
EXACT(rsqrt, 1 / sqrtl(x))
EXACT(sin, sinl(x))
EXACT(sinh, sinhl(x))
EXACT(tan, tanl(x))
EXACT(tanh, tanhl(x))
EXACT(tgamma, tgammal(x))

/* In whose ulps lgamma's errors left of 0 count: next to zeros only the absolute error is small. */
static long double lgamma_scale(double x, long double exact) {
    return fmaxl(fmaxl(fabsl(exact), fabsl(lgammal_r(-x, &sign))), 1);
}

#define TOP 0x1p1024L /* what infinity counts as */

static long double clamped(long double value) {
    return value > TOP ? TOP : value < -TOP ? -TOP : value;
}

/* In ulps of f64 at `scale`. */
static double ulps(long double off, long double scale) {
    double near = (double)fabsl(scale), inverse;
    uint64_t bits, field;
    memcpy(&bits, &near, sizeof bits);
    field = (bits - (near > fabsl(scale))) >> 52; /* of `scale` rounded down */
    field = field < 1 ? 1 : field > 2046 ? 2046 : field;
    bits = (2047 - field) << 52;
    memcpy(&inverse, &bits, sizeof bits);
    return off * inverse * 0x1p51L; /* 1 / ulp itself may be too large for f64 */
}

/* Infinite where NaN or zero, or the sign of zero, is wrong. */
static double error(double result, long double exact, long double scale) {
    if (isnan(result) || isnan(exact))
        return isnan(result) && isnan(exact) ? 0 : INFINITY;
    if (exact == 0 && result != 0)
        return INFINITY;
    if (result == 0 && fabsl(exact) < 0x1p-1074L && !signbit(result) != !signbit(exact))
        return INFINITY;
    long double off = fabsl(clamped(result) - clamped(exact));
    return off == 0 ? 0 : ulps(off, clamped(scale));
}

typedef struct {
    double worst, x, y;
    int64_t wrong;
} Verdict;

void judge(Exact *exact, bool is_lgamma, const double *xs, const double *ys, const double *results,
           int64_t count, Verdict *verdict) {
    long double right[BLOCK];
    for (int64_t i = 0; i < count; i++) {
        int64_t in_block = i % BLOCK;
        if (in_block == 0)
            exact(xs + i, ys + i, right, count - i < BLOCK ? count - i : BLOCK);
        double off = error(results[i], right[in_block], right[in_block]);
        if (is_lgamma && xs[i] < 0 && off > verdict->worst)
            off = error(results[i], right[in_block], lgamma_scale(xs[i], right[in_block]));
        verdict->wrong += isinf(off) != 0;
        if (off > verdict->worst) {
            verdict->worst = off;
            verdict->x = xs[i];
            verdict->y = ys[i];
        }
    }
}
