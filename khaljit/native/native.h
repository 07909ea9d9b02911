/* The native way of a launch: what its parts know of each other.
 *
 * kernel.c   kernels: their plans, and their subscript
 * launch.c   launches, which are called, and bound.c those with arguments that stay
 * again.h    a launch by the plan that fitted last, which most are
 * plan.c     checking and packing the arguments of any launch by its plan (plan.h)
 * arrays.c, numbers.c, guards.c, context.c   what is read for that
 * target.c   running it
 * pool.c     the threads that help with a launch on the CPU
 * table.c    making a plan
 * module.c   the module
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
#define NOT_INLINE __attribute__((noinline)) /* kept out of the way of what most launches do */
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#pragma GCC visibility push(hidden) /* the parts call each other directly */
#else
#define NOT_INLINE
#define LIKELY(condition) (condition)
#endif

/* What a try to launch came to. */
typedef enum { FAILED = -1, UNKNOWN = 0, DONE = 1 } Outcome;

/* context.c */

extern PyObject *current_device; /* the context variable of `kj.use`; NULL while never set */
extern int watched_count;
extern uint64_t era; /* begins anew with each variable to look at, and in a child process */
bool is_watched(void); /* something in this context has to see every launch; runs no code of Python's */

/* table.c, plan.c */

/* The size of a launch. */
typedef struct {
    int64_t groups[3];      /* workgroups */
    int64_t invocations[3];
    int64_t widest;         /* the most invocations along an axis */
    double all;             /* invocations */
} Grid;

extern PyTypeObject *plan_type;

/* kernel.c */

/* What a kernel's launches share. */
typedef struct {
    PyObject_HEAD
    PyObject *plans; /* a tuple, the latest first */
    Py_ssize_t hit;  /* the one that fitted last, which is tried first */
    struct Plan *again; /* the same, one of them, if it is for `launch_again`; else NULL */
    PyObject *names; /* of the parameters, a tuple; None where keywords are for Python to place */
    int64_t workgroup[3];
    PyObject *last;  /* the launch that was made last for one whole number */
    PyObject *whole; /* that number */
    int64_t extent;  /* and its value */
} Kernel;

extern PyTypeObject *kernel_type;
bool fill_grid(const Kernel *kernel, Grid *grid); /* its groups are there; false if it is too large */

/* launch.c */

#define MOST_ARGUMENTS 64

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *kernel;
    PyObject *groups; /* as Python has it; NULL while nobody has asked */
    Grid grid;
    uint64_t number; /* of this launch: no other one has it */
    bool counted; /* else the device reads the grid, or the kernel is not of the kind with plans */
} Launch;

extern PyTypeObject *launch_type;
PyObject *make_launch(PyObject *kernel, PyObject *groups, const Grid *grid);

/* Try the kernel's plans; plan.c. */
Outcome try_plans(const Launch *launch, PyObject *const *args, Py_ssize_t count);
Outcome search_plans( /* `launch_again` was tried */
    const Launch *launch, PyObject *const *args, Py_ssize_t count
);

/* Put keyword arguments where their parameters stand; false in any doubt. */
bool place_keywords(PyObject *names, PyObject *const *values, PyObject *kwnames, PyObject **args);

/* Each part adds its types and functions to the module. */
int add_arrays(PyObject *module);
int add_numbers(PyObject *module);
int add_context(PyObject *module);
int add_pool(PyObject *module);
int add_plan(PyObject *module);
int add_kernel(PyObject *module);
int add_launch(PyObject *module);
int add_bound(PyObject *module);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
