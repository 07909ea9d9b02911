/* Checking a launch by its plan.
 *
 * `khaljit/plans.py` makes a plan for a launch that the Python path has just run. It holds for
 * launches whose arguments have the same signature, while what the recording read from outside is
 * the same, in a context that sends them to the same device. It keeps no array alive.
 */

#include "plan.h"

#include <string.h>

/* A number that changes with every change of a dict, and is 0 where nobody notices those: dicts have
 * such a number before Python 3.12 (PEP 509), and tell those who watch them from then on. */
#if defined(Py_GIL_DISABLED)
#define version_of(dict) 0
#elif PY_VERSION_HEX < 0x030C0000
#define version_of(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define version_of(dict) changes
static uint64_t changes; /* of all dicts that are watched, and 1; or 0 */
static int watcher;

static int notice(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event, (void)dict, (void)key, (void)value;
    changes++;
    return 0;
}
#endif

bool have_one_version(PyObject *dict, PyObject *other)
{
#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030C0000
    (void)dict, (void)other;
    return true;
#else
    return dict == other;
#endif
}

bool watch_dict(PyObject *dict)
{
#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030C0000
    if (changes == 0 && (watcher = PyDict_AddWatcher(notice)) >= 0) {
        changes = 1;
    }
    if (changes == 0) { /* others have all watchers that there are */
        PyErr_Clear();
        return true;
    }
    return PyDict_Watch(watcher, dict) == 0;
#else
    (void)dict;
    return true;
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
    case SLOT: return *(PyObject **)((char *)guard->owner + guard->offset) == guard->seen;
    case ATTRIBUTE: found = PyObject_GetAttr(guard->owner, guard->name); break;
    case OTHER: break;
    }
    Py_XDECREF(found);
    return found != NULL && found == guard->seen;
}

static bool ask_python(const Guard *guard)
{
    PyErr_Clear();
    PyObject *answer = PyObject_CallMethod(guard->guard, "holds", NULL);
    const bool good = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return good;
}

/* Whether items of dicts hold that have one version. */
static inline bool items_hold(Guard *first)
{
    const uint64_t version = version_of(first->owner);
    if (version != 0 && first->version == version) {
        return true;
    }
    for (const Guard *guard = first; guard < first->behind; guard++) {
        if (!finds_same(guard) && !ask_python(guard)) {
            return false;
        }
    }
    first->version = version;
    return true;
}

static bool holds(const Guard *guard)
{
    if (guard->kind == SLOT && Py_TYPE(guard->owner)->tp_version_tag != guard->version) {
        return false; /* the class was changed, and reading it may run code now */
    }
    return finds_same(guard) || ask_python(guard);
}

static inline bool guards_hold(const Plan *plan)
{
    const Guard *const end = plan->guards + plan->guard_count;
    for (Guard *guard = plan->guards; guard < end; guard = guard->behind) {
        if (guard->kind == ITEM ? !items_hold(guard) : !holds(guard)) {
            return false;
        }
    }
    return true;
}

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
        !guards_hold(plan)) {
        return UNKNOWN;
    }
    if (plan->asks && !read_arguments(plan, args, grid, slots)) { /* they may be others now */
        return UNKNOWN;
    }
    if (grid->groups[0] == 0 || grid->groups[1] == 0 || grid->groups[2] == 0) {
        return DONE;
    }
    return is_brief(&plan->target, grid) ? run_brief(&plan->target.cpu, grid, slots)
                                         : target_run(&(Checked){plan, args, grid, slots});
}
