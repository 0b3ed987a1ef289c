// A finished document behind a dgpuReport_t.
#pragma once
#include <string>

#include "base/object.h"
#include "model/day0/documents.h"

namespace dgpu::model {

class Report final : public Object {
 public:
  static constexpr Kind kKind = Kind::report;
  explicit Report(const Document& document) : Object(kKind), json_(document.json.dump()), good_(document.good) {}
  const std::string& json() const { return json_; }
  bool good() const { return good_; }

 private:
  const std::string json_;
  const bool good_;
};

}  // namespace dgpu::model
