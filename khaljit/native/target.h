/* How the code of a plan is called: machine code, the CUDA driver, or a function of Python's. */

#ifndef KHALJIT_TARGET_H
#define KHALJIT_TARGET_H

#include "pool.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#define BRIEF 50000.0 /* simple operations for which the GIL is not worth letting go of */

typedef struct {
    Entry entry;
    Pool *pool;
    PyObject *image; /* keeps the code */
    Py_ssize_t arena;
    int64_t item[3];
    double cost;         /* simple operations of an invocation */
    double worth_threads;
    double brief;        /* from so many invocations on not brief any more; 0 with a loop */
    int chunks;          /* for each thread */
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
    PyObject *call; /* `Loaded.repeat` */
} CalledTarget;

typedef struct {
    enum { CPU, CUDA, CALLED } kind;
    union {
        CpuTarget cpu;
        CudaTarget cuda;
        CalledTarget called;
    };
} Target;

/* A launch that was checked. */
typedef struct {
    const struct Plan *plan;
    PyObject *const *args;
    const Grid *grid;
    int64_t *slots;
} Checked;

bool target_parse(Target *target, const char *kind, PyObject *from);
int target_traverse(const Target *target, visitproc visit, void *arg);
void target_release(Target *target);
Outcome target_run(const Checked *launch);

/* The parts of a whole. */
static inline int64_t parts(int64_t whole, int64_t part)
{
    return whole <= part ? whole > 0 : part == 1 ? whole : (whole + part - 1) / part;
}

static inline int64_t items_of(const CpuTarget *cpu, const Grid *grid)
{
    const int64_t *n = grid->invocations, line = parts(n[0], cpu->item[0]);
    return n[1] == 1 && n[2] == 1 ? line
                                  : line * parts(n[1], cpu->item[1]) * parts(n[2], cpu->item[2]);
}

static inline bool is_brief(const Target *target, const Grid *grid)
{
    return target->kind == CPU && grid->all < target->cpu.brief;
}

/* Run what is brief, in this thread, which keeps the GIL. */
static inline Outcome run_brief(const CpuTarget *cpu, const Grid *grid, int64_t *slots)
{
    const int64_t total = items_of(cpu, grid);
    const Work work = {cpu->entry, slots, total, total, (size_t)cpu->arena};
    if (pool_run_here(&work) != 0) {
        PyErr_NoMemory();
        return FAILED;
    }
    return DONE;
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
