/* Arguments as they lie in memory: NumPy's arrays and numbers, and khaljit's arrays.
 *
 * The structs are NumPy's public ones, whose beginning has been the same in all its versions.
 * Nothing is read before `khaljit.plans` has compared what stands here with what NumPy says
 * itself (`describe_array`, `describe_number`); else there are no plans.
 */

#include "native.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} NumpyArray;

#define MOST_WATCHED 16
#define MOST_MEMORIES 4
#define WRITEABLE 0x0400 /* NPY_ARRAY_WRITEABLE */

static PyTypeObject *numpy_array;
static PyTypeObject *number_types[NUMBER_TYPES]; /* NumPy's scalar types */
static PyTypeObject *device_array;
static PyObject *watched[MOST_WATCHED]; /* context variables; a true one has to see every launch */
static int watched_count;
PyObject *current_device; /* the context variable of `kj.use`; NULL while it was never set */

/* Where the slots of khaljit's classes are in their objects. */
static struct {
    Py_ssize_t device, buffer, dtype, shape, strides, offset;
} in_array;
static struct {
    PyTypeObject *type;
    Py_ssize_t address;
} memories[MOST_MEMORIES]; /* classes of a GPU's memory */
static int memory_count;
static PyTypeObject *cuda_memory;
static struct {
    Py_ssize_t stream, home, read_only;
} in_cuda_memory;

/* A slot of an object, borrowed; NULL where it is not set. */
static inline PyObject *slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

/* Arrays. */

/* Fill an array's slots of the parameter block; false where the Python path has to look. */
static bool place(
    const ArrayRule *rule, uintptr_t address, const Py_ssize_t *shape, const Py_ssize_t *strides,
    View *view, int64_t *extent
)
{
    const int ndim = rule->ndim, size = rule->size, shift = rule->shift;
    const Py_ssize_t unaligned = ((Py_ssize_t)1 << shift) - 1;
    int64_t *extents = view->slots + 1, *units = extents + ndim;
    int64_t reach = size >> shift, largest = 0;
    bool empty = false, contiguous = true;
    view->slots[0] = (int64_t)address;
    view->start = address;
    view->stop = address + (uintptr_t)size;
    for (int axis = 0; axis < ndim; axis++) {
        const Py_ssize_t n = shape[axis];
        Py_ssize_t stride = strides[axis];
        if (n > 1 && (stride & unaligned)) {
            return false;
        }
        if (axis == ndim - 1) {
            if (n <= 1) {
                stride = size;
            }
            contiguous = stride == size;
        }
        extents[axis] = n;
        units[axis] = stride >> shift;
        largest = n > largest ? n : largest;
        if (n == 0) {
            empty = true;
        }
        else if (stride < 0) {
            reach -= (n - 1) * units[axis];
            view->start += (uintptr_t)((n - 1) * stride);
        }
        else {
            reach += (n - 1) * units[axis];
            view->stop += (uintptr_t)((n - 1) * stride);
        }
    }
    if (empty) {
        view->start = view->stop = address;
    }
    else if (address & (uintptr_t)unaligned) {
        return false;
    }
    largest = reach > largest ? reach : largest;
    *extent = largest > *extent ? largest : *extent;
    return contiguous == rule->contiguous && (address % 16 == 0) == rule->aligned;
}

bool read_numpy_array(const ArrayRule *rule, PyObject *value, View *view, int64_t *extent)
{
    if (Py_TYPE(value) != numpy_array) {
        return false;
    }
    const NumpyArray *array = (NumpyArray *)value;
    const int ndim = rule->ndim;
    if (array->dtype != rule->dtype || array->ndim != ndim + (rule->lanes != 0) ||
        (rule->written && !(array->flags & WRITEABLE))) {
        return false;
    }
    if (rule->lanes != 0 && (array->shape[ndim] != rule->lanes ||
                             array->strides[ndim] != (Py_ssize_t)1 << rule->shift)) {
        return false;
    }
    return place(rule, (uintptr_t)array->data, array->shape, array->strides, view, extent);
}

static bool read_sizes(PyObject *tuple, int ndim, Py_ssize_t *sizes)
{
    if (tuple == NULL || !PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
        return false;
    }
    for (int axis = 0; axis < ndim; axis++) {
        sizes[axis] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, axis));
        if (sizes[axis] == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

/* The address of a buffer: host memory is a NumPy array, a GPU's has an address. */
static bool read_buffer(PyObject *buffer, Py_ssize_t *address)
{
    if (Py_TYPE(buffer) == numpy_array) {
        *address = (Py_ssize_t)((NumpyArray *)buffer)->data;
        return true;
    }
    int kind = 0;
    while (kind < memory_count && memories[kind].type != Py_TYPE(buffer)) {
        kind++;
    }
    if (kind == memory_count) {
        return false;
    }
    unsigned long long found = PyLong_AsUnsignedLongLong(slot(buffer, memories[kind].address));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    *address = (Py_ssize_t)found;
    return true;
}

bool read_device_array(
    const ArrayRule *rule, PyObject *value, PyObject *device, View *view, int64_t *extent,
    PyObject **buffer
)
{
    if (Py_TYPE(value) != device_array) {
        return false;
    }
    Py_ssize_t shape[MOST_AXES], strides[MOST_AXES], address, offset;
    *buffer = slot(value, in_array.buffer);
    if (slot(value, in_array.device) != device || slot(value, in_array.dtype) != rule->dtype ||
        !read_sizes(slot(value, in_array.shape), rule->ndim, shape) ||
        !read_sizes(slot(value, in_array.strides), rule->ndim, strides) ||
        !read_buffer(*buffer, &address)) {
        return false;
    }
    offset = PyLong_AsSsize_t(slot(value, in_array.offset));
    if (offset == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return place(rule, (uintptr_t)(address + offset), shape, strides, view, extent);
}

/* Whether a piece of memory can be used on a stream without waiting or handing back. */
bool memory_is_on(PyObject *memory, PyObject *stream, bool written)
{
    return Py_TYPE(memory) == cuda_memory && slot(memory, in_cuda_memory.stream) == stream &&
           slot(memory, in_cuda_memory.home) == Py_None &&
           !(written && slot(memory, in_cuda_memory.read_only) != Py_False);
}

bool same_shape(const View *a, const View *b, int ndim)
{
    for (int axis = 1; axis <= ndim; axis++) {
        if (a->slots[axis] != b->slots[axis]) {
            return false;
        }
    }
    return true;
}

/* Numbers. */

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

bool read_number(const NumberRule *rule, PyObject *value, int64_t *slot)
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

/* The context. */

bool is_watched(void)
{
    for (int k = 0; k < watched_count; k++) {
        PyObject *value;
        if (PyContextVar_Get(watched[k], NULL, &value) < 0) {
            PyErr_Clear();
            return true;
        }
        int on = value == NULL || value == Py_None ? 0 : PyObject_IsTrue(value);
        Py_XDECREF(value);
        if (on) {
            PyErr_Clear();
            return true;
        }
    }
    return false;
}

/* What Python sees. */

bool values_are_ready(void)
{
    return device_array != NULL;
}

static Py_ssize_t offset_of(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    Py_ssize_t offset = -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type) {
        offset = ((PyMemberDescrObject *)found)->d_member->offset;
    }
    else {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    }
    Py_DECREF(found);
    return offset;
}

static PyObject *know_numpy(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array, *numbers;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &array, &PyTuple_Type, &numbers)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(numbers) != NUMBER_TYPES) {
        PyErr_SetString(PyExc_ValueError, "one type per kind of number");
        return NULL;
    }
    numpy_array = (PyTypeObject *)Py_NewRef(array);
    for (int k = 0; k < NUMBER_TYPES; k++) {
        number_types[k] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(numbers, k));
    }
    Py_RETURN_NONE;
}

static PyObject *know_arrays(PyObject *Py_UNUSED(module), PyObject *array)
{
    PyTypeObject *type = (PyTypeObject *)array;
    if ((in_array.device = offset_of(type, "device")) < 0 ||
        (in_array.buffer = offset_of(type, "buffer")) < 0 ||
        (in_array.dtype = offset_of(type, "dtype")) < 0 ||
        (in_array.shape = offset_of(type, "shape")) < 0 ||
        (in_array.strides = offset_of(type, "strides")) < 0 ||
        (in_array.offset = offset_of(type, "offset")) < 0) {
        return NULL;
    }
    device_array = (PyTypeObject *)Py_NewRef(array);
    Py_RETURN_NONE;
}

/* Called before a variable is set for the first time; until then nothing looks at it. */
static PyObject *watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *variable;
    int is_device;
    if (!PyArg_ParseTuple(args, "O!p", &PyContextVar_Type, &variable, &is_device)) {
        return NULL;
    }
    for (int k = 0; k < watched_count; k++) {
        if (watched[k] == variable) {
            Py_RETURN_NONE;
        }
    }
    if (is_device) {
        current_device = Py_NewRef(variable);
    }
    else if (watched_count < MOST_WATCHED) {
        watched[watched_count] = Py_NewRef(variable);
        watched_count++;
    }
    else {
        PyErr_SetString(PyExc_OverflowError, "too many variables to watch");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *know_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    int has_streams;
    if (!PyArg_ParseTuple(args, "O!p", &PyType_Type, &type, &has_streams)) {
        return NULL;
    }
    const Py_ssize_t address = offset_of(type, "address");
    if (address < 0 || memory_count == MOST_MEMORIES) {
        return address < 0 ? NULL : PyErr_Format(PyExc_OverflowError, "too many kinds of memory");
    }
    if (has_streams) {
        if ((in_cuda_memory.stream = offset_of(type, "stream")) < 0 ||
            (in_cuda_memory.home = offset_of(type, "home")) < 0 ||
            (in_cuda_memory.read_only = offset_of(type, "read_only")) < 0) {
            return NULL;
        }
        cuda_memory = type;
    }
    memories[memory_count].type = (PyTypeObject *)Py_NewRef(type);
    memories[memory_count++].address = address;
    Py_RETURN_NONE;
}

static PyObject *describe_array(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (numpy_array == NULL || Py_TYPE(value) != numpy_array) {
        Py_RETURN_NONE;
    }
    const NumpyArray *array = (NumpyArray *)value;
    if (array->ndim < 0 || array->ndim > MOST_AXES) {
        Py_RETURN_NONE;
    }
    PyObject *shape = PyTuple_New(array->ndim), *strides = PyTuple_New(array->ndim);
    for (int axis = 0; shape != NULL && strides != NULL && axis < array->ndim; axis++) {
        PyTuple_SET_ITEM(shape, axis, PyLong_FromSsize_t(array->shape[axis]));
        PyTuple_SET_ITEM(strides, axis, PyLong_FromSsize_t(array->strides[axis]));
    }
    return Py_BuildValue(
        "KNNOO", (unsigned long long)(uintptr_t)array->data, shape, strides, array->dtype,
        array->flags & WRITEABLE ? Py_True : Py_False
    );
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
    {"know_numpy", know_numpy, METH_VARARGS, "Take NumPy's array type and types of numbers."},
    {"know_arrays", know_arrays, METH_O, "Take the class of khaljit's arrays."},
    {"watch", watch, METH_VARARGS, "Look at a context variable from now on."},
    {"know_memory", know_memory, METH_VARARGS, "Take a class of a GPU's memory."},
    {"describe_array", describe_array, METH_O, "What is read of a NumPy array, to be compared."},
    {"describe_number", describe_number, METH_O, "What is read of a NumPy number."},
    {NULL},
};

int add_values(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
