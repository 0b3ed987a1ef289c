#include "base/dtype.h"

namespace dgpu {

const char* dtype_name(dgpuDtype_t dtype) {
  switch (dtype) {
#define ROW(name, value, bits, text) \
  case value:                        \
    return text;
    DGPU_DTYPE_LIST(ROW)
#undef ROW
    default:
      return "none";
  }
}

uint32_t dtype_bits(dgpuDtype_t dtype) {
  switch (dtype) {
#define ROW(name, value, bits, text) \
  case value:                        \
    return bits;
    DGPU_DTYPE_LIST(ROW)
#undef ROW
    default:
      return 0;
  }
}

dgpuDtype_t dtype_from_name(std::string_view name) {
#define ROW(id, value, bits, text) \
  if (name == text) return value;
  DGPU_DTYPE_LIST(ROW)
#undef ROW
  return DGPU_DTYPE_NONE;
}

}  // namespace dgpu
