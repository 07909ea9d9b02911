/* The context of a launch: variables that say where it goes, or that something has to see it. */

#include "native.h"

#define MOST_WATCHED 16

static PyObject *watched[MOST_WATCHED]; /* context variables: what is set has to see every launch */
int watched_count;
uint64_t era = 1;
PyObject *current_device; /* the context variable of `kj.use`; NULL while it was never set */

/* Whether a variable's value says that there is nothing to see: none, or an empty dict. */
static bool is_off(PyObject *value)
{
    return value == NULL || value == Py_None ||
           (PyDict_CheckExact(value) && PyDict_GET_SIZE(value) == 0);
}

bool is_watched(void)
{
    for (int k = 0; k < watched_count; k++) {
        PyObject *value;
        if (PyContextVar_Get(watched[k], NULL, &value) < 0) {
            PyErr_Clear();
            return true;
        }
        const bool off = is_off(value);
        Py_XDECREF(value);
        if (!off) {
            return true;
        }
    }
    return false;
}

/* Called before a variable is set for the first time; until then nothing looks at it. */
static PyObject *watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *variable;
    int is_device;
    if (!PyArg_ParseTuple(args, "O!p", &PyContextVar_Type, &variable, &is_device)) {
        return NULL;
    }
    for (int k = 0; k < watched_count; k++) {
        if (watched[k] == variable) {
            Py_RETURN_NONE;
        }
    }
    era++;
    if (is_device) {
        current_device = Py_NewRef(variable);
    }
    else if (watched_count < MOST_WATCHED) {
        watched[watched_count] = Py_NewRef(variable);
        watched_count++;
    }
    else {
        PyErr_SetString(PyExc_OverflowError, "too many variables to watch");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"watch", watch, METH_VARARGS, "Look at a context variable from now on."},
    {NULL},
};

int add_context(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
