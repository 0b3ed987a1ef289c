// Runs a fuzz target without libFuzzer: the seeds, then mutations of them, the same ones in every run. For compilers
// without libFuzzer and for the sanitizer builds of the test run.
//   TARGET [ITERATIONS] SEED-FILE...
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

uint64_t g_state = 0x9e3779b97f4a7c15ull;
uint64_t next() {  // xorshift64* (Vigna 2014)
  g_state ^= g_state >> 12;
  g_state ^= g_state << 25;
  g_state ^= g_state >> 27;
  return g_state * 0x2545f4914f6cdd1dull;
}
size_t below(size_t n) { return n ? static_cast<size_t>(next() % n) : 0; }

const std::vector<std::string> kWords = {
    "{",       "}", "[", "]",  "\"", ":",   ",",  "0",      "-1", "1e999",   "18446744073709551615", "null", "true",
    "\\u0000", "(", ")", "**", "//", "for", "if", "lambda", "..", "\xff\xfe"};

void mutate(std::string& s, const std::vector<std::string>& seeds) {
  for (size_t n = 1 + below(6); n > 0; --n) {
    const size_t at = below(s.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 1:
        s.insert(at, kWords[below(kWords.size())]);
        break;
      case 2:
        s.erase(at, below(16));
        break;
      case 3:
        s.insert(at, s.substr(below(s.size() + 1), below(64)));
        break;
      case 4:
        s.resize(at);
        break;
      default: {
        const auto& other = seeds[below(seeds.size())];
        s.replace(at, below(32), other, below(other.size() + 1), below(64));
      }
    }
    if (s.size() > (1u << 18)) s.resize(1u << 18);
  }
}

}  // namespace

int main(int argc, char** argv) {
  long iterations = 2000;
  std::vector<std::string> seeds;
  for (int i = 1; i < argc; ++i) {
    if (i == 1 && std::atol(argv[i]) > 0) {
      iterations = std::atol(argv[i]);
      continue;
    }
    std::ifstream in(argv[i], std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (seeds.empty()) seeds.emplace_back("{}");
  const auto run = [](const std::string& s) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  for (const auto& s : seeds) run(s);
  for (long i = 0; i < iterations; ++i) {
    std::string s = seeds[below(seeds.size())];
    mutate(s, seeds);
    run(s);
  }
  std::printf("%zu seeds and %ld mutations survived\n", seeds.size(), iterations);
  return 0;
}
