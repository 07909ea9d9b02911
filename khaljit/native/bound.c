/* Bound launches: a launch with arguments that stay, and the Python object that it is the native form
 * of.
 */

#include "native.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *launch, *names, *values, *python;
} Bound;

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
            if (place_keywords(bound->names, args, kwnames, all)) {
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

int add_bound(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &bound_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    const int added = PyModule_AddType(module, type);
    Py_DECREF(type);
    return added;
}
