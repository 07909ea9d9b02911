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
                (plan->target.kind == CUDA && !memory_is_on(buffer, plan->target.cuda.stream_object,
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
    if (plan->asks && !read_arguments(plan, args, slots, &extent)) { /* they may be others now */
        return UNKNOWN;
    }
    if (n[0] == 0 || n[1] == 0 || n[2] == 0) {
        return DONE;
    }
    memcpy(slots + plan->groups_slot, groups, 3 * sizeof *groups);
    return target_run(&plan->target, &(Checked){plan, args, groups, n, slots});
}
