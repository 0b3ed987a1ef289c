#include "model/day0/compare.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "graph/roundings.h"
#include "model/day0/flips.h"
#include "model/day0/metrics.h"
#include "model/open_model.h"

namespace dgpu::model {
namespace {

// Bound on f32 runs: the published f32 implementation differs from its own f64 run by up to 3e-6.
constexpr double kF32Bound = 1e-5;
// A token whose norm is far below the others' is judged against a tenth of their root mean square.
constexpr double kNormFloor = 0.1;

// Relative L2 error of rounding to the type once: half an ulp, uniform, averaged over mantissas. 1.66e-3 for bf16; f16
// has three more bits.
double one_rounding(dgpuDtype_t dtype) { return dtype == DGPU_DTYPE_BF16 ? 1.66e-3 : 1.66e-3 / 8; }

struct Judge {
  dgpuDtype_t compute;
  const Capture& ours;
  std::vector<uint32_t> roundings;
  std::vector<Flip> flips;

  // n independent roundings grow with sqrt(n); four times that covers single tokens.
  double bound(const HostValue& v) const {
    if (compute == DGPU_DTYPE_F32) return kF32Bound;
    return 4 * one_rounding(compute) * std::sqrt(std::max<double>(1, roundings[v.value]));
  }
};

Status read_baseline(SafetensorsFile& file, const TensorInfo& info, std::vector<float>& out) {
  std::vector<uint8_t> bytes(info.bytes);
  DGPU_TRY(file.read(info, 0, info.bytes, bytes.data()));
  const uint8_t* const p = bytes.data();
  out.resize(static_cast<size_t>(info.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (info.dtype == DGPU_DTYPE_F32) {
      std::memcpy(&out[i], p + i * 4, 4);
    } else if (info.dtype == DGPU_DTYPE_F64) {
      double d;
      std::memcpy(&d, p + i * 8, 8);
      out[i] = static_cast<float>(d);
    } else {
      uint16_t h;
      std::memcpy(&h, p + i * 2, 2);
      out[i] = info.dtype == DGPU_DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

Status read_tokens(SafetensorsFile& file, std::vector<int32_t>& tokens) {
  const auto it = file.tensors().find("input_ids");
  if (it == file.tensors().end() || it->second.dtype != DGPU_DTYPE_I64)
    return fail(DGPU_STATUS_PARSE_ERROR, file.path(), "{}: no I64 tensor 'input_ids'; is it a baseline?", file.path());
  const auto shape = squeeze(it->second.shape);
  if (shape.size() > 1 || it->second.elements() == 0)
    return fail(DGPU_STATUS_INVALID_SHAPE, file.path(), "{}: 'input_ids' must hold one sequence", file.path());
  std::vector<int64_t> ids(static_cast<size_t>(it->second.elements()));
  DGPU_TRY(file.read(it->second, 0, it->second.bytes, ids.data()));
  for (const auto id : ids) tokens.push_back(static_cast<int32_t>(std::clamp<int64_t>(id, -1, INT32_MAX)));
  return DGPU_STATUS_SUCCESS;
}

struct Agreement {
  int64_t positions = 0, agree = 0;
};
Agreement argmax_agreement(const std::vector<float>& a, const std::vector<float>& b, int64_t tokens) {
  Agreement r{tokens, 0};
  const int64_t width = tokens ? static_cast<int64_t>(b.size()) / tokens : 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = [&](const std::vector<float>& v) {
      return std::max_element(v.begin() + t * width, v.begin() + (t + 1) * width) - v.begin();
    };
    r.agree += at(a) == at(b);
  }
  return r;
}

}  // namespace

Status compare(Ref<OpenModel> model, dgpuDtype_t compute, const std::string& baseline_file, Document& out) {
  std::shared_ptr<SafetensorsFile> file;
  DGPU_TRY(SafetensorsFile::open(baseline_file, file));
  std::vector<int32_t> tokens;
  DGPU_TRY(read_tokens(*file, tokens));
  const auto count = static_cast<int64_t>(tokens.size());
  Capture ours, exact;
  const auto& nodes = model->program().nodes;
  const bool routed = compute != DGPU_DTYPE_F32 && std::any_of(nodes.begin(), nodes.end(), graph::chooses_experts);
  if (routed) DGPU_TRY(capture(model, DGPU_DTYPE_F32, tokens, nullptr, exact));
  const auto routes = routes_of(exact);
  DGPU_TRY(capture(model, compute, tokens, routed ? &routes : nullptr, ours));
  Judge judge{compute, ours, graph::count_roundings(ours.program), {}};
  if (routed) judge.flips = find_flips(ours, exact, one_rounding(compute));

  out.json = new_document("compare");
  out.json["family"] = ours.program.family;
  out.json["dtype"] = dtype_name(compute);
  out.json["tokens"] = count;
  JsonDoc rows = JsonDoc::array(), findings = JsonDoc::array(), argmax;
  std::string first_bad;
  // Execution order first, then what nothing of ours matches.
  std::vector<std::string> names;
  for (const auto& name : ours.order)
    if (file->tensors().count(name)) names.push_back(name);
  for (const auto& [name, info] : file->tensors()) {
    if (name == "input_ids" || name == "prompt_ids" || name == "generated_ids" || ours.taps.count(name)) continue;
    findings.push_back({{"kind", "unmatched"}, {"tensor", name}, {"text", "no value of ours has this name"}});
  }
  for (const auto& name : names) {
    const auto& info = file->tensors().at(name);
    const auto& mine = ours.taps.at(name);
    if (dtype_bits(info.dtype) < 16 || !dtype_is_float(info.dtype)) {
      findings.push_back({{"kind", "dtype"},
                          {"tensor", name},
                          {"text", fmt::format("is {}, expected f32, f64, bf16 or f16", dtype_name(info.dtype))}});
      if (first_bad.empty()) first_bad = name;
      continue;
    }
    if (squeeze(info.shape) != squeeze(mine.shape)) {
      findings.push_back({{"kind", "shape"}, {"tensor", name}, {"expected", info.shape}, {"actual", mine.shape}});
      if (first_bad.empty()) first_bad = name;
      continue;
    }
    std::vector<float> truth;
    DGPU_TRY(read_baseline(*file, info, truth));
    const auto d = difference(mine.data, truth, count, kNormFloor);
    const double bound = judge.bound(mine);
    const double judged = compute == DGPU_DTYPE_F32 ? d.rel_l2 : d.worst_token_rel_l2;
    const bool good = d.finite && judged <= bound;
    const auto known = [](bool is, auto value) { return is ? JsonDoc(value) : JsonDoc(); };
    JsonDoc row = {{"tensor", name},
                   {"rel_l2", d.rel_l2},
                   {"max_abs", known(d.comparable, d.max_abs)},
                   {"cosine", known(d.comparable, d.cosine)}};
    row["worst_token"] = known(d.worst_token >= 0, d.worst_token);
    row["worst_token_rel_l2"] = d.worst_token_rel_l2;
    row["bound"] = bound;
    if (compute != DGPU_DTYPE_F32) row["roundings"] = judge.roundings[mine.value];
    row["verdict"] = good ? "good" : "negative";
    rows.push_back(row);
    if (!good) {
      findings.push_back({{"kind", d.finite ? "tolerance" : "not finite"}, {"tensor", name}});
      if (d.finite && !d.comparable) findings.back()["text"] = "the baseline holds NaN or infinity";
      if (first_bad.empty()) first_bad = name;
    }
    if (name == "logits") {
      const auto a = argmax_agreement(mine.data, truth, count);
      argmax = {{"positions", a.positions}, {"agree", a.agree}};
      if (compute == DGPU_DTYPE_F32 && a.agree != a.positions)
        findings.push_back({{"kind", "argmax"},
                            {"tensor", name},
                            {"text", fmt::format("{} of {} positions differ", a.positions - a.agree, a.positions)}});
    }
  }
  JsonDoc flips = JsonDoc::array();
  int64_t excused = 0;
  for (const auto& f : judge.flips) {
    flips.push_back({{"node", f.node},
                     {"token", f.token},
                     {"f32_margin", f.margin},
                     {"score_error", f.error},
                     {"excused", f.excused}});
    excused += f.excused;
    if (!f.excused)
      findings.push_back({{"kind", "routing"},
                          {"tensor", f.node},
                          {"token", f.token},
                          {"text", "experts differ from the f32 run and rounding does not explain it"}});
  }
  out.good = findings.empty() && !rows.empty();
  out.json["tensors"] = rows;
  out.json["argmax"] = argmax;
  if (compute != DGPU_DTYPE_F32) {
    out.json["flips"] = {{"counted", judge.flips.size()}, {"excused", excused}};
    if (routed) out.json["experts"] = "as the f32 run chose them";
    if (!flips.empty()) out.json["flipped_tokens"] = flips;
  }
  out.json["first_out_of_tolerance"] = first_bad.empty() ? JsonDoc() : JsonDoc(first_bad);
  out.json["findings"] = findings;
  finish(out);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
