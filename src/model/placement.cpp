#include "model/placement.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/dtype.h"
#include "base/thread.h"
#include "model/device_io.h"
#include "model/weights.h"

namespace dgpu::model {
namespace {

constexpr uint64_t kAlign = 4096;      // a weight starts on a page, as mapped files would
constexpr uint64_t kPiece = 8u << 20;  // bytes per read

uint64_t align(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// One read of at most kPiece bytes, the same of a mapping, or one weight that needs element-wise assembly.
struct Piece {
  graph::Id weight;
  const TensorInfo* tensor = nullptr;  // null: assemble
  uint64_t src = 0, dst = 0, bytes = 0;
};

class Loader {
 public:
  Loader(const graph::Program& p, const Checkpoint& c, Placement& out, const PlacementOptions& o)
      : program_(p), checkpoint_(c), out_(out), options_(o) {}

  Status load() {
    list_pieces();
    host_ = static_cast<uint8_t*>(host_pointer(out_.context(), out_.block()));
    if (!host_) return load_staged();
    const unsigned readers = std::max(1u, std::min(4u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < readers; ++i) threads.push_back(spawn_thread("dgpu-load", [this] { read_pieces(false); }));
    read_pieces(true);
    for (auto& t : threads) t.join();
    return result();
  }

 private:
  void list_pieces() {
    for (graph::Id w = 0; w < program_.weights.size(); ++w) {
      const auto& weight = program_.weights[w];
      const uint64_t bytes = static_cast<uint64_t>(graph::element_count(weight.shape)) * dtype_bits(out_.dtype(w)) / 8;
      total_ += bytes;
      const auto runs = weight_runs(program_, checkpoint_, weight, out_.dtype(w));
      if (runs.empty()) pieces_.push_back({w, nullptr, 0, 0, bytes});
      for (const auto& run : runs)
        for (uint64_t at = 0; at < run.bytes; at += kPiece)
          pieces_.push_back({w, run.tensor, run.src + at, run.dst + at, std::min(kPiece, run.bytes - at)});
    }
  }

  // In the order of the file, so that reading ahead works.
  void read_pieces(bool report) {
    for (;;) {
      const size_t i = next_.fetch_add(1);
      if (i >= pieces_.size() || failed_.load()) return;
      const auto& p = pieces_[i];
      const Status s = read_piece(p);
      if (s < 0) return note_failure(s);
      const uint64_t done = done_.fetch_add(p.bytes) + p.bytes;
      if (report && options_.progress && !options_.progress(done, total_, program_.weights[p.weight].name.c_str()))
        return note_failure(
            fail(DGPU_STATUS_CANCELLED, "progress", "loading was cancelled after {} of {} bytes", done, total_));
    }
  }

  Status read_piece(const Piece& p) {
    if (out_.mapped(p.weight)) return checkpoint_.file(*p.tensor).populate(*p.tensor, p.src, p.bytes);
    uint8_t* dst = host_ + (out_.address(p.weight) - out_.block()) + p.dst;
    if (p.tensor) return checkpoint_.file(*p.tensor).read(*p.tensor, p.src, p.bytes, dst);
    return assemble(program_, checkpoint_, program_.weights[p.weight], out_.dtype(p.weight), dst);
  }

  void note_failure(Status s) {
    std::lock_guard lock(mutex_);
    if (failed_.exchange(true)) return;
    error_ = last_error();
    status_ = s;
  }

  Status result() {
    if (failed_.load()) {
      last_error() = error_;
      return status_;
    }
    if (options_.progress && total_) options_.progress(total_, total_, "done");
    return DGPU_STATUS_SUCCESS;
  }

  // A device that the host cannot write: pieces go through two pinned buffers, one filling while the other is copied.
  Status load_staged() {
    const uint64_t room = std::max<uint64_t>(kPiece, std::min<uint64_t>(options_.max_host_bytes / 2, 64u << 20));
    Stager stager(out_.context(), out_.device());
    DGPU_TRY(stager.open(room));
    uint64_t done = 0;
    for (const auto& p : pieces_) {
      if (p.tensor) {
        void* buffer = nullptr;
        DGPU_TRY(stager.acquire(&buffer));
        DGPU_TRY(checkpoint_.file(*p.tensor).read(*p.tensor, p.src, p.bytes, buffer));
        DGPU_TRY(stager.send(out_.address(p.weight) + p.dst, p.bytes));
      } else {
        if (p.bytes > options_.max_host_bytes)
          return fail(DGPU_STATUS_CAPACITY, program_.weights[p.weight].name,
                      "assembling '{}' needs {} bytes of host memory, max_host_bytes is {}",
                      program_.weights[p.weight].name, p.bytes, options_.max_host_bytes);
        std::vector<uint8_t> whole(p.bytes);
        DGPU_TRY(assemble(program_, checkpoint_, program_.weights[p.weight], out_.dtype(p.weight), whole.data()));
        DGPU_TRY(upload(out_.context(), out_.device(), out_.address(p.weight), whole.data(), whole.size()));
      }
      done += p.bytes;
      if (options_.progress && !options_.progress(done, total_, program_.weights[p.weight].name.c_str()))
        return fail(DGPU_STATUS_CANCELLED, "progress", "loading was cancelled after {} of {} bytes", done, total_);
    }
    return stager.finish();
  }

  const graph::Program& program_;
  const Checkpoint& checkpoint_;
  Placement& out_;
  const PlacementOptions& options_;
  std::vector<Piece> pieces_;
  uint8_t* host_ = nullptr;
  uint64_t total_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  dgpuErrorInfo error_{};
  Status status_ = DGPU_STATUS_SUCCESS;
};

}  // namespace

Placement::~Placement() {
  if (block_) device_free(*context_, block_);
  for (const auto file : files_)
    if (file) device_free(*context_, file);
}

// Whole tensors whose elements lie as the device wants them; the others keep the address 0. A file that cannot be
// mapped or that the device cannot reach is read instead.
void Placement::place_in_files(const graph::Program& program, const Checkpoint& checkpoint) {
  files_.assign(checkpoint.files().size(), 0);
  std::vector<bool> tried(files_.size(), false);
  for (graph::Id w = 0; w < program.weights.size(); ++w) {
    const auto runs = weight_runs(program, checkpoint, program.weights[w], dtypes_[w]);
    if (runs.size() != 1 || runs[0].bytes == 0) continue;
    const TensorInfo& tensor = *runs[0].tensor;
    const uint64_t at = tensor.offset + runs[0].src, width = dtype_bits(dtypes_[w]) / 8;
    if (at % width != 0) continue;
    dgpuAddr_t& file = files_[tensor.file];
    if (!tried[tensor.file]) {
      tried[tensor.file] = true;
      const auto& from = checkpoint.files()[tensor.file];
      uint8_t* base = from->map();
      if (!base || memory::import_host(*context_, base, from->size(), from, file) < 0) continue;
      if (!memory::reachable(*context_, file, device_)) device_free(*context_, std::exchange(file, 0));
    }
    if (file) addresses_[w] = file + at;
  }
}

Status Placement::create(const graph::Program& program, const Checkpoint& checkpoint, Ref<Context> context,
                         uint32_t device, const PlacementOptions& options, std::shared_ptr<Placement>& out) {
  DGPU_TRY(check_tensors(program, checkpoint));
  std::shared_ptr<Placement> p(new Placement(std::move(context), device, options.compute));
  for (const auto& w : program.weights) p->dtypes_.push_back(weight_dtype(program, checkpoint, w));
  p->addresses_.assign(program.weights.size(), 0);
  // Only where device memory is the host's own: elsewhere every use would go over a bus.
  if (options.mapped && p->context().device(device).info().host_accessible) p->place_in_files(program, checkpoint);
  std::vector<uint64_t> offsets;
  for (graph::Id w = 0; w < program.weights.size(); ++w) {
    offsets.push_back(p->bytes_);
    const auto bytes =
        static_cast<uint64_t>(graph::element_count(program.weights[w].shape)) * dtype_bits(p->dtypes_[w]) / 8;
    if (!p->addresses_[w]) p->bytes_ += align(bytes);
  }
  if (p->bytes_ == 0) p->bytes_ = kAlign;
  DGPU_TRY(device_alloc(p->context(), device, p->bytes_,
                        fmt::format("the weights ({} tensors)", program.weights.size()), p->block_));
  for (graph::Id w = 0; w < program.weights.size(); ++w)
    if (!p->addresses_[w]) p->addresses_[w] = p->block_ + offsets[w];
  if (!program.weights.empty()) DGPU_TRY(Loader(program, checkpoint, *p, options).load());
  out = std::move(p);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
