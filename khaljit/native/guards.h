/* Guards: what was read from outside the kernel while recording is as it was; guards.c. */

#ifndef KHALJIT_GUARDS_H
#define KHALJIT_GUARDS_H

#include "native.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Something that was read. */
typedef struct Guard {
    enum { ITEM, CELL, SLOT, ATTRIBUTE, OTHER } kind;
    PyObject *owner; /* a dict, a cell, an object; none for OTHER */
    PyObject *name;
    PyObject *seen;
    PyObject *guard;      /* asks in Python, where something else is found */
    Py_ssize_t offset;    /* of a slot */
    uint64_t version;     /* of the class of a slot's owner; of a dict when it was last asked */
    struct Guard *behind; /* the items that have one version */
} Guard;

typedef struct {
    Guard *all;
    Py_ssize_t count;
    bool ask; /* one of them runs code that is not ours */
} Guards;

/* A number that changes with every change of a dict, and is 0 where nobody notices those: dicts have
 * such a number before Python 3.12 (PEP 509), and tell those who watch them from then on. */
#if defined(Py_GIL_DISABLED)
#define version_of(dict) 0
#elif PY_VERSION_HEX < 0x030C0000
#define version_of(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define version_of(dict) changes_of_dicts
extern uint64_t changes_of_dicts; /* of all that are watched, and 1; or 0 */
#endif

bool guard_holds(Guard *guard); /* and those up to the one behind it */

/* A slot of an object whose class was not changed, so that reading it runs no code. */
static inline bool slot_is_as_seen(const Guard *guard)
{
    return Py_TYPE(guard->owner)->tp_version_tag == guard->version &&
           *(PyObject **)((char *)guard->owner + guard->offset) == guard->seen;
}

static inline bool guards_hold(const Guards *guards)
{
    const Guard *const end = guards->all + guards->count;
    for (Guard *guard = guards->all; guard < end; guard = guard->behind) {
        const uint64_t version = guard->kind == ITEM ? version_of(guard->owner) : 0;
        if ((version == 0 || version != guard->version) && !guard_holds(guard)) {
            return false;
        }
    }
    return true;
}

/* Whether nothing has changed that could change an answer; asks nobody. */
static inline bool guards_are_as_seen(const Guards *guards)
{
    const Guard *const end = guards->all + guards->count;
    for (const Guard *guard = guards->all; guard < end; guard = guard->behind) {
        const bool same =
            guard->kind == ITEM ? guard->version != 0 && version_of(guard->owner) == guard->version
            : guard->kind == CELL ? PyCell_GET(guard->owner) == guard->seen
                                  : guard->kind == SLOT && slot_is_as_seen(guard);
        if (!LIKELY(same)) {
            return false;
        }
    }
    return true;
}

bool guards_parse(Guards *guards, PyObject *from);
int guards_traverse(const Guards *guards, visitproc visit, void *arg);
void guards_release(Guards *guards);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
