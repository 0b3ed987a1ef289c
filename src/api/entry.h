// How every entry point is written: check, call, return.
//
//   dgpuStatus_t dgpuStreamDestroy(dgpuStream_t stream) {
//     return entry("dgpuStreamDestroy", [&] { return retire<Stream>(stream, "stream"); });
//   }
//
// Functions with a handle argument pin it first (DGPU_PIN), which also tells NOT_INITIALIZED, FORKED and SHUTDOWN.
// Functions without one use library_entry, which holds the library for the length of the call. Both catch exceptions
// and record the function's name; both cost nothing (library_entry: two atomic adds) when all is well.
#pragma once
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "base/handle.h"
#include "base/library.h"
#include "base/struct.h"
#include "base/thread.h"

namespace dgpu {

// Completes the error record of a failed call; returns status.
[[gnu::cold]] Status entry_failed(const char* function, Status status) noexcept;
// Called inside a catch block: turns the exception into a status.
[[gnu::cold]] Status entry_caught(const char* function) noexcept;

template <typename F>
inline Status entry(const char* function, F&& body) noexcept {
  try {
    const Status status = body();
    if (status < 0) [[unlikely]]
      return entry_failed(function, status);
    return status;
  } catch (...) {
    return entry_caught(function);
  }
}

// Null check of an output parameter, which is also cleared: outputs are null or zero on failure.
template <typename T>
inline Status clear_output(T* out, const char* argument) {
  DGPU_TRY(need(out, argument));
  *out = T{};
  return DGPU_STATUS_SUCCESS;
}

template <typename F>
inline Status library_entry(const char* function, F&& body) noexcept {
  return entry(function, [&]() -> Status {
    LibraryUse use;
    DGPU_TRY(use.enter());
    return body();
  });
}

// With an output parameter, which is cleared before anything can fail.
template <typename T, typename F>
inline Status library_entry(const char* function, T* out, const char* argument, F&& body) noexcept {
  return entry(function, [&]() -> Status {
    DGPU_TRY(clear_output(out, argument));
    LibraryUse use;
    DGPU_TRY(use.enter());
    return body();
  });
}

// For calls that can block.
inline Status may_block(const char* function) {
  if (!in_user_code()) [[likely]]
    return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_NOT_PERMITTED, "", "{} can block and is not permitted inside a host callback or a kernel", function);
}

}  // namespace dgpu
