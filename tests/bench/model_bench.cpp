// A model with the shapes of Qwen3-0.6B: loading against reading the file, decode against memory bandwidth, prefill
// against the measured peak.   model_bench [DIR] [--dtype f32|bf16]
// DIR is made by synthesis if it is not there (1.2 GB; default /tmp/dgpu-bench-qwen3-0.6b).
#include <dgpu.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/probe.h"

namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kConfig = R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
"bos_token_id":151643,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":1024,"initializer_range":0.02,
"intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,"model_type":"qwen3",
"num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,
"rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":
"4.51.0","use_cache":true,"use_sliding_window":false,"vocab_size":151936})";

void check(dgpuStatus_t s, const char* what) {
  if (s == DGPU_STATUS_SUCCESS) return;
  dgpuErrorInfo e = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&e);
  std::fprintf(stderr, "%s: %s: %s\n", what, dgpuStatusName(s), e.message);
  std::exit(1);
}
#define CHECK(call) check((call), #call)

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void synthesize(const fs::path& dir) {
  if (fs::exists(dir / "model.safetensors")) return;
  const fs::path config = dir.string() + ".config";
  fs::create_directories(config);
  std::ofstream(config / "config.json") << kConfig;
  dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
  o.flags = DGPU_MODEL_CONFIG_ONLY;
  dgpuModel_t model = nullptr;
  dgpuReport_t report = nullptr;
  CHECK(dgpuModelOpen(config.c_str(), &o, &model));
  CHECK(dgpuDay0Synth(model, dir.c_str(), nullptr, &report));
  dgpuReportDestroy(report);
  dgpuModelDestroy(model);
}

// Reads the whole file with `threads` threads into buffers that stay, as fast as the page cache gives it.
double raw_read_seconds(const fs::path& file, unsigned threads) {
  const auto size = fs::file_size(file);
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto start = Clock::now();
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      std::vector<char> buffer(8u << 20);
      for (uint64_t at = t * buffer.size(); at < size; at += threads * buffer.size())
        if (pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at)) < 0) std::abort();
    });
  for (auto& t : pool) t.join();
  const double s = seconds_since(start);
  close(fd);
  return s;
}

// As above, but into memory of the file's size: `warm`, which has been written before, or new memory if null.
double whole_read_seconds(const fs::path& file, unsigned threads, char* warm) {
  const auto size = fs::file_size(file);
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto start = Clock::now();
  char* memory = warm ? warm : static_cast<char*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096));
  std::vector<std::thread> pool;
  constexpr uint64_t kPiece = 8u << 20;
  for (unsigned t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      for (uint64_t at = t * kPiece; at < size; at += threads * kPiece)
        if (pread(fd, memory + at, std::min(kPiece, size - at), static_cast<off_t>(at)) < 0) std::abort();
    });
  for (auto& t : pool) t.join();
  const double s = seconds_since(start);
  if (!warm) std::free(memory);
  close(fd);
  return s;
}

struct Run {
  dgpuDevice_t device = nullptr;
  dgpuContext_t context = nullptr;
  dgpuStream_t stream = nullptr;
  dgpuModel_t model = nullptr;
  dgpuSession_t session = nullptr;
};

void submit(Run& r, dgpuSequence_t sequence, const std::vector<int32_t>& tokens) {
  const uint32_t offsets[2] = {0, static_cast<uint32_t>(tokens.size())};
  dgpuStep step = DGPU_STEP_INIT;
  step.tokens = tokens.data();
  step.token_count = offsets[1];
  step.offsets = offsets;
  step.sequences = &sequence;
  step.sequence_count = 1;
  CHECK(dgpuSessionStep(r.session, r.stream, &step));
}

}  // namespace

int main(int argc, char** argv) {
  fs::path dir = "/tmp/dgpu-bench-qwen3-0.6b";
  dgpuDtype_t dtype = DGPU_DTYPE_BF16;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--dtype") == 0 && i + 1 < argc)
      dtype = std::strcmp(argv[++i], "f32") == 0 ? DGPU_DTYPE_F32 : DGPU_DTYPE_BF16;
    else
      dir = argv[i];
  }
  CHECK(dgpuInit(nullptr));
  synthesize(dir);
  Run r;
  CHECK(dgpuDeviceGet(0, &r.device));
  CHECK(dgpuContextCreate(&r.device, 1, nullptr, &r.context));
  CHECK(dgpuStreamCreate(r.context, r.device, nullptr, &r.stream));
  const auto file = dir / "model.safetensors";
  const double bytes = static_cast<double>(fs::file_size(file));
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<double> raw, warm, fresh, load;
  const uint64_t room = (fs::file_size(file) + (2u << 20)) / (2u << 20) * (2u << 20);
  char* memory = static_cast<char*>(std::aligned_alloc(2u << 20, room));
  std::memset(memory, 1, room);
  raw_read_seconds(file, threads);  // fills the page cache
  for (int i = 0; i < 3; ++i) {
    raw.push_back(raw_read_seconds(file, threads));
    warm.push_back(whole_read_seconds(file, threads, memory));
    fresh.push_back(whole_read_seconds(file, threads, nullptr));
    if (r.model) dgpuModelDestroy(r.model);
    CHECK(dgpuModelOpen(dir.c_str(), nullptr, &r.model));
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    o.dtype = dtype;
    const auto start = Clock::now();
    CHECK(dgpuModelLoad(r.model, r.context, r.device, &o));
    load.push_back(seconds_since(start));
  }
  std::printf("file %.2f GB, %u threads, page cache warm\n", bytes / 1e9, threads);
  std::free(memory);
  std::printf(
      "load      %.3f s = %.2f GB/s; read into 8 MiB per thread %.2f GB/s (ratio %.2f), into warm memory %.2f (%.2f), "
      "into "
      "new memory %.2f (%.2f)\n",
      median(load), bytes / median(load) / 1e9, bytes / median(raw) / 1e9, median(raw) / median(load),
      bytes / median(warm) / 1e9, median(warm) / median(load), bytes / median(fresh) / 1e9,
      median(fresh) / median(load));

  dgpuSessionOptions so = DGPU_SESSION_OPTIONS_INIT;
  so.max_sequences = 1;
  so.max_tokens = 1024;
  so.max_batch_tokens = 512;
  CHECK(dgpuSessionCreate(r.model, &so, &r.session));
  dgpuSequence_t sequence = nullptr;
  CHECK(dgpuSequenceCreate(r.session, &sequence));
  dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
  CHECK(dgpuModelGetInfo(r.model, &info));

  std::vector<int32_t> prompt(512);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7919 % 151936);
  const double f32_peak = dgpu::cpu::probe_f32_flops(static_cast<int>(threads));
  const double dot_peak = dgpu::cpu::probe_bf16_dot_flops(static_cast<int>(threads));
  const double peak = dtype == DGPU_DTYPE_F32 ? f32_peak : std::max(f32_peak, dot_peak);
  std::vector<double> prefill;
  for (int i = 0; i < 4; ++i) {
    CHECK(dgpuSequenceTruncate(sequence, 0));
    const auto start = Clock::now();
    submit(r, sequence, prompt);
    CHECK(dgpuStreamSynchronize(r.stream, DGPU_TIMEOUT_INFINITE));
    if (i) prefill.push_back(seconds_since(start));
  }
  // Products of the layers for each token, one row of logits, causal attention.
  const double layers = 28, per_layer = 1024.0 * (2048 + 1024 + 1024) + 2048.0 * 1024 + 3.0 * 1024 * 3072;
  const double flops = 2 * 512 * layers * per_layer + 2.0 * 1024 * 151936 + layers * 16 * 4 * 128 * (512.0 * 513 / 2);
  std::printf(
      "prefill   512 tokens %.3f s = %.0f tokens/s, %.1f Gflop/s; peak f32 FMA %.1f, bf16 dot %.1f; ratio %.2f\n",
      median(prefill), 512 / median(prefill), flops / median(prefill) / 1e9, f32_peak / 1e9, dot_peak / 1e9,
      flops / median(prefill) / peak);

  const double read = dgpu::cpu::probe_read_bytes(static_cast<int>(threads));
  std::vector<double> decode;
  for (int i = 0; i < 24; ++i) {
    const auto start = Clock::now();
    submit(r, sequence, {static_cast<int32_t>(i * 131 % 151936)});
    CHECK(dgpuStreamSynchronize(r.stream, DGPU_TIMEOUT_INFINITE));
    if (i >= 4) decode.push_back(seconds_since(start));
  }
  const double read_again = dgpu::cpu::probe_read_bytes(static_cast<int>(threads));
  const double bandwidth = std::max(read, read_again);
  const double width = dtype == DGPU_DTYPE_F32 ? 4 : 2;
  const double token_bytes =
      bytes + layers * 2 * 8 * 128 * 536 * width;  // every weight once (the tied table as the head), and the cache
  std::printf("decode    %.2f ms = %.1f tokens/s, %.2f GB/s; read bandwidth %.2f GB/s; ratio %.2f\n",
              median(decode) * 1e3, 1 / median(decode), token_bytes / median(decode) / 1e9, bandwidth / 1e9,
              token_bytes / median(decode) / bandwidth);
  dgpuShutdown();
  return 0;
}
