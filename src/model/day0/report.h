// A finished document behind a dgpuReport_t.
#pragma once
#include <string>

#include "base/object.h"
#include "model/day0/documents.h"

namespace dgpu::model {

class Report final : public Object {
 public:
  static constexpr Kind kKind = Kind::report;
  // Names of files and tensors may hold bytes that are no UTF-8: they become U+FFFD in the text.
  explicit Report(const Document& document)
      : Object(kKind),
        json_(document.json.dump(-1, ' ', false, JsonDoc::error_handler_t::replace)),
        good_(document.good) {}
  const std::string& json() const { return json_; }
  bool good() const { return good_; }

 private:
  const std::string json_;
  const bool good_;
};

}  // namespace dgpu::model
