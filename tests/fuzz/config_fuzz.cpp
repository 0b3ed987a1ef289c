// A config.json of arbitrary bytes through template choice and program building.
#include "model/model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dgpu::model;
  JsonNode config;
  if (parse_json({reinterpret_cast<const char*>(data), size}, "config.json", config) != 0) return 0;
  std::shared_ptr<const Model> model;
  if (Model::from_config(config, "config.json", "", model) == 0 && dgpu::graph::verify(model->program()) != 0)
    std::abort();
  return 0;
}
