// The object behind dgpuOpDesc_t.
#pragma once
#include <mutex>

#include "base/object.h"
#include "ops/op.h"

namespace dgpu::ops {

class OpDesc final : public Object {
 public:
  static constexpr Kind kKind = Kind::op_desc;
  explicit OpDesc(std::string name) : Object(Kind::op_desc) { spec_.name = std::move(name); }

  Status set(std::string_view attribute, AttrValue value) {
    std::lock_guard lock(mutex_);
    return set_attr(spec_, attribute, std::move(value));
  }
  Status bind(std::string_view port, const dgpuTensorDesc& desc) {
    std::lock_guard lock(mutex_);
    return set_port(spec_, port, desc);
  }
  OpSpec copy() const {
    std::lock_guard lock(mutex_);
    return spec_;
  }

 private:
  mutable std::mutex mutex_;
  OpSpec spec_;
};

}  // namespace dgpu::ops
