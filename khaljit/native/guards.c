/* Guards: making them, and asking those whose answer is not known from the time before. */

#include "guards.h"

#include <stdlib.h>

#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030C0000
uint64_t changes_of_dicts;
static int watcher;

static int notice(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event, (void)dict, (void)key, (void)value;
    changes_of_dicts++;
    return 0;
}
#endif

/* Let changes of a dict be noticed; false with an error. */
static bool watch_dict(PyObject *dict)
{
#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030C0000
    if (changes_of_dicts == 0 && (watcher = PyDict_AddWatcher(notice)) >= 0) {
        changes_of_dicts = 1;
    }
    if (changes_of_dicts == 0) { /* others have all watchers that there are */
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
static bool items_hold(Guard *first)
{
    const uint64_t version = version_of(first->owner);
    for (const Guard *guard = first; guard < first->behind; guard++) {
        if (!finds_same(guard) && !ask_python(guard)) {
            return false;
        }
    }
    first->version = version;
    return true;
}

bool guard_holds(Guard *guard)
{
    if (guard->kind == ITEM) {
        return items_hold(guard);
    }
    if (guard->kind == SLOT && Py_TYPE(guard->owner)->tp_version_tag != guard->version) {
        return false; /* the class was changed, and reading it may run code now */
    }
    return finds_same(guard) || ask_python(guard);
}

/* Making them. */

/* Where an object has a slot of its class, so that reading the attribute runs no code; else 0. */
static Py_ssize_t slot_of(PyObject *owner, PyObject *name, uint64_t *version)
{
    PyTypeObject *type = Py_TYPE(owner);
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = 0;
    if (found == NULL) {
        PyErr_Clear();
        return 0;
    }
    *version = type->tp_version_tag; /* which the lookup gave it; it changes with the class */
    if (Py_TYPE(found) == &PyMemberDescr_Type && type->tp_getattro == PyObject_GenericGetAttr &&
        PyType_IsSubtype(type, PyDescr_TYPE(found)) && *version != 0 &&
        ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX) {
        offset = ((PyMemberDescrObject *)found)->d_member->offset;
    }
    Py_DECREF(found);
    return offset;
}

static bool have_one_version(PyObject *dict, PyObject *other)
{
#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030C0000
    (void)dict, (void)other;
    return true;
#else
    return dict == other;
#endif
}

/* Items of dicts first, dict by dict. */
static int by_owner(const void *a, const void *b)
{
    const Guard *one = a, *other = b;
    if (one->kind != ITEM || other->kind != ITEM) {
        return (one->kind != ITEM) - (other->kind != ITEM);
    }
    return ((uintptr_t)one->owner > (uintptr_t)other->owner) -
           ((uintptr_t)one->owner < (uintptr_t)other->owner);
}

static void group(Guards *guards)
{
    qsort(guards->all, (size_t)guards->count, sizeof(Guard), by_owner);
    Guard *const end = guards->all + guards->count;
    for (Guard *first = guards->all, *guard; first < end; first = guard) {
        guard = first + 1;
        while (guard < end && first->kind == ITEM && guard->kind == ITEM &&
               have_one_version(first->owner, guard->owner)) {
            guard++;
        }
        first->behind = guard;
    }
}

bool guards_parse(Guards *guards, PyObject *from)
{
    guards->all = PyMem_Calloc((size_t)PyTuple_GET_SIZE(from) + 1, sizeof(Guard));
    if (guards->all == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(from); k++) {
        Guard *guard = &guards->all[k];
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
        if (guard->kind == ITEM && !watch_dict(owner)) {
            return false;
        }
        if (guard->kind == ATTRIBUTE) {
            guard->offset = slot_of(owner, name, &guard->version);
            guard->kind = guard->offset > 0 ? SLOT : ATTRIBUTE;
        }
        guards->ask = guards->ask || guard->kind == ATTRIBUTE || guard->kind == OTHER;
        guard->owner = Py_NewRef(owner);
        guard->name = Py_NewRef(name);
        guard->seen = Py_NewRef(seen);
        guard->guard = Py_NewRef(asks);
        guards->count = k + 1;
    }
    group(guards);
    return true;
}

int guards_traverse(const Guards *guards, visitproc visit, void *arg)
{
    for (const Guard *guard = guards->all; guard < guards->all + guards->count; guard++) {
        Py_VISIT(guard->owner);
        Py_VISIT(guard->name);
        Py_VISIT(guard->seen);
        Py_VISIT(guard->guard);
    }
    return 0;
}

void guards_release(Guards *guards)
{
    for (Guard *guard = guards->all; guard < guards->all + guards->count; guard++) {
        Py_DECREF(guard->owner);
        Py_DECREF(guard->name);
        Py_DECREF(guard->seen);
        Py_DECREF(guard->guard);
    }
    PyMem_Free(guards->all);
}
