/* The worker pool: one kernel's work items, shared out over threads.
 *
 * It means what `khaljit/backends/cpu/pool.py` means, whose laws hold here too: the calling thread
 * takes part and waits for those only who have entered; workers sleep on a lock each and are
 * started on first use; a child process after a fork starts its own. Workers are threads without a
 * Python state: they touch no object and need no GIL. The locks are CPython's: semaphores or
 * futexes, where the system has them. Waking a thread takes longer than many a launch, so whoever
 * waits looks on for some microseconds before it sleeps.
 */

#include "pool.h"

#define GLANCES 1000 /* before sleeping: some ten microseconds */

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

/* One launch in flight. */
typedef struct {
    const Work *work;
    int64_t *next;
    volatile int inside; /* workers that have entered */
    PyThread_type_lock done; /* where the caller sleeps, if it does */
} Job;

typedef struct Worker {
    PyThread_type_lock wake;
    volatile bool woken; /* and not up yet */
    bool idle;
    Job *job;
    struct Worker *next;
    struct Team *team;
} Worker;

/* The workers of a pool. `lock` guards everything; the last to leave frees it. */
typedef struct Team {
    PyThread_type_lock lock;
    Worker *workers;
    int started;
    int present; /* workers, and the pool itself */
    bool over;
} Team;

struct Pool {
    PyObject_HEAD
    int threads;
    Team *team;
    PyObject *weak;
};

/* Nobody holds the lock for long: sleeping would take longer than waiting. */
static void lock(Team *team)
{
    for (int glance = 0; glance < GLANCES; glance++) {
        if (PyThread_acquire_lock(team->lock, NOWAIT_LOCK)) {
            return;
        }
        PAUSE();
    }
    PyThread_acquire_lock(team->lock, WAIT_LOCK);
}

static void unlock(Team *team)
{
    PyThread_release_lock(team->lock);
}

static Team *new_team(void)
{
    Team *team = PyMem_RawCalloc(1, sizeof(Team));
    if (team == NULL) {
        return NULL;
    }
    team->lock = PyThread_allocate_lock();
    if (team->lock == NULL) {
        PyMem_RawFree(team);
        return NULL;
    }
    team->present = 1;
    return team;
}

static void leave(Team *team)
{
    lock(team);
    int present = --team->present;
    unlock(team);
    if (present == 0) {
        PyThread_free_lock(team->lock);
        PyMem_RawFree(team);
    }
}

static void wake(Worker *worker)
{
    if (!worker->woken) {
        PyThread_release_lock(worker->wake);
        worker->woken = true; /* last, since the worker may be looking at it */
    }
}

/* What a worker does all its life. */
static void serve(void *argument)
{
    Worker *worker = argument;
    Team *team = worker->team;
    for (bool over = false; !over;) {
        for (int glance = 0; !worker->woken && glance < GLANCES; glance++) {
            PAUSE(); /* the next launch often follows at once */
        }
        PyThread_acquire_lock(worker->wake, WAIT_LOCK);
        lock(team);
        worker->woken = false;
        Job *job = worker->job;
        worker->job = NULL;
        if (job != NULL) { /* else it was taken back */
            job->inside++;
            unlock(team);
            enter(job->work, job->next); /* one that is short of memory leaves it to the others */
            lock(team);
            worker->idle = true;
            if (--job->inside == 0 && job->done != NULL) {
                PyThread_release_lock(job->done);
            }
        }
        over = team->over;
        unlock(team);
    }
    PyThread_free_lock(worker->wake);
    PyMem_RawFree(worker);
    leave(team);
}

/* Start one more worker, where the system lets us; with the lock held. */
static bool start(Pool *pool)
{
    Team *team = pool->team;
    Worker *worker = PyMem_RawCalloc(1, sizeof(Worker));
    if (worker == NULL) {
        return false;
    }
    worker->team = team;
    worker->idle = true;
    worker->wake = PyThread_allocate_lock();
    if (worker->wake != NULL) {
        PyThread_acquire_lock(worker->wake, WAIT_LOCK);
        team->present++;
        if (PyThread_start_new_thread(serve, worker) != PYTHREAD_INVALID_THREAD_ID) {
            worker->next = team->workers;
            team->workers = worker;
            team->started++;
            return true;
        }
        team->present--;
        PyThread_release_lock(worker->wake);
        PyThread_free_lock(worker->wake);
    }
    PyMem_RawFree(worker);
    pool->threads = team->started + 1; /* and ask no more */
    return false;
}

/* Give a job to sleeping workers, and wake them; with the lock held. */
static void call(Pool *pool, Job *job, int helpers)
{
    for (Worker *one = pool->team->workers; one != NULL && helpers > 0; one = one->next) {
        if (one->idle) {
            one->idle = false;
            one->job = job;
            wake(one);
            helpers--;
        }
    }
}

/* Take a job from those who have not entered; with the lock held. */
static void take_back(Pool *pool, Job *job)
{
    for (Worker *one = pool->team->workers; one != NULL; one = one->next) {
        if (one->job == job) {
            one->job = NULL;
            one->idle = true;
        }
    }
}

static int share(Pool *pool, const Work *work, int helpers)
{
    Team *team = pool->team;
    int64_t counter[2 * CACHE_LINE / sizeof(int64_t)], *next = on_line(counter);
    Job job = {.work = work, .next = next};
    *next = 0;
    lock(team);
    while (team->started < helpers && team->started < pool->threads - 1 && start(pool)) {
    }
    call(pool, &job, helpers);
    unlock(team);
    int failed = enter(work, next);
    lock(team);
    take_back(pool, &job);
    unlock(team);
    for (int glance = 0; job.inside != 0 && glance < GLANCES; glance++) {
        PAUSE();
    }
    lock(team); /* the last to leave lets go of the job with this lock */
    if (job.inside != 0) {
        PyThread_type_lock done = PyThread_allocate_lock();
        while (done == NULL && job.inside != 0) { /* no memory: look again and again */
            unlock(team);
            lock(team);
        }
        if (done != NULL) {
            PyThread_acquire_lock(done, WAIT_LOCK);
            job.done = done;
            unlock(team);
            PyThread_acquire_lock(done, WAIT_LOCK);
            lock(team); /* the worker is through with `done` */
            PyThread_release_lock(done);
            PyThread_free_lock(done);
        }
    }
    unlock(team);
    return failed != 0 && *next < work->total ? -1 : 0;
}

int pool_threads(Pool *pool)
{
    return pool->threads;
}

int pool_run(Pool *pool, const Work *work)
{
    int64_t chunks = (work->total + work->chunk - 1) / work->chunk;
    if (chunks <= 1 || pool->threads == 1) {
        return pool_run_here(work);
    }
    return share(pool, work, chunks < pool->threads ? (int)chunks - 1 : pool->threads - 1);
}

/* What Python sees. */

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"threads", NULL};
    int threads;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &threads)) {
        return NULL;
    }
    Pool *pool = (Pool *)type->tp_alloc(type, 0);
    if (pool == NULL) {
        return NULL;
    }
    pool->threads = threads;
    pool->team = new_team();
    if (pool->team == NULL) {
        Py_DECREF(pool);
        return PyErr_NoMemory();
    }
    return (PyObject *)pool;
}

static void pool_dealloc(Pool *pool)
{
    PyTypeObject *type = Py_TYPE(pool);
    if (pool->weak != NULL) {
        PyObject_ClearWeakRefs((PyObject *)pool);
    }
    Team *team = pool->team;
    if (team != NULL) {
        lock(team);
        team->over = true;
        for (Worker *one = team->workers; one != NULL;) {
            Worker *next = one->next; /* one that wakes waits for the lock before it goes */
            wake(one);
            one = next;
        }
        unlock(team);
        leave(team);
    }
    type->tp_free(pool);
    Py_DECREF(type);
}

static PyObject *pool_run_method(Pool *pool, PyObject *args)
{
    unsigned long long address, params;
    long long total, chunk, arena;
    if (!PyArg_ParseTuple(args, "KKLLL", &address, &params, &total, &chunk, &arena)) {
        return NULL;
    }
    Work work = {(Entry)(uintptr_t)address, (void *)(uintptr_t)params, total, chunk, (size_t)arena};
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = pool_run(pool, &work);
    Py_END_ALLOW_THREADS
    if (failed) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

/* In a child process, which has none of the workers; what its parent held stays as it is. */
static PyObject *pool_reset(Pool *pool, PyObject *Py_UNUSED(none))
{
    Team *team = new_team();
    if (team == NULL) {
        return PyErr_NoMemory();
    }
    pool->team = team;
    Py_RETURN_NONE;
}

static PyObject *pool_started(Pool *pool, void *Py_UNUSED(none))
{
    return PyLong_FromLong(pool->team->started);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)pool_run_method, METH_VARARGS, "Run a kernel's items; return when done."},
    {"reset", (PyCFunction)pool_reset, METH_NOARGS, "Forget all workers, in a child process."},
    {NULL},
};

static PyGetSetDef properties[] = {
    {"started", (getter)pool_started, NULL, "How many workers there are.", NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"threads", T_INT, offsetof(Pool, threads), READONLY, "How many threads a launch may use."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Pool, weak), READONLY, NULL},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Threads that help with launches."},
    {Py_tp_new, pool_new},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "khaljit._native.Pool",
    .basicsize = sizeof(Pool),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyTypeObject *pool_type;

int add_pool(PyObject *module)
{
    pool_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return pool_type == NULL ? -1 : PyModule_AddType(module, pool_type);
}
