/* The null backend's code under another name, for plugins that differ from it in one point. */
#ifndef DGPU_TESTS_NULL_BASE_H
#define DGPU_TESTS_NULL_BASE_H

#define dgpuBackendQuery null_query
#include "../../src/backends/null/backend.c"
#undef dgpuBackendQuery

DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table);

/* Its answer to a query for a plugin that starts in a way of its own. */
static inline dgpuStatus_t null_query_with(dgpuStatus_t (*start)(const dgpuBackendServices*, void**),
                                           uint32_t core_major, uint32_t core_minor,
                                           const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  const dgpuBackendTable* original = NULL;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  changed = *original;
  changed.initialize = start;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}

#endif /* DGPU_TESTS_NULL_BASE_H */
