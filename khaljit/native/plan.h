/* What a launch plan is made of: the table that table.c makes and plan.c checks by. */

#ifndef KHALJIT_PLAN_H
#define KHALJIT_PLAN_H

#include "arrays.h"
#include "guards.h"
#include "numbers.h"
#include "target.h"

#define MOST_PARAMETERS 64
#define MOST_SLOTS 256

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef enum { NUMPY, DEVICE, NUMBER, FIXED, CONSTANT, KINDS } Kind;

/* A parameter of the kernel. */
typedef struct {
    Kind kind;
    int position; /* of its argument in the call */
    int slot;     /* the first of its slots of the parameter block */
    ArrayRule array;
    View view;
    NumberRule rule;
    int64_t bits;    /* FIXED: a number that the call does not pass */
    PyObject *value; /* FIXED: the same; CONSTANT */
} Parameter;

/* Two arrays that are compared in each launch. */
typedef struct {
    uint8_t a, b;
    bool same; /* they have one shape, or are one view */
} Pair;

typedef struct Plan {
    PyObject_HEAD
    Py_ssize_t passed;
    uint64_t settled; /* the launch whose grid fits and is in the block; 0 where none is */
    uint64_t era;     /* in which that was so; 0 where the context is asked each time */
    int64_t total;    /* work items of that launch, */
    int64_t next;     /* and their counter */
    NumpySeen *numpy; /* of each array: what was read of it last */
    DeviceSeen *own;
    Py_ssize_t *sizes; /* of all NumPy arrays */
    int numpy_count, own_count;
    bool agree;          /* what was read: the pairs of arrays are as they have to be */
    int64_t least, most; /* and so wide are the grids whose ids fit the type of `index` then */
    int64_t *slots;      /* the parameter block; numbers and groups are those of any launch */
    Py_ssize_t count;
    Parameter *parameters;  /* by their kinds: first the arrays, which are all of one kind */
    Parameter *ends[KINDS]; /* of the parameters of each kind */
    int arrays;
    int shape_count, view_count;
    Pair *shapes; /* of arrays with shapes that are equal or must not be */
    Pair *views;  /* of arrays that are one view, or must not overlap */
    Guards guards;
    PyObject *device;
    bool anywhere;   /* arrays are NumPy's, and so the context says where */
    bool is_default; /* the device is the one of a context that says nothing */
    bool wide;       /* `index` has 64 bits */
    int64_t limit;   /* the largest offset and id of an `index` of 32 bits */
    int array_slots; /* of the parameter block; those of numbers follow, then the groups */
    int groups_slot;
    Target target;
    unsigned process; /* how often this process had forked */
} Plan;

extern unsigned forks; /* of this process, so far */

/* Read the arrays that are others than before; false where the Python path has to look. */
bool read_arrays(Plan *plan, PyObject *const *args);

bool is_constant(PyObject *value, PyObject *wanted);

/* Ready a plan for a launch that is not the one before; false where it is not for `launch_again`. */
bool settle(Plan *plan, const Launch *launch);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
