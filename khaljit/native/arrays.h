/* Reading array arguments, which each launch does for each of them; arrays.c is what it needs. */

#ifndef KHALJIT_ARRAYS_H
#define KHALJIT_ARRAYS_H

#include "native.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#define MOST_AXES 64

/* The beginning of NumPy's array struct, the same in all its versions. */
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

#define WRITEABLE 0x0400 /* NPY_ARRAY_WRITEABLE */

/* What a plan expects of an array. */
typedef struct {
    PyObject *dtype; /* NumPy's descriptor object, or khaljit's dtype */
    int ndim;        /* axes that the kernel sees */
    int lanes;       /* of a vector that is the last axis of a NumPy array; else 0 */
    int axes;        /* of a NumPy array, then */
    int size;        /* bytes of an element */
    int shift;       /* log2 of its alignment */
    int flags;       /* that a NumPy array has to have */
    bool contiguous, aligned, written;
} ArrayRule;

/* An array argument as it was read last: what it is again is not worked out again. */
typedef struct {
    bool known;
    uintptr_t address;
    union {
        Py_ssize_t *sizes; /* of a NumPy array: each axis's extent and stride in bytes */
        struct {
            PyObject *shape, *strides, *offset;
        } held; /* by an array of khaljit's */
    };
    int64_t *slots; /* of the parameter block: address, extents, strides in units of the alignment */
    uintptr_t start, stop; /* what it spans */
    int64_t extent;        /* the largest of its extents, and of its offsets in units */
} View;

extern PyTypeObject *numpy_array;

/* Read an array that differs from the one before; false where the Python path has to look. */
bool place(const ArrayRule *rule, uintptr_t address, const Py_ssize_t *shape, const Py_ssize_t *strides,
           View *view);
bool read_numpy_sizes(const ArrayRule *rule, const NumpyArray *array, View *view);

/* Whether a view has been read of an array with these sizes in that place. */
static inline bool is_as_read(const View *view, const NumpyArray *array, int axes)
{
    const Py_ssize_t *sizes = view->sizes;
    if (!view->known || (uintptr_t)array->data != view->address) {
        return false;
    }
    for (int axis = 0; axis < axes; axis++, sizes += 2) {
        if (array->shape[axis] != sizes[0] || array->strides[axis] != sizes[1]) {
            return false;
        }
    }
    return true;
}

/* Read an array of NumPy's; false where the Python path has to look. */
static inline bool
read_numpy_array(const ArrayRule *rule, PyObject *value, View *view, bool *changed)
{
    const NumpyArray *array = (NumpyArray *)value;
    if (Py_TYPE(value) != numpy_array || array->dtype != rule->dtype ||
        array->ndim != rule->axes || (array->flags & rule->flags) != rule->flags) {
        return false;
    }
    if (is_as_read(view, array, rule->axes)) {
        return true;
    }
    *changed = true;
    return read_numpy_sizes(rule, array, view);
}

/* Read an array of khaljit's own, and the memory that it is in. */
bool read_device_array(
    const ArrayRule *rule, PyObject *value, PyObject *device, View *view, bool *changed,
    PyObject **memory
);

/* Whether a piece of memory can be used on a stream without waiting or handing back. */
bool memory_is_on(PyObject *memory, PyObject *stream, bool written);

bool arrays_are_known(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
