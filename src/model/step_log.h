// What became of a session's steps. A step is submitted long before it runs; should it fail, its sequences hold tokens
// whose states were never computed. The log notices that when the session is used next, and remembers per slot how many
// tokens are still good.
#pragma once
#include <deque>
#include <vector>

#include "runtime/timeline.h"

namespace dgpu::model {

class StepLog {
 public:
  struct Damage {
    uint64_t good = 0;  // tokens whose states are as they should be
    ErrorRecord why;
  };
  explicit StepLog(size_t slots) : slots_(slots) {}

  // The slot belongs to a new sequence: what older steps did to it is of no interest.
  void renew(uint32_t slot);
  // Work on the slots was submitted up to `value`; part i had good[i] tokens before. `once`: it also made what all
  // later steps use.
  struct Part {
    uint32_t slot;
    uint64_t good;
  };
  void add(Ref<Timeline> timeline, uint64_t value, const std::vector<Part>& parts, bool once);
  // Takes over the outcomes that are known. True if a step failed that was to make what all steps use.
  bool settle();
  // Null if the slot is sound.
  const Damage* damage(uint32_t slot) const { return slots_[slot].damaged ? &slots_[slot].damage : nullptr; }
  void spoil(uint32_t slot, uint64_t good, const ErrorRecord& why);
  void repair(uint32_t slot) { slots_[slot].damaged = false; }

 private:
  struct Slot {
    uint64_t owner = 0;  // counts its sequences
    bool damaged = false;
    Damage damage;
  };
  struct OwnedPart : Part {
    uint64_t owner;
  };
  struct Entry {
    Ref<Timeline> timeline;
    uint64_t value;
    bool once;
    std::vector<OwnedPart> parts;
  };
  std::vector<Slot> slots_;
  std::deque<Entry> entries_;  // submitted, outcome unknown so far; a session's steps run in this order
};

}  // namespace dgpu::model
