#include "ops/backend_op.h"

namespace dgpu::ops {

BackendOp::BackendOp(const OpSpec& spec, const std::vector<std::string>& order, uint32_t symbols) {
  const Schema* schema = find(spec.name);
  attrs_.reserve(spec.attrs.size());  // pointers into the lists stay valid
  ints_.reserve(spec.attrs.size());
  floats_.reserve(spec.attrs.size());
  for (const auto& row : schema->attrs)
    if (const auto it = spec.attrs.find(row.name); it != spec.attrs.end()) add_attr(it->first, it->second);
  for (const auto& a : attrs_) attr_pointers_.push_back(&a);
  ports_.reserve(order.size());
  for (const auto& name : order) {
    const auto it = spec.ports.find(name);
    ports_.push_back(
        {sizeof(dgpuBackendPort), it->first.c_str(), &it->second, port_schema(*schema, name)->direction, 0});
  }
  for (const auto& p : ports_) port_pointers_.push_back(&p);
  op_ = {sizeof(dgpuBackendOp),
         spec.name.c_str(),
         schema->version,
         static_cast<uint32_t>(attr_pointers_.size()),
         attr_pointers_.data(),
         port_pointers_.data(),
         static_cast<uint32_t>(port_pointers_.size()),
         symbols};
}

void BackendOp::add_attr(const std::string& name, const AttrValue& value) {
  dgpuBackendAttr a{};
  a.struct_size = sizeof a;
  a.name = name.c_str();
  a.count = 1;
  const auto integer = [&](uint32_t type, int64_t v) {
    a.type = type;
    ints_.push_back(v);
    a.ints = &ints_.back();
  };
  if (const auto* v = std::get_if<int64_t>(&value)) integer(DGPU_ATTR_INT, *v);
  if (const auto* v = std::get_if<bool>(&value)) integer(DGPU_ATTR_BOOL, *v);
  if (const auto* v = std::get_if<double>(&value)) {
    a.type = DGPU_ATTR_FLOAT;
    floats_.push_back(*v);
    a.floats = &floats_.back();
  }
  if (const auto* v = std::get_if<std::string>(&value)) {
    a.type = DGPU_ATTR_STRING;
    a.string = v->c_str();
  }
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) {
    a.type = DGPU_ATTR_INTS;
    a.ints = v->data();
    a.count = static_cast<uint32_t>(v->size());
  }
  if (const auto* v = std::get_if<std::vector<double>>(&value)) {
    a.type = DGPU_ATTR_FLOATS;
    a.floats = v->data();
    a.count = static_cast<uint32_t>(v->size());
  }
  attrs_.push_back(a);
}

}  // namespace dgpu::ops
