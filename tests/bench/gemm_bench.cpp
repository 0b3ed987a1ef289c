// Matrix products against oneDNN in the same run: bias and GELU fused, two threads, medians of interleaved samples.
// Usage: gemm_bench [all|f32|bf16|decode] [gelu_tanh|gelu_erf]. The threads of both sides are pinned: on a busy machine
// they may otherwise land on one core.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/probe.h"
#include "gemm_runner.h"

namespace {

using namespace dgpu::cpu;
using namespace dgpu::cpu::gemm;
using Clock = std::chrono::steady_clock;

// As device memory is: large pages where the system has them. A vector's data lies 16 bytes behind a line of a small
// one.
template <class T>
struct DeviceMemory : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = DeviceMemory<U>;
  };
  static constexpr size_t kPage = size_t{2} << 20;
  T* allocate(size_t n) {
    const size_t size = (n * sizeof(T) + kPage - 1) / kPage * kPage;
    void* p = ::operator new(size, std::align_val_t(kPage));
    madvise(p, size, MADV_HUGEPAGE);
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(kPage)); }
};
using Bytes = std::vector<char, DeviceMemory<char>>;

constexpr int kThreads = 2;
constexpr size_t kColdBytes = size_t{192} << 20;  // weights of small-m cases rotate through this much memory

struct Shape {
  int64_t m, k, n;
};

Bytes random_bytes(Type type, int64_t elements) {
  Bytes bytes(static_cast<size_t>(elements * size_of(type)));
  uint32_t state = 1;
  for (int64_t i = 0; i < elements; ++i) {
    state = state * 1664525u + 1013904223u;
    const float f = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t high = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&bytes[static_cast<size_t>(i * size_of(type))],
                type == Type::f32 ? static_cast<const void*>(&f) : &high, static_cast<size_t>(size_of(type)));
  }
  return bytes;
}

struct Contender {
  std::string name;
  std::function<void(int)> run;  // argument: which copy of the weights
  std::vector<double> seconds;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Interleaved samples. Between contenders the other's threads get time to fall asleep.
void measure(std::vector<Contender>& all, int copies, double budget_seconds) {
  int turn = 0;
  for (auto& c : all) c.run(turn++ % copies);
  constexpr int kSamples = 7;
  for (int s = 0; s < kSamples; ++s) {
    for (auto& c : all) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      c.run(turn++ % copies);
      const auto start = Clock::now();
      int runs = 0;
      double elapsed = 0;
      do {
        c.run(turn++ % copies);
        ++runs;
        elapsed = std::chrono::duration<double>(Clock::now() - start).count();
      } while (elapsed < budget_seconds / kSamples);
      c.seconds.push_back(elapsed / runs);
    }
  }
}

// ---- The peer ----------------------------------------------------------------------------------------------------

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

std::function<void(int)> onednn(OneDnn& d, const Shape& s, Type type, bool weights_nk, bool any, Activation activation,
                                const Bytes& a, std::vector<Bytes>& b, const Bytes& bias, Bytes& out,
                                std::string* impl) {
  using dnnl::memory;
  const auto dt = type == Type::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  const memory::desc plain({s.k, s.n}, dt, weights_nk ? memory::format_tag::ba : memory::format_tag::ab);
  const memory::desc src({s.m, s.k}, dt, memory::format_tag::ab), dst({s.m, s.n}, dt, memory::format_tag::ab);
  const memory::desc bias_md({1, s.n}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc weights = any ? memory::desc({s.k, s.n}, dt, memory::format_tag::any) : plain;
  dnnl::post_ops ops;
  ops.append_eltwise(
      1.0f, activation == Activation::gelu_erf ? dnnl::algorithm::eltwise_gelu_erf : dnnl::algorithm::eltwise_gelu_tanh,
      0, 0);
  dnnl::primitive_attr attr;
  attr.set_post_ops(ops);
  const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(src, weights, bias_md, dst), attr, d.engine);
  *impl = pd.impl_info_str();
  std::vector<memory> w;
  const auto own_bytes = std::make_shared<std::vector<Bytes>>();
  for (auto& copy : b) {
    memory given(plain, d.engine, copy.data());
    if (any && pd.weights_desc() != plain) {
      own_bytes->emplace_back(pd.weights_desc().get_size());
      memory own(pd.weights_desc(), d.engine, own_bytes->back().data());
      dnnl::reorder(given, own).execute(d.stream, given, own);
      d.stream.wait();
      w.push_back(own);
    } else {
      w.push_back(given);
    }
  }
  const memory am(src, d.engine, const_cast<char*>(a.data())), om(dst, d.engine, out.data());
  const memory bm(bias_md, d.engine, const_cast<char*>(bias.data()));
  const dnnl::matmul primitive(pd);
  return [&d, primitive, am, om, bm, w, own_bytes](int copy) {
    primitive.execute(d.stream, {{DNNL_ARG_SRC, am},
                                 {DNNL_ARG_WEIGHTS, w[static_cast<size_t>(copy)]},
                                 {DNNL_ARG_BIAS, bm},
                                 {DNNL_ARG_DST, om}});
    d.stream.wait();
  };
}

// ---- Cases ----

Problem problem(const Shape& s, Type a, Type b, Type out, bool weights_nk, Activation activation) {
  Problem p;
  p.m = s.m;
  p.n = s.n;
  p.k = s.k;
  p.a = {a, s.k, 1, {}};
  p.b = {b, weights_nk ? s.k : 1, weights_nk ? 1 : s.n, {}};
  p.out = {out, s.n, 1, {}};
  p.has_bias = true;
  p.activation = activation;
  return p;
}

struct Machine {
  double f32_flops = 0, bf16_flops = 0, read_bytes = 0;
};

void compare(OneDnn& d, ChunkRunner& runner, const Machine& machine, const Shape& s, Type type, bool nk,
             Activation act) {
  const Bytes a = random_bytes(type, s.m * s.k), bias = random_bytes(Type::f32, s.n);
  const size_t weight_bytes = static_cast<size_t>(s.k * s.n * size_of(type));
  const int copies = s.m > 64 ? 1 : static_cast<int>(std::clamp<size_t>(kColdBytes / weight_bytes, 1, 8));
  std::vector<Bytes> b(static_cast<size_t>(copies), random_bytes(type, s.k * s.n));
  Bytes out(static_cast<size_t>(s.m * s.n * 4));
  std::vector<Contender> all;
  std::string impl[2];
  const Plan x = plan(problem(s, type, type, type, nk, act));
  all.push_back(
      {"dgpu",
       [&](int c) {
         run_on(runner, x, {a.data(), b[static_cast<size_t>(c)].data(), bias.data(), nullptr, nullptr, out.data()});
       },
       {}});
  all.push_back({"plain", onednn(d, s, type, nk, false, act, a, b, bias, out, &impl[0]), {}});
  all.push_back({"any", onednn(d, s, type, nk, true, act, a, b, bias, out, &impl[1]), {}});
  measure(all, copies, 0.35);
  const double t = median(all[0].seconds), flops = 2.0 * static_cast<double>(s.m * s.n * s.k) / t;
  const double peak = type == Type::f32 ? machine.f32_flops : std::max(machine.bf16_flops, machine.f32_flops);
  std::printf(
      "%5ldx%5ldx%5ld %-4s %-5s %-15s %8.3f ms %6.1f GF %3.0f%% peak %5.1f GB/s %3.0f%% read | plain %.2f (%s) any "
      "%.2f (%s)\n",
      s.m, s.k, s.n, type == Type::f32 ? "f32" : "bf16", nk ? "[N,K]" : "[K,N]", x.algorithm(), t * 1e3, flops / 1e9,
      100 * flops / peak, static_cast<double>(weight_bytes) / t / 1e9,
      100 * static_cast<double>(weight_bytes) / t / machine.read_bytes, median(all[1].seconds) / t, impl[0].c_str(),
      median(all[2].seconds) / t, impl[1].c_str());
  std::fflush(stdout);
}

// Rows of a decode step: weights rotate through memory; bf16 weights under f32 and bf16 rows, both orders.
void decode(ChunkRunner& runner, const Machine& machine) {
  for (int64_t m : {1, 2, 4, 8}) {
    for (Type at : {Type::f32, Type::bf16}) {
      for (Type bt : {Type::f32, Type::bf16}) {
        for (bool nk : {true, false}) {
          if (at == Type::bf16 && bt == Type::f32) continue;
          const Shape s{m, 4096, 4096};
          const size_t weight_bytes = static_cast<size_t>(s.k * s.n * size_of(bt));
          const Bytes a = random_bytes(at, s.m * s.k), bias = random_bytes(Type::f32, s.n);
          std::vector<Bytes> b(kColdBytes / weight_bytes, random_bytes(bt, s.k * s.n));
          Bytes out(static_cast<size_t>(s.m * s.n * 4));
          const Plan x = plan(problem(s, at, bt, Type::f32, nk, Activation::none));
          std::vector<Contender> all;
          all.push_back({"dgpu",
                         [&](int c) {
                           run_on(
                               runner, x,
                               {a.data(), b[static_cast<size_t>(c)].data(), bias.data(), nullptr, nullptr, out.data()});
                         },
                         {}});
          measure(all, static_cast<int>(b.size()), 0.2);
          const double rate = static_cast<double>(weight_bytes) / median(all[0].seconds);
          std::printf("decode m%ld x %s w %s %s %-15s %6.1f GB/s %3.0f%% of read\n", m,
                      at == Type::f32 ? "f32" : "bf16", bt == Type::f32 ? "f32" : "bf16", nk ? "[N,K]" : "[K,N]",
                      x.algorithm(), rate / 1e9, 100 * rate / machine.read_bytes);
          std::fflush(stdout);
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!std::getenv("OMP_PROC_BIND")) {  // oneDNN's OpenMP reads its settings before main
    setenv("OMP_PROC_BIND", "true", 1);
    setenv("OMP_NUM_THREADS", std::to_string(kThreads).c_str(), 1);
    execv("/proc/self/exe", argv);
    std::perror("gemm_bench: cannot start itself again with OMP_PROC_BIND=true");
    return 1;
  }
  const std::string what = argc > 1 ? argv[1] : "all";
  const Activation act = argc > 2 && std::string(argv[2]) == "gelu_erf" ? Activation::gelu_erf : Activation::gelu_tanh;
  Machine machine;
  // OpenMP may have pinned this thread: threads made from it would stay on its core.
  std::thread([&machine] {
    cpu_set_t all;
    std::memset(&all, 0xff, sizeof(all));
    pthread_setaffinity_np(pthread_self(), sizeof(all), &all);
    machine = {probe_f32_flops(kThreads), probe_bf16_dot_flops(kThreads), probe_read_bytes(kThreads)};
  }).join();
  std::printf("%d threads: f32 FMA peak %.0f GF, bf16 dot peak %.0f GF, read %.1f GB/s; ratios: oneDNN time / ours\n",
              kThreads, machine.f32_flops / 1e9, machine.bf16_flops / 1e9, machine.read_bytes / 1e9);
  ChunkRunner runner(kThreads);
  runner.pin();
  OneDnn peer;
  const Shape shapes[] = {{1024, 1024, 1024}, {512, 4096, 1024}, {512, 1024, 4096}, {16, 4096, 4096}, {1, 4096, 4096}};
  for (Type type : {Type::f32, Type::bf16}) {
    if (what != "all" && what != (type == Type::f32 ? "f32" : "bf16")) continue;
    for (const Shape& s : shapes) {
      for (bool nk : {false, true}) compare(peer, runner, machine, s, type, nk, act);
    }
  }
  if (what == "all" || what == "decode") decode(runner, machine);
  return 0;
}
