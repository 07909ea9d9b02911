/* Checking a launch by its plan.
 *
 * `khaljit/plans.py` makes a plan for a launch that the Python path has just run. It holds for
 * launches whose arguments have the same signature, while what the recording read from outside is
 * the same, in a context that sends them to the same device. It keeps no array alive.
 */

#include "plan.h"

#include <string.h>

static bool is_here(const Plan *plan)
{
    if (plan->process != forks || (watched_count > 0 && is_watched())) {
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

/* Arrays that were read are other ones than before. */
static bool arrays_agree(Plan *plan)
{
    plan->extent = 0;
    for (int k = 0; k < plan->arrays; k++) {
        const int64_t extent = plan->parameters[k].view.extent;
        plan->extent = extent > plan->extent ? extent : plan->extent;
    }
    plan->agree = shapes_agree(plan) && views_agree(plan);
    return plan->agree;
}

/* Check the arrays, and fill their slots. */
static inline bool read_arrays(Plan *plan, PyObject *const *args)
{
    Parameter *one = plan->parameters;
    bool changed = !plan->agree;
    for (const Parameter *end = plan->ends[NUMPY]; one < end; one++) {
        if (!read_numpy_array(&one->array, args[one->position], &one->view, &changed)) {
            plan->agree = plan->agree && !changed;
            return false;
        }
    }
    for (const Parameter *end = plan->ends[DEVICE]; one < end; one++) {
        PyObject *memory;
        if (!read_device_array(
                &one->array, args[one->position], plan->device, &one->view, &changed, &memory
            ) ||
            (plan->target.kind == CUDA &&
             !memory_is_on(memory, plan->target.cuda.stream_object, one->array.written))) {
            plan->agree = plan->agree && !changed;
            return false;
        }
    }
    return !changed || arrays_agree(plan);
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

/* Check what is no array, and fill its slots. */
static inline bool read_others(const Plan *plan, PyObject *const *args, int64_t *slots)
{
    const Parameter *one = plan->ends[DEVICE];
    for (const Parameter *end = plan->ends[NUMBER]; one < end; one++) {
        if (!read_number(&one->rule, args[one->position], slots + one->slot)) {
            return false;
        }
    }
    for (one = plan->ends[FIXED]; one < plan->ends[CONSTANT]; one++) {
        if (one->position < plan->passed && !is_constant(args[one->position], one->value)) {
            return false;
        }
    }
    return true;
}

/* Check the arguments and fill the parameter block. */
static bool
read_arguments(Plan *plan, PyObject *const *args, const Grid *grid, int64_t *slots)
{
    bool good;
    BEGIN_LOCKED(plan);
    good = read_arrays(plan, args) &&
           ((plan->extent > grid->widest ? plan->extent : grid->widest) > plan->limit) == plan->wide;
    if (good) {
        memcpy(slots, plan->slots, (size_t)plan->groups_slot * sizeof *slots);
    }
    END_LOCKED();
    memcpy(slots + plan->groups_slot, grid->groups, sizeof grid->groups);
    return good && read_others(plan, args, slots);
}

Outcome plan_launch(PyObject *object, const Grid *grid, PyObject *const *args, Py_ssize_t count)
{
    Plan *plan = (Plan *)object;
    int64_t slots[MOST_SLOTS];
    if (count != plan->passed || !read_arguments(plan, args, grid, slots) || !is_here(plan) ||
        !guards_hold(&plan->guards)) {
        return UNKNOWN;
    }
    if (plan->guards.ask && !read_arguments(plan, args, grid, slots)) { /* they may be others now */
        return UNKNOWN;
    }
    if (grid->groups[0] == 0 || grid->groups[1] == 0 || grid->groups[2] == 0) {
        return DONE;
    }
    return is_brief(&plan->target, grid) ? run_brief(&plan->target.cpu, grid, slots)
                                         : target_run(&(Checked){plan, args, grid, slots});
}
