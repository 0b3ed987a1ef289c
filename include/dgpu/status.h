/* Status codes: one row each. The row gives the enum, dgpuStatusName, dgpuStatusText, the bindings' exceptions and
 * docs/errors.md. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_STATUS_H
#define DGPU_STATUS_H

#include <stdint.h>

/* X(name, value, class, text). Values are never renumbered or reused. Classes are the blast radius:
 * outcome (not an error), caller (your call is wrong, nothing changed), resource (something is used up or missing),
 * stream (one stream needs dgpuStreamReset), device (one device is gone), process (the library in this process). */
#define DGPU_STATUS_LIST(X)                                                                                       \
  X(SUCCESS, 0, OUTCOME, "success")                                                                               \
  X(NOT_READY, 1, OUTCOME, "the work has not finished yet")                                                       \
  X(TIMEOUT, 2, OUTCOME, "the time-out passed before the work finished")                                          \
  X(QUEUE_FULL, 3, OUTCOME, "the stream's queue is full; wait for it or create the stream blocking")              \
  X(INVALID_ARGUMENT, -1, CALLER, "an argument is not valid")                                                     \
  X(INVALID_HANDLE, -2, CALLER, "the handle is null, of another kind, destroyed, or not from this library")       \
  X(INVALID_ADDRESS, -3, CALLER, "the address range is not inside one live allocation")                           \
  X(UNSUPPORTED_FIELD, -4, CALLER, "a struct sets a field that this version of the library does not know")        \
  X(UNSUPPORTED, -5, CALLER, "not supported by this device, backend or build")                                    \
  X(NOT_PERMITTED, -6, CALLER, "not allowed here, for example a blocking call inside a host callback or kernel")  \
  X(NOT_FOUND, -7, CALLER, "the named thing does not exist")                                                      \
  X(ALREADY_EXISTS, -8, CALLER, "the named thing exists already")                                                 \
  X(NOT_INITIALIZED, -9, CALLER, "the library is not initialised; call dgpuInit first")                           \
  X(BUFFER_TOO_SMALL, -10, CALLER, "the buffer is too small; the needed size was returned")                       \
  X(CONTEXT_MISMATCH, -11, CALLER, "objects of different contexts were mixed")                                    \
  X(INVALID_SHAPE, -12, CALLER, "a tensor's shape, stride or rank does not fit")                                  \
  X(INVALID_DTYPE, -13, CALLER, "a tensor's element type is not accepted here")                                   \
  X(INVALID_ATTRIBUTE, -14, CALLER, "an operator attribute is missing, unknown or out of range")                  \
  X(INVALID_STATE, -15, CALLER, "the object is not in a state that allows this call")                             \
  X(PARSE_ERROR, -16, CALLER, "a file or a text is malformed")                                                    \
  X(VERSION_MISMATCH, -17, CALLER, "the two sides speak different versions")                                      \
  X(OUT_OF_MEMORY, -100, RESOURCE, "device memory is used up")                                                    \
  X(OUT_OF_HOST_MEMORY, -101, RESOURCE, "host memory is used up")                                                 \
  X(OUT_OF_HANDLES, -102, RESOURCE, "no handle is left")                                                          \
  X(BUSY, -103, RESOURCE, "still in use; the message lists by what")                                              \
  X(IO_ERROR, -104, RESOURCE, "reading or writing a file failed")                                                 \
  X(CAPACITY, -105, RESOURCE, "a declared capacity is exceeded; the message names the missing amount")            \
  X(BACKEND_REFUSED, -106, RESOURCE, "the backend could not be loaded; the message tells why")                    \
  X(STREAM_FAILED, -200, STREAM, "the stream failed earlier; dgpuStreamReset makes it usable again")              \
  X(CANCELLED, -201, STREAM, "the work was cancelled before it ran")                                              \
  X(COMMAND_FAILED, -202, STREAM, "a command failed while it ran")                                                \
  X(DATA_OUT_OF_RANGE, -203, STREAM, "device data used as index or length is out of range")                       \
  X(CALLBACK_FAILED, -204, STREAM, "a host callback or a user kernel reported failure")                           \
  X(DEVICE_LOST, -300, DEVICE, "the device is gone; destroy its objects and create new ones on another")          \
  X(FORKED, -400, PROCESS, "the handle belongs to the parent process; call dgpuInit anew after fork")             \
  X(SHUTDOWN, -401, PROCESS, "the library was shut down")                                                         \
  X(INTERNAL, -402, PROCESS, "an invariant of the library was broken; please report it")

/* 0 success, > 0 normal outcome, < 0 error. Handle codes that you do not know by their class. */
typedef int32_t dgpuStatus_t;

enum {
#define DGPU_STATUS_ENUM_ROW(name, value, cls, text) DGPU_STATUS_##name = value,
  DGPU_STATUS_LIST(DGPU_STATUS_ENUM_ROW)
#undef DGPU_STATUS_ENUM_ROW
      DGPU_STATUS_FORCE_INT32_ = 0x7fffffff
};

#endif /* DGPU_STATUS_H */
