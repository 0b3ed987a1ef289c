// Programs of the fixture models.
#include <gtest/gtest.h>

#include <cstdlib>

#include "model/model.h"

namespace dgpu::model {
namespace {

const char* const kFirstWave[] = {"llama2", "llama3-scaled-tied", "mistral-window", "qwen2-bias",
                                  "qwen3",  "qwen3-moe",          "mixtral",        "adder"};

std::string shared() {
  const char* dir = std::getenv("DGPU_SHARED");
  return dir ? std::string(dir) + "/models/" : "";
}

TEST(ModelProgram, FirstWaveBuilds) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  for (const char* name : kFirstWave) {
    std::shared_ptr<const Model> model;
    ASSERT_EQ(Model::open(shared() + name, "", false, model), 0) << name << ": " << last_error().message;
    if (std::getenv("DGPU_PRINT_PROGRAM")) printf("%s\n", graph::to_text(model->program()).c_str());
  }
}

}  // namespace
}  // namespace dgpu::model
