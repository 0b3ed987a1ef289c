// A model with the shapes of Qwen3-0.6B: loading against reading the file, decode against memory bandwidth, prefill
// against the measured peak.   model_bench [DIR] [--dtype f32|bf16] [--mapped] [load|prefill|decode]
// DIR is made by synthesis if it is not there (1.2 GB; default /tmp/dgpu-bench-qwen3-0.6b).
#include <dgpu.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

constexpr uint64_t kHuge = 2u << 20, kPiece = 8u << 20;

// Memory of the process, as huge pages where the system gives them; nothing is written.
class Memory {
 public:
  Memory(uint64_t size, bool huge) : size_(size + kHuge) {
    map_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map_ == MAP_FAILED) std::abort();
    begin_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(map_) + kHuge - 1) / kHuge * kHuge);
    madvise(begin_, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~Memory() { munmap(map_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* begin() const { return begin_; }

 private:
  uint64_t size_;
  char *map_, *begin_;
};

// Seconds to read the whole file with `threads` threads, in pieces from a common counter: into `memory`, or, if it is
// null, into one buffer per thread that is used again and again.
double read_file(const fs::path& file, unsigned threads, char* memory) {
  const auto size = fs::file_size(file);
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<std::vector<char>> buffers(memory ? 0 : threads, std::vector<char>(kPiece));
  std::atomic<uint64_t> next{0};
  const auto start = Clock::now();
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      for (uint64_t at; (at = next.fetch_add(kPiece)) < size;) {
        char* to = memory ? memory + at : buffers[t].data();
        if (pread(fd, to, std::min(kPiece, size - at), static_cast<off_t>(at)) < 0) std::abort();
      }
    });
  for (auto& t : pool) t.join();
  const double s = seconds_since(start);
  close(fd);
  return s;
}

struct Run {
  dgpuDevice_t device = nullptr;
  dgpuContext_t context = nullptr;
  dgpuStream_t stream = nullptr;
  dgpuModel_t model = nullptr;
  dgpuSession_t session = nullptr;
  dgpuDtype_t dtype = DGPU_DTYPE_BF16;
  unsigned threads = 1;

  void open() {
    CHECK(dgpuContextCreate(&device, 1, nullptr, &context));
    CHECK(dgpuStreamCreate(context, device, nullptr, &stream));
  }
  void close() {
    if (session) dgpuSessionDestroy(session);
    if (model) dgpuModelDestroy(model);
    dgpuStreamDestroy(stream);
    dgpuContextDestroy(context);
    session = nullptr;
    model = nullptr;
  }
  double load(const fs::path& dir, uint32_t flags) {
    if (model) dgpuModelDestroy(model);
    const auto start = Clock::now();
    CHECK(dgpuModelOpen(dir.c_str(), nullptr, &model));
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    o.dtype = dtype;
    o.flags = flags;
    CHECK(dgpuModelLoad(model, context, device, &o));
    return seconds_since(start);
  }
};

// Reading as a loader must, the bytes in memory of the process afterwards, takes new memory unless there is old one;
// the peers say what each costs.
void bench_load(Run& r, const fs::path& dir) {
  const auto file = dir / "model.safetensors";
  const uint64_t size = fs::file_size(file);
  constexpr int kPeers = 4, kWays = 3;
  const char* peers[kPeers] = {"8 MiB per thread", "written memory", "new huge pages", "new memory"};
  const char* ways[kWays] = {"into new memory", "into the pool's memory", "mapped"};
  std::vector<double> peer[kPeers], way[kWays];
  Memory written(size, true);
  std::memset(written.begin(), 1, size);
  read_file(file, r.threads, nullptr);  // fills the page cache
  for (int i = 0; i < 5; ++i) {
    peer[0].push_back(read_file(file, r.threads, nullptr));
    peer[1].push_back(read_file(file, r.threads, written.begin()));
    for (int huge = 1; huge >= 0; --huge) {
      Memory fresh(size, huge);
      peer[3 - huge].push_back(read_file(file, r.threads, fresh.begin()));
    }
    r.open();
    for (int w = 0; w < kWays; ++w) way[w].push_back(r.load(dir, w == 2 ? DGPU_LOAD_MAPPED : 0));
    r.close();
  }
  const double bytes = static_cast<double>(size) / 1e9;
  std::printf("file %.2f GB, %u threads, page cache warm; medians of 5\nreading ", bytes, r.threads);
  for (int p = 0; p < kPeers; ++p) std::printf("  %s %.2f GB/s", peers[p], bytes / median(peer[p]));
  for (int w = 0; w < kWays; ++w) {
    std::printf("\nloading %-23s %.2f GB/s; ratios", ways[w], bytes / median(way[w]));
    for (auto& p : peer) std::printf(" %.2f", median(p) / median(way[w]));
  }
  std::printf("\n");
}

constexpr double kLayers = 28;

void submit(Run& r, dgpuSequence_t sequence, const std::vector<int32_t>& tokens) {
  const uint32_t offsets[2] = {0, static_cast<uint32_t>(tokens.size())};
  dgpuStep step = DGPU_STEP_INIT;
  step.tokens = tokens.data();
  step.token_count = offsets[1];
  step.offsets = offsets;
  step.sequences = &sequence;
  step.sequence_count = 1;
  CHECK(dgpuSessionStep(r.session, r.stream, &step));
  CHECK(dgpuStreamSynchronize(r.stream, DGPU_TIMEOUT_INFINITE));
}

void prefill(Run& r, dgpuSequence_t sequence) {
  std::vector<int32_t> prompt(512);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7919 % 151936);
  CHECK(dgpuSequenceTruncate(sequence, 0));
  submit(r, sequence, prompt);
}

void bench_prefill(Run& r, dgpuSequence_t sequence) {
  const double f32_peak = dgpu::cpu::probe_f32_flops(static_cast<int>(r.threads));
  const double dot_peak = dgpu::cpu::probe_bf16_dot_flops(static_cast<int>(r.threads));
  const double peak = r.dtype == DGPU_DTYPE_F32 ? f32_peak : std::max(f32_peak, dot_peak);
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    const auto start = Clock::now();
    prefill(r, sequence);
    if (i) times.push_back(seconds_since(start));
  }
  // Products of the layers for each token, one row of logits, causal attention.
  const double per_layer = 1024.0 * (2048 + 1024 + 1024) + 2048.0 * 1024 + 3.0 * 1024 * 3072;
  const double flops = 2 * 512 * kLayers * per_layer + 2.0 * 1024 * 151936 + kLayers * 16 * 4 * 128 * (512.0 * 513 / 2);
  const double t = median(times);
  std::printf(
      "prefill   512 tokens %.3f s = %.0f tokens/s, %.1f Gflop/s; peak f32 FMA %.1f, bf16 dot %.1f; ratio %.2f\n", t,
      512 / t, flops / t / 1e9, f32_peak / 1e9, dot_peak / 1e9, flops / t / peak);
}

// The bandwidth of the memory moves with the machine's other guests: it is probed between the tokens, and each eight
// tokens are judged by the probes before and after them.
void bench_decode(Run& r, dgpuSequence_t sequence, double file_bytes) {
  constexpr int kRounds = 9, kTokens = 8;
  const double width = r.dtype == DGPU_DTYPE_F32 ? 4 : 2;
  prefill(r, sequence);
  for (int i = 0; i < 4; ++i) submit(r, sequence, {i});
  std::vector<double> times, ratios, probes{dgpu::cpu::probe_read_bytes(static_cast<int>(r.threads))};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> tokens;
    for (int i = 0; i < kTokens; ++i) {
      const auto start = Clock::now();
      submit(r, sequence, {static_cast<int32_t>((round * kTokens + i) * 131 % 151936)});
      tokens.push_back(seconds_since(start));
    }
    probes.push_back(dgpu::cpu::probe_read_bytes(static_cast<int>(r.threads)));
    // Every weight once (the tied table as the head), and the cache.
    const double bytes = file_bytes + kLayers * 2 * 8 * 128 * (516 + kTokens * (round + 0.5)) * width;
    const double bandwidth = std::max(probes[probes.size() - 1], probes[probes.size() - 2]);
    times.insert(times.end(), tokens.begin(), tokens.end());
    ratios.push_back(bytes / median(tokens) / bandwidth);
  }
  const double bytes = file_bytes + kLayers * 2 * 8 * 128 * 552 * width;
  std::printf(
      "decode    %.2f ms = %.1f tokens/s, %.2f GB/s; reading %.2f GB/s (%.2f to %.2f); ratio %.2f (%.2f to %.2f)\n",
      median(times) * 1e3, 1 / median(times), bytes / median(times) / 1e9, median(probes) / 1e9,
      *std::min_element(probes.begin(), probes.end()) / 1e9, *std::max_element(probes.begin(), probes.end()) / 1e9,
      median(ratios), *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
}

}  // namespace

int main(int argc, char** argv) {
  fs::path dir = "/tmp/dgpu-bench-qwen3-0.6b";
  Run r;
  std::string what = "all";
  uint32_t flags = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--dtype" && i + 1 < argc)
      r.dtype = std::string(argv[++i]) == "f32" ? DGPU_DTYPE_F32 : DGPU_DTYPE_BF16;
    else if (arg == "--mapped")
      flags = DGPU_LOAD_MAPPED;
    else if (arg == "load" || arg == "prefill" || arg == "decode")
      what = arg;
    else
      dir = arg;
  }
  r.threads = std::max(1u, std::thread::hardware_concurrency());
  CHECK(dgpuInit(nullptr));
  synthesize(dir);
  CHECK(dgpuDeviceGet(0, &r.device));
  if (what == "all" || what == "load") bench_load(r, dir);
  if (what != "load") {
    r.open();
    r.load(dir, flags);
    dgpuSessionOptions so = DGPU_SESSION_OPTIONS_INIT;
    so.max_sequences = 1;
    so.max_tokens = 1024;
    so.max_batch_tokens = 512;
    CHECK(dgpuSessionCreate(r.model, &so, &r.session));
    dgpuSequence_t sequence = nullptr;
    CHECK(dgpuSequenceCreate(r.session, &sequence));
    if (what != "decode") bench_prefill(r, sequence);
    if (what != "prefill") bench_decode(r, sequence, static_cast<double>(fs::file_size(dir / "model.safetensors")));
  }
  dgpuShutdown();
  return 0;
}
