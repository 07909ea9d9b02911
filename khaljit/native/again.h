/* Launching again: a brief launch by the plan that fitted last. It is all that one costs.
 *
 * No code of Python's runs on the way. So with the GIL held nothing changes meanwhile, nothing has
 * to be kept alive, and the plan's own parameter block is passed. Whatever differs is for
 * `search_plans`, as is everything in free-threaded builds.
 */

#ifndef KHALJIT_AGAIN_H
#define KHALJIT_AGAIN_H

#include "plan.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Whether the arrays are as those that were read last. */
static inline bool are_as_read(const Plan *plan, PyObject *const *args)
{
    const NumpySeen *array = plan->numpy;
    const Py_ssize_t *sizes = plan->sizes;
    for (int k = plan->numpy_count; k > 0; k--, sizes += 2 * array->axes, array++) {
        if (!LIKELY(is_numpy_as_read(array, sizes, args[array->position]))) {
            return false;
        }
    }
    const DeviceSeen *own = plan->own;
    for (int k = plan->own_count; k > 0; k--, own++) {
        if (!LIKELY(is_device_as_read(own, args[own->position], plan->device))) {
            return false;
        }
    }
    return true;
}

/* Check what is no array, and fill its slots. */
static inline bool read_others(const Plan *plan, PyObject *const *args, int64_t *slots)
{
    const Parameter *one = plan->ends[DEVICE];
    for (const Parameter *end = plan->ends[NUMBER]; one < end; one++) {
        if (!LIKELY(read_number(&one->rule, args[one->position], slots + one->slot))) {
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

static inline bool launch_again(const Launch *launch, PyObject *const *args, Py_ssize_t count)
{
    Plan *plan = ((Kernel *)launch->kernel)->again;
    if (!LIKELY(
            plan != NULL && plan->passed == count &&
            (are_as_read(plan, args) || read_arrays(plan, args)) &&
            ((plan->settled == launch->number && plan->era == era) || settle(plan, launch)) &&
            guards_are_as_seen(&plan->guards) && read_others(plan, args, plan->slots)
        )) {
        return false;
    }
    const CpuTarget *cpu = &plan->target.cpu;
    plan->next = 0;
    cpu->entry(plan->slots, &plan->next, plan->total, plan->total, NULL);
    return true;
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
