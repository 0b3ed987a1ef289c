// Arguments of a dataflow function by position or name.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/expr.h"

namespace dgpu::model {

// Arguments of a function by position or name, each at most once.
class FlowArgs {
 public:
  FlowArgs(const Args& args, std::vector<const char*> names, const Expr& at, const std::string& fn)
      : args_(args), names_(std::move(names)), at_(at), fn_(fn) {
    if (args.positional.size() > names_.size())
      fault(at, fmt::format("{} takes at most {} arguments", fn, names_.size()));
    for (const auto& [key, v] : args.named) {
      const auto it = std::find(names_.begin(), names_.end(), key);
      if (it == names_.end()) fault(at, fmt::format("{} has no argument {}", fn, key));
      if (static_cast<size_t>(it - names_.begin()) < args.positional.size())
        fault(at, fmt::format("{}: argument {} is given twice", fn, key));
    }
  }
  const Val* find(const char* name) const {
    const size_t i =
        std::find_if(names_.begin(), names_.end(), [&](const char* n) { return std::string_view(n) == name; }) -
        names_.begin();
    const Val* v = i < args_.positional.size() ? &args_.positional[i] : args_.find(name);
    return v && !v->null() ? v : nullptr;
  }
  const Val& need(const char* name) const {
    const Val* v = find(name);
    if (!v) fault(at_, fmt::format("{} needs {}", fn_, name));
    return *v;
  }
  int64_t integer(const char* name) const {
    const int64_t* i = need(name).get<int64_t>();
    if (!i) fault(at_, fmt::format("{}: {} must be an integer, got {}", fn_, name, text_of(need(name))));
    return *i;
  }
  int64_t integer(const char* name, int64_t otherwise) const { return find(name) ? integer(name) : otherwise; }

 private:
  const Args& args_;
  std::vector<const char*> names_;
  const Expr& at_;
  const std::string& fn_;
};

}  // namespace dgpu::model
