/* Dies in a constructor, before any symbol can be looked up. */
#include <stdlib.h>

#include "null_base.h"

__attribute__((constructor)) static void die(void) { abort(); }

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  return null_query(core_major, core_minor, out_table);
}
