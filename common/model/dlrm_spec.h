// The description of a DLRM (worker/model/dlrm.h computes it; the message `Dlrm` in proto/job.proto
// describes it to users).
#ifndef THERMOCLINE_COMMON_MODEL_DLRM_SPEC_H_
#define THERMOCLINE_COMMON_MODEL_DLRM_SPEC_H_

#include <optional>

#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

std::optional<ModelError> CheckDlrm(const Job& job, const ModelInputs& inputs);

// Two MLPs: "bottom" {numeric, ..., dim}, or none without numeric features; "top"
// {dim + V (V - 1) / 2, ..., 1} for V vectors, one of each embedded feature and the bottom's
// output. Each pair of vectors has one product.
ModelSpec DescribeDlrm(const Job& job, const ModelInputs& inputs);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_DLRM_SPEC_H_
