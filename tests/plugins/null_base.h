/* The null backend's code under another name, for plugins that differ from it in one point. */
#ifndef DGPU_TESTS_NULL_BASE_H
#define DGPU_TESTS_NULL_BASE_H

#define dgpuBackendQuery null_query
#include "../../src/backends/null/backend.c"
#undef dgpuBackendQuery

DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table);

#endif /* DGPU_TESTS_NULL_BASE_H */
