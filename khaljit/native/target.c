/* Running a launch that was checked: machine code, the CUDA driver, or a function of Python's. */

#include "plan.h"

#include <string.h>

static Outcome run_cpu(const CpuTarget *cpu, const Grid *grid, int64_t *slots)
{
    const double operations = cpu->cost * grid->all;
    if (operations > 4e18) {
        return UNKNOWN;
    }
    const int64_t total = items_of(cpu, grid);
    Work work = {cpu->entry, slots, total, total, (size_t)cpu->arena};
    const int threads = pool_threads(cpu->pool);
    if (operations >= cpu->worth_threads && threads > 1) {
        work.chunk = total / ((int64_t)threads * cpu->chunks);
        work.chunk = work.chunk < 1 ? 1 : work.chunk;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = pool_run(cpu->pool, &work);
    Py_END_ALLOW_THREADS
    if (failed) {
        PyErr_NoMemory();
        return FAILED;
    }
    return DONE;
}

static Outcome run_cuda(const CudaTarget *cuda, const Grid *grid, int64_t *slots)
{
    int64_t blocks[3];
    for (int axis = 0; axis < 3; axis++) {
        blocks[axis] = parts(grid->invocations[axis], cuda->block[axis] * cuda->item[axis]);
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

/* The numbers of a launch, as the Python path has them. */
static PyObject *numbers_of(const Checked *launch)
{
    const Plan *plan = launch->plan;
    PyObject *numbers = PyTuple_New(plan->groups_slot - plan->array_slots);
    const Parameter *parameter = plan->ends[DEVICE];
    for (; numbers != NULL && parameter < plan->ends[FIXED]; parameter++) {
        PyObject *number, *given;
        if (parameter->kind == FIXED) {
            number = Py_NewRef(parameter->value);
        }
        else {
            given = launch->args[parameter->position];
            number = parameter->rule.type == BOOL  ? PyBool_FromLong(PyObject_IsTrue(given))
                     : parameter->rule.type >= F16 ? PyNumber_Float(given)
                                                   : PyNumber_Long(given);
        }
        if (number == NULL) {
            Py_CLEAR(numbers);
            break;
        }
        PyTuple_SET_ITEM(numbers, parameter->slot - plan->array_slots, number);
    }
    return numbers;
}

static PyObject *arrays_of(const Checked *launch)
{
    PyObject *arrays = PyTuple_New(launch->plan->arrays);
    for (int k = 0; arrays != NULL && k < launch->plan->arrays; k++) {
        const Parameter *parameter = &launch->plan->parameters[k];
        PyTuple_SET_ITEM(arrays, k, Py_NewRef(launch->args[parameter->position]));
    }
    return arrays;
}

static Outcome run_called(const CalledTarget *called, const Checked *launch)
{
    const size_t slots = (size_t)launch->plan->array_slots * sizeof(int64_t);
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(slots + 3 * sizeof(int64_t)));
    PyObject *arrays = arrays_of(launch), *numbers = numbers_of(launch), *result = NULL;
    if (key != NULL && arrays != NULL && numbers != NULL) {
        char *bytes = PyBytes_AS_STRING(key);
        memcpy(bytes, launch->slots, slots);
        memcpy(bytes + slots, launch->grid->groups, 3 * sizeof(int64_t));
        PyObject *const args[] = {key, arrays, numbers};
        result = PyObject_Vectorcall(called->call, args, 3, NULL);
    }
    Py_XDECREF(key);
    Py_XDECREF(arrays);
    Py_XDECREF(numbers);
    Py_XDECREF(result);
    return result == NULL ? FAILED : DONE;
}

Outcome target_run(const Checked *launch)
{
    const Target *target = &launch->plan->target;
    switch (target->kind) {
    case CPU: return run_cpu(&target->cpu, launch->grid, launch->slots);
    case CUDA: return run_cuda(&target->cuda, launch->grid, launch->slots);
    default: return run_called(&target->called, launch);
    }
}

/* Making one, of what `Loaded.native` gives. */

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
    cpu->brief = brief ? BRIEF / cpu->cost : 0;
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

static bool parse_called(CalledTarget *called, PyObject *from)
{
    if (!PyArg_ParseTuple(from, "O", &called->call)) {
        called->call = NULL;
        return false;
    }
    Py_INCREF(called->call);
    return true;
}

bool target_parse(Target *target, const char *kind, PyObject *from)
{
    if (strcmp(kind, "cpu") == 0) {
        target->kind = CPU;
        return parse_cpu(&target->cpu, from);
    }
    if (strcmp(kind, "cuda") == 0) {
        target->kind = CUDA;
        return parse_cuda(&target->cuda, from);
    }
    target->kind = CALLED;
    return parse_called(&target->called, from);
}

int target_traverse(const Target *target, visitproc visit, void *arg)
{
    switch (target->kind) {
    case CPU: Py_VISIT(target->cpu.image); break;
    case CUDA:
        Py_VISIT(target->cuda.stream_object);
        Py_VISIT(target->cuda.launched);
        Py_VISIT(target->cuda.name);
        Py_VISIT(target->cuda.on_status);
        Py_VISIT(target->cuda.kept);
        break;
    case CALLED: Py_VISIT(target->called.call); break;
    }
    return 0;
}

void target_release(Target *target)
{
    switch (target->kind) {
    case CPU:
        Py_XDECREF((PyObject *)target->cpu.pool);
        Py_XDECREF(target->cpu.image);
        break;
    case CUDA:
        Py_XDECREF(target->cuda.stream_object);
        Py_XDECREF(target->cuda.launched);
        Py_XDECREF(target->cuda.name);
        Py_XDECREF(target->cuda.on_status);
        Py_XDECREF(target->cuda.kept);
        break;
    case CALLED: Py_XDECREF(target->called.call); break;
    }
}
