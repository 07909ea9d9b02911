/* The native way of a launch: what its parts know of each other.
 *
 * launch.c  kernels, launches and bound launches, as Python sees and calls them
 * plan.c    checking and packing the arguments of a launch by its plan (plan.h)
 * target.c  running it
 * table.c   making a plan
 * values.c  what is read straight from the structs of NumPy's arrays and numbers, and of khaljit's
 * pool.c    the threads that help with a launch on the CPU
 *
 * The law of them all: nothing here decides what a launch means. A plan stands for a launch that
 * the Python path has checked and made ready; whatever differs from that, or is in any doubt, goes
 * back to the Python path, which gives the same result or the error.
 */

#ifndef KHALJIT_NATIVE_H
#define KHALJIT_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#define BEGIN_LOCKED(object) Py_BEGIN_CRITICAL_SECTION(object)
#define END_LOCKED() Py_END_CRITICAL_SECTION()
#else /* the GIL guards the object */
#define BEGIN_LOCKED(object) {
#define END_LOCKED() }
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(hidden) /* the parts call each other directly */
#endif

/* What a try to launch came to. */
typedef enum { FAILED = -1, UNKNOWN = 0, DONE = 1 } Outcome;

/* pool.c */

typedef void (*Entry)(void *params, int64_t *next, int64_t total, int64_t chunk, void *arena);

typedef struct {
    Entry entry;
    void *params;
    int64_t total; /* work items */
    int64_t chunk; /* that a thread takes at a time */
    size_t arena;  /* bytes of scratch memory for each thread */
} Work;

typedef struct Pool Pool;

int pool_threads(Pool *pool);
int pool_run(Pool *pool, const Work *work); /* without the GIL; -1 where memory is short */
int pool_run_here(const Work *work);        /* in this thread; -1 where memory is short */

/* values.c */

#define MOST_AXES 64

/* An array argument as it was read: a place in memory, and where its slots of the parameter block
 * are: address, extents, strides in units of the element's alignment. */
typedef struct {
    int64_t *slots;
    uintptr_t start, stop; /* what it spans */
} View;

/* What a plan expects of an array. */
typedef struct {
    PyObject *dtype; /* NumPy's descriptor object, or khaljit's dtype */
    int ndim;
    int lanes; /* of a vector that is the last axis of a NumPy array; else 0 */
    int size;  /* bytes of an element */
    int shift; /* log2 of its alignment */
    bool contiguous, aligned, written;
} ArrayRule;

/* Types of numbers, as `khaljit.plans` numbers them. */
typedef enum { BOOL, I8, U8, I16, U16, I32, U32, I64, U64, F16, F32, F64, NUMBER_TYPES } NumberType;

typedef struct {
    NumberType type;
    bool annotated; /* the parameter has this type; else the argument's own type decides */
} NumberRule;

bool read_numpy_array(const ArrayRule *rule, PyObject *value, View *view, int64_t *extent);
bool read_device_array(
    const ArrayRule *rule, PyObject *value, PyObject *device, View *view, int64_t *extent,
    PyObject **buffer
);
bool read_number(const NumberRule *rule, PyObject *value, int64_t *slot);
bool memory_is_on(PyObject *memory, PyObject *stream, bool written);
bool same_shape(const View *a, const View *b, int ndim);

extern PyObject *current_device; /* the context variable of `kj.use`; NULL while never set */
bool is_watched(void);           /* something in this context has to see every launch */
bool values_are_ready(void);

/* table.c, plan.c */

extern PyTypeObject *plan_type, *pool_type;
Outcome plan_launch(PyObject *plan, const int64_t *groups, PyObject *const *args, Py_ssize_t count);

/* Each part adds its types and functions to the module. */
int add_values(PyObject *module);
int add_pool(PyObject *module);
int add_plan(PyObject *module);
int add_launch(PyObject *module);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
