#include "ops/registry.h"

#include <algorithm>

namespace dgpu::ops {

// Never destroyed: schemas outlive every user, also at process exit.
const std::vector<const Schema*>& all() {
  static const auto* list = [] {
    auto* rows = new std::vector<const Schema*>{
#define DGPU_OP_ROW(name) &schemas::name(),
        DGPU_OP_LIST(DGPU_OP_ROW)
#undef DGPU_OP_ROW
    };
    std::sort(rows->begin(), rows->end(), [](const Schema* a, const Schema* b) { return a->name < b->name; });
    return rows;
  }();
  return *list;
}

const Schema* find(std::string_view name) {
  const auto& list = all();
  const auto it =
      std::lower_bound(list.begin(), list.end(), name, [](const Schema* s, std::string_view n) { return s->name < n; });
  return it != list.end() && (*it)->name == name ? *it : nullptr;
}

const PortSchema* port_schema(const Schema& schema, std::string_view port) {
  std::string_view stem = port;
  while (!stem.empty() && stem.back() >= '0' && stem.back() <= '9') stem.remove_suffix(1);
  const std::string_view number = port.substr(stem.size());
  for (const auto& row : schema.ports) {
    if (!row.repeated && row.name == port) return &row;
    const bool numbered = !number.empty() && number.size() <= 2 && (number == "0" || number[0] != '0');
    if (row.repeated && numbered && row.name == stem) return &row;
  }
  return nullptr;
}

}  // namespace dgpu::ops
