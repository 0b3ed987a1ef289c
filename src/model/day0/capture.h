// One forward pass of a whole prompt with every tap brought to the host.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/program.h"
#include "model/session.h"

namespace dgpu::model {

struct HostValue {
  std::vector<int64_t> shape;
  std::vector<float> data;
  graph::Id value = graph::kNone;  // in the session's program
};

struct Capture {
  std::map<std::string, HostValue> taps;     // "logits" among them
  std::vector<std::string> order;            // execution order
  std::map<std::string, HostValue> routing;  // "NODE:PORT" of routing nodes
  graph::Program program;                    // as it was executed
};

// With `routes` tokens go to these experts; the choice that each node would have made is in `routing`. Blocks.
Status capture(Ref<OpenModel> model, dgpuDtype_t compute, const std::vector<int32_t>& tokens,
               const graph::Routes* routes, Capture& out);

}  // namespace dgpu::model
