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
    Py_ssize_t count, passed;
    Parameter *parameters; /* by their kinds: first the arrays, which are all of one kind */
    Parameter *ends[KINDS]; /* of the parameters of each kind */
    int arrays;
    bool agree;     /* what was read of the arrays last: the pairs are as they have to be */
    int64_t extent; /* and this is the largest of theirs */
    int64_t *slots; /* the parameter block, without what differs in each launch */
    Py_ssize_t *sizes; /* for what is read of the arrays */
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

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
