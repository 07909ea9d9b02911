/* Reading numbers that a launch passes; numbers.c. */

#ifndef KHALJIT_NUMBERS_H
#define KHALJIT_NUMBERS_H

#include "native.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Types of numbers, as `khaljit.plans` numbers them. */
typedef enum { BOOL, I8, U8, I16, U16, I32, U32, I64, U64, F16, F32, F64, NUMBER_TYPES } NumberType;

typedef struct {
    NumberType type;
    bool annotated; /* the parameter has this type; else the argument's own type decides */
} NumberRule;

bool read_any_number(const NumberRule *rule, PyObject *value, int64_t *slot);

/* Fill a number's slot of the parameter block; false where the Python path has to look. */
static inline bool read_number(const NumberRule *rule, PyObject *value, int64_t *slot)
{
    if (rule->type == F32 && PyFloat_CheckExact(value)) { /* what kernels take most */
        const double real = PyFloat_AS_DOUBLE(value);
        const float narrow = (float)real;
        *slot = 0;
        memcpy(slot, &narrow, sizeof narrow);
        return !(rule->annotated && fabs(real) > FLT_MAX && !isinf(real));
    }
    return read_any_number(rule, value, slot);
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
