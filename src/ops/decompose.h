// An operator as a sequence of simpler ones, for backends that do not run it whole.
#pragma once
#include <string>
#include <vector>

#include "ops/op.h"

namespace dgpu::ops {

// Where a step's port lives: an outer port by name or an intermediate "%0", "%1", ..., from an element on.
struct StepValue {
  std::string tensor;
  int64_t offset = 0;  // elements
};

// A simpler operator.
struct Step {
  OpSpec spec;
  std::map<std::string, StepValue, std::less<>> values;  // by port
};

struct Decomposition {
  std::vector<Step> steps;
  std::vector<dgpuTensorDesc> temporaries;  // of "%0", "%1", ...: row-major, at the maxima of their symbols
};

// Builds a step: add() appends it. `tensor` is an outer port or what add_temp() returned.
class StepBuilder {
 public:
  StepBuilder(const OpSpec& outer, Decomposition& out, std::string op) : outer_(outer), out_(out) {
    step_.spec.name = std::move(op);
  }
  StepBuilder& attr(std::string name, AttrValue value);
  StepBuilder& copy_attr(std::string_view name);  // from the outer operator, if it is set
  StepBuilder& bind(std::string port, std::string_view tensor);
  // A part of the tensor, described by `view`.
  StepBuilder& bind_view(std::string port, std::string_view tensor, const dgpuTensorDesc& view, int64_t offset);
  StepBuilder& bind_if(std::string port, std::string_view tensor) {
    return outer_.bound(tensor) ? bind(std::move(port), tensor) : *this;
  }
  void add() { out_.steps.push_back(std::move(step_)); }

 private:
  const OpSpec& outer_;
  Decomposition& out_;
  Step step_;
};

// A new intermediate of that shape.
std::string add_temp(Decomposition& out, dgpuDtype_t dtype, const dgpuTensorDesc& like);

// The operator's own decomposition, each step validated. False if it has none for this content.
bool decompose(const OpSpec& spec, Decomposition& out);

}  // namespace dgpu::ops
