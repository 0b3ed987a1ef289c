// Executing plans.
#include "ops/plan.h"

#include <cstring>

#include "memory/memory.h"
#include "ops/extents.h"
#include "ops/schema.h"

namespace dgpu::ops {

Status Plan::check_symbols(const int64_t* symbols, uint32_t count) const {
  if (count != maxima_.size())
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "argument", "symbol_count",
                   fmt::format("expected {}, got {}", maxima_.size(), count));
  for (uint32_t i = 0; i < count; ++i)
    if (symbols[i] < 0 || symbols[i] > maxima_[i])
      return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "symbol", std::to_string(i + 1),
                     fmt::format("expected 0 to {}, got {}", maxima_[i], symbols[i]));
  return count && schema_->check ? schema_->check(spec_, symbols) : DGPU_STATUS_SUCCESS;
}

Status Plan::check_ports(const dgpuAddr_t* addresses, const int64_t* symbols) const {
  uint64_t bytes[kMaxPorts];
  for (size_t i = 0; i < ports_.size(); ++i) {
    bytes[i] = touched_bytes(*descs_[i], symbols);
    const uint64_t element = dtype_bits(descs_[i]->dtype) / 8;
    if (element > 1 && addresses[i] % element)
      return fail_op(DGPU_STATUS_INVALID_ADDRESS, spec_, "port", ports_[i],
                     fmt::format("address {:#x} is not aligned to the {} bytes of {}", addresses[i], element,
                                 dtype_name(descs_[i]->dtype)));
  }
  return check_aliases(addresses, bytes, symbols);
}

Status Plan::check_aliases(const dgpuAddr_t* addresses, const uint64_t* bytes, const int64_t* symbols) const {
  for (uint32_t o = 0; o < ports_.size(); ++o) {
    if (directions_[o] == DGPU_PORT_IN) continue;
    for (uint32_t p = 0; p < ports_.size(); ++p) {
      if (p == o || (p < o && directions_[p] != DGPU_PORT_IN)) continue;
      if (addresses[o] == addresses[p] && may_alias(o, p)) continue;
      if (disjoint(*descs_[o], addresses[o], bytes[o], *descs_[p], addresses[p], bytes[p], symbols)) continue;
      return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "port", ports_[o],
                     fmt::format("overlaps the memory of port {}, which this operator does not permit", ports_[p]));
    }
  }
  return DGPU_STATUS_SUCCESS;
}

Status Plan::check(const dgpuAddr_t* addresses, uint32_t address_count, const int64_t* symbols, uint32_t symbols_given,
                   dgpuAddr_t workspace) const {
  if (address_count != ports_.size())
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "argument", "address_count",
                   fmt::format("expected {}, one per bound port, got {}", ports_.size(), address_count));
  if (!addresses || (!symbols && symbols_given))
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "argument", addresses ? "symbols" : "addresses", "is null");
  DGPU_TRY(check_symbols(symbols, symbols_given));
  if (workspace_bytes_ && (!workspace || workspace % 256))
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec_, "argument", "workspace",
                   fmt::format("expected the 256-aligned address of {} bytes, got {:#x}", workspace_bytes_, workspace));
  return check_ports(addresses, symbols);
}

Status Plan::add_step(Submission& submission, const NativeStep& step, const dgpuAddr_t* addresses,
                      const int64_t* symbols, dgpuAddr_t workspace) {
  dgpuAddr_t port_addresses[kMaxPorts];
  uint64_t bytes[kMaxPorts];
  for (size_t i = 0; i < step.values.size(); ++i) {
    const PortValue& v = step.values[i];
    bytes[i] = touched_bytes(*step.descs[i], symbols);
    const dgpuAddr_t base = v.temporary ? workspace + temporaries_[v.index] : addresses[v.index];
    port_addresses[i] = bytes[i] ? base + v.offset : base;
  }
  OpArguments a;
  a.plan = step.plan;
  a.keep = this;
  a.op = spec_.name.c_str();
  a.addresses = port_addresses;
  a.bytes = bytes;
  a.names = step.names.data();
  a.port_count = static_cast<uint32_t>(step.values.size());
  a.symbols = symbols;
  a.symbol_count = symbol_count();
  a.workspace = step.workspace_bytes ? workspace + step_workspace_ : 0;
  a.workspace_bytes = step.workspace_bytes;
  return submission.add_op(a);
}

Status Plan::add(Submission& submission, const dgpuAddr_t* addresses, uint32_t address_count, const int64_t* symbols,
                 uint32_t symbols_given, dgpuAddr_t workspace) {
  DGPU_TRY(check(addresses, address_count, symbols, symbols_given, workspace));
  if (mode_ == DGPU_PLAN_REFERENCE) return add_reference(submission, addresses, symbols);
  for (const auto& step : steps_) DGPU_TRY(add_step(submission, step, addresses, symbols, workspace));
  return DGPU_STATUS_SUCCESS;
}

Status Plan::execute(Stream& stream, const char* function, const dgpuAddr_t* addresses, uint32_t address_count,
                     const int64_t* symbols, uint32_t symbols_given, dgpuAddr_t workspace) {
  DGPU_TRY(same_context(context_.get(), stream.context(), "stream"));
  if (stream.device_index() != device_)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "stream", "the plan is for {}, the stream is on {}",
                context_->device(device_).label(), stream.device().label());
  DGPU_TRY(check(addresses, address_count, symbols, symbols_given, workspace));
  Submission submission(stream, function);
  if (const Status begun = submission.begin(commands(), argument_bytes_); begun != DGPU_STATUS_SUCCESS) return begun;
  if (mode_ == DGPU_PLAN_REFERENCE) {
    DGPU_TRY(add_reference(submission, addresses, symbols));
  } else {
    for (const auto& step : steps_) DGPU_TRY(add_step(submission, step, addresses, symbols, workspace));
  }
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

// ---- The reference as a host task ----

struct Plan::HostCall {
  Plan* plan;  // kept by the command
  std::vector<int64_t> symbols;
  std::vector<Location> locations;
  std::vector<uint64_t> bytes;
};

Status Plan::add_reference(Submission& submission, const dgpuAddr_t* addresses, const int64_t* symbols) {
  auto call = std::make_unique<HostCall>();
  call->plan = this;
  call->symbols.assign(symbols, symbols + maxima_.size());
  for (size_t i = 0; i < ports_.size(); ++i) {
    call->bytes.push_back(touched_bytes(*descs_[i], symbols));
    Location location;
    if (call->bytes[i]) DGPU_TRY(submission.locate(addresses[i], call->bytes[i], ports_[i].c_str(), location));
    call->locations.push_back(location);
  }
  HostTask task;
  task.data = call.get();
  task.drop = [](void* data) { delete static_cast<HostCall*>(data); };
  task.run = [](void* data) -> Status {
    auto& c = *static_cast<HostCall*>(data);
    Plan& plan = *c.plan;
    const size_t n = plan.ports_.size();
    std::vector<std::vector<std::byte>> staged(n);  // of memory that the host cannot touch
    std::vector<void*> pointers(n, nullptr);
    for (size_t i = 0; i < n; ++i) {
      if (c.bytes[i] == 0) continue;
      pointers[i] = c.locations[i].host();
      if (pointers[i]) continue;
      staged[i].resize(c.bytes[i]);
      pointers[i] = staged[i].data();
      // Outputs too: what lies between their elements goes back unchanged.
      DGPU_TRY(memory::read(*plan.context_, c.locations[i], staged[i].data(), c.bytes[i]));
    }
    DGPU_TRY(run_reference(plan.spec_, pointers.data(), static_cast<uint32_t>(n), c.symbols.data(),
                           static_cast<uint32_t>(c.symbols.size())));
    for (size_t i = 0; i < n; ++i)
      if (!staged[i].empty() && plan.directions_[i] != DGPU_PORT_IN)
        DGPU_TRY(memory::write(*plan.context_, c.locations[i], staged[i].data(), c.bytes[i]));
    return DGPU_STATUS_SUCCESS;
  };
  submission.add_task(task, spec_.name.c_str(), this);
  call.release();
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::ops
