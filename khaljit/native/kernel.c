/* Kernels: the base of `khaljit.jit.Kernel`, which holds the plans and whose subscript makes launches.
 */

#include "native.h"

PyTypeObject *kernel_type;
static PyObject *name_on;

static int kernel_init(Kernel *kernel, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"workgroup", NULL};
    long long x, y, z;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "(LLL)", names, &x, &y, &z)) {
        return -1;
    }
    kernel->workgroup[0] = x, kernel->workgroup[1] = y, kernel->workgroup[2] = z;
    kernel->again = NULL;
    Py_XSETREF(kernel->plans, PyTuple_New(0));
    Py_XSETREF(kernel->names, Py_NewRef(Py_None));
    return kernel->plans == NULL ? -1 : 0;
}

bool fill_grid(const Kernel *kernel, Grid *grid)
{
    grid->widest = 0;
    grid->all = 1;
    for (int axis = 0; axis < 3; axis++) {
        if (grid->groups[axis] > INT64_MAX / 4 / kernel->workgroup[axis]) {
            return false;
        }
        grid->invocations[axis] = grid->groups[axis] * kernel->workgroup[axis];
        grid->all *= (double)grid->invocations[axis];
        if (grid->invocations[axis] > grid->widest) {
            grid->widest = grid->invocations[axis];
        }
    }
    return grid->all < 4e18;
}

/* The workgroups for whole numbers of invocations; false for anything else, and for too many. */
static bool read_grid(const Kernel *kernel, PyObject *from, Grid *grid)
{
    const Py_ssize_t axes = PyTuple_CheckExact(from) ? PyTuple_GET_SIZE(from) : 1;
    if (axes < 1 || axes > 3) {
        return false;
    }
    for (int axis = 0; axis < 3; axis++) {
        int64_t extent = 1;
        if (axis < axes) {
            PyObject *part = PyTuple_CheckExact(from) ? PyTuple_GET_ITEM(from, axis) : from;
            int overflow;
            if (!PyLong_CheckExact(part)) {
                return false;
            }
            extent = PyLong_AsLongLongAndOverflow(part, &overflow);
            if (overflow || extent < 0 || extent > INT64_MAX / 2) {
                return false;
            }
        }
        grid->groups[axis] = (extent + kernel->workgroup[axis] - 1) / kernel->workgroup[axis];
    }
    return fill_grid(kernel, grid);
}

/* The launch that was made last, if it was for this number; with the kernel locked. */
static PyObject *find_last(const Kernel *kernel, PyObject *whole, int64_t *extent)
{
    int overflow = 0;
    if (kernel->last == NULL || kernel->whole != whole) {
        *extent = PyLong_AsLongLongAndOverflow(whole, &overflow);
        if (kernel->last == NULL || *extent != kernel->extent || overflow) {
            return NULL;
        }
    }
    return Py_NewRef(kernel->last);
}

static NOT_INLINE PyObject *subscript_anew(Kernel *kernel, PyObject *from)
{
    int64_t extent = -1;
    PyObject *found = NULL;
    if (PyLong_CheckExact(from)) {
        BEGIN_LOCKED(kernel);
        found = find_last(kernel, from, &extent);
        END_LOCKED();
        if (found != NULL) {
            return found;
        }
    }
    Grid grid;
    if (kernel->plans == NULL || !read_grid(kernel, from, &grid)) {
        return PyObject_CallMethodOneArg((PyObject *)kernel, name_on, from);
    }
    found = make_launch((PyObject *)kernel, NULL, &grid);
    if (found != NULL && extent >= 0) {
        PyObject *last, *whole;
        BEGIN_LOCKED(kernel);
        last = kernel->last;
        whole = kernel->whole;
        kernel->last = Py_NewRef(found);
        kernel->whole = Py_NewRef(from);
        kernel->extent = extent;
        END_LOCKED();
        Py_XDECREF(last);
        Py_XDECREF(whole);
    }
    return found;
}

static PyObject *kernel_subscript(Kernel *kernel, PyObject *from)
{
#ifndef Py_GIL_DISABLED
    if (LIKELY(from == kernel->whole)) { /* small numbers are the same object each time */
        return Py_NewRef(kernel->last);
    }
#endif
    return subscript_anew(kernel, from);
}

/* Take plans, the first to be tried first, and the names of the parameters. */
static PyObject *kernel_learn(Kernel *kernel, PyObject *args)
{
    PyObject *plans, *names;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &plans, &names)) {
        return NULL;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(plans); k++) {
        if (Py_TYPE(PyTuple_GET_ITEM(plans, k)) != plan_type) {
            PyErr_SetString(PyExc_TypeError, "a tuple of plans");
            return NULL;
        }
    }
    PyObject *old_plans, *old_names;
    BEGIN_LOCKED(kernel);
    old_plans = kernel->plans;
    old_names = kernel->names;
    kernel->plans = Py_NewRef(plans);
    kernel->hit = 0;
    kernel->again = NULL;
    kernel->names = Py_NewRef(PyTuple_CheckExact(names) ? names : Py_None);
    END_LOCKED();
    Py_XDECREF(old_plans);
    Py_XDECREF(old_names);
    Py_RETURN_NONE;
}

static int kernel_traverse(Kernel *kernel, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(kernel));
    Py_VISIT(kernel->plans);
    Py_VISIT(kernel->names);
    Py_VISIT(kernel->last);
    return 0;
}

static int kernel_clear(Kernel *kernel)
{
    kernel->again = NULL;
    Py_XSETREF(kernel->plans, PyTuple_New(0));
    Py_CLEAR(kernel->whole);
    Py_CLEAR(kernel->last);
    return 0;
}

static void kernel_dealloc(Kernel *kernel)
{
    PyTypeObject *type = Py_TYPE(kernel);
    PyObject_GC_UnTrack(kernel);
    Py_CLEAR(kernel->plans);
    Py_CLEAR(kernel->names);
    Py_CLEAR(kernel->whole);
    Py_CLEAR(kernel->last);
    type->tp_free(kernel);
    Py_DECREF(type);
}

static PyMethodDef kernel_methods[] = {
    {"learn", (PyCFunction)kernel_learn, METH_VARARGS, "Take plans and the parameters' names."},
    {NULL},
};

static PyType_Slot kernel_slots[] = {
    {Py_tp_doc, "What is native of a kernel."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, kernel_init},
    {Py_mp_subscript, kernel_subscript},
    {Py_tp_traverse, kernel_traverse},
    {Py_tp_clear, kernel_clear},
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_methods, kernel_methods},
    {0, NULL},
};

static PyType_Spec kernel_spec = {
    .name = "khaljit._native.Kernel",
    .basicsize = sizeof(Kernel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = kernel_slots,
};

int add_kernel(PyObject *module)
{
    name_on = PyUnicode_InternFromString("on");
    kernel_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &kernel_spec, NULL);
    return name_on == NULL || kernel_type == NULL ? -1 : PyModule_AddType(module, kernel_type);
}
