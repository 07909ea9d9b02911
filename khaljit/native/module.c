/* The module `khaljit._native`. */

#include "native.h"

static int execute(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        add_arrays, add_numbers, add_context, add_pool, add_plan, add_kernel, add_launch, add_bound,
    };
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        if (parts[k](module) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "khaljit._native",
    .m_doc = "Launching without Python on the way; see khaljit/native/native.h.",
    .m_size = 0,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
