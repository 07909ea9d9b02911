/* Kernels, launches and bound launches: what a call meets first.
 *
 * `Kernel` is the base of `khaljit.jit.Kernel`: its subscript makes launches, and it holds the
 * plans, the latest first. A launch tries them; where none fits, `kernel.launch(groups, args,
 * kwargs)` is the Python path. A bound launch keeps arguments, and the Python object that it is
 * the native form of.
 */

#include "native.h"

#define MOST_ARGUMENTS 64

typedef struct {
    PyObject_HEAD
    PyObject *plans; /* a tuple */
    PyObject *names; /* of the parameters, a tuple; None where keywords are for Python to place */
    int64_t workgroup[3];
    PyObject *last; /* the launch that was made last for one whole number */
    int64_t extent; /* that number */
} Kernel;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *kernel;
    PyObject *groups;  /* as Python has it; NULL while nobody has asked */
    int64_t counts[3]; /* workgroups */
    bool counted;      /* else the device reads them, or the kernel is not of the kind with plans */
} Launch;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *launch, *names, *values, *python;
} Bound;

static PyTypeObject *kernel_type, *launch_type, *bound_type;
static PyObject *name_launch, *name_on;

/* Trying the plans. */

static Outcome
try_plans(const Launch *launch, PyObject *const *args, Py_ssize_t count)
{
    Kernel *kernel = (Kernel *)launch->kernel;
    PyObject *plans;
    BEGIN_LOCKED(kernel);
    plans = Py_XNewRef(kernel->plans); /* NULL before `__init__` */
    END_LOCKED();
    Outcome outcome = UNKNOWN;
    const Py_ssize_t known = plans == NULL ? 0 : PyTuple_GET_SIZE(plans);
    for (Py_ssize_t k = 0; k < known && outcome == UNKNOWN; k++) {
        outcome = plan_launch(PyTuple_GET_ITEM(plans, k), launch->counts, args, count);
    }
    Py_XDECREF(plans);
    return outcome;
}

/* Put keyword arguments where their parameters stand; how many that makes, -1 in any doubt. */
static Py_ssize_t
place_keywords(PyObject *names, PyObject *const *values, PyObject *kwnames, PyObject **args)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kwnames); k++) {
        Py_ssize_t at = 0;
        while (at < count && PyTuple_GET_ITEM(names, at) != PyTuple_GET_ITEM(kwnames, k)) {
            at++;
        }
        if (at == count) {
            return -1;
        }
        args[at] = values[k];
    }
    return count;
}

static Outcome try_keywords(
    const Launch *launch, PyObject *const *args, Py_ssize_t count, PyObject *kwnames
)
{
    Kernel *kernel = (Kernel *)launch->kernel;
    PyObject *all[MOST_ARGUMENTS] = {NULL}, *names;
    BEGIN_LOCKED(kernel);
    names = Py_XNewRef(kernel->names);
    END_LOCKED();
    Outcome outcome = UNKNOWN;
    if (names != NULL && names != Py_None && PyTuple_GET_SIZE(names) <= MOST_ARGUMENTS &&
        count <= PyTuple_GET_SIZE(names) &&
        place_keywords(names, args + count, kwnames, all) >= 0) {
        const Py_ssize_t passed = count + PyTuple_GET_SIZE(kwnames);
        bool good = passed <= MOST_ARGUMENTS;
        for (Py_ssize_t k = 0; good && k < passed; k++) {
            if (k < count) {
                good = all[k] == NULL; /* else it is given twice */
                all[k] = args[k];
            }
            good = good && all[k] != NULL;
        }
        if (good) {
            outcome = try_plans(launch, all, passed);
        }
    }
    Py_XDECREF(names);
    return outcome;
}

/* Launches. */

static PyObject *get_groups(Launch *launch, void *Py_UNUSED(none))
{
    PyObject *groups;
    BEGIN_LOCKED(launch);
    if (launch->groups == NULL) {
        launch->groups = Py_BuildValue(
            "LLL", (long long)launch->counts[0], (long long)launch->counts[1],
            (long long)launch->counts[2]
        );
    }
    groups = Py_XNewRef(launch->groups);
    END_LOCKED();
    return groups;
}

static PyObject *call_python(
    Launch *launch, PyObject *const *args, Py_ssize_t count, PyObject *kwnames
)
{
    PyObject *groups = get_groups(launch, NULL), *positional = PyTuple_New(count);
    PyObject *keywords = PyDict_New(), *result = NULL;
    if (groups == NULL || positional == NULL || keywords == NULL) {
        goto done;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyTuple_SET_ITEM(positional, k, Py_NewRef(args[k]));
    }
    for (Py_ssize_t k = 0; kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); k++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, k), args[count + k]) < 0) {
            goto done;
        }
    }
    result = PyObject_CallMethodObjArgs(
        launch->kernel, name_launch, groups, positional, keywords, NULL
    );
done:
    Py_XDECREF(groups);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return result;
}

static PyObject *
launch_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *kwnames)
{
    Launch *launch = (Launch *)self;
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    Outcome outcome = UNKNOWN;
    if (launch->counted) {
        outcome = kwnames == NULL || PyTuple_GET_SIZE(kwnames) == 0
                      ? try_plans(launch, args, count)
                      : try_keywords(launch, args, count, kwnames);
    }
    switch (outcome) {
    case DONE: Py_RETURN_NONE;
    case UNKNOWN: return call_python(launch, args, count, kwnames);
    default: return NULL;
    }
}

static Launch *make_launch(PyObject *kernel, PyObject *groups, const int64_t *counts)
{
    Launch *launch = PyObject_GC_New(Launch, launch_type);
    if (launch == NULL) {
        return NULL;
    }
    launch->call = launch_call;
    launch->kernel = Py_NewRef(kernel);
    launch->groups = Py_XNewRef(groups);
    launch->counted = counts != NULL;
    for (int axis = 0; axis < 3; axis++) {
        launch->counts[axis] = counts == NULL ? 0 : counts[axis];
    }
    PyObject_GC_Track(launch);
    return launch;
}

static PyObject *launch_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kernel", "groups", NULL};
    PyObject *kernel, *groups;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &kernel, &groups)) {
        return NULL;
    }
    int64_t counts[3];
    bool counted = PyObject_TypeCheck(kernel, kernel_type) && PyTuple_CheckExact(groups) &&
                   PyTuple_GET_SIZE(groups) == 3;
    for (int axis = 0; counted && axis < 3; axis++) {
        counts[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(groups, axis));
        if (counts[axis] < 0) {
            PyErr_Clear();
            counted = false;
        }
    }
    return (PyObject *)make_launch(kernel, groups, counted ? counts : NULL);
}

static PyObject *launch_prepare(Launch *launch, PyObject *args)
{
    PyObject *positional, *keywords;
    if (!PyArg_ParseTuple(args, "OO", &positional, &keywords)) {
        return NULL;
    }
    PyObject *groups = get_groups(launch, NULL);
    if (groups == NULL) {
        return NULL;
    }
    PyObject *dispatch = PyObject_CallMethod(
        launch->kernel, "prepare", "OOO", groups, positional, keywords
    );
    Py_DECREF(groups);
    return dispatch;
}

static PyObject *launch_bind(Launch *launch, PyObject *args, PyObject *kwargs)
{
    PyObject *keywords = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
    if (keywords == NULL) {
        return NULL;
    }
    PyObject *bound = PyObject_CallMethod(
        launch->kernel, "bind_launch", "OOO", launch, args, keywords
    );
    Py_DECREF(keywords);
    return bound;
}

static PyObject *launch_repr(Launch *launch)
{
    PyObject *groups = get_groups(launch, NULL);
    if (groups == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<%R with %S workgroups>", launch->kernel, groups);
    Py_DECREF(groups);
    return text;
}

static int launch_traverse(Launch *launch, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(launch));
    Py_VISIT(launch->kernel);
    Py_VISIT(launch->groups);
    return 0;
}

/* A launch never changes; a cycle through it is broken by the kernel. */
static void launch_dealloc(Launch *launch)
{
    PyTypeObject *type = Py_TYPE(launch);
    PyObject_GC_UnTrack(launch);
    Py_XDECREF(launch->kernel);
    Py_XDECREF(launch->groups);
    PyObject_GC_Del(launch);
    Py_DECREF(type);
}

static PyMethodDef launch_methods[] = {
    {"prepare", (PyCFunction)launch_prepare, METH_VARARGS,
     "The launch with its arguments, checked and compiled, to be run later."},
    {"bind", (PyCFunction)(void (*)(void))launch_bind, METH_VARARGS | METH_KEYWORDS,
     "The launch with arguments that stay; `bound(name=value)` runs it with others."},
    {NULL},
};

static PyGetSetDef launch_properties[] = {
    {"groups", (getter)get_groups, NULL, "Workgroups in x, y and z, or where the device reads them.",
     NULL},
    {NULL},
};

static PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, call), READONLY, NULL},
    {NULL},
};

static PyType_Slot launch_slots[] = {
    {Py_tp_doc, "A kernel with its grid; call it with the kernel's arguments."},
    {Py_tp_new, launch_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, launch_repr},
    {Py_tp_traverse, launch_traverse},
    {Py_tp_dealloc, launch_dealloc},
    {Py_tp_methods, launch_methods},
    {Py_tp_getset, launch_properties},
    {Py_tp_members, launch_members},
    {0, NULL},
};

static PyType_Spec launch_spec = {
    .name = "khaljit._native.Launch",
    .basicsize = sizeof(Launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = launch_slots,
};

/* Kernels. */

static int kernel_init(Kernel *kernel, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"workgroup", NULL};
    long long x, y, z;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "(LLL)", names, &x, &y, &z)) {
        return -1;
    }
    kernel->workgroup[0] = x, kernel->workgroup[1] = y, kernel->workgroup[2] = z;
    Py_XSETREF(kernel->plans, PyTuple_New(0));
    Py_XSETREF(kernel->names, Py_NewRef(Py_None));
    return kernel->plans == NULL ? -1 : 0;
}

/* Workgroups for a grid of whole numbers; false for any other, and for one that is too large. */
static bool count_groups(const Kernel *kernel, PyObject *grid, int64_t *counts)
{
    const Py_ssize_t axes = PyTuple_CheckExact(grid) ? PyTuple_GET_SIZE(grid) : 1;
    double all = 1;
    if (axes < 1 || axes > 3) {
        return false;
    }
    for (int axis = 0; axis < 3; axis++) {
        int64_t extent = 1;
        if (axis < axes) {
            PyObject *part = PyTuple_CheckExact(grid) ? PyTuple_GET_ITEM(grid, axis) : grid;
            int overflow;
            if (!PyLong_CheckExact(part)) {
                return false;
            }
            extent = PyLong_AsLongLongAndOverflow(part, &overflow);
            if (overflow || extent < 0 || extent > INT64_MAX / 2) {
                return false;
            }
        }
        counts[axis] = (extent + kernel->workgroup[axis] - 1) / kernel->workgroup[axis];
        all *= (double)counts[axis];
    }
    return all < 4e18;
}

static PyObject *kernel_subscript(Kernel *kernel, PyObject *grid)
{
    int64_t extent = -1, counts[3];
    PyObject *found = NULL;
    if (PyLong_CheckExact(grid)) {
        int overflow;
        extent = PyLong_AsLongLongAndOverflow(grid, &overflow);
        BEGIN_LOCKED(kernel);
        if (kernel->last != NULL && kernel->extent == extent && !overflow) {
            found = Py_NewRef(kernel->last);
        }
        END_LOCKED();
        if (found != NULL) {
            return found;
        }
    }
    if (kernel->plans == NULL || !count_groups(kernel, grid, counts)) {
        return PyObject_CallMethodOneArg((PyObject *)kernel, name_on, grid);
    }
    found = (PyObject *)make_launch((PyObject *)kernel, NULL, counts);
    if (found != NULL && extent >= 0) {
        BEGIN_LOCKED(kernel);
        Py_XSETREF(kernel->last, Py_NewRef(found));
        kernel->extent = extent;
        END_LOCKED();
    }
    return found;
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
    Py_XSETREF(kernel->plans, PyTuple_New(0));
    Py_CLEAR(kernel->last);
    return 0;
}

static void kernel_dealloc(Kernel *kernel)
{
    PyTypeObject *type = Py_TYPE(kernel);
    PyObject_GC_UnTrack(kernel);
    Py_CLEAR(kernel->plans);
    Py_CLEAR(kernel->names);
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

/* Bound launches. */

static PyObject *
bound_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *kwnames)
{
    Bound *bound = (Bound *)self;
    const Py_ssize_t count = PyTuple_GET_SIZE(bound->values);
    PyObject *const *values = &PyTuple_GET_ITEM(bound->values, 0);
    Outcome outcome = UNKNOWN;
    if (PyVectorcall_NARGS(flags) == 0) {
        if (kwnames == NULL || PyTuple_GET_SIZE(kwnames) == 0) {
            outcome = try_plans((Launch *)bound->launch, values, count);
        }
        else {
            PyObject *all[MOST_ARGUMENTS];
            for (Py_ssize_t k = 0; k < count; k++) {
                all[k] = values[k];
            }
            if (place_keywords(bound->names, args, kwnames, all) >= 0) {
                outcome = try_plans((Launch *)bound->launch, all, count);
            }
        }
    }
    switch (outcome) {
    case DONE: Py_RETURN_NONE;
    case UNKNOWN: return PyObject_Vectorcall(bound->python, args, flags, kwnames);
    default: return NULL;
    }
}

static PyObject *bound_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"launch", "names", "values", "python", NULL};
    PyObject *launch, *names, *values, *python;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O!O!O", keywords, launch_type, &launch, &PyTuple_Type, &names,
            &PyTuple_Type, &values, &python
        )) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(values) ||
        PyTuple_GET_SIZE(names) > MOST_ARGUMENTS || !((Launch *)launch)->counted) {
        PyErr_SetString(PyExc_ValueError, "such arguments are not bound natively");
        return NULL;
    }
    Bound *bound = (Bound *)type->tp_alloc(type, 0);
    if (bound != NULL) {
        bound->call = bound_call;
        bound->launch = Py_NewRef(launch);
        bound->names = Py_NewRef(names);
        bound->values = Py_NewRef(values);
        bound->python = Py_NewRef(python);
    }
    return (PyObject *)bound;
}

static PyObject *bound_repr(Bound *bound)
{
    return PyObject_Repr(bound->python);
}

static int bound_traverse(Bound *bound, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(bound));
    Py_VISIT(bound->launch);
    Py_VISIT(bound->names);
    Py_VISIT(bound->values);
    Py_VISIT(bound->python);
    return 0;
}

static void bound_dealloc(Bound *bound)
{
    PyTypeObject *type = Py_TYPE(bound);
    PyObject_GC_UnTrack(bound);
    Py_XDECREF(bound->launch);
    Py_XDECREF(bound->names);
    Py_XDECREF(bound->values);
    Py_XDECREF(bound->python);
    type->tp_free(bound);
    Py_DECREF(type);
}

static PyMemberDef bound_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, call), READONLY, NULL},
    {NULL},
};

static PyType_Slot bound_slots[] = {
    {Py_tp_doc, "A launch with arguments that stay."},
    {Py_tp_new, bound_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, bound_repr},
    {Py_tp_traverse, bound_traverse},
    {Py_tp_dealloc, bound_dealloc},
    {Py_tp_members, bound_members},
    {0, NULL},
};

static PyType_Spec bound_spec = {
    .name = "khaljit._native.Bound",
    .basicsize = sizeof(Bound),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = bound_slots,
};

/* The module. */

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return type == NULL || PyModule_AddType(module, type) < 0 ? NULL : type;
}

int add_launch(PyObject *module)
{
    name_launch = PyUnicode_InternFromString("launch");
    name_on = PyUnicode_InternFromString("on");
    kernel_type = add_type(module, &kernel_spec);
    launch_type = kernel_type == NULL ? NULL : add_type(module, &launch_spec);
    bound_type = launch_type == NULL ? NULL : add_type(module, &bound_spec);
    return name_launch == NULL || name_on == NULL || bound_type == NULL ? -1 : 0;
}

static int execute(PyObject *module)
{
    return add_values(module) < 0 || add_pool(module) < 0 || add_plan(module) < 0 ||
                   add_launch(module) < 0
               ? -1
               : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "khaljit._native",
    .m_doc = "Launching without Python on the way; see khaljit/native/native.h.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
