// The memory-bound operators on two threads: bytes per second over tensors larger than the caches, as a part of what
// memcpy moves in the same run, and microseconds for one decode step and for 512 tokens of prefill.
// Usage: ops_bench [part of an operator's name]
#include <initializer_list>
#include <numeric>

#include "backends/cpu/kernels.h"
#include "kernel_runner.h"

namespace {

using namespace dgpu::cpu;
using namespace dgpu::cpu::bench;
constexpr int kThreads = 2;

const char* type_name(dgpuDtype_t t) { return t == DGPU_DTYPE_F32 ? "f32" : t == DGPU_DTYPE_BF16 ? "bf16" : "f16"; }

std::unique_ptr<Kernel> plan(Description& d, const char* op) {
  return d.plan([&](const dgpu::kit::OpView& view, std::string* reason) -> std::unique_ptr<Kernel> {
    for (uint32_t i = 0; const KernelEntry* e = kernel_entry(i); ++i)
      if (std::string(e->op) == op) return e->make(view, reason);
    return nullptr;
  });
}

// Bytes read and written per second by memcpy on all threads, each its part of 128 MiB.
double memcpy_bandwidth() {
  constexpr size_t kBytes = size_t{128} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  const auto part = [&](int t) {
    std::memcpy(to.data() + kBytes / kThreads * static_cast<size_t>(t),
                from.data() + kBytes / kThreads * static_cast<size_t>(t), kBytes / kThreads);
  };
  const double seconds = median_seconds([&] {
    std::thread other([&] { part(1); });
    part(0);
    other.join();
  });
  return 2 * static_cast<double>(kBytes) / seconds;
}

// Describes one operator for `rows` tokens; returns the bytes it reads and writes.
struct Subject {
  const char* label;
  const char* op;
  std::function<double(Description&, dgpuDtype_t, int64_t rows)> describe;
};

double size_of(dgpuDtype_t t) { return t == DGPU_DTYPE_F32 ? 4 : 2; }

// Binds ports of one type and shape; returns their bytes.
double bind(Description& d, dgpuDtype_t t, const std::vector<int64_t>& shape,
            std::initializer_list<const char*> names) {
  double bytes = 0;
  for (const char* name : names) {
    d.random(name, t, shape);
    double elements = 1;
    for (const int64_t n : shape) elements *= static_cast<double>(n);
    bytes += size_of(t) * elements;
  }
  return bytes;
}

void norm_attributes(Description& d) {
  d.number("eps", 1e-6);
  d.number("weight_offset", 0);
  d.text("cast", "before_weight");
}

// Rows of a vocabulary's size are fewer.
constexpr int64_t kVocabulary = 151936;
int64_t vocabulary_rows(int64_t rows) { return (rows + 255) / 256; }

const Subject kSubjects[] = {
    {"rms_norm H=1024", "rms_norm",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       norm_attributes(d);
       d.random("weight", t, {1024});
       return bind(d, t, {rows, 1024}, {"x", "out"});
     }},
    {"rms_norm + residual", "rms_norm",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       norm_attributes(d);
       d.random("weight", t, {1024});
       return bind(d, t, {rows, 1024}, {"x", "residual", "out", "sum"});
     }},
    {"softmax N=1024", "softmax",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.integer("axis", -1);
       return bind(d, t, {rows, 1024}, {"x", "out"});
     }},
    {"rope 16 heads of 128", "rope",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("pairing", "half");
       d.text("at", "head");
       d.text("angle", "f32");
       std::vector<int32_t> positions(static_cast<size_t>(rows));
       std::iota(positions.begin(), positions.end(), 0);
       d.integers_port("positions", {rows}, positions);
       d.random("freqs", DGPU_DTYPE_F32, {64});
       return bind(d, t, {rows, 16, 128}, {"x", "out"});
     }},
    {"glu silu I=3072", "glu",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("activation", "silu");
       d.text("layout", "separate");
       return bind(d, t, {rows, 3072}, {"x", "up", "out"});
     }},
    {"binary add", "binary",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("fn", "add");
       return bind(d, t, {rows, 1024}, {"a", "b", "out"});
     }},
    {"unary gelu_erf", "unary",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("fn", "gelu_erf");
       return bind(d, t, {rows, 1024}, {"x", "out"});
     }},
    {"cast to f32", "cast",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       return bind(d, t, {rows, 1024}, {"x"}) + bind(d, DGPU_DTYPE_F32, {rows, 1024}, {"out"});
     }},
    {"reduce sum_sq rows", "reduce",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("fn", "sum_sq");
       d.integers("axes", {1});
       d.random("out", DGPU_DTYPE_F32, {rows});
       return bind(d, t, {rows, 1024}, {"x"});
     }},
    {"reduce sum columns", "reduce",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.text("fn", "sum");
       d.integers("axes", {0});
       d.random("out", DGPU_DTYPE_F32, {1024});
       return bind(d, t, {rows, 1024}, {"x"});
     }},
    {"argmax V=151936", "argmax",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       rows = vocabulary_rows(rows);
       d.integers_port("out", {rows}, std::vector<int32_t>(static_cast<size_t>(rows)));
       return bind(d, t, {rows, kVocabulary}, {"x"});
     }},
    {"top_k 50 V=151936", "top_k",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       rows = vocabulary_rows(rows);
       d.integer("k", 50);
       d.random("values", t, {rows, 50});
       d.integers_port("indices", {rows, 50}, std::vector<int32_t>(static_cast<size_t>(rows) * 50));
       return bind(d, t, {rows, kVocabulary}, {"x"});
     }},
    {"softmax V=151936", "softmax",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       rows = vocabulary_rows(rows);
       d.integer("axis", -1);
       return bind(d, t, {rows, kVocabulary}, {"x", "out"});
     }},
    {"sample V=151936", "sample",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       rows = vocabulary_rows(rows);
       const auto n = static_cast<size_t>(rows);
       const float one = 1;
       int32_t bits;
       std::memcpy(&bits, &one, 4);
       d.integers_port("temperature", {rows}, std::vector<int32_t>(n, bits));
       d.integers_port("top_k", {rows}, std::vector<int32_t>(n, 0));
       d.integers_port("top_p", {rows}, std::vector<int32_t>(n, bits));
       d.wide_integers_port("seeds", {rows}, std::vector<int64_t>(n, 1));
       d.wide_integers_port("positions", {rows}, std::vector<int64_t>(n, 1));
       d.integers_port("out", {rows}, std::vector<int32_t>(n));
       return bind(d, t, {rows, kVocabulary}, {"logits"});
     }},
    {"moe_route 128 of 8", "moe_route",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       d.integer("top_k", 8);
       d.text("scoring", "softmax");
       d.text("order", "score_then_select");
       d.integer("renormalise", 1, DGPU_ATTR_BOOL);
       d.number("scale", 1);
       d.random("weights", DGPU_DTYPE_F32, {rows, 8});
       d.integers_port("indices", {rows, 8}, std::vector<int32_t>(static_cast<size_t>(rows) * 8));
       return bind(d, t, {rows, 128}, {"logits"});
     }},
    {"cache_append 8x128", "cache_append",
     [](Description& d, dgpuDtype_t t, int64_t rows) {
       std::vector<int32_t> slots(static_cast<size_t>(rows));
       std::iota(slots.begin(), slots.end(), 0);
       d.random("x", t, {rows, 8, 128});
       d.integers_port("slots", {rows}, slots);
       d.random("cache", t, {(rows + 15) / 16, 16, 8, 128});
       return 2 * size_of(t) * 1024 * static_cast<double>(rows);
     }},
};

double seconds_for(ChunkRunner& runner, const Subject& s, dgpuDtype_t type, int64_t rows, double* bytes) {
  Description d(s.op);
  *bytes = s.describe(d, type, rows);
  const auto kernel = plan(d, s.op);
  void* const* addresses = d.addresses();
  // Short kernels are timed in groups.
  const int group = rows <= 512 ? 20 : 1;
  return median_seconds([&] {
           for (int i = 0; i < group; ++i) run_on(runner, *kernel, addresses);
         }) /
         group;
}

}  // namespace

int main(int argc, char** argv) {
  ChunkRunner runner(kThreads);
  const double copy = memcpy_bandwidth();
  std::printf("memcpy on %d threads: %.1f GB/s read and written\n", kThreads, copy * 1e-9);
  std::printf("%-22s %-5s %12s %12s %10s %10s\n", "operator", "type", "1 row us", "512 rows us", "GB/s", "of memcpy");
  for (const Subject& s : kSubjects) {
    if (argc > 1 && std::string(s.label).find(argv[1]) == std::string::npos) continue;
    for (const dgpuDtype_t type : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16}) {
      double bytes = 0;
      const double one = seconds_for(runner, s, type, 1, &bytes), many = seconds_for(runner, s, type, 512, &bytes);
      const double large = seconds_for(runner, s, type, 16384, &bytes);
      std::printf("%-22s %-5s %12.2f %12.1f %10.1f %10.2f\n", s.label, type_name(type), one * 1e6, many * 1e6,
                  bytes / large * 1e-9, bytes / large / copy);
      std::fflush(stdout);
    }
  }
  return 0;
}
