/* The native way of a launch: what its parts know of each other.
 *
 * kernel.c   kernels: their plans, and their subscript
 * launch.c   launches, which are called, and bound.c those with arguments that stay
 * plan.c     checking and packing the arguments of a launch by its plan (plan.h)
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
#pragma GCC visibility push(hidden) /* the parts call each other directly */
#endif

/* What a try to launch came to. */
typedef enum { FAILED = -1, UNKNOWN = 0, DONE = 1 } Outcome;

/* context.c */

extern PyObject *current_device; /* the context variable of `kj.use`; NULL while never set */
extern int watched_count;
bool is_watched(void); /* something in this context has to see every launch; false if the count is 0 */

/* table.c, plan.c */

/* The size of a launch. */
typedef struct {
    int64_t groups[3];      /* workgroups */
    int64_t invocations[3];
    int64_t widest;         /* the most invocations along an axis */
    double all;             /* invocations */
} Grid;

extern PyTypeObject *plan_type;
Outcome plan_launch(PyObject *plan, const Grid *grid, PyObject *const *args, Py_ssize_t count);

/* kernel.c */

/* What a kernel's launches share. */
typedef struct {
    PyObject_HEAD
    PyObject *plans; /* a tuple, the latest first */
    Py_ssize_t hit;  /* the one that fitted last, which is tried first */
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
    bool counted; /* else the device reads the grid, or the kernel is not of the kind with plans */
} Launch;

extern PyTypeObject *launch_type;
PyObject *make_launch(PyObject *kernel, PyObject *groups, const Grid *grid);

/* Try the kernel's plans. */
static inline Outcome
try_plans(const Launch *launch, PyObject *const *args, Py_ssize_t count)
{
    Kernel *kernel = (Kernel *)launch->kernel;
    PyObject *plans;
    BEGIN_LOCKED(kernel);
    plans = Py_XNewRef(kernel->plans); /* NULL before `__init__` */
    END_LOCKED();
    Outcome outcome = UNKNOWN;
    const Py_ssize_t known = plans == NULL ? 0 : PyTuple_GET_SIZE(plans);
    Py_ssize_t at = kernel->hit < known ? kernel->hit : 0;
    for (Py_ssize_t k = 0; k < known && outcome == UNKNOWN; k++) {
        outcome = plan_launch(PyTuple_GET_ITEM(plans, at), &launch->grid, args, count);
        if (outcome == DONE) {
            kernel->hit = at; /* a hint, whichever thread writes it */
        }
        at = at + 1 < known ? at + 1 : 0;
    }
    Py_XDECREF(plans);
    return outcome;
}

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
