/* Never returns from its query. */
#include <unistd.h>

#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  for (;;) pause();
}
