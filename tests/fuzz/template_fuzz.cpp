// A template of arbitrary bytes, in a directory of its own, built with a small config.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "model/model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dgpu::model;
  static const struct Scratch {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("template_fuzz." + std::to_string(getpid()));
    Scratch() { std::filesystem::create_directories(path); }
    ~Scratch() { std::filesystem::remove_all(path); }
  } scratch;
  const std::string directory = scratch.path.string();
  static const JsonNode config = [] {
    JsonNode c;
    parse_json(R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":16,"num_hidden_layers":2,
      "num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":24,"vocab_size":32,"rms_norm_eps":1e-5,
      "max_position_embeddings":64,"tie_word_embeddings":false})",
               "config.json", c);
    return c;
  }();
  std::ofstream(directory + "/fuzz.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  std::shared_ptr<const Model> model;
  if (Model::from_config(config, "config.json", directory, model) == 0 && dgpu::graph::verify(model->program()) != 0)
    std::abort();
  std::filesystem::remove(directory + "/fuzz.json");
  return 0;
}
