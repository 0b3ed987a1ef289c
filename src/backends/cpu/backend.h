// The cpu backend's entry, built in and linked statically.
#pragma once
#include "dgpu/backend.h"

extern "C" dgpuStatus_t dgpuCpuBackendQuery(uint32_t core_major, uint32_t core_minor,
                                            const dgpuBackendTable** out_table);
