// Services for a plugin that is started only to see whether it survives that. Nothing that it reports is kept.
#pragma once
#include "dgpu/backend.h"

namespace dgpu::backend {

dgpuBackendServices probe_services();

}  // namespace dgpu::backend
