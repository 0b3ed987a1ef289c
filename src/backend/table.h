// Version negotiation and the check of a plugin's table.
#pragma once
#include <string_view>

#include "base/error.h"
#include "dgpu/backend.h"

namespace dgpu::backend {

struct Table;

// BACKEND_REFUSED with the reason, which reads after "refused: ".
Status negotiate_table(dgpuBackendQueryFunction query, Table& out, uint32_t& out_minor);
Status check_backend_name(std::string_view name);

}  // namespace dgpu::backend
