#include "model/day0/capture.h"

#include <cstring>

#include "base/dtype.h"
#include "model/device_io.h"
#include "model/open_model.h"

namespace dgpu::model {
namespace {

float element(const uint8_t* p, dgpuDtype_t dtype) {
  const auto as = [&](auto v) {
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  switch (dtype) {
    case DGPU_DTYPE_F32:
      return as(float{});
    case DGPU_DTYPE_BF16:
      return bf16_to_f32(as(uint16_t{}));
    case DGPU_DTYPE_F16:
      return f16_to_f32(as(uint16_t{}));
    case DGPU_DTYPE_I32:
      return static_cast<float>(as(int32_t{}));
    case DGPU_DTYPE_I64:
      return static_cast<float>(as(int64_t{}));
    default:
      return 0;
  }
}

Status fetch(Session& session, Stream& stream, graph::Id id, HostValue& out) {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  dgpuAddr_t address = 0;
  DGPU_TRY(session.value(id, d, address));
  out.value = id;
  out.shape.assign(d.shape, d.shape + d.rank);
  const int64_t count = graph::element_count(out.shape);
  if (count == 0) return DGPU_STATUS_SUCCESS;
  int64_t span = 1;
  for (uint32_t i = 0; i < d.rank; ++i) span += (d.shape[i] - 1) * d.strides[i];
  const size_t width = dtype_bits(d.dtype) / 8;
  std::vector<uint8_t> bytes(static_cast<size_t>(span) * width);
  DGPU_TRY(copy_to_host(stream, bytes.data(), address, bytes.size()));
  DGPU_TRY(stream.synchronize(DGPU_TIMEOUT_INFINITE));
  out.data.resize(static_cast<size_t>(count));
  std::vector<int64_t> at(d.rank, 0);
  int64_t offset = 0;
  for (auto& v : out.data) {
    v = element(bytes.data() + static_cast<size_t>(offset) * width, d.dtype);
    for (uint32_t k = d.rank; k-- > 0;) {
      offset += d.strides[k];
      if (++at[k] < d.shape[k]) break;
      offset -= d.strides[k] * d.shape[k];
      at[k] = 0;
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status capture(Ref<OpenModel> model, dgpuDtype_t compute, const std::vector<int32_t>& tokens,
               const graph::Routes* routes, Capture& out) {
  SessionLimits limits;
  const auto count = static_cast<uint32_t>(tokens.size());
  limits.max_sequences = 1;
  limits.max_tokens = limits.max_batch_tokens = limits.max_logit_rows = count;
  limits.taps = "*";
  limits.routes = routes;
  limits.routing = true;
  limits.compute = compute;
  Ref<Session> session;
  DGPU_TRY(Session::create(std::move(model), limits, session));
  Ref<Sequence> sequence;
  DGPU_TRY(Sequence::create(*session, sequence));
  Ref<Stream> stream;
  DGPU_TRY(Stream::create(session->placement().context_ref(), session->placement().device(), {0, 0, true}, stream));
  std::vector<uint32_t> rows(count), offsets{0, count};
  for (uint32_t i = 0; i < count; ++i) rows[i] = i;
  Session::Step step;
  step.tokens = tokens.data();
  step.token_count = step.logit_row_count = count;
  step.offsets = offsets.data();
  step.logit_rows = rows.data();
  step.sequences = {sequence.get()};
  DGPU_TRY(session->step(*stream, step));
  DGPU_TRY(stream->synchronize(DGPU_TIMEOUT_INFINITE));
  out.program = session->program();
  for (const auto& tap : session->taps()) {
    DGPU_TRY(fetch(*session, *stream, tap.value, out.taps[tap.name]));
    out.order.push_back(tap.name);
  }
  for (const auto& r : session->routing()) DGPU_TRY(fetch(*session, *stream, r.value, out.routing[r.name]));
  if (!out.taps.count("logits")) {
    DGPU_TRY(fetch(*session, *stream, out.program.logits, out.taps["logits"]));
    out.order.push_back("logits");
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
