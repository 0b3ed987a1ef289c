/* dlclose of the library, with and without dgpuShutdown before it: its threads may still run. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "dgpu.h"

static void* library;

/* Function pointers come as data pointers from dlsym. */
#define FUNCTION(name)                          \
  __extension__({                               \
    void* found_ = dlsym(library, #name);       \
    __typeof__(&name) function_ = NULL;         \
    memcpy(&function_, &found_, sizeof found_); \
    function_;                                  \
  })

static int use(int shut_down) {
  dgpuDevice_t device = NULL;
  dgpuContext_t context = NULL;
  dgpuStream_t stream = NULL;
  dgpuAddr_t memory = 0;
  if (FUNCTION(dgpuInit)(NULL) != DGPU_STATUS_SUCCESS) return 1;
  if (FUNCTION(dgpuDeviceGet)(0, &device) != DGPU_STATUS_SUCCESS) return 2;
  if (FUNCTION(dgpuContextCreate)(&device, 1, NULL, &context) != DGPU_STATUS_SUCCESS) return 3;
  if (FUNCTION(dgpuStreamCreate)(context, device, NULL, &stream) != DGPU_STATUS_SUCCESS) return 4;
  if (FUNCTION(dgpuMemAlloc)(context, device, 1 << 24, &memory) != DGPU_STATUS_SUCCESS) return 5;
  for (int i = 0; i < 50; ++i) {
    if (FUNCTION(dgpuMemFillAsync)(stream, memory, 1, 1, 1 << 24) != DGPU_STATUS_SUCCESS) return 6;
  }
  if (shut_down && FUNCTION(dgpuShutdown)() != DGPU_STATUS_SUCCESS) return 7;
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int i = 0; i < 6; ++i) {
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    const int failed = use(i % 2 == 0);
    if (failed) {
      fprintf(stderr, "round %d: step %d failed\n", i, failed);
      return 1;
    }
    if (dlclose(library) != 0) return 1;
  }
  return 0;
}
