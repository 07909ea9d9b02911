/* The launch plan: a table by which one kind of launch is checked, packed and run.
 *
 * `khaljit/plans.py` makes one for a launch that the Python path has just run. It holds for
 * launches whose arguments have the same signature, while what the recording read from outside is
 * the same, in a context that sends them to the same device. It keeps no array alive.
 */

#include "native.h"

#include <string.h>

#define MOST_PARAMETERS 64
#define MOST_SLOTS 256
#define BRIEF 50000.0 /* simple operations for which the GIL is not worth letting go of */

/* A parameter of the kernel, in the order of the call. */
typedef struct {
    enum { NUMPY, DEVICE, NUMBER, FIXED, CONSTANT } kind;
    int slot;          /* the first of its slots of the parameter block */
    int number;        /* of the array, among arrays */
    ArrayRule array;
    NumberRule rule;
    int64_t bits;      /* FIXED: a number that the call does not pass */
    PyObject *value;   /* CONSTANT */
} Parameter;

typedef struct {
    int a, b;
    bool same; /* they are one view */
} Pair;

/* Something read from outside the kernel while recording. */
typedef struct {
    enum { ITEM, CELL, ATTRIBUTE, OTHER } kind;
    PyObject *owner; /* a dict, a cell, an object; none for OTHER */
    PyObject *name;
    PyObject *seen;
    PyObject *guard;  /* asks in Python, where something else is found */
    uint64_t version; /* of the dict when it was last asked */
} Guard;

typedef struct {
    Entry entry;
    Pool *pool;
    PyObject *image; /* keeps the code */
    Py_ssize_t arena;
    int64_t item[3];
    double cost;         /* simple operations of an invocation */
    double worth_threads;
    int chunks;          /* for each thread */
    bool brief;          /* no loop in it: short if its cost is small */
} CpuTarget;

typedef int (*SetContext)(void *context);
typedef int (*LaunchKernel)(
    void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, void *stream, void **params, void **extra
);

typedef struct {
    SetContext enter;
    LaunchKernel launch;
    void *context, *function, *stream;
    PyObject *stream_object;
    int64_t block[3], item[3];
    unsigned shared;
    PyObject *launched;  /* called with the kernel's name: the device remembers it */
    PyObject *name;
    PyObject *on_status; /* called with a status that is not success */
    PyObject *kept;      /* the module and what else must live */
} CudaTarget;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, passed;
    Parameter *parameters;
    int arrays;
    const ArrayRule **rules; /* of the arrays */
    int *shapes, *views;     /* per array the first with an equal shape, the first same view */
    int pair_count;
    Pair *pairs; /* of arrays that are one view, or must not overlap */
    Py_ssize_t guard_count;
    Guard *guards;
    PyObject *device;
    bool anywhere;   /* arrays are NumPy's, and so the context says where */
    bool is_default; /* the device is the one of a context that says nothing */
    bool wide;       /* `index` has 64 bits */
    int64_t limit;   /* the largest offset and id of an `index` of 32 bits */
    int64_t workgroup[3];
    int64_t most_groups[3]; /* an axis, so that counting invocations does not overflow */
    int groups_slot;
    enum { CPU, CUDA } target;
    union {
        CpuTarget cpu;
        CudaTarget cuda;
    };
    unsigned process; /* how often this process had forked */
} Plan;

PyTypeObject *plan_type;
static unsigned forks;

/* Checking. */

/* A number that changes with every change of a dict; 0 where Python has none (PEP 509). */
static inline uint64_t version_of(PyObject *dict)
{
#if PY_VERSION_HEX < 0x030C0000
    return ((PyDictObject *)dict)->ma_version_tag;
#else
    (void)dict;
    return 0;
#endif
}

/* Whether the very same object is read as while recording. */
static bool finds_same(const Guard *guard)
{
    PyObject *found = NULL;
    switch (guard->kind) {
    case ITEM:
#ifdef Py_GIL_DISABLED
        if (PyDict_GetItemRef(guard->owner, guard->name, &found) == 0) {
            found = Py_NewRef(Py_None);
        }
        break;
#else
        found = PyDict_GetItemWithError(guard->owner, guard->name); /* borrowed */
        return (found == NULL ? Py_None : found) == guard->seen && !(found == NULL && PyErr_Occurred());
#endif
    case CELL: found = PyCell_Get(guard->owner); break;
    case ATTRIBUTE: found = PyObject_GetAttr(guard->owner, guard->name); break;
    case OTHER: break;
    }
    Py_XDECREF(found);
    return found != NULL && found == guard->seen;
}

static bool holds(Guard *guard)
{
    const uint64_t version = guard->kind == ITEM ? version_of(guard->owner) : 0;
    if (version != 0 && guard->version == version) {
        return true;
    }
    if (finds_same(guard)) {
        guard->version = version;
        return true;
    }
    PyErr_Clear();
    PyObject *answer = PyObject_CallMethod(guard->guard, "holds", NULL);
    const bool good = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return good;
}

static bool is_here(const Plan *plan)
{
    if (plan->process != forks || is_watched()) {
        return false;
    }
    if (!plan->anywhere) {
        return true;
    }
    if (current_device == NULL) {
        return plan->is_default;
    }
    PyObject *chosen;
    if (PyContextVar_Get(current_device, NULL, &chosen) < 0) {
        PyErr_Clear();
        return false;
    }
    const bool here = chosen == NULL || chosen == Py_None ? plan->is_default
                                                          : chosen == plan->device;
    Py_XDECREF(chosen);
    return here;
}

static bool same_view(const View *a, const View *b, int ndim)
{
    return memcmp(a->slots, b->slots, (size_t)(1 + 2 * ndim) * sizeof(int64_t)) == 0;
}

/* Which arrays have equal shapes: as the signature has it. */
static bool shapes_agree(const Plan *plan, const View *views)
{
    for (int b = 1; b < plan->arrays; b++) {
        const int first = plan->shapes[b];
        for (int a = first == b ? 0 : first; a <= first && a < b; a++) {
            const bool same = plan->rules[a]->ndim == plan->rules[b]->ndim &&
                              same_shape(&views[a], &views[b], plan->rules[a]->ndim);
            if (plan->shapes[a] == a && same != (first == a)) {
                return false;
            }
        }
    }
    return true;
}

/* That the same views are where the signature has them, and that nothing else that is written
 * overlaps another array. Views that are only read may be one or two. */
static bool views_agree(const Plan *plan, const View *views)
{
    for (int k = 0; k < plan->pair_count; k++) {
        const Pair pair = plan->pairs[k];
        const View *a = &views[pair.a], *b = &views[pair.b];
        if (pair.same ? !same_view(a, b, plan->rules[pair.a]->ndim)
                      : a->start < b->stop && b->start < a->stop) {
            return false;
        }
    }
    return true;
}

static bool is_constant(PyObject *value, PyObject *wanted)
{
    if (value == wanted) {
        return true;
    }
    if (Py_TYPE(value) != Py_TYPE(wanted) ||
        !(PyLong_CheckExact(value) || PyUnicode_CheckExact(value))) {
        return false;
    }
    const int equal = PyObject_RichCompareBool(value, wanted, Py_EQ);
    PyErr_Clear();
    return equal == 1;
}

/* Check the arguments and fill the parameter block. */
static bool read_arguments(const Plan *plan, PyObject *const *args, int64_t *slots, int64_t *extent)
{
    View views[MOST_PARAMETERS];
    for (Py_ssize_t k = 0; k < plan->count; k++) {
        const Parameter *parameter = &plan->parameters[k];
        int64_t *place = slots + parameter->slot;
        PyObject *buffer;
        switch (parameter->kind) {
        case NUMPY:
            views[parameter->number].slots = place;
            if (!read_numpy_array(&parameter->array, args[k], &views[parameter->number], extent)) {
                return false;
            }
            break;
        case DEVICE:
            views[parameter->number].slots = place;
            if (!read_device_array(
                    &parameter->array, args[k], plan->device, &views[parameter->number], extent,
                    &buffer
                ) ||
                (plan->target == CUDA && !memory_is_on(buffer, plan->cuda.stream_object,
                                                       parameter->array.written))) {
                return false;
            }
            break;
        case NUMBER:
            if (!read_number(&parameter->rule, args[k], place)) {
                return false;
            }
            break;
        case FIXED: *place = parameter->bits; break;
        case CONSTANT:
            if (k < plan->passed && !is_constant(args[k], parameter->value)) {
                return false;
            }
            break;
        }
    }
    return shapes_agree(plan, views) && views_agree(plan, views);
}

/* Invocations along each axis; false where the Python path has to look. */
static bool count_invocations(const Plan *plan, const int64_t *groups, int64_t extent, int64_t *n)
{
    for (int axis = 0; axis < 3; axis++) {
        if (groups[axis] > plan->most_groups[axis]) {
            return false;
        }
        n[axis] = groups[axis] * plan->workgroup[axis];
        extent = n[axis] > extent ? n[axis] : extent;
    }
    return (extent > plan->limit) == plan->wide;
}

static inline int64_t parts(int64_t whole, int64_t part)
{
    return whole <= part ? whole > 0 : part == 1 ? whole : (whole + part - 1) / part;
}

/* Running. */

static Outcome run_cpu(const CpuTarget *cpu, const int64_t *n, int64_t *slots)
{
    const double operations = cpu->cost * (double)n[0] * (double)n[1] * (double)n[2];
    if (operations > 4e18) {
        return UNKNOWN;
    }
    Work work = {cpu->entry, slots, 1, 1, (size_t)cpu->arena};
    for (int axis = 0; axis < 3; axis++) {
        work.total *= parts(n[axis], cpu->item[axis]);
    }
    work.chunk = work.total;
    int failed;
    if (cpu->brief && operations < BRIEF) {
        failed = pool_run_here(&work);
    }
    else {
        const int threads = pool_threads(cpu->pool);
        if (operations >= cpu->worth_threads && threads > 1) {
            work.chunk = work.total / ((int64_t)threads * cpu->chunks);
            work.chunk = work.chunk < 1 ? 1 : work.chunk;
        }
        Py_BEGIN_ALLOW_THREADS
        failed = pool_run(cpu->pool, &work);
        Py_END_ALLOW_THREADS
    }
    if (failed) {
        PyErr_NoMemory();
        return FAILED;
    }
    return DONE;
}

static Outcome run_cuda(const CudaTarget *cuda, const int64_t *n, int64_t *slots)
{
    int64_t blocks[3];
    for (int axis = 0; axis < 3; axis++) {
        blocks[axis] = parts(n[axis], cuda->block[axis] * cuda->item[axis]);
        if (blocks[axis] > (axis == 0 ? INT32_MAX : UINT16_MAX)) {
            return UNKNOWN;
        }
    }
    void *params[] = {slots};
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = cuda->enter(cuda->context);
    if (status == 0) {
        status = cuda->launch(
            cuda->function, (unsigned)blocks[0], (unsigned)blocks[1], (unsigned)blocks[2],
            (unsigned)cuda->block[0], (unsigned)cuda->block[1], (unsigned)cuda->block[2],
            cuda->shared, cuda->stream, params, NULL
        );
    }
    Py_END_ALLOW_THREADS
    PyObject *said = status == 0 ? PyObject_CallOneArg(cuda->launched, cuda->name)
                                 : PyObject_CallFunction(cuda->on_status, "i", status);
    Py_XDECREF(said);
    return said == NULL ? FAILED : DONE;
}

Outcome plan_launch(PyObject *object, const int64_t *groups, PyObject *const *args, Py_ssize_t count)
{
    const Plan *plan = (Plan *)object;
    int64_t slots[MOST_SLOTS], extent = 0, n[3];
    if (count != plan->passed || !read_arguments(plan, args, slots, &extent) ||
        !count_invocations(plan, groups, extent, n) || !is_here(plan)) {
        return UNKNOWN;
    }
    for (Py_ssize_t k = 0; k < plan->guard_count; k++) {
        if (!holds(&plan->guards[k])) {
            return UNKNOWN;
        }
    }
    if (n[0] == 0 || n[1] == 0 || n[2] == 0) {
        return DONE;
    }
    memcpy(slots + plan->groups_slot, groups, 3 * sizeof *groups);
    return plan->target == CPU ? run_cpu(&plan->cpu, n, slots) : run_cuda(&plan->cuda, n, slots);
}

/* Making one, of what `khaljit/plans.py` hands over. */

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
        parameter->kind = kind[0] == 'a' ? NUMPY : DEVICE;
        array->contiguous = contiguous;
        array->aligned = aligned;
        array->written = written;
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
        if (!PyArg_ParseTuple(rest, "L", &bits)) {
            return false;
        }
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
        if (parameter->kind == NUMPY || parameter->kind == DEVICE) {
            parameter->number = arrays++;
        }
    }
    for (Py_ssize_t k = 0; k < plan->count; k++) { /* numbers stand behind all arrays */
        if (plan->parameters[k].kind == NUMBER || plan->parameters[k].kind == FIXED) {
            plan->parameters[k].slot += array_slot;
        }
    }
    plan->arrays = arrays;
    plan->groups_slot = array_slot + number_slot;
    if (plan->count > MOST_PARAMETERS || plan->groups_slot + 3 > MOST_SLOTS) {
        PyErr_SetString(PyExc_OverflowError, "too many parameters for a plan");
        return false;
    }
    return true;
}

static int *parse_firsts(PyObject *from, Py_ssize_t count)
{
    int *firsts = PyMem_Calloc((size_t)count + 1, sizeof(int));
    if (firsts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t k = 0; k < count && !PyErr_Occurred(); k++) {
        PyObject *first = PySequence_GetItem(from, k);
        firsts[k] = first == NULL ? 0 : (int)PyLong_AsLong(first);
        Py_XDECREF(first);
    }
    return firsts;
}

/* The pairs of arrays to look at in each launch. */
static bool make_pairs(Plan *plan)
{
    const int n = plan->arrays;
    plan->rules = PyMem_Calloc((size_t)n + 1, sizeof *plan->rules);
    plan->pairs = PyMem_Calloc((size_t)n * (size_t)n + 1, sizeof *plan->pairs);
    if (plan->rules == NULL || plan->pairs == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t k = 0; k < plan->count; k++) {
        const Parameter *parameter = &plan->parameters[k];
        if (parameter->kind == NUMPY || parameter->kind == DEVICE) {
            plan->rules[parameter->number] = &parameter->array;
        }
    }
    for (int b = 0; b < n; b++) {
        for (int a = 0; a < b; a++) {
            const bool same = plan->views[a] == plan->views[b];
            if (same || plan->rules[a]->written || plan->rules[b]->written) {
                plan->pairs[plan->pair_count++] = (Pair){a, b, same};
            }
        }
    }
    return true;
}

static bool parse_guards(Plan *plan, PyObject *from)
{
    plan->guards = PyMem_Calloc((size_t)PyTuple_GET_SIZE(from) + 1, sizeof(Guard));
    if (plan->guards == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(from); k++) {
        Guard *guard = &plan->guards[k];
        const char *kind;
        PyObject *owner, *name, *seen, *asks;
        if (!PyArg_ParseTuple(
                PyTuple_GET_ITEM(from, k), "sOOOO", &kind, &owner, &name, &seen, &asks
            )) {
            return false;
        }
        guard->kind = kind[0] == 'i' && PyDict_CheckExact(owner) ? ITEM
                      : kind[0] == 'c' && PyCell_Check(owner)    ? CELL
                      : kind[0] == 'a'                           ? ATTRIBUTE
                                                                 : OTHER;
        guard->owner = Py_NewRef(owner);
        guard->name = Py_NewRef(name);
        guard->seen = Py_NewRef(seen);
        guard->guard = Py_NewRef(asks);
        plan->guard_count = k + 1;
    }
    return true;
}

static bool parse_cpu(CpuTarget *cpu, PyObject *from)
{
    unsigned long long entry;
    int brief;
    long long x, y, z;
    if (!PyArg_ParseTuple(
            from, "KO!On(LLL)ddip", &entry, pool_type, &cpu->pool, &cpu->image, &cpu->arena, &x,
            &y, &z, &cpu->cost, &cpu->worth_threads, &cpu->chunks, &brief
        )) {
        memset(cpu, 0, sizeof *cpu);
        return false;
    }
    Py_INCREF(cpu->pool);
    Py_INCREF(cpu->image);
    cpu->entry = (Entry)(uintptr_t)entry;
    cpu->item[0] = x, cpu->item[1] = y, cpu->item[2] = z;
    cpu->brief = brief;
    return true;
}

static bool parse_cuda(CudaTarget *cuda, PyObject *from)
{
    unsigned long long enter, launch, context, function, stream;
    long long block[3], item[3];
    if (!PyArg_ParseTuple(
            from, "KKKKKO(LLL)(LLL)IOOOO", &enter, &launch, &context, &function, &stream,
            &cuda->stream_object, &block[0], &block[1], &block[2], &item[0], &item[1], &item[2],
            &cuda->shared, &cuda->launched, &cuda->name, &cuda->on_status, &cuda->kept
        )) {
        memset(cuda, 0, sizeof *cuda);
        return false;
    }
    Py_INCREF(cuda->stream_object);
    Py_INCREF(cuda->launched);
    Py_INCREF(cuda->name);
    Py_INCREF(cuda->on_status);
    Py_INCREF(cuda->kept);
    cuda->enter = (SetContext)(uintptr_t)enter;
    cuda->launch = (LaunchKernel)(uintptr_t)launch;
    cuda->context = (void *)(uintptr_t)context;
    cuda->function = (void *)(uintptr_t)function;
    cuda->stream = (void *)(uintptr_t)stream;
    for (int axis = 0; axis < 3; axis++) {
        cuda->block[axis] = block[axis];
        cuda->item[axis] = item[axis];
    }
    return true;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "parameters", "passed", "shapes", "views",     "guards", "device", "anywhere",
        "is_default", "wide",   "limit",  "workgroup", "kind",   "target", NULL,
    };
    PyObject *parameters, *shapes, *views, *guards, *device, *target;
    const char *kind;
    Py_ssize_t passed;
    int anywhere, is_default, wide;
    long long limit, x, y, z;
    if (!values_are_ready()) {
        PyErr_SetString(PyExc_RuntimeError, "the arrays are not known");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!nO!O!O!OpppL(LLL)sO!", names, &PyTuple_Type, &parameters, &passed,
            &PyTuple_Type, &shapes, &PyTuple_Type, &views, &PyTuple_Type, &guards, &device,
            &anywhere, &is_default, &wide, &limit, &x, &y, &z, &kind, &PyTuple_Type, &target
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
    plan->workgroup[0] = x, plan->workgroup[1] = y, plan->workgroup[2] = z;
    for (int axis = 0; axis < 3; axis++) {
        plan->most_groups[axis] = INT64_MAX / 4 / plan->workgroup[axis];
    }
    plan->process = forks;
    plan->target = strcmp(kind, "cuda") == 0 ? CUDA : CPU;
    bool good = parse_parameters(plan, parameters);
    good = good && (plan->shapes = parse_firsts(shapes, plan->arrays)) != NULL;
    good = good && (plan->views = parse_firsts(views, plan->arrays)) != NULL && !PyErr_Occurred();
    good = good && make_pairs(plan) && parse_guards(plan, guards);
    good = good && (plan->target == CPU ? parse_cpu(&plan->cpu, target)
                                        : parse_cuda(&plan->cuda, target));
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
    for (Py_ssize_t k = 0; k < plan->guard_count; k++) {
        Py_VISIT(plan->guards[k].owner);
        Py_VISIT(plan->guards[k].name);
        Py_VISIT(plan->guards[k].seen);
        Py_VISIT(plan->guards[k].guard);
    }
    if (plan->target == CPU) {
        Py_VISIT(plan->cpu.image);
    }
    else {
        Py_VISIT(plan->cuda.stream_object);
        Py_VISIT(plan->cuda.launched);
        Py_VISIT(plan->cuda.name);
        Py_VISIT(plan->cuda.on_status);
        Py_VISIT(plan->cuda.kept);
    }
    return 0;
}

/* A plan never changes, so that a launch in another thread finds it whole: cycles are broken by the
 * kernel, which holds it. */
static void plan_dealloc(Plan *plan)
{
    PyTypeObject *type = Py_TYPE(plan);
    PyObject_GC_UnTrack(plan);
    Py_XDECREF(plan->device);
    for (Py_ssize_t k = 0; plan->parameters != NULL && k < plan->count; k++) {
        Py_XDECREF(plan->parameters[k].array.dtype);
        Py_XDECREF(plan->parameters[k].value);
    }
    for (Py_ssize_t k = 0; k < plan->guard_count; k++) {
        Py_DECREF(plan->guards[k].owner);
        Py_DECREF(plan->guards[k].name);
        Py_DECREF(plan->guards[k].seen);
        Py_DECREF(plan->guards[k].guard);
    }
    if (plan->target == CPU) {
        Py_XDECREF((PyObject *)plan->cpu.pool);
        Py_XDECREF(plan->cpu.image);
    }
    else {
        Py_XDECREF(plan->cuda.stream_object);
        Py_XDECREF(plan->cuda.launched);
        Py_XDECREF(plan->cuda.name);
        Py_XDECREF(plan->cuda.on_status);
        Py_XDECREF(plan->cuda.kept);
    }
    PyMem_Free(plan->parameters);
    PyMem_Free(plan->shapes);
    PyMem_Free(plan->views);
    PyMem_Free((void *)plan->rules);
    PyMem_Free(plan->pairs);
    PyMem_Free(plan->guards);
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
