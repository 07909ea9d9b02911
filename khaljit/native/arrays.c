/* Arrays as they lie in memory: NumPy's, and khaljit's.
 *
 * NumPy's struct is its public one. Nothing is read before `khaljit.extension` has compared what is
 * found there with what NumPy says itself (`describe_array`); else there are no plans.
 */

#include "arrays.h"

#define MOST_MEMORIES 4

PyTypeObject *numpy_array;
ArraySlots in_array;
MemorySlots in_cuda_memory;
static MemorySlots memories[MOST_MEMORIES]; /* classes of a GPU's memory */
static int memory_count;

/* Fill a view's slots; false where the Python path has to look. */
static bool place(const ArrayRule *rule, uintptr_t address, const Py_ssize_t *shape, const Py_ssize_t *strides,
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

bool is_numpy_kind(const ArrayRule *rule, PyObject *value)
{
    const NumpyArray *array = (NumpyArray *)value;
    const int flags = rule->written ? WRITEABLE : 0;
    return Py_TYPE(value) == numpy_array && array->dtype == rule->dtype &&
           array->ndim == rule->axes && (array->flags & flags) == flags;
}

bool is_device_kind(const ArrayRule *rule, PyObject *value, PyObject *device)
{
    return Py_TYPE(value) == in_array.type && slot(value, in_array.device) == device &&
           slot(value, in_array.dtype) == rule->dtype;
}

bool read_numpy(const ArrayRule *rule, PyObject *value, View *view)
{
    const NumpyArray *array = (NumpyArray *)value;
    const int ndim = rule->ndim;
    NumpySeen *seen = view->numpy;
    seen->flags = NOT_READ;
    if ((rule->lanes != 0 && (array->shape[ndim] != rule->lanes ||
                              array->strides[ndim] != (Py_ssize_t)1 << rule->shift)) ||
        !place(rule, (uintptr_t)array->data, array->shape, array->strides, view)) {
        return false;
    }
    seen->address = (uintptr_t)array->data;
    seen->flags = array->flags;
    for (int axis = 0; axis < rule->axes; axis++) {
        view->sizes[2 * axis] = array->shape[axis];
        view->sizes[2 * axis + 1] = array->strides[axis];
    }
    return true;
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

/* Where a buffer is: host memory is a NumPy array, a GPU's has an address. */
static bool read_buffer(PyObject *buffer, DeviceSeen *seen, uintptr_t *address)
{
    if (Py_TYPE(buffer) == numpy_array) {
        seen->at = offsetof(NumpyArray, data);
        *address = (uintptr_t)((NumpyArray *)buffer)->data;
    }
    else {
        const MemorySlots *kind = memories;
        while (kind < memories + memory_count && kind->type != Py_TYPE(buffer)) {
            kind++;
        }
        if (kind == memories + memory_count) {
            return false;
        }
        seen->at = kind->address;
        Py_XSETREF(seen->number, Py_XNewRef(slot(buffer, seen->at)));
        *address = seen->number == NULL ? 0 : PyLong_AsSize_t(seen->number);
        if (seen->number == NULL || (*address == (uintptr_t)-1 && PyErr_Occurred())) {
            PyErr_Clear();
            return false;
        }
    }
    seen->memory = Py_TYPE(buffer);
    seen->address = slot(buffer, seen->at);
    return true;
}

bool read_device(const ArrayRule *rule, PyObject *value, View *view)
{
    PyObject *shape = slot(value, in_array.shape), *strides = slot(value, in_array.strides);
    PyObject *from = slot(value, in_array.offset);
    Py_ssize_t extents[MOST_AXES], steps[MOST_AXES], offset;
    uintptr_t address;
    DeviceSeen *seen = view->device;
    if (!read_size(from, &offset) || !read_sizes(shape, rule->ndim, extents) ||
        !read_sizes(strides, rule->ndim, steps) ||
        !read_buffer(slot(value, in_array.buffer), seen, &address) ||
        !place(rule, address + (uintptr_t)offset, extents, steps, view)) {
        seen->memory = NULL;
        return false;
    }
    Py_XSETREF(seen->shape, Py_NewRef(shape));
    Py_XSETREF(seen->strides, Py_NewRef(strides));
    Py_XSETREF(seen->offset, Py_NewRef(from));
    return true;
}

bool arrays_are_known(void)
{
    return in_array.type != NULL;
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
    in_array.type = (PyTypeObject *)Py_NewRef(array);
    Py_RETURN_NONE;
}

static PyObject *know_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    int has_streams;
    if (!PyArg_ParseTuple(args, "O!p", &PyType_Type, &type, &has_streams)) {
        return NULL;
    }
    MemorySlots in_memory = {.type = type, .address = offset_of(type, "address")};
    if (in_memory.address < 0) {
        return NULL;
    }
    if (memory_count == MOST_MEMORIES) {
        return PyErr_Format(PyExc_OverflowError, "too many kinds of memory");
    }
    if (has_streams) {
        if ((in_memory.stream = offset_of(type, "stream")) < 0 ||
            (in_memory.home = offset_of(type, "home")) < 0 ||
            (in_memory.read_only = offset_of(type, "read_only")) < 0) {
            return NULL;
        }
        in_cuda_memory = in_memory;
    }
    Py_INCREF(type);
    memories[memory_count++] = in_memory;
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
