/* Running machine code, in this thread or with the threads of a pool (pool.c). */

#ifndef KHALJIT_POOL_H
#define KHALJIT_POOL_H

#include "native.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#define CACHE_LINE 64
#define ON_STACK 4096 /* bytes of an arena up to which it is on the stack */

typedef void (*Entry)(void *params, int64_t *next, int64_t total, int64_t chunk, void *arena);

typedef struct {
    Entry entry;
    void *params;
    int64_t total; /* work items */
    int64_t chunk; /* that a thread takes at a time */
    size_t arena;  /* bytes of scratch memory for each thread */
} Work;

typedef struct Pool Pool;

extern PyTypeObject *pool_type;

int pool_threads(Pool *pool);
int pool_run(Pool *pool, const Work *work); /* without the GIL; -1 where memory is short */

static inline void *on_line(void *memory)
{
    return (void *)(((uintptr_t)memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
}

/* Take part in some work; -1 where memory is short. */
static inline int enter(const Work *work, int64_t *next)
{
    char near_arena[ON_STACK + CACHE_LINE], *arena = near_arena;
    if (work->arena > ON_STACK) {
        arena = PyMem_RawMalloc(work->arena + CACHE_LINE);
        if (arena == NULL) {
            return -1;
        }
    }
    work->entry(work->params, next, work->total, work->chunk, on_line(arena));
    if (arena != near_arena) {
        PyMem_RawFree(arena);
    }
    return 0;
}

/* Do all of some work in this thread; -1 where memory is short. */
static inline int pool_run_here(const Work *work)
{
    int64_t counter[2 * CACHE_LINE / sizeof(int64_t)], *next = on_line(counter);
    *next = 0;
    return enter(work, next);
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
