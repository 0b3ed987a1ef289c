// Runs cases on a device of any backend, through the public interface.
#pragma once
#include <map>

#include "case.h"

namespace conformance {

class Harness {
 public:
  // The first device of the backend: of that name, or a plugin's path (anything with a slash). Exits with a message if
  // there is none.
  explicit Harness(const std::string& backend);
  ~Harness();
  // False if the case fails; the text says where.
  bool run(const Case& test, std::string& why);

  struct Count {
    int native = 0, composed = 0, reference = 0;
    double worst = 0;           // largest error in units of what is allowed, of f32 outputs
    double worst_narrow = 0;    // of 16-bit outputs: the last rounding alone brings it near 1
    std::string why_reference;  // the last reason for the reference
  };
  const std::map<std::string, Count>& counts() const { return counts_; }
  const std::string& device_name() const { return device_name_; }
  dgpuDevice_t device() const { return device_; }

 private:
  bool plan(const Case& test, dgpuOpDesc_t op, Run& run, std::string& why);
  bool compare(const Case& test, Run& run, std::string& why);

  dgpuDevice_t device_ = nullptr;
  dgpuContext_t context_ = nullptr;
  dgpuStream_t stream_ = nullptr;
  dgpuAddr_t arena_ = 0;
  uint64_t arena_bytes_ = 0;
  std::string device_name_;
  std::map<std::string, Count> counts_;
};

}  // namespace conformance
