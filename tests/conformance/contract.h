// What the core relies on besides operators: memory, copies, fills, order, waits, time stamps, failures, kernels.
#pragma once
#include <string>

#include "dgpu.h"

namespace conformance {

// Runs all checks on the device and prints a line for each; the number of failed ones. The device's memory may be
// anything from 16 MiB up.
int check_contract(dgpuDevice_t device);

}  // namespace conformance
