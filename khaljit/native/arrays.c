/* Arrays as they lie in memory: NumPy's, and khaljit's.
 *
 * NumPy's struct is its public one. Nothing is read before `khaljit.extension` has compared what is
 * found there with what NumPy says itself (`describe_array`); else there are no plans.
 */

#include "arrays.h"

#define MOST_MEMORIES 4

PyTypeObject *numpy_array;
static PyTypeObject *device_array;

/* Where the slots of khaljit's classes are in their objects. */
static struct {
    Py_ssize_t device, buffer, dtype, shape, strides, offset;
} in_array;
static struct {
    PyTypeObject *type;
    Py_ssize_t address;
} memories[MOST_MEMORIES]; /* classes of a GPU's memory */
static int memory_count;
static PyTypeObject *cuda_memory;
static struct {
    Py_ssize_t stream, home, read_only;
} in_cuda_memory;

/* A slot of an object, borrowed; NULL where it is not set. */
static inline PyObject *slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

bool place(const ArrayRule *rule, uintptr_t address, const Py_ssize_t *shape, const Py_ssize_t *strides,
           View *view)
{
    const int ndim = rule->ndim, shift = rule->shift;
    const Py_ssize_t size = rule->size, unaligned = ((Py_ssize_t)1 << shift) - 1;
    uintptr_t start = address, stop = address + (uintptr_t)size;
    int64_t *extents = view->slots + 1, *units = extents + ndim, largest = 0;
    Py_ssize_t inner = size;
    bool empty = false;
    for (int axis = 0; axis < ndim; axis++) {
        const Py_ssize_t n = shape[axis];
        inner = strides[axis];
        if (n > 1) {
            if (inner & unaligned) {
                return false;
            }
            *(inner < 0 ? &start : &stop) += (uintptr_t)((n - 1) * inner);
        }
        else {
            empty = empty || n == 0;
            inner = axis == ndim - 1 ? size : inner;
        }
        extents[axis] = n;
        units[axis] = inner >> shift;
        largest = n > largest ? n : largest;
    }
    const int64_t reach = (int64_t)(stop - start) >> shift;
    view->slots[0] = (int64_t)address;
    view->start = start;
    view->stop = empty ? start : stop;
    view->extent = reach > largest ? reach : largest;
    return (inner == size) == rule->contiguous && (address % 16 == 0) == rule->aligned &&
           (empty || !(address & (uintptr_t)unaligned));
}

bool read_numpy_sizes(const ArrayRule *rule, const NumpyArray *array, View *view)
{
    const int ndim = rule->ndim;
    for (int axis = 0; axis < array->ndim; axis++) {
        view->sizes[2 * axis] = array->shape[axis];
        view->sizes[2 * axis + 1] = array->strides[axis];
    }
    view->address = (uintptr_t)array->data;
    view->known =
        (rule->lanes == 0 || (array->shape[ndim] == rule->lanes &&
                              array->strides[ndim] == (Py_ssize_t)1 << rule->shift)) &&
        place(rule, view->address, array->shape, array->strides, view);
    return view->known;
}

static bool read_size(PyObject *number, Py_ssize_t *size)
{
    if (number == NULL || !PyLong_CheckExact(number)) {
        return false;
    }
    *size = PyLong_AsSsize_t(number);
    if (*size == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

static bool read_sizes(PyObject *tuple, int ndim, Py_ssize_t *sizes)
{
    if (tuple == NULL || !PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
        return false;
    }
    for (int axis = 0; axis < ndim; axis++) {
        if (!read_size(PyTuple_GET_ITEM(tuple, axis), &sizes[axis])) {
            return false;
        }
    }
    return true;
}

/* The address of a buffer: host memory is a NumPy array, a GPU's has an address. */
static bool read_buffer(PyObject *buffer, uintptr_t *address)
{
    if (Py_TYPE(buffer) == numpy_array) {
        *address = (uintptr_t)((NumpyArray *)buffer)->data;
        return true;
    }
    int kind = 0;
    while (kind < memory_count && memories[kind].type != Py_TYPE(buffer)) {
        kind++;
    }
    if (kind == memory_count) {
        return false;
    }
    *address = PyLong_AsSize_t(slot(buffer, memories[kind].address));
    if (*address == (uintptr_t)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

static bool read_device_sizes(const ArrayRule *rule, PyObject *value, uintptr_t buffer, View *view)
{
    PyObject *shape = slot(value, in_array.shape), *strides = slot(value, in_array.strides);
    PyObject *from = slot(value, in_array.offset);
    Py_ssize_t extents[MOST_AXES], steps[MOST_AXES], offset;
    view->known = false;
    if (!read_size(from, &offset) || !read_sizes(shape, rule->ndim, extents) ||
        !read_sizes(strides, rule->ndim, steps)) {
        return false;
    }
    Py_XSETREF(view->held.shape, Py_NewRef(shape));
    Py_XSETREF(view->held.strides, Py_NewRef(strides));
    Py_XSETREF(view->held.offset, Py_NewRef(from));
    view->address = buffer;
    view->known = place(rule, buffer + (uintptr_t)offset, extents, steps, view);
    return view->known;
}

bool read_device_array(
    const ArrayRule *rule, PyObject *value, PyObject *device, View *view, bool *changed,
    PyObject **memory
)
{
    uintptr_t buffer;
    if (Py_TYPE(value) != device_array || slot(value, in_array.device) != device ||
        slot(value, in_array.dtype) != rule->dtype ||
        !read_buffer(*memory = slot(value, in_array.buffer), &buffer)) {
        return false;
    }
    if (view->known && buffer == view->address &&
        slot(value, in_array.shape) == view->held.shape &&
        slot(value, in_array.strides) == view->held.strides &&
        slot(value, in_array.offset) == view->held.offset) {
        return true;
    }
    *changed = true;
    return read_device_sizes(rule, value, buffer, view);
}

/* Whether a piece of memory can be used on a stream without waiting or handing back. */
bool memory_is_on(PyObject *memory, PyObject *stream, bool written)
{
    return Py_TYPE(memory) == cuda_memory && slot(memory, in_cuda_memory.stream) == stream &&
           slot(memory, in_cuda_memory.home) == Py_None &&
           !(written && slot(memory, in_cuda_memory.read_only) != Py_False);
}

bool arrays_are_known(void)
{
    return device_array != NULL;
}

/* What Python sees. */

static Py_ssize_t offset_of(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    Py_ssize_t offset = -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type) {
        offset = ((PyMemberDescrObject *)found)->d_member->offset;
    }
    else {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    }
    Py_DECREF(found);
    return offset;
}

static PyObject *know_numpy_array(PyObject *Py_UNUSED(module), PyObject *array)
{
    numpy_array = (PyTypeObject *)Py_NewRef(array);
    Py_RETURN_NONE;
}

static PyObject *know_arrays(PyObject *Py_UNUSED(module), PyObject *array)
{
    PyTypeObject *type = (PyTypeObject *)array;
    if ((in_array.device = offset_of(type, "device")) < 0 ||
        (in_array.buffer = offset_of(type, "buffer")) < 0 ||
        (in_array.dtype = offset_of(type, "dtype")) < 0 ||
        (in_array.shape = offset_of(type, "shape")) < 0 ||
        (in_array.strides = offset_of(type, "strides")) < 0 ||
        (in_array.offset = offset_of(type, "offset")) < 0) {
        return NULL;
    }
    device_array = (PyTypeObject *)Py_NewRef(array);
    Py_RETURN_NONE;
}

static PyObject *know_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    int has_streams;
    if (!PyArg_ParseTuple(args, "O!p", &PyType_Type, &type, &has_streams)) {
        return NULL;
    }
    const Py_ssize_t address = offset_of(type, "address");
    if (address < 0 || memory_count == MOST_MEMORIES) {
        return address < 0 ? NULL : PyErr_Format(PyExc_OverflowError, "too many kinds of memory");
    }
    if (has_streams) {
        if ((in_cuda_memory.stream = offset_of(type, "stream")) < 0 ||
            (in_cuda_memory.home = offset_of(type, "home")) < 0 ||
            (in_cuda_memory.read_only = offset_of(type, "read_only")) < 0) {
            return NULL;
        }
        cuda_memory = type;
    }
    memories[memory_count].type = (PyTypeObject *)Py_NewRef(type);
    memories[memory_count++].address = address;
    Py_RETURN_NONE;
}

static PyObject *describe_array(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (numpy_array == NULL || Py_TYPE(value) != numpy_array) {
        Py_RETURN_NONE;
    }
    const NumpyArray *array = (NumpyArray *)value;
    if (array->ndim < 0 || array->ndim > MOST_AXES) {
        Py_RETURN_NONE;
    }
    PyObject *shape = PyTuple_New(array->ndim), *strides = PyTuple_New(array->ndim);
    for (int axis = 0; shape != NULL && strides != NULL && axis < array->ndim; axis++) {
        PyTuple_SET_ITEM(shape, axis, PyLong_FromSsize_t(array->shape[axis]));
        PyTuple_SET_ITEM(strides, axis, PyLong_FromSsize_t(array->strides[axis]));
    }
    return Py_BuildValue(
        "KNNOO", (unsigned long long)(uintptr_t)array->data, shape, strides, array->dtype,
        array->flags & WRITEABLE ? Py_True : Py_False
    );
}

static PyMethodDef functions[] = {
    {"know_numpy_array", know_numpy_array, METH_O, "Take NumPy's array type."},
    {"know_arrays", know_arrays, METH_O, "Take the class of khaljit's arrays."},
    {"know_memory", know_memory, METH_VARARGS, "Take a class of a GPU's memory."},
    {"describe_array", describe_array, METH_O, "What is read of a NumPy array, to be compared."},
    {NULL},
};

int add_arrays(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
