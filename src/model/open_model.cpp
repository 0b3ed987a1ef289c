#include "model/open_model.h"

namespace dgpu::model {

Status OpenModel::load(Ref<Context> context, uint32_t device, const PlacementOptions& options) {
  std::lock_guard one(loading_);
  if (placement()) return fail(DGPU_STATUS_INVALID_STATE, "model", "the model is loaded already");
  if (!model_->has_checkpoint())
    return fail(DGPU_STATUS_NOT_FOUND, "model", "{}: no weights; the model was opened from its config alone",
                model_->directory());
  std::shared_ptr<Placement> made;
  DGPU_TRY(Placement::create(program(), model_->checkpoint(), std::move(context), device, options, made));
  std::lock_guard lock(mutex_);
  placement_ = std::move(made);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
