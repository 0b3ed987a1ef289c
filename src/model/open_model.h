// What a dgpuModel_t holds: the model on disk, and its weights once they are loaded.
#pragma once
#include <memory>
#include <mutex>

#include "base/object.h"
#include "model/model.h"
#include "model/placement.h"

namespace dgpu::model {

class OpenModel final : public Object {
 public:
  static constexpr Kind kKind = Kind::model;
  explicit OpenModel(std::shared_ptr<const Model> model) : Object(kKind), model_(std::move(model)) {}

  const Model& model() const { return *model_; }
  const graph::Program& program() const { return model_->program(); }
  // Null before load().
  std::shared_ptr<Placement> placement() const {
    std::lock_guard lock(mutex_);
    return placement_;
  }
  // Once per model; concurrent calls take turns. Blocks.
  Status load(Ref<Context> context, uint32_t device, const PlacementOptions& options);

 private:
  const std::shared_ptr<const Model> model_;
  std::mutex loading_;
  mutable std::mutex mutex_;
  std::shared_ptr<Placement> placement_;
};

}  // namespace dgpu::model
