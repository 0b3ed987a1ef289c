// The example of docs/templates.md works as it stands there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/passes/passes.h"
#include "model/model.h"

namespace dgpu::model {
namespace {

namespace fs = std::filesystem;

// The text of the code block that starts with ```json NAME.
std::string example(const std::string& document, const std::string& name) {
  const std::string start = "```json " + name + "\n";
  const size_t from = document.find(start);
  if (from == std::string::npos) return "";
  const size_t to = document.find("```", from + start.size());
  return document.substr(from + start.size(), to - from - start.size());
}

TEST(TemplateDocs, WorkedExampleBuilds) {
  const char* source = std::getenv("DGPU_SOURCE");
  if (!source) GTEST_SKIP() << "DGPU_SOURCE is not set: no documentation";
  std::stringstream text;
  text << std::ifstream(std::string(source) + "/docs/templates.md").rdbuf();
  const fs::path dir = fs::temp_directory_path() / ("template_docs." + std::to_string(getpid()));
  fs::create_directories(dir);
  std::ofstream(dir / "tiny.json") << example(text.str(), "tiny.json");
  JsonNode config;
  ASSERT_EQ(parse_json(example(text.str(), "config.json"), "config.json", config), 0) << last_error().message;
  std::shared_ptr<const Model> model;
  const Status status = Model::from_config(config, "config.json", dir.string(), model);
  fs::remove_all(dir);
  ASSERT_EQ(status, 0) << last_error().message;
  graph::Program p = model->program();
  EXPECT_EQ(p.family, "tiny");
  EXPECT_EQ(p.caches.size(), 1u);
  EXPECT_EQ(p.caches[0].cap, 16);
  EXPECT_EQ(p.max_positions, 64);
  EXPECT_EQ(model->parameters(), 50u * 32 + 2 * (32 * 64 + 32 * 32 + 3 * 4 * 32 * 32));
  ASSERT_EQ(graph::fuse(p, {}), 0) << last_error().message;
}

}  // namespace
}  // namespace dgpu::model
