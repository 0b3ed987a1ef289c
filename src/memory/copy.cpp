// Copies and fill: which road a copy takes.
//   direct   the stream's backend copies: its own memory, and whatever the host can touch
//   staged   memory of another backend that the host cannot touch: a host task goes through a buffer
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/registry.h"
#include "memory/memory.h"
#include "runtime/submission.h"

namespace dgpu::memory {

namespace {

struct Side {
  Location location;      // of a device address
  void* plain = nullptr;  // ordinary host memory otherwise
  uint64_t pitch = 0;
};

struct Shape {
  uint64_t width;
  uint64_t rows;
  bool empty() const { return width == 0 || rows == 0; }
};

// Bytes from the first to the last one touched; 0 if that does not fit in 64 bits.
uint64_t extent(const Shape& shape, uint64_t pitch) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.rows - 1, pitch, &bytes)) return 0;
  if (__builtin_add_overflow(bytes, shape.width, &bytes)) return 0;
  return bytes;
}

// True if the stream's backend can take this side; then ref and device are filled in.
bool direct(const Stream& stream, const Side& side, dgpuBackendRef& ref, dgpuBackendDevice*& device) {
  device = nullptr;
  if (!side.location.segment) {
    ref = {nullptr, 0, reinterpret_cast<uintptr_t>(side.plain)};
    return true;
  }
  const Segment& segment = *side.location.segment;
  if (segment.device != Segment::kHost) {
    const backend::Device& owner = stream.context()->device(segment.device);
    if (&owner.backend() == &stream.device().backend()) {
      ref = {segment.memory, side.location.offset, segment.native ? segment.native + side.location.offset : 0};
      device = owner.opened();
      return true;
    }
  }
  if (!side.location.host()) return false;
  ref = {nullptr, 0, reinterpret_cast<uintptr_t>(side.location.host())};
  return true;
}

bool ranges_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

Status check_overlap(const Side& dst, const Side& src, const Shape& shape) {
  if (!dst.location.segment || dst.location.segment != src.location.segment) return DGPU_STATUS_SUCCESS;
  const uint64_t a = dst.location.offset, b = src.location.offset;
  if (!ranges_overlap(a, extent(shape, dst.pitch), b, extent(shape, src.pitch))) return DGPU_STATUS_SUCCESS;
  if (dst.pitch == src.pitch && shape.rows > 1) {
    // Columns of one matrix may interleave.
    const uint64_t distance = (a > b ? a - b : b - a) % dst.pitch;
    if (distance >= shape.width && dst.pitch - distance >= shape.width) return DGPU_STATUS_SUCCESS;
  }
  return fail(DGPU_STATUS_INVALID_ARGUMENT, "dst", "source and destination overlap; copy through another buffer");
}

// ---- staged ----

constexpr uint64_t kStage = uint64_t{4} << 20;

// One transfer on a stream of its own, waited for. The host cannot touch the memory, so its backend copies.
Status transfer(Context& context, const Location& location, void* host, uint64_t size, bool to_host) {
  Stream::Options options;
  options.capacity = 4;
  Ref<Stream> stream;
  DGPU_TRY(Stream::create(Ref<Context>::retain(&context), location.segment->device, options, stream));
  Submission submission(*stream, "dgpuMemCopyAsync");
  DGPU_TRY(submission.begin());
  Slot& slot = submission.add(DGPU_COMMAND_COPY);
  Side device_side{location, nullptr, size};
  dgpuBackendRef there{};
  dgpuBackendDevice* device = nullptr;
  direct(*stream, device_side, there, device);
  const dgpuBackendRef here{nullptr, 0, reinterpret_cast<uintptr_t>(host)};
  slot.copy = {sizeof(dgpuCommandCopy),    to_host ? here : there,    to_host ? there : here, size, size, size, 1,
               to_host ? nullptr : device, to_host ? device : nullptr};
  const uint64_t value = submission.commit();
  return stream->wait(value, DGPU_TIMEOUT_INFINITE);
}

struct StagedCopy {
  Context* context;  // the stream holds it
  Side dst, src;
  Shape shape;

  Status operator()() const {
    std::vector<std::byte> stage(std::min(kStage, shape.width));
    for (uint64_t row = 0; row < shape.rows; ++row) {
      for (uint64_t at = 0; at < shape.width; at += stage.size()) {
        const uint64_t bytes = std::min<uint64_t>(stage.size(), shape.width - at);
        DGPU_TRY(load(row * src.pitch + at, stage.data(), bytes));
        DGPU_TRY(store(row * dst.pitch + at, stage.data(), bytes));
      }
    }
    return DGPU_STATUS_SUCCESS;
  }

 private:
  static Location moved(Location location, uint64_t by) {
    location.offset += by;
    return location;
  }
  Status load(uint64_t at, std::byte* to, uint64_t bytes) const {
    if (src.location.segment) return read(*context, moved(src.location, at), to, bytes);
    std::memcpy(to, static_cast<const std::byte*>(src.plain) + at, bytes);
    return DGPU_STATUS_SUCCESS;
  }
  Status store(uint64_t at, const std::byte* from, uint64_t bytes) const {
    if (dst.location.segment) return write(*context, moved(dst.location, at), from, bytes);
    std::memcpy(static_cast<std::byte*>(dst.plain) + at, from, bytes);
    return DGPU_STATUS_SUCCESS;
  }
};

// ---- all copies ----

struct Address {
  dgpuAddr_t address = 0;
  const void* plain = nullptr;
  bool is_plain = false;
  uint64_t pitch = 0;
  const char* name;
};

Status locate(const Submission& submission, const Address& from, const Shape& shape, Side& out) {
  out.pitch = from.pitch;
  if (from.is_plain) {
    out.plain = const_cast<void*>(from.plain);
    if (!out.plain && !shape.empty()) return fail(DGPU_STATUS_INVALID_ARGUMENT, from.name, "{} is null", from.name);
    return DGPU_STATUS_SUCCESS;
  }
  uint64_t bytes = 0;
  if (!shape.empty()) {
    bytes = extent(shape, from.pitch);
    if (!bytes) {
      return fail(DGPU_STATUS_INVALID_ADDRESS, from.name, "{} rows with a pitch of {} exceed the address space",
                  shape.rows, from.pitch);
    }
  }
  return submission.locate(from.address, bytes, from.name, out.location);
}

Status submit_copy(Stream& stream, const char* function, const Address& to, const Address& from, const Shape& shape) {
  Submission submission(stream, function);
  const Status begun = submission.begin();
  if (begun != DGPU_STATUS_SUCCESS) return begun;
  Side dst, src;
  DGPU_TRY(locate(submission, to, shape, dst));
  DGPU_TRY(locate(submission, from, shape, src));
  if (shape.empty()) {
    submission.add(DGPU_COMMAND_MARKER);
    submission.commit();
    return DGPU_STATUS_SUCCESS;
  }
  DGPU_TRY(check_overlap(dst, src, shape));
  dgpuCommandCopy command{};
  command.struct_size = sizeof(command);
  command.dst_pitch = to.pitch;
  command.src_pitch = from.pitch;
  command.width = shape.width;
  command.rows = shape.rows;
  if (direct(stream, dst, command.dst, command.dst_device) && direct(stream, src, command.src, command.src_device)) {
    submission.add(DGPU_COMMAND_COPY).copy = command;
  } else {
    submission.add_task(StagedCopy{stream.context(), dst, src, shape});
  }
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

Status check_pitch(uint64_t pitch, uint64_t width, const char* name) {
  if (pitch >= width) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "{} is {}, less than the width of {} bytes", name, pitch, width);
}

}  // namespace

Status copy(Stream& stream, const char* function, dgpuAddr_t dst, dgpuAddr_t src, uint64_t size) {
  return submit_copy(stream, function, {dst, nullptr, false, size, "dst"}, {src, nullptr, false, size, "src"},
                     {size, 1});
}

Status copy_from_host(Stream& stream, const char* function, dgpuAddr_t dst, const void* src, uint64_t size) {
  return submit_copy(stream, function, {dst, nullptr, false, size, "dst"}, {0, src, true, size, "src"}, {size, 1});
}

Status copy_to_host(Stream& stream, const char* function, void* dst, dgpuAddr_t src, uint64_t size) {
  return submit_copy(stream, function, {0, dst, true, size, "dst"}, {src, nullptr, false, size, "src"}, {size, 1});
}

Status copy_2d(Stream& stream, const char* function, dgpuAddr_t dst, uint64_t dst_pitch, dgpuAddr_t src,
               uint64_t src_pitch, uint64_t width, uint64_t rows) {
  DGPU_TRY(check_pitch(dst_pitch, width, "dst_pitch"));
  DGPU_TRY(check_pitch(src_pitch, width, "src_pitch"));
  return submit_copy(stream, function, {dst, nullptr, false, dst_pitch, "dst"}, {src, nullptr, false, src_pitch, "src"},
                     {width, rows});
}

Status read(Context& context, const Location& src, void* dst, uint64_t size) {
  if (const std::byte* host = src.host()) {
    std::memcpy(dst, host, size);
    return DGPU_STATUS_SUCCESS;
  }
  return transfer(context, src, dst, size, true);
}

Status write(Context& context, const Location& dst, const void* src, uint64_t size) {
  if (std::byte* host = dst.host()) {
    std::memcpy(host, src, size);
    return DGPU_STATUS_SUCCESS;
  }
  return transfer(context, dst, const_cast<void*>(src), size, false);
}

// ---- fill ----

namespace {
struct StagedFill {
  Context* context;
  Location dst;
  uint64_t pattern;
  uint32_t pattern_size;
  uint64_t size;

  Status operator()() const {
    std::vector<std::byte> stage(std::min(kStage, size));  // kStage is a multiple of every pattern
    for (size_t i = 0; i < stage.size(); i += pattern_size) std::memcpy(stage.data() + i, &pattern, pattern_size);
    Location at = dst;
    for (uint64_t left = size; left > 0;) {
      const uint64_t bytes = std::min<uint64_t>(left, stage.size());
      DGPU_TRY(write(*context, at, stage.data(), bytes));
      at.offset += bytes;
      left -= bytes;
    }
    return DGPU_STATUS_SUCCESS;
  }
};

Status check_fill(dgpuAddr_t dst, uint32_t pattern_size, uint64_t size) {
  if (pattern_size != 1 && pattern_size != 2 && pattern_size != 4 && pattern_size != 8) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "pattern_size", "pattern_size is {}, must be 1, 2, 4 or 8", pattern_size);
  }
  if (size % pattern_size) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "size", "size {} is not a multiple of pattern_size {}", size,
                pattern_size);
  }
  if (dst % pattern_size) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "dst", "dst {:#x} is not aligned to pattern_size {}", dst, pattern_size);
  }
  return DGPU_STATUS_SUCCESS;
}
}  // namespace

Status fill(Stream& stream, const char* function, dgpuAddr_t dst, uint64_t pattern, uint32_t pattern_size,
            uint64_t size) {
  DGPU_TRY(check_fill(dst, pattern_size, size));
  Submission submission(stream, function);
  const Status begun = submission.begin();
  if (begun != DGPU_STATUS_SUCCESS) return begun;
  Location location;
  DGPU_TRY(submission.locate(dst, size, "dst", location));
  const Segment& segment = *location.segment;
  const bool reachable = segment.device == stream.device_index() ||
                         (segment.device == Segment::kHost && segment.registered[stream.device_index()].memory);
  if (size == 0) {
    submission.add(DGPU_COMMAND_MARKER);
  } else if (reachable) {
    dgpuCommandFill command{sizeof(dgpuCommandFill), {}, pattern, size, pattern_size, 0};
    DGPU_TRY(submission.device_ref(location, "dst", command.dst));
    submission.add(DGPU_COMMAND_FILL).fill = command;
  } else {
    submission.add_task(StagedFill{stream.context(), location, pattern, pattern_size, size});
  }
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::memory
