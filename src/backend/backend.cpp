#include "backend/registry.h"

namespace dgpu::backend {

const Table& Device::table() const { return backend_.table(); }

}  // namespace dgpu::backend
