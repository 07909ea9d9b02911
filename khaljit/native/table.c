/* Making a plan of what `khaljit/plans.py` hands over, and its type. */

#include "plan.h"

#include <stdlib.h>

PyTypeObject *plan_type;
unsigned forks;

static bool parse_parameter(Parameter *parameter, PyObject *from, int *array_slot, int *number_slot)
{
    const char *kind;
    PyObject *rest;
    if (!PyArg_ParseTuple(from, "sO!", &kind, &PyTuple_Type, &rest)) {
        return false;
    }
    ArrayRule *array = &parameter->array;
    int contiguous, aligned, written, type, annotated;
    long long bits;
    switch (kind[0]) {
    case 'a': /* an array of NumPy's */
    case 'd': /* of a device */
        if (!PyArg_ParseTuple(
                rest, "Oiiiippp", &array->dtype, &array->ndim, &array->lanes,
                &array->size, &array->shift, &contiguous, &aligned, &written
            )) {
            array->dtype = NULL;
            return false;
        }
        Py_INCREF(array->dtype);
        if (array->ndim > MOST_AXES) {
            PyErr_SetString(PyExc_OverflowError, "too many axes for a plan");
            return false;
        }
        parameter->kind = kind[0] == 'a' ? NUMPY : DEVICE;
        array->contiguous = contiguous;
        array->aligned = aligned;
        array->written = written;
        array->axes = array->ndim + (array->lanes != 0);
        parameter->slot = *array_slot;
        *array_slot += 1 + 2 * array->ndim;
        return true;
    case 'n': /* a number */
        if (!PyArg_ParseTuple(rest, "ip", &type, &annotated)) {
            return false;
        }
        parameter->kind = NUMBER;
        parameter->rule = (NumberRule){(NumberType)type, annotated};
        parameter->slot = (*number_slot)++;
        return true;
    case 'f': /* a number that calls do not pass */
        if (!PyArg_ParseTuple(rest, "LO", &bits, &parameter->value)) {
            parameter->value = NULL;
            return false;
        }
        Py_INCREF(parameter->value);
        parameter->kind = FIXED;
        parameter->bits = bits;
        parameter->slot = (*number_slot)++;
        return true;
    default: /* a constant */
        if (!PyArg_ParseTuple(rest, "O", &parameter->value)) {
            parameter->value = NULL;
            return false;
        }
        Py_INCREF(parameter->value);
        parameter->kind = CONSTANT;
        return true;
    }
}

static int by_kind(const void *a, const void *b)
{
    const Parameter *one = a, *other = b;
    return one->kind != other->kind ? (int)one->kind - (int)other->kind
                                    : one->position - other->position;
}

/* Room for what is read of the arrays. */
static bool make_room(Plan *plan)
{
    plan->numpy_count = (int)(plan->ends[NUMPY] - plan->parameters);
    plan->own_count = (int)(plan->ends[DEVICE] - plan->ends[NUMPY]);
    size_t axes = 0;
    for (const Parameter *one = plan->parameters; one < plan->ends[NUMPY]; one++) {
        axes += (size_t)one->array.axes;
    }
    plan->numpy = PyMem_Calloc((size_t)plan->numpy_count, sizeof(NumpySeen));
    plan->sizes = PyMem_Calloc(axes, 2 * sizeof *plan->sizes);
    plan->own = PyMem_Calloc((size_t)plan->own_count, sizeof(DeviceSeen));
    if (plan->numpy == NULL || plan->sizes == NULL || plan->own == NULL) {
        PyErr_NoMemory();
        return false;
    }
    NumpySeen *numpy = plan->numpy;
    Py_ssize_t *sizes = plan->sizes;
    DeviceSeen *own = plan->own;
    for (Parameter *one = plan->parameters; one < plan->ends[DEVICE]; one++) {
        if (one->kind == NUMPY) {
            *numpy = (NumpySeen){one->position, one->array.dtype, 0, one->array.axes, NOT_READ};
            one->view.numpy = numpy++;
            one->view.sizes = sizes;
            sizes += 2 * one->array.axes;
        }
        else {
            *own = (DeviceSeen){.position = one->position, .dtype = one->array.dtype};
            one->view.device = own++;
        }
    }
    return true;
}

static bool parse_parameters(Plan *plan, PyObject *from)
{
    int array_slot = 0, number_slot = 0, arrays = 0;
    plan->count = PyTuple_GET_SIZE(from);
    plan->parameters = PyMem_Calloc((size_t)plan->count + 1, sizeof(Parameter));
    if (plan->parameters == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t k = 0; k < plan->count; k++) {
        Parameter *parameter = &plan->parameters[k];
        if (!parse_parameter(parameter, PyTuple_GET_ITEM(from, k), &array_slot, &number_slot)) {
            return false;
        }
        parameter->position = (int)k;
        arrays += parameter->kind <= DEVICE;
    }
    plan->arrays = arrays;
    plan->array_slots = array_slot;
    plan->groups_slot = array_slot + number_slot;
    if (plan->count > MOST_PARAMETERS || plan->groups_slot + 3 > MOST_SLOTS) {
        PyErr_SetString(PyExc_OverflowError, "too many parameters for a plan");
        return false;
    }
    plan->slots = PyMem_Calloc((size_t)plan->groups_slot + 3, sizeof *plan->slots);
    if (plan->slots == NULL) {
        PyErr_NoMemory();
        return false;
    }
    qsort(plan->parameters, (size_t)plan->count, sizeof(Parameter), by_kind);
    for (int kind = 0; kind < KINDS; kind++) {
        plan->ends[kind] = plan->parameters;
    }
    for (Py_ssize_t k = 0; k < plan->count; k++) {
        Parameter *parameter = &plan->parameters[k];
        for (int kind = (int)parameter->kind; kind < KINDS; kind++) {
            plan->ends[kind] = parameter + 1;
        }
        if (parameter->kind == NUMBER || parameter->kind == FIXED) {
            parameter->slot += array_slot; /* numbers stand behind all arrays */
        }
        parameter->view.slots = plan->slots + parameter->slot;
        if (parameter->kind == FIXED) {
            plan->slots[parameter->slot] = parameter->bits;
        }
    }
    if (plan->ends[NUMPY] != plan->parameters && plan->ends[NUMPY] != plan->ends[DEVICE]) {
        PyErr_SetString(PyExc_ValueError, "arrays of NumPy's beside a device's");
        return false;
    }
    return make_room(plan);
}

/* Per array, the first of those that it is like. */
static bool parse_firsts(PyObject *from, int count, int *firsts)
{
    for (int k = 0; k < count; k++) {
        PyObject *first = PySequence_GetItem(from, k);
        firsts[k] = first == NULL ? -1 : (int)PyLong_AsLong(first);
        Py_XDECREF(first);
        if (firsts[k] < 0) {
            return false;
        }
    }
    return true;
}

/* The pairs of arrays to look at in each launch. */
static bool parse_pairs(Plan *plan, PyObject *shapes_from, PyObject *views_from)
{
    const size_t n = (size_t)plan->arrays;
    int shapes[MOST_PARAMETERS], views[MOST_PARAMETERS];
    plan->shapes = PyMem_Calloc(n * n + 1, sizeof(Pair));
    plan->views = PyMem_Calloc(n * n + 1, sizeof(Pair));
    if (plan->shapes == NULL || plan->views == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (!parse_firsts(shapes_from, plan->arrays, shapes) ||
        !parse_firsts(views_from, plan->arrays, views)) {
        return false;
    }
    for (int b = 0; b < plan->arrays; b++) {
        for (int a = 0; a < b; a++) {
            const ArrayRule *one = &plan->parameters[a].array, *other = &plan->parameters[b].array;
            const bool alike = shapes[b] == a, differ = shapes[a] == a && shapes[b] == b;
            if ((alike || differ) && one->ndim == other->ndim) {
                plan->shapes[plan->shape_count++] = (Pair){(uint8_t)a, (uint8_t)b, alike};
            }
            const bool same = views[a] == views[b];
            if (same || one->written || other->written) {
                plan->views[plan->view_count++] = (Pair){(uint8_t)a, (uint8_t)b, same};
            }
        }
    }
    return true;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "parameters", "passed", "shapes", "views",     "guards", "device", "anywhere",
        "is_default", "wide",   "limit",  "kind",   "target", NULL,
    };
    PyObject *parameters, *shapes, *views, *guards, *device, *target;
    const char *kind;
    Py_ssize_t passed;
    int anywhere, is_default, wide;
    long long limit;
    if (!arrays_are_known()) {
        PyErr_SetString(PyExc_RuntimeError, "the arrays are not known");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!nO!O!O!OpppLsO!", names, &PyTuple_Type, &parameters, &passed,
            &PyTuple_Type, &shapes, &PyTuple_Type, &views, &PyTuple_Type, &guards, &device,
            &anywhere, &is_default, &wide, &limit, &kind, &PyTuple_Type, &target
        )) {
        return NULL;
    }
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan == NULL) {
        return NULL;
    }
    plan->device = Py_NewRef(device);
    plan->passed = passed;
    plan->anywhere = anywhere;
    plan->is_default = is_default;
    plan->wide = wide;
    plan->limit = limit;
    plan->process = forks;
    bool good = parse_parameters(plan, parameters);
    good = good && parse_pairs(plan, shapes, views) && guards_parse(&plan->guards, guards);
    good = good && target_parse(&plan->target, kind, target);
    if (!good || passed > plan->count) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "more arguments than parameters");
        }
        Py_DECREF(plan);
        return NULL;
    }
    return (PyObject *)plan;
}

static int plan_traverse(Plan *plan, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(plan));
    Py_VISIT(plan->device);
    for (Py_ssize_t k = 0; plan->parameters != NULL && k < plan->count; k++) {
        Py_VISIT(plan->parameters[k].array.dtype);
        Py_VISIT(plan->parameters[k].value);
    }
    const int stopped = guards_traverse(&plan->guards, visit, arg);
    return stopped != 0 ? stopped : target_traverse(&plan->target, visit, arg);
}

/* What a plan refers to never changes, so that a launch in another thread finds it whole: cycles are
 * broken by the kernel, which holds it. */
static void plan_dealloc(Plan *plan)
{
    PyTypeObject *type = Py_TYPE(plan);
    PyObject_GC_UnTrack(plan);
    Py_XDECREF(plan->device);
    for (Py_ssize_t k = 0; plan->parameters != NULL && k < plan->count; k++) {
        Py_XDECREF(plan->parameters[k].array.dtype);
        Py_XDECREF(plan->parameters[k].value);
    }
    for (int k = 0; plan->own != NULL && k < plan->own_count; k++) {
        Py_XDECREF(plan->own[k].shape);
        Py_XDECREF(plan->own[k].strides);
        Py_XDECREF(plan->own[k].offset);
        Py_XDECREF(plan->own[k].number);
    }
    guards_release(&plan->guards);
    target_release(&plan->target);
    PyMem_Free(plan->parameters);
    PyMem_Free(plan->slots);
    PyMem_Free(plan->numpy);
    PyMem_Free(plan->sizes);
    PyMem_Free(plan->own);
    PyMem_Free(plan->shapes);
    PyMem_Free(plan->views);
    type->tp_free(plan);
    Py_DECREF(type);
}

static PyType_Slot slots_of_type[] = {
    {Py_tp_doc, "A table by which one kind of launch is checked and run."},
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "khaljit._native.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots_of_type,
};

static PyObject *forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    forks++;
    era++;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"forked", forked, METH_NOARGS, "Plans of the parent process hold no more."},
    {NULL},
};

int add_plan(PyObject *module)
{
    plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (plan_type == NULL || PyModule_AddType(module, plan_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
