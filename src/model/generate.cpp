#include "model/generate.h"

#include <algorithm>

#include "base/clock.h"
#include "model/device_io.h"

namespace dgpu::model {
namespace {

// The sampling operator over the session's logits, with its parameters in pinned memory.
class Sampler {
 public:
  explicit Sampler(Session& session) : session_(session), rows_(session.limits().max_logit_rows) {}
  ~Sampler() {
    for (const auto a : allocations_) device_free(session_.context(), a);
  }

  Status open() {
    auto& context = session_.context();
    const uint32_t device = session_.placement().device();
    ops::OpSpec spec;
    spec.name = "sample";
    const auto vocab = session_.program().vocab;
    spec.ports["logits"] = describe(session_.describe(session_.program().logits).dtype, {rows_, vocab});
    uint64_t bytes = 0;
    for (auto& p : parts_) {
      spec.ports[p.port] = describe(p.dtype, {rows_});
      p.offset = bytes;
      bytes += (static_cast<uint64_t>(rows_) * p.width + 255) / 256 * 256;
    }
    DGPU_TRY(ops::Plan::create(session_.placement().context_ref(), device, spec, plan_));
    DGPU_TRY(host_alloc(context, bytes, host_, reinterpret_cast<void*&>(host_pointer_)));
    allocations_.push_back(host_);
    DGPU_TRY(device_alloc(context, device, bytes, "sampling", block_));
    allocations_.push_back(block_);
    bytes_ = bytes;
    if (plan_->workspace_bytes()) {
      DGPU_TRY(device_alloc(context, device, plan_->workspace_bytes(), "sampling", workspace_));
      allocations_.push_back(workspace_);
    }
    return DGPU_STATUS_SUCCESS;
  }

  void set(uint32_t row, const dgpuSampling& s, uint64_t position) {
    put(0, row, static_cast<float>(s.temperature));
    put(1, row, static_cast<int32_t>(std::min<int64_t>(s.top_k, session_.program().vocab)));
    put(2, row, static_cast<float>(s.top_p));
    put(3, row, static_cast<int64_t>(s.seed));
    put(4, row, static_cast<int64_t>(position));
  }

  // Tokens of the first `rows` rows of the last step's logits. Blocks.
  Status sample(Stream& stream, uint32_t rows, std::vector<int32_t>& out) {
    dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t logits = 0;
    DGPU_TRY(session_.logits(desc, logits));
    DGPU_TRY(copy(stream, block_, host_, bytes_));
    std::vector<dgpuAddr_t> addresses;
    for (const auto& port : plan_->ports()) {
      const auto part =
          std::find_if(std::begin(parts_), std::end(parts_), [&](const Part& p) { return port == p.port; });
      addresses.push_back(part == std::end(parts_) ? logits : block_ + part->offset);
    }
    DGPU_TRY(execute(stream, *plan_, addresses, {rows}, workspace_));
    out.resize(rows);
    DGPU_TRY(copy_to_host(stream, out.data(), block_ + parts_[5].offset, uint64_t{rows} * 4));
    return stream.synchronize(DGPU_TIMEOUT_INFINITE);
  }

 private:
  struct Part {
    const char* port;
    dgpuDtype_t dtype;
    uint32_t width;
    uint64_t offset;
  };
  static dgpuTensorDesc describe(dgpuDtype_t dtype, std::initializer_list<int64_t> shape) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    d.dtype = dtype;
    for (const auto extent : shape) d.shape[d.rank++] = extent;
    int64_t stride = 1;
    for (uint32_t i = d.rank; i-- > 0; stride *= d.shape[i]) d.strides[i] = stride;
    d.symbols[0] = 1;
    return d;
  }
  template <typename T>
  void put(size_t part, uint32_t row, T value) {
    std::memcpy(host_pointer_ + parts_[part].offset + row * sizeof value, &value, sizeof value);
  }

  Session& session_;
  int64_t rows_;
  Part parts_[6] = {{"temperature", DGPU_DTYPE_F32, 4, 0}, {"top_k", DGPU_DTYPE_I32, 4, 0},
                    {"top_p", DGPU_DTYPE_F32, 4, 0},       {"seeds", DGPU_DTYPE_I64, 8, 0},
                    {"positions", DGPU_DTYPE_I64, 8, 0},   {"out", DGPU_DTYPE_I32, 4, 0}};
  Ref<ops::Plan> plan_;
  dgpuAddr_t host_ = 0, block_ = 0, workspace_ = 0;
  uint8_t* host_pointer_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<dgpuAddr_t> allocations_;
};

struct Progress {
  uint32_t fed = 0;  // prompt tokens submitted
  int32_t next = 0;  // last new token, to be fed
  bool has_next = false;
  bool done = false;
};

Status run(Session& session, Stream& stream, const std::vector<Sequence*>& sequences,
           const std::vector<dgpuSampling>& sampling, dgpuGenerate& r) {
  const uint64_t start = now_ns();
  const auto& limits = session.limits();
  if (sequences.size() > limits.max_logit_rows)
    return fail(DGPU_STATUS_CAPACITY, "sequence_count",
                "{} sequences need as many rows of logits, the session gives {}", sequences.size(),
                limits.max_logit_rows);
  Sampler sampler(session);
  DGPU_TRY(sampler.open());
  std::vector<Progress> state(sequences.size());
  std::fill_n(r.out_counts, r.sequence_count, 0u);
  r.out_first_token_ns = 0;
  std::vector<int32_t> tokens, sampled;
  std::vector<uint32_t> offsets, rows, owners;
  for (;;) {
    tokens.clear();
    rows.clear();
    owners.clear();
    offsets.assign(1, 0);
    Session::Step step;
    uint32_t room = limits.max_batch_tokens;
    const uint32_t live =
        static_cast<uint32_t>(std::count_if(state.begin(), state.end(), [](const auto& s) { return !s.done; }));
    if (live == 0) break;
    uint32_t waiting = live;  // each live sequence keeps room for one token
    for (uint32_t i = 0; i < state.size(); ++i) {
      auto& s = state[i];
      if (s.done) continue;
      --waiting;
      if (room == 0) continue;  // more live sequences than tokens of a step: they take turns
      const uint32_t prompt = r.prompt_offsets[i + 1] - r.prompt_offsets[i];
      if (s.has_next) {
        tokens.push_back(s.next);
        --room;
      } else {
        uint32_t n = std::min(prompt - s.fed, room > waiting ? room - waiting : 0);
        if (r.chunk_tokens) n = std::min(n, r.chunk_tokens);
        if (n == 0) continue;
        const int32_t* p = r.prompt_tokens + r.prompt_offsets[i] + s.fed;
        tokens.insert(tokens.end(), p, p + n);
        s.fed += n;
        room -= n;
      }
      step.sequences.push_back(sequences[i]);
      offsets.push_back(static_cast<uint32_t>(tokens.size()));
      if (s.fed == prompt) {
        sampler.set(static_cast<uint32_t>(rows.size()), sampling[i],
                    sequences[i]->length() + offsets.back() - offsets[offsets.size() - 2]);
        rows.push_back(offsets.back() - 1);
        owners.push_back(i);
      }
    }
    step.tokens = tokens.data();
    step.token_count = static_cast<uint32_t>(tokens.size());
    step.offsets = offsets.data();
    step.logit_rows = rows.data();
    step.logit_row_count = static_cast<uint32_t>(rows.size());
    DGPU_TRY(session.step(stream, step));
    if (rows.empty()) continue;
    DGPU_TRY(sampler.sample(stream, static_cast<uint32_t>(rows.size()), sampled));
    if (!r.out_first_token_ns) r.out_first_token_ns = now_ns() - start;
    for (size_t k = 0; k < owners.size(); ++k) {
      const uint32_t i = owners[k];
      auto& s = state[i];
      s.next = sampled[k];
      s.has_next = true;
      r.out_tokens[static_cast<size_t>(i) * r.max_new_tokens + r.out_counts[i]++] = s.next;
      const bool stop = std::find(r.stop_ids, r.stop_ids + r.stop_count, s.next) != r.stop_ids + r.stop_count;
      const bool refused = r.callback && r.callback(i, s.next, r.user);
      s.done = stop || refused || r.out_counts[i] == r.max_new_tokens;
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status generate(Session& session, Stream& stream, const std::vector<Sequence*>& sequences,
                const std::vector<dgpuSampling>& sampling, dgpuGenerate& r) {
  const bool failed_before = stream.failure() != nullptr;
  const Status status = run(session, stream, sequences, sampling, r);
  return failed_before ? status : first_failure(stream, status);
}

}  // namespace dgpu::model
