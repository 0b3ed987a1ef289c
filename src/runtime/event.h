// Events: a name for {timeline, value}, with a time stamp if asked for.
#pragma once
#include <mutex>

#include "runtime/stream.h"

namespace dgpu {

class Event final : public Object {
 public:
  static constexpr Kind kKind = Kind::event;
  // Both stamps now, so that recording allocates nothing.
  Event(Ref<Context> context, bool timing) : Object(kKind), context_(std::move(context)), timing_(timing) {
    if (!timing) return;
    mark_.stamp = make_ref<Stamp>();
    spare_ = make_ref<Stamp>();
  }

  Context* context() const { return context_.get(); }
  Status record(Stream& stream, const char* function);
  // INVALID_STATE if never recorded.
  Status point(Ref<Timeline>& timeline, uint64_t& value) const;
  static Status elapsed(const Event& start, const Event& end, int64_t& out_ns);

 private:
  struct Mark {
    Ref<Timeline> timeline;
    uint64_t value = 0;
    Ref<Stamp> stamp;
    uint32_t device = 0;
  };
  Ref<Stamp> take_spare();
  Status timed_mark(Mark& out, const char* argument) const;

  const Ref<Context> context_;
  const bool timing_;
  mutable std::mutex mutex_;
  Mark mark_;
  Ref<Stamp> spare_;
};

}  // namespace dgpu
