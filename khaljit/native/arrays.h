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
    bool contiguous, aligned, written;
} ArrayRule;

/* A NumPy array as it was read last. */
typedef struct {
    Py_ssize_t position; /* of the argument */
    PyObject *dtype;     /* that it has to have */
    uintptr_t address;
    int axes;
    int flags; /* NOT_READ until it is, and where it could not be */
} NumpySeen;

#define NOT_READ -1

/* The same of an array of khaljit's own. */
typedef struct {
    Py_ssize_t position;
    PyObject *dtype;
    PyTypeObject *memory; /* its class; NULL until it is read, and where it could not be */
    Py_ssize_t at;        /* where the memory has its address */
    void *address;        /* what is there: a number, or of the host's memory the address itself */
    PyObject *shape, *strides, *offset;
    PyObject *number; /* keeps the number */
} DeviceSeen;

/* What was read of an array argument: what it is again is not worked out again. */
typedef struct {
    union {
        NumpySeen *numpy;
        DeviceSeen *device;
    };
    Py_ssize_t *sizes; /* of each axis of a NumPy array: extent, and stride in bytes */
    int64_t *slots; /* of the parameter block: address, extents, strides in units of the alignment */
    uintptr_t start, stop; /* what it spans */
    int64_t extent;        /* the largest of its extents, and of its offsets in units */
} View;

/* Where the slots of khaljit's classes are in their objects. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t device, buffer, dtype, shape, strides, offset;
} ArraySlots;

typedef struct {
    PyTypeObject *type;
    Py_ssize_t address;
    Py_ssize_t stream, home, read_only; /* of CUDA's only */
} MemorySlots;

extern PyTypeObject *numpy_array;
extern ArraySlots in_array;
extern MemorySlots in_cuda_memory;

/* A slot of an object, borrowed; NULL where it is not set. */
static inline PyObject *slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

/* Whether an argument is an array as it was read last. */
static inline bool
is_numpy_as_read(const NumpySeen *seen, const Py_ssize_t *sizes, PyObject *value)
{
    const NumpyArray *array = (NumpyArray *)value;
    if (Py_TYPE(value) != numpy_array || (uintptr_t)array->data != seen->address ||
        array->dtype != seen->dtype || array->ndim != seen->axes || array->flags != seen->flags) {
        return false;
    }
    for (int axis = 0; axis < seen->axes; axis++, sizes += 2) {
        if (array->shape[axis] != sizes[0] || array->strides[axis] != sizes[1]) {
            return false;
        }
    }
    return true;
}

static inline bool is_device_as_read(const DeviceSeen *seen, PyObject *value, PyObject *device)
{
    if (Py_TYPE(value) != in_array.type || slot(value, in_array.device) != device ||
        slot(value, in_array.dtype) != seen->dtype || slot(value, in_array.shape) != seen->shape ||
        slot(value, in_array.strides) != seen->strides ||
        slot(value, in_array.offset) != seen->offset) {
        return false;
    }
    PyObject *buffer = slot(value, in_array.buffer);
    return Py_TYPE(buffer) == seen->memory && slot(buffer, seen->at) == seen->address;
}

/* Whether the memory of an array can be used on a stream without waiting or handing back. */
static inline bool is_on_stream(PyObject *value, PyObject *stream, bool written)
{
    PyObject *memory = slot(value, in_array.buffer);
    return Py_TYPE(memory) == in_cuda_memory.type &&
           slot(memory, in_cuda_memory.stream) == stream &&
           slot(memory, in_cuda_memory.home) == Py_None &&
           !(written && slot(memory, in_cuda_memory.read_only) != Py_False);
}

/* Whether a value is an array of the kind that a plan expects. */
bool is_numpy_kind(const ArrayRule *rule, PyObject *value);
bool is_device_kind(const ArrayRule *rule, PyObject *value, PyObject *device);

/* Read such an array; false where the Python path has to look. */
bool read_numpy(const ArrayRule *rule, PyObject *value, View *view);
bool read_device(const ArrayRule *rule, PyObject *value, View *view);

bool arrays_are_known(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
