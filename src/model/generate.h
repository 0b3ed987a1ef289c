// Prompt and new tokens of several sequences in ragged batches.
#pragma once
#include "dgpu/model.h"
#include "model/session.h"

namespace dgpu::model {

// Runs a checked request; the sequences belong to the session. Blocks.
Status generate(Session& session, Stream& stream, const std::vector<Sequence*>& sequences,
                const std::vector<dgpuSampling>& sampling, dgpuGenerate& request);

}  // namespace dgpu::model
