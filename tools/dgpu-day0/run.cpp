// dgpu-day0 run: prompts in, greedy or sampled tokens out.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>

#include "tool.h"

namespace day0 {
namespace {

// Ids of --stop: "eos" is the config's eos_token_id, else a list of ids.
std::vector<int32_t> stop_ids(const Options& options) {
  if (options.stop.empty()) return {};
  if (options.stop != "eos") return parse_tokens(options.stop, "--stop");
  std::ifstream in(std::filesystem::path(options.directory) / "config.json");
  const auto config = Json::parse(in, nullptr, false);
  if (!config.is_object()) throw Error(kBadInput, options.directory + "/config.json: not a JSON object");
  for (const auto& root : {config, config.value("text_config", Json::object())}) {
    const auto id = root.value("eos_token_id", Json());
    if (id.is_number_integer()) return {id.get<int32_t>()};
    if (id.is_array() && !id.empty()) return id.get<std::vector<int32_t>>();
  }
  throw Error(kUsage, "--stop eos: the config has no eos_token_id; name the ids, as in --stop 2,5");
}

uint64_t peak_host_bytes() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word)
    if (word == "VmHWM:") {
      uint64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return 0;
}

uint64_t limit_tokens(const Options& options, const std::vector<std::vector<int32_t>>& prompts,
                      uint64_t max_positions) {
  uint64_t longest = 0;
  for (const auto& p : prompts) longest = std::max<uint64_t>(longest, p.size());
  const uint64_t need = longest + options.max_new_tokens;
  if (options.max_tokens && options.max_tokens < need)
    throw Error(kUsage, "--max-tokens " + std::to_string(options.max_tokens) +
                            " is less than prompt and new tokens together, " + std::to_string(need));
  if (max_positions && need > max_positions + 1 && !options.quiet)
    std::cerr << "dgpu-day0: prompt and new tokens together are " << need << ", the config declares " << max_positions
              << " positions" << std::endl;
  return options.max_tokens ? options.max_tokens : need;
}

// Whether a logit of the last step is NaN or +infinity: the tokens mean nothing, then.
bool broken_logits(const Loaded& l, dgpuSession_t session) {
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  dgpuAddr_t address = 0;
  check(dgpuSessionGetLogits(session, &desc, &address));
  std::vector<float> logits(static_cast<size_t>(desc.shape[0] * desc.shape[1]));
  check(dgpuMemCopyToHostAsync(l.stream, logits.data(), address, logits.size() * sizeof(float)));
  check(dgpuStreamSynchronize(l.stream, DGPU_TIMEOUT_INFINITE));
  return std::any_of(logits.begin(), logits.end(), [](float v) { return std::isnan(v) || v == INFINITY; });
}

}  // namespace

int run_command(const Options& options) {
  const auto prompts = token_lists(options);
  const auto stops = stop_ids(options);
  Loaded l;
  load_model(options, l);
  dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
  check(dgpuModelGetInfo(l.model, &info));

  const auto count = static_cast<uint32_t>(prompts.size());
  uint64_t prompt_total = 0;
  for (const auto& p : prompts) prompt_total += p.size();
  dgpuSessionOptions so = DGPU_SESSION_OPTIONS_INIT;
  so.max_sequences = count;
  so.max_tokens = static_cast<uint32_t>(limit_tokens(options, prompts, info.max_positions));
  so.max_batch_tokens = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(prompt_total, count), 512));
  Owned<dgpuSession_t> session{dgpuSessionDestroy};
  check(dgpuSessionCreate(l.model, &so, session.out()));

  std::vector<dgpuSequence_t> sequences(count);
  for (auto& s : sequences) check(dgpuSequenceCreate(session, &s));
  std::vector<int32_t> flat;
  std::vector<uint32_t> offsets{0};
  for (const auto& p : prompts) {
    flat.insert(flat.end(), p.begin(), p.end());
    offsets.push_back(static_cast<uint32_t>(flat.size()));
  }
  dgpuSampling sampling = DGPU_SAMPLING_INIT;
  sampling.temperature = options.temperature;
  sampling.top_k = options.top_k;
  sampling.top_p = options.top_p;
  sampling.seed = options.seed;
  const std::vector<const dgpuSampling*> samplings(count, &sampling);
  std::vector<int32_t> tokens(static_cast<size_t>(count) * options.max_new_tokens);
  std::vector<uint32_t> counts(count);
  dgpuGenerate g = DGPU_GENERATE_INIT;
  g.sequences = sequences.data();
  g.prompt_tokens = flat.data();
  g.prompt_offsets = offsets.data();
  g.sampling = samplings.data();
  g.stop_ids = stops.data();
  g.stop_count = static_cast<uint32_t>(stops.size());
  g.out_tokens = tokens.data();
  g.out_counts = counts.data();
  g.sequence_count = count;
  g.max_new_tokens = options.max_new_tokens;
  g.chunk_tokens = options.chunk;
  const auto start = std::chrono::steady_clock::now();
  check(dgpuSessionGenerate(session, l.stream, &g));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  Json findings = Json::array();
  if (broken_logits(l, session))
    findings.push_back({{"kind", "not finite"},
                        {"tensor", "logits"},
                        {"text", "the last step gives NaN or infinity; `dgpu-day0 compare` finds the first tensor"}});
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  check(dgpuMemGetStats(l.context, l.device, &stats));
  const double first = static_cast<double>(g.out_first_token_ns) * 1e-9;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  Json doc = {{"schema", "dgpu.day0.run/1"},   {"verdict", findings.empty() ? "good" : "negative"},
              {"family", info.family},         {"dtype", options.dtype},
              {"prompt_tokens", prompt_total}, {"new_tokens", total}};
  Json lists = Json::array();
  for (uint32_t i = 0; i < count; ++i)
    lists.push_back(std::vector<int32_t>(tokens.begin() + i * options.max_new_tokens,
                                         tokens.begin() + i * options.max_new_tokens + counts[i]));
  doc["generated_ids"] = lists[0];
  if (count > 1) doc["sequences"] = lists;
  doc["load_seconds"] = l.load_seconds;
  doc["time_to_first_token_seconds"] = first;
  doc["prompt_tokens_per_second"] = first > 0 ? static_cast<double>(prompt_total) / first : 0.0;
  doc["tokens_per_second"] =
      seconds > first && total > count ? Json(static_cast<double>(total - count) / (seconds - first)) : Json();
  doc["peak_device_bytes"] = stats.peak_used_bytes;
  doc["peak_host_bytes"] = peak_host_bytes();
  doc["findings"] = findings;
  print(options, doc);
  for (auto s : sequences) dgpuSequenceDestroy(s);
  return findings.empty() ? kGood : kNegative;
}

}  // namespace day0
