// Status and the thread's error record. The first function that knows a fault writes the message; callers pass the
// code on.
#pragma once
#include <fmt/core.h>

#include <string_view>

#include "dgpu/base.h"

namespace dgpu {

using Status = dgpuStatus_t;

// Starts a new record on this thread and returns `status`. `object` names the argument, field, tensor or file at fault.
Status fail_text(Status status, std::string_view object, std::string_view message);

template <typename... Args>
Status fail(Status status, std::string_view object, fmt::format_string<Args...> format, Args&&... args) {
  return fail_text(status, object, fmt::format(format, std::forward<Args>(args)...));
}

// The record of this thread, to read, or to add op, backend, function to.
dgpuErrorInfo& last_error();

}  // namespace dgpu

// Returns from the calling function if the expression is an error (negative status).
#define DGPU_TRY(expr)                              \
  do {                                              \
    const ::dgpu::Status dgpu_try_status_ = (expr); \
    if (dgpu_try_status_ < 0) return dgpu_try_status_; \
  } while (0)
