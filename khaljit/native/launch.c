/* Launches: what a call meets first. It tries the kernel's plans; where none fits,
 * `kernel.launch(groups, args, kwargs)` is the Python path.
 */

#include "again.h"

PyTypeObject *launch_type;
static PyObject *name_launch;

bool place_keywords(PyObject *names, PyObject *const *values, PyObject *kwnames, PyObject **args)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kwnames); k++) {
        Py_ssize_t at = 0;
        while (at < count && PyTuple_GET_ITEM(names, at) != PyTuple_GET_ITEM(kwnames, k)) {
            at++;
        }
        if (at == count) {
            return false;
        }
        args[at] = values[k];
    }
    return true;
}

/* Whether keyword arguments come in the order of their parameters, behind those by position. */
static bool are_in_order(PyObject *names, Py_ssize_t count, PyObject *kwnames)
{
    const Py_ssize_t passed = count + PyTuple_GET_SIZE(kwnames);
    if (passed > PyTuple_GET_SIZE(names)) {
        return false;
    }
    while (count < passed && PyTuple_GET_ITEM(names, count) ==
                                 PyTuple_GET_ITEM(kwnames, PyTuple_GET_SIZE(kwnames) + count - passed)) {
        count++;
    }
    return count == passed;
}

/* Put all arguments where their parameters stand; false in any doubt. */
static bool place_arguments(
    PyObject *names, PyObject *const *args, Py_ssize_t count, PyObject *kwnames, PyObject **all
)
{
    const Py_ssize_t known = PyTuple_GET_SIZE(names), passed = count + PyTuple_GET_SIZE(kwnames);
    if (passed > known || known > MOST_ARGUMENTS) {
        return false;
    }
    for (Py_ssize_t k = 0; k < known; k++) {
        all[k] = k < count ? args[k] : NULL;
    }
    if (!place_keywords(names, args + count, kwnames, all)) {
        return false;
    }
    for (Py_ssize_t k = 0; k < passed; k++) {
        if (k < count ? all[k] != args[k] : all[k] == NULL) { /* given twice, or not */
            return false;
        }
    }
    return true;
}

static Outcome try_keywords(
    const Launch *launch, PyObject *const *args, Py_ssize_t count, PyObject *kwnames
)
{
    Kernel *kernel = (Kernel *)launch->kernel;
    const Py_ssize_t passed = count + PyTuple_GET_SIZE(kwnames);
    PyObject *all[MOST_ARGUMENTS], *names;
    BEGIN_LOCKED(kernel);
    names = Py_XNewRef(kernel->names);
    END_LOCKED();
    Outcome outcome = UNKNOWN;
    if (names != NULL && names != Py_None) {
        if (are_in_order(names, count, kwnames)) {
            outcome = try_plans(launch, args, passed);
        }
        else if (place_arguments(names, args, count, kwnames, all)) {
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
            "LLL", (long long)launch->grid.groups[0], (long long)launch->grid.groups[1],
            (long long)launch->grid.groups[2]
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

static NOT_INLINE PyObject *
launch_anew(Launch *launch, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    const Outcome outcome = kwnames == NULL ? search_plans(launch, args, count)
                                            : try_keywords(launch, args, count, kwnames);
    switch (outcome) {
    case DONE: Py_RETURN_NONE;
    case UNKNOWN: return call_python(launch, args, count, kwnames);
    default: return NULL;
    }
}

/* The call of a launch whose grid the device reads, or of a kernel that is not of the kind with
 * plans. */
static PyObject *
launch_call_python(PyObject *self, PyObject *const *args, size_t flags, PyObject *kwnames)
{
    return call_python((Launch *)self, args, PyVectorcall_NARGS(flags), kwnames);
}

static PyObject *
launch_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *kwnames)
{
    Launch *launch = (Launch *)self;
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (LIKELY(kwnames == NULL && launch_again(launch, args, count))) {
        Py_RETURN_NONE;
    }
    return launch_anew(launch, args, count, kwnames);
}

static uint64_t next_number(void)
{
#ifdef Py_GIL_DISABLED
    return 0; /* nothing is launched again */
#else
    static uint64_t made;
    return ++made;
#endif
}

PyObject *make_launch(PyObject *kernel, PyObject *groups, const Grid *grid)
{
    Launch *launch = PyObject_GC_New(Launch, launch_type);
    if (launch == NULL) {
        return NULL;
    }
    launch->call = grid == NULL ? launch_call_python : launch_call;
    launch->kernel = Py_NewRef(kernel);
    launch->groups = Py_XNewRef(groups);
    launch->number = next_number();
    launch->counted = grid != NULL;
    launch->grid = grid == NULL ? (Grid){0} : *grid;
    PyObject_GC_Track(launch);
    return (PyObject *)launch;
}

static PyObject *launch_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kernel", "groups", NULL};
    PyObject *kernel, *groups;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &kernel, &groups)) {
        return NULL;
    }
    Grid grid;
    bool counted = PyObject_TypeCheck(kernel, kernel_type) &&
                   ((Kernel *)kernel)->plans != NULL && PyTuple_CheckExact(groups) &&
                   PyTuple_GET_SIZE(groups) == 3;
    for (int axis = 0; counted && axis < 3; axis++) {
        grid.groups[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(groups, axis));
        if (grid.groups[axis] < 0) {
            PyErr_Clear();
            counted = false;
        }
    }
    counted = counted && fill_grid((Kernel *)kernel, &grid);
    return make_launch(kernel, groups, counted ? &grid : NULL);
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

int add_launch(PyObject *module)
{
    name_launch = PyUnicode_InternFromString("launch");
    launch_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &launch_spec, NULL);
    return name_launch == NULL || launch_type == NULL ? -1 : PyModule_AddType(module, launch_type);
}
