/* Checking a launch by its plan.
 *
 * `khaljit/plans.py` makes a plan for a launch that the Python path has just run. It holds for
 * launches whose arguments have the same signature, while what the recording read from outside is
 * the same, in a context that sends them to the same device. It keeps no array alive.
 */

#include "again.h"

/* Whether the device of the context is the plan's. */
static bool is_chosen(const Plan *plan)
{
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

/* Whether the context says where a launch goes. */
static bool asks_context(const Plan *plan)
{
    return plan->anywhere && current_device != NULL;
}

/* Whether launches of this context are for a plan, and nothing else has to see them. */
static bool is_here(const Plan *plan)
{
    return plan->process == forks && !is_watched() &&
           (asks_context(plan) ? is_chosen(plan) : !plan->anywhere || plan->is_default);
}

/* Which arrays have equal shapes: as the signature has it. */
static bool shapes_agree(const Plan *plan)
{
    for (const Pair *pair = plan->shapes; pair < plan->shapes + plan->shape_count; pair++) {
        const Parameter *a = &plan->parameters[pair->a], *b = &plan->parameters[pair->b];
        const size_t size = (size_t)a->array.ndim * sizeof(int64_t); /* and of b's shape, too */
        if ((memcmp(a->view.slots + 1, b->view.slots + 1, size) == 0) != pair->same) {
            return false;
        }
    }
    return true;
}

/* That the same views are where the signature has them, and that nothing else that is written
 * overlaps another array. Views that are only read may be one or two. */
static bool views_agree(const Plan *plan)
{
    for (const Pair *pair = plan->views; pair < plan->views + plan->view_count; pair++) {
        const View *a = &plan->parameters[pair->a].view, *b = &plan->parameters[pair->b].view;
        const size_t size = (size_t)(1 + 2 * plan->parameters[pair->a].array.ndim) * sizeof(int64_t);
        if (pair->same ? memcmp(a->slots, b->slots, size) != 0
                       : a->start < b->stop && b->start < a->stop) {
            return false;
        }
    }
    return true;
}

/* Arrays that were read are others than before: whether they agree, and what grids they fit. */
static bool arrays_agree(Plan *plan, uint64_t settled)
{
    int64_t extent = 0;
    for (int k = 0; k < plan->arrays; k++) {
        const int64_t one = plan->parameters[k].view.extent;
        extent = one > extent ? one : extent;
    }
    const bool beyond = extent > plan->limit;
    const int64_t least = plan->wide && !beyond ? plan->limit + 1 : 0;
    const int64_t most = plan->wide ? INT64_MAX : beyond ? -1 : plan->limit;
    plan->agree = shapes_agree(plan) && views_agree(plan);
    plan->settled = plan->agree && least == plan->least && most == plan->most ? settled : 0;
    plan->least = least;
    plan->most = most;
    return plan->agree;
}

bool read_arrays(Plan *plan, PyObject *const *args)
{
    const uint64_t settled = plan->settled;
    bool changed = !plan->agree;
    for (Parameter *one = plan->parameters; one < plan->ends[DEVICE]; one++) {
        PyObject *value = args[one->position];
        const bool numpy = one->kind == NUMPY;
        if (numpy ? is_numpy_as_read(one->view.numpy, one->view.sizes, value)
                  : is_device_as_read(one->view.device, value, plan->device)) {
            continue;
        }
        if (!(numpy ? is_numpy_kind(&one->array, value)
                    : is_device_kind(&one->array, value, plan->device))) {
            return false;
        }
        changed = true;
        plan->agree = false;
        plan->settled = 0;
        if (!(numpy ? read_numpy(&one->array, value, &one->view)
                    : read_device(&one->array, value, &one->view))) {
            return false;
        }
    }
    return !changed || arrays_agree(plan, settled);
}

/* Whether the arrays can be used on the stream of the plan as they are. */
static bool are_on_stream(const Plan *plan, PyObject *const *args)
{
    PyObject *stream = plan->target.cuda.stream_object;
    for (const Parameter *one = plan->ends[NUMPY]; one < plan->ends[DEVICE]; one++) {
        if (!is_on_stream(args[one->position], stream, one->array.written)) {
            return false;
        }
    }
    return true;
}

bool is_constant(PyObject *value, PyObject *wanted)
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

bool settle(Plan *plan, const Launch *launch)
{
    const Grid *grid = &launch->grid;
    if (!plan->agree || grid->widest < plan->least || grid->widest > plan->most ||
        grid->all >= plan->target.cpu.brief || !is_here(plan)) {
        return false;
    }
    memcpy(plan->slots + plan->groups_slot, grid->groups, sizeof grid->groups);
    plan->total = items_of(&plan->target.cpu, grid);
    plan->settled = launch->number;
    plan->era = watched_count > 0 || asks_context(plan) ? 0 : era;
    return true;
}

/* Check the arguments and fill the parameter block. */
static bool
read_arguments(Plan *plan, PyObject *const *args, const Grid *grid, int64_t *slots)
{
    bool good;
    BEGIN_LOCKED(plan);
    good = ((plan->agree && are_as_read(plan, args)) || read_arrays(plan, args)) &&
           plan->least <= grid->widest && grid->widest <= plan->most;
    if (good) {
        memcpy(slots, plan->slots, (size_t)plan->groups_slot * sizeof *slots);
    }
    END_LOCKED();
    memcpy(slots + plan->groups_slot, grid->groups, sizeof grid->groups);
    return good && read_others(plan, args, slots) &&
           (plan->target.kind != CUDA || are_on_stream(plan, args));
}

static Outcome plan_launch(Plan *plan, const Grid *grid, PyObject *const *args, Py_ssize_t count)
{
    int64_t slots[MOST_SLOTS];
    if (count != plan->passed || !read_arguments(plan, args, grid, slots) ||
        !is_here(plan) || !guards_hold(&plan->guards)) {
        return UNKNOWN;
    }
    if (plan->guards.ask && !read_arguments(plan, args, grid, slots)) { /* they may be others now */
        return UNKNOWN;
    }
    if (grid->all == 0) {
        return DONE;
    }
    return is_brief(&plan->target, grid) ? run_brief(&plan->target.cpu, grid, slots)
                                         : target_run(&(Checked){plan, args, grid, slots});
}

/* Let a plan be the one for launching again, if it is of that kind and the kernel still has it. */
static void remember(Kernel *kernel, PyObject *plans, Py_ssize_t at)
{
#ifndef Py_GIL_DISABLED
    Plan *plan = (Plan *)PyTuple_GET_ITEM(plans, at);
    if (kernel->plans == plans && plan->target.kind == CPU && plan->target.cpu.brief > 0 &&
        plan->target.cpu.arena == 0 && !plan->guards.ask) {
        kernel->again = plan;
    }
#else
    (void)kernel, (void)plans, (void)at;
#endif
}

Outcome search_plans(const Launch *launch, PyObject *const *args, Py_ssize_t count)
{
    Kernel *kernel = (Kernel *)launch->kernel;
    PyObject *plans;
    BEGIN_LOCKED(kernel);
    plans = Py_NewRef(kernel->plans);
    END_LOCKED();
    Outcome outcome = UNKNOWN;
    const Py_ssize_t known = PyTuple_GET_SIZE(plans);
    Py_ssize_t at = kernel->hit < known ? kernel->hit : 0;
    for (Py_ssize_t k = 0; k < known && outcome == UNKNOWN; k++) {
        outcome = plan_launch((Plan *)PyTuple_GET_ITEM(plans, at), &launch->grid, args, count);
        if (outcome == DONE) {
            kernel->hit = at; /* a hint, whichever thread writes it */
            remember(kernel, plans, at);
        }
        at = at + 1 < known ? at + 1 : 0;
    }
    Py_DECREF(plans);
    return outcome;
}

Outcome try_plans(const Launch *launch, PyObject *const *args, Py_ssize_t count)
{
    return launch_again(launch, args, count) ? DONE : search_plans(launch, args, count);
}
