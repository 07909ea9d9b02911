/* Numbers as they lie in memory: Python's, and NumPy's scalars, whose structs are compared with what
 * NumPy says (`describe_number`) before anything is read.
 */

#include "numbers.h"


static PyTypeObject *number_types[NUMBER_TYPES]; /* NumPy's scalar types */

typedef struct {
    enum { A_BOOL, AN_INT, A_FLOAT, LARGE_INT } kind; /* LARGE_INT: 2**63 and up */
    int64_t integer;
    double real;
} Number;

static const struct {
    int64_t low, high;
} limits[] = {
    [I8] = {INT8_MIN, INT8_MAX},   [U8] = {0, UINT8_MAX},   [I16] = {INT16_MIN, INT16_MAX},
    [U16] = {0, UINT16_MAX},       [I32] = {INT32_MIN, INT32_MAX}, [U32] = {0, UINT32_MAX},
    [I64] = {INT64_MIN, INT64_MAX}, [U64] = {0, INT64_MAX},
};

static inline const void *obval(PyObject *scalar)
{
    return (char *)scalar + sizeof(PyObject);
}

#define AS(kind) (*(const kind *)obval(value))

/* A NumPy scalar; false where it is none that is known. */
static bool read_numpy_number(PyObject *value, NumberType *type, Number *number)
{
    int found = 0;
    while (found < NUMBER_TYPES && number_types[found] != Py_TYPE(value)) {
        found++;
    }
    *type = (NumberType)found;
    number->kind = AN_INT;
    switch (found) {
    case BOOL: number->kind = A_BOOL, number->integer = AS(uint8_t) != 0; return true;
    case I8: number->integer = AS(int8_t); return true;
    case U8: number->integer = AS(uint8_t); return true;
    case I16: number->integer = AS(int16_t); return true;
    case U16: number->integer = AS(uint16_t); return true;
    case I32: number->integer = AS(int32_t); return true;
    case U32: number->integer = AS(uint32_t); return true;
    case I64: number->integer = AS(int64_t); return true;
    case U64:
        number->integer = AS(int64_t);
        number->kind = number->integer < 0 ? LARGE_INT : AN_INT;
        return true;
    case F16: number->kind = A_FLOAT, number->real = PyFloat_Unpack2(obval(value), 1); return true;
    case F32: number->kind = A_FLOAT, number->real = (double)AS(float); return true;
    case F64: number->kind = A_FLOAT, number->real = AS(double); return true;
    default: return false;
    }
}

/* A number, and the type that it has where no annotation says one. */
static bool take(PyObject *value, NumberType *type, Number *number)
{
    if (PyFloat_CheckExact(value)) {
        *type = F32;
        number->kind = A_FLOAT;
        number->real = PyFloat_AS_DOUBLE(value);
        return true;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        *type = I32;
        number->kind = AN_INT;
        number->integer = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow > 0) {
            number->kind = LARGE_INT;
            number->integer = (int64_t)PyLong_AsUnsignedLongLong(value);
            if (PyErr_Occurred()) {
                PyErr_Clear();
                return false;
            }
        }
        return overflow >= 0;
    }
    if (PyBool_Check(value)) {
        *type = BOOL;
        number->kind = A_BOOL;
        number->integer = value == Py_True;
        return true;
    }
    return read_numpy_number(value, type, number);
}

static bool put_float(NumberType type, bool checked, const Number *number, int64_t *slot)
{
    double real = number->kind == A_FLOAT     ? number->real
                  : number->kind == LARGE_INT ? (double)(uint64_t)number->integer
                                              : (double)number->integer;
    *slot = 0;
    if (type == F64) {
        memcpy(slot, &real, sizeof real);
        return true;
    }
    if (type == F32) {
        if (checked && fabs(real) > FLT_MAX && !isinf(real)) {
            return false;
        }
        float narrow = (float)real;
        memcpy(slot, &narrow, sizeof narrow);
        return true;
    }
    if (fabs(real) > 65504.0 && !isinf(real)) {
        return false;
    }
    if (PyFloat_Pack2(real, (char *)slot, 1) != 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool read_any_number(const NumberRule *rule, PyObject *value, int64_t *slot)
{
    NumberType type;
    Number number = {AN_INT, 0, 0};
    if (!take(value, &type, &number) || (!rule->annotated && type != rule->type)) {
        return false;
    }
    if (rule->type >= F16) {
        return put_float(rule->type, rule->annotated, &number, slot);
    }
    *slot = number.integer;
    if (rule->type == BOOL) {
        return number.kind == A_BOOL;
    }
    if (number.kind == LARGE_INT) {
        return rule->type == U64;
    }
    return number.kind != A_FLOAT && limits[rule->type].low <= number.integer &&
           number.integer <= limits[rule->type].high;
}

/* What Python sees. */

static PyObject *know_numbers(PyObject *Py_UNUSED(module), PyObject *types)
{
    if (!PyTuple_Check(types) || PyTuple_GET_SIZE(types) != NUMBER_TYPES) {
        PyErr_SetString(PyExc_ValueError, "one type per kind of number");
        return NULL;
    }
    for (int k = 0; k < NUMBER_TYPES; k++) {
        number_types[k] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(types, k));
    }
    Py_RETURN_NONE;
}

static PyObject *describe_number(PyObject *Py_UNUSED(module), PyObject *value)
{
    NumberType type;
    Number number;
    if (!read_numpy_number(value, &type, &number)) {
        Py_RETURN_NONE;
    }
    if (number.kind == A_FLOAT) {
        return Py_BuildValue("id", (int)type, number.real);
    }
    return Py_BuildValue("iL", (int)type, (long long)number.integer);
}

static PyMethodDef functions[] = {
    {"know_numbers", know_numbers, METH_O, "Take NumPy's types of numbers."},
    {"describe_number", describe_number, METH_O, "What is read of a NumPy number."},
    {NULL},
};

int add_numbers(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
