/* What a launch plan is made of: the table that table.c makes, plan.c checks by, target.c runs. */

#ifndef KHALJIT_PLAN_H
#define KHALJIT_PLAN_H

#include "native.h"

#define MOST_PARAMETERS 64
#define MOST_SLOTS 256

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* A parameter of the kernel, in the order of the call. */
typedef struct {
    enum { NUMPY, DEVICE, NUMBER, FIXED, CONSTANT } kind;
    int slot;   /* the first of its slots of the parameter block */
    int number; /* of the array, among arrays */
    ArrayRule array;
    NumberRule rule;
    int64_t bits;    /* FIXED: a number that the call does not pass */
    PyObject *value; /* FIXED: the same; CONSTANT */
} Parameter;

typedef struct {
    int a, b;
    bool same; /* they are one view */
} Pair;

/* Something read from outside the kernel while recording. */
typedef struct {
    enum { ITEM, CELL, ATTRIBUTE, OTHER } kind;
    PyObject *owner; /* a dict, a cell, an object; none for OTHER */
    PyObject *name;
    PyObject *seen;
    PyObject *guard;  /* asks in Python, where something else is found */
    uint64_t version; /* of the dict when it was last asked */
} Guard;

/* How the code is called. */

typedef struct {
    Entry entry;
    Pool *pool;
    PyObject *image; /* keeps the code */
    Py_ssize_t arena;
    int64_t item[3];
    double cost;         /* simple operations of an invocation */
    double worth_threads;
    int chunks;          /* for each thread */
    bool brief;          /* no loop in it: short if its cost is small */
} CpuTarget;

typedef int (*SetContext)(void *context);
typedef int (*LaunchKernel)(
    void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, void *stream, void **params, void **extra
);

typedef struct {
    SetContext enter;
    LaunchKernel launch;
    void *context, *function, *stream;
    PyObject *stream_object;
    int64_t block[3], item[3];
    unsigned shared;
    PyObject *launched;  /* called with the kernel's name: the device remembers it */
    PyObject *name;
    PyObject *on_status; /* called with a status that is not success */
    PyObject *kept;      /* the module and what else must live */
} CudaTarget;

typedef struct {
    PyObject *call; /* `Loaded.repeat` */
} CalledTarget;

typedef struct {
    enum { CPU, CUDA, CALLED } kind;
    union {
        CpuTarget cpu;
        CudaTarget cuda;
        CalledTarget called;
    };
} Target;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, passed;
    Parameter *parameters;
    int arrays;
    const ArrayRule **rules; /* of the arrays */
    int *shapes, *views;     /* per array the first with an equal shape, the first same view */
    int pair_count;
    Pair *pairs; /* of arrays that are one view, or must not overlap */
    Py_ssize_t guard_count;
    Guard *guards;
    bool asks; /* a guard runs code that is not ours */
    PyObject *device;
    bool anywhere;   /* arrays are NumPy's, and so the context says where */
    bool is_default; /* the device is the one of a context that says nothing */
    bool wide;       /* `index` has 64 bits */
    int64_t limit;   /* the largest offset and id of an `index` of 32 bits */
    int64_t workgroup[3];
    int64_t most_groups[3]; /* an axis, so that counting invocations does not overflow */
    int array_slots; /* of the parameter block; those of numbers follow, then the groups */
    int groups_slot;
    Target target;
    unsigned process; /* how often this process had forked */
} Plan;

/* A launch that was checked. */
typedef struct {
    const Plan *plan;
    PyObject *const *args;
    const int64_t *groups;
    const int64_t *invocations;
    int64_t *slots;
} Checked;

/* plan.c */

bool watch_dict(PyObject *dict); /* so that its changes are noticed; false with an error */

/* target.c */

bool target_parse(Target *target, const char *kind, PyObject *from);
int target_traverse(const Target *target, visitproc visit, void *arg);
void target_release(Target *target);
Outcome target_run(const Target *target, const Checked *launch);

extern unsigned forks; /* of this process, so far */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
