#include "model/step_log.h"

namespace dgpu::model {

void StepLog::renew(uint32_t slot) {
  ++slots_[slot].owner;
  slots_[slot].damaged = false;
}

void StepLog::add(Ref<Timeline> timeline, uint64_t value, const std::vector<Part>& parts, bool once) {
  Entry& entry = entries_.emplace_back(Entry{std::move(timeline), value, once, {}});
  for (const Part& part : parts) entry.parts.push_back({part, slots_[part.slot].owner});
}

bool StepLog::settle() {
  bool once_lost = false;
  while (!entries_.empty()) {
    const Entry& first = entries_.front();
    ErrorRecord why;
    const Status outcome = first.timeline->outcome(first.value, &why);
    if (outcome == DGPU_STATUS_NOT_READY) break;
    if (outcome < 0) {
      once_lost = once_lost || first.once;
      for (const OwnedPart& part : first.parts)
        if (slots_[part.slot].owner == part.owner) spoil(part.slot, part.good, why);
    }
    entries_.pop_front();
  }
  return once_lost;
}

void StepLog::spoil(uint32_t slot, uint64_t good, const ErrorRecord& why) {
  Slot& s = slots_[slot];
  if (s.damaged && s.damage.good <= good) return;
  s.damage = {good, why};
  s.damaged = true;
}

}  // namespace dgpu::model
