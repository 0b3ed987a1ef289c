#include "api/entry.h"

#include <string>

namespace dgpu {

Status entry_failed(const char* function, Status status) noexcept {
  dgpuErrorInfo& record = last_error();
  if (record.status != status) {
    record = DGPU_ERROR_INFO_INIT;
    record.status = status;
    copy_text(record.message, dgpuStatusText(status));
  }
  // A failure that came with a command carries the function that submitted it.
  if (!record.function[0]) copy_text(record.function, function);
  return status;
}

Status entry_caught(const char* function) noexcept {
  Status status = DGPU_STATUS_INTERNAL;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    status = DGPU_STATUS_OUT_OF_HOST_MEMORY;
    dgpuErrorInfo& record = last_error();
    record = DGPU_ERROR_INFO_INIT;
    record.status = status;
    copy_text(record.message, "host memory is used up");
  } catch (const std::exception& error) {
    dgpuErrorInfo& record = last_error();
    record = DGPU_ERROR_INFO_INIT;
    record.status = status;
    copy_text(record.message, error.what());
  } catch (...) {
    dgpuErrorInfo& record = last_error();
    record = DGPU_ERROR_INFO_INIT;
    record.status = status;
    copy_text(record.message, "an unknown exception reached the API boundary; please report it");
  }
  return entry_failed(function, status);
}

}  // namespace dgpu
